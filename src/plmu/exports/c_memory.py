"""Where the values of a program are in C: in the input, the state, the output, or a shared work area.

Values whose lives do not overlap share the work area, and what works number by number works in place.
"""

from __future__ import annotations

from dataclasses import dataclass

from plmu.exports import program as ops
from plmu.exports.program import Operation, Program, Value


@dataclass(eq=False)
class Buffer:
    """Consecutive numbers: `name` is the C expression of the first; those of the work area get an offset."""

    size: int
    name: str | None = None
    first: int = 0  # the operation that writes it
    last: int = -1  # the last operation that reads it
    offset: int = 0


@dataclass(frozen=True)
class Range:
    """A part of a buffer."""

    buffer: Buffer
    start: int
    size: int

    def overlaps(self, other: Range) -> bool:
        apart = self.start + self.size <= other.start or other.start + other.size <= self.start
        return self.buffer is other.buffer and not apart


class Memory:
    """The place of every value."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.places: dict[Value, Range] = {program.x: Range(Buffer(program.x.size, "x"), 0, program.x.size)}
        self._work: list[Buffer] = []
        self.extra: dict[Operation, Buffer] = {}
        self._reads = self._all_reads()
        states = 0
        for one in program.states:
            self.places[one] = Range(Buffer(one.size, "state->memory", offset=states), 0, one.size)
            states += one.size
        self.state_size = states
        for index, operation in enumerate(program.operations):
            self._place(index, operation)
        self.stores = self._stores()
        self.work_size = self._arrange()

    def pointer(self, value: Value) -> str:
        """The C expression of a value's first number."""
        found = self.places[value]
        start = found.start + found.buffer.offset
        name = found.buffer.name or "work"
        return f"{name} + {start}" if start else name

    def _all_reads(self) -> list[tuple[Value, int]]:
        reads = [(value, i) for i, one in enumerate(self.program.operations) for value in one.inputs()]
        end = len(self.program.operations)
        return [*reads, *((value, end) for value in (*self.program.next_states, self.program.y))]

    def _place(self, index: int, operation: Operation) -> None:
        if isinstance(operation, ops.Split):
            whole, start = self.places[operation.x], 0
            for piece in operation.pieces:
                self.places[piece] = Range(whole.buffer, whole.start + start, piece.size)
                start += piece.size
            return
        out = operation.out
        if isinstance(operation, ops.Attend):
            self.extra[operation] = self._new(operation.seen.size, index)
        if out is self.program.y:
            self.places[out] = Range(Buffer(out.size, "y", index), 0, out.size)
            return
        for value in operation.inputs() if isinstance(operation, _IN_PLACE) else ():
            if value.size == out.size and self._free_after(value, index):
                self.places[out] = self.places[value]
                return
        self.places[out] = Range(self._new(out.size, index), 0, out.size)

    def _new(self, size: int, index: int) -> Buffer:
        self._work.append(Buffer(size, None, index, index))
        return self._work[-1]

    def _free_after(self, value: Value, index: int) -> bool:
        """Whether an operation may write over what it reads. A value that shares its place must not be read later."""
        place = self.places[value]
        if place.buffer.name is not None:
            return False
        later = {one for one, at in self._reads if at > index}
        # A split of the whole comes after what it splits was placed, and is a read of it.
        return not any(place.overlaps(self.places[one]) for one in later if one in self.places)

    def _stores(self) -> dict[int, list[tuple[Value, Value]]]:
        """After which operation each next state can be copied into the state: when it is known and the old one is not
        read any more."""
        end = len(self.program.operations)
        made = {value: i for i, one in enumerate(self.program.operations) for value in one.outputs()}
        found: dict[int, list[tuple[Value, Value]]] = {}
        for state, after in zip(self.program.states, self.program.next_states, strict=True):
            reads = [at for value, at in self._reads if at < end and self._shares(value, state)]
            when = max([made.get(after, 0), *reads])
            found.setdefault(when, []).append((state, after))
        for when, pairs in found.items():
            for _, after in pairs:
                self.places[after].buffer.last = max(self.places[after].buffer.last, when)
        return found

    def _shares(self, value: Value, other: Value) -> bool:
        return self.places[value].buffer is self.places[other].buffer

    def _arrange(self) -> int:
        """Give each buffer of the work area an offset, the lowest that is free in its life."""
        end = len(self.program.operations)
        for value, at in self._reads:
            if at < end or value is self.program.y:
                buffer = self.places[value].buffer
                buffer.last = max(buffer.last, at)
        placed: list[Buffer] = []
        for one in self._work:
            alive = sorted((b.offset, b.size) for b in placed if b.first <= one.last and one.first <= b.last)
            for offset, size in alive:
                if one.offset + one.size <= offset:
                    break
                one.offset = max(one.offset, offset + size)
            placed.append(one)
        return max((one.offset + one.size for one in placed), default=0)


_IN_PLACE = (ops.Apply, ops.Scale, ops.Add, ops.Multiply, ops.Mix, ops.Fill, ops.Normalize)
