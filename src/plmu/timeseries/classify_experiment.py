"""Classes of series of your own (--data.file): of equal or unequal length, with one or many channels.

Models: `closed` is fitted in closed form in seconds: how often, and where in a series, random projections of Delay
Networks' states exceed thresholds, and a ridge regression on that. `gradient` trains the readout further.

Score: the share of test series that are classified correctly, beside that of the commonest class. The run's folder has
precision, recall and F1 of each class, and a picture of the confusion matrix.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import plmu
from plmu.errors import DataError, RunError
from plmu.nn import Sequential
from plmu.runs.experiment import Config, Experiment, Predictions
from plmu.runs.fields import Checked
from plmu.timeseries import classify_report, labelled
from plmu.timeseries.classifier import SequenceClassifier
from plmu.timeseries.classify_files import Settings, predict, write_models
from plmu.timeseries.labelled import LabelledConfig
from plmu.timeseries.sequences import by_number
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Group, Task

VALIDATED = 0.2  # share of the training series to choose the epoch by
NORMALIZE: dict[str, Any] = {"auto": "auto", "series": True, "none": False, "both": "both"}

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
    """Each series to mean 0 and standard deviation 1, as it is, both, or the best of them by leave-one-out errors."""


@dataclass
class GradientModel(ClosedModel):
    """The same, whose readout is trained further by gradients."""


@dataclass
class ClassifyConfig(Config[ModelConfig]):
    """Classes of series of your own."""

    data: LabelledConfig = field(default_factory=LabelledConfig)


@dataclass
class ClassifyTask(Task):
    """Series and their classes, and what was fitted to them. Batches are numbers of series, or features of them."""

    series: list[Any] = field(default_factory=list)  # (time, channels) each, first those to train on
    numbers: Tensor = field(default_factory=lambda: torch.zeros(0))  # of the classes
    trained: int = 0  # how many of the series are to train on
    settings: Settings | None = None
    classifier: SequenceClassifier | None = None
    features: Tensor = field(default_factory=lambda: torch.zeros(0))  # of all series, where the readout is trained
    predicted: Tensor = field(default_factory=lambda: torch.zeros(0))  # classes of the test series

    @property
    def known(self) -> tuple[Settings, SequenceClassifier]:
        assert self.settings is not None
        assert self.classifier is not None
        return self.settings, self.classifier

    def logits(self, model: nn.Module, series: Tensor) -> Tensor:
        """Of series by their numbers."""
        if len(self.features):
            place = next(model.parameters()).device
            out: Tensor = _readout(model)(self.features[series.cpu()].to(place))
            return out
        _, classifier = self.known
        return torch.from_numpy(classifier.scores([self.series[i] for i in series.tolist()]))

    def scores(self, model: nn.Module, split: Batch) -> dict[str, float]:
        """The accuracy; on the test series beside that of the commonest class, and the mean F1."""
        _, classifier = self.known
        tested = torch.equal(split[0].cpu(), self.test[0])
        if not tested and not len(self.features):
            return {"accuracy": classifier.loo_accuracy_}  # each training series left out in turn
        found = self.logits(model, split[0]).argmax(1).cpu()
        truth = self.numbers[split[0].cpu()]
        scores = {"accuracy": float((found == truth).double().mean())}
        if tested:
            self.predicted = found
            common = int(self.numbers[: self.trained].bincount().argmax())
            figures = classify_report.by_class(truth, found, len(self.known[0].classes))
            tested_classes = [one["f1"] for one in figures if one["series"]]
            scores |= {
                "mean_f1": float(np.mean(tested_classes)),
                "commonest_class_accuracy": float((truth == common).double().mean()),
            }
        return scores


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
        chosen, how = choices[self.check(model)]
        return ClassifyConfig(chosen, how)

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config, ClassifyConfig)
        return prepare(config, validated=isinstance(config.model, GradientModel))

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, ClassifyTask)
        assert task.settings is not None
        task.classifier = classifier(config.model, config.seed)
        rows = task.train[0]
        task.classifier.fit([task.series[i] for i in rows.tolist()], task.numbers[rows])
        task.messages.append(told(task.classifier))
        if isinstance(config.model, GradientModel):
            task.features = task.classifier.features(task.series)
        # What does not learn would count as data, whose bits must be those of the machine that trained.
        return task.classifier.model.requires_grad_(True)

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, ClassifyTask)
        assert task.settings is not None
        return {"series.json": json.dumps(asdict(task.settings), indent=1, ensure_ascii=False) + "\n"}

    def write_more(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> list[str]:
        assert isinstance(task, ClassifyTask)
        assert isinstance(config, ClassifyConfig)
        settings, fitted = task.known
        if not len(task.predicted):  # of a finished run that has lost its model
            with torch.no_grad():
                task.scores(network, task.test)
        lines = classify_report.write(folder, settings.classes, task.numbers[task.test[0]], task.predicted)
        streaming = None
        if fitted.normalize_ is not False:  # a stream takes samples as they come
            streaming = classifier(config.model, config.seed).set_params(normalize=False)
            (rows,), (tests,) = task.train, task.test
            streaming.fit([task.series[i] for i in rows.tolist()], task.numbers[rows])
            tested, truth = [task.series[i] for i in tests.tolist()], task.numbers[tests]
            lines.append(f"model.plmu, for samples as they come (plmu stream, serve, export), without normalisation:"
                         f" accuracy {100 * streaming.score(tested, truth):.2f} %")  # fmt: skip
        write_models(folder, settings, fitted, network, streaming)
        return [*lines, f"next: plmu predict {folder} --data.file {config.data.file}"]

    def predict(self, folder: Path, config: Config[Any], file: Path, future: Path | None = None) -> Predictions:
        if future is not None:
            raise RunError(f"--data.future is for forecasts with covariates, and {folder} is a run of classify")
        assert isinstance(config.data, LabelledConfig)
        return predict(folder, config.data, file)


def classifier(model: ClosedModel, seed: int) -> SequenceClassifier:
    return SequenceClassifier(
        order=model.order,
        windows=model.windows,
        projections=model.projections,
        thresholds=model.thresholds,
        normalize=NORMALIZE[model.normalize],
        random_state=seed,
    )


def told(fitted: SequenceClassifier) -> str:
    """What was fitted, in words."""
    kinds = {True: "each series normalised", False: "series as they are", "both": "series as they are and normalised"}
    memory = next(one for one in fitted.model if isinstance(one, plmu.DelayLayer))
    windows = ", ".join(f"{one:g}" for one in memory.memory.thetas())
    return (
        f"model: order {fitted.order} over windows of {windows} steps; {kinds[fitted.normalize_]};"
        f" leave-one-out accuracy {100 * fitted.loo_accuracy_:.1f} %"
    )


def prepare(config: ClassifyConfig[Any], validated: bool) -> ClassifyTask:
    """Read the data and split it."""
    data = labelled.load(config.data)
    series, labels = list(data.series), [str(one) for one in data.labels]
    generator = np.random.default_rng(config.seed)
    if config.data.test_file is None:
        test = split(labels, config.data.test, generator)
        if not test:
            raise DataError(
                f"{config.data.file}: no class has two series, so that none can be tested: give more series"
            )
    else:
        reading = LabelledConfig(**{**asdict(config.data), "file": config.data.test_file, "test_file": None})
        other = labelled.load(reading, data.form, set(labels))
        if other.series[0].shape[1] != series[0].shape[1]:
            raise DataError(f"{config.data.test_file} has {other.series[0].shape[1]} channels, {config.data.file}"
                            f" {series[0].shape[1]}")  # fmt: skip
        known = [place for place, one in enumerate(other.labels) if one in set(labels)]
        if not known:
            raise DataError(f"{config.data.test_file} has no series with a label of {config.data.file}")
        if len(known) < len(other.series):
            count = len(other.series) - len(known)
            data.notes.append(f"{config.data.test_file.name}: {count:,} series without a label of the training series"
                              " left out")  # fmt: skip
        test = list(range(len(series), len(series) + len(known)))
        series += [other.series[i] for i in known]
        labels += [str(other.labels[i]) for i in known]
    chosen = set(test)
    train = [place for place in range(len(labels)) if place not in chosen]
    order = [*train, *test]
    series, labels = [series[i] for i in order], [labels[i] for i in order]
    classes = sorted(set(labels[: len(train)]), key=by_number)
    counts = Counter(labels[: len(train)])
    if len(classes) < 2:
        raise DataError(f"{config.data.file} has only one class to train on, {classes[0]!r}: two or more are needed")
    tested = set(labels[len(train) :])
    single = [one for one in classes if counts[one] == 1 and one not in tested]
    if single:
        data.notes.append(f"classes with a single series, which is trained on and not tested: {', '.join(single[:8])}")
    shown = ", ".join(f"{one} ({counts[one]})" for one in classes[:12]) + (" …" if len(classes) > 12 else "")
    data.notes.append(f"classes: {shown}; {len(train):,} series to train on, {len(test):,} to test")
    numbers = torch.tensor([classes.index(one) for one in labels])
    valid: list[int] = []
    if validated:
        valid = split(labels[: len(train)], VALIDATED, generator)
        if not valid:
            raise DataError(f"{config.data.file} has too few series to validate on: use --model closed")
    taken = [place for place in range(len(train)) if place not in set(valid)]
    settings = Settings(data.form, data.series[0].shape[1], tuple(classes))
    task = ClassifyTask(
        (torch.tensor(taken),),
        (torch.tensor(valid or taken),),
        (torch.arange(len(train), len(series)),),
        loss=lambda model, batch: functional.cross_entropy(
            task.logits(model, batch[0]), task.numbers[batch[0].cpu()].to(batch[0].device)
        ),
        metric=Classify.metric,
        higher_is_better=True,
        score=lambda model, part: task.scores(model, part),
        groups=_groups,
        notes={"data": f"own data: {len(series):,} series"},
        messages=data.notes,
        series=series,
        numbers=numbers,
        trained=len(train),
        settings=settings,
    )
    return task


def _readout(model: nn.Module) -> nn.Module:
    assert isinstance(model, Sequential)
    return model[-1]


def _groups(model: nn.Module) -> list[Group]:
    """The readout learns, all before it does not."""
    own = list(_readout(model).parameters())
    rest = [one for one in model.parameters() if all(one is not other for other in own)]
    return [Group(own), Group(rest, rate=0.0, decay=False)]


def split(labels: list[str], share: float, generator: np.random.Generator) -> list[int]:
    """So many series of each class, at least one, and one less than all; none of a class of one."""
    found = []
    for label in sorted(set(labels)):
        own = generator.permutation([place for place, one in enumerate(labels) if one == label])
        found += own[: min(max(1, round(share * len(own))), len(own) - 1)].tolist()
    return sorted(found)
