"""Every layer in a small form, and what its tests compare."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import plmu
from plmu import LMU, DelayLayer, ParallelLMU, Residual, Sequential

INPUTS = 3
SYSTEM = plmu.LinearSystem([[0.9, 0.2], [-0.2, 0.9]], [1.0, 0.5])
MULTI = plmu.LinearSystem([[0.9, 0.2], [-0.2, 0.9]], [[1.0, 0.3, 0.1], [0.5, -1.0, 0.4]])
SMALL = {"order": 4, "theta": 7.0}


def _stack(**last: bool) -> Sequential:
    inner = Sequential(nn.LayerNorm(3), ParallelLMU(3, 5, **SMALL), nn.GELU(), nn.Linear(5, 3))
    return Sequential(nn.Linear(3, 3), Residual(inner), LMU(3, 2, **SMALL), DelayLayer(2, **SMALL, **last))


def _standardised(layer: ParallelLMU) -> ParallelLMU:
    """With constants that are not those of a new layer."""
    assert layer.standardize is not None
    layer.standardize.mean.fill_(0.3)  # as a fake or meta tensor may be filled too
    layer.standardize.std.uniform_(0.5, 1.5)
    return layer


# Each takes INPUTS features; `return_sequences=False` may be given to all but Residual.
LAYERS: dict[str, Callable[..., plmu.nn.Steppable]] = {
    "plain": lambda **o: ParallelLMU(3, 4, **SMALL, **o),
    "chunked": lambda **o: ParallelLMU(3, 4, **SMALL, memory_size=2, algorithm="chunked", **o),
    "gated": lambda **o: ParallelLMU(3, 4, **SMALL, gated=True, output_activation="tanh", **o),
    "no encoder": lambda **o: ParallelLMU(3, 4, **SMALL, encoder=False, **o),
    "bare": lambda **o: ParallelLMU(3, 4, **SMALL, input_to_output=False, bias=False, output_activation=None, **o),
    "several theta": lambda **o: ParallelLMU(3, 4, order=4, theta=[3.0, 9.0], memory_size=4, **o),
    "given system": lambda **o: ParallelLMU(3, 4, system=SYSTEM, memory_size=2, **o),
    "multi-input": lambda **o: ParallelLMU(3, 4, system=MULTI, encoder=False, **o),
    "trained theta": lambda **o: ParallelLMU(3, 4, order=4, theta=[3.0, 9.0], memory_size=2, trainable="theta", **o),
    "trained system": lambda **o: ParallelLMU(3, 4, **SMALL, trainable="system", **o),
    "standardised": lambda **o: _standardised(ParallelLMU(3, 4, **SMALL, memory_size=2, standardize=True, **o)),
    "encoder after": lambda **o: _standardised(ParallelLMU(3, 4, **SMALL, memory_size=5, standardize=True, **o)),
    "delay": lambda **o: DelayLayer(3, **SMALL, **o),
    "delay, multi-input": lambda **o: DelayLayer(3, system=MULTI, trainable="system", **o),
    "original": lambda **o: LMU(3, 4, **SMALL, memory_size=2, bias=True, **o),
    "original, trained": lambda **o: LMU(3, 4, **SMALL, trainable="theta", **o),
    "stack": _stack,
    "residual": lambda: Residual(ParallelLMU(3, 3, **SMALL)),
    "residual of steps": lambda: Residual(nn.Linear(3, 3)),
}


def build(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> plmu.nn.Steppable:
    """The layer with no weight at zero, where a forgotten connection would not show."""
    torch.manual_seed(1)
    layer = LAYERS[name](**options)
    with torch.no_grad():
        for key, value in layer.named_parameters():
            if ".memory." not in f".{key}":
                value.add_(0.1 * torch.randn_like(value))
    return layer.to(dtype)


def assert_same(actual: Any, expected: Any, terms: int = 1000) -> None:
    """Equal up to `terms` roundings at the size of the largest value, or of the inputs (about 1); states part by part.

    An output sums at most 40 steps · 4 orders · 4 channels products, and a gradient as many again.
    """
    if expected is None or actual is None:
        assert actual is expected
    elif isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, terms)
    else:
        assert actual.dtype == expected.dtype
        bound = terms * torch.finfo(actual.dtype).eps * max(expected.detach().abs().max().item(), 1.0)
        torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


def pick(state: Any, index: Any) -> Any:
    """The state of some of the sequences of a batch."""
    if state is None:
        return None
    return state[index] if isinstance(state, Tensor) else tuple(pick(part, index) for part in state)


def random_state(layer: plmu.nn.Steppable, batch: int, dtype: torch.dtype = torch.float64) -> Any:
    def fill(part: Any) -> Any:
        if part is None:
            return None
        return torch.randn_like(part) if isinstance(part, Tensor) else tuple(map(fill, part))

    return fill(layer.initial_state(batch, dtype, torch.device("cpu")))


def flat(state: Any) -> list[Tensor]:
    if state is None:
        return []
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in flat(part)]


def assert_equal(one: Any, other: Any) -> None:
    assert all(torch.equal(a, b) for a, b in zip(flat(one), flat(other), strict=True))
