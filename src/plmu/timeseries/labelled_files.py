"""Reading labelled series from tables, folders of tables, arrays, and files of the UCR and UEA archives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.data.table_files import nested_files, stem
from plmu.errors import DataError, in_one_line
from plmu.timeseries.frames import Array
from plmu.timeseries.labelled import LabelledConfig, LabelledData, label_text, labels_from_table, like_measurements
from plmu.timeseries.labelled_columns import IDS, LABELS, TIMES, Format, find_format, like_format, named
from plmu.timeseries.reader_options import configured
from plmu.timeseries.tables import Table, archive, read_arrays, read_table

_MAX_NOTES = 20


def read_labelled(path: str | Path, **options: Any) -> LabelledData:
    """Labelled series of a file or folder, as `plmu train classify` reads them.

    >>> data = plmu.timeseries.read_labelled("gestures.csv", label="gesture")
    >>> plmu.SequenceClassifier().fit(data)

    Args:
        path: CSV, Parquet, NumPy, .ts or .arff file, or a folder with a sub-folder for each class.
        options: `labels`, `label`, `id`, `time`, `values`, `missing`, `bad` and `header`, which `plmu train classify
            --help` describes as --data.NAME.

    Returns:
        The series with a label, their labels and names, and notes on what was found.

    Raises:
        DataError: the file cannot be read; the message names line and column.
        TypeError: there is no such option.
        ValueError: an option has no such value.
    """
    return load(configured(LabelledConfig, path, options, "read_labelled"))


def load(config: LabelledConfig, form: Format | None = None, classes: Collection[str] = ()) -> LabelledData:
    """The series of the configuration's file.

    Args:
        config: the file and how to read it.
        form: the format of the data that a model was trained on, to read this data alike; labels may then be missing.
        classes: the classes of the data that the model was trained on.

    Raises:
        DataError: there is no file, or it cannot be read.
    """
    path = config.file
    if path is None:
        raise DataError("give your data as --data.file: a CSV, Parquet, NumPy, .ts or .arff file, or a folder")
    reader = _Reader(config, path)
    if path.is_dir():
        reader.from_folder(form)
    elif path.suffix.lower() in archive.SUFFIXES:
        for number, (values, label) in enumerate(archive.read(path), 1):
            reader.add(str(number), values, label, path)
    elif path.suffix.lower() == ".npz":
        reader.from_arrays()
    else:
        reader.from_table(form, classes)
    return reader.finished(form)


class _Reader:
    """Collects the series of a file, with gaps filled, and notes on what was found and changed."""

    def __init__(self, config: LabelledConfig, path: Path) -> None:
        self.config, self.path = config, path
        self.format = Format("archive")
        self.names: list[str] = []
        self.series: list[Array] = []
        self.labels: list[str | None] = []
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()

    def add(self, name: str, values: Array, label: str | None, file: Path) -> None:
        """Add a series (time, channels), without missing rows at its end and with gaps filled; count it in `counts` and
        leave it out if a channel has no value at all."""
        present = ~np.isnan(values)
        rows = np.flatnonzero(present.any(axis=1))
        if not len(rows) or not present.any(axis=0).all():
            self.counts["empty"] += 1
            return
        values, present = values[: rows[-1] + 1].copy(), present[: rows[-1] + 1]
        if not present.all():
            if self.config.missing == "raise":
                step, channel = np.argwhere(~present)[0]
                raise DataError(f"{file}: series {name} has no value at step {step + 1}, channel {channel + 1}:"
                                " choose --data.missing linear or hold")  # fmt: skip
            _fill(values, present, self.config.missing)
            self.counts["filled"] += int((~present).sum())
        self.names.append(name)
        self.series.append(values)
        self.labels.append(label_text(label))

    def from_table(self, form: Format | None, classes: Collection[str]) -> None:
        """Add the series of a table, which has one or many rows per series; `form` and `classes` are as in `load`."""
        table, config = read_table(self.path, self.config.header), self.config
        detected = form or find_format(table, config)
        if detected.layout not in ("rows", "wide"):
            raise DataError(
                f"{self.path} is a table; the model was trained on {detected.layout}: give a file of that kind"
            )
        self.format = detected if form is None else like_format(table, form, config, classes)
        self.notes = table.notes
        values = np.stack([table.numbers(name, config.bad) for name in self.format.values], axis=1)
        labels = None if self.format.label is None else table.text(self.format.label)
        if self.format.layout == "wide":
            numbers = [str(row + 1) for row in range(table.rows)]
            names = numbers if self.format.id is None else table.text(self.format.id).tolist()
            for row, name in enumerate(names):
                label = None if labels is None else labels[row]
                self.add(name or numbers[row], values[row][:, None], label, self.path)
        else:
            self._from_rows(table, values, labels)
        self._note_format()

    def _from_rows(self, table: Table, values: Array, labels: NDArray[np.object_] | None) -> None:
        """Add the series of a table with many rows per series, in the order of their times.

        Args:
            table: the table.
            values: the channels of each row, (rows, channels).
            labels: the label of each row, if the table has any.
        """
        assert self.format.id is not None
        codes, names = table.codes(self.format.id)
        order = np.argsort(codes, kind="stable")
        if self.format.time is not None:
            times = table.times(self.format.time, bad=self.config.bad)
            order = _timed_rows(np.lexsort((times, codes)), times, self.format.time, self.notes)
        ends = np.searchsorted(codes[order], np.arange(1, len(names) + 1))
        for name, rows in zip(names, np.split(order, ends[:-1]), strict=True):
            if name:
                label = None if labels is None else self._label(table, name, rows, labels)
                self.add(name, values[rows], label, self.path)
            else:
                self.notes.append(f"left out: {len(rows):,} rows without a name in column {self.format.id!r}")
        constant = [name for channel, name in enumerate(self.format.values) if self._is_constant(channel)]
        if constant:
            self.notes.append(f"the same in all rows of a series: {', '.join(constant)}. If it names series and is no"
                              " measurement, leave it out by --data.values")  # fmt: skip

    def _label(self, table: Table, name: str, rows: NDArray[np.intp], labels: NDArray[np.object_]) -> str | None:
        """The label in the rows of a series; DataError if they have several."""
        first_rows: dict[str, int] = {}
        for row in rows[::-1].tolist():
            if (label := label_text(labels[row])) is not None:
                first_rows[label] = row
        if len(first_rows) > 1:
            first, second = list(first_rows)[:2]
            place = table.place(max(first_rows[first], first_rows[second]), str(self.format.label))
            raise DataError(f"{place}: series {name} has the labels {first!r} and {second!r}")
        return next(iter(first_rows), None)

    def _is_constant(self, channel: int) -> bool:
        """Whether a channel differs between series, but never within a series, as the number of a subject does."""
        ranges = {(float(series[:, channel].min()), float(series[:, channel].max())) for series in self.series}
        long = any(len(series) > 1 for series in self.series)
        return long and len(ranges) > 1 and all(low == high for low, high in ranges)

    def _note_format(self) -> None:
        form = self.format
        shown = ", ".join(form.values[:6]) + (f" … ({len(form.values)})" if len(form.values) > 6 else "")
        if form.layout == "wide":
            self.notes.append(f"one series a row; steps: {shown}")
        else:
            ordered = f", in the order of column {form.time!r}" if form.time else ""
            self.notes.append(f"many rows a series, by column {form.id!r}{ordered}; channels: {shown}")
        if form.label is not None:
            self.notes.append(f"labels: column {form.label!r}")

    def from_folder(self, form: Format | None) -> None:
        """Add a series for each file of the folder; the names of sub-folders are the labels."""
        self.format = Format("files")
        config = self.config
        for file in nested_files(self.path):
            if config.labels is not None and file.resolve() == config.labels.resolve():
                continue
            table = read_table(file, config.header)
            values = config.values or (form or self.format).values
            time = config.time or named(table, TIMES, set(values))
            if not values:
                values = tuple(name for name in table.names if name != time and table.kind(name) == "number")
            if not values:
                raise DataError(f"{file} has no columns of measurements: it has {', '.join(table.names[:8])}")
            rows = np.stack([table.numbers(name, config.bad) for name in values], axis=1)
            if time is not None:
                times = table.times(time, bad=config.bad)
                rows = rows[_timed_rows(np.argsort(times, kind="stable"), times, time, table.notes)]
            if not self.format.values:
                self.format = Format("files", time=time, values=values, names=tuple(table.names))
                self.notes += table.notes[:1]
            label = file.parent.name if file.parent != self.path else None
            self.add(stem(file) if label is None else f"{label}/{stem(file)}", rows, label, file)
            if len(self.notes) < _MAX_NOTES:
                self.notes += [f"{file.name}: {note}" for note in table.notes[1:]]
        self.notes.append(f"one series a file; channels: {', '.join(self.format.values[:6])}")

    def from_arrays(self) -> None:
        """Add the series of an .npz file with X (series, time) or (series, time, channels), and labels y.

        NaN at the end of a series is padding.
        """
        path = self.path
        arrays = {name.lower(): array for name, array in read_arrays(path).items()}
        x = _first(arrays, ("x", "data", "series", "values"))
        if x is None or x.ndim not in (2, 3) or not np.issubdtype(x.dtype, np.number) or np.iscomplexobj(x):
            raise DataError(f"{path} needs an array X of numbers, (series, time) or (series, time, channels), and"
                            f" labels y: it has {', '.join(arrays)}")  # fmt: skip
        x = (x[:, :, None] if x.ndim == 2 else x).astype(np.float64)
        labels, names, lengths = _first(arrays, LABELS), _first(arrays, ("ids", *IDS)), _first(arrays, ("lengths",))
        for kind, array in (("labels", labels), ("names", names), ("lengths", lengths)):
            if array is not None and array.shape != (len(x),):
                raise DataError(
                    f"{path}: the {kind} have the shape {array.shape}; one for each of {len(x)} series is needed"
                )
        label_cells = [None] * len(x) if labels is None else _texts(labels)
        name_cells = [str(number + 1) for number in range(len(x))] if names is None else _texts(names)
        self.format = Format("arrays", values=tuple(f"channel {number + 1}" for number in range(x.shape[2])))
        self.notes = [f"{path.name}: X {x.shape}"]
        for number, values in enumerate(x):
            length = len(values) if lengths is None else _length(lengths[number], len(values), path)
            values = np.where(np.isinf(values), np.nan, values)[:length]
            self.add(name_cells[number], values, label_cells[number], path)

    def finished(self, form: Format | None) -> LabelledData:
        """The collected series, with labels from --data.labels and closing notes. `form` is as in `load`; without it,
        series without a label are left out.

        Raises:
            DataError: there are no series or no labels, or the number of channels differs.
        """
        config = self.config
        if config.labels is not None:
            self.labels, note = labels_from_table(self.names, config.labels, config.header)
            self.notes.append(note)
        widths = {series.shape[1] for series in self.series}
        if form is not None and form.values and form.layout != "wide" and self.series:
            width = self.series[0].shape[1]
            if width != len(form.values):
                raise DataError(f"{self.path} has {width} channels; the model was trained on {len(form.values)}")
        if len(widths) > 1:
            raise DataError(f"{self.path}: the series have {', '.join(map(str, sorted(widths)))} channels: all must"
                            " have equally many")  # fmt: skip
        data = LabelledData(self.series, self.labels, self.names, self.format, self.notes)
        unlabelled = sum(label is None for label in data.labels)
        if form is None and unlabelled:
            if unlabelled == len(data):
                raise DataError(f"{self.path} has no labels: name their column with --data.label, or give a table of"
                                " ids and labels as --data.labels")  # fmt: skip
            data.notes.append(f"left out: {unlabelled:,} series without a label")
            data = data.take(i for i, label in enumerate(data.labels) if label is not None)
        if form is None and (reason := like_measurements(data.labels)):
            column = "" if data.format.label is None else f", column {data.format.label!r}"
            raise DataError(
                f"{config.labels or self.path}{column}: the labels are {reason}. That is a target for regression, and"
                " these are classifiers. If another column has the classes, name it with --data.label; if these numbers"
                " are classes, write them as words, such as class 7"
            )
        if self.counts["empty"]:
            data.notes.append(f"left out: {self.counts['empty']:,} series without values in some channel")
        if self.counts["filled"]:
            how = "joined linearly" if config.missing == "linear" else "filled with the last value"
            data.notes.append(f"gaps: {self.counts['filled']:,} missing values {how}")
        if not len(data):
            raise DataError(f"{self.path} has no series with values")
        lengths = [len(series) for series in data.series]
        steps = f"{min(lengths):,}" if min(lengths) == max(lengths) else f"{min(lengths):,} to {max(lengths):,}"
        plural = "s" * (data.channels > 1)
        data.notes.append(f"series: {len(lengths):,} of {steps} steps, {data.channels} channel{plural}")
        data.notes[:] = map(in_one_line, data.notes)
        return data


def _fill(values: Array, present: NDArray[np.bool_], how: Literal["linear", "hold"]) -> None:
    """Fill the missing values of a series (time, channels) in place; those before the first value with it."""
    steps = np.arange(len(values))
    for column, there in zip(values.T, present.T, strict=True):
        if how == "hold":
            last = np.maximum.accumulate(np.where(there, steps, 0))
            column[:] = column[np.maximum(last, int(there.argmax()))]
        else:
            column[:] = np.interp(steps, steps[there], column[there])


def _timed_rows(order: NDArray[np.intp], times: NDArray[Any], name: str, notes: list[str]) -> NDArray[np.intp]:
    """The indices in `order` of rows that have a time, which tells their place; notes how many rows have none."""
    missing = np.isnan(times[order]) if times.dtype.kind == "f" else np.isnat(times[order])
    if missing.any():
        notes.append(f"left out: {int(missing.sum()):,} rows without a time in column {name!r}")
    timed: NDArray[np.intp] = order[~missing]
    return timed


def _first(arrays: dict[str, NDArray[Any]], names: Sequence[str]) -> NDArray[Any] | None:
    """The array with the first of these names, if any."""
    return next((arrays[name] for name in names if name in arrays), None)


def _texts(array: NDArray[Any]) -> list[str]:
    """Text of each element: integers without a decimal point, "" for NaN."""
    if array.dtype.kind == "S":
        return [cell.decode("utf-8", "replace").strip() for cell in array.tolist()]
    if array.dtype.kind == "f":
        return ["" if np.isnan(cell) else str(int(cell)) if cell.is_integer() else str(cell) for cell in array.tolist()]
    return [str(cell).strip() for cell in array.tolist()]


def _length(length: Any, longest: int, path: Path) -> int:
    if not 0 <= length <= longest or length != int(length):
        raise DataError(f"{path}: lengths must be integers from 0 to {longest}, the steps of X, got {length}")
    return int(length)
