"""Building blocks of deep models: the paper's, and one as in current language models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from plmu.nn.combining import Gated
from plmu.nn.convolution import CausalConvolution
from plmu.nn.highway import Highway
from plmu.nn.memory import plain_order, plain_theta
from plmu.nn.parallel import ParallelLMU
from plmu.nn.savable import savable
from plmu.nn.selective import SelectiveLMU
from plmu.nn.sequential import Residual, Sequential
from plmu.nn.steppable import Activation, factory, positive, probability

EPS = 1e-6  # of norms; torch's default for bfloat16 is 0.008


@savable(modules=12)
class LMUBlock(Residual):
    """The paper's block: a Delay Network on every channel, a dense layer, highway layers, and a skip connection.

        h_t = f(W_m m_t + W_x x_t + b), m the memory of x; then highway layers; out = x + h

    Blocks with short windows and a small order, stacked, have a long receptive field: their windows add up, as the
    kernels of convolutions do. As in `ParallelLMU`, m need not be stored in training.

    Args:
        width: features of the input and the output; each has a memory of its own.
        order: number of Legendre coefficients each memory keeps.
        theta: the window in steps; several numbers give equal groups of channels one window each.
        highways: number of highway layers after the dense one; 0 for none.
        activation: f, and that of the highway layers, by name, as a callable, or None.
        norm: whether an `nn.LayerNorm` comes first. The paper's block has none; it makes training steadier.
        dropout: dropout probability of h in training.
        standardize: as in `ParallelLMU`.
        algorithm: "auto", or one by name; see `plmu.plan`.
        device, dtype: of the parameters, as in `torch.nn`.

    Shape:
        x: (batch, time, width). The output has the same shape.
        state: a tuple containing the memory's state (batch, order, width).
    """

    def __init__(
        self,
        width: int,
        order: int,
        theta: float | Sequence[float],
        *,
        highways: int = 2,
        activation: Activation = "relu",
        norm: bool = True,
        dropout: float = 0.0,
        standardize: bool = False,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        place = factory(device, dtype)
        width = positive(width, "width")
        highways = 0 if highways == 0 and highways is not False else positive(highways, "highways")
        memory = ParallelLMU(
            width,
            width,
            order,
            theta,
            encoder=False,
            output_activation=activation,
            standardize=standardize,
            algorithm=algorithm,
            **place,
        )
        modules: list[nn.Module] = [nn.LayerNorm(width, **place)] if norm else []
        modules += [memory, *(Highway(width, activation, **place) for _ in range(highways))]
        modules.append(nn.Dropout(probability(dropout, "dropout")))
        super().__init__(Sequential(*modules))
        self.width, self.order, self.theta = width, plain_order(order), plain_theta(theta)
        self.highways, self.activation, self.norm = highways, activation, norm
        self.dropout, self.standardize, self.algorithm = float(dropout), standardize, algorithm

    def extra_repr(self) -> str:
        return f"{self.width}, order={self.order}, theta={self.theta}"


@savable(modules=32)
class MemoryBlock(Sequential):
    """A block with a memory of several windows, an output gate, and a gated feed-forward layer.

        z = norm(x), or its short causal convolution
        x ← x + W_o (W_m m_t · SiLU(W_g z_t)), m the memory of z
        x ← x + W_3 (W_1 norm(x) · SiLU(W_2 norm(x)))

    Norms are RMS norms and come first. Nothing has a bias. As in `ParallelLMU`, m need not be stored in training; with
    `heads` it is.

    Args:
        width: features of the input and the output; each has a memory of its own.
        order: number of Legendre coefficients each memory keeps.
        theta: the windows in steps: equal groups of channels have one each.
        hidden: features inside the feed-forward layer; by default twice the width.
        kernel_size: of the short causal convolution before memory and gate; None for none.
        heads: number of heads that read the memory by weights computed from the input, as in `SelectiveLMU`, which
            stores m in training. None reads it by W_m.
        dropout: dropout probability in training, at the end of both residual parts.
        standardize: as in `ParallelLMU`; not with `heads`, which have a norm.
        algorithm: "auto", or one by name; see `plmu.plan`. On a GPU the fused kernels take multiples of 8 channels for
            each window, so that a width of 192 suits four windows, and 208 does not.
        device, dtype: of the parameters, as in `torch.nn`.

    Shape:
        x: (batch, time, width). The output has the same shape.
        state: nested tuples containing the memory's state (batch, order, width).
    """

    def __init__(
        self,
        width: int,
        order: int = 4,
        theta: float | Sequence[float] = (4.0, 16.0, 64.0, 256.0),
        *,
        hidden: int | None = None,
        kernel_size: int | None = None,
        heads: int | None = None,
        dropout: float = 0.0,
        standardize: bool = False,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        place = factory(device, dtype)
        width = positive(width, "width")
        wide = 2 * width if hidden is None else positive(hidden, "hidden")
        memory: ParallelLMU | SelectiveLMU
        if heads is None:
            memory = ParallelLMU(
                width,
                width,
                order,
                theta,
                encoder=False,
                input_to_output=False,
                output_activation=None,
                bias=False,
                standardize=standardize,
                algorithm=algorithm,
                **place,
            )
        elif standardize:
            raise ValueError("standardize=True is for a memory read by W_m: with heads it must be False")
        else:
            memory = SelectiveLMU(width, width, order, theta, heads, algorithm=algorithm, **place)

        def dense(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False, **place)

        def gate(outputs: int) -> nn.Module:
            return nn.Sequential(dense(width, outputs), nn.SiLU())

        p = probability(dropout, "dropout")
        mixing: list[nn.Module] = [nn.RMSNorm(width, eps=EPS, **place)]
        if kernel_size is not None:
            mixing.append(CausalConvolution(width, kernel_size, **place))
        mixing += [Gated(memory, gate(width)), dense(width, width), nn.Dropout(p)]
        feeding = [nn.RMSNorm(width, eps=EPS, **place), Gated(dense(width, wide), gate(wide)), dense(wide, width)]
        super().__init__(Residual(Sequential(*mixing)), Residual(Sequential(*feeding, nn.Dropout(p))))
        self.width, self.order, self.theta = width, plain_order(order), plain_theta(theta)
        self.hidden, self.kernel_size, self.heads = hidden, kernel_size, heads
        self.dropout, self.standardize, self.algorithm = p, standardize, algorithm

    def extra_repr(self) -> str:
        return f"{self.width}, order={self.order}, theta={self.theta}"
