"""The same answers under torch.compile, torch.func, autocast, checkpointing, threads, and after any of them."""

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import plmu
from ops import ALGORITHMS, RESETTING, in_chunks
from plmu.ops import chunked
from plmu.systems import _Cache

BATCH, TIME, CHANNELS, ORDER, OUT = 3, 4, 2, 3, 2
LENGTHS = torch.tensor([3, 0, 4])
RESETS = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)


def fresh_system() -> plmu.LinearSystem:
    """One with nothing in its cache."""
    return plmu.DelayNetwork(ORDER, 4.0).discretize()


def leaves(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """u, weight and state."""
    torch.manual_seed(1)
    shapes = (BATCH, TIME, CHANNELS), (OUT, ORDER, CHANNELS), (BATCH, ORDER, CHANNELS)
    u, weight, state = (torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return u, weight, state


def everything(
    system: plmu.LinearSystem, algorithm: str = "auto", resets: Tensor | None = None, lengths: Tensor | None = LENGTHS
) -> Callable[..., tuple[Tensor, ...]]:
    """The three functions as one of u, weight and state."""
    options = {"lengths": lengths, "resets": resets}

    def run(u: Tensor, weight: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        return (
            *plmu.states(u, system, state, algorithm=algorithm, **options),
            *plmu.project(u, system, weight, state, algorithm=algorithm, **options),
            plmu.final_state(u, system, state, **options),
        )

    return run


def with_gradients(function: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    arguments = leaves(dtype)
    outputs = function(*arguments)
    loss = sum(output.double().square().sum() for output in outputs)
    return [*[output.detach() for output in outputs], *torch.autograd.grad(loss, arguments)]


def assert_same(values: list[Tensor], expected: list[Tensor]) -> None:
    for value, exact in zip(values, expected, strict=True):
        torch.testing.assert_close(value, exact)


# torch.compile itself instantiates the class while it traces an autograd function.
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable) -> Callable:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


# --- torch.compile ---


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("algorithm", "padded"), [("chunked", False), *[(algorithm, True) for algorithm in ALGORITHMS]]
)
def test_compiled(algorithm: str, padded: bool) -> None:
    function = everything(fresh_system(), algorithm, lengths=LENGTHS if padded else None)
    assert_same(with_gradients(compiled(function)), with_gradients(function))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("algorithm", ["chunked", "recurrent"])
def test_compiled_with_resets(algorithm: str) -> None:
    function = everything(fresh_system(), algorithm, RESETS)
    assert_same(with_gradients(compiled(function)), with_gradients(function))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("fold", [False, True])
def test_compiled_in_several_chunks_and_tiles(fold: bool) -> None:
    function = everything(fresh_system())
    with in_chunks(2, fold, tile=2):
        assert_same(with_gradients(compiled(function)), with_gradients(function))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("algorithm", ["chunked", "fft"])
def test_compiled_for_other_sizes(algorithm: str) -> None:
    """A compiled function takes another length and another batch."""
    system = fresh_system()
    function = compiled(lambda u: plmu.states(u, system, algorithm=algorithm))
    for batch, time in [(2, 6), (2, 9), (5, 40), (1, 3)]:
        u = torch.randn(batch, time, CHANNELS)
        assert_same(list(function(u)), list(plmu.states(u, system, algorithm=algorithm)))


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_with_a_trained_theta() -> None:
    def function(u: Tensor, weight: Tensor, state: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        return plmu.project(u, plmu.DelayNetwork(ORDER, theta).discretize(), weight, state, algorithm="chunked")

    def gradients(function: Callable) -> tuple[Tensor, ...]:
        theta = torch.tensor(4.0, requires_grad=True)
        arguments = (*leaves(), theta)
        return torch.autograd.grad(function(*arguments)[0].square().sum(), arguments)

    assert_same(list(gradients(compiled(function))), list(gradients(function)))


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_after_the_cache_has_dropped_what_the_graph_used() -> None:
    system = fresh_system()
    function = compiled(lambda u: plmu.states(u, system, algorithm="toeplitz")[0])
    u = torch.randn(2, TIME, CHANNELS)
    first = function(u)
    system._cache._limit = 1
    plmu.states(torch.randn(2, 50, CHANNELS), system, algorithm="toeplitz")
    assert torch.equal(function(u), first)


# --- torch.func ---


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


@pytest.mark.parametrize("linked", [False, True])
def test_states_are_carried_into_memory_of_their_own(linked: bool) -> None:
    values = torch.randn(2, 5, ORDER, CHANNELS, dtype=torch.float64, requires_grad=True)
    links = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 1]], dtype=torch.bool) if linked else None
    before, given = values.detach().clone(), torch.randn(2, 5, ORDER, CHANNELS, dtype=torch.float64)
    also_before = given.clone()
    system = fresh_system()
    carried = chunked.carry(values, links, system, 1)
    (found,) = torch.autograd.grad(carried, values, given, create_graph=True)
    torch.testing.assert_close(values.detach(), before, rtol=0, atol=0)
    torch.testing.assert_close(given, also_before, rtol=0, atol=0)
    plain = plmu.LinearSystem(system.A.clone().requires_grad_(), system.B)  # which is carried by single operations
    also_carried = chunked.carry(values, links, plain, 1)
    torch.testing.assert_close(carried, also_carried)
    torch.testing.assert_close(found, torch.autograd.grad(also_carried, values, given)[0])


