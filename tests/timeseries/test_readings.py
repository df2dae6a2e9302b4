"""Files as people have them, real ones and messy ones: each is read as a person reads it, or stops with a sentence that
says what to do. The values are those that the test has written, so the reference is what was meant."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plmu
from plmu.errors import DataError
from plmu.timeseries import read_labelled, read_series

N = 24
VALUES = [round((7 * i) % 11 + i / 8, 3) for i in range(N)]
DAYS = [datetime(2024, 1, 28) + timedelta(days=i) for i in range(N)]
HOURS = [datetime(2024, 2, 27, 10) + timedelta(hours=i) for i in range(N)]
MONTHS = [(1939 + i // 12, i % 12 + 1) for i in range(N)]
ENGLISH = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
FRENCH = ["janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août"]
FRENCH += ["septembre", "octobre", "novembre", "décembre"]
GERMAN = ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August"]
GERMAN += ["September", "Oktober", "November", "Dezember"]
RUSSIAN = ["янв", "фев", "мар", "апр", "май", "июн", "июл", "авг", "сен", "окт", "ноя", "дек"]
SPANISH = ["ene", "feb", "mar", "abr", "may", "jun", "jul", "ago", "sept", "oct", "nov", "dic"]


def table(cells: list[str], header: str = "when;load", values: list[Any] | None = None) -> str:
    rows = (f"{cell};{value}" for cell, value in zip(cells, values or VALUES, strict=True))
    return "\n".join([header, *rows, ""])


# The name of each way to write times, a file in it, and how its clock begins and counts.
TIMES: dict[str, tuple[str, str, str]] = {
    "ISO": (table([f"{d:%Y-%m-%d}" for d in DAYS]), "2024-01-28", "1 d"),
    "points": (table([f"{d:%d.%m.%Y}" for d in DAYS]), "2024-01-28", "1 d"),
    "words": (table([f"{ENGLISH[d.month - 1]}-{d.day}-{d.year}" for d in DAYS]), "2024-01-28", "1 d"),
    "ordinals": (table([f"{d.day}th {d:%B %Y}" for d in DAYS]), "2024-01-28", "1 d"),
    "weekdays": (table([f"{d:%A, %d %B %Y}" for d in DAYS]), "2024-01-28", "1 d"),
    "year month": (table([f"{y} {ENGLISH[m - 1]}" for y, m in MONTHS]), "1939-01-01", "month"),
    "Month.": (table([f"{ENGLISH[m - 1]}. {y}" for y, m in MONTHS]), "1939-01-01", "month"),
    "French": (table([f"{FRENCH[m - 1]} {y}" for y, m in MONTHS]), "1939-01-01", "month"),
    "French days": (
        table([f"{'1er' if d.day == 1 else d.day} {FRENCH[d.month - 1]} {d.year}" for d in DAYS]),
        "2024-01-28",
        "1 d",
    ),
    "German": (table([f"{d.day}. {GERMAN[d.month - 1]} {d.year}" for d in DAYS]), "2024-01-28", "1 d"),
    "Spanish": (table([f"{d.day} de {SPANISH[d.month - 1]} de {d.year}" for d in DAYS]), "2024-01-28", "1 d"),
    "Japanese": (table([f"{d.year}年{d.month}月{d.day}日" for d in DAYS]), "2024-01-28", "1 d"),
    "Chinese": (table([f"{y}年{m}月" for y, m in MONTHS]), "1939-01-01", "month"),
    "MM.YYYY": (table([f"{m:02}.{y}" for y, m in MONTHS]), "1939-01-01", "month"),
    "YYYY.MM": (table([f"{y}.{m:02}" for y, m in MONTHS]), "1939-01-01", "month"),
    "YYYY.MM as numbers": (table([f"{y + m / 100:.6g}" for y, m in MONTHS]), "1939-01-01", "month"),
    "days of weeks": (table([f"{d:%G-W%V-%u}" for d in DAYS]), "2024-01-28", "1 d"),
    "days of years": (table([f"{d:%Y-%j}" for d in DAYS]), "2024-01-28", "1 d"),
    "weeks": (table([f"1991 W{i + 6:02}" for i in range(N)]), "1991-02-04", "1 w"),
    "months": (table([f"{y}M{m:02}" for y, m in MONTHS]), "1939-01-01", "month"),
    "quarters": (table([f"{1990 + i // 4}Q{i % 4 + 1}" for i in range(N)]), "1990-01-01", "quarter"),
    "halves": (table([f"{1990 + i // 2}-S{i % 2 + 1}" for i in range(N)]), "1990-01-01", "6 months"),
    "YYYYMM": (table([f"{y}{m:02}" for y, m in MONTHS]), "1939-01-01", "month"),
    "YYYYMMDD": (table([f"{d:%Y%m%d}" for d in DAYS]), "2024-01-28", "1 d"),
    "YYYYMMDDHH": (table([f"{d:%Y%m%d%H}" for d in HOURS]), "2024-02-27 10:00", "1 h"),
    "YYYYMMDDHHMM": (table([f"{d:%Y%m%d%H%M}" for d in HOURS]), "2024-02-27 10:00", "1 h"),
    "YYYYMMDDHHMMSS": (table([f"{d:%Y%m%d%H%M%S}" for d in HOURS]), "2024-02-27 10:00", "1 h"),
    "12 hours": (table([f"{d:%m/%d/%Y %I:%M %p}" for d in HOURS]), "2024-02-27 10:00", "1 h"),
    "CET": (table([f"{d:%Y-%m-%d %H:%M} CET" for d in HOURS]), "2024-02-27 10:00+01:00", "1 h"),
    "points, CET": (table([f"{d:%d.%m.%Y %H:%M} CET" for d in HOURS]), "2024-02-27 10:00+01:00", "1 h"),
    "slashes, +0100": (table([f"{d:%d/%m/%Y %H:%M:%S}+01:00" for d in HOURS]), "2024-02-27 10:00+01:00", "1 h"),
    "GMT": (table([f"{d:%Y-%m-%d %H:%M} GMT" for d in HOURS]), "2024-02-27 10:00+00:00", "1 h"),
    "year;quarter": (
        table([f"{1990 + i // 4};{i % 4 + 1}" for i in range(N)], "year;quarter;load"),
        "1990-01-01",
        "quarter",
    ),
    "date;hour": (table([f"{d:%Y-%m-%d};{d.hour}" for d in HOURS], "date;hr;load"), "2024-02-27 10:00", "1 h"),
    "date;hhmm": (table([f"{d:%Y-%m-%d};{d.hour}00" for d in HOURS], "date;hhmm;load"), "2024-02-27 10:00", "1 h"),
    "date;HOUR to 2400": (
        table(
            [f"{d - timedelta(hours=1):%Y-%m-%d};{(d - timedelta(hours=1)).hour + 1}00" for d in HOURS],
            "DATE;HOUR;load",
        ),
        "2024-02-27 10:00",
        "1 h",
    ),
    "date, date and time": (
        table([f"{d:%Y-%m-%d};{d:%Y-%m-%d %H:%M}" for d in HOURS], "Date;Date_Time;load"),
        "2024-02-27 10:00",
        "1 h",
    ),
}


@pytest.mark.parametrize("way", TIMES)
def test_times_are_read_as_they_are_meant(way: str, tmp_path: Path) -> None:
    content, first, spacing = TIMES[way]
    (tmp_path / "my.csv").write_text(content)
    data = read_series(tmp_path / "my.csv")
    assert (data.columns.values, data.clock.spacing) == (("load",), spacing)
    (piece,) = data.pieces
    assert piece.values[:, 0].tolist() == VALUES
    assert data.clock.times(np.array([piece.start]), piece.offset) == [first] or first.endswith("10:00")
    assert data.clock.times(np.array([piece.start, piece.start + N - 1]), piece.offset)[0] == first


PLAIN = table([f"{d:%Y-%m-%d}" for d in DAYS]).replace(";", ",")
RECORDS = [{"when": f"{d:%Y-%m-%d}", "load": value} for d, value in zip(DAYS, VALUES, strict=True)]
SIGNED = [value - 5 for value in VALUES]


def zipped(**files: str) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_csv", ".csv"), content)
    return memory.getvalue()


def numbered(written: Callable[[float], str], values: list[float] = VALUES) -> str:
    return table([f"{d:%Y-%m-%d}" for d in DAYS], values=[written(value) for value in values])


# Name, content, and what of the notes matters.
FORMS: dict[str, tuple[str, str | bytes, str]] = {
    "gzip": ("my.csv.gz", gzip.compress(PLAIN.encode()), "my.csv.gz: 24 rows"),
    "xz": ("my.csv.xz", lzma.compress(PLAIN.encode()), ""),
    "bzip2": ("my.csv.bz2", bz2.compress(PLAIN.encode()), ""),
    "zip": ("my.zip", zipped(a_csv=PLAIN), ""),
    "packed, not named so": ("my.csv", gzip.compress(PLAIN.encode()), ""),
    "UTF-16, packed": ("my.txt.gz", gzip.compress(PLAIN.encode("utf-16")), "UTF-16"),
    "records": ("my.json", json.dumps(RECORDS), ""),
    "records in a file": ("my.json", json.dumps({"data": RECORDS}, indent=1), ""),
    "records in CSV": ("my.csv", json.dumps(RECORDS), ""),
    "JSON columns": ("my.json", json.dumps({name: [row[name] for row in RECORDS] for name in ("when", "load")}), ""),
    "pandas' JSON": (
        "my.json.gz",
        gzip.compress(
            json.dumps({name: {str(i): row[name] for i, row in enumerate(RECORDS)} for name in RECORDS[0]}).encode()
        ),
        "",
    ),
    "pandas' split JSON": (
        "my.json",
        json.dumps({"columns": ["when", "load"], "index": [], "data": [list(row.values()) for row in RECORDS]}),
        "",
    ),
    "a record a line": ("my.jsonl", "\n".join(map(json.dumps, RECORDS)) + "\n", ""),
    "nested": ("my.ndjson", "\n".join(json.dumps({**row, "tags": [1]}) for row in RECORDS), "left out, neither"),
    "units": (
        "my.csv",
        PLAIN.replace("when,load", "when,load\n,kW"),
        "1 line under the header left out, as units: 'kW'",
    ),
    "units and a blank": ("my.csv", PLAIN.replace("when,load", "when,load\n\n(date),(kW)\n"), "left out, as units"),
    "headers": ("my.csv", PLAIN.replace("when,load", "a,a\nwhen,load"), "2 lines name the columns together"),
    "footers": (
        "my.csv",
        PLAIN + "Total,999\nAverage,3\nSource: me,\n",
        "3 lines at the end left out, from line 26 on",
    ),
    "commas": ("my.csv", numbered(lambda x: str(x).replace(".", ",")), "decimal commas"),
    "dollars": ("my.csv", numbered(lambda x: f"${x}"), "the unit $ is left out"),
    "header with escape": ("my.csv", PLAIN.replace("load", "lo\x1b[31mad"), "lo\\u001b[31mad"),
}


@pytest.mark.parametrize("form", FORMS)
def test_files_are_read_as_they_are_meant(form: str, tmp_path: Path) -> None:
    name, content, note = FORMS[form]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    data = read_series(path)
    (piece,) = data.pieces
    assert piece.values[:, 0].tolist() == VALUES
    assert data.clock.spacing == "1 d"
    assert note in "; ".join(data.notes)
    assert all(map(str.isprintable, data.notes))


@pytest.mark.parametrize(
    ("written", "note"),
    [
        (lambda x: f"({-x})" if x < 0 else str(x), "numbers in parentheses or before a minus sign are negative"),
        (lambda x: f"$({-x})" if x < 0 else f"${x}", "the unit $ is left out, and numbers in parentheses"),
        (lambda x: f"{-x}-" if x < 0 else str(x), "numbers in parentheses or before a minus sign are negative"),
        (lambda x: f"({-x} %)" if x < 0 else f"{x} %", "the unit % is left out, and numbers in parentheses"),
    ],
)
def test_negative_numbers_of_bookkeepers(written: Callable[[float], str], note: str, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(numbered(written, SIGNED))
    data = read_series(tmp_path / "my.csv")
    assert data.pieces[0].values[:, 0].tolist() == SIGNED
    assert note in "; ".join(data.notes)


def test_spaces_between_thousands_and_decimal_commas(tmp_path: Path) -> None:
    for space in (" ", "\u00a0", "\u202f"):
        written = numbered(lambda x, space=space: f"{x + 1000:,.3f}".replace(",", space).replace(".", ","))
        (tmp_path / "my.csv").write_text(written)
        data = read_series(tmp_path / "my.csv")
        np.testing.assert_allclose(data.pieces[0].values[:, 0], np.array(VALUES) + 1000)
        assert "spaces between thousands, decimal commas" in "; ".join(data.notes)


def test_numbers_that_are_no_months(tmp_path: Path) -> None:
    """A clock in seconds, a measured column near 2000, a column that counts from 1.2, a year of decimals."""
    columns = {"t": [1990 + i / 100 for i in range(N)], "a": [2000 + (7 * i) % 12 / 100 for i in range(N)]}
    columns |= {"when": [1.2 + i for i in range(12)] * 2, "year": [1990 + i / 12 for i in range(N)]}
    for name, numbers in columns.items():
        (tmp_path / "my.csv").write_text(table([f"{number:.6g}" for number in numbers], f"{name};load"))
        assert read_series(tmp_path / "my.csv").clock.kind in ("rows", "numbers"), name


def test_the_text_of_a_table_stays_as_it_is_where_times_are_read() -> None:
    import polars as pl

    from plmu.timeseries.tables.dates import parse

    column = pl.Series("when", ["2024-01-01 10:00 CET", "2024-01-01 11:00 CET"])
    parse(column)
    assert column.to_list() == ["2024-01-01 10:00 CET", "2024-01-01 11:00 CET"]


def test_numbers_all_in_parentheses_are_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(numbered(lambda x: f"({x})"))
    with pytest.raises(DataError, match="no column of numbers"):
        read_series(tmp_path / "my.csv")


def test_columns_of_words_are_numbers_if_named(tmp_path: Path) -> None:
    words = ["true" if i % 3 else "false" for i in range(N)]
    (tmp_path / "my.csv").write_text(table([f"{d:%Y-%m-%d};{i % 5}" for i, d in enumerate(DAYS)], "t;v;open", words))
    assert read_series(tmp_path / "my.csv").columns.values == ("v",)
    data = read_series(tmp_path / "my.csv", values=["open"])
    assert data.pieces[0].values[:, 0].tolist() == [float(word == "true") for word in words]
    fewer = ["true" if i % 5 < 2 else "0.5" for i in range(N)]
    (tmp_path / "my.csv").write_text(table([f"{d:%Y-%m-%d};{i % 5}" for i, d in enumerate(DAYS)], "t;v;open", fewer))
    with pytest.raises(DataError, match="line 2, column 'open': 'true' is not a number"):
        read_series(tmp_path / "my.csv", values=["open"])


DAY = [f"{d:%Y-%m-%d}" for d in DAYS]
HIDDEN = "when;weather;load\n" + "".join(f"{d:%Y-%m-%d %H:%M};{'ab'[i % 3 > 1]};{i}\n" for i, d in enumerate(HOURS * 2))
# Name, content, and the sentence.
REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "EST": (
        "my.csv",
        table([f"{d:%Y-%m-%d %H:%M} EST" for d in HOURS]),
        r"line 2, column 'when': '2024-02-27 10:00 EST' looks like a time and is not understood\. Write times as",
    ),
    "no such day": (
        "my.csv",
        table([f"45/{d:%d/%Y}" for d in DAYS]),
        "line 2, column 'when': '45/28/2024' is not a date",
    ),
    "times alone": ("my.csv", table([f"{i}:15" for i in range(N)]), r"'0:15' looks like a time.* --data\.time \"\""),
    "named time": ("my.csv", table([f"T{i}x" for i in range(N)], "date;load"), "'T0x' looks like a time"),
    "repeated": (
        "my.csv",
        table([DAY[i // 12] for i in range(N)]),
        r"22 of 24 rows repeat a time in column 'when'\. Name the columns that tell series apart with --data\.id; or",
    ),
    "sparse ids": (
        "my.csv",
        table([f"{DAY[i // 3 + 3]};{'abcdefghi'[(i * i // 3 + i) % 9]}" for i in range(N)], "when;who;load"),
        r"16 of 24 rows repeat a time .* give --data\.id \"\" to average",
    ),
    "no times": (
        "my.csv",
        table(["north"] * 12 + ["south"] * 12, "place;load"),
        r"column 'place' seems to name 2 series, one below the other, .* Give --data\.id place, or --data\.id \"\"",
    ),
    "numbers of places": (
        "my.csv",
        table([str(17 + i // 12) for i in range(N)], "store;load"),
        r"column 'store' seems to name 2 series, one below the other, .* Give --data\.id store",
    ),
    "Russian": (
        "my.csv",
        table([f"{RUSSIAN[m - 1]} {y}" for y, m in MONTHS]),
        "'янв 1939' looks like a time and is not understood",
    ),
    "fiscal years": (
        "my.csv",
        table([f"FY{2001 + i // 4} Q{i % 4 + 1}" for i in range(N)], "d;load"),
        "'FY2001 Q1' looks",
    ),
    "days in columns": ("my.csv", "shop," + ",".join(DAY) + "\na" + ",1" * N + "\n", "has a column for each time"),
    "years in columns": (
        "my.csv",
        "land,code,1960,1961,1962,1963\nA,a,1,2,3,4\nB,b,2,3,4,5\n",
        r"has a column for each time \('1960', '1961' …\)",
    ),
    "months in columns": (
        "my.csv",
        "year," + ",".join(ENGLISH) + "\n" + "".join(f"{1990 + i}" + ",1" * 11 + f",{i}\n" for i in range(9)),
        r"has a column for each time \('Jan', 'Feb' …\)",
    ),
    "two in a zip": ("my.zip", zipped(a_csv=PLAIN, b_csv=PLAIN), "holds the files 'a.csv', 'b.csv': unpack it"),
    "Zstandard": ("my.csv.zst", b"\x28\xb5\x2f\xfd....", r"my\.csv\.zst is packed with Zstandard: .*zstd -d"),
    "damaged gzip": ("my.csv.gz", gzip.compress(PLAIN.encode())[:60], "truncated or damaged"),
    "a number": ("my.json", "7", "holds no table: write an array of objects"),
    "not JSON": ("my.json", "[1, 2", "is not JSON"),
    "damaged line": ("my.jsonl", '{"a": 1}\n{"a": 2}\n{"a": \n', r"my\.jsonl, line 3: it is not JSON"),
    "unequal": ("my.json", '{"a": [1, 2], "b": [1]}', r"lists of different lengths \('a' 2, 'b' 1\)"),
    "lists alone": ("my.json", '[{"a": [1]}, {"a": [2]}]', "has no columns of numbers"),
    "latin JSON": ("my.json", '{"ä": 1}\n{"ä": 2}'.encode("latin1"), "is not UTF-8"),
    "escape in a cell": ("my.csv", PLAIN.replace("2024-01-30", "\x1b[2Jxx"), r"'\\x1b\[2Jxx' is not a date"),
    "no table": ("my.csv", "a b: c\n\nd, e, f, g\nh\n", "my.csv"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_not_understood_is_said(form: str, tmp_path: Path) -> None:
    name, content, sentence = REFUSED[form]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=sentence) as error:
        read_series(path)
    assert str(error.value).isprintable()


def test_options_answer_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text(REFUSED["repeated"][1])  # type: ignore[arg-type]
    means = [np.mean(VALUES[:12]), np.mean(VALUES[12:])]
    np.testing.assert_allclose(read_series(path, id="").pieces[0].values[:, 0], means)
    assert read_series(path, duplicates="first").pieces[0].values[:, 0].tolist() == VALUES[::12]
    path.write_text(REFUSED["no times"][1])  # type: ignore[arg-type]
    assert [len(piece) for piece in read_series(path, id="place").pieces] == [12, 12]
    assert [len(piece) for piece in read_series(path, id="").pieces] == [24]
    path.write_text(REFUSED["EST"][1])  # type: ignore[arg-type]
    assert read_series(path, time="").clock.kind == "rows"


def test_a_column_that_describes_rows_names_no_series(tmp_path: Path) -> None:
    """As the weather of an hour, of which some hours have two."""
    rows = [(hour, kind) for i, hour in enumerate(HOURS * 1) for kind in ("rain", "mist")[: 1 + (i % 4 == 0)]]
    lines = "".join(f"{hour:%Y-%m-%d %H:%M},{kind if i % 3 else 'mist'},{i}\n" for i, (hour, kind) in enumerate(rows))
    (tmp_path / "my.csv").write_text("date_time,weather_main,load\n" + lines)
    data = read_series(tmp_path / "my.csv")
    assert (data.columns.id, len(data.pieces)) == (None, 1)
    assert (
        "times: rows on the step of another: 6; averaged (--data.id names a column that tells series apart)"
        in data.notes
    )


@pytest.mark.parametrize(("header", "more"), [("day,load", ""), ("day,load,heat", ",0.5")])
def test_an_integer_that_is_measured_names_no_series(header: str, more: str, tmp_path: Path) -> None:
    """Three rows a day, whose values differ within a day."""
    rows = [f"{DAY[i // 3 % N]},{i % 7}{more and f',{i / 8}'}" for i in range(3 * N)]
    (tmp_path / "my.csv").write_text("\n".join([header, *rows, ""]))
    with pytest.raises(DataError, match="48 of 72 rows repeat a time in column 'day'"):
        read_series(tmp_path / "my.csv")
    stores = [f"{DAY[i // 3]},{i % 3 + 1},{i / 8}" for i in range(3 * N) if i % 11]
    (tmp_path / "my.csv").write_text("\n".join(["day,number,load", *stores, ""]))
    assert read_series(tmp_path / "my.csv").columns.id == "number"


def test_a_panel_with_holes_is_one(tmp_path: Path) -> None:
    rows = "".join(f"{DAY[i]},{shop},{i}\n" for i in range(N) for shop in "ab" if (i + ord(shop)) % 4)
    (tmp_path / "my.csv").write_text(f"day,shop,load\n{rows}")
    assert read_series(tmp_path / "my.csv").columns.id == "shop"


def test_columns_that_begin_late_are_left_out_where_they_cost_more_than_they_have(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    rows = [f"{i},{i % 7},{i % 5},{'' if i < 200 else i}" for i in range(300)]
    path.write_text("\n".join(["t,a,b,c", *rows, ""]))
    data = read_series(path)
    assert (data.columns.values, data.rows) == (("a", "b"), 300)
    assert any("'c' 200 rows after the others" in note and "--data.values" in note for note in data.notes)
    assert read_series(path, values=["a", "c"]).rows == 100
    path.write_text("\n".join(["t,a,c", *(f"{i},{i % 7},{'' if i < 100 else i}" for i in range(300)), ""]))
    assert read_series(path).columns.values == ("a", "c")  # 2 · 200 values are more than 300


def test_a_column_that_ends_early_is_said(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("\n".join(["t,a,b", *(f"{i},{i % 7},{i % 5 if i < 200 else ''}" for i in range(300)), ""]))
    note = "column 'b' has no values in the last 100 rows, where its last value is held and not scored"
    assert note in read_series(path).notes
    assert note not in read_series(path, missing="split").notes


def test_months_with_rows_for_events(tmp_path: Path) -> None:
    days = sorted(
        [*(f"{1990 + i // 12}-{i % 12 + 1:02}-01,{i}" for i in range(60)), *(f"{y}-02-05," for y in range(1990, 1995))]
    )
    (tmp_path / "my.csv").write_text("\n".join(["Date,load", *days, ""]))
    data = read_series(tmp_path / "my.csv")
    assert data.clock.spacing == "month"
    assert data.pieces[0].values[:, 0].tolist() == list(range(60))


BOMBS: dict[str, Callable[[Path], None]] = {
    "a.npy": lambda path: np.save(path, np.zeros((0, 10**7))),
    "a.npz": lambda path: path.write_bytes(zipped_array((3 * 10**8,))),
    "a.parquet": lambda path: repeated_parquet(path),
    "a.csv": lambda path: path.write_bytes(b"a," * 5 * 10**6),
    "b.csv": lambda path: path.write_bytes(b"a," * 3000 + b"\n" + b"\n" * 200_000),
    "a.csv.gz": lambda path: path.write_bytes(gzip.compress(b"1\n" * 10**6) * 60),
    "a.json": lambda path: path.write_text(json.dumps([{f"a{i}": 1} for i in range(20_000)])),
}


def zipped_array(shape: tuple[int, ...]) -> bytes:
    """An .npz file whose array has the header of a large one, and no more."""
    memory, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    return memory.getvalue()


def repeated_parquet(path: Path) -> None:
    import polars as pl

    pl.select(pl.repeat(1, 10**6).alias("a")).with_columns(
        *(pl.col("a").alias(f"b{i}") for i in range(15))
    ).write_parquet(path)


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_of_large_tables_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    BOMBS[name](path)
    if name in ("a.csv.gz", "a.parquet"):  # whose size is their own
        monkeypatch.setenv("PLMU_TABLE_GIB", "0.1")
    with pytest.raises(DataError, match=r"GiB of memory or more: .* GiB are read at most\. .* PLMU_TABLE_GIB=\d"):
        read_series(path)
    if name == "a.npz":  # its array is not there
        monkeypatch.setenv("PLMU_TABLE_GIB", "3")
        with pytest.raises(DataError, match="is not a NumPy file that can be read"):
            read_series(path)
        monkeypatch.setenv("PLMU_TABLE_GIB", "much")
        with pytest.raises(DataError, match="PLMU_TABLE_GIB must be a number of GiB above 0, got 'much'"):
            read_series(path)


def test_a_spreadsheet_needs_its_reader_and_is_read_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    import polars as pl

    path = tmp_path / "my.xlsx"
    path.write_bytes(zipped(x="y"))
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    with pytest.raises(DataError, match=r"my\.xlsx is a spreadsheet: save it as CSV, or pip install fastexcel"):
        read_series(path)

    class Book:
        sheet_names = ("load", "notes")

        def load_sheet(self, place: int, **options: Any) -> Any:
            assert (place, options) == (0, {"header_row": None, "skip_rows": 0, "dtypes": "string"})
            cells = [["Station 5", None], ["when", "load"], [None, "kW"]]
            cells += [[f"{d} 00:00:00", str(value)] for d, value in zip(DAY, VALUES, strict=True)]
            frame = pl.DataFrame({"0": [row[0] for row in cells], "1": [row[1] for row in cells]})
            return type("Sheet", (), {"to_polars": lambda self: frame})()

    reader = ModuleType("fastexcel")
    reader.read_excel = lambda path: Book()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastexcel", reader)
    data = read_series(path)
    assert data.pieces[0].values[:, 0].tolist() == VALUES
    assert "sheet 'load', the first of 2" in data.notes


def packaged(package: str, *parts: str) -> Path:
    """A data file of an installed package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*parts)


