"""The LSTM baseline of the experiments."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import plmu


def lstm(inputs: int, hidden: int, layers: int = 1, forget_bias: float = 1.0) -> nn.LSTM:
    """torch's LSTM, batch first, whose forget gates start open: otherwise it learns little over long sequences."""
    layer = nn.LSTM(inputs, hidden, layers, batch_first=True)
    with torch.no_grad():
        for name, value in layer.named_parameters():
            if name.startswith("bias"):  # gates: input, forget, cell, output; there are two biases, which add up
                value[hidden : 2 * hidden] = forget_bias / 2
    return layer


class LastOutput(nn.Module):
    """A torch LSTM and a linear map of its last output, at each sequence's own end. Called as our models are."""

    def __init__(self, layer: nn.LSTM, out: nn.Linear) -> None:
        super().__init__()
        self.layer, self.out = layer, out

    def forward(self, x: Tensor, state: None = None, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        return self.out(plmu.nn.last_valid(self.layer(x)[0], lengths)), None
