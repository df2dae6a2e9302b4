"""The kernels of `project` of `plmu.ops.fused`: boundary states, the projection, and its two gradients.

A chunk is C steps of one sequence. With the state s before it, order i of its states is m_i = T_i u + P_i s, where T_i
(C, C) is the Toeplitz matrix of the impulse response and P_i (C, order) holds row i of Ā¹ … Ā^C. Where the response
fades within a chunk no state is needed: the last inputs before the chunk replace it. A tile of m stays on chip: it is
multiplied into the weight at once, and computed again in the backward pass.

Shapes: u (batch, time, channels), weight (out, order, channels), o (batch, time, out), states before chunks (batch,
chunks, ROWS, channels), carried in float32 and kept in the operands' precision. `ORDER` is the order, `ROWS` the same
rounded up to a size that tensor cores take.

SEGMENTED: the state is reset inside sequences. Resets divide a sequence into segments; `segments` (batch, time) has the
number of each step's segment, from 0, to which the first state belongs. Nothing passes from one segment to another.

GROUPS: each of several equal groups of channels has its own system; their constants follow each other in each table. A
tile has channels of one group only. UNIT: a divisor of the number of channels of a group.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Numbers that change with the batch and the lengths of sequences. A kernel is compiled once for all of them.
COUNTS = ("time", "chunks", "runs", "run_size", "batch", "share", "shares", "total")


@triton.jit
def tile_of(number, channels, GROUPS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr):
    """The group of a tile of channels, its first channel, and the end of the group."""
    width = channels // (GROUPS * UNIT) * UNIT  # shows the compiler that it is a multiple of UNIT
    tiles = tl.cdiv(width, WIDTH)
    group = tl.minimum(number // tiles, GROUPS - 1) if GROUPS > 1 else 0
    return group, group * width + (number - group * tiles) * WIDTH, (group + 1) * width


@triton.jit
def _taps(taps, part, row, lag, length, ORDER: tl.constexpr):
    """One part of R, `taps` (PARTS, order, length): R in float32, or a sum of PARTS terms in the inputs' precision."""
    mask = (row < ORDER) & (lag >= 0) & (lag < length)
    return tl.load(taps + (part * ORDER + row) * length + lag, mask=mask, other=0.0)


@triton.jit
def segment_of(segments, sequence, moment, time):
    """The segment of a step: 0 before the sequence, −1 after it."""
    place = segments + sequence.to(tl.int64) * time + moment
    segment = tl.load(place, mask=(moment >= 0) & (moment < time), other=0)
    return tl.where(moment < time, segment, -1)


