"""`plmu.SequenceClassifier`: what it learns and accepts; its model gives the same scores."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import plmu
from plmu.timeseries import ridge_classes
from plmu.timeseries.classifier import _are_alike
from plmu.timeseries.ridge_classes import leave_one_out


def waves(count: int, length: int = 60, channels: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy waves at a random phase, of three lengths: the classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    t = np.arange(length)[None, :, None]
    phase = rng.uniform(0, 7, (count, 1, channels))
    wave = np.sin(2 * np.pi * t / np.array([6, 9, 14])[labels][:, None, None] + phase)
    return wave + 0.4 * rng.standard_normal(wave.shape), labels


SMALL = {"projections": 12, "thresholds": 4}


def test_it_learns_classes_of_any_length() -> None:
    x, y = waves(60)
    classifier = plmu.SequenceClassifier().fit(x[:, :, 0], y)
    others, labels = waves(60, seed=1)
    assert classifier.score(others[:, :, 0], labels) > 0.9
    assert classifier.loo_accuracy_ > 0.9
    lengths = np.random.default_rng(2).integers(30, 61, 60)
    cut = [one[:length, 0] for one, length in zip(others, lengths, strict=True)]
    assert classifier.score(cut, labels) > 0.9
    unequal = plmu.SequenceClassifier().fit(cut, labels)
    assert unequal.score(x, y) > 0.9


def test_names_as_labels_and_many_channels() -> None:
    x, y = waves(45, channels=3)
    names = np.array(["slow", "quick", "middle"])[y]
    classifier = plmu.SequenceClassifier(**SMALL).fit(x, names)
    assert classifier.classes_.tolist() == ["middle", "quick", "slow"]
    assert classifier.score(list(x), names) > 0.9
    shares = classifier.predict_proba(x)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (classifier.classes_[shares.argmax(1)] == classifier.predict(x)).all()
    two = plmu.SequenceClassifier(**SMALL).fit(x[y < 2], y[y < 2])
    assert ((two.decision_function(x) > 0) == (two.predict(x) == 1)).all()


def test_padding_does_not_matter() -> None:
    x, y = waves(30)
    classifier = plmu.SequenceClassifier(**SMALL).fit(x, y)
    alone = np.concatenate([classifier.predict_proba([x[0, :40]]), classifier.predict_proba([x[1]])])
    np.testing.assert_allclose(classifier.predict_proba([x[0, :40], x[1]]), alone, rtol=1e-4, atol=1e-6)


def test_scores_are_those_of_the_model() -> None:
    """Also where a projection sees several windows, as it may after training."""
    x, y = waves(30, channels=2)
    classifier = plmu.SequenceClassifier(normalize=False, **SMALL).fit(x, y)
    given = torch.tensor(x, dtype=torch.float32)
    first = classifier.scores(x)
    np.testing.assert_allclose(first, classifier.model(given)[0].numpy(), rtol=1e-4, atol=1e-6)
    weight = classifier.model[3].weight
    assert (weight == 0).sum() > weight.numel() / 2
    weight += 0.5
    changed = classifier.model(given)[0].numpy()
    assert np.abs(changed - first).max() > 0.01
    np.testing.assert_allclose(classifier.scores(x), changed, rtol=1e-4, atol=1e-6)


def test_the_model_streams_saves_and_folds_to_the_same_scores(tmp_path: Path) -> None:
    x, y = waves(30, channels=2)
    classifier = plmu.SequenceClassifier(normalize=False, **SMALL).fit(x, y)
    expected = classifier.predict_proba(x[:1])[0]
    stream, folded, state = plmu.Stream(classifier.model), plmu.fold(classifier.model), None
    for sample in x[0]:
        out = stream.push(sample)
        step, state = folded.step(torch.tensor(sample, dtype=torch.float32)[None], state)
    # A number beside a threshold may be rounded to its other side.
    np.testing.assert_allclose(out.softmax(0).numpy(), expected, atol=0.02)
    np.testing.assert_allclose(step[0].softmax(0).numpy(), expected, atol=0.02)
    plmu.save(classifier.model, tmp_path / "c.plmu")
    whole, _ = plmu.load(tmp_path / "c.plmu")(torch.tensor(x[:1], dtype=torch.float32))
    np.testing.assert_allclose(whole[0].softmax(0).numpy(), expected, atol=1e-6)
    normal = plmu.SequenceClassifier(**SMALL).fit(x, y)
    prepared = torch.tensor(normal.prepare(x[:1])[0], dtype=torch.float32)
    np.testing.assert_allclose(
        normal.model(prepared[None])[0].softmax(1)[0].numpy(), normal.predict_proba(x[:1])[0], atol=1e-6
    )


@pytest.mark.parametrize("features", [5, 40])
def test_leave_one_out_is_what_leaving_one_out_gives(features: int) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(24, features), torch.arange(24) % 3
    x[:, 0] += labels
    correct, scores = 0, []
    scales = torch.linspace(0.5, 2, features)
    full = leave_one_out(x, labels, [10.0], scales)
    spread, mean = torch.std_mean(x.double(), dim=0, correction=0)
    x = (x.double() - mean) / spread * scales  # as it is for the whole
    target = 2.0 * torch.nn.functional.one_hot(labels, 3).double() - 1
    fold = ridge_classes._folds(labels)
    for i in range(24):
        known, rest = fold != fold[i], torch.arange(24) != i
        means = torch.stack([x[known & (labels == one)].mean(0) for one in range(3)])[labels[known]]
        centred = x[known].mean(0)
        ratio = (means - centred).square().sum(0) / (x[known] - centred).square().sum(0)
        weighted = x * ratio / ratio.square().mean().sqrt()
        # An intercept that is not penalised.
        a = torch.cat([weighted[rest], torch.ones(23, 1)], dim=1)
        penalty = 10.0 * torch.eye(features + 1, dtype=torch.float64)
        penalty[-1, -1] = 0
        weight = torch.linalg.solve(a.mT @ a + penalty, a.mT @ target[rest])
        scores.append(torch.cat([weighted[i], torch.ones(1)]) @ weight)
        correct += int(scores[-1].argmax() == labels[i])
    assert full.accuracy == pytest.approx(correct / 24)
    assert full.error == pytest.approx(float((torch.stack(scores) - target).square().mean()), rel=1e-5)


def test_scores_above_one_are_no_errors() -> None:
    labels = torch.tensor([0, 1, 2])
    right = 2.0 * torch.nn.functional.one_hot(labels, 3).double() - 1
    errors = [float(ridge_classes.softened_error_rate(factor * right, labels)) for factor in (-50, -1, 0, 1, 2, 50)]
    assert errors == pytest.approx([1, 1 / (1 + math.exp(-4)), 0.5, 1 / (1 + math.exp(4)), 1 / (1 + math.exp(8)), 0])
    assert ridge_classes.softened_error_rate(torch.stack([right, right.flip(0)]), labels)[0] == pytest.approx(errors[3])


def test_alpha_has_the_fewest_errors_rather_than_the_smallest_square() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(60, 200), torch.arange(60) % 3
    x[:, 0] += 2 * labels
    target = 2.0 * torch.nn.functional.one_hot(labels, 3).double() - 1
    alphas = [10.0 ** (k / 2) for k in range(-6, 11)]
    errors, squares = [], []
    for alpha in alphas:
        _, scores, square = ridge_classes._choose_alpha(x, target, labels, [alpha])
        squares.append(square)
        margins = [
            float(one[k] - torch.cat([one[:k], one[k + 1 :]]).max()) for one, k in zip(scores, labels, strict=True)
        ]
        errors.append(sum(1 / (1 + math.exp(2 * one)) for one in margins))
    chosen, _, square = ridge_classes._choose_alpha(x, target, labels, alphas)
    assert chosen == alphas[int(np.argmin(errors))] < alphas[int(np.argmin(squares))]
    assert square == pytest.approx(min(squares))


@pytest.mark.parametrize("features", [5, 40])
def test_the_readout_is_the_ridge_of_weighted_features(features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "plmu.timeseries.ridge_classes._MAX_SAMPLE", 20
    )  # fewer than the examples: all are fitted all the same
    torch.manual_seed(0)
    x, labels = torch.randn(24, features), torch.arange(24) % 3
    x[:, 0] += labels
    found = leave_one_out(x, labels, [10.0], torch.ones(features))
    spread, mean = torch.std_mean(x.double(), dim=0, correction=0)
    z = (x.double() - mean) / spread
    z = z * ridge_classes.separating_weights(z, labels)
    target = 2.0 * torch.nn.functional.one_hot(labels, 3).double() - 1
    weight = torch.linalg.solve(z.mT @ z + 10.0 * torch.eye(features, dtype=torch.float64), z.mT @ target)
    expected = z @ weight + target.mean(0)
    scores = x.double() @ found.weight.mT + found.bias
    factor = float(scores.norm() / expected.norm())  # the sharpness
    torch.testing.assert_close(scores, factor * expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("examples", "first", "features"), [(100, 38, 176), (200, 76, 500), (200, 91, 256)])
def test_features_that_are_all_alike_are_fitted(examples: int, first: int, features: int) -> None:
    """Their products are rounded alike, too: the Gram matrix has negative eigenvalues."""
    labels = (torch.arange(examples) >= first).long()
    x = labels[:, None].expand(-1, features).double()
    found = leave_one_out(x, labels, [1e-6], torch.ones(features))
    assert ((x @ found.weight.mT + found.bias).argmax(1) == labels).all()


def test_features_beyond_all_numbers_are_refused() -> None:
    x = torch.full((6, 3), torch.nan).double()
    with pytest.raises(ValueError, match="the series have values too large to compute with"):
        ridge_classes._solve(x, torch.ones(6, 2).double(), 1.0)


def test_labels_without_meaning_are_not_found() -> None:
    x = np.random.default_rng(0).standard_normal((60, 40))
    assert plmu.SequenceClassifier(**SMALL).fit(x, np.arange(60) % 2).loo_accuracy_ < 0.65


@pytest.mark.parametrize("count", [6, 60, 600])
def test_correct_ones_alone_give_no_certainty(count: int) -> None:
    """The mean probability of the class is about (n + 1) / (n + 2), also where every left-out example was correct."""
    labels = torch.arange(count) % 3
    scores = 2.0 * torch.nn.functional.one_hot(labels, 3).double() - 1
    found = (ridge_classes.sharpness(scores, labels) * scores).softmax(1).gather(1, labels[:, None])
    assert float(1 - found.mean()) * (count + 2) == pytest.approx(1, rel=0.02)


def test_few_series_give_no_certainty() -> None:
    x, y = waves(30)
    classifier = plmu.SequenceClassifier(**SMALL).fit(x, y)
    assert classifier.loo_accuracy_ == 1
    confidence = classifier.predict_proba(waves(60, seed=1)[0]).max(1).mean()
    assert 0.9 < confidence < 31 / 32


def test_probabilities_are_as_often_right() -> None:
    """Of examples that overlap, the sharpness is that of the logistic model they were drawn from."""
    torch.manual_seed(0)
    scores = torch.randn(4000, 2, dtype=torch.float64)
    labels = (torch.rand(4000) < torch.softmax(4.0 * scores, 1)[:, 1]).long()
    assert ridge_classes.sharpness(scores, labels) == pytest.approx(4.0, rel=0.2)


def test_what_cannot_be_fitted_is_named() -> None:
    x, y = waves(12)
    flat = x[:, :, 0]
    with pytest.raises(ValueError, match="two classes"):
        plmu.SequenceClassifier().fit(flat, np.zeros(12))
    with pytest.raises(ValueError, match="one label for each of the 12"):
        plmu.SequenceClassifier().fit(flat, y[:5])
    with pytest.raises(ValueError, match="continuous"):
        plmu.SequenceClassifier().fit(flat, y + 0.5)
    with pytest.raises(ValueError, match="projections"):
        plmu.SequenceClassifier(projections=0).fit(flat, y)
    with pytest.raises(ValueError, match="channels"):
        plmu.SequenceClassifier(**SMALL).fit(flat, y).predict(np.zeros((2, 60, 2)))
    with pytest.raises(ValueError, match="same number of channels"):
        plmu.SequenceClassifier().fit([flat[0], x[1].repeat(2, axis=1)], [0, 1])
    flat[3, 5] = np.nan
    with pytest.raises(ValueError, match="NaN in series 3, step 5"):
        plmu.SequenceClassifier().fit(flat, y)
    with pytest.raises(ValueError, match="not fitted"):
        plmu.SequenceClassifier().predict(flat)


def test_constant_and_very_short_series() -> None:
    x = np.concatenate([np.zeros((3, 4)), np.tile([0.0, 1.0], (3, 2))])
    classifier = plmu.SequenceClassifier().fit(x, [0, 0, 0, 1, 1, 1])
    assert classifier.score(x, [0, 0, 0, 1, 1, 1]) == 1
    assert np.isfinite(classifier.predict_proba([np.ones(1), np.ones(3)])).all()


def test_a_score_needs_a_label_for_each_series() -> None:
    x, y = waves(30)
    fitted = plmu.SequenceClassifier(projections=4, thresholds=2).fit(x, y)
    with pytest.warns(UserWarning, match="column-vector"):
        assert fitted.score(x, y[:, None]) == fitted.score(x, y)
    for labels in (y[:1], y[:5]):
        with pytest.raises(ValueError, match="one label for each of the 30 series"):
            fitted.score(x, labels)


@pytest.mark.parametrize(
    ("option", "value"),
    [("windows", 9), ("windows", []), ("windows", [0]), ("alphas", []), ("alphas", [-1.0]), ("normalize", [1, 2]),
     ("random_state", None)],
)  # fmt: skip
def test_options_are_checked(option: str, value: object) -> None:
    x, y = waves(6)
    with pytest.raises(ValueError, match=f"{option} must be"):
        plmu.SequenceClassifier(**{option: value}).fit(x, y)  # type: ignore[arg-type]


def test_frames_with_columns_in_another_order_are_refused() -> None:
    import polars as pl

    frames = [pl.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}), pl.DataFrame({"b": [3.0, 4.0], "a": [1.0, 2.0]})]
    with pytest.raises(ValueError, match=r"same columns: X\[0\] has \['a', 'b'\]"):
        plmu.SequenceClassifier().fit(frames, [0, 1])
    with pytest.raises(ValueError, match="labels of one kind"):
        plmu.SequenceClassifier().fit(frames[:1] * 2, [None, "a"])


def test_the_windows_of_the_memories() -> None:
    """9, 18, 36 … up to the length of the longest series; below 9 steps that length."""
    classifier = plmu.SequenceClassifier()
    lengths = {1: [1], 8: [8], 9: [9], 17: [9], 18: [9, 18], 35: [9, 18], 36: [9, 18, 36]}
    assert {longest: classifier._windows(longest) for longest in lengths} == lengths
    assert plmu.SequenceClassifier(windows=[4, 30]).set_params(windows=[4, 30])._windows(5) == [4, 30]


def test_whether_series_are_alike() -> None:
    """So that normalising them would change little: means within 2 % and spreads within 10 % of the usual spread."""
    rng = np.random.default_rng(0)
    wave = rng.standard_normal((200, 2))
    wave = (wave - wave.mean(0)) / wave.std(0)
    for size, level, expected in ((1, 0, True), (1, 0.019, True), (1, 0.021, False), (1.19, 0, True), (1.25, 0, False)):
        assert _are_alike([wave, wave * [1, size] + [0, level]]) == expected
        assert _are_alike([wave, wave * [size, 1] + [level, 0]]) == expected
        assert _are_alike([10 * wave, 10 * wave * size + 10 * level]) == expected


def test_what_estimators_say_of_themselves() -> None:
    from sklearn.utils import get_tags

    tags = get_tags(plmu.SequenceClassifier())
    assert (tags.estimator_type, tags.target_tags.required, tags.input_tags.three_d_array) == ("classifier", True, True)
    assert tags.classifier_tags is not None
    tags = get_tags(plmu.Forecaster())
    assert (tags.estimator_type, tags.target_tags.required, tags.input_tags.three_d_array) == (None, False, True)


def test_scores_of_two_classes_are_a_difference() -> None:
    x, y = waves(24)
    two = plmu.SequenceClassifier(**SMALL).fit(x[y < 2], y[y < 2])
    scores = two.scores(x)
    np.testing.assert_allclose(two.decision_function(x), scores[:, 1] - scores[:, 0])
    assert (two.predict(x) == (scores[:, 1] > scores[:, 0])).all()
    three = plmu.SequenceClassifier(**SMALL).fit(x, y)
    np.testing.assert_allclose(three.decision_function(x), three.scores(x))
    assert three.class_count_.tolist() == [8, 8, 8]


def test_the_normalisation_is_chosen_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was fitted to the sample is fitted again to all."""
    monkeypatch.setattr("plmu.timeseries.classifier._MAX_COMPARED", 20)
    x, y = waves(48)
    x = x * np.where(y == 0, 1.0, 3.0)[:, None, None] + y[:, None, None]  # size and level tell, too
    chosen = plmu.SequenceClassifier(**SMALL).fit(x, y)
    asked = plmu.SequenceClassifier(**SMALL, normalize=chosen.normalize_).fit(x, y)
    np.testing.assert_allclose(chosen.scores(x), asked.scores(x))


