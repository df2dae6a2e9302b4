"""Standardised memories: what they compute, where their constants come from, and noise and dropout on them."""

import copy
import math
import pickle

import pytest
import torch
from closeness import within
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plmu
from plmu.nn import encoder_after


def _layer(**options) -> plmu.ParallelLMU:
    torch.manual_seed(0)
    layer = plmu.ParallelLMU(2, 5, order=4, theta=9.0, memory_size=3, standardize=True, **options).double()
    nn.init.normal_(layer.bias) if layer.bias is not None else None
    return layer


def _states(layer: plmu.ParallelLMU, x: torch.Tensor) -> torch.Tensor:
    """m (batch, time, order, channels), by the recurrence."""
    system = plmu.DelayNetwork(layer.memory.order, layer.memory.thetas()[0]).discretize()
    return plmu.states(layer._encode(x), system, algorithm="recurrent")[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sequences", [True, False])
def test_the_output_is_equation_20_on_the_standardised_memory(bias, sequences):
    layer = _layer(bias=bias, return_sequences=sequences, output_activation="tanh")
    mean, std = torch.randn(4, 3, dtype=torch.float64), 0.5 + torch.rand(4, 3, dtype=torch.float64)
    layer.standardize.set(mean, std)
    x = torch.randn(6, 30, 2, dtype=torch.float64)
    z = (_states(layer, x) - mean) / std
    expected = z.flatten(2) @ layer.memory_weight.flatten(1).mT + x @ layer.input_weight.mT
    expected = torch.tanh(expected if layer.bias is None else expected + layer.bias)
    torch.testing.assert_close(layer(x)[0], expected if sequences else expected[:, -1])


@pytest.mark.parametrize("theta", [50.0, 5000.0])
def test_a_new_layer_assumes_white_noise(theta):
    """The memory's share of the output does not fade with θ. The reference is a simulation by the impulse response."""
    layer = plmu.ParallelLMU(1, 3, order=6, theta=theta, standardize=True)
    response = plmu.DelayNetwork(6, theta).discretize().impulse_response(int(20 * theta))
    torch.testing.assert_close(layer.standardize.std[:, 0].double(), response.square().sum(1).sqrt(), rtol=1e-5, atol=0)
    assert not layer.standardize.mean.any()
    first = float(layer.standardize.std[0, 0])
    assert first == pytest.approx(1 / math.sqrt(theta), rel=0.05)  # √((2i + 1) / θ) for i = 0


def test_a_memory_that_does_not_forget_has_no_white_noise_default():
    layer = plmu.ParallelLMU(1, 3, system=plmu.LinearSystem([[1.0]], [1.0]), standardize=True)
    assert layer.standardize.std.tolist() == [[1.0]]


def test_numbers_beyond_float64_end_the_white_noise_default():
    system = plmu.LinearSystem([[0.5, 0.0], [0.0, 0.25]], [1e200, 0.0])
    assert plmu.ParallelLMU(1, 3, system=system, standardize=True).standardize.std.tolist() == [[1.0], [1.0]]


def test_each_theta_has_a_scale_of_its_own():
    layer = plmu.ParallelLMU(1, 3, order=2, theta=[10.0, 1000.0], memory_size=4, standardize=True)
    alone = [plmu.ParallelLMU(1, 3, order=2, theta=one, standardize=True).standardize.std for one in (10.0, 1000.0)]
    assert torch.equal(layer.standardize.std, torch.cat([alone[0], alone[0], alone[1], alone[1]], dim=1))


@pytest.mark.parametrize("sequences", [True, False])
def test_constants_are_measured_on_a_batch_a_list_and_a_loader(sequences):
    x, y = torch.randn(20, 30, 2, dtype=torch.float64), torch.zeros(20)
    layer = _layer(return_sequences=sequences)
    m = _states(layer, x)
    m = m.flatten(0, 1) if sequences else m[:, -1]
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    for data in (x, [x[:3], x[3:]], iter([x[:3], x[3:]]), loader):
        layer.reset_parameters()
        with torch.no_grad():
            nn.init.ones_(layer.encoder.weight)
        m = _states(layer, x)
        m = m.flatten(0, 1) if sequences else m[:, -1]
        layer.train()
        plmu.standardize(layer, data)
        assert layer.training
        torch.testing.assert_close(layer.standardize.mean, m.mean(0))
        torch.testing.assert_close(layer.standardize.std, m.std(0, correction=0))


def test_padding_is_not_measured():
    layer = _layer()
    model = plmu.Sequential(layer, plmu.Standardize(5)).double()
    x, lengths = torch.randn(4, 30, 2, dtype=torch.float64), torch.tensor([30, 7, 0, 19])
    valid = torch.arange(30) < lengths[:, None]
    plmu.standardize(model, [x], lambda model, batch: model(batch, lengths=lengths))
    m = _states(layer, x)[valid]
    torch.testing.assert_close(layer.standardize.mean, m.mean(0))
    torch.testing.assert_close(layer.standardize.std, m.std(0, correction=0))
    out = layer(x)[0][valid]
    torch.testing.assert_close(model.layers[1].mean, out.mean(0))
    torch.testing.assert_close(model(x, lengths=lengths)[0][valid].std(0, correction=0), torch.ones(5).double())


@pytest.mark.parametrize("batches", [1, 3])
def test_later_layers_see_the_earlier_ones_standardised(batches):
    torch.manual_seed(0)
    first, second = _layer(), plmu.ParallelLMU(5, 4, order=3, theta=5.0, standardize=True).double()
    model = plmu.Sequential(first, nn.Dropout(0.5), second)
    x = 3 + torch.randn(12, 40, 2, dtype=torch.float64)
    plmu.standardize(model, list(x.chunk(batches)))
    m = _states(second, first(x)[0]).flatten(0, 1)
    torch.testing.assert_close(second.standardize.mean, m.mean(0))
    torch.testing.assert_close(second.standardize.std, m.std(0, correction=0))


def test_what_cannot_be_measured_is_refused():
    layer = _layer()
    before = layer.standardize.std.clone()
    with pytest.raises(ValueError, match=r"no plmu\.Standardize"):
        plmu.standardize(nn.Linear(2, 2), torch.randn(3, 2))
    with pytest.raises(ValueError, match="data has no batches"):
        plmu.standardize(layer, [])
    with pytest.raises(ValueError, match="no data reached standardize when the model ran"):
        plmu.standardize(layer, torch.randn(2, 5, 2).double(), lambda model, batch: None)
    with pytest.raises(ValueError, match="data must be finite"):
        plmu.standardize(layer, torch.full((2, 5, 2), float("nan")).double())
    assert torch.equal(layer.standardize.std, before)
    assert not layer.standardize.measuring
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="std must be finite numbers above 0"):
            layer.standardize.set(0.0, wrong)
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 3\), got \(2, 4\)"):
        plmu.Standardize(3)(torch.randn(2, 4))


