"""Data frames in long format, a row for each time of each series, as tables; and forecasts as such frames again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.errors import how_to_install
from plmu.timeseries.columns import NAMED_ID, names_series
from plmu.timeseries.tables.table import SEPARATOR, Table
from plmu.timeseries.tables.typed_files import from_frame

if TYPE_CHECKING:
    from plmu.timeseries.series import SeriesConfig


@dataclass(frozen=True)
class LongFrame:
    """A data frame that is read as a file with its content is."""

    frame: Any  # of pandas or polars; times and names of series are columns
    library: str
    rows: dict[str, int] = field(default_factory=dict)  # the first row of each series, by its name

    @classmethod
    def of(cls, frame: Any, names: Sequence[str | None] = ()) -> LongFrame:
        """The frame; of pandas with the index as columns where it has times or several levels, or is one of `names`."""
        library = library_of(frame)
        assert library is not None
        if not find_spec("polars"):
            raise ImportError(f"frames in long format are read with polars: {how_to_install('polars')}")
        if library == "pandas":
            index = frame.index
            named = index.nlevels > 1 or index.name in {NAMED_ID, *names} - {None}
            frame = frame.reset_index() if named or _is_time(index.dtype) else frame
        return cls(frame, library)

    def table(self, name: str, days: bool = True) -> Table:
        """Its columns as those of a file.

        Args:
            name: what to call it in messages.
            days: whether times with a time zone that are all midnights there are days, which have no time zone.
        """
        import polars as pl

        names = [str(column) for column in self.frame.columns]
        if len(set(names)) < len(names):
            again = next(column for place, column in enumerate(names) if column in names[:place])
            raise ValueError(f"{name} has several columns {again!r}: give each column a name of its own")
        columns = [self.frame[column] for column in self.frame.columns]
        if days:
            columns = [
                _local(column) if has_zone(column.dtype) and _midnights(column) else column for column in columns
            ]
        if self.library == "pandas":
            columns = [_as_polars(column) for column in columns]
        table = from_frame(pl.DataFrame(columns), Path(name))
        count = "1 row" if table.rows == 1 else f"{table.rows:,} rows"
        table.notes.insert(0, f"{name}: {count}, {len(table.names)} columns ({', '.join(table.names[:8])})")
        return table

    def with_rows(self, table: Table, id: str | None) -> LongFrame:
        """The same, with the first row of each series, which the column `id` of its table names."""
        if id is None:
            return self
        codes, labels = table.codes(id)
        _, first = np.unique(codes, return_index=True)
        return replace(self, rows=dict(zip(labels, first.tolist(), strict=True)))

    def joined(self, other: LongFrame) -> LongFrame | None:
        """The first rows of the series of both frames; None where they are not of the same library."""
        if self.library != other.library:
            return None
        new = {name: row for name, row in other.rows.items() if name not in self.rows}
        names = [column for column in self.frame.columns if column in other.frame.columns]
        module, parts = import_module(self.library), []
        for frame, places in ((self.frame[names], self.rows), (other.frame[names], new)):
            rows = np.array([*places.values()], dtype=np.int64)
            parts.append(frame.iloc[rows] if self.library == "pandas" else frame[rows])
        options = {"ignore_index": True} if self.library == "pandas" else {"how": "vertical_relaxed"}
        together = module.concat(parts, **options) if new else parts[0]
        return LongFrame(together, self.library, {name: row for row, name in enumerate([*self.rows, *new])})

    @property
    def columns(self) -> dict[str, Any]:
        """Its columns by name."""
        return {str(column): self.frame[column] for column in self.frame.columns}

    def has_names(self, id: str | None) -> bool:
        """Whether it has the columns that name series."""
        return id is not None and (id in self.columns or {*id.split(SEPARATOR)} <= self.columns.keys())

    def zoned(self, time: str | None) -> bool:
        """Whether the column of times has a time zone."""
        return time in self.columns and has_zone(self.columns[time].dtype)

    def ids(self, id: str | None, series: Sequence[str]) -> dict[str, Any]:
        """The columns that name series, for rows of these series, as they are in the frame."""
        if id is None or not self.rows:
            return {}
        rows, columns = [self.rows[name] for name in series], self.columns
        parts = [id] if id in columns else id.split(SEPARATOR)
        if self.library == "pandas":
            return {part: columns[part].iloc[rows].reset_index(drop=True) for part in parts}
        return {part: columns[part].gather(rows) for part in parts}

    def times(self, time: str, stamps: NDArray[Any], zone: int | None, text: Sequence[str]) -> Any:
        """Times as in its column of times: `stamps`, which are in this time zone (minutes east of Greenwich; None for
        days), or where the column is text, `text`."""
        if time not in self.columns:
            return stamps
        if self.zoned(time) and zone:
            stamps = stamps - np.timedelta64(zone, "m")
        return as_times(self.library, self.columns[time].dtype, stamps, text, local=zone is None)


def library_of(X: Any) -> str | None:
    """ "pandas" or "polars" for their data frames, else None."""
    library = type(X).__module__.partition(".")[0]
    return library if library in ("pandas", "polars") and hasattr(X, "columns") else None


def is_long(X: Any, config: SeriesConfig, name: str = "X") -> bool:
    """Whether X is a frame in long format: its columns name series, by the rules for files. A frame whose times
    increase from row to row is not, unless a column is called unique_id; nor is one without times and text.

    Raises:
        DataError: times repeat, and a choice is needed.
    """
    library = library_of(X)
    if library is None or not find_spec("polars") or len(set(X.columns)) < len(X.columns) or not len(X):
        return False
    columns = [X[column] for column in X.columns]
    index = X.index if library == "pandas" else None
    named = NAMED_ID in X.columns or (index is not None and (index.nlevels > 1 or index.name == NAMED_ID))
    if not named:
        dated = [] if index is None or not _is_time(index.dtype) else [index]
        dated += [column for column in columns if _is_time(column.dtype)]
        if _increases(dated[0]) if dated else not any(_is_text(column.dtype) for column in columns):
            return False
    return names_series(LongFrame.of(X).table(name), config)


def has_zone(dtype: Any) -> bool:
    """Whether times of this type, of pandas or polars, have a time zone."""
    return getattr(dtype, "tz", getattr(dtype, "time_zone", None)) is not None


def stamps_of(column: Any) -> NDArray[Any]:
    """Times as datetime64[us], in UTC where they have a time zone."""
    if getattr(column.dtype, "tz", None) is not None:  # of pandas
        column = getattr(column, "dt", column).tz_convert(None)
    return np.asarray(column.to_numpy()).astype("datetime64[us]")


def as_times(library: str, dtype: Any, stamps: NDArray[Any], text: Sequence[str] = (), local: bool = False) -> Any:
    """Times as a column of this type of pandas or polars, if it can hold them.

    Args:
        library: "pandas" or "polars".
        dtype: a type of the library.
        stamps: datetime64, in UTC for a type with a time zone; or numbers.
        text: the same as text, for a type of text.
        local: whether `stamps` are in the time zone of the type, rather than in UTC.
    """
    module, dates = import_module(library), stamps.dtype.kind == "M"
    numeric = (dtype.is_integer() if library == "polars" else dtype.kind in "iu") and not dates
    if numeric and (stamps == np.rint(stamps)).all():
        stamps = np.rint(stamps).astype(np.int64)
    if library == "polars":
        if dates and dtype == module.String:
            return module.Series(list(text), dtype=module.String)
        column = module.Series(stamps.astype("datetime64[us]") if dates else stamps)
        if dates and local and has_zone(dtype):
            column = column.dt.replace_time_zone(dtype.time_zone, ambiguous="earliest", non_existent="null")
        same = dtype.is_temporal() if dates else numeric and stamps.dtype.kind == "i"
        return column.cast(dtype) if same else column
    if not dates:
        return module.Series(stamps).astype(dtype if numeric and stamps.dtype.kind == "i" else stamps.dtype)
    times = module.DatetimeIndex(stamps)
    if _is_period(dtype):
        return times.to_period(dtype.freq)
    if _is_time(dtype):
        if has_zone(dtype):
            if local:
                times = times.tz_localize(dtype.tz, ambiguous=np.ones(len(times), bool), nonexistent="shift_forward")
            else:
                times = times.tz_localize("UTC").tz_convert(dtype.tz)
        return times.as_unit(dtype.unit if has_zone(dtype) else np.datetime_data(dtype)[0])
    return times if dtype.kind in "iuf" else module.Index(list(text))


def _is_text(dtype: Any) -> bool:
    """Whether a type, of pandas or polars, is neither one of numbers nor of truth values nor of times."""
    if hasattr(dtype, "is_temporal"):  # of polars
        return not (dtype.is_numeric() or dtype.is_temporal() or str(dtype) == "Boolean")
    return getattr(dtype, "kind", "O") not in "biufcmM" and not _is_period(dtype)


def _increases(times: Any) -> bool:
    """Whether each time is later than the one before."""
    if _is_period(times.dtype):
        times = getattr(times, "dt", times).to_timestamp()
    stamps = stamps_of(times)
    return bool((stamps[1:] > stamps[:-1]).all())


def _is_period(dtype: Any) -> bool:
    return str(dtype).startswith("period")


def _is_time(dtype: Any) -> bool:
    """Whether a type, of pandas or polars, is one of dates."""
    return str(dtype).lower().startswith("date") or _is_period(dtype)


def _local(column: Any) -> Any:
    """Times without their time zone, as they are read there."""
    return column.dt.tz_localize(None) if hasattr(column.dt, "tz_localize") else column.dt.replace_time_zone(None)


def _midnights(column: Any) -> bool:
    """Whether all times of a column with a time zone are midnights there."""
    stamps = np.asarray(_local(column).to_numpy()).astype("datetime64[us]")
    return bool(((stamps == stamps.astype("datetime64[D]")) | np.isnat(stamps)).all())


def _as_polars(column: Any) -> Any:
    """A column of pandas as one of polars."""
    import polars as pl

    name, dtype = str(column.name), column.dtype
    if _is_period(dtype):
        column = column.dt.to_timestamp()
        dtype = column.dtype
    if _is_time(dtype):
        times = pl.Series(name, stamps_of(column))
        return times.dt.replace_time_zone("UTC") if has_zone(dtype) else times
    absent = column.isna().to_numpy()
    if getattr(dtype, "kind", "O") in "biuf":
        if absent.any():
            return pl.Series(name, column.to_numpy(dtype=np.float64, na_value=np.nan))
        return pl.Series(name, column.to_numpy(dtype=getattr(dtype, "numpy_dtype", dtype)))
    cells = [None if missing else cell for cell, missing in zip(column.astype(object), absent, strict=True)]
    if any(isinstance(cell, str) for cell in cells):
        return pl.Series(name, [None if cell is None else str(cell) for cell in cells], dtype=pl.String)
    return pl.Series(name, cells, strict=False)
