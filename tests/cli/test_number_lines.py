"""Samples from lines of text: which fields are numbers, which are missing, and what a header is."""

import math

import pytest

from plmu.cli.number_lines import NumberLines
from plmu.timeseries.tables.cells import FLAGS, MISSING


@pytest.mark.parametrize("mark", sorted(MISSING))
def test_what_is_missing_in_files_is_missing_in_streams(mark: str) -> None:
    for cell in (mark, mark.upper(), mark.capitalize()):
        assert [math.isnan(value) for value in NumberLines(2).read(f"1;{cell}") or []] == [False, True]
        lines = NumberLines(2, ["a", "b"], "time")
        assert lines.read("time;b;note;a") is None
        assert [math.isnan(value) for value in lines.read(f"noon;{cell};x;1") or []] == [False, True]
        assert math.isnan((NumberLines(2).read(f'[1, "{cell}"]') or [0, 0])[1])


def test_flags_are_numbers_where_columns_have_names() -> None:
    for word, value in FLAGS.items():
        assert NumberLines(2, ["a", "b"]).read(f"1,{word.title()}") == [1, float(value)]
    assert NumberLines(1, ["load"], "time").read("2024-01-01,true") == [1]


def test_lines_of_the_file_without_its_header() -> None:
    lines = NumberLines(1, ["load"], "time", "station / unit", ["station", "load", "unit", "time"])
    assert lines.read("north,3.5,x,2024-01-01") == [3.5]
    assert (lines.sample_time, lines.sample_series) == ("2024-01-01", "north / x")
    assert lines.read("2024-01-02,4") == [4]
    assert (lines.sample_time, lines.read("5")) == ("2024-01-02", [5])
    named = NumberLines(2, ["b", "a (2)"])
    assert named.read(",a,b,a") is None  # as pandas writes an index
    assert named.read("0,1,2,3") == [2, 3]
