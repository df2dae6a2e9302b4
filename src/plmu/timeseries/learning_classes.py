"""Sums from which the readout of a `SequenceClassifier` is solved, as examples arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

_BLOCK = 1024  # examples, or features, whose products are summed at a time
_SMALLEST = 1e-6  # standard deviation of a feature that varies


@dataclass(frozen=True)
class ClassSums:
    """Products of features (examples, features) and their sums by class, all in float64.

    While there are fewer examples than features, the examples themselves are held, which is less; then their Gram
    matrix. Of older examples each counts `factor` times as much as the next one.

    Attributes:
        sums: of the features of each class, (classes, features).
        counts: of the examples of each class, (classes,).
        rows: features of the examples, (examples, features) in float32; None where there is a Gram matrix.
        labels: their classes, (examples,).
        weights: how much they count, (examples,).
        gram: (features, features); None where there are rows.
        factor: 1 where examples count alike.
    """

    sums: Tensor
    counts: Tensor
    rows: Tensor | None
    labels: Tensor
    weights: Tensor
    gram: Tensor | None
    factor: float

    @classmethod
    def zeros(cls, features: int, classes: int, factor: float) -> Self:
        """Of no examples."""
        sums = torch.zeros(classes, features, dtype=torch.float64)
        return cls(
            sums,
            sums.new_zeros(classes),
            torch.zeros(0, features),
            torch.zeros(0, dtype=torch.long),
            sums.new_zeros(0),
            None,
            factor,
        )

    def with_classes(self, places: Sequence[int], count: int) -> Self:
        """With so many classes, of which those so far are at these places."""
        index = torch.tensor(places, dtype=torch.long)
        sums = self.sums.new_zeros(count, self.sums.shape[1]).index_copy_(0, index, self.sums)
        counts = self.counts.new_zeros(count).index_copy_(0, index, self.counts)
        return replace(self, sums=sums, counts=counts, labels=index[self.labels] if len(index) else self.labels)

    def learned(self, rows: Tensor, labels: Tensor) -> Self:
        """The sums with those of examples (examples, features) of these classes (examples,), the latest one last."""
        ages = torch.arange(len(rows) - 1, -1, -1, dtype=torch.float64)
        return self._decayed(self.factor ** len(rows))._added(rows.float(), labels, self.factor**ages)

    def merged(self, other: Self) -> Self:
        """The sums of both."""
        whole = self
        if other.rows is not None:
            return whole._added(other.rows, other.labels, other.weights)
        assert other.gram is not None
        whole = whole.with_gram()
        assert whole.gram is not None
        sums, counts = whole.sums + other.sums, whole.counts + other.counts
        return replace(whole, gram=whole.gram + other.gram, sums=sums, counts=counts)

    def _decayed(self, factor: float) -> Self:
        if factor == 1.0:
            return self
        gram = None if self.gram is None else self.gram * factor
        return replace(
            self, sums=self.sums * factor, counts=self.counts * factor, weights=self.weights * factor, gram=gram
        )

    def _added(self, rows: Tensor, labels: Tensor, weights: Tensor) -> Self:
        member = torch.nn.functional.one_hot(labels, len(self.counts)).double() * weights[:, None]
        sums, gram = self.sums.clone(), None if self.gram is None else self.gram.clone()
        for block, of_classes, weight in zip(
            rows.split(_BLOCK), member.split(_BLOCK), weights.split(_BLOCK), strict=True
        ):
            sums += of_classes.mT @ block.double()
            if gram is not None:
                gram += (block.double() * weight[:, None]).mT @ block.double()
        together = replace(self, sums=sums, counts=self.counts + member.sum(0), gram=gram)
        if self.rows is None:
            return together
        together = replace(
            together,
            rows=torch.cat([self.rows, rows]),
            labels=torch.cat([self.labels, labels]),
            weights=torch.cat([self.weights, weights]),
        )
        return together if len(self.rows) + len(rows) < self.sums.shape[1] else together.with_gram()

    def with_gram(self) -> Self:
        """The Gram matrix in place of the examples."""
        if self.rows is None:
            return self
        gram = self.sums.new_zeros(self.sums.shape[1], self.sums.shape[1])
        for block, weight in zip(self.rows.split(_BLOCK), self.weights.split(_BLOCK), strict=True):
            gram += (block.double() * weight[:, None]).mT @ block.double()
        return replace(self, rows=None, labels=self.labels[:0], weights=self.weights[:0], gram=gram)

    def readout(self, alpha: float, scales: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
        """The weight (classes, features) and the bias (classes,) of the ridge regression of `ridge_classes`: features
        are standardised, multiplied by `scales` (features,), and weighted by how well they tell the classes apart.

        Args:
            alpha: the penalty.
            scales: factors of the standardised features.
            sharpness: a factor of the scores.
        """
        count = self.counts.sum()
        mean = self.sums.sum(0) / count
        if self.gram is not None:
            variance = (self.gram.diagonal() / count - mean.square()).clamp(min=0)
        else:
            variance = torch.cat([x.square().sum(0) for x in self._columns(mean)]) / count
        spread = torch.where(variance.sqrt() > _SMALLEST, variance.sqrt(), torch.inf) / scales.double()
        between = self.sums - self.counts[:, None] * mean  # (classes, features), sums of centred features
        share = _separating(between / spread, self.counts, count * variance / spread.square())
        factors = share / spread
        centre = 2 * self.counts / count - 1
        if self.gram is not None:
            matrix = self.gram.addr(mean, mean, alpha=-float(count)).mul_(factors).mul_(factors[:, None])
            solution = _solved(matrix, alpha, 2 * (between * factors).mT)
        else:
            parts = factors.split(_BLOCK)
            matrix = self.weights.new_zeros(len(self.weights), len(self.weights))
            for x, part in zip(self._columns(mean), parts, strict=True):
                matrix.addmm_(x * part, (x * part).mT)
            target = 2 * torch.nn.functional.one_hot(self.labels, len(centre)).double() - 1 - centre
            dual = _solved(matrix, alpha, target * self.weights.sqrt()[:, None])
            columns = zip(self._columns(mean), parts, strict=True)
            solution = torch.cat([(x * part).mT @ dual for x, part in columns])
        weight = (solution * factors[:, None]).mT * sharpness
        return weight, centre * sharpness - weight @ mean

    def _columns(self, mean: Tensor) -> Iterator[Tensor]:
        """The features of the examples (examples, …), some at a time, around their mean (features,) and times the root
        of how much each example counts."""
        assert self.rows is not None
        for rows, middle in zip(self.rows.split(_BLOCK, dim=1), mean.split(_BLOCK), strict=True):
            yield (rows.double() - middle) * self.weights.sqrt()[:, None]


def _separating(between: Tensor, counts: Tensor, total: Tensor) -> Tensor:
    """The fraction of the variance of features that lies between the classes, scaled to a mean square of 1.

    Args:
        between: sums of centred features of each class, (classes, features).
        counts: of the classes.
        total: sums of squares, (features,).
    """
    squares = (between.square() / counts.clamp(min=1e-300)[:, None]).sum(0)
    share = torch.where(total > 0, squares / total.clamp(min=1e-300), 0.0)
    size = share.square().mean().sqrt()
    return share / size if size > 0 else torch.ones_like(share)


def _solved(matrix: Tensor, alpha: float, right: Tensor) -> Tensor:
    """(matrix + penalty I)⁻¹ right; the penalty is alpha, or larger where rounding errors require it. The matrix is
    changed."""
    penalty, rounding = alpha, 1e-14 * float(matrix.diagonal().mean())
    matrix.diagonal().add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed and not matrix.isfinite().all():
        raise ValueError("the series have values too large to compute with: scale them down")
    while failed:
        penalty += rounding
        matrix.diagonal().add_(penalty)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        rounding *= 2
    return torch.cholesky_solve(right, factor)