@pytest.mark.parametrize(
    ("name", "rows", "first", "spacing"),
    [
        ("co2", 2284, "1958-03-29", "1 w"),
        ("sunspots", 309, "1700", "1"),
        ("macrodata", 203, "1959-01-01", "quarter"),
        ("elec_equip", 257, "1995-01-01", "month"),
    ],
)
def test_tables_of_statsmodels(name: str, rows: int, first: str, spacing: str) -> None:
    data = read_series(packaged("statsmodels", "datasets", name, f"{name}.csv"))
    (piece,) = data.pieces
    assert (len(piece), data.clock.spacing, data.clock.times(np.array([0]))) == (rows, spacing, [first])


def test_panels_and_wide_tables_of_statsmodels() -> None:
    data = read_series(packaged("statsmodels", "datasets", "grunfeld", "grunfeld.csv"))
    assert (data.columns.id, len(data.pieces), {len(piece) for piece in data.pieces}) == ("firm", 11, {20})
    with pytest.raises(DataError, match="has a column for each time"):
        read_series(packaged("statsmodels", "datasets", "fertility", "fertility.csv"))


def test_messy_files_are_forecast(tmp_path: Path) -> None:
    """From file to forecast: the months after December 1940, the hours after the last, and so on."""
    after = {
        "year month": "1941-01-01",
        "weeks": "1991-07-22",
        "CET": "2024-02-28T10:00",
        "date;hour": "2024-02-28T10:00",
    }
    for way, first in after.items():
        (tmp_path / "my.csv").write_text(TIMES[way][0])
        ahead = plmu.Forecaster(2, lookback=4, order=2, validation=0.2).fit(tmp_path / "my.csv").predict()
        assert ahead[ahead.columns[0]].to_numpy()[0].astype("datetime64[m]") == np.datetime64(first), way


