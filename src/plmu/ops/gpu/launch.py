"""Allocating results and launching the kernels: those of `triton_chunked`, or those for Hopper instead.

`why_not_hopper` chooses between them, here and in the plan. Callers make the device of their tensors the current one
(`on`), and align tensors to 16 bytes (`aligned`).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from plmu.ops.gpu import hopper_launch, triton_launch
from plmu.ops.gpu.devices import is_amd, lacking
from plmu.ops.gpu.direct import gluon
from plmu.ops.gpu.division import Sizes
from plmu.ops.gpu.tables import CHUNK, rows_of, tiles
from plmu.ops.gpu.triton_launch import precision, sum_shares

MARGIN = 64  # steps by which the kernels for Hopper may pad a sequence


def why_not_hopper(
    device: torch.device, dtype: torch.dtype, batch: int, time: int, channels: int, out: int
) -> str | None:
    """The reason why the kernels for Hopper cannot run `project`, or None."""
    reason = None
    if dtype not in (torch.bfloat16, torch.float16):
        reason = "the kernels for Hopper take bfloat16 and float16 alone"
    elif out % 8 or channels % 8:
        reason = f"the kernels for Hopper take multiples of 8, not {channels} channels and {out} outputs"
    elif batch * (time + MARGIN) >= 1 << 31:
        reason = "the kernels for Hopper count steps in 32 bits"
    elif not has_hopper(device):
        reason = f"the kernels for Hopper need {_lacking_for_hopper(device)}"
    return reason


def has_hopper(device: torch.device) -> bool:
    """Whether the device is a Hopper GPU, and Triton has Gluon."""
    return device.type == "cuda" and _is_hopper(device)


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    if not _has_capability(device) or lacking(device) is not None:
        return False
    try:
        gluon()
    except (ImportError, AttributeError):
        return False
    return True


def _has_capability(device: torch.device) -> bool:
    """Whether it is a Hopper GPU. Some AMD GPUs have compute capability 9 too."""
    return torch.cuda.is_available() and not is_amd() and torch.cuda.get_device_capability(device)[0] == 9


def _lacking_for_hopper(device: torch.device) -> str:
    missing = lacking(device) if device.type == "cuda" and _has_capability(device) else None
    return missing or "a Hopper GPU and Triton 3.6 or newer"


def for_hopper(u: Tensor, weight: Tensor) -> bool:
    """Whether the kernels for Hopper run instead of Triton's."""
    out, _, channels = weight.shape
    return why_not_hopper(u.device, u.dtype, u.shape[0], u.shape[1], channels, out) is None


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
    """The states before all chunks in the operands' precision (batch, chunks, rows, channels), and the last in float32.

    `leap` takes the state over a run of `size` chunks, which one program carries. `reversed`: time runs backwards, and
    the states are those after all chunks; with groups, each system has those of all channels (groups · batch, ...).
    """
    batch, time, channels = u.shape
    order, chunks = taps.shape[-2], tiles(time, CHUNK)
    runs, sequences = tiles(chunks, size), batch * groups if reversed else batch
    before = u.new_empty(sequences, chunks, rows_of(order), channels)
    last = advance.new_empty(sequences, order, channels)
    ends = advance.new_empty(sequences, runs, order, channels) if runs > 1 else last
    marks = last if segments is None else segments  # any tensor; without segments it is not read
    sizes = (u.device, u.dtype, batch, time, channels, order, size, groups, taps.shape[-3])
    direction = (reversed, segments is not None)
    if runs > 1:
        triton_launch.carry(*sizes, *direction, False, False)(u, taps, advance, leap, last, marks, ends, before, last)
    start = last if first is None else first
    carried = triton_launch.carry(*sizes, *direction, first is not None, True)
    carried(u, taps, advance, leap, start, marks, ends, before, last)
    return before, last


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
    """The final state in float32, from the last steps, as many as `taps` has, and the state before them.

    `early`: run beside the projection for Hopper launched just before, whose memory the caller holds.
    """
    batch, time, channels = u.shape
    parts, order, length = taps.shape[-3:]
    last = advance.new_empty(batch, order, channels)
    sizes = (u.device, u.dtype, batch, time, channels, order, length, groups, parts)
    marks = last if segments is None else segments  # any tensor; without segments it is not read
    finish = triton_launch.finish(*sizes, before is not None, early, segments is not None)
    finish(u, taps, advance, last if before is None else before, marks, last)
    return last


