"""Cross-attention, the encoder–decoder and the steppable LSTM: whole sequences, single steps, padding and batches."""

import re

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import plmu
from plmu.folded.states import leaves
from plmu.nn import LSTM

WIDTH, WORDS = 8, 11


def _blocks(kind: str) -> list[plmu.nn.Steppable]:
    if kind == "memory":
        return [plmu.MemoryBlock(WIDTH, order=3, theta=(2.0, 5.0), hidden=12) for _ in range(2)]
    if kind == "paper":
        return [plmu.LMUBlock(WIDTH, order=3, theta=4.0) for _ in range(2)]
    return [plmu.Residual(LSTM(WIDTH, WIDTH)), plmu.Residual(LSTM(WIDTH, WIDTH))]


def _model(kind: str = "memory", **options) -> plmu.EncoderDecoder:
    memory = plmu.ParallelLMU(WIDTH, WIDTH // 2, order=3, theta=4.0, encoder=False)
    encoder = plmu.Sequential(nn.Embedding(WORDS, WIDTH), plmu.Bidirectional(memory))
    attentions = [plmu.CrossAttention(WIDTH, 2), None if kind == "paper" else plmu.CrossAttention(WIDTH, 4)]
    head = plmu.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS))
    model = plmu.EncoderDecoder(encoder, nn.Embedding(WORDS, WIDTH), _blocks(kind), attentions, head, **options)
    return model.double().eval()


def _given():
    source, target = torch.randint(WORDS, (3, 6)), torch.randint(WORDS, (3, 5))
    return source, torch.tensor([6, 3, 1]), target


@pytest.mark.parametrize("kind", ["memory", "paper", "lstm"])
@torch.no_grad()
def test_steps_agree_with_the_whole_sequence(kind):
    model = _model(kind)
    source, lengths, target = _given()
    whole = model(source, lengths, target)
    assert whole.shape == (3, 5, WORDS)
    context, state = model.encode(source, lengths), None
    sizes = set()
    for t in range(5):
        out, state = model.step(target[:, t], state, context)
        torch.testing.assert_close(out, whole[:, t])
        sizes.add(sum(leaf.numel() for leaf in leaves(state)))
    assert len(sizes) == 1, "the state of a hypothesis does not grow"


@pytest.mark.parametrize("kind", ["memory", "lstm"])
@torch.no_grad()
def test_neither_padding_nor_the_rest_of_the_batch_changes_anything(kind):
    model = _model(kind)
    source, lengths, target = _given()
    target_lengths = torch.tensor([2, 5, 4])
    out = model(source, lengths, target, target_lengths)
    for row in range(3):
        alone = model(source[row : row + 1, : lengths[row]], None, target[row : row + 1, : target_lengths[row]])
        torch.testing.assert_close(out[row : row + 1, : target_lengths[row]], alone)
        assert not out[row, target_lengths[row] :].any()
    other, later = source.clone(), target.clone()
    other[1, 3:], other[2, 1:], later[0, 2:] = 0, 7, 9
    assert torch.equal(model(other, lengths, later, target_lengths), out)


@torch.no_grad()
def test_a_decoder_does_not_see_what_comes():
    model = _model()
    source, lengths, target = _given()
    later = target.clone()
    later[:, 3:] = (later[:, 3:] + 1) % WORDS
    before, after = model(source, lengths, target), model(source, lengths, later)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


@torch.no_grad()
def test_hypotheses_of_a_source_share_what_was_read_of_it():
    model = _model()
    source, lengths, _ = _given()
    tokens = torch.randint(WORDS, (3, 4))  # four hypotheses of each
    out, state = model.step(tokens.flatten(), None, model.encode(source, lengths))
    again, _ = model.step(tokens.flatten(), state, model.encode(source, lengths))
    repeated = model.encode(source.repeat_interleave(4, 0), lengths.repeat_interleave(4, 0))
    expected, state = model.step(tokens.flatten(), None, repeated)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(again, model.step(tokens.flatten(), state, repeated)[0])
    with pytest.raises(ValueError, match="a multiple of the 3 sources, got 4"):
        model.step(tokens.flatten()[:4], None, model.encode(source, lengths))


@torch.no_grad()
def test_weights_say_what_a_step_attended_to():
    model = _model()
    source, lengths, target = _given()
    context = model.encode(source, lengths)
    out, _, weights = model.step_with_attention(target[:, 0], None, context)
    torch.testing.assert_close(out, model.step(target[:, 0], None, context)[0])
    assert weights.shape == (3, 6)
    torch.testing.assert_close(weights.sum(1), torch.ones(3, dtype=weights.dtype))
    assert not weights[1, 3:].any()
    assert weights[2, 0] == 1


