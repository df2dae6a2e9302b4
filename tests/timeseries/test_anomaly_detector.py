"""`plmu.AnomalyDetector`: scores of recorded data are those of a stream, from arrays, frames and files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from anomalies import COUNT, DIP, GAP, SEASON, SPIKE, stamps, values, written

import plmu
from plmu.errors import DataError
from plmu.timeseries.anomaly_scores import Agreement, Scored, Watched

SAME = 1e-9  # of scores: sums of float64 in another order


@pytest.fixture(scope="module")
def table() -> Any:
    x = values()
    x[GAP] = np.nan
    return x


@pytest.fixture(scope="module")
def fitted(table: Any) -> plmu.AnomalyDetector:
    return plmu.AnomalyDetector().fit(table)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=SAME)


def test_recorded_data_has_the_scores_of_a_stream(fitted: plmu.AnomalyDetector, table: Any) -> None:
    """The layer's single steps from nothing are the reference."""
    layer, state, outputs = fitted.model.module, None, []
    with torch.no_grad():
        for row in table:
            out, state = layer.step(torch.from_numpy(row)[None], state)
            outputs.append(out[0].numpy())
    outputs = np.stack(outputs)
    scores = fitted.decision_function()
    assert scores.shape == (COUNT,)
    close(scores, outputs[:, 0])
    close(fitted.decision_function(table), scores)  # the rows that were learned are scored as they were then
    frame = fitted.detect()
    assert frame.columns == ["row", "score", "alarm", "channel", "value", "expected", "lower", "upper"]
    assert frame["row"].to_list() == [*range(1, COUNT + 1)]
    channel = np.nan_to_num(outputs[:, 1::4], nan=-1).argmax(axis=1)
    assert frame["channel"].to_list() == [f"value {place + 1}" for place in channel]
    rows = np.arange(COUNT)
    for number, name in enumerate(("expected", "lower", "upper"), 2):
        close(frame[name].to_numpy(), outputs[rows, 4 * channel + number])
    np.testing.assert_array_equal(frame["value"].to_numpy(), table[rows, channel])


def test_anomalies_are_detected_with_their_reason(fitted: plmu.AnomalyDetector) -> None:
    assert fitted.season_ == SEASON
    assert fitted.notes_ == [f"model: a season of {SEASON} steps"]
    frame = fitted.detect()
    alarms = fitted.predict()
    assert alarms.dtype == np.int64
    np.testing.assert_array_equal(alarms, frame["alarm"].to_numpy())
    np.testing.assert_array_equal(alarms, frame["score"].to_numpy() > 0.999)
    assert alarms[[SPIKE, DIP]].all()
    assert alarms.sum() < 0.02 * COUNT
    spike, dip = frame.row(SPIKE, named=True), frame.row(DIP, named=True)
    assert (spike["channel"], dip["channel"]) == ("value 1", "value 2")
    assert spike["value"] > spike["upper"] > spike["expected"] > spike["lower"]
    assert dip["value"] < dip["lower"]
    assert not alarms[GAP].any()


def test_a_stream_goes_on_after_the_last_row(fitted: plmu.AnomalyDetector, table: Any) -> None:
    later = values(COUNT + 30)[COUNT:]
    later[3, 0], later[7] = np.nan, np.nan
    whole = fitted.decision_function(np.concatenate([table, later]))
    close(whole[:COUNT], fitted.decision_function())
    stream = fitted.stream()
    close([float(stream.push(row)[0]) for row in later], whole[COUNT:])
    close(fitted.decision_function(later), whole[COUNT:])
    assert stream.push(None).shape == (9,)


def test_save_and_load(fitted: plmu.AnomalyDetector, tmp_path: Path) -> None:
    plmu.save(fitted.model, tmp_path / "model.plmu")
    stream = plmu.Stream(plmu.load(tmp_path / "model.plmu"))
    torch.testing.assert_close(stream.push([50.0, 15.0]), fitted.stream().push([50.0, 15.0]), rtol=0, atol=0)


