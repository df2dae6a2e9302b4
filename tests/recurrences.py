"""Every layer as a plain recurrence in float64, one sequence and one step at a time, from its weights and the equations
alone: what random stacks are compared with."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import plmu

Step = Callable[[Tensor], Tensor]
F64 = torch.float64


def delay_network(order: int, theta: float, interval: float = 1.0) -> tuple[Tensor, Tensor]:
    """Ā and B̄ by equations 8 and 9 and the zero-order hold."""
    both = torch.zeros(order + 1, order + 1, dtype=F64)
    for i in range(order):
        for j in range(order):
            both[i, j] = (2 * i + 1) / theta * (-1.0 if i < j else (-1.0) ** (i - j + 1))
        both[i, order] = (2 * i + 1) / theta * (-1.0) ** i
    exponential = exponential_of(both * interval)
    return exponential[:order, :order], exponential[:order, order]


def exponential_of(matrix: Tensor) -> Tensor:
    """The matrix exponential by its series, scaled and squared: torch's is off by 3e-11 for small matrices."""
    halvings = max(0, math.ceil(math.log2(max(float(torch.linalg.matrix_norm(matrix)), 1e-300))) + 1)
    small = matrix / 2**halvings
    total = term = torch.eye(len(matrix), dtype=F64)
    for k in range(1, 22):
        term = term @ small / k
        total = total + term
    return torch.linalg.matrix_power(total, 2**halvings)


