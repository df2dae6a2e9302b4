"""Estimators that are saved to learn further, and merged."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from learned_sums import LATER, MEMORY, ROWS, assert_close, course, member_sums, panel

import plmu
from plmu.errors import FileFormatError
from plmu.modelfiles.files import load_attached, save_attached
from plmu.runs.folder import SERIES_FILE
from plmu.timeseries.forecast_files import write_model

OPTIONS: list[dict[str, Any]] = [
    {**MEMORY},
    {**MEMORY, "individual": True, "half_life": 30.5},
    {"horizon": 6, "pooled": True},
    {"horizon": 6},
    {**MEMORY, "covariates": [1], "season": 0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["memory", "individual", "pooled", "chosen", "covariates"])
def test_it_goes_on_bit_for_bit(options: dict[str, Any], path: Path) -> None:
    data = course(channels=2)
    ahead = {"future": np.zeros(options["horizon"])} if "covariates" in options else {}
    forecaster = plmu.Forecaster(**options).fit(data[:ROWS])
    forecaster.partial_fit(data[ROWS : ROWS + 20])
    forecaster.save(path, updatable=True)
    loaded = plmu.Forecaster.load(path)
    model = plmu.load(path).eval()
    for name, tensor in forecaster.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    for rows in (data[:0], data[ROWS + 20 : ROWS + 21], data[ROWS + 21 :]):
        if len(rows):
            forecaster.partial_fit(rows)
            loaded.partial_fit(rows)
        np.testing.assert_array_equal(loaded.predict(**ahead), forecaster.predict(**ahead))
        bounds, expected = (one.predict(level=[50, 90], **ahead) for one in (loaded, forecaster))
        np.testing.assert_array_equal(bounds.upper, expected.upper)
        for name, tensor in forecaster.model.state_dict().items():
            assert torch.equal(loaded.model.state_dict()[name], tensor)
    if "covariates" not in options:
        np.testing.assert_array_equal(loaded.stream().push(data[-1]), forecaster.stream().push(data[-1]))
    assert loaded.get_params() == forecaster.get_params()
    assert loaded.validation_["model"] == forecaster.validation_["model"]


@pytest.mark.parametrize("options", [MEMORY, {"horizon": 6, "pooled": True}], ids=["memory", "pooled"])
def test_a_pickled_estimator_goes_on(options: dict[str, Any]) -> None:
    data = course()
    forecaster = plmu.Forecaster(**options).fit(data[:ROWS]).partial_fit(data[ROWS : ROWS + 9])
    other = pickle.loads(pickle.dumps(forecaster))
    for estimator in (forecaster, other):
        estimator.partial_fit(data[ROWS + 9 :])
    np.testing.assert_array_equal(other.predict(level=80).upper, forecaster.predict(level=80).upper)


def test_a_run_has_no_rows_to_learn_from(tmp_path: Path) -> None:
    rows = course()[:, 0]
    forecaster = plmu.Forecaster(**MEMORY).fit(rows)
    fitted = forecaster.fitted_
    (tmp_path / SERIES_FILE).write_text(json.dumps(fitted.settings.described()))
    write_model(tmp_path, fitted.series("test"), forecaster.model, fitted.intervals((0.8,)))
    run = plmu.Forecaster.from_run(tmp_path)
    for method in (lambda: run.partial_fit(rows), lambda: run.save(tmp_path / "f.plmu", updatable=True)):
        with pytest.raises(ValueError, match="needs the series of fit, and this estimator is of a run's folder"):
            method()


def test_frames_files_and_lists_come_back(tmp_path: Path) -> None:
    path = tmp_path / "f.plmu"
    times = pd.date_range("2024-01-01", periods=260, freq="h", tz="Europe/Berlin")
    wide = pd.DataFrame({"load": course()[:, 0]}, index=times)
    day = pl.DataFrame({"when": pl.Series(times.tz_localize(None).to_numpy()), "load": course()[:, 0]})
    panel(ROWS).to_csv(tmp_path / "first.csv", index=False)
    panel(LATER, first=ROWS).to_csv(tmp_path / "then.csv", index=False)
    sources: list[tuple[Any, Any]] = [
        (wide[:ROWS], wide[ROWS:]),
        (day[:ROWS], day[ROWS:]),
        (panel(ROWS), panel(LATER, "abcd", first=ROWS)),
        (tmp_path / "first.csv", tmp_path / "then.csv"),
        ([course(), course(seed=1)], [course(5), course(7)]),
        (course()[:, 0], course(5)[:, 0]),
    ]
    for first, then in sources:
        forecaster = plmu.Forecaster(**MEMORY).fit(first)
        forecaster.save(path, updatable=True)
        loaded = plmu.Forecaster.load(path).partial_fit(then)
        forecaster.partial_fit(then)
        ahead, expected = loaded.predict(), forecaster.predict()
        assert_close(loaded.sums_, forecaster.sums_)
        if isinstance(first, list):
            np.testing.assert_array_equal(np.stack(ahead), np.stack(expected))
        elif isinstance(first, np.ndarray):
            np.testing.assert_array_equal(ahead, expected)
        elif isinstance(expected, pd.DataFrame) and "unique_id" not in expected:
            np.testing.assert_array_equal(ahead["load"], expected["load"])
            assert list(ahead.index) == list(expected.index)
        else:
            value = "load" if "load" in expected.columns else "y"
            np.testing.assert_array_equal(ahead[value].to_numpy(), expected[value].to_numpy())
        for method in (loaded.choose, loaded.evaluate, loaded.backtest, loaded.cross_validation):
            with pytest.raises(
                ValueError, match="needs the rows that were learned: this estimator was loaded, and has"
            ):
                method()


def test_parts_of_two_machines_are_the_whole(path: Path) -> None:
    plmu.Forecaster(**MEMORY).fit(panel(ROWS)).save(path, updatable=True)
    first, second = (plmu.Forecaster.load(path, empty=True) for _ in range(2))
    with pytest.raises(ValueError, match="prediction intervals need rows that were learned, and there are none yet"):
        plmu.Forecaster.load(path, empty=True).predict(panel(ROWS), level=80)
    first.partial_fit(panel(LATER, "de", first=0)).partial_fit(panel(9, "de", first=LATER))
    frame = panel(ROWS, "abcdefg")
    second.partial_fit(frame[frame["unique_id"].isin(["f", "g"])])
    whole = plmu.Forecaster.load(path).merge(first).merge(second)
    direct = plmu.Forecaster.load(path)
    direct.partial_fit(panel(LATER, "de", first=0)).partial_fit(panel(9, "de", first=LATER))
    direct.partial_fit(frame[frame["unique_id"].isin(["f", "g"])])
    assert_close(whole.sums_, direct.sums_)
    ahead = whole.predict(level=80)
    assert ahead["unique_id"].unique(maintain_order=True).to_list() == list("abcdefg")
    np.testing.assert_allclose(ahead["y"], direct.predict()["y"], rtol=1e-5)
    with pytest.raises(
        ValueError, match=r"both have learned rows of series 'a', from 2020-01-01 to 2020-07-18 and from"
    ):
        whole.merge(plmu.Forecaster.load(path, empty=True).partial_fit(panel(30, "a", first=ROWS - 5)))
    later = plmu.Forecaster.load(path, empty=True).partial_fit(panel(LATER, "a", first=ROWS))
    count = whole.sums_.count
    whole.merge(later).partial_fit(panel(10, "a", first=ROWS + LATER))
    assert whole.sums_.count == count + LATER - 20 + 10  # windows over the border are not learned


@pytest.mark.parametrize("half_life", [None, 40.0])
@pytest.mark.parametrize("pooled", [False, True])
def test_arrays_come_one_after_the_other(pooled: bool, half_life: float | None, path: Path) -> None:
    options: dict[str, Any] = {"horizon": 6, "pooled": True} if pooled else MEMORY
    data = [course(seed=seed) for seed in range(5)]
    plmu.Forecaster(**options, half_life=half_life).fit(data[:2]).save(path, updatable=True)
    part = plmu.Forecaster.load(path, empty=True).partial_fit(data[2:])
    whole = plmu.Forecaster.load(path).merge(part)
    more, again = course(2), [rows[-1:] for rows in data[2:]]
    direct = plmu.Forecaster.load(path).partial_fit([more[:1], more[:1], *data[2:]])
    whole.partial_fit([more, more, *again])
    direct.partial_fit([more[1:], more[1:], *again])
    for ahead, expected in zip(whole.predict(), direct.predict(), strict=True):
        np.testing.assert_allclose(ahead, expected, rtol=1e-5)
    if pooled:
        for number, sums in member_sums(whole).items():
            assert_close(sums, member_sums(direct)[number])
    else:
        assert_close(whole.sums_, direct.sums_)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"horizon": 6}, "horizon differs: 5 and 6"),
        ({"lookback": 17}, "lookback differs: 16 and 17"),
        ({"half_life": 9.0}, "half_life differs: inf and 9.0"),
        ({"alpha": 0.5}, "alpha differs"),
        ({"pooled": True, "lookback": None, "order": None}, "the model differs: LookbackForecast and PooledForecast"),
        ({"season": 0}, "season differs: 12 and 0"),
    ],
)
def test_other_choices_are_named(options: dict[str, Any], fault: str) -> None:
    rows = course()[:, 0]
    with pytest.raises(ValueError, match=f"merge needs the same choices in both, and {fault}"):
        plmu.Forecaster(**MEMORY).fit(rows).merge(plmu.Forecaster(**{**MEMORY, **options}).fit(rows))


def test_faults_of_files(path: Path) -> None:
    rows = course()[:, 0]
    forecaster = plmu.Forecaster(**MEMORY).fit(rows)
    forecaster.save(path)
    assert isinstance(plmu.load(path), plmu.nn.LookbackForecast)
    with pytest.raises(FileFormatError, match="holds a model alone: save the estimator with updatable=True"):
        plmu.Forecaster.load(path)
    forecaster.save(path, updatable=True)
    model, attachment = load_attached(path)
    assert attachment is not None
    del attachment.tensors["gram"]
    save_attached(model, path, attachment)
    with pytest.raises(FileFormatError, match="broken description of what was learned"):
        plmu.Forecaster.load(path)
    plmu.load(path)
    empty = plmu.Forecaster(**MEMORY)
    with pytest.raises(ValueError, match="not fitted yet"):
        empty.save(path)
