"""Which optimiser trains which parameters: AdamW, and Muon for the matrices of those groups that ask for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor, nn

from plmu.training.config import TrainingConfig
from plmu.training.task import Group, Task

# Coefficients of the quintic iteration that takes singular values to about one (Keller Jordan's Muon, 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)
LIKE_ADAM = 0.2  # root mean square of an update, times the learning rate: about that of Adam's


def optimizers(model: nn.Module, task: Task, config: TrainingConfig, graphed: bool) -> list[torch.optim.Optimizer]:
    """The optimisers of a run. In a captured graph learning rates are tensors, so that they can be changed."""
    device = next(model.parameters()).device
    groups = [Group(list(model.parameters()))] if task.groups is None else task.groups(model)
    known = [id(p) for group in groups for p in group.parameters]
    missing = {id(p) for p in model.parameters() if p.requires_grad} - set(known)
    if missing or len(known) != len(set(known)):
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
        made.append(Muon(muon))
    return made


def parameters_of(found: list[torch.optim.Optimizer]) -> list[tuple[torch.optim.Optimizer, nn.Parameter]]:
    """All parameters in the order in which a checkpoint numbers them."""
    return [(one, p) for one in found for group in one.param_groups for p in group["params"]]


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal before they are added, by a few Newton–Schulz iterations.

    `torch.optim.Muon` does the same one matrix after another and with its learning rate fixed in a captured graph; here
    matrices of one shape go through the iterations as one batch, and the learning rate may be a tensor.

    Parameters with more than two axes count as matrices with the first axis as rows. Updates have the size that Adam's
    have, so that its learning rate and weight decay serve for both.

    Args:
        params: matrices, or groups of them, each with `lr` and `weight_decay`.
        momentum: decay of the momentum, which is Nesterov's.
        iterations: of Newton–Schulz.
    """

    def __init__(self, params: Any, momentum: float = 0.95, iterations: int = 5) -> None:
        super().__init__(params, {"lr": 1e-3, "weight_decay": 0.0, "momentum": momentum, "iterations": iterations})

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
            by_shape: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape[0], p[0].numel()].append(p)
            kept = 1 - group["lr"] * group["weight_decay"]
            for (rows, columns), alike in by_shape.items():
                gradients = [p.grad.reshape(rows, columns) for p in alike]  # type: ignore[union-attr]
                moments = [self._moment(p) for p in alike]
                torch._foreach_lerp_(moments, gradients, 1 - group["momentum"])
                ahead = torch.stack(gradients).lerp_(torch.stack(moments), group["momentum"])
                update = orthogonal(ahead, group["iterations"]).to(ahead.dtype)
                update = (update * (group["lr"] * LIKE_ADAM * max(rows, columns) ** 0.5)).contiguous()
                torch._foreach_mul_(alike, kept)
                torch._foreach_sub_(alike, [change.view(p.shape) for p, change in zip(alike, update, strict=True)])
        return loss

    def _moment(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p.reshape(p.shape[0], -1), memory_format=torch.contiguous_format)
        found: Tensor = state["momentum"]
        return found


def orthogonal(matrices: Tensor, iterations: int) -> Tensor:
    """Matrices (count, rows, columns) with all singular values near one: U Vᵀ of U S Vᵀ, roughly."""
    a, b, c = QUINTIC
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
