"""The time of a step on one CPU core as a stream, in ONNX Runtime and in C: `python -m benchmarks.deployment`.

The models are those of Mackey-Glass and psMNIST, untrained: the time of a step does not depend on the weights. Each is
compared with its matrix–vector products alone (NumPy or torch, whichever is faster) and with plain loops in C: the same
products row by row, and the same activations. Before anything is timed, ONNX and C must agree with the stream.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import plmu
from plmu.exports.c_files import FLAGS, c_files, sequence
from plmu.exports.exporting import prepared, program_of
from plmu.exports.measure import c_time, compiler, microseconds, one_thread, onnx_time, stream_time
from plmu.exports.onnx_model import step_model
from plmu.exports.program import Apply, MatVec, Program
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

CHECKED = 1000  # steps
TOLERANCE = 1e-5
ROUNDS = 3  # each time is the minimum of this many


def models() -> dict[str, plmu.Sequential]:
    """The models as `plmu train` builds them."""
    small = plmu.ParallelLMU(1, 140, order=40, theta=50.0, output_activation="gelu", standardize=True)
    large = plmu.ParallelLMU(1, 346, order=468, theta=784.0, standardize=True, return_sequences=False)
    return {
        "mackey-glass": plmu.Sequential(small, nn.Linear(140, 80), nn.GELU(), nn.Linear(80, 1)),
        "psmnist": plmu.Sequential(large, nn.Dropout(0.5), nn.Linear(346, 10)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if compiler() is None:
        parser.error("there is no C compiler")
    torch.manual_seed(0)
    rows = []
    for name, model in models().items():
        rows.append({"model": name, **measured(model)})
        print(rows[-1], flush=True)
    if options.json:
        command = " ".join(["python -m benchmarks.deployment", *sys.argv[1:]])
        about = {"kind": "deployment", "command": command, "onnxruntime": onnxruntime.__version__, "c": FLAGS}
        write_json(options.json, {**about, "rows": rows, **provenance(torch.device("cpu"))})


def measured(model: Any) -> dict[str, Any]:
    """Microseconds of a step in each form, and how they compare."""
    model = prepared(model)
    program = program_of(model)
    files, code = c_files(program, "model", {}, False)
    onnx_bytes = step_model(program, {})
    errors = {"onnx": onnx_error(model, program, onnx_bytes), "c": c_error(files)}
    wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE}
    if wrong:
        sys.exit(f"wrong answers: {wrong}")
    times: dict[str, float] = {}
    calls: dict[str, Callable[[], float | None]] = {
        "stream": lambda: stream_time(model, program),
        "onnx": lambda: onnx_time(onnx_bytes, program),
        "c": lambda: c_time(files, "model", program),
        "products": lambda: products_time(program),
        "plain_loops": lambda: loops_time(program),
    }
    for _ in range(ROUNDS):
        for name, call in calls.items():
            seconds = call()
            assert seconds is not None, name
            times[name] = min(seconds, times.get(name, seconds))
    return {
        "multiply_adds": program.multiply_adds,
        "weight_bytes": program.weight_bytes(False),
        "state_bytes": program.state_bytes,
        "work_bytes": 4 * code.memory.work_size,
        "relative_error": errors,
        "microseconds": times,
        "onnx_over_products": times["onnx"] / times["products"],
        "c_over_products": times["c"] / times["products"],
        "c_over_plain_loops": times["c"] / times["plain_loops"],
    }


def onnx_error(model: Any, program: Program, data: bytes) -> float:
    """The largest error of an output, relative to the largest output of the stream."""
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    states = [np.zeros((1, *(value.shape or ())), np.float32) for value in program.states]
    stream, error, largest = plmu.Stream(model), 0.0, 0.0
    for x in sequence(program, CHECKED):
        feeds = {f"state_{i}_in": state for i, state in enumerate(states)}
        y, *states = session.run(None, {"x": x[None].numpy(), **feeds})
        expected = stream.push(x)
        error = max(error, float((torch.from_numpy(y[0]) - expected).abs().max()))
        largest = max(largest, float(expected.abs().max()))
    return error / largest


def c_error(files: dict[str, str]) -> float:
    """The error that the check program prints; it fails if the error is too large."""
    with tempfile.TemporaryDirectory() as place:
        for name, content in files.items():
            (Path(place) / name).write_text(content)
        made = subprocess.run(["make", "-s", "check"], cwd=place, capture_output=True, text=True, timeout=600)
        return float(made.stdout.split()[-1]) if made.returncode == 0 else float("nan")


def products_time(program: Program) -> float:
    """The matrix–vector products of a step and nothing else."""
    pairs = [
        (operation.weight.array.contiguous(), torch.randn(operation.weight.array.shape[1]))
        for operation in program.operations
        if isinstance(operation, MatVec)
    ]
    arrays = [(weight.numpy(), x.numpy()) for weight, x in pairs]

    def by_torch() -> None:
        for weight, x in pairs:
            torch.mv(weight, x)

    def by_numpy() -> None:
        for weight, x in arrays:
            weight @ x

    with one_thread(), torch.inference_mode():
        return min(microseconds(by_torch), microseconds(by_numpy))


def loops_time(program: Program) -> float:
    """Products row by row and activations number by number: plain loops."""
    arrays, body = [], []
    bodies = {"gelu": "0.5f * v[i] * (1.0f + erff(v[i] * 0.70710678f))", "relu": "v[i] > 0.0f ? v[i] : 0.0f"}
    for k, operation in enumerate(program.operations):
        if isinstance(operation, MatVec):
            rows, columns = operation.weight.array.shape
            values = ",".join(f"{value:.7e}f" for value in operation.weight.array.flatten().tolist())
            arrays.append(f"static const float w{k}[{rows * columns}] = {{{values}}};")
            body.append(
                f"for (i = 0; i < {rows}; i++) {{ float s = 0.0f; for (j = 0; j < {columns}; j++)"
                f" s += w{k}[i * {columns} + j] * v[j]; u[i] = s; }} memcpy(v, u, sizeof u);"
            )
        elif isinstance(operation, Apply):
            body.append(f"for (i = 0; i < {operation.x.size}; i++) v[i] = {bodies[operation.function]};")
    size = max(max(operation.weight.array.shape) for operation in program.operations if isinstance(operation, MatVec))
    header = "#define MODEL_INPUTS 1\n#define MODEL_OUTPUTS 1\ntypedef struct { float v[1]; } model_state;\n"
    header += "void model_init(model_state *s);\nint model_step(model_state *s, const float *x, float *y);\n"
    source = f"""#include "model.h"
#include <math.h>
#include <string.h>
{chr(10).join(arrays)}
static float v[{size}], u[{size}];
void model_init(model_state *s) {{ (void)s; memset(v, 0, sizeof v); }}
int model_step(model_state *s, const float *x, float *y)
{{
    int i, j;
    (void)s;
    v[0] = x[0];
    {chr(10).join(body)}
    y[0] = v[0];
    return 0;
}}
"""
    seconds = c_time({"model.h": header, "model.c": source}, "model", program)
    assert seconds is not None
    return seconds


if __name__ == "__main__":
    main()
