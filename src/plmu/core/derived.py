"""Constants that are derived from linear systems, and their cache.

Equal systems share their constants, and those of a process stay below one limit.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from plmu.core.modes import among_fakes, without_modes

Key = tuple[str, tuple[int, ...], torch.dtype, torch.device]

MOST_NUMBERS = 4096  # results of `LinearSystem.numbers` that one system keeps
MOST_ROUTES = 256  # routes (`plmu.ops.routes`) that one system keeps

_lock = threading.RLock()
_uses = itertools.count()
_limit = 1 << 30
_held = 0  # bytes of constants that are not pinned
_by_matrices: WeakValueDictionary[bytes, Constants] = WeakValueDictionary()


def set_cache_limit(size: int) -> int:
    """Set how much memory the cached constants of all systems may take together. The default is 1 GiB.

    Beyond the limit the least recently used constants are dropped, and built again when they are needed. Constants
    that a captured CUDA graph or a compiled model uses are not counted: they stay while their system lives.

    >>> before = plmu.set_cache_limit(256 << 20)  # doctest: +SKIP

    Args:
        size: the limit in bytes, on all devices together.

    Returns:
        The limit before.

    Raises:
        ValueError: `size` is not an integer of at least 0.
    """
    global _limit
    try:
        limit = -1 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        limit = -1
    if limit < 0:
        raise ValueError(f"size must be an integer of at least 0, a number of bytes; got {size!r}")
    with _lock:
        before, _limit = _limit, limit
        _drop_oldest()
    return before


def constants_of(A: Tensor, B: Tensor) -> Constants:
    """The constants of all systems with these matrices, on this device. They live as long as any of those systems."""
    digest = hashlib.blake2b(repr((A.device, A.shape, B.shape)).encode())
    for matrix in (A, B):
        values = matrix.detach().to("cpu", torch.float64).contiguous()
        digest.update(ctypes.string_at(values.data_ptr(), values.nbytes))
    with _lock:
        return _by_matrices.setdefault(digest.digest(), Constants())


class Constants:
    """Derived tensors of one system.

    Each is an attribute too, under its `name`: that is how a graph of torch.compile finds and guards it. A constant
    that a compiled or captured graph needs is pinned: it stays, and does not count towards the limit.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, Tensor] = {}
        self._last_use: dict[Key, int] = {}
        self._pinned: dict[Key, Tensor] = {}
        self._routes: dict[Any, Any] = {}
        self.numbers: dict[tuple[str, tuple[int, ...]], tuple[float, ...]] = {}

    def __del__(self) -> None:
        for key in list(self._entries):
            self.drop(key)

    @staticmethod
    def name(key: Key) -> str:
        """The attribute that holds the constant: "power_64_torch_float32_cpu"."""
        build, sizes, dtype, device = key
        return "_".join(map(str, (build, *sizes, dtype, device))).replace(".", "_").replace(":", "_")

    def get(self, key: Key, pin: bool = False) -> Tensor | None:
        """The constant under that key, or None; `pin` pins it."""
        with _lock:
            return self._find(key, pin)

    def put(self, key: Key, value: Tensor, pin: bool = False) -> Tensor:
        """Cache `value` unless another thread was first; returns the cached tensor."""
        with _lock:
            if (earlier := self._find(key, pin)) is not None:
                return earlier
            setattr(self, self.name(key), value)
            if pin:
                self._pinned[key] = value
            else:
                self._entries[key], self._last_use[key] = value, next(_uses)
                _count(value.nbytes)
                _drop_oldest(keep=value)
            return value

    def put_numbers(self, key: tuple[str, tuple[int, ...]], values: tuple[float, ...]) -> None:
        with _lock:
            while len(self.numbers) >= MOST_NUMBERS:
                del self.numbers[next(iter(self.numbers))]
            self.numbers[key] = values

    def route(self, key: Any) -> Any:
        """The `plmu.ops.routes.Route` under that key, or None."""
        route = self._routes.get(key)
        if route is not None:
            route.last_use = next(_uses)
        return route

    def keep_route(self, key: Any, route: Any) -> None:
        """Keep a route until any constant of this system is dropped: the route may hold that constant."""
        with _lock:
            while len(self._routes) >= MOST_ROUTES:
                del self._routes[next(iter(self._routes))]
            route.last_use, self._routes[key] = next(_uses), route

    def drop(self, key: Key) -> None:
        """Drop a constant that is not pinned, and all routes, which may hold it."""
        self._routes.clear()
        delattr(self, self.name(key))
        del self._last_use[key]
        _count(-self._entries.pop(key).nbytes)

    def entries(self) -> Iterator[tuple[int, Key, Tensor]]:
        """The last use, key and tensor of each constant that is not pinned."""
        for key, value in self._entries.items():
            routes = (route for route in self._routes.values() if any(value is used for used in route.uses))
            yield max(self._last_use[key], *(route.last_use for route in routes), 0), key, value

    def _find(self, key: Key, pin: bool) -> Tensor | None:
        """`get` without the lock. Marks the constant as used now."""
        if key in self._entries:
            self._last_use[key] = next(_uses)
            if pin:
                self._pinned[key] = self._entries.pop(key)
                del self._last_use[key]
                _count(-self._pinned[key].nbytes)
        return self._pinned.get(key, self._entries.get(key))


