"""Which examples each step takes: batches of one size, of so many tokens, and windows of a stream."""

import dataclasses
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from worker import config, seeded_model, task

from plmu.training import batches
from plmu.training.batches import Buckets, Examples, Prefetcher, Shape, Windows, fits, source_of
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.task import Task

ONE, TWO = (Processes(0, count, torch.device("cpu")) for count in (1, 2))


def epoch(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def texts(lengths: list[int], more: int = 3) -> tuple[Tensor, Tensor]:
    """Padded tokens, none of them 0, of these lengths; and the lengths."""
    known = torch.tensor(lengths)
    longest = int(known.max()) + more
    tokens = torch.arange(1, len(lengths) * longest + 1).reshape(len(lengths), longest)
    return torch.where(torch.arange(longest) < known[:, None], tokens, 0), known


def buckets_of(lengths: list[int], tokens: int, processes: int = 1, rank: int = 0) -> Buckets:
    content = texts(lengths)
    return Buckets(content, (content[1], None), tokens, Processes(rank, processes, torch.device("cpu")))


@given(
    st.lists(st.integers(0, 40), min_size=6, max_size=120),
    st.integers(1, 300),
    st.integers(1, 4),
)
def test_token_budgets(lengths: list[int], tokens: int, processes: int) -> None:
    source, *others = (buckets_of(lengths, tokens, processes, rank) for rank in range(processes))
    padded, known = source.tensors
    seen: set[int] = set()
    first, second = source.order(epoch(1)), source.order(epoch(2))
    assert len(first) == len(second) == source.steps
    for step in first:
        cut, no_cut = step.shape.cut
        assert no_cut is None
        assert step.shape in source.shapes
        assert len(step.keys) == processes or len(step.keys) * cut <= tokens
        taken, own = source.take(step.keys, step.shape)
        assert torch.equal(own, known[step.keys])
        assert taken.shape == (len(step.keys), cut)
        assert torch.equal(taken.count_nonzero(1), own), "no token is cut off"
        assert not seen & set(step.keys.tolist())
        seen |= set(step.keys.tolist())
    assert [step.keys.tolist() for step in first] == [step.keys.tolist() for step in source.order(epoch(1))]
    members = torch.cat([members for members, _, _ in source.buckets])
    assert sorted(members.tolist()) == list(range(len(lengths))), "each example is in one bucket"
    assert len(source.buckets) <= batches.MOST_BUCKETS
    left = sum(len(members) % batch for members, batch, _ in source.buckets)
    assert len(seen) == len(lengths) - left
    for number, (_, batch, shape) in enumerate(source.buckets):
        shapes = [shape, *(other.buckets[number][2] for other in others)]
        rows = [one.rows for one in shapes]
        assert sum(rows) == batch
        assert max(rows) - min(rows) <= 1 <= min(rows)
        assert [one.share for one in shapes] == [each * processes / batch for each in rows]
        assert {one.cut for one in shapes} == {shape.cut}
    for shape in source.shapes:
        keys = source.any_keys(shape)
        assert len(keys) == shape.rows
        assert source.take(keys, shape)[0].count_nonzero(1).tolist() == known[keys].tolist()
    assert torch.equal(source.first(4)[0], padded[:4])


def test_what_is_left_over_is_another_part_each_epoch() -> None:
    source = buckets_of([3] * 50 + [9] * 50, 63)
    orders = [torch.cat([step.keys for step in source.order(epoch(number))]) for number in range(30)]
    assert len({tuple(order.tolist()) for order in orders}) == 30
    assert len(set(torch.cat(orders).tolist())) == 100
    assert len({len(order) for order in orders}) == 1


def test_few_examples_and_equal_lengths() -> None:
    one = buckets_of([5], 100)
    assert (one.steps, one.shapes) == (1, [Shape(1, (5, None))])
    assert buckets_of([5], 2).shapes == [Shape(1, (5, None))], "one that is longer than the budget"
    assert buckets_of([0, 0], 100).shapes[0].cut == (1, None), "empty texts have a step of padding"
    equal = buckets_of([7] * 64, 70)
    assert [len(members) for members, _, _ in equal.buckets] == [8] * 8
    assert {shape.cut for shape in equal.shapes} == {(7, None)}
    assert len(torch.cat([step.keys for step in equal.order(epoch(0))])) == 64
    few = buckets_of([1] * 20 + [50] * 3, 100, processes=4)
    assert sorted(torch.cat([members for members, _, _ in few.buckets]).tolist()) == list(range(23))
    assert all(batch >= 4 for _, batch, _ in few.buckets)
    with pytest.raises(ValueError, match="4 processes need as many training examples, got 3"):
        buckets_of([5] * 3, 100, processes=4)


def text_task(train: list[int], valid: list[int]) -> Task:
    def split(lengths: list[int]) -> tuple[Tensor, Tensor]:
        content = torch.zeros(len(lengths), 20)
        return content, torch.tensor(lengths)

    return dataclasses.replace(
        task(),
        train=split(train),
        valid=split(valid),
        loss=lambda model, batch: model(batch[0][:, :1].expand(-1, 8)).square().mean(),
        lengths=lambda batch: (batch[1], None),
    )


def test_refitting_has_the_lengths_of_validation_examples_too() -> None:
    settings = dataclasses.replace(config(1), batch_tokens=20, refit=True)
    trainer = Trainer(text_task([3, 20, 4, 5], [6, 7, 19, 8]), seeded_model(), settings, ONE, 0)
    assert sum(len(members) for members, _, _ in trainer.source.buckets) == 8
    keys = torch.cat([members for members, _, _ in trainer.source.buckets])
    assert trainer.task.train[1][keys].tolist() == [3, 4, 5, 6, 7, 8, 19, 20]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_tokens": 100}, "batch_tokens is for examples of different lengths: use training.batch_size"),
        ({"carry": True}, "carry is for streams of tokens"),
        ({"batch_size": 10, "accumulate": 4}, "batch_size = 10 must be divisible by training.accumulate = 4$"),
        ({"batch_size": 100, "accumulate": 65}, "batch_size = 100 must be divisible by training.accumulate = 65"),
        ({"batch_size": 130, "accumulate": 65}, "there are 64 training examples: at least 65 are needed"),
    ],
)
def test_batches_that_cannot_be_made_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source_of(task(), dataclasses.replace(config(1), **changes), ONE)


