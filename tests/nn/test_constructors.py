"""What constructors of layers share: `device` and `dtype`, and what `repr` shows."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import plmu
from plmu import LMU, DelayLayer, LMUCell, ParallelLMU, Sequential

SMALL = {"order": 4, "theta": 7.0}
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "parallel": lambda **o: ParallelLMU(3, 4, **SMALL, **o),
    "gated": lambda **o: ParallelLMU(3, 4, **SMALL, gated=True, **o),
    "trained theta": lambda **o: ParallelLMU(3, 4, **SMALL, trainable="theta", **o),
    "trained system": lambda **o: ParallelLMU(3, 4, **SMALL, trainable="system", **o),
    "delay": lambda **o: DelayLayer(3, **SMALL, trainable="theta", **o),
    "original": lambda **o: LMU(3, 4, **SMALL, bias=True, trainable="system", **o),
    "cell": lambda **o: LMUCell(3, 4, **SMALL, bias=True, trainable="theta", **o),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


# ---------------------------------------------------------------- device and dtype


@every_layer
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_is_that_of_the_weights(name: str, dtype: torch.dtype) -> None:
    """As if the layer had been converted: a memory's own parameters stay float32 or wider."""
    made, converted = LAYERS[name](dtype=dtype), LAYERS[name]().to(dtype)
    assert list(made.state_dict()) == list(converted.state_dict())
    for key, value in made.state_dict().items():
        assert value.dtype == converted.state_dict()[key].dtype, key
        assert value.isfinite().all()
    x = torch.randn(2, 3, dtype=dtype) if name == "cell" else torch.randn(2, 5, 3, dtype=dtype)
    assert made(x)[0].dtype == dtype


@every_layer
def test_device_is_that_of_all_parameters(name: str) -> None:
    for device in ("meta", torch.device("meta")):
        layer = LAYERS[name](device=device)
        assert all(value.is_meta for value in layer.parameters())
        assert list(layer.parameters())
    assert all(value.device.type == "cpu" for value in LAYERS[name](device="cpu").parameters())


@every_layer
def test_initial_values_do_not_depend_on_how_the_precision_was_chosen(name: str) -> None:
    torch.manual_seed(3)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        expected = LAYERS[name]().state_dict()
    finally:
        torch.set_default_dtype(default)
    torch.manual_seed(3)
    for key, value in LAYERS[name](dtype=torch.float64).state_dict().items():
        assert torch.equal(value, expected[key]), key


@pytest.mark.parametrize("wrong", [torch.int32, torch.complex64, torch.bool, "float32", float], ids=str)
def test_a_wrong_dtype_is_named(wrong: object) -> None:
    for name in LAYERS:
        with pytest.raises(TypeError, match=r"dtype must be a floating-point torch\.dtype, got "):
            LAYERS[name](dtype=wrong)


@every_layer
def test_files_neither_hold_nor_take_them(name: str, path: Path) -> None:
    layer = LAYERS[name](device="cpu", dtype=torch.float64)
    assert not {"device", "dtype"} & set(layer.config)
    plmu.save(layer, path)
    assert all(value.dtype == torch.float64 for value in plmu.load(path).parameters())
    for option, value in (("dtype", "float32"), ("device", "cpu"), ("device", None)):
        description = {"class": type(layer).__name__, "config": {**layer.config, option: value}}
        plmu.modelfiles.files.write(path, {}, {"kind": "model", "tied": {}, "model": description})
        with pytest.raises(plmu.FileFormatError, match=f"option '{option}', which this plmu does not know"):
            plmu.load(path)


def test_every_layer_has_them() -> None:
    for kind in (ParallelLMU, DelayLayer, LMU, LMUCell):
        found = inspect.signature(kind).parameters
        for option in ("device", "dtype"):
            assert found[option].default is None
            assert found[option].kind is inspect.Parameter.KEYWORD_ONLY


# ---------------------------------------------------------------- repr


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (lambda: ParallelLMU(3, 4, **SMALL), "3, 4, memory_size=1, input_activation=None, output_activation=relu"),
        (
            lambda: ParallelLMU(3, 4, **SMALL, input_activation="tanh", output_activation=None, gated=True, bias=False),
            "3, 4, memory_size=3, input_activation=tanh, output_activation=None, gated=True, bias=False",
        ),
        (
            lambda: ParallelLMU(3, 4, **SMALL, encoder=False, output_activation=torch.sin, return_sequences=False,
                                algorithm="fft", missing="hold"),
            "3, 4, memory_size=3, input_activation=None, output_activation=sin, encoder=False, return_sequences=False,"
            " algorithm=fft, missing=hold",
        ),
        (lambda: ParallelLMU(3, 4, **SMALL, output_activation=nn.ELU(0.5)), "output_activation=ELU(alpha=0.5)"),
        (lambda: DelayLayer(3, **SMALL), "3"),
        (
            lambda: DelayLayer(3, **SMALL, missing="zero", return_sequences=False),
            "3, return_sequences=False, missing=zero",
        ),
        (
            lambda: LMUCell(3, 4, **SMALL, memory_size=2, hidden_to_memory=False, init="memory", bias=True),
            "3, 4, memory_size=2, hidden_activation=tanh, hidden_to_memory=False, bias=True, init=memory",
        ),
        (lambda: LMU(3, 4, **SMALL), ""),
        (lambda: LMU(3, 4, **SMALL, return_sequences=False, missing="hold"), "return_sequences=False, missing=hold"),
        (lambda: Sequential(nn.Linear(3, 3), missing="hold"), "missing=hold"),
        (lambda: Sequential(nn.Linear(3, 3)), ""),
        (lambda: plmu.Bidirectional(DelayLayer(3, **SMALL), merge="sum"), "merge=sum"),
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_shown(layer: Callable[[], nn.Module], shown: str) -> None:
    found = layer().extra_repr()
    assert found == shown if "ELU" not in shown else found.endswith(shown)


def test_an_activation_that_was_replaced_is_shown_as_it_is() -> None:
    layer = LMU(3, 4, **SMALL)
    layer.cell.f = torch.relu
    assert "hidden_activation=relu" in repr(layer)
