"""Attention from one sequence to another: the other is read once, then attended to in any number of steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from plmu.nn.attention import attend
from plmu.nn.steppable import check_features, factory, positive
from plmu.ops.check import Lengths, checked_lengths


class Attended(NamedTuple):
    """Keys and values of a sequence: what `CrossAttention.read` returns.

    Attributes:
        keys: (batch, heads, source time, width / heads).
        values: of the same shape.
        visible: (batch, source time) of bools, False in the padding; None without padding.
    """

    keys: Tensor
    values: Tensor
    visible: Tensor | None

    def select(self, rows: Tensor) -> Attended:
        """Keys and values of the chosen sequences of the batch.

        Args:
            rows: indices in the batch, (rows,); they may repeat.
        """
        return Attended(self.keys[rows], self.values[rows], None if self.visible is None else self.visible[rows])


class CrossAttention(nn.Module):
    """Multi-head attention from each step of x to all steps of another sequence, such as an encoder's outputs.

    The other sequence is read once: `attended = layer.read(encoded, lengths)`. Then `layer(x, attended)` attends from
    any number of steps. Steps are independent: a whole sequence and its single steps agree, and there is no state.

    It has neither a norm nor a skip connection; `plmu.EncoderDecoder` adds both.

    Args:
        width: features of x and of the output.
        heads: number of attention heads, each of width / heads features.
        source_width: features of the other sequence; by default `width`.
        bias: whether the projections have biases.
        device, dtype: of the parameters, as in `torch.nn`.

    Shape:
        encoded: (batch, source time, source_width).
        x: (batch, time, width). The output has the same shape.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        source_width: int | None = None,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        place = factory(device, dtype)
        self.width, self.heads = positive(width, "width"), positive(heads, "heads")
        self.source_width = self.width if source_width is None else positive(source_width, "source_width")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got width={width} and heads={heads}")
        self.query = nn.Linear(self.width, self.width, bias=bias, **place)
        self.source = nn.Linear(self.source_width, 2 * self.width, bias=bias, **place)  # to keys and values
        self.output = nn.Linear(self.width, self.width, bias=bias, **place)

    def read(self, encoded: Tensor, lengths: Lengths = None) -> Attended:
        """Keys and values of a sequence.

        Args:
            encoded: (batch, source time, source_width).
            lengths: the length of each sequence, (batch,), where they are padded on the right; None if all have
                `source time` steps. An empty sequence exposes its first padding step.
        """
        check_features(encoded, 3, self.source_width, self.source.weight)
        lengths = checked_lengths(lengths, encoded.shape[0], encoded.shape[1], encoded.device)
        keys, values = (self._heads(projection) for projection in self.source(encoded).chunk(2, dim=-1))
        visible = None
        if lengths is not None:
            visible = torch.arange(encoded.shape[1], device=encoded.device) < lengths.clamp(min=1)[:, None]
        return Attended(keys, values, visible)

    def forward(self, x: Tensor, attended: Attended) -> Tensor:
        """Attention from each step of x.

        Args:
            x: (batch, time, width).
            attended: what `read` returned.

        Returns:
            The output (batch, time, width).
        """
        check_features(x, 3, self.width, self.query.weight)
        mask = None if attended.visible is None else attended.visible[:, None, None]
        mixed = attend(self._heads(self.query(x)), *attended[:2], mask)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def weights(self, x: Tensor, attended: Attended) -> Tensor:
        """How much each step of x attends to each step of the other sequence; for plotting.

        Args:
            x: (batch, time, width).
            attended: what `read` returned.

        Returns:
            Weights (batch, heads, time, source time) that sum to one over the source.
        """
        check_features(x, 3, self.width, self.query.weight)
        query = self._heads(self.query(x))
        scores = (query @ attended.keys.mT).float() * query.shape[-1] ** -0.5
        if attended.visible is not None:
            scores = scores.masked_fill(~attended.visible[:, None, None], -torch.inf)
        out: Tensor = scores.softmax(dim=-1)
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, time, width) as (batch, heads, time, width / heads)."""
        out: Tensor = x.unflatten(2, (self.heads, -1)).transpose(1, 2)
        return out

    def extra_repr(self) -> str:
        source = "" if self.source_width == self.width else f", source_width={self.source_width}"
        return f"{self.width}, heads={self.heads}{source}"
