"""The models of translation: their options, and how they are built.

All are a `plmu.EncoderDecoder`: embeddings, an encoder that reads in both directions, and a decoder whose every block
is followed by attention to the encoder's outputs. Norms come first. They differ in their blocks: those of the language
model, or LSTM layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

import plmu
from plmu.runs.fields import Checked
from plmu.text.vocabularies import Pieces, Vocabulary

EPS = 1e-6  # of norms


@dataclass
class TranslationModel(Checked):
    """Options of all translation models."""

    embedding: int = 300
    """Size of the embeddings. The target's are also the weights of the output layer."""
    width: int = 384
    """Features of each token and block; a multiple of 8 times the number of windows is fastest."""
    encoder_blocks: int = 4
    """Number of blocks of the encoder."""
    decoder_blocks: int = 4
    """Number of blocks of the decoder, each followed by attention to the source."""
    attention_heads: int = 6
    """Number of heads of each attention."""
    dropout: float = 0.3
    """Dropout rate, in each block."""
    word_dropout: float = 0.1
    """Dropout rate of whole tokens, on both sides."""
    label_smoothing: float = 0.1
    """Label smoothing of the training loss."""
    longest: int = 100
    """Longest training sentence, in tokens; pairs with a longer one are left out."""
    beam: int = 4
    """Number of hypotheses of the beam search that translates the test sentences."""
    length_penalty: float = 1.0
    """Scores of hypotheses are divided by their length to this power."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.attention_heads):
            raise ValueError(
                f"model.width must be an even multiple of model.attention_heads = {self.attention_heads};"
                f" got {self.width}"
            )


@dataclass
class PlmuModel(TranslationModel):
    """Blocks of a memory with several windows, an output gate and a gated feed-forward layer."""

    order: int = 4
    """Legendre coefficients of each memory channel."""
    thetas: tuple[float, ...] = (4.0, 8.0, 16.0, 48.0)
    """Windows of the memory, in tokens, each for an equal part of the channels."""
    hidden: int = 768
    """Features inside the feed-forward layers."""


@dataclass
class BpeModel(PlmuModel):
    """PlmuModel on pieces of words. One table of embeddings serves source, target and output."""

    embedding: int = 384
    encoder_blocks: int = 5
    decoder_blocks: int = 5
    longest: int = 120
    pieces: int = 8_000
    """Size of the vocabulary of pieces, which both languages share."""


@dataclass
class LSTMModel(TranslationModel):
    """LSTM layers with norms and skip connections; those of the encoder read in both directions."""

    width: int = 512
    encoder_blocks: int = 4
    decoder_blocks: int = 3
    attention_heads: int = 8
    forget_bias: float = 1.0
    """Initial bias of the forget gates."""


def build(model: TranslationModel, source: Vocabulary, target: Vocabulary) -> plmu.EncoderDecoder:
    """The untrained model of a configuration, for these vocabularies."""
    width, rate = model.width, model.dropout
    tables = [_table(vocabulary.size, model.embedding) for vocabulary in (source, target)]
    if isinstance(source, Pieces):
        tables[0] = tables[1]
    out = nn.Linear(model.embedding, target.size)
    out.weight = tables[1].weight
    nn.init.zeros_(out.bias)
    narrow = [] if model.embedding == width else [nn.Linear(width, model.embedding, bias=False)]
    encoder = [_encoder_block(model) for _ in range(model.encoder_blocks)]
    return plmu.EncoderDecoder(
        plmu.Sequential(*_entry(tables[0], model), *encoder, nn.RMSNorm(width, eps=EPS)),
        plmu.Sequential(*_entry(tables[1], model)),
        [_decoder_block(model) for _ in range(model.decoder_blocks)],
        [plmu.CrossAttention(width, model.attention_heads) for _ in range(model.decoder_blocks)],
        plmu.Sequential(nn.RMSNorm(width, eps=EPS), nn.Dropout(rate), *narrow, out),
        rate,
    )


def _table(size: int, width: int) -> nn.Embedding:
    """Embeddings of `size` tokens, initialised for use as output weights too."""
    table = nn.Embedding(size, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


def _entry(table: nn.Embedding, model: TranslationModel) -> list[nn.Module]:
    """Layers from token numbers to features of the blocks' width."""
    wide = [] if model.embedding == model.width else [nn.Linear(model.embedding, model.width, bias=False)]
    norm = nn.RMSNorm(model.width, eps=EPS)
    return [table, nn.Dropout1d(model.word_dropout), *wide, norm, nn.Dropout(model.dropout)]


def _encoder_block(model: TranslationModel) -> plmu.nn.Steppable:
    """A block whose memory or LSTM reads in both directions; each direction makes half of the features."""
    width = model.width
    if isinstance(model, LSTMModel):
        return _lstm_block(model, plmu.Bidirectional(plmu.nn.LSTM(width, width // 2, model.forget_bias)))
    assert isinstance(model, PlmuModel)
    memory = plmu.ParallelLMU(
        width,
        width // 2,
        model.order,
        model.thetas,
        encoder=False,
        input_to_output=False,
        output_activation=None,
        bias=False,
    )
    mixing = [plmu.Gated(plmu.Bidirectional(memory), _gate(width, width)), _dense(width, width)]
    feeding = [
        plmu.Gated(_dense(width, model.hidden), _gate(width, model.hidden)),
        _dense(model.hidden, width),
    ]
    return plmu.Sequential(*(_residual(width, part, model.dropout) for part in (mixing, feeding)))


def _decoder_block(model: TranslationModel) -> plmu.nn.Steppable:
    """A causal block, as of the language model `modern`, or a causal LSTM."""
    if isinstance(model, LSTMModel):
        return _lstm_block(model, plmu.nn.LSTM(model.width, model.width, model.forget_bias))
    assert isinstance(model, PlmuModel)
    return plmu.MemoryBlock(model.width, model.order, model.thetas, hidden=model.hidden, dropout=model.dropout)


def _lstm_block(model: TranslationModel, layer: plmu.nn.Steppable) -> plmu.nn.Steppable:
    return _residual(model.width, [layer], model.dropout)


def _residual(width: int, modules: list[Any], dropout: float) -> plmu.nn.Steppable:
    return plmu.Residual(plmu.Sequential(nn.RMSNorm(width, eps=EPS), *modules, nn.Dropout(dropout)))


def _dense(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _gate(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(_dense(inputs, outputs), nn.SiLU())
