"""Anomalies in series of your own (--data.file), without labels: each sample is scored before it is learned from, so
that the scores of recorded data are those that a stream would have had.

A score is a probability: the share of normal samples that are less unusual. An alarm is a score above 1 − threshold.
Its reason is the column, the value, and the interval in which it was expected.

Model: `online` is `plmu.AnomalyDetector`. It learns all the time, and its streams go on after the last row of the file.

Score: the share of the samples that are alarms. If the file has a column of labels (--data.label), precision and recall
are reported, too; nothing is fitted to it. The run's folder has a list of the alarms, and a plot that marks them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from plmu.errors import RunError
from plmu.runs.experiment import Config, Experiment, Predictions
from plmu.runs.fields import Checked
from plmu.runs.folder import SERIES_FILE
from plmu.timeseries import anomaly_files
from plmu.timeseries.anomaly_detector import AnomalyDetector, scores_of
from plmu.timeseries.anomaly_plots import plot_anomalies
from plmu.timeseries.anomaly_scores import Scored, truth_of
from plmu.timeseries.anomaly_series import AnomalyConfig, Recording, load
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Task

METRIC = "alarm_rate"
ModelConfig = TypeVar("ModelConfig")


@dataclass
class OnlineModel(Checked):
    """How the detector learns."""

    season: int | None = None
    """Seasonal period in steps, such as 288 for a day of rows every five minutes; 0 for none. Default: detected."""
    half_life: float | None = None
    """Steps after which errors of the forecast count half. Default: that of plmu.nn.AnomalyScore."""
    level: float = 0.99
    """Share of values that the expected interval is to contain; alarms do not depend on it."""


@dataclass
class AnomaliesConfig(Config[ModelConfig]):
    """Anomalies in series of your own."""

    data: AnomalyConfig = field(default_factory=AnomalyConfig)
    threshold: float = 0.001
    """Share of normal samples that alarm: 0.001 for about one in 1,000."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must be a share between 0 and 1, such as 0.001, got {self.threshold}")


@dataclass
class AnomaliesTask(Task):
    """The series of a run and the detector that has learned from them."""

    recording: Recording = field(kw_only=True)
    detector: AnomalyDetector = field(kw_only=True)
    series: list[Scored] = field(kw_only=True)

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """The share of alarms; with labels also precision and recall, where there is something to divide by."""
        return result_of(self.series, self.recording)


class Anomalies(Experiment):
    name = "anomalies"
    metric = METRIC
    own_data = True
    paper: ClassVar[dict[str, float]] = {}
    percent = True
    models = ("online",)
    streamable = ("online",)

    def closed_form(self, model: str) -> bool:
        return True

    def run_name(self, model: str, config: Config[Any]) -> str:
        return self.name_of_file(model, config.data.file if isinstance(config.data, AnomalyConfig) else None)

    def defaults(self, model: str) -> Config[Any]:
        self.check(model)
        return AnomaliesConfig(OnlineModel(), TrainingConfig(epochs=1))

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config, AnomaliesConfig)
        recording = load(config.data)
        detector = AnomalyDetector(threshold=config.threshold, **vars(config.model)).fit_recording(recording)
        scored = detector.scored_
        steps = (torch.arange(sum(len(part.score) for part in scored)),)
        task = AnomaliesTask(
            steps,
            steps,
            steps,
            loss=lambda model, batch: torch.zeros(()),
            metric=METRIC,
            higher_is_better=False,
            score=lambda model, batch: task.scores(model, batch),
            notes={"data": f"own data: {recording.data.rows:,} rows"},
            messages=detector.notes_,
            recording=recording,
            detector=detector,
            series=scored,
        )
        return task

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, AnomaliesTask)
        return task.detector.model

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, AnomaliesTask)
        return {SERIES_FILE: anomaly_files.series_json(task.detector)}

    def write_more(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> list[str]:
        assert isinstance(task, AnomaliesTask)
        assert isinstance(config.data, AnomalyConfig)
        recording, settings = task.recording, task.detector.settings_
        scores = scores_of(task.series, _truth(task.series, recording))
        lines = anomaly_files.write_report(folder, settings, task.series, scores, recording.label)
        notes = plot_anomalies(folder / anomaly_files.PLOT, settings, task.series, recording.labels)
        anomaly_files.write_model(folder, task.detector, recording.data.columns.names)
        wrote = f"wrote {anomaly_files.PLOT} and {anomaly_files.REPORT} to {folder}"
        return [*lines, *notes, wrote, f"next: plmu predict {folder} {config.data.file}"]

    def score_other_data(self, folder: Path, config: Config[Any]) -> tuple[dict[str, float], list[str]]:
        assert isinstance(config.data, AnomalyConfig)
        _, recording, scored = _of_file(folder, config.data)
        return result_of(scored, recording), recording.data.notes

    def predict(
        self, folder: Path, config: Config[Any], file: Path, future: Path | None = None, horizon: int | None = None
    ) -> Predictions:
        for option, value in (("--data.future", future), ("--horizon", horizon)):
            if value is not None:
                raise RunError(f"{option} is for forecasts, and {folder} is a run of anomalies")
        assert isinstance(config.data, AnomalyConfig)
        detector, recording, scored = _of_file(folder, replace(config.data, file=file))
        scores = scores_of(scored, _truth(scored, recording))
        recording.data.notes.append(anomaly_files.summary(detector.settings_, scores))
        if recording.label is not None:
            recording.data.notes.append(anomaly_files.agreement(scores, recording.label))
        draw = partial(plot_anomalies, settings=detector.settings_, scored=scored, labels=recording.labels)
        return anomaly_files.predictions(detector, recording, scored, draw)


def _of_file(folder: Path, config: AnomalyConfig) -> tuple[AnomalyDetector, Recording, list[Scored]]:
    """The detector of a run, and the series of a file with their scores."""
    detector = AnomalyDetector.from_run(folder)
    recording = load(config, detector.settings_.like, optional=detector.settings_.label)
    return detector, recording, detector.scored(recording)


def _truth(scored: list[Scored], recording: Recording) -> Any:
    return None if recording.labels is None else truth_of(scored, recording.labels)


def result_of(scored: list[Scored], recording: Recording) -> dict[str, float]:
    """The scores of a result: the share of alarms, and with labels precision and recall. A share without anything to
    divide by counts as 0."""
    scores = scores_of(scored, _truth(scored, recording))
    names = (METRIC, *(("precision", "recall") if recording.labels is not None else ()))
    return {name: scores[name] if scores[name] == scores[name] else 0.0 for name in names}