def marks(u: Tensor, segments: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """The marks of segments for the kernels for Hopper, if time runs forwards and backwards; None without segments or
    if other kernels run."""
    return None if segments is None or not for_hopper(u, weight) else marks_of(segments)


def marks_of(segments: Tensor) -> tuple[Tensor, Tensor]:
    """The marks of segments for the kernels for Hopper."""
    batch, time = segments.shape
    marks = segments.new_empty(2, batch * tiles(time, CHUNK), CHUNK + 1)
    triton_launch.mark(segments.device, batch, time)(segments, marks)
    return marks[0], marks[1]


def project(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    marked: Tensor | None = None,
    *,
    groups: int = 1,
    reversed: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """W_m m; or, if `reversed`, the gradient of u from that of o, with time running backwards. Also the memory to hold
    until `final_state` is launched early; empty if it may not be. `marked`: the `marks` of that direction."""
    batch, time, inputs = u.shape
    order, outputs = weight.shape[1], weight.shape[2 if reversed else 0]
    options = (past.shape[-1], groups, before is None, segments is not None, reversed)
    sizes = Sizes(u.device, u.dtype, batch, time, inputs, outputs, order, *options)
    if for_hopper(u, weight):
        return hopper_launch.project(sizes)(u, before, weight, toeplitz, past, marked)
    o = u.new_empty(batch, time, outputs)
    past_and_segments = (u if before is None else before, u if segments is None else segments)
    triton_launch.project(sizes, precision(u.dtype))(u, weight, toeplitz, past, *past_and_segments, o)
    return o, ()


def input_gradient(
    grad_o: Tensor,
    segments: Tensor | None,
    weight: Tensor,
    toeplitz: Tensor,
    from_state: Tensor,
    taps: Tensor,
    advance: Tensor,
    *,
    groups: int,
) -> Tensor | None:
    """The gradient of u from that of o without states; None if `project` must make it."""
    if groups == 1 or not for_hopper(grad_o, weight):
        return None
    out, order, channels = weight.shape
    options = (from_state.shape[-1], groups, False, segments is not None, True)
    sizes = Sizes(grad_o.device, grad_o.dtype, grad_o.shape[0], grad_o.shape[1], out, channels, order, *options)
    launch = hopper_launch.input_gradient(sizes)
    return None if launch is None else launch(grad_o, weight, toeplitz, from_state, taps, advance)


def weight_gradient(
    u: Tensor,
    before: Tensor | None,
    segments: Tensor | None,
    grad_o: Tensor,
    weight: Tensor,
    toeplitz: Tensor,
    past: Tensor,
    marked: Tensor | None = None,
    *,
    groups: int = 1,
) -> Tensor:
    """Σ of_oᵀ m over all steps. `marked`: the `marks` if time runs forwards."""
    out, order, channels = weight.shape
    options = (past.shape[-1], groups, before is None, segments is not None)
    sizes = Sizes(u.device, u.dtype, u.shape[0], u.shape[1], channels, out, order, *options)
    if for_hopper(u, weight):
        return hopper_launch.weight_gradient(sizes)(u, before, grad_o, toeplitz, past, marked)
    launch, shares = triton_launch.weight_gradient(sizes, precision(u.dtype))
    partial = weight.new_empty(shares, *weight.shape, dtype=weight.dtype if shares == 1 else torch.float32)
    launch(u, grad_o, toeplitz, past, u if before is None else before, u if segments is None else segments, partial)
    return partial[0] if shares == 1 else sum_shares(partial, weight.dtype)


def through_output(grad_o: Tensor, o: Tensor | None, need_bias: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient before ReLU from that of the output o; without o there is no ReLU. Also, if needed, its sum over all
    steps, deterministic and rounded once."""
    outputs = grad_o.shape[-1]
    passed = grad_o if o is None else grad_o.new_empty(grad_o.shape)
    sizes = (grad_o.numel() // outputs, outputs)
    launch, shares = triton_launch.through_output(grad_o.device, grad_o.dtype, *sizes, o is not None, need_bias)
    sums = grad_o.new_empty(shares, outputs, dtype=torch.float32) if need_bias else grad_o
    launch(grad_o, grad_o if o is None else o, passed, sums)
    return passed, sum_shares(sums, grad_o.dtype) if need_bias else None


def no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError("the fused kernels have no second derivative: use algorithm='chunked' for it")
