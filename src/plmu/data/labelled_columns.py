"""How a table holds labelled series: which columns are ids, labels, times and values, where the user does not say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.data.columns import TIME_NAMES
from plmu.data.files import DataError
from plmu.data.tables import Table

if TYPE_CHECKING:
    from plmu.data.labelled import LabelledConfig

Layout = Literal["rows", "wide", "arrays", "files", "archive"]
LABELS = ("label", "class", "category", "activity", "gesture", "labels", "classes", "klasse", "target", "y")
IDS = ("id", "series", "series_id", "sample", "sample_id", "case", "case_id", "recording", "recording_id", "name")
TIMES = (*sorted(TIME_NAMES), "sample", "step", "index", "frame")


@dataclass(frozen=True)
class Format:
    """How a file holds series: as it was found, so that other files can be read alike."""

    layout: Layout
    id: str | None = None
    label: str | None = None
    time: str | None = None
    values: tuple[str, ...] = ()  # channels; of a wide table the steps


def find_format(table: Table, config: LabelledConfig) -> Format:
    """Which columns are ids, labels, times and values, where the user does not say."""
    for name in (config.label, config.id, config.time, *config.values):
        if name is not None:
            table.kind(name)  # raises unless there is such a column
    taken = {config.label, config.id, config.time, *config.values}
    candidates = [name for name in table.names if name.strip().lower() in LABELS and table.kind(name) == "number"]
    measured = {name for name in candidates if not _whole(table.numbers(name, "missing"))}
    label = config.label or named(table, LABELS, taken | measured)
    several = config.id or named(table, IDS, taken | {label} | _crossing(table, label))
    time = config.time or named(table, TIMES, taken | {label, several})
    long = several is not None and len(table.codes(several)[1]) < table.rows
    if label is None and config.labels is None and not long:
        label = _unnamed_label(table, taken | {several})
    values = config.values
    if not values:
        free = [name for name in table.names if name not in (label, several, time if long else None)]
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
    return Format("rows" if long else "wide", several, label, time if long else None, values)


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


def _whole(values: NDArray[np.float64]) -> bool:
    """Whether they are whole numbers."""
    known = values[~np.isnan(values)]
    return bool(len(known)) and bool((known == np.round(known)).all())


def alike(table: Table, known: Format, config: LabelledConfig) -> Format:
    """The format of a table that is written like another, but may have no labels, and another number of steps."""
    unlabelled = known.label not in table.names
    if known.layout == "wide" and known.label == "column 1" and len(table.names) == len(known.values):
        unlabelled = True  # without a header: one column less than with labels
    form = replace(known, label=None if unlabelled else known.label)
    if known.layout == "wide" and not config.values:
        steps = [name for name in table.names if name not in (form.label, form.id) and table.kind(name) == "number"]
        form = replace(form, values=tuple(steps))
    return form
