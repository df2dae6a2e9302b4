"""Which algorithm runs: the plan is deterministic, says why, and never spends the memory that `project` is to save."""

import contextlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from operations import ALGORITHMS, in_chunks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile

import plmu
from plmu.bench.problems import GPU_CHOICES
from plmu.ops import blocks, fused
from plmu.ops.chunked import Chunked
from plmu.ops.fft import FFT
from plmu.ops.gpu import launch
from plmu.ops.plan import known_plan
from plmu.ops.rates import DEVICES

ROOT = Path(__file__).parents[2]
DN = plmu.DelayNetwork(4, 6.0)
SYSTEM = DN.discretize()


def plan(kind: str = "states", **changed: object) -> plmu.Plan:
    sizes = {"batch": 8, "time": 100, "channels": 3, "system": SYSTEM} | changed
    if kind == "project":
        sizes.setdefault("out", 16)
    return plmu.plan(kind, **sizes)


def of_order(order: int) -> plmu.LinearSystem:
    return plmu.LinearSystem(0.5 * torch.eye(order), torch.ones(order))


@pytest.mark.parametrize("kind", ["states", "project", "final_state"])
@pytest.mark.parametrize("time", [1, 17, 5000])
def test_the_same_sizes_give_the_same_plan(kind: str, time: int) -> None:
    first = plan(kind, time=time)
    assert plan(kind, time=time) is first or plan(kind, time=time) == first
    other = plmu.LinearSystem(-SYSTEM.A, SYSTEM.B)  # whose memory lasts as long
    assert plan(kind, time=time, system=other) == first  # sizes alone decide, not values
    trained = plmu.LinearSystem(SYSTEM.A.clone().requires_grad_(), SYSTEM.B)
    assert plan(kind, time=time, system=trained).algorithm == first.algorithm


@pytest.mark.parametrize("kind", ["states", "project", "final_state"])
def test_a_plan_explains_itself(kind: str) -> None:
    chosen = plan(kind, time=2000)
    text = str(chosen)
    assert text.startswith(f"{kind}: {chosen.algorithm}. ")
    assert chosen.reason in text
    assert chosen.costs
    for name in chosen.costs:
        assert name in text
    assert "forward + backward" in text


@pytest.mark.parametrize("algorithm", ALGORITHMS[:-1])
@pytest.mark.parametrize("kind", ["states", "project"])
def test_what_is_asked_for_by_name_is_planned(kind: str, algorithm: str) -> None:
    chosen = plan(kind, algorithm=algorithm)
    assert chosen.algorithm == algorithm
    assert "asked for by name" in str(chosen).lower()


def test_what_is_passed_over_says_why() -> None:
    text = str(plan("project", batch=64, time=2000, channels=64))
    growing = plmu.LinearSystem(1.001 * torch.eye(4), torch.ones(4))
    reason = "not fft: less accurate: its error scales with the largest state, and this system may grow"
    assert reason in str(plan("project", batch=64, time=2000, channels=64, system=growing))
    assert "not toeplitz: would store m: it has " in text
    assert " elements; limit 1,048,576" in text


def test_the_cheapest_candidate_is_chosen() -> None:
    for time, channels in itertools.product([1, 8, 100, 2000], [1, 64]):
        chosen = plan(time=time, channels=channels)
        assert min(chosen.costs, key=chosen.costs.get).startswith(chosen.algorithm)


def test_known_choices() -> None:
    assert plan(time=1, batch=1, channels=1).algorithm == "recurrent"
    assert plan(time=8).algorithm in ("toeplitz", "chunked")
    for time in (2000, 100_000):
        assert plan(time=time, channels=64).algorithm == "chunked"
        assert plan("project", time=time, channels=64).algorithm == "chunked"
    assert plan("final_state").algorithm == "product"
    assert plan("final_state", time=1_000_000).algorithm == "product"
    assert plan(
        "project", batch=32, time=5000, system=of_order(40), channels=1, out=64
    ).fold  # one channel, large order


