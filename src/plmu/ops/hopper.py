"""Launching the kernels of `plmu.ops.gluon_chunked`: where they run, and the tiles they take."""

from __future__ import annotations

import functools
import importlib
import math
import threading
from typing import Any

import torch
from torch import Tensor

SHARED = 227 * 1024  # bytes of fast memory a program may have
WIDTH, OUT = 64, 256  # channels and outputs of a tile
ALIGNED = 16  # bytes
MARGIN = 64  # steps by which a sequence may be filled up
MOST_RESIDENT = 4  # orders whose tables stay in fast memory

_entered = threading.local()  # the devices whose context each thread has


def suits(device: torch.device, dtype: torch.dtype, channels: int, out: int) -> bool:
    """Whether these kernels run: half precision on a Hopper GPU, rows of whole 16 bytes."""
    sizes = out > 0 and out % 8 == 0 and channels % 8 == 0
    return sizes and device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and _present(device.index)


def runs(u: Tensor, weight: Tensor) -> bool:
    """Whether they take these operands, which must begin at whole 16 bytes too and be counted in 32 bits."""
    aligned = u.data_ptr() % ALIGNED == 0 and weight.data_ptr() % ALIGNED == 0
    countable = u.shape[0] * (u.shape[1] + MARGIN) < 1 << 31
    return aligned and countable and suits(u.device, u.dtype, weight.shape[2], weight.shape[0])


def multiprocessors(device: torch.device) -> int:
    """How many programs run at the same time; where there is no GPU, that of the ones these kernels are made for."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@functools.cache
def _present(device: int | None) -> bool:
    """Whether the GPU is one of them and the installed Triton has what the kernels are written in."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        _modules()
    except (ImportError, AttributeError):
        return False
    return True


def project(
    u: Tensor, before: Tensor | None, weight: Tensor, toeplitz: Tensor, powers: Tensor, o: Tensor, *, reversed: bool
) -> tuple[Tensor, ...]:
    """As `project` of `plmu.ops.triton_chunked`. Its own memory, to hold until what runs beside it is launched."""
    batch, time, inputs = u.shape
    outputs, order, chunk, rows = o.shape[2], weight.shape[1], toeplitz.shape[1], powers.shape[2]
    chunks = -(-time // chunk)
    out = OUT if outputs > 128 else 128 if outputs > 64 else 64
    resident = order <= MOST_RESIDENT
    stages = next(n for n in (4, 3, 2) if _shared(rows, chunk, out, n, order if resident else n) <= SHARED)
    programs = multiprocessors(u.device)
    whole, halved = _division(-(-batch * chunks // 2) * -(-outputs // out), -(-inputs // WIDTH), programs)
    sums = u.new_empty(halved * 2 * chunk * out, dtype=torch.float32)
    flags = torch.zeros(2 * halved, dtype=torch.int32, device=u.device) if halved else sums
    with torch.cuda.device_of(u):
        _enter(u.device)
        _modules()[0].project[(min(whole + 2 * halved, programs),)](
            _described(u, 1, chunk, WIDTH),
            _past(u, before, rows),
            _described(weight.view(weight.shape[0], -1), *((WIDTH, out) if reversed else (out, WIDTH))),
            _described(toeplitz.view(-1, chunk), chunk, chunk),
            _described(powers.view(-1, rows), chunk, rows),
            o, sums, flags, time, inputs, outputs, weight.shape[2], chunks, batch * chunks, whole, whole + 2 * halved,
            ORDER=order, ROWS=rows, CHUNK=chunk, WIDTH=WIDTH, OUT=out, STAGES=stages, RESIDENT=resident,
            HISTORY=before is None, REVERSED=reversed, num_warps=4,
        )  # fmt: skip
    return sums, flags


def _division(tiles: int, blocks: int, programs: int) -> tuple[int, int]:
    """How many tiles are made whole, and how many of the last round in two halves: where that round has work for no
    more than half of the programs. All halves then run at the same time, which their handing over relies on."""
    left = tiles % programs
    halved = left if blocks >= 2 and left <= programs // 2 else 0
    return tiles - halved, halved


def _shared(rows: int, chunk: int, out: int, stages: int, tables: int) -> int:
    """Bytes of fast memory that `project` takes."""
    return 2 * (4 * (chunk + rows) * WIDTH + stages * out * WIDTH + tables * chunk * (chunk + rows)) + 1024


def weight_tiles(weight: Tensor) -> int:
    """Programs that `weight_gradient` has for each share of the chunks."""
    out, order, channels = weight.shape
    return -(-order // 2) * -(-channels // WIDTH) * -(-out // OUT)


def weight_gradient(
    u: Tensor, before: Tensor | None, of_o: Tensor, toeplitz: Tensor, powers: Tensor, partial: Tensor, share: int
) -> None:
    """As `weight_gradient` of `plmu.ops.triton_chunked`."""
    batch, time, channels = u.shape
    shares, out, order, _ = partial.shape
    chunk, rows = toeplitz.shape[1], powers.shape[2]
    chunks = -(-time // chunk)
    with torch.cuda.device_of(u):
        _enter(u.device)
        _modules()[0].weight_gradient[-(-order // 2) * -(-channels // WIDTH), -(-out // OUT), shares](
            _described(u, 1, chunk, WIDTH),
            _past(u, before, rows),
            _described(of_o, 1, chunk, OUT),
            _described(toeplitz.view(-1, chunk), chunk, chunk),
            _described(powers.view(-1, rows), chunk, rows),
            partial, channels, out, chunks, batch * chunks, share,
            ORDER=order, ROWS=rows, CHUNK=chunk, WIDTH=WIDTH, OUT=OUT, STAGES=3 if rows > 32 else 4,
            HISTORY=before is None, num_warps=4,
        )  # fmt: skip


def _enter(device: torch.device) -> None:
    """Bring the GPU's context into this thread, where descriptors for the copy engine are made. A thread that has not
    called CUDA yet has none, as autograd's may when it finds all memory at hand; any kernel of torch brings it."""
    devices: set[torch.device] = _entered.__dict__.setdefault("devices", set())
    if device not in devices:
        torch.zeros(1, device=device)
        devices.add(device)


def _past(u: Tensor, before: Tensor | None, rows: int) -> Any:
    """The inputs before chunks, or the states: both as (sequences, steps, channels)."""
    return _described(u if before is None else before.view(1, -1, before.shape[3]), 1, rows, WIDTH)


def _described(tensor: Tensor, *tile: int) -> Any:
    """What the copy engine is told of a tensor and of the tiles it fetches."""
    _, descriptor, language = _modules()
    strides = [math.prod(tensor.shape[i + 1 :]) for i in range(tensor.dim())]  # a size of 1 may have any other
    return descriptor(tensor, list(tensor.shape), strides, list(tile), _layout(language, tile, tensor.dtype))


@functools.cache
def _layout(language: Any, tile: tuple[int, ...], dtype: torch.dtype) -> Any:
    kind = language.bfloat16 if dtype == torch.bfloat16 else language.float16
    return language.NVMMASharedLayout.get_default_for(list(tile), kind)


@functools.cache
def _modules() -> tuple[Any, Any, Any]:
    """The kernels, the descriptor and the language; an ImportError or AttributeError where Triton is too old."""
    kernels = importlib.import_module("plmu.ops.gluon_chunked")
    descriptor = importlib.import_module("triton.experimental.gluon.nvidia.hopper").TensorDescriptor
    return kernels, descriptor, importlib.import_module("triton.experimental.gluon.language")
