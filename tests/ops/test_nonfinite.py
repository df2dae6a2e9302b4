"""NaN and infinity in the input: outputs before them, behind a reset and in other sequences stay as they were.

The reference is the same input with zeros in place of bad values: where nothing bad has come yet, results must equal
its results bit for bit.
"""

import math
from collections.abc import Callable

import pytest
import torch
from closeness import within
from operations import ALGORITHMS, RESETTING, in_chunks
from torch import Tensor

import plmu

BATCH, TIME, CHANNELS, ORDER, OUT = 3, 150, 2, 4, 3
BAD_STEP, RESET = 70, 90  # inside blocks of every size that a plan takes
BAD = (math.nan, math.inf, -math.inf)
EPS = torch.finfo(torch.float32).eps
FUSED = () if torch.cuda.is_available() else ("fused",)  # interpreted on a CPU; for a GPU there is test_gpu.py
SYSTEMS = {
    "delay network": plmu.DelayNetwork(ORDER, 9.0).discretize(),
    "several inputs": plmu.LinearSystem(0.3 * torch.eye(3), torch.ones(3, CHANNELS)),
    "more inputs than orders": plmu.LinearSystem([[0.5]], torch.ones(1, CHANNELS)),
}


def inputs(bad: float) -> tuple[Tensor, Tensor]:
    """u with one bad value in the middle sequence, and the same with a zero there."""
    clean = torch.randn(BATCH, TIME, CHANNELS)
    clean[1, BAD_STEP, 1] = 0.0
    u = clean.clone()
    u[1, BAD_STEP, 1] = bad
    return u, clean


def results(u: Tensor, system: plmu.LinearSystem, algorithm: str = "auto", **options: object) -> tuple[Tensor, ...]:
    """m, o, and the final state by each of the three functions."""
    torch.manual_seed(5)
    weight = torch.randn(OUT, system.order, u.shape[2] if system.inputs is None else 1)
    m, last_of_states = plmu.states(u, system, algorithm=algorithm, **options)
    o, last_of_project = plmu.project(u, system, weight, algorithm=algorithm, **options)
    return m, o, last_of_states, last_of_project, plmu.final_state(u, system, **options)


def assert_spoilt(found: tuple[Tensor, ...], clean: tuple[Tensor, ...], steps: Tensor, end: Tensor) -> None:
    """NaN in m (batch, time, order, channels) where `steps` (batch, time, channels) says, in o where it does for any
    channel, in final states where `end` (batch, channels) does; all else as without the bad value."""
    m, o, *ends = zip(found, clean, strict=True)
    marks = [steps[:, :, None].expand_as(m[0]), steps.any(2)[:, :, None].expand_as(o[0])]
    marks += [end[:, None].expand_as(last) for last, _ in ends]
    for (value, right), marked in zip((m, o, *ends), marks, strict=True):
        assert value[marked].isnan().all()
        assert torch.equal(value[~marked], right[~marked])


def spoilt_from(system: plmu.LinearSystem, begin: int, end: int = TIME) -> Tensor:
    """Of the middle sequence, the steps from `begin` to `end`, in the second channel or in the only one."""
    channels = CHANNELS if system.inputs is None else 1
    steps = torch.zeros(BATCH, TIME, channels, dtype=torch.bool)
    steps[1, begin:end, -1] = True
    return steps


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_before_a_bad_value_or_beside_it_changes(algorithm: str, name: str, bad: float) -> None:
    system = SYSTEMS[name]
    u, clean = inputs(bad)
    steps = spoilt_from(system, BAD_STEP)
    assert_spoilt(results(u, system, algorithm), results(clean, system, algorithm), steps, steps[:, -1])


@pytest.mark.parametrize("chunk", [1, 16, 64, TIME])
@pytest.mark.parametrize("fold", [False, True])
def test_chunks_of_every_size(chunk: int, fold: bool) -> None:
    system = SYSTEMS["delay network"]
    u, clean = inputs(math.nan)
    steps = spoilt_from(system, BAD_STEP)
    with in_chunks(chunk, fold):
        assert_spoilt(results(u, system), results(clean, system), steps, steps[:, -1])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("algorithm", [*RESETTING, *FUSED])