@pytest.mark.parametrize("kind", ["states", "project"])
def test_resets_are_planned_for_algorithms_that_take_them(kind: str) -> None:
    for time in (1, 8, 100, 5000):
        chosen = plan(kind, time=time, resets=True)
        assert chosen.algorithm in ("recurrent", "chunked")
        assert not chosen.fold


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"kind": "state"}, ValueError, "kind must be one of states, final_state, project, got 'state'"),
        ({"algorithm": "scan"}, ValueError, "algorithm must be auto or one of chunked, .*got 'scan'"),
        ({"kind": "project", "out": None}, ValueError, "out is needed to plan project"),
        ({"algorithm": "fft", "resets": True}, ValueError, "algorithm='fft' cannot reset"),
        ({"algorithm": "toeplitz", "resets": True}, ValueError, "algorithm='toeplitz' cannot reset"),
        ({"time": 0}, ValueError, "time"),
        ({"channels": 0}, ValueError, "channels"),
        ({"batch": -1}, ValueError, "batch"),
        ({"kind": "project", "out": 0}, ValueError, "out"),
        ({"batch": "1"}, ValueError, "batch must be an integer of at least 0, got '1'"),
        ({"batch": None}, ValueError, "batch must be an integer of at least 0, got None"),
        ({"time": 2.0}, ValueError, "time must be an integer of at least 1, got 2.0"),
        ({"channels": True}, ValueError, "channels must be an integer of at least 1, got True"),
        ({"kind": "project", "out": [4]}, ValueError, r"out must be an integer of at least 1, got \[4\]"),
        ({"system": DN}, TypeError, "system must be a plmu.LinearSystem"),
    ],
    ids=str,
)
def test_bad_arguments(changed: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan(**changed)


# Of the sizes that people use, those of which m is too large to be stored by `project`.
LARGE = [
    sizes
    for sizes in itertools.product(
        [1, 8, 64], [64, 300, 1000, 5000], [1, 4, 40, 468], [1, 8, 64, 512], [1, 16, 512], ["cpu", "cuda"]
    )
    if sizes[0] * sizes[1] * sizes[2] * sizes[3] > DEVICES[sizes[5]].stored
]
LARGE_SYSTEMS = {order: of_order(order) for order in (1, 4, 40, 468)}


def test_project_never_stores_a_large_m() -> None:
    for batch, time, order, channels, out, device in LARGE:
        sizes = {"batch": batch, "time": time, "channels": channels, "out": out, "device": device}
        assert "m" not in plan("project", system=LARGE_SYSTEMS[order], **sizes).stored


def test_folding_needs_no_more_memory_than_it_saves() -> None:
    """The folded matrix is within what `project` may hold, u + o + boundary states, or within what "auto" builds."""
    excess = {}
    for batch, time, order, channels, out, device in LARGE:
        sizes = {"batch": batch, "time": time, "channels": channels, "out": out, "device": device}
        chosen = plan("project", system=LARGE_SYSTEMS[order], **sizes)
        if chosen.fold:
            folded = chosen.chunk * out * (chosen.chunk + order) * channels
            boundaries = batch * -(-time // chosen.chunk) * order * channels
            allowed = max(Chunked.LARGEST_MATRIX, batch * time * (channels + out) + boundaries)
            excess[f"{sizes}, order {order}: {folded} numbers"] = folded / allowed
    assert len(excess) > 50  # folding is common among these sizes
    worst = max(excess, key=excess.get)
    assert excess[worst] <= 1, f"{worst}, {excess[worst]:.1f} times too many"


def peak_of_project(algorithm: str, order: int, channels: int, out: int, time: int, state: bool) -> tuple[int, int]:
    """The most bytes that forward and backward hold at a time beyond their arguments, and those of m."""
    batch, system = 4, plmu.DelayNetwork(order, 64.0).discretize()
    u = torch.randn(batch, time, channels, requires_grad=True)
    weight = torch.randn(out, order, channels, requires_grad=True)
    before = torch.randn(batch, order, channels, requires_grad=True) if state else None
    plmu.project(u[:, :128], system, weight, before, algorithm=algorithm)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        o, last = plmu.project(u, system, weight, before, algorithm=algorithm)
        torch.autograd.grad([o, last], [u, weight], [torch.ones_like(o), torch.ones_like(last)])
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(held), 4 * batch * time * order * channels


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("fold", [False, True])
def test_memory_of_project_grows_with_input_output_and_boundary_states(fold: bool, state: bool) -> None:
    """Each may be held four times: itself, its gradient, and a rearranged copy of both: together a sixth of m."""
    order, channels, out, chunk = 64, 32, 16, 64
    with in_chunks(chunk, fold, tile=8):
        peak, m = peak_of_project("chunked", order, channels, out, 1024, state)
        longer, longer_m = peak_of_project("chunked", order, channels, out, 2048, state)
    grown = (longer_m - m) * ((channels + out) / (order * channels) + 1 / chunk)
    assert 0 < longer - peak <= 4 * grown


@pytest.mark.parametrize("algorithm", ["chunked", "fft", "auto"])
@pytest.mark.parametrize(("order", "channels"), [(128, 16), (256, 8)])
def test_project_holds_a_fraction_of_m(order: int, channels: int, algorithm: str) -> None:
    peak, m = peak_of_project(algorithm, order, channels, 8, 4096, True)
    assert peak < m / 2


def test_the_plain_forms_hold_m() -> None:
    """That is what the test above would find if `project` stored m."""
    peak, m = peak_of_project("toeplitz", 64, 32, 64, 256, state=False)
    assert peak > m


@pytest.mark.parametrize("fold", [False, True])
def test_what_is_saved_for_the_backward_pass(fold: bool) -> None:
    """u and the boundary states, the constant matrix, the weight: nothing of the size of m."""
    u = torch.randn(4, 4096, 8, requires_grad=True)
    weight = torch.randn(4, 32, 8, requires_grad=True)
    saved = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), in_chunks(32, fold, tile=4):
        o, _ = plmu.project(u, plmu.DelayNetwork(32, 64.0).discretize(), weight)
    boundaries = 4 * u.numel() // 32 * 32
    matrices = 4 * 32 * (4 if fold else 32) * (32 + 32) * (8 if fold else 1)
    assert sum(saved.values()) < 2 * u.nbytes + 4 * boundaries + 2 * matrices + 4 * weight.nbytes + 4 * o.nbytes
    assert sum(saved.values()) < 4 * u.numel() * 32 / 4


def test_on_a_gpu_a_long_narrow_input_goes_by_fft_unless_the_system_grows() -> None:
    sizes = {"batch": 32, "time": 5000, "channels": 1, "out": 140, "device": "cuda"}
    assert plan("project", system=of_order(40), **sizes).algorithm == "fft"
    growing = plmu.LinearSystem(torch.eye(40, dtype=torch.float64) * 1.001, torch.ones(40, dtype=torch.float64))
    assert plan("project", system=growing, **sizes).algorithm == "chunked"


def test_a_large_matrix_counts_where_sequences_are_few() -> None:
    """One product over all steps reads a matrix that is as large for one sequence as for many."""
    for time, channels, order in ((300, 1, 100), (1000, 4, 8), (500, 2, 12)):
        one = {"batch": 1, "time": time, "channels": channels, "system": of_order(order)}
        assert "toeplitz" not in (plan(**one).algorithm, plan("project", **one).algorithm)
        assert plan(**one).costs["toeplitz"] > 4 * time**2 * order / 2 / DEVICES["cpu"].reading
    assert plan(batch=1, time=64, channels=1, system=of_order(16)).algorithm == "toeplitz"


def test_on_a_cpu_high_orders_go_by_fft_in_blocks() -> None:
    """Where nothing looks at single operations, and the system cannot grow: else its errors would not be local."""
    system = plmu.DelayNetwork(468, 784.0).discretize()
    sizes = {"batch": 8, "time": 784, "channels": 1, "system": system}
    for kind, stored in (("states", ()), ("project", ("u", "weight"))):
        sizes["out"] = 346 if kind == "project" else None
        chosen = plan(kind, **sizes)
        assert (chosen.algorithm, chosen.stored) == ("fft", stored)
        assert 0 < chosen.chunk <= max(FFT.BLOCKS)
        assert f"blocks of {chosen.chunk} steps" in chosen.reason
        assert plan(kind, **sizes | {"batch": 512, "channels": 64, "system": of_order(4)}).algorithm == "chunked"
    found = []

    def traced(u: torch.Tensor) -> torch.Tensor:
        found.append(plan("project", **sizes))
        return u

    torch.func.vmap(traced)(torch.ones(2))
    assert found[0].algorithm == "chunked"
    assert "in blocks in eager calls only" in found[0].passed_over["fft"]
    # Blocks are no longer than the memory lasts, so that errors spread no further than it.
    short = plan("states", batch=1, time=4000, channels=1, system=plmu.DelayNetwork(100, 100.0).discretize())
    assert max(int(name.split()[1]) for name in short.costs if name.startswith("fft")) <= 256


def test_the_fused_kernels_are_taken_where_they_run_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"batch": 64, "time": 512, "channels": 512, "out": 512, "dtype": torch.bfloat16, "device": "cuda"}
    monkeypatch.setattr(launch, "has_hopper", lambda _: False)
    known_plan.cache_clear()
    assert plan("project", system=of_order(4), **sizes).algorithm == "chunked"
    monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    known_plan.cache_clear()
    chosen = plan("project", system=of_order(4), **sizes)
    assert chosen.algorithm == "fused"
    assert "made on chip" in str(chosen)
    assert chosen.stored == ("u", "weight", "states between chunks, where they are carried")
    assert plan("project", system=of_order(40), **sizes).stored == ("u", "weight")
    assert plan("project", system=of_order(4), **sizes | {"time": 31}).stored == ("u", "weight")
    assert plan("project", system=of_order(4), **sizes | {"dtype": torch.float32}).stored == ("u", "weight")
    assert plan("project", system=of_order(4), **sizes, resets=True).algorithm == "fused"
    assert plan("project", system=of_order(100), **sizes).algorithm == "chunked"
    assert plan("states", system=of_order(4), **sizes | {"out": None}).algorithm != "fused"
    known_plan.cache_clear()


