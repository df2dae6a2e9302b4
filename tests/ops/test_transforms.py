"""The same answers and gradients under torch.func, forward mode and tracing."""

from contextlib import nullcontext

import pytest
import torch
from closeness import assert_same
from operations import (
    ALGORITHMS,
    BATCH,
    CHANNELS,
    LENGTHS,
    ORDER,
    OUT,
    RESETS,
    RESETTING,
    TIME,
    everything,
    fresh_system,
    in_chunks,
    leaves,
)
from torch import Tensor
from torch.autograd import forward_ad

import plmu


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("system", [fresh_system(), plmu.LinearSystem(fresh_system().A, torch.ones(ORDER, CHANNELS))])
def test_vmap(system: plmu.LinearSystem, algorithm: str) -> None:
    copies = CHANNELS if system.inputs is None else 1
    us = torch.randn(4, BATCH, TIME, CHANNELS, dtype=torch.float64)
    states = torch.randn(4, BATCH, ORDER, copies, dtype=torch.float64)
    weights = torch.randn(4, OUT, ORDER, copies, dtype=torch.float64)
    function = everything(system, algorithm)
    mapped = torch.func.vmap(function)(us, weights, states)
    one_by_one = [function(*one) for one in zip(us, weights, states, strict=True)]
    assert_same(list(mapped), [torch.stack(results) for results in zip(*one_by_one, strict=True)])


@pytest.mark.parametrize("fold", [False, True])
def test_vmap_in_several_chunks_and_tiles(fold: bool) -> None:
    us, weights, states = (torch.stack([leaf.detach(), 2 * leaf.detach()]) for leaf in leaves(torch.float64))
    function = everything(fresh_system())
    with in_chunks(2, fold, tile=2):
        mapped = torch.func.vmap(function)(us, weights, states)
        one_by_one = [function(*one) for one in zip(us, weights, states, strict=True)]
    assert_same(list(mapped), [torch.stack(results) for results in zip(*one_by_one, strict=True)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_grad_and_gradients_per_sequence(algorithm: str) -> None:
    function = everything(fresh_system(), algorithm, lengths=None)

    def loss(u: Tensor, weight: Tensor, state: Tensor) -> Tensor:
        return sum(output.square().sum() for output in function(u, weight, state))

    arguments = leaves(torch.float64)
    expected = torch.autograd.grad(loss(*arguments), arguments)
    plain = tuple(argument.detach() for argument in arguments)
    assert_same(list(torch.func.grad(loss, argnums=(0, 1, 2))(*plain)), list(expected))
    u, weight, state = plain

    def loss_of_one(weight: Tensor, u: Tensor, state: Tensor) -> Tensor:
        return loss(u[None], weight, state[None])

    per_sequence = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0))(weight, u, state)
    assert per_sequence.shape == (BATCH, *weight.shape)
    torch.testing.assert_close(per_sequence.sum(0), expected[1])


