"""A kernel is launched directly from the second time on, with what Triton would pass; by Triton where that is new."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from operations import needs_kernels

from plmu.ops.gpu import direct

pytestmark = needs_kernels
Log = list[tuple[str, tuple[Any, ...]]]
A, B, C, D = (SimpleNamespace(data_ptr=lambda at=at: at) for at in (16, 32, 48, 64))  # in place of tensors


class CudaLauncher:
    """In place of Triton's, by name: what launches a compiled kernel."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def __call__(self, *given: Any) -> None:
        self.log.append(("direct", given))


class Kernel:
    """In place of a kernel with three tensors or numbers and two constants."""

    arg_names = ("a", "b", "number", "FIRST", "SECOND")

    def __init__(self, log: Log, launcher: Any) -> None:
        self.log = log
        self.compiled = SimpleNamespace(run=launcher, function="function", packed_metadata="metadata")

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*given: Any, **constants: Any) -> Any:
            self.log.append(("by Triton", (grid, *given, constants)))
            return self.compiled

        return launch


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    driver = SimpleNamespace(get_current_device=lambda: 3, get_current_stream=lambda device: f"stream of {device}")
    monkeypatch.setattr(direct, "_driver", lambda: driver)
    return []


def launch_of(kernel: Kernel, **options: Any) -> direct.Launch:
    module: Any = lambda: SimpleNamespace(kernel=kernel)  # noqa: E731
    return direct.Launch(module, "kernel", (4, 2), (7,), {"SECOND": 2, "FIRST": 1}, **options)


def test_again_it_is_launched_directly(log: Log) -> None:
    launch = launch_of(Kernel(log, CudaLauncher(log)), num_warps=4)
    for tensors in ((A, B), (C, D), (None, A)):
        launch(*tensors)
    by_triton = ((4, 2), A, B, 7, {"FIRST": 1, "SECOND": 2, "num_warps": 4})
    directly = (4, 2, 1, "stream of 3", "function", "metadata", None, None, None, 48, 64, 7, 1, 2)
    assert log.pop()[1][9:] == (None, 16, 7, 1, 2)
    assert log == [("by Triton", by_triton), ("direct", directly)]


def test_a_launcher_that_is_not_known_stays_with_triton(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    other = launch_of(Kernel(log, lambda *given: None))
    interpreted = Kernel(log, None)
    interpreted.compiled = None
    monkeypatch.setattr("triton.__version__", "3.6.0")
    for launch in (other, launch_of(interpreted)):
        launch(A, B)
        launch(A, B)
    monkeypatch.setattr("triton.__version__", "4.0.0")
    newer = launch_of(Kernel(log, CudaLauncher(log)))
    newer(A, B)
    newer(A, B)
    assert [way for way, _ in log] == ["by Triton"] * 6


def test_a_hook_is_told_of_each_launch(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launch_of(Kernel(log, CudaLauncher(log)))
    launch(A, B)
    chain = SimpleNamespace(calls=["a profiler's"])
    monkeypatch.setattr(direct, "_knobs", lambda: SimpleNamespace(launch_enter_hook=chain, launch_exit_hook=chain))
    launch(A, B)
    monkeypatch.undo()
    launch(A, B)
    assert [way for way, _ in log] == ["by Triton", "by Triton", "direct"]


def test_tiled_tensors_are_described(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_described", lambda tensor, tiled, strides: (tensor, tiled, strides))
    launch = launch_of(Kernel(log, CudaLauncher(log)), tiled=(((5, 3, 2), (1, 2, 2)),))
    tensor = torch.zeros(30)
    launch(tensor, B)
    launch(tensor, B)
    assert log[0][1][1] == (tensor, ((5, 3, 2), (1, 2, 2)), [6, 2, 1])
    read = log[1][1][9]
    assert read.base is tensor
    assert (read.shape, read.strides, read.padding, read.round_f32_to_tf32) == ((5, 3, 2), [6, 2, 1], "zero", False)
    assert log[1][1][10:] == (32, 7, 1, 2)


def test_descriptors_are_made_once_for_each_place_in_memory(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Triton makes them: by a function around the launcher, which is left out then."""
    made: list[Any] = []

    def make_tensordesc_arg(read: Any, meta: str) -> list[Any]:
        made.append((read.base, read.shape, meta))
        return [f"descriptor {len(made)}", *read.shape]

    class Around(CudaLauncher):
        def __init__(self, log: Log, launcher: Any, tensordesc_meta: list[str]) -> None:
            super().__init__(log)
            self.launch = lambda *given: launcher("around", tensordesc_meta, *given)

        def __call__(self, *given: Any) -> None:
            self.launch(*given)

    Around.__name__ = "CudaLauncher"
    monkeypatch.setattr(sys.modules[__name__], "make_tensordesc_arg", make_tensordesc_arg, raising=False)
    monkeypatch.setattr(direct, "_described", lambda tensor, tiled, strides: tensor)
    monkeypatch.setattr(direct, "MOST_DESCRIPTORS", 2)
    launcher = Around(log, lambda *given: log.append(("C", given)), ["of a"])
    launch = launch_of(Kernel(log, launcher), tiled=(((2, 2), (1, 2)),))
    memory = torch.zeros(3, 4)
    launch(memory[0], B)  # compiles
    for i in (0, 1, 0, 1, 2, 0):
        launch(memory[i], B)
    used = [given[9:] for way, given in log if way == "C"]
    assert used == [(f"descriptor {i}", 2, 2, 32, 7, 1, 2) for i in (1, 2, 1, 2, 3, 4)]
    assert [base.data_ptr() for base, _, _ in made] == [memory[i].data_ptr() for i in (0, 1, 2, 0)]
    assert {meta for _, _, meta in made} == {"of a"}
