"""Constants that are derived from linear systems, and cached."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor

from plmu.core.cache import Constants
from plmu.core.modes import among_fakes, without_modes

# Below this a derived value is zero: products with it cannot change a result of its precision.
FLUSHED = {torch.float64: 1e-290, torch.float32: 1e-30, torch.bfloat16: 1e-30}


class Derived:
    """One linear system or several, of which constants are derived."""

    _cache: Constants | None  # None where the values are not known, or trained

    def _built(self, build: Callable[..., Tensor], *sizes: int) -> Tensor:
        """What `build` makes of it, in float64."""
        return build(self, *sizes)

    def derive(self, build: Callable[..., Tensor], *sizes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A constant of the system, made in float64 and cast once; from the cache unless the system is trained.

        Args:
            build: makes the tensor; called as `build(system, *sizes)`. Its name is part of the cache's key.
            sizes: further arguments of `build`, whole numbers.
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
            sizes: further arguments of `build`, whole numbers.
        """
        assert self._cache is not None
        sizes = tuple(map(operator.index, sizes))
        key = (build.__name__, sizes)
        known = self._cache.numbers.get(key)
        if known is None:
            known = tuple(without_modes(lambda: self._built(build, *sizes).double().cpu()).tolist())
            self._cache.put_numbers(key, known)
        return known

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
