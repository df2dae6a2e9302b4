"""The gradient of u in `plmu.ops.fused` for Hopper GPUs, for groups of channels with different systems.

`project` of `gluon_chunked` filters the gradient g of o first and then multiplies it into the transposed weight. With
groups every tile of channels would have to filter all of g by its group's system. Here the weight comes first: P_i =
g W_i is the gradient of order i of the states of these channels alone, and that is filtered. With the gradient λ of the
state after a chunk,

    grad_u = Σ_i T_iᵀ P_i + Rᵀ λ,    and before the chunk    λ ← Aᵀ λ + Σ_i (powers of order i)ᵀ P_i.

T_i is the Toeplitz matrix of order i in a chunk, R leads from the inputs of a chunk to the state after it, and A from
the state before a chunk to the state after it. P_i is rounded to the operands' precision, so in float16 it must stay
below 65504.

Each of two groups of four warps has a sequence and a tile of channels. It goes backwards through the sequence, two
chunks at a time, and keeps λ in registers, so that no other launch has to carry states. Everything is transposed, with
channels as rows, so that a tile of Pᵀ goes from one product into the next in registers. SEQUENCES: with 2, the two
groups take two sequences and the same tile of channels; with 1, one sequence and two tiles.

One warp fetches. A turn is a tile of the weight or, at the end of an order, a table T_i. The gradient of two chunks
stays until all orders are done. There are at most as many STAGES as turns of an order, so a stage that is empty has
been used by the order before.

λ is carried in float32: in products it is a sum of three parts in bfloat16, and so are the matrices. For other names
see `gluon_chunked`.
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

from plmu.ops.gpu.gluon_chunked import COUNTS, barrier, tile_of


@gluon.jit
def _fetch_order(
    args, start, weight, offset, turn,
    FIRST: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr,
):  # fmt: skip
    """Fetch the tiles of the weight for one order, whose columns begin at `offset`; for the FIRST order also the
    gradient."""
    tensors, buffers, barriers, sequence, places, _, _ = args
    gradient, _, _, _, _ = tensors
    gs, ws, _, _, _ = buffers
    full, empty = barriers
    TILES: gl.constexpr = 3 - SEQUENCES
    width: gl.constexpr = weight.block_type.shape[0]
    with_gradient: gl.constexpr = SEQUENCES * gradient.block_type.nbytes if FIRST else 0
    for k in range(BLOCKS):
        stage = turn % STAGES
        mbarrier.wait(empty.index(stage), ((turn // STAGES) & 1) ^ 1)
        bar = full.index(stage)
        mbarrier.expect(bar, TILES * weight.block_type.nbytes + with_gradient)
        if FIRST:
            for c in gl.static_range(SEQUENCES):
                place = [sequence + c, start, k * width]
                tma.async_copy_global_to_shared(gradient, place, bar, gs.index(SEQUENCES * k + c))
        for c in gl.static_range(TILES):
            place = [k * width, offset + places[c][1]]
            tma.async_copy_global_to_shared(weight, place, bar, ws.index(TILES * stage + c))
        turn += 1
    return turn


@gluon.jit
def _fetch_tables(
    args, i, turn, ORDER: gl.constexpr, CHUNK: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr
):
    """Fetch the tables of one order, for each tile of channels."""
    tensors, buffers, barriers, _, places, _, _ = args
    _, _, toeplitz, powers, _ = tensors
    _, ws, ps, _, _ = buffers
    full, empty = barriers
    TILES: gl.constexpr = 3 - SEQUENCES
    stage = turn % STAGES
    mbarrier.wait(empty.index(stage), ((turn // STAGES) & 1) ^ 1)
    bar = full.index(stage)
    mbarrier.expect(bar, TILES * (toeplitz.block_type.nbytes + powers.block_type.nbytes))
    for c in gl.static_range(TILES):
        place = [(places[c][0] * ORDER + i) * CHUNK, 0]
        tma.async_copy_global_to_shared(toeplitz, place, bar, ws.index(TILES * stage + c))
        tma.async_copy_global_to_shared(powers, place, bar, ps.index(c))
    return turn + 1


@gluon.jit
def _fetch(
    args,
    ORDER: gl.constexpr, CHUNK: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr,
    DIRECT: gl.constexpr,
):  # fmt: skip
    """Fetch for all turns, from the end of the sequence."""
    tensors, _, _, _, _, spans, channels = args
    _, weight, _, _, input_weight = tensors
    turn = 0
    for span in range(spans):
        start = (spans - 1 - span) * (2 * CHUNK)
        turn = _fetch_order(args, start, weight, 0, turn, True, BLOCKS, STAGES, SEQUENCES)
        turn = _fetch_tables(args, 0, turn, ORDER, CHUNK, STAGES, SEQUENCES)
        for i in range(1, ORDER):
            turn = _fetch_order(args, start, weight, i * channels, turn, False, BLOCKS, STAGES, SEQUENCES)
            turn = _fetch_tables(args, i, turn, ORDER, CHUNK, STAGES, SEQUENCES)
        if DIRECT:
            turn = _fetch_order(args, start, input_weight, 0, turn, False, BLOCKS, STAGES, SEQUENCES)


@gluon.jit
def _parts(value):
    """Float32 as the sum of three numbers in bfloat16."""
    first = value.to(gl.bfloat16)
    rest = value - first.to(gl.float32)
    second = rest.to(gl.bfloat16)
    return first, second, (rest - second.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def _keep_constants(
    c: gl.constexpr, taps, advance, rs, advances, group,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """R and A of a group into shared memory: two parts of R, since nothing is carried on by it, and three of A."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))[:, None]
    step = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, layout))[None, :]
    response = gl.zeros((ROWS, CHUNK), gl.float32, layout)
    for part in gl.static_range(PARTS):
        place = taps + ((group * PARTS + part) * ORDER + row) * CHUNK + step
        response += gl.load(place, mask=(row < ORDER) & (step >= 0), other=0.0).to(gl.float32)
    first, second, _ = _parts(response)
    rs.index(2 * c).store(first)
    rs.index(2 * c + 1).store(second)
    square: gl.constexpr = gl.BlockedLayout([1, 4], [128 // ROWS, ROWS // 4], [4, 1], [1, 0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, square))[:, None]
    inner = gl.arange(0, ROWS, layout=gl.SliceLayout(0, square))[None, :]
    place = advance + (group * ORDER + row) * ORDER + inner
    first, second, third = _parts(gl.load(place, mask=(row < ORDER) & (inner < ORDER), other=0.0))
    advances.index(3 * c).store(first)
    advances.index(3 * c + 1).store(second)
    advances.index(3 * c + 2).store(third)
    fence_async_shared()
    barrier()


@gluon.jit
def _through_state(c: gl.constexpr, state, rs, advances, inputs, before, CHUNK: gl.constexpr, ROWS: gl.constexpr):
    """Start to add the gradients through the state after a chunk: of its inputs, λᵀ R, and of the state before it, λᵀ
    A."""
    narrow: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16]), 2)
    wide: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16]), 2)
    first, second, third = _parts(state)
    for_inputs, rest = gl.convert_layout(first, wide), gl.convert_layout(second, wide)
    first, second = gl.convert_layout(first, narrow), gl.convert_layout(second, narrow)
    third = gl.convert_layout(third, narrow)
    before = warpgroup_mma(third, advances.index(3 * c), before, is_async=True)
    before = warpgroup_mma(second, advances.index(3 * c + 1), before, is_async=True)
    before = warpgroup_mma(first, advances.index(3 * c + 2), before, is_async=True)
    before = warpgroup_mma(second, advances.index(3 * c), before, is_async=True)
    before = warpgroup_mma(first, advances.index(3 * c + 1), before, is_async=True)
    before = warpgroup_mma(first, advances.index(3 * c), before, is_async=True)
    inputs = warpgroup_mma(rest, rs.index(2 * c), inputs, is_async=True)
    inputs = warpgroup_mma(for_inputs, rs.index(2 * c + 1), inputs, is_async=True)
    inputs = warpgroup_mma(for_inputs, rs.index(2 * c), inputs, is_async=True)
    return inputs, before


