"""The product behind nn.Linear in stacks."""

import pytest
import torch
from torch import nn

from plmu.nn.dense import FEW, _Dense, dense


@pytest.mark.parametrize("outputs", [FEW, FEW + 1])
def test_values_and_gradients_are_those_of_a_dense_layer(outputs):
    torch.manual_seed(0)
    shapes = (7, 5), (outputs, 5), (outputs,)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    torch.testing.assert_close(_Dense.apply(*leaves), nn.functional.linear(*leaves))
    assert torch.autograd.gradcheck(_Dense.apply, leaves)
    assert torch.autograd.gradgradcheck(_Dense.apply, leaves)
    leaves[0].requires_grad_(False)
    assert torch.autograd.gradcheck(_Dense.apply, leaves)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    linear = nn.Linear(140, 80, device="cuda")
    x = torch.randn(2, 5000, 140, device="cuda", requires_grad=True)
    expected = linear(x)
    found = dense(linear, x)
    assert type(found.grad_fn.next_functions[0][0]).__name__ == "_DenseBackward"
    gradient = torch.randn_like(expected)
    leaves = [x, linear.weight, linear.bias]
    for a, b in zip(
        (found, *torch.autograd.grad(found, leaves, gradient)),
        (expected, *torch.autograd.grad(expected, leaves, gradient)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
