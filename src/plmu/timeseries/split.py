"""Series cut in time into rows to fit, validation rows and test rows, and the settings of a model of them.

A fit, its intervals, its scores and its plots all stand on one `Split`. It is also the place for rolling origins over
panels of many series.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from plmu.clock import Clock
from plmu.core.systems import DelayNetwork
from plmu.errors import DataError
from plmu.timeseries.columns import Columns
from plmu.timeseries.effects import LAGS
from plmu.timeseries.frames import SeriesTable, data_of
from plmu.timeseries.pooled_members import LEAST, Candidates
from plmu.timeseries.season import has_years, period
from plmu.timeseries.series import Numbers, SeriesData
from plmu.timeseries.windows import Windows

LOOKBACK, ORDER = 336, 96  # the look-back, and the highest order, that are proposed
SHORT = 400  # rows of a series that counts as short
_SEASONS, _HORIZONS, _DEFAULTS = (1, 2, 4), (2, 4), (2,)  # look-backs that are tried beside the proposed one
_APART = 1.25  # smallest ratio of two of them
SCORED = 100_000  # windows over all columns, up to which every one is scored
NO_VALIDATION = "no validation rows, since series are too short or none are wanted: nothing is chosen by them"
SPLITS = ("train", "valid", "test")
_Value = TypeVar("_Value")
_SMALLEST = 1e-15  # standard deviation of which squares are still numbers in float32


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
    window: int = 0  # of a `PooledForecast`, if one is tried
    lookbacks: tuple[int, ...] = dataclasses.field(default=(), compare=False)  # others that are tried

    @property
    def least(self) -> int:
        """Rows of the shortest window that is scored."""
        return min(self.lookback, max(LEAST, self.season)) if self.window else self.lookback

    @property
    def like(self) -> tuple[Columns, Clock]:
        """Columns and clock, to read other files alike."""
        return Columns(self.time, self.values, self.id, covariates=self.covariates), self.clock

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the numbers of a sample: values, covariates of that step, and those of each step ahead."""
        ahead = (f"{name} +{step}" for step in range(1, self.horizon + 1) for name in self.covariates)
        return (*self.values, *self.covariates, *ahead)

    def summary(self, calendar: bool = False) -> str:
        """In words. `calendar` says that a seasonal profile of the week and the year is tried, too."""
        if self.window and not self.lookbacks:
            season = f"a season of {self.season} steps" if self.season else "no season"
            return f"model: forecasts {self.horizon} steps from at most {max(self.window, self.lookback)}; {season}"
        season = f"a season of {self.season} steps is tried" if self.season else "no season found"
        if calendar:
            season += f"; a profile of the {'year' if self.clock.calendar == 'week' else 'week and the year'} is tried"
        if self.lookbacks:
            *others, longest = map(str, sorted((self.lookback, *self.lookbacks)))
            sizes = f"{', '.join(others)} and {longest}"
            return f"model: forecasts {self.horizon} steps; look-backs of {sizes} steps are tried; {season}"
        cycles = DelayNetwork(self.order, self.theta).describe().cycles_per_window
        return (
            f"model: forecasts {self.horizon} steps from a look-back of {self.lookback}; order {self.order} over"
            f" θ = {self.theta:g} steps, which holds up to {cycles:.3g} cycles a window; {season}"
        )

    def described(self) -> dict[str, Any]:
        """As JSON holds it. Without covariates the key is left out, as in runs of version 0.1."""
        content = dataclasses.asdict(self)
        del content["lookbacks"]
        if not self.covariates:
            del content["covariates"]
        return content


@dataclass(frozen=True)
class Wanted:
    """What a `Forecaster` is asked for: settings, None where they are to be found, and the rows that are not fitted."""

    horizon: int
    lookback: int | None = None
    order: int | None = None
    theta: float | None = None
    season: int | None = None
    lags: int | None = None
    validation: float = 0.0  # the number of validation rows, or below 1 their share
    test: float = 0.0  # share
    pooled: bool | None = False  # whether a `PooledForecast` is tried; None for yes without covariates

    def pools(self, data: SeriesData) -> bool:
        """Whether a `PooledForecast` is tried. It takes no covariates."""
        if self.pooled is None:
            return not data.columns.covariates
        if self.pooled and data.columns.covariates:
            raise ValueError("pooled=True takes no covariates: leave out one of the two")
        return self.pooled

    def cuts_each(self, data: SeriesData) -> bool:
        """Whether each series is cut by its own length."""
        return self.pools(data) and (bool(self.pooled) or is_several_or_short(data))


