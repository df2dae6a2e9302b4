"""The layout of a CSV file (encoding, separator, decimal comma, header), detected from its first lines."""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from plmu.data.files import unreadable
from plmu.errors import DataError
from plmu.timeseries.tables.cells import (
    DECIMAL_COMMA,
    DECIMAL_POINT,
    FLAGS,
    all_numbers,
    count_dates,
    count_values,
    looks_like_date,
    present,
)
from plmu.timeseries.tables.limits import check

SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}
LINES = 200  # lines that are examined
SAMPLE = 2**20  # bytes, and more if they hold fewer than two lines
LONGEST = 2**28  # bytes of two lines at most
HEADERS = 4  # lines that may name columns, at most


@dataclass(frozen=True)
class Layout:
    """The layout of a CSV file."""

    encoding: str
    separator: str  # " " stands for any number of spaces
    decimal_comma: bool
    names: tuple[str, ...]
    skipped: int  # lines before the first row of data
    sample: tuple[tuple[str, ...], ...]  # the first rows
    notes: tuple[str, ...]
    returns: bool = False  # whether lines end in "\\r" alone


def find_layout(path: Path, open_file: Callable[[], AbstractContextManager[IO[bytes]]], header: bool | None) -> Layout:
    """Detect the layout of a CSV file.

    Args:
        path: the file, for messages.
        open_file: opens its bytes, unpacked.
        header: whether its first line names the columns; None detects it.

    Raises:
        DataError: the file is not text, or has no rows.
    """
    start, whole = _start(path, open_file)
    encoding, notes = _encoding(start)
    text = start.decode(encoding, errors="replace").removeprefix("\ufeff")
    if "\0" in text:
        raise DataError(f"{path} is not a text file: give CSV, Parquet (.parquet), NumPy (.npy, .npz), JSON or Excel")
    returns = "\n" not in text and "\r" in text  # as old Macs wrote
    lines = text.split("\r" if returns else "\n")
    if not whole and len(lines) > 1:
        lines.pop()  # it may be incomplete
    comments = 0
    while comments < len(lines) and (not lines[comments].strip() or lines[comments].startswith("#")):
        comments += 1
    if comments and any(line.startswith("#") for line in lines[:comments]):
        notes.append(f"{comments} comment line{'s' * (comments > 1)} at the top left out")
    lines = [line.rstrip("\r") for line in lines[comments : comments + LINES]]
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} is empty: it has no rows")
    separator = _separator(lines)
    titles = _titles(lines, separator)
    if titles:
        notes.append(f"{titles} line{'s' * (titles > 1)} above the table left out, the first {lines[0][:40]!r}")
        lines, comments = lines[titles:], comments + titles
    rows = [row for row in split(lines, separator) if any(cell.strip() for cell in row)]
    if not rows:
        raise DataError(f"{path} has no rows that can be read: are its quotes closed?")
    check(path, [(0, len(rows[0]))])
    decimal_comma = separator != "," and _has_decimal_commas(rows)
    header = _has_header(rows, decimal_comma) if header is None else header
    width = len(rows[0])
    names = unique_names(rows[0]) if header else tuple(f"column {number}" for number in range(1, width + 1))
    under = _more_headers(rows, decimal_comma) if header else 0
    if under and len({cell for cell in map(str.strip, rows[0]) if cell}) < sum(bool(cell.strip()) for cell in rows[0]):
        names = unique_names(_joined(rows[: under + 1]))
        notes.append(f"{under + 1} lines name the columns together")
    elif under:
        shown = ", ".join(cell.strip() for cell in rows[1] if cell.strip())
        notes.append(f"{under} line{'s' * (under > 1)} under the header left out, as units: {shown[:40]!r}")
    if separator != ",":
        notes.append(f"{SEPARATORS.get(separator, 'spaces')} between fields")
    if decimal_comma:
        notes.append("decimal commas")
    if not header:
        notes.append("no header: columns are named by their places")
    sample = tuple(tuple(row) for row in rows[header + under :])
    skipped = comments + _height(lines, separator, header + under)
    return Layout(encoding, separator, decimal_comma, names, skipped, sample, tuple(notes), returns)


