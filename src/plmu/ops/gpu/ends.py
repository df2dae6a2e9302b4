"""Gradients through the first and the final state of `project` of `plmu.ops.fused`, by products of torch."""

from __future__ import annotations

import torch
from torch import Tensor

from plmu.ops.gpu.tables import CHUNK, Constants, summed, tiles
from plmu.ops.matrices import finite


def through_states(
    u: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    given: Constants,
    needed: tuple[bool, bool, bool],
    of_o: Tensor | None,
    of_last: Tensor | None,
    of_u: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of u with what the final state adds to it, and that of the first state."""
    need_u, _, need_first = needed
    of_first = None
    if of_o is not None and need_first:  # which reaches the first segment alone
        reached = of_o if segments is None else torch.where((segments == 0)[:, :, None], of_o, 0.0)
        assert given.powers is not None
        of_first = _of_first(reached, weight, given.powers, given.groups)
    if of_last is not None and (need_u or need_first):
        added, passed = _through_last(of_last, u.shape[1], given, need_u)
        if segments is not None:  # it reaches the last segment alone
            end = segments[:, -1:]
            added = None if added is None else torch.where((segments == end)[:, :, None], added, 0.0)
            passed = None if passed is None else torch.where((end == 0)[:, :, None], passed, 0.0)
        if added is not None:
            of_u = added.to(u.dtype) if of_u is None else of_u + added.to(u.dtype)
        if need_first and passed is not None:
            of_first = passed if of_first is None else of_first + passed
    return of_u, of_first


def _of_first(of_o: Tensor, weight: Tensor, powers: Tensor, groups: int) -> Tensor:
    """The gradient of the first state from that of o: Σ_t (Ā^{t+1})ᵀ W_mᵀ of_o[t], segment by segment from the last."""
    if groups > 1:
        parts = zip(weight.chunk(groups, dim=2), powers.unbind(), strict=True)
        return torch.cat([_of_first(of_o, part, own, 1) for part, own in parts], dim=2)
    total: Tensor | None = None
    for part in reversed(of_o.split(powers.shape[0], dim=1)):
        now = torch.einsum("tij,bto->bijo", powers[: part.shape[1]], part.to(powers.dtype))
        total = now if total is None else now + torch.einsum("biko,kj->bijo", total, powers[-1])
    assert total is not None
    return torch.einsum("bijo,oic->bjc", total, weight.to(powers.dtype))


def _through_last(of_last: Tensor, time: int, given: Constants, need_u: bool) -> tuple[Tensor | None, Tensor | None]:
    """What the gradient of the final state says to all inputs (batch, time, channels), if needed, and to the first
    state, where states are passed: (batch, order, channels)."""
    if given.groups > 1:
        ends = enumerate(of_last.chunk(given.groups, dim=2))
        alone = [(end, Constants(given.tables.of_group(i), None, given.steps, given.run, 1)) for i, end in ends]
        found = [_through_last(end, time, own, need_u) for end, own in alone]
        inputs, states = ([one for one in some if one is not None] for some in zip(*found, strict=True))
        return torch.cat(inputs, dim=2) if inputs else None, torch.cat(states, dim=2) if states else None
    _, _, _, taps, advance, _, last_taps, last_advance, _ = given.tables
    passed = added = None
    if not given.steps:
        passed = _before_chunks(of_last, tiles(time, CHUNK), advance, last_advance)
    if need_u:  # to the last inputs, and through earlier states to the others
        added = summed(last_taps).mT @ of_last
        if passed is not None:
            added = torch.cat([(summed(taps).mT @ passed[:, 1:]).flatten(1, 2), added], dim=1)
        added = torch.nn.functional.pad(added, (0, 0, time - added.shape[1], 0))
    return added, None if passed is None else passed[:, 0]


def _before_chunks(of_last: Tensor, chunks: int, advance: Tensor, last_advance: Tensor) -> Tensor:
    """The gradients of the states before all chunks from that of the final one: (batch, chunks, order, channels)."""
    passed, back = (last_advance.mT @ of_last)[:, None], advance.mT
    while passed.shape[1] < chunks:
        passed = torch.cat([back @ passed, passed], dim=1)[:, -chunks:]
        back = finite(back @ back)
    return passed
