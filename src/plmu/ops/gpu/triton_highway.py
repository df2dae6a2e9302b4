"""The kernel of a highway layer's backward pass: everything but its products, in one pass over memory.

With a and c the halves of pre = W x + b, the gate g = σ(c) and r = relu(a), the output is g · r + (1 − g) · x. Its
gradient d gives those of a, d · g where a > 0, of c, d · (r − x) · g · (1 − g), and the direct part of that of x,
d · (1 − g).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _operands(of_out, x, pre, start, end, row, column, features):
    """d, x, a and c of a tile that starts at a row; zero past the end."""
    inside = (start + row < end) & (column < features)
    place, wide = row * features + column, 2 * row * features + column
    of_out, x, pre = of_out + start * features, x + start * features, pre + 2 * start * features
    return (
        tl.load(of_out + place, mask=inside, other=0.0),
        tl.load(x + place, mask=inside, other=0.0),
        tl.load(pre + wide, mask=inside, other=0.0),
        tl.load(pre + features + wide, mask=inside, other=0.0),
    )


@triton.jit(do_not_specialize=("total", "share"))
def through_gate(
    of_out, x, pre, of_pre, of_x, sums, total, features, share,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, DIRECT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """of_pre (total, 2 · features); if DIRECT, the direct part of the gradient of x (total, features); and if BIAS, the
    sums of the unrounded of_pre over `share` rows each, (shares, 2 · features).

    The next tile is loaded before the current one is used. UNIT: a divisor of `features`, which shows the compiler that
    rows are aligned.
    """
    features = features // UNIT * UNIT
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, total)
    row, column = tl.arange(0, ROWS)[:, None], tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    place, wide = row * features + column, 2 * row * features + column
    added, added_gate = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    ahead = _operands(of_out, x, pre, begin, end, row, column, features)
    for start in range(begin, end, ROWS):
        gradient, input, transform, gate = ahead
        ahead = _operands(of_out, x, pre, start + ROWS, end, row, column, features)
        gradient, input, transform = gradient.to(tl.float32), input.to(tl.float32), transform.to(tl.float32)
        gate = tl.sigmoid(gate.to(tl.float32))
        off = transform <= 0  # NaN is not
        of_transform = tl.where(off, 0.0, gradient * gate)
        of_gate = gradient * (tl.where(off, 0.0, transform) - input) * (gate * (1 - gate))
        inside = (start + row < end) & (column < features)
        target = of_pre + 2 * start * features
        tl.store(target + wide, of_transform.to(of_pre.dtype.element_ty), mask=inside)
        tl.store(target + features + wide, of_gate.to(of_pre.dtype.element_ty), mask=inside)
        if DIRECT:
            direct = gradient * (1 - gate)
            tl.store(of_x + start * features + place, direct.to(of_x.dtype.element_ty), mask=inside)
        if BIAS:
            added += of_transform
            added_gate += of_gate
    if BIAS:
        output = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        sums += tl.program_id(0).to(tl.int64) * (2 * features)
        tl.store(sums + output, tl.sum(added, 0), mask=output < features)
        tl.store(sums + features + output, tl.sum(added_gate, 0), mask=output < features)
