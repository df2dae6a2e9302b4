"""States carried from chunk to chunk, for all chunks at once in log₂ rounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import watched
from plmu.core.systems import LinearSystem
from plmu.ops.matrices import apply, power


def carry(values: Tensor, links: Tensor | None, system: LinearSystem, stride: int) -> Tensor:
    """s_k = Ā^stride s_{k-1} + v_k for all k: (batch, count, order, channels), in log₂(count) rounds.

    `links` (batch, count − 1), where given, says whether s_{k-1} flows into s_k at all. Each round doubles how far
    back every s_k has looked; each power of Ā is used once on any path, so rounding does not build up. It ends
    where Ā has died out.
    """
    advances, shift = [], 1
    while shift < values.shape[1] and not system.vanishes(stride * shift, values.dtype):
        advances.append(system.derive(power, stride * shift, dtype=values.dtype, device=values.device))
        shift *= 2
    return _carried(values, links, advances, backwards=False, differentiable=not system.constant)


def _carried(
    values: Tensor, links: Tensor | None, advances: list[Tensor], *, backwards: bool, differentiable: bool = False
) -> Tensor:
    """`carry` with the powers of Ā for 1, 2, 4, … chunks; `backwards`, of their transposes in backward time.

    `differentiable`: in operations that torch takes gradients of, of the powers too. So wherever it looks at them.
    """
    if advances and not (differentiable or watched()):
        carried: Tensor = _Carry.apply(values, links, backwards, *advances)
        return carried
    for k, advance in enumerate(advances):
        shift = 1 << k
        earlier, later = values[:, :-shift], values[:, shift:]
        passed = apply(advance.mT, later) if backwards else apply(advance, earlier)
        if links is not None:
            passed = torch.where(links[:, :, None, None], passed, 0.0)
            links = links[:, shift:] & links[:, :-shift]
        if backwards:
            values = torch.cat([earlier + passed, values[:, -shift:]], dim=1)
        else:
            values = torch.cat([values[:, :shift], later + passed], dim=1)
    return values


class _Carry(torch.autograd.Function):
    """`_carried` in half as many calls of the library, and a third in the gradient, which is the same in the other
    direction of time."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, links: Tensor | None, backwards: bool, *advances: Tensor) -> Tensor:
        ctx.backwards = backwards
        ctx.save_for_backward(links, *advances)
        # A copy to add to in place, in an order in which neighbouring chunks are one piece of memory.
        by_chunk = values.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        links = None if links is None else links.mT
        for k, advance in enumerate(advances):
            shift = 1 << k
            earlier, later = by_chunk[:-shift], by_chunk[shift:]
            source, target = (later, earlier) if backwards else (earlier, later)
            passed = apply(advance.mT if backwards else advance, source)
            if links is not None:
                passed = torch.where(links[:, :, None, None], passed, 0.0)
                links = links[shift:] & links[:-shift]
            target += passed
        return by_chunk.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        links, *advances = ctx.saved_tensors
        return _carried(gradient, links, advances, backwards=not ctx.backwards), None, None, *(None for _ in advances)
