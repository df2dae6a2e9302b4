"""What forecasts say: intervals of short series, digits, the plot."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from forecasts import written
from torch import nn

from plmu.cli.program import main
from plmu.errors import DataError
from plmu.timeseries.forecast_experiment import Forecast, ForecastConfig, ForecastTask
from plmu.timeseries.forecast_files import as_text, plot_forecasts
from plmu.timeseries.forecast_models import GradientModel
from plmu.timeseries.intervals import Intervals
from plmu.timeseries.scores import model_method
from plmu.training.config import TrainingConfig


def fitted(folder: Path, content: str) -> tuple[ForecastTask, nn.Module]:
    (folder / "load.csv").write_text(content)
    experiment = Forecast()
    config = experiment.defaults("closed")
    config.data.file = folder / "load.csv"  # type: ignore[attr-defined]
    task = experiment.task(config)
    assert isinstance(task, ForecastTask)
    return task, experiment.build(config, task)


def test_rows_that_fill_a_short_window_do_not_narrow_its_interval() -> None:
    found = Intervals((0.8,), True, 50, torch.zeros(1))
    short = torch.randn(1, 1, 10, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([short[..., :1].expand(-1, -1, 40), short], dim=-1)
    alone = Intervals((0.8,), True, 10, torch.zeros(1)).spread(short)
    torch.testing.assert_close(found.spread(padded, torch.tensor([10])), alone)
    longer = torch.cat([torch.full((1, 1, 30), 9.0), padded], dim=-1)  # the seasonal baseline may need more rows
    torch.testing.assert_close(found.spread(longer), found.spread(padded))


def test_an_interval_of_a_single_row_is_a_number() -> None:
    found = Intervals((0.8,), True, 1, torch.full((1,), 0.5))
    assert found.spread(torch.ones(2, 1, 1)).tolist() == [[[0.5]], [[0.5]]]


def test_small_changes_of_large_values_are_written() -> None:
    values, levels = np.array([[1e12 + 0.5], [1 / 3]]), np.array([1e12, 0.0])
    assert as_text(values, levels) == ["1000000000000.5", "0.333333333"]


def test_only_the_closed_form_is_fitted_again() -> None:
    with pytest.raises(ValueError, match="refit is for --model closed"):
        ForecastConfig(GradientModel(), TrainingConfig(), refit=True)


def test_the_legend_is_above_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = fitted(tmp_path, written())
    with monkeypatch.context() as patch:
        patch.setattr(plt, "close", lambda *_: None)
        plot_forecasts(tmp_path / "forecast.png", task.split, model, task.intervals(model))
    figure = plt.gcf()
    axis = figure.axes[0]
    legend = axis.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 >= axis.get_window_extent().y1
    assert legend.get_window_extent().y1 <= axis.title.get_window_extent().y0
    plt.close(figure)


def test_intervals_of_a_small_series_are_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = ["time,shop,sales"]
    for day in range(200):
        sizes = {"small": 0.001, "large": 1000.0}
        rows += [f"{np.datetime64('2024-01-01') + day},{shop},{size * rng.normal()}" for shop, size in sizes.items()]
    task, model = fitted(tmp_path, "\n".join([*rows, ""]))
    intervals = task.intervals(model)
    assert float(intervals.floor[0]) < 1e-5
    small, large = (
        torch.from_numpy(piece.values[None, -50:].swapaxes(1, 2).copy()) for piece in task.split.data.pieces
    )
    ratio = float(intervals.spread(large) / intervals.spread(small))
    assert 1e5 < ratio < 1e7
    assert task.scores(model, task.test)["in_80_%_interval"] < 1


def test_a_column_that_varies_too_little_is_refused(tmp_path: Path) -> None:
    rows = [f"{i},{1e-24 * np.sin(i)}" for i in range(100)]
    with pytest.raises(DataError, match=r"column 'v' of .* varies by 7e-25, too little to compute with: multiply it"):
        fitted(tmp_path, "\n".join(["t,v", *rows, ""]))


def test_series_at_different_levels_keep_their_digits(tmp_path: Path) -> None:
    wave = np.sin(2 * np.pi * np.arange(200) / 7)
    days = np.datetime64("2024-01-01") + np.arange(200)
    rows = [
        f"{day},{name},{level + value}"
        for name, level in (("a", 0.0), ("b", 1e9))
        for day, value in zip(days, wave, strict=True)
    ]
    task, model = fitted(tmp_path, "\n".join(["time,id,v", *rows, ""]))
    windows, settings = task.split.windows, task.split.settings
    assert settings.season == 7
    low, high = windows.values[0, :200], windows.values[0, 200:]
    torch.testing.assert_close(low, high, atol=1e-6, rtol=0)
    examples = windows.take(torch.tensor([150, 350]), task.split.length, settings.horizon)
    assert examples.steps.tolist() == [150, 150]
    forecast = model_method(model)(examples)
    torch.testing.assert_close(forecast[0], forecast[1], atol=1e-4, rtol=0)
    assert float(task.split.scale[0]) == pytest.approx(wave[:140].std(), rel=1e-6)  # and not the distance of the levels


def test_the_end_of_a_forecast_fits_a_terminal_of_24_rows(
    load_folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """From the head of its scores to the prompt, in lines of 80 letters, also after a long backtest."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(load_folder / "load.csv", tmp_path)
    main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "6", "--backtest", "20"])
    lines = capsys.readouterr().out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("test: "))
    assert lines.index("rolling backtest:") < head
    assert sum(-(-len(line) // 80) for line in lines[head:]) < 24
