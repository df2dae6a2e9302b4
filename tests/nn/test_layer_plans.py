"""`layer.plan` names what runs: hundreds of random layers and shapes, each planned and then called under watch."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import plmu
from plmu import LMU, DelayLayer, ParallelLMU
from plmu.nn import coupled, original
from plmu.ops import chunked, dispatch, fft, recurrent, toeplitz, transforms
from plmu.ops.gpu import all_states, launch, output, projection
from plmu.ops.gpu.float32 import split, split_hopper
from plmu.ops.plan import known_plan
from plmu.ops.rates import DEVICES

MULTI = plmu.LinearSystem([[0.9, 0.2], [-0.2, 0.9]], [[1.0, 0.3, 0.1], [0.5, -1.0, 0.4]])
GROWING = plmu.LinearSystem([[1.01]], [1.0])
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="beside a GPU kernels are not interpreted")


@dataclass
class Calls:
    """What was called, in order."""

    kinds: list[str] = field(default_factory=list)  # of `plmu.ops`
    algorithms: list[tuple[Any, ...]] = field(default_factory=list)  # with chunk, fold and tile, where there are any
    kernels: set[str] = field(default_factory=set)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    found = Calls()

    def watch(module: Any, name: str, note: Callable[..., None]) -> None:
        real = getattr(module, name)

        def watched(*given: Any, **options: Any) -> Any:
            note(*given)
            return real(*given, **options)

        monkeypatch.setattr(module, name, watched)

    for name, kind in (("states_of", "states"), ("final_state_of", "final_state")):
        watch(dispatch, name, lambda *_, kind=kind: found.kinds.append(kind))
    real = dispatch.output

    def output_of(*given: Any) -> Any:
        found.kinds += ["project"] * ((answer := real(*given)) is not None)
        return answer

    monkeypatch.setattr(dispatch, "output", output_of)
    for module in (recurrent, toeplitz, fft):
        name = module.__name__.split(".")[-1]
        watch(module, "states", lambda *_, name=name: found.algorithms.append((name,)))
    watch(
        chunked, "states", lambda *given: found.algorithms.append(("chunked", 1 if given[4] is not None else given[5]))
    )
    watch(chunked, "project", lambda *given: found.algorithms.append(("chunked", *given[6:])))
    watch(transforms, "states", lambda *given: found.algorithms.append(("fft", given[2])))
    watch(transforms, "project", lambda *given: found.algorithms.append(("fft", given[3])))
    watch(projection, "project", lambda *_: found.algorithms.append(("fused",)))
    watch(output, "output", lambda *_: found.algorithms.append(("fused",)))
    watch(all_states, "states", lambda *_: found.algorithms.append(("fused",)))
    watch(coupled, "states", lambda *_: found.algorithms.append(("coupled",)))
    watch(original._Loop, "advance", lambda *_: found.algorithms.append(("step by step",)))
    watch(coupled._Library, "forward", lambda *_: found.kernels.add("library"))
    # Our kernels' launches are noted, not made: other tests compare what they compute.
    monkeypatch.setattr(launch, "project", lambda u, before, segments, weight, *_, **options: _launched(
        found, u, weight, weight.shape[2 if options.get("reversed") else 0]))  # fmt: skip
    monkeypatch.setattr(split, "project", lambda u, before, segments, weight, *_, **options: _launched(
        found, u, weight, weight.shape[2 if options.get("reversed") else 0],
        split_hopper.fits(u, weight, options["groups"])))  # fmt: skip
    monkeypatch.setattr(launch, "marks", lambda *_: None)
    monkeypatch.setattr(launch, "carry", lambda u, first, segments, taps, *_, **__: (
        u.new_zeros(1), u.new_zeros(u.shape[0], taps.shape[1], u.shape[2], dtype=torch.float32)))  # fmt: skip
    monkeypatch.setattr(launch, "final_state", lambda u, before, segments, taps, *_, **__: u.new_zeros(
        u.shape[0], taps.shape[1], u.shape[2], dtype=torch.float32))  # fmt: skip
    monkeypatch.setattr(all_states, "_states", lambda u, first, segments, *rest: (
        u.new_zeros(*u.shape[:2], rest[0].shape[0], u.shape[2]),
        u.new_zeros(u.shape[0], rest[0].shape[0], u.shape[2], dtype=torch.float32)))  # fmt: skip
    known_plan.cache_clear()
    yield found
    known_plan.cache_clear()


def _launched(calls: Calls, u: Tensor, weight: Tensor, out: int, hopper: bool = False) -> tuple[Tensor, tuple]:
    calls.kernels.add("Hopper" if hopper or launch.for_hopper(u, weight) else "Triton")
    return u.new_zeros(*u.shape[:2], out), ()


def random_layer(rng: random.Random, half: bool) -> tuple[plmu.nn.Steppable, torch.dtype]:
    """Any layer, small; with float16 only what a CPU has for it."""
    dtype = rng.choice([torch.float32, torch.float32, torch.float64] + [torch.float16] * (3 * half))
    memory: dict[str, Any] = {"order": rng.choice([1, 2, 4, 8, 40]), "theta": rng.choice([3.0, 20.0, 300.0])}
    memory["trainable"] = rng.choice(["none"] * 5 + ["theta", "system"])
    options: dict[str, Any] = {"return_sequences": rng.random() < 0.85, "missing": rng.choice([None, None, "zero"])}
    kind = rng.choice(["parallel"] * 5 + ["delay"] * 2 + ["original"])
    if kind == "original":
        dtype = torch.float32 if dtype == torch.float16 else dtype
        options["hidden_activation"] = rng.choice(["tanh", "tanh", "relu"])
        return LMU(2, 3, **memory, memory_size=rng.choice([1, 1, 2]), **options).to(dtype), dtype
    options["algorithm"] = rng.choice(["auto"] * 6 + ["chunked", "fft", "toeplitz", "recurrent", "fused"])
    width = rng.choice([1, 2, 4, 8])
    special = rng.choice(["", "", "", "several theta", "several inputs", "growing"])
    if special == "several theta" and width > 1:
        memory["theta"] = [3.0, 20.0]
    elif special == "several inputs":
        width, memory = 3, {"system": MULTI}
    elif special == "growing":
        memory = {"system": GROWING}
    if kind == "delay":
        return DelayLayer(width, **memory, **options).to(dtype), dtype
    options["input_to_output"] = rng.random() < 0.7
    options["standardize"] = rng.random() < 0.3
    options["memory_dropout"] = rng.choice([0.0, 0.0, 0.0, 0.5])
    hidden, shape = rng.choice([1, 3, 8, 64]), rng.choice(["", "", "gated", "no encoder"])
    if shape:
        options["gated" if shape == "gated" else "encoder"] = shape == "gated"
        return ParallelLMU(width, hidden, **memory, **options).to(dtype), dtype
    return ParallelLMU(rng.choice([1, 3]), hidden, memory_size=width, **memory, **options).to(dtype), dtype


def planned(layer: Any, asked: dict[str, Any]) -> tuple[plmu.Plan | None, str]:
    """The plan, or why there is none."""
    try:
        return layer.plan(**asked), ""
    except ValueError as error:
        return None, str(error)


def compare(calls: Calls, seed: int, half: bool) -> plmu.Plan | None:
    """A random layer planned and called; the plan, or None where both say that it cannot run."""
    rng = random.Random(seed)
    layer, dtype = random_layer(rng, half)
    batch, time = rng.choice([0, 1, 2, 8]), rng.choice([1, 2, 9, 16, 17, 70, 200] + [1500] * half)
    lengths = [max(0, time - i) for i in range(batch)] if rng.random() < 0.3 else None
    resets = torch.rand(batch, time) < 0.1 if rng.random() < 0.2 else None
    x = torch.randn(batch, time, layer.input_size).to(dtype)
    asked = {"batch": batch, "time": time, "dtype": dtype, "lengths": lengths is not None, "resets": resets is not None}
    state = None
    if isinstance(layer, ParallelLMU) and rng.random() < 0.3:
        state, asked["state"] = layer.initial_state(batch, dtype, torch.device("cpu")), True
    calls.kinds, calls.algorithms, calls.kernels = [], [], set()
    with torch.set_grad_enabled(rng.random() < 0.7):
        plan, refusal = planned(layer, asked)
        if plan is None:
            with pytest.raises(ValueError, match=f"^{re.escape(refusal)}$"):
                layer(x, state, lengths, resets=resets)
            return None
        layer(x, state, lengths, resets=resets)
    check(plan, calls, layer, time)
    return plan


def check(plan: plmu.Plan, calls: Calls, layer: plmu.nn.Steppable, time: int) -> None:
    if isinstance(layer, LMU):
        assert plan.kind == "recurrence"
        steps = time if plan.algorithm == "step by step" else 1
        assert calls.algorithms == [(plan.algorithm,)] * steps
        assert calls.kernels == ({"library"} if plan.algorithm == "coupled" else set())
        assert plan.kernel == "library"
        return
    groups = 1 if "groups of channels in one launch" in plan.reason else layer.memory.groups
    assert calls.kinds == [plan.kind] * groups
    if plan.kind == "final_state":
        assert plan.algorithm == "product"
        assert not calls.algorithms
        return
    called = (plan.algorithm,)
    if plan.algorithm == "chunked":
        called += (plan.chunk, plan.fold, plan.tile) if plan.kind == "project" else (plan.chunk,)
    if plan.algorithm == "fft" and plan.chunk and calls.algorithms != [("fft",)] * groups:  # of no sequences in one
        called += (plan.chunk,)
    expected = [] if plan.algorithm == "fused" and not calls.algorithms else [called] * groups  # of no sequences
    assert calls.algorithms == expected
    if plan.algorithm == "fused" and plan.kind == "project" and expected:
        assert calls.kernels == {plan.kernel}
    assert (plan.kernel == "library") == (plan.algorithm != "fused")


@interpreted
def test_on_a_cpu(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], stored=1 << 12))  # so that small shapes pass it
    plans = [compare(calls, seed, half=False) for seed in range(250)]
    ran = {(plan.kind, plan.algorithm) for plan in plans if plan is not None}
    named = ("chunked", "fft", "toeplitz", "recurrent")
    assert ran >= {("project", "fused"), *((kind, name) for kind in ("states", "project") for name in named)}
    assert ran >= {("recurrence", "coupled"), ("recurrence", "step by step"), ("final_state", "product")}
    assert None in plans


@interpreted
def test_with_the_rates_and_kernels_of_a_gpu(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this processor were a Hopper GPU, of which `auto` chooses as it would there."""
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cuda"], stored=1 << 14, own_latency=1e-6))
    monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    plans = [plan for seed in range(1000, 1150) if (plan := compare(calls, seed, half=True)) is not None]
    ran = {(plan.kind, plan.algorithm, plan.kernel) for plan in plans}
    assert ran >= {("project", "fused", "Hopper"), ("project", "fused", "Triton"), ("project", "chunked", "library")}
    by_auto = {(plan.algorithm, plan.kernel) for plan in plans if "candidate" in plan.reason}
    assert by_auto >= {("fused", "Hopper"), ("fft", "library"), ("toeplitz", "library"), ("recurrent", "library")}
    for plan in plans:
        if plan.kernel == "Triton" and plan.kind == "project":
            assert "the kernels for Hopper" in plan.passed_over["a faster kernel"]


