"""The estimators in scikit-learn's hands: its own checks, `clone`, `Pipeline` and `GridSearchCV`."""

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import plmu

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

# Checks that cannot apply, with the reason.
FORECASTER = {
    "check_methods_sample_order_invariance": "rows are time steps: their order is what matters",
    "check_methods_subset_invariance": "predict gives the steps after the last row, not one number per row",
    "check_fit1d": "one series (time,) is allowed",
}
CLASSIFIER = {
    "check_methods_subset_invariance": "scores are float32 and differ in the last digits with the size of the batch",
}


@pytest.mark.parametrize(
    ("estimator", "cannot"),
    [
        (plmu.Forecaster(horizon=1), FORECASTER),
        (plmu.SequenceClassifier(projections=8, thresholds=4), CLASSIFIER),
    ],
    ids=["Forecaster", "SequenceClassifier"],
)
def test_check_estimator(estimator: Any, cannot: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not inherit from BaseEstimator, and what the checks provoke
        results = check_estimator(estimator, expected_failed_checks=cannot, on_fail=None, on_skip=None)
    failed = {one["check_name"]: repr(one["exception"]) for one in results if one["status"] == "failed"}
    assert failed == {}
    expected = {one["check_name"] for one in results if one["status"] == "xfail"}
    undecided = set(CLASSIFIER) if cannot is CLASSIFIER else set()  # by rounding, which differs between machines
    assert set(cannot) - undecided <= expected <= set(cannot)
    assert sum(one["status"] == "passed" for one in results) > 30


def test_clone_and_parameters() -> None:
    forecaster = plmu.Forecaster(horizon=3, lookback=12)
    other = clone(forecaster).set_params(horizon=4)
    assert (other.horizon, other.lookback, forecaster.horizon) == (4, 12, 3)
    assert repr(other) == "Forecaster(horizon=4, lookback=12)"


def test_old_names_of_parameters_work_with_a_warning() -> None:
    new = plmu.SequenceClassifier(alphas=[1.0, 2.0], projections=4, thresholds=2)
    with pytest.warns(DeprecationWarning, match="strengths is now called alphas"):
        old = plmu.SequenceClassifier(strengths=[1.0, 2.0], projections=4, thresholds=2)
    assert repr(old) == repr(new)
    assert clone(old).alphas == [1.0, 2.0]  # without a warning
    with pytest.warns(DeprecationWarning, match="strengths is now called alphas"):
        assert old.set_params(strengths=[3.0]).get_params()["alphas"] == [3.0]
    with pytest.raises(TypeError, match="both strengths and alphas"):
        plmu.SequenceClassifier(strengths=[1.0], alphas=[1.0])
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 2
    waves = np.sin(2 * np.pi * np.arange(40) / np.where(labels, 7, 12)[:, None]) + 0.2 * rng.standard_normal((24, 40))
    with pytest.warns(DeprecationWarning, match="strengths is now called alphas"):
        search = GridSearchCV(old, {"strengths": [[1.0], [10.0]]}, cv=2).fit(waves, labels)
    best = search.best_estimator_
    with pytest.warns(DeprecationWarning, match="strength_ is now called alpha_"):
        assert best.strength_ == best.alpha_
    state = {"strengths" if name == "alphas" else name: value for name, value in vars(new).items()}
    unpickled = plmu.SequenceClassifier.__new__(plmu.SequenceClassifier)
    unpickled.__setstate__(state)
    assert unpickled.alphas == [1.0, 2.0]


def test_pipeline_and_grid_search() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(300)[:, None]
    series = np.sin(2 * np.pi * t / 12) + 0.1 * rng.standard_normal((300, 2))
    search = GridSearchCV(
        make_pipeline(StandardScaler(), plmu.Forecaster(horizon=4, season=0)),
        {"forecaster__lookback": [2, 24]},
        cv=TimeSeriesSplit(3, test_size=60),
    ).fit(series)
    assert search.best_params_ == {"forecaster__lookback": 24}
    assert search.predict(series).shape == (4, 2)
    labels = np.arange(30) % 2
    waves = np.sin(2 * np.pi * np.arange(40) / np.where(labels, 7, 12)[:, None]) + 0.2 * rng.standard_normal((30, 40))
    pipeline = make_pipeline(FunctionTransformer(), plmu.SequenceClassifier(projections=8))
    found = GridSearchCV(pipeline, {"sequenceclassifier__order": [4, 9]}, cv=3).fit(waves, labels)
    assert found.best_score_ > 0.9


def test_data_frames() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(24) % 2, "quick", "slow")
    waves = np.sin(2 * np.pi * np.arange(40) / np.where(labels == "quick", 7, 12)[:, None])
    waves += 0.2 * rng.standard_normal(waves.shape)
    small = plmu.SequenceClassifier(projections=8, thresholds=4)
    for module in (pandas, polars):
        whole = module.DataFrame(waves)  # a series a row
        assert clone(small).fit(whole, module.Series(labels)).score(whole, labels) > 0.9
        apart = [module.DataFrame({"x": one, "y": one**2}) for one in waves]  # two channels each
        fitted = clone(small).fit(apart, labels)
        assert fitted.n_channels_ == 2
        assert fitted.score(apart, labels) > 0.9


def test_estimators_import_no_library_of_frames_or_plots() -> None:
    code = (
        "import sys, plmu; plmu.Forecaster(2).fit([1.0, 2, 3, 4, 5, 6, 7]);"
        " plmu.SequenceClassifier(projections=2).fit([[1.0, 2, 3], [3.0, 2, 1]] * 4, [0, 1] * 4);"
        " assert not {'sklearn', 'pandas', 'polars', 'matplotlib'} & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
