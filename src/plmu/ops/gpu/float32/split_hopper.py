"""The launches of the float32 kernels of `gluon_split` and `gluon_split_weight`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.ops.gpu import division, hopper_launch, launch
from plmu.ops.gpu.devices import enter
from plmu.ops.gpu.direct import Launch, Tiled
from plmu.ops.gpu.tables import CHUNK, SCALE, tiles

WIDTH, OUT = 64, 128  # channels and outputs of a tile


class Budget(NamedTuple):
    """How the registers and the shared memory of a multiprocessor are divided."""

    multiplying: int  # registers of each thread that multiplies
    dividing: int  # registers of each thread that divides operands into parts
    stages: int  # tiles in flight, if there is room
    staggered: bool  # whether the second group of multiplying warps runs behind the first


PROJECT = Budget(184, 120, 3, True)
WEIGHT_GRADIENT = Budget(176, 152, 3, True)


def fits(u: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether these kernels replace those of `triton_split`."""
    out, _, channels = weight.shape
    return why_not(u.device, u.shape[0], u.shape[1], channels, out, groups) is None


def why_not(device: torch.device, batch: int, time: int, channels: int, out: int, groups: int) -> str | None:
    """The reason why they cannot, or None."""
    if groups > 1:
        return "the kernels for Hopper take float32 with one system for all channels alone"
    return launch.why_not_hopper(device, torch.float16, batch, time, channels, out)


