"""Covariates in tables of one's own: which columns they are, gaps in them, and rows ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmu.errors import DataError
from plmu.timeseries.series import SeriesConfig, load


@pytest.fixture
def data(tmp_path: Path) -> Any:
    def read(content: str, future: str | None = None, **options: Any) -> Any:
        (tmp_path / "my.csv").write_text(content)
        known = None
        if future is not None:
            (tmp_path / "plan.csv").write_text(future)
            found = load(SeriesConfig(file=tmp_path / "my.csv", **options))
            known = found.columns, found.clock
        plan = None if future is None else tmp_path / "plan.csv"
        return load(SeriesConfig(file=tmp_path / "my.csv", **options), known, plan)

    return read


def days(values: str, covariates: str, header: str = "day,sales,price", first: int = 1) -> str:
    """A CSV file of days, with a cell for each word; - is an empty cell, and a day without a row is /."""
    rows = [
        f"2024-01-{day:02d},{'' if value == '-' else value},{'' if known == '-' else known}"
        for day, (value, known) in enumerate(zip(values.split(), covariates.split(), strict=True), first)
        if value != "/"
    ]
    return "\n".join([header, *rows, ""])


def test_rows_ahead_have_covariates_and_no_values(data: Any) -> None:
    found = data(days("1 2 4 5 - -", "7 8 9 7 6 5"), covariates=("price",))
    (piece,) = found.pieces
    assert (found.columns.values, found.columns.covariates) == (("sales",), ("price",))
    assert piece.values[:, 0].tolist() == [1, 2, 4, 5]
    assert piece.covariates[:, 0].tolist() == [7, 8, 9, 7, 6, 5]
    assert "covariates, known ahead: price" in found.notes
    assert "time: column 'day', every 1 d from 2024-01-01 to 2024-01-04" in found.notes
    without = data(days("1 2 4 5 - -", "7 8 9 7 6 5"), values=("sales",))
    assert without.pieces[0].covariates is None
    assert len(without.pieces[0]) == 4


def test_gaps_in_covariates_are_filled_and_those_at_the_end_stay(data: Any) -> None:
    content = days("1 - 4 / 5 - - - -", "7 - - / 3 - 6 - 8")
    found = data(content, covariates=("price",))
    (piece,) = found.pieces
    assert piece.values[:, 0].tolist() == [1, 1, 4, 4, 5]
    assert piece.measured[:, 0].tolist() == [True, False, True, False, True]
    assert piece.covariates[:, 0].tolist() == [7, 7, 7, 7, 3, 3, 6, 6, 8]
    assert "gaps: 5 steps lack a covariate; filled with the last value" in found.notes
    (piece,) = data(content, covariates=("price",), missing="linear").pieces
    np.testing.assert_allclose(piece.covariates[:, 0], [7, 6, 5, 4, 3, 4.5, 6, 7, 8])
    (piece,) = data(days("1 2 3 - -", "7 8 - 9 -"), covariates=("price",)).pieces
    np.testing.assert_array_equal(piece.covariates[:, 0], [7, 8, 8, 9])
    two = (
        "day,sales,price,event\n2024-01-01,1,2,3\n2024-01-02,2,3,4\n2024-01-03,3,3,4\n2024-01-04,,3,\n2024-01-05,,4,\n"
    )
    (piece,) = data(two, covariates=("price", "event")).pieces
    np.testing.assert_array_equal(piece.covariates[:, 1], [3, 4, 4, np.nan, np.nan])
    first, second = data(days("1 2 4 5 6 -", "7 8 - 7 6 5"), covariates=("price",), missing="split").pieces
    assert (first.values[:, 0].tolist(), first.covariates[:, 0].tolist()) == ([1, 2], [7, 8])
    assert (second.values[:, 0].tolist(), second.covariates[:, 0].tolist()) == ([5, 6], [7, 6, 5])
    with pytest.raises(DataError, match="column 'price': no value at 2024-01-03"):
        data(days("1 2 4 5 6", "7 8 - 7 6"), covariates=("price",), missing="raise")


def test_rows_before_a_covariate_is_known_are_left_out(data: Any) -> None:
    found = data(days("1 2 4 5 6", "- - 9 7 6"), covariates=("price",))
    assert found.pieces[0].values[:, 0].tolist() == [4, 5, 6]
    assert "left out: 2 rows before each column has its first value" in found.notes


def test_words_are_flags_in_covariates_alone(data: Any) -> None:
    content = days("1 2 4 5 - -", "False true no YES - yes", "day,sales,holiday")
    found = data(content, covariates=("holiday",))
    np.testing.assert_array_equal(found.pieces[0].covariates[:, 0], [0, 1, 0, 1, 1, 1])
    assert "column 'holiday': true and yes are taken as 1, false and no as 0" in found.notes
    assert "left out, no numbers: holiday" in data(content).notes
    with pytest.raises(DataError, match="line 3, column 'holiday': 'maybe' is not a number"):
        data(content.replace("true", "maybe"), covariates=("holiday",))


@pytest.mark.parametrize("given", [("a,b",), ("a, b",), ("a", "b"), ("a,b", "c")])
def test_names_may_have_commas_between_them(data: Any, given: tuple[str, ...]) -> None:
    rows = "\n".join(f"2024-01-{day:02d},{day % 5},{day * day},{-day},{day % 3}" for day in range(1, 20))
    found = data(f"day,v,a,b,c\n{rows}\n", covariates=given)
    assert found.columns.covariates[:2] == ("a", "b")
    assert found.columns.values == (("v",) if "c" in given else ("v", "c"))
    whole = data(f'day,v,"a,b",b,c\n{rows}\n', covariates=("a,b",))
    assert whole.columns.covariates == ("a,b",)


def test_wrong_columns_are_named(data: Any) -> None:
    content = days("1 2 4 5", "7 8 9 7")
    for options, fault in (
        ({"covariates": ("prize",)}, r"no column 'prize': .*did you mean 'price'"),
        ({"covariates": ("price", "price")}, "--data.covariates names a column twice: price, price"),
        ({"covariates": ("price",), "values": ("price",)}, "--data.covariates and --data.values both name the column"),
        ({"covariates": ("day",), "time": "day"}, "--data.covariates and --data.time both name the column 'day'"),
        ({"covariates": ("sales", "price")}, "has no column of numbers to forecast"),
    ):
        with pytest.raises(DataError, match=fault):
            data(content, **options)


def test_a_plan_goes_on_where_the_values_end(data: Any) -> None:
    """Its values are not read, and rows of the file after the last value give way to it."""
    plan = "price,day,sales\n1,2024-01-04,99\n2,2024-01-05,99\n3,2024-01-07,99\n"
    (piece,) = data(days("1 2 4 5 -", "7 8 9 7 6"), plan, covariates=("price",)).pieces
    assert piece.values[:, 0].tolist() == [1, 2, 4, 5]
    assert piece.covariates[:, 0].tolist() == [7, 8, 9, 7, 2, 2, 3]
    with pytest.raises(DataError, match=r"plan\.csv has no column 'price'"):
        data(days("1 2 4 5", "7 8 9 7"), "day\n2024-01-05\n", covariates=("price",))
    with pytest.raises(DataError, match=r"plan\.csv, line 3, column 'price': 'dear' is not a number"):
        data(days("1 2 4 5", "7 8 9 7"), "day,price\n2024-01-05,1\n2024-01-06,dear\n", covariates=("price",))
    with pytest.raises(DataError, match=r"--data\.future are not written as those of --data\.file"):
        data(days("1 2 4 5", "7 8 9 7"), "day,price\n5,1\n6,2\n", covariates=("price",))
    (piece,) = data("sales,price\n1,7\n2,8\n4,9\n", "price\n5\n6\n", covariates=("price",)).pieces
    assert piece.covariates[:, 0].tolist() == [7, 8, 9, 5, 6]


def test_plans_of_several_series(data: Any) -> None:
    rows = [f"2024-01-{day:02d},{shop},{day},{day % 3}" for day in range(1, 11) for shop in "ab"]
    content = "\n".join(["day,shop,sales,price", *rows, ""])
    own = "day,shop,price\n2024-01-11,b,7\n2024-01-12,b,8\n2024-01-11,a,5\n"
    a, b = data(content, own, covariates=("price",), id="shop").pieces
    assert (a.covariates[10:, 0].tolist(), b.covariates[10:, 0].tolist()) == ([5], [7, 8])
    shared = "day,price\n2024-01-11,7\n2024-01-12,8\n"
    a, b = data(content, shared, covariates=("price",), id="shop").pieces
    assert a.covariates[10:, 0].tolist() == b.covariates[10:, 0].tolist() == [7, 8]
