"""A traced step as a function in C.

Elementwise functions and views become expressions inside the loops of those who read them; what is read several times,
or by a loop that would repeat it, gets an array of its own. Arrays whose lifetimes do not overlap share memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plmu.exports.traced import Graph, Node

Index = Sequence[str]  # a C expression for each axis
_FREE = {"fill", "constant", "view", "select", "slice", "permute", "expand", "diagonal", "input"}
_ALONE = {"cat", "sum", "amin", "amax", "any", "argmin", "matmul"}
_LONGEST = 300  # letters of an expression
_BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==",
           "ne": "!=", "and": "&&", "or": "||"}  # fmt: skip
_FUNCTIONS = {
    "abs": "absolute_of", "exp": "exponential_of", "log": "natural_log_of", "log2": "binary_log_of",
    "sqrt": "square_root_of", "asinh": "area_sine_of", "minimum": "least_of", "maximum": "largest_of",
}  # fmt: skip


@dataclass
class Plan:
    """Which nodes have arrays, and where these begin in the work area."""

    arrays: dict[Node, int] = field(default_factory=dict)
    size: int = 0


def plan(graph: Graph) -> Plan:
    """The places of a graph's arrays."""
    readers: dict[Node, list[Node | None]] = {}
    for node in graph.nodes:
        for value in node.nodes():
            readers.setdefault(value, []).append(node)
    for node in graph.outputs:
        readers.setdefault(node, []).append(None)
    stored = [node for node in graph.nodes if _is_stored(node, readers)]
    order = {node: place for place, node in enumerate(graph.nodes)}
    result = Plan()
    alive: list[tuple[int, int, int]] = []  # begin, end, last reader
    for node in stored:
        here, last = order[node], _last(node, readers, order, set(stored))
        alive = [part for part in alive if part[2] >= here]
        begin = 0
        for first, end, _ in sorted(alive):
            if begin + node.size <= first:
                break
            begin = max(begin, end)
        alive.append((begin, begin + node.size, last))
        result.arrays[node] = begin
        result.size = max(result.size, begin + node.size)
    return result


def _is_stored(node: Node, readers: dict[Node, list[Node | None]]) -> bool:
    if node.kind in _ALONE:
        return True
    if node.kind in _FREE:
        return False
    times = [_times(node, reader, readers) for reader in readers[node]]
    return sum(times) > 1 or _length(node, readers) > _LONGEST


def _times(node: Node, reader: Node | None, readers: dict[Node, list[Node | None]]) -> int:
    """How often a reader computes each number of a node, at most 2."""
    if reader is None:
        return 1
    if reader.kind == "matmul":
        return 2
    if reader.kind in _FREE:
        more = 2 if reader.kind == "expand" and reader.size > node.size else 1
        return min(2, more * sum(_times(reader, other, readers) for other in readers[reader]))
    return 2 if reader.kind not in _ALONE and reader.size > node.size else 1


def _length(node: Node, readers: dict[Node, list[Node | None]]) -> int:
    """About how long the expression of a node is."""
    if node.kind in _ALONE or node.kind == "input":
        return 10
    return 10 + sum(
        _length(value, readers) if value.kind in _FREE or not _is_shared(value, readers) else 10
        for value in node.nodes()
    )


def _is_shared(node: Node, readers: dict[Node, list[Node | None]]) -> bool:
    return node.kind in _ALONE or sum(_times(node, reader, readers) for reader in readers[node]) > 1


def _last(node: Node, readers: dict[Node, list[Node | None]], order: dict[Node, int], stored: set[Node]) -> int:
    """The place of the last node that reads a node's array, also through expressions."""
    last, waiting = order[node], [node]
    while waiting:
        for reader in readers[waiting.pop()]:
            if reader is None:
                return len(order)
            last = max(last, order[reader])
            if reader not in stored:
                waiting.append(reader)
    return last


def function(graph: Graph, name: str, constant: Callable[[Node], str]) -> str:
    """The source of a C function of the graph.

    Args:
        graph: it.
        name: of the function, whose arguments are the output array, the inputs and a work area.
        constant: gives the name of a constant array.
    """
    return _Writer(graph, plan(graph), constant).source(name)


