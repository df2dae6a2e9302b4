"""Anomalies of series: the model scores each sample before it learns from it."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from plmu.nn.anomalies import AnomalyScore
from plmu.nn.continued import Continued
from plmu.runs.anomalies import samples_of_gap
from plmu.runtime.stream import Stream
from plmu.timeseries.anomaly_scores import Agreement, Scored, held, run, truth_of
from plmu.timeseries.anomaly_series import Learned, Recording, Settings, Watched, read
from plmu.timeseries.base import Estimator
from plmu.timeseries.forecast_tables import long_table, time_column
from plmu.timeseries.long_frames import library_of
from plmu.timeseries.season import period
from plmu.timeseries.series import Numbers

_log = logging.getLogger("plmu")


class AnomalyDetector(Estimator):
    """Detects anomalies, one sample after another, without labels.

    Each sample is scored before it is learned from, so that the scores of recorded data are those that a stream would
    have had. A score is a probability: the share of normal samples that are less unusual. An alarm is a score above
    1 − `threshold`. The reason comes with it: the channel, its value, and the interval in which it was expected.

    >>> detector = plmu.AnomalyDetector().fit("machine.csv")
    >>> detector.detect()  # a row for each step: time, score, alarm, channel, value, expected, lower, upper
    >>> detector.detect("later.csv")  # goes on from what was learned
    >>> stream = detector.stream()
    >>> score = stream.push([71.3])[0]
    >>> plmu.save(detector.model, "detector.plmu")  # with what was learned

    Names are those of PyOD: `predict` is 1 for an anomaly and 0 for a normal sample, `decision_function` is larger for
    anomalies.

    Args:
        threshold: the share of normal samples that alarm, such as 0.001 for about one in 1,000.
        season: the seasonal period in steps, such as 288 for a day of rows every five minutes; 0 for none; by default
            detected.
        half_life: steps after which errors of the forecast count half; by default that of `plmu.nn.AnomalyScore`.
        level: the share of values that the expected interval is to contain. It is the reason that is shown; alarms do
            not depend on it.

    Attributes:
        season_: the seasonal period.
        notes_: what was done with gaps, duplicates and odd dates, and which season was detected.
    """

    model_: Continued
    settings_: Settings

    def __init__(
        self,
        *,
        threshold: float = 0.001,
        season: int | None = None,
        half_life: float | None = None,
        level: float = 0.99,
    ) -> None:
        self.threshold = threshold
        self.season = season
        self.half_life = half_life
        self.level = level

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        id: str | None = None,
        time: str | None = None,
        values: Sequence[str] | None = None,
        label: str | None = None,
        **options: Any,
    ) -> Self:
        """Learn from one series or several, each on its own, in the order of time.

        >>> detector.fit(frame, id="machine", values=["temperature"])

        Args:
            X: (time,) or (time, channels), where NaN is a missing value; a data frame, or the path of a CSV, Parquet,
                NumPy, JSON or Excel file, both read as `plmu train anomalies` reads a file; what
                `plmu.timeseries.read_series` returns; or a list of arrays or frames, each a series.
            y: not used; for scikit-learn.
            id: for files and frames, the column that names the series of a row. By default detected.
            time: for the same, the column of times. By default detected.
            values: for the same, the columns to watch. By default all columns of numbers that vary.
            label: for the same, the column that is 1 at anomalies, for `evaluate` alone. By default a column of 0 and 1
                that is called label, anomaly, is_anomaly, outlier or is_outlier.
            options: for the same, how they are read, as `plmu train anomalies --help` describes them: `step`,
                `longest_gap`, `irregular`, `duplicates`, `bad`, `absent`, `day_first`, `header`.

        Returns:
            This estimator.

        Raises:
            ValueError: an argument is wrong, or X has infinite values or another shape.
            DataError: the file is missing or wrong, or the frame is.
        """
        self._check_arguments()
        named = {"id": id, "time": time, "values": values}
        options |= {name: value for name, value in named.items() if value is not None}
        recording = read(X, label=label, **options)
        return self.fit_recording(recording, {name: options[name] for name in options.keys() - named.keys()})

    def fit_recording(self, recording: Recording, options: dict[str, Any] | None = None) -> Self:
        """The second half of `fit`, for series that were read.

        Args:
            recording: the series.
            options: for reading other files alike.
        """
        data, columns = recording.data, recording.data.columns
        season = period([held(piece.values) for piece in data.pieces]) if self.season is None else int(self.season)
        self.season_ = season
        self.settings_ = Settings(
            columns.time,
            columns.values,
            columns.id,
            data.clock,
            season,
            float(self.threshold),
            recording.label,
        )
        detected = f"a season of {season} steps" if season else "no season"
        options = {} if self.half_life is None else {"half_life": float(self.half_life)}
        layer = AnomalyScore(len(columns.values), season=season, level=self.level, **options)
        series = recording.watched(season)
        results = run(layer, [part.values for part in series], [None] * len(series))
        self._scored = [self._of_rows(part, out) for part, (out, _) in zip(series, results, strict=True)]
        self._recording, self._options, self._layer = recording, options or {}, layer
        self._learned = {
            part.name: Learned(len(part.values), part.following, part.digest(len(part.values)), state)
            for part, (_, state) in zip(series, results, strict=True)
        }
        self.model_ = self._continued(next(iter(self._learned)) if len(series) == 1 else None)
        self.feature_names_in_ = np.array(columns.values, dtype=object)
        self.n_features_in_ = len(columns.values)
        self.notes_ = [*data.notes, f"model: {detected}"]
        for note in self.notes_:
            _log.info(note)
        return self

    @property
    def model(self) -> Continued:
        """The fitted model: one sample in, flat numbers out: its score, then of each channel the score, the expected
        value, and the lower and the upper end of the interval. Its sequences go on from what was learned; after `fit`
        to several series, from nothing."""
        self._check_fitted()
        return self.model_

    def detect(self, X: Any = None) -> Any:
        """The score and its reason, for each step.

        Args:
            X: as in `fit`. A series goes on from what was learned of it, or, if the detector was fitted to a single
                series, from that; unknown ones begin anew. Rows that were learned, at the beginning of X, are scored as
                they were then. By default the series of `fit`.

        Returns:
            A data frame, of polars or like X: the name of the series, if there are several; the time or the row;
            "score", "alarm", and of the channel with the highest score its name, "channel", and "value", "expected",
            "lower" and "upper". Missing values are NaN.

        Raises:
            ValueError: X has other channels, or infinite values.
            DataError: the file is missing or wrong, or the frame is.
        """
        recording, scored = self._scores(X)
        return self.table(recording, scored)

    def table(self, recording: Recording, scored: Sequence[Scored]) -> Any:
        """The frame that `detect` returns, of series that were scored.

        Args:
            recording: the series.
            scored: their scores.
        """
        settings = self.settings_
        rows = [(piece, piece.start + np.arange(len(piece))) for series in scored for piece in series.series.pieces]
        reasons = np.concatenate([series.reasons for series in scored])
        names = np.array(settings.values, dtype=object)
        columns = {
            "score": np.concatenate([series.score for series in scored]),
            "alarm": np.concatenate([series.alarm for series in scored]),
            "channel": names[np.concatenate([series.channel for series in scored])],
            **dict(zip(("value", "expected", "lower", "upper"), reasons.T.copy(), strict=True)),
        }
        return long_table(settings, {time_column(settings): rows}, columns, recording.data.frame, recording.form)

    def decision_function(self, X: Any = None) -> Any:
        """The score of each step, from 0 to 1, larger for anomalies.

        Args:
            X: as in `detect`.

        Returns:
            (steps,), in the order of `detect`; of a list a list of these. An array without times has as many steps as
            rows.
        """
        return self._of_steps(X, lambda series: series.score)

    def predict(self, X: Any = None) -> Any:
        """1 for each step with an alarm, 0 for the others.

        Args:
            X: as in `detect`.

        Returns:
            As `decision_function`, of integers.
        """
        return self._of_steps(X, lambda series: series.alarm.astype(np.int64))

    def evaluate(self, X: Any = None, y: Any = None) -> dict[str, float]:
        """How many alarms there are, and with labels how they agree with these.

        Args:
            X: as in `detect`.
            y: whether each step is an anomaly, (steps,), or a list of these. Files and frames may have a column of
                labels instead (`label`).

        Returns:
            "steps" that have a score, "alarms", "alarm_rate" (their share) and "stretches" of alarms. With labels also
            "precision", the share of alarms that are in labelled stretches; "recall", the share of labelled stretches
            that have an alarm; and "false_alarms", for each 1,000 steps without a label. NaN where there is nothing to
            divide by.

        Raises:
            ValueError: y has another length.
        """
        recording, scored = self._scores(X)
        return scores_of(scored, self._truth(recording, scored, y))

    def _truth(self, recording: Recording, scored: Sequence[Scored], y: Any) -> list[NDArray[np.bool_]] | None:
        if y is None:
            return None if recording.labels is None else truth_of(scored, recording.labels)
        listed = list(y) if recording.several else [y]
        truth = [np.asarray(labels).astype(bool) for labels in listed]
        shapes, expected = [labels.shape for labels in truth], [series.score.shape for series in scored]
        if shapes != expected:
            raise ValueError(f"y must have a label for each step, of the shapes {expected}, got {shapes}")
        return truth

    def plot(self, path: str | Path, X: Any = None) -> None:
        """Draw the series with their expected intervals, and mark alarms.

        Args:
            path: of the image, such as "anomalies.png".
            X: as in `detect`.
        """
        from plmu.timeseries.anomaly_plots import plot_anomalies

        recording, scored = self._scores(X)
        plot_anomalies(Path(path), self.settings_, scored, recording.labels)

    def stream(self, series: str | None = None) -> Stream:
        """A stream that goes on after the last row of a series: push a sample (channels,), get the numbers of `model`.

        Args:
            series: its name, where the detector was fitted to several.
        """
        self._check_fitted()
        if series is None and len(self._learned) == 1:
            return Stream(self.model_)
        if series not in self._learned:
            names = ", ".join(map(repr, list(self._learned)[:8]))
            raise ValueError(f"series must be one of those of fit, {names}; got {series!r}")
        return Stream(self._continued(series))

    @classmethod
    def from_run(cls, folder: str | Path) -> AnomalyDetector:
        """The detector of a run of `plmu train anomalies`. The series of `fit` are not in the run: give them as X.

        >>> plmu.AnomalyDetector.from_run("runs/anomalies-machine-seed0").detect("machine.csv")

        Args:
            folder: of the run.

        Raises:
            RunError: a file is missing or damaged.
        """
        from plmu.timeseries.anomaly_files import read_run

        settings, model, learned = read_run(Path(folder))
        detector = cls(threshold=settings.threshold, season=settings.season)
        detector.settings_, detector.season_ = settings, settings.season
        detector.model_, detector._learned, detector._options = model, learned, {}
        layer = model.module
        assert isinstance(layer, AnomalyScore)
        detector._layer, detector.half_life, detector.level = layer, layer.half_life, layer.level
        detector.n_features_in_ = len(settings.values)
        return detector

    @property
    def learned_(self) -> dict[str, Learned]:
        """What was learned, by the name of the series."""
        self._check_fitted()
        return self._learned

    @property
    def scored_(self) -> list[Scored]:
        """The scores of the series of `fit`."""
        return self._scores(None)[1]

    def scored(self, recording: Recording) -> list[Scored]:
        """The scores of series that were read.

        Args:
            recording: the series.
        """
        self._check_fitted()
        clock, season = self.settings_.clock, self.settings_.season
        series, begins = recording.watched(season), []
        for part in series:
            learned = next(iter(self._learned.values())) if len(self._learned) == 1 else self._learned.get(part.name)
            if learned is None or (
                len(part.values) >= learned.samples and part.digest(learned.samples) == learned.digest
            ):
                begins.append((0, None))
                continue
            apart = 0 if clock.kind == "rows" else int(part.steps[0]) - learned.following
            if apart < 0:
                recording.data.notes.append(
                    f"{f'series {part.name!r}' if part.name else 'the series'} begins before the last row that the"
                    " detector has learned from: it is scored by what was learned until then"
                )
            begins.append((samples_of_gap(apart, season), learned.state))
        gaps = [np.full((count, part.values.shape[1]), np.nan) for part, (count, _) in zip(series, begins, strict=True)]
        samples = [np.concatenate([gap, part.values]) for gap, part in zip(gaps, series, strict=True)]
        results = run(self._layer, samples, [state for _, state in begins])
        outputs = [out[len(gap) :] for (out, _), gap in zip(results, gaps, strict=True)]
        return [self._of_rows(part, out) for part, out in zip(series, outputs, strict=True)]

    def _scores(self, X: Any) -> tuple[Recording, list[Scored]]:
        """Series and their scores; by default those of the fit."""
        self._check_fitted()
        if X is None:
            if "_scored" not in vars(self):
                raise ValueError("X must be given: this estimator is of a run's folder, which has no series")
            return self._recording, self._scored
        options = self._options if isinstance(X, str | os.PathLike) or library_of(X) is not None else {}
        recording = read(X, self.settings_.like, self.settings_.label, **options)
        scored = self.scored(recording)
        for note in recording.data.notes:
            _log.info(note)
        return recording, scored

    def _of_rows(self, series: Watched, out: Numbers) -> Scored:
        return Scored(series, out[series.rows], self.settings_.threshold)

    def _of_steps(self, X: Any, part: Any) -> Any:
        recording, scored = self._scores(X)
        arrays = [part(series) for series in scored]
        return arrays if recording.several else np.concatenate(arrays)

    def _continued(self, name: str | None) -> Continued:
        """A model whose sequences go on after a series, or with None begin anew."""
        model = Continued(self._layer)
        if name is None:
            fresh = self._layer.initial_state(1, torch.float64, torch.device("cpu"))
            return model.continue_from(fresh).eval()
        learned = self._learned[name]
        return model.continue_from(learned.state, learned.following).eval()

    def _check_arguments(self) -> None:
        threshold, season, half_life = self.threshold, self.season, self.half_life
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold < 1:
            raise ValueError(f"threshold must be a share between 0 and 1, such as 0.001, got {threshold!r}")
        integer = isinstance(season, int | np.integer) and not isinstance(season, bool)
        if season is not None and not (integer and season >= 0):
            raise ValueError(f"season must be an integer of at least 0, got {season!r}")
        if half_life is not None and not (math.isfinite(half_life) and half_life >= 1):
            raise ValueError(f"half_life must be a number of steps of at least 1, got {half_life!r}")
        if isinstance(self.level, bool) or not isinstance(self.level, int | float) or not 0 < self.level < 1:
            raise ValueError(f"level must be a share between 0 and 1, such as 0.99, got {self.level!r}")


def scores_of(scored: Sequence[Scored], truth: Sequence[NDArray[np.bool_]] | None) -> dict[str, float]:
    """What `AnomalyDetector.evaluate` returns, of series and the labels of their steps."""
    steps = sum(int((~np.isnan(series.score)).sum()) for series in scored)
    alarms = sum(int(series.alarm.sum()) for series in scored)
    stretches = sum(len(series.stretches()) for series in scored)
    results = {"steps": steps, "alarms": alarms, "alarm_rate": alarms / max(steps, 1), "stretches": stretches}
    if truth is None:
        return results
    agreement = Agreement.of(scored, truth)
    return results | {
        "precision": agreement.precision,
        "recall": agreement.recall,
        "false_alarms": agreement.false_alarms,
    }
