"""What blocks compute, against their equations written out step by step; gradients included."""

from collections.abc import Callable

import pytest
import torch
from blocks import WIDTH, WINDOWS, build
from closeness import assert_same
from torch import Tensor, nn

import plmu
from plmu import CausalConvolution, Highway, LMUBlock, MemoryBlock, ParallelLMU, SelectiveLMU


def memories(u: Tensor, order: int, thetas: list[float]) -> Tensor:
    """Equation 19, one step after another: m (batch, time, order, channels)."""
    parts = []
    for theta, part in zip(thetas, u.chunk(len(thetas), dim=2), strict=True):
        system = plmu.DelayNetwork(order, theta).discretize()
        m = u.new_zeros(u.shape[0], order, part.shape[2])
        steps = []
        for u_t in part.unbind(1):
            m = system.A @ m + system.B[:, None] * u_t[:, None]
            steps.append(m)
        parts.append(torch.stack(steps, dim=1))
    return torch.cat(parts, dim=3)


def read(layer: ParallelLMU, x: Tensor, thetas: list[float]) -> Tensor:
    """Equation 20 before its activation, for a layer without an encoder."""
    out = torch.einsum("btix,oix->bto", memories(x, layer.memory.order, thetas), layer.memory_weight)
    out = out if layer.input_weight is None else out + x @ layer.input_weight.mT
    return out if layer.bias is None else out + layer.bias


def rms(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def highway(layer: Highway, x: Tensor) -> Tensor:
    weights, biases = layer.both.weight.chunk(2), layer.both.bias.chunk(2)
    gate = 1 / (1 + torch.exp(-(x @ weights[1].mT + biases[1])))
    inner = x @ weights[0].mT + biases[0]
    assert layer.f is not None
    return gate * layer.f(inner) + (1 - gate) * x


def convolution(layer: CausalConvolution, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for back in range(min(layer.kernel_size, t + 1)):
            out[:, t] = out[:, t] + layer.weight[back] * x[:, t - back]
    return out


def selective(layer: SelectiveLMU, x: Tensor, thetas: list[float]) -> Tensor:
    m = memories(x @ layer.encoder.weight.mT, layer.memory.order, thetas)
    C = (x @ layer.readout.weight.mT + layer.readout.bias).reshape(*x.shape[:2], layer.heads, -1)
    size = layer.hidden_size // layer.heads
    heads = []
    for head in range(layer.heads):
        inside = m[..., head * size : (head + 1) * size]  # (batch, time, order, size)
        heads.append(rms((C[:, :, head, :, None] * inside).sum(2), layer.norm))
    return torch.cat(heads, dim=-1)


def the_papers(block: LMUBlock, x: Tensor) -> Tensor:
    norm, memory, *highways, _ = block.module
    centred = x - x.mean(-1, keepdim=True)
    h = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias
    h = torch.relu(read(memory, h, [4.0]))
    for layer in highways:
        h = highway(layer, h)
    return x + h


def modern(block: MemoryBlock, x: Tensor) -> Tensor:
    norm, *convolutions, gated, output, _ = block[0].module
    z = rms(x, norm)
    for layer in convolutions:
        z = convolution(layer, z)
    inner = selective(gated.module, z, WINDOWS) if block.heads else read(gated.module, z, WINDOWS)
    gate = z @ gated.gate[0].weight.mT
    x = x + (inner * gate * torch.sigmoid(gate)) @ output.weight.mT
    norm, gated, output, _ = block[1].module
    z = rms(x, norm)
    gate = z @ gated.gate[0].weight.mT
    return x + ((z @ gated.module.weight.mT) * gate * torch.sigmoid(gate)) @ output.weight.mT


REFERENCES: dict[str, Callable] = {
    "highway": lambda block, x: highway(block[0], x),
    "the paper's": the_papers,
    "memory": modern,
    "memory, selective": modern,
    "convolution": convolution,
    "selective": lambda block, x: selective(block, x, WINDOWS),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_blocks_are_their_equations(name: str) -> None:
    block = build(name)
    x = torch.randn(2, 13, WIDTH, dtype=torch.float64, requires_grad=True)
    out, _ = block(x)
    expected = REFERENCES[name](block, x)
    assert_same(out, expected)
    weight = torch.randn_like(out)
    given = [x, *block.parameters()]
    assert_same(torch.autograd.grad((out * weight).sum(), given), torch.autograd.grad((expected * weight).sum(), given))


@pytest.mark.parametrize("name", ["the paper's", "memory, selective", "weighted"])
def test_gradients_are_those_of_differences(name: str) -> None:
    block = build(name)
    assert torch.autograd.gradcheck(lambda x: block(x)[0], torch.randn(1, 4, WIDTH).double().requires_grad_())


def test_new_layers_start_near_the_identity() -> None:
    x = torch.randn(2, 6, WIDTH)
    assert torch.equal(CausalConvolution(WIDTH, 4)(x)[0], x)
    layer = Highway(WIDTH)
    assert torch.equal(layer.both.bias, torch.tensor([0.0] * WIDTH + [-1.0] * WIDTH))
