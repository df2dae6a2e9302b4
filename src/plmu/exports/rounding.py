"""How far rounding to float32 moves the outputs of a program, by Monte Carlo arithmetic.

Several copies of a stream run in float64. In all but the first, numbers are moved at random by as much as float32 may
round them, in whichever order a program sums; how far the copies part is how much the model amplifies that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.evaluate import Evaluator
from plmu.exports.program import Operation, Program, Value

COPIES = 9  # of a stream, the first of which is exact
EPS = torch.finfo(torch.float32).eps
_FUNCTION = 8.0  # roundings in e^x, tanh and the like, which are within 4 units in the last place in C
_FUNCTIONS = ops.Apply, ops.Attend, ops.Mix
# These write what they read, or integers.
_EXACT = (
    ops.Concat, ops.Constant, ops.Fill, ops.Follow, ops.Lookup, ops.Phase, ops.Push, ops.Repeat, ops.Split,
    ops.Transpose, ops.Where,
)  # fmt: skip


class Rounding(Evaluator):
    """Runs copies of a stream with roundings of their own: `step` gives (COPIES, outputs), the first exact."""

    def __init__(self, program: Program, int8: bool = False, fixed: bool = False) -> None:
        super().__init__(program, int8, torch.float64, fixed)
        self._random = torch.Generator().manual_seed(0)

    def step(self, x: Tensor) -> Tensor:
        return super().step(x.expand(COPIES, *x.shape[1:]))

    def run(self, operation: Operation, values: dict[Value, Tensor]) -> None:
        read, terms = operation.inputs(), _terms(operation)
        moved = {self.program.x: values[self.program.x], **{value: values[value] for value in read}}
        if terms:
            # A sum of n products rounds n times, each time by eps / 2 of a partial sum at most: at random √n · eps / 2.
            for value in operation.parts if isinstance(operation, ops.MatVec) else read:
                if not value.wide:
                    whole = moved[value] == moved[value].round()
                    moved[value] = self._moved(moved[value], terms**0.5, whole)
        super().run(operation, moved)
        size = _FUNCTION if isinstance(operation, _FUNCTIONS) else 1.0
        for value in operation.outputs():
            out = moved[value]
            exact = isinstance(operation, _EXACT) or value.wide
            values[value] = out if exact else self._moved(out, size, out.float().double() == out)

    def integers(self, x: Tensor) -> Tensor:
        """The integers of a fixed-point sum. In each copy, one is the next integer: rounding before may decide it."""
        out = torch.round(x)
        places = torch.randint(x.shape[1], (COPIES - 1, 1), generator=self._random)
        up = torch.where(x > out, 1.0, -1.0).to(x.dtype)[1:].gather(1, places)
        out[1:] = out[1:].scatter_add(1, places, up)
        return out

    def _moved(self, x: Tensor, size: float, exact: Tensor) -> Tensor:
        """x with relative errors of at most `size` roundings, each of eps / 2, where it is not exact."""
        noise = torch.rand(x.shape, generator=self._random, dtype=torch.float64)
        noise[0] = 0.5
        return torch.where(exact, x, x + x * (noise - 0.5) * (size * EPS))


def _terms(operation: Operation) -> int:
    """Terms of the sums of an operation; 0 if it has none."""
    if isinstance(operation, ops.Normalize):
        return operation.features
    if isinstance(operation, ops.Apply) and operation.function.endswith("softmax"):
        return operation.x.size
    return operation.multiply_adds() // operation.out.size
