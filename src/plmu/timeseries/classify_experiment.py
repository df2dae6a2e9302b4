"""Classify your own series (--data.file), of equal or unequal length, with one or many channels.

Models: `closed` is `plmu.SequenceClassifier`, fitted in closed form in seconds: a ridge regression on how often, and
where in a series, random projections of Delay Networks' states exceed thresholds. `gradient` trains its readout further
by gradients.

Score: the fraction of test series that are classified correctly, beside that of the most frequent class. The run's
folder has precision, recall and F1 of each class, and a plot of the confusion matrix.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from plmu.errors import DataError, RunError
from plmu.nn import Sequential
from plmu.runs.experiment import Config, Experiment, Predictions
from plmu.runs.fields import Checked
from plmu.runs.folder import SERIES_FILE, write_json
from plmu.timeseries import classify_files, labelled_files
from plmu.timeseries.classification_report import BASELINE, ClassificationReport, score_lines, untrained_note
from plmu.timeseries.classifier import SequenceClassifier
from plmu.timeseries.labelled import LabelledConfig, LabelledData, stratified
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Group, Task

VALIDATION = 0.2  # fraction of the training series that choose the epoch
NORMALIZE: dict[str, Any] = {"auto": "auto", "series": True, "none": False, "both": "both"}
REPORT, PLOT = "classify.json", "confusion.png"

ModelConfig = TypeVar("ModelConfig")


@dataclass
class ClosedModel(Checked):
    """The memories, their projections and the readout."""

    order: int = 9
    """Legendre coefficients of each memory."""
    windows: tuple[float, ...] | None = None
    """θ of the memories in steps. Default: 9, 18, 36 … up to the length of the longest series."""
    projections: int = 32
    """Random projections of each memory's state."""
    thresholds: int = 6
    """Thresholds of each projection."""
    normalize: Literal["auto", "series", "none", "both"] = "auto"
    """Each series scaled to mean 0 and standard deviation 1 (series), as it is (none), both, or the best of these by
    leave-one-out errors (auto)."""

    def classifier(self, seed: int) -> SequenceClassifier:
        """The estimator with these parameters."""
        return SequenceClassifier(**{**vars(self), "normalize": NORMALIZE[self.normalize]}, random_state=seed)


@dataclass
class GradientModel(ClosedModel):
    """The closed form, with a readout that is trained further by gradients."""


@dataclass
class ClassifyConfig(Config[ModelConfig]):
    """Classify your own series."""

    data: LabelledConfig = field(default_factory=LabelledConfig)