def test_a_reset_ends_it(algorithm: str, bad: float) -> None:
    system = SYSTEMS["delay network"]
    u, clean = inputs(bad)
    resets = torch.zeros(BATCH, TIME, dtype=torch.bool)
    resets[1, [5, RESET]] = True
    steps = spoilt_from(system, BAD_STEP, RESET)
    found, right = (results(one, system, algorithm, resets=resets) for one in (u, clean))
    assert_spoilt(found, right, steps, steps[:, -1])
    assert all(last.isfinite().all() for last in found[2:])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_padding_stays_zero_and_nothing_in_it_counts(algorithm: str, bad: float) -> None:
    system = SYSTEMS["delay network"]
    u, clean = inputs(bad)
    for length, reaches in ((BAD_STEP, False), (BAD_STEP + 1, True), (BAD_STEP + 20, True)):
        lengths = [TIME, length, 0]
        steps = spoilt_from(system, BAD_STEP, length)
        end = steps.any(1)
        assert bool(end.any()) == reaches
        found, right = (results(one, system, algorithm, lengths=lengths) for one in (u, clean))
        assert_spoilt(found, right, steps, end)
        assert not found[0][1, length:].any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bad_state_spoils_its_channel_until_a_reset(algorithm: str) -> None:
    system = SYSTEMS["delay network"]
    u, clean = inputs(0.0)
    state = torch.randn(BATCH, ORDER, CHANNELS)
    zeros = state.clone()
    zeros[1, :, 1] = 0.0
    state[1, 2, 1] = math.nan
    cases: list[tuple[dict, int, Tensor]] = [({}, TIME, torch.tensor([0, 1, 0], dtype=torch.bool))]
    if algorithm in RESETTING:
        resets = torch.zeros(BATCH, TIME, dtype=torch.bool)
        resets[:, RESET] = True
        cases.append(({"resets": resets}, RESET, torch.zeros(BATCH, dtype=torch.bool)))
    for options, until, at_end in cases:
        steps = spoilt_from(system, 0, until)
        end = torch.stack([torch.zeros_like(at_end), at_end], dim=1)
        found = results(u, system, algorithm, state=state, **options)
        assert_spoilt(found, results(clean, system, algorithm, state=zeros, **options), steps, end)
    found = results(u, system, algorithm, state=state, lengths=[TIME, 0, TIME])
    assert not found[0][1].any()
    for last in found[2:]:  # without steps, the initial state
        torch.testing.assert_close(last[1], state[1], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradients_of_what_came_before(algorithm: str) -> None:
    """A loss over the steps before a bad value has the gradients that it has without it."""
    system = SYSTEMS["delay network"]

    def gradients(u: Tensor) -> tuple[Tensor, ...]:
        weight = torch.linspace(-1, 1, OUT * ORDER * CHANNELS).reshape(OUT, ORDER, CHANNELS)
        leaves = (u.requires_grad_(), weight.requires_grad_())
        o, _ = plmu.project(u, system, weight, algorithm=algorithm)
        return torch.autograd.grad(o[:, :BAD_STEP].square().sum(), leaves)

    (grad_u, grad_weight), (right_grad_u, right_grad_weight) = (gradients(u) for u in inputs(math.nan))
    right_grad_u[1, BAD_STEP, 1] = 0.0  # the bad value itself has none; what an FFT rounds to there is not zero
    assert torch.equal(grad_u, right_grad_u)
    assert torch.equal(grad_weight, right_grad_weight)


def test_large_finite_inputs_are_not_taken_for_bad() -> None:
    """Even where their sum overflows."""
    u = torch.full((1, 20, 1), 3e38)
    m, last = plmu.states(u, plmu.LinearSystem([[0.0]], [1.0]))
    assert torch.equal(m[..., 0], u)
    assert torch.equal(last.flatten(), u[:, -1].flatten())


LAYERS: dict[str, Callable[[], plmu.nn.Steppable]] = {
    "parallel": lambda: plmu.ParallelLMU(CHANNELS, 5, ORDER, 9.0, output_activation="tanh"),
    "gated": lambda: plmu.ParallelLMU(CHANNELS, 5, ORDER, 9.0, gated=True),
    "delay": lambda: plmu.DelayLayer(CHANNELS, ORDER, 9.0),
    "original": lambda: plmu.LMU(CHANNELS, 5, ORDER, 9.0),
    "stack": lambda: plmu.Sequential(
        torch.nn.Linear(CHANNELS, 3), plmu.ParallelLMU(3, 4, ORDER, 9.0), plmu.DelayLayer(4, ORDER, 3.0)
    ),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", LAYERS)
def test_the_same_steps_are_bad_three_ways(name: str, bad: float) -> None:
    layer, (x, _) = LAYERS[name](), inputs(bad)
    with torch.no_grad():
        whole, _ = layer(x)
        first, state = layer(x[:, : BAD_STEP + 5])
        second, _ = layer(x[:, BAD_STEP + 5 :], state)
        state, stepped = None, []
        for t in range(TIME):
            out, state = layer.step(x[:, t], state)
            stepped.append(out)
    expected = torch.ones(BATCH, TIME, dtype=torch.bool)
    expected[1, BAD_STEP:] = False
    for out in (whole, torch.cat([first, second], dim=1), torch.stack(stepped, dim=1)):
        assert torch.equal(out.isfinite().all(2), expected)
        assert torch.equal(out.isnan().any(2), ~expected)


@pytest.mark.parametrize("bad", BAD)
def test_the_last_output_alone(bad: float) -> None:
    x, _ = inputs(bad)
    for layer in (
        plmu.ParallelLMU(CHANNELS, 5, ORDER, 9.0, return_sequences=False),
        plmu.DelayLayer(CHANNELS, ORDER, 9.0, return_sequences=False),
        plmu.LMU(CHANNELS, 5, ORDER, 9.0, return_sequences=False),
    ):
        out, _ = layer(x)
        assert torch.equal(out.isnan().any(1), torch.tensor([False, True, False]))
        assert not out.isinf().any()


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")  # torch's own doing
def test_torch_func_and_compiled_graphs() -> None:
    system = SYSTEMS["delay network"]
    u, clean = inputs(math.nan)
    steps = spoilt_from(system, BAD_STEP)
    weight = torch.randn(OUT, ORDER, CHANNELS)

    def project(u: Tensor) -> Tensor:
        return plmu.project(u, system, weight, algorithm="chunked")[0]

    mapped = torch.func.vmap(project)(torch.stack([clean, u]))
    assert mapped[0].isfinite().all()
    assert torch.equal(mapped[1].isnan().all(2), steps.any(2))
    compiled = torch.compile(project, fullgraph=True, backend="aot_eager")
    assert compiled(u)[1, 0].isnan().all(), "in a compiled graph nothing is looked at,"
    with plmu.isolate_nonfinite():
        assert torch.equal(compiled(u).isnan().all(2), steps.any(2)), "unless that is asked for"
        assert torch.equal(compiled(u)[1, :BAD_STEP], compiled(clean)[1, :BAD_STEP])


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # in Triton's interpreter
@pytest.mark.parametrize("algorithm", [*RESETTING, *FUSED])
def test_a_state_that_overflowed_ends_at_a_reset(algorithm: str) -> None:
    """Finite inputs to a system that grows: after the reset, in the middle of a block, all is as in the recurrence."""
    system = plmu.LinearSystem([[5.0]], [1.0])
    resets = torch.zeros(2, TIME, dtype=torch.bool)
    resets[:, 110::20] = True
    found, right = (results(torch.ones(2, TIME, 3), system, one, resets=resets) for one in (algorithm, "recurrent"))
    assert not right[0][:, 60:110].isfinite().any()
    for value, expected in zip(found, right, strict=True):
        finite = expected.isfinite()
        assert torch.equal(value.isfinite(), finite)
        torch.testing.assert_close(value[finite], expected[finite], rtol=20 * torch.finfo(value.dtype).eps, atol=0)


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")  # torch's own doing
def test_a_compiled_graph_does_not_depend_on_how_often_isolation_was_entered() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda u: plmu.states(u, SYSTEMS["delay network"])[0], backend="eager", fullgraph=True)
    u, _ = inputs(math.nan)
    with torch.compiler.set_stance("default"), plmu.isolate_nonfinite():
        compiled(u)
        with torch.compiler.set_stance("fail_on_recompile"), plmu.isolate_nonfinite(), plmu.isolate_nonfinite():
            assert compiled(u)[1, :BAD_STEP].isfinite().all()


# A system that grows: what it would have become behind a reset or in the padding overflows, and must not show.

GROWING = plmu.LinearSystem([[5.0, 1.0], [0.0, 3.0]], [1.0, 2.0])
SHORT = [20, 7, 1]


def everything(algorithm: str, dtype: torch.dtype, lengths: list[int] | None, resets: Tensor | None) -> list[Tensor]:
    """All results for the growing system, and the gradients of all arguments."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((3, TIME, 2), (4, 2, 2), (3, 2, 2))
    u, weight, state = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)
    options = {"lengths": lengths, "resets": resets}
    o, last = plmu.project(u, GROWING, weight, state, algorithm=algorithm, **options)
    m, same = plmu.states(u, GROWING, state, algorithm=algorithm, **options)
    final = plmu.final_state(u, GROWING, state, **options)
    total = o.sum() + m.sum() + last.sum() + same.sum() + final.sum()
    return [o, m, last, same, final, *torch.autograd.grad(total, (u, weight, state))]


@pytest.mark.parametrize("algorithm", RESETTING)
def test_gradients_of_a_trained_system_that_grows(algorithm: str) -> None:
    """With lengths and resets: what the first state would have become behind a reset overflows."""

    def gradients(algorithm: str, dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        A, B = (torch.nn.Parameter(one.clone()) for one in (GROWING.A, GROWING.B))
        shapes = ((2, 100, 2), (4, 2, 2), (2, 2, 2))
        u, weight, state = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)
        resets = torch.zeros(2, 100, dtype=torch.bool)
        resets[:, 10::10] = True
        options = {"lengths": [90, 60], "resets": resets}
        system = plmu.LinearSystem(A, B)
        o, last = plmu.project(u, system, weight, state, algorithm=algorithm, **options)
        final = plmu.final_state(u, system, state, **options)
        return list(torch.autograd.grad(o.sum() + last.sum() + final.sum(), (A, B, u, weight, state)))

    exact, plain = (gradients("recurrent", dtype) for dtype in (torch.float64, torch.float32))
    for value, right, float32 in zip(gradients(algorithm, torch.float32), exact, plain, strict=True):
        # Twice the plain method's error, or a rounding for each of the 10 steps of a segment, forward and backward.
        within((value - right).norm(), max(2 * (float32 - right).norm(), 20 * 2 * EPS * right.norm()))


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # in Triton's interpreter
@pytest.mark.parametrize("resetting", [False, True])
@pytest.mark.parametrize("lengths", [None, SHORT], ids=["whole", "padded"])
@pytest.mark.parametrize(
    ("algorithm", "chunk", "fold"),
    [
        ("auto", 0, False),
        ("toeplitz", 0, False),
        *[(fused, 0, False) for fused in FUSED],
        *[("chunked", chunk, fold) for chunk in (5, 16, 64, TIME) for fold in (False, True)],
    ],
)
def test_what_overflows_behind_a_reset_or_in_the_padding_does_not_show(
    algorithm: str, chunk: int, fold: bool, lengths: list[int] | None, resetting: bool
) -> None:
    resets = None
    if resetting:
        if algorithm == "toeplitz" or fold:
            pytest.skip("takes no resets")
        resets = torch.zeros(3, TIME, dtype=torch.bool)
        resets[:, 20::13] = True
    elif lengths is None:
        pytest.skip("overflows")
    exact = everything("recurrent", torch.float64, lengths, resets)
    plain = everything("recurrent", torch.float32, lengths, resets)
    if chunk:
        with in_chunks(chunk, fold, tile=2):
            found = everything("chunked", torch.float32, lengths, resets)
    else:
        found = everything(algorithm, torch.float32, lengths, resets)
    # Twice the plain method's error, or one rounding for each of the at most 20 steps that a result sums over.
    for value, right, float32 in zip(found, exact, plain, strict=True):
        allowed = max(2 * (float32 - right).norm(), 20 * 2 * EPS * right.norm())
        within((value - right).norm(), allowed)
