"""The gradient of the weight of `plmu.ops.fused` in float32 for Hopper GPUs.

Its warps are specialized as those of the projection; see `gluon_split`, also for parts and names.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from plmu.ops.gpu.float32.gluon_split import (
    COUNTS,
    divided,
    halves,
    inputs_of,
    powers_of_two,
    product,
    reached_by,
    states_of,
)
from plmu.ops.gpu.gluon_chunked import barrier, cut_table


@gluon.jit
def _divide_for_weight(
    args, ORDER: gl.constexpr, CHUNK: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, SCALE: gl.constexpr, SEGMENTED: gl.constexpr,
):  # fmt: skip
    """Fetch the tables of two orders once; then for each chunk store the parts of its inputs, its state and the
    gradient. The next chunk is loaded meanwhile."""
    tensors, buffers, barriers, i, first, first_out, time, channels, out, chunks, begin, end = args
    toeplitz, powers, u, states, over_size, gradient, largest = tensors
    us, ss, gs, ts, ps, backs = buffers
    full, empty, tables_full, _ahead = barriers
    mbarrier.expect(tables_full, 4 * (toeplitz.block_type.nbytes + powers.block_type.nbytes))
    for c in gl.static_range(2):
        for part in gl.static_range(2):
            row = (part * ORDER + i + c) * CHUNK
            tma.async_copy_global_to_shared(toeplitz, [row, 0], tables_full, ts.index(2 * c + part))
            tma.async_copy_global_to_shared(powers, [row, 0], tables_full, ps.index(2 * c + part))
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [1, 4], [1, 0])  # a warp has all steps of its channels
    flat: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    output = first_out + gl.arange(0, OUT, layout=gl.SliceLayout(0, flat))
    raised, _back = powers_of_two(gl.load(largest + output, mask=output < out, other=0.0))
    half: gl.constexpr = CHUNK // 2
    column = first + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    smaller = gl.load(over_size + column, mask=column < channels, other=0.0) * (1 / SCALE)
    inputs = inputs_of(u, begin, 0, first, time, channels, chunks, end, CHUNK, CHUNK, WIDTH, layout)
    past = states_of(states, begin, first, channels, end, ROWS, WIDTH, layout)
    early = inputs_of(gradient, begin, 0, first_out, time, out, chunks, end, CHUNK, half, OUT, flat)
    for number in range(begin, end):
        u_parts, s_parts, back, past_back = divided(inputs, past, SEGMENTED)
        late = inputs_of(gradient, number, half, first_out, time, out, chunks, end, CHUNK, half, OUT, flat)
        turn = number - begin
        stage = turn % STAGES
        mbarrier.wait(empty.index(stage), ((turn // STAGES) & 1) ^ 1)
        for part in gl.static_range(2):
            us.index(2 * stage + part).store(u_parts[part])
            ss.index(2 * stage + part).store(s_parts[part])
        backs.index(2 * stage).store(back * smaller)
        if SEGMENTED:
            backs.index(2 * stage + 1).store(past_back * smaller)
        inputs = inputs_of(u, number + 1, 0, first, time, channels, chunks, end, CHUNK, CHUNK, WIDTH, layout)
        past = states_of(states, number + 1, first, channels, end, ROWS, WIDTH, layout)
        g_parts = halves(early * raised[None, :])
        for part in gl.static_range(2):
            gs.index(2 * stage + part).slice(0, half, 0).store(g_parts[part])
        g_parts = halves(late * raised[None, :])
        for part in gl.static_range(2):
            gs.index(2 * stage + part).slice(half, half, 0).store(g_parts[part])
        fence_async_shared()
        early = inputs_of(gradient, number + 1, 0, first_out, time, out, chunks, end, CHUNK, half, OUT, flat)
        barrier()
        mbarrier.arrive(full.index(stage), count=1)


@gluon.jit
def _transposed_tables(ts, ps, kernel, carried):
    """Both parts of T and P transposed, from these indices of their buffers on."""
    t1, t2 = ts.index(kernel).permute((1, 0)), ts.index(kernel + 1).permute((1, 0))
    return (t1, t2), (ps.index(carried).permute((1, 0)), ps.index(carried + 1).permute((1, 0)))


@gluon.jit
def _marks_of(marks, number, CHUNK: gl.constexpr):
    """The marks of a chunk's steps, and the number of steps that its past reaches."""
    row = marks + number.to(gl.int64) * (CHUNK + 1)
    return gl.load(row + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, _in_rows(CHUNK)))), gl.load(row + CHUNK)


