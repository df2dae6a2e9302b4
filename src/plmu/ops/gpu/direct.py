"""Launching a compiled kernel directly.

`kernel[grid](...)` looks at every argument to find the compiled kernel, which takes longer on the host than most of our
kernels take on a GPU. A `Launch` has a fixed grid, numbers and constants, and its tensors have fixed types and are
aligned to 16 bytes. Triton looks at nothing else, so the first call compiles the kernel, and later calls launch it
directly. A descriptor for the copy engine depends only on its tensor's address, so the last descriptors are cached.
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
Tiled = tuple[tuple[int, ...], tuple[int, ...]]  # the shape of a tensor, and that of its tiles
MOST_DESCRIPTORS = 16  # in the cache, for each tensor of a launch


class Launch:
    """A kernel of a module with its grid, numbers and constants. Call it with tensors, on their device.

    `tiled` describes the first tensors to the copy engine: their shape, and that of the tiles.
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
        """A function that launches the compiled kernel, with all parameters in order, constants too."""
        driver, tiled = _driver(), len(self._tiled)
        function, metadata = compiled.function, compiled.packed_metadata
        device, stream = driver.get_current_device(), driver.get_current_stream
        names = kernel.arg_names[tensors + len(self._numbers) :]
        rest = (*self._numbers, *(self._constants[name] for name in names))
        grid = (*self._grid, 1, 1)[:3]
        run, make = _taking_descriptors(compiled.run) if tiled else (compiled.run, None)
        descriptors: list[dict[int, list[Any]]] = [{} for _ in self._tiled]  # by address

        def described(i: int, tensor: Tensor) -> list[Any]:
            read = _Read(tensor, self._tiled[i], self._strides[i])
            if make is None:
                return [read]
            if len(descriptors[i]) >= MOST_DESCRIPTORS:
                descriptors[i].clear()
            made = descriptors[i][tensor.data_ptr()] = make(i, read)
            return made

        def launch(tensors: tuple[Any, ...]) -> None:
            arguments: list[Any] = []
            for i in range(tiled):
                tensor = tensors[i]
                arguments += descriptors[i].get(tensor.data_ptr()) or described(i, tensor)
            for tensor in tensors[tiled:]:  # by address, so that Triton need not ask the driver
                arguments.append(None if tensor is None else tensor.data_ptr())
            run(*grid, stream(device), function, metadata, None, None, None, *arguments, *rest)

        return launch


def _taking_descriptors(run: Any) -> tuple[Any, Callable[[int, Any], list[Any]] | None]:
    """Triton's launcher in a form that takes ready descriptors, and a function that makes the i-th; the launcher itself
    and None for an unknown version of Triton. Its own form is a wrapper that makes the descriptors for each launch."""
    wrapper = getattr(run, "launch", None)
    names = getattr(getattr(wrapper, "__code__", None), "co_freevars", ())
    cells = getattr(wrapper, "__closure__", None) or ()
    cell_of = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
    make, meta = getattr(sys.modules[type(run).__module__], "make_tensordesc_arg", None), cell_of.get("tensordesc_meta")
    if make is None or "launcher" not in cell_of or not meta or None in meta:
        return run, None
    ready = copy.copy(run)
    ready.launch = cell_of["launcher"]
    return ready, lambda i, read: list(make(read, meta[i]))


class _Read:
    """The attributes of a tensor descriptor that Triton's launcher reads."""

    __slots__ = ("base", "shape", "strides")
    padding, round_f32_to_tf32 = "zero", False

    def __init__(self, base: Tensor, tiled: Tiled, strides: list[int]) -> None:
        self.base, self.shape, self.strides = base, tiled[0], strides


def _described(tensor: Tensor, tiled: Tiled, strides: list[int]) -> Any:
    """The tensor descriptor for which a kernel is compiled."""
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
    """The descriptor and the language of the kernels for Hopper.

    Raises ImportError or AttributeError if Triton is too old for them.
    """
    importlib.import_module("plmu.ops.gpu.gluon_weight")  # and the projection
    descriptor = importlib.import_module("triton.experimental.gluon.nvidia.hopper").TensorDescriptor
    return descriptor, importlib.import_module("triton.experimental.gluon.language")


def _launchable(compiled: Any) -> bool:
    """Whether a compiled kernel can be launched directly: it is not interpreted, and of a known Triton for CUDA."""
    if compiled is None or not importlib.import_module("triton").__version__.startswith(DIRECT):
        return False
    return type(getattr(compiled, "run", None)).__name__ == "CudaLauncher"


def _driver() -> Any:
    return importlib.import_module("triton.runtime.driver").driver.active


@functools.cache
def _knobs() -> Any:
    return importlib.import_module("triton.knobs").runtime


def _hooked() -> bool:
    """Whether something, such as a profiler, has hooks on Triton's launches."""
    knobs = _knobs()
    enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))
