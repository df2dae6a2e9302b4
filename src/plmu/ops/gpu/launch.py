"""Launching the kernels: memory, grids and tiles. Those of `triton_chunked`, or of `gluon_chunked` in their place.

`why_not_hopper` decides between them, here as in the plan. A launch for given sizes is prepared once. Callers
make the device of their tensors the current one (`on`), and tensors begin at multiples of 16 bytes (`aligned`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import threading
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.ops.gpu.direct import Launch, Tiled, gluon
from plmu.ops.gpu.tables import CHANNELS, CHUNK, rows_of, tiles

# Of the kernels for Hopper.
SHARED = 227 * 1024  # bytes of shared memory that a program may have
WIDTH, OUT = 64, 256  # channels and outputs of a tile
ALIGNED = 16  # bytes at which their operands, and the rows of these, must begin
MARGIN = 64  # steps by which a sequence may be filled up
MOST_RESIDENT = 4  # orders whose tables stay in shared memory
# Of `through_output`.
STEPS, OUTPUTS = 16, 256  # of a tile
PROGRAMS = 8  # that a multiprocessor runs at the same time

_entered = threading.local()  # the devices whose context each thread has
prepared = functools.lru_cache(maxsize=1024)


class Rest(NamedTuple):
    """What a layer does beside W_m m: relu(W_m m + W_x x + b), or a part of that."""

    x: Tensor | None = None  #: (batch, time, features); None for u itself
    weight: Tensor | None = None  #: W_x (out, features)
    bias: Tensor | None = None  #: (out,)
    relu: bool = False


def why_not_hopper(
    device: torch.device, dtype: torch.dtype, batch: int, time: int, channels: int, out: int
) -> str | None:
    """Why the kernels for Hopper do not run `project` there, if they do not."""
    reason = None
    if dtype not in (torch.bfloat16, torch.float16):
        reason = "the kernels for Hopper take bfloat16 and float16 alone"
    elif out % 8 or channels % 8:
        reason = f"the kernels for Hopper take multiples of 8, not {channels} channels and {out} outputs"
    elif batch * (time + MARGIN) >= 1 << 31:
        reason = "the kernels for Hopper count steps in 32 bits"
    elif not has_hopper(device):
        reason = "the kernels for Hopper need a Hopper GPU and Triton 3.6 or newer"
    return reason


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it where it does not begin at a multiple of 16 bytes."""
    return tensor if tensor.data_ptr() % ALIGNED == 0 else tensor.clone()


def aligned_if(tensor: Tensor | None) -> Tensor | None:
    """The same of a tensor that need not be given."""
    return None if tensor is None else aligned(tensor)


def on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the tensor's device the current one, where it is not."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


def has_hopper(device: torch.device) -> bool:
    """Whether the device is a Hopper GPU with a Triton that has what its kernels are written in."""
    return device.type == "cuda" and _is_hopper(device.index)