@gluon.jit
def _release(empty, turn, STAGES: gl.constexpr):
    """Release the stage of a turn, if there was a turn."""
    if turn >= 0:
        mbarrier.arrive(empty.index(turn % STAGES), count=1)


@gluon.jit
def _operands(
    c: gl.constexpr, buffers, barriers, turn, k,
    CHUNK: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr,
):  # fmt: skip
    """Block k of outputs of the transposed weight, and of the gradient."""
    gs, ws, _, _, _ = buffers
    full, _ = barriers
    stage = turn % STAGES
    mbarrier.wait(full.index(stage), (turn // STAGES) & 1)
    part = ws.index(stage if SEQUENCES == 2 else 2 * stage + c).permute((1, 0))
    return part, gs.index(2 * k + c if SEQUENCES == 2 else k).reshape([2 * CHUNK, WIDTH])


@gluon.jit
def _start_product(
    c: gl.constexpr, buffers, barriers, turn,
    CHUNK: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr,
):  # fmt: skip
    """Start Pᵀ of one order for both chunks, the earlier one first."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * CHUNK, 16])
    zeros = gl.zeros((WIDTH, 2 * CHUNK), gl.float32, layout)
    part, steps = _operands(c, buffers, barriers, turn, 0, CHUNK, WIDTH, STAGES, SEQUENCES)
    return warpgroup_mma(part, steps.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _product(
    c: gl.constexpr, buffers, barriers, turn, acc,
    FIRST: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr,
    SEQUENCES: gl.constexpr,
):  # fmt: skip
    """Pᵀ from block FIRST on, in the operands' precision. Each turn releases the stage of the turn before."""
    gs, _, _, _, _ = buffers
    _, empty = barriers
    for k in range(FIRST, BLOCKS):
        part, steps = _operands(c, buffers, barriers, turn + k, k, CHUNK, WIDTH, STAGES, SEQUENCES)
        acc = warpgroup_mma(part, steps.permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        _release(empty, turn + k - 1, STAGES)
    return warpgroup_mma_wait(0, deps=(acc,)).to(gs.dtype)


@gluon.jit
def _start_filter(
    c: gl.constexpr, buffers, barriers, turn, p, early, late, lambda1, lambda2,
    CHUNK: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr,
):  # fmt: skip
    """Start to add the gradients through Pᵀ of an order: of the inputs of both chunks (`early`, `late`), and of the
    states before them (λ: `lambda1`, `lambda2`)."""
    _, ws, ps, _, _ = buffers
    full, empty = barriers
    by_step: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16]), 2)
    by_row: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16]), 2)
    _release(empty, turn - 1, STAGES)
    first, second = gl.split(gl.permute(gl.reshape(p, (WIDTH, 2, CHUNK)), (0, 2, 1)))
    stage = turn % STAGES
    mbarrier.wait(full.index(stage), (turn // STAGES) & 1)
    kernel, carried = ws.index(stage if SEQUENCES == 2 else 2 * stage + c), ps.index(0 if SEQUENCES == 2 else c)
    early = warpgroup_mma(gl.convert_layout(first, by_step), kernel, early, is_async=True)
    late = warpgroup_mma(gl.convert_layout(second, by_step), kernel, late, is_async=True)
    lambda1 = warpgroup_mma(gl.convert_layout(first, by_row), carried, lambda1, is_async=True)
    lambda2 = warpgroup_mma(gl.convert_layout(second, by_row), carried, lambda2, is_async=True)
    return early, late, lambda1, lambda2


@gluon.jit
def _direct(
    c: gl.constexpr, buffers, barriers, turn, early, late,
    CHUNK: gl.constexpr, WIDTH: gl.constexpr, BLOCKS: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr,
):  # fmt: skip
    """Add the product with W_x, which is not filtered, for both chunks."""
    _, empty = barriers
    for k in range(BLOCKS):
        part, steps = _operands(c, buffers, barriers, turn + k, k, CHUNK, WIDTH, STAGES, SEQUENCES)
        early = warpgroup_mma(part, steps.slice(0, CHUNK, 0).permute((1, 0)), early, is_async=True)
        late = warpgroup_mma(part, steps.slice(CHUNK, CHUNK, 0).permute((1, 0)), late, is_async=True)
        early, late = warpgroup_mma_wait(2, deps=(early, late))
        _release(empty, turn + k - 1, STAGES)
    return warpgroup_mma_wait(0, deps=(early, late))


@gluon.jit
def _store(grad_u, value, sequence, start, place, time, channels, exists, CHUNK: gl.constexpr, WIDTH: gl.constexpr):
    """Store the gradient of a chunk's inputs, given its transpose."""
    _, column, begin, end = place
    in_rows: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    moment = start + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, in_rows))[:, None]
    channel = column + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, in_rows))[None, :]
    whole_rows = channels // 8 * 8  # always true; shows the compiler that rows are aligned
    inside = (moment < time) & (channel >= begin) & (channel < end) & exists
    value = gl.convert_layout(gl.permute(value.to(grad_u.dtype.element_ty), (1, 0)), in_rows)
    gl.store(grad_u + (sequence.to(gl.int64) * time + moment) * whole_rows + channel, value, mask=inside)


