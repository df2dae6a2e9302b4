"""Kernels compiled for GPUs that are not here: `python tests/gpu_targets.py 86 "bfloat16, order 4"`.

Triton's compiler needs no GPU. Here its driver names one, kernels are compiled where they would be launched, and
nothing runs. A line of JSON for each kernel says how much shared memory it takes, how many registers, and how many
bytes of these are spilled.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHARED = {80: 163, 86: 99, 90: 227, 100: 227, 120: 99}  # KB of shared memory that a program may have
DTYPES = ("float16", "bfloat16", "float32")
Layer = dict[str, Any]
LAYERS: dict[str, Layer] = {
    "order 4": {"order": 4, "theta": 6.0, "sizes": (512, 512)},
    "order 32": {"order": 32, "theta": 128.0, "sizes": (512, 512)},
    "order 64": {"order": 64, "theta": 256.0, "sizes": (128, 128)},
    "windows": {"order": 4, "theta": [4.0, 16.0, 64.0, 256.0], "sizes": (208, 208), "batch": 64},
    "odd sizes": {"order": 5, "theta": 40.0, "sizes": (37, 21)},
    "encoder and W_x": {"order": 4, "theta": 6.0, "sizes": (512, 512), "memory_size": 512, "encoder": True},
    "resets": {"order": 4, "theta": 6.0, "sizes": (512, 512), "resets": True},
    "growing": {"order": 64, "system": "growing", "sizes": (128, 128)},
    "growing, resets": {"order": 32, "system": "growing", "sizes": (128, 128), "resets": True},
    "order 32, resets": {"order": 32, "theta": 128.0, "sizes": (512, 512), "resets": True},
    "order 64, resets": {"order": 64, "theta": 256.0, "sizes": (128, 128), "resets": True},
}
OTHERS = ("all states", "all states, resets", "highway", "original LMU", "original LMU, wide")
CASES = [f"{dtype}, {name}" for dtype in DTYPES for name in (*LAYERS, *OTHERS[:3])]
CASES += [f"float32, {name}" for name in OTHERS[3:]]


def main() -> None:
    capability, *names = sys.argv[1:]
    os.environ.pop("TRITON_INTERPRET", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        run, found = prepared(int(capability))
        for name in names or CASES:
            found.clear()
            run(name)
            for kernel, compiled in {one.hash: (kernel, one) for kernel, one in found}.values():
                print(json.dumps({"case": name, "kernel": kernel, **used(compiled)}), flush=True)


def prepared(capability: int) -> tuple[Callable[[str], None], list[tuple[str, Any]]]:
    """What runs a case on CPU tensors that count as those of such a GPU, and the kernels that were compiled."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from plmu.ops import fused, layer_kernels, routes
    from plmu.ops.gpu import division, launch
    from plmu.ops.gpu.float32 import split

    class Driver:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

    (driver if hasattr(driver, "set_active") else driver.driver).set_active(Driver())
    found: list[tuple[str, Any]] = []
    launched, in_parts, roomy = JITFunction.run, split._precision, division.has_large_memory

    def compiled(kernel: Any, *given: Any, warmup: bool, **options: Any) -> None:
        found.append((f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}",
                      launched(kernel, *given, warmup=True, **options)))  # fmt: skip

    JITFunction.run = compiled
    split._precision = lambda device, parts: in_parts(torch.device("cuda"), parts)
    launch.has_hopper = functools.cache(lambda _: capability == 90)
    torch.cuda.get_device_capability = lambda _: divmod(capability, 10)
    division.has_large_memory = lambda _: roomy(torch.device("cuda"))
    fused.interpreted = lambda *_: True
    layer_kernels.why_no_steps = lambda *_: None
    routes.DEVICES = layer_kernels.DEVICES = ("cuda", "cpu")
    torch.cuda.is_current_stream_capturing = lambda: False

    def run(name: str) -> None:
        dtype, _, name = name.partition(", ")
        torch.manual_seed(0)
        cases(name, getattr(torch, dtype)).sum().backward()

    return run, found


def cases(name: str, dtype: Any) -> Any:
    """The output of a case, whose gradients are still to be made."""
    import torch

    import plmu
    from plmu.ops.gpu import highway

    def inputs(batch: int, channels: int) -> torch.Tensor:
        return torch.randn(batch, 128, channels).to(dtype).requires_grad_()

    def resets(batch: int) -> torch.Tensor:
        return torch.rand(batch, 128) < 0.1

    if name.startswith("all states"):
        system = plmu.DelayNetwork(64, 256.0).discretize()
        marked = resets(2) if "resets" in name else None
        return plmu.states(inputs(2, 128), system, algorithm="fused", resets=marked)[0]
    if name == "highway":
        weight, bias = torch.randn(512, 256).to(dtype), torch.randn(512).to(dtype)
        return highway.highway(inputs(2, 256), weight.requires_grad_(), bias.requires_grad_())
    if name.startswith("original LMU"):
        return plmu.LMU(1, 212 if "wide" in name else 49, order=4, theta=4.0)(inputs(2, 1))[0]
    options = {"encoder": False, "input_to_output": bool(LAYERS[name].get("encoder")), **LAYERS[name]}
    sizes, batch, marked = options.pop("sizes"), options.pop("batch", 2), options.pop("resets", False)
    if "system" in options:  # one that is not divided into parts in float32
        order = options.pop("order")
        options["system"] = plmu.LinearSystem(torch.eye(order), torch.ones(order))
    layer = plmu.ParallelLMU(*sizes, **options, algorithm="fused").to(dtype)
    return layer(inputs(batch, sizes[0]), resets=resets(batch) if marked else None)[0]


def used(compiled: Any) -> dict[str, Any]:
    """Bytes of shared memory and, if Triton has the tool for it, registers of a thread and bytes that are spilled."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.is_file():
        return {"shared": compiled.metadata.shared}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, spilled = (int(re.findall(rf"{kind}:(\d+)", said)[0]) for kind in ("REG", "STACK"))
    return {"shared": compiled.metadata.shared, "registers": registers, "spilled": spilled}


if __name__ == "__main__":
    main()
