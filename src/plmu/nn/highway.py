"""Highway layers: a learned gate between a function of the input and the input itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plmu.core.modes import is_plain, watched_backward
from plmu.folded import Applied, Carry, Stateless
from plmu.nn.folding import fold_activation, fold_linear
from plmu.nn.savable import savable
from plmu.nn.steppable import Activation, factory, positive, shown
from plmu.nn.steppable import activation as checked_activation
from plmu.ops import layer_kernels

CARRY = -1.0  # the gate's bias at the start: at first most of the input is carried through


@savable(modules=0)
class Highway(nn.Module):
    """g · f(W x + b) + (1 − g) · x with the gate g = σ(W_g x + b_g), pointwise in time.

    W and W_g are the two halves of one `nn.Linear`. b_g starts at −1: at first most of x passes unchanged.

    Args:
        features: of the input and the output.
        activation: f, by name, as a callable, or None.
        device, dtype: of the parameters, as in `torch.nn`.

    Shape:
        x: (..., features). The output has the same shape.
    """

    per_step = True

    def __init__(
        self,
        features: int,
        activation: Activation = "relu",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.features = positive(features, "features")
        self.activation = activation
        self.f = checked_activation(activation, "activation")
        self.both = nn.Linear(self.features, 2 * self.features, **factory(device, dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform weights, zero biases, and −1 for the gate's."""
        transform, gate = self.both.weight.data.chunk(2)
        nn.init.xavier_uniform_(transform)
        nn.init.xavier_uniform_(gate)
        nn.init.zeros_(self.both.bias)
        nn.init.constant_(self.both.bias.data[self.features :], CARRY)

    @property
    def input_size(self) -> int:
        return self.features

    def forward(self, x: Tensor) -> Tensor:
        """The output for x.

        Args:
            x: (..., features).

        Returns:
            The same shape.
        """
        if x.shape[-1] != self.features:
            raise ValueError(f"x must have shape (..., {self.features}), got {tuple(x.shape)}")
        if x.device.type in layer_kernels.DEVICES and self._gradients_by_kernel():
            out = layer_kernels.highway(x, self.both.weight, self.both.bias)
            if out is not None:
                return out
        transformed, gate = self.both(x).chunk(2, dim=-1)
        if self.f is not None:
            transformed = self.f(transformed)
        return torch.lerp(x.to(transformed.dtype), transformed, torch.sigmoid(gate))

    def _gradients_by_kernel(self) -> bool:
        """Whether the layer allows a fused kernel: ReLU, a plain linear layer with a bias, and no backward hooks."""
        if self.f is not torch.relu or not is_plain(self.both, nn.Linear) or self.both.bias is None:
            return False
        return not watched_backward(self.both)

    def fold(self) -> Stateless:
        """The folded form: the weights as arrays."""
        if type(self) is not Highway or not is_plain(self.both, nn.Linear):
            return Applied.of(self)
        return Carry(fold_linear(self.both), fold_activation(self.f))

    def extra_repr(self) -> str:
        return f"{self.features}, activation={shown(self.f)}"
