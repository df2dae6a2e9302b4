"""`missing="hold" | "zero"`: NaN in the input is filled, alike over a sequence, in pieces, by steps and in a stream."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plmu

BATCH, TIME, FEATURES = 3, 40, 2
NAN = math.nan

LAYERS: dict[str, Callable[..., Any]] = {
    "parallel": lambda **options: plmu.ParallelLMU(FEATURES, 4, 6, 9.0, **options),
    "linear": lambda **options: plmu.ParallelLMU(FEATURES, 4, 6, 9.0, output_activation=None, **options),
    "gated, last": lambda **options: plmu.ParallelLMU(
        FEATURES, 4, 6, 9.0, gated=True, return_sequences=False, **options
    ),
    "delay": lambda **options: plmu.DelayLayer(FEATURES, 6, 9.0, **options),
    "original": lambda **options: plmu.LMU(FEATURES, 4, 6, 9.0, **options),
    "stack": lambda **options: plmu.Sequential(
        nn.Linear(FEATURES, 3), plmu.ParallelLMU(3, 4, 6, 9.0), nn.Linear(4, 2), **options
    ),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
both = pytest.mark.parametrize("missing", ["hold", "zero"])


def gaps() -> Tensor:
    """Single gaps, one at the start, a long one, and one feature alone."""
    x = torch.randn(BATCH, TIME, FEATURES)
    x[torch.rand(BATCH, TIME, FEATURES) < 0.2] = NAN
    x[0, :3] = NAN
    x[1, 10:30] = NAN
    x[2, :, 1] = NAN
    return x


def filled(x: Tensor, missing: str, resets: Tensor | None = None) -> Tensor:
    """The specification: one number after another."""
    result = x.clone()
    for b in range(x.shape[0]):
        for f in range(x.shape[2]):
            last = 0.0
            for t in range(x.shape[1]):
                if resets is not None and resets[b, t]:
                    last = 0.0
                value = x[b, t, f].item()
                last = last if math.isnan(value) else value
                result[b, t, f] = 0.0 if math.isnan(value) and missing == "zero" else last
    return result


def pair(name: str, missing: str) -> tuple[Any, Any]:
    """A layer that fills, and the same without."""
    torch.manual_seed(2)
    filling = LAYERS[name](missing=missing)
    torch.manual_seed(2)
    return filling, LAYERS[name]()


@every_layer
@both
def test_a_sequence(name: str, missing: str) -> None:
    layer, plain = pair(name, missing)
    x = gaps()
    out, _ = layer(x)
    right, _ = plain(filled(x, missing))
    assert torch.equal(out, right)


@every_layer
@both
def test_resets_and_lengths(name: str, missing: str) -> None:
    layer, plain = pair(name, missing)
    x, lengths = gaps(), torch.tensor([TIME, 17, 0])
    resets = torch.rand(BATCH, TIME) < 0.1
    options = {"lengths": lengths, "resets": resets}
    out, state = layer(x, **options)
    right, right_state = plain(filled(x, missing, resets), **options)
    assert torch.equal(out, right)
    if missing == "hold":
        state, held = state
        assert torch.equal(held[0], filled(x, missing, resets)[0, -1])
        assert torch.equal(held[1], filled(x, missing, resets)[1, 16])
        assert not held[2].any()
    torch.testing.assert_close(state, right_state, rtol=0, atol=0)


@every_layer
@both
def test_pieces_and_steps_agree_with_the_whole(name: str, missing: str) -> None:
    layer, _ = pair(name, missing)
    x = gaps()
    with torch.no_grad():
        out, whole = layer(x)
        _, state = layer(x[:, :12])  # a gap of the second sequence spans both pieces
        second, state = layer(x[:, 12:], state)
        stepped = None
        for t in range(TIME):
            out_t, stepped = layer.step(x[:, t], stepped)
    last = out if out.dim() == 2 else out[:, -1]
    second = second if second.dim() == 2 else second[:, -1]
    bound = {"rtol": 0, "atol": TIME * 6 * torch.finfo(torch.float32).eps * last.abs().max().item()}
    torch.testing.assert_close(second, last, **bound)
    torch.testing.assert_close(out_t, last, **bound)
    for found in (state, stepped):
        torch.testing.assert_close(found, whole, rtol=0, atol=bound["atol"] * 10)


@every_layer
@both
def test_a_stream_takes_it_from_the_model(name: str, missing: str) -> None:
    """And a stream that fills by itself, of a model that does not, gives the same."""
    layer, plain = pair(name, missing)
    x = gaps()[1]
    own, other = plmu.Stream(layer), plmu.Stream(plain, missing=missing)
    assert own.missing == missing
    for sample in x:
        assert torch.equal(own.push(sample), other.push(sample))
    with pytest.raises(ValueError, match="NaN"):
        plmu.Stream(layer, missing="raise").push([NAN, 0.0])


@every_layer
@both
def test_saved_and_loaded(name: str, missing: str, path: Any) -> None:
    layer, _ = pair(name, missing)
    plmu.save(layer, path)
    x = gaps()
    assert torch.equal(plmu.load(path)(x)[0], layer(x)[0])


@both
def test_training_through_gaps(missing: str) -> None:
    """A history with gaps has finite gradients, and a missing value has none."""
    layer, _ = pair("stack", missing)
    x = gaps().requires_grad_()
    layer(x)[0].square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert not x.grad[torch.isnan(x)].any()
    assert x.grad.isfinite().all()


def test_infinity_is_not_missing() -> None:
    layer, _ = pair("delay", "zero")
    x = torch.zeros(1, 5, FEATURES)
    x[0, 2, 0] = math.inf
    out, _ = layer(x)
    assert out[:, :2].isfinite().all()
    assert out[:, 2:].isnan().any(2).all()


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")  # torch's own doing
def test_compiled() -> None:
    layer, _ = pair("parallel", "hold")
    x = gaps()
    out, (state, held) = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    right, (right_state, right_held) = layer(x)
    torch.testing.assert_close(out, right)
    torch.testing.assert_close((state, held), (right_state, right_held))


def test_bad_arguments() -> None:
    for name in LAYERS:
        with pytest.raises(ValueError, match="missing must be None, 'hold' or 'zero', got 'mean'"):
            LAYERS[name](missing="mean")
    layer, _ = pair("parallel", "hold")
    x = gaps()
    _, state = layer(x)
    with pytest.raises(TypeError, match=r"state must be a pair \(state, last values\), got Tensor"):
        layer(x, state[0])
    with pytest.raises(ValueError, match=r"last values of state must have shape \(3, 2\), got \(3, 1\)"):
        layer(x, (state[0], state[1][:, :1]))
    with pytest.raises(TypeError, match=r"x must be a floating-point tensor for missing='hold', got torch\.int64"):
        layer(x.long())
    with pytest.raises(ValueError, match=r"x must have shape \(batch, time, 2\), got \(3, 40\)"):
        layer(x[:, :, 0])
    with pytest.raises(ValueError, match=r"x must have shape \(batch, 2\), got \(3, 40, 2\)"):
        layer.step(x)


class Scaled(nn.Module):
    per_step = True

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_a_stack_that_holds_must_know_its_features() -> None:
    plmu.Sequential(nn.ReLU(), plmu.DelayLayer(2, 3, 4.0), missing="hold")
    with pytest.raises(ValueError, match="missing='hold' needs a first module with a known number of features"):
        plmu.Sequential(Scaled(), plmu.DelayLayer(2, 3, 4.0), missing="hold")
    stack = plmu.Sequential(Scaled(), plmu.DelayLayer(2, 3, 4.0), missing="zero")
    x = torch.full((1, 5, 2), NAN)
    assert not stack(x)[0].any()
    assert not stack.step(x[:, 0])[0].any()


def test_a_layer_behind_others_fills_what_reaches_it() -> None:
    """And a stream leaves that to it only where it is the first."""
    first = plmu.Sequential(plmu.DelayLayer(2, 3, 4.0, missing="zero"))
    later = plmu.Sequential(nn.Sigmoid(), plmu.DelayLayer(2, 3, 4.0, missing="zero"))
    assert plmu.Stream(first).missing == "zero"
    assert plmu.Stream(later).missing == "raise"
    assert plmu.Stream(plmu.Sequential(nn.Dropout(0.1), first)).missing == "zero"
    assert not later(torch.full((1, 5, 2), NAN))[0].any()


def test_a_subclass_with_a_step_of_its_own() -> None:
    class Doubled(plmu.DelayLayer):
        def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
            out, state = super().step(x, state)
            return 2 * out, state

    layer = Doubled(1, 3, 4.0, missing="hold")
    assert torch.equal(plmu.Stream(layer).push([1.0]), layer.step(torch.ones(1, 1))[0][0])


def test_a_subclass_with_an_initial_state_of_its_own() -> None:
    class Started(plmu.DelayLayer):
        def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
            return super().initial_state(batch, dtype, device) + 1

    layer = Started(1, 3, 4.0)
    x = torch.zeros(2, 1)
    assert torch.equal(layer.step(x)[0], layer.step(x, torch.ones(2, 3, 1))[0])


def test_last_values_are_states_under_autocast_too() -> None:
    layer = plmu.Sequential(nn.Linear(FEATURES, 3), plmu.ParallelLMU(3, 4, 6, 9.0, missing="hold"))
    x = gaps().nan_to_num()
    with torch.autocast("cpu", torch.bfloat16):
        _, state = layer(x)
        _, stepped = layer.step(x[:, 0])
    for one in (state, stepped):
        assert one[1][1].dtype == torch.float32
        layer(x, one)
        layer.step(x[:, 0], one)


def test_where_it_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"Residual would add NaN .* give missing= to the plmu\.Sequential around it"):
        plmu.Residual(plmu.ParallelLMU(2, 2, 3, 4.0, missing="hold"))
    with pytest.raises(ValueError, match="missing must be None for a model that takes tokens, got 'zero'"):
        plmu.Sequential(nn.Embedding(5, 2), plmu.DelayLayer(2, 3, 4.0), missing="zero")
    nested = torch.nested.nested_tensor([torch.randn(3, 2), torch.randn(5, 2)], layout=torch.jagged)
    with pytest.raises(TypeError, match="nested"):
        plmu.DelayLayer(2, 3, 4.0, missing="zero")(nested)
