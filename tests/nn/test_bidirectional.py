"""Bidirectional: both directions of whole sequences, as two layers by hand give them, and no steps."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import plmu
from plmu import LMU, Bidirectional, DelayLayer, ParallelLMU, Residual, Sequential, Stream
from plmu.nn import reverse

TIME, BATCH = 12, 4
SMALL = {"order": 4, "theta": 5.0}
LAYERS: dict[str, Callable[..., plmu.nn.Steppable]] = {
    "parallel": lambda **o: ParallelLMU(3, 4, **SMALL, **o),
    "gated": lambda **o: ParallelLMU(3, 4, **SMALL, gated=True, **o),
    "trained": lambda **o: ParallelLMU(3, 4, order=4, theta=[3.0, 9.0], memory_size=2, trainable="theta", **o),
    "delay": lambda **o: DelayLayer(3, **SMALL, **o),
    "original": lambda **o: LMU(3, 4, **SMALL, **o),
    "stack": lambda **o: Sequential(nn.Linear(3, 3), nn.Tanh(), ParallelLMU(3, 4, **SMALL, **o), nn.Linear(4, 2)),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
both_kinds = pytest.mark.parametrize("sequences", [True, False], ids=["sequences", "last"])


def sequence() -> Tensor:
    return torch.randn(BATCH, TIME, 3, dtype=torch.float64)


def resets_of(*firsts: int) -> Tensor:
    resets = torch.zeros(BATCH, TIME, dtype=torch.bool)
    resets[:, list(firsts)] = True
    return resets


# ---------------------------------------------------------------- what it computes


@every_layer
@both_kinds
@pytest.mark.parametrize("lengths", [None, [TIME, 7, 1, 0]], ids=["whole", "lengths"])
def test_two_layers_by_hand(name: str, sequences: bool, lengths: list[int] | None) -> None:
    layer = Bidirectional(LAYERS[name](return_sequences=sequences)).double()
    x = sequence()
    out, (end, start) = layer(x, lengths=lengths)
    ahead, right_end = layer.forward_layer(x, lengths=lengths)
    back, right_start = layer.backward_layer(reverse(x, lengths), lengths=lengths)
    expected = torch.cat([ahead, reverse(back, lengths) if sequences else back], dim=-1)
    assert torch.equal(out, expected)
    torch.testing.assert_close((end, start), (right_end, right_start), rtol=0, atol=0)
    assert layer.returns_sequences == sequences
    assert layer.input_size == 3


@every_layer
@both_kinds
def test_a_reader_from_the_right_sees_what_comes(name: str, sequences: bool) -> None:
    """The backward output at a step depends on that step and all later ones of its sequence, and on nothing else."""
    layer = Bidirectional(LAYERS[name](return_sequences=sequences)).double()
    x = sequence().requires_grad_()
    out, _ = layer(x, lengths=[8] * BATCH)
    size = out.shape[-1] // 2
    found = out[:, 3, size:] if sequences else out[:, size:]
    (gradient,) = torch.autograd.grad(found.square().sum(), x)
    touched = gradient.abs().sum((0, 2)) > 0
    first = 3 if sequences else 0
    assert touched.tolist() == [first <= t < 8 for t in range(TIME)]


@every_layer
def test_documents_in_one_sequence_are_read_alone(name: str) -> None:
    layer = Bidirectional(LAYERS[name]()).double()
    x, firsts = sequence(), [0, 4, 5, 10]
    for lengths, end in ((None, TIME), ([9] * BATCH, 9)):
        out, _ = layer(x, lengths=lengths, resets=resets_of(*firsts))
        for a, b in zip(firsts, [*firsts[1:], TIME], strict=True):
            if a < end:
                alone, _ = layer(x[:, a : min(b, end)])
                # One rounding for each of the products that are summed: at most 12 steps of 4 orders and 4 units.
                bound = TIME * 8 * torch.finfo(torch.float64).eps * alone.abs().max().item()
                torch.testing.assert_close(out[:, a : min(b, end)], alone, rtol=0, atol=bound)
        assert not out[:, end:].any()


@both_kinds
def test_outputs_may_be_added(sequences: bool) -> None:
    layer = Bidirectional(ParallelLMU(3, 4, **SMALL, return_sequences=sequences), merge="sum")
    pair = copy.deepcopy(layer)
    pair.merge = "concat"
    x = sequence().float()
    ahead, back = pair(x)[0].chunk(2, dim=-1)
    assert torch.equal(layer(x)[0], ahead + back)


def test_a_layer_of_another_kind_may_read_backwards() -> None:
    layer = Bidirectional(ParallelLMU(3, 4, **SMALL), LMU(3, 2, **SMALL))
    assert layer(sequence().float())[0].shape == (BATCH, TIME, 6)
    with pytest.raises(ValueError, match="merge='sum' needs layers with equally many output features, got 4 and 2"):
        Bidirectional(ParallelLMU(3, 4, **SMALL), LMU(3, 2, **SMALL), "sum")(sequence().float())


@every_layer
def test_the_copy_is_initialised_anew(name: str) -> None:
    torch.manual_seed(0)
    given = LAYERS[name]()
    before = {key: value.clone() for key, value in given.state_dict().items()}
    layer = Bidirectional(given)
    assert layer.forward_layer is given
    assert all(torch.equal(value, before[key]) for key, value in given.state_dict().items())
    assert repr(layer.backward_layer) == repr(given)
    for key, value in layer.backward_layer.state_dict().items():
        constant = "bias" in key or "theta" in key or not value.numel()
        assert value.data_ptr() != before[key].data_ptr()
        assert constant or "memory_encoder" in key or not torch.equal(value, before[key]), key
    if name == "gated":  # by the layer's own rule, not that of nn.Linear
        assert torch.equal(layer.backward_layer.gate.bias, torch.full((3,), -1.0))


def test_in_a_stack() -> None:
    model = Sequential(
        nn.Embedding(9, 3), Residual(Bidirectional(ParallelLMU(3, 3, **SMALL), merge="sum")), nn.LayerNorm(3),
        Bidirectional(ParallelLMU(3, 4, **SMALL, return_sequences=False)), nn.Linear(8, 2),
    )  # fmt: skip
    tokens = torch.randint(9, (BATCH, TIME))
    out, state = model(tokens, lengths=[TIME, 5, 3, 1])
    assert out.shape == (BATCH, 2)
    out.square().sum().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.parameters())
    alone, _ = model(tokens[1:2, :5])
    bound = 200 * torch.finfo(torch.float32).eps * alone.abs().max().item()  # fewer products than that are summed
    torch.testing.assert_close(out[1:2], alone, rtol=0, atol=bound)
    with pytest.raises(ValueError, match="Bidirectional needs the whole sequence and cannot go on from a state"):
        model(tokens, state)


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("within", [lambda one: one, lambda one: Sequential(nn.Tanh(), one)], ids=["alone", "stack"])
def test_steps_are_refused(within: Callable[[nn.Module], plmu.nn.Steppable]) -> None:
    model = within(Bidirectional(ParallelLMU(3, 4, **SMALL)))
    refused = "Bidirectional needs the whole sequence: a model with it cannot be stepped, streamed or folded"
    for call in (
        lambda: model.step(torch.zeros(2, 3)),
        lambda: Stream(model),
        lambda: plmu.fold(model),
        lambda: model.initial_state(2, torch.float32, torch.device("cpu")),
    ):
        with pytest.raises(ValueError, match=refused):
            call()


def test_bad_arguments_are_named() -> None:
    layer = ParallelLMU(3, 4, **SMALL)
    for wrong, kind in ((nn.Linear(3, 3), "Linear"), (None, "NoneType"), (ParallelLMU, "the class ParallelLMU")):
        with pytest.raises(TypeError, match=rf"^layer must be a steppable module.*got {kind}"):
            Bidirectional(wrong)
    with pytest.raises(TypeError, match=r"^backward_layer must be a steppable module.*got Linear"):
        Bidirectional(layer, nn.Linear(3, 4))
    with pytest.raises(ValueError, match="merge must be one of concat, sum, got 'mean'"):
        Bidirectional(layer, merge="mean")
    with pytest.raises(ValueError, match="must have the same return_sequences"):
        Bidirectional(layer, ParallelLMU(3, 4, **SMALL, return_sequences=False))
    with pytest.raises(ValueError, match=r"x must have shape \(batch, time, features\), got \(3,\)"):
        Bidirectional(layer)(torch.zeros(3))
    with pytest.raises(ValueError, match=r"Residual would add NaN"):
        Residual(Bidirectional(ParallelLMU(3, 3, **SMALL, missing="zero"), merge="sum"))


def test_weights_that_nothing_initialises_are_named() -> None:
    class Scaled(nn.Module):
        per_step = True

        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.by * x

    layer = Sequential(Scaled(), ParallelLMU(3, 4, **SMALL))
    with pytest.raises(ValueError, match=r"layer\.layers\.0 \(Scaled\) has weights but no reset_parameters\(\).*give"):
        Bidirectional(layer)
    Bidirectional(layer, copy.deepcopy(layer))


# ---------------------------------------------------------------- files


@every_layer
@pytest.mark.parametrize("merge", ["concat", "sum"])
def test_saved_and_loaded(name: str, merge: str, path: Path) -> None:
    model = Sequential(nn.Dropout(0.1), Bidirectional(LAYERS[name](), merge=merge)).eval()
    plmu.save(model, path)
    again = plmu.load(path).eval()
    assert repr(again) == repr(model)
    x = sequence().float()
    assert torch.equal(again(x)[0], model(x)[0])


def test_one_layer_for_both_directions_stays_one(path: Path) -> None:
    layer = ParallelLMU(3, 4, **SMALL)
    model = Bidirectional(layer, layer)
    plmu.save(model, path)
    again = plmu.load(path)
    assert again.forward_layer.memory_weight is again.backward_layer.memory_weight
    x = sequence().float()
    assert torch.equal(again(x)[0], model(x)[0])


def test_a_file_must_have_both_layers(path: Path) -> None:
    """Of one the constructor would make another: small files of nested ones could ask for any number."""
    tensors, inner = {}, {"class": "ParallelLMU", "config": {"input_size": 3, "hidden_size": 4, **SMALL}}
    for modules in ([inner], [inner] * 3, []):
        description = {"class": "Bidirectional", "modules": modules, "merge": "concat"}
        plmu.modelfiles.files.write(path, tensors, {"kind": "model", "tied": {}, "model": description})
        with pytest.raises(plmu.FileFormatError, match="must have two modules"):
            plmu.load(path)


def test_what_cannot_be_initialised_anew() -> None:
    layer = ParallelLMU(3, 4, **SMALL)
    torch.nn.utils.parametrizations.weight_norm(layer.encoder)
    with pytest.raises(ValueError, match="layer has parametrized weights, which cannot be initialised anew"):
        Bidirectional(layer)
    tokens = plmu.TokenDelayLayer(9, 3, **SMALL)
    tokens.embedding.requires_grad_(False)
    both = Bidirectional(tokens)
    assert torch.equal(both.backward_layer.embedding.weight, tokens.embedding.weight)  # pretrained vectors stay
    assert both.output_size == 2 * tokens.output_size
    assert Bidirectional(ParallelLMU(3, 4, **SMALL), merge="sum").output_size == 4


def test_made_and_called_among_fake_tensors() -> None:
    with FakeTensorMode():
        layer = plmu.Bidirectional(plmu.ParallelLMU(3, 4, order=3, theta=5.0))
        assert layer(torch.randn(2, 6, 3), lengths=[6, 2])[0].shape == (2, 6, 8)
