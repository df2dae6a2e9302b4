"""Where the values of a program are in C: in the input, the state, the output, or a shared work area.

Values whose lifetimes do not overlap share the work area, and elementwise operations work in place. Wide values have a
part of the state, and a work area, of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from plmu.exports import program as ops
from plmu.exports import traced_c
from plmu.exports.program import Operation, Program, Value


@dataclass(eq=False)
class Buffer:
    """Consecutive numbers from the C expression `name` + `offset` on; a buffer without a name lies in the work area."""

    size: int
    name: str | None = None
    first: int = 0  # the operation that writes it
    last: int = -1  # the last operation that reads it
    offset: int = 0
    wide: bool = False


@dataclass(frozen=True)
class Range:
    """A part of a buffer."""

    buffer: Buffer
    start: int
    size: int

    def overlaps(self, other: Range) -> bool:
        """Whether the ranges share a number."""
        apart = self.start + self.size <= other.start or other.start + other.size <= self.start
        return self.buffer is other.buffer and not apart


class Memory:
    """The place of every value, and the sizes of state and work area."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.places: dict[Value, Range] = {program.x: Range(Buffer(program.x.size, "x"), 0, program.x.size)}
        self._work: list[Buffer] = []
        self.extra: dict[Operation, Buffer] = {}  # what an operation needs beside its output
        self._reads = self._all_reads()
        sizes = {False: 0, True: 0}
        for state in program.states:
            name = "state->levels" if state.wide else "state->memory"
            self.places[state] = Range(Buffer(state.size, name, offset=sizes[state.wide]), 0, state.size)
            sizes[state.wide] += state.size
        self.state_size, self.wide_state_size = sizes[False], sizes[True]
        for index, operation in enumerate(program.operations):
            self._place(index, operation)
        self.stores = self._stores()
        self._extend_lifetimes()
        self.work_size, self.wide_work_size = self._assign_offsets(False), self._assign_offsets(True)

    def pointer(self, value: Value) -> str:
        """The C expression of a value's first number."""
        place = self.places[value]
        start = place.start + place.buffer.offset
        name = place.buffer.name or ("wide" if place.buffer.wide else "work")
        return f"{name} + {start}" if start else name

    def _all_reads(self) -> list[tuple[Value, int]]:
        """Each value that is read, with the index of the operation; at the end, the next states and y are."""
        reads = [(value, i) for i, operation in enumerate(self.program.operations) for value in operation.inputs()]
        end = len(self.program.operations)
        return [*reads, *((value, end) for value in (*self.program.next_states, self.program.y))]

    def _place(self, index: int, operation: Operation) -> None:
        """Choose the place of an operation's outputs: inside what is split, in y, in place of an input, or anew."""
        if isinstance(operation, ops.Split):
            whole, start = self.places[operation.x], 0
            for piece in operation.pieces:
                self.places[piece] = Range(whole.buffer, whole.start + start, piece.size)
                start += piece.size
            return
        out = operation.out
        if isinstance(operation, ops.Attend):
            self.extra[operation] = self._new(operation.present.size, index)
        if isinstance(operation, ops.Elapse):
            self.extra[operation] = self._new(2 * operation.rate.shape[1] + operation.rate.shape[0], index)
        if isinstance(operation, ops.Traced):
            self.extra[operation] = self._new(max(1, traced_c.plan(operation.graph).size), index, wide=True)
        if out is self.program.y:
            self.places[out] = Range(Buffer(out.size, "y", index), 0, out.size)
            return
        for value in operation.inputs() if isinstance(operation, _IN_PLACE) else ():
            if value.size == out.size and value.wide == out.wide and self._free_after(value, index):
                self.places[out] = self.places[value]
                return
        self.places[out] = Range(self._new(out.size, index, out.wide), 0, out.size)

    def _new(self, size: int, index: int, wide: bool = False) -> Buffer:
        """A buffer of the work area that operation `index` writes."""
        self._work.append(Buffer(size, None, index, index, wide=wide))
        return self._work[-1]

    def _free_after(self, value: Value, index: int) -> bool:
        """Whether operation `index` may overwrite a value that it reads: it lies in the work area, and nothing that
        shares its place is read later."""
        place = self.places[value]
        if place.buffer.name is not None:
            return False
        later = {reader for reader, at in self._reads if at > index}
        # Values that are not placed yet cannot share the place: a later split of this value counts as a read of it.
        return not any(place.overlaps(self.places[reader]) for reader in later if reader in self.places)

    def _stores(self) -> dict[int, list[tuple[Value, Value]]]:
        """Pairs of a state and its next state, by the index of the operation after which the next state can be copied
        into the state: it is computed then, and the old state no longer read. Extends lifetimes up to the copy."""
        end = len(self.program.operations)
        written = {value: i for i, operation in enumerate(self.program.operations) for value in operation.outputs()}
        stores: dict[int, list[tuple[Value, Value]]] = {}
        for state, after in zip(self.program.states, self.program.next_states, strict=True):
            reads = [at for value, at in self._reads if at < end and self._shares(value, state)]
            when = max([written.get(after, 0), *reads])
            stores.setdefault(when, []).append((state, after))
        for when, pairs in stores.items():
            for _, after in pairs:
                self.places[after].buffer.last = max(self.places[after].buffer.last, when)
        return stores

    def _shares(self, value: Value, other: Value) -> bool:
        """Whether two values lie in the same buffer."""
        return self.places[value].buffer is self.places[other].buffer

    def _extend_lifetimes(self) -> None:
        """Extend the lifetime of each buffer to its last read."""
        end = len(self.program.operations)
        for value, at in self._reads:
            if at < end or value is self.program.y:
                read_buffer = self.places[value].buffer
                read_buffer.last = max(read_buffer.last, at)

    def _assign_offsets(self, wide: bool) -> int:
        """Give each buffer of a work area the lowest offset that is free during its lifetime. Returns the size of the
        area."""
        placed: list[Buffer] = []
        for buffer in (buffer for buffer in self._work if buffer.wide == wide):
            alive = sorted((b.offset, b.size) for b in placed if b.first <= buffer.last and buffer.first <= b.last)
            for offset, size in alive:
                if buffer.offset + buffer.size <= offset:
                    break
                buffer.offset = max(buffer.offset, offset + size)
            placed.append(buffer)
        return max((buffer.offset + buffer.size for buffer in placed), default=0)


_IN_PLACE = (
    ops.Add,
    ops.Apply,
    ops.Begin,
    ops.Divide,
    ops.Fill,
    ops.Mix,
    ops.Multiply,
    ops.Normalize,
    ops.Scale,
    ops.Where,
)
