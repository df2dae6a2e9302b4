"""Kernels compile for GPUs that are not here and fit into them. GPUs that they are not made for are left to torch."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_targets
import pytest
import torch

import plmu
from plmu.ops import layer_kernels
from plmu.ops.gpu import devices, division, highway, launch
from plmu.ops.plan import known_plan

ROOT = Path(__file__).parents[2]
HOPPER = 90
# What is compiled in every run of the tests: for 99 KB of shared memory, for Hopper, and something for each other GPU.
SOME = {
    80: ["bfloat16, windows"],
    86: ["float16, order 64, resets", "float32, growing", "float32, all states, resets"],
    HOPPER: ["bfloat16, encoder and W_x", "bfloat16, windows", "float32, order 32"],
    100: ["bfloat16, resets"],
    120: ["float16, highway", "float32, original LMU"],
}
# Cases without kernels for Hopper.
SIMPLE = ("odd sizes", "all states", "highway", "original LMU", "float32, windows", "float32, growing")
compiles = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")


def compiled(capability: int, cases: list[str]) -> list[dict[str, Any]]:
    """What the kernels of these cases take, of a process that does not interpret them."""
    given = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "tests/gpu_targets.py"), str(capability), *cases]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(capability: int, cases: list[str]) -> None:
    found = compiled(capability, cases)
    assert {one["case"] for one in found} == set(cases)
    for one in found:
        assert one["shared"] <= 1024 * gpu_targets.SHARED[capability], one
    for name in cases:
        own = {one["kernel"].partition("_")[0] for one in found if one["case"] == name}
        simple = any(word in name for word in SIMPLE)
        assert own == ({"triton"} if capability != HOPPER or simple else {"triton", "gluon"}), name


@compiles
@pytest.mark.parametrize("capability", SOME)
def test_kernels_compile_and_fit(capability: int) -> None:
    check(capability, SOME[capability])


@compiles
@pytest.mark.full
@pytest.mark.parametrize("dtype", gpu_targets.DTYPES)
@pytest.mark.parametrize("capability", gpu_targets.SHARED)
def test_all_kernels_compile_and_fit(capability: int, dtype: str) -> None:
    check(capability, [name for name in gpu_targets.CASES if name.startswith(dtype)])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A GPU counts as being here, of which the test says what it is."""
    kept = [launch._is_hopper, highway._can_run, known_plan]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "_fault_of_triton", lambda: None)
    for one in kept:
        one.cache_clear()
    yield monkeypatch
    for one in kept:
        one.cache_clear()


def plan(**options: Any) -> plmu.Plan:
    system = plmu.DelayNetwork(4, 6.0).discretize()
    sizes = {"batch": 64, "time": 512, "channels": 512, "out": 512, "dtype": torch.bfloat16, "device": "cuda"}
    return plmu.plan("project", system=system, **sizes, **options)


@compiles
@pytest.mark.parametrize(
    ("capability", "hip", "fault", "missing", "others"),
    [
        ((9, 0), None, None, None, True),
        ((8, 6), None, None, None, True),
        ((12, 0), None, None, None, True),
        ((7, 5), None, None, "a GPU of compute capability 8.0 or newer, not 7.5", True),
        ((6, 1), None, None, "a GPU of compute capability 8.0 or newer, not 6.1", False),
        ((9, 4), "6.4", None, "an NVIDIA GPU", True),  # which is not Hopper
        ((9, 0), None, "a working Triton (no C compiler)", None, False),
    ],
)
def test_gpus_that_kernels_are_not_made_for(
    gpu: pytest.MonkeyPatch,
    capability: tuple[int, int],
    hip: str | None,
    fault: str | None,
    missing: str | None,
    others: bool,
) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda _=None: capability)
    gpu.setattr(torch.version, "hip", hip)
    gpu.setattr(devices, "_fault_of_triton", lambda: fault)
    device = torch.device("cuda", 0)
    hopper = capability == (9, 0) and fault is None
    assert launch.has_hopper(device) == hopper
    assert division.has_large_memory(device) == (capability[0] in (9, 10))
    assert (layer_kernels.why_no_steps(device, torch.float32, 1) is None) == others
    assert highway._can_run("cuda:0") == others
    if missing is None:
        assert plan(algorithm="fused").kernel == ("Hopper" if hopper else "Triton")
    else:
        assert plan().passed_over["fused"] == f"needs {missing}"
        with pytest.raises(ValueError, match=f"^algorithm='fused' needs {missing}: use chunked or auto$"):
            plan(algorithm="fused")
    assert plan().algorithm == ("fused" if hopper else "chunked")
    if fault is not None:
        assert plan().passed_over["fused"] == f"the kernels for Hopper need {fault}"
        assert layer_kernels.why_no_steps(device, torch.float32, 1) == f"our kernels need {fault}"


def test_triton_is_not_started_where_it_is_not_needed(gpu: pytest.MonkeyPatch) -> None:
    """To plan for a GPU on which `auto` takes torch's products."""
    gpu.setattr(torch.cuda, "get_device_capability", lambda _=None: (8, 0))
    gpu.setattr(devices, "_fault_of_triton", lambda: pytest.fail("Triton was started"))
    assert plan().algorithm == "chunked"
    assert "a Hopper GPU" in plan().passed_over["fused"]


@pytest.fixture
def fault() -> Iterator[Any]:
    """What is said of Triton, asked anew."""
    devices._fault_of_triton.cache_clear()
    yield devices._fault_of_triton
    devices._fault_of_triton.cache_clear()


def test_without_triton(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert fault() == "Triton: pip install triton"


def test_a_triton_that_does_not_work_says_why(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Failed to find C compiler. Please specify one.\nSee the manual.")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(importlib, "import_module", lambda _: Broken())
    assert fault() == "a working Triton (Failed to find C compiler. Please specify one)"


def test_nothing_is_missing_on_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = torch.device("cuda")
    assert devices.lacking(device) is devices.lacking_for_products(device) is None