def test_folds_are_equal_in_size_and_in_classes() -> None:
    """The fewer examples, the more folds: 2 to 10, and no more than examples."""
    for count, folds in ((4, 4), (30, 10), (60, 10), (75, 8), (150, 4), (300, 2), (3000, 2)):
        labels = (torch.arange(count) * 7 % 5) // 2  # 2, 2 and 1 of 5
        fold = ridge_classes._folds(labels)
        assert fold.unique().tolist() == list(range(folds))
        sizes = fold.bincount()
        assert int(sizes.max() - sizes.min()) <= 1
        for label in range(3):
            each = fold[labels == label].bincount(minlength=folds)
            assert int(each.max() - each.min()) <= 1


def test_the_weights_of_features_are_shares_of_variance_between_classes() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(30, 4, dtype=torch.float64), torch.arange(30) % 4
    x[:, 0] += labels
    x[:, 3] = 5.0
    labels[labels == 2] = 3  # a class without examples
    rows, share = x.numpy(), []
    for column in rows.T[:3]:
        parts = [column[(labels == k).numpy()] for k in (0, 1, 3)]
        between = sum(len(part) * (part.mean() - column.mean()) ** 2 for part in parts)
        share.append(between / ((column - column.mean()) ** 2).sum())
    expected = np.array([*share, 0.0])
    expected /= np.sqrt((expected**2).mean())
    torch.testing.assert_close(ridge_classes.separating_weights(x, labels), torch.tensor(expected))
    assert ridge_classes.separating_weights(torch.ones(6, 2), torch.arange(6) % 2).tolist() == [1, 1]


