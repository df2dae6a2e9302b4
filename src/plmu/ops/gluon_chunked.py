"""The two heavy kernels of `plmu.ops.fused` for Hopper GPUs: the projection and the gradient of its weight.

They compute what `project` and `weight_gradient` of `plmu.ops.triton_chunked` compute, on the same operands, but divide
the work of a program among its warps. One warp fetches tiles by the copy engine. Two groups of four warps multiply: each
makes the next tile of m while the matrix units are still busy with the last one. Tiles pass through rings of buffers; a
barrier says when a buffer is full and another when it is empty again.

Half precision only. The copy engine needs rows that are multiples of 16 bytes, and fills what lies outside with zeros.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)


@gluon.jit
def _copy_for_project(
    given,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
    REVERSED: gl.constexpr,
):  # fmt: skip
    """For each block of channels the inputs of the chunks and the states before them; for each turn the tables of one
    order and a tile of the weight."""
    (
        u,
        states,
        weight,
        toeplitz,
        powers,
        us,
        ss,
        ws,
        ts,
        ps,
        turn_full,
        turn_empty,
        block_full,
        block_empty,
        number,
        first_out,
        inputs,
        stride,
        chunks,
    ) = given
    turn = 0
    for block in range(gl.cdiv(inputs, WIDTH)):
        half = block % 2
        mbarrier.wait(block_empty.index(half), ((block // 2) & 1) ^ 1)
        full = block_full.index(half)
        mbarrier.expect(full, 2 * (u.block_type.nbytes + states.block_type.nbytes))
        for c in gl.static_range(2):
            sequence, at = (number + c) // chunks, (number + c) % chunks
            place = half * 2 + c
            tma.async_copy_global_to_shared(u, [sequence, at * CHUNK, block * WIDTH], full, us.index(place))
            tma.async_copy_global_to_shared(states, [(number + c) * ROWS, block * WIDTH], full, ss.index(place))
        for i in range(ORDER):
            stage = turn % STAGES
            mbarrier.wait(turn_empty.index(stage), ((turn // STAGES) & 1) ^ 1)
            full = turn_full.index(stage)
            mbarrier.expect(full, weight.block_type.nbytes + toeplitz.block_type.nbytes + powers.block_type.nbytes)
            if REVERSED:
                tma.async_copy_global_to_shared(weight, [block * WIDTH, i * stride + first_out], full, ws.index(stage))
            else:
                tma.async_copy_global_to_shared(weight, [first_out, i * stride + block * WIDTH], full, ws.index(stage))
            tma.async_copy_global_to_shared(toeplitz, [i * CHUNK, 0], full, ts.index(stage))
            tma.async_copy_global_to_shared(powers, [i * CHUNK, 0], full, ps.index(stage))
            turn += 1


@gluon.jit
def _multiply_for_project(
    c: gl.constexpr, given,
    ORDER: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr, STAGES: gl.constexpr,
    REVERSED: gl.constexpr,
):  # fmt: skip
    """Chunk c of the program: its tile of m one turn ahead, then into the weight."""
    (
        us,
        ss,
        ws,
        ts,
        ps,
        ms,
        turn_full,
        turn_empty,
        block_full,
        block_empty,
        o,
        number,
        first_out,
        time,
        inputs,
        outputs,
        chunks,
        total,
    ) = given
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, OUT, 16])
    operand: gl.constexpr = us.dtype
    turns = ORDER * gl.cdiv(inputs, WIDTH)
    nothing = gl.zeros((CHUNK, WIDTH), gl.float32, narrow)
    acc = warpgroup_mma_init(gl.zeros((CHUNK, OUT), gl.float32, wide))
    mbarrier.wait(block_full.index(0), 0)
    mbarrier.wait(turn_full.index(0), 0)
    kernel = ts.index(0)
    if REVERSED:
        kernel = kernel.permute((1, 0))
    token = warpgroup_mma(kernel, us.index(c).reshape([CHUNK, WIDTH]), nothing, use_acc=False, is_async=True)
    token = warpgroup_mma(ps.index(0), ss.index(c), token, is_async=True)
    m = warpgroup_mma_wait(0, deps=(token,))
    ms.index(2 * c).store(m.to(operand))
    fence_async_shared()
    if ORDER == 1:
        mbarrier.arrive(block_empty.index(0), count=1)
    for turn in range(turns - 1):
        ahead = turn + 1
        block = ahead // ORDER
        half = block % 2
        if ahead % ORDER == 0:
            mbarrier.wait(block_full.index(half), (block // 2) & 1)
        stage = ahead % STAGES
        mbarrier.wait(turn_full.index(stage), (ahead // STAGES) & 1)
        place = half * 2 + c
        kernel = ts.index(stage)
        if REVERSED:
            kernel = kernel.permute((1, 0))
        token = warpgroup_mma(kernel, us.index(place).reshape([CHUNK, WIDTH]), nothing, use_acc=False, is_async=True)
        token = warpgroup_mma(ps.index(stage), ss.index(place), token, is_async=True)
        part = ws.index(turn % STAGES)
        if not REVERSED:
            part = part.permute((1, 0))
        acc = warpgroup_mma(ms.index(2 * c + turn % 2), part, acc, is_async=True)
        m = warpgroup_mma_wait(1, deps=(token,))
        if turn > 0:
            mbarrier.arrive(turn_empty.index((turn - 1) % STAGES), count=1)
        if ahead % ORDER == ORDER - 1:
            mbarrier.arrive(block_empty.index(half), count=1)
        ms.index(2 * c + ahead % 2).store(m.to(operand))
        fence_async_shared()
    last = turns - 1
    part = ws.index(last % STAGES)
    if not REVERSED:
        part = part.permute((1, 0))
    acc = warpgroup_mma(ms.index(2 * c + last % 2), part, acc, is_async=True)
    result = warpgroup_mma_wait(0, deps=(acc,))
    sequence, at = (number + c) // chunks, (number + c) % chunks
    moment = at * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, wide))
    column = first_out + gl.arange(0, OUT, layout=gl.SliceLayout(0, wide))
    place = o + (sequence * time + moment[:, None]).to(gl.int64) * outputs + column[None, :]
    inside = (moment[:, None] < time) & (column[None, :] < outputs) & (number + c < total)
    gl.store(place, result.to(operand), mask=inside)


@gluon.jit
def project(
    u, states, weight, toeplitz, powers, o, time, inputs, outputs, stride, chunks, total,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, OUT: gl.constexpr,
    STAGES: gl.constexpr, REVERSED: gl.constexpr,
):  # fmt: skip
    """o = W m for two chunks, counted over all sequences, and OUT outputs.

    `total` is the number of all chunks. `weight` is (outputs, ORDER · stride), or (inputs, ORDER · stride) if REVERSED.
    """
    number = 2 * gl.program_id(0)
    first_out = gl.program_id(1) * OUT
    operand: gl.constexpr = u.dtype
    us = gl.allocate_shared_memory(operand, [4, 1, CHUNK, WIDTH], u.layout)
    ss = gl.allocate_shared_memory(operand, [4, ROWS, WIDTH], states.layout)
    ws = gl.allocate_shared_memory(
        operand, [STAGES, weight.block_type.shape[0], weight.block_type.shape[1]], weight.layout
    )
    ts = gl.allocate_shared_memory(operand, [STAGES, CHUNK, CHUNK], toeplitz.layout)
    ps = gl.allocate_shared_memory(operand, [STAGES, CHUNK, ROWS], powers.layout)
    ms = gl.allocate_shared_memory(operand, [4, CHUNK, WIDTH], toeplitz.layout)
    turn_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    block_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    block_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(STAGES):
        mbarrier.init(turn_full.index(k), count=1)
        mbarrier.init(turn_empty.index(k), count=2)
    for k in gl.static_range(2):
        mbarrier.init(block_full.index(k), count=1)
        mbarrier.init(block_empty.index(k), count=2)
    fence_async_shared()
    copying = (
        u, states, weight, toeplitz, powers, us, ss, ws, ts, ps, turn_full, turn_empty, block_full, block_empty,
        number, first_out, inputs, stride, chunks,
    )  # fmt: skip
    given = (
        us, ss, ws, ts, ps, ms, turn_full, turn_empty, block_full, block_empty, o,
        number, first_out, time, inputs, outputs, chunks, total,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_multiply_for_project, (0, given, ORDER, CHUNK, WIDTH, OUT, STAGES, REVERSED)),
            (_multiply_for_project, (1, given, ORDER, CHUNK, WIDTH, OUT, STAGES, REVERSED)),
            (_copy_for_project, (copying, ORDER, ROWS, CHUNK, WIDTH, STAGES, REVERSED)),
        ],
        [4, 1],
        [232, 40],
    )


@gluon.jit
def _copy_for_weight(
    given,
    ROWS: gl.constexpr, CHUNK: gl.constexpr, HEIGHT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The tables of two orders once; then for each chunk its inputs, the state before it and the gradient."""
    (
        u,
        states,
        gradient,
        toeplitz,
        powers,
        us,
        ss,
        gs,
        ts,
        ps,
        full,
        empty,
        table_full,
        i,
        column,
        first_out,
        begin,
        end,
        chunks,
    ) = given
    mbarrier.expect(table_full, 2 * (toeplitz.block_type.nbytes + powers.block_type.nbytes))
    for c in gl.static_range(2):
        tma.async_copy_global_to_shared(toeplitz, [(i + c) * CHUNK, 0], table_full, ts.index(c))
        tma.async_copy_global_to_shared(powers, [(i + c) * CHUNK, 0], table_full, ps.index(c))
    for number in range(begin, end):
        turn = number - begin
        stage = turn % STAGES
        mbarrier.wait(empty.index(stage), ((turn // STAGES) & 1) ^ 1)
        bar = full.index(stage)
        mbarrier.expect(bar, u.block_type.nbytes + states.block_type.nbytes + 2 * gradient.block_type.nbytes)
        sequence, at = number // chunks, number % chunks
        tma.async_copy_global_to_shared(u, [sequence, at * CHUNK, column], bar, us.index(stage))
        tma.async_copy_global_to_shared(states, [number * ROWS, column], bar, ss.index(stage))
        for c in gl.static_range(2):
            tma.async_copy_global_to_shared(
                gradient, [sequence, at * CHUNK, first_out + HEIGHT * c], bar, gs.index(2 * stage + c)
            )


@gluon.jit
def _multiply_for_weight(
    c: gl.constexpr, given,
    ORDER: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, HEIGHT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Makes m of order i + c for both, and sums for its own half of the outputs."""
    (
        us,
        ss,
        gs,
        ts,
        ps,
        ms,
        full,
        empty,
        table_full,
        ready,
        partial,
        i,
        column,
        first_out,
        begin,
        end,
        share,
        channels,
        out,
    ) = given
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * WIDTH, 16])
    operand: gl.constexpr = us.dtype
    turns = end - begin
    nothing = gl.zeros((CHUNK, WIDTH), gl.float32, narrow)
    acc = warpgroup_mma_init(gl.zeros((HEIGHT, 2 * WIDTH), gl.float32, wide))
    mbarrier.wait(table_full, 0)
    mbarrier.wait(full.index(0), 0)
    token = warpgroup_mma(ts.index(c), us.index(0).reshape([CHUNK, WIDTH]), nothing, use_acc=False, is_async=True)
    token = warpgroup_mma(ps.index(c), ss.index(0), token, is_async=True)
    m = warpgroup_mma_wait(0, deps=(token,))
    ms.index(0).slice(c * WIDTH, WIDTH, dim=1).store(m.to(operand))
    fence_async_shared()
    mbarrier.arrive(ready.index(0), count=1)
    for turn in range(turns - 1):
        ahead = turn + 1
        stage = ahead % STAGES
        mbarrier.wait(full.index(stage), (ahead // STAGES) & 1)
        token = warpgroup_mma(
            ts.index(c), us.index(stage).reshape([CHUNK, WIDTH]), nothing, use_acc=False, is_async=True
        )
        token = warpgroup_mma(ps.index(c), ss.index(stage), token, is_async=True)
        mbarrier.wait(ready.index(turn % 3), (turn // 3) & 1)
        incoming = gs.index(2 * (turn % STAGES) + c).reshape([CHUNK, HEIGHT]).permute((1, 0))
        acc = warpgroup_mma(incoming, ms.index(turn % 3), acc, is_async=True)
        m = warpgroup_mma_wait(1, deps=(token,))
        if turn > 0:
            mbarrier.arrive(empty.index((turn - 1) % STAGES), count=1)
        ms.index(ahead % 3).slice(c * WIDTH, WIDTH, dim=1).store(m.to(operand))
        fence_async_shared()
        mbarrier.arrive(ready.index(ahead % 3), count=1)
    last = turns - 1
    mbarrier.wait(ready.index(last % 3), (last // 3) & 1)
    incoming = gs.index(2 * (last % STAGES) + c).reshape([CHUNK, HEIGHT]).permute((1, 0))
    acc = warpgroup_mma(incoming, ms.index(last % 3), acc, is_async=True)
    result = warpgroup_mma_wait(0, deps=(acc,))
    output = first_out + HEIGHT * c + gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, wide))
    place = gl.arange(0, 2 * WIDTH, layout=gl.SliceLayout(0, wide))
    order, channel = i + place // WIDTH, column + place % WIDTH
    where = partial + (share * out + output[:, None]).to(gl.int64) * (ORDER * channels)
    where += (order * channels + channel)[None, :]
    inside = (output[:, None] < out) & ((order < ORDER) & (channel < channels))[None, :]
    gl.store(where, result.to(partial.dtype.element_ty), mask=inside)


@gluon.jit
def weight_gradient(
    u, states, gradient, toeplitz, powers, partial, channels, out, chunks, total, share,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, HEIGHT: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Σ gradientᵀ m over `share` of the `total` chunks, for 2 · HEIGHT outputs and WIDTH channels of two orders, into
    partial (shares, out, ORDER, channels)."""
    pairs: gl.constexpr = (ORDER + 1) // 2
    i = 2 * (gl.program_id(0) % pairs)
    column = (gl.program_id(0) // pairs) * WIDTH
    first_out = gl.program_id(1) * (2 * HEIGHT)
    begin = gl.program_id(2) * share
    end = gl.minimum(begin + share, total)
    operand: gl.constexpr = u.dtype
    us = gl.allocate_shared_memory(operand, [STAGES, 1, CHUNK, WIDTH], u.layout)
    ss = gl.allocate_shared_memory(operand, [STAGES, ROWS, WIDTH], states.layout)
    gs = gl.allocate_shared_memory(operand, [2 * STAGES, 1, CHUNK, HEIGHT], gradient.layout)
    ts = gl.allocate_shared_memory(operand, [2, CHUNK, CHUNK], toeplitz.layout)
    ps = gl.allocate_shared_memory(operand, [2, CHUNK, ROWS], powers.layout)
    ms = gl.allocate_shared_memory(operand, [3, CHUNK, 2 * WIDTH], toeplitz.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    tables = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(STAGES):
        mbarrier.init(full.index(k), count=1)
        mbarrier.init(empty.index(k), count=2)
    for k in gl.static_range(3):
        mbarrier.init(ready.index(k), count=2)
    mbarrier.init(tables.index(0), count=1)
    fence_async_shared()
    given = (
        us, ss, gs, ts, ps, ms, full, empty, tables.index(0), ready, partial,
        i, column, first_out, begin, end, gl.program_id(2), channels, out,
    )  # fmt: skip
    copying = (
        u, states, gradient, toeplitz, powers, us, ss, gs, ts, ps, full, empty, tables.index(0),
        i, column, first_out, begin, end, chunks,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_multiply_for_weight, (0, given, ORDER, CHUNK, WIDTH, HEIGHT, STAGES)),
            (_multiply_for_weight, (1, given, ORDER, CHUNK, WIDTH, HEIGHT, STAGES)),
            (_copy_for_weight, (copying, ROWS, CHUNK, HEIGHT, STAGES)),
        ],
        [4, 1],
        [232, 40],
    )
