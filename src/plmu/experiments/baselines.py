"""The LSTM baseline of the experiments."""

from __future__ import annotations

from torch import Tensor, nn

import plmu
from plmu.nn import open_forget_gates


def lstm(inputs: int, hidden: int, layers: int = 1, forget_bias: float = 1.0) -> nn.LSTM:
    """torch's LSTM, batch first. Its forget gates start open, since otherwise it learns little over long sequences."""
    return open_forget_gates(nn.LSTM(inputs, hidden, layers, batch_first=True), forget_bias)


class LastOutput(nn.Module):
    """A torch LSTM and a linear map of its output at each sequence's own end.

    As our models do, it returns outputs (batch, outputs) and a state, here None.
    """

    def __init__(self, layer: nn.LSTM, out: nn.Linear) -> None:
        super().__init__()
        self.layer, self.out = layer, out

    def forward(self, x: Tensor, state: None = None, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        return self.out(plmu.nn.last_valid(self.layer(x)[0], lengths)), None
