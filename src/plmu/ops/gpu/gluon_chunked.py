"""The projection of `plmu.ops.fused` for Hopper GPUs, and helpers that `gluon_weight`, the gradient of its weight, uses
too.

They compute the same as `project` and `weight_gradient` of `triton_chunked`, on the same operands, with specialized
warps. One warp fetches tiles with the TMA. Groups of four warps multiply: each makes the next tile of m while tensor
cores work on the last one, and passes it on in registers. Tiles go through rings of buffers, with one barrier for full
and one for empty buffers.

Half precision only. The TMA needs rows that are multiples of 16 bytes, and reads zeros outside of a tensor.
GROUPS: as in `triton_chunked`. The TMA begins at multiples of 8 channels, so a tile may have channels of neighbouring
groups. They are masked in m if the groups are of inputs, and not stored if they are of outputs. UNIT: the greatest
common divisor of 8 and the channels of a group.

SEGMENTED: the state is reset inside sequences. `marks` has a row for each chunk, made by `mark` of `triton_chunked`:
the first step of the segment of each of the chunk's steps (the last step, if time runs backwards), counted from the
chunk's begin; then the number of steps of the chunk that its past reaches. Entries of a table that lead from one
segment to another are set to zero, by `project` in registers, where a first operand may be.

The rest of a layer is fused into `project`: with BIAS its sums begin at the bias, DIRECT adds W_x x, and RELU is
applied before the output is stored.
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

# Numbers that change with the batch and the lengths of sequences. A kernel is compiled once for all of them.
COUNTS = ("time", "batch", "chunks", "total", "whole", "work", "share")
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # its older name


@gluon.constexpr_function
def _for_stores(CHUNK, OUT, within, among):
    """A layout: a thread holds the outputs at offsets 1, `within`, 32, …, and neighbouring threads differ by the
    offsets `among`."""
    across = [[0, 32 << k] for k in range((OUT // 64).bit_length())]
    down = [[16 << k, 0] for k in range((CHUNK // 32).bit_length())]
    registers = [[0, 1], *([0, offset] for offset in within), [8, 0], *across]
    threads = [*([0, offset] for offset in among), [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, threads, down, [], [CHUNK, OUT])


@gluon.jit
def past_of(
    number, chunks, before, CHUNK: gl.constexpr, ROWS: gl.constexpr, HISTORY: gl.constexpr, REVERSED: gl.constexpr
):
    """Where the TMA finds the past of a chunk: the inputs before it (after it, if time runs backwards), or the state,
    after `before` others."""
    sequence, at = number // chunks, number % chunks
    if not HISTORY:
        sequence, row = 0, (before + number) * ROWS
    elif REVERSED:
        row = (at + 1) * CHUNK
    else:
        row = at * CHUNK - ROWS
    return sequence, row


@gluon.jit
def _tiles(channels, GROUPS: gl.constexpr, WIDTH: gl.constexpr, UNIT: gl.constexpr):
    """The number of tiles that cover a group wherever it begins; `hopper_launch._covering` counts the same."""
    return gl.cdiv(channels // GROUPS + (8 - UNIT if GROUPS > 1 else 0), WIDTH)


@gluon.jit
def tile_of(number, channels, GROUPS: gl.constexpr, WIDTH: gl.constexpr, UNIT: gl.constexpr):
    """The group of a tile of channels, its first channel, and the begin and end of the group."""
    width = channels // (GROUPS * UNIT) * UNIT  # shows the compiler that it is a multiple of UNIT
    tiles = _tiles(channels, GROUPS, WIDTH, UNIT)
    group = number // tiles if GROUPS > 1 else 0
    begin = group * width
    return group, begin // 8 * 8 + (number - group * tiles) * WIDTH, begin, begin + width


@gluon.jit
def _work(item, whole, pairs, blocks):
    """The first chunk of a work item, its tile of outputs, its first and last block of inputs, and its number among the
    halved tiles.

    The first `whole` items are tiles. Each further tile is two items, of half its inputs each, so that the last round
    keeps more multiprocessors busy; the first half passes its sums to the second.
    """
    halved = (item - whole) // 2
    tile = gl.where(item < whole, item, whole + halved)
    begin = gl.where((item >= whole) & ((item - whole) % 2 == 1), blocks // 2, 0)
    end = gl.where((item >= whole) & ((item - whole) % 2 == 0), blocks // 2, blocks)
    return 2 * (tile % pairs), tile // pairs, begin, end, halved


@gluon.jit
def _fetch_for_project(
    args,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, RESIDENT: gl.constexpr, HISTORY: gl.constexpr, REVERSED: gl.constexpr,
    BLOCKS: gl.constexpr, TILES: gl.constexpr, UNIT: gl.constexpr, DIRECT: gl.constexpr,
):  # fmt: skip
    """Fetch, for each block of inputs, those of both chunks and their past; for each turn a tile of the weight and,
    unless RESIDENT, the tables of one order. It runs ahead into the program's next work item."""
    tensors, buffers, barriers, inputs, outputs, stride, chunks, pairs, whole, work, total, x_blocks = args
    u, past, weight, toeplitz, powers, x, input_weight = tensors
    us, ss, ws, ts, ps = buffers
    turn_full, turn_empty, block_full, block_empty, tables_full = barriers
    tables: gl.constexpr = toeplitz.block_type.nbytes + powers.block_type.nbytes
    if RESIDENT:
        mbarrier.expect(tables_full, ORDER * tables)
        for k in gl.static_range(ORDER):
            tma.async_copy_global_to_shared(toeplitz, [k * CHUNK, 0], tables_full, ts.index(k))
            tma.async_copy_global_to_shared(powers, [k * CHUNK, 0], tables_full, ps.index(k))
    block, turn = 0, 0  # counted over all work of the program
    for item in range(gl.program_id(0), work, gl.num_programs(0)):
        number, tile, begin, end, _halved = _work(item, whole, pairs, BLOCKS * _tiles(inputs, BLOCKS, WIDTH, UNIT))
        system, first_out, _begin, _end = tile_of(tile, outputs, TILES, OUT, UNIT)
        for at_block in range(begin, end):
            group, first, _begin, _end = tile_of(at_block, inputs, BLOCKS, WIDTH, UNIT)
            half = block % 2
            mbarrier.wait(block_empty.index(half), ((block // 2) & 1) ^ 1)
            full = block_full.index(half)
            mbarrier.expect(full, 2 * (u.block_type.nbytes + past.block_type.nbytes))
            for c in gl.static_range(2):
                sequence, at = (number + c) // chunks, (number + c) % chunks
                tma.async_copy_global_to_shared(u, [sequence, at * CHUNK, first], full, us.index(2 * half + c))
                sequence, row = past_of(number + c, chunks, system * total, CHUNK, ROWS, HISTORY, REVERSED)
                tma.async_copy_global_to_shared(past, [sequence, row, first], full, ss.index(2 * half + c))
            block += 1
            for i in range(ORDER):
                stage = turn % STAGES
                mbarrier.wait(turn_empty.index(stage), ((turn // STAGES) & 1) ^ 1)
                full = turn_full.index(stage)
                mbarrier.expect(full, weight.block_type.nbytes + (0 if RESIDENT else tables))
                if REVERSED:
                    tma.async_copy_global_to_shared(weight, [first, i * stride + first_out], full, ws.index(stage))
                else:
                    tma.async_copy_global_to_shared(weight, [first_out, i * stride + first], full, ws.index(stage))
                if not RESIDENT:
                    table = ((system + group) * ORDER + i) * CHUNK
                    tma.async_copy_global_to_shared(toeplitz, [table, 0], full, ts.index(stage))
                    tma.async_copy_global_to_shared(powers, [table, 0], full, ps.index(stage))
                turn += 1
        if DIRECT:  # a block of x and one turn each
            for at_x in range(_direct_blocks(end, inputs, x_blocks, BLOCKS, WIDTH, UNIT)):
                half = block % 2
                mbarrier.wait(block_empty.index(half), ((block // 2) & 1) ^ 1)
                full = block_full.index(half)
                mbarrier.expect(full, 2 * x.block_type.nbytes)
                for c in gl.static_range(2):
                    sequence, at = (number + c) // chunks, (number + c) % chunks
                    place = [sequence, at * CHUNK, at_x * WIDTH]
                    tma.async_copy_global_to_shared(x, place, full, us.index(2 * half + c))
                block += 1
                stage = turn % STAGES
                mbarrier.wait(turn_empty.index(stage), ((turn // STAGES) & 1) ^ 1)
                full = turn_full.index(stage)
                mbarrier.expect(full, input_weight.block_type.nbytes)
                if REVERSED:
                    tma.async_copy_global_to_shared(input_weight, [at_x * WIDTH, first_out], full, ws.index(stage))
                else:
                    tma.async_copy_global_to_shared(input_weight, [first_out, at_x * WIDTH], full, ws.index(stage))
                turn += 1


@gluon.jit
def _direct_blocks(end, inputs, x_blocks, BLOCKS: gl.constexpr, WIDTH: gl.constexpr, UNIT: gl.constexpr):
    """The number of blocks of x that a work item adds: all if it ends with the last block of inputs, else none."""
    return gl.where(end == BLOCKS * _tiles(inputs, BLOCKS, WIDTH, UNIT), x_blocks, 0)


@gluon.jit
def cut_table(table, mark, step, REVERSED: gl.constexpr):
    """A table, zero where a `step` is before the mark of the row, or after it if time runs backwards."""
    reached = step[None, :] <= mark[:, None] if REVERSED else step[None, :] >= mark[:, None]
    return gl.where(reached, table, 0.0).to(table.dtype)


@gluon.jit
def _operands(
    c: gl.constexpr, buffers, barriers, turn, since, blocks_before,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    RESIDENT: gl.constexpr, REVERSED: gl.constexpr,
):  # fmt: skip
    """The operands of m of chunk c for a turn, `since` turns after the work item began: two tables, the inputs, their
    past, and the half of the buffers that has these."""
    us, ss, _, ts, ps = buffers
    turn_full, _, block_full, _, _ = barriers
    block = blocks_before + since // ORDER
    half = block % 2
    if since % ORDER == 0:
        mbarrier.wait(block_full.index(half), (block // 2) & 1)
    stage = turn % STAGES
    mbarrier.wait(turn_full.index(stage), (turn // STAGES) & 1)
    table = since % ORDER if RESIDENT else stage
    kernel = ts.index(table)
    if REVERSED:
        kernel = kernel.permute((1, 0))
    inputs, past = us.index(2 * half + c).reshape([CHUNK, WIDTH]), ss.index(2 * half + c).reshape([ROWS, WIDTH])
    return kernel, ps.index(table), inputs, past, half


@gluon.jit
def _memory_tile(
    c: gl.constexpr, buffers, barriers, turn, since, blocks_before,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    RESIDENT: gl.constexpr, REVERSED: gl.constexpr,
):  # fmt: skip
    """Start m of chunk c for a turn."""
    kernel, carried, inputs, past, half = _operands(
        c, buffers, barriers, turn, since, blocks_before, ORDER, ROWS, CHUNK, WIDTH, STAGES, RESIDENT, REVERSED
    )
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    zeros = gl.zeros((CHUNK, WIDTH), gl.float32, narrow)
    token = warpgroup_mma(kernel, inputs, zeros, use_acc=False, is_async=True)
    return warpgroup_mma(carried, past, token, is_async=True), half


@gluon.jit
def _segmented_turn(
    c: gl.constexpr, buffers, barriers, mark, reach, turn, since, blocks_before, m, part, acc, FIRST: gl.constexpr,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    RESIDENT: gl.constexpr, HISTORY: gl.constexpr, REVERSED: gl.constexpr,
):  # fmt: skip
    """m of chunk c for a turn, with resets. Except in the FIRST turn, the current tile of m is multiplied into the
    weight meanwhile, so that tensor cores are busy while tables are cut."""
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    left_operand: gl.constexpr = gl.DotOperandLayout(0, narrow, 2)
    TOGETHER: gl.constexpr = HISTORY and ROWS <= 32  # both tables fit the registers
    zeros = gl.zeros((CHUNK, WIDTH), gl.float32, narrow)
    if TOGETHER and not FIRST:
        acc = warpgroup_mma(m, part, acc, is_async=True)
    kernel, carried, inputs, past, half = _operands(
        c, buffers, barriers, turn, since, blocks_before, ORDER, ROWS, CHUNK, WIDTH, STAGES, RESIDENT, REVERSED
    )
    if HISTORY:
        before = (CHUNK if REVERSED else -ROWS) + gl.arange(0, ROWS, layout=gl.SliceLayout(0, left_operand))
        carried = cut_table(carried.load(left_operand), mark, before, REVERSED)
    token = warpgroup_mma(carried, past, zeros, use_acc=False, is_async=True)
    if not TOGETHER:
        if not FIRST:
            acc = warpgroup_mma(m, part, acc, is_async=True)
        token = warpgroup_mma_wait(0 if FIRST else 1, deps=(token,))
    if not HISTORY:  # selected, since a state that has overflowed times zero is NaN
        step = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, narrow))
        reached = step >= CHUNK - reach if REVERSED else step < reach
        token = gl.where(reached[:, None], token, 0.0)
    kernel = cut_table(
        kernel.load(left_operand), mark, gl.arange(0, CHUNK, layout=gl.SliceLayout(0, left_operand)), REVERSED
    )
    token = warpgroup_mma(kernel, inputs, token, is_async=True)
    if FIRST:
        return warpgroup_mma_wait(0, deps=(token,)), acc, half
    next_m, acc = warpgroup_mma_wait(0, deps=(token, acc))
    return next_m, acc, half


@gluon.jit
def _within(m, block, inputs, BLOCKS: gl.constexpr, WIDTH: gl.constexpr, MASKED: gl.constexpr, UNIT: gl.constexpr):
    """m of a block of inputs, zero for inputs of other groups."""
    if MASKED:
        _group, first, begin, end = tile_of(block, inputs, BLOCKS, WIDTH, UNIT)
        narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
        column = first + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, narrow))
        m = gl.where(((column >= begin) & (column < end))[None, :], m, 0.0)
    return m


@gluon.jit
def _multiply_for_project(
    c: gl.constexpr, args,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, RESIDENT: gl.constexpr, HISTORY: gl.constexpr, REVERSED: gl.constexpr,
    BLOCKS: gl.constexpr, TILES: gl.constexpr, MASKED: gl.constexpr, UNIT: gl.constexpr, SEGMENTED: gl.constexpr,
    BIAS: gl.constexpr, DIRECT: gl.constexpr, RELU: gl.constexpr,
):  # fmt: skip
    """Multiply for chunk c of two: make a tile of m one turn ahead, then multiply it into the weight.

    It waits for both products before it touches the registers of m; meanwhile those of the other chunk run.
    """
    buffers, barriers, o, sums_of_halves, flags, marks, bias, sizes, chunks, pairs, whole, work, total = args
    time, inputs, outputs, x_blocks = sizes
    us, _, ws, _, _ = buffers
    turn_full, turn_empty, block_full, block_empty, tables_full = barriers
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, OUT, 16])
    left_operand: gl.constexpr = gl.DotOperandLayout(0, wide, 2)
    table: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16]), 2)
    # From the layout of tensor cores to 16 bytes a thread, in two exchanges that need no shared memory.
    halfway: gl.constexpr = _for_stores(CHUNK, OUT, (2, 16), (8, 4))
    in_rows: gl.constexpr = _for_stores(CHUNK, OUT, (2, 4), (8, 16))
    operand: gl.constexpr = ws.dtype
    if RESIDENT:
        mbarrier.wait(tables_full, 0)
    base, blocks_before = 0, 0  # turns and blocks of earlier items
    for item in range(gl.program_id(0), work, gl.num_programs(0)):
        number, tile, begin, end, halved = _work(item, whole, pairs, BLOCKS * _tiles(inputs, BLOCKS, WIDTH, UNIT))
        _own, first_out, own_begin, own_end = tile_of(tile, outputs, TILES, OUT, UNIT)
        turns = ORDER * (end - begin)
        acc = gl.zeros((CHUNK, OUT), gl.float32, wide)
        if BIAS:
            biased = first_out + gl.arange(0, OUT, layout=gl.SliceLayout(0, wide))
            added = gl.load(bias + biased, mask=(biased < outputs) & (begin == 0), other=0.0)
            acc += added.to(gl.float32)[None, :]
        if SEGMENTED:
            row = marks + gl.minimum(number + c, total - 1).to(gl.int64) * (CHUNK + 1)
            mark = gl.load(row + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, table)))
            reach = gl.load(row + CHUNK)
            next_m, acc, half = _segmented_turn(
                c, buffers, barriers, mark, reach, base, 0, blocks_before, None, None, acc, True,
                ORDER, ROWS, CHUNK, WIDTH, STAGES, RESIDENT, HISTORY, REVERSED,
            )  # fmt: skip
        else:
            token, half = _memory_tile(
                c, buffers, barriers, base, 0, blocks_before, ORDER, ROWS, CHUNK, WIDTH, STAGES, RESIDENT, REVERSED
            )
            next_m = warpgroup_mma_wait(0, deps=(token,))
        next_m = _within(next_m, begin, inputs, BLOCKS, WIDTH, MASKED, UNIT)
        m = gl.convert_layout(next_m.to(operand), left_operand)
        if ORDER == 1:
            mbarrier.arrive(block_empty.index(half), count=1)
        for turn in range(turns - 1):
            if not SEGMENTED:
                token, half = _memory_tile(
                    c, buffers, barriers, base + turn + 1, turn + 1, blocks_before,
                    ORDER, ROWS, CHUNK, WIDTH, STAGES, RESIDENT, REVERSED,
                )  # fmt: skip
            part = ws.index((base + turn) % STAGES)
            if not REVERSED:
                part = part.permute((1, 0))
            if SEGMENTED:
                next_m, acc, half = _segmented_turn(
                    c, buffers, barriers, mark, reach, base + turn + 1, turn + 1, blocks_before, m, part, acc, False,
                    ORDER, ROWS, CHUNK, WIDTH, STAGES, RESIDENT, HISTORY, REVERSED,
                )  # fmt: skip
            else:
                sums = warpgroup_mma(m, part, acc, is_async=True)
                next_m, acc = warpgroup_mma_wait(0, deps=(token, sums))
            mbarrier.arrive(turn_empty.index((base + turn) % STAGES), count=1)
            if (turn + 1) % ORDER == ORDER - 1:
                mbarrier.arrive(block_empty.index(half), count=1)
            next_m = _within(next_m, begin + (turn + 1) // ORDER, inputs, BLOCKS, WIDTH, MASKED, UNIT)
            m = gl.convert_layout(next_m.to(operand), left_operand)
        base += turns
        blocks_before += end - begin
        part = ws.index((base - 1) % STAGES)
        if not REVERSED:
            part = part.permute((1, 0))
        acc = warpgroup_mma(m, part, acc)
        mbarrier.arrive(turn_empty.index((base - 1) % STAGES), count=1)
        if DIRECT:
            direct = _direct_blocks(end, inputs, x_blocks, BLOCKS, WIDTH, UNIT)
            for at_x in range(direct):
                half, stage = (blocks_before + at_x) % 2, (base + at_x) % STAGES
                mbarrier.wait(block_full.index(half), ((blocks_before + at_x) // 2) & 1)
                mbarrier.wait(turn_full.index(stage), ((base + at_x) // STAGES) & 1)
                part = ws.index(stage)
                if not REVERSED:
                    part = part.permute((1, 0))
                acc = warpgroup_mma(us.index(2 * half + c).reshape([CHUNK, WIDTH]), part, acc)
                mbarrier.arrive(turn_empty.index(stage), count=1)
                mbarrier.arrive(block_empty.index(half), count=1)
            base += direct
            blocks_before += direct
        row = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, wide))
        column = gl.arange(0, OUT, layout=gl.SliceLayout(0, wide))
        shared = sums_of_halves + ((2 * halved + c) * CHUNK + row[:, None]) * OUT + column[None, :]
        if (item >= whole) & ((item - whole) % 2 == 0):
            gl.store(shared, acc)
            barrier()
            gl.atomic_xchg(flags + 2 * halved + c, 1, sem="release")
        else:
            if item >= whole:
                while gl.atomic_add(flags + 2 * halved + c, 0, sem="acquire") == 0:
                    pass
                barrier()
                acc += gl.load(shared, cache_modifier=".cg")
            sequence, at = (number + c) // chunks, (number + c) % chunks
            moment = at * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, in_rows))
            output = first_out + gl.arange(0, OUT, layout=gl.SliceLayout(0, in_rows))
            whole_rows = outputs // 8 * 8  # always true; shows the compiler that rows are aligned
            place = o + (sequence.to(gl.int64) * time + moment[:, None]) * whole_rows + output[None, :]
            limit = whole_rows if TILES == 1 else own_end
            inside = (moment[:, None] < time) & (output[None, :] < limit) & (number + c < total)
            if TILES > 1:
                inside &= output[None, :] >= own_begin
            if RELU:
                acc = gl.where(acc < 0, 0.0, acc)  # NaN stays
            gl.store(place, gl.convert_layout(gl.convert_layout(acc.to(operand), halfway), in_rows), mask=inside)


@gluon.jit(do_not_specialize=COUNTS)
def project(
    u, past, weight, toeplitz, powers, x, input_weight, o, sums_of_halves, flags, marks, bias,
    time, inputs, outputs, x_blocks, stride, chunks, total, whole, work,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, RESIDENT: gl.constexpr, HISTORY: gl.constexpr, REVERSED: gl.constexpr,
    GROUPS: gl.constexpr, MASKED: gl.constexpr, UNIT: gl.constexpr, SEGMENTED: gl.constexpr, BIAS: gl.constexpr,
    DIRECT: gl.constexpr, RELU: gl.constexpr,
):  # fmt: skip
    """o = W m. A tile is two of all `total` chunks and OUT outputs. Each program takes tiles in turn.

    `weight` is (outputs, ORDER · stride), or (inputs, ORDER · stride) if REVERSED. RESIDENT: the tables of all orders
    stay in shared memory; for one group only. MASKED: tiles of inputs may have inputs of other groups. DIRECT: x is
    `x_blocks` blocks of channels, and `input_weight` (outputs, channels), or (channels, outputs) if REVERSED. BIAS:
    `bias` is (outputs).
    """
    BLOCKS: gl.constexpr = 1 if REVERSED else GROUPS  # groups of inputs
    TILES: gl.constexpr = GROUPS if REVERSED else 1  # groups of outputs
    # From here on a dependent kernel may start, on multiprocessors whose programs have ended.
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    operand: gl.constexpr = u.dtype
    tables: gl.constexpr = ORDER if RESIDENT else STAGES
    us = gl.allocate_shared_memory(operand, [4, 1, CHUNK, WIDTH], u.layout)
    ss = gl.allocate_shared_memory(operand, [4, 1, ROWS, WIDTH], past.layout)
    ws = gl.allocate_shared_memory(
        operand, [STAGES, weight.block_type.shape[0], weight.block_type.shape[1]], weight.layout
    )
    ts = gl.allocate_shared_memory(operand, [tables, CHUNK, CHUNK], toeplitz.layout)
    ps = gl.allocate_shared_memory(operand, [tables, CHUNK, ROWS], powers.layout)
    turn_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    block_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    block_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    tables_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(STAGES):
        mbarrier.init(turn_full.index(k), count=1)
        mbarrier.init(turn_empty.index(k), count=2)
    for k in gl.static_range(2):
        mbarrier.init(block_full.index(k), count=1)
        mbarrier.init(block_empty.index(k), count=2)
    mbarrier.init(tables_full.index(0), count=1)
    fence_async_shared()
    pairs = gl.cdiv(total, 2)
    tensors = (u, past, weight, toeplitz, powers, x, input_weight)
    buffers = (us, ss, ws, ts, ps)
    barriers = (turn_full, turn_empty, block_full, block_empty, tables_full.index(0))
    fetching = (tensors, buffers, barriers, inputs, outputs, stride, chunks, pairs, whole, work, total, x_blocks)
    sizes = (time, inputs, outputs, x_blocks)
    args = (buffers, barriers, o, sums_of_halves, flags, marks, bias, sizes, chunks, pairs, whole, work, total)
    gl.warp_specialize(
        [
            (_multiply_for_project, (
                0, args, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, RESIDENT, HISTORY, REVERSED, BLOCKS, TILES, MASKED,
                UNIT, SEGMENTED, BIAS, DIRECT, RELU)),
            (_multiply_for_project, (
                1, args, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, RESIDENT, HISTORY, REVERSED, BLOCKS, TILES, MASKED,
                UNIT, SEGMENTED, BIAS, DIRECT, RELU)),
            (_fetch_for_project, (
                fetching, ORDER, ROWS, CHUNK, WIDTH, OUT, STAGES, RESIDENT, HISTORY, REVERSED, BLOCKS, TILES, UNIT,
                DIRECT)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
