"""Every layer gives the same answer in every way it can be run: whole, in pieces, step by step, padded, with resets,
compiled, transformed, checkpointed, under autocast; and names what is wrong with its input."""

import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import assert_same
from hypothesis import given
from hypothesis import strategies as st
from layers import INPUTS, LAYERS, assert_equal, build, flat, pick, random_state
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

import plmu

every_layer = pytest.mark.parametrize("name", LAYERS)
with_last = pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith("residual")])


def gradients(layer: nn.Module, x: Tensor, out: Tensor, weight: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((out * weight).sum(), [x, *layer.parameters()]))


def in_pieces(layer: plmu.nn.Steppable, x: Tensor, state: Any, resets: Tensor, cuts: list[int]) -> tuple[Tensor, Any]:
    outputs = []
    for start, stop in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        out, state = layer(x[:, start:stop], state, resets=resets[:, start:stop])
        outputs.append(out)
    return torch.cat(outputs, dim=1), state


def in_steps(layer: plmu.nn.Steppable, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    outputs = []
    for x_t in x.unbind(1):
        out, state = layer.step(x_t, state)
        outputs.append(out)
    return torch.stack(outputs, dim=1), state


# ---------------------------------------------------------------- the promise


@every_layer
@given(data=st.data())
def test_whole_in_pieces_and_step_by_step(name: str, data: st.DataObject) -> None:
    longest = 40 if name == "chunked" else 20  # in chunks of 16 steps
    batch, time = data.draw(st.integers(1, 3), "batch"), data.draw(st.integers(1, longest), "time")
    cuts = sorted(data.draw(st.sets(st.integers(1, time - 1), max_size=4), "cuts")) if time > 1 else []
    torch.manual_seed(data.draw(st.integers(0, 99), "seed"))
    layer = build(name)
    x = torch.randn(batch, time, INPUTS, dtype=torch.float64, requires_grad=True)
    state = random_state(layer, batch) if data.draw(st.booleans(), "with state") else None
    resets = torch.rand(batch, time) < data.draw(st.sampled_from([0.0, 0.2]), "resets")
    whole, end = layer(x, state, resets=resets if resets.any() else None)
    weight = torch.randn_like(whole)
    expected = gradients(layer, x, whole, weight)
    pieces, end_of_pieces = in_pieces(layer, x, state, resets, cuts)
    assert_same((pieces, end_of_pieces), (whole, end))
    assert_same(gradients(layer, x, pieces, weight), expected)
    if not resets.any():
        steps, end_of_steps = in_steps(layer, x, state)
        assert_same((steps, end_of_steps), (whole, end))
        assert_same(gradients(layer, x, steps, weight), expected)


@every_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_whole_and_step_by_step_in_lower_precision(name: str, dtype: torch.dtype) -> None:
    layer = build(name, dtype)
    x = torch.randn(2, 20, INPUTS, dtype=dtype)
    with torch.no_grad():
        whole, end = layer(x)
        steps, end_of_steps = in_steps(layer, x, None)
    assert whole.dtype == dtype
    # Every product rounds its output to `dtype`. The original LMU has 20 steps one behind the other, with four each.
    roundings = 200 if dtype == torch.float32 else 20 * 4
    assert_same(steps, whole, roundings)
    for one, other in zip(flat(end_of_steps), flat(end), strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert_same(one.to(dtype), other.to(dtype), roundings)


@every_layer
def test_gradients_flow_through_the_carried_state(name: str) -> None:
    layer = build(name)
    state = random_state(layer, 2)
    parts = [part.requires_grad_() for part in flat(state)]
    out, end = layer(torch.randn(2, 9, INPUTS, dtype=torch.float64), state)
    if not parts:
        return
    total = out.sum() + sum(part.sum() for part in flat(end))
    for value in torch.autograd.grad(total, parts):
        assert value.isfinite().all()
        assert value.any()


@every_layer
def test_resets_are_separate_sequences(name: str) -> None:
    layer = build(name)
    x = torch.randn(2, 37, INPUTS, dtype=torch.float64)
    starts = [[0, 5, 6, 30], [17]]
    resets = torch.zeros(2, 37, dtype=torch.bool)
    for i, marks in enumerate(starts):
        resets[i, marks] = True
    state = random_state(layer, 2)
    out, end = layer(x, state, resets=resets)
    for i, marks in enumerate(starts):
        bounds = sorted({0, *marks, 37})
        for start, stop in pairwise(bounds):
            before = None if start in marks else pick(state, slice(i, i + 1))
            alone, alone_end = layer(x[i : i + 1, start:stop], before)
            assert_same(out[i : i + 1, start:stop], alone)
        assert_same(pick(end, slice(i, i + 1)), alone_end)


@every_layer
@pytest.mark.parametrize("as_list", [False, True], ids=["tensor", "list"])
def test_padded_sequences_are_as_if_alone(name: str, as_list: bool) -> None:
    layer = build(name)
    lengths = torch.tensor([20, 0, 1, 13])
    x = torch.randn(4, 20, INPUTS, dtype=torch.float64)
    state = random_state(layer, 4)
    weight = torch.randn_like(layer(x)[0])
    padded = torch.where(torch.arange(20)[None, :, None] < lengths[:, None, None], x, torch.nan).requires_grad_()
    out, end = layer(padded, state, lengths.tolist() if as_list else lengths)
    found = gradients(layer, padded, out, weight)
    total = [torch.zeros_like(value) for value in found]
    for i, length in enumerate(lengths.tolist()):
        one = slice(i, i + 1)
        assert not out[i, length:].any()
        if length == 0:
            assert_equal(pick(end, i), pick(state, i))
            continue
        alone = x[one, :length].clone().requires_grad_()
        expected, expected_end = layer(alone, pick(state, one))
        assert_same(out[one, :length], expected)
        assert_same(pick(end, one), expected_end)
        of_x, *rest = gradients(layer, alone, expected, weight[one, :length])
        total[0][one, :length] = of_x
        total[1:] = [sum_ + more for sum_, more in zip(total[1:], rest, strict=True)]
    assert_same(found, total)


@every_layer
def test_lengths_and_resets_together(name: str) -> None:
    layer = build(name)
    x, state = torch.randn(3, 20, INPUTS, dtype=torch.float64), random_state(layer, 3)
    lengths = [14, 0, 9]
    resets = torch.zeros(3, 20, dtype=torch.bool)
    resets[:, [0, 9, 15]] = True  # at the first step of all, past the end of two, at the length of one
    out, end = layer(x, state, lengths, resets=resets)
    for i, length in enumerate(lengths):
        assert not out[i, length:].any()
        if length == 0:
            assert_equal(pick(end, i), pick(state, i))
        else:
            expected, expected_end = layer(x[i : i + 1, :length], None, resets=resets[i : i + 1, :length])
            assert_same(out[i : i + 1, :length], expected)
            assert_same(pick(end, slice(i, i + 1)), expected_end)


@every_layer
def test_the_order_of_a_batch_does_not_matter(name: str) -> None:
    layer = build(name)
    x, state = torch.randn(4, 20, INPUTS, dtype=torch.float64), random_state(layer, 4)
    lengths, order = torch.tensor([20, 0, 1, 13]), torch.tensor([2, 0, 3, 1])
    out, end = layer(x, state, lengths)
    turned, turned_end = layer(x[order], pick(state, order), lengths[order])
    assert_same(turned, out[order])
    assert_same(turned_end, pick(end, order))


@with_last
@pytest.mark.parametrize("lengths", [None, [20, 0, 1, 13]], ids=["full", "lengths"])
def test_the_last_output_alone(name: str, lengths: list[int] | None) -> None:
    every, last = build(name), build(name, return_sequences=False)
    x, state = torch.randn(4, 20, INPUTS, dtype=torch.float64), random_state(every, 4)
    resets = torch.rand(4, 20) < 0.1
    padded = x
    if lengths is not None:
        padded = torch.where(torch.arange(20)[None, :, None] < torch.tensor(lengths)[:, None, None], x, torch.nan)
    for marks in (None, resets):
        found = padded.clone().requires_grad_()
        out, end = last(found, state, lengths, resets=marks)
        outs, expected_end = every(x, state, lengths, resets=marks)
        steps = torch.tensor(lengths or [20] * 4)
        expected = torch.where((steps > 0)[:, None], outs[torch.arange(4), steps - 1], 0.0)
        assert_same(out, expected)
        assert_same(end, expected_end)
        for value in gradients(last, found, out, torch.randn_like(out)):
            assert value.isfinite().all()


@every_layer
def test_strided_and_broadcast_input(name: str) -> None:
    layer = build(name)
    x = torch.randn(INPUTS, 2, 20, dtype=torch.float64).permute(1, 2, 0)
    assert_same(layer(x), layer(x.contiguous()))
    spread = torch.randn(1, 20, INPUTS, dtype=torch.float64).expand(3, -1, -1)
    assert_same(layer(spread)[0][2], layer(spread[:1])[0][0])
    assert layer(x[:0])[0].shape[0] == 0


# ---------------------------------------------------------------- compiled and transformed


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")  # torch's own doing
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize(("name", "time"), [("chunked", 20), ("trained theta", 6), ("stack", 6)])
def test_compiled_without_a_break(name: str, time: int) -> None:
    layer = build(name)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, time, INPUTS, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([time, 3])
    out, end = layer(x, None, lengths)
    found, found_end = compiled(x, None, lengths)
    weight = torch.randn_like(out)
    assert_same((found, found_end), (out, end))
    assert_same(gradients(layer, x, found, weight), gradients(layer, x, out, weight))


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_layer_takes_new_weights_states_and_lengths() -> None:
    layer = build("plain")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for time in (5, 7, 9):
        x = torch.randn(2, time, INPUTS, dtype=torch.float64)
        out, end = compiled(x)
        assert_same((out, end), layer(x))
        end = end.detach()
        assert_same(compiled(x, end), layer(x, end))
        with torch.no_grad():
            for value in layer.parameters():
                value.mul_(0.7)


@pytest.mark.full  # the compiler of C++ takes longer than all tests of this file
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_by_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the common one may hold another processor's code
    layer = build("plain", torch.float32)
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(2, 8, INPUTS, requires_grad=True)
    out, end = layer(x)
    found, found_end = compiled(x)
    weight = torch.randn_like(out)
    assert_same((found, found_end), (out, end))
    assert_same(gradients(layer, x, found, weight), gradients(layer, x, out, weight))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "delay"])  # which has nothing to train
