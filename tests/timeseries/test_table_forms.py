"""Forms in which people write tables: units, words for dates, times in several columns, lines above the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmu.errors import DataError
from plmu.timeseries.clock import find_clock
from plmu.timeseries.columns import find_columns
from plmu.timeseries.series import SeriesConfig, load
from plmu.timeseries.tables import read_table


@pytest.fixture
def table(tmp_path: Path) -> Any:
    def write(content: str) -> Any:
        path = tmp_path / "my.csv"
        path.write_text(content, newline="")
        return read_table(path)

    return write


@pytest.mark.parametrize(
    ("cells", "numbers", "note"),
    [
        (["12.5%", "-3 %", "", '"1,200 %"'], [12.5, -3, 1200], "commas between thousands, and the unit % is left out"),
        (['"$1,012.50"', "-$3", "NA", "$7"], [1012.5, -3, 7], "commas between thousands, and the unit $ is left out"),
        (["12.5 kW", "3 kW", "-", "1e3 kW"], [12.5, 3, 1000], "the unit kW is left out"),
        (["12.5°C", "-3.0°C", "nan", "7°C"], [12.5, -3, 7], "the unit °C is left out"),
        (['"12,5 €"', '"3,0 €"', "", '"7,25 €"'], [12.5, 3, 7.25], "decimal commas, and the unit € is left out"),
    ],
)
def test_units_are_left_out(table: Any, cells: list[str], numbers: list[float], note: str) -> None:
    found = table("\n".join(["load,name", *(f"{cell},a" for cell in cells), ""]))
    assert found.kind("load") == "number"
    np.testing.assert_array_equal(found.numbers("load"), [*numbers[:2], np.nan, numbers[2]])
    assert f"column 'load': {note}" in found.notes


def test_names_are_no_numbers_with_units(table: Any) -> None:
    found = table("a,b,c,d\n1a,s1,3 x,Model 2005\n2a,s2,4 y,Model 2006\n3a,s3,5 z,Model 2007\n")
    assert [found.kind(name) for name in "abcd"] == ["text"] * 4


def test_a_cell_without_its_unit_is_named(table: Any) -> None:
    found = table("load\n1.5 kW\n2.5 kW\n3 W\n4 kW\n5\n")
    with pytest.raises(DataError, match="line 4, column 'load': '3 W' is not a number"):
        found.numbers("load")
    np.testing.assert_array_equal(found.numbers("load", bad="missing"), [1.5, 2.5, np.nan, 4, 5])


@pytest.mark.parametrize(
    ("cells", "told", "last"),
    [
        (["2023Q3", "2023Q4", "2024Q1", "2024Q2"], "quarter", "2024-04-01"),
        (["Q3 2023", "Q4 2023", "Q1 2024", "q2 2024"], "quarter", "2024-04-01"),
        (["2020-W52", "2020-W53", "2021-W01", "2021W02"], "1 w", "2021-01-11"),
        (["January 2024", "February 2024", "March 2024", "April 2024"], "month", "2024-04-01"),
        (["Nov-23", "Dec-23", "Jan-24", "Feb-24"], "month", "2024-02-01"),
        (["30 May 2024", "31 May 2024", "1 June 2024", "2 June 2024"], "1 d", "2024-06-02"),
        (["December 30, 2023", "December 31, 2023", "January 1, 2024", "January 2, 2024"], "1 d", "2024-01-02"),
    ],
)
def test_dates_in_words(table: Any, cells: list[str], told: str, last: str) -> None:
    found = table("\n".join(["when;n", *(f"{cell};{i}" for i, cell in enumerate(cells)), ""]))
    assert found.kind("when") == "time"
    times = found.times("when")
    assert str(times[-1].astype("datetime64[D]")) == last
    assert find_clock([times]).spacing == told


def test_rows_whose_time_is_no_date_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("time,load\n" + "".join(f"2024-01-{i:02},{i}\n" for i in range(1, 21)) + "Later,210\n")
    with pytest.raises(DataError, match=r"line 22, column 'time': 'Later' is not a date or time.*--data\.bad missing"):
        load(SeriesConfig(file=path))
    found = load(SeriesConfig(file=path, bad="missing"))
    assert found.rows == 20
    told = "; ".join(found.notes)
    assert "column 'time': 1 cell that is not a date taken as missing, the first 'Later' in line 22" in told


@pytest.mark.parametrize(
    ("header", "form", "name"),
    [
        ("Date,Time,load", "{0:%d/%m/%Y},{0:%H:%M:%S},{1}", "Date Time"),
        ("year,month,day,hour,load", "{0.year},{0.month},{0.day},{0.hour},{1}", "year month day hour"),
        ("load,Hour,Day,Month,Year", "{1},{0.hour},{0.day},{0.month},{0.year}", "Year Month Day Hour"),
        ("year,month,day,hour,minute,load", "{0.year},{0.month},{0.day},{0.hour},0,{1}", "year month day hour minute"),
    ],
)
def test_times_in_several_columns(tmp_path: Path, header: str, form: str, name: str) -> None:
    hours = (np.datetime64("2024-01-30T00") + np.arange(60)).astype("datetime64[us]").tolist()
    (tmp_path / "my.csv").write_text("\n".join([header, *(form.format(hour, i) for i, hour in enumerate(hours)), ""]))
    config = SeriesConfig(file=tmp_path / "my.csv")
    found = load(config)
    assert (found.columns.time, found.columns.values, found.rows) == (name, ("load",), 60)
    assert f"time: column {name!r}, every 1 h from 2024-01-30 00:00 to 2024-02-01 11:00" in found.notes
    again = load(config, (found.columns, found.clock))  # as `plmu predict` reads
    assert again.pieces[0].start == found.pieces[0].start
    first = header.split(",")[0]
    assert (
        find_columns([read_table(tmp_path / "my.csv")], SeriesConfig(time=first, id="")).time == first
    )  # if you say so


def test_columns_that_are_no_time_together(table: Any) -> None:
    for content in (
        "day,start,load\n2024-01-01 10:00,7:00,1\n2024-01-02 10:00,8:00,2\n",  # the date has a time of day
        "day,start,end,load\n2024-01-01,7:00,8:00,1\n2024-01-02,7:00,9:00,2\n",
        "year,month,load\n2024,13,1\n2024,14,2\n",
        "year,load\n2024,1\n2025,2\n",
    ):
        assert table(content).join_times() == ()


def test_lines_above_the_table_are_left_out(table: Any) -> None:
    rows = "".join(f"2024-01-0{i},{i},x\n" for i in range(1, 8))
    for title in ("Station 5\nmade today\n\n", "Station 5,,\n,,\n"):
        found = table(f"{title}time,load,name\n{rows}")
        assert found.names == ["time", "load", "name"]
        assert f"lines above the table left out, the first {title.partition(chr(10))[0]!r}" in found.notes[1]
        assert found.place(0, "load").endswith(f"line {title.count(chr(10)) + 2}, column 'load'")


def test_lines_that_end_in_a_return(table: Any) -> None:
    found = table("time,load\r2024-01-01,1\r2024-01-02,x\r2024-01-03,3\r")
    with pytest.raises(DataError, match="line 3, column 'load': 'x'"):
        found.numbers("load")


def test_too_many_fields_are_named_beside_text(table: Any) -> None:
    with pytest.raises(DataError, match="line 3: it has 5 fields, the first line 3"):
        table("name,load,n\na,1.5,2\nb,2.5,3,,x\nc,3.5,4\n")


def test_a_column_for_each_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("shop,2024-01-01,2024-01-02,2024-01-03\na,1,2,3\nb,4,5,6\n")
    with pytest.raises(
        DataError, match=r"has a column for each time \('2024-01-01', '2024-01-02' …\): write a row for"
    ):
        load(SeriesConfig(file=tmp_path / "my.csv"))


def test_times_that_are_rounded_numbers_do_not_drift() -> None:
    """As spreadsheets write hours: parts of days with six digits."""
    times = np.round(45292 + np.arange(1000) / 24, 6)
    clock = find_clock([times])
    assert clock.step == pytest.approx(1 / 24, rel=1e-9)
    np.testing.assert_array_equal(clock.steps(times), np.arange(1000))
    assert find_clock([np.array([1.0, 2.0, 3.0, 5.0, 9.0])]).step == 1.5  # no grid


def test_several_columns_may_name_series_together(tmp_path: Path) -> None:
    """As in sales by shop and item."""
    rows = [
        f"{np.datetime64('2024-01-01') + day},{shop},{item},{100 * shop + 10 * 'xyz'.index(item) + day % 7}"
        for day in range(40) for shop in (1, 2) for item in "xyz"
    ]  # fmt: skip
    path = tmp_path / "my.csv"
    path.write_text("\n".join(["day,shop,item,sold", *rows, ""]))
    found = load(SeriesConfig(file=path))
    assert "series: named by columns 'item', 'shop', since times repeat (--data.id changes it)" in found.notes
    assert (found.columns.id, found.columns.values) == ("item / shop", ("sold",))
    assert {one.name: one.values[0, 0] for one in found.pieces} == {
        f"{item} / {shop}": 100 * shop + 10 * place for place, item in enumerate("xyz") for shop in (1, 2)
    }
    again = load(SeriesConfig(file=path), (found.columns, found.clock))  # as `plmu predict` reads
    assert [one.name for one in again.pieces] == [one.name for one in found.pieces]
    given = load(SeriesConfig(file=path, id="shop,item"))
    assert given.columns.id == "shop / item"
    assert len({one.name for one in given.pieces}) == 6
    alone = load(SeriesConfig(file=path, id="shop"))  # if you say so
    assert {one.name for one in alone.pieces} == {"1", "2"}


def test_midnight_signs_and_errors_of_spreadsheets(table: Any) -> None:
    rows = ("2024-02-28 23:00,\u22121.5", "2024-02-28 24:00,#DIV/0!", "2024-02-29T24:00:00,2")
    found = table("\n".join(["time,load", *rows, ""]))
    assert found.times("time").astype(str).tolist() == [
        f"{one}.000000" for one in ("2024-02-28T23:00:00", "2024-02-29T00:00:00", "2024-03-01T00:00:00")
    ]
    np.testing.assert_array_equal(found.numbers("load"), [-1.5, np.nan, 2])


def test_times_that_jitter_much_have_the_step_that_is_meant() -> None:
    hours = 3600 * np.arange(400) + np.random.default_rng(0).integers(-900, 900, 400)
    clock = find_clock([np.datetime64("2024-01-01T00:00:00", "us") + hours * np.timedelta64(10**6, "us")])
    assert clock.spacing == "1 h"


def test_numbers_that_stand_for_a_missing_value(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    rows = [f"2024-01-{i:02},{-999 if i % 9 == 0 else i},{i if i % 9 else 99}" for i in range(1, 31)]
    path.write_text("\n".join(["day,a,b", *rows, ""]))
    plain = load(SeriesConfig(file=path))
    hints = [note for note in plain.notes if "--data.absent" in note]
    assert hints == [
        "column 'a': -999 comes 3 times and is far from all others: if it stands for a missing value, give"
        " --data.absent -999"
    ]
    found = load(SeriesConfig(file=path, absent=(-999.0,)))
    assert found.pieces[0].values[:, 0].min() == 1
    assert (~found.pieces[0].measured[:, 0]).sum() == 3
    assert "3 values taken as missing: -999" in found.notes
    assert not any("--data.absent" in note for note in found.notes)
