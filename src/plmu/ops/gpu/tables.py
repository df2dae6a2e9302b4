"""The constant matrices of the fused kernels, and how much of the past a chunk needs.

All are built in float64 and cached by `LinearSystem.derive`. Shapes and names are those of `triton_chunked`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.core.systems import LinearSystem
from plmu.ops.groups import SystemGroups, each
from plmu.ops.matrices import power, response, reversed_response

CHUNK = 64  # steps
HISTORIES = (16, 32, 64)  # numbers of inputs before a chunk that may replace its state
LAST = 256  # most inputs from which the final state is made, if such a history is enough
CHANNELS = 64  # of a program that carries states
AT_ONCE = 230  # chunks that a GPU processes in parallel in the time of one; measured on an H200
SECOND_LAUNCH = 4  # chunks that a program processes in the time of a launch
SCALE = 512.0  # of constants in parts of float16, so that the second part keeps all its bits


def history(system: LinearSystem | SystemGroups, dtype: torch.dtype) -> int:
    """The number of inputs before a chunk that replace its state; 0 if an impulse response lasts longer."""
    small = torch.finfo(dtype).eps / 16  # the rest is lost in the rounding of m
    enough = [
        steps for steps in HISTORIES if all(single.numbers(fading, LAST)[steps] <= small for single in each(system))
    ]
    return enough[0] if enough and lasting(system) else 0


def lasting(system: LinearSystem | SystemGroups) -> int:
    """The number of last inputs that make the final state, a multiple of a chunk; 0 if it is more than LAST."""
    small = torch.finfo(torch.float32).eps
    enough = [
        steps
        for steps in range(CHUNK, LAST + 1, CHUNK)
        if all(single.numbers(fading, LAST)[steps - 1] <= small for single in each(system))
    ]
    return enough[0] if enough else 0


def fading(system: LinearSystem, steps: int) -> Tensor:
    """The fraction of the impulse response after 0 to `steps` steps, of the order that fades last."""
    taps = response(system, 4 * steps).squeeze(2).square()
    rest = taps.flip(1).cumsum(1).flip(1)  # from each lag on
    return (rest[:, 1 : steps + 2] / rest[:, :1]).max(0).values.sqrt()


class Tables(NamedTuple):
    """The constant matrices of the kernels. With groups of channels each has a first axis of groups."""

    toeplitz: Tensor  #: T_i
    past: Tensor  #: from a chunk's past to its states
    future: Tensor  #: the same if time runs backwards
    taps: Tensor  #: from a chunk's inputs to the state after it
    advance: Tensor  #: from the state before a chunk to the state after it
    leap: Tensor  #: the same for a run of chunks
    last_taps: Tensor  #: from the last inputs to the final state
    last_advance: Tensor  #: from the state before them to the final state
    from_state: Tensor  #: row i of Ā¹ … Ā^CHUNK, for the gradient of u with groups; else `past`

    def of_group(self, group: int) -> Tables:
        """The tables of one group."""
        return Tables._make(table[group] for table in self)


class Constants:
    """What a projection needs beside tensors with a batch: the tables, and the form of a chunk's past.

    If `steps` is not 0, that number of inputs before a chunk replaces its state; else a program carries the state over
    `run` chunks.
    """

    __slots__ = ("groups", "in_parts", "powers", "prepared", "run", "steps", "tables")

    def __init__(self, tables: Tables, powers: Tensor | None, steps: int, run: int, groups: int) -> None:
        self.tables, self.powers, self.steps, self.run, self.groups = tables, powers, steps, run, groups
        #: Whether the matrices that multiply float32 are sums of parts in half precision.
        self.in_parts = tables.toeplitz.dim() == tables.advance.dim() + 2
        self.prepared: dict[Any, Any] = {}  #: what calls of the same shapes share


def tables(u: Tensor, system: LinearSystem | SystemGroups, steps: int, run: int, parts: int = 0) -> Tables:
    """The constant matrices for `steps` inputs before a chunk, or for states that a program carries over `run` chunks.
    If `parts` is not 0, the first three are sums of `parts` terms: (parts, ...)."""
    operand, wide, device, time = u.dtype, torch.float32, u.device, u.shape[1]
    rows = rows_of(system.order)
    split = operand == torch.bfloat16  # it has the range of float32; float16 does not, and is widened instead
    taps, taps_type = (taps_in_bfloat16, operand) if split else (taps_whole, wide)
    past: tuple[Any, Any] = (inputs_before, inputs_after) if steps else (powers_by_order, powers_from_end)
    toeplitz: Any = by_order
    if parts:
        operand, toeplitz, past = half(parts), toeplitz_in_parts, (powers_in_parts, powers_from_end_in_parts)
    divided = (parts,) if parts else ()
    last = min(time, lasting(system)) if steps else (time - 1) % CHUNK + 1
    before = system.derive(past[0], CHUNK, steps or rows, *divided, dtype=operand, device=device)
    from_state = before
    if steps and len(each(system)) > 1:
        from_state = system.derive(powers_by_order, CHUNK, rows, dtype=operand, device=device)
    return Tables(
        system.derive(toeplitz, CHUNK, *divided, dtype=operand, device=device),
        before,
        system.derive(past[1], CHUNK, steps or rows, *divided, dtype=operand, device=device),
        system.derive(taps, CHUNK, dtype=taps_type, device=device),
        system.derive(power, CHUNK, dtype=wide, device=device),
        system.derive(power, CHUNK * run, dtype=wide, device=device),
        system.derive(taps, last, dtype=taps_type, device=device),
        system.derive(power, last, dtype=wide, device=device),
        from_state,
    )


def grouping(batch: int, time: int, channels: int, groups: int = 1) -> tuple[int, float]:
    """The length of a run, over which a program carries states, in chunks; and the estimated time in chunks.

    A run is a whole sequence, or a part of it. With several runs one launch computes their ends in parallel, and a
    second one their starts and each chunk again: faster if sequences and channels alone leave much of a GPU idle.
    """
    chunks, programs = tiles(time, CHUNK), batch * groups * tiles(channels // groups, CHANNELS)

    def cost(size: int) -> float:
        runs = tiles(chunks, size)
        in_a_row = size if runs == 1 else 2 * size + runs + SECOND_LAUNCH
        of_all = programs * (size if runs == 1 else 2 * chunks + runs * runs / 4)
        return in_a_row / 2 + max(in_a_row / 2, of_all / AT_ONCE)

    size = min((chunks, *(1 << k for k in reversed(range((chunks - 1).bit_length())))), key=cost)
    return size, cost(size)


def by_order(system: LinearSystem, chunk: int) -> Tensor:
    """T_i for every order i: (order, chunk, chunk), T_i[t, s] = H[i, t − s] for s ≤ t."""
    taps = response(system, chunk).squeeze(2)
    time = torch.arange(chunk, device=taps.device)
    lag = time[:, None] - time[None, :]
    return taps[:, lag.clamp(min=0)] * (lag >= 0)


def all_powers(system: LinearSystem, length: int) -> Tensor:
    """Ā¹ … Ā^length: (length, order, order)."""
    return system.powers(length)


def taps_whole(system: LinearSystem, length: int) -> Tensor:
    """The impulse response in reversed time: (1, order, length)."""
    return reversed_response(system, length)[None]


def taps_in_bfloat16(system: LinearSystem, length: int) -> Tensor:
    """The same as a sum of three terms, each the rounded rest of those before: (3, order, length)."""
    whole = reversed_response(system, length)
    parts: list[Tensor] = []
    for _ in range(3):
        parts.append((whole - sum(parts)).bfloat16().to(whole.dtype))
    return torch.stack(parts)


def powers_by_order(system: LinearSystem, chunk: int, rows: int) -> Tensor:
    """P_i for every order i: (order, chunk, rows), row i of Ā¹ … Ā^chunk, padded with zeros."""
    by_order = system.powers(chunk).transpose(0, 1)
    return torch.nn.functional.pad(by_order, (0, rows - system.order)).contiguous()


def powers_from_end(system: LinearSystem, chunk: int, rows: int) -> Tensor:
    """The same if time runs backwards: row i of Ā^chunk … Ā¹."""
    return powers_by_order(system, chunk, rows).flip(1)


def inputs_before(system: LinearSystem, chunk: int, steps: int) -> Tensor:
    """H at the distance of the `steps` inputs before a chunk: (order, chunk, steps)."""
    taps = response(system, chunk + steps).squeeze(2)
    lag = torch.arange(chunk)[:, None] + steps - torch.arange(steps)
    return taps[:, lag.to(taps.device)]


def inputs_after(system: LinearSystem, chunk: int, steps: int) -> Tensor:
    """The same if time runs backwards, for the inputs after a chunk."""
    return inputs_before(system, chunk, steps).flip(1, 2)


def half(parts: int) -> torch.dtype:
    """The precision of the terms of `in_parts`."""
    return torch.float16 if parts == 2 else torch.bfloat16


def in_parts(whole: Tensor, parts: int) -> Tensor:
    """A matrix as a sum of `parts` terms in half precision, each the rounded rest of those before: (parts, ...)."""
    terms: list[Tensor] = []
    rest = whole * SCALE if parts == 2 else whole
    for _ in range(parts):
        terms.append(rest.to(half(parts)).to(whole.dtype))
        rest = rest - terms[-1]
    return torch.stack(terms)


def toeplitz_in_parts(system: LinearSystem, chunk: int, parts: int) -> Tensor:
    """T_i for every order i: (parts, order, chunk, chunk)."""
    return in_parts(by_order(system, chunk), parts)


def powers_in_parts(system: LinearSystem, chunk: int, rows: int, parts: int) -> Tensor:
    """P_i for every order i: (parts, order, chunk, rows)."""
    return in_parts(powers_by_order(system, chunk, rows), parts)


def powers_from_end_in_parts(system: LinearSystem, chunk: int, rows: int, parts: int) -> Tensor:
    """The same if time runs backwards."""
    return in_parts(powers_from_end(system, chunk, rows), parts)


def rows_of(order: int) -> int:
    """The order rounded up to a size that a matrix unit takes."""
    return max(16, 1 << (order - 1).bit_length())


def tiles(size: int, tile: int) -> int:
    """The number of tiles that cover a size."""
    return -(-size // tile)


def segments_of(resets: Tensor | None) -> Tensor | None:
    """The number of each step's segment, from 0: resets divide a sequence into segments. (batch, time)"""
    return None if resets is None else resets.cumsum(1, dtype=torch.int32)


def sum_terms(taps: Tensor) -> Tensor:
    """The sum of all terms in float32: (order, length)."""
    return taps.float().sum(-3)
