"""`plmu demo`: the main job on data that is included."""

import csv
import re
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import plmu
from plmu.cli.program import main

DATA = files("plmu.cli") / "demo_data" / "mauna-loa-co2.csv"


def test_it_does_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--out", str(tmp_path)])
    output = capsys.readouterr().out
    assert max(len(line.replace(str(tmp_path), "demo")) for line in output.splitlines()) <= 80
    for word in ("fit", "test", "plot", "stream", "export", "next:"):
        assert word in output
    model = plmu.load(tmp_path / "co2.plmu")
    kind = "the memory" if isinstance(model, plmu.nn.LookbackForecast) else "linear maps and other readouts"
    assert f"{kind} of the last {model.lookback} weeks\n" in output
    errors = {
        name: float(line.split(name)[1].split()[0])
        for line in output.splitlines()
        for name in ("plmu  ", "last value  ")
        if line.strip().startswith(name)
    }
    assert errors["plmu  "] < 0.6 < 2 < errors["last value  "]  # ppm
    for name in ("co2.csv", "forecast.png", "forecast.csv", "co2.plmu", "c/co2.c"):
        assert str(tmp_path / name.split("/")[0]) in output
        assert (tmp_path / name).stat().st_size > 1000
    (difference,) = re.findall(r"differs from the forecast of the file by (\S+) ppm", output)
    assert float(difference) < 1e-3  # of values near 370, in float32
    assert plmu.Stream(model).push(torch.tensor([340.0])).shape == (26,)


def test_the_data_is_the_record_of_mauna_loa() -> None:
    pytest.importorskip("statsmodels")
    original = (files("statsmodels.datasets.co2") / "co2.csv").read_text(encoding="utf-8")
    rows = [(row["date"], row["co2"].strip()) for row in csv.DictReader(original.splitlines())]
    included = [(row["date"], row["co2"]) for row in csv.DictReader(DATA.read_text(encoding="utf-8").splitlines())]
    assert [(date.replace("-", ""), value) for date, value in included] == rows
    assert len(DATA.read_bytes()) < 60_000
