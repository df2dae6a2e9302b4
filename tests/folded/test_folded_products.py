"""What folding makes one product of, and how products are stored and taken."""

import pytest
import torch
from blocks import BLOCKS, WIDTH, build
from closeness import assert_same
from torch import nn

import plmu
from plmu import DelayLayer, Gated, ParallelLMU, Residual, Sequential
from plmu.folded.memory import _SMALL


def test_norms_gates_and_sums_become_part_of_the_products_beside_them() -> None:
    def names(*modules: nn.Module) -> list[str]:
        return sorted(plmu.fold(Sequential(*modules)).arrays())

    swiglu = Gated(nn.Linear(4, 6, bias=False), nn.Sequential(nn.Linear(4, 6, bias=False), nn.SiLU()))
    assert names(nn.RMSNorm(4), swiglu) == ["0.floor", "1.both.weight"]
    assert names(nn.RMSNorm(4), nn.Linear(4, 2)) == ["0.floor", "1.bias", "1.weight"]
    assert names(nn.RMSNorm(4)) == ["0.floor", "1.scale"]
    memory = ParallelLMU(4, 4, 2, [3.0, 9.0], encoder=False, input_to_output=False, bias=False)
    gated = Gated(memory, nn.Linear(4, 4, bias=False))
    arrays = ["1.gate.weight", "1.inner.memory.matrix", "1.inner.memory.scale", "1.inner.readout"]
    assert names(nn.RMSNorm(4), gated) == ["0.floor", *arrays]
    assert names(nn.RMSNorm(4), Gated(memory, nn.Identity()))[:2] == ["0.floor", "1.scale"]
    assert names(Residual(nn.Sequential(nn.Tanh(), nn.Linear(4, 4, bias=False)))) == ["0.weight"]
    assert names(Residual(nn.Sequential(nn.Tanh(), nn.Linear(4, 4)))) == ["0.inner.1.bias", "0.inner.1.weight"]
    assert names(Gated(nn.Linear(4, 1), nn.Linear(4, 6)))[0] == "0.gate.bias"  # torch would broadcast


def test_tall_matrices_are_stored_by_columns() -> None:
    for outputs, stride in ((3, (5, 1)), (5, (5, 1)), (8, (1, 8))):
        (part,) = plmu.fold(Sequential(nn.Linear(5, outputs))).parts
        assert part.weight.stride() == stride


@pytest.mark.parametrize("order", [1, 4])
def test_windows_of_few_and_of_many_sequences(order: int) -> None:
    """A step of few sequences takes single products and one of many matrix products; a bad number stays where it is."""
    layer = DelayLayer(6, order, theta=[3.0, 40.0, 1e5]).double()
    layer = Sequential(nn.RMSNorm(6).double(), Gated(layer, nn.Linear(6, 6 * order).double()))
    nn.init.normal_(layer[0].weight)
    folded, roundings = plmu.fold(layer), 2 * (order + 1) + 6 * order + 12  # of sums, a norm and a product
    many = 1 + _SMALL // (order * (order + 2) * 6)
    x = torch.randn(2, many, 6, dtype=torch.float64)
    state = folded.step(x[0])[1]
    out, after = folded.step(x[1], state)
    few, few_after = folded.step(x[1, :2], plmu.nn.detached(tuple(one if one is None else one[:2] for one in state)))
    assert_same(out[:2], few, roundings)
    assert_same(after[1][:2], few_after[1], roundings)
    assert_same(few, layer.step(x[1, :2], (None, state[1][:2]))[0].detach(), roundings)
    delay = DelayLayer(6, order, theta=[3.0, 40.0, 1e5]).double()
    for bad in (float("nan"), float("inf")):
        for batch in (2, many):
            x = torch.ones(batch, 6, dtype=torch.float64)
            x[1, 3] = bad
            m = plmu.fold(delay).step(x)[1]
            assert m[1, :, 3].isnan().all()
            assert m.isnan().sum() == order


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_blocks_in_half_precision_are_no_further_from_the_truth(name: str, dtype: torch.dtype) -> None:
    """Than their own steps, but for one rounding of an output."""
    block = build(name, dtype)
    exact, folded = build(name, dtype).double(), plmu.fold(block)
    state = stepped = truth = None
    errors = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for x in torch.randn(6, 2, WIDTH, dtype=dtype):
            out, state = folded.step(x, state)
            expected, stepped = block.step(x, stepped)
            right, truth = exact.step(x.double(), truth)
            found = torch.stack([(one.double() - right).abs().max() for one in (out, expected)])
            errors = torch.maximum(errors, found / right.abs().max())
    assert errors[0] <= errors[1] + torch.finfo(dtype).eps, errors
