"""How a table holds labelled series: which columns are ids, labels, times and values, where the user does not say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.errors import DataError
from plmu.timeseries.columns import TIME_NAMES
from plmu.timeseries.tables import Table

if TYPE_CHECKING:
    from plmu.timeseries.labelled import LabelledConfig

Layout = Literal["rows", "wide", "arrays", "files", "archive"]
LABELS = ("label", "class", "category", "activity", "gesture", "labels", "classes", "klasse", "target", "y")
IDS = ("id", "series", "series_id", "sample", "sample_id", "case", "case_id", "recording", "recording_id", "name")
TIMES = (*sorted(TIME_NAMES), "sample", "step", "index", "frame")
ROWS = ("index", "unnamed: 0", "row", "row_number", "no", "nr", "#")  # columns that number the rows
_FEW = 10  # rows, which may be measurements that happen to grow by 1


@dataclass(frozen=True)
class Format:
    """How a file holds series: as it was found, so that other files can be read alike."""

    layout: Layout
    id: str | None = None
    label: str | None = None
    time: str | None = None
    values: tuple[str, ...] = ()  # channels; of a wide table the steps
    left_out: tuple[str, ...] = ()  # columns that number the rows


def find_format(table: Table, config: LabelledConfig) -> Format:
    """Which columns are ids, labels, times and values, where the user does not say."""
    for name in (config.label, config.id, config.time, *config.values):
        if name is not None:
            table.kind(name)  # raises unless there is such a column
    taken = {config.label, config.id, config.time, *config.values}
    candidates = [name for name in table.names if name.strip().lower() in LABELS and table.kind(name) == "number"]
    measured = {name for name in candidates if not _whole(_numbers(table, name))}
    label = config.label or named(table, LABELS, taken | measured)
    several = config.id or named(table, IDS, taken | {label} | _crossing(table, label))
    time = config.time or named(table, TIMES, taken | {label, several})
    long = several is not None and _many_rows(table, several, time, taken | {label})
    if label is None and config.labels is None and not long:
        label = _unnamed_label(table, taken | {several})
    values = config.values
    counted: tuple[str, ...] = ()
    if not values:
        free = [name for name in table.names if name not in (label, several, time if long else None)]
        counted = tuple(name for name in free if _numbers_rows(table, name))
        if counted:
            table.notes.append(f"left out, it only numbers the rows: {', '.join(counted)}")
            free = [name for name in free if name not in counted]
        values = tuple(name for name in free if table.kind(name) == "number")
        text = [name for name in free if name not in values]
        if text:
            more = f" … ({len(text)})" if len(text) > 5 else ""
            table.notes.append(f"left out, no numbers: {', '.join(text[:5])}{more}")
    if not values:
        raise DataError(f"{table.path} has no columns of measurements: it has {', '.join(table.names[:8])}")
    if not long and len(values) < 3 and table.rows > 3:
        raise DataError(
            f"{table.path} has {table.rows:,} rows of {len(values)} number{'s' * (len(values) > 1)}: if a series has"
            " many rows, name the column that tells series apart with --data.id"
        )
    return Format("rows" if long else "wide", several, label, time if long else None, values, counted)


def _many_rows(table: Table, several: str, time: str | None, taken: set[str | None]) -> bool:
    """Whether a series has many rows: its name repeats. A few names that repeat by mistake do not make it so."""
    counts = np.bincount(table.codes(several)[0])
    if counts.max() == 1:
        return False
    steps = [name for name in table.names if name not in taken | {several} and table.kind(name) == "number"]
    if time is None and len(steps) >= 3 and 2 * int((counts == 1).sum()) > len(counts):
        repeated = int((counts > 1).sum())
        table.notes.append(f"names that repeat in column {several!r}: {repeated:,}; each row is a series all the same")
        return False
    return True


def _numbers_rows(table: Table, name: str) -> bool:
    """Whether a column is no measurement but numbers the rows, as pandas writes its index. A model would learn from it
    in which part of the file a class is."""
    if table.kind(name) != "number":
        return False
    values = _numbers(table, name)
    if not _whole(values) or np.isnan(values).any():
        return False
    unnamed = name == "column 1" and "column 2" not in table.names
    if name == table.names[0] and (unnamed or name.strip().lower() in ROWS):
        return len(np.unique(values)) == len(values)
    first = name == table.names[0] or name.strip().lower() in ROWS
    return first and len(values) >= _FEW and bool((np.diff(values) == 1).all())


def _crossing(table: Table, label: str | None) -> set[str]:
    """Columns of ids of which many have several labels: they do not tell series apart."""
    if label is None:
        return set()
    labels, found = table.codes(label)[0], set()
    for name in table.names:
        if name != label and name.strip().lower() in IDS:
            codes, ids = table.codes(name)
            if len(np.unique(codes * (labels.max() + 1) + labels)) > 1.5 * len(ids):
                found.add(name)
    return found


def named(table: Table, names: tuple[str, ...], taken: set[str | None]) -> str | None:
    """The column with the first of these names, if any."""
    own = {name.strip().lower(): name for name in reversed(table.names) if name not in taken}
    return next((own[name] for name in names if name in own), None)


def _unnamed_label(table: Table, taken: set[str | None]) -> str | None:
    """Of a table with one series a row: the only column of text, or a first column of few different whole numbers."""
    free = [name for name in table.names if name not in taken]
    text = [name for name in free if table.kind(name) == "text"]
    if len(text) == 1:
        return text[0]
    if text or len(free) < 4 or table.kind(free[0]) != "number":
        return None
    first = table.numbers(free[0], "missing")
    few = len(np.unique(first[~np.isnan(first)])) <= max(2, len(first) // 2)
    return free[0] if few and _whole(first) else None


def _numbers(table: Table, name: str) -> NDArray[np.float64]:
    """A column as numbers, without a note on cells of text."""
    notes = list(table.notes)
    found = table.numbers(name, "missing")
    table.notes[:] = notes
    return found


def _whole(values: NDArray[np.float64]) -> bool:
    """Whether they are whole numbers."""
    known = values[~np.isnan(values)]
    return bool(len(known)) and bool((known == np.round(known)).all())


def alike(table: Table, known: Format, config: LabelledConfig, classes: Collection[str]) -> Format:
    """The format of a table that is written like another, but may have no labels, and another number of steps."""
    unlabelled = known.label not in table.names
    if known.layout == "wide" and known.label == "column 1" and not unlabelled:  # without a header
        given = [one for one in table.text("column 1") if one]
        unlabelled = 2 * sum(one in classes for one in given) < len(given)
    form = replace(known, label=None if unlabelled else known.label)
    if known.layout == "wide" and not config.values:
        steps = [name for name in table.names if name not in (form.label, form.id, *form.left_out)]
        steps = [name for name in steps if table.kind(name) == "number"]
        form = replace(form, values=tuple(steps))
    return form