@gluon.jit
def _multiply(
    c: gl.constexpr, args,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, BLOCKS: gl.constexpr,
    STAGES: gl.constexpr, SEQUENCES: gl.constexpr, PARTS: gl.constexpr, DIRECT: gl.constexpr,
):  # fmt: skip
    """One of the two groups of warps: the product of each order, and its filter while the next product runs.

    A span, which is two chunks, is stored while the first product of the next span runs.
    """
    buffers, barriers, taps, advance, grad_u, sequence, places, spans, exists, time, channels = args
    gs, _, _, rs, advances = buffers
    _, empty = barriers
    operand: gl.constexpr = gs.dtype
    by_step: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16])
    by_row: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    AHEAD: gl.constexpr = 2 if BLOCKS > 1 else 1  # turns of the first product that start together
    place = places[0 if SEQUENCES == 2 else c]
    sequence += c if SEQUENCES == 2 else 0
    _keep_constants(c, taps, advance, rs, advances, place[0], ORDER, ROWS, CHUNK, PARTS)
    no_inputs = gl.zeros((WIDTH, CHUNK), gl.float32, by_step)
    no_state = gl.zeros((WIDTH, ROWS), gl.float32, by_row)
    early, late, lambda1, lambda2 = no_inputs, no_inputs, no_state, no_state
    turn = 0
    for span in range(spans):
        start = (spans - span) * (2 * CHUNK)  # of the previous span, which is later in time
        _release(empty, turn - 1, STAGES)
        early, lambda1 = _through_state(c, lambda2, rs, advances, early, lambda1, CHUNK, ROWS)
        acc = _start_product(c, buffers, barriers, turn, CHUNK, WIDTH, STAGES, SEQUENCES)
        if AHEAD == 2:
            part, steps = _operands(c, buffers, barriers, turn + 1, 1, CHUNK, WIDTH, STAGES, SEQUENCES)
            acc = warpgroup_mma(part, steps.permute((1, 0)), acc, is_async=True)
        acc, early, lambda1 = warpgroup_mma_wait(AHEAD, deps=(acc, early, lambda1))
        second, first = late.to(operand), early.to(operand)
        late, lambda2 = _through_state(c, lambda1, rs, advances, no_inputs, no_state, CHUNK, ROWS)
        _store(grad_u, second, sequence, start + CHUNK, place, time, channels, exists[c], CHUNK, WIDTH)
        _store(grad_u, first, sequence, start, place, time, channels, exists[c], CHUNK, WIDTH)
        acc, late, lambda2 = warpgroup_mma_wait(0, deps=(acc, late, lambda2))
        early, lambda1 = no_inputs, no_state
        if AHEAD == 2:
            _release(empty, turn, STAGES)
        p = _product(c, buffers, barriers, turn, acc, AHEAD, CHUNK, WIDTH, BLOCKS, STAGES, SEQUENCES)
        turn += BLOCKS
        for _i in range(1, ORDER):
            early, late, lambda1, lambda2 = _start_filter(
                c, buffers, barriers, turn, p, early, late, lambda1, lambda2, CHUNK, ROWS, WIDTH, STAGES, SEQUENCES
            )
            turn += 1
            acc = _start_product(c, buffers, barriers, turn, CHUNK, WIDTH, STAGES, SEQUENCES)
            acc, early, late, lambda1, lambda2 = warpgroup_mma_wait(1, deps=(acc, early, late, lambda1, lambda2))
            _release(empty, turn - 1, STAGES)
            p = _product(c, buffers, barriers, turn, acc, 1, CHUNK, WIDTH, BLOCKS, STAGES, SEQUENCES)
            turn += BLOCKS
        early, late, lambda1, lambda2 = _start_filter(
            c, buffers, barriers, turn, p, early, late, lambda1, lambda2, CHUNK, ROWS, WIDTH, STAGES, SEQUENCES
        )
        turn += 1
        early, late, lambda1, lambda2 = warpgroup_mma_wait(0, deps=(early, late, lambda1, lambda2))
        if DIRECT:
            early, late = _direct(c, buffers, barriers, turn, early, late, CHUNK, WIDTH, BLOCKS, STAGES, SEQUENCES)
            turn += BLOCKS
    early, lambda1 = _through_state(c, lambda2, rs, advances, early, lambda1, CHUNK, ROWS)
    early, lambda1 = warpgroup_mma_wait(0, deps=(early, lambda1))
    _store(grad_u, late, sequence, CHUNK, place, time, channels, exists[c], CHUNK, WIDTH)
    _store(grad_u, early, sequence, 0, place, time, channels, exists[c], CHUNK, WIDTH)


