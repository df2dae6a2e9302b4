"""Whole layers to compare with ours, each as wide as a given number of parameters allows.

Every layer maps (batch, time, channels) to a sequence and computes its output in two ways: `forward` runs the fast
kernel, and `plain` is the definition in a few lines of torch. The kernel is checked against it before it is timed.
`benchmarks/layers.py` adds those of flash-linear-attention and mamba-ssm.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import plmu
from plmu.bench.problems import Shape

HEAD = 64  # features of a head


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


class DelayProjection(Layer):
    """The Delay Network and W_m: on all channels, or on as many as the budget allows, after an encoder."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__()
        self.source = f"plmu {plmu.__version__}"
        wide = shape.order * shape.channels * shape.out <= budget
        narrow = nearest(budget / (shape.channels + shape.order * shape.out), 8 if shape.channels >= 512 else 1)
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
        heads = nearest(budget / ((3 * shape.channels + shape.out) * self.head), 1)
        self.inner = heads * self.head
        self.width = f"{heads} × {self.head}"
        self.qkv = nn.Linear(shape.channels, 3 * self.inner, bias=False)
        self.o = nn.Linear(self.inner, shape.out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.heads(x))
        out: Tensor = self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return out

    def plain(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.heads(x))
        scores = (q @ k.mT / math.sqrt(self.head)).masked_fill(future(x), -torch.inf)
        out: Tensor = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out

    def heads(self, x: Tensor) -> list[Tensor]:
        """q, k and v, each (batch, time, heads, head)."""
        return [part.unflatten(2, (-1, self.head)) for part in self.qkv(x).split(self.inner, dim=2)]


class LSTM(Layer):
    """`nn.LSTM`, which is cuDNN's on a GPU. It has as many outputs as units."""

    def __init__(self, shape: Shape, budget: int) -> None:
        super().__init__()
        self.source = f"torch {torch.__version__}"
        half = shape.channels / 2 + 1  # 4 h² + 4 h channels + 8 h = budget
        units = nearest(math.sqrt(half * half + budget / 4) - half, 32 if shape.channels >= 512 else 4)
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
    OURS: (DelayProjection,),
    "causal attention": (Attention,),
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


def future(x: Tensor) -> Tensor:
    """(time, time): whether the step of the column comes after the step of the row."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


def nearest(value: float, multiple: int) -> int:
    return max(1, round(value / multiple)) * multiple
