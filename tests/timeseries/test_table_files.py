"""Tables of one's own, as messy as they come: each is read and says what was done, or names line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmu.data.table_files import table_files
from plmu.errors import DataError
from plmu.timeseries.tables import read_table, read_tables

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]


@pytest.fixture
def table(tmp_path: Path) -> Any:
    def write(content: str | bytes, name: str = "my.csv") -> Any:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_table(path)

    return write


def days(times: Any) -> list[str]:
    return [str(one) for one in times.astype("datetime64[D]")]


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("time,load\n2024-01-01,1.5\n2024-01-02,2\n2024-01-03,NA\n", "3 rows, 2 columns (time, load)"),
        ("\ufefftime,load\n2024-01-01,1.5\n2024-01-02,2\n2024-01-03,\n", "byte-order mark"),
        ("time;load\n01.01.2024;1,5\n02.01.2024;2\n03.01.2024;-\n", "decimal commas"),
        ("time;load\n01.01.2024;1,5\n02.01.2024;2\n03.01.2024;-\n", "semicolons"),
        ("time\tload\n2024-01-01\t1.5\n2024-01-02\t2\n2024-01-03\t?\n", "tabs"),
        ('time,load\n2024-01-01,"1,5"\n2024-01-02,"2,0"\n2024-01-03,\n', "decimal commas"),
        ("time,load\r\n2024-01-01,1.5\r\n\r\n2024-01-02,2\r\n2024-01-03,NaN\r\n\r\n", "2 empty lines left out"),
        ("# station 7\ntime,load\n2024-01-01,1.5\n2024-01-02,2\n2024-01-03,null\n", "1 comment line"),
        ("time,load\n2024-01-01,1.5\n2.1.2024,2\nJan 3 2024,n/a\n", "dates in 3 formats"),
        ("time,load\n2024-01-01T00:00:00Z,1.5\n2024-01-02 00:00,2\n2024-01-03T02:00+02:00,NA\n", "UTC"),
        ("time,load\n31/12/2023 25:00,1\n", None),
        ("time,load,\n2024-01-01,1.5,\n2024-01-02,2,\n2024-01-03,,\n", None),
    ],
)
def test_messy_files_are_read(table: Any, content: str, note: str | None) -> None:
    if "25:00" in content:
        with pytest.raises(DataError, match=r"line 2, column 'time': '31/12/2023 25:00' is not a date"):
            table(content).times("time")
        return
    found = table(content)
    assert found.names == ["time", "load"]
    assert (found.kind("time"), found.kind("load")) == ("time", "number")
    assert days(found.times("time")) == DAYS
    np.testing.assert_array_equal(found.numbers("load"), [1.5, 2.0, np.nan])
    assert note is None or note in "; ".join(found.notes)


def test_text_among_numbers_is_named_by_line_and_column(table: Any) -> None:
    found = table('name,load\n"two\nlines",1\nb,bad\nc,3\n')
    assert found.kind("load") == "number"
    with pytest.raises(DataError, match=r"my\.csv, line 4, column 'load': 'bad' is not a number"):
        found.numbers("load")
    np.testing.assert_array_equal(found.numbers("load", bad="missing"), [1, np.nan, 3])
    assert "1 cell of text taken as missing, the first 'bad' in line 4" in found.notes[-1]


def test_text_far_below_the_first_lines_is_found(table: Any) -> None:
    found = table("load\n" + "1\n" * 5000 + "x\n")
    with pytest.raises(DataError, match="line 5002, column 'load'"):
        found.numbers("load")


def test_a_line_with_too_many_fields_is_named(table: Any) -> None:
    with pytest.raises(DataError, match="line 3: it has 3 fields, the first line 2"):
        table("a,b\n1,2\n3,4,5\n")


def test_days_and_months_in_both_orders_are_refused(table: Any) -> None:
    with pytest.raises(DataError, match=r"'13/01/2024' in line 2 has the day first, '01/14/2024' in line 3 the month"):
        table("t,v\n13/01/2024,1\n01/14/2024,2\n").times("t")


def test_the_order_of_days_and_months_is_found(table: Any) -> None:
    rising = table("t,v\n" + "".join(f"{day:02d}/02/2024,{day}\n" for day in range(1, 13)))
    assert days(rising.times("t"))[:2] == ["2024-02-01", "2024-02-02"]
    assert "day/month/year" in rising.notes[-1]
    unknown = table("t,v\n01/02/2024,1\n")
    assert days(unknown.times("t")) == ["2024-01-02"]
    assert "--data.day-first" in unknown.notes[-1]
    assert days(unknown.times("t", day_first=True)) == ["2024-02-01"]


def test_dates_of_digits(table: Any) -> None:
    assert days(table("date,v\n20240101,1\n20240102,2\n20240103,3\n").times("date")) == DAYS
    assert table("date,v\n20240131,1\n20240132,2\n").times("date").tolist() == [20240131.0, 20240132.0]
    assert table("date,v\n20240131,1\n20240230,2\n").times("date").dtype == np.float64


@pytest.mark.parametrize("content", ["", "\n\n", "time,load\n"])
def test_no_rows_is_said(table: Any, content: str) -> None:
    with pytest.raises(DataError, match=r"my\.csv (is empty: it has no rows|has no rows of data)"):
        table(content)


def test_a_quote_alone_is_no_row(table: Any) -> None:
    with pytest.raises(DataError, match="are its quotes closed"):
        table('\n"\n\n')


def test_one_row_is_a_table(table: Any) -> None:
    assert table("time,load\n2024-01-01,1\n").rows == 1


def test_columns_without_a_header_are_named_by_place(table: Any) -> None:
    found = table("2024-01-01,1.5\n2024-01-02,2\n")
    assert found.names == ["column 1", "column 2"]
    assert found.rows == 2
    assert table("1 2.5\n 3  4\n").names == ["column 1", "column 2"]
    assert table(",0,1\n0,1.5,2\n1,3.5,4\n").names == ["column 1", "0", "1"]  # as pandas writes it
    assert table("a,a,\n1,2,3\n").names == ["a", "a (2)", "column 3"]


def test_an_empty_line_of_one_column_is_a_missing_value(table: Any) -> None:
    np.testing.assert_array_equal(table("v\n1\n\n3\n\n").numbers("v"), [1, np.nan, 3])


def test_other_encodings(table: Any) -> None:
    assert table("größe,v\n1,2\n".encode("cp1252")).names[0] == "größe"
    assert table("größe,v\n1,2\n".encode("utf-16")).names[0] == "größe"
    with pytest.raises(DataError, match="not a text file"):
        table(b"\x00\x01\x02")


def test_text_stays_as_it_is(table: Any) -> None:
    found = table("id,v\nNA,1\nDE,2\nNA,3\n")
    assert found.text("id").tolist() == ["NA", "DE", "NA"]
    codes, labels = found.codes("id")
    assert (codes.tolist(), labels) == ([0, 1, 0], ["NA", "DE"])
    assert table("id,v\n1,1\n2,2\n").text("id").tolist() == ["1", "2"]


def test_thousands_and_infinity(table: Any) -> None:
    found = table('a,b\n"1,500",inf\n"2,250.5",3\n')
    assert found.numbers("a").tolist() == [1500, 2250.5]
    np.testing.assert_array_equal(found.numbers("b"), [np.nan, 3])
    assert "infinite" in found.notes[-1]


def test_a_wrong_name_gets_a_hint(table: Any) -> None:
    with pytest.raises(DataError, match=r"no column 'laod': it has 'load'.*load"):
        table("load\n1\n2\n").numbers("laod")


def test_thousands_of_columns(table: Any) -> None:
    names = [f"s{i}" for i in range(3000)]
    found = table(f"time,{','.join(names)}\n2024-01-01,{','.join('1' * 3000)}\n2024-01-02,{','.join('2' * 3000)}\n")
    assert found.names[1:] == names
    assert all(found.kind(name) == "number" for name in names)


def test_parquet_and_numpy(tmp_path: Path) -> None:
    import polars as pl

    times = np.array(DAYS, dtype="datetime64[us]")
    pl.DataFrame({"t": times, "v": [1, 2, None], "id": ["a", "b", "c"], "l": [[1], [2], [3]]}).write_parquet(
        tmp_path / "a.parquet"
    )
    np.save(tmp_path / "b.npy", np.arange(6.0).reshape(3, 2))
    np.savez(tmp_path / "c.npz", t=times, v=np.arange(3))
    (tmp_path / "notes.md").write_text("no table")
    a, b, c = read_tables(tmp_path)
    assert [one.name for one in table_files(tmp_path)] == ["a.parquet", "b.npy", "c.npz"]
    assert (a.kind("t"), a.kind("v"), a.kind("id")) == ("time", "number", "text")
    assert "left out, neither numbers nor times nor text: l" in a.notes
    assert (b.names, b.numbers("value 2").tolist()) == (["value 1", "value 2"], [1.0, 3.0, 5.0])
    assert days(c.times("t")) == DAYS


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.parquet", "a.xlsx"])
def test_damaged_files_and_spreadsheets_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError, match=name):
        read_table(tmp_path / name)


def test_arrays_that_are_no_columns_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4)))
    with pytest.raises(DataError, match=r"shape \(2, 3, 4\)"):
        read_table(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", a=np.zeros(2), b=np.zeros(3))
    with pytest.raises(DataError, match="different lengths"):
        read_table(tmp_path / "b.npz")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not there"):
        read_tables(tmp_path / "no.csv")
    with pytest.raises(DataError, match="has no tables"):
        read_tables(tmp_path)


def test_times_of_a_zone_in_a_parquet_file_are_told(tmp_path: Path) -> None:
    import polars as pl

    times = pl.Series("t", np.array(["2024-07-01T12:00"], dtype="datetime64[us]"))
    times = times.dt.replace_time_zone("Europe/Berlin")
    pl.DataFrame({"t": times, "v": [1]}).write_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    assert table.times("t")[0] == np.datetime64("2024-07-01T10:00")
    assert "column 't': time zones converted to UTC" in table.notes
