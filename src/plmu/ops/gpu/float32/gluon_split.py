"""The projection of `plmu.ops.fused` in float32 for Hopper GPUs, and helpers that `gluon_split_weight`, the gradient of
its weight, uses too.

They compute the same as `project` and `weight_gradient` of `triton_split`, with two parts in float16 and with
specialized warps as in `gluon_chunked`. One warp fetches with the TMA what is in parts already: the weight and the
constants. Four warps divide float32 inputs into parts, once for all users. Two groups of four warps multiply: each
makes a tile of m, divides it in registers, and multiplies it into the other operand, while the other group keeps tensor
cores busy. If STAGGERED, the second group makes a tile of m only after the first has made its own, so that they do not
divide at the same time. Tiles go through buffers, with one barrier for full and one for empty buffers.

Sums begin at zero for each tile of m and are added up in float32 outside of tensor cores, which round toward zero.
Powers of two bring operands into the range of float16: for u and the state one for each channel and chunk, for a tile
of m one for each row, for the weight and the gradient of o one for each output. `largest` has the largest number of
each output; the results are scaled back at the end. Channels may differ in size by more than the range of float16, so a
tile of m is multiplied by `over_size`, the inverse of the sizes of its channels, and the weight by these sizes.

Channels and outputs are multiples of 8, and all channels have one system.

SEGMENTED: the state is reset inside sequences, with `marks` and cut tables as in `gluon_chunked`. The state may belong
to another segment than the inputs, so both have their own powers of two. Its part of m is selected rather than
multiplied by zero, which would keep a NaN.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from plmu.ops.gpu.gluon_chunked import barrier, cut_table

# Numbers that change with the batch and the lengths of sequences. A kernel is compiled once for all of them.
COUNTS = ("time", "chunks", "total", "work", "share")


@gluon.jit
def powers_of_two(largest):
    """The powers of two that scale numbers to 2¹⁴ … 2¹⁵, and their inverses."""
    exponent = largest.to(gl.int32, bitcast=True) & 0x7F800000
    exponent = gl.where(exponent < 15 << 23, 15 << 23, exponent)
    up = (141 << 23) - exponent + (127 << 23)
    return up.to(gl.float32, bitcast=True), (exponent - (14 << 23)).to(gl.float32, bitcast=True)


@gluon.jit
def halves(value):
    """The two parts of a float32, each in float16."""
    first = value.to(gl.float16)
    return first, (value - first.to(gl.float32)).to(gl.float16)


@gluon.jit
def product(a, b, acc, FIRST: gl.constexpr):
    """Start acc + a b, or a b if FIRST, of operands in parts, the small products first."""
    a1, a2 = a
    b1, b2 = b
    acc = warpgroup_mma(a2, b1, acc, use_acc=not FIRST, is_async=True)
    acc = warpgroup_mma(a1, b2, acc, is_async=True)
    return warpgroup_mma(a1, b1, acc, is_async=True)


@gluon.jit
def inputs_of(
    u, number, begin: gl.constexpr, first, time, channels, chunks, total,
    CHUNK: gl.constexpr, STEPS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """A tile of float32 inputs: STEPS of a chunk from `begin` on, zero past its sequence's end, and WIDTH channels from
    `first` on."""
    sequence, at = number // chunks, number % chunks
    moment = at * CHUNK + begin + gl.arange(0, STEPS, layout=gl.SliceLayout(1, layout))
    column = first + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    width = channels // 8 * 8  # always true; shows the compiler that rows are aligned
    place = u + (sequence.to(gl.int64) * time + moment[:, None]) * width + column[None, :]
    return gl.load(place, mask=(moment[:, None] < time) & (column[None, :] < width) & (number < total), other=0.0)


@gluon.jit
def states_of(states, number, first, channels, total, ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr):
    """The state before a chunk, for the same channels."""
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    column = first + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    width = channels // 8 * 8
    place = states + (number.to(gl.int64) * ROWS + row[:, None]) * width + column[None, :]
    inside = (row[:, None] >= 0) & (column[None, :] < width) & (number < total)
    return gl.load(place, mask=inside, other=0.0)


@gluon.jit
def divided(inputs, past, SEGMENTED: gl.constexpr):
    """The parts of inputs and of the state before them, and the factors that scale each back."""
    largest, before = gl.max(gl.abs(inputs), 0), gl.max(gl.abs(past), 0)
    if SEGMENTED:
        up, back = powers_of_two(largest)
        past_up, past_back = powers_of_two(before)
    else:
        up, back = powers_of_two(gl.where(before > largest, before, largest))
        past_up, past_back = up, back
    return halves(inputs * up[None, :]), halves(past * past_up[None, :]), back, past_back


@gluon.jit
def reached_by(reach, CHUNK: gl.constexpr, REVERSED: gl.constexpr, layout: gl.constexpr):
    """Which steps of a chunk its past reaches, if it reaches `reach` of them."""
    step = gl.arange(0, CHUNK, layout=layout)
    return step >= CHUNK - reach if REVERSED else step < reach


@gluon.jit
def _divide_for_project(
    args,
    CHUNK: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, SCALE: gl.constexpr, SEGMENTED: gl.constexpr,
):  # fmt: skip
    """For each block of inputs, store the parts of both chunks and of their states. They are read before a buffer is
    empty."""
    u, states, over_size, us, ss, backs, block_full, block_empty, time, inputs, chunks, pairs, work, total = args
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [1, 4], [1, 0])  # a warp has all steps of its channels
    turn = 0
    for item in range(gl.program_id(0), work, gl.num_programs(0)):
        number = 2 * (item % pairs)
        for block in range(gl.cdiv(inputs, WIDTH)):
            first = block * WIDTH
            column = first + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
            smaller = gl.load(over_size + column, mask=column < inputs, other=0.0) * (1 / SCALE)
            for c in gl.static_range(2):
                taken = inputs_of(u, number + c, 0, first, time, inputs, chunks, total, CHUNK, CHUNK, WIDTH, layout)
                past = states_of(states, number + c, first, inputs, total, ROWS, WIDTH, layout)
                taken, past, back, past_back = divided(taken, past, SEGMENTED)
                mbarrier.wait(block_empty.index(c), (turn & 1) ^ 1)
                for part in gl.static_range(2):
                    us.index(2 * c + part).store(taken[part])
                    ss.index(2 * c + part).store(past[part])
                backs.index(c).store(back * smaller)
                if SEGMENTED:
                    backs.index(2 + c).store(past_back * smaller)
                fence_async_shared()
                barrier()
                mbarrier.arrive(block_full.index(c), count=1)
            turn += 1


@gluon.jit
def _fetch_for_project(
    args,
    ORDER: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr, STAGES: gl.constexpr,
    RESIDENT: gl.constexpr, REVERSED: gl.constexpr,
):  # fmt: skip
    """Fetch, for each turn, both parts of a tile of the weight and, unless RESIDENT, of the tables of one order."""
    weight, toeplitz, powers, ws, ts, ps, turn_full, turn_empty, tables_full, inputs, stride, pairs, work = args
    tables: gl.constexpr = 2 * (toeplitz.block_type.nbytes + powers.block_type.nbytes)
    if RESIDENT:
        mbarrier.expect(tables_full, ORDER * tables)
        for k in gl.static_range(2 * ORDER):
            tma.async_copy_global_to_shared(toeplitz, [k * CHUNK, 0], tables_full, ts.index(k))
            tma.async_copy_global_to_shared(powers, [k * CHUNK, 0], tables_full, ps.index(k))
    turn = 0
    for item in range(gl.program_id(0), work, gl.num_programs(0)):
        first_out = item // pairs * OUT
        for block in range(gl.cdiv(inputs, WIDTH)):
            for i in range(ORDER):
                stage = turn % STAGES
                mbarrier.wait(turn_empty.index(stage), ((turn // STAGES) & 1) ^ 1)
                full = turn_full.index(stage)
                mbarrier.expect(full, 2 * weight.block_type.nbytes + (0 if RESIDENT else tables))
                for part in gl.static_range(2):
                    to = ws.index(2 * stage + part)
                    if REVERSED:
                        place = [part, block * WIDTH, i * stride + first_out]
                    else:
                        place = [part, first_out, i * stride + block * WIDTH]
                    tma.async_copy_global_to_shared(weight, place, full, to)
                    if not RESIDENT:
                        row, to = (part * ORDER + i) * CHUNK, 2 * stage + part
                        tma.async_copy_global_to_shared(toeplitz, [row, 0], full, ts.index(to))
                        tma.async_copy_global_to_shared(powers, [row, 0], full, ps.index(to))
                turn += 1


@gluon.jit
def _multiply_for_project(
    c: gl.constexpr, args,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, RESIDENT: gl.constexpr, REVERSED: gl.constexpr, SEGMENTED: gl.constexpr,
    STAGGERED: gl.constexpr,
):  # fmt: skip
    """Multiply for chunk c of two: make tiles of m, and multiply each into the weight."""
    buffers, barriers, o, largest, marks, time, inputs, outputs, length, chunks, pairs, work, total = args
    us, ss, ws, ts, ps, backs = buffers
    turn_full, turn_empty, block_full, block_empty, tables_full, ahead = barriers
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, OUT, 16])
    left_operand: gl.constexpr = gl.DotOperandLayout(0, wide, 2)
    table: gl.constexpr = gl.DotOperandLayout(0, narrow, 2)
    rows: gl.constexpr = gl.SliceLayout(1, wide)
    columns: gl.constexpr = gl.SliceLayout(0, narrow)
    if RESIDENT:
        mbarrier.wait(tables_full, 0)
    turn, blocks = 0, 0  # counted over all items of the program
    for item in range(gl.program_id(0), work, gl.num_programs(0)):
        number, first_out = 2 * (item % pairs) + c, item // pairs * OUT
        if SEGMENTED:
            row = marks + gl.minimum(number, total - 1).to(gl.int64) * (CHUNK + 1)
            mark = gl.load(row + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, table)))
            reached = reached_by(gl.load(row + CHUNK), CHUNK, REVERSED, gl.SliceLayout(1, narrow))
            step = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, table))
        sums = gl.zeros((CHUNK, OUT), gl.float32, wide)
        for _block in range(gl.cdiv(inputs, WIDTH)):
            mbarrier.wait(block_full.index(c), blocks & 1)
            blocks += 1
            for i in range(ORDER):
                stage = turn % STAGES
                mbarrier.wait(turn_full.index(stage), (turn // STAGES) & 1)
                first, second = (i, ORDER + i) if RESIDENT else (2 * stage, 2 * stage + 1)
                kernel, carried = (ts.index(first), ts.index(second)), (ps.index(first), ps.index(second))
                if REVERSED:
                    kernel = (ts.index(first).permute((1, 0)), ts.index(second).permute((1, 0)))
                if STAGGERED and c == 1:
                    mbarrier.wait(ahead.index(stage), (turn // STAGES) & 1)
                zeros = gl.zeros((CHUNK, WIDTH), gl.float32, narrow)
                m = product(carried, (ss.index(2 * c), ss.index(2 * c + 1)), zeros, True)
                if SEGMENTED:
                    k1, k2 = kernel
                    k1, k2 = (
                        cut_table(k1.load(table), mark, step, REVERSED),
                        cut_table(k2.load(table), mark, step, REVERSED),
                    )
                    from_inputs = product((k1, k2), (us.index(2 * c), us.index(2 * c + 1)), zeros, True)
                    m, from_inputs = warpgroup_mma_wait(0, deps=(m, from_inputs))
                    m = gl.where(reached[:, None], m * backs.index(2 + c).load(columns)[None, :], 0.0)
                    m += from_inputs * backs.index(c).load(columns)[None, :]
                else:
                    m = product(kernel, (us.index(2 * c), us.index(2 * c + 1)), m, False)
                    m = warpgroup_mma_wait(0, deps=(m,))
                    m *= backs.index(c).load(columns)[None, :]
                if STAGGERED and c == 0:
                    mbarrier.arrive(ahead.index(stage), count=1)
                if i == ORDER - 1:
                    barrier()
                    mbarrier.arrive(block_empty.index(c), count=1)
                up, down = powers_of_two(gl.max(gl.abs(m), 1))
                m1, m2 = halves(m * up[:, None])
                m1, m2 = gl.convert_layout(m1, left_operand), gl.convert_layout(m2, left_operand)
                w1 = ws.index(2 * stage).reshape([WIDTH, OUT] if REVERSED else [OUT, WIDTH])
                w2 = ws.index(2 * stage + 1).reshape([WIDTH, OUT] if REVERSED else [OUT, WIDTH])
                if not REVERSED:
                    w1, w2 = w1.permute((1, 0)), w2.permute((1, 0))
                added = gl.zeros((CHUNK, OUT), gl.float32, wide)
                added = product((m1, m2), (w1, w2), added, True)
                added = warpgroup_mma_wait(0, deps=(added,))
                mbarrier.arrive(turn_empty.index(stage), count=1)
                sums += added * gl.convert_layout(down * 2.0**-14, rows)[:, None]  # as for a weight near 1
                turn += 1
        moment = number % chunks * CHUNK + gl.arange(0, CHUNK, layout=rows)
        output = first_out + gl.arange(0, OUT, layout=gl.SliceLayout(0, wide))
        _up, back = powers_of_two(gl.load(largest + output, mask=output < outputs, other=0.0))
        place = o + ((number // chunks).to(gl.int64) * time + moment[:, None]) * (length // 8 * 8) + output[None, :]
        inside = (moment[:, None] < time) & (output[None, :] < outputs // 8 * 8) & (number < total)
        gl.store(place, sums * (back * 2.0**14)[None, :], mask=inside)


@gluon.jit(do_not_specialize=COUNTS)
def project_in_parts(
    weight, toeplitz, powers, u, states, over_size, largest, marks, o,
    time, inputs, outputs, length, stride, chunks, total, work,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, RESIDENT: gl.constexpr, REVERSED: gl.constexpr, SCALE: gl.constexpr,
    SEGMENTED: gl.constexpr, STAGGERED: gl.constexpr, MULTIPLYING: gl.constexpr, DIVIDING: gl.constexpr,
):  # fmt: skip
    """o = W m. A tile is two of all `total` chunks and OUT outputs. Each program takes tiles in turn.

    `weight` is (2, outputs, ORDER · stride), or (2, inputs, ORDER · stride) if REVERSED. Rows of o have `length`
    numbers in memory. RESIDENT: the tables of all orders stay in shared memory. MULTIPLYING, DIVIDING: registers of
    each thread that multiplies or divides.
    """
    part: gl.constexpr = weight.dtype
    tables: gl.constexpr = 2 * (ORDER if RESIDENT else STAGES)
    us = gl.allocate_shared_memory(part, [4, CHUNK, WIDTH], toeplitz.layout)
    ss = gl.allocate_shared_memory(part, [4, ROWS, WIDTH], toeplitz.layout)
    ws = gl.allocate_shared_memory(
        part, [2 * STAGES, 1, weight.block_type.shape[1], weight.block_type.shape[2]], weight.layout
    )
    ts = gl.allocate_shared_memory(part, [tables, CHUNK, CHUNK], toeplitz.layout)
    ps = gl.allocate_shared_memory(part, [tables, CHUNK, ROWS], powers.layout)
    backs = gl.allocate_shared_memory(gl.float32, [4, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    turn_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    block_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    block_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    tables_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    ahead = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(STAGES):
        mbarrier.init(ahead.index(k), count=1)
        mbarrier.init(turn_full.index(k), count=1)
        mbarrier.init(turn_empty.index(k), count=2)
    for k in gl.static_range(2):
        mbarrier.init(block_full.index(k), count=1)
        mbarrier.init(block_empty.index(k), count=1)
    mbarrier.init(tables_full.index(0), count=1)
    fence_async_shared()
    pairs = gl.cdiv(total, 2)
    buffers = (us, ss, ws, ts, ps, backs)
    barriers = (turn_full, turn_empty, block_full, block_empty, tables_full.index(0), ahead)
    args = (buffers, barriers, o, largest, marks, time, inputs, outputs, length, chunks, pairs, work, total)
    dividing = (
        u, states, over_size, us, ss, backs, block_full, block_empty, time, inputs, chunks, pairs, work, total,
    )  # fmt: skip
    fetching = (
        weight, toeplitz, powers, ws, ts, ps, turn_full, turn_empty, tables_full.index(0), inputs, stride, pairs, work,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_multiply_for_project, (
                0, args, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, RESIDENT, REVERSED, SEGMENTED, STAGGERED)),
            (_multiply_for_project, (
                1, args, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, RESIDENT, REVERSED, SEGMENTED, STAGGERED)),
            (_divide_for_project, (dividing, CHUNK, ROWS, WIDTH, SCALE, SEGMENTED)),
            (_fetch_for_project, (fetching, ORDER, CHUNK, WIDTH, OUT, STAGES, RESIDENT, REVERSED)),
        ],
        [4, 4, 1],
        [MULTIPLYING, DIVIDING, 24],
    )  # fmt: skip
