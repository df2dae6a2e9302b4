"""The kernels of `plmu.ops.fused`: boundary states, the projection, and its two gradients.

A chunk is C steps of one sequence. With the state s before it, order i of its states is m_i = T_i u + P_i s, where T_i
(C, C) is the Toeplitz matrix of the impulse response and P_i (C, order) holds row i of Ā¹ … Ā^C. A tile of m lives on
chip only: it is multiplied into the weight at once, and computed again where the backward pass needs it.

Shapes: u (batch, time, channels), weight (out, order, channels), o (batch, time, out), states (batch, chunks, order,
channels) in float32. `ORDER` is the order, `ROWS` the same rounded up to what a matrix unit takes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chunk_ends(
    u, taps, ends, time, channels, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ends[k + 1] = R u_k: what each chunk but the last adds to the state before the next. R is `taps` (order, C)."""
    at, sequence = tl.program_id(0) % (chunks - 1), tl.program_id(0) // (chunks - 1)
    row = tl.arange(0, ROWS)[:, None]
    step = tl.arange(0, CHUNK)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    response = tl.load(taps + row * CHUNK + step[None, :], mask=row < ORDER, other=0.0)
    moment = at * CHUNK + step[:, None]  # within the sequence: only the last chunk may be short
    inputs = tl.load(u + (sequence * time + moment).to(tl.int64) * channels + column, mask=column < channels, other=0.0)
    end = tl.dot(response, inputs.to(tl.float32), input_precision=PRECISION)
    place = ((sequence * chunks + at + 1).to(tl.int64) * ORDER + row) * channels + column
    tl.store(ends + place, end, mask=(row < ORDER) & (column < channels))