def runs(shuffled: bool, named: str = "run") -> str:
    """Runs of 30 rows each, six of either kind."""
    rng = np.random.default_rng(0)
    rows = [
        f"{run},{step},{np.sin(step * (0.3 + run % 2)) + 0.1 * rng.standard_normal():.3f},{rng.standard_normal():.3f},"
        f"{'ab'[run % 2]}"
        for run in range(12)
        for step in range(30)
    ]
    if shuffled:
        rng.shuffle(rows)
    return "\n".join([f"{named},t,x,y,kind", *rows, ""])


@pytest.mark.parametrize("shuffled", [False, True])
def test_tables_of_labelled_runs_ask_for_their_column(shuffled: bool, tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text(runs(shuffled))
    with pytest.raises(DataError, match=r"column 'run' seems to name 12 series of several rows .* --data\.id run, or"):
        read_labelled(path, label="kind")
    data = read_labelled(path, label="kind", id="run")
    assert [series.shape for series in data.series] == [(30, 2)] * 12
    by_name = dict(zip(data.names, data.series, strict=True))
    path.write_text(runs(False, "id"))
    again = read_labelled(path, label="kind")
    assert again.names == [str(run) for run in range(12)]
    for name, series in zip(again.names, again.series, strict=True):
        np.testing.assert_array_equal(series, by_name[name])
    assert len(read_labelled(path, label="kind", id="")) == 360  # if you say so
    assert plmu.SequenceClassifier(projections=4).fit(data).score(data) == 1.0


def test_tables_of_scikit_learn_are_a_series_in_each_row() -> None:
    digits = read_labelled(packaged("sklearn", "datasets", "data", "digits.csv.gz"), label="column 65")
    assert (len(digits), len(digits.series[0]), len(digits.classes)) == (1797, 64, 10)
    with pytest.raises(DataError, match="That is a target for regression"):
        read_labelled(packaged("sklearn", "datasets", "data", "diabetes_data_raw.csv.gz"), label="column 3")


@pytest.mark.parametrize("form", ["json", "csv.gz", "jsonl"])
def test_labelled_series_in_other_files(form: str, tmp_path: Path) -> None:
    rows = [
        dict(zip(runs(False, "id").split("\n")[0].split(","), row.split(","), strict=True))
        for row in runs(False).split("\n")[1:-1]
    ]
    contents = {"json": json.dumps(rows), "jsonl": "\n".join(map(json.dumps, rows)), "csv.gz": runs(False, "id")}
    path = tmp_path / f"my.{form}"
    path.write_bytes(gzip.compress(contents[form].encode()) if form == "csv.gz" else contents[form].encode())
    data = read_labelled(path, label="kind")
    assert [series.shape for series in data.series] == [(30, 2)] * 12
    assert data.labels == ["a", "b"] * 6


def test_packed_files_of_a_folder_are_series(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(PLAIN.encode()))
    (tmp_path / "about.json").write_text("{}")
    assert [piece.name for piece in read_series(tmp_path).pieces] == ["a", "b"]
