"""Parquet files that are too large to be held: where the rows of their series are, and tables of some of the series.

A file is read twice: its names of series alone, and then the rows that are wanted, some million at a time. So it may be
in the order of series or of times; in the order of series, reading all of it in blocks takes a single pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plmu.timeseries.tables.table import Table
from plmu.timeseries.tables.typed_files import not_parquet, table_of

if TYPE_CHECKING:
    import polars as pl

READ = 2**20  # rows that are read at a time
_ROW, _KEY = "row of plmu", "name of plmu"  # of columns that are added


def row_count(path: Path) -> int:
    """The number of rows of a Parquet file, as it states them.

    Raises:
        DataError: it is not a Parquet file.
    """
    import polars as pl

    return int(_collected(path, _scan(path).select(pl.len())).item())


def first_rows(path: Path, count: int) -> Table:
    """The table of the first rows of a Parquet file."""
    return table_of(path, _collected(path, _scan(path).head(count)))


@dataclass(frozen=True)
class SeriesIndex:
    """Where the rows of each series of a file are.

    Attributes:
        path: of the file.
        names: the columns that name series; none for a file of one series.
        series: of each series its names, and its "first" and "last" rows and number of "rows"; in the order of first
            rows. Rows without a name are left out.
    """

    path: Path
    names: tuple[str, ...]
    series: pl.DataFrame

    @classmethod
    def of(cls, path: Path, names: Sequence[str]) -> SeriesIndex:
        """Read the names of all rows.

        Raises:
            DataError: the file cannot be read.
        """
        import polars as pl

        count = row_count(path)
        if not names:
            return cls(path, (), pl.DataFrame({"first": [0], "last": [count - 1], "rows": [count]}))
        keys, row, whole = _keys(names), pl.col(_ROW), None
        for block in _blocks(path, names, 0, count):
            part = block.select(_ROW, **keys).group_by(list(keys)).agg(first=row.min(), last=row.max(), rows=pl.len())
            if whole is not None:
                ends = (pl.col("first").min(), pl.col("last").max(), pl.col("rows").sum())
                part = pl.concat([whole, part]).group_by(list(keys)).agg(*ends)
            whole = part
        assert whole is not None
        return cls(path, tuple(names), whole.drop_nulls().sort("first"))

    def __len__(self) -> int:
        return self.series.height

    def tables(self, chosen: NDArray[np.int64], rows: int, columns: Sequence[str] | None = None) -> Iterator[Table]:
        """The rows of some series, in tables of at most so many rows or one series.

        Args:
            chosen: the numbers of the series, increasing.
            rows: of a table.
            columns: that are read; by default all.
        """
        counts = self.series["rows"].to_numpy()[chosen].cumsum()
        begin, before = 0, 0
        while begin < len(counts):
            end = max(begin + 1, int(np.searchsorted(counts, before + rows, side="right")))
            yield self._table(chosen[begin:end], columns)
            begin, before = end, int(counts[end - 1])

    def _table(self, chosen: NDArray[np.int64], columns: Sequence[str] | None) -> Table:
        import polars as pl

        wanted, keys = self.series[chosen], _keys(self.names)
        first, end = wanted["first"].to_numpy().min(), wanted["last"].to_numpy().max() + 1
        parts = []
        for block in _blocks(self.path, columns, int(first), int(end)):
            if keys:
                named = block.with_columns(**keys)
                block = named.join(wanted.select(list(keys)), on=list(keys), how="semi").sort(_ROW).drop(list(keys))
            parts.append(block)
        whole = pl.concat(parts)
        numbers = whole[_ROW].to_numpy()
        return table_of(self.path, whole.drop(_ROW), lambda row: int(numbers[row]) + 1)


def _keys(names: Sequence[str]) -> dict[str, pl.Expr]:
    """Columns of names that cannot be mistaken for others."""
    import polars as pl

    return {f"{_KEY} {place}": pl.col(name) for place, name in enumerate(names)}


def _scan(path: Path) -> pl.LazyFrame:
    import polars as pl

    return pl.scan_parquet(path, glob=False)


def _blocks(path: Path, columns: Sequence[str] | None, first: int, end: int) -> Iterator[pl.DataFrame]:
    """Rows of a file, some at a time, with their numbers."""
    lazy = _scan(path) if columns is None else _scan(path).select(columns)
    for start in range(first, end, READ):
        rows = lazy.slice(start, min(READ, end - start)).with_row_index(_ROW, start)
        yield _collected(path, rows)


def _collected(path: Path, lazy: pl.LazyFrame) -> pl.DataFrame:
    import polars as pl

    try:
        return lazy.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise not_parquet(path, error) from None