def test_frames_and_files_have_times(fitted: plmu.AnomalyDetector, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    (tmp_path / "my.csv").write_text(written(label="anomaly"))
    detector = plmu.AnomalyDetector().fit(tmp_path / "my.csv")
    close(detector.decision_function(), fitted.decision_function())
    frame = detector.detect()
    assert frame["time"].to_list() == stamps().tolist()
    close(detector.decision_function(tmp_path / "my.csv"), fitted.decision_function())
    for note in ("gaps: 3 of 700 steps lack a value; they stay missing, and not scored", "values: load, temp",
                 "labels: column 'anomaly', to which nothing is fitted"):  # fmt: skip
        assert note in detector.notes_
    scores = detector.evaluate()
    assert (scores["steps"], scores["recall"]) == (COUNT - 3, 1.0)
    assert scores["precision"] == pytest.approx(2 / scores["alarms"])
    assert scores["false_alarms"] == pytest.approx(1000 * (scores["alarms"] - 2) / (COUNT - 2))
    wide = pd.read_csv(tmp_path / "my.csv", parse_dates=["time"]).drop(columns="anomaly")
    other = plmu.AnomalyDetector().fit(wide)
    detected = other.detect()
    assert isinstance(detected, pd.DataFrame)
    close(detected["score"].to_numpy(), fitted.decision_function())
    assert "precision" not in other.evaluate()
    assert "precision" not in detector.evaluate(wide)  # it has no column of labels


def test_later_rows_keep_their_place_in_the_season(tmp_path: Path) -> None:
    """A file that begins after a gap has the scores that its rows have after all others."""
    (tmp_path / "all.csv").write_text(written(COUNT))
    rows = written(COUNT).splitlines()
    (tmp_path / "fit.csv").write_text("\n".join(rows[:501]))
    (tmp_path / "later.csv").write_text("\n".join([rows[0], *rows[511:]]))
    (tmp_path / "joined.csv").write_text("\n".join([*rows[:501], *rows[511:]]))
    detector = plmu.AnomalyDetector(season=SEASON).fit(tmp_path / "fit.csv")
    joined, later = detector.detect(tmp_path / "joined.csv"), detector.detect(tmp_path / "later.csv")
    close(later["score"].to_numpy(), joined["score"].to_numpy()[-len(later) :])
    assert later["time"][0] == joined["time"][-len(later)]


def test_several_series_are_learned_each_on_its_own() -> None:
    x = values()
    frame = pl.concat([
        pl.DataFrame({"id": [name] * len(part), "time": stamps(len(part)), "load": part})
        for name, part in (("a", x[:, 0]), ("b", 100 * x[:550, 1]))
    ])  # fmt: skip
    detector = plmu.AnomalyDetector(season=SEASON).fit(frame)
    detected = detector.detect()
    assert detected.columns[:2] == ["id", "time"]
    alone = plmu.AnomalyDetector(season=SEASON).fit(100 * x[:550, 1])
    close(detected.filter(pl.col("id") == "b")["score"].to_numpy(), alone.decision_function())
    later = [[1500.0], [9000.0]]
    for name in ("a", "b"):
        part = frame.filter(pl.col("id") == name)
        single = plmu.AnomalyDetector(season=SEASON).fit(part["load"].to_numpy()).stream()
        stream = detector.stream(name)
        for sample in later:
            torch.testing.assert_close(stream.push(sample), single.push(sample), rtol=0, atol=SAME)
    with pytest.raises(ValueError, match="series must be one of those of fit, 'a', 'b'; got None"):
        detector.stream()
    listed = plmu.AnomalyDetector(season=SEASON).fit([x[:, :1], 100 * x[:550, 1:]])
    scores = listed.decision_function()
    assert [len(part) for part in scores] == [COUNT, 550]
    close(scores[1], alone.decision_function())


def test_labels_are_never_fitted(table: Any) -> None:
    fit = [plmu.AnomalyDetector().fit(table, y) for y in (None, np.zeros(COUNT))]
    close(fit[0].decision_function(), fit[1].decision_function())
    truth = np.zeros(COUNT, bool)
    truth[[SPIKE, DIP, DIP + 1]] = True
    scores = fit[0].evaluate(y=truth)
    assert scores["recall"] == 1.0
    with pytest.raises(ValueError, match=r"y must have a label for each step, of the shapes \[\(700,\)\]"):
        fit[0].evaluate(y=truth[1:])


def test_agreement_by_brute_force() -> None:
    rng = np.random.default_rng(1)
    score = np.where(rng.random(300) < 0.1, 1.0, 0.5)
    truth = np.repeat(rng.random(60) < 0.2, 5)
    outputs = np.zeros((300, 5))
    outputs[:, 0] = score
    steps = np.arange(300)
    agreement = Agreement.of([Scored(Watched("", np.zeros((300, 1)), steps, steps, ()), outputs, 0.1)], [truth])
    ranges, begin = [], None
    for place, labelled in enumerate([*truth, False]):
        begin = place if labelled and begin is None else begin
        if not labelled and begin is not None:
            ranges.append((begin, place))
            begin = None
    hit = [any(score[a:b] == 1.0) for a, b in ranges]
    assert (agreement.labelled, agreement.detected) == (len(ranges), sum(hit))
    alarms = [place for place in range(300) if score[place] == 1.0]
    inside = sum(truth[place] for place in alarms)
    assert agreement.precision == pytest.approx(inside / len(alarms))
    assert agreement.recall == pytest.approx(sum(hit) / len(ranges))
    assert agreement.false_alarms == pytest.approx(1000 * (len(alarms) - inside) / (300 - truth.sum()))


def test_plot(fitted: plmu.AnomalyDetector, tmp_path: Path) -> None:
    fitted.plot(tmp_path / "anomalies.png")
    assert (tmp_path / "anomalies.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"threshold": 0.0}, "threshold must be a share between 0 and 1"),
        ({"threshold": True}, "threshold must be a share"),
        ({"season": -1}, "season must be an integer of at least 0"),
        ({"half_life": 0.0}, "half_life must be a number of steps of at least 1"),
        ({"level": 1}, "level must be a share between 0 and 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        plmu.AnomalyDetector(**options).fit(values(50))


def test_wrong_data(fitted: plmu.AnomalyDetector, tmp_path: Path) -> None:
    x = values(50)
    with pytest.raises(ValueError, match="not fitted yet"):
        plmu.AnomalyDetector().detect(x)
    with pytest.raises(ValueError, match="X has 1 channels, and the detector was fitted to 2"):
        fitted.detect(x[:, :1])
    infinite = x.copy()
    infinite[3, 1] = np.inf
    with pytest.raises(ValueError, match="X has infinity in row 3, column 1"):
        plmu.AnomalyDetector().fit(infinite)
    with pytest.raises(ValueError, match="time is for data frames and files"):
        plmu.AnomalyDetector().fit(x, time="when")
    with pytest.raises(TypeError, match="no option 'duplicate'; did you mean 'duplicates'"):
        plmu.AnomalyDetector().fit(tmp_path / "my.csv", duplicate="first")
    with pytest.raises(DataError, match="is not there"):
        plmu.AnomalyDetector().fit(tmp_path / "no.csv")
    (tmp_path / "my.csv").write_text("time,label\n2024-01-01,0\n2024-01-02,1\n2024-01-03,0\n")
    with pytest.raises(DataError, match="beside the labels, 'label', there is no column"):
        plmu.AnomalyDetector().fit(tmp_path / "my.csv")


def test_parameters_are_those_of_scikit_learn(table: Any) -> None:
    detector = plmu.AnomalyDetector(threshold=0.01, season=0)
    assert repr(copy.copy(detector)) == "AnomalyDetector(threshold=0.01, season=0)"
    assert detector.get_params() == {"threshold": 0.01, "season": 0, "half_life": None, "level": 0.99}
    assert detector.set_params(season=12).fit(table).season_ == 12
