"""Stream: push equals forward; missing samples, errors and silence leave it in a state one can trust."""

from pathlib import Path

import pytest
import torch
from closeness import assert_same
from safetensors.torch import load_file
from streams import MODELS, SMALL, TIME, every_model, pushed, stack
from torch import Tensor, nn

from plmu import LMU, ParallelLMU, Sequential, Stream


def state_of(stream: Stream, folder: Path) -> dict[str, Tensor]:
    stream.save(folder / "state")
    return load_file(folder / "state")


# ---------------------------------------------------------------- push


@every_model
@pytest.mark.parametrize("batch", [None, 1, 3])
def test_push_equals_forward(name: str, batch: int | None) -> None:
    model = MODELS[name]()
    x = torch.randn(batch or 1, TIME, 3)
    stream = Stream(model)
    out = pushed(stream, x[0] if batch is None else x.transpose(0, 1))
    whole = model if model.returns_sequences else _returning_sequences(model)
    expected = whole(x)[0]
    assert_same(out, expected[0] if batch is None else expected.transpose(0, 1))
    assert stream.steps == TIME
    assert not out.requires_grad


@pytest.mark.parametrize("batch", [None, 2])
def test_tokens(batch: int | None) -> None:
    model = Sequential(nn.Embedding(9, 3), ParallelLMU(3, 4, **SMALL), nn.Linear(4, 9))
    tokens = torch.randint(9, (batch or 1, TIME))
    stream = Stream(model)
    if batch is None:
        assert_same(pushed(stream, tokens[0]), model(tokens)[0][0])
        stream.reset()
        assert_same(pushed(stream, tokens[0].tolist()), model(tokens)[0][0])
    else:
        assert_same(pushed(stream, tokens.mT), model(tokens)[0].transpose(0, 1))


