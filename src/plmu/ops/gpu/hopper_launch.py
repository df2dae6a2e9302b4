"""The launches of the kernels for Hopper, `gluon_chunked`, `gluon_weight` and `gluon_input_gradient`: grids, tiles,
constants and shared memory."""

from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from plmu.ops.gpu import division
from plmu.ops.gpu.devices import enter
from plmu.ops.gpu.direct import Launch, Tiled
from plmu.ops.gpu.division import Sizes, divide_into_shares, prepared
from plmu.ops.gpu.tables import CHUNK, rows_of, tiles
from plmu.ops.gpu.triton_launch import sum_shares

SHARED = 227 * 1024  # most bytes of shared memory of a program
WIDTH, OUT = 64, 256  # channels and outputs of a tile
MOST_RESIDENT = 4  # most orders whose tables all stay in shared memory
# Of `input_gradient`.
MOST_ROWS = 16  # of a state that is carried in registers; 32 spill
LEAST_STAGES, MOST_STAGES = 3, 6
MOST_BLOCKS = 4  # of the gradient of each of two sequences that share tiles of the weight
LEAST_BUSY = (0.45, 0.7)  # least fraction of busy multiprocessors: for groups of one tile of channels, and of more


class Projection:
    """`project` for fixed sizes. Besides o it returns its work space (sums, and flags that begin at 0), to be held
    until the kernels that run beside it are launched."""

    __slots__ = ("_device", "_flags", "_launch", "_none", "_shape", "_sums")

    def __init__(self, launch: Launch, sizes: Sizes, sums: int, flags: int) -> None:
        self._launch, self._device, self._sums, self._flags = launch, sizes.device, sums, flags
        self._shape = (sizes.batch, sizes.time, sizes.outputs)
        self._none = torch.empty(0, dtype=torch.float32, device=sizes.device)

    def __call__(
        self,
        u: Tensor,
        before: Tensor | None,
        weight: Tensor,
        toeplitz: Tensor,
        past: Tensor,
        marked: Tensor | None = None,
        x: Tensor | None = None,
        input_weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        o = u.new_empty(self._shape)
        sums = done = self._none
        if self._flags:
            sums = u.new_empty(self._sums, dtype=torch.float32)
            done = u.new_zeros(self._flags, dtype=torch.int32)
        enter(self._device)
        tiled = (u, u if before is None else before, weight, toeplitz, past, x, input_weight)
        rows = sums if marked is None else marked  # any tensor; without marks it is not read
        self._launch(*tiled, o, sums, done, rows, o if bias is None else bias)
        return o, (sums, done)


class WeightGradient:
    """`weight_gradient` for fixed sizes. The sum over all chunks is divided into shares."""

    __slots__ = ("_device", "_dtype", "_launch", "_shape", "_whole")

    def __init__(self, launch: Launch, sizes: Sizes, shares: int) -> None:
        self._launch, self._device, self._whole = launch, sizes.device, shares == 1
        shape = (sizes.outputs, sizes.order, sizes.inputs)
        self._shape: tuple[int, ...] = shape if shares == 1 else (shares, *shape)
        self._dtype = sizes.dtype if shares == 1 else torch.float32

    def __call__(
        self, u: Tensor, before: Tensor | None, grad_o: Tensor, toeplitz: Tensor, past: Tensor, marked: Tensor | None
    ) -> Tensor:
        partial = u.new_empty(self._shape, dtype=self._dtype)
        enter(self._device)
        rows = partial if marked is None else marked  # any tensor; without marks it is not read
        self._launch(u, u if before is None else before, grad_o, toeplitz, past, partial, rows)
        return partial if self._whole else sum_shares(partial, u.dtype)


class InputGradient:
    """`input_gradient` for fixed sizes."""

    __slots__ = ("_device", "_launch", "_shape")

    def __init__(self, launch: Launch, sizes: Sizes) -> None:
        self._launch, self._device, self._shape = launch, sizes.device, (sizes.batch, sizes.time, sizes.outputs)

    def __call__(
        self,
        grad_o: Tensor,
        weight: Tensor,
        toeplitz: Tensor,
        from_state: Tensor,
        taps: Tensor,
        advance: Tensor,
        input_weight: Tensor | None = None,
    ) -> Tensor:
        grad_u = grad_o.new_empty(self._shape)
        enter(self._device)
        self._launch(grad_o, weight, toeplitz, from_state, input_weight, taps, advance, grad_u)
        return grad_u


@prepared
def project(sizes: Sizes, features: int = 0, bias: bool = False, relu: bool = False) -> Projection:
    """`features`: those of x, which W_x multiplies; 0 without x."""
    batch, inputs, outputs, order, rows, groups = sizes.batch, *sizes[4:9]
    total, programs = batch * sizes.chunks, division.multiprocessors(sizes.device)
    blocks, across = (1, groups) if sizes.reversed else (groups, 1)  # groups of inputs and of outputs
    channels = outputs if sizes.reversed else inputs
    unit = math.gcd(channels // groups, 8)
    across_each = outputs // across + (8 - unit if across > 1 else 0)
    out = OUT if across_each > 128 else 128 if across_each > 64 else 64
    resident = order <= MOST_RESIDENT and groups == 1
    stages = next(n for n in (4, 3, 2) if _shared(rows, out, n, order if resident else n) <= SHARED)
    columns, depth = _covering(outputs, across, out), _covering(inputs, blocks, WIDTH)
    whole, halved = _division(tiles(total, 2) * columns, depth, programs)
    work = whole + 2 * halved
    weight_box = (WIDTH, out) if sizes.reversed else (out, WIDTH)
    tiled: tuple[Tiled, ...] = (
        ((batch, sizes.time, inputs), (1, CHUNK, WIDTH)),
        _tiled_past(sizes, across),
        ((inputs if sizes.reversed else outputs, order * channels), weight_box),
        *_tables(sizes),
    )
    if features:
        direct = (features, outputs) if sizes.reversed else (outputs, features)
        tiled += (((batch, sizes.time, features), (1, CHUNK, WIDTH)), (direct, weight_box))
    constants = _constants(sizes) | {"OUT": out, "STAGES": stages, "UNIT": unit, "RESIDENT": resident}
    constants |= {"REVERSED": sizes.reversed, "MASKED": bool(blocks > 1 and inputs // blocks % WIDTH)}
    constants |= {"BIAS": bias, "DIRECT": bool(features), "RELU": relu}
    numbers = (sizes.time, inputs, outputs, tiles(features, WIDTH), channels, sizes.chunks, total, whole, work)
    launch = Launch(_projection, "project", (min(work, programs),), numbers, constants, tiled=tiled, num_warps=4)
    return Projection(launch, sizes, halved * 2 * CHUNK * out, 2 * halved)


@prepared
def input_gradient(sizes: Sizes, direct: bool = False) -> InputGradient | None:
    """None if it cannot run, or would leave too many multiprocessors idle. `direct`: W_x multiplies u itself."""
    batch, inputs, channels, order, groups = sizes.batch, sizes.inputs, sizes.outputs, sizes.order, sizes.groups
    rows, blocks = rows_of(order), tiles(inputs, WIDTH)
    if groups == 1 or sizes.segmented or rows > MOST_ROWS:
        return None
    columns = _covering(channels, groups, WIDTH)
    sequences = 2 if blocks <= MOST_BLOCKS and batch > 1 else 1  # that share tiles of the weight
    programs = tiles(batch, sequences) * tiles(columns, 3 - sequences)
    at_once = division.multiprocessors(sizes.device)
    room = SHARED - _shared_by_input_gradient(rows, sequences * blocks)
    turns = blocks if direct else blocks + 1  # between two uses of a stage
    stages = min(MOST_STAGES, turns, room // ((3 - sequences) * 2 * WIDTH * WIDTH))
    least = LEAST_BUSY[channels // groups > WIDTH] * tiles(programs, at_once) * at_once
    if stages < max(2, min(turns, LEAST_STAGES)) or programs < least:
        return None
    systems = groups * order * CHUNK
    tiled: tuple[Tiled, ...] = (
        ((batch, sizes.time, inputs), (1, 2 * CHUNK, WIDTH)),
        ((inputs, order * channels), (WIDTH, WIDTH)),
        ((systems, CHUNK), (CHUNK, CHUNK)),
        ((systems, rows), (CHUNK, rows)),
    )
    if direct:
        tiled += (((inputs, channels), (WIDTH, WIDTH)),)
    constants = {"ORDER": order, "ROWS": rows, "CHUNK": CHUNK, "WIDTH": WIDTH, "BLOCKS": blocks, "STAGES": stages}
    constants |= {"GROUPS": groups, "UNIT": math.gcd(channels // groups, 8), "DIRECT": direct}
    constants |= {"PARTS": 3 if sizes.dtype == torch.bfloat16 else 1, "SEQUENCES": sequences}
    numbers = (sizes.time, batch, channels, columns)
    launch = Launch(_input_gradient, "input_gradient", (programs,), numbers, constants, tiled=tiled, num_warps=4)
    return InputGradient(launch, sizes)


@prepared
def weight_gradient(sizes: Sizes) -> WeightGradient:
    channels, out, order, groups = sizes.inputs, sizes.outputs, sizes.order, sizes.groups
    total = sizes.batch * sizes.chunks
    columns, outputs = tiles(order, 2) * _covering(channels, groups, WIDTH), tiles(out, OUT)
    share, shares = divide_into_shares(total, columns * outputs, sizes.device)
    tiled = (
        ((sizes.batch, sizes.time, channels), (1, CHUNK, WIDTH)),
        _tiled_past(sizes),
        ((sizes.batch, sizes.time, out), (1, CHUNK, OUT)),
        *_tables(sizes),
    )
    constants = _constants(sizes) | {"OUT": OUT, "STAGES": 3 if sizes.rows > 32 else 4}
    constants |= {"UNIT": math.gcd(channels // groups, 8)}
    numbers, grid = (channels, out, sizes.chunks, total, share), (columns, outputs, shares)
    launch = Launch(_weight, "weight_gradient", grid, numbers, constants, tiled=tiled, num_warps=4)
    return WeightGradient(launch, sizes, shares)


def _constants(sizes: Sizes) -> dict[str, Any]:
    constants: dict[str, Any] = {"ORDER": sizes.order, "ROWS": sizes.rows, "CHUNK": CHUNK, "WIDTH": WIDTH}
    return constants | {"HISTORY": sizes.history, "GROUPS": sizes.groups, "SEGMENTED": sizes.segmented}


def _covering(channels: int, groups: int, width: int) -> int:
    """The number of tiles of `width` channels that cover all groups. Because of the copy engine they begin at multiples
    of 8 channels, so a tile may have up to 7 channels before those of its group."""
    each = channels // groups
    return groups * tiles(each + (8 - math.gcd(each, 8) if groups > 1 else 0), width)


def _division(tiles: int, blocks: int, programs: int) -> tuple[int, int]:
    """The number of tiles that are made whole, and of those that are made in two halves: the tiles of the last round,
    if they occupy at most half of the programs. All halves run in parallel, so that one can wait for another."""
    last_round = tiles % programs
    halved = last_round if blocks >= 2 and last_round <= programs // 2 else 0
    return tiles - halved, halved


def _shared(rows: int, out: int, stages: int, tables: int) -> int:
    """Bytes of shared memory of `project`."""
    return 2 * (4 * (CHUNK + rows) * WIDTH + stages * out * WIDTH + tables * CHUNK * (CHUNK + rows)) + 1024


def _shared_by_input_gradient(rows: int, blocks: int) -> int:
    """Bytes of shared memory of `input_gradient` without its stages; 2 KB for each group of warps are for transposing
    what it stores."""
    return 2 * (2 * blocks * CHUNK * WIDTH + (2 + 4) * CHUNK * rows + 6 * rows * rows) + 2 * 2048 + 1024


def _tiled_past(sizes: Sizes, systems: int = 1) -> Tiled:
    """The shape and tile of the tensor that has the past of each chunk, `rows` rows: (sequences, steps, channels).

    With `history` it is the input itself, whose steps next to a chunk are read; else the states before all chunks of
    all `systems`, one below the other.
    """
    if sizes.history:
        return (sizes.batch, sizes.time, sizes.inputs), (1, sizes.rows, WIDTH)
    return (1, systems * sizes.batch * sizes.chunks * sizes.rows, sizes.inputs), (1, sizes.rows, WIDTH)


def _tables(sizes: Sizes) -> tuple[Tiled, Tiled]:
    """The shapes and tiles of the tables of all orders."""
    steps = sizes.groups * sizes.order * CHUNK
    return ((steps, CHUNK), (CHUNK, CHUNK)), ((steps, sizes.rows), (CHUNK, sizes.rows))


def _projection() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.gluon_chunked")


def _weight() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.gluon_weight")


def _input_gradient() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.gluon_input_gradient")
