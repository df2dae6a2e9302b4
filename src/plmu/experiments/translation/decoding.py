"""Translating with a trained encoder–decoder, one step at a time: beam search, of which greedy decoding is the case of
one hypothesis.

The state of a hypothesis is that of the decoder's blocks, whose size does not grow. Keys and values of a source are
computed once and shared by its hypotheses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plmu.nn import EncoderDecoder
from plmu.runtime.state_tree import map_state
from plmu.text.vocabularies import BEGIN, END, PADDING

RATIO, MORE = 2, 10  # a translation has at most RATIO times as many tokens as its source, and MORE


@dataclass
class Translation:
    """Token numbers of a translation without those that begin and end it."""

    tokens: list[int]
    score: float  # log-probability, with that of the end, over (tokens + 1) to the power of the length penalty
    attention: Tensor | None  # (tokens + 1, source tokens): what each token, and the end, attended to


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

    A hypothesis that has ended stays in the beam as it is, as long as its score is among the best. A source is done
    when all its hypotheses have ended.

    Args:
        model: in evaluation mode.
        source: token numbers (batch, source time), padded on the right, none of them empty.
        lengths: how many each has, (batch,).
        beam: hypotheses of each source; 1 is greedy.
        length_penalty: scores are divided by the length to this power: above 0 favours longer translations.
        attention: whether to keep what each token attended to.
    """
    search = _Search(model, source, lengths, beam, length_penalty, attention)
    while len(search.rows):
        search.step()
    return [search.found[row] for row in range(source.shape[0])]


class _Search:
    """Sources that are not done yet, `rows`, with their hypotheses (sources, beam)."""

    def __init__(
        self, model: EncoderDecoder, source: Tensor, lengths: Tensor, beam: int, penalty: float, attention: bool
    ) -> None:
        if beam < 1:
            raise ValueError(f"beam must be at least 1, got {beam}")
        self.model, self.beam, self.penalty = model, beam, penalty
        device, count = source.device, source.shape[0]
        self.lengths, self.limits = lengths, RATIO * lengths + MORE
        self.context = model.encode(source, lengths)
        self.state: Any = None
        self.rows = torch.arange(count, device=device)
        self.tokens = torch.full((count, beam, 1), BEGIN, device=device)
        self.done = torch.zeros(count, beam, dtype=torch.bool, device=device)
        # All hypotheses begin alike, so that at first there is only one.
        self.total = torch.full((count, beam), -torch.inf, device=device)
        self.total[:, 0] = 0.0
        self.size = torch.zeros(count, beam, device=device)  # tokens, with the end
        self.attention = torch.zeros(count, beam, 0, source.shape[1], device=device) if attention else None
        self.found: dict[int, Translation] = {}

    def step(self) -> None:
        """Each hypothesis by one token."""
        last = self.tokens[:, :, -1].flatten()
        if self.attention is None:
            out, self.state = self.model.step(last, self.state, self.context)
        else:
            out, self.state, weights = self.model.step_with_attention(last, self.state, self.context)
            now = weights.float().reshape(*self.done.shape, 1, -1)
            self.attention = torch.cat([self.attention, now], dim=2)
        logs = out.float().log_softmax(-1).reshape(*self.done.shape, -1)
        logs[:, :, [PADDING, BEGIN]] = -torch.inf
        full = self.tokens.shape[2] > self.limits[self.rows]  # there is room for the end alone
        others = torch.arange(logs.shape[2], device=logs.device) != END
        logs = logs.masked_fill(full[:, None, None] & others, -torch.inf)
        logs = logs.masked_fill(self.done[:, :, None], -torch.inf)
        logs[:, :, PADDING] = torch.where(self.done, 0.0, -torch.inf)  # what has ended stays as it is
        self._choose(self.total[:, :, None] + logs)
        self._finish()

    def _choose(self, totals: Tensor) -> None:
        """The best continuations, by totals (sources, beam, tokens)."""
        longer = self.size + ~self.done
        ranked = totals / longer[:, :, None] ** self.penalty
        _, places = ranked.flatten(1).topk(self.beam)
        parents, token = places // totals.shape[2], places % totals.shape[2]
        self.total = totals.flatten(1).gather(1, places)
        self.size = longer.gather(1, parents)
        past = parents[:, :, None].expand(-1, -1, self.tokens.shape[2])
        self.tokens = torch.cat([self.tokens.gather(1, past), token[:, :, None]], dim=2)
        # Where there are fewer continuations than places, the rest of the beam stays empty.
        self.done = (token == END) | (token == PADDING) | self.total.isneginf()
        if self.attention is not None:
            every = parents[:, :, None, None].expand(-1, -1, *self.attention.shape[2:])
            self.attention = self.attention.gather(1, every)
        if self.beam > 1:
            flat = (parents + self.beam * torch.arange(len(parents), device=parents.device)[:, None]).flatten()
            self.state = map_state(self.state, lambda part: part[flat])

    def _finish(self) -> None:
        """Take away the sources that are done: at once if all are, else when half of them are."""
        done = self.done.all(1)
        if 2 * int(done.sum()) < len(done):
            return
        best = (self.total / self.size**self.penalty).argmax(1)
        for place in done.nonzero()[:, 0].tolist():
            row, one = int(self.rows[place]), int(best[place])
            size = int(self.size[place, one])
            kept = None
            if self.attention is not None:
                kept = self.attention[place, one, :size, : int(self.lengths[row])].cpu()
            score = float(self.total[place, one]) / size**self.penalty
            self.found[row] = Translation(self.tokens[place, one, 1:size].tolist(), score, kept)
        left = (~done).nonzero()[:, 0]
        self.context = tuple(one.select(left) for one in self.context)
        for name in ("rows", "tokens", "done", "total", "size"):
            setattr(self, name, getattr(self, name)[left])
        if self.attention is not None:
            self.attention = self.attention[left]
        hypotheses = (left[:, None] * self.beam + torch.arange(self.beam, device=left.device)).flatten()
        self.state = map_state(self.state, lambda part: part[hypotheses])
