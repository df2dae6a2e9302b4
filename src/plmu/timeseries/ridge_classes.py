"""Ridge regression to classes on weighted features, its alpha chosen by leave-one-out errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SHARPNESS = 2.0**-4, 2.0**7  # the smallest and the largest
_MANY = 2000  # examples from which the alpha is chosen
_FOLDED = 600  # examples times folds, of which there are 2 to 10
_CHUNK = 1024  # features or examples whose products are summed in float32
_ROUNDING = 4e-6  # above that of such sums


@dataclass(frozen=True)
class Classes:
    """A readout whose softmax is a probability, and its leave-one-out figures."""

    weight: Tensor  # (classes, features)
    bias: Tensor  # (classes,)
    alpha: float
    accuracy: float
    error: float  # the smallest mean square


def leave_one_out(features: Tensor, labels: Tensor, alphas: Sequence[float], scales: Tensor) -> Classes:
    """The ridge from features (examples, features) to labels with the fewest leave-one-out errors: see `softened`.

    Features are standardised, multiplied by `scales` (features,), and weighted by how well they tell the classes apart:
    see `explained`. A left-out example takes no part in these weights: they are made anew without the fold it is in. Of
    many examples, only some are left out in turn. Scores are scaled so that their softmax is a probability: see
    `sharpness`.
    """
    classes = int(labels.max()) + 1
    if int(labels.bincount().max()) == 1:  # without its only example no class can be found
        alphas = [min(alphas)]
    target = 2.0 * torch.nn.functional.one_hot(labels, classes).double() - 1
    x = features.float()
    spread, mean = torch.std_mean(x, dim=0, correction=0)
    spread = torch.where(spread > 1e-6, spread, torch.inf) / scales
    x = (x - mean) / spread
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_MANY].sort().values
    few = len(some) == len(x)
    alpha, scores, error = _chosen(x if few else x[some], target[some], labels[some], alphas)
    sharp = sharpness(scores, labels[some])
    share = explained(x, labels)  # of all examples
    centre = target.mean(0)
    found = _solved(x * share, target - centre, alpha) * (share / spread)[:, None]
    weight = found.double().mT * sharp
    bias = centre * sharp - weight @ mean.double()
    accuracy = float((scores.argmax(1) == labels[some]).double().mean())
    return Classes(weight, bias, alpha, accuracy, error)


def explained(x: Tensor, labels: Tensor) -> Tensor:
    """What features (examples, features) are multiplied by: the share of their variance that lies between the classes,
    scaled to a mean square of 1."""
    member = torch.nn.functional.one_hot(labels).to(x.dtype)
    count = member.sum(0).clamp(min=1)
    x = x - x.mean(0)
    total = x.square().sum(0)
    between = ((member.mT @ x).square() / count[:, None]).sum(0)
    share = torch.where(total > 0, between / total, 0.0)
    size = share.square().mean().sqrt()
    return share / size if size > 0 else torch.ones_like(share)


def softened(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of errors of scores (…, examples, classes), softened: (…,).

    An example counts 1 where another class has a far higher score than its own, ½ where both are equal, and 0 where its
    own is far higher. The mean square error also punishes scores above 1, which are no errors, and chooses ridges that
    are too strong.
    """
    own = torch.nn.functional.one_hot(labels, scores.shape[-1]).bool()
    margin = scores[..., own] - scores.masked_fill(own, -torch.inf).amax(-1)
    return torch.sigmoid(-2 * margin).mean(-1)