def _count(change: int) -> None:
    """Add `change` bytes to the size of the cache."""
    global _held
    with _lock:
        _held += change


def _drop_oldest(keep: Tensor | None = None) -> None:
    """Evict least recently used constants until the cache fits its limit, never `keep`, which is about to be used."""
    if _held <= _limit:
        return
    entries = [
        (last_use, constants, key, value)
        for constants in list(_by_matrices.values())
        for last_use, key, value in constants.entries()
    ]
    for _, constants, key, value in sorted(entries, key=lambda entry: entry[0]):
        if _held <= _limit:
            return
        if value is not keep:
            constants.drop(key)


# Below this a derived value is zero: products with it cannot change a result of its precision.
FLUSHED = {torch.float64: 1e-290, torch.float32: 1e-30, torch.bfloat16: 1e-30}


class Derived:
    """One linear system or several, from which constants are derived."""

    constant: bool  # whether its values are known and stay
    _cache: Constants | None  # None where the values are not known, or trained

    def _built(self, build: Callable[..., Tensor], *sizes: int) -> Tensor:
        """`build(self, *sizes)`, in float64."""
        return build(self, *sizes)

    def derive(self, build: Callable[..., Tensor], *sizes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A constant of the system, made in float64 and cast once; from the cache unless the system is trained.

        Args:
            build: makes the tensor; called as `build(system, *sizes)`. Its name is part of the cache's key.
            sizes: further arguments of `build`, integers.
            dtype: the precision of the result. Values that would be subnormal in it become zero.
            device: the device of the result.
        """
        sizes = tuple(map(operator.index, sizes))  # torch.compile makes a graph for these sizes
        if self._cache is None:
            return _cast(self._built(build, *sizes), dtype, device)
        if torch.compiler.is_compiling():
            name = self._cached_name(build, *sizes, dtype=dtype, device=device)
            tensor: Tensor = getattr(self._cache, name)
            return tensor
        return among_fakes(self._cached(build, *sizes, dtype=dtype, device=device))

    def numbers(self, build: Callable[..., Tensor], *sizes: int) -> tuple[float, ...]:
        """The elements of a small derived tensor as Python numbers, for decisions; they are constants to torch.compile.

        Args:
            build: makes the tensor; called as `build(system, *sizes)`.
            sizes: further arguments of `build`, integers.
        """
        assert self._cache is not None
        sizes = tuple(map(operator.index, sizes))
        key = (build.__name__, sizes)
        values = self._cache.numbers.get(key)
        if values is None:
            values = tuple(without_modes(lambda: self._built(build, *sizes).double().cpu()).tolist())
            self._cache.put_numbers(key, values)
        return values

    def vanishes(self, exponent: int, dtype: torch.dtype) -> bool:
        """Whether Ā^exponent has faded to zero.

        Args:
            exponent: number of steps.
            dtype: the precision in which `derive` would return it.
        """
        if not self.constant:
            return False
        return self.numbers(_largest_of_power, operator.index(exponent))[0] < FLUSHED.get(dtype, 0.0)

    def _cached_name(self, build: Callable[..., Tensor], *sizes: int, dtype: torch.dtype, device: torch.device) -> str:
        """Cache the constant, pinned, and return the name of its attribute in the cache. Runs once, while torch.compile
        traces: the tensor becomes an input of the graph, which would be compiled again if the tensor were dropped."""
        self._cached(build, *sizes, dtype=dtype, device=device, pin=True)
        return Constants.name((build.__name__, sizes, dtype, device))

    # What torch.compiler.assume_constant_result does, without importing the compiler, which takes longer than torch.
    _cached_name._dynamo_marked_constant = numbers._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _cached(
        self, build: Callable[..., Tensor], *sizes: int, dtype: torch.dtype, device: torch.device, pin: bool = False
    ) -> Tensor:
        assert self._cache is not None
        pin = pin or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
        key = (build.__name__, sizes, dtype, device)
        constant = self._cache.get(key, pin)
        if constant is None:
            built = without_modes(lambda: _cast(self._built(build, *sizes), dtype, device))
            constant = self._cache.put(key, built, pin)
        return constant


def _cast(value: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A float64 tensor as `dtype` on the device, overflow clamped to the largest number and values below `FLUSHED` set
    to zero; a complex tensor as the complex type of that precision, neither clamped nor flushed."""
    if value.is_complex() and not dtype.is_complex:
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    elif dtype in FLUSHED:
        # Values of an unstable system that overflow stay finite, so that their product with a zero input is zero.
        largest = torch.finfo(dtype).max
        value = value.clamp(-largest, largest)
        # Taps and powers that have decayed to nothing would become subnormal numbers, which a CPU multiplies many times
        # slower (measured: 10 times at order 4, θ 6, 512 steps). Their gradients stay: an entry of 0 can be trained.
        flushed = torch.where(value.abs() < FLUSHED[dtype], 0.0, value)
        value = value + (flushed - value).detach()
    return value.to(dtype).to(device)  # first the type: a device may have no float64


def _largest_of_power(system: Any, exponent: int) -> Tensor:
    """The largest element of Ā^exponent: (1,)."""
    power: Tensor = system.power(exponent)
    return power.abs().max()[None]
