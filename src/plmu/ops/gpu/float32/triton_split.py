"""The heavy kernels of `plmu.ops.fused` in float32 on tensor cores: the projection and the gradient of the weight.

Tensor cores multiply half precision far faster than float32. So a float32 operand is written as a sum of PARTS numbers
in half precision, each the rounded rest of those before. Products of parts that are too small for float32 are left out:

- Two parts in float16, three products. The parts hold 22 bits, close to the 24 of float32. The range of float16 is
  small, so powers of two scale the rows or columns of a tile to about 2¹⁴, and their products back. A number that is
  2¹⁸ times smaller than the largest of the 64 in its row or column begins to lose bits. Channels may differ by far
  more, for instance features in different units. So m is divided by the size of its channel, `sizes`, and the weight
  multiplied by it.
- Three parts in bfloat16, six products. The parts hold all bits, in the range of float32, at twice the arithmetic.

Tensor cores round sums toward zero, which adds up in a long sum. So they sum within one tile, small products first, and
the sums of tiles are added in float32.

Shapes and names are as in `triton_chunked`. Constants are in parts, times SCALE: (PARTS, ...). `divide` divides the
weight into parts. PART is the type of operands: half precision, or float32 in the interpreter, which has no products in
bfloat16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plmu.ops.gpu.triton_chunked import COUNTS, cut_table, inputs_at, past_of, reached_steps, tile_of

RAISED = tl.constexpr(2.0**14)  # to which `_powers_of_two` scales numbers


@triton.jit
def _powers_of_two(largest):
    """The powers of two that scale numbers to 2¹⁴ … 2¹⁵, and their inverses."""
    exponent = tl.maximum(largest.to(tl.int32, bitcast=True) & 0x7F800000, 15 << 23)
    up = ((141 << 23) - exponent + (127 << 23)).to(tl.float32, bitcast=True)
    return up, (exponent - (14 << 23)).to(tl.float32, bitcast=True)


@triton.jit
def _scale(value, PARTS: tl.constexpr, AXIS: tl.constexpr):
    """The powers of two for the largest numbers along an axis, and their inverses; 1 for bfloat16."""
    if PARTS == 3:
        up, back = tl.full((1, 1), 1.0, tl.float32), tl.full((1, 1), 1.0, tl.float32)
    else:
        up, back = _powers_of_two(tl.max(tl.abs(value), AXIS, keep_dims=True))
    return up, back


@triton.jit
def _scales(inputs, past, PARTS: tl.constexpr, SEGMENTED: tl.constexpr):
    """The powers of two for the channels of the inputs and of the state: the same, unless SEGMENTED sums them apart."""
    if PARTS == 3 or SEGMENTED:
        up, back = _scale(inputs, PARTS, 0)
        past_up, past_back = _scale(past, PARTS, 0)
    else:
        largest = tl.maximum(tl.max(tl.abs(inputs), 0, keep_dims=True), tl.max(tl.abs(past), 0, keep_dims=True))
        up, back = _powers_of_two(largest)
        past_up, past_back = up, back
    return up, back, past_up, past_back


@triton.jit
def _size_of(sizes, at, mask):
    """The size of a channel, rounded down to a power of two, and its inverse."""
    bits = tl.load(sizes + at, mask=mask, other=1.0).to(tl.int32, bitcast=True) & 0x7F800000
    return bits.to(tl.float32, bitcast=True), ((254 << 23) - bits).to(tl.float32, bitcast=True)


@triton.jit
def _split(value, PARTS: tl.constexpr, PART: tl.constexpr):
    """The parts of a float32; of two parts the second is returned twice."""
    HALF: tl.constexpr = tl.bfloat16 if PARTS == 3 else tl.float16
    first = value.to(HALF)
    rest = value - first.to(tl.float32)
    second = rest.to(HALF)
    third = second
    if PARTS == 3:
        third = (rest - second.to(tl.float32)).to(HALF)
    return first.to(PART), second.to(PART), third.to(PART)


@triton.jit
def _load(place, step, mask, PARTS: tl.constexpr, PART: tl.constexpr):
    """The parts of a tile, which lie `step` numbers apart."""
    other = None if mask is None else 0.0
    first = tl.load(place, mask=mask, other=other).to(PART)
    second = tl.load(place + step, mask=mask, other=other).to(PART)
    third = second
    if PARTS == 3:
        third = tl.load(place + 2 * step, mask=mask, other=other).to(PART)
    return first, second, third


@triton.jit
def _product(a, b, total, PARTS: tl.constexpr):
    """total + a b of operands in parts, the smallest products first."""
    a1, a2, a3 = a
    b1, b2, b3 = b
    if PARTS == 3:
        total = tl.dot(a3, b1, total)
        total = tl.dot(a1, b3, total)
        total = tl.dot(a2, b2, total)
    total = tl.dot(a2, b1, total)
    total = tl.dot(a1, b2, total)
    return tl.dot(a1, b1, total)


@triton.jit
def _transposed(parts):
    first, second, third = parts
    return tl.trans(first), tl.trans(second), tl.trans(third)


@triton.jit
def _tables(
    toeplitz, powers, group, i,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, REVERSED: tl.constexpr,
    PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """T_i (C, C), or T_iᵀ if time runs backwards, and P_i (C, ROWS), of a group, in parts."""
    i += group * PARTS * ORDER
    step, other, row = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :], tl.arange(0, ROWS)[None, :]
    down, along = (other, step) if REVERSED else (step, other)
    place = toeplitz + (i * CHUNK + down) * CHUNK + along
    kernel = _load(place, ORDER * CHUNK * CHUNK, None, PARTS, PART)
    return kernel, _load(powers + (i * CHUNK + step) * ROWS + row, ORDER * CHUNK * ROWS, None, PARTS, PART)


@triton.jit
def _cut_parts(kernel, segments, sequence, at, time, CHUNK: tl.constexpr):
    first, second, third = kernel
    first = cut_table(first, segments, sequence, at, time, CHUNK)
    second = cut_table(second, segments, sequence, at, time, CHUNK)
    return first, second, cut_table(third, segments, sequence, at, time, CHUNK)


@triton.jit
def _memory(
    kernel, carried, inputs, past, back, past_back, segments, sequence, at, time,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, REVERSED: tl.constexpr, SEGMENTED: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """m_i = T_i u + P_i s of a chunk for some channels: (C, WIDTH). The operands are in parts; `back` and `past_back`
    scale them back."""
    zeros = tl.zeros((CHUNK, WIDTH), tl.float32)
    m = _product(carried, past, zeros, PARTS)
    if SEGMENTED:  # selected, since a state that has overflowed times zero is NaN
        reached = reached_steps(segments, sequence, at, time, ROWS, CHUNK, False, REVERSED)
        m = tl.where(reached, m * past_back, 0.0)
        kernel = _cut_parts(kernel, segments, sequence, at, time, CHUNK)
        m = tl.fma(_product(kernel, inputs, zeros, PARTS), back, m)
    else:
        m = _product(kernel, inputs, m, PARTS) * back
    return m


@triton.jit
def divide(
    weight, parts, scales, sizes, out, channels, length,
    ORDER: tl.constexpr, TILE: tl.constexpr, ACROSS: tl.constexpr, AXIS: tl.constexpr,
    GROUPS: tl.constexpr, UNIT: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The parts of a weight (out, order, channels), whose rows have `length` channels in memory, and the `scales` of
    tiles of them: (tiles, order, out), with tiles of TILE channels of one group, or if AXIS is 0 (tiles, order,
    channels), with tiles of TILE outputs. `sizes` are those of channels, or of outputs if AXIS is 0."""
    i = tl.program_id(2)
    if AXIS == 1:
        row = tl.program_id(0) * ACROSS + tl.arange(0, ACROSS)[:, None]
        _, start, limit = tile_of(tl.program_id(1), channels, GROUPS, TILE, UNIT)
        column = start + tl.arange(0, TILE)[None, :]
    else:
        row = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
        column, limit = tl.program_id(0) * ACROSS + tl.arange(0, ACROSS)[None, :], channels
    mask = (row < out) & (column < limit)
    value = tl.load(weight + (row.to(tl.int64) * ORDER + i) * length + column, mask=mask, other=0.0)
    if PARTS == 2:
        if AXIS == 1:
            size, _ = _size_of(sizes, column, column < limit)
        else:
            size, _ = _size_of(sizes, row, row < out)
        value *= size
    place = (row.to(tl.int64) * ORDER + i) * channels + column
    up, down = _scale(value, PARTS, AXIS)
    first, second, third = _split(value * up, PARTS, parts.dtype.element_ty)
    step = tl.cast(out, tl.int64) * ORDER * channels
    tl.store(parts + place, first, mask=mask)
    tl.store(parts + step + place, second, mask=mask)
    if PARTS == 3:
        tl.store(parts + 2 * step + place, third, mask=mask)
    else:
        count = out if AXIS == 1 else channels
        at = row if AXIS == 1 else column
        tl.store(scales + (tl.program_id(1) * ORDER + i).to(tl.int64) * count + at, down, mask=at < count)


