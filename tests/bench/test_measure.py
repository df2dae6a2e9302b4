"""Timing: how often each candidate is called, what is divided by what, and what a GPU's clock and memory say."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from plmu.bench import measure


class Clock:
    """A clock that runs only while a candidate does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.called = 0.0, list[str]()
        monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def candidate(self, name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.called.append(name)
            self.now += seconds

        return call


def test_a_short_candidate_is_called_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice to warm up and once to see how long it takes; then in each round once untimed, and for `least` seconds."""
    clock = Clock(monkeypatch)
    times = measure.timed({"long": clock.candidate("long", 0.5), "short": clock.candidate("short", 0.004)}, rounds=4)
    assert times == {"long": pytest.approx([0.5] * 4), "short": pytest.approx([0.004] * 4)}
    assert clock.called.count("long") == 3 + 4 * (1 + 1)
    assert clock.called.count("short") == 3 + 4 * (1 + 5), "5 calls are 0.02 seconds"


def test_rounds_take_the_candidates_in_another_order_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    candidates = {name: clock.candidate(name, 1.0) for name in "abc"}
    measure.timed(candidates, rounds=9)
    rounds = ["".join(clock.called[k : k + 6 : 2]) for k in range(9, len(clock.called), 6)]
    assert len(rounds) == 9
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 3


@pytest.mark.parametrize("function", [measure.timed, measure.medians])
def test_nine_rounds_of_a_fiftieth_of_a_second_unless_told(
    function: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    function({"a": clock.candidate("a", 0.01)})
    assert len(clock.called) == 3 + 9 * (1 + 2)


def test_the_host_s_time_ends_when_a_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = Clock(monkeypatch), list[int]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(len(clock.called)))
    assert measure.host_seconds(clock.candidate("a", 0.25), rounds=3, repeats=4, most=1.5) == pytest.approx(0.25)
    assert waits == [1, 2, 6, 10, 14], "nothing waits between the calls of a round"
    waits.clear()
    clock.called.clear()
    assert measure.host_seconds(clock.candidate("a", 0.25), rounds=3, repeats=4, most=0.6) == pytest.approx(0.25)
    assert waits == [1, 2, 4, 6, 8], "slow calls are made less often"


@pytest.mark.parametrize(("device", "waits"), [("cpu", 0), ("cuda", 1)])
def test_the_first_call_is_timed_to_its_end(device: str, waits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", clock.candidate("wait", 10.0))
    assert measure.first_seconds(clock.candidate("a", 0.5), device) == 0.5 + 10 * waits
    assert clock.called == ["a"] + ["wait"] * waits


def test_what_takes_no_time_is_not_called_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert measure.medians({"a": clock.candidate("a", 0.0)}, rounds=1, least=1e-6) == {"a": 0.0}
    assert len(clock.called) == 3 + 1 + 10


def test_gradients_are_of_a_random_gradient() -> None:
    x, y = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
    given = measure.random_like(x)
    assert len(set(given.tolist())) == 2
    call = measure.training(lambda: x * x * y, x, y)
    for _ in range(2):  # the same each time
        for found, exact in zip(call(), ([6.0, 16.0], [1.0, 4.0]), strict=True):
            torch.testing.assert_close(found, given * torch.tensor(exact))


def test_the_relative_error() -> None:
    assert measure.relative_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)


@pytest.mark.parametrize(("device", "size"), [("cpu", 1 << 26), ("meta", 1 << 29)])
def test_a_copy_reads_and_writes(device: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB on a CPU, 512 MiB elsewhere: more than caches hold."""

    def medians(candidates: dict[str, Callable[[], torch.Tensor]], *, device: str, rounds: int) -> dict[str, float]:
        assert rounds == 5
        assert candidates["copy"]().numel() == size
        return {"copy": size / 1e9}

    monkeypatch.setattr(measure, "medians", medians)
    assert measure.copy_bandwidth(device) == pytest.approx(2e9)


class Gpu:
    """Stands in for `torch.cuda`: every call takes 3 ms, makes 100 bytes and leaves 10."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.milliseconds, self.held, self.most, self.log = 0.0, 1000, 1000, list[str]()
        self.default, self.current = SimpleNamespace(name="default"), SimpleNamespace(name="another")
        self.made = SimpleNamespace(wait_stream=lambda other: self.log.append("wait"))
        for name, value in {
            "Event": lambda enable_timing: self.event() if enable_timing else None,
            "synchronize": lambda: self.log.append("synchronize"),
            "memory_allocated": lambda: self.held,
            "max_memory_allocated": lambda: self.most,
            "reset_peak_memory_stats": self.reset,
            "current_stream": lambda: self.current,
            "default_stream": lambda: self.default,
            "Stream": lambda: self.made,
            "stream": self.entered,
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: self.log.append("replay")),
            "graph": lambda graph, stream: self.entered(stream),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def event(self) -> SimpleNamespace:
        made = SimpleNamespace(at=0.0)
        made.record = lambda: setattr(made, "at", self.milliseconds)
        made.elapsed_time = lambda end: end.at - made.at
        return made

    def reset(self) -> None:
        self.most = self.held

    def call(self) -> None:
        self.log.append("call")
        self.milliseconds += 3.0
        self.most = max(self.most, self.held + 100)
        self.held += 10

    @contextmanager
    def entered(self, stream: object) -> Iterator[None]:
        self.log.append("made" if stream is self.made else "current" if stream is self.current else "another")
        yield
        self.log.append("end")


def test_a_gpu_is_timed_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    assert measure.medians({"a": gpu.call}, device="cuda", rounds=1) == {"a": pytest.approx(0.003)}
    assert gpu.log.count("call") == 3 + 1 + 7, "7 calls are 0.021 seconds"
    assert gpu.log[-1] == "synchronize"


def test_peak_memory_is_beyond_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    gpu.most = 5000  # of something else
    assert measure.peak_memory(gpu.call) == 100
    assert gpu.log.count("call") == 2


@pytest.mark.parametrize("default", [True, False])
def test_a_graph_is_captured_after_three_calls_and_not_on_the_default_stream(
    default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    if default:
        gpu.current = gpu.default
    replay = measure.graphed(gpu.call)
    name = "made" if default else "current"
    first = ["wait"] if default else []
    assert gpu.log == [*first, name, "call", "call", "call", "end", name, "call", "end", "synchronize"]
    replay()
    assert gpu.log[-1] == "replay"
