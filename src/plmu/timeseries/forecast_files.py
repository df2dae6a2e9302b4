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
from plmu.core.systems import DelayNetwork
from plmu.errors import DataError, RunError
from plmu.nn import CovariateForecast, LookbackForecast
from plmu.runs.experiment import Predictions
from plmu.runs.folder import read_json, write_json
from plmu.runs.outputs import Outputs
from plmu.runs.outputs import write as write_outputs
from plmu.timeseries import series
from plmu.timeseries.clock import Clock
from plmu.timeseries.columns import Columns
from plmu.timeseries.windows import Windows
from plmu.timeseries.scores import Intervals
from plmu.timeseries.season import aligned
from plmu.timeseries.series import Piece, SeriesConfig, SeriesData

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
    covariates: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the numbers of a sample: values, covariates of that step, and those of each step ahead."""
        ahead = (f"{name} +{step}" for step in range(1, self.horizon + 1) for name in self.covariates)
        return (*self.values, *self.covariates, *ahead)

    def told(self, course: bool = False) -> str:
        """In words. `course` says that one over the week and the year is tried, too."""
        season = f"a season of {self.season} steps is tried" if self.season else "no season found"
        if course:
            season += f"; a course over the {'year' if self.clock.calendar == 'week' else 'week and the year'} is tried"
        held = DelayNetwork(self.order, self.theta).describe().cycles_per_window
        return (
            f"model: forecasts {self.horizon} steps from a look-back of {self.lookback}; order {self.order} over"
            f" θ = {self.theta:g} steps, which holds up to {held:.3g} cycles a window; {season}"
        )

    def described(self) -> dict[str, Any]:
        found = dataclasses.asdict(self)
        if not self.covariates:  # as before there were any, so that older runs are known again
            del found["covariates"]
        return found

    @classmethod
    def read(cls, folder: Path) -> Settings:
        try:
            found = dict(read_json(folder / SERIES))
            clock = Clock(**found.pop("clock"))
            covariates = tuple(found.get("covariates", ()))  # which older runs do not have
            return cls(**{**found, "values": tuple(found["values"]), "covariates": covariates}, clock=clock)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{folder / SERIES} is missing or damaged ({type(error).__name__}): copy it again") from None


def write_model(
    folder: Path, data: SeriesData, settings: Settings, model: LookbackForecast, intervals: Intervals
) -> None:
    """Save the model, which starts at the step after the last row, and what its numbers mean."""
    after = max(one.start + len(one) for one in data.pieces)
    final = type(model)(**{**model.config, "phase": after % max(model.season, 1)})
    final.load_state_dict(model.state_dict())
    plmu.save(final.eval(), folder / MODEL)
    columns = settings.values if settings.covariates else ()
    outputs = Outputs(inputs=settings.inputs, time=settings.time or "", horizon=settings.horizon, columns=columns)
    write_outputs(folder, outputs)
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


def predict(folder: Path, config: SeriesConfig, file: Path, future: Path | None = None) -> Predictions:
    """The steps after the last row of each series of a file, with their times and intervals."""
    settings = Settings.read(folder)
    if future is not None and not settings.covariates:
        raise RunError(f"--data.future is for covariates, and {folder} was trained without: give --data.file alone")
    intervals = read_intervals(folder, settings.lookback)
    model = plmu.load(folder / MODEL)
    if not isinstance(model, LookbackForecast):
        raise RunError(f"{folder / MODEL} is not a model of forecast")
    known = Columns(settings.time, settings.values, settings.id, covariates=settings.covariates), settings.clock
    data = series.load(dataclasses.replace(config, file=file), known, future)
    last = list({one.name: one for one in data.pieces}.values())  # of each series its last piece
    for piece in last:
        _check_ahead(piece, settings, file, future)
    windows = Windows.of(last)
    origins = windows.offsets + torch.tensor([len(one) - 1 for one in last])
    forecasts: list[torch.Tensor] = []
    spreads: list[torch.Tensor] = []
    with torch.no_grad():
        batch = max(1, 2**22 // (settings.lookback * model.channels))
        for some in origins.split(batch):
            one = windows.take(some, settings.lookback, 0)
            pieces = last[len(forecasts) * batch :][:batch]
            steps, rest, effect = one.steps, one.windows, None
            if isinstance(model, CovariateForecast):
                effect = model.effect(torch.stack([_covariates(model, piece) for piece in pieces]))
                rest = model.rest(rest, effect[..., : model.lookback])
            if model.season and settings.clock.kind == "rows":  # where in the season they are is seen from the values
                steps = torch.tensor([_phase(model, window) for window in rest])
            rows = torch.tensor([len(piece) for piece in pieces])
            spreads.append(intervals.spread(one.windows, rows).expand(len(some), model.channels, 1))
            phase = steps % max(model.season, 1)
            if isinstance(model, CovariateForecast) and effect is not None:
                forecasts.append(model.forecast(one.windows, phase, effect))
            else:
                forecasts.append(model.read(one.windows, phase))
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


def _covariates(model: CovariateForecast, piece: Piece) -> torch.Tensor:
    """(covariates, lags - 1 + lookback + horizon): before and after the last row of a piece."""
    assert piece.covariates is not None
    rows = np.arange(1 - model.lags - model.lookback, model.horizon) + len(piece)
    found = piece.covariates[np.maximum(rows, 0)] - piece.covariates[len(piece) - 1]
    return torch.tensor(found.T, dtype=torch.float32)


def _check_ahead(piece: Piece, settings: Settings, file: Path, future: Path | None) -> None:
    """Raise unless the covariates of a series are known as far as it is forecast."""
    if piece.covariates is None:
        return
    missing = np.isnan(piece.covariates[len(piece) :][: settings.horizon])
    for name, absent in zip(settings.covariates, missing.T, strict=True):
        count = int(absent.argmax()) if absent.any() else len(absent)
        if count < settings.horizon:
            last = np.array([piece.start + len(piece) - (0 if settings.clock.kind == "rows" else 1)])
            after = f"{'row ' if settings.clock.kind == 'rows' else ''}{settings.clock.times(last, piece.offset)[0]}"
            of = f" of series {piece.name!r}" if piece.name else ""
            values = ", ".join(settings.values[:4])
            how = "" if future else f": add rows in which {values} may be empty, or give another file as --data.future"
            raise DataError(
                f"{future or file}, column {name!r}: {settings.horizon} values are needed after {after}, the last row"
                f"{of}, and there {'is' if count == 1 else 'are'} {count}{how}"
            )


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
