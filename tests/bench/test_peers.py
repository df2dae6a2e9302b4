"""The layers that ours is compared with: as wide as the parameters allow, and right by their plain definitions."""

import json
import math
from pathlib import Path

import pytest
import torch
from closeness import within
from torch import Tensor

import plmu
from benchmarks import layers
from benchmarks.layers import LAYERS
from plmu.bench import peers, whole_layers
from plmu.bench.problems import GPU_SHAPES, Shape

SHAPE = Shape(2, 20, 8, 8, 16, 5.0)
COMPARISONS = [(shape, budget) for shape in GPU_SHAPES for budget in whole_layers.budgets(shape)]
COMPARISONS += [(SHAPE, budget) for budget in whole_layers.budgets(SHAPE)]
WRITTEN = json.loads((Path(__file__).parents[2] / "results" / "bench-layers-cuda.json").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("installed")
def test_widths_and_parameters_are_those_of_the_committed_results() -> None:
    shapes = {str(shape): shape for shape in GPU_SHAPES}
    for row in WRITTEN["whole layers"]:
        for kind in peers.LAYERS[row["layer"]]:
            with torch.device("meta"):
                layer = kind(shapes[row["shape"]], row["budget"])
            assert (row["width"], row["parameters"]) == (layer.width, layer.parameter_count()), row["layer"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("shape", "budget"), COMPARISONS, ids=str)
def test_parameters_match(shape: Shape, budget: int) -> None:
    """Within 5 % of each other, at orders 16 and 32 too, and at the sizes that the names say."""
    with torch.device("meta"):
        made = {kind: kind(shape, budget) for kinds in peers.LAYERS.values() for kind in kinds}
    counts = [layer.parameter_count() for layer in made.values()]
    assert max(counts) <= (1 + whole_layers.CLOSE) * min(counts) or shape is SHAPE
    ours, attention, mamba, lstm = (
        made[kind] for kind in (peers.DelayProjection, peers.Attention, layers.Mamba2ByItsAuthors, peers.LSTM)
    )
    all_channels = shape.order * shape.channels * shape.out
    assert (ours.parameter_count() == all_channels) == (budget == all_channels)
    assert attention.qkv.weight.numel() + attention.o.weight.numel() == attention.parameter_count()
    assert attention.width == f"{attention.inner // attention.head} × {attention.head}"
    assert f"expand {mamba.inner / shape.channels:.3g}" in mamba.width
    units = lstm.lstm.hidden_size
    assert lstm.width == f"{units} units"
    assert lstm.parameter_count() == 4 * units * (units + shape.channels) + 8 * units


@pytest.mark.usefixtures("installed")
def test_widths_of_small_layers() -> None:
    """Heads no wider than the input; below 512 channels in steps of 1 channel and 4 units, from there of 8 and 32."""
    made = {kind.__name__: kind(SHAPE, 256).width for kinds in peers.LAYERS.values() for kind in kinds}
    assert made == {
        "DelayProjection": "order 16 on 2 channels, after an encoder 8→2",
        "LinearAttention": "1 × 8",
        "Attention": "1 × 8",
        "Mamba2ByItsAuthors": "1 × 8, expand 1, state 8",
        "Mamba2ByFLA": "1 × 8, expand 1, state 8",
        "LSTM": "4 units",
    }
    with torch.device("meta"):
        for channels, ours, units in ((511, 100, 324), (512, 96, 320)):
            shape = Shape(1, 1, channels, 512, 16, 5.0)
            assert peers.DelayProjection(shape, 870_000).layer.config["memory_size"] == ours
            assert peers.LSTM(shape, 1_090_000).lstm.hidden_size == units


@pytest.mark.parametrize(
    ("value", "multiple", "nearest"),
    [(0.2, 1, 1), (0.2, 8, 8), (11.9, 8, 8), (12.1, 8, 16), (2.6, 1, 3), (-3.0, 4, 4)],
)
def test_the_nearest_multiple_is_no_smaller_than_one(value: float, multiple: int, nearest: int) -> None:
    assert peers.nearest(value, multiple) == nearest


def test_ours_is_the_delay_network_and_its_weight_alone() -> None:
    wide, narrow = peers.DelayProjection(SHAPE, 16 * 8 * 8), peers.DelayProjection(SHAPE, 16 * 8 * 8 - 1)
    assert [tuple(one.shape) for one in wide.parameters()] == [(8, 16, 8)]
    assert sorted(tuple(one.shape) for one in narrow.parameters()) == [(8, 8), (8, 16, 8)]
    assert wide.layer.config["theta"] == 5.0
    x = torch.randn(1, 6, 8)
    with torch.no_grad():
        assert torch.equal(wide(2 * x), 2 * wide(x)), "linear, without a bias"
    assert wide.source == f"plmu {plmu.__version__}"


def test_mamba_starts_as_its_authors_have_it() -> None:
    """Steps from 0.001 to 0.1, uniform in their logarithm, and rates from 1 to 16."""
    layer = layers.Mamba2(Shape(1, 1, 8, 8, 4, 5.0), 200_000)
    assert layer.heads > 500
    steps, rates = torch.nn.functional.softplus(layer.step_bias.detach()), layer.rate_log.detach().exp()
    for values, low, high in ((steps.log(), math.log(1e-3), math.log(0.1)), (rates, 1.0, 16.0)):
        span = high - low
        within(abs(float(values.min()) - low), 0.05 * span)
        within(abs(float(values.max()) - high), 0.05 * span)
        deviation = span / math.sqrt(12 * layer.heads)
        within(abs(float(values.mean()) - (low + high) / 2), 6 * deviation)
    assert layer.skip.unique().tolist() == [1.0]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", [kind for kinds in LAYERS.values() for kind in kinds], ids=lambda kind: kind.__name__)
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


def test_errors_are_of_the_first_sequence_in_the_batch_that_is_timed() -> None:
    seen: list[tuple[int, ...]] = []

    class Noted(peers.Attention):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(tuple(x.shape))
            out = super().forward(x)
            return torch.cat([out[:1], 7 * out[1:]])  # wrong, but in the others

        def plain(self, x: Tensor) -> Tensor:
            seen.append((*x.shape, x.dtype))
            return super().plain(x)

    layer = Noted(SHAPE, 256)
    found = peers.errors(layer, torch.randn(3, 20, 8, requires_grad=True))
    assert seen == [(3, 20, 8), (1, 20, 8, torch.float64)]
    for error in found.values():
        within(error, 1e-5)
    assert layer.qkv.weight.dtype == torch.float32, "the layer stays as it is"


def test_a_wrong_gradient_is_found() -> None:
    class Wrong(peers.Attention):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.detach()) + 0 * x.sum()

    found = peers.errors(Wrong(SHAPE, 256), torch.randn(2, 20, 8, requires_grad=True))
    within(found["output"], 1e-5)
    assert found["gradient of x"] > 0.9
    assert found["gradient of the weights"] < 1e-5


def test_several_tensors_have_one_relative_error() -> None:
    exact = [torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])]
    assert peers._relative_error([exact[0], exact[1] + 1], exact) == pytest.approx(math.sqrt(2) / 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_weights_of_the_lstm_lie_in_one_piece_after_a_cast(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch does so by itself, but for bfloat16, which its list of cuDNN's types does not hold."""
    known, done = torch.backends.cudnn.CUDNN_TENSOR_DTYPES, []
    before, flatten = set(known), torch.nn.LSTM.flatten_parameters

    def noted(self: torch.nn.LSTM) -> None:
        done.append((self.weight_ih_l0.dtype, dtype in known))
        flatten(self)

    layer = peers.LSTM(SHAPE, 256)
    monkeypatch.setattr(torch.nn.LSTM, "flatten_parameters", noted)
    assert layer.to("cpu", dtype) is layer
    assert done[-1] == (dtype, True)
    assert known == before

    def fail(self: torch.nn.LSTM) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(torch.nn.LSTM, "_apply", lambda self, *given: self)
    monkeypatch.setattr(torch.nn.LSTM, "flatten_parameters", fail)
    with pytest.raises(RuntimeError, match="no"):
        layer.float()
    assert known == before
