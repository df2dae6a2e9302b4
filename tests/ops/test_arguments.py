"""Bad arguments raise at once, naming the argument; odd but good ones work."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from operations import ALGORITHMS, RESETTING
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

import plmu

BATCH, TIME, CHANNELS, ORDER, OUT = 2, 5, 3, 4, 2
SYSTEM = plmu.DelayNetwork(ORDER, 8.0).discretize()
SHARED = plmu.LinearSystem(SYSTEM.A, torch.ones(ORDER, CHANNELS))  # B has inputs


def call(kind: str, **changed: object) -> object:
    """A call that works, with some of its arguments exchanged."""
    arguments: dict[str, object] = {
        "u": torch.randn(BATCH, TIME, CHANNELS),
        "system": SYSTEM,
        "state": torch.randn(BATCH, ORDER, CHANNELS),
        "lengths": torch.tensor([2, 5]),
        **changed,
    }
    if kind == "project":
        arguments.setdefault("weight", torch.randn(OUT, ORDER, CHANNELS))
    return getattr(plmu, kind)(**arguments)


@pytest.fixture(params=["states", "final_state", "project"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_call_that_is_varied_here_works(kind: str) -> None:
    call(kind)
    call(kind, state=None, lengths=None)


BAD = {
    "a list as u": ({"u": [[[1.0]]]}, TypeError, "u must be a tensor, got list"),
    "a numpy array as u": ({"u": np.zeros((2, 5, 3))}, TypeError, "u must be a tensor, got ndarray"),
    "u without channels": ({"u": torch.randn(2, 5)}, ValueError, r"u must have shape .*got \(2, 5\)"),
    "one sequence": ({"u": torch.randn(5, 3)}, ValueError, r"u must have shape .*: for one sequence give u\[None\]"),
    "a nested tensor": (
        {"u": torch.nested.nested_tensor([torch.randn(5, 3), torch.randn(4, 3)], layout=torch.jagged)},
        TypeError,
        r"u must be a padded tensor, got a nested one: give torch.nested.to_padded_tensor\(u, 0.0\) and lengths",
    ),
    "a packed sequence": (
        {"u": pack_sequence([torch.randn(5, 3), torch.randn(4, 3)])},
        TypeError,
        r"u must be a tensor, got a PackedSequence: .*pad_packed_sequence\(u, batch_first=True\)",
    ),
    "u with four axes": ({"u": torch.randn(2, 5, 3, 1)}, ValueError, r"u must have shape .*got \(2, 5, 3, 1\)"),
    "whole numbers": ({"u": torch.ones(2, 5, 3, dtype=torch.int64)}, TypeError, r"u must be floating point.*u\.float"),
    "complex numbers": ({"u": torch.ones(2, 5, 3, dtype=torch.complex64)}, TypeError, "u must be floating point"),
    "no time steps": ({"u": torch.randn(2, 0, 3)}, ValueError, "u must have at least one time step"),
    "no channels": ({"u": torch.randn(2, 5, 0)}, ValueError, "u must have at least one time step and one channel"),
    "wrong inputs": (
        {"u": torch.randn(2, 5, 2), "system": SHARED},
        ValueError,
        r"u must have 3 channels.*got shape \(2, 5, 2\)",
    ),
    "a DelayNetwork": (
        {"system": plmu.DelayNetwork(4, 8.0)},
        TypeError,
        r"system must be a plmu.LinearSystem, got DelayNetwork; call its discretize\(\)",
    ),
    "a matrix as system": ({"system": SYSTEM.A}, TypeError, "system must be a plmu.LinearSystem, got Tensor"),
    "a state of another shape": (
        {"state": torch.randn(2, 4, 1)},
        ValueError,
        r"state must have shape \(2, 4, 3\), got \(2, 4, 1\)",
    ),
    "a state of shared inputs": (
        {"system": SHARED},
        ValueError,
        r"state must have shape \(2, 4, 1\), got \(2, 4, 3\)",
    ),
    "a float64 state": (
        {"state": torch.randn(2, 4, 3).double()},
        TypeError,
        "state must be torch.float32 for this input, got torch.float64",
    ),
    "a half state": (
        {"u": torch.randn(2, 5, 3).bfloat16(), "state": torch.randn(2, 4, 3).bfloat16()},
        TypeError,
        "state must be torch.float32 for this input, got torch.bfloat16",
    ),
    "a state elsewhere": (
        {"state": torch.empty(2, 4, 3, device="meta")},
        ValueError,
        "state must be on cpu, as the input is; got meta",
    ),
    "a number as state": ({"state": 0.0}, TypeError, "state must be a tensor of shape .*got float"),
    "a length too long": ({"lengths": [1, 6]}, ValueError, "lengths must lie between 0 and the 5 time steps, got 6"),
    "a negative length": ({"lengths": [-1, 2]}, ValueError, "lengths must lie between 0 .*got -1"),
    "too few lengths": ({"lengths": [1]}, ValueError, r"lengths must have shape \(2,\).*got \(1,\)"),
    "lengths as a table": ({"lengths": [[1], [2]]}, ValueError, r"lengths must have shape \(2,\).*got \(2, 1\)"),
    "float lengths": ({"lengths": [1.0, 2.0]}, TypeError, "lengths must be integers, got torch.float32"),
    "a mask as lengths": ({"lengths": torch.ones(2, dtype=torch.bool)}, TypeError, "lengths must be integers"),
    "words as lengths": ({"lengths": ["a", "b"]}, (TypeError, ValueError), "lengths must be integers"),
    "resets as numbers": (
        {"resets": torch.zeros(2, 5)},
        TypeError,
        "resets must be a tensor of bool, got torch.float32: use resets.bool()",
    ),
    "resets as a list": (
        {"resets": [[False] * 5] * 2},
        TypeError,
        "resets must be a tensor of bool, got list: use torch.tensor",
    ),
    "resets of another shape": (
        {"resets": torch.zeros(2, 4, dtype=torch.bool)},
        ValueError,
        r"resets must have shape \(2, 5\), got \(2, 4\)",
    ),
    "resets elsewhere": (
        {"resets": torch.zeros(2, 5, dtype=torch.bool, device="meta")},
        ValueError,
        "resets must be on cpu, as the input is; got meta",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str, kind: str) -> None:
    changed, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call(kind, **changed)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_of_the_first_kind(kind: str) -> None:
    with pytest.raises(TypeError, match="u must be a padded tensor, got a nested one"):
        call(kind, u=torch.nested.nested_tensor([torch.randn(5, 3), torch.randn(4, 3)]))


@pytest.mark.parametrize("kind", ["states", "project"])
def test_an_unknown_algorithm_lists_the_known(kind: str) -> None:
    with pytest.raises(
        ValueError, match="algorithm must be auto or one of chunked, fused, fft, recurrent, toeplitz, got 'lti'"
    ):
        call(kind, algorithm="lti")


@pytest.mark.parametrize("algorithm", ["fft", "toeplitz"])
@pytest.mark.parametrize("kind", ["states", "project"])
def test_algorithms_that_cannot_reset_say_which_can(kind: str, algorithm: str) -> None:
    resets = torch.zeros(BATCH, TIME, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"algorithm='{algorithm}' cannot reset .*use chunked or auto"):
        call(kind, algorithm=algorithm, resets=resets)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (torch.randn(OUT, ORDER), ValueError, r"weight must have shape \(out, 4, 3\), got \(2, 4\)"),
        (torch.randn(OUT, CHANNELS, ORDER), ValueError, r"weight must have shape \(out, 4, 3\), got \(2, 3, 4\)"),
        (torch.randn(0, ORDER, CHANNELS), ValueError, r"weight must have shape \(out, 4, 3\), got \(0, 4, 3\)"),
        (torch.ones(OUT, ORDER, CHANNELS, dtype=torch.int32), TypeError, "weight must be a floating.*got torch.int32"),
        ([[[1.0]]], TypeError, "weight must be a floating-point tensor, got list"),
        (torch.empty(OUT, ORDER, CHANNELS, device="meta"), ValueError, "weight must be on cpu, as u is; got meta"),
    ],
)
def test_bad_weights(weight: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call("project", weight=weight)


@pytest.mark.parametrize("lengths", [[2, 5], (2, 5), torch.tensor([2, 5], dtype=torch.int32), np.array([2, 5])])
def test_lengths_of_many_kinds(kind: str, lengths: object) -> None:
    torch.manual_seed(0)
    expected = call(kind)
    torch.manual_seed(0)
    torch.testing.assert_close(call(kind, lengths=lengths), expected, rtol=0, atol=0)


@pytest.mark.parametrize("lengths", [None, torch.zeros(0, dtype=torch.int64)], ids=["whole", "lengths"])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("system", [SYSTEM, SHARED], ids=["copies", "shared"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_empty_batch(algorithm: str, system: plmu.LinearSystem, with_state: bool, lengths: object) -> None:
    copies = CHANNELS if system.inputs is None else 1
    u = torch.randn(0, TIME, CHANNELS, requires_grad=True)
    weight = torch.randn(OUT, ORDER, copies, requires_grad=True)
    state = torch.randn(0, ORDER, copies, requires_grad=True) if with_state else None
    m, last = plmu.states(u, system, state, lengths, algorithm)
    o, again = plmu.project(u, system, weight, state, lengths, algorithm)
    final = plmu.final_state(u, system, state, lengths)
    assert m.shape == (0, TIME, ORDER, copies)
    assert o.shape == (0, TIME, OUT)
    assert last.shape == again.shape == final.shape == (0, ORDER, copies)
    sum(value.sum() for value in (m, o, last, again, final)).backward()
    assert u.grad.shape == u.shape
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert state is None or state.grad.shape == state.shape


def test_an_empty_batch_takes_an_empty_list_of_lengths(kind: str) -> None:
    call(kind, u=torch.randn(0, TIME, CHANNELS), state=None, lengths=[])


@pytest.mark.parametrize("algorithm", RESETTING)
def test_an_empty_batch_with_resets(algorithm: str) -> None:
    u = torch.randn(0, 40, CHANNELS, requires_grad=True)
    resets = torch.zeros(0, 40, dtype=torch.bool)
    weight = torch.randn(OUT, ORDER, CHANNELS, requires_grad=True)
    m, _ = plmu.states(u, SYSTEM, algorithm=algorithm, resets=resets)
    o, _ = plmu.project(u, SYSTEM, weight, algorithm=algorithm, resets=resets)
    last = plmu.final_state(u, SYSTEM, resets=resets)
    assert m.shape == (0, 40, ORDER, CHANNELS)
    assert last.shape == (0, ORDER, CHANNELS)
    o.sum().backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def _transposed(u: Tensor) -> Tensor:
    return u.transpose(0, 1).contiguous().transpose(0, 1)


def _channels_first(u: Tensor) -> Tensor:
    return u.mT.contiguous().mT


def _strided(u: Tensor) -> Tensor:
    wide = u.new_full((u.shape[0], 2 * u.shape[1], 3 * u.shape[2]), torch.nan)
    wide[:, ::2, ::3] = u
    return wide[:, ::2, ::3]


def _expanded(u: Tensor) -> Tensor:
    return u[:1, :, :1].expand(u.shape)


@pytest.mark.parametrize("view", [_transposed, _channels_first, _strided, _expanded])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("channels", [1, 3, 20])
def test_views_give_what_copies_give(channels: int, algorithm: str, view: Callable[[Tensor], Tensor]) -> None:
    """Values and gradients, for every argument that can be a view."""

    def results(arrange: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        shapes = [(BATCH, 37, channels), (BATCH, ORDER, channels), (OUT, ORDER, channels)]
        u, state, weight = (arrange(torch.randn(*shape, dtype=torch.float64)).requires_grad_() for shape in shapes)
        m, last = plmu.states(u, SYSTEM, state, algorithm=algorithm)
        o, _ = plmu.project(u, SYSTEM, weight, state, algorithm=algorithm)
        final = plmu.final_state(u, SYSTEM, state)
        loss = sum((value * value).sum() for value in (m, last, o, final))
        return [m, last, o, final, *torch.autograd.grad(loss, [u, state, weight])]

    for value, exact in zip(results(view), results(lambda u: view(u).contiguous()), strict=True):
        torch.testing.assert_close(value, exact, rtol=1e-12, atol=1e-12)


def test_arguments_are_not_changed(kind: str) -> None:
    u, state, lengths = torch.randn(2, 5, 3), torch.randn(2, 4, 3), torch.tensor([2, 5])
    copies = u.clone(), state.clone(), lengths.clone()
    call(kind, u=u, state=state, lengths=lengths)
    assert all(torch.equal(*pair) for pair in zip((u, state, lengths), copies, strict=True))


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ValueError, match=r"device must be a torch\.device or a name .*, got 'gpu'"):
        plmu.plan("states", batch=1, time=5, channels=1, system=plmu.LinearSystem([[0.5]], [1.0]), device="gpu")