def test_tokens_into_a_module_of_ones_own() -> None:
    class Embedded(nn.Module):
        per_step = True

        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(9, 3), nn.LayerNorm(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.table(x))

    model = Sequential(Embedded(), ParallelLMU(3, 4, **SMALL))
    tokens = torch.randint(9, (2, TIME))
    assert_same(pushed(Stream(model), tokens.mT), model(tokens)[0].transpose(0, 1))
    assert_same(pushed(Stream(model), tokens[0].tolist()), model(tokens)[0][0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("trainable", ["none", "theta"])
def test_the_precision_is_the_models(dtype: torch.dtype, trainable: str) -> None:
    model = ParallelLMU(3, 4, **SMALL, trainable=trainable).to(dtype)
    x = torch.randn(TIME, 3)
    out = pushed(Stream(model), x)
    assert out.dtype == dtype
    # In half precision every product rounds its output: encoder, memory, input and their sum.
    assert_same(out, model(x.to(dtype)[None])[0][0], terms=200 if dtype == torch.float64 else 4)


def test_lists_and_numpy_arrays() -> None:
    model = stack()
    x = torch.randn(TIME, 3)
    expected = pushed(Stream(model), x)
    assert torch.equal(pushed(Stream(model), x.tolist()), expected)
    assert torch.equal(pushed(Stream(model), list(x.numpy())), expected)
    assert torch.equal(pushed(Stream(model), list(x.double().numpy())), expected)
    assert torch.equal(pushed(Stream(model), [tuple(row) for row in x.tolist()]), expected)


def test_dropout_is_off_and_the_model_goes_on_training() -> None:
    model = Sequential(nn.Dropout(0.5), ParallelLMU(3, 4, **SMALL), nn.Dropout(0.5), nn.Linear(4, 2))
    x = torch.randn(TIME, 3)
    stream = Stream(model)
    out = pushed(stream, x)
    assert all(module.training for module in model.modules())
    assert not torch.equal(model(x[None])[0], model(x[None])[0])  # its dropout is on
    assert_same(out, model.eval()(x[None])[0][0])
    model.train()
    stream.reset()
    assert torch.equal(pushed(stream, x), out)


@every_model
def test_training_goes_on_without_showing_in_the_stream(name: str) -> None:
    model = MODELS[name]()
    x = torch.randn(TIME, 3)
    stream = Stream(model)
    before = pushed(stream, x)
    if not list(model.parameters()):
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model(torch.randn(2, TIME, 3))[0].square().sum().backward()
    optimizer.step()
    stream.reset()
    after = pushed(stream, x)
    assert torch.equal(after, before)
    assert not torch.equal(after, pushed(Stream(model), x))
    assert all(value.grad is not None for value in model.parameters())


@every_model
def test_training_after_streaming(name: str) -> None:
    model = MODELS[name]()
    pushed(Stream(model), torch.randn(5, 3))
    x = torch.randn(2, TIME, 3, requires_grad=True)
    model(x)[0].sum().backward()
    assert x.grad.isfinite().all()


def test_streams_of_one_model_are_independent() -> None:
    model = stack()
    x = torch.randn(2, TIME, 3)
    first, second = Stream(model), Stream(model)
    outputs = [(first.push(a), second.push(b)) for a, b in zip(*x, strict=True)]
    assert torch.equal(torch.stack([a for a, _ in outputs]), pushed(Stream(model), x[0]))
    assert torch.equal(torch.stack([b for _, b in outputs]), pushed(Stream(model), x[1]))


def test_an_output_is_not_changed_by_later_samples() -> None:
    for name in MODELS:
        stream = Stream(MODELS[name]())
        outputs = [stream.push(sample) for sample in torch.randn(5, 3)]
        copies = [output.clone() for output in outputs]
        pushed(stream, torch.randn(5, 3))
        assert all(torch.equal(a, b) for a, b in zip(outputs, copies, strict=True))


def test_the_callers_sample_may_be_reused() -> None:
    model = ParallelLMU(3, 4, **SMALL)
    x = torch.randn(TIME, 3)
    stream, buffer, outputs = Stream(model, missing="hold"), torch.empty(3), []
    for t in range(TIME):
        buffer.copy_(x[t])
        outputs.append(stream.push(buffer))
        buffer.fill_(1e9)
    held = stream.push(None)
    plain = Stream(model, missing="hold")
    assert torch.equal(torch.stack(outputs), pushed(plain, x))
    assert torch.equal(held, plain.push(None))


@every_model
def test_reset_forgets_everything(name: str) -> None:
    stream = Stream(MODELS[name]())
    x = torch.randn(TIME, 3)
    first = pushed(stream, x)
    stream.reset()
    assert stream.steps == 0
    assert torch.equal(pushed(stream, x), first)
    stream.reset()
    assert stream.push(torch.randn(4, 3)).shape[0] == 4  # another batch size is fine now


# ---------------------------------------------------------------- missing samples


@pytest.mark.parametrize("absent", [None, [float("nan")] * 3], ids=["None", "NaN"])
@pytest.mark.parametrize("policy", ["hold", "zero"])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_missing_sample(absent: object, policy: str, batch: int | None) -> None:
    model = stack()
    x = torch.randn(TIME, 3) if batch is None else torch.randn(TIME, batch, 3)
    filled = x.clone()
    samples: list = list(x)
    for t in (4, 5, 11):
        samples[t] = absent if batch is None or absent is None else [absent] * batch
        filled[t] = filled[t - 1] if policy == "hold" else 0.0
    assert torch.equal(pushed(Stream(model, missing=policy), samples), pushed(Stream(model), filled))


@pytest.mark.parametrize("policy", ["hold", "zero"])
def test_each_number_of_a_batch_may_be_missing_alone(policy: str) -> None:
    model = stack()
    x = torch.randn(TIME, 2, 3)
    absent = torch.rand(TIME, 2, 3) < 0.3
    absent[0] = False
    filled = x.clone()
    for t in range(1, TIME):
        filled[t] = torch.where(absent[t], filled[t - 1] if policy == "hold" else torch.zeros(2, 3), x[t])
    with_gaps = torch.where(absent, torch.nan, x)
    assert torch.equal(pushed(Stream(model, missing=policy), with_gaps), pushed(Stream(model), filled))


def test_missing_tokens() -> None:
    model = Sequential(nn.Embedding(9, 3), ParallelLMU(3, 4, **SMALL))
    for policy, filled in (("hold", [2, 2, 5]), ("zero", [2, 0, 5])):
        assert torch.equal(pushed(Stream(model, missing=policy), [2, None, 5]), pushed(Stream(model), filled))


@pytest.mark.parametrize("absent", [None, [float("nan"), 1.0, 2.0]], ids=["None", "NaN"])
def test_by_default_a_missing_sample_raises_and_changes_nothing(absent: object) -> None:
    model = stack()
    x = torch.randn(TIME, 3)
    stream = Stream(model)
    beginning = pushed(stream, x[:7])
    with pytest.raises(ValueError, match="missing='hold' or missing='zero'"):
        stream.push(absent)
    assert stream.steps == 7
    assert torch.equal(torch.cat([beginning, pushed(stream, x[7:])]), pushed(Stream(model), x))


@pytest.mark.parametrize("policy", ["hold", "zero"])
def test_the_first_sample_missing(policy: str) -> None:
    """Before the first value there is none to hold: it counts as zero, as what came before the stream does."""
    nan = float("nan")
    x = torch.randn(TIME, 2, 3)
    with_gaps, filled = x.clone(), x.clone()
    with_gaps[:2, 0, 1], filled[:2, 0, 1] = nan, 0.0
    assert torch.equal(pushed(Stream(stack(), missing=policy), with_gaps), pushed(Stream(stack()), filled))
    assert torch.equal(Stream(stack(), missing=policy).push([nan] * 3), Stream(stack()).push([0.0] * 3))
    with pytest.raises(ValueError, match=r"first sample is None.*push NaN"):
        Stream(stack(), missing=policy).push(None)


@pytest.mark.parametrize("policy", ["raise", "hold", "zero"])
@pytest.mark.parametrize("bad", [[float("inf"), 1.0, 1.0], [float("-inf"), float("nan"), 1.0]], ids=str)
def test_infinity_raises_whatever_the_policy(policy: str, bad: list[float]) -> None:
    model = stack()
    x = torch.randn(TIME, 3)
    stream = Stream(model, missing=policy)
    beginning = pushed(stream, x[:7])
    with pytest.raises(ValueError, match="infinity"):
        stream.push(bad)
    assert torch.equal(torch.cat([beginning, pushed(stream, x[7:])]), pushed(Stream(model), x))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("batch", [None, 2])
def test_a_wrong_shape_raises_and_changes_nothing(batch: int | None) -> None:
    model = Sequential(ParallelLMU(3, 3, **SMALL), nn.Linear(3, 2), LMU(2, 2, **SMALL))
    shape = (3,) if batch is None else (batch, 3)
    x = torch.randn(TIME, *shape)
    stream = Stream(model)
    for wrong in (torch.zeros(4), torch.zeros(2, 4), torch.zeros(2, 5, 3), torch.zeros(()), torch.zeros(0)):
        with pytest.raises(ValueError, match="shape"):
            stream.push(wrong)  # as the first sample
    beginning = pushed(stream, x[:7])
    for wrong in (torch.zeros(4), torch.zeros(5, 3), torch.zeros(2, 4), torch.zeros(1, 1, 3), torch.zeros(())):
        with pytest.raises(ValueError, match="shape"):
            stream.push(wrong)
    assert stream.steps == 7
    assert torch.equal(torch.cat([beginning, pushed(stream, x[7:])]), pushed(Stream(model), x))


@pytest.mark.parametrize("wrong", ["1.0", object(), [[1.0], [1.0, 2.0]], [1.0, None, 2.0]], ids=range(4))
def test_what_is_no_sample_raises_and_changes_nothing(wrong: object) -> None:
    x = torch.randn(TIME, 3)
    stream = Stream(stack(), missing="zero")
    beginning = pushed(stream, x[:7])
    with pytest.raises((TypeError, ValueError), match="sample"):
        stream.push(wrong)
    assert torch.equal(torch.cat([beginning, pushed(stream, x[7:])]), pushed(Stream(stack()), x))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"model must be steppable.*Linear"):
        Stream(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="missing must be one of raise, hold, zero, got 'skip'"):
        Stream(stack(), missing="skip")


# ---------------------------------------------------------------- silence


@pytest.mark.parametrize("name", ["parallel", "several theta", "delay", "original", "stack"])
@pytest.mark.parametrize("batch", [None, 2])
def test_silence_leaves_no_subnormal_numbers(name: str, batch: int | None, tmp_path: Path) -> None:
    model = MODELS[name]()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "bias" in key:
                value.zero_()
    stream = Stream(model)
    zeros = torch.zeros(3) if batch is None else torch.zeros(batch, 3)
    stream.push(zeros + 1.0)
    for _ in range(1500):  # of which fewer than 300 take a state at θ = 9 below the smallest normal number
        stream.push(zeros)
    smallest = torch.finfo(torch.float32).tiny
    for key, value in state_of(stream, tmp_path).items():
        subnormal = (value != 0) & (value.abs() < smallest)
        assert not subnormal.any(), key


def test_a_quiet_signal_is_not_silenced() -> None:
    model = ParallelLMU(3, 4, **SMALL, bias=False, output_activation=None).double()
    x = 1e-9 * torch.randn(600, 3, dtype=torch.float64)
    assert_same(pushed(Stream(model), x), model(x[None])[0][0])


def _returning_sequences(model: ParallelLMU) -> ParallelLMU:
    other = ParallelLMU(**{**model.config, "return_sequences": True})
    other.load_state_dict(model.state_dict())
    return other
