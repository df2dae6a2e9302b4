"""Series from arrays, lists of arrays, and data frames of pandas or polars; and forecasts in the same form."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmu.clock import Clock
from plmu.timeseries.clock import find_clock
from plmu.timeseries.columns import LARGEST, Columns, in_equal_blocks
from plmu.timeseries.long_frames import as_times, has_zone, library_of, stamps_of
from plmu.timeseries.series import Numbers, Piece, SeriesConfig, SeriesData, pieces_of
from plmu.timeseries.series_notes import counted, note_clock
from plmu.timeseries.table_rows import RawSeries

Array = Numbers
_IDS = frozenset(("id", "ids", "unique_id", "series_id", "item_id", "store_id"))
_AS_FILES = SeriesConfig(id="")  # how gaps are treated; there is no column that could name series


@dataclass(frozen=True)
class Form:
    """The form of a series in memory, in which its forecast is returned, too."""

    flat: bool = False  # whether the array has the shape (time,)
    frame: str | None = None  # "pandas" or "polars"
    names: tuple[str, ...] | None = None  # of the columns to forecast
    columns: tuple[str, ...] | None = None  # of all columns of numbers
    times: Any = None  # the column or index of times, without rows
    index: bool = False  # whether the times are the index

    @property
    def zoned(self) -> bool:
        """Whether its times have a time zone."""
        return self.times is not None and has_zone(self.times.dtype)

    def like(self, values: Numbers) -> Any:
        """Values (time, channels) in this form."""
        if self.frame is not None:
            return self.table(dict(zip(self.names or (), values.T, strict=True)))
        return values[:, 0] if self.flat else values

    def table(self, columns: dict[str, Any], stamps: NDArray[Any] | None = None) -> Any:
        """A data frame of these columns.

        Args:
            columns: values by name.
            stamps: the times of the rows, in UTC. They become a column or the index, as in the series; None, or a
                series without times, gives a frame without.
        """
        library = sys.modules[self.frame or "polars"]
        if stamps is None or self.times is None:
            return library.DataFrame(columns)
        times = as_times(self.frame or "polars", self.times.dtype, stamps)
        if self.index:
            return library.DataFrame(columns, index=times.rename(self.times.name))
        return library.DataFrame({self.times.name: times, **columns})


@dataclass(frozen=True)
class SeriesTable:
    """A checked series from an array or a data frame."""

    values: Numbers  # (time, channels)
    form: Form
    times: NDArray[Any] | None = None  # datetime64[us] of all rows, in UTC if they have a time zone
    covariates: Numbers | None = None  # (time and steps ahead, covariates); NaN where a value ahead is missing

    def on(self, clock: Clock) -> SeriesTable:
        """The series with its times in the time zone of a clock, if both have one."""
        if self.times is None or not self.form.zoned or not clock.zone:
            return self
        return replace(self, times=self.times + np.timedelta64(clock.zone, "m"))

    def pieces(self, place: int, data: SeriesData, name: str, config: SeriesConfig | None = None) -> list[Piece]:
        """The series on the clock of `data`, as those of a file are put there: gaps filled, and split at long ones.
        Without times its rows are consecutive.

        Args:
            place: the number of the series.
            data: its columns and clock; its `counts` are updated.
            name: what to call the series in errors.
            config: how gaps are treated; by default as in files.
        """
        if data.clock.kind == "rows" or self.times is None:
            measured, before = np.asarray(~np.isnan(self.values)), data.after.get(str(place))
            start = 0 if before is None else before.last + 1
            return [Piece(str(place), start, self.values, measured, covariates=self.covariates, source=place)]
        values = self.values
        if self.covariates is not None:  # rows ahead have covariates alone
            ahead = np.full((len(self.covariates) - len(values), values.shape[1]), np.nan)
            values = np.concatenate([np.concatenate([values, ahead]), self.covariates], axis=1)
        raw = RawSeries(str(place), self.times, values)
        return [
            replace(piece, source=place)
            for piece in pieces_of(raw, replace(config or _AS_FILES, file=Path(name)), data)
        ]


def data_of(tables: Sequence[SeriesTable], covariates: Sequence[str | int], starts: Sequence[int] | None) -> SeriesData:
    """The series of `fit`, on the clock of the first series; `starts`, if not None, are the steps of their first
    rows."""
    form, clock = tables[0].form, clock_of(tables[0])
    width = tables[0].values.shape[1]
    values = form.names or tuple(f"value {number}" for number in range(1, 1 + width))
    time = None if form.times is None else str(form.times.name or "time")
    columns = Columns(time, values, None, covariates=tuple(map(str, covariates)))
    if clock.kind != "rows":
        clock = clock.with_jitter([table.times for table in tables if table.times is not None])
    data = SeriesData(columns, clock, [])
    for place, table in enumerate(tables):
        pieces = table.pieces(place, data, "X" if len(tables) == 1 else f"X[{place}]")
        data.pieces += pieces if starts is None else moved_to(pieces, starts[place])
    note_rows(data, tables, scored=True)
    return data


def moved_to(pieces: list[Piece], start: int) -> list[Piece]:
    """The pieces of a series, moved so that this is the step of its first row."""
    return [replace(piece, start=piece.start + start - pieces[0].start) for piece in pieces]


def note_rows(
    data: SeriesData, tables: Sequence[SeriesTable], scored: bool, config: SeriesConfig | None = None
) -> None:
    """Note the clock of series with times, and what was done with gaps; `scored` as in `counted`."""
    config = config or _AS_FILES
    times = [table.times for table in tables if table.times is not None]
    if data.clock.kind != "rows" and times:
        note_clock(data, times, config)
        data.notes += counted(data.counts, data.rows, config, scored)


def clock_of(table: SeriesTable) -> Clock:
    """The clock of a series; without times it counts rows."""
    times = table.times
    if times is None or len(times) < 2:
        return Clock()
    return replace(find_clock([times]), first=float(times[0].astype(np.int64)))


def is_list_of_series(X: Any) -> bool:
    """Whether X is a list or tuple of arrays, tensors or frames, rather than nested lists of numbers."""
    return isinstance(X, list | tuple) and bool(X) and all(getattr(series, "shape", ()) for series in X)


def as_list(
    X: Any, name: str, covariates: Sequence[str | int] = (), missing: bool = False, held: int = 0
) -> list[SeriesTable]:
    """The checked series of X, which is one series or a list of them with equally many channels. `name` is for errors;
    `covariates` and `missing` are as in `as_table`. The first `held` series of several may be without rows, but not all
    series."""
    if is_list_of_series(X):
        held = held if any(len(series) for series in X) else 0
        tables = [as_table(series, f"{name}[{i}]", covariates, missing, empty=i < held) for i, series in enumerate(X)]
        widths = sorted({table.values.shape[1] for table in tables})
        if len(widths) > 1:
            raise ValueError(f"all series of {name} must have the same number of channels, got {widths}")
        return tables
    return [as_table(X, name, covariates, missing)]


def as_table(
    X: Any, name: str, covariates: Sequence[str | int] = (), missing: bool = False, empty: bool = False
) -> SeriesTable:
    """A series from an array (time,) or (time, channels), or from a frame.

    Args:
        X: the array or frame.
        name: what to call X in errors.
        covariates: the columns of X that are known ahead, by name or number. Rows at the end in which all other columns
            are NaN are ahead of the series.
        missing: whether values of a series without covariates may be NaN.
        empty: whether X may be without rows.

    Raises:
        ValueError: the shape is another, a value is NaN or infinite, or `covariates` are not columns of X, not
            different, or all of them.
    """
    table = _unchecked(X, name)
    form = table.form
    if empty and not len(table.values):
        width = table.values.shape[1] - len(covariates)
        names = None if form.names is None else tuple(name for name in form.names if name not in covariates)
        ahead = np.empty((0, len(covariates))) if len(covariates) else None
        return replace(table, values=np.empty((0, width)), form=replace(form, names=names), covariates=ahead)
    if not len(covariates):
        return replace(table, values=_checked(table.values, name, form.names, missing=missing))
    width = table.values.shape[1]
    places = [_place(column, form.names, width, name) for column in covariates]
    if len(set(places)) < len(places) or len(places) == width:
        fault = "names a column twice" if len(set(places)) < len(places) else f"leaves no column of {name} to forecast"
        raise ValueError(f"covariates {fault}: {list(covariates)}")
    rest = [place for place in range(width) if place not in places]
    names = None if form.names is None else tuple(form.names[place] for place in rest)
    values, ahead = table.values[:, rest], table.values[:, places]
    measured = np.flatnonzero(~np.isnan(values).all(axis=1))
    rows = int(measured[-1]) + 1 if len(measured) else len(values)
    _checked(ahead[:rows], name, tuple(map(str, covariates)) if form.names is not None else None, places)
    return SeriesTable(
        _checked(values[:rows], name, names, rest),
        replace(form, names=names),
        table.times,
        ahead,
    )


def with_future(
    table: SeriesTable, future: Any, covariates: Sequence[str | int], name: str, clock: Clock
) -> SeriesTable:
    """The series with other covariates ahead.

    Args:
        table: the series.
        future: the covariates, an array (time,) or (time, covariates), or a frame. Without times its rows are
            consecutive.
        covariates: their columns.
        name: what to call `future` in errors.
        clock: of the fit.
    """
    assert table.covariates is not None
    plan, rows = _unchecked(future, name).on(clock), len(table.values)
    columns, names = plan.values, table.form.columns
    if plan.form.names is not None and names is not None:
        wanted = [names[_place(column, names, len(names), "X")] for column in covariates]
        columns = columns[:, [_place(column, plan.form.names, len(plan.form.names), name) for column in wanted]]
    if columns.shape[1] != len(covariates):
        raise ValueError(
            f"{name} must have a column for each of the {len(covariates)} covariates, got {columns.shape[1]}"
        )
    times = None
    if table.times is not None and clock.kind != "rows":
        offset = clock.offset(table.times[:rows])
        last = int(clock.steps(table.times[rows - 1 : rows], offset)[0])
        ahead = plan.times
        if ahead is None:
            ahead = clock.dates(last + np.arange(1, 1 + len(columns)), offset)
        elif len(ahead) and (apart := int(clock.steps(ahead[:1], offset)[0]) - last) != 1:
            raise ValueError(f"{name} must begin one step after the last row of the series, got {apart} steps")
        times = np.concatenate([table.times[:rows], ahead])
    return replace(table, times=times, covariates=np.concatenate([table.covariates[:rows], columns]))


def check_ahead(piece: Piece, horizon: int, covariates: Sequence[str | int], name: str) -> None:
    """Raise ValueError unless the covariates are known for `horizon` rows after the last; `name` is that of the series
    in the message."""
    assert piece.covariates is not None
    ahead = np.isfinite(piece.covariates[len(piece) :][:horizon])
    for column, present in zip(covariates, ahead.T, strict=True):
        count = len(present) if present.all() else int((~present).argmax())
        if count < horizon:
            raise ValueError(
                f"covariate {column!r} must be known for {horizon} rows after the last row of {name}, got {count}: give"
                f" more rows of {name} in which only the covariates have values, or future="
            )


def _place(column: str | int, names: tuple[str, ...] | None, width: int, name: str) -> int:
    """The index of a column of `width`, which is named or counted, also from the end; ValueError if there is none."""
    if isinstance(column, str):
        if names is None:
            raise ValueError(
                f"covariates must be numbers of columns for {name}, which is no data frame: got {column!r}"
            )
        if column not in names:
            raise ValueError(f"{name} has no column {column!r}: it has {', '.join(map(repr, names))}")
        return names.index(column)
    if isinstance(column, bool) or not isinstance(column, int | np.integer) or not -width <= column < width:
        raise ValueError(f"covariates must be names or numbers of the {width} columns of {name}, got {column!r}")
    return int(column) % width


def _unchecked(X: Any, name: str) -> SeriesTable:
    """The series in X, whose values may be NaN or infinite; `name` is for errors."""
    if (library := library_of(X)) is not None:
        return _from_frame(X, library, name)
    array = numbers(X, name)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (time,) or (time, channels), got {array.shape}")
    flat = array.ndim == 1
    return SeriesTable(array[:, None] if flat else array, Form(flat))


def numbers(X: Any, name: str) -> Numbers:
    """The array or tensor X as float64; TypeError or ValueError, with `name`, if it is sparse, complex or no array."""
    if hasattr(X, "toarray") and hasattr(X, "nnz"):
        raise TypeError(f"{name} must be dense: sparse input is not supported, give {name}.toarray()")
    if hasattr(X, "detach"):
        X = X.detach().cpu()
    try:
        array = np.ma.filled(X.astype(np.float64), np.nan) if np.ma.is_masked(X) else np.asarray(X)
    except ValueError:
        raise ValueError(f"{name} must be an array; give series of unequal length as a list of arrays") from None
    if np.iscomplexobj(array):
        raise ValueError(f"Complex data not supported: {name} must be real numbers")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must hold numbers: {error}") from None


def _from_frame(frame: Any, library: str, name: str) -> SeriesTable:
    """The series of a frame of pandas or polars. Its times are the index, or else the first column of dates; other
    columns of dates are left out, and all others must hold numbers."""
    repeated = [column for column, count in Counter(frame.columns).items() if count > 1]
    if repeated:
        raise ValueError(f"{name} has several columns {repeated[0]!r}: give each column a name of its own")
    times = None
    if library == "pandas" and str(frame.index.dtype).startswith("period"):
        frame = frame.set_axis(frame.index.to_timestamp())
    if library == "pandas" and str(frame.index.dtype).startswith("datetime64"):
        times = frame.index
    index, columns = times is not None, []
    for column in list(frame.columns):
        if str(column).lower() in _IDS and "int" in str(frame[column].dtype).lower():
            raise ValueError(
                f"column {column!r} of {name} seems to name series and is no measurement: leave it out, or fit with"
                f" id={column!r}"
            )
        kind = str(frame[column].dtype)
        if kind.lower().startswith("date"):
            times = frame[column] if times is None else times
        else:
            columns.append(column)
    if not columns:
        raise ValueError(f"{name} has no column of numbers")
    arrays = [numbers(frame[column].to_numpy(), f"column {column!r} of {name}") for column in columns]
    for column, array in zip(columns, arrays, strict=True):
        if times is None and len(columns) > 1 and in_equal_blocks(array):
            raise ValueError(
                f"column {column!r} of {name} seems to name series, one below the other: fit with id={column!r}, or"
                " leave it out"
            )
    names = tuple(str(column) for column in columns)
    form = Form(False, library, names, names, None if times is None else times[:0], index)
    return SeriesTable(np.stack(arrays, axis=1), form, None if times is None else _increasing(stamps_of(times), name))


def _increasing(times: NDArray[Any], name: str) -> NDArray[Any]:
    """The times of a frame; ValueError unless each row is later than the row before."""
    missing = np.isnat(times)
    if missing.any():
        raise ValueError(f"{name} has no time in row {int(missing.argmax())}: leave such rows out")
    wrong = np.flatnonzero(times[1:] <= times[:-1])
    if not len(wrong):
        return times
    row = int(wrong[0]) + 1
    if times[row] == times[row - 1]:
        raise ValueError(
            f"{name} has the time {times[row]} in rows {row - 1} and {row}: give several series as a list of frames,"
            " and in each a row for each time"
        )
    raise ValueError(f"{name} has the time {times[row]} in row {row}, before that of row {row - 1}: sort it by time")


def _checked(
    values: Numbers,
    name: str,
    names: tuple[str, ...] | None,
    places: Sequence[int] | None = None,
    missing: bool = False,
) -> Numbers:
    """The values (time, columns); ValueError if they are empty, infinite or, unless `missing`, NaN. For the message,
    `names` are those of the columns, or `places` their indices in the array that was given."""
    if values.shape[0] == 0:
        raise ValueError(f"Found array with 0 sample(s): {name} has no rows")
    if values.shape[1] == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={values.shape}) while a minimum of 1 is required.")
    bad = np.isinf(values) if missing else ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        where = f"column {repr(names[column]) if names is not None else column if places is None else places[column]}"
        kind = "NaN" if np.isnan(values[row, column]) else "infinity"
        raise ValueError(f"{name} has {kind} in row {row}, {where}: fill missing values first")
    sizes = np.nan_to_num(np.abs(values))
    if sizes.max() > LARGEST:
        row, column = np.unravel_index(sizes.argmax(), values.shape)
        raise ValueError(f"{name} has {values[row, column]:g} in row {row}, too large to compute with: divide it")
    return values


def is_table(X: Any) -> bool:
    """Whether X is an array (examples, time), whose steps are features for scikit-learn."""
    return not is_list_of_series(X) and np.asarray(X).ndim == 2


def series_of(X: Any) -> list[Array]:
    """Arrays (time, channels) of float64 from an array (examples, time[, channels]), or a list of arrays or frames.

    Raises:
        ValueError: shapes or columns differ, a series is empty, or it has NaN or infinity.
    """
    if is_list_of_series(X):
        arrays = [numbers(values, f"X[{i}]") for i, values in enumerate(X)]
        wrong = next((i for i, array in enumerate(arrays) if array.ndim not in (1, 2)), None)
        if wrong is not None:
            raise ValueError(f"X[{wrong}] must have shape (time,) or (time, channels), got {arrays[wrong].shape}")
        arrays = [array[:, None] if array.ndim == 1 else array for array in arrays]
        columns = [list(frame.columns) if hasattr(frame, "columns") else None for frame in X]
        other = next((i for i, names in enumerate(columns) if names != columns[0]), None)
        if other is not None and columns[0] is not None and columns[other] is not None:
            raise ValueError(f"all frames of X must have the same columns: X[0] has {columns[0]}, X[{other}]"
                             f" {columns[other]}")  # fmt: skip
        widths = sorted({array.shape[1] for array in arrays})
        if len(widths) > 1:
            raise ValueError(f"all series of X must have the same number of channels, got {widths}")
    else:
        whole = numbers(X, "X")
        if whole.ndim not in (2, 3):
            hint = " Reshape your data: for one series give X[None]" if whole.ndim == 1 else ""
            raise ValueError(
                f"X must have shape (examples, time) or (examples, time, channels), got {whole.shape}.{hint}"
            )
        arrays = list(whole[:, :, None] if whole.ndim == 2 else whole)
        if not arrays:
            raise ValueError(f"Found array with 0 sample(s) (shape={whole.shape}) while a minimum of 1 is required.")
        if 0 in whole.shape:
            raise ValueError(f"Found array with 0 feature(s) (shape={whole.shape}) while a minimum of 1 is required.")
    for i, array in enumerate(arrays):
        if 0 in array.shape:
            raise ValueError(f"X[{i}] has no steps")
        if not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0, 0])
            kind = "NaN" if np.isnan(array[row]).any() else "infinity"
            raise ValueError(f"X has {kind} in series {i}, step {row}: fill missing values first, and give series of"
                             " unequal length as a list of arrays")  # fmt: skip
    return arrays
