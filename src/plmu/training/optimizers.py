"""Which optimiser trains which parameters: AdamW, and Muon for the matrices of those groups that ask for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from plmu.training.config import TrainingConfig
from plmu.training.task import Group, Task

# Coefficients of the quintic iteration that takes singular values to about one (Keller Jordan's Muon, 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)
MOST_PADDED = 2  # times the numbers of its matrices that a batch of Muon may have
LIKE_ADAM = 0.2  # root mean square of an update, times the learning rate: about that of Adam's


def optimizers(model: nn.Module, task: Task, config: TrainingConfig, graphed: bool) -> list[torch.optim.Optimizer]:
    """The optimisers of a run. In a captured graph learning rates are tensors, so that they can be changed."""
    device = next(model.parameters()).device
    groups = [Group(list(model.parameters()))] if task.groups is None else task.groups(model)
    grouped = [id(p) for group in groups for p in group.parameters]
    missing = {id(p) for p in model.parameters() if p.requires_grad} - set(grouped)
    if missing or len(grouped) != len(set(grouped)):
        raise RuntimeError("the groups of a task must hold each trained parameter once")

    def options(group: Group) -> dict[str, Any]:
        rate = torch.tensor(config.learning_rate, device=device) if graphed else config.learning_rate
        decay = config.weight_decay if group.decay else 0.0
        return {"lr": rate, "weight_decay": decay, "scale": group.rate, "begins": group.begins}

    muon, adam = [], []
    for group in groups:
        by_muon = group.matrices and config.optimizer == "muon"
        chosen = [p for p in group.parameters if by_muon and p.dim() > 1]
        rest = [p for p in group.parameters if not (by_muon and p.dim() > 1)]
        muon += [{"params": chosen, **options(group)}] if chosen else []
        adam += [{"params": rest, **options(group)}] if rest else []
    if config.optimizer == "muon" and not muon:
        raise ValueError("training.optimizer = muon is for models of language and translation: use adamw here")
    made: list[torch.optim.Optimizer] = []
    if adam:
        made.append(
            torch.optim.AdamW(adam, betas=config.betas, capturable=graphed, fused=True)
            if device.type == "cuda"
            else torch.optim.AdamW(adam, betas=config.betas)
        )
    if muon:
        made.append(Muon(muon, few_launches=config.compile and device.type == "cuda"))
    return made


def parameters_of(optimizers: list[torch.optim.Optimizer]) -> list[tuple[torch.optim.Optimizer, nn.Parameter]]:
    """All parameters in the order in which a checkpoint numbers them."""
    return [(optimizer, p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal before they are added, by a few Newton–Schulz iterations.

    `torch.optim.Muon` does the same one matrix after another and with its learning rate fixed in a captured graph; here
    matrices go through the iterations in batches, and the learning rate may be a tensor.

    Parameters with more than two axes count as matrices with the first axis as rows. Updates have the size that Adam's
    have, so that its learning rate and weight decay serve for both.

    Args:
        params: matrices, or groups of them, each with `lr` and `weight_decay`.
        momentum: decay of the momentum, which is Nesterov's.
        iterations: of Newton–Schulz.
        few_launches: for a GPU, where small kernels take longer than their arithmetic. Matrices whose shorter sides are
            equal are one batch, filled up with zeros while these are no more than half of it, and all before and after
            the iterations is compiled.
    """

    few_launches = False

    def __init__(self, params: Any, momentum: float = 0.95, iterations: int = 5, *, few_launches: bool = False) -> None:
        super().__init__(params, {"lr": 1e-3, "weight_decay": 0.0, "momentum": momentum, "iterations": iterations})
        self.few_launches = few_launches
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        """With what torch's optimisers leave out of a copy."""
        return {**super().__getstate__(), "few_launches": self.few_launches}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    def _prepare(self) -> None:
        self._ahead = torch.compile(_ahead, dynamic=False) if self.few_launches else _ahead
        self._apply = torch.compile(_apply, dynamic=False) if self.few_launches else _apply

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of all parameters that have a gradient; before it, `closure` computes loss and gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            with_gradient = [p for p in group["params"] if p.grad is not None]
            for alike in _batches(with_gradient, self.few_launches):
                gradients = [p.grad.reshape(p.shape[0], -1) for p in alike]  # type: ignore[union-attr]
                ahead = self._ahead(gradients, [self._moment(p) for p in alike], group["momentum"])
                update = orthogonal(ahead, group["iterations"])
                self._apply(alike, update, self._rate(group["lr"], update), group["weight_decay"])
        return loss

    def _rate(self, rate: Tensor | float, update: Tensor) -> Tensor | float:
        """The learning rate, as a tensor for compiled functions: these are compiled again for each new number."""
        if isinstance(rate, Tensor) or not self.few_launches:
            return rate
        return torch.full((), rate, dtype=torch.float32, device=update.device)

    def _moment(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p.reshape(p.shape[0], -1), memory_format=torch.contiguous_format)
        momentum: Tensor = state["momentum"]
        return momentum


def _batches(params: list[Tensor], padded: bool) -> list[list[Tensor]]:
    """Parameters whose matrices go through the iterations together: those of one shape and precision; or, if `padded`,
    with equal shorter sides, as long as at most half of a batch is zeros."""
    groups: dict[Any, dict[int, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for p in params:
        rows, columns = p.shape[0], p[0].numel()
        alike = min(rows, columns) if padded else (rows, columns)
        groups[p.device, p.dtype, alike][max(rows, columns)].append(p)
    batches = []
    for by_length in groups.values():
        longest, *shorter = (by_length[length] for length in sorted(by_length, reverse=True))
        batches.append(longest)
        for candidates in shorter:
            both = [*batches[-1], *candidates]
            if len(both) * both[0].numel() <= MOST_PADDED * sum(p.numel() for p in both):
                batches[-1] = both
            else:
                batches.append(candidates)
    return batches


def _ahead(gradients: list[Tensor], moments: list[Tensor], momentum: float) -> Tensor:
    """Update the momentum of all matrices, and look a step ahead (Nesterov).

    Returns:
        A batch of wide matrices, padded with zeros to the longest.
    """
    torch._foreach_lerp_(moments, gradients, 1 - momentum)
    ahead = [gradient.lerp(moment, momentum) for gradient, moment in zip(gradients, moments, strict=True)]
    wide = [matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix for matrix in ahead]
    longest = max(matrix.shape[1] for matrix in wide)
    batch = torch.stack([pad(matrix, (0, longest - matrix.shape[1])) for matrix in wide])
    return batch.bfloat16() if batch.is_cuda else batch


def _apply(params: list[Tensor], update: Tensor, rate: Tensor | float, decay: float) -> None:
    """Apply weight decay, and subtract the updates."""
    changes, sizes = [], []
    for p, change in zip(params, update.to(params[0].dtype), strict=True):
        rows, columns = p.shape[0], p[0].numel()
        short, long = sorted((rows, columns))
        taken = change[:short, :long]
        changes.append((taken.mT if rows > columns else taken).reshape(p.shape))
        sizes.append(LIKE_ADAM * long**0.5)
    changes = list(torch._foreach_mul(changes, sizes))
    torch._foreach_mul_(changes, rate)
    torch._foreach_mul_(params, 1 - rate * decay)
    torch._foreach_sub_(params, changes)


def orthogonal(x: Tensor, iterations: int) -> Tensor:
    """Wide matrices (count, rows, columns) with all singular values near one: U Vᵀ of U S Vᵀ, roughly."""
    a, b, c = QUINTIC
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x
