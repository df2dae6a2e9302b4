"""A Delay Network at irregular times: against a fine grid, step by step, in pieces, padded, saved and streamed."""

from pathlib import Path

import pytest
import torch
from closeness import assert_same
from recurrences import outputs_of
from torch import Tensor, nn

import plmu

ORDER, THETA, CHANNELS, GRID = 5, 12.0, 2, 8


def layer(**options) -> plmu.TimedDelayLayer:
    return plmu.TimedDelayLayer(CHANNELS, ORDER, THETA, **options)


def sequence(time: int, batch: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Samples with their times, and how many steps of a fine grid each took: some none, some more than the window."""
    generator = torch.Generator().manual_seed(time)
    ticks = torch.randint(0, 3 * GRID, (batch, time), generator=generator)
    ticks[:, 0] += 1
    if time > 3:
        ticks[0, 2], ticks[1, 3] = 0, int(3 * THETA) * GRID
    u = torch.randn(batch, time, CHANNELS, generator=generator, dtype=dtype)
    return torch.cat([(ticks / GRID)[:, :, None].to(dtype), u], dim=2), ticks


@pytest.mark.parametrize("time", [1, 2, 16, 17, 40, 300])
def test_states_are_those_of_a_fine_grid(time):
    x, ticks = sequence(time)
    out, state = layer()(x)
    fine = plmu.DelayNetwork(ORDER, THETA).discretize(dt=1 / GRID)
    for row in range(len(x)):
        held = x[row, :, 1:].repeat_interleave(ticks[row], dim=0)[None]
        m, last = plmu.states(held, fine)
        ends = ticks[row].cumsum(0) - 1
        assert_same(out[row], m[0, ends].flatten(1), terms=20_000)
        assert_same(state[row], last[0], terms=20_000)


def test_regular_times_are_the_delay_layer():
    x, _ = sequence(60)
    x[:, :, 0] = 1.0
    out, state = layer()(x)
    wanted, last = plmu.DelayLayer(CHANNELS, ORDER, THETA)(x[:, :, 1:])
    assert_same(out, wanted)
    assert_same(state, last)
    x[:, :, 0] = 0.5  # twice as many samples in the same time
    fine = plmu.DelayNetwork(ORDER, THETA).discretize(dt=0.5)
    assert_same(layer()(x)[0], plmu.states(x[:, :, 1:], fine)[0].flatten(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_steps_pieces_and_the_whole_agree(dtype):
    x, _ = sequence(70, dtype=torch.float64)
    x = x.to(dtype)
    one = layer()
    whole, last = one(x)
    assert whole.dtype == dtype
    assert last.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    first, state = one(x[:, :33])
    second, end = one(x[:, 33:], state)
    assert_same(torch.cat([first, second], dim=1), whole)
    assert_same(end, last)
    state, found = None, []
    for x_t in x.unbind(1):
        out, state = one.step(x_t, state)
        found.append(out)
    assert_same(torch.stack(found, dim=1), whole)
    assert_same(state, last)


def test_gradients_of_samples_and_state():
    x, _ = sequence(21, batch=2)
    times = x[:, :, :1]

    def run(u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return layer()(torch.cat([times, u], dim=2), state)

    given = (x[:, :, 1:].clone().requires_grad_(), torch.randn(2, ORDER, CHANNELS, dtype=x.dtype, requires_grad=True))
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


def test_padding_changes_nothing():
    x, _ = sequence(30)
    lengths = torch.tensor([30, 11, 0])
    spoilt = x.clone()
    spoilt[1, 11:], spoilt[2] = torch.nan, -1.0
    start = torch.randn(3, ORDER, CHANNELS, dtype=x.dtype)
    for options in ({}, {"return_sequences": False}):
        out, state = layer(**options)(spoilt, start, lengths)
        alone, end = layer(**options)(x[1:2, :11], start[1:2])
        assert_same(out[1:2, :11] if not options else out[1:2], alone)
        assert_same(state[1:2], end)
        assert torch.equal(state[2], start[2])
        assert not out[2].any()
    assert not layer()(spoilt, start, lengths)[0][1, 11:].any()


def test_resets_begin_anew():
    x, _ = sequence(40)
    resets = torch.zeros(3, 40, dtype=torch.bool)
    resets[0, 17], resets[1, 0] = True, True
    start = torch.randn(3, ORDER, CHANNELS, dtype=x.dtype)
    out, _ = layer()(x, start, resets=resets)
    assert_same(out[:1, 17:], layer()(x[:1, 17:])[0])
    assert_same(out[1:2], layer()(x[1:2])[0])
    assert_same(out[2:], layer()(x[2:], start[2:])[0])


@pytest.mark.parametrize(("value", "said"), [(-0.5, "-0.5"), (float("nan"), "nan"), (float("inf"), "inf")])
def test_times_that_go_back_are_refused(value, said):
    x, _ = sequence(9)
    x[1, 4, 0] = value
    with pytest.raises(ValueError, match=rf"time since the step before, at least 0 and finite; got {said} at \(1, 4\)"):
        layer()(x)
    with pytest.raises(ValueError, match=rf"got {said} at \(1,\)"):
        layer().step(x[:, 4])


def test_a_stack_trains_streams_and_is_saved(tmp_path: Path):
    torch.manual_seed(0)
    model = plmu.Sequential(layer(), nn.Linear(ORDER * CHANNELS, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x, _ = sequence(50)
    model(x)[0].square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    plmu.save(model, tmp_path / "model.plmu")
    loaded = plmu.load(tmp_path / "model.plmu")
    stream = plmu.Stream(loaded)
    found = torch.stack([stream.push(x_t) for x_t in x.unbind(1)], dim=1)
    assert_same(found, model(x)[0])
    assert repr(loaded[0]) == "TimedDelayLayer(2, order=5, theta=12.0)"
    assert not loaded[0].state_dict(), "what follows from order and theta is not in a file"


def test_bad_numbers_stay_in_their_channel_until_a_reset():
    """Zero times NaN is NaN: products over many steps would carry it everywhere."""
    x, _ = sequence(40)
    x[0, 5, 1], x[1, 30, 2] = torch.nan, torch.inf
    resets = torch.zeros(3, 40, dtype=torch.bool)
    resets[:, 20] = True
    spoilt = torch.zeros(3, 40, ORDER, CHANNELS, dtype=torch.bool)
    spoilt[0, 5:20, :, 0], spoilt[1, 30:, :, 1] = True, True
    timed = layer()
    out, last = timed(x, resets=resets)
    assert torch.equal(out.isnan().unflatten(2, (ORDER, CHANNELS)), spoilt)
    assert torch.equal(last.isnan(), spoilt[:, -1])
    clean = torch.where(x.isfinite(), x, 0.0)
    assert_same(out.nan_to_num(0.0), timed(clean, resets=resets)[0].where(~out.isnan(), 0.0))
    state = None
    for t in range(20):
        stepped, state = timed.step(x[:, t], state)
        assert torch.equal(stepped.isnan(), out[:, t].isnan())
    start = torch.zeros(3, ORDER, CHANNELS, dtype=x.dtype)
    start[2, 1, 0] = torch.nan
    assert not timed(clean, start, resets=resets)[0][:, 20:].isnan().any()
    assert timed(clean, start, [40, 40, 0], resets=resets)[1][2].isnan().any(), "an empty sequence keeps its state"


def test_a_reset_in_the_padding_changes_nothing():
    x, _ = sequence(30)
    resets = torch.zeros(3, 30, dtype=torch.bool)
    resets[:, 20] = True
    start = torch.randn(3, ORDER, CHANNELS, dtype=x.dtype)
    out, state = layer()(x, start, [12, 20, 0], resets=resets)
    expected, end = layer()(x, start, [12, 20, 0])
    assert_same(out, expected)
    assert_same(state, end)
    assert torch.equal(state[2], start[2])


@pytest.mark.parametrize("jump", [1.0, 1e6], ids=["regular", "with a pause"])
def test_float32_keeps_its_digits_in_a_long_window(jump):
    """e^(A Δ) is nearly the identity, of which float32 keeps 7 digits; and a pause leaves nothing of a large state."""
    timed = plmu.TimedDelayLayer(1, 8, 1e5)
    x = torch.rand(1, 3000, 2)
    x[..., 0] = 1.0
    if jump > 1:
        x[0, 1000, 1], x[0, 1001, 0] = 1e8, jump
    out, expected = timed(x)[0][:, 1001:], timed(x.double())[0][:, 1001:]
    # A rounding error for each of three products and for each of log(3000) / log(16) levels, as they fade at once.
    assert_same(out, expected, terms=60, size=0.0)
    state = timed(x[:, :1500])[1]
    assert_same(timed.step(x[:, 1500], state)[0], expected[:, 499], terms=60, size=0.0)


def test_float64_keeps_its_digits_at_short_intervals():
    """torch's matrix exponential takes a shorter series for small matrices, off by 3e-11."""
    x = torch.rand(1, 20, 2, dtype=torch.float64)
    x[..., 0] *= 0.3
    expected = outputs_of(plmu.TimedDelayLayer(1, 3, 6.0), x[0])
    assert_same(plmu.TimedDelayLayer(1, 3, 6.0)(x)[0][0], expected, terms=200)


def test_sessions_take_intervals_and_refuse_those_that_go_back():
    model = layer()
    sessions, alone = plmu.Sessions(model, width=3), plmu.Stream(model)
    first, second = sessions.add(), sessions.add()
    x = torch.tensor([[0.5, 1.0, 2.0], [1.5, -1.0, 0.0]])
    for sample in x:
        assert_same(sessions.push({first: sample, second: sample})[first], alone.push(sample))
    with pytest.raises(ValueError, match=r"rows 1 are refused: .* the step before, at least 0 and finite; got -0.5 at"):
        sessions.push({first: [1.0, 0.0, 0.0], second: [-0.5, 0.0, 0.0]})
    out, taken = sessions.step([first, second], torch.tensor([[1.0, 2.0, 0.0], [-0.5, 0.0, 0.0]]))
    assert taken.tolist() == [True, False]
    assert_same(out[0], alone.push([1.0, 2.0, 0.0]))
    assert sessions.steps(second) == 2
    with torch._subclasses.FakeTensorMode():
        assert model(torch.rand(3, 9, 3))[0].shape == (3, 9, ORDER * CHANNELS)


def test_a_compiled_model_agrees():
    x, _ = sequence(20, dtype=torch.float32)
    one = layer()
    compiled = torch.compile(one, backend="eager")
    assert_same(compiled(x)[0], one(x)[0])


@pytest.mark.parametrize(
    ("options", "said"), [((0, 4, 9.0), "channels"), ((2, 0, 9.0), "order"), ((2, 4, -1.0), "theta")]
)
def test_bad_options_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        plmu.TimedDelayLayer(*options)
