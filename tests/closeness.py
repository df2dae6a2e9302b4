"""How close numerical comparisons come to their bounds: `pytest --closest 10` lists the ten closest.

With that option `torch.testing.assert_close`, `pytest.approx` and `within` note the error and the bound of every
comparison that holds. Without it they do nothing more. Comparisons that demand equality have no bound and are left out.
"""

import math
import os
import sys
from collections.abc import Callable
from functools import wraps
from numbers import Complex
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing._comparison import TensorLikePair

ApproxScalar = type(pytest.approx(0.0))


class Comparison(NamedTuple):
    ratio: float
    error: float
    bound: float
    where: str


class Closest:
    """The comparison closest to its bound of every line of every test, and the list of the closest of all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.found: dict[str, Comparison] = {}

    def note(self, error: float, bound: float) -> None:
        error, bound = float(error), float(bound)  # NumPy's do not travel between processes
        ratio = error / bound if bound > 0 else math.nan
        where = _where()
        if ratio > (self.found[where].ratio if where in self.found else 0.0):
            self.found[where] = Comparison(ratio, error, bound, where)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist: to the one that reports
            session.config.workeroutput["closest"] = [tuple(one) for one in self.largest()]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for one in getattr(node, "workeroutput", {}).get("closest", []):
            self.found[one[-1]] = Comparison(*one)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"the {self.count} comparisons closest to their bounds")
        terminalreporter.write_line("ratio     error     bound")
        for ratio, error, bound, where in self.largest():
            terminalreporter.write_line(f"{ratio:5.3f}  {error:.2e}  {bound:.2e}  {where}")

    def largest(self) -> list[Comparison]:
        return sorted(self.found.values(), reverse=True)[: self.count]


_closest: Closest | None = None


def within(error: float | Tensor, bound: float | Tensor, what: str = "the") -> None:
    """Demand error ≤ bound, of numbers."""
    error, bound = (value.item() if isinstance(value, Tensor) else value for value in (error, bound))
    assert error <= bound, f"{what} error is {error:.2e}, allowed are {bound:.2e}"
    if _closest is not None:
        _closest.note(error, bound)


def assert_same(actual: Any, expected: Any, terms: int = 1000, size: float = 1.0) -> None:
    """Demand equality up to one rounding for each of the `terms` products that are summed, at the size of the largest
    value, or of what went in where that is larger; of tuples and lists part by part. The expected may be float64."""
    if expected is None or actual is None:
        assert actual is expected
    elif isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, terms, size)
    else:
        assert expected.dtype in (actual.dtype, torch.float64)
        largest = expected.detach().abs().max().item() if expected.numel() else 0.0
        bound = terms * torch.finfo(actual.dtype).eps * max(largest, size)
        torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=bound)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--closest", type=int, default=0, metavar="N", help="list the N comparisons closest to their bounds"
    )


def pytest_configure(config: pytest.Config) -> None:
    global _closest
    if count := config.getoption("closest"):
        _closest = Closest(count)
        config.pluginmanager.register(_closest)
        TensorLikePair._compare_regular_values_close = _noting_tensors(TensorLikePair._compare_regular_values_close)
        ApproxScalar.__eq__ = _noting_numbers(ApproxScalar.__eq__)


def _noting_tensors(compare: Callable) -> Callable:
    @wraps(compare)
    def noting(self: TensorLikePair, actual: Tensor, expected: Tensor, **options: Any) -> None:
        compare(self, actual, expected, **options)
        if actual.numel() and not actual.is_meta:
            wide = torch.complex128 if actual.is_complex() else torch.float64
            one, other = (value.detach().to(wide).flatten() for value in (actual, expected))
            error, bound = (one - other).abs(), options["atol"] + options["rtol"] * other.abs()
            worst = (error / bound).nan_to_num(0.0).argmax()
            _closest.note(error[worst].item(), bound[worst].item())

    return noting


def _noting_numbers(equals: Callable) -> Callable:
    @wraps(equals)
    def noting(self: Any, actual: Any) -> bool:
        equal = equals(self, actual)
        if equal and isinstance(actual, Complex) and isinstance(self.expected, Complex) and actual == actual:  # no NaN
            _closest.note(abs(actual - self.expected), self.tolerance)
        return equal

    return noting


def _where() -> str:
    """The running test and the line of it that compares."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
    file, line, frame = test.split("::")[0], 0, sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(os.path.basename(file)):
            line = frame.f_lineno
        frame = frame.f_back
    return f"{test} line {line}"
