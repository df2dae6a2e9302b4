"""Stream: samples of any kind are taken or refused in words, and none spoils the state."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_same
from streams import MODELS, SMALL, TIME, pushed, stack
from torch import Tensor, nn

import plmu
from plmu import LMU, DelayLayer, ParallelLMU, Residual, Sequential, Stream

# ---------------------------------------------------------------- numbers that are too large


def filled(model: nn.Module, name: str) -> nn.Module:
    nn.init.ones_(model.get_parameter(name))
    return model


LARGE = {
    "float16": (lambda: filled(ParallelLMU(3, 4, **SMALL, memory_size=2), "encoder.weight").half(), 3e4),
    "float32": (lambda: filled(ParallelLMU(3, 4, **SMALL), "encoder.weight"), 3e38),
    "float64": (lambda: filled(ParallelLMU(3, 4, **SMALL), "encoder.weight").double(), 1.5e308),
    "a large memory": (lambda: filled(ParallelLMU(3, 4, order=40, theta=5.0), "encoder.weight"), 3e38),
    "original": (lambda: filled(LMU(3, 4, **SMALL), "cell.input_encoder"), 3e38),
    "within a stack": (
        lambda: filled(Sequential(nn.Linear(3, 3), Residual(DelayLayer(3, order=1, theta=7.0))), "layers.0.weight"),
        3e38,
    ),
}


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("name", LARGE)
def test_a_sample_that_would_spoil_the_state_raises_and_changes_nothing(name: str, batch: int | None) -> None:
    build, large = LARGE[name]
    model = build()
    x = torch.randn(TIME, 3) if batch is None else torch.randn(TIME, batch, 3)
    bad = torch.zeros(x[0].shape, dtype=torch.float64)
    bad[..., :] = large
    if batch is not None:
        bad[0] = 1.0
    stream, expected = Stream(model), pushed(Stream(model), x)
    with pytest.raises(ValueError, match="infinite or NaN"):
        stream.push(bad)  # as the first sample
    assert stream.steps == 0
    beginning = pushed(stream, x[:7])
    where = "" if batch is None else " in rows 1, 2 of the batch"
    with pytest.raises(ValueError, match=rf"state infinite or NaN{where}: it was rejected.*reset\(\)"):
        stream.push(bad)
    assert stream.steps == 7
    assert torch.equal(torch.cat([beginning, pushed(stream, x[7:])]), expected)
    assert expected.isfinite().all()


@pytest.mark.parametrize("channels", [1, 40])
def test_a_state_that_grows_without_input_raises_when_it_is_too_large(channels: int, tmp_path: Path) -> None:
    stream = Stream(DelayLayer(channels, system=plmu.LinearSystem([[2.0]], [1.0])))
    stream.push([1.0] * channels)
    for _ in range(127):
        stream.push([0.0] * channels)
    for _ in range(2):
        with pytest.raises(ValueError, match="infinite or NaN"):
            stream.push([0.0] * channels)
    assert stream.steps == 128
    stream.save(tmp_path / "state")
    stream.push([-(2.0**127)] * channels)  # the next is 2 * 2^127 - 2^127
    stream.reset()
    assert torch.equal(stream.push([3.0] * channels), torch.full((channels,), 3.0))


def test_large_numbers_that_the_state_can_hold_are_taken() -> None:
    """Their sum is infinite, but none of them is."""
    stream = Stream(DelayLayer(40, system=plmu.LinearSystem([[0.5]], [1.0])))
    assert torch.equal(stream.push([3e38] * 40), torch.full((40,), 3e38))
    assert torch.equal(stream.push([0.0] * 40), torch.full((40,), 1.5e38))


def test_a_number_beyond_the_models_precision_is_named() -> None:
    with pytest.raises(ValueError, match=r"too large for torch\.float16"):
        Stream(ParallelLMU(3, 4, **SMALL).half()).push([1e5, 0.0, 0.0])


def test_an_output_may_be_infinite() -> None:
    class Masked(nn.Module):
        per_step = True

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x > 0, x, -torch.inf)

    stream = Stream(Sequential(DelayLayer(1, order=1, theta=7.0), Masked()))
    assert stream.push([-1.0]).item() == -torch.inf
    assert stream.steps == 1


# ---------------------------------------------------------------- kinds of numbers


@pytest.mark.parametrize("model", [lambda: DelayLayer(3, **SMALL), stack], ids=["no weights", "weights"])
def test_complex_samples_raise(model) -> None:
    stream = Stream(model())
    for sample in ([1j, 0.0, 0.0], torch.ones(3, dtype=torch.complex64)):
        with pytest.raises(TypeError, match=r"real numbers, got torch\.complex64"):
            stream.push(sample)
    assert stream.steps == 0


def test_a_model_without_weights_takes_whole_numbers() -> None:
    layer = DelayLayer(1, **SMALL)
    expected = pushed(Stream(layer), [[1.0], [2.0], [0.0]])
    assert torch.equal(pushed(Stream(layer), [[1], torch.tensor([2], dtype=torch.int8), [False]]), expected)
    assert expected.dtype == torch.float32


@pytest.mark.parametrize("first", [torch.float32, torch.float64, torch.float16], ids=str)
def test_the_first_sample_gives_a_model_without_weights_its_precision(first: torch.dtype, tmp_path: Path) -> None:
    layer = DelayLayer(3, **SMALL)
    x = torch.randn(TIME, 3).half()  # which every precision holds
    stream, others = Stream(layer), (torch.float64, torch.float32, torch.float16, first)
    mixed = [stream.push(x[0].to(first))]
    mixed += [stream.push(sample.to(others[t % 4])) for t, sample in enumerate(x[1:9])]
    stream.save(tmp_path / "state")
    restored = Stream.restore(layer, tmp_path / "state")
    mixed += [restored.push(sample.to(others[t % 4])) for t, sample in enumerate(x[9:])]
    assert torch.equal(torch.stack(mixed), pushed(Stream(layer), x.to(first)))


# ---------------------------------------------------------------- features and tokens


FIRST = {
    "Linear": lambda: nn.Linear(3, 3),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "RMSNorm": lambda: nn.RMSNorm(3),
    "after an activation": lambda: nn.Sequential(nn.Dropout(0.1), nn.Tanh(), nn.Linear(3, 3)),
    "a stack": lambda: Sequential(nn.Softmax(-1), nn.Linear(3, 3)),
    "a residual": lambda: Residual(nn.Linear(3, 3)),
    "a layer": lambda: DelayLayer(3, order=1, theta=7.0),
}


@pytest.mark.parametrize("name", FIRST)
def test_a_wrong_number_of_features_is_named(name: str) -> None:
    model = Sequential(FIRST[name](), ParallelLMU(3, 4, **SMALL))
    stream = Stream(model)
    for wrong in (torch.zeros(4), torch.zeros(2, 4), torch.zeros(0)):
        with pytest.raises(ValueError, match=rf"must have 3 features, got shape \({', '.join(map(str, wrong.shape))}"):
            stream.push(wrong)
    assert stream.push(torch.zeros(2, 3)).shape == (2, 4)


def test_a_stack_names_the_features_that_its_first_layer_takes() -> None:
    model = Sequential(nn.Tanh(), nn.Linear(3, 3), ParallelLMU(3, 4, **SMALL))
    with pytest.raises(ValueError, match=r"x must have shape \(batch, time, 3\), got \(2, 5, 4\)"):
        model(torch.zeros(2, 5, 4))
    with pytest.raises(ValueError, match=r"x must have shape \(batch, 3\), got \(2, 4\)"):
        model.step(torch.zeros(2, 4))


def test_a_module_that_does_not_say_takes_what_it_takes() -> None:
    class Doubled(nn.Module):
        per_step = True

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, x], dim=-1)

    assert Stream(Sequential(Doubled(), nn.Linear(4, 1))).push([1.0, 2.0]).shape == (1,)
    assert Stream(Sequential(nn.Tanh())).push([1.0, 2.0]).shape == (2,)
    assert Stream(Sequential(nn.GLU(dim=-1), nn.Linear(1, 1))).push([1.0, 2.0]).shape == (1,)


def test_tokens_out_of_range_raise_and_change_nothing() -> None:
    class Shifted(nn.Module):
        per_step = True

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x + 1)

    model = Sequential(nn.Embedding(9, 3), ParallelLMU(3, 4, **SMALL))
    stream = Stream(model)
    expected = pushed(Stream(model), [[0, 8], [3, 4]])
    beginning = stream.push([0, 8])
    for wrong, named in (([0, 9], 9), ([-1, 3], -1), ([1 << 40, 0], 1 << 40)):
        with pytest.raises(ValueError, match=f"token numbers must be between 0 and 8, got {named}"):
            stream.push(wrong)
    assert torch.equal(torch.stack([beginning, stream.push([3, 4])]), expected)
    shifted = Stream(Sequential(Shifted(), ParallelLMU(3, 4, **SMALL)))
    shifted.push(-1)
    with pytest.raises(ValueError, match="token number is out of range"):
        shifted.push(8)
    assert shifted.steps == 1


def test_kinds_of_tokens() -> None:
    model = Sequential(nn.Embedding(9, 3), ParallelLMU(3, 4, **SMALL))
    expected = pushed(Stream(model), [2, 5])
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        assert torch.equal(pushed(Stream(model), torch.tensor([2, 5], dtype=dtype)), expected)
    for wrong in (2.0, True, 1j):
        with pytest.raises(TypeError, match="takes token numbers, got torch"):
            Stream(model).push(wrong)


# ---------------------------------------------------------------- wrapped models, copies


def test_wrapped_models_are_unwrapped(tmp_path: Path) -> None:
    model = stack()
    x = torch.randn(TIME, 3)
    expected = pushed(Stream(model), x)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for wrapped in (
        averaged,
        *([] if torch.cuda.is_available() else [nn.DataParallel(model)]),  # it moves the model to a GPU
        torch.compile(model, backend="eager"),
        torch.compile(averaged, backend="eager"),
    ):
        stream = Stream(wrapped)
        assert torch.equal(pushed(stream, x), expected)
        stream.save(tmp_path / "state")
        assert Stream.restore(wrapped, tmp_path / "state").steps == TIME
    with pytest.raises(TypeError, match=r"must be steppable.*got Linear"):
        Stream(torch.compile(nn.Linear(3, 3), backend="eager"))


def test_a_stream_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"stream\.save\(path\) and plmu\.Stream\.restore"):
        pickle.dumps(Stream(stack()))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", MODELS)
def test_a_copy_goes_on_alone(name: str, duplicate) -> None:
    model = MODELS[name]()
    x = torch.randn(3, TIME, 3)
    stream = Stream(model)
    pushed(stream, x[0])
    other = duplicate(stream)
    pushed(stream, x[1])
    continued = pushed(other, x[2])
    assert torch.equal(continued, pushed(Stream(model), torch.cat([x[0], x[2]]))[TIME:])


@pytest.mark.parametrize("sample", [[0.1], (0.1,), 0.1, np.array([0.1]), np.ma.masked_array([0.1])], ids=str)
def test_numbers_of_python_keep_their_digits(sample: object) -> None:
    """They are float64; torch makes them the default precision."""
    model = (plmu.DelayLayer(1, 3, 5.0) if isinstance(sample, float) else plmu.ParallelLMU(1, 2, 3, 5.0)).double()
    exact = torch.tensor([0.1], dtype=torch.float64)
    stream, alone = plmu.Stream(model), plmu.Stream(model)
    stream.push(exact)  # of a model without weights the first sample has the precision
    alone.push(exact)
    sample = [sample] if isinstance(sample, float) else sample
    assert torch.equal(stream.push(sample), alone.push(exact))
    sessions = plmu.Sessions(model)
    first, second = sessions.add(), sessions.add()
    sessions.push({first: exact, second: exact})
    out = sessions.push({first: sample, second: exact})
    assert torch.equal(out[first], out[second])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sessions_of_a_model_without_weights_take_the_precision_of_the_first_sample(dtype: torch.dtype) -> None:
    model, x = plmu.DelayLayer(1, 3, 5.0), torch.tensor([[0.1], [0.7]], dtype=dtype)
    stream, sessions = plmu.Stream(model), plmu.Sessions(model, width=2)
    first, second = sessions.add(), sessions.add()
    for sample in x:
        out = sessions.push({first: sample, second: sample.numpy()})
        assert out[first].dtype == dtype
        assert_same(out[first], stream.push(sample))
        assert torch.equal(out[first], out[second])
    assert sessions.push({first: [0.2]})[first].dtype == dtype
    other = plmu.Sessions(model, width=2)
    row = other.add()
    assert other.step([row], x[:1])[0].dtype == dtype
    with pytest.raises(ValueError, match="x must be torch"):
        other.step([row], x[:1].to(torch.float16))


def test_a_parametrised_embedding_streams() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    model = plmu.Sequential(torch.nn.Embedding(5, 3), plmu.ParallelLMU(3, 2, 3, 5.0))
    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", Doubled())
    tokens = torch.tensor([[0, 4, 2]])
    expected, stream, sessions = model(tokens)[0][0], plmu.Stream(model), plmu.Sessions(model)
    row = sessions.add()
    for t, token in enumerate(tokens[0].tolist()):
        assert_same(stream.push(token), expected[t])
        assert_same(sessions.push({row: token})[row], expected[t])
    with pytest.raises(ValueError, match="token numbers must be between 0 and 4, got 5"):
        stream.push(5)


def test_masked_numbers_are_missing_and_masked_tokens_are_refused() -> None:
    frozen = plmu.FrozenModel(ParallelLMU(2, 3, **SMALL))
    stream, expected = plmu.Stream(frozen, missing="hold"), plmu.Stream(frozen, missing="hold")
    first, hidden = np.ma.masked_array([1.0, 2.0]), np.ma.masked_array([9.0, 3.0], mask=[True, False])
    assert torch.equal(stream.push(first), expected.push([1.0, 2.0]))
    assert torch.equal(stream.push(hidden), expected.push([1.0, 3.0]))
    with pytest.raises(TypeError, match="masked token numbers"):
        plmu.Stream(Sequential(nn.Embedding(5, 3))).push(np.ma.masked_array([1, 2], mask=[True, False]))
