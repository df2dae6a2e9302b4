"""Forecasts as a task: splits without a look ahead, scores, and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forecasts import written

import plmu
from plmu.clock import Clock
from plmu.timeseries.choosing import Options, rolling
from plmu.timeseries.columns import Columns
from plmu.timeseries.forecast_experiment import Forecast, ForecastTask, prepare
from plmu.timeseries.forecast_models import ClosedModel, WindowLSTM, equal_size
from plmu.timeseries.intervals import Intervals, errors_of
from plmu.timeseries.scores import last_value, score
from plmu.timeseries.series import Piece, SeriesConfig, SeriesData
from plmu.timeseries.split import Split, Wanted

HORIZON = 6


def test_an_lstm_of_equal_size() -> None:
    for wanted, horizon in ((2304, 24), (500, 6), (60, 12)):
        network = WindowLSTM(equal_size(wanted, horizon), horizon, 10)
        count = sum(one.numel() for one in network.parameters())
        smaller = WindowLSTM(max(1, equal_size(wanted, horizon) - 1), horizon, 10)
        step = count - sum(one.numel() for one in smaller.parameters())
        assert abs(count - wanted) <= max(step, horizon + 20)


def task_of(folder: Path, content: str, **options: Any) -> ForecastTask:
    (folder / "load.csv").write_text(content)
    config: Any = Forecast().defaults("closed")
    config.data = SeriesConfig(file=folder / "load.csv")
    config.horizon = (HORIZON,)
    for name, value in options.items():
        setattr(config, name, value)
    return prepare(config)


def test_the_future_does_not_leak(tmp_path: Path) -> None:
    """Other test rows change neither the model nor its scale, nor what was proposed."""
    task = task_of(tmp_path, written())
    first = Forecast().build(task.config, task)
    lines = written().splitlines()
    start = 1 + task.split.cuts[0][1]
    changed = [f"{line.split(',')[0]},{7.5 * i % 11},{i}" for i, line in enumerate(lines[start:])]
    other = task_of(tmp_path, "\n".join([*lines[:start], *changed, ""]))
    second = Forecast().build(other.config, other)
    assert other.split.settings == task.split.settings
    for one, two in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    last = int(task.train[0].max()) + HORIZON
    assert last < task.split.cuts[0][0] <= int(task.valid[0].min()) + 1
    assert int(task.valid[0].max()) + HORIZON < task.split.cuts[0][1] <= int(task.test[0].min()) + 1


def test_a_backtest_sees_no_future_of_any_series(tmp_path: Path) -> None:
    """Series that begin at different times are cut at the same ones."""
    lines = written(240).splitlines()
    rows = [f"{line},a" for line in lines[1:]] + [f"{line},b" for line in lines[121:]]
    task = task_of(tmp_path, "\n".join([f"{lines[0]},place", *rows, ""]))
    pieces, windows = task.split.data.pieces, task.split.windows
    assert [piece.start for piece in pieces] == [0, 120]
    folds = list(rolling(task.split, Options(), [len(piece) for piece in pieces], 2))
    assert len(folds) == 2
    for _, fitted, origins in folds:
        ends = {piece.start + end + 1 for piece, (_, end) in zip(fitted.data.pieces, fitted.cuts, strict=True)}
        assert len(ends) == 1
        assert int(windows.take(origins, 1, 0).steps.min()) + 2 >= ends.pop()


def test_scores_are_those_of_a_loop_over_windows(tmp_path: Path) -> None:
    lines = written().splitlines()
    del lines[330:332]  # a gap among the test rows, which is not scored
    task = task_of(tmp_path, "\n".join([*lines, ""]))
    model: Any = Forecast().build(task.config, task)
    found = task.scores(model, task.test)
    piece, length = task.split.data.pieces[0], task.split.length
    squares, naive = [], []
    for origin in task.test[0].tolist():
        first = max(0, origin + 1 - length)
        past = piece.values[first : origin + 1]
        out = task.fitted.predict(past, start=first)
        future = piece.values[origin + 1 : origin + 1 + HORIZON]
        seen = piece.measured[origin + 1 : origin + 1 + HORIZON]
        squares += (((out - future) / task.split.scale.numpy()) ** 2)[seen].tolist()
        naive += (((past[-1] - future) / task.split.scale.numpy()) ** 2)[seen].tolist()
    assert found["mse"] == pytest.approx(np.mean(squares), rel=1e-4)
    assert found["last_value_mse"] == pytest.approx(np.mean(naive), rel=1e-4)
    assert len(squares) < 2 * HORIZON * len(task.test[0])


def test_settings_can_be_set(tmp_path: Path) -> None:
    task = task_of(tmp_path, written(), model=ClosedModel(lookback=20, order=7, theta=30.0, season=0, alpha=1.0))
    model: Any = Forecast().build(task.config, task)
    assert (model.lookback, model.order, model.config["theta"], model.season) == (20, 7, 30.0, 0)
    assert "seasonal last value" not in task.baselines
    assert isinstance(model, plmu.nn.LookbackForecast)


def test_intervals_are_quantiles_of_errors() -> None:
    """Of 99 errors the 80 % interval reaches from the 10th to the 90th, and it always holds the forecast."""
    errors = torch.randperm(99, generator=torch.Generator().manual_seed(0)).float() - 30
    pieces = [Piece("", 0, np.stack([np.zeros(99), errors.numpy()], 1).reshape(-1, 1), np.ones((198, 1), bool))]
    data = SeriesData(Columns(None, ("v",), None), Clock(), pieces)
    split = Split.of_file(data, Wanted(1, lookback=1, season=0))
    windows, origins = split.windows, torch.arange(0, 198, 2)
    found = Intervals((0.8,), False, 1, torch.zeros(1))
    filled = found.fitted(errors_of(found, [(last_value(1), origins)], windows, 1, 1))
    assert (float(filled.low), float(filled.high)) == (9 - 30, 89 - 30)
    above = found.fitted(errors_of(found, [(lambda one: one.windows - 100, origins)], windows, 1, 1))
    assert (float(above.low), float(above.high)) == (0.0, 189 - 30)
    scores = score({"model": last_value(1)}, split, origins, filled)
    assert scores.coverage == [pytest.approx(81 / 99)]
