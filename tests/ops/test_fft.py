"""Transforms of blocks of steps: right in any blocks and tiles, and with rounding errors that stay local."""

import math
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest
import torch
from closeness import assert_same, within
from reference import recurrence
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import plmu
from plmu import Plan
from plmu.ops import fft, matrices, transforms

SYSTEM = plmu.DelayNetwork(5, 9.0).discretize()
SEVERAL = plmu.LinearSystem(SYSTEM.A, torch.stack([SYSTEM.B, SYSTEM.B.flip(0)], dim=1))  # two inputs, one system


def in_blocks(block: int, tile: int) -> AbstractContextManager:
    """Within this context everything runs by transforms, in blocks and tiles smaller than the plan would ever take."""
    return patch("plmu.ops.dispatch._plan", lambda kind, *_, **__: Plan(kind, "fft", block, False, tile))


def problem(
    system: plmu.LinearSystem, time: int = 30, batch: int = 3, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """u, weight and state."""
    generator = torch.Generator().manual_seed(time)
    channels = 1 if system.inputs else 2
    shapes = (batch, time, 2), (4, system.order, channels), (batch, system.order, channels)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("system", [SYSTEM, SEVERAL], ids=["one input", "two inputs"])
@pytest.mark.parametrize("tile", [1, 2, 9, 1000])
@pytest.mark.parametrize("block", [4, 12, 16, 32])
def test_all_blocks_and_tiles_give_the_recurrence(block: int, tile: int, system: plmu.LinearSystem) -> None:
    """With every gradient, of a first state too."""
    u, weight, state = arguments = problem(system)
    exact = recurrence(u, system, state)
    wanted = [exact, exact[:, -1], exact.flatten(2) @ weight.flatten(1).mT, exact[:, -1]]
    with in_blocks(block, tile):
        found = [*plmu.states(u, system, state), *plmu.project(u, system, weight, state)]
    assert_same(found, wanted)
    assert found[0].is_contiguous()
    flowing = [torch.randn_like(one) for one in wanted]
    of_found, of_wanted = (torch.autograd.grad(results, arguments, flowing) for results in (found, wanted))
    assert_same(of_found, of_wanted)


def test_gradients_of_some_arguments() -> None:
    u, weight, _ = problem(SYSTEM)
    with in_blocks(8, 2):
        both = torch.autograd.grad(plmu.project(u, SYSTEM, weight)[0].square().sum(), (u, weight))
        (grad_u,) = torch.autograd.grad(plmu.project(u, SYSTEM, weight.detach())[0].square().sum(), u)
        (grad_weight,) = torch.autograd.grad(plmu.project(u.detach(), SYSTEM, weight)[0].square().sum(), weight)
    assert torch.equal(both[0], grad_u)
    assert torch.equal(both[1], grad_weight)


@pytest.mark.parametrize("tile", [1, 9])
def test_second_derivatives(tile: int) -> None:
    u, weight, _ = problem(SYSTEM, time=10, batch=2)
    with in_blocks(4, tile):
        assert gradcheck(lambda u, weight: plmu.project(u, SYSTEM, weight)[0], (u, weight))
        assert gradgradcheck(lambda u, weight: plmu.project(u, SYSTEM, weight)[0], (u, weight))
        assert gradgradcheck(lambda u: plmu.states(u, SYSTEM)[0], (u,))


def test_batched_gradients() -> None:
    """As `torch.autograd.functional.jacobian(vectorize=True)` asks for them."""
    u, weight, _ = problem(SYSTEM, time=10, batch=2)
    with in_blocks(4, 2):
        m, o = plmu.states(u, SYSTEM)[0], plmu.project(u, SYSTEM, weight)[0]
        for value, leaves in ((m, (u,)), (o, (u, weight))):
            many = torch.randn(3, *value.shape, dtype=value.dtype)
            batched = torch.autograd.grad(value, leaves, many, is_grads_batched=True, retain_graph=True)
            single = [torch.autograd.grad(value, leaves, one, retain_graph=True) for one in many]
            assert_same(list(batched), [torch.stack(ones) for ones in zip(*single, strict=True)])


@pytest.mark.parametrize("place", ["early", "late"])
@pytest.mark.parametrize(("order", "theta"), [(12, 100.0), (40, 50.0), (2, 20.0), (64, 300.0)])
def test_a_peak_does_not_blur_what_is_far_from_it(order: int, theta: float, place: str) -> None:
    """In float32, of states, outputs and gradients: where it is quiet, the error is that of the recurrence there. It
    may be twice as large, with a rounding for each product that a state sums (as in test_algorithms)."""
    time = 3000
    quiet, peak = (slice(1800, time), slice(90, 100)) if place == "early" else (slice(0, 1200), slice(2900, 2910))
    system = plmu.DelayNetwork(order, theta).discretize()
    generator = torch.Generator().manual_seed(order)
    shapes = (2, time, 1), (2, time, order, 1), (2, time, 3), (3, order, 1)
    u, grad_m, grad_o, weight = (torch.randn(*shape, generator=generator) for shape in shapes)
    for one in (u, grad_m, grad_o):
        one[:, peak] *= 1e5

    def results(run: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        given, read = u.to(dtype).requires_grad_(), weight.to(dtype)
        if run == "fft":
            m, o = plmu.states(given, system, algorithm="fft")[0], plmu.project(given, system, read, algorithm="fft")[0]
        else:
            whole = run == "one transform"
            m = fft.states(given[:, :, None], system, None) if whole else recurrence(given, system, dtype=dtype)
            o = m.flatten(2) @ read.flatten(1).mT
        grad_u = [
            torch.autograd.grad(value, given, flowing.to(dtype), retain_graph=True)[0]
            for value, flowing in ((m, grad_m), (o, grad_o))
        ]
        return [value[:, quiet].detach().double() for value in (m, o, *grad_u)]

    exact = results("recurrence", torch.float64)

    def errors(run: str) -> list[float]:
        return [float((one - true).norm() / true.norm()) for one, true in zip(results(run), exact, strict=True)]

    sums = math.sqrt((fft.span(system, time, torch.float32) + order) / 24)
    for error, plain in zip(errors("fft"), errors("recurrence"), strict=True):
        within(error, 2 * plain + (4 + sums) * torch.finfo(torch.float32).eps)
    assert max(errors("one transform")) > 1e-4  # which would blur it


def test_how_long_a_memory_lasts() -> None:
    """At least as many steps as count in float32 or float64, and at most twice as many."""
    for order, theta in ((1, 5.0), (4, 6.0), (40, 50.0), (12, 1000.0), (100, 120.0)):
        system = plmu.DelayNetwork(order, theta).discretize()
        for dtype in (torch.float32, torch.float64):
            assert 0.9 <= matrices.lasts(system, dtype) / fft.span(system, 50_000, dtype) <= 2
    assert matrices.lasts(plmu.LinearSystem([[0.0]], [1.0]), torch.float32) == 1


def test_blocks_that_libraries_are_fast_at() -> None:
    assert [fft.fast_block(least) for least in (1, 4, 5, 91, 392, 500, 509)] == [4, 4, 8, 96, 392, 500, 512]


def test_pieces_reach_no_further_than_the_memory() -> None:
    u = torch.randn(1, 1000, 1)
    assert transforms._spectra(u[:, :, None], SYSTEM, 32, 60).shape[0] == 2
    assert transforms._spectra(u[:, :, None], SYSTEM, 32, 5000).shape[0] == 32