@triton.jit
def scan_groups(
    states, last, advance, channels, chunks, groups,
    ORDER: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """Within each group of chunks, in place: s_k ← A s_{k-1} + s_k from zero. `last` gets each group's last."""
    group, sequence = tl.program_id(0) % groups, tl.program_id(0) // groups
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inner = tl.arange(0, ROWS)[None, :]
    matrix = tl.load(advance + row * ORDER + inner, mask=(row < ORDER) & (inner < ORDER), other=0.0)
    mask = (row < ORDER) & (column < channels)
    state = tl.zeros((ROWS, WIDTH), tl.float32)
    for k in range(group * GROUP, tl.minimum(chunks, (group + 1) * GROUP)):
        at = chunks - 1 - k if REVERSED else k
        place = states + ((sequence * chunks + at).to(tl.int64) * ORDER + row) * channels + column
        state = tl.dot(matrix, state, tl.load(place, mask=mask, other=0.0), input_precision="ieee")
        tl.store(place, state, mask=mask)
    tl.store(last + ((sequence * groups + group).to(tl.int64) * ORDER + row) * channels + column, state, mask=mask)


@triton.jit
def scan_between(
    states, last, advance, leap, channels, chunks, groups,
    ORDER: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """Add to each group but the first what the groups before it pass on. `leap` is A^GROUP."""
    group, sequence = tl.program_id(0) % (groups - 1) + 1, tl.program_id(0) // (groups - 1)
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inner = tl.arange(0, ROWS)[None, :]
    square = (row < ORDER) & (inner < ORDER)
    matrix = tl.load(advance + row * ORDER + inner, mask=square, other=0.0)
    far = tl.load(leap + row * ORDER + inner, mask=square, other=0.0)
    mask = (row < ORDER) & (column < channels)
    passed = tl.zeros((ROWS, WIDTH), tl.float32)
    for earlier in range(group):
        place = last + ((sequence * groups + earlier).to(tl.int64) * ORDER + row) * channels + column
        passed = tl.dot(far, passed, tl.load(place, mask=mask, other=0.0), input_precision="ieee")
    for k in range(group * GROUP, tl.minimum(chunks, (group + 1) * GROUP)):
        passed = tl.dot(matrix, passed, input_precision="ieee")
        at = chunks - 1 - k if REVERSED else k
        place = states + ((sequence * chunks + at).to(tl.int64) * ORDER + row) * channels + column
        tl.store(place, tl.load(place, mask=mask, other=0.0) + passed, mask=mask)


@triton.jit
def _inputs(u, sequence, at, time, channels, column, CHUNK: tl.constexpr):
    """The inputs of a chunk, zero past the end: (C, WIDTH)."""
    moment = at * CHUNK + tl.arange(0, CHUNK)[:, None]
    place = u + (sequence * time + moment).to(tl.int64) * channels + column
    return tl.load(place, mask=(moment < time) & (column < channels), other=0.0)


@triton.jit
def _before(states, sequence, at, chunks, channels, column, ORDER: tl.constexpr, ROWS: tl.constexpr):
    """The state before a chunk: (ROWS, WIDTH)."""
    row = tl.arange(0, ROWS)[:, None]
    place = states + ((sequence * chunks + at).to(tl.int64) * ORDER + row) * channels + column
    return tl.load(place, mask=(row < ORDER) & (column < channels) & (at < chunks), other=0.0)


@triton.jit
def project(
    u, weight, toeplitz, powers, states, o, time, channels, out, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """o = W m for two neighbouring chunks and OUT outputs, which share each tile of the weight."""
    pairs = tl.cdiv(chunks, 2)
    at, sequence = 2 * (tl.program_id(0) % pairs), tl.program_id(0) // pairs
    outputs = tl.program_id(1) * OUT + tl.arange(0, OUT)
    step = tl.arange(0, CHUNK)
    state_row = tl.arange(0, ROWS)[None, :]
    first = tl.zeros((CHUNK, OUT), tl.float32)
    second = tl.zeros((CHUNK, OUT), tl.float32)
    for turn in range(ORDER * tl.cdiv(channels, WIDTH)):
        i = turn % ORDER
        column = (turn // ORDER) * WIDTH + tl.arange(0, WIDTH)
        part = tl.load(
            weight + outputs[None, :].to(tl.int64) * (ORDER * channels) + i * channels + column[:, None],
            mask=(outputs[None, :] < out) & (column[:, None] < channels), other=0.0,
        )  # fmt: skip
        kernel = tl.load(toeplitz + (i * CHUNK + step[:, None]) * CHUNK + step[None, :])
        carried = tl.load(powers + (i * CHUNK + step[:, None]) * ROWS + state_row)
        inputs = _inputs(u, sequence, at, time, channels, column[None, :], CHUNK)
        before = _before(states, sequence, at, chunks, channels, column[None, :], ORDER, ROWS).to(inputs.dtype)
        m = tl.dot(kernel, inputs, input_precision=PRECISION)
        m = tl.dot(carried, before, m, input_precision=PRECISION)
        first = tl.dot(m.to(part.dtype), part, first, input_precision=PRECISION)
        inputs = _inputs(u, sequence, at + 1, time, channels, column[None, :], CHUNK)
        before = _before(states, sequence, at + 1, chunks, channels, column[None, :], ORDER, ROWS).to(inputs.dtype)
        m = tl.dot(kernel, inputs, input_precision=PRECISION)
        m = tl.dot(carried, before, m, input_precision=PRECISION)
        second = tl.dot(m.to(part.dtype), part, second, input_precision=PRECISION)
    moment = at * CHUNK + step[:, None]
    place = o + (sequence * time + moment).to(tl.int64) * out + outputs[None, :]
    tl.store(place, first.to(o.dtype.element_ty), mask=(moment < time) & (outputs[None, :] < out))
    moment += CHUNK
    place += CHUNK * out
    tl.store(place, second.to(o.dtype.element_ty), mask=(moment < time) & (outputs[None, :] < out))


@triton.jit
def weight_gradient(
    u, gradient, toeplitz, powers, states, partial, time, channels, out, chunks, batch, share,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Σ gradientᵀ m_i over `share` chunks, for OUT outputs and WIDTH channels, into partial (shares, *weight.shape)."""
    i = tl.program_id(0) % ORDER
    column = (tl.program_id(0) // ORDER) * WIDTH + tl.arange(0, WIDTH)[None, :]
    outputs = tl.program_id(1) * OUT + tl.arange(0, OUT)
    step = tl.arange(0, CHUNK)
    kernel = tl.load(toeplitz + (i * CHUNK + step[:, None]) * CHUNK + step[None, :])
    carried = tl.load(powers + (i * CHUNK + step[:, None]) * ROWS + tl.arange(0, ROWS)[None, :])
    total = tl.zeros((OUT, WIDTH), tl.float32)
    begin = tl.program_id(2) * share
    for number in range(begin, tl.minimum(begin + share, batch * chunks)):
        sequence, at = number // chunks, number % chunks
        inputs = _inputs(u, sequence, at, time, channels, column, CHUNK)
        before = _before(states, sequence, at, chunks, channels, column, ORDER, ROWS).to(inputs.dtype)
        m = tl.dot(kernel, inputs, input_precision=PRECISION)
        m = tl.dot(carried, before, m, input_precision=PRECISION)
        moment = at * CHUNK + step[None, :]
        incoming = tl.load(
            gradient + (sequence * time + moment).to(tl.int64) * out + outputs[:, None],
            mask=(moment < time) & (outputs[:, None] < out), other=0.0,
        )  # fmt: skip
        total = tl.dot(incoming, m.to(incoming.dtype), total, input_precision=PRECISION)
    place = (tl.program_id(2) * out + outputs[:, None]).to(tl.int64) * (ORDER * channels) + i * channels + column
    tl.store(partial + place, total, mask=(outputs[:, None] < out) & (column < channels))


@triton.jit
def input_gradient(
    gradient, weight, toeplitz, powers, of_u, of_states, time, channels, out, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What a chunk's outputs say to its inputs, Σ_i T_iᵀ (W_iᵀ g), and to the state before it, Σ_i P_iᵀ (W_iᵀ g)."""
    at, sequence = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    step = tl.arange(0, CHUNK)
    row = tl.arange(0, ROWS)
    moment = at * CHUNK + step[:, None]
    for_inputs = tl.zeros((CHUNK, WIDTH), tl.float32)
    for_state = tl.zeros((ROWS, WIDTH), tl.float32)
    for i in range(ORDER):
        of_m = tl.zeros((CHUNK, WIDTH), tl.float32)
        for start in range(0, out, OUT):
            outputs = start + tl.arange(0, OUT)
            incoming = tl.load(
                gradient + (sequence * time + moment).to(tl.int64) * out + outputs[None, :],
                mask=(moment < time) & (outputs[None, :] < out), other=0.0,
            )  # fmt: skip
            part = tl.load(
                weight + outputs[:, None].to(tl.int64) * (ORDER * channels) + i * channels + column,
                mask=(outputs[:, None] < out) & (column < channels), other=0.0,
            )  # fmt: skip
            of_m = tl.dot(incoming, part, of_m, input_precision=PRECISION)
        kernel = tl.load(toeplitz + (i * CHUNK + step[None, :]) * CHUNK + step[:, None])  # transposed
        carried = tl.load(powers + (i * CHUNK + step[None, :]) * ROWS + row[:, None])
        rounded = of_m.to(kernel.dtype)
        for_inputs = tl.dot(kernel, rounded, for_inputs, input_precision=PRECISION)
        for_state = tl.dot(carried, rounded, for_state, input_precision=PRECISION)
    place = of_u + (sequence * time + moment).to(tl.int64) * channels + column
    tl.store(place, for_inputs.to(of_u.dtype.element_ty), mask=(moment < time) & (column < channels))
    place = of_states + ((sequence * chunks + at).to(tl.int64) * ORDER + row[:, None]) * channels + column
    tl.store(place, for_state, mask=(row[:, None] < ORDER) & (column < channels))


@triton.jit
def add_through_ends(
    of_u, taps, of_states, time, channels, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """of_u += Rᵀ λ_{k+1} for each chunk but the last: what later chunks say to the inputs of this one."""
    at, sequence = tl.program_id(0) % (chunks - 1), tl.program_id(0) // (chunks - 1)
    row = tl.arange(0, ROWS)
    step = tl.arange(0, CHUNK)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    response = tl.load(taps + row[None, :] * CHUNK + step[:, None], mask=row[None, :] < ORDER, other=0.0)
    told = _before(of_states, sequence, at + 1, chunks, channels, column, ORDER, ROWS)
    place = of_u + (sequence * time + at * CHUNK + step[:, None]).to(tl.int64) * channels + column
    own = tl.load(place, mask=column < channels, other=0.0).to(tl.float32)
    total = tl.dot(response, told, own, input_precision=PRECISION)
    tl.store(place, total.to(of_u.dtype.element_ty), mask=column < channels)