@dataclass
class Split:
    """Series, where they are cut, and the settings of a model of them."""

    data: SeriesData
    settings: Settings
    cuts: list[tuple[int, int]]  # of each piece: the numbers of rows before the validation rows and the test rows
    validation_rows: list[int]  # of each piece: the number of rows that options are chosen by
    scale: Tensor  # (channels,): the unit of errors
    lags: int | None = None  # of covariates; None where they are still to be chosen
    calendar: str = "none"  # what a row is

    @classmethod
    def of(
        cls,
        data: SeriesData,
        cuts: list[tuple[int, int]],
        validation_rows: list[int],
        wanted: Wanted,
        training: float = 1.0,
    ) -> Split:
        """Find the settings that are not given in the rows before the validation rows, a share `training` of all.

        Raises:
            ValueError: the look-back is longer than those rows.
            DataError: a file has too few rows, or a column that varies too little.
        """
        horizon = wanted.horizon
        past = [piece.values[:end] for piece, (end, _) in zip(data.pieces, cuts, strict=True)]
        room = max(map(len, past)) - horizon
        if data.config is not None and room < 4:
            raise DataError(_too_few(data, horizon, room, training))
        scale = _scale(data, past)
        season = wanted.season
        if season is None:
            scaled = [(rows - rows.mean(axis=0)) / scale for rows in past if len(rows)]
            season = period([torch.tensor(rows.T, dtype=torch.float32) for rows in scaled])
        if wanted.lookback is not None and wanted.lookback > room:
            raise ValueError(f"lookback must be at most {room} for this number of training rows, got {wanted.lookback}")
        lookback = wanted.lookback or max(1, min(max(LOOKBACK, 2 * season), room // 2))
        season = season if season < room else 0
        if wanted.lookback is None:  # windows must fit into the validation rows and the test rows, too
            for spans in (cuts, [(end, len(piece)) for (_, end), piece in zip(cuts, data.pieces, strict=True)]):
                fitting = [max(first, (end - horizon) // 2) for first, end in spans if end - first >= horizon]
                lookback = max(1, min([lookback, *([max(fitting)] if fitting else [])]))
        window, lookbacks = 0, ()  # type: tuple[int, tuple[int, ...]]
        if wanted.pools(data):
            if wanted.lookback is None and len({piece.name for piece in data.pieces}) == 1 and any(validation_rows):
                lookbacks = _lookbacks(lookback, horizon, season, room // 2)
            lengths = torch.tensor([len(rows) for rows in past]).repeat_interleave(len(data.columns.values))
            window = Candidates.of(lengths, horizon, season, max(lookbacks, default=0)).window
        order = wanted.order or order_of(lookback)
        columns = data.columns
        settings = Settings(
            columns.time,
            columns.values,
            columns.id,
            data.clock,
            horizon,
            lookback,
            order,
            float(wanted.theta or lookback),
            season,
            columns.covariates,
            window,
            lookbacks,
        )
        scales = torch.tensor(scale, dtype=torch.float32)
        return cls(data, settings, cuts, validation_rows, scales, wanted.lags, data.clock.calendar)

    @classmethod
    def of_file(cls, data: SeriesData, wanted: Wanted) -> Split:
        """All series cut at the same times; or each by its own length, if a `PooledForecast` is tried.

        Raises:
            ValueError: no rows are left to fit, or the look-back is longer than those.
            DataError: there are too few rows, or a column varies too little.
        """
        share = wanted.validation if wanted.validation < 1 else 0.0
        training = 1 - share - wanted.test
        if training <= 0:
            raise ValueError(f"validation and test must leave rows to fit, got {wanted.validation} and {wanted.test}")
        lengths = [len(piece) for piece in data.pieces]
        ends = (first_rows(data, lengths, part) for part in (training, 1 - wanted.test))
        cuts = list(zip(*ends, strict=True))
        if wanted.cuts_each(data):
            cuts = [_own_cut(rows, wanted) for rows in lengths]
            if wanted.test and not any(end < rows for (_, end), rows in zip(cuts, lengths, strict=True)):
                raise DataError(_too_few_to_test(data, wanted))
        elif wanted.validation >= 1:
            cuts = [(max(0, b - int(wanted.validation)), b) for _, b in cuts]
        return cls.of(data, cuts, _fitting(cuts, wanted.horizon), wanted, training)

    @classmethod
    def of_tables(
        cls,
        tables: list[SeriesTable],
        covariates: Sequence[str | int],
        wanted: Wanted,
        starts: Sequence[int] | None = None,
        validation_rows: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> Split:
        """Arrays and frames, each cut by its own length; the arguments are those of `Forecaster.fit`."""
        data = data_of(tables, covariates, None if starts is None else _for_each(tables, starts, "starts"))
        if names is not None:
            labels = [str(name) for name in _for_each(tables, names, "names")]
            data.pieces = [dataclasses.replace(piece, name=labels[piece.source]) for piece in data.pieces]
        if validation_rows is not None:
            _for_each(tables, validation_rows, "validation_rows")
        return cls.of_each(data, len(tables), wanted, validation_rows)

    @classmethod
    def of_each(
        cls, data: SeriesData, count: int, wanted: Wanted, validation_rows: Sequence[int] | None = None
    ) -> Split:
        """The series of arrays and frames, each cut by its own length.

        Args:
            data: the series.
            count: the number of arrays or frames (`Piece.source`), some of which may have no rows.
            wanted: what is asked for.
            validation_rows: the number of validation rows of each.
        """
        sources = [piece.source for piece in data.pieces]
        lengths = np.bincount(sources, [len(piece) for piece in data.pieces], minlength=count)
        totals = [int(length) for length in lengths]
        ends = [total - round(wanted.test * total) for total in totals]
        rows = [rows_to_choose_by(wanted.validation, wanted.horizon, end) for end in ends]
        if wanted.cuts_each(data) and validation_rows is None:
            spans = [_own_cut(total, wanted) for total in totals]
            rows, ends = [b - a for a, b in spans], [b for _, b in spans]
        if validation_rows is not None:
            rows = list(validation_rows)
        cuts, counts, before = [], [], 0
        for number, piece in enumerate(data.pieces):
            place, length = piece.source, len(piece)
            before = before + len(data.pieces[number - 1]) if number and data.pieces[number - 1].source == place else 0
            if length == totals[place]:
                cuts.append((ends[place] - rows[place], ends[place]))
                counts.append(rows[place])
            else:  # a part of a series that was split at long gaps
                begin, end = (min(max(0, cut - before), length) for cut in (ends[place] - rows[place], ends[place]))
                cuts.append((begin, end))
                counts += _fitting(cuts[-1:], wanted.horizon)
        if max(a for a, _ in cuts) < wanted.horizon + 2:
            needed = wanted.horizon + 2 + rows[0]
            raise ValueError(f"X must have at least {needed} rows for horizon={wanted.horizon}, got n_samples = "
                             f"{len(data.pieces[0])}{what_was_done(data)}")  # fmt: skip
        return cls.of(data, cuts, counts, wanted)

    def until(self, ends: list[int], validation: float) -> Split:
        """The same with the same settings, of the first rows of each series, a share of which are validation rows."""
        first = first_rows(self.data, ends, 1 - validation)
        cuts = [(min(begin, end), end) for begin, end in zip(first, ends, strict=True)]
        return dataclasses.replace(self, cuts=cuts, validation_rows=_fitting(cuts, self.horizon))

    @cached_property
    def windows(self) -> Windows:
        return Windows.of(self.data.pieces)

    def summary(self, calendar: bool) -> str:
        """The settings in words. `calendar` says that a profile of week and year is tried where there are two years."""
        return self.settings.summary(calendar and self.has_years)

    @property
    def horizon(self) -> int:
        return self.settings.horizon

    @property
    def length(self) -> int:
        """Rows of a window; the seasonal baseline and the lags of covariates may need more of them than the model."""
        lags = (self.lags or max(LAGS)) - 1 if self.settings.covariates else 0
        return max(self.settings.lookback + lags, self.settings.season, self.settings.window)

    def origins(self, kind: str, limit: int | None = None) -> Tensor:
        """Of the windows of "train", "valid" or "test"."""
        ends = [(0, a, b, len(piece)) for (a, b), piece in zip(self.cuts, self.data.pieces, strict=True)]
        place = SPLITS.index(kind)
        rows = [(bounds[place], bounds[place + 1]) for bounds in ends]
        return self.windows.origins(rows, self.settings.least, self.horizon, limit, self.settings.season)

    def scored(self, kind: str) -> Tensor:
        """The origins of a split that are scored."""
        return self.origins(kind, max(1000, SCORED // len(self.scale)))

    @property
    def notes(self) -> list[str]:
        """What is to be said of series that are too short for a part of the rows."""
        if not self.settings.window:
            return []
        lengths: dict[str, list[tuple[int, int, int]]] = {}
        for piece, (begin, end) in zip(self.data.pieces, self.cuts, strict=True):
            lengths.setdefault(piece.name, []).append((begin, end, len(piece)))
        count, notes = len(lengths), []
        tested = sum(any(end < rows for _, end, rows in parts) for parts in lengths.values())
        if 0 < tested < count:
            notes.append(f"short series: {count - tested:,} of {count:,} have too few rows for a test; they are"
                         " fitted and forecast")  # fmt: skip
        if not any(begin < end for begin, end in self.cuts):
            notes.append(NO_VALIDATION)
        return notes

    @property
    def has_years(self) -> bool:
        """Whether a single series is long enough for a seasonal profile of the year."""
        longest = max(end for end, _ in self.cuts)
        return len({piece.name for piece in self.data.pieces}) == 1 and has_years(longest, self.data.clock.calendar)

    @cached_property
    def smallest_change(self) -> Tensor:
        """(channels,): smaller changes in a window count as none: a thousandth of the standard deviation that the
        training rows of the smallest series have."""
        past: dict[str, list[Numbers]] = {}
        for piece, (end, _) in zip(self.data.pieces, self.cuts, strict=True):
            past.setdefault(piece.name, []).append(piece.values[:end])
        series = [np.concatenate(rows) for rows in past.values() if sum(map(len, rows)) > 1]
        spreads, sizes = (np.array([measure(rows, axis=0) for rows in series]) for measure in (np.std, _largest))
        varying = np.where(spreads > 1e-9 * sizes, spreads, np.inf).min(axis=0)
        return 1e-3 * torch.tensor(np.where(np.isfinite(varying), varying, self.scale.numpy()), dtype=torch.float32)


def _largest(rows: Numbers, axis: int) -> Numbers:
    """The largest absolute value."""
    largest: Numbers = np.abs(rows).max(axis=axis)
    return largest


def is_several_or_short(data: SeriesData) -> bool:
    """Whether there are several series, or a short one."""
    return len({piece.name for piece in data.pieces}) > 1 or max(map(len, data.pieces)) < SHORT


def order_of(lookback: int) -> int:
    """The order that is proposed for a look-back."""
    return min(ORDER, max(lookback // 2, min(lookback, 8)))


def _lookbacks(proposed: int, horizon: int, season: int, most: int) -> tuple[int, ...]:
    """Look-backs that are tried beside the proposed one, of at most so many steps, some way apart."""
    sizes = [count * season for count in _SEASONS if season] + [count * horizon for count in _HORIZONS]
    sizes += [count * proposed for count in _DEFAULTS]
    longest, taken = max(LOOKBACK, season) * max(_DEFAULTS), [proposed]
    for size in sizes:
        far = all(max(size, other) >= _APART * min(size, other) for other in taken)
        if far and LEAST <= size <= min(most, longest):
            taken.append(size)
    return tuple(sorted(taken[1:]))


def _scale(data: SeriesData, past: list[Numbers]) -> Numbers:
    """The standard deviation of each column around the mean of each series, whose levels may differ."""
    series: dict[str, list[Numbers]] = {}
    for piece, rows in zip(data.pieces, past, strict=True):
        series.setdefault(piece.name, []).append(rows)
    together = [np.concatenate(rows) for rows in series.values() if sum(map(len, rows))]
    mean = sum(rows.sum(axis=0) for rows in together) / sum(map(len, together))
    squares = sum(((rows - rows.mean(axis=0)) ** 2).sum(axis=0) for rows in together)
    spread = np.sqrt(squares / sum(map(len, together)))
    scale: Numbers = np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1e-300), spread, 1.0)
    for name, size in zip(data.columns.values, scale.tolist(), strict=True):
        if data.config is not None and size < _SMALLEST:
            raise DataError(
                f"column {name!r} of {data.config.file} varies by {size:.1g}, too little to compute with: multiply it"
            )
    return scale


def _too_few(data: SeriesData, horizon: int, room: int, training: float) -> str:
    assert data.config is not None
    longest = max(map(len, data.pieces))
    needed = math.ceil((horizon + 4) / training)
    fewer = " or a smaller --horizon" if horizon > 1 else ""
    rows = f"at least {needed:,}"
    if needed <= longest:  # of several series this one may begin or end when others do not
        rows = f"more, of which {horizon + 4:,} come before the validation rows (now {room + horizon:,})"
        rows += "," if fewer else ""
    return (
        f"{data.config.file} has {longest:,} consecutive row{'s' * (longest > 1)}, too few to forecast {horizon}"
        f" step{'s' * (horizon > 1)} ahead: give {rows}{fewer}{what_was_done(data)}"
    )


def _too_few_to_test(data: SeriesData, wanted: Wanted) -> str:
    longest, horizon = max(map(len, data.pieces)), wanted.horizon
    needed = max(2 * horizon + LEAST, math.ceil((horizon + LEAST) / (1 - wanted.test)))
    name = data.config.file if data.config is not None else "X"
    fewer = " or a smaller --horizon" if horizon > 1 else ""
    return (
        f"{name} has {longest:,} consecutive row{'s' * (longest > 1)}, too few to forecast {horizon}"
        f" step{'s' * (horizon > 1)} ahead and to test it: give at least {needed:,}{fewer}{what_was_done(data)}"
    )


def what_was_done(data: SeriesData) -> str:
    """What was done with rows, for an error that says that there are too few."""
    notes = [note for note in data.notes if note.startswith(("times:", "gaps:", "left out:"))]
    return f" ({'; '.join(notes)})" if notes else ""


def first_rows(data: SeriesData, rows: Sequence[int], share: float) -> list[int]:
    """The number of rows of each piece before the time at which this share of all rows has passed.

    Args:
        data: the series.
        rows: the number of rows of each piece that are counted.
        share: of the counted rows. Without times, each piece is cut at this share of its own.
    """
    if data.clock.kind == "rows":
        return [round(share * count) for count in rows]
    starts, lengths = np.array([piece.start for piece in data.pieces]), np.array(rows)
    low, high = int(starts.min()), int((starts + lengths).max())
    while low < high:
        middle = (low + high) // 2
        if np.clip(middle - starts, 0, lengths).sum() < share * lengths.sum() - 1e-6:
            low = middle + 1
        else:
            high = middle
    ends: list[int] = np.clip(low - starts, 0, lengths).tolist()
    return ends


def rows_to_choose_by(share: float, horizon: int, rows: int) -> int:
    """The number of validation rows of a series of so many rows; 0 where too few rows would be left to fit.

    Args:
        share: of the rows that is wanted, or their number.
        horizon: steps ahead.
        rows: of the series.
    """
    wanted = round(share * rows) if share < 1 else int(share)
    return wanted if wanted >= horizon and rows - wanted >= 2 * horizon + 2 else 0


def _own_cut(rows: int, wanted: Wanted) -> tuple[int, int]:
    """The numbers of rows of a series before its validation rows and before its test rows. Both have a horizon at
    least, or none where too few rows would be left to fit."""
    parts = []
    end = rows
    for share in (wanted.test, wanted.validation):
        count = max(round(share * rows) if share < 1 else int(share), wanted.horizon if share else 0)
        end -= count if end - count >= wanted.horizon + LEAST else 0
        parts.append(end)
    return parts[1], parts[0]


def _fitting(cuts: list[tuple[int, int]], horizon: int) -> list[int]:
    """The number of validation rows of each piece; 0 where they do not hold a horizon."""
    return [b - a if b - a >= horizon else 0 for a, b in cuts]


def _for_each(tables: Sequence[SeriesTable], values: Sequence[_Value], name: str) -> list[_Value]:
    if len(values) != len(tables):
        raise ValueError(f"{name} must have one value for each of the {len(tables)} series, got {len(values)}")
    return list(values)
