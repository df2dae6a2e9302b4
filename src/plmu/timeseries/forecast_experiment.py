"""Forecasts of series of your own (--data.file): the next steps of each column, from the Delay Network's state over a
look-back window, fitted in closed form in seconds.

Models: `closed` is fitted by ridge regression. `gradient` starts from it and is trained further. `lstm` is the
baseline. Settings that you do not give are found on the validation rows, which come before the test rows.

Scores: errors over every window of the test rows, in units of each column's standard deviation in the training rows,
beside the baselines last value, seasonal last value and a linear map of the same window; and how often the measured
value was in the prediction interval. The run's folder has plots of them.

Covariates (--data.covariates) are columns that are known ahead. Their effect is fitted, too, and used where it helps.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from plmu.errors import RunError
from plmu.nn import LookbackForecast
from plmu.runs.experiment import Config, Experiment, Predictions
from plmu.timeseries import forecast_report
from plmu.timeseries.forecast_files import predict, write_model
from plmu.timeseries.forecast_models import LSTM_TRAINING, ClosedModel, GradientModel, LSTMModel
from plmu.timeseries.forecast_task import METRIC, ForecastConfig, ForecastTask, fitted, lstm_of, prepare, rolling
from plmu.timeseries.scores import last_value, model_method, score
from plmu.timeseries.series import SeriesConfig
from plmu.training.config import TrainingConfig
from plmu.training.task import Task


class Forecast(Experiment):
    name = "forecast"
    metric = METRIC
    paper: ClassVar[dict[str, float]] = {}
    models = ("closed", "gradient", "lstm")
    streamable = ("closed", "gradient")
    own_data = True

    def closed_form(self, model: str) -> bool:
        return model == "closed"

    def run_name(self, model: str, config: Config[Any]) -> str:
        return self.name_of_file(model, config.data.file if isinstance(config.data, SeriesConfig) else None)

    def defaults(self, model: str) -> Config[Any]:
        trained = TrainingConfig(epochs=20, batch_size=64, learning_rate=1e-3, schedule="cosine", graph=False)
        choices: dict[str, tuple[Any, TrainingConfig]] = {
            "closed": (ClosedModel(), TrainingConfig(epochs=1)),
            "gradient": (GradientModel(), trained),
            "lstm": (LSTMModel(), replace(LSTM_TRAINING)),
        }
        chosen, how = choices[self.check(model)]
        return ForecastConfig(chosen, how)

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config, ForecastConfig)
        return prepare(config)

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, ForecastTask)
        assert isinstance(config, ForecastConfig)
        if isinstance(config.model, LSTMModel):
            return lstm_of(task, config.model)
        task.forecaster = fitted(task, config.model)
        return task.forecaster.model

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, ForecastTask)
        return {"series.json": json.dumps(task.known[3].described(), indent=1, ensure_ascii=False) + "\n"}

    def write_more(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> list[str]:
        assert isinstance(task, ForecastTask)
        assert isinstance(config, ForecastConfig)
        if task.tested_intervals is None:
            task.scores(network, task.test)
        assert task.tested_intervals is not None
        intervals = task.tested_intervals
        folds = backtest(task, config) if config.backtest else []
        lines = forecast_report.write(folder, task, network, intervals, folds)
        if task.forecaster is not None:
            lines += forecast_report.season_told(task.forecaster.validation_)
        if task.known[3].covariates and task.forecaster is not None:
            lines.append(forecast_report.covariates_told(task.known[3].covariates, task.forecaster.validation_))
        if isinstance(network, LookbackForecast):
            final = network
            if config.refit:
                final = fitted(task, config.model, everything=True).model
                lines.append("the saved model is fitted to all rows, test rows included")
            write_model(folder, task.known[0], task.known[3], final, intervals)
            lines.append(f"next: plmu predict {folder} --data.file {task.known[1].data.file}{_future(task)}")
        return lines

    def predict(self, folder: Path, config: Config[Any], file: Path, future: Path | None = None) -> Predictions:
        assert isinstance(config.data, SeriesConfig)
        if isinstance(config.model, LSTMModel):
            raise RunError(f"{folder} is a baseline, whose model is not saved: train --model closed or gradient")
        return predict(folder, config.data, file, future)


def _future(task: ForecastTask) -> str:
    """What else `plmu predict` needs to forecast the steps after the last rows."""
    data, _, _, settings = task.known
    last = {one.name: one for one in data.pieces}.values()
    short = any(one.covariates is not None and len(one.covariates) < len(one) + settings.horizon for one in last)
    return f" --data.future FILE, with {', '.join(settings.covariates)} of the next {settings.horizon} rows" * short


def backtest(task: ForecastTask, config: ForecastConfig[Any]) -> list[dict[str, Any]]:
    """Errors of models that were fitted to more and more rows, each on the rows that follow."""
    data, _, windows, settings = task.known
    model = config.model if isinstance(config.model, ClosedModel) else ClosedModel()
    found = []
    for one, origins, rows in rolling(task, model, [len(piece) for piece in data.pieces], config.backtest):
        methods = {"model": model_method(one.model), "last value": last_value(settings.horizon)}
        errors, _ = score(methods, windows, origins, task.length, settings.horizon, task.scale)
        scores = {f"{name}_mse".replace(" ", "_"): error.mse for name, error in errors.items()}
        found.append({"rows": rows, "windows": len(origins), **scores})
    return found
