"""The constants of systems: built in float64, cast once, shared by equal systems, held below one limit, and kept while
a CUDA graph needs them."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from operations import ALGORITHMS
from reference import recurrence
from torch import Tensor

import plmu
from plmu.core import derived
from plmu.ops import matrices, toeplitz

BUILDERS = [
    (matrices.step_matrix, ()),
    (matrices.power, (37,)),
    (matrices.reversed_response, (50,)),
    (matrices.block_toeplitz, (20,)),
    (matrices.block_matrix, (20,)),
    (matrices.free_response, (20,)),
    (matrices.response_spectrum, (20, 48)),
]
CPU = {"dtype": torch.float32, "device": torch.device("cpu")}
SetLimit = Callable[[int], int]


def held() -> int:
    """Bytes of all cached constants."""
    return sum(value.nbytes for one in list(derived._by_matrices.values()) for *_, value in one.entries())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("build", "sizes"), BUILDERS, ids=lambda value: getattr(value, "__name__", ""))
def test_derived_tensors_are_float64_cast_once(build: Callable, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    system = plmu.DelayNetwork(40, 50.0).discretize()
    exact = build(system, *sizes)
    assert exact.dtype in (torch.float64, torch.complex128)
    derived = system.derive(build, *sizes, dtype=dtype, device=torch.device("cpu"))
    assert system.derive(build, *sizes, dtype=dtype, device=torch.device("cpu")) is derived
    if exact.is_complex():
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    assert derived.dtype == dtype
    cast = exact.to(dtype)
    subnormal = cast.abs() < 1e-30  # those are zero
    assert torch.equal(derived.masked_fill(subnormal, 0), cast.masked_fill(subnormal, 0))


def test_a_trained_system_is_not_cached() -> None:
    A = torch.tensor([[0.5]], dtype=torch.float64, requires_grad=True)
    system = plmu.LinearSystem(A, [1.0])
    u = torch.randn(1, 5, 1, dtype=torch.float64)
    first = plmu.states(u, system)[0]
    with torch.no_grad():
        A.fill_(0.25)
    assert not torch.equal(plmu.states(u, plmu.LinearSystem(A, [1.0]))[0], first)
    torch.testing.assert_close(
        plmu.states(u, plmu.LinearSystem(A, [1.0]))[0], recurrence(u, plmu.LinearSystem(A, [1.0]))
    )


# --- shared ---


def test_equal_systems_share_their_constants() -> None:
    """Layers of one order and θ, copies, and systems from a file."""
    system = plmu.DelayNetwork(8, 10.0).discretize()
    equal = [
        plmu.DelayNetwork(8, 10.0).discretize(),
        plmu.LinearSystem(system.A.tolist(), system.B.clone()),
        pickle.loads(pickle.dumps(system)),
        copy.deepcopy(system),
        plmu.DelayLayer(2, 8, 10.0).memory.systems()[0],
    ]
    derived = system.derive(matrices.power, 5, **CPU)
    assert all(one.derive(matrices.power, 5, **CPU) is derived for one in equal)


@pytest.mark.parametrize(
    "other",
    [
        plmu.LinearSystem([[0.5, 0.1], [0.0, 0.5]], [1.0, 1.0 + 1e-15]),
        plmu.LinearSystem([[0.5, 0.1 + 1e-16], [0.0, 0.5]], [1.0, 1.0]),
        plmu.LinearSystem([[0.5, 0.0], [0.1, 0.5]], [1.0, 1.0]),
        plmu.LinearSystem([[0.5, 0.1], [0.0, 0.5]], [[1.0], [1.0]]),
    ],
    ids=["B", "A", "transposed", "inputs"],
)
def test_other_systems_do_not(other: plmu.LinearSystem) -> None:
    system = plmu.LinearSystem([[0.5, 0.1], [0.0, 0.5]], [1.0, 1.0])
    assert system.derive(matrices.step_matrix, **CPU) is not other.derive(matrices.step_matrix, **CPU)


@pytest.mark.usefixtures("cache_limit")
def test_constants_go_with_the_last_of_equal_systems() -> None:
    before = held()
    systems = [plmu.DelayNetwork(9, 11.0).discretize() for _ in range(2)]
    systems[0].derive(matrices.power, 5, **CPU)
    assert held() == before + 9 * 9 * 4
    del systems[0]
    assert held() == before + 9 * 9 * 4
    systems.clear()
    assert held() == before


@pytest.mark.usefixtures("cache_limit")
def test_equal_layers_hold_what_one_holds() -> None:
    def run(count: int) -> int:
        gc.collect()
        before = held()
        layers = [plmu.ParallelLMU(2, 4, order=6, theta=9.0, memory_size=2) for _ in range(count)]
        for time in (30, 41, 57):
            for layer in layers:
                layer(torch.randn(2, time, 2))
        return held() - before

    alone = run(1)
    assert run(3) == alone > 0


# --- bounded ---


def test_the_cache_is_bounded(cache_limit: SetLimit) -> None:
    """Over all systems together. What was not used for longest goes first, and what is gone is built again."""
    systems = [plmu.DelayNetwork(8, theta).discretize() for theta in (10.0, 20.0, 30.0)]
    cache_limit(10_000)
    kept = systems[0].derive(matrices.power, 1, **CPU)  # 256 bytes each
    dropped = systems[1].derive(matrices.power, 2, **CPU)
    for exponent in range(3, 100):
        assert systems[0].derive(matrices.power, 1, **CPU) is kept
        systems[exponent % 3].derive(matrices.power, exponent, **CPU)
        assert held() <= 10_000
    assert held() > 10_000 - 256
    again = systems[1].derive(matrices.power, 2, **CPU)
    assert again is not dropped
    assert torch.equal(again, dropped)


def test_a_lower_limit_holds_at_once(cache_limit: SetLimit) -> None:
    system = plmu.DelayNetwork(8, 10.0).discretize()
    for exponent in range(1, 9):
        system.derive(matrices.power, exponent, **CPU)
    assert held() == 8 * 256
    before = cache_limit(700)
    assert before == 1 << 30  # the default
    assert cache_limit(700) == 700
    assert held() == 512


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1 GiB", None])
def test_a_bad_limit_is_named(wrong: Any, cache_limit: SetLimit) -> None:
    with pytest.raises(ValueError, match="size must be an integer of at least 0, a number of bytes"):
        cache_limit(wrong)
    cache_limit(np.int64(5))


def test_the_numbers_that_decide_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "MOST_NUMBERS", 3)
    system = plmu.LinearSystem([[0.5]], [3.0])
    for exponent in (1, 2, 3, 4, 5, 1):
        assert system.numbers(_power, exponent) == (0.5**exponent,)
    assert [sizes for _, sizes in system._cache.numbers] == [(4,), (5,), (1,)]


def _power(system: plmu.LinearSystem, exponent: int) -> Tensor:
    return system.power(exponent).reshape(1)


def test_one_tensor_larger_than_the_cache_still_works(cache_limit: SetLimit) -> None:
    system = plmu.DelayNetwork(3, 4.0).discretize()
    cache_limit(1)
    u = torch.randn(2, 40, 2)
    for algorithm in ALGORITHMS:
        torch.testing.assert_close(plmu.states(u, system, algorithm=algorithm)[0], recurrence(u, system).float())


def test_a_tensor_as_large_as_the_cache_is_not_built_again_for_every_call(
    monkeypatch: pytest.MonkeyPatch, cache_limit: SetLimit
) -> None:
    """What is decided by a few numbers does not push it out."""
    system = plmu.DelayNetwork(3, 4.0).discretize()
    cache_limit(1)
    built = []
    monkeypatch.setattr(toeplitz, "block_toeplitz", lambda *given: built.append(1) or matrices.block_toeplitz(*given))
    for _ in range(3):
        plmu.states(torch.randn(2, 40, 2), system, algorithm="toeplitz")
    assert built == [1]


def test_errors_while_deriving_reach_the_caller() -> None:
    def broken(system: plmu.LinearSystem) -> Tensor:
        raise MemoryError("too large")

    with pytest.raises(MemoryError, match="too large"):
        plmu.DelayNetwork(3, 4.0).discretize().derive(broken, dtype=torch.float32, device=torch.device("cpu"))


# --- kept ---


def _key(name: str) -> derived.Key:
    return name, (), torch.uint8, torch.device("cpu")


def test_the_cache_drops_what_was_least_used_but_nothing_that_is_to_be_kept(cache_limit: SetLimit) -> None:
    def made(length: int) -> Tensor:
        return torch.zeros(length, dtype=torch.uint8)

    def known(names: str) -> str:
        return "".join(name for name in names if constants.get(_key(name)) is not None)

    constants = derived.constants_of(torch.rand(3, 3), torch.rand(3))
    cache_limit(100)
    for name in "abcd":
        constants.put(_key(name), made(30 if name != "a" else 10))
    kept = constants.get(_key("a"), pin=True)
    assert constants.get(_key("b")) is not None  # used after c
    constants.put(_key("e"), made(30))
    assert known("abcde") == "abde"
    assert not hasattr(constants, constants.name(_key("c")))
    constants.put(_key("f"), made(1000), pin=True)  # which does not count
    assert known("abcdef") == "abdef"
    constants.put(_key("g"), made(1000))  # larger than the limit: it stays for the next call
    assert known("abcdefg") == "afg"
    assert constants.put(_key("a"), made(10)) is kept is getattr(constants, constants.name(_key("a")))


def test_what_a_cuda_graph_captures_is_kept(monkeypatch: pytest.MonkeyPatch, cache_limit: SetLimit) -> None:
    """A graph has the addresses. What is compiled may be captured later, and reads the tensor without asking."""
    gpu = {"dtype": torch.float32, "device": torch.device("cuda")}
    monkeypatch.setattr("plmu.core.derived._cast", lambda value, dtype, device: value.to(dtype))  # on the CPU
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    system = plmu.DelayNetwork(4, 6.25).discretize()
    assert system._cache is not None
    system.derive(matrices.power, 2, **gpu)
    assert not system._cache._pinned
    system._cached_name(matrices.power, 3, **gpu)
    capturing = True
    captured = system.derive(matrices.power, 2, **gpu)
    capturing = False
    assert [key[1] for key in system._cache._pinned] == [(3,), (2,)]
    cache_limit(1)
    for exponent in range(4, 9):
        system.derive(matrices.power, exponent, dtype=torch.float32, device=torch.device("cpu"))
    assert system.derive(matrices.power, 2, **gpu) is captured


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")  # torch's own doing
def test_what_a_compiled_graph_reads_is_not_dropped(cache_limit: SetLimit) -> None:
    cache_limit(0)
    system = plmu.DelayNetwork(8, 300.0).discretize()
    compiled = torch.compile(lambda u: plmu.states(u, system, algorithm="chunked")[0], backend="eager", fullgraph=True)
    u = torch.randn(1, 700, 1)
    first = compiled(u)
    plmu.states(u[:, :300], system)  # other constants, which are dropped
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(u), first)


def test_the_bytes_are_counted(cache_limit: SetLimit) -> None:
    system = plmu.DelayNetwork(8, 10.0).discretize()
    before = held()
    for exponent in (1, 2, 3, 2):
        system.derive(matrices.power, exponent, **CPU)
    assert held() == derived._held == before + 3 * 256
    del system
    gc.collect()
    assert held() == derived._held == before
