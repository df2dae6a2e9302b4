"""The original LMU by one product a step, against its equations step by step: outputs, states and all gradients."""

import pytest
import torch
from closeness import within
from torch import Tensor

from plmu import LMU, LMUCell
from plmu.nn import coupled

HIDDEN, TIME, BATCH = 5, 17, 4
FORMS = {
    "all": {},
    "biased": {"bias": True},
    "near the identity": {"theta": 60.0},
    "near the identity, order 1": {"order": 1, "theta": 1e5},
    "trained theta": {"trainable": "theta"},
    "trained system": {"trainable": "system"},
    "nothing optional": dict.fromkeys(
        ("hidden_to_memory", "memory_to_memory", "input_to_hidden", "hidden_to_hidden"), False
    ),
}


def build(dtype: torch.dtype, **options) -> LMU:
    layer = LMU(2, HIDDEN, **{"order": 6, "theta": 8.0} | options).to(dtype)
    for name, value in layer.named_parameters():
        if "memory." not in name:
            torch.nn.init.normal_(value, std=0.3)
    return layer


def results(layer: LMU, x: Tensor, state: tuple[Tensor, Tensor], lengths: list[int] | None) -> list[Tensor]:
    out, (h, m) = layer(x, state, lengths)
    loss = out.sin().sum() + h.cos().sum() + m.square().sum()
    return [out, h, m, *torch.autograd.grad(loss, [x, *state, *layer.parameters()], materialize_grads=True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lengths", [None, [TIME, 0, 1, 9]])
@pytest.mark.parametrize("sequences", [True, False])
def test_equals_the_loop(
    form: str, dtype: torch.dtype, lengths: list[int] | None, sequences: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = build(dtype, **FORMS[form], return_sequences=sequences)
    x = torch.randn(BATCH, TIME, 2, dtype=dtype, requires_grad=True)
    zeros = layer.initial_state(BATCH, dtype, x.device)
    state = tuple(torch.randn_like(value).requires_grad_() for value in zeros)
    calls = []
    run = coupled.states
    monkeypatch.setattr(coupled, "states", lambda *given: calls.append(1) or run(*given))
    fast = results(layer, x, state, lengths)
    assert calls
    with monkeypatch.context() as patch:
        patch.setattr(LMUCell, "_why_not_coupled", lambda *given: "it is to be compared")
        plain = results(layer.double(), x.double(), tuple(value.double() for value in state), lengths)
    for a, b in zip(fast, plain, strict=True):
        assert a.dtype == dtype
        # Each value is a sum over at most TIME steps of a few tens of products, each rounded once.
        bound = 30 * TIME * torch.finfo(dtype).eps * b.detach().abs().max()
        within((a - b).abs().max(), bound)


def test_first_and_second_gradients() -> None:
    names = ("cell.memory_weight", "cell.hidden_encoder")
    for options in ({}, {"theta": 60.0}):
        layer = build(torch.float64, **options)
        x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
        weights = [layer.get_parameter(name) for name in names]

        def run(x: Tensor, *weights: Tensor, layer: LMU = layer) -> Tensor:
            named = dict(zip(names, weights, strict=True))
            return torch.func.functional_call(layer, named, x)[0]

        assert torch.autograd.gradcheck(run, (x, *weights))
        assert torch.autograd.gradgradcheck(run, (x, *weights))


def test_what_is_not_one_channel_in_one_precision_takes_the_loop() -> None:
    sizes = {"batch": 2, "time": 3}
    assert build(torch.float32).plan(**sizes).algorithm == "coupled"
    assert build(torch.float32, memory_size=2).plan(**sizes).algorithm == "step by step"
    assert build(torch.float32, hidden_activation="relu").plan(**sizes).algorithm == "step by step"
    assert build(torch.bfloat16).plan(**sizes).algorithm == "step by step"
    with torch.autocast("cpu", torch.bfloat16):
        assert build(torch.float32).plan(**sizes).algorithm == "step by step"


def test_what_overflows_in_the_padding_reaches_no_gradient() -> None:
    layer = build(torch.float32)
    with torch.no_grad():
        layer.cell.memory_encoder.copy_(10 * layer.cell.memory.systems()[0].B)  # a memory that grows by itself
    x = torch.randn(2, 900, 2, requires_grad=True)
    out, (h, m) = layer(x, None, [10, 5])
    assert not layer(x)[1][1].isfinite().all()
    for value in torch.autograd.grad(out.sum() + h.sum() + m.sum(), [x, *layer.parameters()]):
        assert value.isfinite().all()


def test_output_and_state_are_tensors_of_their_own() -> None:
    for sequences in (True, False):
        layer = build(torch.float32, return_sequences=sequences)
        with torch.no_grad():
            out, (h, m) = layer(torch.randn(2, 5, 2))
            kept = out.clone()
            h.zero_()
            m.zero_()
        assert torch.equal(out, kept)
        assert h.untyped_storage().size() <= 4 * 2 * (6 + HIDDEN)


def test_functional_transforms_of_parameters_and_state() -> None:
    layer = build(torch.float64)
    x = torch.randn(3, 4, 2, dtype=torch.float64)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, x)[0].sin().sum()

    gradients = torch.func.grad(loss)(parameters, x)
    expected = torch.autograd.grad(layer(x)[0].sin().sum(), list(layer.parameters()))
    for value, right in zip(gradients.values(), expected, strict=True):
        torch.testing.assert_close(value, right)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x[:, None])
    for value, right in zip(each.values(), expected, strict=True):
        torch.testing.assert_close(value.sum(0), right)
