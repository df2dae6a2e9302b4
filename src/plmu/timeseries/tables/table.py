"""A table of one's own: columns by name, as numbers, times or text, and where in the file each cell is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.errors import DataError, suggestion
from plmu.timeseries.tables import dates
from plmu.timeseries.tables.joined import joined, joined_name, time_parts
from plmu.timeseries.tables.missing import filled, is_missing
from plmu.timeseries.tables.numbers import as_numbers

if TYPE_CHECKING:
    import polars as pl

Numbers = NDArray[np.float64]
Kind = Literal["number", "time", "text"]
Bad = Literal["raise", "missing"]
_FLAGS = {"true": "1", "yes": "1", "false": "0", "no": "0"}
_HEAD = 200  # cells that tell what a column of text is
_BETWEEN = " / "  # names that are joined


class Table:
    """Columns of one file. `notes` says in plain words what was found and done, and grows as columns are read.

    Args:
        path: the file.
        frame: columns of Float64, Datetime or String.
        notes: what was found.
        line: the line of the file in which a row of the frame is; without it rows are counted from 1.
        written: a column of numbers as the file has it, in text.
        zoned: columns of times that had a time zone and are in UTC here.
    """

    def __init__(
        self,
        path: Path,
        frame: pl.DataFrame,
        notes: Sequence[str] = (),
        line: Callable[[int], int] | None = None,
        written: Callable[[str], pl.Series] | None = None,
        zoned: Sequence[str] = (),
    ) -> None:
        self._zoned = frozenset(zoned)
        self.path, self.notes = path, list(notes)
        self._columns, self._line, self._written = {column.name: column for column in frame}, line, written
        self._codes: dict[str, tuple[NDArray[np.int64], list[str]]] = {}
        self.rows = frame.height
        self._kinds: dict[str, Kind] = {}
        self._times: dict[tuple[str, bool | None], NDArray[Any]] = {}

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the file's order."""
        return list(self._columns)

    def place(self, row: int, name: str) -> str:
        """Where a cell is: "load.csv, line 7, column 'load'"."""
        where = f"row {row + 1}" if self._line is None else f"line {self._line(row)}"
        return f"{self.path}, {where}, column {name!r}"

    def kind(self, name: str) -> Kind:
        """Whether a column has numbers, times or text. A column that is mostly numbers, with some text, has numbers."""
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.Float64:
            return "number"
        if column.dtype == pl.Datetime:
            return "time"
        if name not in self._kinds:
            head = column.drop_nulls().head(_HEAD)
            cells = [cell for cell in head.to_list() if not is_missing(cell)]
            kind: Kind = "text"
            if cells and sum(map(dates.looks_like_date, cells)) > len(cells) / 2:
                kind = "time"
            elif cells and as_numbers(pl.Series("", cells))[0].count() > len(cells) / 2:
                kind = "number"
            self._kinds[name] = kind
        return self._kinds[name]

    def numbers(self, name: str, bad: Bad = "raise", flags: bool = False) -> Numbers:
        """A column as float64, NaN where a number is missing or infinite.

        Args:
            name: of the column.
            bad: whether a cell of text raises DataError, or counts as missing.
            flags: whether true and yes count as 1, false and no as 0.
        """
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.Datetime:
            raise DataError(f"column {name!r} of {self.path} has times: a column of numbers is needed")
        if column.dtype == pl.String:
            words = column.str.strip_chars().str.to_lowercase()
            if flags and words.is_in(list(_FLAGS)).any():
                self._note(f"column {name!r}: true and yes are taken as 1, false and no as 0")
                column = words.replace(_FLAGS)
            made, wrong, note = as_numbers(column)
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
            column = made
        values: Numbers = np.array(column.to_numpy(), dtype=np.float64)
        infinite = np.isinf(values)
        if infinite.any():
            values[infinite] = np.nan
            count = int(infinite.sum())
            self._note(f"column {name!r}: {count:,} infinite number{'s' * (count > 1)} taken as missing")
        return values

    def times(self, name: str, day_first: bool | None = None, bad: Bad = "raise") -> NDArray[Any]:
        """A column of times: datetime64[us] of dates, with NaT where one is missing; or float64 of numbers.

        Numbers such as 20240131 are dates if all are.

        Args:
            name: of the column.
            day_first: whether 2/1/2024 is the second of January; by default found out.
            bad: whether a cell that is no time raises DataError, or counts as missing.
        """
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.Float64:
            values = self.numbers(name, bad)
            days = dates.from_digits(values)
            return values if days is None else days
        if column.dtype == pl.String:
            if self.kind(name) == "number":
                return self.numbers(name, bad)
            if (name, day_first) in self._times:
                return self._times[name, day_first]
            try:
                made, wrong, notes = dates.parse(column, day_first)
            except dates.MixedOrderError as error:
                one, other = (f"{_short(column[row])} in {self.place(row, name).split(', ')[1]}" for row in error.rows)
                raise DataError(
                    f"{self.path}, column {name!r}: {one} has the day first, {other} the month. Mend one of them"
                ) from None
            if len(wrong):
                row = int(wrong[0])
                if bad == "raise":
                    raise DataError(
                        f"{self.place(row, name)}: {_short(column[row])} is not a date or time. Mend it, or give"
                        " --data.bad missing to leave such rows out"
                    )
                self._note_bad(name, row, len(wrong), "that is no date" if len(wrong) == 1 else "that are no dates")
            for note in notes:
                self._note(f"column {name!r}: {note}")
            column = made
        found: NDArray[Any] = column.cast(pl.Datetime("us")).to_numpy().astype("datetime64[us]")
        self._times[name, day_first] = found
        return found

    def join_times(self) -> tuple[str, ...]:
        """Add a column of times, if several columns are a time together: a date and a time of day, or year, month and
        so on. Returns the names of these columns, or none."""
        parts = time_parts(self._columns, [name for name in self.names if self.kind(name) == "time"])
        if parts and joined_name(parts) not in self._columns:
            name = joined_name(parts)
            self._columns[name] = joined([self._columns[part] for part in parts]).alias(name)
            self._kinds[name] = "time"
        return parts

    def join_names(self, names: Sequence[str]) -> str:
        """Add a column of text with the cells of several columns, such as "shop / item". Returns its name."""
        name = _BETWEEN.join(names)
        if name not in self._columns:
            import polars as pl

            texts = [pl.Series(self.text(one).tolist(), dtype=pl.String) for one in names]
            found = texts[0]
            for one in texts[1:]:
                found = found + _BETWEEN + one
            self._columns[name] = found.alias(name)
            self._kinds[name] = "text"
        return name

    def join_again(self, time: str | None, id: str | None) -> None:
        """Add the columns of times and names that were joined of others in another table."""
        if time is not None and time not in self._columns:
            self.join_times()
        parts = () if id is None or id in self._columns else id.split(_BETWEEN)
        if len(parts) > 1 and all(part in self._columns for part in parts):
            self.join_names(parts)

    def zone(self, name: str) -> int | None:
        """The time zone of a column of times, in minutes east of Greenwich: 0 where it has several, None where it has
        none. `times` are in UTC where there is one."""
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.String and self.kind(name) == "time":
            return dates.zone(column)
        return 0 if name in self._zoned else None

    def day_first(self, name: str) -> bool | None:
        """Whether the dates of a column are written as 31/1/2024; None where there are no such dates."""
        import polars as pl

        column = self._column(name)
        return dates.order(column) if column.dtype == pl.String and self.kind(name) == "time" else None

    def text(self, name: str) -> NDArray[np.object_]:
        """A column as text: whole numbers without a point, and "" where a cell is empty or NaN."""
        codes, labels = self.codes(name)
        return np.array(labels, dtype=object)[codes]

    def codes(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """A column as numbers of its different texts, and these texts in the order in which they first appear.

        Zeros before whole numbers are part of the text: 007 is not 7.
        """
        if name not in self._codes:
            self._codes[name] = self._coded(name)
        return self._codes[name]

    def _coded(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        import polars as pl

        column = self._column(name)
        if column.dtype == pl.Float64:
            column = column.fill_nan(None)
            whole = bool((column == column.round(0)).fill_null(True).all()) and float(column.abs().max() or 0) < 2**53  # type: ignore[arg-type]
            written = filled(self._written(name)) if whole and self._written is not None else None
            if written is not None and written.str.contains(r"^0\d+$").any():
                column = written
            else:
                column = column.cast(pl.Int64).cast(pl.String) if whole else column.cast(pl.String)
        else:
            column = column.cast(pl.String).str.strip_chars()
        column = column.fill_null("")
        labels = column.unique(maintain_order=True)
        place = pl.DataFrame({"label": labels, "code": np.arange(len(labels), dtype=np.int64)})
        codes = pl.DataFrame({"label": column}).join(place, on="label", how="left", maintain_order="left")["code"]
        return codes.to_numpy().astype(np.int64), labels.to_list()

    def _column(self, name: str) -> pl.Series:
        if name not in self._columns:
            few = ", ".join(map(repr, self.names[:12])) + (", …" if len(self.names) > 12 else "")
            header = "; its first line names no columns" * any(note.startswith("no header") for note in self.notes)
            raise DataError(f"{self.path} has no column {name!r}: it has {few}{header}{suggestion(name, self.names)}")
        return self._columns[name]

    def _note_bad(self, name: str, row: int, count: int, kind: str) -> None:
        first = f"{_short(self._column(name)[row])} in {self.place(row, name).split(', ')[1]}"
        self._note(f"column {name!r}: {count:,} cell{'s' * (count > 1)} {kind} taken as missing, the first {first}")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _short(cell: Any) -> str:
    text = str(cell)
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
