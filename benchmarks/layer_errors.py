"""The check of whole layers on a GPU against float64, before a benchmark times them."""

from __future__ import annotations

import torch
from torch import Tensor

import plmu
from plmu.bench.problems import TOLERANCE, Shape

BOUNDS = {torch.float32: 5e-6, torch.bfloat16: TOLERANCE[torch.bfloat16]}  # of final states, and of all else


def made(layer: plmu.ParallelLMU) -> plmu.ParallelLMU:
    return layer.cuda().bfloat16()


def inputs(shape: Shape) -> Tensor:
    return torch.randn(shape.batch, shape.time, shape.channels, device="cuda").bfloat16().requires_grad_()


def check(layer: plmu.ParallelLMU, shape: Shape) -> dict[str, float]:
    """The largest relative errors with ReLU and with a smooth activation, which is not part of a launch."""
    by_activation = [errors(layer, shape, activation) for activation in ("relu", "silu")]
    return {name: max(relative[name] for relative in by_activation) for name in by_activation[0]}


def errors(original: plmu.ParallelLMU, shape: Shape, activation: str) -> dict[str, float]:
    """Relative errors of two sequences against float64 chunks, on other numbers than those that are timed.

    The exact ReLU is zero where ours is: near zero, rounding decides the sign of a sum.
    """
    options = {**original.config, "output_activation": activation}
    del options["algorithm"]
    layer = made(plmu.ParallelLMU(**options))
    layer.load_state_dict(original.state_dict())
    x = inputs(shape).detach()[:2]
    gradients = [torch.randn(2, shape.time, shape.out, device="cuda").bfloat16()]
    gradients.append(torch.randn(2, shape.order, shape.channels, device="cuda"))

    def results(module: plmu.ParallelLMU, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        answer = module(x)
        leaves = (x, *module.parameters())
        grad_outputs = [gradient.to(value) for gradient, value in zip(gradients, answer, strict=True)]
        return [value.detach() for value in (*answer, *torch.autograd.grad(answer, leaves, grad_outputs))]

    ours, again, third = (results(layer, x) for _ in range(3))  # the second call takes another way than the first
    if not all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(ours, again, third, strict=True)):
        raise RuntimeError(f"{shape}: results do not repeat bit for bit")
    double = plmu.ParallelLMU(**options, algorithm="chunked").cuda().double()
    double.load_state_dict(layer.state_dict())
    with torch.no_grad():
        right = double(x.double())[0]
    if not (ours[0].double() - right).norm() <= BOUNDS[torch.bfloat16] * right.norm():
        raise RuntimeError(f"{shape}: the output with {activation} is wrong")
    if activation == "relu":
        double.f2 = lambda total: torch.where(ours[0] > 0, total, 0.0)
    exact = results(double, x.double())
    names = ["output", "final state", "gradient of x", *(f"gradient of {name}" for name, _ in layer.named_parameters())]
    relative = {}
    for name, value, right in zip(names, ours, exact, strict=True):
        relative[name] = float((value.double() - right).norm() / right.norm())
        bound = BOUNDS[torch.bfloat16 if name != "final state" or layer.encoder is not None else torch.float32]
        if not relative[name] <= bound:
            raise RuntimeError(f"{shape}: {name} is wrong by {relative[name]:.1e}, above {bound:.1e}")
    return relative
