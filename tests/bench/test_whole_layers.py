"""Whole layers are compared at matching parameter counts, and each one's answer is checked before it is timed."""

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from plmu.bench import peers, whole_layers
from plmu.bench.measure import Times
from plmu.bench.problems import GPU_SHAPES, Shape

SHAPE = Shape(2, 20, 8, 8, 16, 5.0)


def test_orders_16_and_32_have_two_comparisons() -> None:
    found = {shape.order: [] for shape in GPU_SHAPES}
    for shape in GPU_SHAPES:
        found[shape.order].append(whole_layers.budgets(shape))
    assert found[4] == [[1 << 20], [1 << 22]]
    assert found[16] == [[1 << 20, 1 << 22]]
    assert found[32] == [[1 << 20, 1 << 23]]


@pytest.mark.usefixtures("installed")
def test_every_layer_has_a_row() -> None:
    rows = whole_layers.compared(SHAPE, 16 * 8 * 8, torch.float32, "cpu", 1)
    assert [row["layer"] for row in rows] == ["ours", "linear attention", "causal attention", "Mamba-2", "LSTM"]
    assert [row["source"].split()[0] for row in rows[:3]] == ["plmu", "fla", "torch"]
    sources = rows[3]["milliseconds by source"]
    assert set(sources) == {"mamba_ssm 1.2", "fla 1.2"}
    assert rows[3]["source"] == min(sources, key=sources.get), "the fastest implementation"
    for row in rows:
        assert (row["shape"], row["order"], row["time"], row["budget"]) == (str(SHAPE), 16, 20, 1024)
        assert row["milliseconds forward"] > 0
        assert row["milliseconds forward and backward"] > 0
        assert row["seconds of the first call"] > 0
        assert row["matched"] == (abs(row["parameters"] / 1024 - 1) <= 0.05)
        assert (row["times ours"] == 1) == (row["layer"] == "ours")
        assert math.isfinite(row["times ours"])
        assert set(row["error"]) == {"output", "gradient of x", "gradient of the weights"}


@pytest.mark.usefixtures("missing")
def test_what_is_not_installed_is_said() -> None:
    rows = {row["layer"]: row for row in whole_layers.compared(SHAPE, 256, torch.float32, "cpu", 1)}
    for name in ("linear attention", "Mamba-2"):
        assert "ModuleNotFoundError: " in rows[name]["skipped"]
        assert "parameters" not in rows[name]
    assert rows["causal attention"]["times ours"] > 0


@pytest.mark.usefixtures("installed")
def test_a_wrong_or_failing_layer_is_not_timed_and_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **options: object) -> Tensor:
        raise RuntimeError("out of shared memory")

    monkeypatch.setattr(sys.modules["mamba_ssm.ops.triton.ssd_combined"], "mamba_chunk_scan_combined", fail)
    right = peers.Attention.plain
    monkeypatch.setattr(peers.Attention, "plain", lambda self, x: 1.01 * right(self, x))
    rows = {row["layer"]: row for row in whole_layers.compared(SHAPE, 256, torch.float32, "cpu", 1)}
    reason = "Attention: RuntimeError: wrong answer, relative error of output 9.9e-03"
    assert rows["causal attention"]["skipped"].startswith(reason)
    assert "milliseconds forward" not in rows["causal attention"]
    assert rows["Mamba-2"]["source"] == "fla 1.2", "the other kernels that there are"
    assert rows["Mamba-2"]["skipped"] == "Mamba2ByItsAuthors: RuntimeError: out of shared memory"


