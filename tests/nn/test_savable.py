"""What a layer's `config` holds: its constructor's arguments, however they were given; and who may be registered."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import plmu
from plmu import LMU, CausalAttention, DelayLayer, ParallelLMU
from plmu.nn import CovariateForecast, LookbackForecast
from plmu.nn.savable import REGISTERED, savable

SAME: dict[str, list[Callable[[], nn.Module]]] = {
    "places and names": [
        lambda: DelayLayer(3, 4, 9.0),
        lambda: DelayLayer(channels=3, order=4, theta=9.0),
        lambda: DelayLayer(3, theta=9, order=np.int64(4)),
        lambda: DelayLayer(torch.tensor(3), 4, torch.tensor(9.0, dtype=torch.float64), dtype=torch.float64),
    ],
    "windows": [
        lambda: DelayLayer(4, 2, [4.0, 9.0]),
        lambda: DelayLayer(4, 2, (4, 9)),
        lambda: DelayLayer(4, 2, np.array([4, 9])),
        lambda: DelayLayer(4, 2, torch.tensor([4.0, 9.0])),
    ],
    "switches": [
        lambda: ParallelLMU(3, 4, order=2, theta=4.0, gated=True),
        lambda: ParallelLMU(3, 4, order=2, theta=4.0, gated=np.bool_(True)),
    ],
}


@pytest.mark.parametrize("name", SAME)
def test_it_is_plain_however_it_was_given(name: str) -> None:
    expected, *others = (make().config for make in SAME[name])
    for config in others:
        assert config == expected
        assert {key: type(value) for key, value in config.items()} == {k: type(v) for k, v in expected.items()}


def test_it_has_defaults_and_no_device_or_dtype() -> None:
    config = CausalAttention(8, 2, window=5, dtype=torch.float64).config
    assert config == {"width": 8, "heads": 2, "window": 5, "bias": False}


def test_that_of_a_derived_layer_is_its_own() -> None:
    assert set(CovariateForecast(1, 1, 2, 2, 4.0, 5).config) - set(LookbackForecast(1, 2, 2, 4.0, 5).config) == {
        "covariates",
        "lags",
        "lag_order",
        "relative",
    }


def test_a_subclass_with_another_constructor_has_that_of_its_base(tmp_path: Path) -> None:
    class Small(ParallelLMU):
        def __init__(self, size: int) -> None:
            super().__init__(size, 2 * size, order=2, theta=4.0)

    layer = Small(3)
    assert layer.config == ParallelLMU(3, 6, order=2, theta=4.0).config
    with pytest.raises(ValueError, match=r"cannot save Small: only plmu layers"):
        plmu.save(layer, tmp_path / "small.plmu")


def test_it_outlives_copies_pickles_compiling_and_parametrizations(tmp_path: Path) -> None:
    layer = LMU(2, 3, 2, 4.0)
    config = layer.config
    assert copy.deepcopy(layer).config == config
    assert pickle.loads(pickle.dumps(layer)).config == config
    compiled = torch.compile(layer, backend="eager")
    compiled(torch.ones(1, 3, 2))
    assert compiled.config == config
    plmu.save(compiled, tmp_path / "compiled.plmu")
    assert plmu.load(tmp_path / "compiled.plmu").config == config
    other = DelayLayer(2, 2, 4.0, trainable="theta")
    config = other.config
    parametrize.register_parametrization(other.memory, next(iter(dict(other.memory.named_parameters()))), nn.Identity())
    assert other.config == config


def test_another_layers_config_is_not_shared() -> None:
    first, second = DelayLayer(2, 2, [4.0, 5.0]), DelayLayer(2, 2, [4.0, 5.0])
    first.config["theta"].append(6.0)
    assert second.config["theta"] == [4.0, 5.0]


def test_a_class_outside_plmu_cannot_be_registered() -> None:
    known = dict(REGISTERED)
    with pytest.raises(ValueError, match=r"only layers of plmu can be registered, got .*Mine"):

        @savable
        class Mine(plmu.nn.Steppable):
            pass

    with pytest.raises(ValueError, match="there is a layer named LMU already"):
        savable(type("LMU", (LMU,), {"__module__": "plmu.nn.other"}))
    assert known == REGISTERED


def test_missing_arguments_are_named_as_python_names_them() -> None:
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'channels'"):
        DelayLayer()  # type: ignore[call-arg]
