"""`plmu bench layers`: the problem that all candidates solve, what they are held against, and which are tried."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from closeness import within

from plmu.bench import layers
from plmu.bench.measure import Times
from plmu.ops import fused, hopper

TINY = layers.Shape(2, 20, 4, 3, 2, 5.0)
WIDE = layers.Shape(3, 50, 128, 96, 2, 5.0)


def test_inputs_and_outputs_are_of_size_one() -> None:
    problem = layers.Problem(WIDE, torch.float32, "cpu")
    assert problem.u.shape == (3, 50, 128)
    assert problem.weight.shape == (96, 2, 128)
    for values, variance in ((problem.u, 1.0), (problem.weight, 1 / (2 * 128))):
        count = values.numel()
        within(abs(float(values.detach().square().mean()) / variance - 1), 8 * math.sqrt(2 / count))


def test_resets_come_once_in_so_many_steps() -> None:
    problem = layers.Problem(layers.Shape(100, 500, 1, 1, 2, 5.0), torch.float32, "cpu", every=10)
    assert problem.resets is not None
    assert problem.resets.shape == (100, 500)
    within(abs(float(problem.resets.double().mean()) - 0.1), 8 * math.sqrt(0.1 * 0.9 / 50_000))
    assert layers.Problem(TINY, torch.float32, "cpu").resets is None


def test_peers_have_the_same_width() -> None:
    problem = layers.Problem(WIDE, torch.float32, "cpu")
    bare, operand = problem.bare()
    assert operand.shape == (150, 256)
    torch.testing.assert_close(bare(), operand @ problem.weight.reshape(96, 256).mT)
    assert problem.lstm()().shape == (3, 50, 96)
    attended = problem.attention()()
    assert attended.shape == (3, 2, 50, 64), "heads of 64"
    torch.testing.assert_close(attended[:, :, 0], problem.u[:, 0].reshape(3, 2, 64))  # it sees nothing later
    assert layers.Problem(TINY, torch.float32, "cpu").attention()().shape == (2, 1, 20, 4)


@pytest.mark.parametrize(
    ("dtype", "wrong"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1), (torch.float16, 0.02)], ids=str
)
@pytest.mark.parametrize("every", [None, 5])
def test_answers_are_held_to_their_precision(dtype: torch.dtype, wrong: float, every: int | None) -> None:
    problem = layers.Problem(TINY, dtype, "cpu", every)
    right = problem.project("auto")
    assert problem.errors({"auto": right}).keys() == {"auto"}
    spoilt = [lambda: right().double() * (1 + wrong), lambda: right() * math.nan]
    for one in spoilt:
        with pytest.raises(RuntimeError, match=r"wrong answers at b2 n20 4→3 d2 θ5, torch.*: other"):
            problem.errors({"auto": right, "other": one})


SECONDS = {"product": 1.0, "auto": 2.0, "chunked": 3.0, "FFT": 8.0, "LSTM": 10.0, "attention": 5.0}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Callable[[], Any]]]:
    """What was timed, without timing it: each candidate is called once and takes the seconds above, or 4."""
    found: list[dict[str, Callable[[], Any]]] = []

    def times(calls: dict[str, Callable[[], Any]], *, device: str, rounds: int) -> Times:
        found.append(calls)
        return Times({name: [SECONDS.get(name, 4.0)] * rounds for name in calls})

    monkeypatch.setattr(layers, "timed", times)
    return found


def test_a_row_holds_ours_against_the_product_and_the_peers_against_ours(
    timed: list[dict[str, Callable[[], Any]]],
) -> None:
    row = layers.against(TINY, torch.float32, "cpu", 1)
    assert row.pop("error").keys() == {"auto", "chunked", "FFT"}
    forward, both = timed
    assert forward.keys() == both.keys() == SECONDS.keys()
    milliseconds = {name: 1e3 * SECONDS[name] for name in SECONDS}
    assert row == {
        "shape": str(TINY),
        "dtype": "float32",
        "as CUDA graphs, but LSTM": False,
        "milliseconds forward": milliseconds,
        "milliseconds forward and backward": milliseconds,
        "over the product, forward": {"auto": 2.0, "chunked": 3.0},
        "over the product, both": {"auto": 2.0, "chunked": 3.0},
        "times faster, both": {"FFT": 4.0, "LSTM": 5.0, "attention": 2.5},
    }
    for name, call in both.items():
        assert next(one.shape for one in call()) == ((40, 8) if name == "product" else (2, 20, 4)), name


def test_memory_is_what_is_worked_with_beyond_the_results(
    timed: list[dict[str, Callable[[], Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over u and o, 160 and 120 numbers; o, and the gradients of u and of the 24 weights, are results."""
    monkeypatch.setattr(layers.Problem, "errors", lambda self, calls: {})
    monkeypatch.setattr(layers, "graphed", lambda call: call)
    monkeypatch.setattr(layers, "peak_memory", lambda call: 4 * (280 + 24 + 700))
    row = layers.against(TINY, torch.float32, "meta", 1)
    assert row["working memory over u + o"] == {"auto": 2.5, "chunked": 2.5}
    assert row["as CUDA graphs, but LSTM"] is True
    assert row["times faster, both"].keys() == {"FFT", "LSTM", "LSTM as a graph", "attention"}