def test_in_a_graph_launches_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """All states in many launches: in a graph, which replays them, it is the work that decides."""
    monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    known_plan.cache_clear()
    sizes = {"batch": 128, "time": 64, "channels": 256, "dtype": torch.bfloat16, "device": "cuda"}
    asked = {"system": of_order(8), **sizes}
    eager = plan("states", **asked)
    assert eager.algorithm != "fused"
    with plmu.for_graphs():
        replayed = plan("states", **asked)
        assert replayed.algorithm == "fused"
        assert all(replayed.costs[name] < cost for name, cost in eager.costs.items() if name in replayed.costs)
        with plmu.for_graphs():
            pass
        assert plan("states", **asked) == replayed
        on_cpu = plan("states", **asked | {"device": "cpu"}).costs
    assert plan("states", **asked) == eager
    assert plan("states", **asked | {"device": "cpu"}).costs == on_cpu  # where there are no graphs
    with pytest.raises(RuntimeError, match="stop"), plmu.for_graphs():
        raise RuntimeError("stop")
    assert plan("states", **asked) == eager
    one, other = plmu.for_graphs(), plmu.for_graphs()  # as two threads may
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert plan("states", **asked) == replayed
    other.__exit__(None, None, None)
    assert plan("states", **asked) == eager
    known_plan.cache_clear()