@gluon.constexpr_function
def _in_rows(CHUNK):
    """A layout in which each thread holds 16 bytes of a row."""
    return gl.BlockedLayout([1, 8], [256 // CHUNK, CHUNK // 8], [4, 1], [1, 0])


@gluon.jit
def _cut_tables(c: gl.constexpr, ts, mark, reach, CHUNK: gl.constexpr):
    """Cut copies of the c-th T for a chunk, if there is anything to cut. Returns the first index of the T to use."""
    cut = reach < CHUNK
    if cut:
        layout: gl.constexpr = _in_rows(CHUNK)
        step = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, layout))
        first = cut_table(ts.index(2 * c).load(layout), mark, step, False)
        second = cut_table(ts.index(2 * c + 1).load(layout), mark, step, False)
        barrier()  # all warps are done with the copies for an earlier chunk
        ts.index(4 + 2 * c).store(first)
        ts.index(5 + 2 * c).store(second)
        fence_async_shared()
        barrier()
    return gl.where(cut, 4 + 2 * c, 2 * c)


@gluon.jit
def _multiply_for_weight(
    c: gl.constexpr, args,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, SEGMENTED: gl.constexpr, STAGGERED: gl.constexpr,
):  # fmt: skip
    """Multiply for order i + c: make mᵀ of each chunk, then multiply it into the gradient."""
    buffers, barriers, partial, largest, marks, i, first, first_out, share, begin, end, channels, out = args
    us, ss, gs, ts, ps, backs = buffers
    full, empty, tables_full, ahead = barriers
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, OUT, 16])
    left_operand: gl.constexpr = gl.DotOperandLayout(0, wide, 2)
    rows: gl.constexpr = gl.SliceLayout(1, wide)
    steps: gl.constexpr = gl.SliceLayout(1, narrow)
    sums = gl.zeros((WIDTH, OUT), gl.float32, wide)
    mbarrier.wait(tables_full, 0)
    kernel, carried = _transposed_tables(ts, ps, 2 * c, 2 * c)
    if SEGMENTED:
        mark, reach = _marks_of(marks, begin, CHUNK)
    for turn in range(end - begin):
        stage = turn % STAGES
        if SEGMENTED:
            reached = reached_by(reach, CHUNK, False, gl.SliceLayout(0, narrow))
            kernel, carried = _transposed_tables(ts, ps, _cut_tables(c, ts, mark, reach, CHUNK), 2 * c)
            mark, reach = _marks_of(marks, gl.minimum(begin + turn + 1, end - 1), CHUNK)
        mbarrier.wait(full.index(stage), (turn // STAGES) & 1)
        u1, u2 = us.index(2 * stage).permute((1, 0)), us.index(2 * stage + 1).permute((1, 0))
        s1, s2 = ss.index(2 * stage).permute((1, 0)), ss.index(2 * stage + 1).permute((1, 0))
        if STAGGERED and c == 1:
            mbarrier.wait(ahead.index(stage), (turn // STAGES) & 1)
        zeros = gl.zeros((WIDTH, CHUNK), gl.float32, narrow)
        m = product((s1, s2), carried, zeros, True)
        if SEGMENTED:
            from_inputs = product((u1, u2), kernel, zeros, True)
            m, from_inputs = warpgroup_mma_wait(0, deps=(m, from_inputs))
            m = gl.where(reached[None, :], m * backs.index(2 * stage + 1).load(steps)[:, None], 0.0)
            m += from_inputs * backs.index(2 * stage).load(steps)[:, None]
        else:
            m = product((u1, u2), kernel, m, False)
            m = warpgroup_mma_wait(0, deps=(m,))
        if STAGGERED and c == 0:
            mbarrier.arrive(ahead.index(stage), count=1)
        up, down = powers_of_two(gl.max(gl.abs(m), 1))
        m1, m2 = halves(m * up[:, None])
        m1, m2 = gl.convert_layout(m1, left_operand), gl.convert_layout(m2, left_operand)
        added = gl.zeros((WIDTH, OUT), gl.float32, wide)
        added = product((m1, m2), (gs.index(2 * stage), gs.index(2 * stage + 1)), added, True)
        down = gl.convert_layout(down * 2.0**-14, rows)
        if not SEGMENTED:
            down *= backs.index(2 * stage).load(rows)
        added = warpgroup_mma_wait(0, deps=(added,))
        barrier()
        mbarrier.arrive(empty.index(stage), count=1)
        sums += added * down[:, None]
    channel = first + gl.arange(0, WIDTH, layout=rows)
    output = first_out + gl.arange(0, OUT, layout=gl.SliceLayout(0, wide))
    _up, back = powers_of_two(gl.load(largest + output, mask=output < out, other=0.0))
    place = (share * out + output[None, :]).to(gl.int64) * (ORDER * channels) + (i + c) * channels + channel[:, None]
    inside = (output[None, :] < out) & (channel[:, None] < channels) & (i + c < ORDER)
    gl.store(partial + place, sums * (back * 2.0**14)[None, :], mask=inside)


@gluon.jit(do_not_specialize=COUNTS)
def weight_gradient_in_parts(
    toeplitz, powers, u, states, over_size, gradient, largest, marks, partial,
    time, channels, out, chunks, total, share,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, SCALE: gl.constexpr, SEGMENTED: gl.constexpr,
    STAGGERED: gl.constexpr, MULTIPLYING: gl.constexpr, DIVIDING: gl.constexpr,
):  # fmt: skip
    """Σ m gradientᵀ over `share` of the `total` chunks, divided by the sizes of the channels: for OUT outputs and WIDTH
    channels of two orders, into partial (shares, out, ORDER, channels)."""
    orders: gl.constexpr = (ORDER + 1) // 2
    i = 2 * (gl.program_id(0) % orders)
    first, first_out = gl.program_id(0) // orders * WIDTH, gl.program_id(1) * OUT
    begin = gl.program_id(2) * share
    end = gl.minimum(begin + share, total)
    part: gl.constexpr = toeplitz.dtype
    us = gl.allocate_shared_memory(part, [2 * STAGES, CHUNK, WIDTH], toeplitz.layout)
    ss = gl.allocate_shared_memory(part, [2 * STAGES, ROWS, WIDTH], toeplitz.layout)
    gs = gl.allocate_shared_memory(part, [2 * STAGES, CHUNK, OUT], toeplitz.layout)
    ts = gl.allocate_shared_memory(part, [8 if SEGMENTED else 4, CHUNK, CHUNK], toeplitz.layout)
    ps = gl.allocate_shared_memory(part, [4, CHUNK, ROWS], powers.layout)
    backs = gl.allocate_shared_memory(gl.float32, [2 * STAGES, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    tables = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    ahead = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(STAGES):
        mbarrier.init(ahead.index(k), count=1)
        mbarrier.init(full.index(k), count=1)
        mbarrier.init(empty.index(k), count=2)
    mbarrier.init(tables.index(0), count=1)
    fence_async_shared()
    buffers = (us, ss, gs, ts, ps, backs)
    barriers = (full, empty, tables.index(0), ahead)
    tensors = (toeplitz, powers, u, states, over_size, gradient, largest)
    dividing = (tensors, buffers, barriers, i, first, first_out, time, channels, out, chunks, begin, end)
    args = (
        buffers, barriers, partial, largest, marks, i, first, first_out, gl.program_id(2), begin, end, channels, out,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_multiply_for_weight, (0, args, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, SEGMENTED, STAGGERED)),
            (_multiply_for_weight, (1, args, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, SEGMENTED, STAGGERED)),
            (_divide_for_weight, (dividing, ORDER, CHUNK, ROWS, WIDTH, OUT, STAGES, SCALE, SEGMENTED)),
        ],
        [4, 4],
        [MULTIPLYING, DIVIDING],
    )
