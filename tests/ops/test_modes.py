"""The same answers under torch.compile, torch.func, autocast, checkpointing, threads, and after any of them."""

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from closeness import assert_same
from operations import (
    ALGORITHMS,
    CHANNELS,
    LENGTHS,
    ORDER,
    RESETS,
    TIME,
    everything,
    fresh_system,
    in_chunks,
    leaves,
    with_gradients,
)
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import plmu

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
def test_the_final_state_compiled_for_other_sizes() -> None:
    system = fresh_system()
    function = compiled(lambda u, state, lengths: plmu.final_state(u, system, state, lengths))
    for batch, time in [(2, 6), (2, 9), (5, 9)]:
        arguments = torch.randn(batch, time, CHANNELS), torch.randn(batch, ORDER, CHANNELS), torch.arange(batch)
        assert_same([function(*arguments)], [plmu.final_state(arguments[0], system, *arguments[1:])])


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
def test_compiled_after_the_cache_has_dropped_what_the_graph_used(cache_limit: Callable[[int], int]) -> None:
    system = fresh_system()
    function = compiled(lambda u: plmu.states(u, system, algorithm="toeplitz")[0])
    u = torch.randn(2, TIME, CHANNELS)
    first = function(u)
    cache_limit(1)
    plmu.states(torch.randn(2, 50, CHANNELS), system, algorithm="toeplitz")
    assert torch.equal(function(u), first)


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
def test_calls_from_several_threads(algorithm: str, cache_limit: Callable[[int], int]) -> None:
    """All start at once on an empty cache that holds only a few tensors."""
    system = plmu.DelayNetwork(8, 20.0).discretize()
    us = [torch.randn(2, 8 + i % 4, 2) for i in range(16)]
    expected = [plmu.states(u, system, algorithm=algorithm)[0] for u in us]
    cache_limit(0)
    cache_limit(20_000)
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
