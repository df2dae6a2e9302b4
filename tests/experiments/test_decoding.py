"""Beam search: against all translations there are, against greedy decoding, and in batches."""

from itertools import product

import pytest
import torch
from torch import nn

import plmu
from plmu.experiments.translation import decoding
from plmu.experiments.translation.decoding import translate
from plmu.text.vocabularies import BEGIN, END, FIRST, PADDING

WORDS = 7


def _model(width: int = 8) -> plmu.EncoderDecoder:
    torch.manual_seed(1)
    memory = plmu.ParallelLMU(width, width, order=2, theta=4.0, encoder=False)
    model = plmu.EncoderDecoder(
        plmu.Sequential(nn.Embedding(WORDS, width), memory),
        nn.Embedding(WORDS, width),
        [plmu.MemoryBlock(width, order=2, theta=3.0)],
        [plmu.CrossAttention(width, 2)],
        nn.Linear(width, WORDS),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # so that tokens are far from equally likely
    return model.double().eval()


def _probability(model, source, tokens) -> float:
    """Log-probability of a whole translation, by the parallel form."""
    given = torch.tensor([[BEGIN, *tokens]])
    logs = model(source, None, given).log_softmax(-1)[0]
    return float(sum(logs[t, token] for t, token in enumerate([*tokens, END])))


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_translations(penalty, monkeypatch):
    monkeypatch.setattr(decoding, "RATIO", 0)
    monkeypatch.setattr(decoding, "ALLOWANCE", 2)
    model = _model()
    source = torch.tensor([[4, 5, 6], [6, 1, 0]])
    lengths = torch.tensor([3, 2])
    words = [1, *range(FIRST, WORDS)]
    every = [tokens for size in range(3) for tokens in product(words, repeat=size)]
    found = translate(model, source, lengths, beam=len(every), length_penalty=penalty)
    for row, one in enumerate(found):
        alone = source[row : row + 1, : lengths[row]]
        ranked = {tokens: _probability(model, alone, tokens) / (len(tokens) + 1) ** penalty for tokens in every}
        best = max(ranked, key=ranked.__getitem__)
        assert tuple(one.tokens) == best
        assert one.score == pytest.approx(ranked[best], rel=1e-5)


@torch.no_grad()
def test_a_beam_wider_than_all_translations_ends(monkeypatch):
    monkeypatch.setattr(decoding, "RATIO", 0)
    monkeypatch.setattr(decoding, "ALLOWANCE", 2)
    source, lengths = torch.tensor([[4, 5, 6], [6, 1, 0]]), torch.tensor([3, 2])
    wide, wider = (translate(_model(), source, lengths, beam=beam) for beam in (21, 100))
    assert [(one.tokens, one.score) for one in wide] == [(one.tokens, one.score) for one in wider]


@torch.no_grad()
def test_one_hypothesis_is_greedy_and_ends_at_its_limit():
    model = _model()
    source, lengths = torch.randint(FIRST, WORDS, (6, 5)), torch.tensor([5, 4, 3, 2, 1, 5])
    for row, one in enumerate(translate(model, source, lengths)):
        tokens: list[int] = []
        while True:
            out = model(source[row : row + 1, : lengths[row]], None, torch.tensor([[BEGIN, *tokens]]))[0, -1]
            out[[PADDING, BEGIN]] = -torch.inf
            if int(out.argmax()) == END or len(tokens) == 2 * int(lengths[row]) + 10:
                break
            tokens.append(int(out.argmax()))
        assert one.tokens == tokens


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_sentences_are_translated_in_a_batch_as_they_are_alone(beam):
    model = _model()
    source, lengths = torch.randint(FIRST, WORDS, (9, 6)), torch.tensor([6, 1, 5, 2, 4, 3, 6, 2, 1])
    together = translate(model, source, lengths, beam, attention=True)
    assert len({len(one.tokens) for one in together}) > 1, "they are done at different times"
    for row, one in enumerate(together):
        (alone,) = translate(model, source[row : row + 1, : lengths[row]], lengths[row : row + 1], beam, attention=True)
        assert one.tokens == alone.tokens
        assert one.score == pytest.approx(alone.score)
        assert one.attention.shape == (len(one.tokens) + 1, int(lengths[row]))
        torch.testing.assert_close(one.attention, alone.attention)
        assert not {PADDING, BEGIN, END} & set(one.tokens)
    plain = translate(model, source, lengths, beam)
    assert [one.tokens for one in plain] == [one.tokens for one in together]
    assert plain[0].attention is None


@torch.no_grad()
def test_attention_follows_its_hypothesis():
    """What is kept for each token is what the whole sequence attends to."""
    model = _model()
    source = torch.tensor([[4, 5, 6, 4]])
    (one,) = translate(model, source, torch.tensor([4]), beam=3, attention=True)
    context, state = model.encode(source), None
    for token, kept in zip([BEGIN, *one.tokens], one.attention, strict=True):
        _, state, weights = model.step_with_attention(torch.tensor([token]), state, context)
        torch.testing.assert_close(kept, weights[0].float())


def test_a_beam_has_at_least_one_hypothesis():
    with pytest.raises(ValueError, match="beam must be at least 1, got 0"):
        translate(_model(), torch.tensor([[4]]), torch.tensor([1]), beam=0)
