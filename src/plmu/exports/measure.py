"""The time of a step in microseconds: in ONNX Runtime, in C, in torch and in `plmu.Stream`, each on one core."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import plmu
from plmu.exports.c_files import FLAGS, c_types
from plmu.exports.evaluate import one_thread
from plmu.exports.program import Program
from plmu.folded.states import leaves

SECONDS = 0.2  # duration of a measurement
SERIES = 0.002  # seconds of a series of calls, timed together: short, so that some run without interruption
REPEATS = 7  # series in C, which measure processor time


def microseconds(step: Callable[[], Any]) -> float:
    """The time of a call in microseconds, the shortest mean of many series: other programs only make it longer."""
    for _ in range(10):
        step()
    start = time.perf_counter()
    step()
    count = max(1, int(SERIES / max(time.perf_counter() - start, 1e-7)))
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(count):
            step()
        best = min(best, (time.perf_counter() - start) / count)
    return 1e6 * best


def stream_time(model: nn.Module, program: Program) -> float:
    stream: Any = plmu.Stream(model)  # type: ignore[arg-type]
    x = torch.zeros(program.x.size, dtype=program.x.dtype) if program.tokens is None else torch.tensor(0)
    with one_thread():
        return microseconds(lambda: stream.push(x))


def onnx_time(data: bytes, program: Program) -> float | None:
    """The time of a step in ONNX Runtime, in microseconds; None if it is not installed."""
    try:
        import numpy as np
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    states = {
        f"state_{i}_in": torch.zeros(1, *(state.shape or ()), dtype=state.dtype).numpy()
        for i, state in enumerate(program.states)
    }
    x = np.zeros(1, np.int64)
    if program.tokens is None:
        x = torch.zeros(1, program.x.size, dtype=program.x.dtype).numpy()
    return microseconds(lambda: session.run(None, {"x": x, **states}))


def torch_time(data: bytes, model: Any, program: Program) -> float:
    run = torch.export.load(io.BytesIO(data)).module()
    x = torch.zeros(1, dtype=torch.int64)
    if program.tokens is None:
        x = torch.zeros(1, program.x.size, dtype=program.x.dtype)
    states = leaves(model.initial_state(1, program.x.dtype, torch.device("cpu")))
    with one_thread(), torch.inference_mode():
        return microseconds(lambda: run(x, *states))


def compiler() -> str | None:
    """The path of the C compiler: $CC, cc, gcc or clang; None without any."""
    paths = (shutil.which(name) for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name)
    return next((path for path in paths if path is not None), None)


def c_time(files: Mapping[str, str], name: str, program: Program) -> float | None:
    """The time of a step in C, in microseconds; None without a compiler that works."""
    cc = compiler()
    if cc is None:
        return None
    kind, out = c_types(program)
    count = max(10, min(200_000, 10**8 // max(program.multiply_adds, 1)))
    bench = f"""#include "{name}.h"
#include <stdio.h>
#include <time.h>
static {name}_state state;
int main(void)
{{
    {kind} x[{name.upper()}_INPUTS] = {{0}};
    {out} y[{name.upper()}_OUTPUTS], sum = 0;
    double best = 1e30;
    int i, repeat;
    {name}_init(&state);
    for (repeat = 0; repeat < {REPEATS}; repeat++) {{
        const clock_t start = clock();
        double taken;
        for (i = 0; i < {count}; i++) {{
            {name}_step(&state, x, y);
            sum += y[0];
        }}
        taken = (double)(clock() - start) / CLOCKS_PER_SEC;
        best = taken < best ? taken : best;
    }}
    printf("%.6f %g\\n", 1e6 * best / {count}, (double)sum);
    return 0;
}}
"""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file, content in {**files, "bench.c": bench}.items():
            (folder / file).write_text(content, encoding="utf-8")
        command = [cc, *FLAGS.split(), "-o", "bench", f"{name}.c", "bench.c", "-lm"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
            ran = subprocess.run(["./bench"], cwd=folder, check=True, capture_output=True, text=True, timeout=600)
        except (OSError, subprocess.SubprocessError):
            return None
        return float(ran.stdout.split()[0])
