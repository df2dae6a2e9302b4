"""Launching the kernels of `plmu.ops.triton_chunked`, or those for Hopper in their place: memory, grids and tiles."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch
from torch import Tensor

from plmu.ops import hopper
from plmu.ops.chunk_tables import CHANNELS, CHUNK, rows_of, tiles


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


def final_state(u: Tensor, before: Tensor | None, taps: Tensor, advance: Tensor, *, early: bool = False) -> Tensor:
    """From the last steps, as many as `taps` has, and the state before them.

    `early`: beside the projection for Hopper that was launched just before, while the memory of that one is held.
    """
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
        return o, hopper.project(u, before, weight, toeplitz, past, o, reversed=reversed)
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
    return segments is None and hopper.runs(u, weight)


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
    special = for_hopper(u, segments, weight) and hopper.runs(of_o, weight)
    width, height = (64, 64) if u.dtype == torch.float32 else (128, min(256, max(64, 1 << (out - 1).bit_length())))
    programs = hopper.weight_tiles(weight) if special else order * tiles(channels, width) * tiles(out, height)
    shares = max(1, min(batch * chunks, hopper.multiprocessors(u.device) // programs))
    share = tiles(batch * chunks, shares)
    shares = tiles(batch * chunks, share)
    partial = weight.new_empty(shares, *weight.shape, dtype=weight.dtype if shares == 1 else torch.float32)
    if special:
        hopper.weight_gradient(u, before, of_o, toeplitz, past, partial, share)
    else:
        with torch.cuda.device_of(u):
            kernels().weight_gradient[order * tiles(channels, width), tiles(out, height), shares](
                u, of_o, toeplitz, past, u if before is None else before, u if segments is None else segments,
                partial, time, channels, out, chunks, batch, share,
                ORDER=order, ROWS=past.shape[2], CHUNK=CHUNK, WIDTH=width, OUT=height, HISTORY=before is None,
                SEGMENTED=segments is not None, PRECISION=precision(), num_warps=8, num_stages=3,
            )  # fmt: skip
    return partial[0] if shares == 1 else partial.sum(0).to(weight.dtype)


@functools.cache
def kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.triton_chunked")


def sizes(order: int) -> dict[str, int]:
    return {"ORDER": order, "ROWS": rows_of(order), "CHUNK": CHUNK}


def precision() -> str:
    """How float32 operands are multiplied: as they are, unless torch is allowed to round them."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def exact(u: Tensor) -> str:
    """For products in float32 that carry the state."""
    return "ieee" if u.dtype == torch.float32 else "tf32x3"
