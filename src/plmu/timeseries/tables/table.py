"""A table: columns by name, as numbers, times or text, and the place of each cell in the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.errors import DataError, suggestion
from plmu.timeseries.tables import dates
from plmu.timeseries.tables.cells import (
    FLAGS,
    as_numbers,
    count_dates,
    looks_like_time,
    present,
    without_marks,
    years_rise,
)
from plmu.timeseries.tables.dates import joined, joined_name, time_parts

if TYPE_CHECKING:
    import polars as pl

Numbers = NDArray[np.float64]
Kind = Literal["number", "time", "text"]
Bad = Literal["raise", "missing"]
_HEAD = 200  # cells from which the kind of a column of text is detected
SEPARATOR = " / "  # between names that are joined


class Table:
    """Columns of one file. `notes` says in plain English what was found and changed; reading columns adds to it.

    Args:
        path: the file.
        frame: columns of Float64, Datetime or String.
        notes: what was found.
        line: returns the line of the file that holds a row of the frame; without it rows are counted from 1.
        as_text: returns a column of numbers, by name, as the text that is in the file.
        zoned: names of the columns of times that had a time zone; the frame has them in UTC.

    Attributes:
        stored: the names of the columns that the file has, without those that are joined later.
    """

    def __init__(
        self,
        path: Path,
        frame: pl.DataFrame,
        notes: Sequence[str] = (),
        line: Callable[[int], int] | None = None,
        as_text: Callable[[str], pl.Series] | None = None,
        zoned: Sequence[str] = (),
    ) -> None:
        self._zoned = frozenset(zoned)
        self.path, self.notes = path, list(notes)
        self._columns, self._line, self._as_text = {column.name: column for column in frame}, line, as_text
        self._codes: dict[str, tuple[NDArray[np.int64], list[str]]] = {}
        self.rows, self.stored = frame.height, frozenset(frame.columns)
        self._kinds: dict[str, Kind] = {}
        self._times: dict[tuple[str, bool | None], NDArray[Any]] = {}

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the order of the file."""
        return list(self._columns)

    def place(self, row: int, name: str) -> str:
        """Where a cell is: "load.csv, line 7, column 'load'"."""
        where = f"row {row + 1}" if self._line is None else f"line {self._line(row)}"
        return f"{self.path}, {where}, column {name!r}"

    def kind(self, name: str) -> Kind:
        """The kind of most of a column's first cells; the docstring of `dates` has the rules for times. So a column of
        numbers may have some cells of text."""
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.Float64:
            return "number"
        if column.dtype == pl.Datetime:
            return "time"
        if name not in self._kinds:
            head = column.drop_nulls().head(_HEAD)
            cells = present(head.to_list())
            kind: Kind = "text"
            if count_dates(cells) > len(cells) / 2:
                kind = "time"
            elif cells and as_numbers(pl.Series("", cells))[0].count() > len(cells) / 2:
                kind = "number"
            self._kinds[name] = kind
        return self._kinds[name]

    def numbers(self, name: str, bad: Bad = "raise") -> Numbers:
        """A column as float64, NaN where a number is missing or infinite. Where most cells are true, yes, false or no,
        these count as 1 and 0.

        Args:
            name: of the column.
            bad: whether a cell of text raises DataError or counts as missing.

        Raises:
            DataError: a cell is not a number; the message names its line.
        """
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.Datetime:
            raise DataError(f"column {name!r} of {self.path} has times: a column of numbers is needed")
        if column.dtype == pl.String:
            numbers, wrong, note = as_numbers(column)
            if wrong.any():
                lowercase = without_marks(column).str.to_lowercase()
                if 2 * lowercase.is_in(list(FLAGS)).sum() > lowercase.count():
                    self._note(f"column {name!r}: true and yes are taken as 1, false and no as 0")
                    numbers, wrong, note = as_numbers(lowercase.replace(FLAGS))
            if note and note not in self.notes:
                self._note(f"column {name!r}: {note}")
            if wrong.any():
                row = int(wrong.arg_true()[0])
                if bad == "raise":
                    raise DataError(
                        f"{self.place(row, name)}: {_short(column[row])} is not a number. Mend it, or give --data.bad"
                        " missing to take such cells as missing"
                    )
                self._note_bad(name, row, int(wrong.sum()), "of text")
            column = numbers
        values: Numbers = np.array(column.to_numpy(), dtype=np.float64)
        infinite = np.isinf(values)
        if infinite.any():
            values[infinite] = np.nan
            count = int(infinite.sum())
            self._note(f"column {name!r}: {count:,} infinite number{'s' * (count > 1)} taken as missing")
        return values

    def times(self, name: str, day_first: bool | None = None, bad: Bad = "raise") -> NDArray[Any]:
        """A column of times: datetime64[us] for dates, NaT where one is missing; float64 for numbers.

        Numbers such as 20240131 are dates if all of them are.

        Args:
            name: of the column.
            day_first: whether 2/1/2024 is the second of January; detected by default.
            bad: whether a cell that is not a time raises DataError or counts as missing.

        Raises:
            DataError: a cell is not a time; the message names its line.
        """
        import polars as pl

        column = self._column(name)
        if self.kind(name) == "number":
            values = self.numbers(name, bad)
            days = dates.from_digits(values)
            days = dates.from_decimals(values) if days is None else days
            return values if days is None else days
        if column.dtype == pl.String:
            if (name, day_first) in self._times:
                return self._times[name, day_first]
            try:
                times, wrong, notes = dates.parse(column, day_first)
            except dates.MixedOrderError as error:
                first, second = (
                    f"{_short(column[row])} in {self.place(row, name).split(', ')[1]}" for row in error.rows
                )
                raise DataError(
                    f"{self.path}, column {name!r}: {first} has the day first, {second} the month. Mend one of them"
                ) from None
            if len(wrong):
                row = int(wrong[0])
                if bad == "raise":
                    raise DataError(
                        f"{self.place(row, name)}: {_short(column[row])} is not a date or time. Mend it, or give"
                        " --data.bad missing to leave such rows out"
                    )
                self._note_bad(name, row, len(wrong), "that is not a date" if len(wrong) == 1 else "that are not dates")
            for note in notes:
                self._note(f"column {name!r}: {note}")
            column = times
        stamps: NDArray[Any] = column.cast(pl.Datetime("us")).to_numpy().astype("datetime64[us]")
        self._times[name, day_first] = stamps
        return stamps

    def unread_time(self, name: str, named: bool) -> str | None:
        """The place and text of the first cell, if a column of text seems to have times that cannot be read; else None.

        Args:
            name: of the column.
            named: whether its name says that it has times: then cells with digits are enough.
        """
        if self.kind(name) != "text":
            return None
        column = self._column(name)
        rows = without_marks(column).is_not_null().arg_true().head(_HEAD).to_list()
        meant = [row for row in rows if (any(map(str.isdigit, column[row])) if named else looks_like_time(column[row]))]
        if 2 * len(meant) <= len(rows):
            if not years_rise([column[row] for row in rows]):
                return None
            meant = rows
        return f"{self.place(meant[0], name)}: {_short(column[meant[0]])}"

    def join_times(self) -> tuple[str, ...]:
        """Add a column of times if several columns together are a time: a date and a time of day, or year, month and
        so on.

        Returns:
            The names of these columns; empty if there are none.
        """
        parts = time_parts(self._columns, [name for name in self.names if self.kind(name) == "time"])
        if parts and joined_name(parts) not in self._columns:
            name = joined_name(parts)
            self._columns[name] = joined([self._columns[part] for part in parts]).alias(name)
            self._kinds[name] = "time"
        return parts

    def join_names(self, names: Sequence[str]) -> str:
        """Add a column of text with the cells of several columns, such as "shop / item", and return its name."""
        name = SEPARATOR.join(names)
        if name not in self._columns:
            import polars as pl

            column, *others = (pl.Series(self.text(part).tolist(), dtype=pl.String) for part in names)
            for other in others:
                column = column + SEPARATOR + other
            self._columns[name] = column.alias(name)
            self._kinds[name] = "text"
        return name

    def join_again(self, time: str | None, id: str | None) -> None:
        """Join columns as in another table, whose columns of times and of series' names are `time` and `id`."""
        if time is not None and time not in self._columns:
            self.join_times()
        parts = () if id is None or id in self._columns else id.split(SEPARATOR)
        if len(parts) > 1 and all(part in self._columns for part in parts):
            self.join_names(parts)

    def zone(self, name: str) -> int | None:
        """The time zone of a column of times in minutes east of Greenwich: 0 if it has several, None without any.

        With a time zone, `times` returns UTC.
        """
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.String and self.kind(name) == "time":
            return dates.zone(column)
        return 0 if name in self._zoned else None

    def day_first(self, name: str) -> bool | None:
        """Whether the dates of a column are written like 31/1/2024; None if no date depends on it."""
        import polars as pl

        column = self._column(name)
        return dates.order(column) if column.dtype == pl.String and self.kind(name) == "time" else None

    def text(self, name: str) -> NDArray[np.object_]:
        """A column as text: integers without a decimal point, "" where a cell is empty or NaN."""
        codes, labels = self.codes(name)
        return np.array(labels, dtype=object)[codes]

    def codes(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """A column of text as indices (rows,) into its different texts, and these texts in order of appearance.

        Leading zeros are part of the text: 007 is not 7.
        """
        if name not in self._codes:
            self._codes[name] = self._coded(name)
        return self._codes[name]

    def _coded(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """`codes`, computed. Integers are read again as text if some have leading zeros."""
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.Float64:
            column = column.fill_nan(None)
            integers = bool((column == column.round(0)).fill_null(True).all())
            integers = integers and float(column.abs().max() or 0) < 2**53  # type: ignore[arg-type]
            text = without_marks(self._as_text(name)) if integers and self._as_text is not None else None
            if text is not None and text.str.contains(r"^0\d+$").any():
                column = text
            else:
                column = column.cast(pl.Int64).cast(pl.String) if integers else column.cast(pl.String)
        else:
            column = column.cast(pl.String).str.strip_chars()
        column = column.fill_null("")
        labels = column.unique(maintain_order=True)
        numbered = pl.DataFrame({"label": labels, "code": np.arange(len(labels), dtype=np.int64)})
        codes = pl.DataFrame({"label": column}).join(numbered, on="label", how="left", maintain_order="left")["code"]
        return codes.to_numpy().astype(np.int64), labels.to_list()

    def _column(self, name: str) -> pl.Series:
        if name not in self._columns:
            few = ", ".join(map(repr, self.names[:12])) + (", …" if len(self.names) > 12 else "")
            header = "; its first line names no columns" * any(note.startswith("no header") for note in self.notes)
            raise DataError(f"{self.path} has no column {name!r}: it has {few}{header}{suggestion(name, self.names)}")
        return self._columns[name]

    def _note_bad(self, name: str, row: int, count: int, kind: str) -> None:
        """Note that `count` cells count as missing, the first of them in `row`."""
        first = f"{_short(self._column(name)[row])} in {self.place(row, name).split(', ')[1]}"
        self._note(f"column {name!r}: {count:,} cell{'s' * (count > 1)} {kind} taken as missing, the first {first}")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _short(cell: Any) -> str:
    text = str(cell)
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
