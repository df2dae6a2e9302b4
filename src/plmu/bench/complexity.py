"""`plmu bench complexity`: how time grows with size, for each row of the paper's complexity table.

One size is doubled while the others are constant, until a call takes four times as long as at first and long enough
that fixed costs no longer matter. The growth is the slope of log time over log size over the last two doublings. On a
GPU calls run as CUDA graphs, so that the work is measured and not the launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import plmu
from plmu.bench.measure import Keep, forget, graphed, medians

Sizes = dict[str, int]
KERNEL = 4
ENOUGH = {"cpu": 0.05, "cuda": 0.002}  # seconds
MOST = {"cpu": 1 << 27, "cuda": 1 << 31}  # numbers in memory
LARGEST_ORDER = 1024
LARGEST_MATRIX = 1 << 28  # elements of the Toeplitz matrix, which is built on the CPU in float64


@dataclass(frozen=True)
class Layer:
    """A row of the table: a name, what the paper says, and a layer for given sizes."""

    name: str
    claim: str
    expected: dict[str, float]  # the exponent of each size, without logarithms
    build: Callable[[Sizes, str], Callable[[], Tensor]]

    def fits(self, sizes: Sizes, device: str) -> bool:
        """Whether it takes few enough numbers in memory."""
        n, d, d_x = sizes["n"], sizes["d"] if "d" in self.expected else 1, sizes["d_x"]
        square = n * n * d if self.expected["n"] == 2 else 0
        numbers = sizes["batch"] * n * d * d_x + square + d_x * d_x
        return numbers <= MOST[device.split(":")[0]] and square <= LARGEST_MATRIX and d <= LARGEST_ORDER


def rnn(sizes: Sizes, device: str) -> Callable[[], Tensor]:
    x, layer = _input(sizes, device), nn.RNN(sizes["d_x"], sizes["d_x"], batch_first=True).to(device)
    return lambda: layer(x)[0]


def convolution(sizes: Sizes, device: str) -> Callable[[], Tensor]:
    x = _input(sizes, device).transpose(1, 2).contiguous()
    layer = nn.Conv1d(sizes["d_x"], sizes["d_x"], KERNEL).to(device)
    return lambda: layer(x)


def attention(sizes: Sizes, device: str) -> Callable[[], Tensor]:
    x = _input(sizes, device)[:, None]
    return lambda: scaled_dot_product_attention(x, x, x)


def delay_network(algorithm: str) -> Callable[[Sizes, str], Callable[[], Tensor]]:
    def build(sizes: Sizes, device: str) -> Callable[[], Tensor]:
        x = _input(sizes, device)
        system = plmu.DelayNetwork(sizes["d"], float(sizes["n"])).discretize()
        if algorithm == "final":
            return lambda: plmu.final_state(x, system)
        return lambda: plmu.states(x, system, algorithm=algorithm)[0]

    return build


LAYERS = (
    Layer("RNN", "n d_x²", {"n": 1, "d_x": 2}, rnn),
    Layer("convolution", "k n d_x²", {"n": 1, "d_x": 2}, convolution),
    Layer("attention", "n² d_x", {"n": 2, "d_x": 1}, attention),
    Layer("DN, recurrent (eq. 19)", "n d² d_x", {"n": 1, "d": 2, "d_x": 1}, delay_network("recurrent")),
    Layer("DN, Toeplitz (eq. 24)", "n² d d_x", {"n": 2, "d": 1, "d_x": 1}, delay_network("toeplitz")),
    Layer("DN, final state (eq. 25)", "n d d_x", {"n": 1, "d": 1, "d_x": 1}, delay_network("final")),
    Layer("DN, FFT (eq. 26)", "n log n d d_x", {"n": 1, "d": 1, "d_x": 1}, delay_network("fft")),
    Layer("DN, chunked", "n (c + d) d d_x", {"n": 1, "d": 1, "d_x": 1}, delay_network("chunked")),
)


def run(device: str, rounds: int, keep: Keep = forget) -> dict[str, Any]:
    gpu = device != "cpu"
    base = {"batch": 8, "n": 1024, "d": 16, "d_x": 256} if gpu else {"batch": 2, "n": 256, "d": 8, "d_x": 64}
    rows: list[dict[str, Any]] = []
    for layer in LAYERS:
        check(layer)
        for size, expected in layer.expected.items():
            measured = points_of(layer, base, size, device, rounds)
            rows.append(
                {
                    "layer": layer.name,
                    "paper": layer.claim,
                    "size": size,
                    "expected": expected,
                    "growth": slope(measured[-3:]),
                    "points": [{"size": value, "milliseconds": 1e3 * seconds} for value, seconds in measured],
                }
            )
            keep({"base": base, "growth": rows})
    return {"base": base, "growth": rows}


def check(layer: Layer) -> None:
    """Raise AssertionError unless a row of the Delay Network computes the states of the recurrence."""
    if not layer.name.startswith("DN"):
        return
    sizes = {"batch": 2, "n": 40, "d": 6, "d_x": 3}
    with torch.no_grad():
        torch.manual_seed(0)
        value = layer.build(sizes, "cpu")()
        torch.manual_seed(0)
        exact = delay_network("recurrent")(sizes, "cpu")()
    torch.testing.assert_close(value, exact[:, -1] if value.dim() == 3 else exact, rtol=1e-4, atol=1e-5)


def points_of(layer: Layer, base: Sizes, size: str, device: str, rounds: int) -> list[tuple[int, float]]:
    """Seconds forward at doubling sizes, until they are long enough or memory would run short."""
    kind, points = device.split(":")[0], list[tuple[int, float]]()
    while len(points) < 3 or points[-1][1] < max(ENOUGH[kind], 4 * points[0][1]):
        sizes = {**base, size: base[size] << len(points)}
        if len(points) >= 3 and not layer.fits(sizes, device):
            break
        with torch.no_grad():
            eager = layer.build(sizes, device)
            call = eager if device == "cpu" else graphed(eager)
            seconds = medians({"it": call}, device=device, rounds=max(3, rounds // 2))["it"]
        points.append((sizes[size], seconds))
    return points


def slope(points: list[tuple[int, float]]) -> float:
    """Of log time over log size, through the first and the last point."""
    (small, before), (large, after) = points[0], points[-1]
    return math.log(after / before) / math.log(large / small)


def _input(sizes: Sizes, device: str) -> Tensor:
    return torch.randn(sizes["batch"], sizes["n"], sizes["d_x"]).to(device)
