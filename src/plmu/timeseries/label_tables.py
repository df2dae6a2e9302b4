"""Labels of series: how they are shown, and tables that have one for each series."""

from __future__ import annotations

import re
from pathlib import Path

from plmu.errors import DataError
from plmu.timeseries.labelled_columns import IDS, LABELS, named
from plmu.timeseries.tables import SUFFIXES, read_table

_NO_LABEL = ("", "nan", "na", "n/a", "null", "?")
_WHOLE = re.compile(r"([+-]?\d+)\.0*")


def shown_label(given: str | None) -> str | None:
    """A label as it is shown: whole numbers without a point, and None for one that is missing."""
    text = "" if given is None else given.strip()
    whole = _WHOLE.fullmatch(text)
    return None if text.lower() in _NO_LABEL else whole[1] if whole else text


def label_from_table(names: list[str], path: Path, header: bool | None) -> tuple[list[str | None], str]:
    """Labels of series from a table of ids, or names of files, and labels; and what was found, in words."""
    table = read_table(path, header)
    if len(table.names) < 2:
        raise DataError(f"{path} needs two columns: names of the series, and their labels")
    label = named(table, LABELS, set()) or table.names[-1]
    name = named(table, (*IDS, "file", "filename"), {label}) or next(one for one in table.names if one != label)
    known: dict[str, str] = {}
    short: dict[str, set[str]] = {}  # without folders, of which several may have a file of the same name
    for row, (one, given) in enumerate(zip(table.text(name), table.text(label), strict=True)):
        found = shown_label(given)
        if found is None:
            continue
        own = one[: -len(Path(one).suffix)] if Path(one).suffix.lower() in SUFFIXES else one
        for key in {one, own}:
            first = known.setdefault(key, found)
            if first != found:
                raise DataError(f"{table.place(row, label)}: series {one} has the labels {first!r} and {found!r}")
        short.setdefault(Path(own).name, set()).add(found)
    labels: list[str | None] = []
    for one in names:
        fitting = {known[one]} if one in known else short.get(Path(one).name, set())
        if len(fitting) > 1:
            raise DataError(f"{path} has several labels for {Path(one).name}: give names with folders in"
                            f" column {name!r}, such as {one}")  # fmt: skip
        labels.append(next(iter(fitting), None))
    return labels, f"labels: column {label!r} of {path.name}, by column {name!r}"
