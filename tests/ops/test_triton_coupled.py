"""The kernels of the original LMU's steps against the same steps by library products, interpreted where there is no
GPU."""

import pytest
import torch
from closeness import within
from operations import needs_kernels

from plmu.nn import coupled
from plmu.ops.gpu import triton_coupled as kernels

pytestmark = needs_kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize(
    ("time", "batch", "width", "order"),
    [(7, 5, 20, 8), (1, 3, 20, 8), (6, 17, 64, 1), (5, 40, 70, 40), (4, 33, 151, 150), (1, 1, 65, 3)],
)
def test_against_the_library(time: int, batch: int, width: int, order: int, incremental: bool) -> None:
    driven, gradient = torch.randn(2, time, batch, width, device=DEVICE)
    matrix = torch.randn(width, width, device=DEVICE) / (2 * width**0.5)
    z = torch.full((time + 1, batch, width), torch.nan, device=DEVICE)
    z[0].normal_()
    wide = z.double()
    coupled._Library.forward(driven.double(), wide, matrix.double(), order, incremental)
    kernels.forward(driven, z, matrix, order, incremental)
    # Each step rounds a sum of `width` products once each, and passes on what came before.
    within((z - wide).abs().max(), time * width * EPS * wide.abs().max())

    total = torch.full((time, batch, width), torch.nan, device=DEVICE)
    total[-1] = gradient[-1]
    exact = total.double()
    coupled._Library.backward(gradient.double(), wide, exact, matrix.double(), order, incremental)
    kernels.backward(gradient, wide.float(), total, matrix, order, incremental)
    within((total - exact).abs().max(), time * width * EPS * exact.abs().max())


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.2, 0.3, 0.5, 3.0, 100.0])
def test_tanh_has_all_digits_at_any_size(scale: float) -> None:
    driven = scale * torch.linspace(-1, 1, 64, device=DEVICE).reshape(1, 2, 32)
    z = torch.zeros(2, 2, 32, device=DEVICE)
    kernels.forward(driven, z, torch.zeros(32, 32, device=DEVICE), 0, False)
    exact = driven.double().tanh()
    within(((z[1:] - exact) / exact).abs().max(), 4 * EPS)