@functools.cache
def _is_hopper(index: int | None) -> bool:
    """Whether the GPU is a Hopper and the installed Triton has what the kernels are written in."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(index)[0] != 9:
        return False
    try:
        gluon()
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
    groups: int = 1,
    reversed: bool = False,
) -> tuple[Tensor, Tensor]:
    """The states before all chunks as the products take them (batch, chunks, rows, channels), and the last in float32.

    `leap` is the state's way through a run of `size` chunks, which one program passes. `reversed`: the states after all
    chunks, of time that runs backwards; with groups, for each system those of all channels (groups · batch, ...).
    """
    batch, time, channels = u.shape
    order, chunks = taps.shape[-2], tiles(time, CHUNK)
    runs, sequences = tiles(chunks, size), batch * groups if reversed else batch
    before = u.new_empty(sequences, chunks, rows_of(order), channels)
    last = advance.new_empty(sequences, order, channels)
    ends = advance.new_empty(sequences, runs, order, channels) if runs > 1 else last
    marks = last if segments is None else segments  # not read where there are none
    sizes = (u.device, u.dtype, batch, time, channels, order, size, groups, taps.shape[-3])
    how = (reversed, segments is not None)
    if runs > 1:
        _carry(*sizes, False, False, *how)(u, taps, advance, leap, last, marks, ends, before, last)
    started = last if first is None else first
    _carry(*sizes, first is not None, True, *how)(u, taps, advance, leap, started, marks, ends, before, last)
    return before, last


@prepared
def _carry(
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    time: int,
    channels: int,
    order: int,
    size: int,
    groups: int,
    parts: int,
    started: bool,
    keep: bool,
    reversed: bool,
    segmented: bool,
) -> Launch:
    chunks = tiles(time, CHUNK)
    runs = tiles(chunks, size)
    constants: dict[str, Any] = {
        "WIDTH": CHANNELS,
        "PARTS": parts,
        "STARTED": started,
        "KEEP": keep,
        "REVERSED": reversed,
    }
    constants |= {
        "SEGMENTED": segmented,
        "PRECISION": exact(dtype),
        "GROUPS": groups,
        "UNIT": 1 if reversed else unit(channels, groups),
        **sizes(order),
    }
    grid = (batch * runs, groups * tiles(channels if reversed else channels // groups, CHANNELS))
    return Launch(_triton, "carry", grid, (time, channels, chunks, runs, size), constants)


def final_state(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    taps: Tensor,
    advance: Tensor,
    *,
    groups: int = 1,
    early: bool = False,
) -> Tensor:
    """In float32, from the last steps, as many as `taps` has, and the state before them.

    `early`: beside the projection for Hopper that was launched just before, while the memory of that one is held.
    """
    batch, time, channels = u.shape
    parts, order, length = taps.shape[-3:]
    last = advance.new_empty(batch, order, channels)
    sizes = (u.device, u.dtype, batch, time, channels, order, length, groups, parts)
    marks = last if segments is None else segments  # not read where there are none
    how = (before is not None, early, segments is not None)
    _finish(*sizes, *how)(u, taps, advance, last if before is None else before, marks, last)
    return last


@prepared
def _finish(
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
    constants: dict[str, Any] = {"WIDTH": 64, "PARTS": parts, "STARTED": started, "EARLY": early, **sizes(order)}
    constants |= {"SEGMENTED": segmented, "PRECISION": exact(dtype)}
    constants |= {"GROUPS": groups, "UNIT": unit(channels, groups)}
    grid = (batch, groups * tiles(channels // groups, 64))
    options: dict[str, Any] = {"launch_pdl": True} if early else {}
    return Launch(_triton, "finish", grid, (time, channels, length), constants, **options)


def marks(u: Tensor, segments: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """What the kernels for Hopper ask of segments, for time that runs forwards and backwards; None where there are none
    or other kernels run."""
    return None if segments is None or not for_hopper(u, weight) else marks_of(segments)


def marks_of(segments: Tensor) -> tuple[Tensor, Tensor]:
    """The same where such kernels run."""
    batch, time = segments.shape
    found = segments.new_empty(2, batch * tiles(time, CHUNK), CHUNK + 1)
    _mark(segments.device, batch, time)(segments, found)
    return found[0], found[1]


@prepared
def _mark(device: torch.device, batch: int, time: int) -> Launch:
    chunks = tiles(time, CHUNK)
    return Launch(_triton, "mark", (batch * chunks,), (time, chunks), {"CHUNK": CHUNK})


def project(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    marked: Tensor | None = None,
    rest: Rest | None = None,
    *,
    groups: int = 1,
    reversed: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """W_m m; or, of time that runs backwards and the transposed weight, the gradient of u from that of o. And the
    memory to hold until `final_state` is launched early; empty where it may not be. `marked`: `marks` for that
    direction. `rest` is for the kernels for Hopper alone."""
    batch, time, inputs = u.shape
    order, outputs = weight.shape[1], weight.shape[2 if reversed else 0]
    o = u.new_empty(batch, time, outputs)
    sizes = (u.device, u.dtype, batch, time, inputs, outputs, order, past.shape[-1], groups, before is None, reversed)
    if for_hopper(u, weight):
        x, input_weight, bias, relu = rest or Rest()
        x = None if input_weight is None else u if x is None else x
        features = 0 if x is None else x.shape[2]
        launch, values, flags = _hopper_project(*sizes, marked is not None, features, bias is not None, relu)
        sums = u.new_empty(values, dtype=torch.float32)
        done = torch.zeros(flags, dtype=torch.int32, device=u.device) if flags else sums
        rows = sums if marked is None else marked  # not read where there are none
        enter(u.device)
        tiled = (u, u if before is None else before, weight, toeplitz, past, x, input_weight)
        launch(*tiled, o, sums, done, rows, o if bias is None else bias)
        return o, (sums, done)
    given = (u if before is None else before, u if segments is None else segments)
    _project(*sizes, segments is not None, precision(u.dtype))(u, weight, toeplitz, past, *given, o)
    return o, ()


@prepared
def _project(
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    time: int,
    inputs: int,
    outputs: int,
    order: int,
    rows: int,
    groups: int,
    history: bool,
    reversed: bool,
    segmented: bool,
    precision: str,
) -> Launch:
    half, chunks = dtype != torch.float32, tiles(time, CHUNK)
    across = groups if reversed else 1
    out = 256 if half and outputs // across > 128 else 64
    constants: dict[str, Any] = {"ORDER": order, "ROWS": rows, "CHUNK": CHUNK, "WIDTH": 64 if half else 32, "OUT": out}
    constants |= {"HISTORY": history, "REVERSED": reversed, "SEGMENTED": segmented, "PRECISION": precision}
    constants |= {"GROUPS": groups, "UNIT": unit(outputs if reversed else inputs, groups)}
    grid = (batch * chunks, across * tiles(outputs // across, out))
    numbers = (time, inputs, outputs, chunks)
    return Launch(_triton, "project", grid, numbers, constants, num_warps=4, num_stages=2)


def for_hopper(u: Tensor, weight: Tensor) -> bool:
    """Whether the kernels for Hopper take the place of Triton's."""
    out, _, channels = weight.shape
    return why_not_hopper(u.device, u.dtype, u.shape[0], u.shape[1], channels, out) is None