@pytest.mark.parametrize("measured", ["", ", as graphs", "resets"])
def test_the_choice_is_the_fastest_that_was_measured(measured: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every shape of the benchmark on a GPU: as graphs within 3 %, eager within a tenth."""
    title = "with resets, as graphs" if measured == "resets" else f"auto against every algorithm{measured}"
    rows = json.loads((ROOT / "results/bench-algorithms-cuda.json").read_text(encoding="utf-8"))[title]
    if not measured:  # small shapes were measured again, since eager calls of `fused` became faster
        again = json.loads((ROOT / "results/bench-calls-cuda.json").read_text(encoding="utf-8"))["small, eager"]
        rows = [row for row in rows if row["shape"] not in {row["shape"] for row in again}] + again
    shapes = {str(shape): shape for shape in GPU_CHOICES}
    monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    monkeypatch.setattr(fused, "AVAILABLE", True)
    known_plan.cache_clear()
    for row in rows:
        shape = shapes[row["shape"]]
        sizes = {"batch": shape.batch, "time": shape.time, "channels": shape.channels, "out": shape.out}
        with plmu.for_graphs() if measured else contextlib.nullcontext():
            chosen = plan(
                "project",
                system=plmu.DelayNetwork(shape.order, shape.theta).discretize(),
                dtype=torch.bfloat16,
                device="cuda",
                resets=measured == "resets",
                **sizes,
            )
        times = row["milliseconds"]
        assert times[chosen.algorithm] <= (1.03 if measured else 1.1) * times[row["best"]], row["shape"]
    assert len(rows) == (4 if measured == "resets" else 12)
    known_plan.cache_clear()


def test_with_resets_a_machine_without_a_gpu_plans_as_without() -> None:
    """The time that resets take on a GPU says nothing about a CPU."""
    with_resets, without = plan("project", time=16, resets=True), plan("project", time=16)
    assert with_resets.costs["chunked, 16 steps"] == without.costs["chunked, 16 steps"]


def test_one_tile_of_m_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `chunked`, forward and backward: each is let go before the next is made."""
    tiles: list[StorageWeakRef] = []

    def watch(name: str) -> None:
        real = getattr(blocks, name)

        def watched(matrix: torch.Tensor, given: torch.Tensor, reach: Any) -> torch.Tensor:
            made: torch.Tensor = real(matrix, given, reach)
            tile = made if name == "expand" else given
            assert all(other.expired() for other in tiles)
            tiles.append(StorageWeakRef(tile.untyped_storage()))
            return made

        monkeypatch.setattr(blocks, name, watched)

    watch("expand")  # makes m
    watch("contract")  # takes its gradient
    u = torch.randn(2, 200, 6, requires_grad=True)
    weight = torch.randn(5, 4, 6, requires_grad=True)
    with in_chunks(16, False, tile=3):
        o, _ = plmu.project(u, SYSTEM, weight)
        forward = len(tiles)
        torch.autograd.grad(o.sum(), (u, weight))
    assert forward > 3
    assert len(tiles) == 3 * forward


def test_fused_states_are_taken_where_they_were_measured_to_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """In CUDA graphs, of at least 64 channels and in half precision; what `auto` takes is then near the fastest."""
    path = ROOT / "results" / "bench-fused-states-cuda.json"
    monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    known_plan.cache_clear()
    taken = 0
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        sizes = [float(number) for number in re.findall(r"[\d.]+", row["shape"])]
        batch, time, channels, order = map(int, sizes[:4])
        asked = {"batch": batch, "time": time, "channels": channels, "dtype": getattr(torch, row["precision"][6:])}
        system = plmu.DelayNetwork(order, sizes[4]).discretize()
        assert plmu.plan("states", system=system, device="cuda", **asked).algorithm != "fused"  # eager
        with plmu.for_graphs():
            found = plmu.plan("states", system=system, device="cuda", **asked)
        if found.algorithm == "fused":
            assert channels >= 64
            assert row["precision"] == "torch.bfloat16"
            taken += 1
            assert found.kernel == "Triton"
            assert "written once" in found.reason
            assert row["graph, ms"]["fused"] <= 1.1 * min(row["graph, ms"].values())
    known_plan.cache_clear()
    assert taken >= 6


@pytest.mark.parametrize(("kind", "out"), [("states", None), ("project", 64)])
def test_a_matrix_that_is_only_read_costs_little(kind: str, out: int | None) -> None:
    """Order 256 over 64 steps: one product over all steps, whose matrix is read but not written, is the fastest."""
    system = plmu.DelayNetwork(256, 256.0).discretize()
    chosen = plan(kind, batch=1, time=64, channels=1, system=system, **({} if out is None else {"out": out}))
    assert chosen.algorithm == "toeplitz"


def test_a_weight_that_is_multiplied_into_a_large_matrix_reads_it() -> None:
    """So the chunks of a folded product are short where the order is high."""
    system = plmu.DelayNetwork(429, 773.0).discretize()
    chosen = plan("project", batch=1, time=7303, channels=1, out=14, system=system)
    assert (chosen.algorithm, chosen.fold) == ("chunked", True)
    assert chosen.chunk <= 32