def at_once(u: Tensor, o: Tensor, weight: Tensor, whole: int, most: int) -> int:
    """The number of outputs to make at a time, in tiles of `whole`, so that the parts of the weight are `most` times
    smaller than u and o."""
    outputs = o.shape[-1]
    share = max(1, int(outputs * (u.nbytes + o.nbytes) / most / max(1, weight.nbytes)) // whole)
    return min(outputs, share * whole)


def project(
    u: Tensor,
    before: Tensor,
    segments: Tensor | None,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    sizes_of_u: Tensor,
    *,
    most: int,
    reversed: bool = False,
) -> Tensor:
    """`split.project` for two parts. `sizes_of_u`: of each channel of u. `most`: see `at_once`."""
    batch, time, inputs = u.shape
    out, order, channels = weight.shape
    outputs = channels if reversed else out
    o = u.new_empty(batch, time, outputs)
    wide = _wide(outputs)
    size, over_size = _powers_of_two(sizes_of_u)
    largest = torch.linalg.vector_norm(weight, torch.inf, dim=1)  # (out, channels)
    largest = (largest * size[:, None]).amax(0) if reversed else (largest * size).amax(1)
    marks = largest if segments is None else launch.marks_of(segments)[reversed]  # not read where there are none
    step = at_once(u, o, weight, wide, most)
    enter(u.device)
    for first in range(0, outputs, step):
        count = min(step, outputs - first)
        part = weight[:, :, first : first + count] if reversed else weight[first : first + count]
        parts = weight.new_empty(2, *part.shape, dtype=toeplitz.dtype)
        sizes = (u.device, order, count, inputs, reversed)
        _divide(*sizes, channels)(part, size, largest[first:], parts)
        run = _project(*sizes, batch, time, past.shape[-1], outputs, wide, segments is not None, PROJECT)
        run(parts, toeplitz, past, u, before, over_size, largest[first:], marks, o[:, :, first:])
        del parts
    return o


def norm_over_steps(values: Tensor, order: float) -> Tensor:
    """The norm of each channel over all sequences and steps: (channels,). In two passes, because for few channels and
    many steps torch's buffer may be as large as the values."""
    rows = values.reshape(-1, values.shape[-1])
    whole = len(rows) // CHUNK * CHUNK
    of_chunks = torch.linalg.vector_norm(rows[:whole].unflatten(0, (-1, CHUNK)), order, dim=1)
    norm: Tensor = torch.linalg.vector_norm(torch.cat([of_chunks, rows[whole:]]), order, dim=0)
    return norm


def _powers_of_two(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The powers of two just below positive numbers, and their inverses."""
    bits = (sizes.view(torch.int32) & 0x7F800000).clamp(1 << 23, 253 << 23)
    return bits.view(torch.float32), ((254 << 23) - bits).view(torch.float32)


def _wide(outputs: int) -> int:
    return OUT if outputs > 64 else 64


@division.prepared
def _divide(device: torch.device, order: int, count: int, inputs: int, reversed: bool, length: int) -> Launch:
    out, channels = (inputs, count) if reversed else (count, inputs)
    constants = {"ORDER": order, "DOWN": 16, "ACROSS": 128, "OF_CHANNELS": reversed}
    grid = (tiles(out, 16), tiles(channels, 128), order)
    return Launch(_triton, "divide_by_output", grid, (out, channels, length), constants)


@division.prepared
def _project(
    device: torch.device,
    order: int,
    count: int,
    inputs: int,
    reversed: bool,
    batch: int,
    time: int,
    rows: int,
    length: int,
    wide: int,
    segmented: bool,
    budget: Budget,
) -> Launch:
    """For `count` of the outputs; rows of o have `length` outputs in memory."""
    chunks = tiles(time, CHUNK)
    total = batch * chunks
    work = tiles(total, 2) * tiles(count, wide)
    resident = order <= hopper_launch.MOST_RESIDENT

    def shared(stages: int) -> int:
        tables = order if resident else stages
        return 4 * (2 * (CHUNK + rows) * WIDTH + stages * wide * WIDTH + tables * CHUNK * (CHUNK + rows)) + 2048

    stages = next(n for n in (budget.stages, 3, 2) if shared(n) <= hopper_launch.SHARED)
    channels = count if reversed else inputs
    weight_tiling: Tiled = ((2, inputs, order * count), (1, WIDTH, wide))
    if not reversed:
        weight_tiling = ((2, count, order * inputs), (1, wide, WIDTH))
    constants: dict[str, Any] = {"ORDER": order, "ROWS": rows, "CHUNK": CHUNK, "WIDTH": WIDTH, "OUT": wide}
    constants |= {"STAGES": stages, "RESIDENT": resident, "REVERSED": reversed, "SCALE": SCALE, "SEGMENTED": segmented}
    constants |= {"STAGGERED": budget.staggered, "MULTIPLYING": budget.multiplying, "DIVIDING": budget.dividing}
    numbers = (time, inputs, count, length, channels, chunks, total, work)
    grid = (min(work, division.multiprocessors(device)),)
    tiled = (weight_tiling, *_tables(order, rows))
    return Launch(_gluon, "project_in_parts", grid, numbers, constants, tiled=tiled, num_warps=4)


def weight_gradient(
    u: Tensor,
    before: Tensor,
    segments: Tensor | None,
    grad_o: Tensor,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    sizes_of_u: Tensor,
) -> Tensor:
    """`split.weight_gradient` for two parts. `sizes_of_u`: of each channel of u."""
    batch, time, channels = u.shape
    out, order, _ = weight.shape
    sizes = (u.device, batch, time, channels, out, order, past.shape[-1], segments is not None)
    run, shares = _weight_gradient(*sizes, WEIGHT_GRADIENT)
    size, over_size = _powers_of_two(sizes_of_u)
    largest = norm_over_steps(grad_o, torch.inf)
    partial = weight.new_empty(shares, *weight.shape)
    enter(u.device)
    marks = largest if segments is None else launch.marks_of(segments)[0]
    run(toeplitz, past, u, before, over_size, grad_o, largest, marks, partial)
    total: Tensor = partial[0] if shares == 1 else partial.sum(0)
    return total.mul_(size)


@division.prepared
def _weight_gradient(
    device: torch.device,
    batch: int,
    time: int,
    channels: int,
    out: int,
    order: int,
    rows: int,
    segmented: bool,
    budget: Budget,
) -> tuple[Launch, int]:
    """The launch, and the number of shares of the sum over all chunks."""
    chunks, wide = tiles(time, CHUNK), _wide(out)
    columns, outputs = tiles(order, 2) * tiles(channels, WIDTH), tiles(out, wide)
    share, shares = division.divide_into_shares(batch * chunks, columns * outputs, device)

    def shared(stages: int) -> int:
        tables = 2 * CHUNK * ((2 if segmented else 1) * CHUNK + rows)
        return 4 * (stages * ((CHUNK + rows) * WIDTH + CHUNK * wide) + tables) + 2048

    stages = next(n for n in (budget.stages, 3, 2) if shared(n) <= hopper_launch.SHARED)
    constants: dict[str, Any] = {"ORDER": order, "ROWS": rows, "CHUNK": CHUNK, "WIDTH": WIDTH, "OUT": wide}
    constants |= {"STAGES": stages, "SCALE": SCALE, "SEGMENTED": segmented}
    constants |= {"STAGGERED": budget.staggered, "MULTIPLYING": budget.multiplying, "DIVIDING": budget.dividing}
    numbers, grid = (time, channels, out, chunks, batch * chunks, share), (columns, outputs, shares)
    tiled = _tables(order, rows)
    return Launch(_gluon_weight, "weight_gradient_in_parts", grid, numbers, constants, tiled=tiled, num_warps=4), shares


def _tables(order: int, rows: int) -> tuple[Tiled, Tiled]:
    """The shapes and tiles of T and P, with both parts of all orders."""
    return ((2 * order * CHUNK, CHUNK), (CHUNK, CHUNK)), ((2 * order * CHUNK, rows), (CHUNK, rows))


def _gluon() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.float32.gluon_split")


def _gluon_weight() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.float32.gluon_split_weight")


def _triton() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.float32.triton_split")