def test_the_largest_penalty_is_as_large_as_rounding_errors_require() -> None:
    """A penalty below the bound is raised to it; products of float32 numbers are summed in float64."""
    torch.manual_seed(0)
    x, y = torch.randn(20, 6), torch.randn(20, 2, dtype=torch.float64)
    y -= y.mean(0)
    centred = (x - x.mean(0)).double()
    gram = centred.mT @ centred
    bound = ridge_classes._rounding_bound(ridge_classes._gram((x - x.mean(0)).mT))
    assert bound == pytest.approx(4e-6 * 6**0.5 * float(gram.diagonal().mean()), rel=1e-5)
    for alpha in (0.0, 3.0):
        expected = torch.linalg.solve(gram + max(alpha, bound) * torch.eye(6).double(), centred.mT @ y)
        torch.testing.assert_close(ridge_classes._solve(x, y, alpha), expected, rtol=1e-4, atol=1e-5)
    wide = ridge_classes._solve(x.mT, y[:6] - y[:6].mean(0), 3.0)  # 20 features of 6 examples
    rows = (x.mT - x.mT.mean(0)).double()
    primal = torch.linalg.solve(rows.mT @ rows + 3.0 * torch.eye(20).double(), rows.mT @ (y[:6] - y[:6].mean(0)))
    torch.testing.assert_close(wide.double(), primal, rtol=1e-3, atol=1e-4)


