"""The shapes that are measured, and on each the problem W_m m: input, weight, system, and ways to compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import plmu
from plmu.bench.measure import relative_error


@dataclass(frozen=True)
class Shape:
    """A layer of `channels` inputs and `out` outputs, on a training batch."""

    batch: int
    time: int
    channels: int
    out: int
    order: int
    theta: float
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"b{self.batch} n{self.time} {self.channels}→{self.out} d{self.order} θ{self.theta:g}"


# A language model's block and a model of characters at small θ; a long sequence; a long memory of high order.
GPU_SHAPES = (
    Shape(64, 512, 512, 512, 4, 6.0),
    Shape(64, 180, 512, 512, 16, 15.0),
    Shape(8, 4096, 1024, 1024, 4, 8.0),
    Shape(16, 2048, 512, 512, 32, 128.0),
)
CPU_SHAPES = (
    Shape(8, 512, 128, 128, 4, 6.0, "order 4, θ 6: language model block"),
    Shape(8, 180, 128, 128, 16, 15.0, "order 16, θ 15: character model block"),
    Shape(2, 1024, 64, 64, 4, 8.0, "order 4, θ 8: long sequence"),
    Shape(2, 512, 64, 64, 32, 128.0, "order 32, θ 128: long memory"),
)
# Further shapes, narrow, short, long and odd, on which `auto` is compared with every algorithm by name; on a CPU with
# the function that is called.
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
CPU_CHOICES = (
    ("states", Shape(8, 512, 64, 64, 4, 6.0, "small θ")),
    ("project", Shape(8, 512, 64, 64, 4, 6.0, "small θ, projected")),
    ("states", Shape(8, 180, 64, 64, 16, 15.0, "characters")),
    ("project", Shape(8, 180, 64, 64, 16, 15.0, "characters, projected")),
    ("states", Shape(8, 500, 300, 2, 1, 500.0, "order 1, θ 500")),
    ("project", Shape(8, 500, 300, 2, 1, 500.0, "order 1, θ 500, projected")),
    ("states", Shape(4, 20_000, 1, 16, 12, 1000.0, "long, one channel")),
    ("project", Shape(8, 5000, 1, 140, 40, 50.0, "Mackey-Glass")),
    ("states", Shape(8, 784, 1, 346, 468, 784.0, "psMNIST, all steps")),
    ("project", Shape(8, 784, 1, 346, 468, 784.0, "psMNIST, all steps, projected")),
    ("states", Shape(2, 1000, 8, 32, 256, 500.0, "order 256, 8 channels")),
    ("states", Shape(2, 2048, 64, 64, 32, 128.0, "order 32, θ 128")),
    ("project", Shape(32, 20, 32, 32, 8, 20.0, "short")),
    ("states", Shape(1, 4, 16, 16, 8, 20.0, "four steps")),
    ("final_state", Shape(32, 500, 300, 2, 1, 500.0, "IMDB, final state")),
    ("final_state", Shape(32, 784, 1, 346, 468, 784.0, "psMNIST, final state")),
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}  # relative error of a correct answer


class Problem:
    """The input u, the weight W_m and the system of a shape; ways to compute W_m m; and a check of the answers."""

    def __init__(
        self, shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu", reset_interval: int | None = None
    ) -> None:
        """With `reset_interval`, the state is reset about once in that many steps."""
        self.shape, self.dtype, self.device = shape, dtype, device
        generator = torch.Generator().manual_seed(0)
        u = torch.randn(shape.batch, shape.time, shape.channels, generator=generator)
        weight = torch.randn(shape.out, shape.order, shape.channels, generator=generator)
        self.u = u.to(device, dtype).requires_grad_()
        self.weight = ((shape.order * shape.channels) ** -0.5 * weight).to(device, dtype).requires_grad_()
        self.system = plmu.DelayNetwork(shape.order, shape.theta).discretize()
        self.resets: Tensor | None = None
        if reset_interval is not None:
            self.resets = (torch.rand(shape.batch, shape.time, generator=generator) < 1 / reset_interval).to(device)

    def project(self, algorithm: str) -> Callable[[], Tensor]:
        return lambda: plmu.project(self.u, self.system, self.weight, algorithm=algorithm, resets=self.resets)[0]

    def states(self, algorithm: str) -> Callable[[], Tensor]:
        return lambda: plmu.states(self.u, self.system, algorithm=algorithm, resets=self.resets)[0]

    def plan(self, kind: str = "project") -> plmu.Plan:
        """The plan of `auto`."""
        shape = self.shape
        return plmu.plan(
            kind,
            batch=shape.batch,
            time=shape.time,
            channels=shape.channels,
            out=shape.out if kind == "project" else None,
            system=self.system,
            dtype=self.dtype,
            device=self.device,
            resets=self.resets is not None,
        )

    def fft(self) -> Callable[[], Tensor]:
        """The baseline, equation 26 in plain torch: all of m by FFT in float32 (torch has no half-precision FFT for all
        sizes), then one GEMM."""
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

    def gemm(self) -> tuple[Callable[[], Tensor], Tensor]:
        """The limit: the GEMM `m @ W` of an m in memory; and that m."""
        shape = self.shape
        m = torch.randn(shape.batch * shape.time, shape.order * shape.channels, device=self.device)
        operand = m.to(self.dtype).requires_grad_()
        return lambda: operand @ self.weight.flatten(1).mT, operand

    def errors(self, calls: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
        """Relative errors of the first sequence's outputs against float64. RuntimeError if one is too large."""
        with torch.no_grad():
            resets = None if self.resets is None else self.resets[:1]
            m = plmu.states(self.u[:1].double(), self.system, algorithm="chunked", resets=resets)[0]
            exact = m.flatten(2) @ self.weight.double().flatten(1).mT
            errors = {name: relative_error(call()[:1], exact) for name, call in calls.items()}
        wrong = [f"{name} {error:.1e}" for name, error in errors.items() if not error <= TOLERANCE[self.dtype]]
        if wrong:
            raise RuntimeError(f"wrong answers at {self.shape}, {self.dtype}: {', '.join(wrong)}")
        return errors
