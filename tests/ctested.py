"""Exported C as a library of this process."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plmu.exports.measure import compiler
from plmu.exports.program import Program

STRICT = "-std=c99 -Wall -Wextra -Wconversion -pedantic -Werror"
ALONE = "-O1 -ffreestanding -fno-builtin -shared -fPIC -nostdlib -Wl,-z,defs"  # no library, not even the compiler's


def compiled(folder: Path, *names: str, flags: str = f"{STRICT} {ALONE}", cc: str | None = None) -> ctypes.CDLL:
    """The exported models of these names in a folder, as a library."""
    sources = [f"{name}.c" for name in names]
    command = [cc or str(compiler()), *flags.split(), "-o", f"{names[0]}.so", *sources]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / f"{names[0]}.so"))


class CModel:
    """A stream of exported C."""

    def __init__(self, library: ctypes.CDLL, made: Program, name: str = "model") -> None:
        self.library, self.made, self.name = library, made, name
        self.state = ctypes.create_string_buffer(2**20)  # more than the state of any small model
        self.reset()

    def reset(self) -> None:
        getattr(self.library, f"{self.name}_init")(self.state)

    def __call__(self, x: Tensor) -> Tensor:
        """The output (1, outputs) of a step for x (1, features), or token numbers (1,)."""
        x = (x.int() if self.made.tokens is not None else x.to(self.made.x.dtype)).contiguous()
        y = torch.full((1, self.made.y.size), torch.nan, dtype=self.made.y.dtype)
        pointers: list[Any] = [ctypes.c_void_p(value.data_ptr()) for value in (x, y)]
        assert getattr(self.library, f"{self.name}_step")(self.state, *pointers) == 0
        return y
