"""The steps of `plmu.nn.coupled` on a GPU: a kernel for each step, or one for all steps if the state fits a tile.

The plain form of both is `plmu.nn.coupled.plain`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ONE_TILE = 64  # up to this width a program keeps the matrix and runs all steps


@triton.jit
def _tanh(x):
    """tanh to float32 rounding: near zero, where 1 − e^−2x would cancel, by its series."""
    square = x * x
    series = 62 / 2835 + square * (-1382 / 155925)
    series = 2 / 15 + square * (-17 / 315 + square * series)
    near = x * (1 + square * (-1 / 3 + square * series))
    faded = tl.exp(-2 * tl.abs(x))
    far = (1 - faded) / (1 + faded)
    return tl.where(square < 0.09, near, tl.where(x < 0, -far, far))


@triton.jit
def _advance(
    before,  # pointer to the first step's (batch, width): the operand of the matrix
    added,  # likewise: added to the product
    values,  # likewise: tanh of the step, for the backward pass
    after,  # likewise: the result
    matrix,
    inner,  # strides of the matrix along the summed and the other axis
    outer,
    batch,
    width,
    order,
    steps,
    advance,  # elements from one step to the next, negative for the backward pass
    INCREMENTAL: tl.constexpr,
    BACKWARD: tl.constexpr,
    ALL_STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """after = φ(added + before · matrix), with `before` added to the first `order` columns if INCREMENTAL; φ is tanh
    beyond them or, in the backward pass, its derivative times the same."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.arange(0, INNER)
    here = rows[:, None] * width + columns[None, :]
    mask = (rows[:, None] < batch) & (columns[None, :] < width)
    is_hidden = columns[None, :] >= order
    if ALL_STEPS:
        whole = (sums[:, None] < width) & (columns[None, :] < width)
        matrix_tile = tl.load(matrix + sums[:, None] * inner + columns[None, :] * outer, mask=whole, other=0.0)
        state = tl.load(before + here, mask=mask, other=0.0)
    for _ in range(steps):
        total = tl.load(added + here, mask=mask, other=0.0)
        if ALL_STEPS:
            total = tl.dot(state, matrix_tile, total, input_precision="ieee")
        else:
            for start in range(0, width, INNER):
                k = start + sums
                state_part = tl.load(
                    before + rows[:, None] * width + k[None, :],
                    mask=(rows[:, None] < batch) & (k[None, :] < width),
                    other=0.0,
                )
                matrix_part = tl.load(
                    matrix + k[:, None] * inner + columns[None, :] * outer,
                    mask=(k[:, None] < width) & (columns[None, :] < width),
                    other=0.0,
                )
                total = tl.dot(state_part, matrix_part, total, input_precision="ieee")
            state = tl.load(before + here, mask=mask, other=0.0)
        memory = total + state if INCREMENTAL else total
        if BACKWARD:
            h = tl.load(values + here, mask=mask, other=0.0)
            hidden = total * (1 - h * h)
        else:
            hidden = _tanh(total)
        state = tl.where(is_hidden, hidden, memory)
        tl.store(after + here, state, mask=mask)
        before += advance
        added += advance
        values += advance
        after += advance


def forward(driven: Tensor, z: Tensor, matrix: Tensor, order: int, incremental: bool) -> None:
    """Fill z[1:] from z[0]."""
    launch = _Launch(matrix.mT, order, incremental, backward=False)
    steps = driven.shape[0]
    if launch.one_tile:
        launch(z[0], driven[0], z[1], z[1], steps)
    else:
        for t in range(steps):
            launch(z[t], driven[t], z[t + 1], z[t + 1], 1)


def backward(gradient: Tensor, z: Tensor, total: Tensor, matrix: Tensor, order: int, incremental: bool) -> None:
    """Fill total[:-1] from total[-1]."""
    launch = _Launch(matrix, order, incremental, backward=True)
    last = gradient.shape[0] - 1
    if last and launch.one_tile:
        launch(total[last], gradient[last - 1], z[last], total[last - 1], last)
    elif last:
        for t in range(last - 1, -1, -1):
            launch(total[t + 1], gradient[t], z[t + 1], total[t], 1)


class _Launch:
    def __init__(self, matrix: Tensor, order: int, incremental: bool, *, backward: bool) -> None:
        self.matrix, self.order, self.direction = matrix, order, -1 if backward else 1
        self.one_tile = matrix.shape[0] <= ONE_TILE
        rows, columns = (16, ONE_TILE) if self.one_tile else (32, 32)
        self.options: dict[str, int] = {"INCREMENTAL": incremental, "BACKWARD": backward, "ALL_STEPS": self.one_tile}
        self.options |= {"ROWS": rows, "COLUMNS": columns, "INNER": columns, "num_warps": 4}

    def __call__(self, before: Tensor, added: Tensor, values: Tensor, after: Tensor, steps: int) -> None:
        batch, width = before.shape
        grid = (triton.cdiv(batch, self.options["ROWS"]), triton.cdiv(width, self.options["COLUMNS"]))
        sizes = (*self.matrix.stride(), batch, width, self.order, steps, self.direction * batch * width)
        with torch.cuda.device_of(before):
            _advance[grid](before, added, values, after, self.matrix, *sizes, **self.options)
