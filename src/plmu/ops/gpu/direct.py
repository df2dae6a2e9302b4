"""Launching a kernel again by its own launcher.

`kernel[grid](...)` looks at every argument to find the compiled kernel, which takes longer on the host than most of our
kernels take on a GPU. A `Launch` has a grid, numbers and constants that stay, and tensors of given types that begin at
multiples of 16 bytes: all that Triton looks at. So what the first call compiled is launched directly from then on.
A descriptor for the copy engine depends on nothing but where its tensor begins, so the last ones are kept.
"""

from __future__ import annotations

import copy
import functools
import importlib
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DIRECT = ("3.6", "3.7")  # versions of Triton whose compiled kernels are launched as below
Tiled = tuple[tuple[int, ...], tuple[int, ...]]  # the shape that a tensor is read as, and that of the tiles
MOST_DESCRIPTORS = 16  # that are kept of each tensor of a launch


class Launch:
    """A kernel of a module with its grid, numbers and constants. It is called with tensors, on their device.

    `tiled` describes the first tensors to the copy engine: the shape they are read as, and that of the tiles.
    """

    def __init__(
        self,
        module: Callable[[], ModuleType],
        kernel: str,
        grid: tuple[int, ...],
        numbers: tuple[int, ...],
        constants: dict[str, Any],
        *,
        tiled: tuple[Tiled, ...] = (),
        **options: Any,
    ) -> None:
        self._module, self._kernel = module, kernel
        self._grid, self._numbers, self._constants, self._options = grid, numbers, constants, options
        self._tiled, self._strides = tiled, [_strides(shape) for shape, _ in tiled]
        self._direct: Callable[[tuple[Any, ...]], None] | None = None

    def __call__(self, *tensors: Any) -> None:
        if self._direct is not None and not _hooked():
            self._direct(tensors)
            return
        tiled = map(_described, tensors, self._tiled, self._strides)
        kernel = getattr(self._module(), self._kernel)
        compiled = kernel[self._grid](
            *tiled, *tensors[len(self._tiled) :], *self._numbers, **self._constants, **self._options
        )
        if _launchable(compiled):
            self._direct = self._launcher(kernel, compiled, len(tensors))

    def _launcher(self, kernel: Any, compiled: Any, tensors: int) -> Callable[[tuple[Any, ...]], None]:
        """What launches the compiled kernel. It takes all parameters in their order, constants too."""
        driver, tiled = _driver(), len(self._tiled)
        function, metadata = compiled.function, compiled.packed_metadata
        device, stream = driver.get_current_device(), driver.get_current_stream
        names = kernel.arg_names[tensors + len(self._numbers) :]
        rest = (*self._numbers, *(self._constants[name] for name in names))
        grid = (*self._grid, 1, 1)[:3]
        run, make = _taking_descriptors(compiled.run) if tiled else (compiled.run, None)
        known: list[dict[int, list[Any]]] = [{} for _ in self._tiled]  # what was made for a tensor that begins there

        def described(i: int, tensor: Tensor) -> list[Any]:
            read = _Read(tensor, self._tiled[i], self._strides[i])
            if make is None:
                return [read]
            if len(known[i]) >= MOST_DESCRIPTORS:
                known[i].clear()
            made = known[i][tensor.data_ptr()] = make(i, read)
            return made

        def launch(tensors: tuple[Any, ...]) -> None:
            given: list[Any] = []
            for i in range(tiled):
                tensor = tensors[i]
                given += known[i].get(tensor.data_ptr()) or described(i, tensor)
            for tensor in tensors[tiled:]:  # by address, which Triton need not ask the driver about
                given.append(None if tensor is None else tensor.data_ptr())
            run(*grid, stream(device), function, metadata, None, None, None, *given, *rest)

        return launch


def _taking_descriptors(run: Any) -> tuple[Any, Callable[[int, Any], list[Any]] | None]:
    """Triton's launcher as one that takes ready-made descriptors, and what makes the i-th; the launcher as it is, and
    None, where that is not known. In its own form a function around the real one makes them anew for each launch."""
    around = getattr(run, "launch", None)
    names = getattr(getattr(around, "__code__", None), "co_freevars", ())
    cells = getattr(around, "__closure__", None) or ()
    held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
    make, meta = getattr(sys.modules[type(run).__module__], "make_tensordesc_arg", None), held.get("tensordesc_meta")
    if make is None or "launcher" not in held or not meta or None in meta:
        return run, None
    ready = copy.copy(run)
    ready.launch = held["launcher"]
    return ready, lambda i, read: list(make(read, meta[i]))


class _Read:
    """What Triton's launcher reads of a tensor descriptor, when it tells the copy engine of it."""

    __slots__ = ("base", "shape", "strides")
    padding, round_f32_to_tf32 = "zero", False

    def __init__(self, base: Tensor, tiled: Tiled, strides: list[int]) -> None:
        self.base, self.shape, self.strides = base, tiled[0], strides


def _described(tensor: Tensor, tiled: Tiled, strides: list[int]) -> Any:
    """The tensor descriptor itself, which a kernel is compiled for."""
    shape, tile = tiled
    descriptor, language = gluon()
    return descriptor(tensor, list(shape), strides, list(tile), _layout(language, tile, tensor.dtype))


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


@functools.cache
def _layout(language: Any, tile: tuple[int, ...], dtype: torch.dtype) -> Any:
    kind = language.bfloat16 if dtype == torch.bfloat16 else language.float16
    return language.NVMMASharedLayout.get_default_for(list(tile), kind)


@functools.cache
def gluon() -> tuple[Any, Any]:
    """The descriptor and the language of the kernels for Hopper; an ImportError or AttributeError where Triton is too
    old for them."""
    importlib.import_module("plmu.ops.gpu.gluon_weight")  # and the projection
    descriptor = importlib.import_module("triton.experimental.gluon.nvidia.hopper").TensorDescriptor
    return descriptor, importlib.import_module("triton.experimental.gluon.language")


def _launchable(compiled: Any) -> bool:
    """Whether a compiled kernel is one that we know how to launch: not interpreted, and of a known Triton for CUDA."""
    if compiled is None or not importlib.import_module("triton").__version__.startswith(DIRECT):
        return False
    return type(getattr(compiled, "run", None)).__name__ == "CudaLauncher"


def _driver() -> Any:
    return importlib.import_module("triton.runtime.driver").driver.active


@functools.cache
def _knobs() -> Any:
    return importlib.import_module("triton.knobs").runtime


def _hooked() -> bool:
    """Whether something, such as a profiler, asked Triton to be told of launches."""
    knobs = _knobs()
    enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))
