"""`chunked` for torch.export with a batch or time left open, in operations that hold for every size.

No decision in Python looks at an open size, and no constant depends on one. States pass between chunks in as many
rounds as the longest allowed sequence needs, or until the power of Ā has faded to zero. In a round that a shorter
sequence does not need, the power of Ā is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from plmu.core.modes import surely
from plmu.core.systems import LinearSystem
from plmu.ops.matrices import apply, block_matrix, input_matrix, power, reversed_response

LONGEST = 1 << 31  # steps, where the export sets no end
CHUNKS = (64, 32, 16)  # steps
LARGEST_MATRIX = 1 << 20  # elements of the constant matrix of a chunk; it becomes a part of the exported file


def states(u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor | None) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels)."""
    batch, time, inputs, channels = u.shape
    if resets is not None:
        return _with_resets(u, system, state, resets)
    chunk = _chunk(system, inputs)
    count = (time + 2 * chunk - 1) // chunk
    x = pad(u, (0, 0, 0, 0, 0, count * chunk - time)).reshape(batch, count, chunk * inputs, channels)
    ends = apply(system.derive(reversed_response, chunk, dtype=u.dtype, device=u.device), x)
    first = ends.new_zeros(batch, 1, system.order, channels) if state is None else state[:, None]
    before = carry(_first(torch.cat([first, ends], dim=1), count), None, system, chunk)
    matrix = system.derive(block_matrix, chunk, dtype=u.dtype, device=u.device)
    m = apply(matrix, torch.cat([x, before], dim=2))  # (batch, chunks, chunk · order, channels)
    return _first(m.reshape(batch, count * chunk, system.order, channels), time)


def driven(u: Tensor, system: LinearSystem) -> Tensor:
    """The final state (batch, order, channels) from a zero initial state."""
    batch, time, inputs, channels = u.shape
    chunk = _chunk(system, inputs)
    count = (time + 2 * chunk - 1) // chunk
    x = pad(u, (0, 0, 0, 0, count * chunk - time, 0)).reshape(batch, count, chunk * inputs, channels)
    ends = apply(system.derive(reversed_response, chunk, dtype=u.dtype, device=u.device), x)
    return carry(ends, None, system, chunk)[:, -1].clone()


def decayed(state: Tensor, system: LinearSystem, time: int, lengths: Tensor | None) -> Tensor:
    """Ā^time m_0, or Ā^length m_0 with `lengths` (batch,): the state (batch, order, channels) times Ā^1, Ā^2, Ā^4, …
    where the bit of the exponent is set."""
    steps = torch.full((state.shape[0],), time, device=state.device) if lengths is None else lengths
    shift = 0
    for shift, advance in _advances(system, 1, time + 1, state):
        chosen = (steps // shift) % 2 == 1
        state = torch.where(chosen[:, None, None], apply(advance, state), state)
    return torch.where((steps >= max(2 * shift, 1))[:, None, None], 0.0, state)  # all beyond has died out


def carry(values: Tensor, links: Tensor | None, system: LinearSystem, stride: int) -> Tensor:
    """s_k = Ā^stride s_{k-1} + v_k for all k, as `plmu.ops.blocks.carry`; here `links` is (batch, count)."""
    count = values.shape[1]
    for shift, advance in _advances(system, stride, count, values):
        earlier = torch.arange(count, device=values.device) - shift
        present, earlier = earlier >= 0, earlier.clamp(min=0)
        passed = apply(advance, values.index_select(1, earlier))
        if links is None:
            passed = torch.where(present[:, None, None], passed, 0.0)
        else:
            reached = links & present
            passed = torch.where(reached[:, :, None, None], passed, 0.0)
            links = reached & links.index_select(1, earlier)
        values = values + passed
    return values


def _with_resets(u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor) -> Tensor:
    """All states (batch, time, order, channels): every step is a chunk of its own, and no state passes a reset."""
    values = apply(system.derive(input_matrix, dtype=u.dtype, device=u.device), u)  # (batch, time, order, channels)
    if state is not None:
        advanced = apply(system.derive(power, 1, dtype=u.dtype, device=u.device), state)
        advanced = torch.where(resets[:, :1, None], 0.0, advanced)
        values = values + pad(advanced[:, None], (0, 0, 0, 0, 0, u.shape[1] - 1))
    return carry(values, ~resets, system, 1)


def _chunk(system: LinearSystem, inputs: int) -> int:
    """Steps of a chunk: the largest with a small matrix. A sequence has at least two chunks, since torch would
    specialise on a single one."""
    order = system.order
    small = [chunk for chunk in CHUNKS if chunk * order * (chunk * inputs + order) <= LARGEST_MATRIX]
    return small[0] if small else CHUNKS[-1]


def _first(values: Tensor, count: int) -> Tensor:
    """A copy of the first `count` steps or chunks (axis 1); torch would compare the strides of a slice with its
    sizes."""
    return values.index_select(1, torch.arange(count, device=values.device))


def _advances(system: LinearSystem, stride: int, count: int, like: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Pairs (shift, Ā^(stride · shift)) for shift = 1, 2, 4, …, with zero in place of the power if shift ≥ `count`. The
    last shift depends on the largest value that an open `count` may have, and on when the powers fade to zero."""
    power_now, shift = None, 1
    steps = torch.full((), count, device=like.device)
    while stride * shift < LONGEST and not surely(count <= shift):
        if system.vanishes(stride * shift, like.dtype):
            return
        if system.constant:
            advance = system.derive(power, stride * shift, dtype=like.dtype, device=like.device)
        else:
            power_now = system.power(stride) if power_now is None else power_now @ power_now
            advance = system.derive(_constant(power_now), dtype=like.dtype, device=like.device)
        yield shift, torch.where(steps > shift, advance, 0.0)
        shift *= 2


def _constant(value: Tensor) -> Callable[[LinearSystem], Tensor]:
    return lambda system: value