@triton.jit
def divide_by_output(
    weight, sizes, largest, parts, out, channels, length,
    ORDER: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, OF_CHANNELS: tl.constexpr,
):  # fmt: skip
    """The two parts of a weight times the `sizes` of its channels, scaled by a power of two for each output, from the
    `largest` of its numbers; if OF_CHANNELS the same with outputs and channels exchanged."""
    row = tl.program_id(0) * DOWN + tl.arange(0, DOWN)[:, None]
    column, i = tl.program_id(1) * ACROSS + tl.arange(0, ACROSS)[None, :], tl.program_id(2)
    mask = (row < out) & (column < channels)
    value = tl.load(weight + (row.to(tl.int64) * ORDER + i) * length + column, mask=mask, other=0.0)
    value *= tl.load(sizes + row, mask=row < out) if OF_CHANNELS else tl.load(sizes + column, mask=column < channels)
    at, count = (column, channels) if OF_CHANNELS else (row, out)
    up, _ = _powers_of_two(tl.load(largest + at, mask=at < count, other=0.0))
    first, second, _ = _split(value * up, 2, parts.dtype.element_ty)
    place = (row.to(tl.int64) * ORDER + i) * channels + column
    tl.store(parts + place, first, mask=mask)
    tl.store(parts + tl.cast(out, tl.int64) * ORDER * channels + place, second, mask=mask)


