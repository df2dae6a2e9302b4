"""Translating with a trained encoder–decoder, one step at a time, by beam search. Greedy decoding is a beam of one.

The state of a hypothesis is that of the decoder's blocks, of constant size. Keys and values of a source are computed
once and shared by its hypotheses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plmu.nn import EncoderDecoder
from plmu.runtime.state_tree import map_state
from plmu.text.vocabularies import BEGIN, END, PADDING

RATIO, ALLOWANCE = 2, 10  # a translation has at most RATIO times as many tokens as its source, plus ALLOWANCE


@dataclass
class Translation:
    """A translation and its score."""

    tokens: list[int]  # without BEGIN and END
    score: float  # log-probability, END included, divided by (tokens + 1) to the power of the length penalty
    attention: Tensor | None  # (tokens + 1, source tokens): attention of each token and of END


@torch.no_grad()
def translate(
    model: EncoderDecoder,
    source: Tensor,
    lengths: Tensor,
    beam: int = 1,
    length_penalty: float = 1.0,
    attention: bool = False,
) -> list[Translation]:
    """The best translation of each source that beam search finds.

    A hypothesis that has ended stays in the beam while its score is among the best. A source is done when all its
    hypotheses have ended.

    Args:
        model: in evaluation mode.
        source: token numbers (batch, source time), padded on the right, none of them empty.
        lengths: number of tokens of each source, (batch,).
        beam: hypotheses of each source; 1 is greedy.
        length_penalty: scores are divided by the length to this power; above 0 favours longer translations.
        attention: whether to return the attention of each token.
    """
    search = _Search(model, source, lengths, beam, length_penalty, attention)
    while len(search.rows):
        search.step()
    return [search.finished[row] for row in range(source.shape[0])]


class _Search:
    """Beam search over a batch of sources.

    Tensors have an entry for each unfinished source: `rows` is its number in the batch, `tokens` (sources, beam, time)
    starts with BEGIN, `total` is the log-probability of each hypothesis.
    """

    def __init__(
        self, model: EncoderDecoder, source: Tensor, lengths: Tensor, beam: int, penalty: float, attention: bool
    ) -> None:
        if beam < 1:
            raise ValueError(f"beam must be at least 1, got {beam}")
        self.model, self.beam, self.penalty = model, beam, penalty
        device, count = source.device, source.shape[0]
        self.lengths, self.limits = lengths, RATIO * lengths + ALLOWANCE
        self.context = model.encode(source, lengths)
        self.state: Any = None
        self.rows = torch.arange(count, device=device)
        self.tokens = torch.full((count, beam, 1), BEGIN, device=device)
        self.done = torch.zeros(count, beam, dtype=torch.bool, device=device)  # whether a hypothesis has ended
        # At first there is one hypothesis: all would be equal.
        self.total = torch.full((count, beam), -torch.inf, device=device)
        self.total[:, 0] = 0.0
        self.size = torch.zeros(count, beam, device=device)  # tokens, END included
        self.attention = torch.zeros(count, beam, 0, source.shape[1], device=device) if attention else None
        self.finished: dict[int, Translation] = {}

    def step(self) -> None:
        """Extend each hypothesis by one token."""
        last = self.tokens[:, :, -1].flatten()
        if self.attention is None:
            out, self.state = self.model.step(last, self.state, self.context)
        else:
            out, self.state, weights = self.model.step_with_attention(last, self.state, self.context)
            weights = weights.float().reshape(*self.done.shape, 1, -1)
            self.attention = torch.cat([self.attention, weights], dim=2)
        logs = out.float().log_softmax(-1).reshape(*self.done.shape, -1)
        logs[:, :, [PADDING, BEGIN]] = -torch.inf
        full = self.tokens.shape[2] > self.limits[self.rows]  # only END may follow
        others = torch.arange(logs.shape[2], device=logs.device) != END
        logs = logs.masked_fill(full[:, None, None] & others, -torch.inf)
        logs = logs.masked_fill(self.done[:, :, None], -torch.inf)
        logs[:, :, PADDING] = torch.where(self.done, 0.0, -torch.inf)  # an ended hypothesis does not change
        self._choose(self.total[:, :, None] + logs)
        self._finish()

    def _choose(self, totals: Tensor) -> None:
        """Choose the best continuations by their log-probabilities, `totals` (sources, beam, vocabulary)."""
        longer = self.size + ~self.done
        ranked = totals / longer[:, :, None] ** self.penalty
        _, places = ranked.flatten(1).topk(self.beam)
        parents, token = places // totals.shape[2], places % totals.shape[2]
        self.total = totals.flatten(1).gather(1, places)
        self.size = longer.gather(1, parents)
        past = parents[:, :, None].expand(-1, -1, self.tokens.shape[2])
        self.tokens = torch.cat([self.tokens.gather(1, past), token[:, :, None]], dim=2)
        # With fewer continuations than the beam has places, the other places stay empty.
        self.done = (token == END) | (token == PADDING) | self.total.isneginf()
        if self.attention is not None:
            index = parents[:, :, None, None].expand(-1, -1, *self.attention.shape[2:])
            self.attention = self.attention.gather(1, index)
        if self.beam > 1:
            flat = (parents + self.beam * torch.arange(len(parents), device=parents.device)[:, None]).flatten()
            self.state = map_state(self.state, lambda part: part[flat])

    def _finish(self) -> None:
        """Move the sources that are done to `finished`, once at least half of them are."""
        done = self.done.all(1)
        if 2 * int(done.sum()) < len(done):
            return
        best = (self.total / self.size**self.penalty).argmax(1)
        for place in done.nonzero()[:, 0].tolist():
            row, hypothesis = int(self.rows[place]), int(best[place])
            size = int(self.size[place, hypothesis])
            attention = None
            if self.attention is not None:
                attention = self.attention[place, hypothesis, :size, : int(self.lengths[row])].cpu()
            score = float(self.total[place, hypothesis]) / size**self.penalty
            self.finished[row] = Translation(self.tokens[place, hypothesis, 1:size].tolist(), score, attention)
        remaining = (~done).nonzero()[:, 0]
        self.context = tuple(layer.select(remaining) for layer in self.context)
        for name in ("rows", "tokens", "done", "total", "size"):
            setattr(self, name, getattr(self, name)[remaining])
        if self.attention is not None:
            self.attention = self.attention[remaining]
        hypotheses = (remaining[:, None] * self.beam + torch.arange(self.beam, device=remaining.device)).flatten()
        self.state = map_state(self.state, lambda part: part[hypotheses])