class Clock:
    """Measures nothing: a layer's forward takes 0.1 s and its step 0.4 s, by its place among the candidates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[dict[str, Any]] = []
        self.asked: list[tuple[str, int]] = []
        monkeypatch.setattr(whole_layers, "timed", self.timed)

    def timed(self, calls: dict[str, Any], *, device: str, rounds: int) -> Times:
        self.calls.append(calls)
        self.asked.append((device, rounds))
        first = 0.1 if len(self.calls) == 1 else 0.4
        return Times({name: [first * (place + 1)] * rounds for place, name in enumerate(calls)})


@pytest.mark.usefixtures("missing")
def test_a_row_has_the_times_of_its_layer_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rows = {row["layer"]: row for row in whole_layers.compared(SHAPE, 256, torch.float32, "cpu", 2)}
    assert clock.asked == [("cpu", 2)] * 2
    forward, both = clock.calls
    assert list(forward) == list(both) == ["ours", "causal attention", "LSTM"]
    for place, name in enumerate(both):
        assert rows[name]["milliseconds forward"] == pytest.approx(100 * (place + 1))
        assert rows[name]["milliseconds forward and backward"] == pytest.approx(400 * (place + 1))
        assert rows[name]["times ours"] == pytest.approx(place + 1)
        assert not forward[name]().requires_grad
        x, *weights = both[name]()
        assert x.shape == (2, 20, 8)
        assert sum(one.numel() for one in weights) == rows[name]["parameters"], "the gradients of all weights"
        assert rows[name]["dtype"] == "float32"
        assert "skipped" not in rows[name]
    torch.manual_seed(9)
    again = whole_layers.compared(SHAPE, 256, torch.float32, "cpu", 2)
    assert [row.get("error") for row in again] == [row.get("error") for row in rows.values()], "the same numbers"


@pytest.mark.usefixtures("missing")
def test_layers_run_as_graphs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(whole_layers, "checked", lambda layer, x: {})
    monkeypatch.setattr(whole_layers, "graphed", lambda call: ("graph", call))
    asked = []

    def eager(forward: Any, both: Any, device: str, rounds: int) -> dict[str, Any]:
        asked.append((forward().requires_grad, len(both()), device, rounds))
        return {"milliseconds eager": {"forward": 1.0, "both": 3.0}}

    monkeypatch.setattr(whole_layers, "eager", eager)
    monkeypatch.setattr(whole_layers, "first_seconds", lambda call, device: len(call()))
    rows = whole_layers.compared(SHAPE, 256, torch.bfloat16, "meta", 2)
    assert rows[0]["dtype"] == "bfloat16"
    assert asked == [(False, 1 + weights, "meta", 2) for weights in (2, 2, 4)], "forward alone, then all gradients"
    timed = [row for row in rows if "skipped" not in row]
    assert [row["seconds of the first call"] for row in timed] == [3, 3, 5], "with the gradients of all weights"
    assert all(row["milliseconds eager"] == {"forward": 1.0, "both": 3.0} for row in timed)
    for calls in clock.calls:
        assert [kind for kind, _ in calls.values()] == ["graph"] * 3
    for one in clock.calls[1].values():
        assert {value.dtype for value in one[1]()} == {torch.bfloat16}


def test_eager_calls_have_their_time_that_of_the_host_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward() -> None: ...
    def both() -> None: ...

    def medians(calls: dict[str, Any], *, device: str, rounds: int) -> dict[str, float]:
        assert (calls, device, rounds) == ({"forward": forward, "both": both}, "cuda", 3)
        return {"forward": 0.1, "both": 0.3}

    monkeypatch.setattr(whole_layers, "medians", medians)
    monkeypatch.setattr(whole_layers, "host_seconds", lambda call, rounds: {forward: 0.01, both: 0.02}[call] * rounds)
    monkeypatch.setattr(whole_layers, "peak_memory", lambda call: {both: 77}[call])
    assert whole_layers.eager(forward, both, "cuda", 3) == {
        "milliseconds eager": {"forward": 100.0, "both": 300.0},
        "milliseconds of the host": {"forward": 30.0, "both": 60.0},
        "peak memory, bytes": 77,
    }


@pytest.mark.parametrize(
    ("parameters", "matched"), [(1000, True), (1049, True), (1051, False), (951, True), (949, False)]
)
def test_parameter_counts_match_within_five_per_cent(parameters: int, matched: bool) -> None:
    forward, both = Times({"x": [1.0, 3.0]}), Times({"x": [6.0, 4.0], "ours": [2.0, 2.0]})
    row = {"layer": "x", "parameters": parameters}
    assert whole_layers._times(row, {"parameters": 1000}, forward, both) == {
        "milliseconds forward": 2000.0,
        "milliseconds forward and backward": 5000.0,
        "times ours": 2.5,
        "matched": matched,
    }


@pytest.mark.usefixtures("missing")
def test_if_ours_is_wrong_nothing_is_compared_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    right = peers.DelayProjection.plain
    monkeypatch.setattr(peers.DelayProjection, "plain", lambda self, x: 1.01 * right(self, x))
    rows = {row["layer"]: row for row in whole_layers.compared(SHAPE, 256, torch.float32, "cpu", 1)}
    assert rows["ours"]["skipped"].startswith("DelayProjection: RuntimeError: wrong answer, relative error of output")
    for name in ("causal attention", "LSTM"):
        assert rows[name]["milliseconds forward and backward"] > 0
        assert not rows[name].keys() & {"times ours", "matched"}


def test_of_several_implementations_the_fastest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ready: dict[str, Any] = {name: ({"source": name}, f"{name} forward", f"{name} both") for name in "abc"}

    def medians(calls: dict[str, Any], *, device: str, rounds: int) -> dict[str, float]:
        assert (calls, device, rounds) == ({name: f"{name} both" for name in "abc"}, "cuda", 3)
        return {"a": 3.0, "b": 1.0, "c": 2.0}

    monkeypatch.setattr(whole_layers, "medians", medians)
    times = {"a": 3000.0, "b": 1000.0, "c": 2000.0}
    fastest = whole_layers._fastest(ready, "cuda")
    assert fastest == ({"source": "b", "milliseconds by source": times}, "b forward", "b both")
    assert whole_layers._fastest({"a": ready["a"]}, "cuda") == ready["a"], "one is not timed"


@pytest.mark.parametrize("what", ["output", "gradient of x", "gradient of the weights"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
def test_errors_are_held_to_the_precision(
    what: str, dtype: torch.dtype, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dict.fromkeys(("output", "gradient of x", "gradient of the weights"), 0.0)
    monkeypatch.setattr(whole_layers, "errors", lambda layer, x: found)
    layer, x = peers.Attention(SHAPE, 256), torch.zeros(1, dtype=dtype)
    found[what] = bound
    assert whole_layers.checked(layer, x) == found
    for wrong in (1.01 * bound, math.nan):
        found[what] = wrong
        with pytest.raises(RuntimeError, match=f"^wrong answer, relative error of {what} {wrong:.1e}$"):
            whole_layers.checked(layer, x)
