"""The kernels for Hopper without a GPU: the Python code of their modules, run by threads on CPU tensors.

Gluon has no interpreter. Here its functions are plain ones on torch tensors: a warp group is a thread, shared memory is
a tensor, the copy engine copies at once, and barriers count arrivals and bytes as those of Hopper GPUs do. Layouts mean
nothing. Programs run one after the other. So index arithmetic and synchronisation are tested, but not the compiler.
"""

import functools
import math
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from plmu.ops import layer_kernels
from plmu.ops.gpu import direct, hopper_launch, launch, triton_launch
from plmu.ops.plan import known_plan

_here = threading.local()  # the program that a thread belongs to, and the grid
SOURCES = (
    "gluon_chunked.py", "gluon_weight.py", "gluon_input_gradient.py", "float32/gluon_split.py",
    "float32/gluon_split_weight.py",
)  # fmt: skip
PATIENCE = 60  # seconds after which a wait is a deadlock


class Barrier:
    """Its phase ends when all arrivals and all announced bytes are there."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.phase = self.bytes = self.count = self.left = 0

    def change(self, *, arrivals: int = 0, announced: int = 0) -> None:
        with self.changed:
            self.left -= arrivals
            self.bytes += announced
            if self.left == 0 and self.bytes == 0:
                self.phase, self.left = self.phase + 1, self.count
                self.changed.notify_all()


class Barriers:
    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, i: int) -> Barrier:
        return self.all[i]


class Buffer:
    """Shared memory, which holds NaN until something is copied there."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.dtype = values, values.dtype

    def index(self, i: int) -> "Buffer":
        return Buffer(self.values[i])

    def reshape(self, shape: list[int]) -> "Buffer":
        return Buffer(self.values.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> "Buffer":
        return Buffer(self.values.permute(order))

    def slice(self, start: int, length: int, dim: int) -> "Buffer":
        return Buffer(self.values.narrow(dim, start, length))

    def load(self, layout: Any) -> Tensor:
        return self.values.clone()

    def store(self, values: Tensor) -> None:
        self.values.copy_(values)


class Descriptor:
    """A tensor as the copy engine sees it: tiles of it, zero outside."""

    layout = None

    def __init__(self, tensor: Tensor, tiled: direct.Tiled) -> None:
        shape, tile = tiled
        assert tensor.is_contiguous()
        self.values, self.dtype = tensor.view(-1)[: math.prod(shape)].view(shape), tensor.dtype
        self.block_type = SimpleNamespace(shape=tile, nbytes=math.prod(tile) * tensor.element_size())

    def tile(self, at: list[int]) -> Tensor:
        if at[-1] * self.values.element_size() % 16:
            raise RuntimeError(f"illegal instruction: the copy engine cannot begin at element {at[-1]} of a row")
        found = torch.zeros(self.block_type.shape, dtype=self.dtype)
        spans = list(zip(at, self.block_type.shape, self.values.shape, strict=True))
        kept = [(max(begin, 0), max(min(begin + size, end), begin, 0), begin) for begin, size, end in spans]
        target = tuple(slice(low - begin, high - begin) for low, high, begin in kept)
        found[target] = self.values[tuple(slice(low, high) for low, high, _ in kept)]
        return found


class Pointer:
    def __init__(self, tensor: Tensor, offset: Any = 0) -> None:
        behind = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        self.memory, self.offset = tensor.as_strided((behind,), (1,)), offset
        self.dtype = SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.memory, self.offset + offset)


def _multiply(a: Any, b: Any, acc: Tensor, use_acc: bool = True, is_async: bool = False) -> Tensor:
    left, right = (one.values if isinstance(one, Buffer) else one for one in (a, b))
    product = left.float() @ right.float()
    return product + acc if use_acc else product


def _copy(source: Descriptor, at: list[int], barrier: Barrier, target: Buffer) -> None:
    target.values.copy_(source.tile(at).view(target.values.shape))
    barrier.change(announced=-source.block_type.nbytes)


def _wait(barrier: Barrier, parity: int) -> None:
    with barrier.changed:
        if not barrier.changed.wait_for(lambda: barrier.phase & 1 != parity, PATIENCE):
            raise RuntimeError("the kernel is in a deadlock")


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.left = count


def _store(place: Pointer, value: Tensor, mask: Tensor | None = None) -> None:
    offset, value = torch.broadcast_tensors(place.offset, value)
    kept = torch.ones_like(offset, dtype=torch.bool) if mask is None else mask.expand(offset.shape)
    assert (offset[kept] >= 0).all()
    assert (offset[kept] < place.memory.numel()).all(), "outside of its memory"
    place.memory[offset[kept]] = value[kept]


def _load(place: Pointer, cache_modifier: str = "", mask: Tensor | None = None, other: float = 0.0) -> Any:
    if isinstance(place.offset, int):
        return place.memory[place.offset].item()
    offset = place.offset if mask is None else torch.where(mask, place.offset, 0)
    assert (offset >= 0).all()
    assert (offset < place.memory.numel()).all(), "outside of its memory"
    found = place.memory[offset]
    return found if mask is None else torch.where(mask, found, other)


def _where(condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(condition, Tensor):
        return torch.where(condition, yes, no)
    return yes if condition else no


def _specialize(parts: list[tuple[Any, tuple[Any, ...]]], *_: Any) -> None:
    """Each part in a thread of its own."""
    program, failures = dict(vars(_here)), list[BaseException]()

    def run(function: Any, arguments: tuple[Any, ...]) -> None:
        vars(_here).update(program)
        try:
            with torch.no_grad():
                function(*arguments)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=part) for part in parts]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if failures:
        raise failures[0]


