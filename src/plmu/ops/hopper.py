"""Launching the kernels of `plmu.ops.gluon_chunked`: where they run, and the tiles they take."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

MULTIPROCESSORS = 132  # of the GPUs these kernels are made for
SHARED = 227 * 1024  # bytes of fast memory a program may have
WIDTH, HEIGHT = 64, 128  # channels and outputs of a tile
ALIGNED = 16  # bytes


def runs(u: Tensor, weight: Tensor) -> bool:
    """Whether these kernels can take the operands: half precision on a Hopper GPU, rows of whole 16 bytes."""
    return (
        u.is_cuda
        and u.dtype in (torch.bfloat16, torch.float16)
        and weight.shape[0] % 8 == 0
        and weight.shape[2] % 8 == 0
        and u.data_ptr() % ALIGNED == 0
        and weight.data_ptr() % ALIGNED == 0
        and _present(u.device.index)
    )


@functools.cache
def _present(device: int) -> bool:
    """Whether the GPU is one of them and the installed Triton has what the kernels are written in."""
    if torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        _modules()
    except (ImportError, AttributeError):
        return False
    return True


def project(
    u: Tensor, before: Tensor, weight: Tensor, toeplitz: Tensor, powers: Tensor, o: Tensor, *, reversed: bool
) -> None:
    """As `project` of `plmu.ops.triton_chunked`."""
    batch, chunks, rows, inputs = before.shape
    time, outputs, order, chunk = u.shape[1], o.shape[2], weight.shape[1], toeplitz.shape[1]
    out = 256 if outputs > 128 else 128 if outputs > 64 else 64
    stages = 3 if _shared(rows, chunk, out, 3) <= SHARED else 2
    tile = (WIDTH, out) if reversed else (out, WIDTH)
    with torch.cuda.device_of(u):
        _modules()[0].project[-(-batch * chunks // 2), -(-outputs // out)](
            _described(u, 1, chunk, WIDTH),
            _described(before.view(-1, inputs), rows, WIDTH),
            _described(weight.view(weight.shape[0], -1), *tile),
            _described(toeplitz.view(-1, chunk), chunk, chunk),
            _described(powers.view(-1, rows), chunk, rows),
            o, time, inputs, outputs, weight.shape[2], chunks, batch * chunks,
            ORDER=order, ROWS=rows, CHUNK=chunk, WIDTH=WIDTH, OUT=out, STAGES=stages, REVERSED=reversed, num_warps=4,
        )  # fmt: skip


def _shared(rows: int, chunk: int, out: int, stages: int) -> int:
    """Bytes of fast memory that `project` takes."""
    inputs, memory = 4 * (chunk + rows) * WIDTH, 4 * chunk * WIDTH
    return 2 * (inputs + memory + stages * (out * WIDTH + chunk * (chunk + rows))) + 1024


def weight_tiles(weight: Tensor) -> int:
    """Programs that `weight_gradient` has for each share of the chunks."""
    out, order, channels = weight.shape
    return -(-order // 2) * -(-channels // WIDTH) * -(-out // (2 * HEIGHT))


def weight_gradient(
    u: Tensor, before: Tensor, of_o: Tensor, toeplitz: Tensor, powers: Tensor, partial: Tensor, share: int
) -> None:
    """As `weight_gradient` of `plmu.ops.triton_chunked`."""
    batch, chunks, rows, channels = before.shape
    shares, out, order, _ = partial.shape
    chunk = toeplitz.shape[1]
    with torch.cuda.device_of(u):
        _modules()[0].weight_gradient[-(-order // 2) * -(-channels // WIDTH), -(-out // (2 * HEIGHT)), shares](
            _described(u, 1, chunk, WIDTH),
            _described(before.view(-1, channels), rows, WIDTH),
            _described(of_o, 1, chunk, HEIGHT),
            _described(toeplitz.view(-1, chunk), chunk, chunk),
            _described(powers.view(-1, rows), chunk, rows),
            partial, channels, out, chunks, batch * chunks, share,
            ORDER=order, ROWS=rows, CHUNK=chunk, WIDTH=WIDTH, HEIGHT=HEIGHT, STAGES=3, num_warps=4,
        )  # fmt: skip


def _described(tensor: Tensor, *tile: int) -> Any:
    """What the copy engine is told of a tensor and of the tiles it fetches."""
    _, descriptor, language = _modules()
    return descriptor.from_tensor(tensor, list(tile), _layout(language, tile, tensor.dtype))


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
