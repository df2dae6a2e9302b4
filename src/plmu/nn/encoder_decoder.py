"""A model that reads one sequence and writes another: for translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plmu.nn.cross_attention import Attended, CrossAttention
from plmu.nn.sequential import Sequential
from plmu.nn.stacking import checked_states, run, run_step
from plmu.nn.steppable import Steppable, probability
from plmu.ops.check import Lengths, checked_lengths

Context = tuple[Attended, ...]  # keys and values for each attention layer


class EncoderDecoder(nn.Module):
    """An encoder of whole sequences, and a decoder that attends to the encoder's outputs.

        encoded = encoder(source); x = entry(target)
        for each block: x ← block(x); x ← x + attention(norm(x), encoded)
        out = head(x)

    Training takes whole sequences: `model(source, source_lengths, target)`. Decoding takes steps:
    `context = model.encode(source, lengths)`, then `out, state = model.step(tokens, state, context)`. The results
    agree. The state of the decoder is that of its blocks, whose size does not depend on the number of steps.

    Args:
        encoder: steppable modules from source to features, such as a `plmu.Sequential` of an embedding and
            `plmu.Bidirectional` layers. It need not be able to step.
        entry: from a step of the target to the decoder's features, such as an embedding; without a state.
        blocks: of the decoder, which must be able to step, such as `plmu.MemoryBlock`.
        attentions: one after each block, or None for a block without.
        head: from the decoder's features to the output, such as a norm and an `nn.Linear`; without a state.
        dropout: dropout probability after each attention, in training.

    Shape:
        source: (batch, source time), of token numbers, or whatever the encoder takes.
        target: (batch, time), of token numbers, or whatever `entry` takes.
        out: (batch, time, outputs).
    """

    def __init__(
        self,
        encoder: Steppable,
        entry: nn.Module,
        blocks: Sequence[Steppable],
        attentions: Sequence[CrossAttention | None],
        head: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(encoder, Steppable) or not encoder.returns_sequences:
            raise TypeError(
                f"encoder must be a plmu layer or stack that returns sequences, got {type(encoder).__name__}"
            )
        for number, block in enumerate(blocks):
            if not isinstance(block, Steppable) or not block.returns_sequences:
                raise TypeError(f"blocks[{number}] must be steppable and return sequences, got {type(block).__name__}")
        if not blocks or len(attentions) != len(blocks):
            raise ValueError(
                f"there must be an attention, or None, for each block: got {len(attentions)} for {len(blocks)} blocks"
            )
        if all(attention is None for attention in attentions):
            raise ValueError("attentions must hold a CrossAttention: without one the decoder never sees the source")
        self.encoder = encoder
        self.entry, self.head = Sequential(entry), Sequential(head)
        self.blocks = nn.ModuleList(blocks)
        self.attentions = nn.ModuleList(nn.Identity() if attention is None else attention for attention in attentions)
        self.norms = nn.ModuleList(
            nn.Identity() if attention is None else nn.RMSNorm(attention.width, eps=1e-6, **_place(attention))
            for attention in attentions
        )
        self.dropout = nn.Dropout(probability(dropout, "dropout"))

    def forward(
        self, source: Tensor, source_lengths: Lengths, target: Tensor, target_lengths: Lengths = None
    ) -> Tensor:
        """The output for each step of the target, all at once.

        Args:
            source: (batch, source time), as of the class.
            source_lengths: the length of each source, (batch,), where they are padded on the right; None for no
                padding.
            target: the target shifted by one step, (batch, time): a start token, then what precedes each output.
            target_lengths: the length of each target, (batch,), or None.

        Returns:
            The output (batch, time, outputs), zero in the padding of the target.
        """
        context = self.encode(source, source_lengths)
        target_lengths = checked_lengths(target_lengths, target.shape[0], target.shape[1], target.device)
        x, _ = self.entry(target, lengths=target_lengths)
        for number, block in enumerate(self.blocks):
            x, _ = run(block, x, None, target_lengths, None)
            x = self._attend(number, x, context)
        out: Tensor = self.head(x, lengths=target_lengths)[0]
        return out

    def encode(self, source: Tensor, lengths: Lengths = None) -> Context:
        """Read the source: keys and values for each attention.

        Args:
            source: (batch, source time).
            lengths: the length of each source, (batch,), or None.
        """
        lengths = checked_lengths(lengths, source.shape[0], source.shape[1], source.device)
        encoded = self.encoder(source, lengths=lengths)[0]
        return tuple(attention.read(encoded, lengths) for attention in self._attending())

    def step(self, tokens: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """One step of the target.

        Args:
            tokens: the step, (batch,); or (k · batch,) for k hypotheses of each source, grouped by source.
            state: what the previous step returned; None at the start.
            context: what `encode` returned.

        Returns:
            The output (batch, outputs), and the state for the next step.
        """
        out, state, _ = self._step(tokens, state, context, False)
        return out, state

    def step_with_attention(self, tokens: Tensor, state: Any, context: Context) -> tuple[Tensor, Any, Tensor]:
        """Like `step`, also returns attention weights.

        Args:
            tokens: as in `step`.
            state: as in `step`.
            context: as in `step`.

        Returns:
            The output, the state, and weights (batch, source time) that sum to one: the mean over all heads of all
            attentions.
        """
        out, state, weights = self._step(tokens, state, context, True)
        return out, state, torch.stack(weights).mean(0)

    def _step(
        self, tokens: Tensor, state: Any, context: Context, weigh: bool
    ) -> tuple[Tensor, tuple[Any, ...], list[Tensor]]:
        """One step, and, if `weigh`, each attention's weights (batch, source time), the mean over its heads."""
        states = list(checked_states(state, len(self.blocks)))
        weights: list[Tensor] = []
        sources = context[0].keys.shape[0]
        if tokens.shape[0] % sources:
            raise ValueError(f"the number of tokens must be a multiple of the {sources} sources, got {tokens.shape[0]}")
        x, _ = self.entry.step(tokens)
        for number, block in enumerate(self.blocks):
            x, states[number] = run_step(block, x, states[number])
            # (sources, k, features): the k hypotheses of a source stand for time steps, which attend independently.
            rows = x.unflatten(0, (sources, -1))
            x = self._attend(number, rows, context, weights if weigh else None).flatten(0, 1)
        return self.head.step(x)[0], tuple(states), weights

    def _attend(self, number: int, x: Tensor, context: Context, weights: list[Tensor] | None = None) -> Tensor:
        """x plus the attention after block `number`, if there is one; its weights are appended to `weights`."""
        attention = self.attentions[number]
        if not isinstance(attention, CrossAttention):
            return x
        attended = context[sum(isinstance(layer, CrossAttention) for layer in self.attentions[:number])]
        query = run_step(self.norms[number], x, None)[0]
        if weights is not None:
            weights.append(attention.weights(query, attended).mean(1).flatten(0, 1))
        out: Tensor = x + self.dropout(attention(query, attended))
        return out

    def _attending(self) -> list[CrossAttention]:
        """The attention layers, without the blocks that have none."""
        return [layer for layer in self.attentions if isinstance(layer, CrossAttention)]


def _place(layer: CrossAttention) -> dict[str, Any]:
    weight = layer.query.weight
    return {"device": weight.device, "dtype": weight.dtype}
