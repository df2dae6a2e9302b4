"""First and second derivatives against finite differences, in float64, for every differentiable argument."""

from collections.abc import Callable

import pytest
import torch
from operations import ALGORITHMS, RESETTING
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import plmu
from plmu.ops import chunked
from plmu.ops.blocks import carry

BATCH, TIME, CHANNELS, ORDER, OUT = 3, 4, 2, 2, 2
LENGTHS = torch.tensor([3, 0, 4])
RESETS = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def system_arguments(kind: str) -> tuple[Callable[..., plmu.LinearSystem], tuple[Tensor, ...], int, int]:
    """How to build a system from its trained tensors, these, the channels of u and those of the state."""
    if kind == "theta":
        theta = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
        return lambda theta: plmu.DelayNetwork(ORDER, theta).discretize(), (theta,), CHANNELS, CHANNELS
    A = (0.4 * torch.randn(ORDER, ORDER, dtype=torch.float64)).requires_grad_()
    if kind == "A, B":
        return plmu.LinearSystem, (A, leaf(ORDER)), CHANNELS, CHANNELS
    if kind == "A, B of several inputs":
        return plmu.LinearSystem, (A, leaf(ORDER, CHANNELS)), CHANNELS, 1
    fixed = plmu.DelayNetwork(ORDER, 4.0).discretize()
    return lambda: fixed, (), CHANNELS, CHANNELS


def check(function: Callable[..., object], inputs: tuple[Tensor, ...]) -> None:
    """Along random directions, which float64 makes as good as along all."""
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


SYSTEMS = ["fixed", "theta", "A, B", "A, B of several inputs"]


