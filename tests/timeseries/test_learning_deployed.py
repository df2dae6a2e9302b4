"""Forecasts that learn: from Python, as `plmu stream --learn`, and as `plmu serve --learn`, also after a kill."""

from __future__ import annotations

import asyncio
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from closeness import within
from forecasts import COUNT, HORIZON, copied_run, values, written
from starlette.testclient import TestClient

import plmu
from benchmarks import serving as script
from plmu.cli import main
from plmu.cli.stream_lines import Options, show
from plmu.errors import RunError
from plmu.nn import LearningForecast
from plmu.nn.pooled import PooledForecast
from plmu.runs import deployed
from plmu.runs.deployed import Learning
from plmu.serve import Options as ServerOptions
from plmu.serve import make_server

MORE = 420  # lines, so many that some windows are learned
EPS = torch.finfo(torch.float64).eps


def learning(half_life: float | None = None) -> Options:
    return Options(json=True, learning=Learning(half_life))


def streamed(run: Path, lines: list[str], options: Options) -> list[dict[str, Any]]:
    out = io.StringIO()
    show(run, lines, options, out)
    return [{**json.loads(line), "line": 0} for line in out.getvalue().splitlines()]


def later_lines() -> list[str]:
    """Lines after those of the training data, with a shift."""
    _, *rows = written(COUNT + MORE, COUNT).splitlines(keepends=True)
    shifted = [row.split(",") for row in rows]
    return [f"{time},{float(load) + 20 * (k > 200)},{temp}" for k, (time, load, temp) in enumerate(shifted)]


@pytest.mark.parametrize("pooled", [False, True])
def test_a_stream_of_the_estimator_learns(pooled: bool) -> None:
    rows = values(COUNT + MORE)[:, :1]
    forecaster = plmu.Forecaster(horizon=HORIZON, pooled=pooled).fit(rows[:COUNT, 0])
    stream, frozen = forecaster.stream(learn=True), forecaster.stream()
    assert isinstance(stream.model, LearningForecast) == isinstance(forecaster.model, PooledForecast | torch.nn.Module)
    with pytest.raises(ValueError, match="report is of the last forecast, and there is none"):
        plmu.Forecaster(horizon=2).fit(rows[:COUNT, 0]).stream(learn=True, start=0).report()
    first = [one.push(rows[COUNT]) for one in (stream, frozen)]
    np.testing.assert_allclose(*first, rtol=1e-5)  # nothing is learned yet
    issued, mine, of_model = [], [], []
    for at in range(COUNT + 1, COUNT + MORE):
        out, before = stream.push(rows[at]).double(), frozen.push(rows[at]).double()
        report = stream.report()
        issued.append((report.lower[:, :, 0], report.upper[:, :, 0]))
        if at + HORIZON < COUNT + MORE:
            ahead = torch.tensor(rows[at + 1 : at + 1 + HORIZON, 0])
            mine.append((out - ahead).abs().mean())
            of_model.append((before - ahead).abs().mean())
    assert report.levels == (80.0, 95.0)
    assert report.lower.shape == (2, HORIZON, 1)
    assert 0.5 < float(report.error[0]) < 3
    assert sum(mine) < 1.05 * sum(of_model)
    ahead = np.stack([rows[at + 1 : at + 1 + HORIZON, 0] for at in range(COUNT + 1, COUNT + MORE - HORIZON)])
    lower, upper = (np.stack(ends)[: len(ahead)] for ends in zip(*issued, strict=True))
    covered = ((ahead[:, None] >= lower) & (ahead[:, None] <= upper)).mean((0, 2))
    assert np.abs(covered - [0.8, 0.95]).max() < 0.04  # of 400 steps


def test_the_sums_are_those_of_the_windows_of_the_fit() -> None:
    rows = values()
    forecaster = plmu.Forecaster(horizon=HORIZON, lookback=24, pooled=False, individual=False, season=0).fit(rows)
    layer = forecaster.stream(learn=True).model
    scale = torch.tensor(forecaster.scale_)
    windows = torch.tensor(rows).unfold(0, 24, 1)[: COUNT - 24 - HORIZON + 1]
    features = layer.features(windows, torch.zeros(len(windows))) / scale[:, None]
    own = torch.einsum("nci,ncj->ij", features, features) / (2 * len(windows))
    error = (layer.gram[0] - own).abs().max() / own.abs().max()
    within(float(error), 100 * torch.finfo(torch.float32).eps)  # the windows are in float32
    assert layer.alpha == forecaster.validation_["alpha"]
    low = forecaster.fitted_.intervals((0.8, 0.95)).low
    torch.testing.assert_close(layer.low.float(), low.float())


def test_wrong_options_of_a_stream() -> None:
    forecaster = plmu.Forecaster(horizon=2).fit(values()[:, 0])
    with pytest.raises(ValueError, match="half_life=5 is for streams that learn: give learn=True"):
        forecaster.stream(half_life=5)
    for wrong in (0, -1.0, "a week", True, math.nan):
        with pytest.raises(ValueError, match="half_life must be a positive number of rows or a length of time such as"):
            forecaster.stream(learn=True, half_life=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"stream\(learn=True\) needs the series of fit"):
        plmu.Forecaster.stream(_of_run(forecaster), start=0, learn=True)


