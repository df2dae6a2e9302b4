"""Forecasts of series of your own (--data.file): the next steps of each column, from the Delay Network's state over a
look-back window, fitted in closed form in seconds.

Models: `closed` is fitted by ridge regression. `gradient` starts from it and is trained further. `lstm` is the
baseline. Settings that you do not give are chosen on the validation rows, which come before the test rows.

Several series may be forecast by readouts that all series share (--model.pooled). A single one is forecast by the
memory of one of several look-backs, or by a mean of linear maps, classical forecasts and such readouts.

Scores: errors over every window of the test rows, in units of each column's standard deviation in the training rows,
beside the baselines last value, seasonal last value, a linear map of the same window and Theta; with several series
MASE and sMAPE; and how often the measured value was in the prediction interval. The run's folder has plots of them.

Covariates (--data.covariates) are columns that are known ahead. Their effect is fitted, too, and used where it helps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from plmu.errors import DataError, RunError
from plmu.nn.forecast import LookbackForecast
from plmu.nn.pooled import PooledForecast
from plmu.runs.experiment import Config, Experiment, Predictions
from plmu.runs.folder import SERIES_FILE
from plmu.runs.intervals import Intervals as StoredIntervals
from plmu.runs.learning import write_sums
from plmu.timeseries import forecast_files, series
from plmu.timeseries.choosing import VALIDATED, standard_deviation
from plmu.timeseries.forecast_models import (
    LSTM_TRAINING,
    ClosedModel,
    GradientModel,
    LSTMModel,
    WindowLSTM,
    equal_size,
)
from plmu.timeseries.forecast_predictions import predict
from plmu.timeseries.forecaster import Forecaster
from plmu.timeseries.intervals import Intervals, unseen_errors
from plmu.timeseries.learning_stream import learning_model
from plmu.timeseries.public_holidays import country_of
from plmu.timeseries.saved_forecasts import named, read_tested, score_other_file
from plmu.timeseries.scores import Scores, baselines, model_method, score
from plmu.timeseries.series import SeriesConfig
from plmu.timeseries.split import NO_VALIDATION, Split, is_several_or_short, what_was_done
from plmu.timeseries.windows import Method
from plmu.training.config import TrainingConfig
from plmu.training.loop import Trainer
from plmu.training.processes import ALONE, Processes
from plmu.training.task import Batch, Task

METRIC = "mse"
HORIZON = 24
TRAINED = 50_000  # windows that are trained on by gradients
ModelConfig = TypeVar("ModelConfig")


@dataclass
class ForecastConfig(Config[ModelConfig]):
    """Forecasts of series of your own."""

    data: SeriesConfig = field(default_factory=SeriesConfig)
    horizon: tuple[int, ...] = ()
    """Steps ahead. Of several the model forecasts the largest, and each has a score. Default: 24, or fewer."""
    intervals: tuple[float, ...] = (0.8, 0.95)
    """Levels of the prediction intervals."""
    backtest: int = 0
    """Rolling backtest: fit so many times, each time on more rows, and test on those that follow."""
    lstm: bool = False
    """Also train an LSTM of equal size, for the table. Takes minutes rather than seconds."""
    refit: bool = False
    """After the test, fit the model that is saved on all rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(steps < 1 for steps in self.horizon):
            raise ValueError(f"horizon must be at least 1, got {', '.join(map(str, self.horizon))}")
        if not all(0 < level < 1 for level in self.intervals):
            raise ValueError(f"intervals must lie between 0 and 1, got {', '.join(map(str, self.intervals))}")
        if self.refit and type(self.model) is not ClosedModel:
            raise ValueError("refit is for --model closed: the other models are saved as they were tested")
        if not 0 <= self.backtest <= 100:
            raise ValueError(f"backtest must be between 0 and 100, got {self.backtest}")


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
        options, training = choices[self.check(model)]
        return ForecastConfig(options, training)

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config, ForecastConfig)
        return prepare(config)

    def shared_task(self, config: Config[Any], processes: Processes) -> Task:
        assert isinstance(config, ForecastConfig)
        return prepare(config, processes if type(config.model) is ClosedModel else ALONE)

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, ForecastTask)
        return lstm_of(task.split, config.model) if isinstance(config.model, LSTMModel) else task.fitted.model

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, ForecastTask)
        return {SERIES_FILE: json.dumps(task.split.settings.described(), indent=1, ensure_ascii=False) + "\n"}

    def complete(self, config: Config[Any], task: Task) -> None:
        assert isinstance(task, ForecastTask)
        assert isinstance(config, ForecastConfig)
        if config.backtest:
            _ = task.backtest
        if config.refit:
            _ = task.refitted

    def write_more(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> list[str]:
        assert isinstance(task, ForecastTask)
        assert isinstance(config, ForecastConfig)
        if task.tested is None:  # of a finished run that has lost its model
            task.scores(network, task.test)
        assert task.tested is not None
        scores, intervals = task.tested
        split, settings = task.split, task.split.settings
        folds = task.backtest if config.backtest else []
        lines = forecast_files.write_report(folder, split, scores, intervals, folds, config.horizon)
        forecast_files.plot_forecasts(folder / forecast_files.FORECASTS, split, network, intervals)
        if not isinstance(network, LookbackForecast | PooledForecast):
            return lines
        lines += forecast_files.model_summary(task.fitted.validation_)
        lines += forecast_files.season_summary(task.fitted.validation_)
        lines += forecast_files.bound_summary(settings.values, network)
        if settings.covariates:
            lines.append(forecast_files.covariates_summary(settings.covariates, task.fitted.validation_))
        final = network
        if config.refit:
            final = task.refitted.model
            lines.append("the saved model is fitted to all rows, test rows included")
        forecast_files.write_model(folder, split, final, intervals)
        write_sums(folder, learning_model(final, split, intervals, task.fitted.validation_))
        return [*lines, f"next: plmu predict {folder} {config.data.file}{_future(split)}"]

    def saved_model(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> nn.Module:
        assert isinstance(task, ForecastTask)
        assert isinstance(config, ForecastConfig)
        if isinstance(config.model, LSTMModel):  # which is in the checkpoints alone
            return network
        model, task.stored = read_tested(folder, task.split, config.refit)
        return model

    def score_other_data(self, folder: Path, config: Config[Any]) -> tuple[dict[str, float], list[str]]:
        assert isinstance(config, ForecastConfig)
        _check_saved(folder, config)
        return score_other_file(folder, config.data, config.horizon)

    def predict(
        self, folder: Path, config: Config[Any], file: Path, future: Path | None = None, horizon: int | None = None
    ) -> Predictions:
        assert isinstance(config.data, SeriesConfig)
        _check_saved(folder, config)
        return predict(folder, config.data, file, future, horizon)


def _check_saved(folder: Path, config: Config[Any]) -> None:
    if isinstance(config.model, LSTMModel):
        raise RunError(f"{folder} is a baseline, whose model is not saved: train --model closed or gradient")


@dataclass
class ForecastTask(Task):
    """The series and the estimator of a run, as the training loop sees them: a batch is the origins of windows."""

    unfitted: Forecaster = field(default_factory=Forecaster)
    split: Split = None  # type: ignore[assignment]
    config: ForecastConfig[Any] = None  # type: ignore[assignment]
    tested: tuple[Scores, StoredIntervals] | None = None
    stored: StoredIntervals | None = None  # of a saved model

    @cached_property
    def fitted(self) -> Forecaster:
        """The estimator, fitted to the rows before the test rows."""
        return self.unfitted.fit_split(self.split)

    @cached_property
    def backtest(self) -> list[dict[str, float]]:
        """The scores of fits to more and more rows."""
        return self.fitted.backtest(folds=self.config.backtest)

    @cached_property
    def refitted(self) -> Forecaster:
        """The estimator with the same settings, fitted to all rows."""
        settings, model = self.split.settings, self.fitted.model
        options = self.unfitted.get_params() | {"season": settings.season, "validation": VALIDATED, "test": 0.0}
        if isinstance(model, PooledForecast):
            several = is_several_or_short(self.split.data)
            return Forecaster(**options | ({"pooled": True} if several else {})).fit(self.split.data)
        options |= {"lookback": model.lookback, "order": model.order, "theta": model.config["theta"], "refit": True}
        return Forecaster(**options).fit(self.split.data)

    @cached_property
    def baselines(self) -> dict[str, Method]:
        """Those of the estimator, and an LSTM if asked for."""
        methods = baselines(self.split) if isinstance(self.config.model, LSTMModel) else self.fitted.fitted_.baselines
        if self.config.lstm:
            methods = {**methods, "LSTM": model_method(trained_lstm(self))}
        return methods

    def intervals(self, model: nn.Module) -> StoredIntervals:
        if self.stored is not None:
            return self.stored
        if type(self.config.model) is ClosedModel:
            return self.fitted.fitted_.intervals(self.config.intervals)
        closed = model if isinstance(model, LookbackForecast) else None
        intervals = Intervals.of(self.split, self.config.intervals, closed)
        if not intervals.levels:
            return intervals
        method = model_method(model)
        folds = self.fitted.fitted_.folds if closed is not None else None
        unseen = unseen_errors(self.split, method, folds, intervals)
        return intervals.fitted(unseen.errors, unseen.share)

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Errors over the windows of a split: on the test rows beside those of the baselines, on the validation rows
        those of the model that has not seen them."""
        split, origins = self.split, batch[0].cpu()
        if not len(origins):  # there are no validation rows
            return {}
        tested = torch.equal(origins, self.test[0])
        if not tested and type(self.config.model) is ClosedModel:
            model = self.fitted.fitted_.unrefitted
        methods = {"model": model_method(model), **(self.baselines if tested else {})}
        intervals = self.intervals(model) if tested else None
        scores = score(methods, split, origins, intervals)
        if intervals is not None:
            self.tested = scores, intervals
        return named(scores, self.config.horizon)

    def mean_squared_error(self, model: nn.Module, batch: Batch) -> Tensor:
        """Of the batch's windows, in units of the columns' standard deviations."""
        split = self.split
        examples = split.windows.take(batch[0].cpu(), split.length, split.horizon)
        error = (model_method(model)(examples) - examples.future) / split.scale[:, None]
        if examples.measured is not None:
            error = torch.where(examples.measured, error, 0.0)
        return error.square().mean()


def forecaster_of(config: ForecastConfig[Any], horizon: int, covariates: tuple[str, ...]) -> Forecaster:
    """The estimator with the options of a configuration."""
    model = config.model
    closed = model if isinstance(model, ClosedModel) else ClosedModel(lookback=model.lookback, season=model.season)
    options = {**vars(closed), "calendar": None if closed.calendar else "none"}
    if type(model) is not ClosedModel:  # which are trained on windows of one length
        options["pooled"] = False
    return Forecaster(horizon, **options, validation=config.data.valid, covariates=covariates, test=config.data.test)


def prepare(config: ForecastConfig[Any], processes: Processes = ALONE) -> ForecastTask:
    """Read the data, split it, and find the settings that the configuration leaves open. Several processes share the
    reading, the fit and the test."""
    data = series.load(config.data, processes=processes)
    horizon = max(config.horizon, default=min(HORIZON, max(1, max(map(len, data.pieces)) // 10)))
    forecaster = forecaster_of(config, horizon, data.columns.covariates)
    try:
        split = forecaster.split(data)
    except ValueError as error:
        raise DataError(f"--model.{error}") from None
    summary = split.summary(calendar=isinstance(config.model, ClosedModel) and config.model.calendar)
    unchosen = {} if any(begin < end for begin, end in split.cuts) else {"validation": NO_VALIDATION}
    nothing = (torch.zeros(0, dtype=torch.long),)
    task = ForecastTask(
        nothing,
        nothing,
        nothing,
        loss=lambda model, batch: task.mean_squared_error(model, batch),
        metric=METRIC,
        higher_is_better=False,
        score=lambda model, batch: task.scores(model, batch),
        notes={"data": f"own data: {data.rows:,} rows", "settings": summary, **unchosen},
        messages=[*data.notes, *split.notes, summary],
        unfitted=forecaster,
        split=split,
        config=config,
    )
    task.train = (split.origins("train", TRAINED),)
    task.valid, task.test = (split.scored("valid"),), (split.scored("test"),)
    for kind, (origins,), share in (("test", task.test, config.data.test), ("valid", task.valid, config.data.valid)):
        if not len(origins) and not (split.settings.window and kind == "valid"):
            raise DataError(
                f"{config.data.file}: the {kind} rows, {100 * share:g} % of {data.rows:,}, hold no window of"
                f" {split.settings.least} steps and its horizon of {horizon}: give more rows, a smaller --horizon or"
                f" a larger --data.{kind}{what_was_done(data)}"
            )
    return task


def lstm_of(split: Split, model: LSTMModel) -> WindowLSTM:
    """Untrained; by default with as many parameters as our model."""
    settings, scale = split.settings, None
    count = len(settings.covariates)
    if count:
        pairs = zip(split.data.pieces, split.cuts, strict=True)
        past = [piece.covariates[:end] for piece, (end, _) in pairs if piece.covariates is not None]
        scale = torch.tensor(standard_deviation(np.concatenate(past)), dtype=torch.float32)
    hidden = model.hidden or equal_size(settings.horizon * settings.order, settings.horizon, count)
    return WindowLSTM(hidden, settings.horizon, settings.lookback, scale)


def trained_lstm(task: ForecastTask) -> nn.Module:
    """The LSTM of `--model lstm`, trained as there, on one CPU process."""
    torch.manual_seed(task.config.seed)
    split = task.split

    def mse(model: nn.Module, batch: Batch) -> dict[str, float]:
        return {METRIC: score({"model": model_method(model)}, split, batch[0]).errors["model"].mse}

    # The test rows are for `scores`: here the validation rows stand for them.
    plain = Task(task.train, task.valid, task.valid, task.loss, METRIC, higher_is_better=False, score=mse)
    network = lstm_of(split, LSTMModel())
    training = replace(LSTM_TRAINING)
    with torch.enable_grad():
        Trainer(plain, network, training, ALONE, task.config.seed).run()
    return network.eval()


def _future(split: Split) -> str:
    """What else `plmu predict` needs to forecast the steps after the last rows."""
    settings = split.settings
    last = {piece.name: piece for piece in split.data.pieces}.values()
    ahead = [piece.covariates[len(piece) :][: settings.horizon] for piece in last if piece.covariates is not None]
    short = any(len(rows) < settings.horizon or np.isnan(rows).any() for rows in ahead)
    names = [name for name in settings.covariates if country_of((name,)) is None]
    return f" --data.future FILE, with {', '.join(names)} of the next {settings.horizon} rows" * short