@pytest.mark.parametrize("algorithm", RESETTING)
def test_gradients_per_sequence_with_lengths_and_resets(algorithm: str) -> None:
    """Lengths and resets are mapped over too: their values cannot be looked at then."""
    system = fresh_system()

    def loss(weight: Tensor, u: Tensor, state: Tensor, length: Tensor, resets: Tensor) -> Tensor:
        options = {"lengths": length[None], "resets": resets[None], "algorithm": algorithm}
        o, last = plmu.project(u[None], system, weight, state[None], **options)
        return o.square().sum() + last.square().sum()

    u, weight, state = (leaf.detach() for leaf in leaves(torch.float64))
    arguments = (weight, u, state, LENGTHS, RESETS)
    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0, 0))(*arguments)
    for i in range(BATCH):
        expected = torch.func.grad(loss)(weight, u[i], state[i], LENGTHS[i], RESETS[i])
        torch.testing.assert_close(mapped[i], expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_jacobian(algorithm: str) -> None:
    """∂o/∂u of one sequence is the block Toeplitz matrix of W·H."""
    system = fresh_system()
    weight = torch.randn(OUT, ORDER, 1, dtype=torch.float64)
    u = torch.randn(1, TIME, 1, dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda u: plmu.project(u, system, weight, algorithm=algorithm)[0])(u)
    response = weight[:, :, 0] @ system.impulse_response(TIME)  # (out, lag)
    for t in range(TIME):
        for s in range(TIME):
            expected = response[:, t - s] if s <= t else torch.zeros(OUT, dtype=torch.float64)
            torch.testing.assert_close(jacobian[0, t, :, 0, s, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")  # torch's own use of it
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_forward_mode(algorithm: str) -> None:
    """Of a linear map: the same map of the tangent."""
    arguments = tuple(leaf.detach() for leaf in leaves(torch.float64))
    system, resets = fresh_system(), RESETS if algorithm in RESETTING else None
    function = everything(system, algorithm, lengths=LENGTHS, resets=resets)
    u, weight, state = arguments
    with in_chunks(2, False, tile=2) if algorithm == "chunked" else nullcontext():
        found = torch.func.jvp(lambda u, state: function(u, weight, state), (u, state), (2 * u, 2 * state))[1]
        expected = function(u, weight, state)
    assert_same([*found], [2 * one for one in expected])


@pytest.mark.parametrize("fold", [False, True])
def test_vmap_over_resets_alone(fold: bool) -> None:
    u, weight, state = (leaf.detach() for leaf in leaves(torch.float64))

    def function(resets: Tensor) -> tuple[Tensor, ...]:
        options = {"resets": resets, "algorithm": "chunked"}
        return *plmu.states(u, system, state, **options), *plmu.project(u, system, weight, state, **options)

    system, several = fresh_system(), torch.stack([RESETS, ~RESETS])
    with in_chunks(2, fold, tile=2):
        one_by_one = zip(*(function(resets) for resets in several), strict=True)
        assert_same([*torch.func.vmap(function)(several)], [torch.stack(results) for results in one_by_one])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_forward_mode_of_gradients_that_are_there() -> None:
    u = leaves(torch.float64)[0]
    with in_chunks(2, False, tile=2):
        m = plmu.states(u, fresh_system(), algorithm="chunked")[0]
        given = torch.randn_like(m)
        expected = torch.autograd.grad(m, u, given, retain_graph=True)[0]
        with forward_ad.dual_level():
            found = torch.autograd.grad(m, u, forward_ad.make_dual(given, 2 * given))[0]
            torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, 2 * expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python")
def test_traced() -> None:
    """The trace has the operations themselves, and none that writes into what others read."""
    u = leaves(torch.float64)[0].detach()
    system = fresh_system()
    with in_chunks(2, False, tile=2):
        traced = torch.jit.trace(lambda u: plmu.states(u, system, algorithm="chunked")[0], u)
        other = torch.randn_like(u)
        torch.testing.assert_close(traced(other), plmu.states(other, system, algorithm="chunked")[0])
    assert "_Carry" not in str(traced.graph)
    assert "add_" not in str(traced.graph)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_traced(algorithm: str) -> None:
    arguments, others = (tuple(leaf.detach() * scale for leaf in leaves(torch.float64)) for scale in (1, 2))
    function = everything(fresh_system(), algorithm)
    assert_same([*torch.jit.trace(function, arguments)(*others)], [*function(*others)])


@pytest.mark.parametrize("algorithm", ["chunked", "fft", "recurrent"])
def test_vmap_over_theta(algorithm: str) -> None:
    u = torch.randn(2, TIME, 1, dtype=torch.float64)
    thetas = torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64)

    def last(theta: Tensor) -> Tensor:
        return plmu.states(u, plmu.DelayNetwork(ORDER, theta).discretize(), algorithm=algorithm)[1]

    mapped = torch.func.vmap(last)(thetas)
    assert_same(list(mapped), [last(theta) for theta in thetas])
