"""The gradient of the weight of `plmu.ops.fused` for Hopper GPUs.

Its warps are specialized as those of the projection; see `gluon_chunked`, also for names. SEGMENTED: tables are cut in
a copy in shared memory, for chunks with a reset.
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

from plmu.ops.gpu.gluon_chunked import COUNTS, barrier, cut_table, past_of, tile_of


@gluon.jit
def _fetch_for_weight(args, ROWS: gl.constexpr, CHUNK: gl.constexpr, STAGES: gl.constexpr, HISTORY: gl.constexpr):
    """Fetch the tables of two orders once; then for each chunk its inputs, its past and the gradient."""
    tensors, buffers, barriers, table, column, first_out, begin, end, chunks = args
    u, past, gradient, toeplitz, powers = tensors
    us, ss, gs, ts, ps = buffers
    full, empty, tables_full = barriers
    mbarrier.expect(tables_full, 2 * (toeplitz.block_type.nbytes + powers.block_type.nbytes))
    for c in gl.static_range(2):
        tma.async_copy_global_to_shared(toeplitz, [(table + c) * CHUNK, 0], tables_full, ts.index(c))
        tma.async_copy_global_to_shared(powers, [(table + c) * CHUNK, 0], tables_full, ps.index(c))
    for number in range(begin, end):
        turn = number - begin
        stage = turn % STAGES
        mbarrier.wait(empty.index(stage), ((turn // STAGES) & 1) ^ 1)
        bar = full.index(stage)
        mbarrier.expect(bar, u.block_type.nbytes + past.block_type.nbytes + gradient.block_type.nbytes)
        sequence, at = number // chunks, number % chunks
        tma.async_copy_global_to_shared(u, [sequence, at * CHUNK, column], bar, us.index(stage))
        tma.async_copy_global_to_shared(gradient, [sequence, at * CHUNK, first_out], bar, gs.index(stage))
        sequence, row = past_of(number, chunks, 0, CHUNK, ROWS, HISTORY, False)
        tma.async_copy_global_to_shared(past, [sequence, row, column], bar, ss.index(stage))


@gluon.jit
def _transposed_tile(
    c, buffers, barriers, turn,
    ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Start mᵀ with the c-th tables for a turn."""
    us, ss, _, ts, ps = buffers
    full, _, _ = barriers
    stage = turn % STAGES
    mbarrier.wait(full.index(stage), (turn // STAGES) & 1)
    inputs, past = us.index(stage).reshape([CHUNK, WIDTH]), ss.index(stage).reshape([ROWS, WIDTH])
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16])
    zeros = gl.zeros((WIDTH, CHUNK), gl.float32, narrow)
    kernel, carried = ts.index(c).permute((1, 0)), ps.index(c).permute((1, 0))
    token = warpgroup_mma(inputs.permute((1, 0)), kernel, zeros, use_acc=False, is_async=True)
    return warpgroup_mma(past.permute((1, 0)), carried, token, is_async=True)


@gluon.constexpr_function
def _in_rows(COLUMNS):
    """A layout in which each thread holds 16 bytes of a row."""
    return gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])


@gluon.jit
def _marks_of(marks, number, ROWS: gl.constexpr, CHUNK: gl.constexpr, HISTORY: gl.constexpr):
    """The marks of a chunk's steps, for each of both tables, and whether there is anything to cut."""
    row = marks + number.to(gl.int64) * (CHUNK + 1)
    mark = gl.load(row + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, _in_rows(CHUNK))))
    past_mark = gl.load(row + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, _in_rows(ROWS))))
    cut = gl.load(row + (CHUNK - 1)) > -ROWS if HISTORY else gl.load(row + CHUNK) < CHUNK
    return mark, past_mark, cut


@gluon.jit
def _cut_tables(c: gl.constexpr, buffers, marked, ROWS: gl.constexpr, CHUNK: gl.constexpr, HISTORY: gl.constexpr):
    """Cut copies of the c-th tables for a chunk, if there is anything to cut. Returns the index of the tables to
    use."""
    _, _, _, ts, ps = buffers
    mark, past_mark, cut = marked
    if cut:
        steps: gl.constexpr = _in_rows(CHUNK)
        rows: gl.constexpr = _in_rows(ROWS)
        step = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, steps))
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, rows))
        before = row - ROWS if HISTORY else row * 0 - 1  # the state belongs to the step before
        kernel = cut_table(ts.index(c).load(steps), mark, step, False)
        carried = cut_table(ps.index(c).load(rows), past_mark, before, False)
        barrier()  # all warps are done with the copies for an earlier chunk
        ts.index(2 + c).store(kernel)
        ps.index(2 + c).store(carried)
        fence_async_shared()
        barrier()
    return gl.where(cut, 2 + c, c)