def test_a_batch_must_divide_by_processes_times_parts() -> None:
    with pytest.raises(ValueError, match=r"16 must be divisible by training.accumulate = 3 times the 2 processes"):
        source_of(task(), dataclasses.replace(config(1), batch_size=16, accumulate=3), TWO)


def test_fewer_examples_than_a_batch_are_as_many_as_can_be_divided() -> None:
    source = source_of(task(), dataclasses.replace(config(1), batch_size=1000, accumulate=5), TWO)
    assert isinstance(source, Examples)
    assert (source.batch, source.steps, source.shapes) == (60, 1, [Shape(30)])
    assert source_of(task(), dataclasses.replace(config(1), batch_size=128, accumulate=64), ONE).steps == 1


def stream_task(count: int, length: int) -> Task:
    return dataclasses.replace(task(), train=(torch.arange(count),), window=length)


@given(
    st.integers(2, 12),
    st.integers(1, 6),
    st.integers(0, 200),
    st.booleans(),
    st.sampled_from([torch.uint8, torch.int16]),
)
def test_windows(length: int, batch: int, more: int, carry: bool, dtype: torch.dtype) -> None:
    count = (batch + 1) * length + 1 + more
    tokens = (torch.arange(count) % 251).to(dtype)
    source = Windows(tokens, length, batch, 1, carry)
    steps = source.order(epoch(1))
    assert len(steps) == source.steps >= 1
    places = torch.stack([step.keys for step in steps])  # (steps, batch)
    for step in steps:
        inputs, targets = source.take(step.keys, step.shape)
        assert inputs.dtype == targets.dtype == torch.int64
        expected = (step.keys[:, None] + torch.arange(length + 1)) % 251
        assert torch.equal(inputs, expected[:, :-1])
        assert torch.equal(targets, expected[:, 1:])
    read = (places[..., None] + torch.arange(1, length + 1)).flatten()  # targets
    assert len(read.unique()) == len(read), "no token is predicted twice"
    assert len(read) > count - 1 - (batch + 1) * length, "all but what is less than a batch"
    if carry:
        assert torch.equal(places[1:], places[:-1] + length), "each row goes on where it was"
    inputs, targets = source.first(3)
    assert torch.equal(inputs, tokens[: len(inputs) * length].reshape(-1, length).long())
    assert len(inputs) == min(3, source.windows)


