"""`plmu bench layers` with linear attention and Mamba-2 beside the other layers, on a GPU.

python -m benchmarks.layers --out results

It needs flash-linear-attention (`pip install fla-core`) and mamba-ssm. A layer whose library is missing is left out,
and its row says so.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from plmu.bench import peers
from plmu.bench.peers import HEAD, LSTM, OURS, Attention, DelayProjection, Layer, future, nearest
from plmu.bench.problems import Shape
from plmu.bench.run import run

CHUNK = 256  # steps of a chunk of Mamba-2's scan, its default


class LinearAttention(Attention):
    """Linear attention of flash-linear-attention, without feature map or normalisation, between q, k, v and o."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__(shape, budget)
        from fla.ops.linear_attn import chunk_linear_attn

        self.source = _versioned("fla")
        self.kernel: Callable[..., tuple[Tensor, object]] = chunk_linear_attn

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        out: Tensor = self.o(self.kernel(q, k, v, normalize=False)[0].flatten(2))
        return out

    def plain(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.heads(x))
        scores = (q @ k.mT / math.sqrt(self.head)).masked_fill(future(x), 0.0)
        out: Tensor = self.o((scores @ v).transpose(1, 2).flatten(2))
        return out


class Mamba2(Layer):
    """Mamba-2's mixer without the short convolution and the norm: input projection, SSD, gate, output projection.

    One group of B and C, a state of 64, heads of 64; `expand` follows from the budget.
    """

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__()
        self.head = self.state = min(HEAD, shape.channels)
        each = 2 * self.head * shape.channels + shape.channels + self.head * shape.out + 3  # x, z, Δ; o; A, D, Δ's bias
        self.heads = nearest((budget - 2 * self.state * shape.channels) / each, 1)
        self.inner = self.heads * self.head
        self.width = f"{self.heads} × {self.head}, expand {self.inner / shape.channels:.3g}, state {self.state}"
        self.sizes = [self.inner, self.inner, self.state, self.state, self.heads]  # z, x, B, C, Δ
        self.in_proj = nn.Linear(shape.channels, sum(self.sizes), bias=False)
        self.o = nn.Linear(self.inner, shape.out, bias=False)
        step = torch.exp(torch.empty(self.heads).uniform_(math.log(1e-3), math.log(0.1)))
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
        self.rate_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.skip = nn.Parameter(torch.ones(self.heads))

    def plain(self, x: Tensor) -> Tensor:
        z, v, B, C, step = self._parts(x)
        step = softplus(step + self.step_bias)
        decay = (-self.rate_log.exp() * step).cumsum(1).transpose(1, 2)  # (batch, heads, time), of logarithms
        weights = (decay[..., None] - decay[..., None, :]).masked_fill(future(x), -torch.inf).exp()
        mixed = (weights * (C @ B.mT)[:, None]) @ (step[..., None] * v).transpose(1, 2)
        out: Tensor = self.o(((mixed.transpose(1, 2) + self.skip[:, None] * v) * silu(z)).flatten(2))
        return out

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """z and x (batch, time, heads, head), B and C (batch, time, state), Δ (batch, time, heads)."""
        z, v, B, C, step = self.in_proj(x).split(self.sizes, dim=2)
        return z.unflatten(2, (-1, self.head)), v.unflatten(2, (-1, self.head)), B, C, step


class Mamba2ByItsAuthors(Mamba2):
    """With the Triton kernels of mamba-ssm."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__(shape, budget)
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

        self.source = _versioned("mamba_ssm")
        self.kernel: Callable[..., Tensor] = mamba_chunk_scan_combined

    def forward(self, x: Tensor) -> Tensor:
        z, v, B, C, step = self._parts(x)
        mixed = self.kernel(
            v,
            step,
            -self.rate_log.float().exp(),
            B[:, :, None],
            C[:, :, None],
            CHUNK,
            D=self.skip.float(),
            z=z,
            dt_bias=self.step_bias.float(),
            dt_softplus=True,
        )
        out: Tensor = self.o(mixed.flatten(2))
        return out


class Mamba2ByFLA(Mamba2):
    """With flash-linear-attention's kernels: SSD is its simple gated linear attention, of C, B, Δx and log decays."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__(shape, budget)
        from fla.ops.simple_gla import chunk_simple_gla

        self.source = _versioned("fla")
        self.kernel: Callable[..., tuple[Tensor, object]] = chunk_simple_gla

    def forward(self, x: Tensor) -> Tensor:
        z, v, B, C, step = self._parts(x)
        step = softplus(step.float() + self.step_bias)
        q, k = (part[:, :, None].expand(-1, -1, self.heads, -1) for part in (C, B))
        scaled = (step[..., None] * v).to(v.dtype)
        mixed = self.kernel(q, k, scaled, g=-self.rate_log.float().exp() * step, scale=1.0)[0]
        out: Tensor = self.o(((mixed + self.skip[:, None] * v) * silu(z)).flatten(2))
        return out


LAYERS: dict[str, tuple[type[Layer], ...]] = {
    OURS: (DelayProjection,),
    "linear attention": (LinearAttention,),
    "causal attention": (Attention,),
    "Mamba-2": (Mamba2ByItsAuthors, Mamba2ByFLA),
    "LSTM": (LSTM,),
}


def add_layers() -> None:
    """Let `plmu bench layers` compare all of `LAYERS`."""
    peers.LAYERS.clear()
    peers.LAYERS.update(LAYERS)


def _versioned(package: str) -> str:
    return f"{package} {import_module(package).__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for the JSON file and the figure")
    options = parser.parse_args()
    add_layers()
    run("layers", options.device, options.rounds, options.out, "python -m benchmarks.layers")


if __name__ == "__main__":
    main()
