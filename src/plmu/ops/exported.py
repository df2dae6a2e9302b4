"""`chunked` for torch.export with a batch or time left open, in operations that hold for every size.

No decision in Python looks at an open size, and no constant depends on one. States pass between chunks in as many
rounds as the longest sequence needs that the export allows, or until Ā has died out. In a round that a shorter sequence
does not need, the power of Ā is zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from plmu.ops.matrices import apply, block_matrix, input_matrix, power, reversed_response
from plmu.ops.modes import is_open, surely
from plmu.systems import LinearSystem

LONGEST = 1 << 31  # steps, where the export sets no end
CHUNKS = (64, 32, 16)  # steps
LARGEST_MATRIX = 1 << 20  # elements of the constant matrix of a chunk; it becomes a part of the exported file


def states(u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor | None) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels)."""
    batch, time, inputs, channels = u.shape
    if resets is not None:
        return _with_resets(u, system, state, resets)
    chunk = _chunk(system, time, inputs)
    count = (time + chunk - 1) // chunk
    x = pad(u, (0, 0, 0, 0, 0, count * chunk - time)).reshape(batch, count, chunk * inputs, channels)
    ends = apply(system.derive(reversed_response, chunk, dtype=u.dtype, device=u.device), x)
    first = ends.new_zeros(batch, 1, system.order, channels) if state is None else state[:, None]
    before = carry(torch.cat([first, ends], dim=1).narrow(1, 0, count), None, system, chunk)
    matrix = system.derive(block_matrix, chunk, dtype=u.dtype, device=u.device)
    m = apply(matrix, torch.cat([x, before], dim=2))  # (batch, chunks, chunk · order, channels)
    return m.reshape(batch, count * chunk, system.order, channels).narrow(1, 0, time)


def driven(u: Tensor, system: LinearSystem) -> Tensor:
    """The final state (batch, order, channels) from a zero initial state."""
    batch, time, inputs, channels = u.shape
    chunk = _chunk(system, time, inputs)
    count = (time + chunk - 1) // chunk
    x = pad(u, (0, 0, 0, 0, count * chunk - time, 0)).reshape(batch, count, chunk * inputs, channels)
    ends = apply(system.derive(reversed_response, chunk, dtype=u.dtype, device=u.device), x)
    for _, advance in _advances(system, chunk, count, u):  # join chunks in pairs, earlier into later
        half = (count + 1) // 2
        pairs = pad(ends, (0, 0, 0, 0, 2 * half - count, 0)).reshape(batch, half, 2, system.order, channels)
        ends, count = apply(advance, pairs[:, :, 0]) + pairs[:, :, 1], half
    return ends[:, -1]


def decayed(state: Tensor, system: LinearSystem, time: int, lengths: Tensor | None) -> Tensor:
    """Ā^time m_0, or Ā^length m_0, with the power taken bit by bit."""
    steps = torch.full((state.shape[0],), time, device=state.device) if lengths is None else lengths
    shift = 0
    for shift, advance in _advances(system, 1, time + 1, state):
        chosen = (steps // shift) % 2 == 1
        state = torch.where(chosen[:, None, None], apply(advance, state), state)
    return torch.where((steps >= 2 * shift)[:, None, None], 0.0, state) if shift else state * 0.0


def carry(values: Tensor, links: Tensor | None, system: LinearSystem, stride: int) -> Tensor:
    """s_k = Ā^stride s_{k-1} + v_k for all k, as `plmu.ops.chunked.carry`; here `links` is (batch, count)."""
    count = values.shape[1]
    for shift, advance in _advances(system, stride, count, values):
        more = apply(advance, pad(values, (0, 0, 0, 0, shift, 0)).narrow(1, 0, count))
        if links is not None:
            more = torch.where(links[:, :, None, None], more, 0.0)
            links = links & pad(links, (shift, 0)).narrow(1, 0, count)
        values = values + more
    return values


def _with_resets(u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor) -> Tensor:
    """Every step as a chunk of its own, carried over those links that no reset cuts."""
    like = {"dtype": u.dtype, "device": u.device}
    values = apply(system.derive(input_matrix, **like), u)  # (batch, time, order, channels)
    if state is not None:
        kept = torch.where(resets[:, :1, None], 0.0, apply(system.derive(power, 1, **like), state))
        values = values + pad(kept[:, None], (0, 0, 0, 0, 0, u.shape[1] - 1))
    return carry(values, ~resets, system, 1)


def _chunk(system: LinearSystem, time: int, inputs: int) -> int:
    """Steps a chunk: the most whose matrix is small, but not more than there are."""
    order = system.order
    small = [chunk for chunk in CHUNKS if chunk * order * (chunk * inputs + order) <= LARGEST_MATRIX]
    chunk = small[0] if small else CHUNKS[-1]
    return chunk if is_open(time) else min(chunk, time)


def _advances(system: LinearSystem, stride: int, count: int, like: Tensor) -> Iterator[tuple[int, Tensor]]:
    """1, 2, 4, … with Ā^stride, Ā^2·stride, Ā^4·stride, …; zero in their place from `count` on, which they may pass."""
    power_now, shift = None, 1
    steps = torch.full((), count, device=like.device)
    while stride * shift < LONGEST and not surely(count <= shift):
        if system.vanishes(stride * shift, like.dtype):
            return
        if system.constant:
            advance = system.derive(power, stride * shift, dtype=like.dtype, device=like.device)
        else:
            power_now = system.power(stride) if power_now is None else power_now @ power_now
            advance = system.derive(_given(power_now), dtype=like.dtype, device=like.device)
        yield shift, torch.where(steps > shift, advance, 0.0)
        shift *= 2


def _given(value: Tensor):  # type: ignore[no-untyped-def]
    return lambda system: value