@triton.jit(do_not_specialize=COUNTS)
def carry(
    u, taps, advance, leap, first, segments, ends, before, last, time, channels, chunks, runs, run_size,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    PARTS: tl.constexpr, STARTED: tl.constexpr, KEEP: tl.constexpr, REVERSED: tl.constexpr, SEGMENTED: tl.constexpr,
    PRECISION: tl.constexpr, GROUPS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """s_{k+1} = A s_k + R u_k over the chunks of one run; R is `taps` (PARTS, order, C).

    KEEP: all states before chunks are stored in `before` (batch, chunks, ROWS, channels), and that before the last
    chunk in `last` (batch, order, channels). Otherwise each run begins at zero and stores the state after it in `ends`
    (batch, runs, order, channels), from which the launch with KEEP makes the state before each run.

    With groups and REVERSED, every system has the states of all channels: (groups · batch, chunks, ROWS, channels).
    """
    run, sequence = tl.program_id(0) % runs, tl.program_id(0) // runs
    row, inner, step = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :], tl.arange(0, CHUNK)[None, :]
    if REVERSED and GROUPS > 1:
        tiles = tl.cdiv(channels, WIDTH)
        group, start, limit = tl.program_id(1) // tiles, (tl.program_id(1) % tiles) * WIDTH, channels
        states_index = group * (tl.num_programs(0) // runs) + sequence
    else:
        group, start, limit = tile_of(tl.program_id(1), channels, GROUPS, WIDTH, UNIT)
        states_index = sequence
    taps += group * PARTS * ORDER * CHUNK
    advance += group * ORDER * ORDER
    leap += group * ORDER * ORDER
    column = start + tl.arange(0, WIDTH)[None, :]
    inside = (row < ORDER) & (column < limit)
    square = (row < ORDER) & (inner < ORDER)
    lag = CHUNK - 1 - step if REVERSED else step
    state = tl.zeros((ROWS, WIDTH), tl.float32)
    if STARTED:
        state = tl.load(first + (sequence.to(tl.int64) * ORDER + row) * channels + column, mask=inside, other=0.0)
    if KEEP:
        matrix = tl.load(leap + row * ORDER + inner, mask=square, other=0.0)
        for earlier in range(run):
            if SEGMENTED:  # no reset within the run
                begin, end = earlier * run_size * CHUNK - 1, (earlier + 1) * run_size * CHUNK - 1
                if REVERSED:
                    begin, end = (chunks - earlier * run_size) * CHUNK, (chunks - (earlier + 1) * run_size) * CHUNK
                through = segment_of(segments, sequence, begin, time) == segment_of(segments, sequence, end, time)
                state = tl.where(through, state, 0.0)
            place = ((states_index * runs + earlier).to(tl.int64) * ORDER + row) * channels + column
            state = tl.dot(matrix, state, tl.load(ends + place, mask=inside, other=0.0), input_precision=PRECISION)
    matrix = tl.load(advance + row * ORDER + inner, mask=square, other=0.0)
    response = _taps(taps, 0, row, lag, CHUNK, ORDER)
    if PARTS == 3:
        second, third = _taps(taps, 1, row, lag, CHUNK, ORDER), _taps(taps, 2, row, lag, CHUNK, ORDER)
    for k in range(run * run_size, tl.minimum((run + 1) * run_size, chunks)):
        at = chunks - 1 - k if REVERSED else k
        if KEEP:
            place = ((states_index * chunks + at).to(tl.int64) * ROWS + row) * channels + column
            tl.store(before + place, state.to(before.dtype.element_ty), mask=column < limit)
            if k == chunks - 1:
                tl.store(last + (states_index.to(tl.int64) * ORDER + row) * channels + column, state, mask=inside)
        inputs = inputs_at(u, sequence, at * CHUNK, time, channels, column, limit, CHUNK)
        if SEGMENTED:  # only the part of the state and the inputs that reaches the next chunk
            since = segment_of(segments, sequence, (at + 1) * CHUNK if REVERSED else at * CHUNK - 1, time)
            until = segment_of(segments, sequence, at * CHUNK if REVERSED else at * CHUNK + CHUNK - 1, time)
            segment = segment_of(segments, sequence, at * CHUNK + tl.arange(0, CHUNK)[:, None], time)
            inputs = tl.where(segment == until, inputs, 0.0).to(inputs.dtype)
            state = tl.where(since == until, state, 0.0)
        inputs = inputs.to(response.dtype)
        added = tl.dot(response, inputs, input_precision=PRECISION)
        if PARTS == 3:
            added = tl.dot(third, inputs, tl.dot(second, inputs, added))
        state = tl.dot(matrix, state, added, input_precision=PRECISION)
    if not KEEP:
        place = ((states_index * runs + run).to(tl.int64) * ORDER + row) * channels + column
        tl.store(ends + place, state, mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def mark(segments, marks, time, chunks, CHUNK: tl.constexpr):
    """The segments around each chunk for the kernels for Hopper: marks (2, batch · chunks, CHUNK + 1).

    For each step the first step of its segment, at least the first of the chunk before; and then the number of steps of
    the chunk that its past reaches. The second row is for time that runs backwards: the last step of the segment, at
    most the last of the chunk after. Steps count from the chunk's begin. Those past the sequence's end belong to its
    last segment.
    """
    number = tl.program_id(0)
    sequence, start = number // chunks, (number % chunks) * CHUNK
    step, around = tl.arange(0, CHUNK), tl.arange(0, 2 * CHUNK)[None, :]
    segment = segment_of(segments, sequence, tl.minimum(start + step, time - 1), time)
    neighbour = segment_of(segments, sequence, tl.minimum(start - CHUNK + around, time - 1), time)
    first = tl.sum((neighbour < segment[:, None]).to(tl.int32), 1) - CHUNK
    neighbour = segment_of(segments, sequence, tl.minimum(start + around, time - 1), time)
    last = tl.sum((neighbour <= segment[:, None]).to(tl.int32), 1) - 1
    place = marks + number.to(tl.int64) * (CHUNK + 1)
    tl.store(place + step, first)
    tl.store(place + CHUNK, tl.sum((first < 0).to(tl.int32), 0))
    place += tl.num_programs(0).to(tl.int64) * (CHUNK + 1)
    tl.store(place + step, last)
    tl.store(place + CHUNK, tl.sum((last >= CHUNK).to(tl.int32), 0))


@triton.jit(do_not_specialize=COUNTS)
def finish(
    u, taps, advance, before, segments, last, time, channels, length,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    PARTS: tl.constexpr, STARTED: tl.constexpr, EARLY: tl.constexpr, SEGMENTED: tl.constexpr, PRECISION: tl.constexpr,
    GROUPS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The final state: R u of the last `length` steps, with `taps` (PARTS, order, length), and if STARTED A s of the
    state `before` them.

    EARLY: it may run beside the kernel before it, from which it needs nothing. One program then waits for that kernel,
    so that both are done before later kernels.
    """
    sequence = tl.program_id(0)
    row, inner, step = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :], tl.arange(0, CHUNK)[None, :]
    group, first, limit = tile_of(tl.program_id(1), channels, GROUPS, WIDTH, UNIT)
    taps += group * PARTS * ORDER * length
    advance += group * ORDER * ORDER
    column = first + tl.arange(0, WIDTH)[None, :]
    inside = (row < ORDER) & (column < limit)
    place = (sequence.to(tl.int64) * ORDER + row) * channels + column
    state = tl.zeros((ROWS, WIDTH), tl.float32)
    if SEGMENTED:
        until = segment_of(segments, sequence, time - 1, time)
    for start in range(0, length, CHUNK):
        inputs = inputs_at(u, sequence, time - length + start, time, channels, column, limit, CHUNK)
        if SEGMENTED:
            segment = segment_of(segments, sequence, time - length + start + tl.arange(0, CHUNK)[:, None], time)
            inputs = tl.where(segment == until, inputs, 0.0).to(inputs.dtype)
        for part in tl.static_range(PARTS):
            response = _taps(taps, part, row, start + step, length, ORDER)
            state = tl.dot(response, inputs.to(response.dtype), state, input_precision=PRECISION)
    if STARTED:
        matrix = tl.load(advance + row * ORDER + inner, mask=(row < ORDER) & (inner < ORDER), other=0.0)
        start = tl.load(before + place, mask=inside, other=0.0)
        if SEGMENTED:
            start = tl.where(segment_of(segments, sequence, time - length - 1, time) == until, start, 0.0)
        state = tl.dot(matrix, start, state, input_precision=PRECISION)
    tl.store(last + place, state, mask=inside)
    if EARLY and (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def inputs_at(u, sequence, start, time, channels, column, limit, STEPS: tl.constexpr):
    """STEPS inputs of a sequence, zero outside of the sequence and from channel `limit` on: (STEPS, WIDTH)."""
    moment = start + tl.arange(0, STEPS)[:, None]
    place = u + (sequence.to(tl.int64) * time + moment) * channels + column
    return tl.load(place, mask=(moment >= 0) & (moment < time) & (column < limit), other=0.0)


@triton.jit
def past_of(
    u, states, sequence, at, time, chunks, channels, column, limit,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, HISTORY: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """The past of a chunk: the state or the inputs before it (after it, if time runs backwards): (ROWS, WIDTH)."""
    if HISTORY:
        start = (at + 1) * CHUNK if REVERSED else at * CHUNK - ROWS
        past = inputs_at(u, sequence, start, time, channels, column, limit, ROWS)
    else:
        row = tl.arange(0, ROWS)[:, None]
        place = states + ((sequence * chunks + at).to(tl.int64) * ROWS + row) * channels + column
        past = tl.load(place, mask=(column < limit) & (at < chunks), other=0.0)
    return past


@triton.jit
def cut_table(kernel, segments, sequence, at, time, CHUNK: tl.constexpr):
    """T_i of a chunk, zero where it would pass from one segment to another."""
    moment = at * CHUNK + tl.arange(0, CHUNK)
    segment = segment_of(segments, sequence, moment[:, None], time)
    return tl.where(segment == segment_of(segments, sequence, moment[None, :], time), kernel, 0.0).to(kernel.dtype)


@triton.jit
def reached_steps(
    segments, sequence, at, time,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, HISTORY: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """Which steps of a chunk the state before it reaches (C, 1), or each input before it (C, ROWS)."""
    segment = segment_of(segments, sequence, at * CHUNK + tl.arange(0, CHUNK)[:, None], time)
    if HISTORY:
        start = (at + 1) * CHUNK if REVERSED else at * CHUNK - ROWS
        past_segment = segment_of(segments, sequence, start + tl.arange(0, ROWS)[None, :], time)
    else:
        past_segment = segment_of(segments, sequence, (at + 1) * CHUNK if REVERSED else at * CHUNK - 1, time)
    return segment == past_segment


@triton.jit
def memory_of(
    u, kernel, carried, states, segments, sequence, at, time, channels, chunks, column, limit,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, HISTORY: tl.constexpr, REVERSED: tl.constexpr, SEGMENTED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """m_i = T_i u + P_i s of a chunk for some channels, in the operands' precision: (C, WIDTH)."""
    inputs = inputs_at(u, sequence, at * CHUNK, time, channels, column, limit, CHUNK)
    past = past_of(u, states, sequence, at, time, chunks, channels, column, limit, ROWS, CHUNK, HISTORY, REVERSED)
    if SEGMENTED:
        kernel = cut_table(kernel, segments, sequence, at, time, CHUNK)
        reached = reached_steps(segments, sequence, at, time, ROWS, CHUNK, HISTORY, REVERSED)
        if HISTORY:
            carried = tl.where(reached, carried, 0.0).to(carried.dtype)
    m = tl.dot(kernel, inputs, input_precision=PRECISION)
    if SEGMENTED and not HISTORY:  # selected, since a state that has overflowed times zero is NaN
        m += tl.where(reached, tl.dot(carried, past, input_precision=PRECISION), 0.0)
    else:
        m = tl.dot(carried, past, m, input_precision=PRECISION)
    return m.to(inputs.dtype)


@triton.jit
def tables_of(toeplitz, powers, i, ROWS: tl.constexpr, CHUNK: tl.constexpr, REVERSED: tl.constexpr):
    """T_i (C, C), or T_iᵀ if time runs backwards, and P_i (C, ROWS)."""
    step, other = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    if REVERSED:
        kernel = tl.load(toeplitz + (i * CHUNK + other) * CHUNK + step)
    else:
        kernel = tl.load(toeplitz + (i * CHUNK + step) * CHUNK + other)
    return kernel, tl.load(powers + (i * CHUNK + step) * ROWS + tl.arange(0, ROWS)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def project(
    u, weight, toeplitz, powers, states, segments, o, time, inputs, outputs, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    HISTORY: tl.constexpr, REVERSED: tl.constexpr, SEGMENTED: tl.constexpr, PRECISION: tl.constexpr,
    GROUPS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """o = W m for one chunk and OUT outputs.

    A turn is one order of WIDTH inputs. Its tile of m is made in the turn before, so that tensor cores need not wait
    for their operands. REVERSED: the gradient of u from that of o. Time runs backwards, the weight is (inputs, order,
    outputs) instead of (outputs, order, inputs), and `powers` count from the chunk's end. HISTORY: ROWS inputs before
    the chunk replace the state, and `powers` are the impulse response at their distance. GROUPS divide the channels of
    u: the inputs or, if REVERSED, the outputs.
    """
    BLOCKS: tl.constexpr = 1 if REVERSED else GROUPS  # groups of inputs
    TILES: tl.constexpr = GROUPS if REVERSED else 1  # groups of outputs
    at, sequence = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    system, first, end = tile_of(tl.program_id(1), outputs, TILES, OUT, UNIT if TILES > 1 else 1)
    columns = first + tl.arange(0, OUT)[None, :]
    if TILES > 1 and not HISTORY:  # each system's states of all inputs
        states += (system * tl.num_programs(0)).to(tl.int64) * ROWS * inputs
    total = tl.zeros((CHUNK, OUT), tl.float32)
    kernel, carried = tables_of(toeplitz, powers, system * ORDER, ROWS, CHUNK, REVERSED)
    column = tl.arange(0, WIDTH)[None, :]
    m = memory_of(
        u, kernel, carried, states, segments, sequence, at, time, inputs, chunks, column, inputs // BLOCKS,
        ROWS, CHUNK, HISTORY, REVERSED, SEGMENTED, PRECISION,
    )  # fmt: skip
    for turn in range(ORDER * BLOCKS * tl.cdiv(inputs // BLOCKS, WIDTH)):
        _, start, limit = tile_of(turn // ORDER, inputs, BLOCKS, WIDTH, UNIT if BLOCKS > 1 else 1)
        row = start + tl.arange(0, WIDTH)[:, None]
        if REVERSED:
            place = row.to(tl.int64) * (ORDER * outputs) + (turn % ORDER) * outputs + columns
        else:
            place = columns.to(tl.int64) * (ORDER * inputs) + (turn % ORDER) * inputs + row
        part = tl.load(weight + place, mask=(columns < end) & (row < limit), other=0.0)
        ahead = turn + 1  # beyond the last turn all inputs are masked
        group, next_start, next_limit = tile_of(ahead // ORDER, inputs, BLOCKS, WIDTH, UNIT if BLOCKS > 1 else 1)
        kernel, carried = tables_of(toeplitz, powers, (system + group) * ORDER + ahead % ORDER, ROWS, CHUNK, REVERSED)
        column = next_start + tl.arange(0, WIDTH)[None, :]
        next_m = memory_of(
            u, kernel, carried, states, segments, sequence, at, time, inputs, chunks, column, next_limit,
            ROWS, CHUNK, HISTORY, REVERSED, SEGMENTED, PRECISION,
        )  # fmt: skip
        total = tl.dot(m, part, total, input_precision=PRECISION)
        m = next_m
    moment = at * CHUNK + tl.arange(0, CHUNK)[:, None]
    place = o + (sequence.to(tl.int64) * time + moment) * outputs + columns
    tl.store(place, total.to(o.dtype.element_ty), mask=(moment < time) & (columns < end))


@triton.jit(do_not_specialize=COUNTS)
def weight_gradient(
    u, gradient, toeplitz, powers, states, segments, partial, time, channels, out, chunks, batch, share,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    HISTORY: tl.constexpr, SEGMENTED: tl.constexpr, PRECISION: tl.constexpr, GROUPS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Σ gradientᵀ m_i over `share` chunks, for OUT outputs and WIDTH channels, into partial (shares, *weight.shape).

    As in `project`, the tile of m for the next chunk is made before the current one is used.
    """
    i = tl.program_id(0) % ORDER
    group, start, limit = tile_of(tl.program_id(0) // ORDER, channels, GROUPS, WIDTH, UNIT)
    column = start + tl.arange(0, WIDTH)[None, :]
    outputs = tl.program_id(1) * OUT + tl.arange(0, OUT)
    step = tl.arange(0, CHUNK)
    kernel, carried = tables_of(toeplitz, powers, group * ORDER + i, ROWS, CHUNK, False)
    total = tl.zeros((OUT, WIDTH), tl.float32)
    begin = tl.program_id(2) * share
    end = tl.minimum(begin + share, batch * chunks)
    m = memory_of(
        u, kernel, carried, states, segments, begin // chunks, begin % chunks, time, channels, chunks, column, limit,
        ROWS, CHUNK, HISTORY, False, SEGMENTED, PRECISION,
    )  # fmt: skip
    for number in range(begin, end):
        sequence, at = number // chunks, number % chunks
        moment = at * CHUNK + step[None, :]
        incoming = tl.load(
            gradient + (sequence.to(tl.int64) * time + moment) * out + outputs[:, None],
            mask=(moment < time) & (outputs[:, None] < out), other=0.0,
        )  # fmt: skip
        ahead = tl.minimum(number + 1, end - 1)
        next_m = memory_of(
            u, kernel, carried, states, segments, ahead // chunks, ahead % chunks, time, channels, chunks, column,
            limit, ROWS, CHUNK, HISTORY, False, SEGMENTED, PRECISION,
        )  # fmt: skip
        total = tl.dot(incoming, m, total, input_precision=PRECISION)
        m = next_m
    place = (tl.program_id(2) * out + outputs[:, None]).to(tl.int64) * (ORDER * channels) + i * channels + column
    tl.store(partial + place, total.to(partial.dtype.element_ty), mask=(outputs[:, None] < out) & (column < limit))


@triton.jit(do_not_specialize=COUNTS)
def through_output(
    gradient, o, passed, sums, total, outputs, share,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The gradient through ReLU and a bias: `passed` is the gradient where o (total, outputs) is positive, else zero;
    `sums` (shares, outputs) are its sums over `share` steps each."""
    begin = tl.program_id(0) * share
    outputs = outputs // 8 * 8  # always true; shows the compiler that rows are aligned
    row, column = tl.arange(0, ROWS)[:, None], tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    added = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(begin, tl.minimum(begin + share, total), ROWS):
        inside = (start + row < total) & (column < outputs)
        place = (start + row).to(tl.int64) * outputs + column
        value = tl.load(gradient + place, mask=inside, other=0.0)
        if RELU:
            value = tl.where(tl.load(o + place, mask=inside, other=0.0) <= 0, 0.0, value).to(value.dtype)
            tl.store(passed + place, value, mask=inside)
        if BIAS:
            added += value.to(tl.float32)
    if BIAS:
        output = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        tl.store(sums + tl.program_id(0) * outputs + output, tl.sum(added, 0), mask=output < outputs)


@triton.jit(do_not_specialize=COUNTS)
def add_up(partial, result, shares, total, ROWS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr):
    """The sum of partial (shares, total) in float32, rounded once: ROWS shares at a time, in a fixed order.

    UNIT: a divisor of `total`, which shows the compiler that rows are aligned.
    """
    total = total // UNIT * UNIT
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)[None, :]
    added = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, shares, ROWS):
        place = partial + (start + row).to(tl.int64) * total + column
        added += tl.load(place, mask=(start + row < shares) & (column < total), other=0.0)
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    tl.store(result + place, tl.sum(added, 0).to(result.dtype.element_ty), mask=place < total)