@gluon.jit
def _multiply_for_weight(
    c: gl.constexpr, args,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, HISTORY: gl.constexpr, SEGMENTED: gl.constexpr,
):  # fmt: skip
    """Multiply for order i + c: make mᵀ of the next chunk, then multiply it into the gradient."""
    buffers, barriers, partial, marks, i, column, group_bounds, first_out, share, begin, end, channels, out = args
    group_start, group_end = group_bounds
    us, _, gs, _, _ = buffers
    _, empty, tables_full = barriers
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, OUT, 16])
    left_operand: gl.constexpr = gl.DotOperandLayout(0, wide, 2)
    operand: gl.constexpr = us.dtype
    turns = end - begin
    acc = gl.zeros((WIDTH, OUT), gl.float32, wide)
    mbarrier.wait(tables_full, 0)
    if SEGMENTED:
        table = _cut_tables(c, buffers, _marks_of(marks, begin, ROWS, CHUNK, HISTORY), ROWS, CHUNK, HISTORY)
        token = _transposed_tile(table, buffers, barriers, 0, ROWS, CHUNK, WIDTH, STAGES)
        marked = _marks_of(marks, gl.minimum(begin + 1, end - 1), ROWS, CHUNK, HISTORY)
    else:
        token = _transposed_tile(c, buffers, barriers, 0, ROWS, CHUNK, WIDTH, STAGES)
    m = gl.convert_layout(warpgroup_mma_wait(0, deps=(token,)).to(operand), left_operand)
    for turn in range(turns - 1):
        if SEGMENTED:  # tables are cut while the matrix units are busy
            sums = warpgroup_mma(m, gs.index(turn % STAGES).reshape([CHUNK, OUT]), acc, is_async=True)
            table = _cut_tables(c, buffers, marked, ROWS, CHUNK, HISTORY)
            token = _transposed_tile(table, buffers, barriers, turn + 1, ROWS, CHUNK, WIDTH, STAGES)
            marked = _marks_of(marks, gl.minimum(begin + turn + 2, end - 1), ROWS, CHUNK, HISTORY)
        else:
            token = _transposed_tile(c, buffers, barriers, turn + 1, ROWS, CHUNK, WIDTH, STAGES)
            sums = warpgroup_mma(m, gs.index(turn % STAGES).reshape([CHUNK, OUT]), acc, is_async=True)
        next_m, acc = warpgroup_mma_wait(0, deps=(token, sums))
        mbarrier.arrive(empty.index(turn % STAGES), count=1)
        m = gl.convert_layout(next_m.to(operand), left_operand)
    acc = warpgroup_mma(m, gs.index((turns - 1) % STAGES).reshape([CHUNK, OUT]), acc)
    channel = column + gl.arange(0, WIDTH, layout=gl.SliceLayout(1, wide))
    output = first_out + gl.arange(0, OUT, layout=gl.SliceLayout(0, wide))
    place = (share * out + output[None, :]).to(gl.int64) * (ORDER * channels) + (i + c) * channels + channel[:, None]
    inside = (
        (output[None, :] < out) & (channel[:, None] >= group_start) & (channel[:, None] < group_end) & (i + c < ORDER)
    )
    gl.store(partial + place, acc.to(partial.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=COUNTS)
def weight_gradient(
    u, past, gradient, toeplitz, powers, partial, marks, channels, out, chunks, total, share,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, HISTORY: gl.constexpr, GROUPS: gl.constexpr, UNIT: gl.constexpr, SEGMENTED: gl.constexpr,
):  # fmt: skip
    """Σ m gradientᵀ over `share` of the `total` chunks, for OUT outputs and WIDTH channels of two orders, into partial
    (shares, out, ORDER, channels)."""
    orders: gl.constexpr = (ORDER + 1) // 2
    i = 2 * (gl.program_id(0) % orders)
    group, column, group_start, group_end = tile_of(gl.program_id(0) // orders, channels, GROUPS, WIDTH, UNIT)
    first_out = gl.program_id(1) * OUT
    begin = gl.program_id(2) * share
    end = gl.minimum(begin + share, total)
    operand: gl.constexpr = u.dtype
    us = gl.allocate_shared_memory(operand, [STAGES, 1, CHUNK, WIDTH], u.layout)
    ss = gl.allocate_shared_memory(operand, [STAGES, 1, ROWS, WIDTH], past.layout)
    gs = gl.allocate_shared_memory(operand, [STAGES, 1, CHUNK, OUT], gradient.layout)
    ts = gl.allocate_shared_memory(operand, [4 if SEGMENTED else 2, CHUNK, CHUNK], toeplitz.layout)
    ps = gl.allocate_shared_memory(operand, [4 if SEGMENTED else 2, CHUNK, ROWS], powers.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    tables = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(STAGES):
        mbarrier.init(full.index(k), count=1)
        mbarrier.init(empty.index(k), count=2)
    mbarrier.init(tables.index(0), count=1)
    fence_async_shared()
    tensors = (u, past, gradient, toeplitz, powers)
    buffers = (us, ss, gs, ts, ps)
    barriers = (full, empty, tables.index(0))
    fetching = (tensors, buffers, barriers, group * ORDER + i, column, first_out, begin, end, chunks)
    args = (
        buffers, barriers, partial, marks, i, column, (group_start, group_end), first_out, gl.program_id(2), begin, end,
        channels, out,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_multiply_for_weight, (0, args, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, HISTORY, SEGMENTED)),
            (_multiply_for_weight, (1, args, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, HISTORY, SEGMENTED)),
            (_fetch_for_weight, (fetching, ROWS, CHUNK, STAGES, HISTORY)),
        ],
        [4, 1],
        [232, 40],
    )