def memory(layer: Any) -> Step:
    """m (order, channels) after each u (channels,), for equal groups of channels with a θ each."""
    if layer.trainable == "system":
        systems = [(A.double(), B.double()) for A, B in zip(layer.A.detach(), layer.B.detach(), strict=True)]
    else:
        systems = [delay_network(layer.order, theta) for theta in layer.thetas()]
    m = torch.zeros(layer.order, layer.width, dtype=F64)

    def step(u: Tensor) -> Tensor:
        nonlocal m
        columns = []
        for channel in range(layer.width):
            A, B = systems[channel * len(systems) // layer.width]
            columns.append(A @ m[:, channel] + B * u[channel])
        m = torch.stack(columns, dim=1)
        return m

    return step


def parallel(layer: plmu.ParallelLMU) -> Step:
    advance = memory(layer.memory)

    def step(x: Tensor) -> Tensor:
        u = x if layer.encoder is None else layer.encoder(x)
        u = u if layer.f1 is None else layer.f1(u)
        if layer.gate is not None:
            gate = torch.sigmoid(layer.gate(x))
            u = gate * u + (1 - gate) * x
        m = advance(u)
        if layer.standardize is not None:
            m = (m - layer.standardize.mean) / layer.standardize.std
        out = torch.einsum("hoc,oc->h", layer.memory_weight, m)
        out = out if layer.input_weight is None else out + layer.input_weight @ x
        out = out if layer.bias is None else out + layer.bias
        return out if layer.f2 is None else layer.f2(out)

    return step


def original(layer: plmu.LMU) -> Step:
    cell = layer.cell
    advance, h, m = memory(cell.memory), torch.zeros(cell.hidden_size, dtype=F64), torch.zeros(1, dtype=F64)

    def step(x: Tensor) -> Tensor:
        nonlocal h, m
        u = cell.input_encoder @ x
        u = u if cell.encoder_bias is None else u + cell.encoder_bias
        u = u if cell.hidden_encoder is None else u + cell.hidden_encoder @ h
        u = u if cell.memory_encoder is None or m.dim() == 1 else u + cell.memory_encoder @ m.flatten()
        m = advance(u)
        total = cell.memory_weight @ m.flatten()
        total = total if cell.input_weight is None else total + cell.input_weight @ x
        total = total if cell.hidden_weight is None else total + cell.hidden_weight @ h
        h = cell.f(total if cell.bias is None else total + cell.bias)
        return h

    return step


def timed(layer: plmu.TimedDelayLayer) -> Step:
    m = torch.zeros(layer.order, layer.channels, dtype=F64)

    def step(x: Tensor) -> Tensor:
        nonlocal m
        A, B = delay_network(layer.order, layer.config["theta"], float(x[0]))
        m = A @ m + B[:, None] * x[1:]
        return m.flatten()

    return step


def shares(layer: plmu.nn.ThresholdShares) -> Step:
    past: list[Tensor] = []

    def step(x: Tensor) -> Tensor:
        past.append(x)
        steps = torch.stack(past)
        above = torch.where(steps[:, None].isnan(), math.nan, (steps[:, None] > layer.thresholds).double())
        place = (torch.arange(len(past), dtype=F64) + 0.5) * 2 / len(past) - 1
        rows = [torch.special.legendre_polynomial_p(place, k) for k in range(layer.positions + 1)]
        return torch.cat([(above * row[:, None, None]).mean(0).flatten() for row in rows])

    return step


def convolution(layer: plmu.CausalConvolution) -> Step:
    past = [torch.zeros(layer.channels, dtype=F64)] * layer.kernel_size

    def step(x: Tensor) -> Tensor:
        past.insert(0, x)
        return sum(weight * earlier for weight, earlier in zip(layer.weight, past, strict=False))

    return step


def attention(layer: plmu.CausalAttention) -> Step:
    past: list[tuple[Tensor, Tensor]] = []
    size = layer.width // layer.heads
    rates = 10_000.0 ** (-torch.arange(size // 2, dtype=F64) / (size // 2))

    def turned(x: Tensor, at: int) -> Tensor:
        first, second = x.chunk(2)
        cos, sin = (at * rates).cos(), (at * rates).sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos])

    def step(x: Tensor) -> Tensor:
        query, key, value = layer.inputs(x).chunk(3)
        past.append((key, value))
        window, heads = past[-layer.window :], []
        for part in (slice(head * size, (head + 1) * size) for head in range(layer.heads)):
            keys = torch.stack([turned(key[part], at) for at, (key, _) in enumerate(window)])
            weights = (keys @ turned(query[part], len(window) - 1) / math.sqrt(size)).softmax(0)
            heads.append(weights @ torch.stack([value[part] for _, value in window]))
        return layer.output(torch.cat(heads))

    return step


def highway(layer: plmu.Highway) -> Step:
    def step(x: Tensor) -> Tensor:
        transformed, gate = layer.both(x).chunk(2)
        gate = torch.sigmoid(gate)
        return gate * (transformed if layer.f is None else layer.f(transformed)) + (1 - gate) * x

    return step


def chain(modules: Any) -> Step:
    steps = [recurrence_of(module) for module in modules]

    def step(x: Tensor) -> Tensor:
        for inner in steps:
            x = inner(x)
        return x

    return step


def weighted(layer: plmu.WeightedStack) -> Step:
    steps, amounts = [recurrence_of(module) for module in layer.layers], layer.shares()

    def step(x: Tensor) -> Tensor:
        total = 0.0
        for inner, amount in zip(steps, amounts, strict=True):
            x = inner(x)
            total = total + amount * x
        return total

    return step


def filled(step: Step, missing: str) -> Step:
    last: Tensor | None = None

    def fill(x: Tensor) -> Tensor:
        nonlocal last
        last = torch.zeros_like(x) if last is None or missing == "zero" else last
        last = torch.where(x.isnan(), last, x)
        return step(last)

    return fill


def recurrence_of(module: nn.Module) -> Step:
    """A function from each sample of one sequence to the output, which keeps its state to itself."""
    kinds: dict[type, Callable[[Any], Step]] = {
        plmu.ParallelLMU: parallel,
        plmu.LMU: original,
        plmu.TimedDelayLayer: timed,
        plmu.nn.ThresholdShares: shares,
        plmu.CausalConvolution: convolution,
        plmu.CausalAttention: attention,
        plmu.Highway: highway,
        plmu.WeightedStack: weighted,
        plmu.Sequential: lambda layer: chain(layer.layers),
        nn.Sequential: chain,
    }
    if type(module) in kinds:
        step = kinds[type(module)](module)
    elif isinstance(module, plmu.DelayLayer):
        advance = memory(module.memory)
        step = lambda u: advance(u).flatten()  # noqa: E731
    elif isinstance(module, plmu.TokenDelayLayer):
        advance = memory(module.memory)
        step = lambda token: advance(module.embedding(token)).flatten()  # noqa: E731
    elif isinstance(module, plmu.Residual):
        inner = recurrence_of(module.module)
        step = lambda x: x + inner(x)  # noqa: E731
    elif isinstance(module, plmu.Gated):
        inner = recurrence_of(module.module)
        step = lambda x: module.gate(x) * inner(x)  # noqa: E731
    else:
        return lambda x: module(x[None])[0]
    missing = getattr(module, "missing", None)
    return filled(step, missing) if missing is not None else step


@torch.no_grad()
def outputs_of(model: nn.Module, x: Tensor, resets: Tensor | None = None) -> Tensor:
    """The outputs (time, out) of a float64 model for one sequence x (time, …), which a reset (time,) begins anew."""
    step, outputs = recurrence_of(model), []
    for t, x_t in enumerate(x):
        if resets is not None and resets[t]:
            step = recurrence_of(model)
        outputs.append(step(x_t))
    return torch.stack(outputs)