def sharpness(scores: Tensor, labels: Tensor) -> float:
    """What left-out scores (examples, classes) are multiplied by, so that their softmax is a probability.

    It is the most likely one for smoothed labels: by Laplace's rule, of n examples that were all classified correctly a
    next one is so with a probability of (n + 1) / (n + 2). Without it, n correct ones would give certainty.
    """
    doubt = 1 / (len(scores) + 2)
    own = scores.gather(1, labels[:, None])[:, 0]
    expected = (1 - doubt) * own + doubt * (scores.sum(1) - own) / (scores.shape[1] - 1)
    low, high = _SHARPNESS
    while high > 1.001 * low:  # the likelihood's slope falls
        middle = math.sqrt(low * high)
        slope = expected - (torch.softmax(middle * scores, 1) * scores).sum(1)
        low, high = (middle, high) if slope.mean() > 0 else (low, middle)
    return math.sqrt(low * high)


def _chosen(x: Tensor, target: Tensor, labels: Tensor, alphas: Sequence[float]) -> tuple[float, Tensor, float]:
    """The alpha with the smallest share of errors, its left-out scores (examples, classes), and the smallest mean
    square error of any alpha."""
    y = target - target.mean(0)
    residual = y.new_zeros(len(alphas), *y.shape)
    fold = _folds(labels)
    for one in range(int(fold.max()) + 1):
        out = fold == one
        residual[:, out] = _residuals(x * explained(x[~out], labels[~out]), y, alphas, out)
    scores = target - residual
    best = int(softened(scores, labels).argmin())
    return alphas[best], scores[best], float(residual.square().mean((1, 2)).min())


def _folds(labels: Tensor) -> Tensor:
    """The fold of each example. Every fold has about as many of each class; there are more folds of few examples."""
    folds = min(len(labels), max(2, min(10, _FOLDED // len(labels))))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    order = order[labels[order].argsort(stable=True)]
    out = torch.empty_like(order)
    out[order] = torch.arange(len(order)) % folds
    return out


def _residuals(x: Tensor, y: Tensor, alphas: Sequence[float], rows: Tensor) -> Tensor:
    """Leave-one-out residuals of the ridge from x to centred y: (alphas, rows, classes), from one decomposition."""
    # x = U √w Vᵀ without the directions of no variance, such as that of the mean.
    x = x - x.mean(0)
    wide = x.shape[1] >= x.shape[0]
    gram = _gram(x if wide else x.mT)
    w, vectors = torch.linalg.eigh(gram)
    kept = w > _floor(gram)
    w, vectors = w[kept], vectors[:, kept]
    left = vectors if wide else x.double() @ (vectors / w.sqrt())
    projected = left.mT @ y
    outside = y[rows] - left[rows] @ projected
    left, powers = left[rows], left[rows].square()
    out = []
    for alpha in alphas:
        shrunk = alpha / (w + alpha)
        residual = outside + left @ (shrunk[:, None] * projected)
        out.append(residual / (1 - 1 / len(x) - powers @ (1 - shrunk)).clamp(min=1e-9)[:, None])  # the mean takes 1 / n
    return torch.stack(out)


def _solved(x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """The weights (features, classes) of the ridge from x to centred y."""
    x = x - x.mean(0)
    wide = x.shape[1] >= x.shape[0]
    gram = _gram(x if wide else x.mT)
    more = max(alpha, _floor(gram))
    gram.diagonal().add_(more)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed and not gram.isfinite().all():
        raise ValueError("the series have values too large to compute with: scale them down")
    while failed:  # where features are all alike, their rounding adds up
        gram.diagonal().add_(more)
        factor, failed = torch.linalg.cholesky_ex(gram)
        more *= 2
    if wide:
        return x.mT @ torch.cholesky_solve(y, factor).to(x.dtype)
    return torch.cholesky_solve(x.mT.double() @ y, factor)


def _gram(x: Tensor) -> Tensor:
    """x xᵀ in float64, from products in float32."""
    total = x.new_zeros(len(x), len(x), dtype=torch.float64)
    for some in x.split(_CHUNK, dim=1):
        total += some @ some.mT
    return total


def _floor(gram: Tensor) -> float:
    """What the rounding of such a matrix cannot reach."""
    return _ROUNDING * math.sqrt(len(gram)) * float(gram.diagonal().mean())