def test_constant_features_are_not_divided_by_zero():
    layer = plmu.Standardize(3)
    x = torch.randn(50, 3)
    x[:, 1] = 4.0
    plmu.standardize(layer, x)
    assert layer.std[1] == 1.0
    assert not layer(x)[:, 1].any()


@pytest.mark.parametrize("sequences", [True, False])
def test_noise_and_dropout_act_on_the_memory_in_training_alone(sequences):
    quiet, noisy = (
        _layer(return_sequences=sequences, output_activation=None, **options)
        for options in ({}, {"memory_noise": 0.7, "memory_dropout": 0.25})
    )
    noisy.load_state_dict(quiet.state_dict())
    x = torch.randn(4, 20, 2, dtype=torch.float64)
    assert torch.equal(noisy.eval()(x)[0], quiet.eval()(x)[0])
    noisy.train()
    one, other = noisy(x), noisy(x)
    assert not torch.equal(one[0], other[0])
    torch.testing.assert_close(one[1], quiet(x)[1])  # the state itself stays clean
    # z → mask (z + 0.7 ε) / 0.75: mean W z, variance of each output the sum of w² ((z² + 0.49) / 0.75 − z²).
    z = (quiet.standardize(_states(quiet, x)[:, -1])).flatten(1)
    variance = (z.square() + 0.49) / 0.75 - z.square()
    weight = quiet.memory_weight.flatten(1)
    expected = quiet.train()(x)[0]
    expected = expected[:, -1] if sequences else expected
    drawn = torch.stack([noisy(x)[0] for _ in range(600)])
    drawn = drawn[:, :, -1] if sequences else drawn
    deviation = (variance @ weight.square().mT / 600).sqrt()
    assert ((drawn.mean(0) - expected).abs() / deviation).max() < 5.5
    assert (drawn.var(0) / (600 * deviation.square()) - 1).abs().max() < 0.4  # 600 draws: ± 0.06


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_noise": 0.5}, "memory_noise=0.5 is relative to the standardised memory: it needs standardize=True"),
        ({"memory_noise": -1.0, "standardize": True}, "memory_noise must be a number of at least 0, got -1.0"),
        ({"memory_dropout": 1.0}, "memory_dropout must be a number of at least 0 and below 1, got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        plmu.ParallelLMU(2, 3, order=4, theta=9.0, **options)


def test_constants_are_saved_and_stay_wide(tmp_path):
    layer = _layer(memory_noise=0.1, memory_dropout=0.2).float()
    plmu.standardize(layer, torch.randn(8, 30, 2))
    plmu.save(layer, tmp_path / "layer.plmu")
    loaded = plmu.load(tmp_path / "layer.plmu")
    assert torch.equal(loaded.standardize.std, layer.standardize.std)
    assert loaded.memory_noise == 0.1
    assert loaded.memory_dropout == 0.2
    half = layer.bfloat16()
    assert half.standardize.std.dtype == torch.float32
    assert torch.equal(half.standardize.std, loaded.standardize.std)
    assert half(torch.randn(2, 5, 2, dtype=torch.bfloat16))[0].isfinite().all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lengths", [None, torch.tensor([40, 13, 0, 1])])
@pytest.mark.parametrize(("inputs", "memory"), [(1, 1), (1, 4), (2, 5)])
@pytest.mark.parametrize("sequences", [True, False])
def test_the_encoder_after_the_memory_is_the_same_function(inputs, memory, lengths, bias, sequences, monkeypatch):
    """Values and gradients are those of the encoder before it, which a state given as zeros asks for."""
    monkeypatch.setattr("plmu.nn.encoder_after._saves", lambda *sizes: True)
    torch.manual_seed(0)
    layer = plmu.ParallelLMU(
        inputs, 7, 5, 9.0, memory_size=memory, bias=bias, standardize=True, return_sequences=sequences
    ).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(4, 40, inputs, dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(4, 5, memory, dtype=torch.float64)
    found = []
    for state in (None, zeros):
        results = layer(x, state, lengths)
        found.append((*results, *torch.autograd.grad(sum(r.square().sum() for r in results), [x, *layer.parameters()])))
    for after, before in zip(*found, strict=True):
        torch.testing.assert_close(after, before)


def test_the_memory_of_few_inputs_runs_on_the_inputs(monkeypatch):
    """And on the encoded input where the encoder is not linear, is hooked, or would make fewer channels."""
    monkeypatch.setattr("plmu.nn.encoder_after._saves", lambda *sizes: True)
    widths = []
    layers = {
        1: plmu.ParallelLMU(1, 7, 5, 9.0, memory_size=4),
        4: plmu.ParallelLMU(1, 7, 5, 9.0, memory_size=4, input_activation="tanh"),
        2: plmu.ParallelLMU(3, 7, 5, 9.0, memory_size=2),
        5: plmu.ParallelLMU(3, 7, 5, 9.0, memory_size=5),
        6: plmu.ParallelLMU(3, 7, 5, 9.0, memory_size=6, trainable="theta"),
    }
    layers[5].encoder.register_forward_hook(lambda *_: None)
    for channels, layer in layers.items():
        inner = layer.memory.output
        monkeypatch.setattr(
            layer.memory, "output", lambda u, *rest, inner=inner: widths.append(u.shape[2]) or inner(u, *rest)
        )
        monkeypatch.setattr(layer, "_why_not_stored", lambda *_: "for this test")
        layer(torch.randn(2, 30, layer.input_size))
        assert widths.pop() == channels


def test_a_linear_layer_takes_the_constants_in_when_folded():
    layer = plmu.Standardize(3)
    layer.set(torch.randn(3), 0.5 + torch.rand(3))
    model = plmu.Sequential(plmu.DelayLayer(3, order=1, theta=5.0), layer, nn.Linear(3, 2)).double()
    folded = plmu.fold(model)
    assert sorted(folded.arrays()) == ["0.matrix", "1.bias", "1.weight"]
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(folded.step(x)[0], model.step(x)[0])
    alone = plmu.fold(plmu.Sequential(plmu.DelayLayer(3, order=1, theta=5.0), layer.bfloat16()))
    assert sorted(alone.arrays()) == ["0.matrix", "1.offset", "1.scale"]
    assert alone.step(x.bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_in_half_precision_the_mean_is_taken_off_before_rounding(dtype):
    """For the last output and for steps (m − μ) / σ has all its digits, though m, far from zero, would lose them."""
    torch.manual_seed(0)
    options = {"standardize": True, "output_activation": None, "input_to_output": False, "return_sequences": False}
    layer = plmu.ParallelLMU(1, 8, 4, 20.0, **options)
    x = (3 + 0.05 * torch.randn(16, 100, 1)).to(dtype)
    plmu.standardize(layer, x.float())
    exact = layer(x.float())[0]
    half = copy.deepcopy(layer).to(dtype)
    state = None
    for t in range(100):
        stepped, state = half.step(x[:, t], state)
    size = float((layer.memory_weight.abs().sum((1, 2)) * half.standardize(state).abs().max() + 1).max())
    for out in (half(x)[0], stepped):
        within((out.float() - exact).abs().max(), 4 * torch.finfo(dtype).eps * size)


@pytest.mark.parametrize("around", [plmu.Residual, nn.Sequential, lambda one: one], ids=["Residual", "nn", "alone"])
def test_padding_is_not_measured_inside_other_modules(around):
    inner = plmu.Standardize(2)
    model = plmu.Sequential(around(inner))
    x, lengths = torch.randn(4, 50, 2) + 5, torch.tensor([5, 5, 2, 0])
    plmu.standardize(model, x, lambda model, batch: model(batch, lengths=lengths))
    valid = x[torch.arange(50) < lengths[:, None]]
    torch.testing.assert_close(inner.mean, valid.mean(0))
    torch.testing.assert_close(inner.std, valid.std(0, correction=0))


def test_a_failure_leaves_all_constants_as_they_were():
    class Once:
        def __init__(self, batches):
            self.left = iter(batches)

        def __iter__(self):
            return self.left

    model = plmu.Sequential(plmu.Standardize(2), nn.Linear(2, 3), plmu.Standardize(3))
    with pytest.raises(ValueError, match="data has no batches when it is passed over again, once for each layer"):
        plmu.standardize(model, Once([torch.randn(5, 4, 2)]))
    nn.init.constant_(model[1].weight, float("inf"))
    with pytest.raises(ValueError, match="data must be finite"):
        plmu.standardize(model, torch.randn(5, 4, 2))
    assert not model[0].mean.any()
    assert (model[0].std == 1).all()
    with pytest.raises(ValueError, match=r"no data reached layers\.2 when the model ran"):
        plmu.standardize(model, torch.randn(5, 4, 2), lambda model, x: model[0](x))
    for data in (None, {"x": torch.randn(5, 4, 2)}):
        with pytest.raises(TypeError, match="data must be a tensor or an iterable of batches, got"):
            plmu.standardize(model, data)
    with pytest.raises(ValueError, match="meta device"):
        plmu.standardize(plmu.Standardize(2).to("meta"), torch.randn(5, 2))


def test_constants_are_set_both_or_none():
    layer = plmu.Standardize(2)
    for mean, std in ((5.0, -1.0), (1e60, 1.0), (0.0, 1e-60)):
        with pytest.raises(ValueError, match="must be finite numbers"):
            layer.set(mean, std)
        assert not layer.mean.any()
    layer.set(torch.ones(2, requires_grad=True), 2.0)
    assert not copy.deepcopy(layer).mean.requires_grad
    with pytest.raises(TypeError, match=r"x must be floating point, got torch\.int64"):
        layer(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="dtype must be a floating-point"):
        plmu.Standardize(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="at least one axis"):
        plmu.Standardize([])
    with pytest.raises(ValueError, match=r"must be over the features alone, got \(5, 2\)"):
        plmu.Sequential(plmu.Standardize((5, 2)))
    hooked = plmu.Sequential(plmu.Standardize(2), plmu.DelayLayer(2, 2, 5.0))
    hooked[0].register_forward_hook(lambda module, given, out: 10 * out)
    x = torch.randn(3, 2)
    torch.testing.assert_close(plmu.fold(hooked).step(x)[0], hooked.step(x)[0])


def test_layers_pickled_before_they_had_these_options_run():
    layer = plmu.ParallelLMU(2, 3, 4, 9.0)
    old = copy.copy(layer.__dict__)
    for name in ("standardize", "memory_noise", "memory_dropout"):
        del old[name]
    other = plmu.ParallelLMU.__new__(plmu.ParallelLMU)
    other.__setstate__(old)
    x = torch.randn(2, 5, 2)
    assert torch.equal(other(x)[0], layer(x)[0])
    assert "standardize" not in repr(layer)


def test_an_encoder_with_hooks_of_any_kind_comes_first():
    layer = plmu.ParallelLMU(1, 3, 4, 9.0, memory_size=5)
    seen = []
    layer.encoder.register_full_backward_hook(lambda *_: seen.append(1))
    layer(torch.randn(2, 6, 1, requires_grad=True))[0].sum().backward()
    assert seen
    patched = plmu.ParallelLMU(1, 3, 4, 9.0, memory_size=5)
    usual = patched.encoder.forward
    patched.encoder.forward = lambda x: 2 * usual(x)
    x = torch.randn(2, 6, 1)
    state = None
    for t in range(6):
        out, state = patched.step(x[:, t], state)
    torch.testing.assert_close(patched(x)[0][:, -1], out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("layer", "batch", "time", "after"), [
    (plmu.ParallelLMU(1, 120, 236, 816.0, memory_size=4), 1, 3, False),
    (plmu.ParallelLMU(5, 52, 44, 265.0, memory_size=8), 1, 67, False),
    (plmu.ParallelLMU(1, 70, 3, 350.0, memory_size=122), 19, 370, True),
    (plmu.ParallelLMU(3, 127, 20, 530.0, memory_size=7), 8, 1604, True),
    (plmu.ParallelLMU(1, 120, 236, 816.0, memory_size=4, return_sequences=False), 1, 3, True),
])  # fmt: skip
def test_the_encoder_comes_after_the_memory_where_that_saves_time(layer, batch, time, after):
    """Not for few short sequences: the product of W_m and the encoder would take longer. `plan` says what runs."""
    said = layer.plan(batch=batch, time=time).reason.startswith("The encoder comes after the memory")
    assert said == after
    decision = encoder_after.applies(layer, batch, time, torch.float32, torch.device("cpu"))
    assert decision == after
    copied = pickle.loads(pickle.dumps(layer))
    assert encoder_after.applies(copied, batch, time, torch.float32, torch.device("cpu")) == after
