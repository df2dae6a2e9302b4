"""Rates of devices and the time that work takes on them, for all cost estimates.

The time of an algorithm is estimated as arithmetic / rate + traffic / bandwidth, and launches · latency, forward and
backward together; constant matrices, which are only read, count at a bandwidth of their own. On a CPU it is the sum of
both, on a GPU the larger, since a GPU works while the next launch is prepared. In a CUDA graph, where launches take
little but follow each other, it is the sum too. The rates are round numbers measured once for each kind of device; only
their ratios matter to the choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FLOAT = 4  # bytes of a float32
HALF = 2  # bytes of a number in half precision


@dataclass(frozen=True)
class Rates:
    """Rates of a kind of device."""

    flops: float  # float32 operations a second
    half_flops: float  # half-precision operations a second
    bandwidth: float  # bytes a second that are read and written
    reading: float  # bytes a second of constant matrices
    latency: float  # seconds that the smallest operation takes
    own_latency: float  # the same for plmu's own kernels, on a GPU
    gpu: bool  # a GPU runs chunked products in half precision, and pays more for states carried between chunks
    overlaps: bool  # whether operations are prepared while earlier operations run
    stored: int  # elements of m up to which `project` may store it: 4 MiB in float32 on a CPU, 64 MiB on a GPU

    def seconds(
        self,
        *,
        flops: float,
        moved: float,
        launches: int,
        constants: float = 0,
        half: bool = False,
        in_float32: float = 0,
        own: bool = False,
    ) -> float:
        """The time of `flops` (in half precision if `half`), `in_float32` further operations, `moved` bytes, bytes of
        `constants` that are read, and `launches` (of plmu's own kernels if `own`)."""
        work = flops / (self.half_flops if half else self.flops) + in_float32 / self.flops
        work += moved / self.bandwidth + constants / self.reading
        waiting = launches * (self.own_latency if own else self.latency)
        return max(work, waiting) if self.overlaps else work + waiting


DEVICES = {
    "cpu": Rates(1.1e11, 1.1e11, 4e9, 1e10, 1.3e-5, 0.0, gpu=False, overlaps=False, stored=1 << 20),
    "cuda": Rates(4e13, 5e14, 3e12, 3e12, 3.5e-5, 5e-5, gpu=True, overlaps=True, stored=1 << 24),
}
GRAPH_LATENCY = 2e-6  # of a kernel in a CUDA graph


def rates_of(device: str, graph: bool = False) -> Rates:
    """The rates of a kind of device such as "cuda"; those of a CPU for a kind without measured rates."""
    rates = DEVICES.get(device, DEVICES["cpu"])
    if graph:
        return replace(rates, latency=GRAPH_LATENCY, own_latency=GRAPH_LATENCY, overlaps=False)
    return rates
