"""Ridge regression to classes, its strength chosen by leave-one-out errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SHARPNESS = tuple(2.0 ** (k / 2) for k in range(15))
_MANY = 2000  # examples from which the strength is chosen


@dataclass(frozen=True)
class Classes:
    """A readout whose softmax is a probability, and its leave-one-out figures."""

    weight: Tensor  # (classes, features)
    bias: Tensor  # (classes,)
    strength: float
    accuracy: float
    error: float  # mean square


def leave_one_out(features: Tensor, labels: Tensor, strengths: Sequence[float], scales: Tensor) -> Classes:
    """The ridge from features (examples, features) to labels with the smallest squared leave-one-out error.

    Of many examples, it is the smallest for some of them. Features are standardised, then multiplied by `scales`
    (features,). Scores are scaled so that the likelihood of the left-out labels is highest.
    """
    classes = int(labels.max()) + 1
    if int(labels.bincount().max()) == 1:  # without its only example no class can be found
        strengths = [min(strengths)]
    target = 2.0 * torch.nn.functional.one_hot(labels, classes).double() - 1
    x = features.double()
    spread, mean = torch.std_mean(x, dim=0, correction=0)
    spread = torch.where(spread > 1e-6, spread, torch.inf)
    spread = spread / scales
    x = (x - mean) / spread
    centre = target.mean(0)
    y = target - centre
    if len(x) > _MANY:
        some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_MANY]
        strength = _best_of(x[some] - x[some].mean(0), y[some] - y[some].mean(0), strengths).strength
        found = _one(x, y, strength)
    else:
        found = _best_of(x, y, strengths)
    scores = target - found.residual
    sharp = max(_SHARPNESS, key=lambda one: float(torch.log_softmax(one * scores, 1).gather(1, labels[:, None]).mean()))
    weight = (found.weight / spread[:, None]).mT * sharp
    bias = centre * sharp - weight @ mean
    accuracy = float((scores.argmax(1) == labels).double().mean())
    return Classes(weight, bias, found.strength, accuracy, float(found.residual.square().mean()))


@dataclass(frozen=True)
class _Ridge:
    weight: Tensor  # (features, classes)
    strength: float
    residual: Tensor  # (examples, classes), of each example without it


def _best_of(x: Tensor, y: Tensor, strengths: Sequence[float]) -> _Ridge:
    """The ridge from centred x to centred y with the smallest leave-one-out error, all from one eigendecomposition."""
    # x = U √w Vᵀ without the directions of no variance, such as that of the mean.
    wide = x.shape[1] >= x.shape[0]
    w, vectors = torch.linalg.eigh(x @ x.mT if wide else x.mT @ x)
    kept = w > 1e-10 * w.max().clamp(min=1e-300)
    w, vectors = w[kept], vectors[:, kept]
    left = vectors if wide else x @ (vectors / w.sqrt())
    projected, powers = left.mT @ y, left.square()
    outside = y - left @ projected
    best: tuple[float, float, Tensor] | None = None
    for strength in strengths:
        shrunk = strength / (w + strength)
        residual = outside + left @ (shrunk[:, None] * projected)
        residual = residual / _leverage(powers @ (1 - shrunk))
        error = float(residual.square().mean())
        if best is None or error < best[0]:
            best = (error, strength, residual)
    assert best is not None
    _, strength, residual = best
    inner = projected / (w + strength)[:, None]
    weight = x.mT @ (left @ inner) if wide else (vectors * w.sqrt()) @ inner
    return _Ridge(weight, strength, residual)


def _one(x: Tensor, y: Tensor, strength: float) -> _Ridge:
    """The ridge of one strength, by a Cholesky decomposition."""
    wide = x.shape[1] >= x.shape[0]
    gram = x @ x.mT if wide else x.mT @ x
    gram.diagonal().add_(strength)
    factor = torch.linalg.cholesky(gram)
    if wide:
        inverse = torch.cholesky_inverse(factor)
        inner = inverse @ y
        return _Ridge(x.mT @ inner, strength, strength * inner / _leverage(1 - strength * inverse.diagonal()))
    weight = torch.cholesky_solve(x.mT @ y, factor)
    powers = torch.linalg.solve_triangular(factor, x.mT, upper=False).square().sum(0)
    return _Ridge(weight, strength, (y - x @ weight) / _leverage(powers))


def _leverage(powers: Tensor) -> Tensor:
    """1 − h, of which the mean takes 1 / n: (examples, 1)."""
    return (1 - 1 / len(powers) - powers).clamp(min=1e-9)[:, None]
