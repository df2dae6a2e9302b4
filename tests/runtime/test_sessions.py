"""Sessions: rows that step together give what streams give, and the same bits whoever steps beside them."""

import random
from pathlib import Path

import pytest
import torch
from closeness import assert_same
from streams import MODELS, TIME, pushed, stack
from torch import Tensor, nn

import plmu
from plmu import FileFormatError, FrozenModel, Sessions, Stream
from plmu.runtime.stream_files import Saved, write_state

WIDTH = 5


def language_model() -> plmu.Sequential:
    """Embedding, blocks of both kinds and attention with its cache."""
    blocks = [
        plmu.LMUBlock(8, order=3, theta=5.0),
        plmu.MemoryBlock(8, order=3, theta=[2.0, 6.0], hidden=12, kernel_size=2, heads=2),
        plmu.Residual(plmu.Sequential(nn.RMSNorm(8), plmu.CausalAttention(8, 2, 4))),
    ]
    return plmu.Sequential(nn.Embedding(9, 8), *blocks, nn.Linear(8, 9))


ALL = {**MODELS, "language model": language_model}


def samples(name: str, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if name == "language model":
        return torch.randint(9, (count,), generator=generator)
    return torch.randn(count, 3, generator=generator)


@pytest.mark.parametrize("name", ALL)
def test_a_session_gives_what_a_stream_gives(name: str) -> None:
    frozen = FrozenModel(ALL[name]())
    sessions = Sessions(frozen, WIDTH)
    rows = [sessions.add() for _ in range(WIDTH + 2)]  # two batches
    x = [samples(name, TIME, seed) for seed in rows]
    out = [sessions.push({row: x[row][t] for row in rows}) for t in range(TIME)]
    for row in rows:
        assert_same(torch.stack([one[row] for one in out]), pushed(Stream(frozen), x[row]))
        assert sessions.steps(row) == TIME


@pytest.mark.parametrize("width", [WIDTH, 16])  # torch rounds some rows of a batch differently, more so of a small one
@pytest.mark.parametrize("name", ALL)
def test_the_bits_of_a_row_do_not_depend_on_the_others(name: str, width: int) -> None:
    """Beside it others are added, step, are reset and dropped at random, or send what is too large."""
    frozen, x = FrozenModel(ALL[name]()), samples(name, TIME)
    alone = Sessions(frozen, width)
    row = alone.add(3)
    expected = [alone.push({row: one})[row] for one in x]
    crowd, chance = Sessions(frozen, width), random.Random(0)
    crowd.add(3)
    for t in range(TIME):
        for other in [one for one in range(width + 4) if one != 3]:
            if other not in crowd.rows:
                crowd.add(other)
            elif chance.random() < 0.2:
                chance.choice([crowd.reset, crowd.drop])(other)
        rows = [3, *(one for one in crowd.rows if one != 3 and chance.random() < 0.5)]
        chance.shuffle(rows)
        batch = torch.stack([x[t] if one == 3 else samples(name, 1, chance.randrange(99))[0] for one in rows])
        if batch.is_floating_point():
            batch[[place for place, one in enumerate(rows) if one == 0]] = 1e38
        out, accepted = crowd.step(rows, batch)
        place = rows.index(3)
        assert accepted[place]
        assert torch.equal(out[place], expected[t])


@pytest.mark.parametrize("width", [WIDTH, 16])
@pytest.mark.parametrize("name", ALL)
def test_several_samples_at_once_give_the_bits_of_single_steps(name: str, width: int) -> None:
    """In batches that are full and not, and over a step at which subnormal numbers are set to zero."""
    frozen = FrozenModel(ALL[name]())
    single, several = Sessions(frozen, width), Sessions(frozen, width)
    rows = list(range(width + 2))
    for sessions in (single, several):
        for row in rows:
            sessions.add(row)
        states = sessions.tensors(rows)
        small = {key: torch.full_like(value, 1e-35) for key, value in states.items() if value.is_floating_point()}
        sessions.fill(rows, states | small | {"steps": torch.arange(250, 250 + len(rows))})
    x = torch.stack([samples(name, 9, seed) for seed in rows])
    x[::2] = 0  # silence
    out, taken = several.run(rows, x)
    expected = torch.stack([single.step(rows, x[:, t])[0] for t in range(9)], 1)
    assert torch.equal(out, expected)
    assert taken.tolist() == [9] * len(rows)
    after, wanted = several.tensors(rows), single.tensors(rows)
    assert all(torch.equal(after[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize("policy", ["raise", "hold"])
def test_a_bad_sample_among_several_stops_its_own_session(policy: str) -> None:
    frozen = FrozenModel(stack())
    sessions, single = Sessions(frozen, WIDTH, missing=policy), Sessions(frozen, WIDTH, missing=policy)
    rows = [sessions.add() for _ in range(WIDTH + 3)]
    for _ in rows:
        single.add()
    x = torch.randn(len(rows), 6, 3)
    x[1, 4], x[2, 0], x[6, 5], x[7, 2:4] = torch.inf, 3e38, -torch.inf, torch.nan
    out, taken = sessions.run(rows, x)
    counts = [6, 4, 0, 6, 6, 6, 5, 6 if policy == "hold" else 2]
    assert taken.tolist() == counts
    for t in range(6):
        some = [row for row in rows if t < counts[row]]
        assert torch.equal(single.step(some, x[some, t])[0], out[some, t])
    after, wanted = sessions.tensors(rows), single.tensors(rows)
    assert all(torch.equal(after[key], wanted[key]) for key in wanted)


def test_weights_are_shared() -> None:
    frozen = FrozenModel(stack())
    first, second, sessions = Stream(frozen), Stream(frozen), Sessions(frozen)
    assert first._step == second._step == sessions.frozen.folded.step
    assert FrozenModel.of(frozen) is frozen


def test_rows_are_added_reset_and_dropped_one_by_one() -> None:
    sessions = Sessions(stack(), WIDTH)
    a, b = sessions.add(), sessions.add()
    first = sessions.push({a: [1.0, 2.0, 3.0], b: [1.0, 2.0, 3.0]})
    assert (a, b, sessions.rows) == (0, 1, [0, 1])
    sessions.reset(a)
    again = sessions.push({a: [1.0, 2.0, 3.0], b: [1.0, 2.0, 3.0]})
    assert torch.equal(again[a], first[a])
    assert not torch.equal(again[b], first[b])
    assert (sessions.steps(a), sessions.steps(b)) == (1, 2)
    sessions.drop(a)
    assert sessions.rows == [b]
    assert sessions.add() == a
    assert sessions.steps(a) == 0
    assert torch.equal(sessions.push({a: [1.0, 2.0, 3.0]})[a], first[a])
    assert sessions.push({}) == {}
    assert sessions.step([], torch.empty(0, 3))[0].shape == (0, 1)


@pytest.mark.parametrize("name", ALL)
def test_a_saved_session_continues_as_a_session_and_as_a_stream(name: str, tmp_path: Path) -> None:
    frozen, x = FrozenModel(ALL[name]()), samples(name, TIME)
    sessions = Sessions(frozen, WIDTH)
    row = sessions.add(2)
    for sample in x[:7]:
        sessions.push({row: sample})
    sessions.save(row, tmp_path / "state")
    rest = torch.stack([sessions.push({row: sample})[row] for sample in x[7:]])
    other = Sessions(frozen, WIDTH)
    other.add()
    again = other.restore(tmp_path / "state")
    assert (again, other.steps(again)) == (row, 7)
    assert torch.equal(torch.stack([other.push({again: sample})[again] for sample in x[7:]]), rest)
    assert_same(pushed(Stream.restore(frozen, tmp_path / "state"), x[7:]), rest)
    moved = other.restore(tmp_path / "state")  # its row is taken: it gets the same place in another batch
    assert moved == row + WIDTH
    assert torch.equal(torch.stack([other.push({moved: sample})[moved] for sample in x[7:]]), rest)


def test_a_file_cannot_ask_for_many_rows(tmp_path: Path) -> None:
    sessions = Sessions(stack(), WIDTH)
    row = sessions.add()
    sessions.push({row: [0.1, 0.2, 0.3]})
    saved = Saved(1, "raise", True, row=10**12 + 3)
    saved.last = torch.zeros(1, 3)
    saved.state = sessions.frozen.initial_state(saved.last, torch.device("cpu"))
    write_state(tmp_path / "state", sessions.frozen, saved)
    assert sessions.restore(tmp_path / "state") == (10**12 + 3) % WIDTH


def test_a_stream_continues_as_a_session(tmp_path: Path) -> None:
    model, x = stack(), torch.randn(TIME, 3)
    stream = Stream(model)
    pushed(stream, x[:5])
    stream.save(tmp_path / "state")
    sessions = Sessions(model, WIDTH)
    row = sessions.restore(tmp_path / "state")
    assert_same(torch.stack([sessions.push({row: sample})[row] for sample in x[5:]]), pushed(stream, x[5:]))
    stream = Stream(model)
    stream.push(torch.randn(2, 3))
    stream.save(tmp_path / "batch")
    with pytest.raises(FileFormatError, match=r"batch has samples \(2, 3\)"):
        sessions.restore(tmp_path / "batch")
    with pytest.raises(FileFormatError, match="another model"):
        Sessions(MODELS["parallel"]()).restore(tmp_path / "state")


def test_what_many_sessions_remember_can_be_moved() -> None:
    frozen, x = FrozenModel(stack()), torch.randn(9, 3)
    sessions = Sessions(frozen, WIDTH)
    rows = [sessions.add() for _ in range(7)]
    for step in range(4):
        sessions.push({row: x[step] * row for row in rows})
    other = Sessions(frozen, WIDTH)
    for row in rows:
        other.add(row)
    states = sessions.tensors(rows)
    other.fill(rows, states)
    batch = dict.fromkeys(rows, x[5])
    expected, actual = sessions.push(batch), other.push(batch)
    assert all(torch.equal(expected[row], actual[row]) for row in rows)
    assert sessions.tensors([])["steps"].shape == (0,)
    with pytest.raises(ValueError, match="tensors do not fit"):
        other.fill(rows[:3], states)


@pytest.mark.parametrize("policy", ["hold", "zero"])
def test_missing_samples(policy: str) -> None:
    model, x = stack(), torch.randn(TIME, 3)
    absent = torch.rand(TIME, 3) < 0.3
    absent[7] = True
    with_gaps = torch.where(absent, torch.nan, x)
    sessions = Sessions(model, 1, missing=policy)
    row = sessions.add()
    out = [sessions.push({row: None if bool(absent[t].all()) else with_gaps[t]})[row] for t in range(TIME)]
    stream = Stream(model, missing=policy)
    assert torch.equal(torch.stack(out), pushed(stream, with_gaps))


def test_a_bad_sample_changes_no_session() -> None:
    sessions = Sessions(stack(), WIDTH)
    a, b = sessions.add(), sessions.add()
    x = [0.1, 0.2, 0.3]
    sessions.push({a: x, b: x})
    before = sessions.tensors([a, b])
    for bad, message in [
        ([1.0, 2.0], r"row 1: a sample must have shape \(3,\), got \(2,\)"),
        ([float("inf"), 0.0, 0.0], "samples of rows 1 are missing, infinite"),
        ([3e38, 3e38, 3e38], "samples of rows 1 are missing, infinite"),
        (None, "samples of rows 1 are missing"),
    ]:
        with pytest.raises(ValueError, match=message):
            sessions.push({a: x, b: bad})
        after = sessions.tensors([a, b])
        assert all(torch.equal(before[key], after[key]) for key in before)
    batch = torch.tensor([x, [3e38] * 3])
    out, accepted = sessions.step([a, b], batch)
    assert accepted.tolist() == [True, False]
    assert (sessions.steps(a), sessions.steps(b)) == (2, 1)
    assert torch.equal(out[0], _second(x))


def _second(x: list[float]) -> Tensor:
    sessions = Sessions(stack(), WIDTH)
    row = sessions.add()
    sessions.push({row: x})
    return sessions.push({row: x})[row]


def test_silence_leaves_no_subnormal_numbers() -> None:
    sessions = Sessions(plmu.DelayLayer(1, order=4, theta=3.0), WIDTH)
    a, b = sessions.add(), sessions.add()
    sessions.push({a: [1.0], b: [1.0]})
    for _ in range(255 + 256):
        sessions.push({a: [0.0]})
    state = sessions.tensors([a, b])["state.0"]
    assert torch.equal(state[0], torch.zeros_like(state[0]))
    assert state[1].abs().max() > 0.01


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda sessions: sessions.push({4: [0.0] * 3}), "there is no session in row 4"),
        (lambda sessions: sessions.step([0, 0], torch.zeros(2, 3)), "each once"),
        (lambda sessions: sessions.step([0], torch.zeros(1, 2)), r"x must be torch.float32 of shape \(1, 3\)"),
        (lambda sessions: sessions.run([0], torch.zeros(1, 2, 2)), r"x must be torch.float32 of shape \(1, 2, 3\)"),
        (
            lambda sessions: sessions.run([0], torch.zeros(1, 0, 3)),
            r"at least one time step for each row, got \(1, 0, 3\)",
        ),
        (lambda sessions: sessions.run([0], torch.zeros(3)), r"at least one time step for each row, got \(3,\)"),
        (lambda sessions: sessions.add(0), "row 0 cannot be added: it is taken"),
        (lambda sessions: sessions.add(-1), "row -1 cannot be added"),
        (lambda sessions: sessions.reset(7), "there is no session in row 7"),
        (lambda sessions: Sessions(stack(), 0), "width must be"),
        (lambda sessions: Sessions(stack(), missing="guess"), "missing must be one of raise, hold, zero"),
        (lambda sessions: Sessions(stack(), features=2), "features must be 3"),
        (lambda sessions: Sessions(plmu.Sequential(nn.ReLU())), "features must be given"),
    ],
)
def test_wrong_use_is_said(act, message: str) -> None:
    sessions = Sessions(stack(), WIDTH)
    sessions.add()
    with pytest.raises(ValueError, match=message):
        act(sessions)


def test_a_state_that_has_no_rows_is_refused() -> None:
    class Total(plmu.nn.Steppable):
        def forward(self, x, state=None, lengths=None, *, resets=None):
            raise NotImplementedError

        def step(self, x, state=None):
            return x, x.sum()

        def initial_state(self, batch, dtype, device):
            return torch.zeros((), dtype=dtype, device=device)

    with pytest.raises(TypeError, match="one row for each of 64 sessions"):
        Sessions(Total(), features=1)


def test_tokens_out_of_range() -> None:
    sessions = Sessions(language_model(), WIDTH)
    row = sessions.add()
    with pytest.raises(ValueError, match="between 0 and 8, got 9"):
        sessions.push({row: 9})
    with pytest.raises(ValueError, match="out of range"):
        sessions.step([row], torch.tensor([9]))
    with pytest.raises(ValueError, match="a token cannot be missing"):
        sessions.push({row: None})
    assert sessions.steps(row) == 0