def _of_run(forecaster: plmu.Forecaster) -> plmu.Forecaster:
    forecaster.fitted_.split = None
    return forecaster


def test_lines_are_forecast_and_learned(load_run: Path) -> None:
    """As by the layer itself, with adapted intervals and running errors by column."""
    lines = later_lines()
    answers = streamed(load_run, lines, learning(100.0))
    known = deployed.load(load_run, Learning(100.0)).forecasts
    assert known is not None
    layer = known.learning
    assert layer is not None
    assert layer.half_life == 100
    assert bool(layer.gram.any())
    x = torch.tensor([[float(cell) for cell in line.split(",")[1:]] for line in lines], dtype=torch.float64)[None]
    out, state = layer(x, layer.state_at(known.first_step, torch.float64))
    last = answers[-1]
    got = torch.tensor([last["forecast"]["load"], last["forecast"]["temp"]]).mT
    torch.testing.assert_close(got, out[0, -1].unflatten(0, (HORIZON, 2)).float(), rtol=1e-5, atol=1e-5)
    report = layer.report(out[:, -1], state)
    for place, level in enumerate((80, 95)):
        for end, bounds in (("lo", report.lower), ("hi", report.upper)):
            got = torch.tensor(last["intervals"][f"temp-{end}-{level}"], dtype=torch.float64)
            torch.testing.assert_close(got, bounds[place, 0, 1])
    assert last["mae"]["load"] == pytest.approx(float(report.error[0, 0]))
    assert last["mae without learning"]["temp"] == pytest.approx(float(report.without_learning[0, 1]))
    frozen = streamed(load_run, lines, Options(json=True))
    assert "mae" not in frozen[-1]
    assert answers[0]["forecast"] == frozen[0]["forecast"]  # nothing is learned yet
    assert answers[0]["mae"] == {"load": None, "temp": None}
    torch.testing.assert_close(answers[0]["intervals"]["load-lo-80"], frozen[0]["intervals"]["load-lo-80"])
    assert last["forecast"] != frozen[-1]["forecast"]


@pytest.mark.parametrize("cut", [1, 30, 301])
def test_cut_anywhere_a_stream_goes_on_as_if_uncut(cut: int, load_run: Path, tmp_path: Path) -> None:
    lines, state = later_lines()[:330], tmp_path / "state"
    whole = streamed(load_run, lines, learning())
    options = Options(json=True, state=state, learning=Learning())
    assert streamed(load_run, lines[:cut], options) + streamed(load_run, lines[cut:], options) == whole
    with pytest.raises(plmu.FileFormatError, match="is the state of another model"):
        show(load_run, lines[:1], Options(state=state))  # without --learn


def test_what_was_learned_goes_on_after_a_long_gap(load_run: Path) -> None:
    """A new sequence begins, with the sums and the intervals of the one before."""
    lines = later_lines()
    gap = lines[:310] + [line.replace("2024-", "2028-") for line in lines[310:]]  # four years later
    answers = streamed(load_run, gap, Options(json=True, missing="hold", learning=Learning()))
    assert [place for place, answer in enumerate(answers) if answer.get("end")] == [310]
    assert answers[311]["mae"] == answers[309]["mae"]
    known = deployed.load(load_run, Learning()).forecasts
    assert known is not None
    assert known.learning is not None
    x = torch.tensor([[float(cell) for cell in line.split(",")[1:]] for line in lines], dtype=torch.float64)[None]
    _, state = known.learning(x[:, :310], known.state_at(known.first_step))
    after = known.state_at(known.clock.step_of(answers[311]["time"]), state)
    out, _ = known.learning(x[:, 310:], after)
    got = torch.tensor([answers[-1]["forecast"][name] for name in ("load", "temp")], dtype=torch.float64).mT
    torch.testing.assert_close(got, out[0, -1].unflatten(0, (HORIZON, 2)), rtol=1e-5, atol=1e-5)
    assert torch.equal(after[-1].gram, state[-1].gram)


def test_missing_and_absurd_lines(load_run: Path) -> None:
    """Forecasts go on, and the intervals do not become wide for long."""
    lines = later_lines()[:190]
    lines[100] = lines[100].replace(lines[100].split(",")[1], "", 1)
    lines[130] = ",".join([lines[130].split(",")[0], "1e9", lines[130].split(",")[2]])
    answers = streamed(load_run, lines, Options(json=True, missing="hold", learning=Learning()))
    clean = streamed(load_run, later_lines()[:190], Options(json=True, missing="hold", learning=Learning()))

    def width(answer: dict[str, Any]) -> float:
        return float(answer["intervals"]["load-hi-80"][0] - answer["intervals"]["load-lo-80"][0])

    assert len(answers) == 190
    assert width(answers[-1]) < 2 * max(width(answers[99]), width(clean[-1]))