def split(lines: Sequence[str], separator: str) -> list[list[str]]:
    """The fields of each line; without their quotes, unless " " separates them."""
    if separator == " ":
        return [line.split() for line in lines]
    try:
        return list(csv.reader([f"{line}\n" for line in lines], delimiter=separator))
    except csv.Error:  # a field that is too long
        return [line.split(separator) for line in lines]


def _start(path: Path, open_file: Callable[[], AbstractContextManager[IO[bytes]]]) -> tuple[bytes, bool]:
    """The first bytes of a file, with at least two lines, and whether this is the whole file."""
    try:
        with open_file() as file:
            start = file.read(SAMPLE)
            while start.count(b"\n") < 2 and len(start) < LONGEST:
                chunk = file.read(len(start))
                if not chunk:
                    return start, True
                start += chunk
            return start, not file.read(1)
    except OSError as error:
        raise unreadable(error, path) from None


def _encoding(start: bytes) -> tuple[str, list[str]]:
    """The encoding of a file from its first bytes, and notes."""
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if start.startswith(mark):
            return name, ["UTF-16"]
    notes = ["byte-order mark left out"] if start.startswith(codecs.BOM_UTF8) else []
    try:
        codecs.utf_8_decode(start, "strict", False)
    except UnicodeDecodeError:
        return "cp1252", ["not UTF-8: read as Windows-1252"]
    return "utf-8", notes


def _separator(lines: Sequence[str]) -> str:
    """The separator that splits most lines into the same number of fields, two or more; " " for columns of numbers that
    only spaces separate; "," for a single column."""
    best, best_share = ",", 0.0
    for separator in SEPARATORS:
        counts = Counter(len(row) for row in split(lines, separator) if row)
        fields, frequency = max(counts.items(), key=lambda item: (item[0] > 1, item[1]), default=(1, 0))
        share = frequency / max(1, counts.total()) if fields > 1 else 0.0
        if share > best_share + 0.05:
            best, best_share = separator, share
    if best_share:
        return best
    counts = Counter(len(line.split()) for line in lines if line.strip())
    fields, frequency = counts.most_common(1)[0]
    cells = [cell for line in lines for cell in line.split()]
    filled = present(cells)
    numbers = len(cells) - len(filled) + count_values(filled, True)
    # Spaces separate fields if most words are numbers; otherwise they are part of a text or of a date.
    dates = count_dates(lines) > 0
    return " " if fields > 1 and frequency == counts.total() and 2 * numbers > len(cells) and not dates else ","


def _titles(lines: Sequence[str], separator: str) -> int:
    """The number of title lines above the table: the first lines have at most one field, most others two or more."""
    filled = [sum(bool(cell.strip()) for cell in row) for row in split(lines, separator)]
    if len(filled) != len(lines) or 2 * sum(count >= 2 for count in filled) <= len(filled):
        return 0  # a quoted field may have several lines
    return next(number for number, count in enumerate(filled) if count >= 2)