@triton.jit
def _weight(
    weight, step, i, row, columns, inputs, outputs, limit, end,
    ORDER: tl.constexpr, REVERSED: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The parts of a tile of the weight, `step` numbers apart: (WIDTH, OUT)."""
    if REVERSED:
        place = row.to(tl.int64) * (ORDER * outputs) + i * outputs + columns
    else:
        place = columns.to(tl.int64) * (ORDER * inputs) + i * inputs + row
    return _load(weight + place, step, (columns < end) & (row < limit), PARTS, PART)


@triton.jit
def _add(
    total, m, m_back, part, scales, turn, columns, outputs, end,
    CHUNK: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """total + m W for tiles in parts, scaled back by powers of two."""
    added = _product(m, part, tl.zeros((CHUNK, OUT), tl.float32), PARTS)
    if PARTS == 2:
        place = scales + turn.to(tl.int64) * outputs + columns
        added *= tl.load(place, mask=columns < end, other=0.0) * (1 / RAISED)  # so that nothing overflows
        m_back *= RAISED
    return tl.fma(added, m_back, total)


@triton.jit
def _write(o, total, sequence, at, time, length, columns, end, CHUNK: tl.constexpr):
    moment = at * CHUNK + tl.arange(0, CHUNK)[:, None]
    place = o + (sequence.to(tl.int64) * time + moment) * length + columns
    tl.store(place, total, mask=(moment < time) & (columns < end))


@triton.jit(do_not_specialize=COUNTS)
def project(
    u, weight, scales, sizes, toeplitz, powers, states, segments, o, time, inputs, outputs, length, chunks,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PIECES: tl.constexpr, REVERSED: tl.constexpr, SEGMENTED: tl.constexpr, GROUPS: tl.constexpr, UNIT: tl.constexpr,
    PARTS: tl.constexpr, PART: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """o = W m for one chunk and PIECES times OUT outputs, with the weight in parts; REVERSED as in `triton_chunked`.
    Rows of o have `length` numbers in memory. `sizes` are those of the inputs' channels."""
    BLOCKS: tl.constexpr = 1 if REVERSED else GROUPS  # groups of inputs
    TILES: tl.constexpr = GROUPS if REVERSED else 1  # groups of outputs
    at, sequence = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    system, first, end = tile_of(tl.program_id(1), outputs, TILES, PIECES * OUT, UNIT if TILES > 1 else 1)
    columns = first + tl.arange(0, OUT)[None, :]
    if TILES > 1:  # each system's states of all inputs
        states += (system * tl.num_programs(0)).to(tl.int64) * ROWS * inputs
    step = tl.cast(inputs, tl.int64) * ORDER * outputs  # from one part of the weight to the next
    total = tl.zeros((CHUNK, OUT), tl.float32)
    second = total
    for block in range(BLOCKS * tl.cdiv(inputs // BLOCKS, WIDTH)):
        group, start, limit = tile_of(block, inputs, BLOCKS, WIDTH, UNIT if BLOCKS > 1 else 1)
        row = start + tl.arange(0, WIDTH)[:, None]
        column = start + tl.arange(0, WIDTH)[None, :]
        taken = inputs_at(u, sequence, at * CHUNK, time, inputs, column, limit, CHUNK)
        past = past_of(u, states, sequence, at, time, chunks, inputs, column, limit, ROWS, CHUNK, False, REVERSED)
        up, back, past_up, past_back = _scales(taken, past, PARTS, SEGMENTED)
        taken, past = _split(taken * up, PARTS, PART), _split(past * past_up, PARTS, PART)
        back, past_back = back * (1 / SCALE), past_back * (1 / SCALE)
        if PARTS == 2:
            _, smaller = _size_of(sizes, column, column < limit)
            back, past_back = back * smaller, past_back * smaller
        for i in range(ORDER):
            part = _weight(weight, step, i, row, columns, inputs, outputs, limit, end, ORDER, REVERSED, PARTS, PART)
            kernel, carried = _tables(toeplitz, powers, system + group, i, ORDER, ROWS, CHUNK, REVERSED, PARTS, PART)
            m = _memory(
                kernel, carried, taken, past, back, past_back, segments, sequence, at, time,
                ROWS, CHUNK, WIDTH, REVERSED, SEGMENTED, PARTS,
            )  # fmt: skip
            m_up, m_back = _scale(m, PARTS, 1)
            m = _split(m * m_up, PARTS, PART)
            turn = block * ORDER + i
            total = _add(total, m, m_back, part, scales, turn, columns, outputs, end, CHUNK, OUT, PARTS)
            if PIECES == 2:
                beyond = columns + OUT
                part = _weight(weight, step, i, row, beyond, inputs, outputs, limit, end, ORDER, REVERSED, PARTS, PART)
                second = _add(second, m, m_back, part, scales, turn, beyond, outputs, end, CHUNK, OUT, PARTS)
    _write(o, total, sequence, at, time, length, columns, end, CHUNK)
    if PIECES == 2:
        _write(o, second, sequence, at, time, length, columns + OUT, end, CHUNK)


@triton.jit(do_not_specialize=COUNTS)
def weight_gradient(
    u, gradient, toeplitz, powers, states, segments, partial, time, channels, out, chunks, batch, share,
    ORDER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    SEGMENTED: tl.constexpr, GROUPS: tl.constexpr, UNIT: tl.constexpr,
    PARTS: tl.constexpr, PART: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Σ gradientᵀ m_i over `share` chunks, for OUT outputs and WIDTH channels, into partial (shares, *weight.shape).

    Everything is transposed, m_iᵀ = uᵀ T_iᵀ + sᵀ P_iᵀ, so that m stays in registers.
    """
    i = tl.program_id(0) % ORDER
    group, start, limit = tile_of(tl.program_id(0) // ORDER, channels, GROUPS, WIDTH, UNIT)
    column = start + tl.arange(0, WIDTH)[None, :]
    outputs = tl.program_id(1) * OUT + tl.arange(0, OUT)[None, :]
    kernel, carried = _tables(toeplitz, powers, group, i, ORDER, ROWS, CHUNK, False, PARTS, PART)
    carried = _transposed(carried)
    total = tl.zeros((WIDTH, OUT), tl.float32)
    begin = tl.program_id(2) * share
    for number in range(begin, tl.minimum(begin + share, batch * chunks)):
        sequence, at = number // chunks, number % chunks
        inputs = inputs_at(u, sequence, at * CHUNK, time, channels, column, limit, CHUNK)
        past = past_of(u, states, sequence, at, time, chunks, channels, column, limit, ROWS, CHUNK, False, False)
        incoming = inputs_at(gradient, sequence, at * CHUNK, time, out, outputs, out, CHUNK)
        up, back, past_up, past_back = _scales(inputs, past, PARTS, SEGMENTED)
        inputs = _transposed(_split(inputs * up, PARTS, PART))
        past = _transposed(_split(past * past_up, PARTS, PART))
        back, past_back = tl.trans(back * (1 / SCALE)), tl.trans(past_back * (1 / SCALE))
        zeros = tl.zeros((WIDTH, CHUNK), tl.float32)
        m = _product(past, carried, zeros, PARTS)
        if SEGMENTED:
            reached = reached_steps(segments, sequence, at, time, ROWS, CHUNK, False, False)
            m = tl.where(tl.trans(reached), m * past_back, 0.0)
            cut = _transposed(_cut_parts(kernel, segments, sequence, at, time, CHUNK))
            m = tl.fma(_product(inputs, cut, zeros, PARTS), back, m)
        else:
            m = _product(inputs, _transposed(kernel), m, PARTS) * back
        m_up, m_back = _scale(m, PARTS, 1)
        up, back = _scale(incoming, PARTS, 0)
        incoming = _split(incoming * up, PARTS, PART)
        added = _product(_split(m * m_up, PARTS, PART), incoming, tl.zeros((WIDTH, OUT), tl.float32), PARTS)
        if PARTS == 2:
            added *= back * (1 / RAISED)
            m_back *= RAISED
        total = tl.fma(added, m_back, total)
    row = start + tl.arange(0, WIDTH)[:, None]
    place = partial + (tl.program_id(2) * out + outputs).to(tl.int64) * (ORDER * channels) + i * channels + row
    tl.store(place, total, mask=(row < limit) & (outputs < out))
