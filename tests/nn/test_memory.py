"""The memory inside every layer: what is trained, what stays exact when a module is cast, what never goes stale."""

import copy
import math
from functools import partial

import closeness
import pytest
import torch
from reference import recurrence
from torch import Tensor

import plmu
from plmu import ParallelLMU
from plmu.nn.memory import Memory

ORDER, TIME = 4, 21
SYSTEM = plmu.LinearSystem([[0.9, 0.2], [-0.2, 0.9]], [1.0, 0.5])
KINDS = {
    "theta": {"order": ORDER, "theta": [5.0, 12.0], "trainable": "theta"},
    "system": {"order": ORDER, "theta": [5.0, 12.0], "trainable": "system"},
    "given system": {"system": SYSTEM, "trainable": "system"},
}


assert_same = partial(closeness.assert_same, terms=TIME * ORDER, size=0.0)


@pytest.fixture(params=KINDS)
def layer(request: pytest.FixtureRequest) -> ParallelLMU:
    return ParallelLMU(2, 3, memory_size=2, output_activation="tanh", **KINDS[request.param])


def _own(layer: ParallelLMU) -> dict[str, Tensor]:
    return dict(layer.memory.named_parameters())


def _now(layer: ParallelLMU, x: Tensor) -> Tensor:
    """The output of a layer freshly built from the same parameters, which has nothing to remember."""
    fresh = ParallelLMU(**layer.config).to(x.dtype)
    fresh.load_state_dict(layer.state_dict())
    with torch.no_grad():
        return fresh(x)[0]


def test_nothing_is_trained_unless_asked() -> None:
    assert not list(Memory(2, ORDER, 8.0).parameters())
    with pytest.raises(ValueError, match="trainable"):
        Memory(2, ORDER, 8.0, trainable="yes")


def test_gradients_reach_what_is_trained(layer: ParallelLMU) -> None:
    layer.double()
    x = torch.randn(2, TIME, 2, dtype=torch.float64)
    layer(x)[0].square().sum().backward()
    for name, value in _own(layer).items():
        assert value.grad is not None, name
        assert value.grad.isfinite().all(), name
        assert (value.grad != 0).any(), name


def test_gradients_are_those_of_the_plain_recurrence(layer: ParallelLMU) -> None:
    layer.double()
    x = torch.randn(2, TIME, 2, dtype=torch.float64)
    weight = torch.randn(2, TIME, layer.memory.order, 2, dtype=torch.float64)
    own = list(_own(layer).values())
    m, _ = layer.memory.states(x, None, None, None)
    found = torch.autograd.grad((m * weight).sum(), own)
    parts = x.chunk(layer.memory.groups, dim=2)
    plain = torch.cat([recurrence(u, s) for s, u in zip(layer.memory.systems(), parts, strict=True)], dim=3)
    expected = torch.autograd.grad((plain * weight).sum(), own)
    for one, other in zip(found, expected, strict=True):
        # Each of the TIME · ORDER terms now depends on the parameter through a power of Ā up to TIME.
        assert_same(one, other, terms=TIME * TIME * ORDER)


def test_training_moves_theta_towards_the_delay_of_the_data() -> None:
    layer = ParallelLMU(1, 1, order=6, theta=12.0, trainable="theta", input_to_output=False, output_activation=None)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    x = torch.randn(16, 64, 1)
    target = torch.nn.functional.pad(x, (0, 0, 20, 0))[:, :64]
    before = layer.memory.thetas()[0]
    assert before == pytest.approx(12.0, rel=1e-6)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (layer(x)[0] - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert layer.memory.thetas()[0] > before + 1


@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["method", "to"])
def test_half_precision_leaves_the_system_as_it_is(layer: ParallelLMU, cast: torch.dtype, how: str) -> None:
    before = copy.deepcopy(_own(layer))
    if how == "to":
        layer.to(cast)
    else:
        layer.half() if cast == torch.float16 else layer.bfloat16()
    assert layer.memory_weight.dtype == cast
    for name, value in _own(layer).items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])
    layer(torch.randn(2, 5, 2, dtype=cast))[0].sum().backward()
    assert all(value.grad.dtype == torch.float32 for value in _own(layer).values())


@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16], ids=str)
def test_a_gradient_keeps_the_precision_of_its_parameter(layer: ParallelLMU, cast: torch.dtype) -> None:
    layer(torch.randn(2, 5, 2))[0].sum().backward()
    before = {name: value.grad.clone() for name, value in _own(layer).items()}
    layer.to(cast)
    for name, value in _own(layer).items():
        assert value.grad.dtype == value.dtype == torch.float32, name
        assert torch.equal(value.grad, before[name])


def test_wider_is_kept_and_comes_back(layer: ParallelLMU) -> None:
    before = copy.deepcopy(_own(layer))
    layer.double()
    assert all(value.dtype == torch.float64 for value in _own(layer).values())
    layer.half().float()
    for name, value in _own(layer).items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_stale_after_a_change(layer: ParallelLMU, mode) -> None:
    x = torch.randn(2, TIME, 2)
    changed = {name: value * 0.9 for name, value in layer.state_dict().items()}

    def through_data() -> None:
        for value in _own(layer).values():
            value.data.mul_(0.95)

    def in_place() -> None:
        with torch.no_grad():
            for value in _own(layer).values():
                value.mul_(0.95)

    def new_data() -> None:
        for value in _own(layer).values():
            value.data = value.data * 0.95

    def by_an_optimizer() -> None:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        layer(x)[0].square().sum().backward()
        optimizer.step()

    for change in (through_data, in_place, new_data, by_an_optimizer, lambda: layer.load_state_dict(changed)):
        with mode():
            before = layer(x)[0]
        change()
        with mode():
            after, stepped = layer(x)[0], layer.step(x[:, 0])[0]
        assert not torch.equal(after, before)
        assert torch.equal(after, _now(layer, x))
        assert_same(stepped, after[:, 0])


def test_casting_rebuilds_what_was_kept_for_evaluation(layer: ParallelLMU) -> None:
    with torch.no_grad():
        layer(torch.randn(2, TIME, 2))
        layer.double()
        x = torch.randn(2, TIME, 2, dtype=torch.float64)
        assert torch.equal(layer(x)[0], _now(layer, x))


def test_evaluation_and_training_agree(layer: ParallelLMU) -> None:
    x = torch.randn(2, TIME, 2)
    with torch.no_grad():
        evaluated = layer(x)[0]
    assert_same(evaluated, layer(x)[0])


def test_thetas_as_they_are_now() -> None:
    assert Memory(4, ORDER, [5.0, 12.0], trainable="theta").thetas() == pytest.approx([5.0, 12.0], rel=1e-6)
    assert Memory(2, ORDER, 8.0).thetas() == [8.0]
    assert Memory(2, system=SYSTEM).thetas() == []


@pytest.mark.parametrize("default", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_new_parameters_follow_the_default_type_but_not_below_float32(default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        value = Memory(2, ORDER, 8.0, trainable="theta").log_theta
    finally:
        torch.set_default_dtype(torch.float32)
    assert value.dtype == (torch.float64 if default == torch.float64 else torch.float32)
    assert value.item() == pytest.approx(math.log(8.0), rel=torch.finfo(value.dtype).eps)


def test_what_it_prints() -> None:
    text = repr(ParallelLMU(2, 3, memory_size=2, **KINDS["theta"]))
    assert "order=4" in text
    assert "theta=5, 12" in text
    assert "trainable=theta" in text
