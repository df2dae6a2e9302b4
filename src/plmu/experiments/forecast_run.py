"""The files of a run of forecast, and forecasts from them: series.json says what the model reads, intervals.json how
far measured values were from forecasts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from plmu.data import series
from plmu.data.clock import Clock
from plmu.data.columns import Columns
from plmu.data.series import SeriesConfig, SeriesData
from plmu.estimators.season import aligned
from plmu.experiments.base import Predictions
from plmu.experiments.forecast_scores import Intervals
from plmu.experiments.forecast_windows import Windows
from plmu.experiments.outputs import Outputs
from plmu.experiments.outputs import write as write_outputs
from plmu.nn import LookbackForecast
from plmu.systems import DelayNetwork
from plmu.training.errors import RunError
from plmu.training.results import read_json, write_json

SERIES, INTERVALS, MODEL = "series.json", "intervals.json", "model.plmu"


@dataclass(frozen=True)
class Settings:
    """What a model reads and forecasts, in steps of the clock."""

    time: str | None
    values: tuple[str, ...]
    id: str | None
    clock: Clock
    horizon: int
    lookback: int
    order: int
    theta: float
    season: int

    def told(self) -> str:
        """In words."""
        season = f"a season of {self.season} steps is tried" if self.season else "no season found"
        held = DelayNetwork(self.order, self.theta).describe().cycles_per_window
        return (
            f"model: forecasts {self.horizon} steps from a look-back of {self.lookback}; order {self.order} over"
            f" θ = {self.theta:g} steps, which holds up to {held:.3g} cycles a window; {season}"
        )

    def described(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, folder: Path) -> Settings:
        try:
            found = dict(read_json(folder / SERIES))
            clock = Clock(**found.pop("clock"))
            return cls(**{**found, "values": tuple(found["values"])}, clock=clock)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{folder / SERIES} is missing or damaged ({type(error).__name__}): copy it again") from None


def write_model(
    folder: Path, data: SeriesData, settings: Settings, model: LookbackForecast, intervals: Intervals
) -> None:
    """Save the model, which starts at the step after the last row, and what its numbers mean."""
    after = max(one.start + len(one) for one in data.pieces)
    final = LookbackForecast(**{**model.config, "phase": after % max(model.season, 1)})
    final.load_state_dict(model.state_dict())
    plmu.save(final.eval(), folder / MODEL)
    write_outputs(folder, Outputs(inputs=settings.values, time=settings.time or "", horizon=settings.horizon))
    content = {
        "levels": intervals.levels,
        "relative": intervals.relative,
        "floor": intervals.floor.tolist(),
        "low": intervals.low.tolist(),
        "high": intervals.high.tolist(),
    }
    write_json(folder / INTERVALS, content)


def read_intervals(folder: Path, lookback: int) -> Intervals:
    try:
        found = read_json(folder / INTERVALS)
        floor, low, high = (torch.tensor(found[name]) for name in ("floor", "low", "high"))
        return Intervals(tuple(found["levels"]), bool(found["relative"]), lookback, floor, low, high)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / INTERVALS} is missing or damaged ({type(error).__name__}): copy it again") from None


def predict(folder: Path, config: SeriesConfig, file: Path) -> Predictions:
    """The steps after the last row of each series of a file, with their times and intervals."""
    settings = Settings.read(folder)
    intervals = read_intervals(folder, settings.lookback)
    model = plmu.load(folder / MODEL)
    if not isinstance(model, LookbackForecast):
        raise RunError(f"{folder / MODEL} is not a model of forecast")
    known = Columns(settings.time, settings.values, settings.id), settings.clock
    data = series.load(dataclasses.replace(config, file=file), known)
    last = list({one.name: one for one in data.pieces}.values())  # of each series its last piece
    windows = Windows.of(last)
    origins = windows.offsets + torch.tensor([len(one) - 1 for one in last])
    forecasts: list[torch.Tensor] = []
    spreads: list[torch.Tensor] = []
    with torch.no_grad():
        batch = max(1, 2**22 // (settings.lookback * model.channels))
        for some in origins.split(batch):
            one = windows.take(some, settings.lookback, 0)
            steps = one.steps
            if model.season and settings.clock.kind == "rows":  # where in the season they are is seen from the values
                steps = torch.tensor([_phase(model, window) for window in one.windows])
            rows = torch.tensor([len(piece) for piece in last[len(forecasts) * batch :][:batch]])
            spreads.append(intervals.spread(one.windows, rows).expand(len(some), model.channels, 1))
            forecasts.append(model.read(one.windows, steps % max(model.season, 1)))
    ahead = torch.cat(forecasts).double() + windows.level[:, :, None]  # (series, channels, horizon)
    spread = torch.cat(spreads)
    columns: dict[str, Any] = {}
    if settings.id is not None or len({one.name for one in last}) > 1:
        columns[settings.id or "series"] = [one.name for one in last for _ in range(settings.horizon)]
    after = np.arange(1, settings.horizon + 1)
    counted = 1 if settings.clock.kind == "rows" else 0  # rows are counted from 1
    times = [settings.clock.times(one.start + len(one) - 1 + after + counted, one.offset) for one in last]
    columns["row" if settings.clock.kind == "rows" else settings.time or "row"] = [
        time for some in times for time in some
    ]
    for channel, name in enumerate(settings.values):
        origin = windows.level[:, channel, None]
        columns[name] = _written(ahead[:, channel], origin)
        for place, level in enumerate(intervals.levels):
            for side, quantiles in (("low", intervals.low), ("high", intervals.high)):
                moved = ahead[:, channel] + spread[:, channel] * quantiles[place, channel]
                columns[f"{name} {side} {100 * level:g}"] = _written(moved, origin)
    short = sum(len(one) < settings.lookback for one in last)
    if short:
        data.notes.append(f"{short:,} series shorter than the look-back of {settings.lookback} steps: less certain")
    return Predictions(columns, data.notes)


def _phase(model: LookbackForecast, window: torch.Tensor) -> int:
    """Where in the season the last row of a window (channels, time) is."""
    scale = model.season_pattern.square().mean(0).sqrt().clamp(min=1e-30)
    own = window.std(1, correction=0).clamp(min=1e-30)  # series have amplitudes of their own
    return aligned(window.mT / own, model.season_pattern / scale) + window.shape[1] - 1


def _written(values: torch.Tensor, level: torch.Tensor) -> list[str]:
    """Values (series, horizon) with nine digits, and with more where they differ little from the level (series, 1)."""
    ratios = values.abs().amax(1) / (values - level).abs().amax(1).clamp(min=1e-300)
    digits = (9 + ratios.clamp(1.0, 1e15).log10().floor()).clamp(max=15).int().tolist()
    return [f"{value:.{count}g}" for row, count in zip(values.tolist(), digits, strict=True) for value in row]
