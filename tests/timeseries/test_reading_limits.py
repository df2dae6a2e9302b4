"""Where the readers draw their lines: digits that are dates, how much a file may hold, how many names a message has."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import plmu
from plmu.clock import Clock
from plmu.errors import DataError, in_one_line
from plmu.timeseries import read_series
from plmu.timeseries.columns import _completeness
from plmu.timeseries.tables import limits, read_table
from plmu.timeseries.tables.cells import looks_like_date, looks_like_time
from plmu.timeseries.tables.date_words import plain
from plmu.timeseries.tables.dates import from_digits, surely_digits, time_parts


@pytest.mark.parametrize(
    ("names", "minutes"),
    [("UTC GMT WET Z", 0), ("CET MEZ WEST", 60), ("CEST MESZ EET", 120), ("EEST", 180)],
)
def test_names_of_time_zones(names: str, minutes: int, tmp_path: Path) -> None:
    for name in names.split():
        (tmp_path / "my.csv").write_text(f"time,v\n2024-01-01 10:00 {name},1\n2024-01-01 11:00 {name},2\n")
        table = read_table(tmp_path / "my.csv")
        assert table.zone("time") == minutes
        first = np.datetime64("2024-01-01T10:00") - np.timedelta64(minutes, "m")
        assert table.times("time")[0] == first


@pytest.mark.parametrize("name", ["EST", "CST", "IST", "BST", "XYZ"])
def test_names_of_several_zones_are_not_read(name: str) -> None:
    assert not looks_like_date(f"2024-01-01 10:00 {name}")
    assert looks_like_time(f"2024-01-01 10:00 {name}")


MONTHS = """
January February March April May June July August September October November December
janv févr mars avr mai juin juil août sept oct nov déc
Januar Februar März April Mai Juni Juli August September Oktober November Dezember
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre
janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro
januari februari maart april mei juni juli augustus september oktober november december
"""


@pytest.mark.parametrize("names", MONTHS.strip().split("\n"))
def test_months_of_seven_languages(names: str) -> None:
    english = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
    for form in (str, str.upper, str.capitalize, lambda name: f"{name}."):
        assert " ".join(plain(form(name)) for name in names.split()).title() == english


@pytest.mark.parametrize(
    "text", ["Model 2005", "Marathon 2024", "mayor 3", "AB-12-34", "1.2.3", "10.1.2.3", "x2024", "7 of 9"]
)
def test_other_texts_are_no_times(text: str) -> None:
    assert not looks_like_date(text)
    assert not looks_like_time(text)


@pytest.mark.parametrize(
    ("number", "date"),
    [
        (190001, "1900-01-01"),
        (209912, "2099-12-01"),
        (10000101, "1000-01-01"),
        (29991231, "2999-12-31"),
        (2024022923, "2024-02-29T23:00"),
        (202402292359, "2024-02-29T23:59"),
        (20240229235959, "2024-02-29T23:59:59"),
        *((number, None) for number in (189912, 210001, 202400, 202413, 20240230, 20240100, 20240132, 1990023, 99912)),
        *((number, None) for number in (2024022924, 202402292360, 20240229235960, 30000101, 202401.5, -202401)),
    ],
)
def test_digits_that_are_dates(number: float, date: str | None) -> None:
    dates = from_digits(np.array([number, np.nan]))
    if date is None:
        assert dates is None
    else:
        assert dates is not None
        assert dates[0] == np.datetime64(date)
        assert np.isnat(dates[1])
        text = f"{number:.0f}"
        assert Clock("time", 0.0, 1e6).step_of(text) == int(np.datetime64(date, "s").astype(int))


def test_digits_of_unequal_length_are_no_dates() -> None:
    assert from_digits(np.array([202401, 20240131])) is None
    assert from_digits(np.array([np.nan])) is None


@pytest.mark.parametrize(
    ("numbers", "sure"),
    [
        ([202401, 202402, 202403], True),
        ([202401, 202402], False),
        ([202401, 202402, np.nan, 202403], False),
        ([202401, 202402, 202404], False),
        ([202411, 202412, 202501, 202401], False),
        ([202312, 202401, 202312, 202401, 202402], True),
        ([20240131, 20240131, 20240131], False),
        ([20240131, 20240207, 20240301], True),
    ],
)
def test_columns_that_are_surely_dates(numbers: list[float], sure: bool) -> None:
    assert surely_digits(np.array(numbers, dtype=float)) == sure


def test_how_much_a_file_may_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x" * 100)
    assert limits.largest(path) == 2**30
    monkeypatch.setattr(limits, "_FREE", 1000)
    assert limits.largest(path) == 5000  # 50 times its size
    limits.check_bytes(path, 5000)
    limits.check(path, [(125, 1), (125, 1)][:1])
    limits.check(path, [(0, 5)])
    for sizes in ([(0, 6)], [(501, 1)], [(250, 1), (251, 1)]):
        with pytest.raises(DataError, match=r"has 100 bytes, and the table in it, of .* PLMU_TABLE_GIB=1$"):
            limits.check(path, sizes)
    monkeypatch.setenv("PLMU_TABLE_GIB", "0.5")
    assert limits.largest(path) == 2**29
    with pytest.raises(DataError, match=r"would take 3\.0 GiB .* 0\.5 GiB are read at most.* PLMU_TABLE_GIB=4$"):
        limits.check_bytes(path, 3 * 2**30)
    for wrong in ("0", "-1", "nan", "1e30", "x"):
        monkeypatch.setenv("PLMU_TABLE_GIB", wrong)
        with pytest.raises(DataError, match="must be a number of GiB above 0"):
            limits.largest(path)


def test_messages_name_a_few_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for count, more in ((12, ""), (13, ", …")):
        path.write_text(",".join(f"c{i}" for i in range(count)) + "\n" + ",".join("1" * count) + "\n")
        with pytest.raises(DataError) as error:
            read_table(path).numbers("x")
        shown = ", ".join(f"'c{i}'" for i in range(12))
        assert str(error.value).endswith(f"it has {shown}{more}")
    for late, more in ((4, "rows after"), (5, "rows, … after")):
        names = [f"b{i}" for i in range(late)]
        rows = [f"{i},{i % 7}" + (",1" if i > 35 and i % 2 else ",2" if i > 35 else ",") * late for i in range(40)]
        path.write_text("\n".join([f"t,a,{','.join(names)}", *rows, ""]))
        (note,) = (note for note in read_series(path).notes if "begin late" in note)
        assert note.count("36 rows") == 4
        assert more in note


def test_a_series_of_a_panel_has_half_of_its_steps() -> None:
    times, series = np.arange(12.0), np.zeros(12, dtype=np.int64)
    assert _completeness(times, series) == 1
    assert _completeness(times[[0, 1, 2, 11]], series[:4]) == pytest.approx(4 / 12)
    two = np.repeat([0, 1], 12)
    assert _completeness(np.tile(times, 2)[::-1], two) == 1
    assert _completeness(np.repeat([5.0], 3), np.arange(3)) == 1  # a row each


@pytest.mark.parametrize(
    ("lines", "left_out"),
    [
        (["Total,9"], 1),
        (["grand total,9", "AVERAGE,3", "Source: x,"], 3),
        (["Summe,9"] * 10, 10),
        (["Later,9"], 0),
        (["total,9", "2024-02-01,5"], 0),
    ],
)
def test_footers(lines: list[str], left_out: int, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["t,v", *(f"2024-01-{i:02},{i}" for i in range(1, 20)), *lines, ""]))
    table = read_table(path)
    assert table.rows == 19 + len(lines) - left_out
    if left_out:
        plural = "s" * (left_out > 1)
        assert f"{left_out} line{plural} at the end left out, from line 21 on" in table.notes
        assert table.times("t")[-1] == np.datetime64("2024-01-19")


@pytest.mark.parametrize(
    ("head", "names", "value"),
    [
        ("t,a,a\n,x,y\n", ["t", "a x", "a y"], 1),
        ("t,a,a\n,x,y\nwhen,,\n", ["t when", "a x", "a y"], 1),
        ("t,a,b\n,x,y\n,k,l\n", ["t", "a", "b"], 1),
        ("t,a,b\nday,x,7\n", None, 0),
    ],
)
def test_lines_that_name_columns(head: str, names: list[str] | None, value: float, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(head + "".join(f"2024-01-{i:02},{i},{i * i}\n" for i in range(1, 9)))
    table = read_table(path)
    if names is None:
        assert table.rows == 9
    else:
        assert (table.names, table.rows, table.numbers(names[1])[0]) == (names, 8, value)
        assert table.place(0, "t").startswith(f"{path}, line {head.count(chr(10)) + 1},")


def test_nothing_to_score_is_said(tmp_path: Path) -> None:
    import torch

    from plmu.timeseries.forecast_files import write_report
    from plmu.timeseries.scores import Errors

    errors = Errors(torch.tensor([[4.0], [0.0]]), torch.tensor([[2.0], [0.0]]), torch.tensor([[2.0], [0.0]]))
    assert errors.by_channel(torch.tensor([3.0, 1.0]))[0] == 3
    assert np.isnan(errors.by_channel(torch.tensor([3.0, 1.0]))[1])
    rows = [f"{i},{i % 7},{i % 5 if i < 90 else ''}" for i in range(120)]
    (tmp_path / "my.csv").write_text("\n".join(["t,a,b", *rows, ""]))
    data = read_series(tmp_path / "my.csv")
    fitted = plmu.Forecaster(2, lookback=8, order=4, test=0.2, validation=0.1).fit(data)
    assert np.isfinite(fitted.evaluate()["mae"])
    scores = fitted.fitted_.scores(None, None, {}, torch.tensor(fitted.mean_))[0]
    lines = write_report(tmp_path, fitted.fitted_.series("test"), scores, fitted.fitted_.intervals(()), [])
    assert "nothing to score in b: no value was measured in the test rows" in lines
    assert json.loads((tmp_path / "forecast.json").read_text())["mae in own units"]["model"]["b"] is None


def test_letters_that_are_not_printed() -> None:
    assert in_one_line("a\x1b[31m\nb\x07 ü\u202e") == "a\\u001b[31m b\\u0007 ü\\u202e"


def test_archives_have_comments_and_empty_lines(tmp_path: Path) -> None:
    from plmu.timeseries import read_labelled

    path = tmp_path / "a.ts"
    path.write_text("# by hand\n\n@classLabel true a b\n@data\n\n1,2,?:4,5,6:a\n% 7,8,9:1,2,3:b\n3,4:1,2,3:b\n")
    data = read_labelled(path)
    assert data.labels == ["a", "b"]
    np.testing.assert_array_equal(data.series[0], [[1, 4], [2, 5], [2, 6]])
    np.testing.assert_array_equal(data.series[1], [[3, 1], [4, 2], [4, 3]])
    path.write_text("@data\n1,x:a\n")
    with pytest.raises(DataError, match=r"a\.ts, line 2, value 2: 'x' is not a number"):
        read_labelled(path)
    path.write_text("@timestamps true\n@data\n")
    with pytest.raises(DataError, match="line 1: series with time stamps are not read"):
        read_labelled(path)


def test_clocks_of_stray_rows_and_of_halves_of_a_year() -> None:
    from plmu.timeseries.clock import find_clock

    months = np.arange("1990-01", "2000-01", dtype="datetime64[M]").astype("datetime64[us]")
    stray = np.sort(np.append(months, np.datetime64("1995-01-20", "us")))
    assert find_clock([stray]).spacing == "month"
    assert find_clock([np.sort(np.append(stray, np.datetime64("1996-01-20", "us")))]).kind == "time"
    assert find_clock([months[::6]]).spacing == "6 months"


def test_a_series_is_split_at_each_gap(tmp_path: Path) -> None:
    rows = [f"{i},{'' if i in (5, 10, 11, 20) else i}" for i in range(30)]
    (tmp_path / "my.csv").write_text("\n".join(["t,v", *rows, ""]))
    pieces = read_series(tmp_path / "my.csv", missing="split").pieces
    assert [(piece.start, len(piece)) for piece in pieces] == [(0, 5), (6, 4), (12, 8), (21, 9)]
    assert all(piece.values[:, 0].tolist() == list(range(piece.start, piece.start + len(piece))) for piece in pieces)


def test_the_first_value_that_is_too_large_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("t,a,b\n0,1,1\n1,2,-1e16\n2,3e17,2\n")
    with pytest.raises(DataError, match=r"line 3, column 'b': -1e\+16 is too large"):
        read_series(tmp_path / "my.csv")


def test_years_of_dates_and_columns_of_two_times(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("when,v\n2999-12-31,1\n1000-01-01,2\n")
    assert read_table(path).times("when").astype("datetime64[Y]").astype(str).tolist() == ["2999", "1000"]
    for year in ("0999", "3000"):
        path.write_text(f"when,v\n{year}-12-31,1\n{year}-01-01,2\n")
        with pytest.raises(DataError, match="is not a date or time"):
            read_table(path).times("when")
    path.write_text("t,v\n5,1\n9,2\n")
    assert read_series(path).columns.time == "t"


PARTS = {"year": (1000, 2999), "month": (1, 12), "day": (1, 31), "hour": (0, 24), "minute": (0, 59)}


@pytest.mark.parametrize("unit", PARTS)
def test_columns_of_parts_of_times_are_within_their_ranges(unit: str) -> None:
    """Up to the last column of which all numbers are possible."""
    values = {name: pl.Series(name, [2.0, 3.0]) for name in PARTS} | {"year": pl.Series("year", [2023.0, 2024.0])}
    low, high = PARTS[unit]
    before = list(PARTS).index(unit)
    for numbers, count in (((low, high), 5), ((low - 1, high), before), ((low, high + 1), before), ((2.5, 3), before)):
        columns = values | {unit: pl.Series(unit, numbers, dtype=pl.Float64)}
        assert time_parts(columns, []) == tuple(PARTS)[: count if count > 1 else 0], (unit, numbers)


@pytest.mark.parametrize(("unit", "high"), [("quarter", 4), ("week", 53)])
def test_quarters_and_weeks_are_within_their_ranges(unit: str, high: int) -> None:
    for year, numbers, is_time in (
        (2024, (1, high), True),
        (2024, (0, high), False),
        (2024, (1, high + 1), False),
        (999, (1, high), False),
    ):
        columns = {"year": pl.Series([float(year)] * 2), unit: pl.Series(numbers, dtype=pl.Float64)}
        assert time_parts(columns, []) == (("year", unit) if is_time else ()), (year, numbers)


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_a_name_is_no_pattern(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a[1]*.{ending}"
    frame = pl.DataFrame({"t": list(range(30)), "v": [float(k % 7) for k in range(30)]})
    getattr(frame, f"write_{ending}")(path)
    assert read_series(path).pieces[0].values[:, 0].tolist() == frame["v"].to_list()


@pytest.mark.parametrize(("hour", "names"), [(0, ("day", "clock")), (6, ())])
def test_stored_dates_with_a_time_of_day_are_not_joined_with_another(hour: int, names: tuple[str, ...]) -> None:
    days = pl.Series("day", [datetime(2024, 1, day, hour) for day in (1, 2)])
    columns = {"day": days, "clock": pl.Series(["10:00", "11:30"])}
    assert time_parts(columns, ["day"]) == names