class _Writer:
    def __init__(self, graph: Graph, arrays: Plan, constant: Callable[[Node], str]) -> None:
        self.graph, self.arrays, self.constant = graph, arrays.arrays, constant
        self.inputs = {node: f"in{number}" for number, node in enumerate(graph.inputs)}
        self.lines: list[str] = []

    def source(self, name: str) -> str:
        """The function."""
        for node in self.graph.nodes:
            if node in self.arrays:
                self._store(node)
        begin = 0
        for output in self.graph.outputs:
            self._loop(output, f"out + {begin}", output)
            begin += output.size
        inputs = ", ".join(f"const double *{pointer}" for pointer in self.inputs.values())
        unused = [pointer for pointer in self.inputs.values() if not any(f"{pointer}[" in line for line in self.lines)]
        unused += [] if self.arrays else ["work"]
        body = "\n".join(f"    {line}" for line in [*self.lines, *(f"(void){pointer};" for pointer in unused)])
        return f"static void {name}(double *restrict out, {inputs}, double *restrict work)\n{{\n{body}\n}}\n"

    def _store(self, node: Node) -> None:
        """The loops that compute a node's array."""
        array = f"work + {self.arrays[node]}"
        if node.kind == "cat":
            begin = 0
            for part in node.nodes():
                self._loop(part, array, node, node.options["axis"], begin)
                begin += part.shape[node.options["axis"]]
        elif node.kind in _ALONE:
            self._reduce(node, array)
        else:
            self._loop(node, array, node, computes=True)

    def _loop(
        self, part: Node, array: str, whole: Node, axis: int | None = None, begin: int = 0, computes: bool = False
    ) -> None:
        """Write a node, or what computes it, into an array with the shape of another, from a place of an axis on."""
        if not part.size:
            return
        index = self._open(part.shape)
        target = [f"{place} + {begin}" if axis == number and begin else place for number, place in enumerate(index)]
        target = [f"({place})" if "+" in place else place for place in target]
        value = self.compute(part, index) if computes else self.value(part, index)
        value = f"({value}) ? 1.0 : 0.0" if part.is_bool else value
        self.lines.append(f"({array})[{_linear(target, whole.shape)}] = {value};")
        self._close(part.shape)

    def _open(self, shape: Sequence[int], skipped: Sequence[int] = ()) -> list[str]:
        """Open a loop over each axis that has several places; returns an index."""
        names = []
        for axis, size in enumerate(shape):
            if size == 1 or axis in skipped:
                names.append("0")
                continue
            names.append(f"i{axis}")
            self.lines.append(f"for (size_t i{axis} = 0; i{axis} < {size}; i{axis}++) {{")
        return names

    def _close(self, shape: Sequence[int], skipped: Sequence[int] = ()) -> None:
        self.lines += ["}"] * sum(size > 1 and axis not in skipped for axis, size in enumerate(shape))

    def _reduce(self, node: Node, array: str) -> None:
        if node.kind == "matmul":
            self._multiply(node, array)
            return
        x, axes = node.nodes()[0], node.options["axes"]
        index = self._open(x.shape, axes)
        keeps = len(node.shape) == len(x.shape)
        target = [place for axis, place in enumerate(index) if keeps or axis not in axes]
        start = {"sum": "0.0", "any": "0.0", "amin": "HUGE", "amax": "-HUGE", "argmin": "HUGE"}[node.kind]
        self.lines.append("{")
        self.lines.append(f"double sum = {start.replace('HUGE', _number(math.inf))};")
        self.lines += ["double at = 0.0;"] if node.kind == "argmin" else []
        inner = self._open([size if axis in axes else 1 for axis, size in enumerate(x.shape)])
        value = self.value(x, [inner[axis] if axis in axes else place for axis, place in enumerate(index)])
        statement = {
            "sum": f"sum += {value};",
            "any": f"sum = ({value}) ? 1.0 : sum;",
            "amin": f"sum = least_of(sum, {value});",
            "amax": f"sum = largest_of(sum, {value});",
        }.get(node.kind)
        if statement is None:
            place = _linear([inner[axis] for axis in axes], [x.shape[axis] for axis in axes])
            self.lines.append(f"const double here = {value};")
            statement = f"if (here < sum) {{ sum = here; at = (double)({place}); }}"
        self.lines.append(statement)
        self._close([size if axis in axes else 1 for axis, size in enumerate(x.shape)])
        result = "at" if node.kind == "argmin" else "sum"
        self.lines.append(f"({array})[{_linear(target, node.shape)}] = {result};")
        self.lines.append("}")
        self._close(x.shape, axes)

    def _multiply(self, node: Node, array: str) -> None:
        first, second = node.nodes()
        index = self._open(node.shape)
        count = first.shape[-1]
        self.lines += ["{", "double sum = 0.0;", f"for (size_t k = 0; k < {count}; k++) {{"]
        row, column = [*index[:-1], "k"], [*index[:-2], "k", index[-1]]
        self.lines.append(f"sum += {self.value(first, row)} * {self.value(second, column[-len(second.shape) :])};")
        self.lines += ["}", f"({array})[{_linear(index, node.shape)}] = sum;", "}"]
        self._close(node.shape)

    def value(self, node: Node, index: Index) -> str:
        """The expression of a number of a node: of its array, if it has one."""
        if node in self.arrays or node in self.inputs or node.kind == "constant":
            array = self.inputs.get(node) or (
                f"(work + {self.arrays[node]})" if node in self.arrays else self.constant(node)
            )
            number = f"{array}[{_linear(index, node.shape)}]"
            return f"({number} > 0.5)" if node.is_bool else number
        return self.compute(node, index)

    def compute(self, node: Node, index: Index) -> str:
        """The expression that computes a number of a node."""
        if node.kind == "fill":
            return _number(node.options["number"])
        if node.kind in _FREE:
            x = node.nodes()[0]
            return self.value(x, _inner(node, x, index))
        parts = [
            self.value(value, _broadcast(index, value.shape)) if isinstance(value, Node) else _literal(value)
            for value in node.inputs
        ]
        if node.kind in _BINARY:
            return f"({parts[0]} {_BINARY[node.kind]} {parts[1]})"
        if node.kind == "where":
            return f"({parts[0]} ? {parts[1]} : {parts[2]})"
        if node.kind in ("neg", "not"):
            return f"({'-' if node.kind == 'neg' else '!'}{parts[0]})"
        return f"{_FUNCTIONS[node.kind]}({', '.join(parts)})"