def test_sums_of_many_products_are_added_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 23)
    whole = ridge_classes._gram(x)
    torch.testing.assert_close(whole, x.double() @ x.double().mT, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(ridge_classes, "_CHUNK", 4)
    torch.testing.assert_close(ridge_classes._gram(x), whole, rtol=1e-5, atol=1e-5)


def test_the_sharpness_is_bounded() -> None:
    labels = torch.arange(8) % 2
    right = 2.0 * torch.nn.functional.one_hot(labels, 2).double() - 1
    low, high = (ridge_classes.sharpness(factor * right, labels) for factor in (-1.0, 1e-9))
    assert low == pytest.approx(2.0**-4, rel=2e-3)
    assert high == pytest.approx(2.0**7, rel=2e-3)


def test_series_that_float32_has_no_digits_for() -> None:
    """Normalised in float64 they are classified as well as ever; as they are, they are refused."""
    generator = np.random.default_rng(0)
    phase = 6 * generator.random((40, 1))
    y = np.arange(40) % 2
    X = np.sin(np.arange(30) * (0.3 + 0.3 * y[:, None]) + phase)
    near, far = (plmu.SequenceClassifier(projections=20).fit(X + level, y) for level in (0.0, 1e8))
    assert near.score(X, y) > 0.9
    assert far.normalize_ is True
    assert far.score(X + 1e8, y) > 0.9
    with pytest.raises(ValueError, match=r"X is at 1e\+08 in channel 0 and changes by 2: float32 has not that"):
        plmu.SequenceClassifier(normalize=False).fit(X + 1e8, y)
    assert plmu.SequenceClassifier(normalize=False, projections=20).fit(X + 100, y).score(X + 100, y) > 0.9


def test_without_a_second_example_of_any_class_the_smallest_alpha_is_taken() -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 5)
    alphas, scales = [1e-3, 1.0, 1e3], torch.ones(5)
    assert leave_one_out(x, torch.arange(12), alphas, scales).alpha == 1e-3
    single = torch.tensor([0] * 6 + [1] * 5 + [2])  # a class with one example leaves the choice open
    asked = [leave_one_out(x, single, [alpha], scales) for alpha in alphas]
    target = 2.0 * torch.nn.functional.one_hot(single, 3).double() - 1
    z = (x - x.mean(0)) / x.std(0, correction=0)
    best, _, _ = ridge_classes._choose_alpha(z, target, single, alphas)
    assert leave_one_out(x, single, alphas, scales).alpha == best > 1e-3
    assert [readout.alpha for readout in asked] == alphas


def test_features_of_two_normalisations_are_scaled_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where features of both are joined, each copy has its shares of time first, and then its positions."""
    asked = []
    real = ridge_classes.leave_one_out
    monkeypatch.setattr(
        "plmu.timeseries.classifier.leave_one_out", lambda *values: asked.append(values[3]) or real(*values)
    )
    x, y = waves(24)
    plmu.SequenceClassifier(**SMALL).fit(x * np.arange(1, 25)[:, None, None], y)
    alone, joined = asked[0], next(scales for scales in asked if len(scales) == 2 * len(asked[0]))
    assert torch.equal(joined, torch.cat([alone, alone]))
    assert alone.unique().tolist() == pytest.approx([0.5**0.5, 1.0])