def _has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether more cells are numbers with a decimal comma than with a decimal point."""
    cells = [cell.strip() for row in rows for cell in row]
    commas = sum(bool(DECIMAL_COMMA.fullmatch(cell)) for cell in cells)
    return commas > sum(bool(DECIMAL_POINT.fullmatch(cell)) for cell in cells)


def _has_header(rows: Sequence[Sequence[str]], decimal_comma: bool) -> bool:
    """Whether the first row names columns: as a rule, it has text where the rows below have numbers or dates."""
    first, body = rows[0], rows[1:]
    filled = present(first)
    if not body or not filled:
        return not count_values(filled, decimal_comma)
    numbered = [cell.strip() for cell in first[-len(filled) :]]
    if first[0].strip() == "" and numbered == [str(i) for i in range(len(numbered))]:
        return True  # as pandas writes a frame without names
    if _counts_columns(first, body) or _dates_above_numbers(first, body, decimal_comma):
        return True
    above_values = False
    for column, cell in enumerate(first):
        below = present([row[column] for row in body if column < len(row)])
        if below and any(map(str.isalpha, cell)) and not looks_like_date(cell) and all(map(looks_like_date, below)):
            return True  # the others may be numbers, such as years or codes
        if below and count_values(below, decimal_comma) > len(below) / 2:
            above_values = True
            if count_values([cell], decimal_comma):
                return False
    return above_values or not count_values(filled, decimal_comma)


def _more_headers(rows: Sequence[Sequence[str]], decimal_comma: bool) -> int:
    """The number of rows under the header that are part of it, such as units: they have text, and neither numbers nor
    dates, where most of the rows below have these."""
    count = 0
    while count + 1 < min(HEADERS, len(rows) - 1):
        row, body = rows[count + 1], rows[count + 2 :]
        filled = present(row)
        if not filled or count_values(filled, decimal_comma) or any(cell.strip().lower() in FLAGS for cell in filled):
            break
        over = 0
        for column, cell in enumerate(row):
            below = present([other[column] for other in body if column < len(other)])
            values = count_values(below, decimal_comma) > len(below) / 2
            over += values if cell.strip() else 0
            if below and not values and cell.strip():
                return count  # a column of text may have any text
        if not over:
            break
        count += 1
    return count


def _height(lines: Sequence[str], separator: str, count: int) -> int:
    """The number of lines that the first `count` rows take, empty lines between and after them included."""
    if not count:
        return 0
    spaces = separator == " "
    reader = csv.reader([f"{line}\n" for line in lines], delimiter=separator, quoting=csv.QUOTE_NONE if spaces else 0)
    height = 0
    for row in reader:
        if any(cell.strip() for cell in row):
            if not count:
                break
            count -= 1
        height = reader.line_num
    return height


def _joined(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names of columns from several rows, as pandas writes columns of several levels."""
    columns = (
        dict.fromkeys(row[column].strip() for row in rows if column < len(row)) for column in range(len(rows[0]))
    )
    return [" ".join(part for part in parts if part) for parts in columns]


def _counts_columns(first: Sequence[str], body: Sequence[Sequence[str]]) -> bool:
    """Whether the first row numbers columns, 0, 1, 2 … or 1960, 1961 …, and names others, with names that do not recur
    below."""
    cells = [cell.strip() for cell in first]
    counted = [cell for cell in cells if cell.isdecimal()]
    start = int(counted[0]) if counted else 0
    names = {column: cell for column, cell in enumerate(cells) if cell and not cell.isdecimal()}
    if len(counted) < 3 or not names or counted != [str(start + i) for i in range(len(counted))]:
        return False
    return all(row[column].strip() != cell for row in body for column, cell in names.items() if column < len(row))


def _dates_above_numbers(first: Sequence[str], body: Sequence[Sequence[str]], decimal_comma: bool) -> bool:
    """Whether the first row has dates and the rows below have numbers: a column for each time."""
    columns = [column for column, cell in enumerate(first) if looks_like_date(cell)]
    below = present([row[column] for row in body for column in columns if column < len(row)])
    return len(columns) > 1 and all_numbers(below, decimal_comma)


def unique_names(row: Sequence[str]) -> tuple[str, ...]:
    """Unique names of columns: an empty one is "column" and its number, a second "a" is "a (2)"."""
    counts: Counter[str] = Counter()
    names: list[str] = []
    for number, cell in enumerate(row, 1):
        name = " ".join(cell.split()) or f"column {number}"
        counts[name] += 1
        while counts[name] > 1 and f"{name} ({counts[name]})" in names:
            counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(names)
