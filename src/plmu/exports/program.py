"""One step of a model as a list of simple operations on vectors, from which every format is written.

A program is made from a folded model by `plmu.exports.lowering`. A value is a vector of float32 numbers for each
sequence of a batch, or of float64 numbers if it is wide; shapes here omit the batch. An operation reads earlier values
and computes new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Value:
    """A vector; a state also has the shape of its tensor in the exported model. Samples, levels and forecasts of a
    series are wide: they may be large and differ little."""

    size: int
    shape: tuple[int, ...] | None = None
    wide: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.wide else torch.float32


@dataclass(frozen=True, eq=False)
class Weight:
    """A constant matrix (rows, columns); `is_system` marks a matrix of a linear system, which int8 never rounds."""

    array: Tensor
    is_system: bool = False


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation with its output. Its other fields are the values it reads, its constants and its options."""

    out: Value

    def inputs(self) -> tuple[Value, ...]:
        """The values that it reads."""
        return tuple(value for value in vars(self).values() if isinstance(value, Value) and value is not self.out)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def constants(self) -> list[Tensor]:
        """The arrays that it holds."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]

    def multiply_adds(self) -> int:
        """Number of multiply-adds in its products."""
        return 0


@dataclass(frozen=True, eq=False)
class MatVec(Operation):
    """W x + bias + add, with x the concatenation of the parts. With `vectors` x is several vectors in a row, and out W
    times each of them."""

    weight: Weight
    parts: tuple[Value, ...]
    bias: Tensor | None = None
    add: Value | None = None
    vectors: int = 1  # above 1: of one part, without bias and add

    def inputs(self) -> tuple[Value, ...]:
        return self.parts if self.add is None else (*self.parts, self.add)

    def constants(self) -> list[Tensor]:
        return [self.weight.array] if self.bias is None else [self.weight.array, self.bias]

    def multiply_adds(self) -> int:
        return self.weight.array.numel() * self.vectors


@dataclass(frozen=True, eq=False)
class Remember(Operation):
    """m_t = [Ā | B̄] [m ; u] for each group of channels; m is (order, channels).

    A group whose matrix is near the identity holds Ā − I, and m is added.
    """

    m: Value
    u: Value
    matrix: Tensor  # (groups, order, order + inputs)
    near_identity: tuple[bool, ...]
    channels: int

    def multiply_adds(self) -> int:
        return self.matrix[0].numel() * self.channels


TERMS = 6  # of the Taylor series of `Elapse`


@dataclass(frozen=True, eq=False)
class Elapse(Operation):
    """m after an interval Δ with input u: the top of e^{[[A, B], [0, 0]] Δ} [m ; u]. m is (order, channels).

    Δ is a sum of unit · 2ᵏ, each with a move of its own, and of a rest with `TERMS` terms of a Taylor series. Longer
    intervals are cut to the sum of all moves, after which nothing is left of m. All is NaN for what is not an interval:
    a negative number, infinity or NaN.
    """

    interval: Value
    m: Value
    u: Value
    moves: Tensor  # (bits, order, order + 1)
    rate: Tensor  # [A | B], (order, order + 1)
    unit: float  # a power of two
    near_identity: int  # number of the first moves that hold e^{A Δ} − I: m is added to what they give

    def multiply_adds(self) -> int:
        return (len(self.moves) + TERMS) * self.rate.numel() * self.u.size

    @property
    def longest(self) -> float:
        """The sum of all moves."""
        return self.unit * (2.0 ** len(self.moves) - 1)


@dataclass(frozen=True, eq=False)
class Split(Operation):
    """A vector cut into consecutive pieces; `out` is the first piece."""

    x: Value
    pieces: tuple[Value, ...]

    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    def outputs(self) -> tuple[Value, ...]:
        return self.pieces


@dataclass(frozen=True, eq=False)
class Concat(Operation):
    """The concatenation of vectors."""

    parts: tuple[Value, ...]

    def inputs(self) -> tuple[Value, ...]:
        return self.parts


@dataclass(frozen=True, eq=False)
class Apply(Operation):
    """A function of torch by its name, with its options, of each number or of the whole vector."""

    x: Value
    function: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """s · x + b for each feature."""

    x: Value
    scale: Tensor
    offset: Tensor | None


@dataclass(frozen=True, eq=False)
class Add(Operation):
    x: Value
    y: Value


@dataclass(frozen=True, eq=False)
class Multiply(Operation):
    x: Value
    y: Value


@dataclass(frozen=True, eq=False)
class Divide(Operation):
    x: Value
    y: Value


@dataclass(frozen=True, eq=False)
class Where(Operation):
    """x where the condition is above 0, else y, which may be a number."""

    condition: Value
    x: Value
    y: Value | float


@dataclass(frozen=True, eq=False)
class Repeat(Operation):
    """x one or more times in a row."""

    x: Value


@dataclass(frozen=True, eq=False)
class Transpose(Operation):
    """x (rows, columns) as (columns, rows)."""

    x: Value
    rows: int


@dataclass(frozen=True, eq=False)
class Convert(Operation):
    """x in the precision of the output: a wide value as float32, or the other way round."""

    x: Value


@dataclass(frozen=True, eq=False)
class Mix(Operation):
    """x + σ(g) · (y − x)."""

    x: Value
    y: Value
    g: Value


@dataclass(frozen=True, eq=False)
class Normalize(Operation):
    """(x − mean) / √(variance + eps) for every `features` consecutive numbers; without the mean unless `centred`."""

    x: Value
    features: int
    eps: float
    centred: bool
    weight: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Lookup(Operation):
    """A row of a table by a token number."""

    x: Value
    table: Tensor


@dataclass(frozen=True, eq=False)
class Taps(Operation):
    """Σ_j w_j · x_j for x (steps, features)."""

    x: Value
    weight: Tensor  # (steps, features)

    def multiply_adds(self) -> int:
        return self.weight.numel()


@dataclass(frozen=True, eq=False)
class Select(Operation):
    """Σ_i w[i, h] m[i, h, c] for w (order, heads) and m (order, heads, channels of a head)."""

    weights: Value
    m: Value
    heads: int

    def multiply_adds(self) -> int:
        return self.m.size


@dataclass(frozen=True, eq=False)
class Fill(Operation):
    """x with NaN replaced by `held`, or by zero."""

    x: Value
    held: Value | None


@dataclass(frozen=True, eq=False)
class Constant(Operation):
    array: Tensor


@dataclass(frozen=True, eq=False)
class Attend(Operation):
    """softmax(q · k / √d) v for each head, over the steps that `present` marks with 1.

    Keys (steps, width) are rotated by an angle for each step: pairs of features, one of each half of a head.
    """

    query: Value
    keys: Value
    values: Value
    present: Value
    heads: int
    cos: Tensor  # (steps, half of a head's features)
    sin: Tensor

    def multiply_adds(self) -> int:
        return 2 * self.keys.size + self.values.size


@dataclass(frozen=True, eq=False)
class Count(Operation):
    """Counts after a step t, from the `counts` before it: how often x was above each threshold, for each degree k up to
    `positions` the sum of those steps' (t + ½)ᵏ, and last the number of steps. After NaN in x they are NaN. Counts are
    wide: sums of (t + ½)⁸ overflow float32 after 24,000 steps."""

    x: Value
    counts: Value
    thresholds: Tensor  # (count, features)
    positions: int


@dataclass(frozen=True, eq=False)
class Shares(Operation):
    """Shares of the steps, and positions, from counts."""

    counts: Value
    legendre: Tensor  # (degrees, degrees), coefficients of powers of (t + ½) / steps


@dataclass(frozen=True, eq=False)
class Phase(Operation):
    """The phase of a step in the season, and 1 if it is not the first of its sequence, else 0. `first` is the number of
    that one, unless the position presets it."""

    position: Value
    first: int
    season: int


@dataclass(frozen=True, eq=False)
class Follow(Operation):
    """The position after a step: the number of the next, and how many steps there were, counted up to `limit`."""

    position: Value
    first: int
    limit: int = 1


@dataclass(frozen=True, eq=False)
class Begin(Operation):
    """A state, or at the first step of a sequence, where `started` (a single number) is 0, the state in which sequences
    begin."""

    x: Value
    started: Value
    array: Tensor  # in the precision of x


@dataclass(frozen=True, eq=False)
class Push(Operation):
    """Rows without the oldest and with a new one at the end. The first row of a sequence, where `started` is 0, fills
    all of them."""

    rows: Value
    row: Value
    started: Value


@dataclass(frozen=True, eq=False)
class Changes(Operation):
    """(x − level) · factor in float32, for rows x (rows, features) and a level (features,)."""

    x: Value
    level: Value
    factor: Tensor  # (features,), powers of two


@dataclass(frozen=True, eq=False)
class Raise(Operation):
    """level + x · factor, for rows x (rows, features) of float32 and a level (features,); as wide as the level."""

    x: Value
    level: Value
    factor: Tensor  # (features,), powers of two


@dataclass(frozen=True, eq=False)
class Product(Operation):
    """W x for x the concatenation of the parts, as wide as they are."""

    array: Tensor
    parts: tuple[Value, ...]

    def inputs(self) -> tuple[Value, ...]:
        return self.parts

    def multiply_adds(self) -> int:
        return self.array.numel()


@dataclass(frozen=True, eq=False)
class Traced(Operation):
    """All outputs of a traced step, one after the other; inputs and outputs are wide."""

    parts: tuple[Value, ...]  # the sample, then the tensors of the state
    graph: Any  # `plmu.exports.traced.Graph`
    step: Callable[..., tuple[Tensor, ...]]  # the function that was traced

    def inputs(self) -> tuple[Value, ...]:
        return self.parts

    def constants(self) -> list[Tensor]:
        arrays: list[Tensor] = self.graph.constants
        return arrays

    def multiply_adds(self) -> int:
        return sum(node.size for node in self.graph.nodes if node.inputs)


@dataclass(frozen=True)
class Season:
    """A state (number, flag) that holds where in a season the next step is. Zeros begin with `phase`; with (n, −1) the
    first step is step n."""

    state: int  # its index
    steps: int
    phase: int


@dataclass(frozen=True, eq=False)
class Program:
    """All operations of a step, in order."""

    x: Value
    tokens: int | None  # size of the vocabulary, where x is a token number
    states: tuple[Value, ...]
    kinds: tuple[str, ...]  # what each state is, such as "memory"
    operations: tuple[Operation, ...]
    y: Value
    next_states: tuple[Value, ...]
    seasons: tuple[Season, ...] = ()

    @property
    def multiply_adds(self) -> int:
        """Number of multiply-adds of a step, in products only."""
        return sum(operation.multiply_adds() for operation in self.operations)

    @property
    def state_bytes(self) -> int:
        return sum((8 if state.wide else 4) * state.size for state in self.states)

    def weight_bytes(self, int8: bool) -> int:
        """Bytes of all constants; with `int8`, weights take a byte each and a scale for each row and column."""
        total = 4 * sum(array.numel() for array in distinct(self.constants))
        for weight in distinct(self.roundable) if int8 else ():
            total += 4 * sum(weight.shape) - 3 * weight.numel()  # a scale for each row and column
        return total

    @property
    def roundable(self) -> list[Tensor]:
        """The weights that int8 rounds."""
        weights = [
            operation.weight.array
            for operation in self.operations
            if isinstance(operation, MatVec) and not operation.weight.is_system
        ]
        return [*weights, *(operation.table for operation in self.operations if isinstance(operation, Lookup))]

    @property
    def rounding_error(self) -> float:
        """The relative error of outputs to expect from int8: √Σ of the squared relative errors of the weight matrices,
        as if these were independent and each used once."""
        total = 0.0
        for weight in self.roundable:
            numbers, rows, columns = rounded(weight)
            total += float((rows[:, None] * numbers * columns - weight).square().sum() / _or_one(weight.square().sum()))
        return float(total**0.5)

    @property
    def usual_interval(self) -> float | None:
        """A power of two to which intervals of a check go, where the first number of x is one."""
        starts = {operation.pieces[0] for operation in self.operations if isinstance(operation, Split)
                  and operation.x is self.x}  # fmt: skip
        units = [operation.unit * 2.0 ** (len(operation.moves) - 4) for operation in self.operations
                 if isinstance(operation, Elapse) and operation.interval in starts]  # fmt: skip
        return units[0] if units else None

    @property
    def constants(self) -> list[Tensor]:
        return [array for operation in self.operations for array in operation.constants()]


def distinct(arrays: list[Tensor]) -> list[Tensor]:
    """The arrays without those that are equal to an earlier one."""
    return list({(array.shape, array.contiguous().numpy().tobytes()): array for array in arrays}.values())


def rounded(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix W as int8 numbers q, scales of the rows and scales of the columns: W ≈ rows[:, None] · q · columns.

    Columns have scales because a memory's coefficients differ in size, and so do the columns that read them.
    """
    columns = _or_one(weight.abs().amax(0).sqrt())
    rows = _or_one((weight / columns).abs().amax(1) / 127)
    return torch.round(weight / columns / rows[:, None]).to(torch.int8), rows, columns


def fixed_limit(count: int) -> int:
    """The largest int16 number to which inputs of a fixed-point sum are rounded, so that the sum of `count` products
    with int8 weights cannot overflow int32."""
    return max(1, min(2**15 - 1, (2**31 - 1) // (127 * count)))


def _or_one(scale: Tensor) -> Tensor:
    """The scales, with 1 in place of zeros."""
    return torch.where(scale > 0, scale, 1.0)
