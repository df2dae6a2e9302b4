"""Small problems for `plmu.ops`, and what its tests do with them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import plmu
from plmu import Plan

ALGORITHMS = ("recurrent", "toeplitz", "fft", "chunked", "auto")
RESETTING = ("recurrent", "chunked", "auto")  # the algorithms that take resets


def _why_no_kernels() -> str:
    """Why no kernel runs here, neither on a GPU nor interpreted; nothing if one does."""
    if torch.cuda.is_available():
        return ""
    if find_spec("triton") is None:
        return "no Triton"
    triton, numpy = ([int(part) for part in version(name).split(".")[:2]] for name in ("triton", "numpy"))
    return "Triton 3.6 interprets with NumPy below 2.4 alone" if triton < [3, 7] and numpy >= [2, 4] else ""


needs_kernels = pytest.mark.skipif(_why_no_kernels() != "", reason=_why_no_kernels())


def in_chunks(chunk: int, fold: bool = False, tile: int = 1) -> AbstractContextManager:
    """Within this context everything runs chunked, in chunks and tiles smaller than the plan would ever take."""
    return patch("plmu.ops.dispatch._plan", lambda kind, *_, **__: Plan(kind, "chunked", chunk, fold, tile))


# A small problem, for what torch does with a call.
BATCH, TIME, CHANNELS, ORDER, OUT = 3, 4, 2, 3, 2
LENGTHS = torch.tensor([3, 0, 4])
RESETS = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)


def fresh_system() -> plmu.LinearSystem:
    """One with nothing cached, though equal ones may be alive."""
    plmu.set_cache_limit(plmu.set_cache_limit(0))
    return plmu.DelayNetwork(ORDER, 4.0).discretize()


def leaves(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """u, weight and state."""
    torch.manual_seed(1)
    shapes = (BATCH, TIME, CHANNELS), (OUT, ORDER, CHANNELS), (BATCH, ORDER, CHANNELS)
    u, weight, state = (torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return u, weight, state


def everything(
    system: plmu.LinearSystem, algorithm: str = "auto", resets: Tensor | None = None, lengths: Tensor | None = LENGTHS
) -> Callable[..., tuple[Tensor, ...]]:
    """The three functions as one of u, weight and state."""
    options = {"lengths": lengths, "resets": resets}

    def run(u: Tensor, weight: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        return (
            *plmu.states(u, system, state, algorithm=algorithm, **options),
            *plmu.project(u, system, weight, state, algorithm=algorithm, **options),
            plmu.final_state(u, system, state, **options),
        )

    return run


def with_gradients(function: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    arguments = leaves(dtype)
    outputs = function(*arguments)
    loss = sum(output.double().square().sum() for output in outputs)
    return [*[output.detach() for output in outputs], *torch.autograd.grad(loss, arguments)]
