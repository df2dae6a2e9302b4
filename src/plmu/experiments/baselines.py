"""What experiments share about their baselines."""

from __future__ import annotations

import torch
from torch import nn


def lstm(inputs: int, hidden: int, layers: int = 1, forget_bias: float = 1.0) -> nn.LSTM:
    """torch's LSTM, batch first, whose forget gates begin open: without that it learns little over long sequences."""
    layer = nn.LSTM(inputs, hidden, layers, batch_first=True)
    with torch.no_grad():
        for name, value in layer.named_parameters():
            if name.startswith("bias"):  # of the input, forget, cell and output gates, and twice
                value[hidden : 2 * hidden] = forget_bias / 2
    return layer
