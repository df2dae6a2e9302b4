"""The constants of a system: built in float64, cast once, held within bounds, kept while a CUDA graph needs them."""

from collections.abc import Callable

import pytest
import torch
from ops import ALGORITHMS
from reference import recurrence
from torch import Tensor

import plmu
from plmu.ops import matrices, toeplitz
from plmu.systems import _Cache

BUILDERS = [
    (matrices.step_matrix, ()),
    (matrices.power, (37,)),
    (matrices.reversed_response, (50,)),
    (matrices.block_toeplitz, (20,)),
    (matrices.block_matrix, (20,)),
    (matrices.free_response, (20,)),
    (matrices.response_spectrum, (20, 48)),
]


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


def test_the_cache_is_bounded() -> None:
    """The least recently used goes first, and what is gone is built again."""
    system = plmu.DelayNetwork(8, 10.0).discretize()
    cpu = {"dtype": torch.float32, "device": torch.device("cpu")}
    system._cache = _Cache(limit=10_000)
    kept = system.derive(matrices.power, 1, **cpu)  # 256 bytes each
    dropped = system.derive(matrices.power, 2, **cpu)
    for exponent in range(3, 100):
        assert system.derive(matrices.power, 1, **cpu) is kept
        system.derive(matrices.power, exponent, **cpu)
        assert sum(value.nbytes for value in vars(system._cache).values() if isinstance(value, Tensor)) <= 10_000
    again = system.derive(matrices.power, 2, **cpu)
    assert again is not dropped
    assert torch.equal(again, dropped)


def test_one_tensor_larger_than_the_cache_still_works() -> None:
    system = plmu.DelayNetwork(3, 4.0).discretize()
    system._cache = _Cache(limit=1)
    u = torch.randn(2, 40, 2)
    for algorithm in ALGORITHMS:
        torch.testing.assert_close(plmu.states(u, system, algorithm=algorithm)[0], recurrence(u, system).float())


def test_a_tensor_as_large_as_the_cache_is_not_built_again_for_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided by a few numbers does not push it out."""
    system = plmu.DelayNetwork(3, 4.0).discretize()
    system._cache = _Cache(limit=1)
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


def _key(name: str) -> tuple[str, tuple[int, ...], torch.dtype, torch.device]:
    return name, (), torch.uint8, torch.device("cpu")


def test_the_cache_drops_what_was_least_used_but_nothing_that_is_to_be_kept() -> None:
    def made(length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.uint8)

    def known(names: str) -> str:
        return "".join(name for name in names if cache.get(_key(name)) is not None)

    cache = _Cache(limit=100)
    for name in "abcd":
        cache.put(_key(name), made(30 if name != "a" else 10))
    kept = cache.get(_key("a"), keep=True)
    assert cache.get(_key("b")) is not None  # used after c
    cache.put(_key("e"), made(30))
    assert known("abcde") == "abde"
    assert not hasattr(cache, _Cache.name(_key("c")))
    cache.put(_key("f"), made(1000), keep=True)  # which does not count
    assert known("abcdef") == "abdef"
    cache.put(_key("g"), made(1000))  # larger than the limit: it stays for the next call
    assert known("abcdefg") == "afg"
    assert cache.put(_key("a"), made(10)) is kept is getattr(cache, _Cache.name(_key("a")))


def test_what_a_cuda_graph_captures_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph has the addresses. What is compiled may be captured later, and reads the tensor without asking."""
    gpu = {"dtype": torch.float32, "device": torch.device("cuda")}
    monkeypatch.setattr("plmu.systems._cast", lambda value, dtype, device: value.to(dtype))  # which stays on the CPU
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    system = plmu.DelayNetwork(4, 6.0).discretize()
    assert system._cache is not None
    system.derive(matrices.power, 2, **gpu)
    assert not system._cache._kept
    system._cached_name(matrices.power, 3, **gpu)
    capturing = True
    captured = system.derive(matrices.power, 2, **gpu)
    capturing = False
    assert [key[1] for key in system._cache._kept] == [(3,), (2,)]
    system._cache._limit = 1
    for exponent in range(4, 9):
        system.derive(matrices.power, exponent, dtype=torch.float32, device=torch.device("cpu"))
    assert system.derive(matrices.power, 2, **gpu) is captured
