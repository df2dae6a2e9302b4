"""The Delay Network over a text: word vectors and memory as one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding_bag

from plmu.core.modes import autocasts, is_open, transformed
from plmu.core.systems import LinearSystem
from plmu.folded import After, Folded, Stateless
from plmu.nn.delay import DelayLayer
from plmu.nn.folding import fold_module, is_plain
from plmu.nn.memory import Memory
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable, changed, factory, options_repr, positive, probability
from plmu.ops import Plan
from plmu.ops.check import Lengths, check_padded, checked_lengths
from plmu.ops.matrices import power_of_2_from

MOST_SUMS = 4  # up to this order, one sum of table rows for each coefficient is faster than embedding the text


@savable
class TokenDelayLayer(Steppable):
    """`nn.Embedding` and `DelayLayer` in one: `out, state = layer(tokens, lengths=lengths)`.

    With `return_sequences=False`, the default, the final state is a sum of rows of the table, weighted by the impulse
    response (equation 25): the embedded text (batch, time, embedding_dim), by far the largest tensor of such a model,
    is never made. This holds for a fixed memory with one theta and order ≤ 4, for texts that begin with the call.
    It has no second derivative; `algorithm="chunked"` materialises the embeddings and supports double backward.

    Args:
        num_embeddings: rows of the table; tokens are numbers from 0 to num_embeddings − 1.
        embedding_dim: columns of the table, and channels of the memory.
        order: number of Legendre coefficients each channel keeps.
        theta: the window in tokens; several numbers give equal groups of channels one window each.
        token_dropout: dropout probability of tokens in training; the others are scaled up.
        trainable: "none", "theta" or "system" (Ā and B̄ themselves).
        system: any other `LinearSystem` in place of order and theta.
        return_sequences: True gives the state after each token.
        algorithm: "auto", or one by name; see `plmu.plan`.
        device: where the parameters are.
        dtype: the precision of the parameters; a trained memory's own are float32 or wider.

    Shape:
        tokens: (batch, time), int64 or int32.
        out: (batch, order · embedding_dim), or (batch, time, order · embedding_dim); flattened as in `DelayLayer`.
        state: (batch, order, embedding_dim).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        order: int | None = None,
        theta: float | Sequence[float] | None = None,
        *,
        token_dropout: float = 0.0,
        trainable: str = "none",
        system: LinearSystem | None = None,
        return_sequences: bool = False,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        rows, width = positive(num_embeddings, "num_embeddings"), positive(embedding_dim, "embedding_dim")
        place = factory(device, dtype)
        self.embedding = nn.Embedding(rows, width, **place)
        self.delay = DelayLayer(
            width,
            order,
            theta,
            trainable=trainable,
            system=system,
            return_sequences=return_sequences,
            algorithm=algorithm,
            **place,
        )
        self.token_dropout = probability(token_dropout, "token_dropout")
        self.output_size = self.delay.output_size
        self.returns_sequences = return_sequences

    @property
    def memory(self) -> Memory:
        return self.delay.memory

    def forward(
        self, tokens: Tensor, state: Tensor | None = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The state after each text, or after each token.

        Args:
            tokens: (batch, time).
            state: the initial state, (batch, order, embedding_dim); None for zeros.
            lengths: the length of each text, (batch,); None for no padding. Padding may be any number.
            resets: (batch, time), True for the first token of a further text in the same row.

        Returns:
            The output (batch, order · embedding_dim), or (batch, time, order · embedding_dim) with
            `return_sequences=True`; and the state (batch, order, embedding_dim).
        """
        self._check(tokens, 2)
        lengths = checked_lengths(lengths, tokens.shape[0], tokens.shape[1], tokens.device)
        if lengths is not None:  # padding may be any number
            valid = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
            tokens = torch.where(valid, tokens, 0)
        fresh = state is None and resets is None
        if fresh and self._why_not_rows(tokens.shape[1], tokens.device) is None:
            last = self._sums(tokens, lengths)
            return last.flatten(1).clone(), last
        x = self._embedded(tokens)
        if self.training and self.token_dropout:
            x = x * self._dropout_factors(tokens, x.dtype)[:, :, None]
        out: tuple[Tensor, Tensor] = self.delay(x, state, lengths, resets=resets)
        return out

    def step(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One token of each text.

        Args:
            tokens: (batch,).
            state: the state that the previous token returned; None at the start.

        Returns:
            The output (batch, order · embedding_dim), and the state (batch, order, embedding_dim).
        """
        self._check(tokens, 1)
        x = self._embedded(tokens)
        if self.training and self.token_dropout:
            x = x * self._dropout_factors(tokens, x.dtype)[:, None]
        return self.delay.step(x, state)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.delay.initial_state(batch, dtype, device)

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        first = fold_module(self.embedding)
        return After(first, self.delay.fold()) if isinstance(first, Stateless) else super().fold()

    def _entrance(self) -> nn.Module:
        return self.embedding

    def plan(
        self,
        *,
        batch: int,
        time: int,
        device: torch.device | str | None = None,
        lengths: bool = False,
        resets: bool = False,
        state: bool = False,
    ) -> Plan:
        """The algorithm that `layer(tokens)` runs for tokens (batch, time), and why.

        Args:
            batch: number of texts.
            time: number of tokens of each, padding included.
            device: of the tokens; that of the table if not given.
            lengths: whether the call has lengths.
            resets: whether the call has resets.
            state: whether the call has a state.

        Returns:
            The plan: a sum of table rows, or that of the memory over the embedded text.
        """
        table = self.embedding.weight
        place = table.device if device is None else torch.device(device)
        started = "the text begins before the call, or is reset inside it" if resets or state else None
        why_not = started or self._why_not_rows(time, place)
        if why_not is None:
            reason = "The final state is a weighted sum of table rows for each order (equation 25)."
            return Plan("final_state", "sums of table rows", 1, reason=reason, stored=("tokens", "weights of the rows"))
        plan = self.delay.plan(batch=batch, time=time, dtype=table.dtype, device=place, lengths=lengths, resets=resets)
        stored = ("tokens", *plan.stored)
        return replace(plan, stored=stored, passed_over={**plan.passed_over, "sums of table rows": why_not})

    def _why_not_rows(self, time: int, device: torch.device) -> str | None:
        """The reason why the final state cannot be a sum of table rows, or None, for texts that begin with the call."""
        table, memory, reason = self.embedding, self.memory, None
        if self.returns_sequences:
            reason = "the output has all states"
        elif not is_plain(table, nn.Embedding) or table.max_norm is not None or table.padding_idx is not None:
            reason = "the table is not a plain nn.Embedding"
        elif table.sparse or table.scale_grad_by_freq:
            reason = "the gradient of the table is sparse or scaled"
        elif transformed():
            reason = "works neither under torch.func nor with forward-mode gradients"
        elif memory.trainable != "none" or memory.groups > 1 or memory.systems()[0].inputs is not None:
            reason = "the memory is trained, or not the same for all channels"
        elif memory.algorithm != "auto":
            reason = "an algorithm was chosen by name"
        elif memory.order > MOST_SUMS:
            reason = f"the order is above {MOST_SUMS}"
        elif table.weight.dtype not in (torch.float32, torch.float64) or autocasts(device) or is_open(time):
            reason = "the precision is below float32, or the length is left open"
        return reason

    def extra_repr(self) -> str:
        return f"{self.embedding.num_embeddings}, {self.embedding.embedding_dim}{options_repr(self, TokenDelayLayer)}"

    def _sums(self, tokens: Tensor, lengths: Tensor | None) -> Tensor:
        """The final state (batch, order, channels): for each order a sum of table rows, weighted by the impulse
        response at their distance from the end."""
        batch, time = tokens.shape
        table = self.embedding.weight
        system = self.memory.systems()[0]
        response = system.derive(_response, power_of_2_from(time), dtype=table.dtype, device=table.device)[:, :time]
        if lengths is None:
            weights = response.flip(1)[:, None].expand(-1, batch, -1)
        else:
            age = lengths[:, None] - 1 - torch.arange(time, device=tokens.device)
            weights = torch.where(age >= 0, response[:, age.clamp(min=0)], 0.0)  # (order, batch, time)
        if self.training and self.token_dropout:
            weights = weights * self._dropout_factors(tokens, weights.dtype)
        try:
            sums = [
                embedding_bag(tokens, table, mode="sum", per_sample_weights=order_weights.contiguous())
                for order_weights in weights.unbind()
            ]
        except RuntimeError:
            self._check_range(tokens)
            raise
        return torch.stack(sums, dim=1)

    def _dropout_factors(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Factors of dropout: zero for tokens that are dropped, more than one for the others."""
        return dropout(torch.ones(tokens.shape, dtype=dtype, device=tokens.device), self.token_dropout)

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Rows of the table (..., embedding_dim); raises for a bad token."""
        try:
            x: Tensor = self.embedding(tokens)
        except IndexError:
            self._check_range(tokens)
            raise
        return x

    def _check_range(self, tokens: Tensor) -> None:
        size = self.embedding.num_embeddings
        bad = tokens[(tokens < 0) | (tokens >= size)]
        if bad.numel():
            raise IndexError(f"tokens must be from 0 to {size - 1}, got {int(bad[0])}") from None

    def _check(self, tokens: Tensor, dims: int) -> None:
        """Raise unless tokens are integers with `dims` axes, and the table still fits the memory."""
        check_padded(tokens, "tokens")
        if tokens.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"tokens must be token numbers, int64 or int32, got {tokens.dtype}")
        if self.embedding.embedding_dim != self.delay.input_size:
            raise ValueError(f"embedding must have {self.delay.input_size} columns, got {self.embedding.embedding_dim}")
        if tokens.dim() != dims or (dims == 2 and tokens.shape[1] == 0):
            expected = "(batch, time) with at least one step" if dims == 2 else "(batch,)"
            raise ValueError(f"tokens must have shape {expected}, got {tuple(tokens.shape)}")


def _response(system: LinearSystem, length: int) -> Tensor:
    """The impulse response (order, length), at module level so that it can be cached."""
    return system.impulse_response(length)
