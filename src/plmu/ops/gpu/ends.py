"""Gradients through the first and the final state of `project` in `plmu.ops.fused`, with torch's products."""

from __future__ import annotations

import torch
from torch import Tensor

from plmu.ops.gpu.tables import CHUNK, Constants, sum_terms, tiles
from plmu.ops.matrices import finite


def through_states(
    u: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    constants: Constants,
    needed: tuple[bool, bool, bool],
    grad_o: Tensor | None,
    grad_last: Tensor | None,
    grad_u: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of u, including what the final state adds to it, and the gradient of the first state."""
    need_u, _, need_first = needed
    grad_first = None
    if grad_o is not None and need_first:  # it affects the first segment alone
        reached = grad_o if segments is None else torch.where((segments == 0)[:, :, None], grad_o, 0.0)
        assert constants.powers is not None
        grad_first = _gradient_of_first(reached, weight, constants.powers, constants.groups)
    if grad_last is not None and (need_u or need_first):
        added, to_first = _through_last(grad_last, u.shape[1], constants, need_u)
        if segments is not None:  # it depends on the last segment alone
            end = segments[:, -1:]
            added = None if added is None else torch.where((segments == end)[:, :, None], added, 0.0)
            to_first = None if to_first is None else torch.where((end == 0)[:, :, None], to_first, 0.0)
        if added is not None:
            grad_u = added.to(u.dtype) if grad_u is None else grad_u + added.to(u.dtype)
        if need_first and to_first is not None:
            grad_first = to_first if grad_first is None else grad_first + to_first
    return grad_u, grad_first


def _gradient_of_first(grad_o: Tensor, weight: Tensor, powers: Tensor, groups: int) -> Tensor:
    """The gradient of the first state from that of o: Σ_t (Ā^{t+1})ᵀ W_mᵀ grad_o[t], in parts of `len(powers)` steps
    from the last."""
    if groups > 1:
        parts = zip(weight.chunk(groups, dim=2), powers.unbind(), strict=True)
        return torch.cat([_gradient_of_first(grad_o, part, group_powers, 1) for part, group_powers in parts], dim=2)
    total: Tensor | None = None
    for part in reversed(grad_o.split(powers.shape[0], dim=1)):
        grad_state = torch.einsum("tij,bto->bijo", powers[: part.shape[1]], part.to(powers.dtype))
        total = grad_state if total is None else grad_state + torch.einsum("biko,kj->bijo", total, powers[-1])
    assert total is not None
    return torch.einsum("bijo,oic->bjc", total, weight.to(powers.dtype))


def _through_last(
    grad_last: Tensor, time: int, constants: Constants, need_u: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients through the final state of all inputs (batch, time, channels), if needed, and of the first state
    (batch, order, channels), if states are carried."""
    if constants.groups > 1:
        parts = enumerate(grad_last.chunk(constants.groups, dim=2))
        singles = [
            (end, Constants(constants.tables.of_group(i), None, constants.steps, constants.run, 1)) for i, end in parts
        ]
        gradients = [_through_last(end, time, single, need_u) for end, single in singles]
        inputs, states = ([part for part in each if part is not None] for each in zip(*gradients, strict=True))
        return torch.cat(inputs, dim=2) if inputs else None, torch.cat(states, dim=2) if states else None
    _, _, _, taps, advance, _, last_taps, last_advance, _ = constants.tables
    passed = added = None
    if not constants.steps:
        passed = _before_chunks(grad_last, tiles(time, CHUNK), advance, last_advance)
    if need_u:  # of the last inputs directly, of the others through the states before chunks
        added = sum_terms(last_taps).mT @ grad_last
        if passed is not None:
            added = torch.cat([(sum_terms(taps).mT @ passed[:, 1:]).flatten(1, 2), added], dim=1)
        added = torch.nn.functional.pad(added, (0, 0, time - added.shape[1], 0))
    return added, None if passed is None else passed[:, 0]


def _before_chunks(grad_last: Tensor, chunks: int, advance: Tensor, last_advance: Tensor) -> Tensor:
    """The gradients of the states before all chunks from that of the final state: (batch, chunks, order, channels)."""
    passed, back = (last_advance.mT @ grad_last)[:, None], advance.mT
    while passed.shape[1] < chunks:
        passed = torch.cat([back @ passed, passed], dim=1)[:, -chunks:]
        back = finite(back @ back)
    return passed
