"""The columns of a table of labelled series: ids, labels, times and values, detected where options do not name them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from plmu.errors import DataError
from plmu.timeseries.columns import TIME_NAMES
from plmu.timeseries.frames import Array
from plmu.timeseries.tables import Table

if TYPE_CHECKING:
    from plmu.timeseries.labelled import LabelledConfig

Layout = Literal["rows", "wide", "arrays", "files", "archive"]
LABELS = ("label", "class", "category", "activity", "gesture", "labels", "classes", "klasse", "target", "y")
IDS = ("id", "series", "series_id", "sample", "sample_id", "case", "case_id", "recording", "recording_id", "name")
TIMES = (*sorted(TIME_NAMES), "sample", "step", "index", "frame")
ROW_NUMBERS = ("index", "unnamed: 0", "row", "row_number", "no", "nr", "#")
_MIN_SHOWN, _FEWEST_ROWS, _MOST_CHANNELS = 20, 3, 9  # where a column shows by its cells that it names series
_MIN_COUNTED_ROWS = 10  # in fewer rows, measurements may grow by 1 by chance


@dataclass(frozen=True)
class Format:
    """How a file holds series, so that other files can be read alike."""

    layout: Layout
    id: str | None = None
    label: str | None = None
    time: str | None = None
    values: tuple[str, ...] = ()  # channels; in a wide table, which has a series in each row, the steps
    left_out: tuple[str, ...] = ()  # columns that number the rows
    names: tuple[str, ...] = field(default=(), compare=False)  # all columns of the file, in its order


def find_format(table: Table, config: LabelledConfig) -> Format:
    """The format of a table: the columns that the configuration names, the others detected; notes say what is left out.

    Raises:
        DataError: there is no such column, or no column of measurements; or it is unclear which rows are a series.
    """
    names = tuple(table.names)
    for name in (config.label, config.id, config.time, *config.values):
        if name:
            table.kind(name)  # raises unless there is such a column
    taken = {config.label, config.id, config.time, *config.values}
    candidates = [name for name in table.names if name.strip().lower() in LABELS and table.kind(name) == "number"]
    measured = {name for name in candidates if not _are_integers(_silent_numbers(table, name))}
    label = config.label or named(table, LABELS, taken | measured)
    id_column = config.id or None
    if config.id is None:
        id_column = named(table, IDS, taken | {label} | _ids_across_labels(table, label))
    time = config.time or named(table, TIMES, taken | {label, id_column})
    long = id_column is not None and _has_many_rows(table, id_column, time, taken | {label})
    if config.id is None and not long:
        _check_each_row(table, label, time, taken | {id_column})
    if label is None and config.labels is None and not long:
        label = _unnamed_label(table, taken | {id_column})
    values = config.values
    row_numbers: tuple[str, ...] = ()
    if not values:
        free = [name for name in table.names if name not in (label, id_column, time if long else None)]
        row_numbers = tuple(name for name in free if _numbers_rows(table, name))
        if row_numbers:
            table.notes.append(f"left out, it only numbers the rows: {', '.join(row_numbers)}")
            free = [name for name in free if name not in row_numbers]
        values = tuple(name for name in free if table.kind(name) == "number")
        text = [name for name in free if name not in values]
        if text:
            total = f" … ({len(text)})" if len(text) > 5 else ""
            table.notes.append(f"left out, no numbers: {', '.join(text[:5])}{total}")
    if not values:
        raise DataError(f"{table.path} has no columns of measurements: it has {', '.join(table.names[:8])}")
    if not long and len(values) < 3 and table.rows > 3:
        raise DataError(
            f"{table.path} has {table.rows:,} rows of {len(values)} number{'s' * (len(values) > 1)}: if a series has"
            " many rows, name the column that tells series apart with --data.id"
        )
    return Format("rows" if long else "wide", id_column, label, time if long else None, values, row_numbers, names)


def like_format(table: Table, form: Format, config: LabelledConfig, classes: Collection[str]) -> Format:
    """The format of another table that is written like one of format `form`, but may lack labels or have other steps.

    Args:
        table: the other table.
        form: the format of the table that a model was trained on.
        config: names of columns that replace those of `form`.
        classes: the classes of that table. They tell whether the first column of a file without header has labels.
    """
    unlabelled = form.label not in table.names
    if form.layout == "wide" and form.label == "column 1" and not unlabelled:  # without a header
        cells = [cell for cell in table.text("column 1") if cell]
        unlabelled = 2 * sum(cell in classes for cell in cells) < len(cells)
    form = replace(form, label=None if unlabelled else form.label)
    if form.layout == "wide" and not config.values:
        others = (form.label, form.id, *form.left_out)
        steps = tuple(name for name in table.names if name not in others and table.kind(name) == "number")
        form = replace(form, values=steps)
    return form


def named(table: Table, names: tuple[str, ...], taken: set[str | None]) -> str | None:
    """The column, not in `taken`, whose name in lower case comes first in `names`; None if there is none."""
    columns = {name.strip().lower(): name for name in reversed(table.names) if name not in taken}
    return next((columns[name] for name in names if name in columns), None)


def _has_many_rows(table: Table, id_column: str, time: str | None, taken: set[str | None]) -> bool:
    """Whether series have many rows, so that ids repeat; notes a few ids that repeat by mistake, which do not count."""
    counts = np.bincount(table.codes(id_column)[0])
    if counts.max() == 1:
        return False
    steps = [name for name in table.names if name not in taken | {id_column} and table.kind(name) == "number"]
    if time is None and len(steps) >= 3 and 2 * int((counts == 1).sum()) > len(counts):
        repeated = int((counts > 1).sum())
        table.notes.append(
            f"names that repeat in column {id_column!r}: {repeated:,}; each row is a series all the same"
        )
        return False
    return True


def _check_each_row(table: Table, label: str | None, time: str | None, taken: set[str | None]) -> None:
    """Raise DataError if a column seems to name series of several rows, in a table that has no column with such a name:
    each of its cells comes several times, with the same label, and where there are times each time once."""
    free = [name for name in table.names if name not in taken | {label, time} and table.kind(name) != "time"]
    numbers = {name: _silent_numbers(table, name) for name in free if table.kind(name) == "number"}
    if table.rows < _MIN_SHOWN or (time is None and (label is None or len(numbers) > _MOST_CHANNELS)):
        return
    labels = np.zeros(table.rows, dtype=np.int64) if label is None else table.codes(label)[0]
    times = np.zeros(table.rows, dtype=np.int64) if time is None else table.codes(time)[0]
    for name in free:
        if name in numbers and not _are_integers(numbers[name]):
            continue
        codes, names = table.codes(name)
        series = len(names)
        if not int(labels.max()) + 1 < series <= table.rows / _FEWEST_ROWS:
            continue
        labelled = len(np.unique(codes * (labels.max() + 1) + labels)) == series
        timed = time is None or len(np.unique(codes * (times.max() + 1) + times)) == table.rows
        if labelled and timed:
            raise DataError(
                f"{table.path}: column {name!r} seems to name {series:,} series of several rows each. Give --data.id"
                f' {name}, or --data.id "" if each row is a series of its own'
            )


def _numbers_rows(table: Table, name: str) -> bool:
    """Whether a column only numbers the rows, like the index that pandas writes. From such a column a model would learn
    in which part of the file a class is."""
    if table.kind(name) != "number":
        return False
    values = _silent_numbers(table, name)
    if not _are_integers(values) or np.isnan(values).any():
        return False
    unnamed = name == "column 1" and "column 2" not in table.names
    if name == table.names[0] and (unnamed or name.strip().lower() in ROW_NUMBERS):
        return len(np.unique(values)) == len(values)
    candidate = name == table.names[0] or name.strip().lower() in ROW_NUMBERS
    return candidate and len(values) >= _MIN_COUNTED_ROWS and bool((np.diff(values) == 1).all())


def _ids_across_labels(table: Table, label: str | None) -> set[str]:
    """Columns that are named like ids, but in which most ids have several labels: they do not tell series apart."""
    if label is None:
        return set()
    labels, crossing = table.codes(label)[0], set()
    for name in table.names:
        if name != label and name.strip().lower() in IDS:
            codes, ids = table.codes(name)
            if len(np.unique(codes * (labels.max() + 1) + labels)) > 1.5 * len(ids):
                crossing.add(name)
    return crossing


def _unnamed_label(table: Table, taken: set[str | None]) -> str | None:
    """The label of a table with a series in each row: its only column of text, or a first column of few integers."""
    free = [name for name in table.names if name not in taken]
    text = [name for name in free if table.kind(name) == "text"]
    if len(text) == 1:
        return text[0]
    if text or len(free) < 4 or table.kind(free[0]) != "number":
        return None
    first = table.numbers(free[0], "missing")
    few = len(np.unique(first[~np.isnan(first)])) <= max(2, len(first) // 2)
    return free[0] if few and _are_integers(first) else None


def _silent_numbers(table: Table, name: str) -> Array:
    """A column as numbers, without adding a note on its cells of text."""
    notes = list(table.notes)
    values = table.numbers(name, "missing")
    table.notes[:] = notes
    return values


def _are_integers(values: Array) -> bool:
    """Whether there are values and all are integers."""
    values = values[~np.isnan(values)]
    return bool(len(values)) and bool((values == np.round(values)).all())
