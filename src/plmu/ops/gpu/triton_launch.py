"""The launches of the kernels of `triton_chunked`: grids, tiles and constants by size."""

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
from plmu.ops.gpu.division import Sizes, divide_into_shares, prepared, unit
from plmu.ops.gpu.tables import CHANNELS, CHUNK, rows_of, tiles

LARGE_STATE = 64  # rows, which with CHANNELS channels take more than 99 KB of shared memory
# Of `through_output`.
STEPS, OUTPUTS = 16, 256  # of a tile
PROGRAMS = 4  # that a multiprocessor runs in parallel
# Of `add_up`.
FEW, FEW_SHARES, MANY_SHARES = 64, (4, 512), (64, 16)  # a number of shares; shares and numbers of a tile


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
    width = CHANNELS if rows_of(order) < LARGE_STATE or division.has_large_memory(device) else CHANNELS // 2
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
def project(sizes: Sizes, precision: str) -> Launch:
    half, across = sizes.dtype != torch.float32, sizes.groups if sizes.reversed else 1
    out = 256 if half and sizes.outputs // across > 128 else 64
    constants = _constants(sizes, precision) | {"WIDTH": 64 if half else 32, "OUT": out, "REVERSED": sizes.reversed}
    constants["UNIT"] = unit(sizes.outputs if sizes.reversed else sizes.inputs, sizes.groups)
    grid = (sizes.batch * sizes.chunks, across * tiles(sizes.outputs // across, out))
    numbers = (sizes.time, sizes.inputs, sizes.outputs, sizes.chunks)
    return Launch(_kernels, "project", grid, numbers, constants, num_warps=4, num_stages=2)


@prepared
def weight_gradient(sizes: Sizes, precision: str) -> tuple[Launch, int]:
    """The launch, and the number of shares of the sum over all chunks."""
    channels, out, groups = sizes.inputs, sizes.outputs, sizes.groups
    width, height, large = 64, 64, division.has_large_memory(sizes.device)
    if sizes.dtype != torch.float32:
        width, height = 128 if large else 64, min(256, max(64, 1 << (out - 1).bit_length()))
    columns, rows_of_tiles = groups * tiles(channels // groups, width), tiles(out, height)
    total = sizes.batch * sizes.chunks
    share, shares = divide_into_shares(total, sizes.order * columns * rows_of_tiles, sizes.device)
    constants = _constants(sizes, precision) | {"WIDTH": width, "OUT": height, "UNIT": unit(channels, groups)}
    grid = (sizes.order * columns, rows_of_tiles, shares)
    numbers = (sizes.time, channels, out, sizes.chunks, sizes.batch, share)
    return Launch(
        _kernels, "weight_gradient", grid, numbers, constants, num_warps=8, num_stages=3 if large else 2
    ), shares


@prepared
def through_output(
    device: torch.device, dtype: torch.dtype, total: int, outputs: int, relu: bool, bias: bool
) -> tuple[Launch, int]:
    """The launch, and the number of shares of the steps."""
    columns = tiles(outputs, OUTPUTS)
    at_once = tiles(PROGRAMS * division.multiprocessors(device), columns)
    share = tiles(tiles(total, at_once), STEPS) * STEPS
    shares = tiles(total, share)
    constants = {"ROWS": STEPS, "WIDTH": OUTPUTS, "RELU": relu, "BIAS": bias}
    return Launch(_kernels, "through_output", (shares, columns), (total, outputs, share), constants), shares


def sum_shares(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first axis of partial (shares, ...), in float32, as `dtype`."""
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
    """The constants of kernels that carry the state itself."""
    return {"ORDER": order, "ROWS": rows_of(order), "CHUNK": CHUNK}


def precision(dtype: torch.dtype) -> str:
    """The precision of products of float32 operands: exact, unless torch may round them to TF32."""
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def exact(dtype: torch.dtype) -> str:
    """The precision of float32 products that carry the state."""
    return "ieee" if dtype == torch.float32 else "tf32x3"


@functools.cache
def kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.triton_chunked")


def _kernels() -> ModuleType:
    return kernels()  # by its name here, so that tests can replace it


def _constants(sizes: Sizes, precision: str) -> dict[str, Any]:
    constants: dict[str, Any] = {"ORDER": sizes.order, "ROWS": sizes.rows, "CHUNK": CHUNK, "HISTORY": sizes.history}
    return constants | {"SEGMENTED": sizes.segmented, "PRECISION": precision, "GROUPS": sizes.groups}
