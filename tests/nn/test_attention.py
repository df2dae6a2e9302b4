"""Causal attention against a plain loop; its window, cache and gradients."""

import math
from typing import Any

import pytest
import torch
from closeness import assert_same
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import plmu
from plmu import CausalAttention


def rotated(x: Tensor, angle: float, heads: int) -> Tensor:
    """x (width,) with pairs of features of each head rotated: by `angle` times 10000^(−i / pairs) for pair i."""
    parts = []
    for head in x.reshape(heads, -1):
        half = head.numel() // 2
        turns = torch.tensor([angle * 10_000 ** (-i / half) for i in range(half)], dtype=x.dtype)
        one, other = head[:half], head[half:]
        parts += [one * turns.cos() - other * turns.sin(), one * turns.sin() + other * turns.cos()]
    return torch.cat(parts)


def plain(layer: CausalAttention, x: Tensor, starts: list[int]) -> Tensor:
    """The definition, for one sequence (time, width), step by step and head by head."""
    size = layer.width // layer.heads
    query, key, value = layer.inputs(x).chunk(3, dim=-1)
    outputs = []
    for now in range(x.shape[0]):
        document = max((start for start in starts if start <= now), default=0)
        seen = range(max(document, now - layer.window + 1), now + 1)
        own = rotated(query[now], now, layer.heads)
        mixed = []
        for head in range(layer.heads):
            features = slice(head * size, (head + 1) * size)
            keys = torch.stack([rotated(key[then], then, layer.heads)[features] for then in seen])
            weights = torch.softmax(keys @ own[features] / math.sqrt(size), dim=0)
            mixed.append(weights @ value[seen.start : seen.stop, features])
        outputs.append(layer.output(torch.cat(mixed)))
    return torch.stack(outputs)


def small(window: int = 4, heads: int = 2, **options: Any) -> CausalAttention:
    torch.manual_seed(1)
    return CausalAttention(8, heads, window, dtype=torch.float64, **options)


@given(data=st.data())
def test_it_is_its_definition(data: st.DataObject) -> None:
    time, window = data.draw(st.integers(1, 12), "time"), data.draw(st.integers(2, 9), "window")
    layer = small(window, data.draw(st.sampled_from([1, 2, 4]), "heads"), bias=data.draw(st.booleans(), "bias"))
    starts = sorted(data.draw(st.sets(st.integers(0, time - 1), max_size=3), "resets"))
    x = torch.randn(1, time, 8, dtype=torch.float64, requires_grad=True)
    resets = torch.zeros(1, time, dtype=torch.bool)
    resets[0, starts] = True
    out, _ = layer(x, resets=resets if starts else None)
    expected = plain(layer, x[0], starts)[None]
    assert_same(out, expected)
    weight = torch.randn_like(out)
    given = [x, *layer.parameters()]
    assert_same(torch.autograd.grad((out * weight).sum(), given), torch.autograd.grad((expected * weight).sum(), given))
    cut = data.draw(st.integers(0, time - 1), "cut")
    if cut:
        first, state = layer(x[:, :cut], resets=resets[:, :cut])
        second, _ = layer(x[:, cut:], state, resets=resets[:, cut:])
        assert_same(torch.cat([first, second], dim=1), expected)


