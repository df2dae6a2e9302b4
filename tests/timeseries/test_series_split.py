"""`plmu.timeseries.split`: which rows are fitted, chosen by and tested on, counted row by row; and the settings."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import plmu
from plmu.clock import DAY, Clock
from plmu.errors import DataError
from plmu.timeseries.columns import Columns
from plmu.timeseries.frames import as_list
from plmu.timeseries.series import Piece, SeriesConfig, SeriesData
from plmu.timeseries.split import Split, Wanted, first_rows, rows_to_choose_by

MINUTES = Clock(kind="time", step=60e6)
ROWS = Clock()


def noise(*shape: int) -> np.ndarray:
    """Normal numbers, which are the same whenever a test runs."""
    return torch.randn(*shape, dtype=torch.float64).numpy()


def data_of(spans: list[tuple[int, int]], clock: Clock = MINUTES, names: str = "abcdef", channels: int = 1) -> Any:
    """Series of noise with these first steps and numbers of rows."""
    columns = Columns("time", tuple(f"v{k}" for k in range(channels)), None)
    pieces = []
    for name, (start, rows) in zip(names, spans, strict=False):
        values = noise(rows, channels)
        pieces.append(Piece(name, start, values, np.ones((rows, channels), bool)))
    return SeriesData(columns, clock, pieces)


def counted(spans: list[tuple[int, int]], share: float) -> list[int]:
    """The rows of each series before the first time at which at least this share of all rows lies before it."""
    total, time = sum(rows for _, rows in spans), min(start for start, _ in spans)
    while sum(start <= t < time for start, rows in spans for t in range(start, start + rows)) < share * total - 1e-6:
        time += 1
    return [sum(t < time for t in range(start, start + rows)) for start, rows in spans]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.33, 0.5, 0.7, 0.99, 1.0])
@pytest.mark.parametrize(
    "spans", [[(0, 10)], [(5, 20), (0, 7)], [(0, 30), (12, 5), (40, 11), (-9, 13)], [(3, 8), (3, 8)]]
)
def test_all_series_are_cut_at_the_same_time(spans: list[tuple[int, int]], share: float) -> None:
    data, rows = data_of(spans), [rows for _, rows in spans]
    assert first_rows(data, rows, share) == counted(spans, share)
    shorter = [max(1, rows - 3) for rows in rows]
    assert first_rows(data, shorter, share) == counted(
        [(s, n) for (s, _), n in zip(spans, shorter, strict=True)], share
    )
    assert first_rows(replace(data, clock=ROWS), rows, share) == [round(share * count) for count in rows]


@pytest.mark.parametrize("validation", [0.2, 7, 0.0])
def test_a_file_is_cut_into_rows_to_fit_to_choose_by_and_to_test_on(validation: float) -> None:
    spans = [(0, 60), (50, 40), (80, 6)]
    data = data_of(spans)
    split = Split.of_file(data, Wanted(3, lookback=4, season=0, validation=validation, test=0.25))
    ends = counted(spans, 0.75)
    begins = [max(0, end - 7) for end in ends] if validation == 7 else counted(spans, 0.75 - validation)
    assert split.cuts == list(zip(begins, ends, strict=True))
    assert split.validation_rows == [b - a if b - a >= 3 else 0 for a, b in split.cuts]
    assert len(set(ends)) > 1
    offset = 0
    expected: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for (_, rows), (a, b) in zip(spans, split.cuts, strict=True):
        for kind, (first, end) in {"train": (0, a), "valid": (a, b), "test": (b, rows)}.items():
            for origin in range(3, rows):
                if origin + 1 >= first and origin + 3 < end:
                    expected[kind].append(offset + origin)
        offset += rows
    assert {kind: split.origins(kind).tolist() for kind in expected} == expected
    assert split.origins("train", 10).tolist() == expected["train"][:: -(-len(expected["train"]) // 10)]
    assert split.scored("train").tolist() == expected["train"]


def test_as_many_windows_are_scored_as_all_channels_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmu.timeseries.split.SCORED", 4500)
    wanted = Wanted(1, lookback=2, season=0)
    assert len(Split.of_file(data_of([(0, 4000)], channels=1), wanted).scored("train")) == 3998
    assert len(Split.of_file(data_of([(0, 4000)], channels=2), wanted).scored("train")) == 1999
    assert len(Split.of_file(data_of([(0, 4000)], channels=9), wanted).scored("train")) == 1000


@pytest.mark.parametrize(("validation", "test"), [(0.5, 0.5), (0.9, 0.2)])
def test_rows_to_fit_must_be_left(validation: float, test: float) -> None:
    with pytest.raises(ValueError, match="must leave rows to fit"):
        Split.of_file(data_of([(0, 60)]), Wanted(3, validation=validation, test=test))


def test_rows_to_choose_by() -> None:
    """As many as are wanted; none where they hold no horizon, or would leave fewer than two horizons and two rows."""
    for horizon in (1, 4):
        for rows in range(4, 40):
            for wanted in (0.0, 0.1, 0.5, 1, 5, 20):
                count = round(wanted * rows) if wanted < 1 else wanted
                fits = count >= horizon and rows - count >= 2 * horizon + 2
                assert rows_to_choose_by(wanted, horizon, rows) == (count if fits else 0)


def test_arrays_are_cut_by_their_own_lengths() -> None:
    tables = as_list([noise(rows, 1) for rows in (100, 37)], "X")
    wanted = Wanted(4, season=0, validation=0.2, test=0.1)
    split = Split.of_tables(tables, (), wanted)
    assert split.cuts == [(72, 90), (26, 33)]  # 100 - 10 and 20 % of 90; 37 - 4 and 20 % of 33
    assert split.validation_rows == [18, 7]
    assert [piece.name for piece in split.data.pieces] == ["0", "1"]
    own = Split.of_tables(tables, (), wanted, starts=[5, 9], validation_rows=[6, 0], names=["x", "x"])
    assert own.cuts == [(84, 90), (33, 33)]
    assert own.validation_rows == [6, 0]
    assert [(piece.name, piece.start) for piece in own.data.pieces] == [("x", 5), ("x", 9)]
    assert own.calendar == "none"
    short = as_list(np.arange(10.0), "X")
    assert Split.of_tables(short, (), Wanted(8)).cuts == [(10, 10)]
    with pytest.raises(ValueError, match="at least 11 rows for horizon=9, got n_samples = 10"):
        Split.of_tables(short, (), Wanted(9))
    with pytest.raises(ValueError, match="at least 13 rows"):
        Split.of_tables(short, (), Wanted(8), validation_rows=[3])


def test_the_first_rows_alone() -> None:
    spans = [(0, 60), (50, 40), (80, 6)]
    split = Split.of_file(data_of(spans), Wanted(3, lookback=4, season=0, test=0.1))
    ends = [50, 20, 0]
    first = split.until(ends, 0.3)
    begins = counted([(s, e) for (s, _), e in zip(spans, ends, strict=True)], 0.7)
    assert first.cuts == list(zip(begins, ends, strict=True))
    assert first.validation_rows == [b - a if b - a >= 3 else 0 for a, b in first.cuts]
    assert first.settings is split.settings


@pytest.mark.parametrize(("rows", "season", "lookback"), [
    (4, 0, 1), (20, 0, 9), (2000, 0, 336), (2000, 400, 800), (900, 0, 336), (700, 0, 336), (690, 400, 344),
])  # fmt: skip
def test_the_proposed_lookback(rows: int, season: int, lookback: int) -> None:
    """336, or two seasons, or half of the rows before the horizon."""
    settings = Split.of_tables(as_list(noise(rows), "X"), (), Wanted(2, season=season)).settings
    assert (settings.lookback, settings.theta) == (lookback, lookback)
    assert settings.order == min(96, max(lookback // 2, min(lookback, 8)))
    assert settings.season == season


def test_the_lookback_leaves_windows_in_validation_and_test_rows() -> None:
    split = Split.of_file(data_of([(0, 400)], ROWS), Wanted(2, season=0, validation=0.1, test=0.2))
    assert split.cuts == [(280, 320)]
    assert split.settings.lookback == 139  # half of 280 − 2; more than half of 320 − 2 before the test rows
    late = Split.of_file(data_of([(0, 40), (30, 30)]), Wanted(2, season=0, validation=0.2, test=0.2))
    (a, b), (c, d) = late.cuts
    before = max(max(first, (end - 2) // 2) for first, end in ((a, b), (c, d)) if end - first >= 2)
    after = max(max(first, (end - 2) // 2) for first, end in ((b, 40), (d, 30)) if end - first >= 2)
    assert late.settings.lookback == min((max(a, c) - 2) // 2, before, after)


@pytest.mark.parametrize(("lookback", "order"), [(1, 1), (5, 5), (8, 8), (14, 8), (20, 10), (200, 96)])
def test_the_proposed_order(lookback: int, order: int) -> None:
    wanted = Wanted(2, lookback=lookback, season=0, theta=7)
    settings = Split.of_tables(as_list(noise(300), "X"), (), wanted).settings
    assert (settings.order, settings.theta) == (order, 7.0)


def test_a_lookback_or_season_longer_than_the_rows() -> None:
    tables = as_list(noise(50), "X")
    assert Split.of_tables(tables, (), Wanted(10, lookback=40)).settings.lookback == 40
    with pytest.raises(ValueError, match="lookback must be at most 40 for this number of training rows, got 41"):
        Split.of_tables(tables, (), Wanted(10, lookback=41))
    assert [Split.of_tables(tables, (), Wanted(10, season=s)).settings.season for s in (39, 40)] == [39, 0]


def test_the_unit_of_errors_is_the_deviation_around_each_series_own_mean() -> None:
    data = data_of([(0, 30), (0, 20), (30, 25)], names="aba", channels=2)
    data.pieces = [replace(p, values=100.0 * k + (1 + k) * p.values) for k, p in enumerate(data.pieces)]
    split = Split.of_file(data, Wanted(2, lookback=3, season=0, validation=0.1, test=0.1))
    past: dict[str, list[np.ndarray]] = {}
    for piece, (_, end), (begin, _) in zip(data.pieces, split.cuts, split.cuts, strict=True):
        past.setdefault(piece.name, []).append(piece.values[:begin])
        past.setdefault(f"{piece.name} and validation", []).append(piece.values[:end])
    centred = np.concatenate([np.concatenate(past[n]) - np.concatenate(past[n]).mean(0) for n in "ab"])
    np.testing.assert_allclose(split.scale, np.sqrt((centred**2).mean(0)), rtol=1e-6)
    smallest = np.min([np.concatenate(past[f"{n} and validation"]).std(0) for n in "ab"], axis=0)
    np.testing.assert_allclose(split.smallest_change, 1e-3 * smallest, rtol=1e-6)


def test_what_does_not_vary_has_the_unit_one() -> None:
    data = data_of([(0, 30), (0, 30)], names="ab", channels=3)
    data.pieces[0].values[:, 0] = data.pieces[1].values[:, 0] = 7.0
    data.pieces[1].values[:, 1] = -3.0
    split = Split.of_file(data, Wanted(2, lookback=3, season=0, test=0.1))
    assert split.scale[0] == 1
    kept = split.cuts[0][1]
    deviation = data.pieces[0].values[:kept, 1].std()
    np.testing.assert_allclose(split.scale[1], deviation / np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(split.smallest_change[:2], [1e-3, 1e-3 * deviation], rtol=1e-6)


def test_a_column_of_a_file_must_vary_by_more_than_its_squares_can_hold() -> None:
    data = data_of([(0, 60)], channels=2)
    data.config = SeriesConfig()
    data.pieces[0].values[:, 1] *= 1e-16
    with pytest.raises(DataError, match=r"column 'v1' of None varies by (1|9e-01|0\.9|1\.\d)?.*too little"):
        Split.of_file(data, Wanted(2))
    data.pieces[0].values[:, 1] *= 100
    Split.of_file(data, Wanted(2))


@pytest.mark.parametrize(("rows", "horizon", "message"), [
    (6, 3, "has 6 consecutive rows, too few to forecast 3 steps ahead: give at least 10 or a smaller --horizon$"),
    (1, 1, "has 1 consecutive row, too few to forecast 1 step ahead: give at least 8$"),
    (6, 1, "at least 8$"), (10, 3, None), (8, 1, None),
])  # fmt: skip
def test_too_few_rows_of_a_file(rows: int, horizon: int, message: str | None) -> None:
    data = data_of([(0, rows)], ROWS)
    data.config = SeriesConfig()
    wanted = Wanted(horizon, validation=0.1, test=0.2)
    if message is None:
        Split.of_file(data, wanted)
    else:
        with pytest.raises(DataError, match=message):
            Split.of_file(data, wanted)


def test_rows_that_come_too_late_to_be_fitted() -> None:
    """A long series that begins late may have no row before the time at which all series are cut."""
    data = data_of([(0, 3)] * 10 + [(100, 8)], names="abcdefghijk")
    data.config, data.notes = SeriesConfig(), ["times: 2 rows moved", "columns: a", "gaps: 1 filled"]
    with pytest.raises(DataError) as caught:
        Split.of_file(data, Wanted(1, validation=0.1, test=0.2))
    assert str(caught.value).endswith(
        "has 8 consecutive rows, too few to forecast 1 step ahead: give more, of which 5 come before the validation"
        " rows (now 3) (times: 2 rows moved; gaps: 1 filled)"
    )


def test_how_many_rows_a_window_needs() -> None:
    """The look-back; of covariates their lags more; and a season, for the seasonal baseline."""
    tables = as_list(noise(200, 2), "X", [1])
    options: dict[str, Any] = {"lookback": 10, "season": 0}
    assert Split.of_tables(tables, [1], Wanted(2, lags=4, **options)).length == 13
    assert Split.of_tables(tables, [1], Wanted(2, **options)).length == 10 + 48 - 1
    without = as_list(noise(200, 2), "X")
    assert Split.of_tables(without, (), Wanted(2, **options)).length == 10
    assert Split.of_tables(without, (), Wanted(2, lookback=10, season=24)).length == 24


def test_the_inputs_of_a_model_and_the_summary() -> None:
    split = Split.of_tables(as_list(noise(200, 3), "X", [2]), [2], Wanted(2, lookback=20, season=7))
    settings = split.settings
    assert settings.inputs == ("value 1", "value 2", "2", "2 +1", "2 +2")
    assert settings.described()["covariates"] == ("2",)
    assert "covariates" not in replace(settings, covariates=()).described()
    cycles = plmu.DelayNetwork(10, 20.0).describe().cycles_per_window
    text = (f"model: forecasts 2 steps from a look-back of 20; order 10 over θ = 20 steps, which holds up to"
            f" {cycles:.3g} cycles a window; ")  # fmt: skip
    assert split.summary(calendar=True) == f"{text}a season of 7 steps is tried"
    assert settings.summary() == f"{text}a season of 7 steps is tried"
    tried = "a profile of the week and the year is tried"
    assert replace(settings, season=0).summary(True) == f"{text}no season found; {tried}"
    weekly = replace(settings, season=0, clock=Clock(kind="time", step=7.0 * DAY))
    assert weekly.summary(True).endswith("a profile of the year is tried")


def test_years_of_a_single_series() -> None:
    daily = Clock(kind="time", step=float(DAY))
    for rows, names, years in ((730, "a", False), (731, "a", True), (731, "ab", False), (731, "aa", True)):
        spans = [(0, rows), (800, 10)][: len(names)]
        split = Split.of_file(data_of(spans, daily, names), Wanted(2, lookback=3, season=0))
        assert split.cuts[0][1] == rows
        assert split.has_years == years