@gluon.jit(do_not_specialize=COUNTS)
def input_gradient(
    gradient, weight, toeplitz, powers, input_weight, taps, advance, grad_u, time, batch, channels, tiles,
    ORDER: gl.constexpr, ROWS: gl.constexpr, CHUNK: gl.constexpr, WIDTH: gl.constexpr, BLOCKS: gl.constexpr,
    STAGES: gl.constexpr, SEQUENCES: gl.constexpr, GROUPS: gl.constexpr, UNIT: gl.constexpr, PARTS: gl.constexpr,
    DIRECT: gl.constexpr,
):  # fmt: skip
    """The gradient of u (batch, time, channels) from that of o, which is BLOCKS tiles wide.

    `weight` is (outputs, ORDER · channels), `taps` (groups, PARTS, ORDER, CHUNK) and `advance` (groups, ORDER, ORDER).
    `tiles`: the number of tiles of channels. DIRECT: `input_weight` (outputs, channels) adds to the gradient of u
    itself.
    """
    TILES: gl.constexpr = 3 - SEQUENCES
    columns = gl.cdiv(tiles, TILES)
    sequence, tile = SEQUENCES * (gl.program_id(0) // columns), TILES * (gl.program_id(0) % columns)
    first = tile_of(tile, channels, GROUPS, WIDTH, UNIT)
    second = tile_of(gl.minimum(tile + 1, tiles - 1), channels, GROUPS, WIDTH, UNIT)
    places, exists = (first, second), (True, sequence + 1 < batch if SEQUENCES == 2 else tile + 1 < tiles)
    operand: gl.constexpr = gradient.dtype
    gs = gl.allocate_shared_memory(operand, [SEQUENCES * BLOCKS, 1, 2 * CHUNK, WIDTH], gradient.layout)
    ws = gl.allocate_shared_memory(operand, [TILES * STAGES, WIDTH, WIDTH], weight.layout)
    ps = gl.allocate_shared_memory(operand, [TILES, CHUNK, ROWS], powers.layout)
    rs = gl.allocate_shared_memory(gl.bfloat16, [4, ROWS, CHUNK], toeplitz.layout)
    advances = gl.allocate_shared_memory(gl.bfloat16, [6, ROWS, ROWS], powers.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(STAGES):
        mbarrier.init(full.index(k), count=1)
        mbarrier.init(empty.index(k), count=2)
    fence_async_shared()
    spans = gl.cdiv(time, 2 * CHUNK)
    buffers, barriers = (gs, ws, ps, rs, advances), (full, empty)
    tensors = (gradient, weight, toeplitz, powers, input_weight)
    fetching = (tensors, buffers, barriers, sequence, places, spans, channels)
    args = (buffers, barriers, taps, advance, grad_u, sequence, places, spans, exists, time, channels)
    gl.warp_specialize(
        [
            (_multiply, (0, args, ORDER, ROWS, CHUNK, WIDTH, BLOCKS, STAGES, SEQUENCES, PARTS, DIRECT)),
            (_multiply, (1, args, ORDER, ROWS, CHUNK, WIDTH, BLOCKS, STAGES, SEQUENCES, PARTS, DIRECT)),
            (_fetch, (fetching, ORDER, CHUNK, BLOCKS, STAGES, SEQUENCES, DIRECT)),
        ],
        [4, 1],
        [232, 40],
    )