def test_gradients_are_those_of_differences() -> None:
    layer = small(3)
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    state = tuple(part.requires_grad_(part.dim() == 3) for part in layer(torch.randn(2, 2, 8).double())[1])
    state = tuple(part.detach().requires_grad_(part.dim() == 3) for part in state)

    def run(x: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        out, end = layer(x, (key, value, state[2]), [5, 3])
        return out, *end[:2]

    assert torch.autograd.gradcheck(run, (x, *state[:2]))


def test_a_step_sees_its_window_and_nothing_else() -> None:
    layer = small(window=4)
    x = torch.randn(1, 20, 8, dtype=torch.float64, requires_grad=True)
    out, _ = layer(x)
    (of_x,) = torch.autograd.grad(out[0, 11].sum(), [x])
    assert of_x[0].any(dim=1).nonzero().flatten().tolist() == [8, 9, 10, 11]


def test_the_state_does_not_grow_and_forgets_what_left_the_window() -> None:
    layer = small(window=4)
    state = None
    sizes = set()
    long = torch.randn(2, 50, 8, dtype=torch.float64)
    for x in long.unbind(1):
        out, state = layer.step(x, state)
        sizes.add(tuple(tuple(part.shape) for part in state))
    assert sizes == {((2, 3, 8), (2, 3, 8), (2, 3))}
    _, short = layer(long[:, -4:-1])
    assert_same(layer.step(long[:, -1], short)[0], out)


def test_the_start_is_not_attended_to() -> None:
    """Nor is a state without steps, which is that of None."""
    layer = small(window=6)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    start = layer.initial_state(2, torch.float64, torch.device("cpu"))
    assert_same(layer(x, start), layer(x))
    one, state = layer.step(x[:, 0])
    assert_same(one, layer.output(layer.inputs(x[:, 0]).chunk(3, dim=-1)[2]))  # the value of the only step
    assert_same(state[2], torch.tensor([[0.0, 0, 0, 0, 1]] * 2, dtype=torch.float64))


def test_an_empty_sequence_leaves_no_steps_behind() -> None:
    layer = small(window=4)
    _, state = layer(torch.randn(2, 5, 8, dtype=torch.float64), lengths=[0, 2])
    assert not any(part[0].any() for part in state)
    assert state[2][1].tolist() == [0.0, 1.0, 1.0]


WRONG: dict[str, tuple[Any, str]] = {
    "window": (lambda: CausalAttention(8, 2, 1), "window must be at least 2, got 1"),
    "heads": (lambda: CausalAttention(8, 3, 4), "width must be an even multiple of heads, got width=8 and heads=3"),
    "odd heads": (lambda: CausalAttention(6, 2, 4), "width must be an even multiple of heads"),
    "shape": (lambda: small()(torch.ones(2, 3, 5).double()), r"\(batch, time, 8\), got \(2, 3, 5\)"),
    "precision": (lambda: small()(torch.ones(2, 3, 8)), "float32 and the layer torch.float64"),
    "state": (lambda: small()(torch.ones(1, 3, 8).double(), torch.ones(1)), "tuple of keys, values .* got Tensor"),
    "size of state": (
        lambda: small(4)(torch.ones(1, 3, 8).double(), small(5)(torch.ones(1, 3, 8).double())[1]),
        r"keys of state must have shape \(1, 3, 8\), got \(1, 4, 8\)",
    ),
    "resets": (lambda: small()(torch.ones(1, 3, 8).double(), resets=torch.ones(1, 3)), "resets must be a tensor of bo"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_name_what_is_wrong(what: str) -> None:
    make, words = WRONG[what]
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_a_batch_without_sequences() -> None:
    out, state = small()(torch.ones(0, 5, 8, dtype=torch.float64))
    assert out.shape == (0, 5, 8)
    assert [tuple(part.shape) for part in state] == [(0, 3, 8), (0, 3, 8), (0, 3)]


def test_a_stream_goes_on_for_long_as_it_began() -> None:
    """Only distances count: the same samples give the same outputs at any time."""
    layer = plmu.Sequential(small(4).float())
    stream = plmu.Stream(layer)
    samples = torch.randn(4, 8)
    seen = [torch.stack([stream.push(one) for one in samples]) for _ in range(80)]
    assert torch.equal(seen[1], seen[-1])
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("time", [7, 30], ids=["one window", "several windows"])
@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_a_bad_value_reaches_the_steps_that_see_it_and_no_others(time: int, value: float) -> None:
    layer = small(window=9)
    x = torch.randn(3, time, 8, dtype=torch.float64)
    resets = torch.zeros(3, time, dtype=torch.bool)
    resets[1, 5] = True
    expected, _ = layer(x, resets=resets)
    spoilt = x.clone()
    spoilt[:2, 3, 2] = value
    out, state = layer(spoilt, resets=resets)
    bad = torch.zeros(3, time, dtype=torch.bool)
    bad[0, 3:12] = bad[1, 3:5] = True
    assert torch.equal(out.isnan().all(2), bad)
    assert_same(out[~bad], expected[~bad])
    first, middle = layer(spoilt[:, :4], resets=resets[:, :4])
    second, end = layer(spoilt[:, 4:], middle, resets=resets[:, 4:])
    assert torch.equal(torch.cat([first, second], dim=1).isnan().all(2), bad)
    assert torch.equal(end[1].isfinite(), state[1].isfinite())
    assert bool(end[1].isfinite().all()) == (time == 30)  # by then it has left the cache


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")  # torch's own use of it
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("window", [3, 30], ids=["longer than the window", "shorter than the window"])
def test_forward_mode_and_second_derivatives(window: int) -> None:
    """The kernels of torch have neither."""
    layer, x = small(window), torch.randn(1, 4, 8, dtype=torch.float64)
    for run, value in ((lambda x: layer(x)[0], x), (lambda x: layer.step(x)[0], x[:, 0])):
        expected = torch.autograd.functional.jacobian(run, value)
        tangent = torch.randn_like(value)
        out, change = torch.func.jvp(run, (value,), (tangent,))
        assert_same(change, (expected * tangent).flatten(out.dim()).sum(-1))
        with torch.no_grad():
            assert_same(run(value), out)

        def loss(x: Tensor, run=run) -> Tensor:
            return run(x).square().sum()

        second = torch.autograd.functional.hessian(loss, value)
        assert_same(torch.func.hessian(loss)(value), second)
        assert torch.autograd.gradgradcheck(run, value.clone().requires_grad_())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")  # torch's own use of it
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_second_derivatives_of_attention_to_another_sequence() -> None:
    layer = plmu.CrossAttention(8, heads=2, dtype=torch.float64)
    x, source = (torch.randn(1, steps, 8, dtype=torch.float64, requires_grad=True) for steps in (3, 4))

    def run(x: Tensor, source: Tensor) -> Tensor:
        return layer(x, layer.read(source, [3]))

    assert torch.autograd.gradcheck(run, (x, source), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, (x, source))
    with torch.no_grad():  # by torch's kernel
        inference = run(x, source)
    assert_same(run(x, source), inference)
