"""`SequenceClassifier.partial_fit`: fitting in pieces is one fit to all examples, against a regression in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from closeness import within

import plmu
from plmu.errors import FileFormatError
from plmu.timeseries import threshold_features
from plmu.timeseries.learning_classes import ClassSums

SMALL: dict[str, Any] = {"projections": 4, "thresholds": 3, "windows": [9, 18]}
EXACT = 1e-9


def examples(count: int, classes: int = 3, seed: int = 0, first: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Waves of unequal length, whose frequency is the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(first, first + classes, count)
    lengths = rng.integers(30, 50, count)
    series = [
        np.sin(2 * np.pi * np.arange(n) / (6 + 3 * k) + 6 * rng.random()) + 0.3 * rng.standard_normal(n)
        for n, k in zip(lengths, labels, strict=True)
    ]
    return series, labels


def reference(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray, alpha: float, sharpness: float
) -> tuple[np.ndarray, np.ndarray]:
    """The readout from all features at once, with weights of the examples."""
    classes, total = int(labels.max()) + 1, weights.sum()
    mean = weights @ x / total
    deviation = np.sqrt(weights @ (x - mean) ** 2 / total)
    scales = threshold_features.scales(x.shape[1]).double().numpy()
    spread = np.where(deviation > 1e-6, deviation, np.inf) / scales
    z = (x - mean) / spread
    member = np.eye(classes)[labels] * weights[:, None]
    between = ((member.T @ z) ** 2 / np.maximum(member.sum(0), 1e-300)[:, None]).sum(0)
    power = weights @ z**2
    share = np.divide(between, power, out=np.zeros_like(power), where=power > 0)
    share /= np.sqrt(np.mean(share**2))
    target = 2 * np.eye(classes)[labels] - 1
    centre = weights @ target / total
    z *= share
    solution = np.linalg.solve(z.T @ (z * weights[:, None]) + alpha * np.eye(len(mean)),
                               z.T @ ((target - centre) * weights[:, None]))  # fmt: skip
    weight = (solution * (share / spread)[:, None]).T * sharpness
    return weight, centre * sharpness - weight @ mean


def assert_readout(classifier: plmu.SequenceClassifier, x: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
    """The same scores, to the rounding of float32."""
    weight, bias = reference(x, labels, weights, classifier.alpha_, classifier._sharpness)
    linear = classifier.model[-1]
    scores = x @ linear.weight.double().numpy().T + linear.bias.double().numpy()
    expected = x @ weight.T + bias
    size = np.abs(x) @ np.abs(weight).T + np.abs(bias)
    within((np.abs(scores - expected) / size).max(), 4 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("half_life", [None, 25])
@pytest.mark.parametrize("normalize", [True, "both"])
def test_the_readout_is_that_of_all_examples(normalize: Any, half_life: float | None) -> None:
    series, labels = examples(120)
    classifier = plmu.SequenceClassifier(**SMALL, normalize=normalize, half_life=half_life).fit(
        series[:60], labels[:60]
    )
    for first in range(60, 120, 15):
        classifier.partial_fit(series[first : first + 15], labels[first : first + 15])
    x = classifier._features_of([array[:, None] for array in series]).float().double().numpy()
    ages = np.arange(119, -1, -1)
    assert_readout(classifier, x, labels, np.ones(120) if half_life is None else 0.5 ** (ages / half_life))
    assert classifier.class_count_.tolist() == np.bincount(labels).tolist()
    assert classifier.score(*examples(60, seed=5)) > 0.9


def test_pieces_are_the_whole_with_more_examples_than_features() -> None:
    series, labels = examples(400)
    options: dict[str, Any] = {"projections": 2, "thresholds": 2, "windows": [9]}
    whole, pieces = (plmu.SequenceClassifier(**options).fit(series[:40], labels[:40]) for _ in range(2))
    whole.partial_fit(series[40:], labels[40:])
    for first in range(40, 400, 24):
        pieces.partial_fit(series[first : first + 24], labels[first : first + 24])
    sums, expected = pieces._learned(), whole._learned()
    assert sums.gram is not None
    assert expected.gram is not None
    assert sums.rows is None
    for name in ("gram", "sums", "counts"):
        one, other = getattr(sums, name), getattr(expected, name)
        within(float((one - other).abs().max()), EXACT * float(other.abs().max()))
    x = pieces._features_of([array[:, None] for array in series]).float().double().numpy()
    assert len(x) > x.shape[1]
    assert_readout(pieces, x, labels, np.ones(400))


def test_examples_and_their_gram_matrix_give_the_same_readout() -> None:
    rows, labels = torch.rand(30, 40), torch.arange(30) % 3
    sums = ClassSums.zeros(40, 3, 0.9).learned(rows[:18], labels[:18]).learned(rows[18:], labels[18:])
    other = ClassSums.zeros(40, 3, 0.9).with_gram().learned(rows[:7], labels[:7]).learned(rows[7:], labels[7:])
    assert sums.gram is None
    for one, two in zip(sums.readout(0.5, torch.ones(40), 2.0), other.readout(0.5, torch.ones(40), 2.0), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_new_classes_come_and_all_kinds_of_labels() -> None:
    series, labels = examples(80, classes=2, first=1)
    others, their = examples(60, classes=2, first=0, seed=1)  # class 0 is new, and comes first
    for names in (np.array([3, 5, 9]), np.array(["rest", "walk", "zigzag"]), np.array([3.0, 5.0, 9.0])):
        classifier = plmu.SequenceClassifier(**SMALL).fit(series, names[labels])
        classifier.partial_fit(others[:30], names[their[:30]]).partial_fit(others[30:], names[their[30:]])
        assert classifier.classes_.tolist() == names.tolist()
        x = classifier._features_of([array[:, None] for array in [*series, *others]]).float().double().numpy()
        assert_readout(classifier, x, np.concatenate([labels, their]), np.ones(140))
        assert set(classifier.predict(others)) <= set(names)
        assert np.mean(classifier.predict(others) == names[their]) > 0.85


@pytest.mark.parametrize("examples_so_far", [60, 300])
def test_it_goes_on_bit_for_bit(examples_so_far: int, path: Path) -> None:
    series, labels = examples(examples_so_far + 20)
    names = np.array(["a", "b", "c"])[labels]
    options: dict[str, Any] = {"projections": 2, "thresholds": 6, "windows": [9], "normalize": True, "half_life": 500}
    classifier = plmu.SequenceClassifier(**options).fit(series[:50], names[:50])
    classifier.partial_fit(series[50:-20], names[50:-20])
    classifier.save(path, updatable=True)
    loaded = plmu.SequenceClassifier.load(path)
    assert (loaded._learned().gram is not None) == (examples_so_far == 300)
    for estimator in (classifier, loaded):
        estimator.partial_fit(series[-20:], names[-20:])
    for name, tensor in classifier.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    np.testing.assert_array_equal(loaded.predict(series), classifier.predict(series))
    assert loaded.get_params() == classifier.get_params()
    assert loaded.classes_.dtype == classifier.classes_.dtype
    assert isinstance(plmu.load(path), plmu.Sequential)
    with pytest.raises(ValueError, match="choose needs the examples that were learned, and this estimator was loaded"):
        loaded.choose()


def test_parts_of_two_machines_are_the_whole(path: Path) -> None:
    series, labels = examples(160)
    plmu.SequenceClassifier(**SMALL).fit(series[:60], labels[:60]).save(path, updatable=True)
    parts = [plmu.SequenceClassifier.load(path, empty=True) for _ in range(2)]
    others, their = examples(20, classes=1, first=3, seed=4)
    parts[0].partial_fit(series[60:100], labels[60:100])
    parts[1].partial_fit(series[100:], labels[100:]).partial_fit(others, their)
    whole = plmu.SequenceClassifier.load(path).merge(parts[0]).merge(parts[1])
    assert whole.classes_.tolist() == [0, 1, 2, 3]
    assert whole.class_count_.sum() == 180
    x = whole._features_of([array[:, None] for array in [*series, *others]]).float().double().numpy()
    assert_readout(whole, x, np.concatenate([labels, their]), np.ones(180))
    other = plmu.SequenceClassifier(**{**SMALL, "alphas": [77.0]}).fit(series[:60], labels[:60])
    with pytest.raises(ValueError, match=r"merge needs the same choices in both, and alpha differs: .* and 77.0"):
        whole.merge(other)
    options = {**SMALL, "random_state": 1, "alphas": [whole.alpha_], "normalize": whole.normalize_}
    other = plmu.SequenceClassifier(**options).fit(series[:60], labels[:60])
    with pytest.raises(ValueError, match="and the tensor"):
        whole.merge(other)


def test_choose_is_a_fit_to_all_examples() -> None:
    series, labels = examples(100)
    classifier = plmu.SequenceClassifier(**SMALL).fit(series[:50], labels[:50])
    assert "at the fit" not in classifier.summary()
    classifier.partial_fit(series[50:], labels[50:])
    assert classifier.summary().endswith(" % at the fit")
    classifier.choose()
    fitted = plmu.SequenceClassifier(**SMALL).fit(series, labels)
    np.testing.assert_array_equal(classifier.scores(series), fitted.scores(series))
    assert "at the fit" not in classifier.summary()


def test_files(tmp_path: Path) -> None:
    series, labels = examples(80)
    for name, rows in (("first", range(50)), ("then", range(50, 80))):
        lines = [f"{i},{['rest', 'walk', 'zigzag'][labels[i]]},{v}" for i in rows for v in series[i]]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,label,x", *lines, ""]))
    classifier = plmu.SequenceClassifier(**SMALL).fit(tmp_path / "first.csv").partial_fit(tmp_path / "then.csv")
    assert classifier.class_count_.sum() == 80
    classifier.save(tmp_path / "c.plmu", updatable=True)
    loaded = plmu.SequenceClassifier.load(tmp_path / "c.plmu").partial_fit(tmp_path / "then.csv")
    assert loaded.score(tmp_path / "then.csv") > 0.9


def test_faults(path: Path) -> None:
    series, labels = examples(40)
    classifier = plmu.SequenceClassifier(**SMALL).fit(series, labels)
    classifier.save(path)
    with pytest.raises(FileFormatError, match="holds a model alone: save the estimator with updatable=True"):
        plmu.SequenceClassifier.load(path)
    classifier.save(path, updatable=True)
    with pytest.raises(FileFormatError, match="holds no Forecaster"):
        plmu.Forecaster.load(path)
    for X, y, fault in (
        (series[:2], ["a", "b"], "y must be numbers, as the labels of fit are, got names: 'a'"),
        (series[:2], [0.5, 1.0], "y must be classes, got numbers with fractions"),
        (series[:2], [1, None], "y must have a label for each series, got None"),
        (series[:2], [1], "y must have one label for each of the 2 series"),
        (series[:2], None, "requires y to be passed"),
        ([np.ones((40, 2))], [1], "X has 2 channels, but SequenceClassifier was fitted to 1"),
    ):
        with pytest.raises(ValueError, match=fault):
            classifier.partial_fit(X, y)
    with pytest.raises(TypeError, match="other must be a SequenceClassifier, got dict"):
        classifier.merge({})  # type: ignore[arg-type]
    for half_life in (0, -1.0, "7d", True):
        with pytest.raises(ValueError, match="half_life must be None or a positive number of examples"):
            plmu.SequenceClassifier(half_life=half_life).fit(series, labels)


def test_another_half_life_holds_from_the_next_call_on() -> None:
    series, labels = examples(60)
    classifier = plmu.SequenceClassifier(**SMALL).fit(series[:30], labels[:30])
    classifier.partial_fit(series[30:40], np.array(labels[30:40].tolist(), dtype=object))
    classifier.set_params(half_life=20).partial_fit(series[40:], labels[40:])
    weights = np.concatenate([np.full(40, 0.5), 2.0 ** (np.arange(-19, 1) / 20)])
    sums = classifier._sums
    assert sums is not None
    np.testing.assert_allclose(sums.counts.numpy(), np.bincount(labels, weights), rtol=1e-12)
