"""Forecasts of other libraries, for `python -m benchmarks.panels --peers PYTHON`; runs by itself in their environment.

    pip install statsforecast mlforecast lightgbm
    python -P benchmarks/panel_peers.py METHOD SERIES.npz FORECASTS.npz

-P, as modules beside this file have names of the standard library. statsforecast's models have their defaults and the
competition's seasonal period. LightGBM forecasts step by step from lags, by mlforecast, on the seasonal differences of
each series in units of their standard deviation; it has no intervals. Seconds include the fit and the forecast, but not
the compilation of code, for which some series come first.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas

LAGS = {6: 6, 8: 8, 12: 24, 13: 52, 14: 28, 18: 24, 28: 28}  # by horizon; others have two days and each day of a week


def frame(series: list[np.ndarray]) -> pandas.DataFrame:
    """Series in long format."""
    lengths = [len(values) for values in series]
    return pandas.DataFrame({
        "unique_id": np.repeat(np.arange(len(series)), lengths),
        "ds": np.concatenate([np.arange(length) for length in lengths]),
        "y": np.concatenate(series),
    })  # fmt: skip


def statistical(method: str, series: list[np.ndarray], horizon: int, season: int, levels: list[int]) -> dict[str, Any]:
    """A model of statsforecast."""
    from statsforecast import StatsForecast, models

    model = getattr(models, method)(season_length=season)
    forecaster = StatsForecast(models=[model], freq=1, n_jobs=1)
    table = forecaster.forecast(df=frame(series), h=horizon, level=levels or None).sort_values(["unique_id", "ds"])
    shape = (len(series), horizon)
    bounds = (
        {}
        if not levels
        else {
            end: np.stack([table[f"{model}-{short}-{level}"].to_numpy(float).reshape(shape) for level in levels])
            for end, short in (("lower", "lo"), ("upper", "hi"))
        }
    )
    return {"mean": table[str(model)].to_numpy(float).reshape(shape), **bounds}


def boosted(
    method: str, series: list[np.ndarray], horizon: int, season: int, levels: list[int], fitted: int = 0
) -> dict[str, Any]:
    """LightGBM on lags by mlforecast; `fitted` is the number of rows of the last series that it is fitted to, 0 for all
    rows of all series."""
    from lightgbm import LGBMRegressor
    from mlforecast import MLForecast
    from mlforecast.target_transforms import Differences, LocalStandardScaler

    lags = list(range(1, LAGS[horizon] + 1)) if horizon in LAGS else [*range(1, 49), 72, 96, 120, 144, 168]
    forecaster = MLForecast(
        models={method: LGBMRegressor(n_estimators=200, learning_rate=0.05, n_jobs=1, verbosity=-1, random_state=0)},
        freq=1,
        lags=lags,
        target_transforms=[Differences([season]), LocalStandardScaler()],
        num_threads=1,
    )
    forecaster.fit(frame([series[-1][:fitted]] if fitted else series), static_features=[])
    table = forecaster.predict(horizon, new_df=frame(series) if fitted else None).sort_values(["unique_id", "ds"])
    return {"mean": table[method].to_numpy(float).reshape(len(series), horizon)}


def main() -> None:
    method, source, target = sys.argv[1:]
    with np.load(source) as arrays:
        series = np.split(arrays["values"], np.cumsum(arrays["lengths"])[:-1])
        horizon, season, levels = int(arrays["horizon"]), int(arrays["season"]), arrays["levels"].tolist()
        options = {"fitted": int(arrays["fitted"])} if method == "LightGBM" and "fitted" in arrays else {}
    boosting = method == "LightGBM"
    forecast, packages = (boosted, ("mlforecast", "lightgbm")) if boosting else (statistical, ("statsforecast",))
    if not options:
        forecast(method, sorted(series, key=len)[: 50 if boosting else 2], horizon, season, levels)
    begin, used = time.perf_counter(), time.process_time()
    results = forecast(method, series, horizon, season, levels, **options)
    notes = {
        "seconds": time.perf_counter() - begin,
        "processor seconds": time.process_time() - used,
        "versions": {name: version(name) for name in packages},
    }
    np.savez(target, **results, notes=json.dumps(notes))


if __name__ == "__main__":
    main()
