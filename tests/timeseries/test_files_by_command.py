"""The files of `test_readings` through `plmu train forecast`, `plmu predict` and `plmu train classify`: they are used,
or the command says what to do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forecasts import table
from program import refused
from test_readings import FORMS, REFUSED, TIMES, VALUES, N, runs, zipped

from plmu.cli.program import main
from plmu.timeseries import read_series

OPTIONS = ["--horizon", "2", "--intervals", "--model.lookback", "4", "--model.order", "2", "--model.pooled", "False"]
FILES: dict[str, tuple[str, str | bytes]] = {
    **{way: ("my.csv", content) for way, (content, _, _) in TIMES.items()},
    **{form: (name, content) for form, (name, content, _) in FORMS.items()},
}


def write(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("form", FILES)
def test_a_file_is_forecast_by_the_command(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, content = FILES[form]
    write(Path(name), content)
    main(["train", "forecast", name, "--name", "run", *OPTIONS, "--quiet"])
    capsys.readouterr()
    main(["predict", "runs/run-seed0", name, "--quiet"])
    rows = table(capsys.readouterr().out)
    data = read_series(name)
    (piece,) = data.pieces
    ahead = piece.start + N + np.arange(2)
    assert [next(iter(row.values())) for row in rows] == data.clock.times(ahead, piece.offset)
    assert all(min(VALUES) - 20 < float(list(row.values())[1]) < max(VALUES) + 20 for row in rows)


@pytest.mark.parametrize("form", REFUSED)
def test_the_command_says_what_is_not_understood(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, content, _ = REFUSED[form]
    write(Path(name), content)
    assert name in refused(["train", "forecast", name, *OPTIONS], capsys)
    assert not Path("runs").exists() or not list(Path("runs").glob("*/model.plmu"))


def rows_of_runs() -> list[dict[str, str]]:
    names, *rows = runs(False, "id").strip().split("\n")
    return [dict(zip(names.split(","), row.split(","), strict=True)) for row in rows]


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rows = rows_of_runs()
    values = np.array([[float(row["x"]), float(row["y"])] for row in rows]).reshape(12, 30, 2)
    return values, np.array([row["kind"] for row in rows[::30]])


def as_npz(path: Path) -> None:
    values, labels = arrays()
    np.savez(path, X=values, y=labels)


def as_folder(path: Path) -> None:
    for number, (values, label) in enumerate(zip(*arrays(), strict=True)):
        (path / label).mkdir(parents=True, exist_ok=True)
        rows = "".join(f"{x};{y}\n" for x, y in values)
        write(path / label / f"{number}.csv.gz", gzip.compress(f"x;y\n{rows}".encode()))


def as_rows(separator: str, label_first: bool) -> str:
    lines = []
    for values, label in zip(*arrays(), strict=True):
        cells = [str(x) for x in values[:, 0]]
        lines.append(separator.join([label, *cells] if label_first else [*cells, label]))
    return "\n".join([*lines, ""])


LONG = runs(False, "id")
HOLES = "\n".join(
    ",".join([*line.split(",")[:2], "#N/A", *line.split(",")[3:]]) if i % 40 == 7 else line
    for i, line in enumerate(LONG.split("\n"))
)
KIND = ["--data.label", "kind"]
LABELLED: dict[str, tuple[str, str | bytes | Callable[[Path], None], list[str]]] = {
    "long": ("my.csv", LONG, KIND),
    "shuffled": ("my.csv", runs(True, "id"), KIND),
    "asked for": ("my.csv", runs(False), ["--data.id", "run", *KIND]),
    "missing numbers": ("my.csv", HOLES, KIND),
    "semicolons": ("my.csv", LONG.replace(",", ";").replace(".", ","), KIND),
    "a line of units": ("my.csv", LONG.replace("kind\n", "kind\n,s,V,V,\n", 1), KIND),
    "UTF-16": ("my.txt", LONG.encode("utf-16"), KIND),
    "gzip": ("my.csv.gz", gzip.compress(LONG.encode()), KIND),
    "zip": ("my.zip", zipped(a_csv=LONG), KIND),
    "JSON": ("my.json", json.dumps(rows_of_runs()), KIND),
    "JSON lines": ("my.jsonl", "\n".join(map(json.dumps, rows_of_runs())), KIND),
    "rows": ("my.csv", as_rows(",", False), ["--data.label", "column 31"]),
    "UCR": ("my.tsv", as_rows("\t", True).replace("a\t", "1\t").replace("b\t", "2\t"), []),
    "npz": ("my.npz", as_npz, []),
    "folder": ("my", as_folder, []),
}


@pytest.mark.parametrize("form", LABELLED)
def test_a_file_of_labelled_series_is_classified_by_the_command(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, content, options = LABELLED[form]
    if callable(content):
        content(Path(name))
    else:
        write(Path(name), content)
    small = ["--model.projections", "4", "--model.thresholds", "3"]
    main(["train", "classify", name, "--name", "run", "--data.test", "0.34", *options, *small, "--quiet"])
    result = json.loads(Path("runs/run-seed0/result.json").read_text())
    assert result["test"]["accuracy"] == 1.0
    assert np.array(json.loads(Path("runs/run-seed0/classify.json").read_text())["confusion"]["counts"]).sum() == 4


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (runs(False), "give --data.id run"),
        ("id,t,x,target\n" + "".join(f"{i},{t},{t},{i / 7}\n" for i in range(12) for t in range(9)), "regression"),
        ("x,y\n1,2\n2,3\n", "no class has two series"),
        ("[1, 2", "my.csv"),
        ("", "my.csv is empty"),
    ],
)
def test_the_command_says_what_is_not_understood_of_labelled_series(
    content: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("my.csv"), content)
    words = [
        "train",
        "classify",
        "my.csv",
        *(["--data.label", content.split("\n")[0].split(",")[-1]] if content[:2] in ("id", "ru") else []),
    ]
    assert sentence.lower() in refused(words, capsys).lower()