@dataclass
class ClassifyTask(Task):
    """Labelled series and the classifier that is fitted to them. Batches are indices of series."""

    data: LabelledData = field(kw_only=True)  # the training series, then those to test on
    classes: tuple[str, ...] = ()  # of the training series
    untrained: tuple[str, ...] = ()  # the other classes of the test series
    targets: Tensor = field(default_factory=lambda: torch.zeros(0))  # the index of each series' class among all these
    classifier: SequenceClassifier = field(default_factory=SequenceClassifier)
    features: Tensor = field(default_factory=lambda: torch.zeros(0))  # of all series, where gradients train the readout
    report: ClassificationReport | None = None  # of the test series

    def logits(self, model: nn.Module, indices: Tensor) -> Tensor:
        """The scores of the classes, (series, classes), for series with these indices: of the model's readout where
        gradients train it, else of the classifier."""
        if len(self.features):
            readout = _readout(model)
            logits: Tensor = readout(self.features[indices.cpu()].to(next(model.parameters()).device))
            return logits
        return torch.from_numpy(self.classifier.scores(self.data.take(indices.tolist())))

    def loss_of(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy of a batch."""
        return functional.cross_entropy(self.logits(model, batch[0]), self.targets[batch[0].cpu()].to(batch[0].device))

    def scores(self, model: nn.Module, split: Batch) -> dict[str, float]:
        """The accuracy; for the test series also the mean F1, and the accuracy of the most frequent class. Their report
        is kept for `Classify.write_more`."""
        tested = torch.equal(split[0].cpu(), self.test[0])
        if not tested and not len(self.features):
            return {"accuracy": self.classifier.loo_accuracy_}  # each training series left out in turn
        predicted = self.logits(model, split[0]).argmax(1).cpu()
        most_frequent = int(self.targets[: int(self.test[0][0])].bincount().argmax())
        report = ClassificationReport.of(
            self.classes, self.targets[split[0].cpu()].numpy(), predicted.numpy(), most_frequent, self.untrained
        )
        if not tested:
            return {"accuracy": report.accuracy}
        self.report = report
        return _scores(report)


class Classify(Experiment):
    name = "classify"
    metric = "accuracy"
    own_data = True
    paper: ClassVar[dict[str, float]] = {}
    percent = True
    models = ("closed", "gradient")
    streamable = ("closed", "gradient")

    def closed_form(self, model: str) -> bool:
        return model == "closed"

    def run_name(self, model: str, config: Config[Any]) -> str:
        return self.name_of_file(model, config.data.file if isinstance(config.data, LabelledConfig) else None)

    def defaults(self, model: str) -> Config[Any]:
        trained = TrainingConfig(epochs=30, batch_size=32, learning_rate=3e-4, weight_decay=0.01, schedule="cosine")
        choices: dict[str, tuple[Any, TrainingConfig]] = {
            "closed": (ClosedModel(), TrainingConfig(epochs=1)),
            "gradient": (GradientModel(), trained),
        }
        return ClassifyConfig(*choices[self.check(model)])

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config, ClassifyConfig)
        generator = np.random.default_rng(config.seed)
        train, test = _read_splits(config.data, generator)
        classes, notes = train.classes, train.notes
        untrained = tuple(name for name in test.classes if name not in classes)
        indices = list(range(len(train)))
        validation: list[int] = []
        if isinstance(config.model, GradientModel):
            validation = stratified([str(label) for label in train.labels], VALIDATION, generator)
            if not validation:
                raise DataError(f"{config.data.file} has too few series to validate on: use --model closed")
        data = replace(
            train,
            series=train.series + test.series,
            labels=train.labels + test.labels,
            names=train.names + test.names,
        )
        task = ClassifyTask(
            (torch.tensor([i for i in indices if i not in set(validation)]),),
            (torch.tensor(validation or indices),),
            (torch.arange(len(train), len(data)),),
            loss=lambda model, batch: task.loss_of(model, batch),
            metric=self.metric,
            higher_is_better=True,
            score=lambda model, split: task.scores(model, split),
            groups=_groups,
            notes={"data": f"own data: {len(data):,} series"},
            messages=notes,
            data=data,
            classes=classes,
            untrained=untrained,
            targets=torch.tensor([(*classes, *untrained).index(str(label)) for label in data.labels]),
        )
        return task

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, ClassifyTask)
        task.classifier = config.model.classifier(config.seed).fit(task.data.take(task.train[0].tolist()))
        task.messages.append(task.classifier.summary())
        if isinstance(config.model, GradientModel):
            task.features = task.classifier.features(task.data)
        # Frozen parameters would count as data, whose bits must be those of the machine that trained.
        return task.classifier.model.requires_grad_(True)

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, ClassifyTask)
        return {SERIES_FILE: classify_files.series_json(task.data, task.classes)}

    def write_more(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> list[str]:
        """Write the report, the confusion plot and the models. If the chosen classifier normalises, one that does not
        is fitted and scored, too, for streams."""
        assert isinstance(task, ClassifyTask)
        assert isinstance(config, ClassifyConfig)
        if task.report is None:  # of a finished run that has lost its model
            with torch.no_grad():
                task.scores(network, task.test)
        report = task.report
        assert report is not None
        reports = {"gradient" if isinstance(config.model, GradientModel) else "closed": report}
        streaming, explanation = None, []
        if task.classifier.normalize_ is not False:  # a stream takes samples as they come
            train, test = (task.data.take(split[0].tolist()) for split in (task.train, task.test))
            streaming = config.model.classifier(config.seed).set_params(normalize=False).fit(train)
            reports["streaming"] = streaming.evaluate(test)
            explanation = ["streaming: model.plmu, without normalisation, for plmu stream, serve and export"]
        reports[BASELINE] = report.baseline
        content = {
            "classes": dict(zip(report.classes, report.by_class(), strict=True)),
            "confusion": {"rows": "true class", "columns": "predicted class", "counts": report.confusion.tolist()},
            "scores": {name: {"accuracy": row.accuracy, "mean_f1": row.mean_f1} for name, row in reports.items()},
        }
        write_json(folder / REPORT, content)
        report.plot(folder / PLOT)
        classify_files.write_models(folder, task.classifier, network, streaming)
        return [
            *report.lines(),
            f"wrote {folder / PLOT}, {folder / REPORT}",
            *score_lines(reports),
            *explanation,
            f"next: plmu predict {folder} {config.data.file}",
        ]

    def saved_model(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> nn.Module:
        assert isinstance(task, ClassifyTask)
        task.classifier, task.features = SequenceClassifier.from_run(folder), torch.zeros(0)
        if tuple(task.classifier.classes_.tolist()) != task.classes:
            raise RunError(f"{folder / SERIES_FILE} has other classes than this data: copy the folder of the run again")
        return task.classifier.model

    def score_other_data(self, folder: Path, config: Config[Any]) -> tuple[dict[str, float], list[str]]:
        assert isinstance(config.data, LabelledConfig)
        classifier = SequenceClassifier.from_run(folder)
        data = labelled_files.load(
            replace(config.data, test_file=None), classifier.format_, classifier.classes_.tolist()
        )
        _check_channels(data, classifier, config.data.file)
        labelled = [index for index, label in enumerate(data.labels) if label is not None]
        if not labelled:
            raise DataError(f"{config.data.file} has no labels to compare with: `plmu predict` needs none")
        notes = data.notes
        if len(labelled) < len(data):
            notes = [*notes, f"left out: {len(data) - len(labelled):,} series without a label"]
        report = classifier.evaluate(data.take(labelled))
        if report.untrained:
            wrong = sum(label in report.untrained for label in data.labels)
            notes = [*notes, untrained_note(wrong, report.untrained)]
        return _scores(report), notes

    def predict(
        self, folder: Path, config: Config[Any], file: Path, future: Path | None = None, horizon: int | None = None
    ) -> Predictions:
        if future is not None:
            raise RunError(f"--data.future is for forecasts with covariates, and {folder} is a run of classify")
        if horizon is not None:
            raise RunError(f"--horizon is for forecasts, and {folder} is a run of classify")
        assert isinstance(config.data, LabelledConfig)
        classifier = SequenceClassifier.from_run(folder)
        labels = None if config.data.labels is None else file / config.data.labels.name  # among the files of a folder
        labels = labels if labels is not None and labels.is_file() else None
        reading = replace(config.data, file=file, test_file=None, labels=labels)
        data = labelled_files.load(reading, classifier.format_, classifier.classes_.tolist())
        _check_channels(data, classifier, file)
        return classify_files.predictions(classifier, data)


def _scores(report: ClassificationReport) -> dict[str, float]:
    """Accuracy, mean F1, and the accuracy of the most frequent class, which old runs do not tell."""
    scores = {"accuracy": report.accuracy, "mean_f1": report.mean_f1}
    if report.most_frequent is not None:
        scores["commonest_class_accuracy"] = report.baseline.accuracy
    return scores


def _check_channels(data: LabelledData, classifier: SequenceClassifier, file: Path | None) -> None:
    if data.channels != classifier.n_channels_:
        raise DataError(f"{file} has {data.channels} channels; the model was trained on {classifier.n_channels_}")


def _read_splits(config: LabelledConfig, generator: np.random.Generator) -> tuple[LabelledData, LabelledData]:
    """Training and test series. The notes of the training series also say what was found in the test series.

    Raises:
        DataError: they cannot be read, or do not suffice to train and test a classifier.
    """
    data = labelled_files.load(config)
    if config.test_file is None:
        train, test = data.split(config.test, generator)
        if not len(test):
            raise DataError(f"{config.file}: no class has two series, so that none can be tested: give more series")
    else:
        train, classes = data, data.classes
        reading = LabelledConfig(**{**asdict(config), "file": config.test_file, "test_file": None})
        test = labelled_files.load(reading, data.format, classes)
        if test.channels != train.channels:
            raise DataError(f"{config.test_file} has {test.channels} channels, {config.file} {train.channels}")
        if not set(test.classes) & set(classes):
            raise DataError(f"{config.test_file} has no series with a label of {config.file}")
        all_tests, test = len(test), test.take(i for i, label in enumerate(test.labels) if label is not None)
        if len(test) < all_tests:
            train.notes.append(f"{config.test_file.name}: {all_tests - len(test):,} series without a label left out")
        untrained = [name for name in test.classes if name not in classes]
        if untrained:
            wrong = sum(label in untrained for label in test.labels)
            train.notes.append(f"{config.test_file.name}: {untrained_note(wrong, untrained)}")
    counts = Counter(train.labels)
    if len(train.classes) < 2:
        raise DataError(f"{config.file} has only one class to train on, {train.classes[0]!r}: two or more are needed")
    single = [name for name in train.classes if counts[name] == 1 and name not in test.labels]
    if single:
        train.notes.append(f"classes with a single series, which is trained on and not tested: {', '.join(single[:8])}")
    shown = ", ".join(f"{name} ({counts[name]})" for name in train.classes[:12])
    shown += " …" if len(train.classes) > 12 else ""
    train.notes.append(f"classes: {shown}; {len(train):,} series to train on, {len(test):,} to test")
    return train, test


def _readout(model: nn.Module) -> nn.Module:
    assert isinstance(model, Sequential)
    return model[-1]


def _groups(model: nn.Module) -> list[Group]:
    """Groups of parameters for the optimiser: the readout learns, all layers before it do not."""
    readout = list(_readout(model).parameters())
    frozen = [parameter for parameter in model.parameters() if all(parameter is not other for other in readout)]
    return [Group(readout), Group(frozen, rate=0.0, decay=False)]