def _memory(dtype: Any, shape: list[int], layout: Any) -> Any:
    return Barriers(shape[0]) if dtype is torch.int64 else Buffer(torch.full(shape, math.nan, dtype=dtype))


def _language() -> ModuleType:
    gl = ModuleType("gluon.language")
    nothing = lambda *_, **__: None  # noqa: E731
    for name in ("SliceLayout", "NVMMADistributedLayout", "DotOperandLayout", "DistributedLinearLayout",
                 "BlockedLayout", "SwizzledSharedLayout", "barrier", "inline_asm_elementwise"):  # fmt: skip
        setattr(gl, name, nothing)
    functions = {
        "constexpr": None, "static_range": range, "minimum": min, "where": _where, "store": _store,
        "cdiv": lambda a, b: -(-a // b),
        "arange": lambda begin, end, layout: torch.arange(begin, end),
        "zeros": lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
        "convert_layout": lambda value, layout: value,
        "program_id": lambda axis: _here.program[axis],
        "num_programs": lambda axis: _here.grid[axis],
        "load": _load,
        "atomic_xchg": lambda place, value, sem: place.memory.__setitem__(place.offset, value),
        "atomic_add": lambda place, value, sem: int(place.memory[place.offset]) + value,
        "allocate_shared_memory": _memory, "warp_specialize": _specialize,
        "abs": torch.abs, "max": torch.amax,
        "reshape": torch.reshape, "permute": torch.permute, "split": lambda value: value.unbind(-1),
        "int32": torch.int32, "int64": torch.int64, "float16": torch.float16, "float32": torch.float32,
        "bfloat16": torch.bfloat16,
    }  # fmt: skip
    vars(gl).update(functions)
    return gl


def kernels(source: str = SOURCES[0]) -> dict[str, Any]:
    """The functions of a file of Gluon kernels, to be called on descriptors and pointers of this module."""
    hopper = ModuleType("gluon.hopper")
    barriers = {
        "MBarrierLayout": lambda: None, "init": _init, "wait": _wait,
        "expect": lambda barrier, size: barrier.change(arrivals=1, announced=size),
        "arrive": lambda barrier, count: barrier.change(arrivals=count),
    }  # fmt: skip
    vars(hopper).update(
        mbarrier=SimpleNamespace(**barriers),
        tma=SimpleNamespace(async_copy_global_to_shared=_copy),
        warpgroup_mma=_multiply,
        warpgroup_mma_wait=lambda pending, deps: deps[0] if len(deps) == 1 else deps,
        fence_async_shared=lambda: None,
    )
    gluon = ModuleType("gluon")
    vars(gluon).update(
        jit=lambda function=None, **_: function or (lambda kernel: kernel),
        constexpr_function=lambda function: function,
        language=_language(),
    )
    experimental = ModuleType("triton.experimental")
    vars(experimental).update(gluon=gluon)
    name = "triton.experimental"
    fakes = {name: experimental, f"{name}.gluon": gluon, f"{name}.gluon.language.nvidia.hopper": hopper}
    files = SOURCES[: SOURCES.index(source) + 1]  # a file may import those before it
    fakes |= {_module(one): ModuleType(one) for one in files}
    before = {one: sys.modules.get(one) for one in fakes}
    try:
        sys.modules.update(fakes)
        for one in files:
            path = Path(direct.__file__).parent / one
            text = path.read_text(encoding="utf-8").replace(".to(gl.int64)", "")  # numbers have 64 bits here
            text = re.sub(r"\.to\((gl\.\w+), bitcast=True\)", r".view(\1)", text)
            exec(compile(text, str(path), "exec"), vars(fakes[_module(one)]))
    finally:
        for one, module in before.items():
            sys.modules.pop(one) if module is None else sys.modules.__setitem__(one, module)
    return vars(fakes[_module(source)])


def _module(source: str) -> str:
    return f"plmu.ops.gpu.{source.removesuffix('.py').replace('/', '.')}"


class Launch(direct.Launch):
    """In place of `direct.Launch`: kernels with tiled tensors, which are Gluon's, are emulated."""

    emulated: ClassVar[dict[str, Any]] = {}

    def __init__(self, *given: Any, **options: Any) -> None:
        options.pop("launch_pdl", None)  # nothing runs beside another kernel here, and waits for it
        super().__init__(*given, **options)
        self._constants |= {"EARLY": False} if "EARLY" in self._constants else {}

    def __call__(self, *tensors: Any) -> None:
        if not self._tiled:
            super().__call__(*tensors)
            return
        if self._kernel not in self.emulated:
            for source in SOURCES:
                self.emulated.update(kernels(source))
        given = [Descriptor(*pair) for pair in zip(tensors, self._tiled, strict=False)]
        pointers = [None if one is None else Pointer(one) for one in tensors[len(self._tiled) :]]
        grid = (*self._grid, 1, 1)[:3]
        for number in range(math.prod(grid)):
            _here.grid = grid
            _here.program = (number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1])
            self.emulated[self._kernel](*given, *pointers, *self._numbers, **self._constants)


def in_place(monkeypatch: pytest.MonkeyPatch, kind: type[direct.Launch] = Launch) -> Iterator[None]:
    """A CPU counts as a Hopper GPU, and launches are of that kind; for a fixture to yield from."""
    modules = (hopper_launch, triton_launch)
    prepared = [one for module in modules for one in vars(module).values() if hasattr(one, "cache_clear")]
    prepared.append(known_plan)
    for module in modules:
        monkeypatch.setattr(module, "Launch", kind)
    monkeypatch.setattr(launch, "has_hopper", functools.cache(lambda _: True))  # which torch.compile does not look into
    monkeypatch.setattr(layer_kernels, "DEVICES", ("cuda", "cpu"))
    for one in prepared:
        one.cache_clear()
    yield
    for one in prepared:
        one.cache_clear()