def test_a_run_without_sums_learns_too(load_run: Path, tmp_path: Path) -> None:
    copied_run(load_run, tmp_path / "run", "stream")
    (tmp_path / "run" / "learning.plmu").unlink()
    known = deployed.load(tmp_path / "run", Learning()).forecasts
    assert known is not None
    assert known.learning is not None
    assert not bool(known.learning.gram.any())
    assert len(streamed(tmp_path / "run", later_lines()[:50], learning())) == 50


def test_damaged_sums_are_named(load_run: Path, tmp_path: Path) -> None:
    copied_run(load_run, tmp_path / "run", "stream")
    file = tmp_path / "run" / "learning.plmu"
    shutil.copy(load_run / "model.plmu", file)
    with pytest.raises(RunError, match=r"learning\.plmu"):
        deployed.load(tmp_path / "run", Learning())
    other = plmu.Forecaster(horizon=3, lookback=20, order=5, pooled=False).fit(values()[:, 0]).stream(learn=True)
    from plmu.runs.learning import write_sums

    write_sums(tmp_path / "run", other.model)
    with pytest.raises(RunError, match=r"learning\.plmu is of another run: gram must be"):
        deployed.load(tmp_path / "run", Learning())


def test_models_that_cannot_learn_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = plmu.Sequential(plmu.ParallelLMU(1, 4, order=3, theta=5.0), torch.nn.Linear(4, 1))
    plmu.save(model, tmp_path / "model.plmu")
    for command in ("stream", "serve"):
        with pytest.raises(SystemExit):
            main([command, str(tmp_path), "--learn"])
        assert "--learn is for forecasts, whose truth comes with later samples" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main([command, str(tmp_path), "--half-life", "20"])
        assert "--half-life 20 is for --learn" in capsys.readouterr().err


def test_a_server_learns_by_session(load_run: Path, tmp_path: Path) -> None:
    """Its answers are those of a stream, bit for bit also after a restart from what a killed server has left."""
    lines = later_lines()[:300]
    samples = [[float(cell) for cell in line.split(",")[1:]] for line in lines]
    expected = streamed(load_run, lines, learning())

    def ask(states: Path, part: list[list[float]]) -> dict[str, Any]:
        server = make_server(deployed.load(load_run, Learning()), ServerOptions(states=states))
        with TestClient(server.app(), base_url="http://127.0.0.1", headers={"Session-Secret": "a" * 20}) as client:
            answer: dict[str, Any] = client.post("/step", json={"samples": part, "session": "mine"}).json()
            assert server.batcher.journal is not None
            server.batcher.journal.sync()
            shutil.copytree(states, tmp_path / f"left-{len(part)}")  # before it stops, as after a kill
        return answer

    whole = ask(tmp_path / "whole", samples)
    ask(tmp_path / "first", samples[:250])
    rest = ask(tmp_path / "left-250", samples[250:])
    assert rest["outputs"] == whole["outputs"][250:]
    for key in ("intervals", "mae", "mae without learning", "times", "forecast"):
        assert rest[key] == whole[key]
    np.testing.assert_allclose(rest["intervals"]["load-hi-95"], expected[-1]["intervals"]["load-hi-95"], rtol=1e-9)
    np.testing.assert_allclose(rest["mae"]["load"], expected[-1]["mae"]["load"], rtol=1e-9)


def test_a_process_that_learns_killed_under_load(tmp_path: Path) -> None:
    """SIGKILL: the outputs before and after are those of sessions that were never killed, down to the last bit."""
    forecast = script.train_forecast(tmp_path / "forecast")
    running = script.killed(forecast, tmp_path / "states", sessions=4, kills=1, seconds=3.0, learn=True)
    counts: dict[str, Any] = asyncio.run(running)
    assert counts["outputs_with_other_bits"] == counts["lost_samples"] == counts["wrong_answers"] == 0
    assert counts["outputs_compared"] > 100


def test_a_half_life_as_a_time_or_that_of_the_estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = values()[:, 0]
    hours = np.datetime64("2024-01-01") + np.arange(len(rows)) * np.timedelta64(1, "h")
    frame = pl.DataFrame({"time": hours.astype("datetime64[us]"), "y": rows})
    forecaster = plmu.Forecaster(horizon=2, half_life="5d").fit(frame)
    assert forecaster.stream(learn=True).model.half_life == 120
    assert forecaster.stream(learn=True, half_life="2d").model.half_life == 48
    frame.write_csv(tmp_path / "hours.csv")
    monkeypatch.chdir(tmp_path)
    main(["train", "forecast", "--data.file", "hours.csv", "--horizon", "2", "--quiet"])
    run = deployed.load(Path("runs/forecast-hours-seed0"), Learning("12h"))
    assert run.forecasts is not None
    assert run.forecasts.learning is not None
    assert run.forecasts.learning.half_life == 12
