"""The elementary functions of exported C, against float64: their errors, and what they make of NaN and infinity."""

import ctypes
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import within
from test_c import needs_compiler
from torch import Tensor

from plmu.exports.c_helpers import HELPERS
from plmu.exports.c_math import MATH
from plmu.exports.measure import compiler

EXACT: dict[str, Any] = {
    "exponential": torch.exp,
    "exponential_minus_1": torch.expm1,
    "log_of_1_plus": torch.log1p,
    "hyperbolic_tangent": torch.tanh,
    "error_function": torch.erf,
    "square_root": torch.sqrt,
    "softplus": torch.nn.functional.softplus,
}
ULPS = 4  # units in the last place; each function sums its polynomial and takes few more operations


@pytest.fixture(scope="module")
def library(tmp_path_factory: Any) -> Any:
    """All functions in a library, each also as a loop over an array."""
    folder: Path = tmp_path_factory.mktemp("math")
    sources = [*MATH.values(), HELPERS["absolute"], HELPERS["softplus"]]
    loops = [
        f"void many_{name}(float *x, size_t n) {{ size_t i; for (i = 0; i < n; i++) x[i] = {name}(x[i]); }}\n"
        for name in EXACT
    ]
    (folder / "m.c").write_text("#include <stdint.h>\n#include <stddef.h>\n" + "".join([*sources, *loops]))
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([str(compiler()), *flags, "-o", "m.so", "m.c"], cwd=folder, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "m.so"))


def called(library: Any, name: str, x: Tensor) -> Tensor:
    values = x.clone()
    getattr(library, f"many_{name}")(ctypes.c_void_p(values.data_ptr()), ctypes.c_size_t(values.numel()))
    return values


@needs_compiler
@pytest.mark.parametrize("name", EXACT)
def test_errors_in_units_of_the_last_place(name: str, library: Any) -> None:
    size = torch.logspace(-30, math.log10(85), 40_000)
    between = torch.linspace(-10, 10, 40_001)
    x = torch.cat([size, -size, between, between / 100, torch.zeros(1)])
    x = x[(x >= 0) & (x <= 1)] if name == "log_of_1_plus" else x.abs() if name == "square_root" else x
    exact = EXACT[name](x.double())
    error = (called(library, name, x).double() - exact).abs()
    spacing = torch.finfo(torch.float32).eps * exact.abs() + torch.finfo(torch.float32).tiny
    within(float((error / spacing).max()), ULPS, name)


@needs_compiler
@pytest.mark.parametrize("name", EXACT)
def test_nan_and_infinity(name: str, library: Any) -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 88.6, 89.0, -88.0, 3.4e38, -3.4e38])
    if name == "log_of_1_plus":
        x = x[:1]
    if name == "square_root":
        x = x[x.isnan() | (x >= 0)]
    values = called(library, name, x)
    exact = EXACT[name](x.double()).float()
    torch.testing.assert_close(values, exact, rtol=1e-6, atol=2e-37, equal_nan=True)