def test_per_sample_gradients(name: str) -> None:
    layer = build(name)
    x = torch.randn(3, 11, INPUTS, dtype=torch.float64)
    parameters = {key: value.detach() for key, value in layer.named_parameters()}

    def loss(values: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(layer, values, (sample[None],))[0].square().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(3):
        expected = torch.autograd.grad(loss(dict(layer.named_parameters()), x[i]), layer.parameters())
        assert_same([found[key][i] for key in parameters], list(expected))


@every_layer
def test_activation_checkpointing(name: str) -> None:
    layer = build(name)
    x = torch.randn(2, 11, INPUTS, dtype=torch.float64, requires_grad=True)
    out, _ = layer(x)
    weight = torch.randn_like(out)
    again, _ = checkpoint(layer, x, use_reentrant=False)
    assert_same(again, out)
    assert_same(gradients(layer, x, again, weight), gradients(layer, x, out, weight))


@every_layer
def test_inference_first_and_training_after(name: str) -> None:
    layer, untouched = build(name), build(name)
    x = torch.randn(2, 11, INPUTS, dtype=torch.float64)
    with torch.inference_mode():
        layer(x)
        layer.step(x[:, 0])
    found, expected = (x.clone().requires_grad_() for _ in range(2))
    out, reference = layer(found)[0], untouched(expected)[0]
    assert_same(out, reference)
    weight = torch.randn_like(out)
    assert_same(gradients(layer, found, out, weight), gradients(untouched, expected, reference, weight))


@pytest.mark.parametrize("name", ["plain", "gated", "bare", "several theta", "delay", "original"])
@pytest.mark.parametrize("last", [False, True], ids=["sequence", "last"])
def test_autocast(name: str, last: bool) -> None:
    layer = build(name, torch.float32, return_sequences=not last)
    x = torch.randn(2, 11, INPUTS, requires_grad=True)
    exact, exact_end = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        out, end = layer(x)
        again, _ = layer(x, end)  # the state goes back in
    assert out.dtype == again.dtype == torch.bfloat16
    for part, expected in zip(flat(end), flat(exact_end), strict=True):
        assert part.dtype == torch.float32
        assert_same(part.bfloat16(), expected.bfloat16(), terms=40)  # u and h are bfloat16; 11 steps of 3 or 4 terms
    assert_same(out, exact.bfloat16(), terms=40)
    out.float().square().sum().backward()
    assert all(value.grad.dtype == torch.float32 for value in layer.parameters())


@pytest.mark.parametrize("name", ["plain", "gated", "several theta", "delay", "original", "stack"])
def test_steps_under_autocast_carry_a_float32_state(name: str) -> None:
    layer = build(name, torch.float32)
    x = torch.randn(2, 11, INPUTS)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole, end = layer(x)
        steps, end_of_steps = in_steps(layer, x, None)
    assert steps.dtype == whole.dtype == torch.bfloat16
    assert_same(steps, whole, terms=80)
    for one, other in zip(flat(end_of_steps), flat(end), strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert_same(one.bfloat16(), other.bfloat16(), terms=80)


# ---------------------------------------------------------------- bad input

BAD_INPUTS = [
    ({"x": torch.zeros(2, 3)}, ValueError, "x must"),
    ({"x": torch.zeros(2, 5, 3, 1)}, ValueError, "x must"),
    ({"x": torch.zeros(2, 5, 4)}, ValueError, "x must have shape"),
    ({"x": torch.zeros(2, 0, 3)}, ValueError, "x must have at least one time step"),
    ({"x": torch.zeros(2, 5, 3, dtype=torch.int64)}, TypeError, "x must be floating point, got torch.int64"),
    ({"x": torch.zeros(2, 5, 3, dtype=torch.bool)}, TypeError, "x must be floating point"),
    ({"x": torch.zeros(5, 3)}, ValueError, r"x must have shape .*: for one sequence give x\[None\]"),
    (
        {"x": torch.nested.nested_tensor([torch.zeros(5, 3)], layout=torch.jagged)},
        TypeError,
        "x must be a padded tensor, got a nested one",
    ),
    ({"x": pack_sequence([torch.zeros(5, 3)])}, TypeError, "x must be a tensor, got a PackedSequence"),
    ({"x": [[[0.0] * 3]]}, TypeError, "x must be a tensor, got list"),
    ({"lengths": [6, 1]}, ValueError, "lengths must lie between 0 and the 5 time steps, got 6"),
    ({"lengths": [-1, 1]}, ValueError, "lengths must lie between 0 and the 5 time steps, got -1"),
    ({"lengths": [1]}, ValueError, "lengths must have shape"),
    ({"lengths": torch.tensor(3)}, ValueError, "lengths must have shape"),
    ({"lengths": torch.tensor([1.0, 2.0])}, TypeError, "lengths must be integers"),
    ({"lengths": torch.tensor([True, False])}, TypeError, "lengths must be integers"),
    ({"resets": torch.zeros(2, 4, dtype=torch.bool)}, ValueError, "resets must have shape"),
    ({"resets": torch.zeros(2, 5)}, TypeError, "resets must be a tensor of bool"),
    ({"resets": [[True] * 5] * 2}, TypeError, "resets must be a tensor of bool"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), BAD_INPUTS, ids=range(len(BAD_INPUTS)))
@pytest.mark.parametrize("name", ["plain", "gated", "several theta", "multi-input", "delay", "original"])
def test_bad_input_is_named(name: str, wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    for options in ({}, {"return_sequences": False}):
        layer = build(name, torch.float32, **options)
        with pytest.raises(error, match=message):
            layer(**{"x": torch.zeros(2, 5, 3)} | wrong)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(3), ValueError, r"x must have shape \(batch, 3\), got \(3,\): give x\[None\]"),
        (torch.zeros(2, 5, 3), ValueError, "x must have shape"),
        (torch.zeros(2, 4), ValueError, "x must have shape"),
        (torch.zeros(2, 3, dtype=torch.int32), TypeError, "x must be floating point"),
        ([0.0] * 3, TypeError, "x must be a tensor"),
    ],
    ids=range(5),
)
@pytest.mark.parametrize("name", ["plain", "gated", "several theta", "multi-input", "delay", "original"])
def test_a_bad_step_is_named(name: str, x: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(name, torch.float32).step(x)


BAD_STATES = {
    "batch": (lambda good: good[:1], ValueError, "shape"),
    "order": (lambda good: good[:, 1:], ValueError, "shape"),
    "channels": (lambda good: good[:, :, :-1], ValueError, "shape"),
    "twice the channels": (lambda good: torch.cat([good, good], dim=2), ValueError, "shape"),
    "rank": (lambda good: good[0], ValueError, "shape"),
    "wider": (lambda good: good.double(), TypeError, "state must be torch.float32"),
    "narrower": (lambda good: good.bfloat16(), TypeError, "state must be torch.float32"),
    "kind": (lambda good: (good,), TypeError, "state must be a tensor"),
    "device": (lambda good: good.to("meta"), ValueError, "state must be on cpu"),
}


@pytest.mark.parametrize("wrong", BAD_STATES)
@pytest.mark.parametrize("name", ["plain", "gated", "several theta", "multi-input", "trained theta", "delay"])
@pytest.mark.parametrize("way", ["whole", "last", "step"])
def test_a_bad_state_is_named(way: str, name: str, wrong: str) -> None:
    layer = build(name, torch.float32, return_sequences=way != "last")
    x = torch.zeros(2, 5, 3)
    good = layer.initial_state(2, torch.float32, x.device)
    spoil, error, message = BAD_STATES[wrong]
    if message == "shape":
        message = re.escape(f"state must have shape {tuple(good.shape)}")
    with pytest.raises(error, match=message):
        layer.step(x[:, 0], spoil(good)) if way == "step" else layer(x, spoil(good))


@pytest.mark.usefixtures("_fresh_compiler")
def test_layers_of_several_classes_and_lengths_are_compiled_in_one_process() -> None:
    """torch compiles each function a limited number of times: no class may count for another."""
    layers = (
        plmu.ParallelLMU(2, 3, 4, 5.0),
        plmu.DelayLayer(2, 4, 5.0),
        plmu.Sequential(nn.Linear(2, 3), plmu.ParallelLMU(3, 3, 4, 5.0)),
    )
    for layer in layers:
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        for time in (5, 9, 17, 23):
            x = torch.randn(1, time, 2)
            torch.testing.assert_close(compiled(x)[0], layer(x)[0])
