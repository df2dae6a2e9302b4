"""A short causal convolution of each channel, which steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from plmu.folded import Folded, Taps, wide_dtype
from plmu.nn.folding import exact
from plmu.nn.past import documents, ends, since_reset
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable, changed, check_features, factory, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, result_dtype


@savable(modules=0)
class CausalConvolution(Steppable):
    """Each channel convolved with a few learned weights of its own: y_t = Σ_j w_j · x_{t−j}, j < kernel_size.

    The state is the last kernel_size − 1 inputs. Initially w_0 is 1 and the other weights are 0: the input passes
    unchanged.

    Args:
        channels: features of the input and the output.
        kernel_size: number of steps that each output depends on, its own included; at least 2.
        device, dtype: of the parameters, as in `torch.nn`.

    Shape:
        x: (batch, time, channels). The output has the same shape.
        state: (batch, kernel_size − 1, channels), the oldest step first.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels = self.input_size = self.output_size = positive(channels, "channels")
        self.kernel_size = positive(kernel_size, "kernel_size")
        if self.kernel_size < 2:
            raise ValueError(f"kernel_size must be at least 2, got {kernel_size}")
        self.weight = nn.Parameter(torch.empty(self.kernel_size, self.channels, **factory(device, dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The identity: 1 for the step itself, 0 for those before it."""
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.weight.data[0])

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        check_features(x, 3, self.channels, self.weight)
        batch, time, _ = x.shape
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        size = self.kernel_size - 1
        steps = torch.cat([self._before(x, state).to(x.dtype), keep_valid(x, lengths)], dim=1)
        numbers = None if resets is None else documents(resets.new_zeros(batch, size, dtype=torch.int64), resets, time)
        out = self.weight[0] * steps[:, size:]
        for back in range(1, self.kernel_size):
            earlier = steps[:, size - back : size - back + time]
            if numbers is not None:
                same = numbers[:, size - back : size - back + time] == numbers[:, size:]
                earlier = torch.where(same[:, :, None], earlier, 0.0)
            out = out + self.weight[back] * earlier
        last = ends(steps, size, lengths)
        if numbers is not None:
            last = torch.where(since_reset(numbers, size, lengths)[:, :, None], last, 0.0)
        return keep_valid(out.to(result_dtype(x)), lengths), last.to(wide_dtype(x.dtype), copy=True)

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_features(x, 2, self.channels, self.weight)
        steps = torch.cat([self._before(x, state).to(x.dtype), x[:, None]], dim=1)
        out = (steps * self.weight.flip(0)).sum(1)
        return out.to(result_dtype(x)), steps[:, 1:].to(wide_dtype(x.dtype), copy=True)

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        return Taps(exact(self.weight).flip(0), dtype=self.weight.dtype, device=self.weight.device)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(batch, self.kernel_size - 1, self.channels, dtype=wide_dtype(dtype), device=device)

    def _before(self, x: Tensor, state: Tensor | None) -> Tensor:
        """The checked state, of the inputs before x; zeros where it is None."""
        if state is None:
            return self.initial_state(x.shape[0], x.dtype, x.device)
        check_state(state, (x.shape[0], self.kernel_size - 1, self.channels), wide_dtype(x.dtype), x.device)
        return state

    def extra_repr(self) -> str:
        return f"{self.channels}, kernel_size={self.kernel_size}"
