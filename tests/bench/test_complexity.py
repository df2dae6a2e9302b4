"""`plmu bench complexity`: which sizes are measured, when it stops, and what a row of the table computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plmu.bench import complexity

WRITTEN = json.loads((Path(__file__).parents[2] / "results" / "bench-complexity-cuda.json").read_text(encoding="utf-8"))
BY_NAME = {layer.name: layer for layer in complexity.LAYERS}
SMALL = {"batch": 2, "n": 8, "d": 5, "d_x": 3}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("RNN", (2, 8, 3)),
        ("convolution", (2, 3, 5)),  # of four steps
        ("attention", (2, 1, 8, 3)),
        ("DN, recurrent (eq. 19)", (2, 8, 5, 3)),
        ("DN, Toeplitz (eq. 24)", (2, 8, 5, 3)),
        ("DN, final state (eq. 25)", (2, 5, 3)),
        ("DN, FFT (eq. 26)", (2, 8, 5, 3)),
        ("DN, chunked", (2, 8, 5, 3)),
    ],
)
def test_what_a_row_computes(name: str, shape: tuple[int, ...]) -> None:
    assert BY_NAME[name].build(SMALL, "cpu")().shape == shape
    complexity.check(BY_NAME[name])


@pytest.mark.parametrize("name", ["DN, chunked", "DN, final state (eq. 25)"])
def test_an_answer_that_is_wrong_by_a_hundredth_is_refused(name: str) -> None:
    def build(sizes: complexity.Sizes, device: str) -> Callable[[], torch.Tensor]:
        right = BY_NAME[name].build(sizes, device)
        return lambda: 1.01 * right()

    with pytest.raises(AssertionError, match="close"):
        complexity.check(complexity.Layer(name, "", {"n": 1}, build))


class Replay:
    """Measures nothing: every call takes the seconds that it is told for the next size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
        self.calls, self.rounds, self.graphs = 0, set[int](), 0

        def medians(candidates: dict[str, object], *, device: str, rounds: int) -> dict[str, float]:
            self.calls += 1
            self.rounds.add(rounds)
            return dict.fromkeys(candidates, seconds(self.calls - 1))

        def graphed(call: object) -> object:
            self.graphs += 1
            return call

        monkeypatch.setattr(complexity, "medians", medians)
        monkeypatch.setattr(complexity, "graphed", graphed)


def layer(**expected: float) -> complexity.Layer:
    return complexity.Layer("one", "", expected, lambda sizes, device: lambda: torch.zeros(()))


@pytest.mark.parametrize("row", WRITTEN["growth"], ids=lambda row: f"{row['layer']}, {row['size']}")
def test_the_committed_times_lead_to_the_committed_sizes(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    times = [point["milliseconds"] / 1e3 for point in row["points"]]
    replay = Replay(monkeypatch, lambda k: times[k])
    found = complexity.points_of(
        layer(**BY_NAME[row["layer"]].expected), WRITTEN["base"], row["size"], "cuda:0", rounds=9
    )
    assert found == list(zip([point["size"] for point in row["points"]], times, strict=True))
    assert (replay.rounds, replay.graphs) == ({4}, len(times)), "half the rounds, as graphs"
    assert complexity.slope(found[-3:]) == pytest.approx(row["growth"])


@pytest.mark.parametrize(
    ("device", "first", "factor", "count"),
    [
        ("cpu", 0.05, 1.5, 5),  # until four times the first: 1, 1.5, 2.2, 3.4, 5.1
        ("cpu", 0.05, 2.0, 3),
        ("cpu", 0.01, 2.0, 4),  # until 50 ms: 10, 20, 40, 80
        ("cpu", 0.0125, 2.0, 3),
        ("cuda", 0.0004, 2.0, 4),  # until 2 ms: 0.4, 0.8, 1.6, 3.2
        ("cuda", 0.0005, 2.0, 3),
    ],
)
def test_sizes_double_until_the_work_is_what_takes_the_time(
    device: str, first: float, factor: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Replay(monkeypatch, lambda k: first * factor**k)
    found = complexity.points_of(layer(n=1), {"batch": 1, "n": 4, "d": 1, "d_x": 2}, "n", device, rounds=1)
    assert [size for size, _ in found] == [4 << k for k in range(count)]
    assert replay.rounds == {3}, "at least three"
    assert replay.graphs == (0 if device == "cpu" else count)


def test_sizes_stop_where_memory_would_run_short(monkeypatch: pytest.MonkeyPatch) -> None:
    Replay(monkeypatch, lambda k: 0.0)
    base = {"batch": 1, "n": 1 << 24, "d": 1, "d_x": 1}
    found = complexity.points_of(layer(n=1), base, "n", "cpu", 1)
    assert [size for size, _ in found] == [1 << 24, 1 << 25, 1 << 26], "with the weight one more than 2^27 numbers"
    found = complexity.points_of(layer(n=1), {**base, "n": 1 << 30}, "n", "cpu", 1)
    assert [size for size, _ in found] == [1 << 30, 1 << 31, 1 << 32], "three in any case"


@pytest.mark.parametrize(
    ("expected", "device", "most"),
    [
        # batch n d_x numbers and the weight's d_x²
        ({"n": 1, "d_x": 2}, "cpu", {"batch": 1, "n": (1 << 27) - 1, "d": 99, "d_x": 1}),
        ({"n": 1, "d_x": 2}, "cuda:1", {"batch": 1, "n": (1 << 31) - 1, "d": 99, "d_x": 1}),
        ({"n": 1, "d_x": 2}, "cpu", {"batch": 4, "n": (1 << 25) - 1, "d": 99, "d_x": 1}),
        ({"n": 1, "d_x": 2}, "cpu", {"batch": 1, "n": (1 << 19) - 256, "d": 99, "d_x": 256}),
        # d times as many
        ({"n": 1, "d": 1, "d_x": 1}, "cpu", {"batch": 1, "n": (1 << 21) - 1, "d": 64, "d_x": 1}),
        # n² more, or n² d for the Toeplitz matrix, which has a bound of its own
        ({"n": 2, "d_x": 1}, "cpu", {"batch": 1, "n": 11_584, "d": 99, "d_x": 1}),
        ({"n": 2, "d_x": 1}, "cuda", {"batch": 1, "n": 1 << 14, "d": 1, "d_x": 4}),
        ({"n": 2, "d": 1, "d_x": 1}, "cuda", {"batch": 1, "n": 1 << 13, "d": 4, "d_x": 4}),
    ],
)
def test_what_fits_into_memory(expected: dict[str, float], device: str, most: dict[str, int]) -> None:
    tried = layer(**expected)
    assert tried.fits(most, device)
    assert not tried.fits({**most, "n": most["n"] + 1}, device)


@pytest.mark.parametrize(("order", "fits"), [(1024, True), (1025, False)])
def test_the_largest_order(order: int, fits: bool) -> None:
    assert layer(n=1, d=1).fits({"batch": 1, "n": 2, "d": order, "d_x": 1}, "cpu") == fits
