"""The constant matrices of the fused kernels, and what is decided by them: how much of the past a chunk must know.

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
HISTORIES = (16, 32, 64)  # inputs before a chunk that may stand for the state
LAST = 256  # inputs from which the final state is made where such a history is enough
CHANNELS = 64  # that one program carries the states of
AT_ONCE = 230  # chunks that a GPU passes in the time of one, in many such programs; measured on an H200
SECOND_LAUNCH = 4  # chunks that a program passes in the time of one more launch
SCALE = 512.0  # of constants in parts of float16, so that the second part has all its bits


def history(system: LinearSystem | SystemGroups, dtype: torch.dtype) -> int:
    """How many inputs before a chunk stand for its state; 0 if an impulse response lasts longer than that."""
    small = torch.finfo(dtype).eps / 16  # what is left out is lost in the rounding of m
    enough = [steps for steps in HISTORIES if all(one.numbers(fading, LAST)[steps] <= small for one in each(system))]
    return enough[0] if enough and lasting(system) else 0


def lasting(system: LinearSystem | SystemGroups) -> int:
    """How many of the last inputs make the final state, in whole chunks; 0 if more than LAST."""
    small = torch.finfo(torch.float32).eps
    enough = [
        steps
        for steps in range(CHUNK, LAST + 1, CHUNK)
        if all(one.numbers(fading, LAST)[steps - 1] <= small for one in each(system))
    ]
    return enough[0] if enough else 0


def fading(system: LinearSystem, steps: int) -> Tensor:
    """The share of the impulse response that is left after 0 to `steps` steps, of the order that fades last."""
    taps = response(system, 4 * steps).squeeze(2).square()
    rest = taps.flip(1).cumsum(1).flip(1)  # from each lag on
    return (rest[:, 1 : steps + 2] / rest[:, :1]).max(0).values.sqrt()


class Tables(NamedTuple):
    """The constant matrices that the kernels share. With groups of channels each has a first axis of groups."""

    toeplitz: Tensor  #: T_i
    past: Tensor  #: what of the past enters a chunk
    future: Tensor  #: the same for time that runs backwards
    taps: Tensor  #: what a chunk adds to the state after it
    advance: Tensor  #: the state's way through a chunk
    leap: Tensor  #: and through a run of them
    last_taps: Tensor  #: what the last steps add to the final state
    last_advance: Tensor  #: and the state's way through them
    from_state: Tensor  #: row i of Ā¹ … Ā^CHUNK, for the gradient of u where there are groups; else `past`

    def of_group(self, group: int) -> Tables:
        """The tables of one group."""
        return Tables._make(table[group] for table in self)


class Constants:
    """What a projection needs beside tensors with a batch: tables, and how the past of a chunk is known.

    With `steps` that many inputs before a chunk stand for its state; else one program carries it over `run` chunks.
    """

    __slots__ = ("groups", "in_parts", "powers", "prepared", "run", "steps", "tables")

    def __init__(self, tables: Tables, powers: Tensor | None, steps: int, run: int, groups: int) -> None:
        self.tables, self.powers, self.steps, self.run, self.groups = tables, powers, steps, run, groups
        #: Whether the matrices that are multiplied with float32 are divided into parts in half precision.
        self.in_parts = tables.toeplitz.dim() == tables.advance.dim() + 2
        self.prepared: dict[Any, Any] = {}  #: what else calls of the same shapes found out


def tables(u: Tensor, system: LinearSystem | SystemGroups, steps: int, run: int, parts: int = 0) -> Tables:
    """The constant matrices for `steps` inputs before a chunk, or for states that one program carries over `run`
    chunks. With `parts` the first three are divided into so many: (parts, ...)."""
    operand, wide, device, time = u.dtype, torch.float32, u.device, u.shape[1]
    rows = rows_of(system.order)
    split = operand == torch.bfloat16  # it has the range of float32; float16 has not, and is widened instead
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
    """Over how many chunks one program carries states, a run; and how long all of it takes, counted in chunks.

    All chunks of a sequence, or runs of them side by side: then one launch finds the ends of all runs, and a second one
    passes those and each chunk again. That pays where sequences and channels alone leave much of a GPU idle.
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
    """The same in three parts, each what the ones before it left of it: (3, order, length)."""
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
    """The same for time that runs backwards: row i of Ā^chunk … Ā¹."""
    return powers_by_order(system, chunk, rows).flip(1)


def inputs_before(system: LinearSystem, chunk: int, steps: int) -> Tensor:
    """H at the distance of the `steps` inputs before a chunk: (order, chunk, steps)."""
    taps = response(system, chunk + steps).squeeze(2)
    lag = torch.arange(chunk)[:, None] + steps - torch.arange(steps)
    return taps[:, lag.to(taps.device)]


def inputs_after(system: LinearSystem, chunk: int, steps: int) -> Tensor:
    """The same for time that runs backwards and the inputs after a chunk."""
    return inputs_before(system, chunk, steps).flip(1, 2)


def half(parts: int) -> torch.dtype:
    """The precision of such parts."""
    return torch.float16 if parts == 2 else torch.bfloat16


def in_parts(whole: Tensor, parts: int) -> Tensor:
    """A matrix as the sum of so many in half precision, each what the ones before it left of it: (parts, ...)."""
    found: list[Tensor] = []
    rest = whole * SCALE if parts == 2 else whole
    for _ in range(parts):
        found.append(rest.to(half(parts)).to(whole.dtype))
        rest = rest - found[-1]
    return torch.stack(found)


def toeplitz_in_parts(system: LinearSystem, chunk: int, parts: int) -> Tensor:
    """T_i for every order i: (parts, order, chunk, chunk)."""
    return in_parts(by_order(system, chunk), parts)


def powers_in_parts(system: LinearSystem, chunk: int, rows: int, parts: int) -> Tensor:
    """P_i for every order i: (parts, order, chunk, rows)."""
    return in_parts(powers_by_order(system, chunk, rows), parts)


def powers_from_end_in_parts(system: LinearSystem, chunk: int, rows: int, parts: int) -> Tensor:
    """The same for time that runs backwards."""
    return in_parts(powers_from_end(system, chunk, rows), parts)


def rows_of(order: int) -> int:
    """The order rounded up to a size that a matrix unit takes."""
    return max(16, 1 << (order - 1).bit_length())


def tiles(size: int, tile: int) -> int:
    """How many tiles cover a size."""
    return -(-size // tile)


def segments_of(resets: Tensor | None) -> Tensor | None:
    """The segments that resets divide each sequence into, counted from 0: (batch, time)."""
    return None if resets is None else resets.cumsum(1, dtype=torch.int32)


def summed(taps: Tensor) -> Tensor:
    """Of all parts, in float32: (order, length)."""
    return taps.float().sum(-3)
