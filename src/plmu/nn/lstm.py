"""torch's LSTM with the interface of plmu's layers, for baselines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from plmu.folded import wide_dtype
from plmu.nn.steppable import Steppable, check_features, factory, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, keep_valid


class LSTM(Steppable):
    """One layer of `nn.LSTM` that steps, for `plmu.Sequential`, `plmu.Bidirectional` and `plmu.EncoderDecoder`.

    Its forget gates begin open, without which it learns little over long sequences. It trains one step after another.

    Args:
        input_size: features of x.
        hidden_size: features of the output.
        forget_bias: initial bias of the forget gates.
        device, dtype: of the parameters, as in `torch.nn`.

    Shape:
        x: (batch, time, input_size).
        out: (batch, time, hidden_size).
        state: the pair of h and c, both (batch, hidden_size).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        forget_bias: float = 1.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = positive(input_size, "input_size"), positive(hidden_size, "hidden_size")
        self.output_size, self.forget_bias = self.hidden_size, float(forget_bias)
        self.layer = nn.LSTM(self.input_size, self.hidden_size, batch_first=True, **factory(device, dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights anew, forget gates open."""
        self.layer.reset_parameters()
        open_forget_gates(self.layer, self.forget_bias)

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """All steps at once: the outputs, and the state after the last step.

        Args:
            x: the input, (batch, time, input_size).
            state: h and c of the previous piece; None to start from zero.
            lengths: the length of each sequence, (batch,), where they are padded on the right. The state is then
                None: torch returns it only for the end of the padding.
            resets: must be None.

        Returns:
            The output (batch, time, hidden_size), zero in the padding; and the state.
        """
        check_features(x, 3, self.input_size, self._weight())
        if resets is not None:
            raise ValueError("LSTM takes no resets: resets must be None")
        lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
        start = None if state is None else tuple(part.to(x.dtype)[None] for part in self._checked(x, state))
        out, (h, c) = self.layer(keep_valid(x, lengths), start)
        if lengths is not None:
            return keep_valid(out, lengths), None
        wide = wide_dtype(x.dtype)
        return out, (h[0].to(wide), c[0].to(wide))

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step.

        Args:
            x: (batch, input_size).
            state: h and c of the step before; None at the start.

        Returns:
            The output (batch, hidden_size), and the state.
        """
        check_features(x, 2, self.input_size, self._weight())
        out, state = self.forward(x[:, None], state)
        return out[:, 0], state

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(batch, self.hidden_size, dtype=wide_dtype(dtype), device=device)
        return zeros, zeros.clone()

    def _weight(self) -> Tensor:
        weight = self.layer.weight_ih_l0
        assert isinstance(weight, Tensor)
        return weight

    def _checked(self, x: Tensor, state: Any) -> tuple[Tensor, ...]:
        """The state, after a check of its form."""
        if not isinstance(state, tuple) or len(state) != 2:
            raise TypeError(f"state must be the pair of h and c, got {type(state).__name__}")
        for name, part in zip("hc", state, strict=True):
            check_state(part, (x.shape[0], self.hidden_size), wide_dtype(x.dtype), x.device, f"{name} of state")
        return state

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


def open_forget_gates(layer: nn.LSTM, bias: float = 1.0) -> nn.LSTM:
    """Start the forget gates of torch's LSTM open: otherwise it learns little over long sequences.

    Args:
        layer: changed in place.
        bias: the sum of the two biases of a forget gate.

    Returns:
        The layer.

    Example:
        >>> layer = open_forget_gates(nn.LSTM(3, 2))
        >>> layer.bias_ih_l0[2:4].tolist()
        [0.5, 0.5]
    """
    with torch.no_grad():
        for name, value in layer.named_parameters():
            if name.startswith("bias"):  # bias_ih and bias_hh, each of the input, forget, cell and output gates
                value[layer.hidden_size : 2 * layer.hidden_size] = bias / 2
    return layer
