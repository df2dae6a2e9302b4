"""An eager call of a layer on a CPU runs through few files, and through none that is for GPUs."""

import json
import os
import subprocess
import sys

import pytest

MOST_FILES = 10
LAYERS = {
    "one channel": ("1, 32, order=12, theta=64.0", (2, 64, 1)),
    "a long sequence": ("1, 8, order=12, theta=200.0", (1, 4096, 1)),
    "an encoder": ("64, 64, order=4, theta=32.0, memory_size=32", (8, 256, 64)),
    "an encoder that widens": ("2, 64, order=4, theta=32.0, memory_size=32", (8, 256, 2)),
    "no encoder": ("64, 64, order=4, theta=32.0, encoder=False", (8, 256, 64)),
    "several windows": ("16, 32, order=6, theta=[16.0, 32.0], memory_size=16", (4, 128, 16)),
    "a gate": ("16, 32, order=6, theta=32.0, gated=True", (4, 128, 16)),
    "a long gated sequence": ("16, 32, order=6, theta=32.0, gated=True, output_activation='tanh'", (4, 2048, 16)),
    "the final state at order 468": ("1, 346, order=468, theta=784.0, return_sequences=False", (2, 784, 1)),
}
PROGRAM = """
import json, os, sys
import torch
import plmu

root, visited = os.path.dirname(plmu.__file__), set()

def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(root):
        visited.add(os.path.relpath(frame.f_code.co_filename, root).replace(os.sep, "/"))

result = {}
for name, (arguments, shape) in json.loads(sys.argv[1]).items():
    layer, x = eval(f"plmu.ParallelLMU({arguments})"), torch.randn(shape)
    for call in (layer, torch.no_grad()(layer)):
        call(x)  # makes constants and the plan, which later calls of these sizes find
        visited.clear()
        sys.setprofile(note)
        call(x)
        sys.setprofile(None)
        result[name] = sorted({*visited, *result.get(name, ())})
gpu = [name for name in sys.modules if name.startswith("plmu.ops.gpu")]
print(json.dumps([result, gpu]))
"""


@pytest.fixture(scope="module")
def traced() -> tuple[dict[str, list[str]], list[str]]:
    """The files that calls with and without gradients visit, and the modules for GPUs that they import."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(LAYERS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    files, gpu = json.loads(done.stdout)
    return files, gpu


@pytest.mark.parametrize("name", LAYERS)
def test_a_call_visits_few_files(name: str, traced: tuple[dict[str, list[str]], list[str]]) -> None:
    files = traced[0][name]
    assert {"nn/parallel.py", "nn/memory.py", "ops/dispatch.py"} <= {*files}  # it is traced at all
    assert len(files) <= MOST_FILES, files


def test_no_module_for_gpus_is_imported(traced: tuple[dict[str, list[str]], list[str]]) -> None:
    assert traced[1] == []
