"""Launching the kernels: memory, grids and tiles. Those of `triton_chunked`, or of `gluon_chunked` in their place.

`why_not_hopper` decides between them, here as in the plan.
"""

from __future__ import annotations

import functools
import importlib
import math
import threading
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from plmu.ops.gpu.tables import CHANNELS, CHUNK, rows_of, tiles

# Of the kernels for Hopper.
SHARED = 227 * 1024  # bytes of shared memory that a program may have
WIDTH, OUT = 64, 256  # channels and outputs of a tile
ALIGNED = 16  # bytes at which their operands, and the rows of these, must begin
MARGIN = 64  # steps by which a sequence may be filled up
MOST_RESIDENT = 4  # orders whose tables stay in shared memory

_entered = threading.local()  # the devices whose context each thread has


def why_not_hopper(
    device: torch.device, dtype: torch.dtype, batch: int, time: int, channels: int, out: int, segmented: bool
) -> str | None:
    """Why the kernels for Hopper do not run `project` there, if they do not."""
    reason = None
    if segmented:
        reason = "the kernels for Hopper do not reset inside a sequence"
    elif dtype not in (torch.bfloat16, torch.float16):
        reason = "the kernels for Hopper take bfloat16 and float16 alone"
    elif out % 8 or channels % 8:
        reason = f"the kernels for Hopper take multiples of 8, not {channels} channels and {out} outputs"
    elif batch * (time + MARGIN) >= 1 << 31:
        reason = "the kernels for Hopper count steps in 32 bits"
    elif not _has_hopper(device):
        reason = "the kernels for Hopper need a Hopper GPU and Triton 3.6 or newer"
    return reason


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it where it does not begin at a multiple of 16 bytes."""
    return tensor if tensor.data_ptr() % ALIGNED == 0 else tensor.clone()


def _has_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and _is_hopper(device.index)


@functools.cache
def _is_hopper(index: int | None) -> bool:
    """Whether the GPU is a Hopper and the installed Triton has what the kernels are written in."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(index)[0] != 9:
        return False
    try:
        _gluon()
    except (ImportError, AttributeError):
        return False
    return True


def carry(
    u: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    size: int,
    *,
    reversed: bool = False,
) -> tuple[Tensor, Tensor]:
    """The states before all chunks as the products take them (batch, chunks, rows, channels), and the last in float32.

    `leap` is the state's way through `size` chunks, which one program passes. `reversed`: the states after all chunks,
    of time that runs backwards.
    """
    batch, time, channels = u.shape
    order, chunks = taps.shape[1], tiles(time, CHUNK)
    groups, columns = tiles(chunks, size), tiles(channels, CHANNELS)
    before = u.new_empty(batch, chunks, rows_of(order), channels)
    last = advance.new_empty(batch, order, channels)
    ends = advance.new_empty(batch, groups, order, channels) if groups > 1 else last
    marks = last if segments is None else segments  # not read where there are none

    def run(*, started: bool, keep: bool) -> None:
        kernels().carry[batch * groups, columns](
            u, taps, advance, leap, first if started else last, marks, ends, before, last,
            time, channels, chunks, groups, size,
            **sizes(order), WIDTH=CHANNELS, PARTS=taps.shape[0], STARTED=started, KEEP=keep, REVERSED=reversed,
            SEGMENTED=segments is not None, PRECISION=exact(u),
        )  # fmt: skip

    with torch.cuda.device_of(u):
        if groups > 1:
            run(started=False, keep=False)
        run(started=first is not None, keep=True)
    return before, last


