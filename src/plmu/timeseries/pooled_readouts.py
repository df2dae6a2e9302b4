"""Members of a `PooledForecast` fitted to windows: readouts by ridge regression, hidden layers by gradient descent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from plmu.folded.pooled import LARGEST_CHANGE, LOWEST, forecast_of
from plmu.nn.pooled import PooledMember
from plmu.timeseries.pooled_windows import BLOCK, SMALLEST_UNIT, Error, Windows
from plmu.training.processes import Processes

ROUNDS = 2  # of reweighting towards the absolute error
_SOFT, _SCALED = 0.3, 0.05  # windows weigh (1 + _SCALED / unit) / (error + _SOFT · unit)
EPOCHS, EXAMPLES = 12, 1_000_000  # of training: passes over the windows, but at most so many windows in all
BATCH, LEAST_STEPS = 512, 300  # windows of a step, fewer where that makes too few steps
RATE = 6e-3  # the highest learning rate
DECAY = 0.01  # weight decay


class Sums:
    """Sums of a weighted regression of targets on features."""

    def __init__(self, features: int, targets: int) -> None:
        self.gram = torch.zeros(features, features, dtype=torch.float64)
        self.cross = torch.zeros(features, targets, dtype=torch.float64)
        self.weight = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Rows of features, of targets, and of weights (rows, 1)."""
        weighted = (x * weight).mT
        self.gram += weighted @ x
        self.cross += weighted @ y
        self.weight += weight.double().sum()

    def total(self, processes: Processes) -> None:
        """Add up those of all processes."""
        for value in (self.gram, self.cross, self.weight):
            processes.total(value)

    def solve(self, alphas: Sequence[float]) -> Tensor:
        """Weights (alphas, features, targets) of ridge regressions, for features of unit power."""
        total = self.weight.clamp(min=1e-30)
        gram, cross = self.gram / total, self.cross / total
        scale = gram.diagonal().clamp(min=1e-24).sqrt()
        scaled, target = gram / scale / scale[:, None], cross / scale[:, None]
        eye = torch.eye(len(scale), dtype=torch.float64)
        solved = [torch.linalg.solve(scaled + alpha * eye, target) / scale[:, None] for alpha in alphas]
        return torch.stack(solved)


def fit_readout(member: PooledMember, windows: Windows, alphas: Sequence[float], rounds: int = ROUNDS) -> Tensor:
    """Weights (alphas, features, horizon) of a member, by ridge regression on the windows that are long enough; 0
    without such windows. Reweighting brings the squared error near the absolute one, in units of the series and of the
    level. The inputs of the hidden layers are standardised before."""
    return _fit(member, windows, alphas, rounds, (1.0,))[0]


def fit_readouts(member: PooledMember, windows: Windows, alphas: Sequence[float], rounds: int) -> Tensor:
    """`fit_readout` of a member, (1, ...); if it starts from classical forecasts also without these, (2, ...), from the
    same Gram matrix."""
    return _fit(member, windows, alphas, rounds, (1.0, 0.0) if member.kind.adaptive else (1.0,))


def _fit(
    member: PooledMember, windows: Windows, alphas: Sequence[float], rounds: int, bases: Sequence[float]
) -> Tensor:
    """Weights (bases, alphas, features, horizon), for targets relative to each of these multiples of the base."""
    kind, rows = member.kind, windows.rows_for(member.kind)
    features, horizon = member.weight.shape
    solved = torch.zeros(len(alphas), features, len(bases) * horizon, dtype=member.weight.dtype)
    has_windows = sum(windows.processes.gathered(len(rows))) > 0
    if has_windows and kind.hidden:
        member.standardize(*windows.sample(kind, rows))
    for number in range(1 + rounds if has_windows else 0):
        sums = Sums(features, len(bases) * horizon)
        for block in rows.split(BLOCK):
            x, y, unit = regression(member, windows, block, bases)
            wrong = (y - x @ solved[0])[:, :horizon].abs().mean(1, keepdim=True) if number else (1 - _SOFT) * unit
            sums.add(x, y, windows.share[block] * row_weights(wrong, unit))
        sums.total(windows.processes)
        solved = sums.solve(alphas if number == rounds else alphas[len(alphas) // 2 :][:1]).to(solved.dtype)
    weights: Tensor = solved.unflatten(2, (len(bases), horizon)).movedim(2, 0)
    return weights


def row_weights(wrong: Tensor, unit: Tensor) -> Tensor:
    """Weights (rows, 1) by which squared errors come near absolute ones, in units of the series and of the level.

    Args:
        wrong: the mean absolute error of an earlier readout, (rows, 1).
        unit: of the series, in levels, (rows, 1).
    """
    return (1 + _SCALED / unit) / (wrong + _SOFT * unit)


def regression(
    member: PooledMember, windows: Windows, rows: Tensor, bases: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Features (rows, features), targets (rows, bases · horizon), and the unit of the series (rows, 1), in levels."""
    kind = member.kind
    values, ahead = windows.values(kind, rows)
    with torch.no_grad():
        window = member.features(values, ahead)
    level = window.level.clamp(min=1e-30)
    future = windows.future[rows] / (ahead if kind.season > 1 else 1.0) / level
    change = (future.clamp(min=LOWEST).log() if kind.log else future) - window.last
    targets = torch.cat([change - base * window.base for base in bases], dim=1)
    unit = (windows.unit[rows] / level).clamp(SMALLEST_UNIT, 1)
    return window.features, targets.clamp(-LARGEST_CHANGE, LARGEST_CHANGE), unit


def train(member: PooledMember, windows: Windows, fallback: Tensor, seed: int = 0) -> None:
    """Train the hidden layers and the readout of a member to the smallest `Error` of the windows that are long enough.

    Args:
        member: whose weights are trained.
        windows: with what follows them.
        fallback: forecasts of the windows, which the error is relative to.
        seed: of the order of the windows.
    """
    kind, rows, processes = member.kind, windows.rows_for(member.kind), windows.processes
    counts = processes.gathered(len(rows))
    first, count = sum(counts[: processes.rank]), sum(counts)  # of all processes' rows this one has some, from `first`
    if not count:
        return
    member.standardize(*windows.sample(kind, rows), each=True)
    scales = Error.of(windows, fallback).scales[rows]
    scales = scales / processes.mean(scales) / processes.mean(windows.future[rows].sub(fallback[rows]).abs())
    examples = min(EPOCHS * count, EXAMPLES)
    batch = max(1, min(BATCH, examples // LEAST_STEPS, count))
    steps = max(1, examples // batch)
    weights = [parameter.requires_grad_() for parameter in member.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = count // batch
    with torch.enable_grad():
        for step in range(steps):
            if step % per_epoch == 0:
                order = torch.randperm(count, generator=generator)
            places = order[step % per_epoch * batch :][:batch] - first
            places = places[(places >= 0) & (places < len(rows))]
            block = rows[places]
            values, ahead = windows.values(kind, block)
            window = member.features(values, ahead)
            forecasts = forecast_of(kind, window, window.features @ member.weight, values, ahead)
            loss = (scales[places] * (forecasts - windows.future[block]).abs()).sum() / (batch * windows.horizon)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            _add_gradients(weights, processes)
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
    member.requires_grad_(False)


def _add_gradients(weights: Sequence[Tensor], processes: Processes) -> None:
    """Add up the gradients of all processes."""
    if processes.count == 1:
        return
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    together = processes.total(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, total in zip(gradients, together.split([len(g.flatten()) for g in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))
