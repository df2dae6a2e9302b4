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
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from plmu.core.modes import among_fakes, without_modes

Key = tuple[str, tuple[int, ...], torch.dtype, torch.device]

MOST_NUMBERS = 4096  # results of `LinearSystem.numbers` that one system keeps
MOST_ROUTES = 256  # of `plmu.ops.routes`

_lock = threading.RLock()
_uses = itertools.count()
_limit = 1 << 30
_held = 0  # bytes that count
_of_systems: WeakValueDictionary[bytes, Constants] = WeakValueDictionary()


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
        wanted = -1 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        wanted = -1
    if wanted < 0:
        raise ValueError(f"size must be an integer of at least 0, a number of bytes; got {size!r}")
    with _lock:
        before, _limit = _limit, wanted
        _drop_oldest()
    return before


def constants_of(A: Tensor, B: Tensor) -> Constants:
    """The constants of all systems with these matrices, on this device. They live as long as any of those systems."""
    key = hashlib.blake2b(repr((A.device, A.shape, B.shape)).encode())
    for matrix in (A, B):
        values = matrix.detach().to("cpu", torch.float64).contiguous()
        key.update(ctypes.string_at(values.data_ptr(), values.nbytes))
    with _lock:
        return _of_systems.setdefault(key.digest(), Constants())


@dataclass
class _Route:
    what: Any
    uses: tuple[Tensor, ...]
    used: int  # when last


class Constants:
    """Derived tensors of one system.

    Each is an attribute too, under its `name`: that is how a graph of torch.compile finds and guards it. What is to be
    kept, since a compiled or captured graph needs it, stays and does not count.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, Tensor] = {}
        self._used: dict[Key, int] = {}  # when each entry was last used
        self._kept: dict[Key, Tensor] = {}
        self._routes: dict[Any, _Route] = {}
        self.numbers: dict[tuple[str, tuple[int, ...]], tuple[float, ...]] = {}

    def __del__(self) -> None:
        for key in list(self._entries):
            self.drop(key)

    @staticmethod
    def name(key: Key) -> str:
        build, sizes, dtype, device = key
        return "_".join(map(str, (build, *sizes, dtype, device))).replace(".", "_").replace(":", "_")

    def get(self, key: Key, keep: bool = False) -> Tensor | None:
        with _lock:
            return self._find(key, keep)

    def put(self, key: Key, value: Tensor, keep: bool = False) -> Tensor:
        """The tensor under that key: this one, or another thread's that was there first."""
        with _lock:
            if (there := self._find(key, keep)) is not None:
                return there
            setattr(self, self.name(key), value)
            if keep:
                self._kept[key] = value
            else:
                self._entries[key], self._used[key] = value, next(_uses)
                _count(value.nbytes)
                _drop_oldest(but=value)
            return value

    def put_numbers(self, key: tuple[str, tuple[int, ...]], values: tuple[float, ...]) -> None:
        with _lock:
            while len(self.numbers) >= MOST_NUMBERS:
                del self.numbers[next(iter(self.numbers))]
            self.numbers[key] = values

    def route(self, key: Any) -> Any:
        """What `keep_route` kept under that key, or None."""
        found = self._routes.get(key)
        if found is None:
            return None
        found.used = next(_uses)
        return found.what

    def keep_route(self, key: Any, what: Any, uses: tuple[Tensor, ...]) -> None:
        """Keep something that holds constants, until one of this system's is dropped."""
        with _lock:
            while len(self._routes) >= MOST_ROUTES:
                del self._routes[next(iter(self._routes))]
            self._routes[key] = _Route(what, uses, next(_uses))

    def drop(self, key: Key) -> None:
        self._routes.clear()
        delattr(self, self.name(key))
        del self._used[key]
        _count(-self._entries.pop(key).nbytes)

    def entries(self) -> Iterator[tuple[int, Key, Tensor]]:
        """When each was last used, its key, and the tensor; without those that are kept."""
        for key, value in self._entries.items():
            by_routes = (one.used for one in self._routes.values() if any(value is used for used in one.uses))
            yield max(self._used[key], *by_routes, 0), key, value

    def _find(self, key: Key, keep: bool) -> Tensor | None:
        if key in self._entries:
            self._used[key] = next(_uses)
            if keep:
                self._kept[key] = self._entries.pop(key)
                del self._used[key]
                _count(-self._kept[key].nbytes)
        return self._kept.get(key, self._entries.get(key))


