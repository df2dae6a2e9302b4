"""Whole layers to compare with ours, each as wide as a given number of parameters allows.

Every layer maps (batch, time, channels) to a sequence and computes its output in two ways: `forward` runs the fast
kernel, and `plain` is the definition in a few lines of torch. The kernel is checked against it before it is timed.
flash-linear-attention (`pip install fla-core`) and mamba-ssm are optional.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu, softplus

import plmu
from plmu.bench.problems import Shape

HEAD = 64  # features of a head, and of Mamba-2's state
CHUNK = 256  # steps of a chunk of Mamba-2's scan, its default


class Layer(nn.Module):
    """A whole layer. `width` describes its size, for example heads × features; `source` names the implementation."""

    width: str
    source: str

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def plain(self, x: Tensor) -> Tensor:
        """The output by the layer's definition, in the precision of x."""

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


class Ours(Layer):
    """The Delay Network and W_m: on all channels, or on as many as the budget allows, after an encoder."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__()
        self.source = f"plmu {plmu.__version__}"
        wide = shape.order * shape.channels * shape.out <= budget
        narrow = _nearest(budget / (shape.channels + shape.order * shape.out), 8 if shape.channels >= 512 else 1)
        self.width = (
            f"order {shape.order} on all {shape.channels} channels"
            if wide
            else f"order {shape.order} on {narrow} channels, after an encoder {shape.channels}→{narrow}"
        )
        self.layer = plmu.ParallelLMU(
            shape.channels,
            shape.out,
            order=shape.order,
            theta=shape.theta,
            memory_size=shape.channels if wide else narrow,
            encoder=not wide,
            input_to_output=False,
            bias=False,
            output_activation=None,
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out

    def plain(self, x: Tensor) -> Tensor:
        """Equation 19, step by step."""
        system = plmu.DelayNetwork(self.layer.config["order"], self.layer.config["theta"]).discretize()
        u = x if self.layer.encoder is None else self.layer.encoder(x)
        m = plmu.states(u, system, algorithm="recurrent")[0]
        return m.flatten(2) @ self.layer.memory_weight.flatten(1).mT


class Attention(Layer):
    """Causal softmax attention of torch between the projections q, k, v and o."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__()
        self.source = f"torch {torch.__version__}"
        self.head = min(HEAD, shape.channels)
        heads = _nearest(budget / ((3 * shape.channels + shape.out) * self.head), 1)
        self.inner = heads * self.head
        self.width = f"{heads} × {self.head}"
        self.qkv = nn.Linear(shape.channels, 3 * self.inner, bias=False)
        self.o = nn.Linear(self.inner, shape.out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self._heads(x))
        out: Tensor = self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return out

    def plain(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self._heads(x))
        scores = (q @ k.mT / math.sqrt(self.head)).masked_fill(_future(x), -torch.inf)
        out: Tensor = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> list[Tensor]:
        """q, k and v, each (batch, time, heads, head)."""
        return [part.unflatten(2, (-1, self.head)) for part in self.qkv(x).split(self.inner, dim=2)]


class LinearAttention(Attention):
    """Linear attention of flash-linear-attention, without feature map or normalisation, between q, k, v and o."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__(shape, budget)
        from fla.ops.linear_attn import chunk_linear_attn

        self.source = _versioned("fla")
        self.kernel: Callable[..., tuple[Tensor, object]] = chunk_linear_attn

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._heads(x)
        out: Tensor = self.o(self.kernel(q, k, v, normalize=False)[0].flatten(2))
        return out

    def plain(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self._heads(x))
        scores = (q @ k.mT / math.sqrt(self.head)).masked_fill(_future(x), 0.0)
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
        self.heads = _nearest((budget - 2 * self.state * shape.channels) / each, 1)
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
        weights = (decay[..., None] - decay[..., None, :]).masked_fill(_future(x), -torch.inf).exp()
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


class LSTM(Layer):
    """`nn.LSTM`, which is cuDNN's on a GPU. It has as many outputs as units."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__()
        self.source = f"torch {torch.__version__}"
        half = shape.channels / 2 + 1  # 4 h² + 4 h channels + 8 h = budget
        units = _nearest(math.sqrt(half * half + budget / 4) - half, 32 if shape.channels >= 512 else 4)
        self.width = f"{units} units"
        self.lstm = nn.LSTM(shape.channels, units, batch_first=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Put the weights into one piece of memory again after a move or a cast; else cuDNN copies and warns in each
        call."""
        super()._apply(fn, recurse)
        dtypes = torch.backends.cudnn.CUDNN_TENSOR_DTYPES  # without bfloat16, though cuDNN's LSTM takes it
        before = set(dtypes)
        dtypes.add(torch.bfloat16)
        try:
            self.lstm.flatten_parameters()
        finally:
            dtypes.intersection_update(before)
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out

    def plain(self, x: Tensor) -> Tensor:
        from_x, from_h, x_bias, h_bias = self.lstm.parameters()
        h = c = x.new_zeros(x.shape[0], self.lstm.hidden_size)
        outs = []
        for drive in (x @ from_x.mT + x_bias + h_bias).unbind(1):
            i, f, g, o = (drive + h @ from_h.mT).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outs.append(h)
        return torch.stack(outs, dim=1)


OURS = "ours"
# Each layer by its name in the results. Of several implementations the fastest correct one counts.
LAYERS: dict[str, tuple[type[Layer], ...]] = {
    OURS: (Ours,),
    "linear attention": (LinearAttention,),
    "causal attention": (Attention,),
    "Mamba-2": (Mamba2ByItsAuthors, Mamba2ByFLA),
    "LSTM": (LSTM,),
}


def errors(layer: Layer, x: Tensor) -> dict[str, float]:
    """Relative errors of the outputs and gradients of the first sequence of x, against the plain form in float64.

    The kernels run on the whole batch, as they do when they are timed.
    """
    out = layer(x)
    gradient = torch.zeros_like(out)
    gradient[:1] = torch.randn(out[:1].shape, generator=torch.Generator().manual_seed(1)).to(out)
    gradients = torch.autograd.grad(out, [x, *layer.parameters()], gradient)
    exact_layer, exact_x = copy.deepcopy(layer).double(), x[:1].detach().double().requires_grad_()
    exact_out = exact_layer.plain(exact_x)
    exact = torch.autograd.grad(exact_out, [exact_x, *exact_layer.parameters()], gradient[:1].double())
    return {
        "output": _relative_error([out[:1]], [exact_out]),
        "gradient of x": _relative_error([gradients[0][:1]], exact[:1]),
        "gradient of the weights": _relative_error(gradients[1:], exact[1:]),
    }


def _relative_error(values: list[Tensor] | tuple[Tensor, ...], exact: list[Tensor] | tuple[Tensor, ...]) -> float:
    """The relative error of several tensors taken as one vector."""
    joined = [torch.cat([tensor.detach().double().flatten() for tensor in tensors]) for tensors in (values, exact)]
    return float((joined[0] - joined[1]).norm() / joined[1].norm())


def _future(x: Tensor) -> Tensor:
    """(time, time): whether the step of the column comes after the step of the row."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


def _nearest(value: float, multiple: int) -> int:
    return max(1, round(value / multiple)) * multiple


def _versioned(package: str) -> str:
    return f"{package} {import_module(package).__version__}"