@pytest.mark.parametrize("algorithm", ["chunked", "fft", "recurrent"])
def test_vmap_over_theta(algorithm: str) -> None:
    u = torch.randn(2, TIME, 1, dtype=torch.float64)
    thetas = torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64)

    def last(theta: Tensor) -> Tensor:
        return plmu.states(u, plmu.DelayNetwork(ORDER, theta).discretize(), algorithm=algorithm)[1]

    mapped = torch.func.vmap(last)(thetas)
    assert_same(list(mapped), [last(theta) for theta in thetas])


# --- autocast, checkpointing ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_autocast(algorithm: str, dtype: torch.dtype) -> None:
    """m and o come in autocast's type, states in float32, computed as in float32 and rounded once."""
    function = everything(fresh_system(), algorithm)
    with torch.autocast("cpu", dtype):
        results = with_gradients(function)
    types = [dtype, torch.float32, dtype, torch.float32, torch.float32, *3 * [torch.float32]]
    assert [result.dtype for result in results] == types
    exact = with_gradients(function)
    for i in (0, 2):
        torch.testing.assert_close(results[i], exact[i].to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
    for i in (1, 3, 4):
        torch.testing.assert_close(results[i], exact[i])
    for i in (5, 6, 7):  # the loss is of rounded values
        torch.testing.assert_close(results[i], exact[i], rtol=0, atol=4 * torch.finfo(dtype).eps * exact[i].norm())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_autocast_leaves_float64_alone(algorithm: str) -> None:
    function = everything(fresh_system(), algorithm)
    with torch.autocast("cpu", torch.bfloat16):
        results = with_gradients(function, torch.float64)
    for value, exact in zip(results, with_gradients(function, torch.float64), strict=True):
        assert torch.equal(value, exact)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_checkpointing(algorithm: str) -> None:
    function = everything(fresh_system(), algorithm)
    again = with_gradients(lambda *arguments: checkpoint(function, *arguments, use_reentrant=False))
    assert_same(again, with_gradients(function))


# --- after any of them ---


def _differentiated(function: Callable[..., tuple[Tensor, ...]], arguments: tuple[Tensor, ...]) -> None:
    torch.func.grad(lambda *arguments: function(*arguments)[0].sum())(*arguments)


def _mapped(function: Callable[..., tuple[Tensor, ...]], arguments: tuple[Tensor, ...]) -> None:
    torch.func.vmap(function)(*[argument[None] for argument in arguments])


def _called(function: Callable[..., tuple[Tensor, ...]], arguments: tuple[Tensor, ...]) -> None:
    function(*arguments)


def _compiled(function: Callable[..., tuple[Tensor, ...]], arguments: tuple[Tensor, ...]) -> None:
    compiled(function)(*arguments)


MODES: dict[str, tuple[AbstractContextManager, Callable]] = {
    "inference": (torch.inference_mode(), _called),
    "no_grad": (torch.no_grad(), _called),
    "autocast": (torch.autocast("cpu", torch.bfloat16), _called),
    "default device": (torch.device("meta"), _called),
    "grad": (nullcontext(), _differentiated),
    "vmap": (nullcontext(), _mapped),
    "compile": (torch.inference_mode(), _compiled),
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mode", MODES)
def test_a_first_call_in_any_mode_leaves_later_ones_alone(mode: str, algorithm: str) -> None:
    """What is cached in one mode is used in all: it must not be an inference tensor, a wrapper or a rounded one."""
    context, call = MODES[mode]
    function = everything(fresh_system(), algorithm)
    arguments = tuple(leaf.detach() for leaf in leaves())
    with context:
        call(function, arguments)
    later = with_gradients(function)
    for value, exact in zip(later, with_gradients(everything(fresh_system(), algorithm)), strict=True):
        assert torch.equal(value, exact)


# --- copies, files, threads ---


@pytest.mark.parametrize("shape", [(ORDER,), (ORDER, 2)])
def test_pickling_and_copying(shape: tuple[int, ...]) -> None:
    system = plmu.LinearSystem(fresh_system().A, torch.randn(*shape))
    u = torch.randn(2, 300, 2)
    expected = plmu.states(u, system)[0]
    data = pickle.dumps(system)
    assert len(data) < 4000  # without what was derived
    for other in (pickle.loads(data), copy.deepcopy(system), copy.copy(system)):
        assert repr(other) == repr(system)
        assert torch.equal(other.A, system.A)
        assert torch.equal(other.B, system.B)
        assert torch.equal(plmu.states(u, other)[0], expected)


def test_pickling_and_copying_a_delay_network() -> None:
    dn = plmu.DelayNetwork(5, 7.5)
    for other in (pickle.loads(pickle.dumps(dn)), copy.deepcopy(dn)):
        assert repr(other) == repr(dn) == "DelayNetwork(order=5, theta=7.5)"
        assert torch.equal(other.discretize().A, dn.discretize().A)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_calls_from_several_threads(algorithm: str) -> None:
    """All start at once on an empty cache that holds only a few tensors."""
    system = plmu.DelayNetwork(8, 20.0).discretize()
    system._cache = _Cache(limit=20_000)
    us = [torch.randn(2, 8 + i % 4, 2) for i in range(16)]
    expected = [plmu.states(u, plmu.DelayNetwork(8, 20.0).discretize(), algorithm=algorithm)[0] for u in us]
    start = threading.Barrier(len(us))
    found: dict[int, Tensor] = {}

    def work(i: int) -> None:
        start.wait()
        for _ in range(5):
            found[i] = plmu.states(us[i], system, algorithm=algorithm)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(us))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same([found[i] for i in range(len(us))], expected)
