"""`plmu bench layers`: the memory with its projection, W_m m, against its limit and against peers.

The limit is the bare product `m @ W` with m already there. Peers of the same width: the FFT form of the paper as plain
torch has it, torch's LSTM, scaled dot-product attention, and the chunked linear attention of flash-linear-attention
where that is installed (`pip install fla-core`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import plmu
from plmu.bench.measure import Times, graphed, medians, peak_memory, relative_error, timed, training


@dataclass(frozen=True)
class Shape:
    """A layer of `channels` in and `out` outputs, at a training batch."""

    batch: int
    time: int
    channels: int
    out: int
    order: int
    theta: float

    def __str__(self) -> str:
        return f"b{self.batch} n{self.time} {self.channels}→{self.out} d{self.order} θ{self.theta:g}"


GPU_SHAPES = (
    Shape(64, 512, 512, 512, 4, 6.0),
    Shape(64, 180, 512, 512, 16, 15.0),
    Shape(8, 4096, 1024, 1024, 4, 8.0),
    Shape(16, 2048, 512, 512, 32, 128.0),
)
CPU_SHAPES = (
    Shape(8, 256, 64, 64, 4, 6.0),
    Shape(8, 180, 64, 64, 16, 15.0),
    Shape(2, 1024, 64, 64, 4, 8.0),
    Shape(2, 512, 64, 64, 32, 128.0),
)
# Wider, shorter, longer and odder ones, where `auto` is held against every algorithm by name.
GPU_CHOICES = (
    *GPU_SHAPES,
    Shape(32, 5000, 1, 140, 40, 50.0),
    Shape(100, 784, 1, 346, 468, 784.0),
    Shape(64, 500, 300, 2, 1, 500.0),
    Shape(4, 20_000, 1, 16, 12, 1000.0),
    Shape(1, 131_072, 64, 64, 8, 64.0),
    Shape(128, 64, 256, 256, 8, 16.0),
    Shape(32, 20, 64, 64, 8, 20.0),
    Shape(2, 4096, 32, 32, 64, 256.0),
)
CPU_CHOICES = (*CPU_SHAPES, Shape(2, 2000, 1, 140, 40, 50.0), Shape(4, 20, 32, 32, 8, 20.0))
PEERS = ("FFT", "LSTM", "LSTM as a graph", "attention", "linear attention")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def run(device: str, rounds: int) -> dict[str, Any]:
    if device == "cpu":
        return _run(device, rounds)
    with torch.cuda.stream(torch.cuda.Stream()):  # graphs are captured on the stream where gradients were first taken
        return _run(device, rounds)


def _run(device: str, rounds: int) -> dict[str, Any]:
    gpu = device != "cpu"
    shapes = GPU_SHAPES if gpu else CPU_SHAPES
    kinds = (torch.bfloat16, torch.float32) if gpu else (torch.float32,)
    with plmu.for_graphs():
        found: dict[str, Any] = {
            "against the limit and peers": [
                against(shape, dtype, device, rounds) for dtype in kinds for shape in shapes
            ]
        }
    found["auto against every algorithm"] = [
        choice(shape, kinds[0], device, rounds) for shape in (GPU_CHOICES if gpu else CPU_CHOICES)
    ]
    if gpu:
        with plmu.for_graphs():
            found["auto against every algorithm, as graphs"] = [
                choice(shape, kinds[0], device, rounds, graphs=True) for shape in GPU_CHOICES
            ]
            found["with resets, as graphs"] = [
                choice(shape, kinds[0], device, rounds, graphs=True, every=100) for shape in shapes
            ]
    with plmu.for_graphs():
        found["length"] = lengths(kinds[0], device, rounds)
    return found


class Problem:
    """A layer's input, weight and system, the bare product's operand, and what the answer must be."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str, every: int | None = None) -> None:
        """With `every`, the state is reset about once in so many steps."""
        self.shape, self.dtype, self.device = shape, dtype, device
        generator = torch.Generator().manual_seed(0)
        scale = (shape.order * shape.channels) ** -0.5
        self.u = _random(generator, shape.batch, shape.time, shape.channels).to(device, dtype).requires_grad_()
        weight = scale * _random(generator, shape.out, shape.order, shape.channels)
        self.weight = weight.to(device, dtype).requires_grad_()
        self.system = plmu.DelayNetwork(shape.order, shape.theta).discretize()
        self.resets: Tensor | None = None
        if every is not None:
            self.resets = (torch.rand(shape.batch, shape.time, generator=generator) < 1 / every).to(device)

    def project(self, algorithm: str) -> Callable[[], Tensor]:
        return lambda: plmu.project(self.u, self.system, self.weight, algorithm=algorithm, resets=self.resets)[0]

    def fft(self) -> Callable[[], Tensor]:
        """All of m by torch's FFT, in float32 as it has no half precision for all sizes, then the product."""
        time = self.shape.time
        taps = self.system.impulse_response(time).float().T.contiguous().to(self.device)  # (time, order)

        def call() -> Tensor:
            points = 2 * time
            of_u = torch.fft.rfft(self.u.float(), n=points, dim=1)[:, :, None]
            of_taps = torch.fft.rfft(taps, n=points, dim=0)[None, :, :, None]
            m = torch.fft.irfft(of_taps * of_u, n=points, dim=1)[:, :time]
            o: Tensor = m.to(self.dtype).flatten(2) @ self.weight.flatten(1).mT
            return o

        return call

    def bare(self) -> tuple[Callable[[], Tensor], Tensor]:
        """`m @ W` for an m that is there, and that m."""
        shape = self.shape
        m = torch.randn(shape.batch * shape.time, shape.order * shape.channels, device=self.device)
        operand = m.to(self.dtype).requires_grad_()
        return lambda: operand @ self.weight.flatten(1).mT, operand

    def lstm(self) -> Callable[[], Tensor]:
        layer = nn.LSTM(self.shape.channels, self.shape.out, batch_first=True).to(self.device, self.dtype)
        return lambda: layer(self.u)[0]

    def attention(self) -> Callable[[], Tensor]:
        split = self._heads().transpose(1, 2)
        return lambda: scaled_dot_product_attention(split, split, split, is_causal=True)

    def linear_attention(self) -> Callable[[], Tensor]:
        """The kernel alone: without weights, a feature map or a normalisation."""
        from fla.ops.linear_attn import chunk_linear_attn

        split = self._heads()

        def call() -> Tensor:
            out: Tensor = chunk_linear_attn(split, split, split, normalize=False)[0]
            return out

        return call

    def _heads(self) -> Tensor:
        heads: Tensor = self.u.unflatten(2, (max(1, self.shape.channels // 64), -1))
        return heads

    def errors(self, calls: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
        """Of the first sequence against float64. Too large a one stops the benchmark."""
        with torch.no_grad():
            resets = None if self.resets is None else self.resets[:1]
            m = plmu.states(self.u[:1].double(), self.system, algorithm="chunked", resets=resets)[0]
            exact = m.flatten(2) @ self.weight.double().flatten(1).mT
            found = {name: relative_error(call()[:1], exact) for name, call in calls.items()}
        wrong = [f"{name} {error:.1e}" for name, error in found.items() if not error <= TOLERANCE[self.dtype]]
        if wrong:
            raise RuntimeError(f"wrong answers at {self.shape}, {self.dtype}: {', '.join(wrong)}")
        return found


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def against(shape: Shape, dtype: torch.dtype, device: str, rounds: int) -> dict[str, Any]:
    """Ours, forward and with gradients, over the bare product; how many times faster than each peer; memory."""
    problem = Problem(shape, dtype, device)
    names = ["auto", "chunked", *_fused_if_it_suits(shape, dtype, device)]
    bare, operand = problem.bare()
    forward: dict[str, Callable[[], Tensor]] = {name: problem.project(name) for name in names}
    fft = problem.fft()
    errors = problem.errors({**forward, "FFT": fft})  # the plain method: how exact this precision can be
    without_weight = {"LSTM": problem.lstm(), "attention": problem.attention()}
    if device != "cpu":
        without_weight["LSTM as a graph"] = without_weight["LSTM"]
    if device != "cpu" and dtype == torch.bfloat16 and find_spec("fla") is not None:
        without_weight["linear attention"] = problem.linear_attention()
    forward["FFT"] = fft
    leaves = (problem.u, problem.weight)
    both = {name: training(call, *leaves) for name, call in forward.items()}
    both |= {name: training(call, problem.u) for name, call in without_weight.items()}
    forward |= without_weight
    both["product"] = training(bare, operand, problem.weight)
    with torch.no_grad():
        forward_times = timed(_launched({**forward, "product": bare}, device), device=device, rounds=rounds)
    both_times = timed(_launched(both, device), device=device, rounds=rounds)
    row: dict[str, Any] = {
        "shape": str(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "as CUDA graphs, but LSTM": device != "cpu",
        "milliseconds forward": _milli(forward_times),
        "milliseconds forward and backward": _milli(both_times),
        "over the product, forward": {name: forward_times.ratio(name, "product") for name in names},
        "over the product, both": {name: both_times.ratio(name, "product") for name in names},
        "times faster, both": {peer: both_times.ratio(peer, "auto") for peer in PEERS if peer in both},
        "error": errors,
    }
    if device != "cpu":
        moved = problem.u.numel() + shape.batch * shape.time * shape.out
        # u, W and the gradient of o were there before; o and the gradients of u and W are results, the rest is working
        # memory.
        results = problem.u.numel() + problem.weight.numel() + shape.batch * shape.time * shape.out
        size = problem.u.element_size()
        row["working memory over u + o"] = {
            name: (peak_memory(training(forward[name], *leaves)) - results * size) / (moved * size) for name in names
        }
    return row


def _fused_if_it_suits(shape: Shape, dtype: torch.dtype, device: str) -> list[str]:
    system = plmu.DelayNetwork(shape.order, shape.theta).discretize()
    sizes = {"batch": shape.batch, "time": shape.time, "channels": shape.channels, "out": shape.out}
    try:
        chosen = plmu.plan("project", system=system, dtype=dtype, device=device, algorithm="fused", **sizes)  # type: ignore[arg-type]
    except ValueError:  # it cannot run
        return []
    return ["fused"] if chosen.kernel == "Hopper" else []


def _launched(calls: dict[str, Callable[[], Any]], device: str) -> dict[str, Callable[[], Any]]:
    """On a GPU as CUDA graphs, so that it is the work that is compared and not how it is launched; the LSTM also as it
    comes, which for so many short steps is another matter."""
    if device == "cpu":
        return calls
    return {name: call if name == "LSTM" else graphed(call) for name, call in calls.items()}


def choice(
    shape: Shape, dtype: torch.dtype, device: str, rounds: int, *, graphs: bool = False, every: int | None = None
) -> dict[str, Any]:
    """`auto` against the fastest algorithm by name, with gradients; with `every`, with resets."""
    problem = Problem(shape, dtype, device, every)
    names = ["chunked"] if every else ["fft", "chunked"]
    if shape.time**2 * shape.order <= 1 << 25 and not every:
        names.append("toeplitz")
    if shape.time <= 64:
        names.append("recurrent")
    names += _fused_if_it_suits(shape, dtype, device)
    forward = {name: problem.project(name) for name in (*names, "auto")}
    problem.errors(forward)
    calls = {name: training(call, problem.u, problem.weight) for name, call in forward.items()}
    times = timed(_launched(calls, device) if graphs else calls, device=device, rounds=rounds)
    taken = times.medians()
    best = min(names, key=lambda name: taken[name])
    asked = {"batch": shape.batch, "time": shape.time, "channels": shape.channels, "out": shape.out}
    chosen = plmu.plan("project", system=problem.system, dtype=dtype, device=device, resets=every is not None, **asked)  # type: ignore[arg-type]
    return {
        "shape": str(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "chosen": chosen.algorithm,
        "best": best,
        "auto over best": times.ratio("auto", best),
        "milliseconds": _milli(times),
    }


def lengths(dtype: torch.dtype, device: str, rounds: int) -> list[dict[str, Any]]:
    """Tokens a second, with gradients, at a fixed number of tokens a batch; on a GPU as graphs."""
    gpu = device != "cpu"
    tokens, width = (1 << 20, 256) if gpu else (1 << 13, 32)
    rows = []
    for time in (1 << k for k in range(10, 21 if gpu else 14)):
        problem = Problem(Shape(tokens // time, time, width, width, 4, 64.0), dtype, device)
        call = {"auto": training(problem.project("auto"), problem.u, problem.weight)}
        seconds = medians(_launched(call, device), device=device, rounds=rounds)["auto"]
        rows.append({"time": time, "batch": tokens // time, "tokens per second": tokens / seconds})
    return rows


def _milli(times: Times) -> dict[str, float]:
    return {name: 1e3 * seconds for name, seconds in times.medians().items()}
