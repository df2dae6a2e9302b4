"""Ridge regression to classes, its strength chosen by leave-one-out errors, all from one eigendecomposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SHARPNESS = tuple(2.0 ** (k / 2) for k in range(15))


@dataclass(frozen=True)
class Classes:
    """A readout whose softmax is a probability, and its leave-one-out figures."""

    weight: Tensor  # (classes, features)
    bias: Tensor  # (classes,)
    strength: float
    accuracy: float


def leave_one_out(features: Tensor, labels: Tensor, strengths: Sequence[float]) -> Classes:
    """The ridge from features (examples, features) to labels with the smallest squared leave-one-out error.

    Features are standardised. Scores are scaled so that the likelihood of the left-out labels is highest.
    """
    classes = int(labels.max()) + 1
    if int(labels.bincount().max()) == 1:  # without its only example no class can be found
        strengths = [min(strengths)]
    target = 2.0 * torch.nn.functional.one_hot(labels, classes).double() - 1
    x = features.double()
    spread, mean = torch.std_mean(x, dim=0, correction=0)
    spread = torch.where(spread > 1e-6, spread, torch.inf)
    x = (x - mean) / spread
    centre = target.mean(0)
    y = target - centre
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
        # 1 − h, of which the mean takes 1 / n.
        leverage = 1 - 1 / len(x) - powers @ (1 - shrunk)
        residual = residual / leverage.clamp(min=1e-9)[:, None]
        error = float(residual.square().mean())
        if best is None or error < best[0]:
            best = (error, strength, target - residual)
    assert best is not None
    _, strength, scores = best
    sharp = max(_SHARPNESS, key=lambda one: float(torch.log_softmax(one * scores, 1).gather(1, labels[:, None]).mean()))
    inner = projected / (w + strength)[:, None]
    weight = x.mT @ (left @ inner) if wide else (vectors * w.sqrt()) @ inner
    weight = (weight / spread[:, None]).mT * sharp
    bias = centre * sharp - weight @ mean
    return Classes(weight, bias, strength, float((scores.argmax(1) == labels).double().mean()))
