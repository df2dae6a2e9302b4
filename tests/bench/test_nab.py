"""The scores of the Numenta Anomaly Benchmark: a corpus worked by hand, and published detectors."""

import os
from math import exp
from pathlib import Path

import numpy as np
import pytest

from benchmarks.nab import day, events
from benchmarks.nab_scoring import PROFILES, Archive, Recording, Weights, gains_at, normalised, score

STANDARD = Weights(hit=1.0, false=0.11, miss=1.0)
# 40 rows, of which 6 are on probation; windows of 4 and 5 rows.
FILE = Recording("a", [], np.zeros(40), [(12, 15), (35, 39)])


def sigmoid(position: float) -> float:
    return 2 / (1 + exp(5 * position)) - 1


def scores(**rows: float) -> np.ndarray:
    values = np.zeros(40)
    for name, value in rows.items():
        values[int(name[1:])] = value
    return values


def gains(threshold: float, **rows: float) -> float:
    return gains_at(FILE, scores(**rows), STANDARD, threshold)[0]


def test_of_a_window_the_earliest_alarm_counts() -> None:
    first, second = sigmoid(-1.0), sigmoid(-3 / 4)
    assert gains(0.5, r12=0.9) == pytest.approx(1.0 - 1)
    assert gains(0.5, r13=0.9, r15=1.0) == pytest.approx(second / first - 1)
    assert gains(0.5, r39=0.9) == pytest.approx(sigmoid(-1 / 5) / first - 1)


def test_false_alarms_cost_less_shortly_after_a_window() -> None:
    assert gains(0.5, r8=0.9) == pytest.approx(-0.11 - 2)  # before any window
    assert gains(0.5, r16=0.9) == pytest.approx(0.11 * sigmoid(1 / 3) - 2)
    assert gains(0.5, r25=0.9) == pytest.approx(-0.11 - 2)  # more than three windows later
    assert gains(0.5, r5=0.9) == -2  # on probation


def test_the_threshold_is_the_best_one_for_all_files() -> None:
    quiet = Recording("b", [], np.zeros(40), [])
    alarms = scores(r12=0.9, r35=0.8, r20=0.8)
    best = score([FILE, quiet], [alarms, scores(r9=0.85)], STANDARD)
    # 0.9 has one window; 0.8 has both, and a false alarm in either file.
    expected = 2 - 0.11 + 0.11 * sigmoid(5 / 3)
    assert best.threshold == 0.8
    assert best.gains == pytest.approx(expected)
    assert best.score == pytest.approx(100 * (expected + 2) / 4)


def test_no_alarm_is_0_and_each_first_row_is_100() -> None:
    assert normalised(-2, 2, STANDARD) == 0
    assert score([FILE], [scores(r12=1, r35=1)], STANDARD).score == pytest.approx(100)


def test_scores_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="a has 40 rows, got 39 scores"):
        score([FILE], [np.zeros(39)], STANDARD)


def test_of_an_event_the_rows_count_that_are_the_most_anomalous_of_late() -> None:
    p_values = np.full(200, 0.5)
    p_values[[100, 104, 150, 153]] = [0.01, 0.02, 0.02, 0.004]
    alarms = events(1 - p_values)
    assert alarms[0] == pytest.approx(1 / 1.5)
    assert alarms[104] == 0  # five rows before, one was more anomalous
    assert alarms[150] == pytest.approx(1 / (1 + 0.02 * 151**0.5))
    assert alarms[153] == pytest.approx(1 / (1 + 0.004 * 154**0.5))


def test_the_season_is_a_day() -> None:
    times = [f"2014-04-01 00:{minute:02d}:00" for minute in range(0, 60, 5)]
    assert day(Recording("a", times, np.zeros(12), [])) == 288


DATA = Path(os.environ.get("PLMU_DATA", "."))


@pytest.mark.skipif(not (DATA / "nab").is_dir(), reason="needs nab/ in PLMU_DATA")
@pytest.mark.parametrize("detector", ["randomCutForest", "windowedGaussian"])
def test_published_scores_follow_from_the_rows_of_the_detectors(detector: str) -> None:
    archive = Archive(DATA)
    recordings = archive.recordings()
    assert (len(recordings), sum(len(recording.windows) for recording in recordings)) == (58, 116)
    rows = archive.scores(detector, recordings)
    for profile in PROFILES:
        result = score(recordings, rows, archive.weights(profile))
        assert result.score == pytest.approx(archive.published()[detector][profile], rel=1e-9)
