"""The launches of the kernels of `triton_chunked`: grids, tiles and constants for given sizes."""

from __future__ import annotations

import functools
import importlib
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from plmu.ops.gpu import division
from plmu.ops.gpu.direct import Launch
from plmu.ops.gpu.division import Sizes, prepared, shared_out, unit
from plmu.ops.gpu.tables import CHANNELS, CHUNK, rows_of, tiles

LARGE_STATE = 64  # rows, which with all channels of a program take more than 99 KB of shared memory
# Of `through_output`.
STEPS, OUTPUTS = 16, 256  # of a tile
PROGRAMS = 4  # that a multiprocessor runs at the same time
# Of `add_up`.
FEW, FEW_SHARES, MANY_SHARES = 64, (4, 512), (64, 16)  # shares; and then shares and numbers of a tile


@prepared
def carry(
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    time: int,
    channels: int,
    order: int,
    run: int,
    groups: int,
    parts: int,
    reversed: bool,
    segmented: bool,
    started: bool,
    keep: bool,
) -> Launch:
    chunks = tiles(time, CHUNK)
    runs = tiles(chunks, run)
    width = CHANNELS if rows_of(order) < LARGE_STATE or division.roomy(device) else CHANNELS // 2
    constants: dict[str, Any] = {"WIDTH": width, "PARTS": parts, "STARTED": started, "KEEP": keep}
    constants |= {"REVERSED": reversed, "SEGMENTED": segmented, "PRECISION": exact(dtype), "GROUPS": groups}
    constants |= {"UNIT": 1 if reversed else unit(channels, groups), **constants_of(order)}
    grid = (batch * runs, groups * tiles(channels if reversed else channels // groups, width))
    return Launch(_kernels, "carry", grid, (time, channels, chunks, runs, run), constants)


@prepared
def finish(
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    time: int,
    channels: int,
    order: int,
    length: int,
    groups: int,
    parts: int,
    started: bool,
    early: bool,
    segmented: bool,
) -> Launch:
    constants: dict[str, Any] = {"WIDTH": 64, "PARTS": parts, "STARTED": started, "EARLY": early}
    constants |= {"SEGMENTED": segmented, "PRECISION": exact(dtype), **constants_of(order)}
    constants |= {"GROUPS": groups, "UNIT": unit(channels, groups)}
    grid = (batch, groups * tiles(channels // groups, 64))
    options: dict[str, Any] = {"launch_pdl": True} if early else {}
    return Launch(_kernels, "finish", grid, (time, channels, length), constants, **options)


@prepared
def mark(device: torch.device, batch: int, time: int) -> Launch:
    chunks = tiles(time, CHUNK)
    return Launch(_kernels, "mark", (batch * chunks,), (time, chunks), {"CHUNK": CHUNK})


@prepared
def project(given: Sizes, precision: str) -> Launch:
    half, across = given.dtype != torch.float32, given.groups if given.reversed else 1
    out = 256 if half and given.outputs // across > 128 else 64
    constants = _constants(given, precision) | {"WIDTH": 64 if half else 32, "OUT": out, "REVERSED": given.reversed}
    constants["UNIT"] = unit(given.outputs if given.reversed else given.inputs, given.groups)
    grid = (given.batch * given.chunks, across * tiles(given.outputs // across, out))
    numbers = (given.time, given.inputs, given.outputs, given.chunks)
    return Launch(_kernels, "project", grid, numbers, constants, num_warps=4, num_stages=2)


@prepared
def weight_gradient(given: Sizes, precision: str) -> tuple[Launch, int]:
    """And how many shares the sum over all chunks is cut into."""
    channels, out, groups = given.inputs, given.outputs, given.groups
    width, height, roomy = 64, 64, division.roomy(given.device)
    if given.dtype != torch.float32:
        width, height = 128 if roomy else 64, min(256, max(64, 1 << (out - 1).bit_length()))
    columns, rows_of_tiles = groups * tiles(channels // groups, width), tiles(out, height)
    total = given.batch * given.chunks
    share, shares = shared_out(total, given.order * columns * rows_of_tiles, given.device)
    constants = _constants(given, precision) | {"WIDTH": width, "OUT": height, "UNIT": unit(channels, groups)}
    grid = (given.order * columns, rows_of_tiles, shares)
    numbers = (given.time, channels, out, given.chunks, given.batch, share)
    return Launch(
        _kernels, "weight_gradient", grid, numbers, constants, num_warps=8, num_stages=3 if roomy else 2
    ), shares


@prepared
def through_output(
    device: torch.device, dtype: torch.dtype, total: int, outputs: int, relu: bool, bias: bool
) -> tuple[Launch, int]:
    """And how many shares the steps are divided into."""
    columns = tiles(outputs, OUTPUTS)
    wanted = tiles(PROGRAMS * division.multiprocessors(device), columns)
    share = tiles(tiles(total, wanted), STEPS) * STEPS
    shares = tiles(total, share)
    constants = {"ROWS": STEPS, "WIDTH": OUTPUTS, "RELU": relu, "BIAS": bias}
    return Launch(_kernels, "through_output", (shares, columns), (total, outputs, share), constants), shares


def added_up(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of partial (shares, ...) over its shares, which are float32."""
    shares, *shape = partial.shape
    result = partial.new_empty(shape, dtype=dtype)
    add_up(partial.device, dtype, shares, result.numel())(partial, result)
    return result


@prepared
def add_up(device: torch.device, dtype: torch.dtype, shares: int, total: int) -> Launch:
    rows, width = MANY_SHARES if shares > FEW else FEW_SHARES
    constants = {"ROWS": rows, "WIDTH": width, "UNIT": math.gcd(total, 8)}
    return Launch(_kernels, "add_up", (tiles(total, width),), (shares, total), constants)


def constants_of(order: int) -> dict[str, int]:
    """Of kernels that carry the state itself."""
    return {"ORDER": order, "ROWS": rows_of(order), "CHUNK": CHUNK}


def precision(dtype: torch.dtype) -> str:
    """How float32 operands are multiplied: as they are, unless torch is allowed to round them."""
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def exact(dtype: torch.dtype) -> str:
    """For products in float32 that carry the state."""
    return "ieee" if dtype == torch.float32 else "tf32x3"


@functools.cache
def kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.triton_chunked")


def _kernels() -> ModuleType:
    return kernels()


def _constants(given: Sizes, precision: str) -> dict[str, Any]:
    found: dict[str, Any] = {"ORDER": given.order, "ROWS": given.rows, "CHUNK": CHUNK, "HISTORY": given.history}
    return found | {"SEGMENTED": given.segmented, "PRECISION": precision, "GROUPS": given.groups}