@pytest.mark.parametrize(
    ("system", "padded"), [("fixed", False), ("A, B", False), *[(system, True) for system in SYSTEMS]]
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_states_and_project(algorithm: str, system: str, padded: bool) -> None:
    """One check for both functions: their outputs are checked side by side."""
    build, trained, channels, copies = system_arguments(system)
    lengths = LENGTHS if padded else None

    def both(u: Tensor, state: Tensor, weight: Tensor, *trained: Tensor) -> tuple[Tensor, ...]:
        built = build(*trained)
        return (
            *plmu.states(u, built, state, lengths, algorithm),
            *plmu.project(u, built, weight, state, lengths, algorithm),
        )

    check(both, (leaf(BATCH, TIME, channels), leaf(BATCH, ORDER, copies), leaf(OUT, ORDER, copies), *trained))


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("reset", [False, True], ids=["one", "resets"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_final_state(system: str, reset: bool, padded: bool) -> None:
    build, trained, channels, copies = system_arguments(system)
    options = {"lengths": LENGTHS if padded else None, "resets": RESETS if reset else None}

    def final_state(u: Tensor, state: Tensor, *trained: Tensor) -> Tensor:
        return plmu.final_state(u, build(*trained), state, **options)

    check(final_state, (leaf(BATCH, TIME, channels), leaf(BATCH, ORDER, copies), *trained))


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", RESETTING)
def test_resets(algorithm: str, system: str) -> None:
    build, trained, channels, copies = system_arguments(system)

    def both(u: Tensor, state: Tensor, weight: Tensor, *trained: Tensor) -> tuple[Tensor, ...]:
        built = build(*trained)
        return (
            *plmu.states(u, built, state, LENGTHS, algorithm, resets=RESETS),
            *plmu.project(u, built, weight, state, LENGTHS, algorithm, resets=RESETS),
        )

    check(both, (leaf(BATCH, TIME, channels), leaf(BATCH, ORDER, copies), leaf(OUT, ORDER, copies), *trained))


@pytest.mark.parametrize(
    ("chunk", "fold", "tile", "reset"),
    [(3, False, 2, False), (1, True, 2, False), (3, False, 2, True), (4, False, 1, False), (3, True, 100, False)],
)
@pytest.mark.parametrize("system", ["fixed", "A, B", "A, B of several inputs"])
def test_chunks_tiles_and_folding(system: str, chunk: int, fold: bool, tile: int, reset: bool) -> None:
    """Several chunks and several tiles, which sizes as small as these would never be given by the plan."""
    build, trained, _, copies = system_arguments(system)
    inputs = CHANNELS // copies
    resets = RESETS if reset else None

    def project(u: Tensor, state: Tensor, weight: Tensor, *trained: Tensor) -> tuple[Tensor, Tensor]:
        return chunked.project(u, build(*trained), weight, state, None, resets, chunk, fold, tile)

    arguments = (leaf(BATCH, TIME, inputs, copies), leaf(BATCH, ORDER, copies), leaf(OUT, ORDER, copies), *trained)
    check(project, arguments)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("needed", ["u", "weight", "A", "state"])
def test_each_argument_alone_needs_a_gradient(needed: str, fold: bool) -> None:
    """Whatever is not asked for is skipped, and what is asked for is the same."""
    build, (A, B), _, _ = system_arguments("A, B")
    leaves = {"u": leaf(BATCH, TIME, 1, CHANNELS), "state": leaf(BATCH, ORDER, CHANNELS), "A": A, "B": B}
    leaves["weight"] = leaf(OUT, ORDER, CHANNELS)

    def gradient(leaves: dict[str, Tensor]) -> Tensor:
        built = build(leaves["A"], leaves["B"])
        outputs = chunked.project(leaves["u"], built, leaves["weight"], leaves["state"], None, None, 2, fold, 2)
        return torch.autograd.grad(sum(output.square().sum() for output in outputs), leaves[needed])[0]

    alone = {name: value.detach().requires_grad_(name == needed) for name, value in leaves.items()}
    torch.testing.assert_close(gradient(alone), gradient(leaves), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("linked", [False, True])
def test_states_are_carried_into_memory_of_their_own(linked: bool) -> None:
    values = torch.randn(2, 5, ORDER, CHANNELS, dtype=torch.float64, requires_grad=True)
    links = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 1]], dtype=torch.bool) if linked else None
    before, given = values.detach().clone(), torch.randn(2, 5, ORDER, CHANNELS, dtype=torch.float64)
    also_before = given.clone()
    system = plmu.DelayNetwork(ORDER, 4.0).discretize()
    carried = carry(values, links, system, 1)
    (found,) = torch.autograd.grad(carried, values, given, create_graph=True)
    torch.testing.assert_close(values.detach(), before, rtol=0, atol=0)
    torch.testing.assert_close(given, also_before, rtol=0, atol=0)
    plain = plmu.LinearSystem(system.A.clone().requires_grad_(), system.B)  # which is carried by single operations
    also_carried = carry(values, links, plain, 1)
    torch.testing.assert_close(carried, also_carried)
    torch.testing.assert_close(found, torch.autograd.grad(also_carried, values, given)[0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_of_zero_can_be_trained(algorithm: str, dtype: torch.dtype) -> None:
    """Derived values that round to zero are dropped, but not their gradients."""
    A = torch.tensor([[0.5, 0.1], [0.0, 0.3]], dtype=torch.float64, requires_grad=True)
    B = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    u, weight = torch.rand(2, 12, 1, dtype=dtype), torch.rand(3, 2, 1, dtype=dtype)

    def loss(m: Tensor) -> Tensor:
        return torch.einsum("odc,btdc->bto", weight.double(), m.double()).square().sum()

    m = []
    state = torch.zeros(2, 2, 1, dtype=torch.float64)
    for t in range(12):
        state = A @ state + B[:, None] * u[:, t, None].double()
        m.append(state)
    expected = torch.autograd.grad(loss(torch.stack(m, dim=1)), (A, B))
    system = plmu.LinearSystem(A, B)
    bound = 12 * 2 * torch.finfo(dtype).eps  # a rounding for each product of each step
    for found in (
        loss(plmu.states(u, system, algorithm=algorithm)[0]),
        plmu.project(u, system, weight, algorithm=algorithm)[0].double().square().sum(),
    ):
        for value, right in zip(torch.autograd.grad(found, (A, B)), expected, strict=True):
            torch.testing.assert_close(value, right, rtol=0, atol=bound * right.abs().max().item())
