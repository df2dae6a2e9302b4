"""Which algorithm runs for which shape, and why: analytic, deterministic, from shapes, precision and device alone.

Each candidate's time is estimated as arithmetic / rate + traffic / bandwidth, and launches · latency, forward and
backward together: their sum on a CPU, the larger of the two on a GPU, which works while the next launch is prepared.
In a CUDA graph, where launches take little but follow each other, it is the sum too. The rates are round numbers
measured once for each kind of device; only their ratios matter to the choice.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from plmu.ops import fused, hopper
from plmu.ops.chunk_tables import CHUNK, grouping, rows_of, tiles
from plmu.ops.final import block_length
from plmu.ops.matrices import may_grow
from plmu.systems import LinearSystem

ALGORITHMS = ("recurrent", "toeplitz", "fft", "chunked", "fused")
KINDS = ("states", "final_state", "project")
CHUNKS = (16, 32, 64, 128)
RESET_CHUNK = 16  # with resets each block has a Toeplitz matrix of its own, whose size grows with the chunk
FEW_STEPS = 16  # up to this length "auto" considers the recurrence itself
SINGLE_CHUNK = 256  # up to this length the whole sequence may be one chunk
SMALL = 1 << 20  # elements that the weight times the block matrix may always have
LARGEST_MATRIX = 1 << 24  # elements of a constant matrix that "auto" will build
CARRIED_ROW = 5e-8  # seconds for a row of the state to pass a chunk in our own kernels


@dataclass(frozen=True)
class Plan:
    """What runs: `print(plan)` explains it. `costs` are estimated seconds, forward and backward, of all candidates."""

    kind: str
    algorithm: str
    chunk: int = 0  # steps a block, for chunked
    fold: bool = False  # whether the weight is multiplied into the block matrix first
    tile: int = 0  # blocks of m that exist at a time in `project`
    reason: str = ""
    costs: dict[str, float] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.algorithm}. {self.reason}"]
        for name, seconds in sorted(self.costs.items(), key=lambda item: item[1]):
            lines.append(f"  {name:<28} about {_pretty(seconds)} forward + backward")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Device:
    """Rates of a kind of device, for its float32 and its half-precision units."""

    flops: float
    half_flops: float
    bandwidth: float
    latency: float  # seconds a small operation takes however little it does
    own_latency: float  # the same for a kernel of our own, on a GPU
    gpu: bool  # where chunked products run in half precision, and what is carried between chunks costs more
    overlaps: bool  # whether operations are prepared while earlier ones still run
    stored: int  # elements of m up to which `project` may store it: 4 MiB in float32 on a CPU, 64 MiB on a GPU


_DEVICES = {
    "cpu": _Device(1.5e11, 1.5e11, 4e9, 2.5e-5, 0.0, gpu=False, overlaps=False, stored=1 << 20),
    "cuda": _Device(4e13, 5e14, 3e12, 3.5e-5, 1.4e-4, gpu=True, overlaps=True, stored=1 << 24),
}
_GRAPH_LATENCY = 2e-6  # of a kernel in a CUDA graph

_in_graphs = 0  # how many times entered, by all threads: what autograd's recomputes must be planned as it was
_in_graphs_lock = threading.Lock()


@contextlib.contextmanager
def for_graphs() -> Iterator[None]:
    """Within it `"auto"` chooses for calls that are captured as a CUDA graph, where launches cost next to nothing.

    Calls that warm up for the capture belong in it too: they build the constants of what is chosen. It holds for all
    threads of the process.

    >>> with plmu.for_graphs():  # doctest: +SKIP
    ...     step()
    ...     with torch.cuda.graph(graph):
    ...         step()
    """
    _count_graphs(1)
    try:
        yield
    finally:
        _count_graphs(-1)


def _count_graphs(change: int) -> None:
    global _in_graphs
    with _in_graphs_lock:
        _in_graphs += change


def plan(
    kind: str,
    *,
    batch: int,
    time: int,
    channels: int,
    system: LinearSystem,
    out: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    algorithm: str = "auto",
    resets: bool = False,
) -> Plan:
    """Which algorithm `states`, `final_state` or `project` runs for these shapes, why, and at what estimated cost.

    >>> print(plan("states", batch=8, time=512, channels=64, system=system))  # doctest: +SKIP
    states: chunked. blocks of 64 steps as one product each, ...
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be auto or one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if kind == "project" and out is None:
        raise ValueError("out is needed to plan project: the first size of its weight")
    if not isinstance(system, LinearSystem):
        raise TypeError(f"system must be a plmu.LinearSystem, got {type(system).__name__}")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
    # As whole numbers: a compiled graph is made for its sizes, as the constant matrices are.
    batch, time = _at_least(0, batch, "batch"), _at_least(1, time, "time")
    channels, out = _at_least(1, channels, "channels"), 0 if out is None else _at_least(1, out, "out")
    if kind == "final_state" and algorithm != "auto":
        raise ValueError(f"final_state has one algorithm, equation 25: algorithm must be auto, got {algorithm!r}")
    if system.inputs is not None and channels != system.inputs:
        raise ValueError(f"channels must be the system's {system.inputs} inputs, got {channels}")
    if resets and algorithm in ("toeplitz", "fft"):
        raise ValueError(f"algorithm={algorithm!r} cannot reset inside a sequence: use chunked, recurrent or auto")
    try:
        kind_of_device = torch.device(device).type
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be a torch.device or a name such as 'cpu' or 'cuda', got {device!r}") from None
    trouble = _trouble_with_fused(system, dtype, kind_of_device)
    if algorithm == "fused" and trouble is not None:
        raise ValueError(f"algorithm='fused' {trouble}: use chunked or auto")
    # The FFT adds rounding errors of the size of the largest state to all others, so none may grow.
    bounded = not may_grow(system)
    # In this order: on a CPU torch.compile then has no guard on what only matters to a GPU.
    graph, fusible = kind_of_device == "cuda" and _in_graphs > 0, trouble is None
    inputs = system.inputs or 1
    sizes = (batch, time, system.order, inputs, channels // inputs, out)
    if torch.compiler.is_compiling():
        return Plan(kind, *_choice(kind, *sizes, dtype, str(device), algorithm, resets, fusible, bounded, graph))
    return _known_plan(kind, *sizes, dtype, str(device), algorithm, resets, fusible, bounded, graph)


def _at_least(least: int, value: int, name: str) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if isinstance(value, bool) or whole < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return whole


def may_store(elements: int, like: Tensor) -> bool:
    """Whether an m of so many elements, on the device of a tensor, may be stored where it need not be."""
    return elements <= _DEVICES.get(like.device.type, _DEVICES["cpu"]).stored


def _trouble_with_fused(system: LinearSystem, dtype: torch.dtype, device: str) -> str | None:
    """Why our own kernels cannot run this, if they cannot."""
    trouble = None
    if device != "cuda" and not fused.interpreted():
        trouble = f"runs on a GPU alone, not on {device}"
    elif not fused.AVAILABLE:
        trouble = "needs Triton: pip install triton"
    elif dtype == torch.float64:
        trouble = "has no float64"
    elif system.inputs is not None:
        trouble = "takes one input for each channel, not a system with several"
    elif system.order > fused.LARGEST_ORDER:
        trouble = f"takes orders up to {fused.LARGEST_ORDER}, not {system.order}"
    elif system.trained:
        trouble = "has no gradient for the system itself"
    elif not system.constant:
        trouble = "needs a system whose values are known"
    return trouble


@dataclass(frozen=True)
class _Sizes:
    batch: int
    time: int
    order: int
    inputs: int
    channels: int
    out: int

    @property
    def states(self) -> int:
        """How many numbers m has."""
        return self.batch * self.time * self.order * self.channels


def _choice(*arguments: Any) -> tuple[str, int, bool, int]:
    """What torch.compile needs of a plan, worked out once, while tracing."""
    chosen = _known_plan(*arguments)
    return chosen.algorithm, chosen.chunk, chosen.fold, chosen.tile


# What torch.compiler.assume_constant_result does, without importing the compiler, which takes longer than torch.
_choice._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def _known_plan(
    kind: str,
    batch: int,
    time: int,
    order: int,
    inputs: int,
    channels: int,
    out: int,
    dtype: torch.dtype,
    device: str,
    algorithm: str,
    resets: bool,
    may_fuse: bool,
    bounded: bool,
    graph: bool,
) -> Plan:
    sizes = _Sizes(batch, time, order, inputs, channels, out)
    where, device = torch.device(device), torch.device(device).type
    rates = _DEVICES.get(device, _DEVICES["cpu"])
    if graph:
        rates = replace(rates, latency=_GRAPH_LATENCY, own_latency=_GRAPH_LATENCY, overlaps=False)
    if kind == "final_state":
        return _final(sizes, rates)
    half = rates.gpu and dtype in (torch.float16, torch.bfloat16)
    if algorithm in ("recurrent", "toeplitz", "fft"):
        return Plan(kind, algorithm, reason="Asked for by name.")
    if algorithm == "fused":
        return Plan(kind, algorithm, CHUNK, reason=_WHY["fused"] + " Asked for by name.")
    candidates: dict[str, tuple[float, Plan]] = {}
    for chunk in _chunks(sizes, resets):
        for fold in (False, True) if kind == "project" and not resets and _may_fold(sizes, chunk) else (False,):
            seconds = _chunked(kind, sizes, rates, half, chunk, fold, resets)
            name = f"chunked, {chunk} steps" + (", folded" if fold else "")
            candidates[name] = (seconds, Plan(kind, "chunked", chunk, fold, _tile(sizes, chunk, device, resets)))
    # Our own kernels are worth it where the two heavy ones run in their form for the device; with resets the others do.
    suits = kind == "project" and hopper.suits(where, dtype, channels, out)
    if algorithm == "auto" and may_fuse and suits:
        candidates["fused"] = (_fused(sizes, rates, resets), Plan(kind, "fused", CHUNK))
    if algorithm == "auto" and (kind == "states" or sizes.states <= rates.stored):
        # At every step it has the rounding errors of a sequence's largest input: taken for its few launches on a GPU.
        if device == "cuda" and bounded and not resets and dtype != torch.float64:
            candidates["fft"] = (_fft(kind, sizes, rates), Plan(kind, "fft"))
        if sizes.time <= FEW_STEPS:
            candidates["recurrent"] = (_recurrent(kind, sizes, rates), Plan(kind, "recurrent"))
        if not resets and sizes.time**2 * sizes.order * sizes.inputs <= LARGEST_MATRIX:
            candidates["toeplitz"] = (_toeplitz(kind, sizes, rates), Plan(kind, "toeplitz"))
    _, chosen = min(candidates.values(), key=lambda candidate: candidate[0])
    costs = {name: seconds for name, (seconds, _) in candidates.items()}
    why = _WHY["folded" if chosen.fold else chosen.algorithm].format(chunk=chosen.chunk)
    compared = f" Cheapest of {len(costs)} candidates by estimate." if algorithm == "auto" else " Asked for by name."
    return Plan(kind, chosen.algorithm, chosen.chunk, chosen.fold, chosen.tile, why + compared, costs)


_WHY = {
    "fused": "Kernels of our own: tiles of m are made on chip and multiplied into the weight at once.",
    "recurrent": "Too few steps for anything but equation 19 itself.",
    "fft": "Long and narrow enough for one transform over all steps (equation 26).",
    "toeplitz": "Short enough for one product over all steps (equations 22 to 24).",
    "chunked": "Blocks of {chunk} steps, one product with a constant matrix each, states carried between them.",
    "folded": "Blocks of {chunk} steps, with the weight multiplied into their matrix: cheaper than {chunk} states.",
}


def _chunks(sizes: _Sizes, resets: bool) -> list[int]:
    if resets:
        return [min(RESET_CHUNK, sizes.time)]
    found = [chunk for chunk in CHUNKS if chunk < sizes.time and _matrix(sizes, chunk) <= LARGEST_MATRIX]
    if sizes.time <= SINGLE_CHUNK and _matrix(sizes, sizes.time) <= LARGEST_MATRIX:
        found.append(sizes.time)
    return found or [min(CHUNKS[0], sizes.time)]


def _matrix(sizes: _Sizes, chunk: int) -> int:
    """Elements of the block matrix [T | P]."""
    return chunk * sizes.order * (chunk * sizes.inputs + sizes.order)


def _may_fold(sizes: _Sizes, chunk: int) -> bool:
    """Whether the weight times the block matrix is no larger than what goes in and out."""
    folded = chunk * sizes.out * (chunk * sizes.inputs + sizes.order) * sizes.channels
    return folded <= max(SMALL, sizes.batch * sizes.time * (sizes.inputs * sizes.channels + sizes.out))


def _tile(sizes: _Sizes, chunk: int, device: str, resets: bool = False) -> int:
    """Blocks of m at a time: a few MiB, or a quarter of input and output where that is more. With resets each block has
    a matrix of its own too."""
    least = 1 << 24 if device == "cuda" else 1 << 21
    moved = sizes.batch * sizes.time * (sizes.inputs * sizes.channels + sizes.out)
    width = max(sizes.channels, chunk * sizes.inputs) if resets else sizes.channels
    return max(1, max(least, moved // 4) // (chunk * sizes.order * width))


def _chunked(kind: str, sizes: _Sizes, rates: _Device, half: bool, chunk: int, fold: bool, resets: bool) -> float:
    blocks = sizes.batch * -(-sizes.time // chunk)
    columns = chunk * sizes.inputs + (sizes.order if chunk < sizes.time else 0)
    rounds = (-(-sizes.time // chunk) - 1).bit_length()
    carried = blocks * sizes.channels * sizes.order
    passing = 4 * carried * (chunk * sizes.inputs + rounds * sizes.order) if rounds else 0
    states = blocks * chunk * sizes.order * sizes.channels
    moved = (12 if rates.gpu else 4) * (1 + rounds) * carried + 3 * blocks * columns * sizes.channels
    launches = 15
    if rounds:  # on a CPU more of them, which fits its times
        launches = 20 + 4 * rounds if rates.gpu else 40 + 6 * rounds
    small = 1 + 24 / columns  # short products do not reach the full rate
    matrix = _matrix(sizes, chunk)
    if kind == "states":
        flops = 4 * states * columns * small
        moved += 2 * states + matrix // 2
    elif fold:
        wide = blocks * chunk * sizes.out
        flops = 6 * wide * columns * sizes.channels * small
        flops += 6 * chunk * sizes.out * sizes.order * columns * sizes.channels
        moved += 2 * wide + 4 * chunk * sizes.out * columns * sizes.channels
        launches += 10
    else:
        passes = tiles(blocks, _tile(sizes, chunk, "cuda" if rates.gpu else "cpu"))
        flops = 6 * states * columns * small + 6 * states * sizes.out
        moved += (22 if resets and rates.gpu else 2) * states + 2 * blocks * chunk * sizes.out + passes * matrix
        launches += 10 * passes + 10
    return _seconds(rates, flops, 4 * moved, launches, half, in_float32=passing)


def _fused(sizes: _Sizes, rates: _Device, resets: bool) -> float:
    """Tiles are made whole: of chunks, of 64 channels, and of 64, 128 or 256 outputs. With resets, at the lower rate of
    the kernels for every GPU. Passing states on is counted whether or not the response fades within a chunk: that is a
    matter of the system's values."""
    wide = 256 if sizes.out > 128 else 128 if sizes.out > 64 else 64
    chunks = tiles(sizes.time, CHUNK)
    passed = grouping(sizes.batch, sizes.time, sizes.channels)[1]  # one after another
    products = (
        6 * sizes.batch * chunks * CHUNK * sizes.order * tiles(sizes.channels, 64) * 64 * tiles(sizes.out, wide) * wide
    )
    extra = (2.5 if resets else 1) * (1 + (CHUNK + 32) / wide)
    moved = 3 * sizes.batch * sizes.time * (sizes.channels + sizes.out)
    rates = replace(rates, latency=rates.own_latency)
    carrying = 3 * passed * rows_of(sizes.order) * CARRIED_ROW
    return carrying + _seconds(rates, products * extra, 2 * moved, launches=12, half=True)


def _recurrent(kind: str, sizes: _Sizes, rates: _Device) -> float:
    flops = 4 * sizes.states * (sizes.order + sizes.inputs)
    return _plain(kind, sizes, rates, flops, 4 * sizes.states, 5 * sizes.time)


def _toeplitz(kind: str, sizes: _Sizes, rates: _Device) -> float:
    flops = 4 * sizes.states * sizes.time * sizes.inputs
    matrix = sizes.time**2 * sizes.order * sizes.inputs
    return _plain(kind, sizes, rates, flops, 2 * sizes.states + 3 * matrix // 4, 10)


def _fft(kind: str, sizes: _Sizes, rates: _Device) -> float:
    return _plain(kind, sizes, rates, 0, 30 * sizes.states, 24)


def _plain(kind: str, sizes: _Sizes, rates: _Device, flops: float, moved: float, launches: int) -> float:
    if kind == "project":
        flops += 6 * sizes.states * sizes.out
        moved += sizes.states + 2 * sizes.batch * sizes.time * sizes.out
        launches += 8
    return _seconds(rates, flops, 4 * moved, launches, half=False)


def _seconds(rates: _Device, flops: float, moved: float, launches: int, half: bool, in_float32: float = 0) -> float:
    work = flops / (rates.half_flops if half else rates.flops) + in_float32 / rates.flops + moved / rates.bandwidth
    waiting = launches * rates.latency
    return max(work, waiting) if rates.overlaps else work + waiting


def _final(sizes: _Sizes, rates: _Device) -> Plan:
    block = block_length(sizes.time, sizes.order, sizes.inputs)
    if block == sizes.time:
        why = f"Equation 25: one product with the impulse response, {sizes.order} × {sizes.time * sizes.inputs}."
    else:
        why = f"Equation 25 over blocks of {block} steps, whose ends are then joined in pairs."
    flops = 4 * sizes.batch * sizes.time * sizes.channels * sizes.order * sizes.inputs
    return Plan(
        "final_state", "product", chunk=block, reason=why, costs={"product": flops / rates.flops + 10 * rates.latency}
    )


def _pretty(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
