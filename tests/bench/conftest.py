"""For the tests of benchmarks: other libraries' kernels by their definitions."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from benchmarks import layers
from plmu.bench import peers


def linear_attention(q: Tensor, k: Tensor, v: Tensor, normalize: bool) -> tuple[Tensor, None]:
    assert not normalize
    return gated_linear_attention(q, k, v, q.new_zeros(q.shape[:3]), q.shape[3] ** -0.5)


def gated_linear_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float) -> tuple[Tensor, None]:
    """Step by step: S = exp(g) S + k vᵀ, o = scale · qᵀ S."""
    S, outs = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[3]), []
    for t in range(q.shape[1]):
        S = g[:, t, :, None, None].exp() * S + k[:, t, :, :, None] * v[:, t, :, None, :]
        outs.append(scale * (q[:, t, :, None, :] @ S).squeeze(2))
    return torch.stack(outs, dim=1), None


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int, **given: Tensor) -> Tensor:
    assert given["dt_softplus"]
    assert chunk == 256
    step = torch.nn.functional.softplus(dt + given["dt_bias"])
    B, C = (one.expand(-1, -1, x.shape[2], -1) for one in (B, C))
    out = gated_linear_attention(C, B, step[..., None] * x, step * A, 1.0)[0]
    return (out + given["D"][:, None] * x) * torch.nn.functional.silu(given["z"])


@pytest.fixture
def all_layers() -> Iterator[None]:
    """`plmu bench layers` with the layers of other libraries."""
    before = dict(peers.LAYERS)
    layers.add_layers()
    yield
    peers.LAYERS.clear()
    peers.LAYERS.update(before)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, all_layers: None) -> None:
    """flash-linear-attention and mamba-ssm, by their definitions, step by step."""
    modules = {
        "fla.ops.linear_attn": {"chunk_linear_attn": linear_attention},
        "fla.ops.simple_gla": {"chunk_simple_gla": gated_linear_attention},
        "mamba_ssm.ops.triton.ssd_combined": {"mamba_chunk_scan_combined": scan},
    }
    for path, functions in modules.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            module = sys.modules.get(".".join(parts[:end])) or ModuleType(".".join(parts[:end]))
            module.__version__, module.__path__ = "1.2", []
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), module)
        for name, function in functions.items():
            monkeypatch.setattr(sys.modules[path], name, function, raising=False)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, all_layers: None) -> None:
    for name in ("fla", "fla.ops", "fla.ops.linear_attn", "mamba_ssm", "mamba_ssm.ops"):
        monkeypatch.setitem(sys.modules, name, None)