def _count(change: int) -> None:
    global _held
    with _lock:
        _held += change


def _drop_oldest(but: Tensor | None = None) -> None:
    """Hold the limit, but keep one tensor, which is about to be used."""
    if _held <= _limit:
        return
    found = [(used, one, key, value) for one in list(_of_systems.values()) for used, key, value in one.entries()]
    for _, one, key, value in sorted(found, key=lambda entry: entry[0]):
        if _held <= _limit:
            return
        if value is not but:
            one.drop(key)


# Below this a derived value is zero: products with it cannot change a result of its precision.
FLUSHED = {torch.float64: 1e-290, torch.float32: 1e-30, torch.bfloat16: 1e-30}


class Derived:
    """One linear system or several, of which constants are derived."""

    constant: bool  # whether its values are known and stay
    _cache: Constants | None  # None where the values are not known, or trained

    def _built(self, build: Callable[..., Tensor], *sizes: int) -> Tensor:
        """What `build` makes of it, in float64."""
        return build(self, *sizes)

    def derive(self, build: Callable[..., Tensor], *sizes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A constant of the system, made in float64 and cast once; from the cache unless the system is trained.

        Args:
            build: makes the tensor; called as `build(system, *sizes)`. Its name is part of the cache's key.
            sizes: further arguments of `build`, integers.
            dtype: the precision of the result. What would be subnormal in it becomes zero.
            device: where the result is.
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
        """The elements of a small tensor of constants as Python numbers, to decide by; constants to torch.compile.

        Args:
            build: makes the tensor; called as `build(system, *sizes)`.
            sizes: further arguments of `build`, integers.
        """
        assert self._cache is not None
        sizes = tuple(map(operator.index, sizes))
        key = (build.__name__, sizes)
        known = self._cache.numbers.get(key)
        if known is None:
            known = tuple(without_modes(lambda: self._built(build, *sizes).double().cpu()).tolist())
            self._cache.put_numbers(key, known)
        return known

    def vanishes(self, exponent: int, dtype: torch.dtype) -> bool:
        """Whether Ā^exponent has faded to zero.

        Args:
            exponent: how many steps.
            dtype: the precision in which `derive` would give it.
        """
        if not self.constant:
            return False
        return self.numbers(_largest_of_power, operator.index(exponent))[0] < FLUSHED.get(dtype, 0.0)

    def _cached_name(self, build: Callable[..., Tensor], *sizes: int, dtype: torch.dtype, device: torch.device) -> str:
        """Runs once, while torch.compile traces; the tensor of that name is then an input of the graph. It stays: the
        graph would be compiled again without it, and may be captured as a CUDA graph later."""
        self._cached(build, *sizes, dtype=dtype, device=device, keep=True)
        return Constants.name((build.__name__, sizes, dtype, device))

    # What torch.compiler.assume_constant_result does, without importing the compiler, which takes longer than torch.
    _cached_name._dynamo_marked_constant = numbers._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _cached(
        self, build: Callable[..., Tensor], *sizes: int, dtype: torch.dtype, device: torch.device, keep: bool = False
    ) -> Tensor:
        assert self._cache is not None
        keep = keep or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
        key = (build.__name__, sizes, dtype, device)
        found = self._cache.get(key, keep)
        if found is None:
            made = without_modes(lambda: _cast(self._built(build, *sizes), dtype, device))
            found = self._cache.put(key, made, keep)
        return found


def _cast(value: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    if value.is_complex() and not dtype.is_complex:
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    elif dtype in FLUSHED:
        # What a growing system makes too large stays finite, so that it gives zero for a zero input.
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