def _broadcast(index: Index, shape: Sequence[int]) -> list[str]:
    """An index into a tensor that is broadcast."""
    inner = list(index)[len(index) - len(shape) :]
    return ["0" if size == 1 else place for place, size in zip(inner, shape, strict=True)]


def _inner(node: Node, x: Node, index: Index) -> list[str]:
    """The index into the tensor that a node is a view of."""
    options, places = node.options, list(index)
    if node.kind == "select":
        places.insert(options["axis"], str(options["place"]))
    elif node.kind == "slice":
        axis, begin = options["axis"], options["begin"]
        places[axis] = f"({places[axis]} + {begin})" if begin else places[axis]
    elif node.kind == "permute":
        whole = ["0"] * len(places)
        for place, axis in zip(places, options["axes"], strict=True):
            whole[axis] = place
        places = whole
    elif node.kind == "diagonal":
        places.append(places[-1])
    elif node.kind == "expand":
        places = _broadcast(places, x.shape)
    elif [size for size in node.shape if size > 1] == [size for size in x.shape if size > 1]:
        several = iter([place for place, size in zip(places, node.shape, strict=True) if size > 1])
        places = [next(several) if size > 1 else "0" for size in x.shape]
    else:
        flat, places = f"({_linear(places, node.shape)})", []
        for axis, size in enumerate(x.shape):
            stride = math.prod(x.shape[axis + 1 :])
            place = flat if stride == 1 else f"{flat} / {stride}"
            places.append("0" if size == 1 else f"({place} % {size})" if axis else f"({place})")
    return places


def _linear(index: Sequence[str], shape: Sequence[int]) -> str:
    """The number of an element in an array."""
    terms = []
    for axis, (place, size) in enumerate(zip(index, shape, strict=True)):
        stride = math.prod(shape[axis + 1 :])
        if size > 1 and place != "0":
            terms.append(place if stride == 1 else f"{place} * {stride}")
    return " + ".join(terms) or "0"


def _literal(value: float | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else _number(float(value))


def _number(value: float) -> str:
    """A double in C, without a library: infinity is a number that is too large."""
    if math.isnan(value):
        return "not_a_number()"
    if math.isinf(value):
        return "endless()" if value > 0 else "(-endless())"
    return f"({value!r})" if value < 0 else repr(value)
