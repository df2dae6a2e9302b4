"""A small Mackey-Glass model on an emulated Cortex-M4, and on a Cortex-M3, which has no floating-point unit: flash, RAM
and instructions per step.

`python -m benchmarks.mcu [--run RUN] [--json FILE]`, or `make test-mcu`. It needs Debian's gcc-arm-none-eabi,
libnewlib-arm-none-eabi and qemu-system-arm. The check program of the export must pass on the board before anything is
counted. It fails if a model needs more RAM than its state and 2 KiB.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import plmu
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

HERE = Path(__file__).parent
TOOLS = {"arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi", "qemu-system-arm": "qemu-system-arm"}
BOARDS = {  # of QEMU, and the flags of the compiler
    "Cortex-M4F": ("mps2-an386", "-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16"),
    "Cortex-M3": ("mps2-an385", "-mcpu=cortex-m3 -mthumb"),
}
FLAGS = (
    "-std=c99 -O2 -ffp-contract=fast -ffunction-sections -fdata-sections -Wall -Wextra -Wconversion -pedantic -Werror"
)
LINK = f"-nostartfiles -T {HERE / 'board.ld'} -Wl,--gc-sections"
QEMU = "qemu-system-arm -nographic -monitor none -serial none -icount shift=0"
MORE_RAM = 2048  # bytes that may be needed beside the state
PARAMETERS = 10_000  # at most
KINDS: dict[str, dict[str, bool]] = {
    "float32": {},
    "int8": {"int8": True},
    "int8, fixed-point sums": {"int8": True, "fixed_point": True},
}


def small_model() -> plmu.Sequential:
    """Mackey-Glass's in small; untrained, since the cost of a step does not depend on the weights."""
    torch.manual_seed(0)
    layer = plmu.ParallelLMU(1, 100, order=32, theta=50.0, output_activation="gelu")
    return plmu.Sequential(layer, nn.Linear(100, 50), nn.GELU(), nn.Linear(50, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a run to take the model of (a small Mackey-Glass model)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        sys.exit(f"missing Debian packages: {' '.join(missing)}")
    model: Any = small_model() if given.run is None else plmu.load(given.run / "model.plmu")
    parameters = sum(one.numel() for one in model.parameters())
    rows = [measured(model, kind, processor) for processor in BOARDS for kind in KINDS]
    for row in rows:
        print(
            ", ".join(f"{name} {value:,}" if type(value) is int else f"{name} {value}" for name, value in row.items())
        )
    if given.json:
        command = " ".join(["python -m benchmarks.mcu", *sys.argv[1:]])
        kind = {"kind": "mcu", "command": command, "parameters": parameters}
        write_json(given.json, {**kind, "rows": rows, **provenance(torch.device("cpu"))})
    if given.run is None:
        assert parameters <= PARAMETERS, parameters
        greedy = [row for row in rows if row["ram"] > row["state"] + MORE_RAM]
        if greedy:
            sys.exit(f"more RAM than the state and {MORE_RAM} bytes: {greedy}")


def measured(model: Any, kind: str, processor: str) -> dict[str, Any]:
    """What a model takes on a board."""
    board, flags = BOARDS[processor]
    gcc = ["arm-none-eabi-gcc", *flags.split()]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        written = plmu.export(model, folder, to="c", **KINDS[kind])  # type: ignore[arg-type]
        _call(*gcc, *FLAGS.split(), "-c", "model.c", folder=folder)
        _call(*gcc, *FLAGS.split(), "-Dmain=check_main", "-c", "model_check.c", folder=folder)
        build(gcc, folder, "check", "model.o", "model_check.o", str(HERE / "check.c"), "--specs=rdimon.specs")
        checked = run(board, folder / "check")
        header = (folder / "model.h").read_text()
        tokens = "const int32_t *x" in header
        sample = "0" if tokens else "(float)(seed >> 8) / 8388608.0f - 1.0f"
        defined = [f"-DMODEL_INPUT={'int32_t' if tokens else 'float'}", f"-DMODEL_SAMPLE=({sample})"]
        build(gcc, folder, "measure", "model.o", str(HERE / "measure.c"), *defined, "--specs=nano.specs")
        counted = dict(line.split() for line in run(board, folder / "measure").splitlines())
        sizes = _call("arm-none-eabi-size", "measure", folder=folder).splitlines()[1].split()
        text, data, bss = (int(one) for one in sizes[:3])
        stack = int(counted["stack"])
        return {
            "processor": processor,
            "board": f"QEMU {board}",
            "weights": kind,
            "check": checked.strip(),
            "flash": text + data,
            "flash_of_weights": written.weight_bytes,
            "state": written.state_bytes,
            "ram": data + bss + stack,
            "stack": stack,
            "multiply_adds": written.multiply_adds,
            "instructions": int(counted["instructions"]),
        }


def build(gcc: list[str], folder: Path, name: str, *inputs: str) -> None:
    command = [*gcc, "-std=gnu99", "-O2", f"-I{HERE}", f"-I{folder}", *LINK.split()]
    _call(*command, "-o", name, str(HERE / "startup.c"), *inputs, "-lm", folder=folder)


def run(board: str, program: Path) -> str:
    """What a program prints on a board; it must end with status 0."""
    command = [*QEMU.split(), "-M", board, "-semihosting-config", "enable=on,target=native", "-kernel", str(program)]
    return _call(*command, folder=program.parent)


def _call(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr  # the emulator prints what the board says to either


if __name__ == "__main__":
    main()
