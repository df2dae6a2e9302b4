"""Whole layers are compared at matching parameter counts, and each one's answer is checked before it is timed."""

import math
import sys
from types import ModuleType

import pytest
import torch
from closeness import within
from torch import Tensor

from plmu.bench import peers, whole_layers
from plmu.bench.problems import GPU_SHAPES, Shape

SHAPE = Shape(2, 20, 8, 8, 16, 5.0)
COMPARISONS = [(shape, budget) for shape in GPU_SHAPES for budget in whole_layers.budgets(shape)]
COMPARISONS += [(SHAPE, budget) for budget in whole_layers.budgets(SHAPE)]


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
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
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
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fla", "fla.ops", "fla.ops.linear_attn", "mamba_ssm", "mamba_ssm.ops"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("shape", "budget"), COMPARISONS, ids=str)
def test_parameters_match(shape: Shape, budget: int) -> None:
    """Within 5 % of each other, at orders 16 and 32 too, and at the sizes that the names say."""
    with torch.device("meta"):
        made = {kind: kind(shape, budget) for kinds in peers.LAYERS.values() for kind in kinds}
    counts = [layer.parameter_count() for layer in made.values()]
    assert max(counts) <= (1 + whole_layers.CLOSE) * min(counts) or shape is SHAPE
    ours, attention, mamba, lstm = (
        made[kind] for kind in (peers.Ours, peers.Attention, peers.Mamba2ByItsAuthors, peers.LSTM)
    )
    all_channels = shape.order * shape.channels * shape.out
    assert (ours.parameter_count() == all_channels) == (budget == all_channels)
    assert attention.qkv.weight.numel() + attention.o.weight.numel() == attention.parameter_count()
    assert attention.width == f"{attention.inner // attention.head} × {attention.head}"
    assert f"expand {mamba.inner / shape.channels:.3g}" in mamba.width
    units = lstm.lstm.hidden_size
    assert lstm.width == f"{units} units"
    assert lstm.parameter_count() == 4 * units * (units + shape.channels) + 8 * units


def test_orders_16_and_32_have_two_comparisons() -> None:
    found = {shape.order: [] for shape in GPU_SHAPES}
    for shape in GPU_SHAPES:
        found[shape.order].append(whole_layers.budgets(shape))
    assert found[4] == [[1 << 20], [1 << 22]]
    assert found[16] == [[1 << 20, 1 << 22]]
    assert found[32] == [[1 << 20, 1 << 23]]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "kind", [kind for kinds in peers.LAYERS.values() for kind in kinds], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("budget", whole_layers.budgets(SHAPE))
def test_the_fast_form_and_the_plain_one_agree(kind: type[peers.Layer], budget: int) -> None:
    torch.manual_seed(0)
    layer, x = kind(SHAPE, budget), torch.randn(2, 20, 8, requires_grad=True)
    within(max(peers.errors(layer, x).values()), 1e-5)
    other = x.detach().clone()
    other[:, 12:] += 1
    with torch.no_grad():
        plain = layer.plain(x)
        torch.testing.assert_close(layer.plain(other)[:, :12], plain[:, :12])  # the future has no influence
    assert (layer.plain(other)[:, 12:] - plain[:, 12:]).norm() > 0.1


@pytest.mark.usefixtures("installed")
def test_every_layer_has_a_row() -> None:
    rows = whole_layers.compared(SHAPE, 16 * 8 * 8, torch.float32, "cpu", 1)
    assert [row["layer"] for row in rows] == ["ours", "linear attention", "causal attention", "Mamba-2", "LSTM"]
    assert [row["source"].split()[0] for row in rows[:3]] == ["plmu", "fla", "torch"]
    sources = rows[3]["milliseconds by source"]
    assert set(sources) == {"mamba_ssm 1.2", "fla 1.2"}
    assert rows[3]["source"] == min(sources, key=sources.get), "the fastest implementation"
    for row in rows:
        assert (row["shape"], row["order"], row["time"], row["budget"]) == (str(SHAPE), 16, 20, 1024)
        assert row["milliseconds forward"] > 0
        assert row["milliseconds forward and backward"] > 0
        assert row["matched"] == (abs(row["parameters"] / 1024 - 1) <= 0.05)
        assert (row["times ours"] == 1) == (row["layer"] == "ours")
        assert math.isfinite(row["times ours"])
        assert set(row["error"]) == {"output", "gradient of x", "gradient of the weights"}


@pytest.mark.usefixtures("missing")
def test_what_is_not_installed_is_said() -> None:
    rows = {row["layer"]: row for row in whole_layers.compared(SHAPE, 256, torch.float32, "cpu", 1)}
    for name in ("linear attention", "Mamba-2"):
        assert "ModuleNotFoundError: " in rows[name]["skipped"]
        assert "parameters" not in rows[name]
    assert rows["causal attention"]["times ours"] > 0


@pytest.mark.usefixtures("installed")
def test_a_wrong_or_failing_layer_is_not_timed_and_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **options: object) -> Tensor:
        raise RuntimeError("out of shared memory")

    monkeypatch.setattr(sys.modules["mamba_ssm.ops.triton.ssd_combined"], "mamba_chunk_scan_combined", fail)
    right = peers.Attention.plain
    monkeypatch.setattr(peers.Attention, "plain", lambda self, x: 1.01 * right(self, x))
    rows = {row["layer"]: row for row in whole_layers.compared(SHAPE, 256, torch.float32, "cpu", 1)}
    reason = "Attention: RuntimeError: wrong answer, relative error of output 9.9e-03"
    assert rows["causal attention"]["skipped"].startswith(reason)
    assert "milliseconds forward" not in rows["causal attention"]
    assert rows["Mamba-2"]["source"] == "fla 1.2", "the other kernels that there are"
    assert rows["Mamba-2"]["skipped"] == "Mamba2ByItsAuthors: RuntimeError: out of shared memory"


def test_a_wrong_gradient_is_found() -> None:
    class Wrong(peers.Attention):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.detach()) + 0 * x.sum()

    found = peers.errors(Wrong(SHAPE, 256), torch.randn(2, 20, 8, requires_grad=True))
    within(found["output"], 1e-5)
    assert found["gradient of x"] > 0.9