def final_state(
    u: Tensor, before: Tensor | None, segments: Tensor | None, taps: Tensor, advance: Tensor, *, early: bool = False
) -> Tensor:
    """In float32, from the last steps, as many as `taps` has, and the state before them. With resets it is empty, and
    found by other products.

    `early`: beside the projection for Hopper that was launched just before, while the memory of that one is held.
    """
    if segments is not None:
        return advance.new_empty(0)
    batch, time, channels = u.shape
    parts, order, length = taps.shape
    last = advance.new_empty(batch, order, channels)
    with torch.cuda.device_of(u):
        kernels().finish[batch, tiles(channels, 64)](
            u, taps, advance, last if before is None else before, last, time, channels, length,
            **sizes(order), WIDTH=64, PARTS=parts, STARTED=before is not None, EARLY=early, PRECISION=exact(u),
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    return last


def project(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    *,
    reversed: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """W_m m; or, of time that runs backwards and the transposed weight, the gradient of u from that of o. And the
    memory to hold until `final_state` is launched early; empty where it may not be."""
    batch, time, inputs = u.shape
    order, outputs = weight.shape[1], weight.shape[2 if reversed else 0]
    o = u.new_empty(batch, time, outputs)
    if for_hopper(u, segments, weight):
        return o, _hopper_project(u, before, weight, toeplitz, past, o, reversed=reversed)
    half, chunks = u.dtype != torch.float32, tiles(time, CHUNK)
    shape = {"WIDTH": 64 if half else 32, "OUT": 256 if half and outputs > 128 else 64}
    with torch.cuda.device_of(u):
        kernels().project[batch * chunks, tiles(outputs, shape["OUT"])](
            u, weight, toeplitz, past, u if before is None else before, u if segments is None else segments, o,
            time, inputs, outputs, chunks,
            ORDER=order, ROWS=past.shape[2], CHUNK=CHUNK, **shape, HISTORY=before is None, REVERSED=reversed,
            SEGMENTED=segments is not None, PRECISION=precision(), num_warps=4, num_stages=2,
        )  # fmt: skip
    return o, ()


def for_hopper(u: Tensor, segments: Tensor | None, weight: Tensor) -> bool:
    """Whether the kernels for Hopper take the place of Triton's."""
    out, _, channels = weight.shape
    return why_not_hopper(u.device, u.dtype, u.shape[0], u.shape[1], channels, out, segments is not None) is None


def weight_gradient(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    of_o: Tensor,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
) -> Tensor:
    """Σ of_oᵀ m over all steps."""
    batch, time, channels = u.shape
    out, order, _ = weight.shape
    chunks = tiles(time, CHUNK)
    special = for_hopper(u, segments, weight)
    width, height = (64, 64) if u.dtype == torch.float32 else (128, min(256, max(64, 1 << (out - 1).bit_length())))
    programs = _hopper_weight_tiles(weight) if special else order * tiles(channels, width) * tiles(out, height)
    shares = max(1, min(batch * chunks, _multiprocessors(u.device) // programs))
    share = tiles(batch * chunks, shares)
    shares = tiles(batch * chunks, share)
    partial = weight.new_empty(shares, *weight.shape, dtype=weight.dtype if shares == 1 else torch.float32)
    if special:
        _hopper_weight_gradient(u, before, of_o, toeplitz, past, partial, share)
    else:
        with torch.cuda.device_of(u):
            kernels().weight_gradient[order * tiles(channels, width), tiles(out, height), shares](
                u, of_o, toeplitz, past, u if before is None else before, u if segments is None else segments,
                partial, time, channels, out, chunks, batch, share,
                ORDER=order, ROWS=past.shape[2], CHUNK=CHUNK, WIDTH=width, OUT=height, HISTORY=before is None,
                SEGMENTED=segments is not None, PRECISION=precision(), num_warps=8, num_stages=3,
            )  # fmt: skip
    return partial[0] if shares == 1 else partial.sum(0).to(weight.dtype)


def no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError("the fused kernels have no second derivative: use algorithm='chunked' for it")


@functools.cache
def kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.triton_chunked")


def sizes(order: int) -> dict[str, int]:
    return {"ORDER": order, "ROWS": rows_of(order), "CHUNK": CHUNK}


def precision() -> str:
    """How float32 operands are multiplied: as they are, unless torch is allowed to round them."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def exact(u: Tensor) -> str:
    """For products in float32 that carry the state."""
    return "ieee" if u.dtype == torch.float32 else "tf32x3"


def _multiprocessors(device: torch.device) -> int:
    """How many programs run at the same time; where there is no GPU, that of the ones these kernels are made for."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def _hopper_project(
    u: Tensor, before: Tensor | None, weight: Tensor, toeplitz: Tensor, powers: Tensor, o: Tensor, *, reversed: bool
) -> tuple[Tensor, ...]:
    """`project` by the kernel for Hopper. Its own memory, to hold until what runs beside it is launched."""
    batch, time, inputs = u.shape
    outputs, order, chunk, rows = o.shape[2], weight.shape[1], toeplitz.shape[1], powers.shape[2]
    chunks = -(-time // chunk)
    out = OUT if outputs > 128 else 128 if outputs > 64 else 64
    resident = order <= MOST_RESIDENT
    stages = next(n for n in (4, 3, 2) if _shared(rows, chunk, out, n, order if resident else n) <= SHARED)
    programs = _multiprocessors(u.device)
    whole, halved = _division(-(-batch * chunks // 2) * -(-outputs // out), -(-inputs // WIDTH), programs)
    sums = u.new_empty(halved * 2 * chunk * out, dtype=torch.float32)
    flags = torch.zeros(2 * halved, dtype=torch.int32, device=u.device) if halved else sums
    with torch.cuda.device_of(u):
        _enter(u.device)
        _gluon()[0].project[(min(whole + 2 * halved, programs),)](
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
    """Bytes of shared memory that `_hopper_project` takes."""
    return 2 * (4 * (chunk + rows) * WIDTH + stages * out * WIDTH + tables * chunk * (chunk + rows)) + 1024


def _hopper_weight_tiles(weight: Tensor) -> int:
    """Programs that `_hopper_weight_gradient` has for each share of the chunks."""
    out, order, channels = weight.shape
    return -(-order // 2) * -(-channels // WIDTH) * -(-out // OUT)


def _hopper_weight_gradient(
    u: Tensor, before: Tensor | None, of_o: Tensor, toeplitz: Tensor, powers: Tensor, partial: Tensor, share: int
) -> None:
    """`weight_gradient` by the kernel for Hopper."""
    batch, time, channels = u.shape
    shares, out, order, _ = partial.shape
    chunk, rows = toeplitz.shape[1], powers.shape[2]
    chunks = -(-time // chunk)
    with torch.cuda.device_of(u):
        _enter(u.device)
        _gluon()[0].weight_gradient[-(-order // 2) * -(-channels // WIDTH), -(-out // OUT), shares](
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
    _, descriptor, language = _gluon()
    strides = [math.prod(tensor.shape[i + 1 :]) for i in range(tensor.dim())]  # a size of 1 may have any other
    return descriptor(tensor, list(tensor.shape), strides, list(tile), _layout(language, tile, tensor.dtype))


@functools.cache
def _layout(language: Any, tile: tuple[int, ...], dtype: torch.dtype) -> Any:
    kind = language.bfloat16 if dtype == torch.bfloat16 else language.float16
    return language.NVMMASharedLayout.get_default_for(list(tile), kind)


@functools.cache
def _gluon() -> tuple[Any, Any, Any]:
    """The kernels, the descriptor and the language; an ImportError or AttributeError where Triton is too old."""
    kernels = importlib.import_module("plmu.ops.gpu.gluon_chunked")
    descriptor = importlib.import_module("triton.experimental.gluon.nvidia.hopper").TensorDescriptor
    return kernels, descriptor, importlib.import_module("triton.experimental.gluon.language")
