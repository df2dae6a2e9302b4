"""The kernel of a highway layer's backward pass: everything but its products, in one pass over memory.

With a and c the halves of pre = W x + b, the gate g = σ(c) and r = relu(a), the output is out = g · r + (1 − g) · x.
With grad_y for the gradient of the loss for y:

    grad_a = grad_out · g where a > 0, else 0
    grad_c = grad_out · (r − x) · g · (1 − g)
    grad_x = grad_out · (1 − g) + Wᵀ [grad_a ; grad_c], whose first term, the direct part, is made here.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _operands(grad_out, x, pre, start, end, row, column, features):
    """grad_out, x, a and c of the tile that starts at row `start`, zero from row `end` on. `row` counts from `start`,
    `column` from the first feature."""
    inside = (start + row < end) & (column < features)
    place, wide = row * features + column, 2 * row * features + column
    grad_out, x, pre = grad_out + start * features, x + start * features, pre + 2 * start * features
    return (
        tl.load(grad_out + place, mask=inside, other=0.0),
        tl.load(x + place, mask=inside, other=0.0),
        tl.load(pre + wide, mask=inside, other=0.0),
        tl.load(pre + features + wide, mask=inside, other=0.0),
    )


@triton.jit(do_not_specialize=("total", "share"))
def through_gate(
    grad_out, x, pre, grad_pre, grad_x, sums, total, features, share,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr, DIRECT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Store grad_pre (total, 2 · features), [grad_a ; grad_c]; if DIRECT, the direct part of grad_x (total, features);
    and if BIAS, the sums of the unrounded grad_pre over `share` rows each, (shares, 2 · features).

    The next tile is loaded before the current one is used. UNIT: a divisor of `features`, which shows the compiler that
    rows are aligned.
    """
    features = features // UNIT * UNIT
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, total)
    row, column = tl.arange(0, ROWS)[:, None], tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    place, wide = row * features + column, 2 * row * features + column
    added, added_gate = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    ahead = _operands(grad_out, x, pre, begin, end, row, column, features)
    for start in range(begin, end, ROWS):
        gradient, input, transform, gate = ahead
        ahead = _operands(grad_out, x, pre, start + ROWS, end, row, column, features)
        gradient, input, transform = gradient.to(tl.float32), input.to(tl.float32), transform.to(tl.float32)
        gate = tl.sigmoid(gate.to(tl.float32))
        off = transform <= 0  # NaN is not
        grad_transform = tl.where(off, 0.0, gradient * gate)
        grad_gate = gradient * (tl.where(off, 0.0, transform) - input) * (gate * (1 - gate))
        inside = (start + row < end) & (column < features)
        target = grad_pre + 2 * start * features
        tl.store(target + wide, grad_transform.to(grad_pre.dtype.element_ty), mask=inside)
        tl.store(target + features + wide, grad_gate.to(grad_pre.dtype.element_ty), mask=inside)
        if DIRECT:
            direct = gradient * (1 - gate)
            tl.store(grad_x + start * features + place, direct.to(grad_x.dtype.element_ty), mask=inside)
        if BIAS:
            added += grad_transform
            added_gate += grad_gate
    if BIAS:
        output = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        sums += tl.program_id(0).to(tl.int64) * (2 * features)
        tl.store(sums + output, tl.sum(added, 0), mask=output < features)
        tl.store(sums + features + output, tl.sum(added_gate, 0), mask=output < features)
