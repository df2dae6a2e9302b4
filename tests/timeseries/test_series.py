"""Series of one's own: columns that are found, clocks, gaps, duplicates, and splits by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmu.clock import Clock
from plmu.errors import DataError
from plmu.timeseries.clock import find_clock, step_of
from plmu.timeseries.series import SeriesConfig, load
from plmu.timeseries.split import Split, Wanted


@pytest.fixture
def data(tmp_path: Path) -> Any:
    def read(content: str, **options: Any) -> Any:
        path = tmp_path / "my.csv"
        path.write_text(content)
        return load(SeriesConfig(file=path, **options))

    return read


def hours(*skipped: int, count: int = 30) -> str:
    """A CSV file of hours, some of which are not there; the value is the hour."""
    rows = [f"2024-01-{1 + i // 24:02d} {i % 24:02d}:00,{i}" for i in range(count) if i not in skipped]
    return "\n".join(["time,v", *rows, ""])


def test_a_gap_is_filled_with_the_last_value_and_told(data: Any) -> None:
    found = data(hours(5, 6))
    (piece,) = found.pieces
    assert piece.values[3:9, 0].tolist() == [3, 4, 4, 4, 7, 8]
    assert piece.measured[3:9, 0].tolist() == [True, True, False, False, True, True]
    assert "gaps: 2 of 30 steps lack a value; filled with the last value, and not scored" in found.notes


def test_other_ways_with_gaps(data: Any) -> None:
    assert data(hours(5, 6), missing="linear").pieces[0].values[4:8, 0].tolist() == [4, 5, 6, 7]
    assert [len(one) for one in data(hours(5, 6), missing="split").pieces] == [5, 23]
    assert [(one.start, len(one)) for one in data(hours(5, 6), longest_gap=1).pieces] == [(0, 5), (7, 23)]
    with pytest.raises(DataError, match=r"column 'v': no value at 2024-01-01 05:00: choose --data\.missing"):
        data(hours(5, 6), missing="raise")


def test_duplicate_times(data: Any) -> None:
    twice = hours(count=10) + "2024-01-01 03:00,5\n"
    found = data(twice)
    assert found.pieces[0].values[3, 0] == 4
    assert {
        "times: rows put into the order of time",
        "times: rows on the step of another: 1; averaged (--data.id names a column that tells series apart)",
    } <= set(found.notes)
    assert data(twice, duplicates="first").pieces[0].values[3, 0] == 3
    assert data(twice, duplicates="last").pieces[0].values[3, 0] == 5
    with pytest.raises(DataError, match="several rows have the time 2024-01-01 03:00"):
        data(twice, duplicates="raise")


def test_irregular_times(data: Any) -> None:
    content = hours(count=20).replace("07:00", "07:11")
    found = data(content)
    assert found.pieces[0].values[:, 0].tolist() == list(range(20))
    assert any("off the grid and moved" in note for note in found.notes)
    assert data(content, irregular="rows").clock.kind == "rows"
    with pytest.raises(DataError, match=r"5\.0 % of the times are not on a grid of 1 h"):
        data(content, irregular="raise")


def test_a_given_step_averages_rows(data: Any) -> None:
    found = data(hours(count=24), step="12h")
    assert found.clock.spacing == "12 h"
    assert found.pieces[0].values[:, 0].tolist() == [5.5, 17.5]
    with pytest.raises(DataError, match=r"--data\.step must be a length of time such as 15min"):
        data(hours(), step="often")


def test_times_without_a_grid_are_refused(data: Any) -> None:
    minutes = np.cumsum(np.tile([1, 1, 1, 300], 30))
    times = (np.datetime64("2024-01-01T00:00") + minutes).tolist()
    content = "\n".join(["time,v", *(f"{one},{i}" for i, one in enumerate(times)), ""])
    with pytest.raises(DataError, match=r"1 min apart at the median, yet 30 of 120 are more than 48 such steps apart"):
        data(content)
    assert len(data(content, irregular="rows").pieces[0]) == 120


def test_columns_are_found_and_named(data: Any) -> None:
    rows = "\n".join(f"{i},2024-01-{i + 1:02d},{i * i},7,Berlin,{-i}" for i in range(20))
    found = data(f"no,day,a,fixed,city,b\n{rows}\n")
    assert (found.columns.time, found.columns.values, found.columns.id) == ("day", ("a", "b"), None)
    notes = "\n".join(found.notes)
    for part in (
        "left out, no numbers: city",
        "left out, constant: fixed",
        "left out, counts rows: no",
        "values: a, b",
    ):
        assert part in notes
    assert "time: column 'day', every 1 d from 2024-01-01 to 2024-01-20" in notes
    with pytest.raises(DataError, match="no column 'c'"):
        data(f"no,day,a,fixed,city,b\n{rows}\n", values=("c",))


def test_a_constant_column_is_a_series_if_there_is_no_other(data: Any) -> None:
    assert data("t,v\n1,5\n2,5\n3,5\n").columns.values == ("v",)


def test_several_series_by_a_column(data: Any) -> None:
    rows = [f"2024-01-{day:02d},{shop},{day}" for day in range(1, 11) for shop in ("NA", "b") if shop == "b" or day > 3]
    found = data("\n".join(["day,shop,sales", *rows]))
    assert found.columns.id == "shop"
    assert [(one.name, one.start, len(one)) for one in found.pieces] == [("b", 0, 10), ("NA", 3, 7)]
    assert "series: 2, by column 'shop'" in found.notes


def test_all_series_are_split_at_the_same_times(data: Any) -> None:
    rows = [f"2024-01-{day:02d},{shop},{day}" for day in range(1, 21) for shop in "ab" if shop == "b" or day > 10]
    found = data("\n".join(["day,shop,sales", *rows]))
    ends = Split.of_file(found, Wanted(1, validation=0.2, test=0.2)).cuts
    times = {one.start + first for one, (first, _) in zip(found.pieces, ends, strict=True)}
    assert len(times) == 1
    before = sum(first for first, _ in ends)
    assert before >= 0.6 * found.rows > before - 2


def test_rows_without_a_time_or_value_at_the_end(data: Any) -> None:
    found = data(hours(count=10) + ",99\n2024-01-01 10:00,\n2024-01-01 11:00,\n")
    assert len(found.pieces[0]) == 10
    assert "times: 1 rows without one left out" in found.notes


def test_a_gap_in_the_first_row_holds_the_value_before_it(data: Any) -> None:
    piece = data("t,a,b\n0,1,\n1,,2\n2,3,3\n3,4,4\n").pieces[0]
    assert piece.start == 1
    assert piece.values.tolist() == [[1, 2], [3, 3], [4, 4]]
    assert piece.measured.tolist() == [[False, True], [True, True], [True, True]]


def test_a_column_that_begins_late_is_told(data: Any) -> None:
    found = data("\n".join(["t,a,b", *(f"{i},{i},{'' if i < 4 else i}" for i in range(10)), ""]))
    assert found.pieces[0].start == 4
    assert "left out: 4 rows before each column has its first value" in found.notes


def test_values_that_are_too_large(data: Any) -> None:
    with pytest.raises(DataError, match=r"line 3, column 'v': 1e\+24 is too large"):
        data("t,v\n1,2\n2,1e24\n3,4\n")
    with pytest.raises(DataError, match=r"line 3, column 'v': 1e\+300 is too large"):
        data("t,v\n1,1\n2,1e300\n3,2\n")


def test_no_values_at_all(data: Any) -> None:
    with pytest.raises(DataError, match="no column of numbers to forecast"):
        data("time,a\n2024-01-01,x\n2024-01-02,y\n")


@pytest.mark.parametrize(
    ("times", "kind", "told", "following"),
    [
        (["2024-01", "2024-02", "2024-03", "2024-04"], "months", "month", "2024-05-01"),
        (["2023-01-31", "2023-02-28", "2023-03-31", "2023-04-30"], "months", "month", "2023-05-31"),
        (["2023-01-01", "2023-04-01", "2023-07-01", "2023-10-01"], "months", "quarter", "2024-01-01"),
        (["2020-06-30", "2021-06-30", "2022-06-30", "2023-06-30"], "months", "year", "2024-06-30"),
        ([str(np.datetime64("2024-01-05T06:00") + 900 * i) for i in range(4)], "time", "15 h", "2024-01-07 18:00"),
    ],
)
def test_clocks_of_dates(times: list[str], kind: str, told: str, following: str) -> None:
    stamps = np.array(times, dtype="datetime64[us]")
    clock = find_clock([stamps])
    assert (clock.kind, clock.spacing) == (kind, told)
    assert clock.steps(stamps).tolist() == [0, 1, 2, 3]
    assert clock.times(np.array([4])) == [following]
    assert step_of(clock, following) == 4


def test_weekdays_go_on_after_the_weekend() -> None:
    days = np.arange(np.datetime64("2024-01-01"), np.datetime64("2024-02-03"))
    days = days[np.is_busday(days)]
    clock = find_clock([days.astype("datetime64[us]")])
    assert clock.kind == "weekdays"
    assert clock.times(np.array([len(days)])) == ["2024-02-05"]


def test_clocks_of_numbers() -> None:
    clock = find_clock([np.array([1700.0, 1701, 1703, 1704])])
    assert clock == Clock("numbers", 1700.0, 1.0)
    assert clock.times(np.array([5])) == ["1705"]
    with pytest.raises(ValueError, match="is not a time"):
        step_of(clock, "soon")


def test_a_series_whose_times_are_between_those_of_another_keeps_them(data: Any) -> None:
    rows = [f"2024-01-01 {i:02d}:{minute},{name},{i}" for i in range(20) for name, minute in (("a", "00"), ("b", "30"))]
    found = data("\n".join(["time,id,v", *rows, ""]), id="id", step=None)
    _, other = found.pieces
    assert other.values[:, 0].tolist() == list(range(20))
    assert found.clock.times(np.array([other.start]), other.offset) == ["2024-01-01 00:30"]
    assert not [note for note in found.notes if "moved" in note or "gaps" in note]


def test_times_that_jitter_do_not_drift(data: Any) -> None:
    apart = 60_000 * np.arange(2000) + np.random.default_rng(0).integers(-3000, 3000, 2000)
    rows = [f"{time},{i}" for i, time in enumerate(np.datetime64("2024-01-01T00:00:00.000") + apart)]
    found = data("\n".join(["time,v", *rows, ""]))
    (piece,) = found.pieces
    assert found.clock.spacing == "1 min"
    assert piece.values[:, 0].tolist() == list(range(2000))


def test_times_in_milliseconds_are_written_as_whole_numbers() -> None:
    clock = Clock("numbers", 1711263600000.0, 300_001.0)
    assert clock.times(np.array([1])) == ["1711263900001"]


def test_another_rate_than_that_of_training_is_told(data: Any, tmp_path: Path) -> None:
    known = data(hours(count=60))
    days = "\n".join(["time,v", *(f"2024-02-{i:02d},{i}" for i in range(1, 20)), ""])
    (tmp_path / "days.csv").write_text(days)
    found = load(SeriesConfig(file=tmp_path / "days.csv"), (known.columns, known.clock))
    assert "times: rows are 1 d apart, those of the model's training 1 h" in found.notes


def test_the_order_of_day_and_month_is_that_of_training(data: Any, tmp_path: Path) -> None:
    days = np.datetime64("2024-01-01") + np.arange(60)
    known = data("\n".join(["date,v", *(f"{d.item():%d/%m/%Y},{i}" for i, d in enumerate(days)), ""]))
    assert step_of(known.clock, "03/02/2024") == 33
    (tmp_path / "one.csv").write_text("date,v\n05/03/2024,1\n")
    (piece,) = load(SeriesConfig(file=tmp_path / "one.csv"), (known.columns, known.clock)).pieces
    assert piece.start == 64


def test_times_keep_the_time_zone_of_the_file(data: Any, tmp_path: Path) -> None:
    """A day begins at midnight where the data is from, and not at 22:00 of the day before."""
    one = data("\n".join(["time,v", *(f"2024-01-{i:02d}T00:00+02:00,{i}" for i in range(1, 29)), ""]))
    assert one.clock.zone == 120
    assert one.clock.times(np.array([0, 1])) == ["2024-01-01", "2024-01-02"]
    assert "column 'time': times in time zone +02:00" in one.notes
    short = data(hours().replace(":00,", ":00:00.5+02,"))
    assert short.clock.times(np.array([1])) == ["2024-01-01 01:00:00.500000+02:00"]
    one = data(hours().replace(":00,", ":00-05:30,"))
    assert one.clock.times(np.array([0, 30])) == ["2024-01-01 00:00-05:30", "2024-01-02 06:00-05:30"]
    # Another file in another zone, or in none, is read in the zone of training.
    for time, step in {"05:30Z": 0, "07:00+00:30": 1, "05:00": 5}.items():
        (tmp_path / "other.csv").write_text(f"time,v\n2024-01-01 {time},1\n")
        found = load(SeriesConfig(file=tmp_path / "other.csv"), (one.columns, one.clock))
        assert found.pieces[0].start == step, time
    assert step_of(one.clock, "2024-01-01 05:30Z") == 0
    assert step_of(one.clock, "2024-01-01 05:00") == 5


def test_times_with_a_zone_are_refused_where_the_training_data_has_none(data: Any, tmp_path: Path) -> None:
    """They could be hours apart, which is a wrong phase of the season."""
    one = data(hours())
    (tmp_path / "other.csv").write_text("time,v\n2024-01-01 05:00+02:00,1\n")
    with pytest.raises(DataError, match=r"other\.csv, column 'time': its times have a time zone"):
        load(SeriesConfig(file=tmp_path / "other.csv"), (one.columns, one.clock))


def test_several_time_zones_are_converted_to_utc(data: Any) -> None:
    """As where the clocks change to summer time."""
    rows = [f"2024-03-31T{i:02d}:00+0{1 if i < 2 else 2}:00,{i}" for i in (0, 1, 3, 4, 5, 6)]
    found = data("\n".join(["time,v", *rows, ""]))
    assert found.clock.zone == 0
    assert found.clock.times(np.array([0, 5])) == ["2024-03-30 23:00+00:00", "2024-03-31 04:00+00:00"]
    assert "column 'time': time zones converted to UTC" in found.notes
    assert data(hours()).clock.zone is None


def test_a_file_of_one_series_need_not_name_it(data: Any, tmp_path: Path) -> None:
    both = [f"2024-01-{1 + i // 24:02d} {i % 24:02d}:00,{shop},{i}" for shop in "ab" for i in range(60)]
    known = data("\n".join(["time,shop,v", *both, ""]))
    assert known.columns.id == "shop"
    (tmp_path / "one.csv").write_text(hours())
    found = load(SeriesConfig(file=tmp_path / "one.csv"), (known.columns, known.clock))
    assert len(found.pieces) == 1
    assert "series: one, since there is no 'shop'" in found.notes
    (tmp_path / "one.csv").write_text(hours() + hours().split("\n", 1)[1])
    with pytest.raises(DataError, match=r"one\.csv has no column 'shop', .* and times that repeat"):
        load(SeriesConfig(file=tmp_path / "one.csv"), (known.columns, known.clock))