@pytest.mark.parametrize("trainable", ["none", "system"])
@pytest.mark.parametrize("algorithm", ["auto", "chunked", "fft", "toeplitz", "recurrent"])
@pytest.mark.parametrize("hidden", [3, 64])
@pytest.mark.parametrize("channels", [1, 4])
def test_what_is_stored(algorithm: str, channels: int, hidden: int, trainable: str) -> None:
    """Something as large as m is kept for the backward pass where the plan says so, and nowhere else."""
    batch, time, order = 61, 64, 16  # a prime number of sequences, by which no constant's size can be divided
    memory = {"order": order, "theta": 50.0, "trainable": trainable, "memory_size": channels}
    layer = ParallelLMU(2, hidden, algorithm=algorithm, output_activation=None, **memory)
    plan = layer.plan(batch=batch, time=time)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        layer(torch.randn(batch, time, 2))
    ran = 2 if plan.reason.startswith("The encoder comes after the memory") else channels
    size = batch * time * order * ran
    large = [one for one in saved if one.numel() >= size and one.numel() % batch == 0]
    assert bool(large) == ("m" in plan.stored), [tuple(one.shape) for one in saved]


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (ParallelLMU(1, 64, order=8, theta=50.0), "m is small: it is stored"),
        (ParallelLMU(1, 64, order=8, theta=50.0, memory_size=60), "which runs on 1 input channel. "),
        (ParallelLMU(4, 64, order=8, theta=50.0, gated=True), "not one product for m and x: m has several channels"),
        (DelayLayer(2, order=8, theta=50.0), "not fused: runs on a GPU alone"),
        (LMU(1, 4, order=8, theta=50.0), "one product and one tanh each"),
        (LMU(1, 4, order=8, theta=50.0, memory_size=2), "not coupled: there is more than one memory channel"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, plmu.nn.Steppable) else "",
)
def test_a_layer_explains_itself(layer: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    known_plan.cache_clear()
    text = str(layer.plan(batch=4, time=100))
    known_plan.cache_clear()
    assert says in text
    assert "kernel: library; stored for the backward pass: " in text