def weight_gradient(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    of_o: Tensor,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    marked: Tensor | None = None,
    *,
    groups: int = 1,
) -> Tensor:
    """Σ of_oᵀ m over all steps. `marked`: `marks` for time that runs forwards."""
    batch, time, channels = u.shape
    out, order, _ = weight.shape
    sizes = (u.device, u.dtype, batch, time, channels, out, order, past.shape[-1], groups, before is None)
    hopper = for_hopper(u, weight)
    how = (marked is not None,) if hopper else (segments is not None, precision(u.dtype))
    launch, shares = (_hopper_weight_gradient if hopper else _weight_gradient)(*sizes, *how)
    partial = weight.new_empty(shares, *weight.shape, dtype=weight.dtype if shares == 1 else torch.float32)
    states = u if before is None else before
    if hopper:
        enter(u.device)
        launch(u, states, of_o, toeplitz, past, partial, partial if marked is None else marked)
    else:
        launch(u, of_o, toeplitz, past, states, u if segments is None else segments, partial)
    return partial[0] if shares == 1 else partial.sum(0).to(weight.dtype)


@prepared
def _weight_gradient(
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    time: int,
    channels: int,
    out: int,
    order: int,
    rows: int,
    groups: int,
    history: bool,
    segmented: bool,
    precision: str,
) -> tuple[Launch, int]:
    """And how many shares the sum over all chunks is cut into."""
    chunks = tiles(time, CHUNK)
    width, height = (64, 64) if dtype == torch.float32 else (128, min(256, max(64, 1 << (out - 1).bit_length())))
    columns, rows_of_tiles = groups * tiles(channels // groups, width), tiles(out, height)
    share, shares = shared_out(batch * chunks, order * columns * rows_of_tiles, device)
    constants: dict[str, Any] = {
        "ORDER": order,
        "ROWS": rows,
        "CHUNK": CHUNK,
        "WIDTH": width,
        "OUT": height,
        "HISTORY": history,
    }
    constants |= {"SEGMENTED": segmented, "PRECISION": precision, "GROUPS": groups, "UNIT": unit(channels, groups)}
    grid = (order * columns, rows_of_tiles, shares)
    numbers = (time, channels, out, chunks, batch, share)
    return Launch(_triton, "weight_gradient", grid, numbers, constants, num_warps=8, num_stages=3), shares


def through_output(of_o: Tensor, o: Tensor | None, need_bias: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient before ReLU from that behind it, by the output o; without one they are the same. And, if needed, its
    sum over all steps in float32, which repeats bit for bit."""
    outputs = of_o.shape[-1]
    passed = of_o if o is None else torch.empty_like(of_o)
    sizes = (of_o.numel() // outputs, outputs)
    launch, shares = _through_output(of_o.device, of_o.dtype, *sizes, o is not None, need_bias)
    sums = of_o.new_empty(shares, outputs, dtype=torch.float32) if need_bias else of_o
    launch(of_o, of_o if o is None else o, passed, sums)
    return passed, sums.sum(0) if need_bias else None


@prepared
def _through_output(
    device: torch.device, dtype: torch.dtype, total: int, outputs: int, relu: bool, bias: bool
) -> tuple[Launch, int]:
    """And how many shares the steps are divided into."""
    columns = tiles(outputs, OUTPUTS)
    wanted = tiles(PROGRAMS * multiprocessors(device), columns)
    share = tiles(tiles(total, wanted), STEPS) * STEPS
    shares = tiles(total, share)
    constants = {"ROWS": STEPS, "WIDTH": OUTPUTS, "RELU": relu, "BIAS": bias}
    return Launch(_triton, "through_output", (shares, columns), (total, outputs, share), constants), shares


def unit(channels: int, groups: int) -> int:
    """What the channels of a group are a multiple of, as far as it matters; of one group the compiler finds out."""
    return 1 if groups == 1 else math.gcd(channels // groups, 16)


def shared_out(chunks: int, programs: int, device: torch.device) -> tuple[int, int]:
    """How many chunks a share has, and how many shares fill the GPU with so many programs each."""
    wanted = max(1, min(chunks, multiprocessors(device) // programs))
    share = tiles(chunks, wanted)
    return share, tiles(chunks, share)


def no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError("the fused kernels have no second derivative: use algorithm='chunked' for it")


@functools.cache
def kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.triton_chunked")


def _triton() -> ModuleType:
    return kernels()


def sizes(order: int) -> dict[str, int]:
    return {"ORDER": order, "ROWS": rows_of(order), "CHUNK": CHUNK}


def precision(dtype: torch.dtype) -> str:
    """How float32 operands are multiplied: as they are, unless torch is allowed to round them."""
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def exact(dtype: torch.dtype) -> str:
    """For products in float32 that carry the state."""
    return "ieee" if dtype == torch.float32 else "tf32x3"


def multiprocessors(device: torch.device) -> int:
    """How many programs run at the same time; where there is no GPU, that of the ones these kernels are made for."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def _hopper() -> ModuleType:
    module: ModuleType = gluon()[0]
    return module


@prepared
def _hopper_project(
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    time: int,
    inputs: int,
    outputs: int,
    order: int,
    rows: int,
    groups: int,
    history: bool,
    reversed: bool,
    segmented: bool,
    features: int = 0,
    bias: bool = False,
    relu: bool = False,
) -> tuple[Launch, int, int]:
    """`project` by the kernel for Hopper, and how much memory of its own it has: sums, and flags that begin at 0. It
    holds that until what runs beside it is launched."""
    chunks, programs = tiles(time, CHUNK), multiprocessors(device)
    blocks, across = (1, groups) if reversed else (groups, 1)  # groups of inputs and of outputs
    unit = math.gcd((outputs if reversed else inputs) // groups, 8)
    across_each = outputs // across + (8 - unit if across > 1 else 0)
    out = OUT if across_each > 128 else 128 if across_each > 64 else 64
    resident = order <= MOST_RESIDENT and groups == 1
    stages = next(n for n in (4, 3, 2) if _shared(rows, CHUNK, out, n, order if resident else n) <= SHARED)
    columns, depth = _covering(outputs, across, out), _covering(inputs, blocks, WIDTH)
    whole, halved = _division(tiles(batch * chunks, 2) * columns, depth, programs)
    work = whole + 2 * halved
    channels = outputs if reversed else inputs
    shape = (inputs, order * channels) if reversed else (outputs, order * channels)
    of_weight = (WIDTH, out) if reversed else (out, WIDTH)
    tiled: tuple[Tiled, ...] = (
        ((batch, time, inputs), (1, CHUNK, WIDTH)),
        _past(batch, time, inputs, rows, history, across),
        (shape, of_weight),
        ((groups * order * CHUNK, CHUNK), (CHUNK, CHUNK)),
        ((groups * order * CHUNK, rows), (CHUNK, rows)),
    )
    if features:
        direct = (features, outputs) if reversed else (outputs, features)
        tiled += (((batch, time, features), (1, CHUNK, WIDTH)), (direct, of_weight))
    constants: dict[str, Any] = {
        "ORDER": order,
        "ROWS": rows,
        "CHUNK": CHUNK,
        "WIDTH": WIDTH,
        "OUT": out,
        "STAGES": stages,
    }
    constants |= {"RESIDENT": resident, "HISTORY": history, "REVERSED": reversed, "GROUPS": groups}
    constants |= {"MASKED": bool(blocks > 1 and inputs // blocks % WIDTH), "UNIT": unit}
    constants |= {"SEGMENTED": segmented, "BIAS": bias, "DIRECT": bool(features), "RELU": relu}
    numbers = (time, inputs, outputs, tiles(features, WIDTH), channels, chunks, batch * chunks, whole, work)
    launch = Launch(_hopper, "project", (min(work, programs),), numbers, constants, tiled=tiled, num_warps=4)
    return launch, halved * 2 * CHUNK * out, 2 * halved


def _covering(channels: int, groups: int, width: int) -> int:
    """How many tiles of so many channels cover all groups. Like the copy engine they begin at multiples of 8 channels,
    so a tile may have up to 7 before those of its group."""
    each = channels // groups
    return groups * tiles(each + (8 - math.gcd(each, 8) if groups > 1 else 0), width)


def _division(tiles: int, blocks: int, programs: int) -> tuple[int, int]:
    """How many tiles are made whole, and how many of the last round in two halves: where that round has work for no
    more than half of the programs. All halves then run at the same time, which their handing over relies on."""
    left = tiles % programs
    halved = left if blocks >= 2 and left <= programs // 2 else 0
    return tiles - halved, halved


def _shared(rows: int, chunk: int, out: int, stages: int, tables: int) -> int:
    """Bytes of shared memory that `_hopper_project` takes."""
    return 2 * (4 * (chunk + rows) * WIDTH + stages * out * WIDTH + tables * chunk * (chunk + rows)) + 1024


@prepared
def _hopper_weight_gradient(
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    time: int,
    channels: int,
    out: int,
    order: int,
    rows: int,
    groups: int,
    history: bool,
    segmented: bool,
) -> tuple[Launch, int]:
    """`weight_gradient` by the kernel for Hopper, and how many shares the sum over all chunks is cut into."""
    chunks = tiles(time, CHUNK)
    columns, outputs = tiles(order, 2) * _covering(channels, groups, WIDTH), tiles(out, OUT)
    share, shares = shared_out(batch * chunks, columns * outputs, device)
    tiled = (
        ((batch, time, channels), (1, CHUNK, WIDTH)),
        _past(batch, time, channels, rows, history),
        ((batch, time, out), (1, CHUNK, OUT)),
        ((groups * order * CHUNK, CHUNK), (CHUNK, CHUNK)),
        ((groups * order * CHUNK, rows), (CHUNK, rows)),
    )
    constants: dict[str, Any] = {"ORDER": order, "ROWS": rows, "CHUNK": CHUNK, "WIDTH": WIDTH, "OUT": OUT}
    constants |= {"STAGES": 3 if rows > 32 else 4, "HISTORY": history, "GROUPS": groups}
    constants |= {"UNIT": math.gcd(channels // groups, 8), "SEGMENTED": segmented}
    numbers, grid = (channels, out, chunks, batch * chunks, share), (columns, outputs, shares)
    return Launch(_hopper, "weight_gradient", grid, numbers, constants, tiled=tiled, num_warps=4), shares


def enter(device: torch.device) -> None:
    """Bring the GPU's context into this thread, where descriptors for the copy engine are made. A thread that has not
    called CUDA yet has none, as autograd's may when it finds all memory at hand; any kernel of torch brings it."""
    devices: set[torch.device] = _entered.__dict__.setdefault("devices", set())
    if device not in devices:
        torch.zeros(1, device=device)
        devices.add(device)


def _past(
    batch: int, time: int, channels: int, rows: int, history: bool, systems: int = 1
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How the inputs before chunks are read, or the states: both as (sequences, steps, channels)."""
    shape = (batch, time, channels) if history else (1, systems * batch * tiles(time, CHUNK) * rows, channels)
    return shape, (1, rows, WIDTH)