def test_cross_attention_is_torchs_multi_head_attention():
    layer = plmu.CrossAttention(WIDTH, 2, source_width=5, dtype=torch.float64)
    same = nn.MultiheadAttention(WIDTH, 2, bias=False, kdim=5, vdim=5, batch_first=True, dtype=torch.float64)
    keys, values = layer.source.weight.detach().chunk(2)
    with torch.no_grad():
        for mine, theirs in ((layer.query.weight, same.q_proj_weight), (keys, same.k_proj_weight),
                             (values, same.v_proj_weight), (layer.output.weight, same.out_proj.weight)):  # fmt: skip
            theirs.copy_(mine)
    x, encoded = torch.randn(3, 4, WIDTH).double(), torch.randn(3, 6, 5).double().requires_grad_()
    lengths = torch.tensor([6, 2, 1])
    padding = torch.arange(6) >= lengths[:, None]
    expected, weights = same(x, encoded, encoded, key_padding_mask=padding, average_attn_weights=False)
    attended = layer.read(encoded, lengths)
    out = layer(x, attended)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(layer.weights(x, attended).double(), weights, rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(out.sum(), encoded)
    (wanted,) = torch.autograd.grad(expected.sum(), encoded)
    torch.testing.assert_close(gradient, wanted)
    assert not gradient[1, 2:].any()


def test_an_empty_source_gives_numbers():
    out = plmu.CrossAttention(4, 2)
    attended = out.read(torch.zeros(2, 3, 4), torch.tensor([0, 3]))
    assert out(torch.randn(2, 1, 4), attended).isfinite().all()


def test_the_steppable_lstm_is_torchs():
    layer = plmu.Bidirectional(LSTM(3, 4)).double()
    same = nn.LSTM(3, 4, batch_first=True, bidirectional=True, dtype=torch.float64)
    for end, part in (("", layer.forward_layer), ("_reverse", layer.backward_layer)):
        for name, value in part.layer.named_parameters():
            getattr(same, f"{name}{end}").data.copy_(value.data)
    x, lengths = torch.randn(3, 7, 3).double(), torch.tensor([7, 4, 1])
    packed = same(pack_padded_sequence(x, lengths, batch_first=True))[0]
    torch.testing.assert_close(layer(x, lengths=lengths)[0], pad_packed_sequence(packed, batch_first=True)[0])


def test_an_lstm_steps_and_goes_on_from_its_pieces():
    layer = LSTM(3, 4, forget_bias=1.5, dtype=torch.float64)
    assert (layer.layer.bias_ih_l0 + layer.layer.bias_hh_l0)[4:8].tolist() == [1.5] * 4
    x = torch.randn(2, 5, 3).double()
    whole, last = layer(x)
    first, state = layer(x[:, :2], layer.initial_state(2, x.dtype, x.device))
    second, _ = layer(x[:, 2:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    state = None
    for t in range(5):
        out, state = layer.step(x[:, t], state)
        torch.testing.assert_close(out, whole[:, t])
    torch.testing.assert_close(state, last)
    with pytest.raises(ValueError, match="takes no resets"):
        layer(x, resets=torch.zeros(2, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match="the pair of h and c"):
        layer(x, last[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"encoder": nn.Embedding(3, 4)},
            "encoder must be a plmu layer or stack that returns sequences",
        ),
        ({"blocks": [nn.Linear(4, 4)]}, "blocks[0] must be steppable and return sequences, got Linear"),
        ({"attentions": []}, "an attention, or None, for each block: got 0 for 1 blocks"),
        ({"attentions": [None]}, "without one the decoder never sees the source"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1, got 1.0"),
    ],
)
def test_parts_that_do_not_fit_are_named(change, message):
    given = {
        "encoder": plmu.Sequential(nn.Embedding(3, 4)),
        "entry": nn.Embedding(3, 4),
        "blocks": [plmu.Residual(LSTM(4, 4))],
        "attentions": [plmu.CrossAttention(4, 2)],
        "head": nn.Linear(4, 3),
    }
    plmu.EncoderDecoder(**given)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        plmu.EncoderDecoder(**{**given, **change})


@pytest.mark.parametrize(
    ("width", "heads", "source", "message"),
    [
        (6, 4, None, "width must be a multiple of heads, got width=6 and heads=4"),
        (0, 1, None, "width must be an integer of at least 1, got 0"),
        (4, 2, 0, "source_width must be an integer of at least 1, got 0"),
    ],
)
def test_sizes_of_cross_attention(width, heads, source, message):
    with pytest.raises(ValueError, match=message):
        plmu.CrossAttention(width, heads, source)
    layer = plmu.CrossAttention(6, 2, 4)
    assert repr(layer).startswith("CrossAttention(\n  6, heads=2, source_width=4")
    with pytest.raises(ValueError, match=r"x must have shape \(batch, time, 4\)"):
        layer.read(torch.zeros(1, 2, 6))
