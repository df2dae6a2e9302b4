"""`plmu bench`: where it runs, what it passes on, and which files it writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plmu.bench import run, show
from plmu.bench.measure import Keep
from plmu.cli import bench_command
from plmu.cli.program import COMMANDS


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Kind, device and rounds of every benchmark that was run, in an empty folder; nothing is measured."""
    found: list[tuple[str, str, int]] = []

    def measuring(kind: str) -> Any:
        def measure(device: str, rounds: int, keep: Keep) -> dict[str, Any]:
            found.append((kind, device, rounds))
            return {"rows": [{"kind": kind}]}

        return measure

    monkeypatch.setattr(run, "KINDS", {kind: measuring(kind) for kind in run.KINDS})
    monkeypatch.setattr(run, "copy_bandwidth", lambda device: 5.0)
    monkeypatch.setattr(run, "provenance", lambda device: {"hardware": str(device)})
    monkeypatch.setattr(show, "figure", lambda kind, found, path: path.write_text(kind))
    monkeypatch.chdir(tmp_path)
    return found


def test_the_command_names_every_kind() -> None:
    assert tuple(run.KINDS) == bench_command.KINDS


def test_a_gpu_is_taken_if_there_is_one_but_streams_run_on_the_cpu(
    asked: list[tuple[str, str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        for kind in run.KINDS:
            COMMANDS["bench"]([kind])
    gpu = ["cuda"] * 4 + ["cpu"] * 6
    assert asked == list(zip([*run.KINDS, *run.KINDS], gpu, [9] * 10, strict=True))
    assert sorted(path.name for path in Path("bench").iterdir() if path.suffix == ".json") == [
        "bench-algorithms-cpu.json", "bench-algorithms-cuda.json",
        "bench-complexity-cpu.json", "bench-complexity-cuda.json", "bench-layers-cpu.json", "bench-layers-cuda.json",
        "bench-streaming-cpu.json", "bench-training-time-cpu.json", "bench-training-time-cuda.json",
    ]  # fmt: skip


def test_the_device_and_the_folder_asked_for(
    asked: list[tuple[str, str, int]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    out = Path("deep") / "down"
    for words in (["--device", "cuda:1", "--rounds", "1"], ["--device", "cpu"]):
        COMMANDS["bench"](["layers", *words, "--out", str(out)])
    assert asked == [("layers", "cuda:1", 1), ("layers", "cpu", 9)]
    assert json.loads((out / "bench-layers-cuda.json").read_text(encoding="utf-8")) == {
        "benchmark": "layers",
        "command": "plmu bench layers --device cuda:1 --rounds 1",
        "machine": {"hardware": "cuda:1"},
        "rows": [{"kind": "layers"}],
        "copy bandwidth, bytes per second": 5.0,
    }
    assert (out / "bench-layers-cuda.png").read_text() == "layers"
    assert f"wrote {out / 'bench-layers-cuda'}.json and .png" in capsys.readouterr().out
    assert (out / "bench-layers-cpu.json").read_text().startswith('{\n "benchmark"'), "one line a field"


@pytest.mark.usefixtures("asked")
def test_what_there_is_after_every_row_is_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked as unfinished, until it is whole."""
    path, seen = Path("bench") / "bench-layers-cpu.json", []

    def measure(device: str, rounds: int, keep: Keep) -> dict[str, Any]:
        found: dict[str, Any] = {"rows": []}
        for number in range(2):
            found["rows"].append({"number": number})
            keep(found)
            seen.append(json.loads(path.read_text(encoding="utf-8")))
        return found

    monkeypatch.setitem(run.KINDS, "layers", measure)
    COMMANDS["bench"](["layers", "--device", "cpu", "--rounds", "2"])
    first, second = seen
    assert (first["rows"], second["rows"]) == ([{"number": 0}], [{"number": 0}, {"number": 1}])
    assert first["unfinished"] is second["unfinished"] is True
    assert second["command"] == "plmu bench layers --device cpu --rounds 2"
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole.pop("copy bandwidth, bytes per second") == 5.0
    second.pop("unfinished")
    assert whole == second


@pytest.mark.usefixtures("asked")
def test_without_matplotlib_the_file_is_written_and_the_figure_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def figure(*given: object) -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr(show, "figure", figure)
    COMMANDS["bench"](["layers", "--device", "cpu"])
    assert [path.name for path in Path("bench").iterdir()] == ["bench-layers-cpu.json"]
    path = Path("bench") / "bench-layers-cpu.json"
    assert f"wrote {path}; a figure needs matplotlib: pip install matplotlib" in capsys.readouterr().out
