"""Kernels for all states of a linear system, m itself: `states` of `plmu.ops.fused`, and its gradient.

Chunks, tables, shapes and names are those of `triton_chunked`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plmu.ops.gpu.triton_chunked import COUNTS, cut_table, memory_of, reached_steps, segment_of, tables_of


@triton.jit(do_not_specialize=COUNTS)
def all_states(
    u, toeplitz, powers, states, segments, m, time, channels, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, SEGMENTED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One order of all states of a chunk: m (batch, time, order, channels)."""
    at, sequence = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    i = tl.program_id(2)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    kernel, carried = tables_of(toeplitz, powers, i, ROWS, CHUNK, False)
    value = memory_of(
        u, kernel, carried, states, segments, sequence, at, time, channels, chunks, column, channels,
        ROWS, CHUNK, False, False, SEGMENTED, PRECISION,
    )  # fmt: skip
    moment = at * CHUNK + tl.arange(0, CHUNK)[:, None]
    place = m + ((sequence.to(tl.int64) * time + moment) * ORDER + i) * channels + column
    tl.store(place, value, mask=(moment < time) & (column < channels))


@triton.jit(do_not_specialize=COUNTS)
def states_gradient(
    gradient, toeplitz, powers, segments, grad_u, grad_states, time, channels, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, SEGMENTED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients through a chunk's states: of its inputs, Σ_i T_iᵀ g_i, and of the state before it, Σ_i P_iᵀ g_i."""
    at, sequence = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    moment = at * CHUNK + tl.arange(0, CHUNK)[:, None]
    for_inputs = tl.zeros((CHUNK, WIDTH), tl.float32)
    for_state = tl.zeros((ROWS, WIDTH), tl.float32)
    for i in range(ORDER):
        place = gradient + ((sequence.to(tl.int64) * time + moment) * ORDER + i) * channels + column
        grad_m = tl.load(place, mask=(moment < time) & (column < channels), other=0.0)
        kernel, carried = tables_of(toeplitz, powers, i, ROWS, CHUNK, False)
        if SEGMENTED:
            kernel = cut_table(kernel, segments, sequence, at, time, CHUNK)
            reached = reached_steps(segments, sequence, at, time, ROWS, CHUNK, False, False)
            carried = tl.where(reached, carried, 0.0).to(carried.dtype)
        for_inputs = tl.dot(tl.trans(kernel), grad_m, for_inputs, input_precision=PRECISION)
        for_state = tl.dot(tl.trans(carried), grad_m, for_state, input_precision=PRECISION)
    place = grad_u + (sequence.to(tl.int64) * time + moment) * channels + column
    tl.store(place, for_inputs.to(grad_u.dtype.element_ty), mask=(moment < time) & (column < channels))
    row = tl.arange(0, ROWS)[:, None]
    place = grad_states + ((sequence * chunks + at).to(tl.int64) * ORDER + row) * channels + column
    tl.store(place, for_state, mask=(row < ORDER) & (column < channels))


@triton.jit(do_not_specialize=COUNTS)
def add_through_ends(
    grad_u, taps, grad_states, segments, time, channels, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, SEGMENTED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """grad_u += Rᵀ λ_{k+1} for each chunk but the last: the gradient through the state after the chunk."""
    at, sequence = tl.program_id(0) % (chunks - 1), tl.program_id(0) // (chunks - 1)
    row = tl.arange(0, ROWS)
    step = tl.arange(0, CHUNK)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    response = tl.load(taps + row[None, :] * CHUNK + step[:, None], mask=row[None, :] < ORDER, other=0.0)
    place = ((sequence * chunks + at + 1).to(tl.int64) * ORDER + row[:, None]) * channels + column
    grad_end = tl.load(grad_states + place, mask=(row[:, None] < ORDER) & (column < channels), other=0.0)
    place = grad_u + (sequence.to(tl.int64) * time + at * CHUNK + step[:, None]) * channels + column
    added = tl.dot(response, grad_end, input_precision=PRECISION)
    if SEGMENTED:
        segment = segment_of(segments, sequence, at * CHUNK + step[:, None], time)
        added = tl.where(segment == segment_of(segments, sequence, at * CHUNK + CHUNK - 1, time), added, 0.0)
    total = tl.load(place, mask=column < channels, other=0.0).to(tl.float32) + added
    tl.store(place, total.to(grad_u.dtype.element_ty), mask=column < channels)
