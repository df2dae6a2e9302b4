"""Folded models: classes and kinds of one's own, what is multiplied out, and errors."""

import dataclasses
from typing import Any

import pytest
import torch
from closeness import assert_same
from layers import SMALL
from torch import Tensor, nn

import plmu
from plmu import LMU, DelayLayer, ParallelLMU, Residual, Sequential, Stream
from plmu.folded import (
    Affine,
    After,
    Applied,
    Chain,
    CoupledMemory,
    CovariateForecast,
    Folded,
    Function,
    LinearMemory,
    ParallelMemory,
    RunningShares,
    Scale,
    Stepped,
    WindowAttention,
    WindowForecast,
)
from plmu.folded.states import leaves
from plmu.nn import CausalAttention, LookbackForecast, ThresholdShares

STEPS, BATCH = 6, 2


class Doubled(ParallelLMU):
    def _encode(self, x: Tensor) -> Tensor:
        return 2 * super()._encode(x)


class Halved(DelayLayer):
    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        out, state = super().step(x, state)
        return out / 2, state


class Squared(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 2


def hooked(module: nn.Module, name: str) -> nn.Module:
    module.get_submodule(name).register_forward_hook(
        lambda module, given, out: (2 * out[0], out[1]) if isinstance(out, tuple) else 2 * out
    )
    return module


def replaced(layer: ParallelLMU) -> ParallelLMU:
    layer._encode = lambda x: x.sum(1, keepdim=True)
    return layer


OTHERS = {
    "a method": lambda: Doubled(3, 4, **SMALL),
    "a step": lambda: Halved(3, **SMALL, missing="hold"),
    "within": lambda: Sequential(nn.Tanh(), Residual(Doubled(3, 3, **SMALL))),
    "a hook": lambda: hooked(ParallelLMU(3, 4, **SMALL), "encoder"),
    "a hook behind gaps": lambda: hooked(ParallelLMU(3, 4, **SMALL, missing="hold"), "encoder"),
    "a hook of a cell": lambda: hooked(LMU(3, 4, **SMALL, missing="hold"), "cell"),
    "a hook in a stack": lambda: hooked(Sequential(nn.Linear(3, 3), DelayLayer(3, **SMALL)), "layers.0"),
    "of torch": lambda: Sequential(Squared(3, 3), DelayLayer(3, **SMALL)),
    "of an instance": lambda: replaced(ParallelLMU(3, 4, **SMALL)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_another_class_or_a_hook_does_is_honoured(name: str) -> None:
    model = OTHERS[name]()
    folded = plmu.fold(model)
    state = expected_state = None
    with torch.no_grad():
        for x in torch.randn(STEPS, BATCH, 3):
            expected, expected_state = model.step(x, expected_state)
            out, state = folded.step(x, state)
            assert_same(out, expected, terms=2 * STEPS * 20)  # at each step both ways sum fewer than 20 products
            assert_same(state, expected_state, terms=2 * STEPS * 20)


def test_a_subclass_that_only_builds_folds_like_its_base() -> None:
    class Model(Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(3, 3), ParallelLMU(3, 4, **SMALL), nn.Linear(4, 1))

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return (self(x)[0] - y).square().mean()

    assert [type(part) for part in plmu.fold(Model()).parts] == [LinearMemory, Affine]


def test_a_kind_of_your_own() -> None:
    @dataclasses.dataclass(frozen=True, eq=False)
    class Decaying(Folded):
        rate: Tensor

        def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            new = x if state is None else self.rate * state + x
            return new.clone(), new

        def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.zeros(batch, self.rate.shape[0], dtype=dtype, device=device)

    class Trace(plmu.nn.Steppable):
        def __init__(self) -> None:
            super().__init__()
            self.log_rate = nn.Parameter(torch.tensor([-0.1, -1.0]))

        def forward(self, x, state=None, lengths=None, *, resets=None):
            raise AssertionError("steps alone")

        def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
            raise AssertionError("it was folded")

        def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.zeros(batch, 2, dtype=dtype, device=device)

        def fold(self) -> Folded:
            return Decaying(self.log_rate.double().exp(), dtype=self.log_rate.dtype)

    model = Sequential(Trace(), nn.Linear(2, 1))
    assert torch.equal(plmu.fold(model).arrays()["0.rate"], model.layers[0].log_rate.detach().double().exp().float())
    stream = Stream(model)
    for _ in range(3):
        out = stream.push([1.0, 1.0])
    rate = model.layers[0].log_rate.exp()
    assert_same(out, model.layers[1]((1 + rate + rate**2)[None])[0].detach(), terms=20)


class Standard(nn.Module):
    """(x − mean) / std, as a layer that says how it folds."""

    per_step = True

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([mean, -mean, 1.0]))
        self.register_buffer("std", torch.tensor([std, 3.0, std]))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def fold(self) -> Folded:
        mean, std = self.mean.double(), self.std.double()
        return Scale(1 / std, -mean / std, dtype=self.mean.dtype, device=self.mean.device)


SCALED = {
    "alone": (lambda: [Standard(0.3, 7.0)], [Scale]),
    "twice": (lambda: [Standard(0.3, 7.0), nn.Dropout(0.1), Standard(2.0, 0.3)], [Scale]),
    "before a linear layer": (lambda: [Standard(0.3, 7.0), nn.Linear(3, 4)], [Affine]),
    "after one": (lambda: [nn.Linear(3, 3), Standard(0.3, 7.0)], [Affine]),
    "after one without a bias": (lambda: [nn.Linear(3, 3, bias=False), Standard(0.3, 7.0)], [Affine]),
    "before a memory": (lambda: [Standard(0.3, 7.0), ParallelLMU(3, 4, **SMALL)], [LinearMemory]),
    "after one, linear": (
        lambda: [ParallelLMU(3, 3, **SMALL, output_activation=None), Standard(0.3, 7.0), nn.Linear(3, 1)],
        [LinearMemory],
    ),
    "after one, not linear": (lambda: [ParallelLMU(3, 3, **SMALL), Standard(0.3, 7.0)], [LinearMemory, Scale]),
    "before the original": (lambda: [Standard(0.3, 7.0), LMU(3, 4, **SMALL, bias=True)], [CoupledMemory]),
    "behind the original": (
        lambda: [LMU(3, 3, **SMALL, hidden_activation=None), Standard(0.3, 7.0)],
        [CoupledMemory, Scale],  # its output is in its state as well
    ),
    "a wide one": (
        lambda: [nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 3), Standard(0.3, 7.0)],
        [Affine, Function, Affine],
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", SCALED)
def test_scaled_features_are_multiplied_out(name: str, dtype: torch.dtype) -> None:
    build, kinds = SCALED[name]
    model = Sequential(*build()).to(dtype).eval()
    folded = plmu.fold(model)
    assert [type(part) for part in folded.parts] == kinds
    state = expected_state = None
    with torch.no_grad():
        for x in torch.randn(STEPS, BATCH, 3, dtype=dtype):
            expected, expected_state = model.step(x, expected_state)
            out, state = folded.step(x, state)
            assert_same(out, expected, terms=2 * STEPS * 60)  # of at most 60 products
            assert_same(state, expected_state, terms=2 * STEPS * 60)


def test_a_layer_behind_a_function_has_the_state_of_the_layer() -> None:
    delay, linear = DelayLayer(3, **SMALL), nn.Linear(2, 3)
    folded = After(plmu.fold(Sequential(linear)).parts[0], plmu.fold(delay)).finished()
    x, state = torch.randn(BATCH, 2), torch.randn(BATCH, 4, 3)
    out, after = folded.step(x, state)
    expected, right = delay.step(linear(x).detach(), state)
    assert_same((out, after), (expected, right), terms=20)
    assert sorted(folded.arrays()) == ["first.bias", "first.weight", "inner.matrix"]
    assert_same(folded.initial_state(2, torch.float32, torch.device("cpu")), torch.zeros(2, 4, 3))


def test_a_module_without_an_own_form_is_copied() -> None:
    class Shifted(nn.Module):
        per_step = True

        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.by

    model = Sequential(Shifted(), nn.Tanh())
    folded = plmu.fold(model)
    nn.init.zeros_(model[0].by)
    assert isinstance(folded.parts[0], Applied)
    assert torch.equal(folded.step(torch.zeros(1, 3))[0], torch.ones(1, 3).tanh())
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        folded.arrays()["0.by"].zero_()


def test_kinds() -> None:
    assert isinstance(plmu.fold(ParallelLMU(3, 4, **SMALL, memory_size=2)), ParallelMemory)
    assert isinstance(plmu.fold(LMU(3, 4, **SMALL)), CoupledMemory)
    assert isinstance(plmu.fold(Doubled(3, 4, **SMALL)), Stepped)
    assert isinstance(plmu.fold(nn.DataParallel(Sequential(nn.Tanh()))), Chain)
    assert plmu.fold(ParallelLMU(3, 4, **SMALL)).activation.function == "relu"
    f = plmu.fold(ParallelLMU(3, 4, **SMALL, output_activation=nn.LeakyReLU(0.3))).activation
    assert (type(f), f.function, f.options) == (Function, "leaky_relu", (("negative_slope", 0.3),))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"model must be steppable.*got Linear"):
        plmu.fold(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="model is on the meta device"):
        plmu.fold(ParallelLMU(3, 4, **SMALL).to("meta"))
    folded = plmu.fold(Sequential(nn.Linear(3, 3), DelayLayer(3, **SMALL)))
    for wrong, kind in ((torch.zeros(2, 5, 3), r"\(2, 5, 3\)"), ([1.0], "list")):
        with pytest.raises(ValueError, match=rf"x must be a tensor \(batch, features\).*got {kind}"):
            folded.step(wrong)
    with pytest.raises(ValueError, match="state must be a tuple of 2, one for each module; got a tuple of 1"):
        folded.step(torch.zeros(2, 3), (None,))


def test_frozen_step_is_no_longer_used() -> None:
    class Own(plmu.nn.Steppable):
        def forward(self, x, state=None, lengths=None, *, resets=None):
            return 2 * x, None

        def step(self, x, state=None):
            return 2 * x, None

        def frozen_step(self):
            return lambda x, state: (3 * x, None)

    with pytest.warns(DeprecationWarning, match=r"Own\.frozen_step is no longer used: override fold\(\) instead"):
        folded = plmu.fold(Own())
    assert folded.step(torch.ones(1, 2))[0].tolist() == [[2.0, 2.0]]


def test_whole_numbers_are_refused_where_there_are_no_tokens() -> None:
    folded = plmu.fold(plmu.Sequential(plmu.ParallelLMU(2, 3, 3, 9.0)))
    with pytest.raises(TypeError, match=r"x must be floating point, got torch\.int64"):
        folded.step(torch.zeros(1, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("layer", "kind", "names"),
    [
        (CausalAttention(8, 2, 5, bias=True), WindowAttention, "input_weight input_bias output_weight output_bias"),
        (LookbackForecast(2, 3, 4, 9.0, 12, season=5), WindowForecast, "weight taps season_pattern prior"),
        (
            plmu.nn.CovariateForecast(2, 1, 3, 4, 9.0, 12, lags=4, lag_order=2),
            CovariateForecast,
            "weight taps season_pattern prior effect_weight lag_taps",
        ),
        (ThresholdShares(3, 2, positions=1), RunningShares, "thresholds"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_windows_and_counts_have_kinds_with_named_arrays(
    layer: plmu.nn.Steppable, kind: type[Folded], names: str
) -> None:
    for value in layer.state_dict().values():
        value.copy_(torch.rand_like(value))
    folded = plmu.fold(layer)
    assert type(folded) is kind
    assert set(folded.arrays()) == set(names.split())
    state = expected_state = None
    for x in torch.randn(STEPS, BATCH, layer.input_size):
        with torch.no_grad():  # attention that is trained on a CPU sums in another order
            expected, expected_state = layer.step(x, expected_state)
        out, state = folded.step(x, state)
        assert torch.equal(out, expected)
        for part, expected_part in zip(leaves(state), leaves(expected_state), strict=True):
            assert torch.equal(part, expected_part.detach())


def test_a_window_forecast_with_another_readout_stays_a_copy() -> None:
    class Doubled(LookbackForecast):
        def read(self, windows: Tensor, phase: Tensor) -> Tensor:
            return 2 * super().read(windows, phase)

    assert isinstance(plmu.fold(Doubled(1, 2, 3, 4.0, 5)), Stepped)
