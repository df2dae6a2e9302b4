"""Labelled series of one's own: tables of one or many rows a series, arrays, folders, files of the UCR archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.data import archive
from plmu.data.files import DataConfig
from plmu.errors import DataError
from plmu.timeseries.label_tables import label_from_table, shown_label
from plmu.timeseries.labelled_columns import IDS, LABELS, TIMES, Format, alike, find_format, named
from plmu.timeseries.tables import Table, nested_files, read_arrays, read_table

Numbers = NDArray[np.float64]
_NOTES = 20


@dataclass
class LabelledConfig(DataConfig):
    """Which series, where their labels are, and how gaps are treated."""

    file: Path | None = None
    """CSV, Parquet, NumPy (.npz with X and y), .ts or .arff file, or a folder with a sub-folder for each class."""
    test_file: Path | None = None
    """File or folder to test on. Default: some series of each class of --data.file."""
    labels: Path | None = None
    """Table with a label for each series (columns of ids and labels), where the data has none."""
    label: str | None = None
    """Column of labels. Default: found by its name."""
    id: str | None = None
    """Column that names the series of a row, where a series has many rows. Default: found by its name."""
    time: str | None = None
    """Column of times, by which the rows of a series are put in order. Default: found by its name."""
    values: tuple[str, ...] = ()
    """Columns of measurements. Default: all other columns of numbers."""
    missing: Literal["linear", "hold", "raise"] = "linear"
    """Gaps inside a series: join both ends, hold the last value, or raise."""
    bad: Literal["raise", "missing"] = "raise"
    """Text in a column of numbers: raise, or take it as missing."""
    header: bool | None = None
    """Whether the first line of a CSV file names the columns. Default: found."""
    test: float = 0.25
    """Share of the series of each class to test on, without --data.test-file."""

    def __post_init__(self) -> None:
        if not 0 < self.test < 1:
            raise ValueError(f"data.test must be a share between 0 and 1, got {self.test}")


@dataclass
class LabelledData:
    """Series, with their names and labels. A label is None where the file has none."""

    form: Format
    names: list[str]
    series: list[Numbers]  # (time, channels) each
    labels: list[str | None]
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, values: Numbers, label: str | None, where: str, config: LabelledConfig) -> None:
        """A series, without the missing values at its end, and with gaps filled."""
        known = ~np.isnan(values)
        rows = np.flatnonzero(known.any(axis=1))
        if not len(rows) or not known.any(axis=0).all():
            self.counts["empty"] += 1
            return
        values, known = values[: rows[-1] + 1].copy(), known[: rows[-1] + 1]
        if not known.all():
            if config.missing == "raise":
                step, channel = np.argwhere(~known)[0]
                raise DataError(f"{where}: series {name} has no value at step {step + 1}, channel {channel + 1}:"
                                " choose --data.missing linear or hold")  # fmt: skip
            at = np.arange(len(values))
            for column, seen in zip(values.T, known.T, strict=True):
                if config.missing == "hold":
                    last = np.maximum.accumulate(np.where(seen, at, 0))
                    column[:] = column[np.maximum(last, int(seen.argmax()))]
                else:
                    column[:] = np.interp(at, at[seen], column[seen])
            self.counts["filled"] += int((~known).sum())
        self.names.append(name)
        self.series.append(values)
        self.labels.append(shown_label(label))


def load(config: LabelledConfig, known: Format | None = None, classes: Collection[str] = ()) -> LabelledData:
    """The series of the configuration's file.

    Args:
        config: the file and how to read it.
        known: the format of the data that a model was trained on, to read other data alike. Labels may be missing then.
        classes: the labels of that data.

    Raises:
        DataError: there is no file, or something in it is at fault.
    """
    path = config.file
    if path is None:
        raise DataError("give your data as --data.file: a CSV, Parquet, NumPy, .ts or .arff file, or a folder")
    if path.is_dir():
        data = _folder(path, config, known)
    elif path.suffix.lower() in archive.SUFFIXES:
        data = LabelledData(Format("archive"), [], [], [])
        for place, (values, label) in enumerate(archive.read(path)):
            data.add(str(place + 1), values, label, str(path), config)
    elif path.suffix.lower() == ".npz":
        data = _arrays(path, config)
    else:
        data = _table(read_table(path, config.header), config, known, classes)
    if config.labels is not None:
        data.labels, note = label_from_table(data.names, config.labels, config.header)
        data.notes.append(note)
    if known is not None and len(known.values) and known.layout != "wide" and data.series:
        width = data.series[0].shape[1]
        if width != len(known.values):
            raise DataError(f"{path} has {width} channels; the model was trained on {len(known.values)}")
    _finish(data, config, needed=known is None)
    return data


def _finish(data: LabelledData, config: LabelledConfig, needed: bool) -> None:
    """Leave out series without a label where one is needed, and say what was found."""
    widths = {one.shape[1] for one in data.series}
    if len(widths) > 1:
        raise DataError(f"{config.file}: the series have {', '.join(map(str, sorted(widths)))} channels: all must have"
                        " equally many")  # fmt: skip
    absent = sum(label is None for label in data.labels)
    if needed and absent:
        if absent == len(data.labels):
            raise DataError(f"{config.file} has no labels: name their column with --data.label, or give a table of ids"
                            " and labels as --data.labels")  # fmt: skip
        kept = [place for place, label in enumerate(data.labels) if label is not None]
        data.notes.append(f"left out: {absent:,} series without a label")
        data.names, data.series = [data.names[i] for i in kept], [data.series[i] for i in kept]
        data.labels = [data.labels[i] for i in kept]
    if data.counts["empty"]:
        data.notes.append(f"left out: {data.counts['empty']:,} series without values in some channel")
    if data.counts["filled"]:
        how = "joined linearly" if config.missing == "linear" else "filled with the last value"
        data.notes.append(f"gaps: {data.counts['filled']:,} missing values {how}")
    if not data.series:
        raise DataError(f"{config.file} has no series with values")
    lengths = [len(one) for one in data.series]
    steps = f"{min(lengths):,}" if min(lengths) == max(lengths) else f"{min(lengths):,} to {max(lengths):,}"
    width = data.series[0].shape[1]
    data.notes.append(f"series: {len(lengths):,} of {steps} steps, {width} channel{'s' * (width > 1)}")


def _table(table: Table, config: LabelledConfig, known: Format | None, classes: Collection[str]) -> LabelledData:
    form = known or find_format(table, config)
    if form.layout not in ("rows", "wide"):
        raise DataError(f"{table.path} is a table; the model was trained on {form.layout}: give a file of that kind")
    if known is not None:
        form = alike(table, known, config, classes)
    data = LabelledData(form, [], [], [], table.notes)
    values = np.stack([table.numbers(name, config.bad) for name in form.values], axis=1)
    labels = None if form.label is None else table.text(form.label)
    where = str(table.path)
    if form.layout == "wide":
        names = [str(row + 1) for row in range(table.rows)] if form.id is None else table.text(form.id).tolist()
        for row, name in enumerate(names):
            data.add(name or str(row + 1), values[row][:, None], None if labels is None else labels[row], where, config)
    else:
        assert form.id is not None
        codes, names = table.codes(form.id)
        order = np.argsort(codes, kind="stable")
        if form.time is not None:
            times = table.times(form.time, bad=config.bad)
            order = np.lexsort((times, codes))
            order = _timed(order, times, form.time, data.notes)
        ends = np.searchsorted(codes[order], np.arange(1, len(names) + 1))
        for name, rows in zip(names, np.split(order, ends[:-1]), strict=True):
            if not name:
                data.notes.append(f"left out: {len(rows):,} rows without a name in column {form.id!r}")
                continue
            label = None
            if labels is not None:
                pairs = zip(labels[rows][::-1], rows[::-1], strict=True)
                found = {shown: int(row) for one, row in pairs if (shown := shown_label(one)) is not None}
                if len(found) > 1:
                    first, second = list(found)[:2]
                    raise DataError(f"{table.place(max(found[first], found[second]), str(form.label))}: series {name}"
                                    f" has the labels {first!r} and {second!r}")  # fmt: skip
                label = next(iter(found), None)
            data.add(name, values[rows], label, where, config)
    fixed = [name for place, name in enumerate(form.values) if form.layout == "rows" and _fixed(data, place)]
    if fixed:
        data.notes.append(f"the same in all rows of a series: {', '.join(fixed)}. If it names series and is no"
                          " measurement, leave it out by --data.values")  # fmt: skip
    shown = ", ".join(form.values[:6]) + (f" … ({len(form.values)})" if len(form.values) > 6 else "")
    if form.layout == "wide":
        data.notes.append(f"one series a row; steps: {shown}")
    else:
        ordered = f", in the order of column {form.time!r}" if form.time else ""
        data.notes.append(f"many rows a series, by column {form.id!r}{ordered}; channels: {shown}")
    if form.label is not None:
        data.notes.append(f"labels: column {form.label!r}")
    return data


def _timed(order: NDArray[np.intp], times: NDArray[Any], name: str, notes: list[str]) -> NDArray[np.intp]:
    """Without the rows that have no time, whose place in a series is not known."""
    absent = np.isnan(times[order]) if times.dtype.kind == "f" else np.isnat(times[order])
    if absent.any():
        notes.append(f"left out: {int(absent.sum()):,} rows without a time in column {name!r}")
    kept: NDArray[np.intp] = order[~absent]
    return kept


def _fixed(data: LabelledData, channel: int) -> bool:
    """Whether a channel differs between series, but not within one, as the number of a subject does."""
    ends = {(float(one[:, channel].min()), float(one[:, channel].max())) for one in data.series}
    long = any(len(one) > 1 for one in data.series)
    return long and len(ends) > 1 and all(low == high for low, high in ends)


def _folder(path: Path, config: LabelledConfig, known: Format | None) -> LabelledData:
    """A series for each file. The sub-folders are the classes."""
    data = LabelledData(Format("files"), [], [], [])
    for file in nested_files(path):
        if config.labels is not None and file.resolve() == config.labels.resolve():
            continue
        table = read_table(file, config.header)
        values = config.values or (data.form if known is None else known).values
        time = config.time or named(table, TIMES, set(values))
        if not values:
            values = tuple(name for name in table.names if name != time and table.kind(name) == "number")
        if not values:
            raise DataError(f"{file} has no columns of measurements: it has {', '.join(table.names[:8])}")
        rows = np.stack([table.numbers(name, config.bad) for name in values], axis=1)
        if time is not None:
            times = table.times(time, bad=config.bad)
            rows = rows[_timed(np.argsort(times, kind="stable"), times, time, table.notes)]
        if not data.form.values:
            data.form = Format("files", time=time, values=values)
            data.notes += table.notes[:1]
        label = file.parent.name if file.parent != path else None
        data.add(file.stem if label is None else f"{label}/{file.stem}", rows, label, str(file), config)
        if len(data.notes) < _NOTES:
            data.notes += [f"{file.name}: {note}" for note in table.notes[1:]]
    data.notes.append(f"one series a file; channels: {', '.join(data.form.values[:6])}")
    return data


def _arrays(path: Path, config: LabelledConfig) -> LabelledData:
    """An .npz file with X (series, time) or (series, time, channels), and y; NaN at the end of a series is padding."""
    arrays = {name.lower(): array for name, array in read_arrays(path).items()}
    x = next((arrays[name] for name in ("x", "data", "series", "values") if name in arrays), None)
    if x is None or x.ndim not in (2, 3) or not np.issubdtype(x.dtype, np.number) or np.iscomplexobj(x):
        raise DataError(f"{path} needs an array X of numbers, (series, time) or (series, time, channels), and labels y:"
                        f" it has {', '.join(arrays)}")  # fmt: skip
    x = (x[:, :, None] if x.ndim == 2 else x).astype(np.float64)
    parts: dict[str, Any] = {}
    for kind, wanted in (("labels", LABELS), ("names", ("ids", *IDS)), ("lengths", ("lengths",))):
        found = next((arrays[name] for name in wanted if name in arrays), None)
        if found is not None and found.shape != (len(x),):
            raise DataError(
                f"{path}: the {kind} have the shape {found.shape}; one for each of {len(x)} series is needed"
            )
        parts[kind] = found
    labels = None if parts["labels"] is None else _texts(parts["labels"])
    names = [str(place + 1) for place in range(len(x))] if parts["names"] is None else _texts(parts["names"])
    form = Format("arrays", values=tuple(f"channel {place + 1}" for place in range(x.shape[2])))
    data = LabelledData(form, [], [], [], [f"{path.name}: X {x.shape}"])
    for place, values in enumerate(x):
        length = len(values) if parts["lengths"] is None else _length(parts["lengths"][place], len(values), path)
        values = np.where(np.isinf(values), np.nan, values)[:length]
        data.add(names[place], values, None if labels is None else labels[place], str(path), config)
    return data


def _texts(array: NDArray[Any]) -> list[str]:
    """Whole numbers without a point, "" for NaN."""
    if array.dtype.kind == "S":
        return [one.decode("utf-8", "replace").strip() for one in array.tolist()]
    if array.dtype.kind == "f":
        return ["" if np.isnan(one) else str(int(one)) if one.is_integer() else str(one) for one in array.tolist()]
    return [str(one).strip() for one in array.tolist()]


def _length(given: Any, longest: int, path: Path) -> int:
    if not 0 <= given <= longest or given != int(given):
        raise DataError(f"{path}: lengths must be whole numbers from 0 to {longest}, the steps of X, got {given}")
    return int(given)
