"""Float32 on tensor cores: whether the kernels of `triton_split` run, their constants, and their launches.

The kernels of `gluon_split` and `gluon_split_weight` replace them if `split_hopper.fits`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.core.systems import LinearSystem
from plmu.ops.gpu import division
from plmu.ops.gpu.direct import Launch
from plmu.ops.gpu.float32 import split_hopper
from plmu.ops.gpu.tables import CHUNK, SCALE, by_order, tiles
from plmu.ops.groups import SystemGroups, each
from plmu.ops.matrices import may_grow

PARTS = 2  # 2 in float16, 3 in bfloat16, 0: products in float32
MOST = 7  # factor by which the parts of a weight should be smaller than u and o
LARGEST = 127.0  # constant that float16 holds, times SCALE
LARGEST_SIZE = 2.0**60  # of a channel that the weight compensates; the smallest is its inverse


class Tile(NamedTuple):
    """How a kernel is divided and launched."""

    width: int  # channels
    out: int  # outputs of a piece
    pieces: int
    warps: int
    stages: int

    def fitted(self, channels: int, out: int) -> Tile:
        """The tile reduced to this number of channels and outputs."""
        width, wide = (max(16, 1 << (size - 1).bit_length()) for size in (channels, out))
        pieces = self.pieces if out > self.out else 1
        return self._replace(width=min(self.width, width), out=min(self.out, wide), pieces=pieces)


PROJECT = Tile(64, 128, 1, 4, 1)
WEIGHT_GRADIENT = Tile(64, 128, 1, 4, 2)
SMALL_WEIGHT_GRADIENT = Tile(64, 128, 1, 8, 1)  # on GPUs with less shared memory


def parts_for(u: Tensor, system: LinearSystem | SystemGroups) -> int:
    """The number of parts of the operands; 0 for products of whole operands: the constants of a system that grows may
    have any size."""
    if u.dtype != torch.float32 or not PARTS:
        return 0
    fits = all(not may_grow(single) and single.numbers(largest, CHUNK)[0] <= LARGEST for single in each(system))
    return PARTS if fits else 0


def largest(system: LinearSystem, chunk: int) -> Tensor:
    """The largest of the constants, (1,)."""
    return torch.stack([by_order(system, chunk).abs().max(), system.powers(chunk).abs().max()]).max()[None]


def _sizes(u: Tensor, first: Tensor | None) -> Tensor:
    """The mean absolute value of each channel of u, or of the first state if that is larger: (channels,). It is 1 where
    that is zero or not finite. The maximum would not do: an outlier is far from all other numbers, and a weight
    multiplied by it may overflow, which spoils all sequences."""
    sizes = _mean_size(u) if first is None else torch.maximum(_mean_size(u), _mean_size(first))
    return torch.where((sizes > 0) & (sizes < torch.inf), sizes, 1.0).clamp(1 / LARGEST_SIZE, LARGEST_SIZE)


def _mean_size(values: Tensor) -> Tensor:
    return split_hopper.norm_over_steps(values, 1) / (values.shape[0] * values.shape[1])


def project(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    *,
    groups: int = 1,
    reversed: bool = False,
    tile: Tile | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`launch.project` for float32 and constants in parts."""
    assert before is not None
    batch, time, inputs = u.shape
    out, order, channels = weight.shape
    outputs, parts = channels if reversed else out, toeplitz.shape[-4]
    sizes_of_u = (
        _sizes(u, None if reversed else before[:, 0]) if parts == 2 else u
    )  # any tensor; not read of three parts
    if tile is None and parts == 2 and split_hopper.fits(u, weight, groups):
        operands = (u, before, segments, weight, toeplitz, past, sizes_of_u)
        return split_hopper.project(*operands, most=MOST, reversed=reversed), ()
    across = (inputs, outputs // groups) if reversed else (inputs // groups, outputs)
    tile = (tile or PROJECT).fitted(*across)
    o = u.new_empty(batch, time, outputs)
    blocks = tiles(inputs, tile.width) if reversed else groups * tiles(inputs // groups, tile.width)
    at_once = outputs if groups > 1 else split_hopper.at_once(u, o, weight, tile.out * tile.pieces, MOST)
    constants = (sizes_of_u, toeplitz, past, before, u if segments is None else segments)
    for first in range(0, outputs, at_once):
        count = min(at_once, outputs - first)
        part = weight[:, :, first : first + count] if reversed else weight[first : first + count]
        divided = weight.new_empty(parts, *part.shape, dtype=toeplitz.dtype)
        scales = weight.new_empty(blocks, order, count) if parts == 2 else divided
        sizes = (u.device, order, *part.shape[::-2], groups, reversed, parts, tile)
        _divide(*sizes, channels, blocks)(part, divided, scales, sizes_of_u)
        run = _project(batch, time, past.shape[-1], segments is not None, *sizes, outputs)
        run(u, divided, scales, *constants, o[:, :, first:])
        del divided, scales
    return o, ()


@division.prepared
def _divide(
    device: torch.device,
    order: int,
    channels: int,
    out: int,
    groups: int,
    reversed: bool,
    parts: int,
    tile: Tile,
    length: int,
    blocks: int,
) -> Launch:
    constants: dict[str, Any] = {"ORDER": order, "TILE": tile.width, "ACROSS": 64, "AXIS": 0 if reversed else 1}
    constants |= {"GROUPS": groups, "UNIT": division.unit(channels, groups), "PARTS": parts}
    grid = (tiles(channels if reversed else out, 64), blocks, order)
    return Launch(_kernels, "divide", grid, (out, channels, length), constants)


@division.prepared
def _project(
    batch: int,
    time: int,
    rows: int,
    segmented: bool,
    device: torch.device,
    order: int,
    channels: int,
    out: int,
    groups: int,
    reversed: bool,
    parts: int,
    tile: Tile,
    length: int,
) -> Launch:
    chunks, across = tiles(time, CHUNK), groups if reversed else 1
    inputs, outputs = (out, channels) if reversed else (channels, out)
    constants: dict[str, Any] = {"ORDER": order, "ROWS": rows, "CHUNK": CHUNK, "WIDTH": tile.width, "OUT": tile.out}
    constants |= {"PIECES": tile.pieces, "REVERSED": reversed, "SEGMENTED": segmented}
    constants |= {"GROUPS": groups, "UNIT": division.unit(channels, groups), **_precision(device, parts)}
    grid = (batch * chunks, across * tiles(outputs // across, tile.out * tile.pieces))
    numbers = (time, inputs, outputs, length, chunks)
    return Launch(_kernels, "project", grid, numbers, constants, num_warps=tile.warps, num_stages=tile.stages)


def weight_gradient(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    grad_o: Tensor,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    *,
    groups: int = 1,
    tile: Tile | None = None,
) -> Tensor:
    """`launch.weight_gradient` for float32 and constants in parts."""
    assert before is not None
    batch, time, channels = u.shape
    out, order, _ = weight.shape
    if tile is None and toeplitz.shape[-4] == 2 and split_hopper.fits(u, weight, groups):
        sizes_of_u = _sizes(u, before[:, 0])
        return split_hopper.weight_gradient(u, before, segments, grad_o, weight, toeplitz, past, sizes_of_u)
    sizes = (u.device, batch, time, channels, out, order, past.shape[-1], groups, segments is not None)
    tile = tile or (WEIGHT_GRADIENT if division.has_large_memory(u.device) else SMALL_WEIGHT_GRADIENT)
    tile = tile.fitted(channels // groups, out)
    run, shares = _weight_gradient(*sizes, toeplitz.shape[-4], tile)
    partial = weight.new_empty(shares, *weight.shape)
    run(u, grad_o, toeplitz, past, before, u if segments is None else segments, partial)
    return partial[0] if shares == 1 else partial.sum(0)


@division.prepared
def _weight_gradient(
    device: torch.device,
    batch: int,
    time: int,
    channels: int,
    out: int,
    order: int,
    rows: int,
    groups: int,
    segmented: bool,
    parts: int,
    tile: Tile,
) -> tuple[Launch, int]:
    """The launch, and the number of shares of the sum over all chunks."""
    chunks = tiles(time, CHUNK)
    columns, across = groups * tiles(channels // groups, tile.width), tiles(out, tile.out)
    share, shares = division.divide_into_shares(batch * chunks, order * columns * across, device)
    constants: dict[str, Any] = {"ORDER": order, "ROWS": rows, "CHUNK": CHUNK, "WIDTH": tile.width, "OUT": tile.out}
    constants |= {"SEGMENTED": segmented, "GROUPS": groups, "UNIT": division.unit(channels, groups)}
    constants |= _precision(device, parts)
    grid, numbers = (order * columns, across, shares), (time, channels, out, chunks, batch, share)
    options: dict[str, Any] = {"num_warps": tile.warps, "num_stages": tile.stages}
    return Launch(_kernels, "weight_gradient", grid, numbers, constants, **options), shares


def _precision(device: torch.device, parts: int) -> dict[str, Any]:
    language = importlib.import_module("triton.language")
    kind = (language.float16 if parts == 2 else language.bfloat16) if device.type == "cuda" else language.float32
    return {"PARTS": parts, "PART": kind, "SCALE": SCALE if parts == 2 else 1.0}


def _kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.float32.triton_split")