@pytest.mark.parametrize(
    ("device", "dtype", "installed", "there"),
    [
        ("meta", torch.bfloat16, True, True),
        ("meta", torch.bfloat16, False, False),
        ("meta", torch.float32, True, False),
        ("cpu", torch.bfloat16, True, False),
    ],
    ids=str,
)
def test_linear_attention_is_a_peer_where_it_is_installed_and_runs(
    device: str,
    dtype: torch.dtype,
    installed: bool,
    there: bool,
    timed: list[dict[str, Callable[[], Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers.Problem, "errors", lambda self, calls: {})
    monkeypatch.setattr(layers.Problem, "linear_attention", layers.Problem.attention)
    monkeypatch.setattr(layers, "find_spec", lambda name: name if installed else None)
    monkeypatch.setattr(layers, "graphed", lambda call: call)
    monkeypatch.setattr(layers, "peak_memory", lambda call: 0)
    row = layers.against(TINY, dtype, device, 1)
    assert ("linear attention" in row["times faster, both"]) == there


def test_all_but_the_lstm_run_as_graphs_on_a_gpu(
    timed: list[dict[str, Callable[[], Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers.Problem, "errors", lambda self, calls: {})
    monkeypatch.setattr(layers, "graphed", lambda call: "graph")
    monkeypatch.setattr(layers, "peak_memory", lambda call: 0)
    layers.against(TINY, torch.float32, "meta", 1)
    for calls in timed:
        assert {name for name, call in calls.items() if call != "graph"} == {"LSTM"}
    timed.clear()
    layers.choice(TINY, torch.float32, "meta", 1)
    assert "graph" not in timed[0].values(), "unless asked"
    layers.choice(TINY, torch.float32, "meta", 1, graphs=True)
    assert set(timed[1].values()) == {"graph"}


ORDER = fused.LARGEST_ORDER


@pytest.mark.parametrize(
    ("shape", "every", "suits", "names"),
    [
        (layers.Shape(1, 64, 1, 1, 2, 5.0), None, False, "fft chunked toeplitz recurrent"),
        (layers.Shape(1, 65, 1, 1, 2, 5.0), None, False, "fft chunked toeplitz"),
        (layers.Shape(1, 1 << 11, 1, 1, 8, 5.0), None, False, "fft chunked toeplitz"),  # a matrix of 2^25 numbers
        (layers.Shape(1, 1 << 11, 1, 1, 9, 5.0), None, False, "fft chunked"),
        (layers.Shape(1, 64, 1, 1, 2, 5.0), 10, False, "chunked recurrent"),
        (layers.Shape(1, 1 << 12, 1, 1, ORDER, 5.0), 10, True, "chunked fused"),
        (layers.Shape(1, 1 << 12, 1, 1, ORDER + 1, 5.0), 10, True, "chunked"),
    ],
)
def test_algorithms_are_tried_where_they_suit(
    shape: layers.Shape,
    every: int | None,
    suits: bool,
    names: str,
    timed: list[dict[str, Callable[[], Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hopper, "suits", lambda *given: suits)
    monkeypatch.setattr(layers.Problem, "errors", lambda self, calls: {})
    monkeypatch.setattr(layers, "training", lambda call, *leaves: call)
    row = layers.choice(shape, torch.float32, "cpu", 1, every=every)
    assert list(timed[0]) == [*names.split(), "auto"]
    assert row["best"] == "chunked"
    assert row["auto over best"] == pytest.approx(2 / 3)
    assert row["milliseconds"]["auto"] == 2000.0


@pytest.mark.parametrize("every", [None, 10])
def test_what_was_chosen_is_what_the_plan_says(
    every: int | None, timed: list[dict[str, Callable[[], Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    plan = layers.plmu.plan
    monkeypatch.setattr(layers.plmu, "plan", lambda kind, **given: asked.append(given) or plan(kind, **given))
    row = layers.choice(TINY, torch.float32, "cpu", 1, every=every)
    (given,) = asked
    assert given.pop("system").A.shape == (2, 2)
    assert given == {
        "batch": 2, "time": 20, "channels": 4, "out": 3, "dtype": torch.float32, "device": "cpu",
        "resets": every is not None,
    }  # fmt: skip
    assert row["chosen"] == plan("project", system=layers.Problem(TINY, torch.float32, "cpu").system, **given).algorithm
