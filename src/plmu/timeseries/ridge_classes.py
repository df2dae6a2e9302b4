"""Ridge regression from features to classes: features weighted by class, alpha chosen by leave-one-out errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SHARPNESS = 2.0**-4, 2.0**7  # the smallest and the largest factor of scores
_MAX_SAMPLE = 2000  # largest number of examples by which alpha is chosen
_FOLDED = 600  # examples times folds, as near as 2 to 10 folds allow
_CHUNK = 1024  # features or examples whose products are summed in float32
_ROUNDING = 4e-6  # bound on the relative rounding error of such sums


@dataclass(frozen=True)
class Readout:
    """A fitted readout, whose softmax is a probability, and its leave-one-out scores."""

    weight: Tensor  # (classes, features)
    bias: Tensor  # (classes,)
    alpha: float
    accuracy: float
    error: float  # the smallest mean square
    sharpness: float  # the factor of the scores that makes their softmax a probability


def leave_one_out(features: Tensor, labels: Tensor, alphas: Sequence[float], scales: Tensor) -> Readout:
    """The ridge regression from features (examples, features) to labels with the fewest leave-one-out errors.

    Features are standardised, multiplied by `scales` (features,), and weighted by how well they tell the classes apart
    (`separating_weights`). A left-out example takes no part in these weights: they are computed without its fold. If
    there are many examples, only a sample is left out in turn. Errors are counted as in `softened_error_rate`; scores
    are scaled so that their softmax is a probability (`sharpness`).

    Args:
        features: (examples, features).
        labels: index of the class of each example, (examples,).
        alphas: candidates for the strength of the penalty.
        scales: factors of the standardised features, (features,).
    """
    classes = int(labels.max()) + 1
    if int(labels.bincount().max()) == 1:  # without its only example no class can be predicted
        alphas = [min(alphas)]
    target = 2.0 * torch.nn.functional.one_hot(labels, classes).double() - 1
    x = features.float()
    spread, mean = torch.std_mean(x, dim=0, correction=0)
    spread = torch.where(spread > 1e-6, spread, torch.inf) / scales
    x = (x - mean) / spread
    sample = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_MAX_SAMPLE].sort().values
    whole = len(sample) == len(x)
    alpha, scores, error = _choose_alpha(x if whole else x[sample], target[sample], labels[sample], alphas)
    sharp = sharpness(scores, labels[sample])
    share = separating_weights(x, labels)  # of all examples
    centre = target.mean(0)
    solution = _solve(x * share, target - centre, alpha) * (share / spread)[:, None]
    weight = solution.double().mT * sharp
    bias = centre * sharp - weight @ mean.double()
    accuracy = float((scores.argmax(1) == labels[sample]).double().mean())
    return Readout(weight, bias, alpha, accuracy, error, sharp)


def separating_weights(x: Tensor, labels: Tensor) -> Tensor:
    """Weights of features (examples, features): the fraction of their variance that lies between the classes, scaled
    to a mean square of 1."""
    member = torch.nn.functional.one_hot(labels).to(x.dtype)
    count = member.sum(0).clamp(min=1)
    x = x - x.mean(0)
    total = x.square().sum(0)
    between = ((member.mT @ x).square() / count[:, None]).sum(0)
    share = torch.where(total > 0, between / total, 0.0)
    size = share.square().mean().sqrt()
    return share / size if size > 0 else torch.ones_like(share)


def softened_error_rate(scores: Tensor, labels: Tensor) -> Tensor:
    """The softened error rate of scores (…, examples, classes): (…,).

    An example counts 1 where another class has a far higher score than its own, ½ where both are equal, and 0 where its
    own is far higher. The mean square error also punishes scores above 1, which are no errors, and so chooses too large
    an alpha.
    """
    correct = torch.nn.functional.one_hot(labels, scores.shape[-1]).bool()
    margin = scores[..., correct] - scores.masked_fill(correct, -torch.inf).amax(-1)
    return torch.sigmoid(-2 * margin).mean(-1)


def sharpness(scores: Tensor, labels: Tensor) -> float:
    """The factor by which left-out scores (examples, classes) are multiplied so that their softmax is a probability.

    It maximises the likelihood of smoothed labels: by Laplace's rule of succession, after n correctly classified
    examples the next one is correct with probability (n + 1) / (n + 2). Without smoothing, n correct ones would give
    certainty.
    """
    doubt = 1 / (len(scores) + 2)
    correct = scores.gather(1, labels[:, None])[:, 0]
    expected = (1 - doubt) * correct + doubt * (scores.sum(1) - correct) / (scores.shape[1] - 1)
    low, high = _SHARPNESS
    while high > 1.001 * low:  # bisection: the slope of the log-likelihood falls with the factor
        middle = math.sqrt(low * high)
        slope = expected - (torch.softmax(middle * scores, 1) * scores).sum(1)
        low, high = (middle, high) if slope.mean() > 0 else (low, middle)
    return math.sqrt(low * high)


def _choose_alpha(x: Tensor, target: Tensor, labels: Tensor, alphas: Sequence[float]) -> tuple[float, Tensor, float]:
    """Returns the alpha with the lowest softened error rate, its left-out scores (examples, classes), and the smallest
    mean square error of any alpha."""
    y = target - target.mean(0)
    residual = y.new_zeros(len(alphas), *y.shape)
    folds = _folds(labels)
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        residual[:, out] = _residuals(x * separating_weights(x[~out], labels[~out]), y, alphas, out)
    scores = target - residual
    best = int(softened_error_rate(scores, labels).argmin())
    return alphas[best], scores[best], float(residual.square().mean((1, 2)).min())


def _folds(labels: Tensor) -> Tensor:
    """The fold of each example, (examples,), stratified by class. The fewer examples, the more folds: 2 to 10."""
    folds = min(len(labels), max(2, min(10, _FOLDED // len(labels))))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    order = order[labels[order].argsort(stable=True)]
    out = torch.empty_like(order)
    out[order] = torch.arange(len(order)) % folds
    return out


def _residuals(x: Tensor, y: Tensor, alphas: Sequence[float], rows: Tensor) -> Tensor:
    """Leave-one-out residuals (alphas, rows, classes) of the ridge from x (examples, features) to centred y (examples,
    classes), from one decomposition for all alphas.

    Args:
        x: features.
        y: targets whose mean over all examples is 0.
        alphas: penalties.
        rows: mask of the examples whose residuals are returned, (examples,).
    """
    # x = U √w Vᵀ without directions of no variance. One decomposition of the smaller of x xᵀ and xᵀ x gives U.
    x = x - x.mean(0)
    wide = x.shape[1] >= x.shape[0]
    gram = _gram(x if wide else x.mT)
    w, vectors = torch.linalg.eigh(gram)
    significant = w > _rounding_bound(gram)
    w, vectors = w[significant], vectors[:, significant]
    u = vectors if wide else x.double() @ (vectors / w.sqrt())
    projected = u.mT @ y
    outside = y[rows] - u[rows] @ projected
    u, powers = u[rows], u[rows].square()
    out = []
    for alpha in alphas:
        shrunk = alpha / (w + alpha)
        residual = outside + u @ (shrunk[:, None] * projected)
        out.append(residual / (1 - 1 / len(x) - powers @ (1 - shrunk)).clamp(min=1e-9)[:, None])  # the mean takes 1 / n
    return torch.stack(out)


def _solve(x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """The weights (features, classes) of the ridge from x to centred y. The penalty is raised above alpha as far as
    rounding errors require: to `_rounding_bound`, and again while the matrix is not positive definite."""
    x = x - x.mean(0)
    wide = x.shape[1] >= x.shape[0]
    gram = _gram(x if wide else x.mT)
    penalty = max(alpha, _rounding_bound(gram))
    gram.diagonal().add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed and not gram.isfinite().all():
        raise ValueError("the series have values too large to compute with: scale them down")
    while failed:  # where all features are alike, their rounding errors add up and exceed the bound
        gram.diagonal().add_(penalty)
        factor, failed = torch.linalg.cholesky_ex(gram)
        penalty *= 2
    if wide:
        return x.mT @ torch.cholesky_solve(y, factor).to(x.dtype)
    return torch.cholesky_solve(x.mT.double() @ y, factor)


def _gram(x: Tensor) -> Tensor:
    """x xᵀ in float64, from products in float32."""
    total = x.new_zeros(len(x), len(x), dtype=torch.float64)
    for chunk in x.split(_CHUNK, dim=1):
        total += chunk @ chunk.mT
    return total


def _rounding_bound(gram: Tensor) -> float:
    """A bound on the rounding errors in the eigenvalues of a matrix of `_gram`."""
    return _ROUNDING * math.sqrt(len(gram)) * float(gram.diagonal().mean())