@pytest.mark.parametrize("carry", [False, True])
def test_windows_begin_elsewhere_each_epoch(carry: bool) -> None:
    source = Windows(torch.arange(1000), 16, 25, 1, carry)
    orders = [source.order(epoch(number)) for number in range(300)]
    assert len({int(order[0].keys[0]) % 16 for order in orders}) == 16
    assert [step.keys.tolist() for step in orders[3]] == [step.keys.tolist() for step in source.order(epoch(3))]
    keys = torch.stack([torch.stack([step.keys for step in order]) for order in orders])
    read = (keys[..., None] + torch.arange(1, 17)).flatten().unique()
    assert read[0] == 1
    assert torch.equal(read, torch.arange(1, int(read[-1]) + 1)), "what one epoch leaves out another one reads"
    assert 1000 - 16 <= read[-1] < 1000


def test_a_text_that_is_too_short_says_how_long_it_must_be() -> None:
    with pytest.raises(
        ValueError, match=r"batch_size = 4 windows of 10 tokens need 51 training tokens, got 50: choose"
    ):
        source_of(stream_task(50, 10), dataclasses.replace(config(1), batch_size=4), ONE)
    assert source_of(stream_task(51, 10), dataclasses.replace(config(1), batch_size=4), ONE).steps == 1


def test_streams_have_no_token_budget() -> None:
    with pytest.raises(ValueError, match="batch_tokens is for examples of different lengths"):
        source_of(stream_task(500, 10), dataclasses.replace(config(1), batch_tokens=100), ONE)
    with pytest.raises(ValueError, match="this experiment cannot carry a state"):
        Trainer(stream_task(500, 10), seeded_model(), dataclasses.replace(config(1), carry=True), ONE, 0)


class Slow(Examples):
    """Notes where batches are gathered, and how many of them; one of them may fail."""

    def __init__(self, fails: int | None = None) -> None:
        super().__init__((torch.arange(40),), 4, 1)
        self.fails, self.threads = fails, list[str]()

    def take(self, keys: Tensor, shape: Shape) -> tuple[Tensor, ...]:
        self.threads.append(threading.current_thread().name)
        if len(self.threads) - 1 == self.fails:
            raise OSError("the disk is gone")
        return super().take(keys, shape)


def test_batches_are_gathered_one_ahead_in_a_thread() -> None:
    source = Slow()
    given = [(torch.arange(4) + 4 * number, Shape(4)) for number in range(10)]
    coming = Prefetcher(source, torch.device("cpu")).batches(given)
    for number, (batch,) in enumerate(coming):
        assert torch.equal(batch, given[number][0])
        assert len(source.threads) <= number + 2
    assert threading.main_thread().name not in source.threads
    assert len(set(source.threads)) == 1


@pytest.mark.parametrize("fails", [0, 1, 5, 9])
def test_an_error_in_the_thread_is_raised_where_its_batch_is_due(fails: int) -> None:
    source = Slow(fails)
    coming = Prefetcher(source, torch.device("cpu")).batches([(torch.arange(4), Shape(4))] * 10)
    for _ in range(fails):
        next(coming)
    with pytest.raises(OSError, match="the disk is gone"):
        next(coming)
    assert _gone(source.threads[0])


def test_a_loop_that_ends_early_leaves_no_thread() -> None:
    source = Slow()
    coming = Prefetcher(source, torch.device("cpu")).batches([(torch.arange(4), Shape(4))] * 10)
    next(coming)
    coming.close()
    assert _gone(source.threads[0])


def _gone(name: str) -> bool:
    return name not in [thread.name for thread in threading.enumerate()]


def test_data_is_kept_on_a_gpu_that_has_four_times_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    data = (torch.zeros(100), torch.zeros(25, dtype=torch.int64))  # 600 bytes
    for free, room in ((2400, True), (2399, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10_000))
        assert fits(data, gpu) == room
    assert fits(data, torch.device("cpu"))
