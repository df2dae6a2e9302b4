"""Groups of channels with systems of their own in one launch of our kernels, against the float64 recurrence."""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from closeness import within
from operations import needs_kernels
from torch import Tensor, nn

import plmu
from plmu.ops import dispatch, groups
from plmu.ops.gpu import launch, projection, tables

pytestmark = needs_kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# As in test_fused.py.
ERROR = {torch.float32: 1e-6, torch.float16: 4 * torch.finfo(torch.float16).eps / 2}
if DEVICE == "cuda":
    ERROR[torch.bfloat16] = 4 * torch.finfo(torch.bfloat16).eps / 2
SHAPES = {
    # batch, time, channels, out, order, windows
    "short windows": (1, 66, 6, 3, 2, (6.0, 3.0, 4.0)),
    "groups of more than a tile": (1, 9, 132, 7, 1, (5.0, 9.0)),
    "short and long windows": (1, 140, 4, 3, 2, (4.0, 500.0)),
}
if DEVICE == "cuda":  # sizes that the kernels for Hopper take
    SHAPES |= {
        "the language model's": (3, 500, 208, 208, 4, (4.0, 16.0, 64.0, 256.0)),
        "whole tiles": (4, 300, 512, 256, 4, (4.0, 6.0, 8.0, 5.0)),
        "an odd order": (2, 130, 272, 72, 5, (9.0, 300.0)),
        "order 1": (2, 200, 128, 64, 1, (3.0, 2.0)),
    }


def error(value: Tensor, exact: Tensor) -> float:
    return ((value.detach().cpu().double() - exact.detach().cpu()).norm() / exact.detach().cpu().norm()).item()


def separately(algorithm: str, systems: list, leaves: list[Tensor], **options: Any) -> tuple[Tensor, Tensor]:
    """A call for each group."""
    count = len(systems)
    u, weight = leaves[0].chunk(count, 2), leaves[1].chunk(count, 2)
    states = leaves[2].chunk(count, 2) if len(leaves) > 2 else [None] * count
    parts = [plmu.project(u[i], systems[i], weight[i], states[i], algorithm=algorithm, **options) for i in range(count)]
    return sum(o for o, _ in parts), torch.cat([last for _, last in parts], dim=2)


OPTIONS = ["plain", "final state used", "state and lengths", "state, lengths and resets"]
CASES = list(itertools.product(SHAPES, OPTIONS, ERROR))
# The interpreter and compilers are slow: `make test` has every fifth case, with all shapes and options among them.
MARKS = [(pytest.mark.full,) if i % 5 else () for i in range(len(CASES))]


@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    [pytest.param(*case, marks=marks, id=", ".join(map(str, case))) for case, marks in zip(CASES, MARKS, strict=True)],
)
def test_against_the_recurrence(name: str, options: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SECOND_LAUNCH", -99)  # so that states are carried in runs
    batch, time, channels, out, order, windows = SHAPES[name]
    systems = [plmu.DelayNetwork(order, theta).discretize() for theta in windows]
    given = [torch.randn(batch, time, channels).to(dtype)]
    given.append((torch.randn(out, order, channels) / (order * channels) ** 0.5).to(dtype))
    if "state" in options and options != "final state used":
        given.append(torch.randn(batch, order, channels))
    lengths = [max(1, (time - 1) >> i) for i in range(batch)] if "lengths" in options else None
    resets = (torch.rand(batch, time) < 3 / time) if "resets" in options else None
    grad_o, grad_last = torch.randn(batch, time, out).to(dtype), torch.randn(batch, order, channels)
    used = 1 if options == "plain" else 2

    def results(leaves: list[Tensor], algorithm: str, grouped: bool) -> list[Tensor]:
        leaves = [one.clone().requires_grad_() for one in leaves]
        marks = None if resets is None else resets.to(leaves[0].device)
        if grouped:
            state = leaves[2] if len(leaves) > 2 else None
            found = dispatch.output(
                leaves[0], groups.SystemGroups(systems), leaves[1], state, lengths, algorithm, marks, None
            )
            assert found is not None
        else:
            found = separately(algorithm, systems, leaves, lengths=lengths, resets=marks)
        gradients = [one.to(value) for one, value in zip((grad_o, grad_last), found, strict=True)]
        return [*found, *torch.autograd.grad(found[:used], leaves, gradients[:used])]

    exact = results([one.double() for one in given], "recurrent", False)
    plain = results([one.float() for one in given], "recurrent", False)
    ours = results([one.to(DEVICE) for one in given], "fused", True)
    again = results([one.to(DEVICE) for one in given], "fused", True) if options == "final state used" else ours
    for value, right, float32 in zip(ours, exact, plain, strict=True):
        within(error(value, right), ERROR[dtype] + 2 * error(float32, right))
    assert all(torch.equal(one, two) for one, two in zip(ours, again, strict=True)), "bit for bit"


def launches(call: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that launch our kernels, in order."""
    found: list[str] = []
    for name in ("carry", "project", "final_state", "weight_gradient"):
        real = getattr(launch, name)
        monkeypatch.setattr(
            launch, name, lambda *given, real=real, name=name, **rest: found.append(name) or real(*given, **rest)
        )
    call()
    return found


@pytest.mark.parametrize(
    ("theta", "expected"),
    [
        ([6.0, 3.0], ["project", "final_state", "weight_gradient", "project"]),
        ([6.0, 300.0], ["carry", "project", "final_state", "carry", "weight_gradient", "carry", "project"]),
    ],
)
def test_a_layer_launches_for_all_windows_at_once(theta: list, expected: list, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = plmu.ParallelLMU(4, 3, order=2, theta=theta, encoder=False, algorithm="fused").to(DEVICE).half()
    x = torch.randn(1, 66, 4, device=DEVICE).half().requires_grad_()
    assert launches(lambda: layer(x)[0].sum().backward(), monkeypatch) == expected
    assert "All 2 groups of channels in one launch." in str(layer.plan(batch=1, time=66))


def test_a_layer_answers_as_by_another_algorithm() -> None:
    layers = [
        plmu.ParallelLMU(6, 5, order=3, theta=[4.0, 40.0, 400.0], memory_size=6, algorithm=one).to(DEVICE)
        for one in ("fused", "chunked")
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x, lengths = torch.randn(2, 66, 6, device=DEVICE), [66, 7]
    state = torch.randn(2, 3, 6, device=DEVICE)
    ours = [*layers[0](x, state, lengths)]
    exact = [*layers[1].double()(x.double(), state.double(), lengths)]
    for value, right in zip(ours, exact, strict=True):
        within(error(value, right), 4 * ERROR[torch.float32])


def test_compiled_and_eager_agree() -> None:
    layer = plmu.ParallelLMU(4, 3, order=2, theta=[6.0, 300.0], encoder=False, algorithm="fused").to(DEVICE)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for time in (66, 70):  # sizes that change are symbols to the compiler
        x = torch.randn(1, time, 4, device=DEVICE, requires_grad=True)
        leaves = (x, *layer.parameters())
        expected = torch.autograd.grad(layer(x)[0].sin().sum(), leaves)
        for value, right in zip(torch.autograd.grad(compiled(x)[0].sin().sum(), leaves), expected, strict=True):
            torch.testing.assert_close(value, right)


def test_systems_of_groups_are_shared_copied_and_pickled() -> None:
    layer = plmu.ParallelLMU(4, 3, order=2, theta=[6.0, 300.0], encoder=False)
    own = layer.memory._together
    assert own is not None
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), plmu.ParallelLMU(4, 3, 2, [6.0, 300.0], 4)):
        assert other.memory._together is not None
        assert other.memory._together._cache is own._cache
    assert plmu.ParallelLMU(4, 3, order=2, theta=[6.0], encoder=False).memory._together is None
    trained = plmu.ParallelLMU(4, 3, order=2, theta=[6.0, 9.0], encoder=False, trainable="theta")
    assert trained.memory._together is None
    assert isinstance(trained.memory, nn.Module)


def test_a_group_of_torch_operators() -> None:
    systems = groups.SystemGroups([plmu.DelayNetwork(3, theta).discretize() for theta in (6.0, 90.0)])
    u = torch.randn(1, 5, 4, device=DEVICE, requires_grad=True)
    weight = torch.randn(3, 3, 4, device=DEVICE, requires_grad=True)
    first = torch.randn(1, 3, 4, device=DEVICE, requires_grad=True)
    given = projection.constants_for(u, systems, first)
    arguments = (u, weight, first, None, given.powers, *given.tables[:8], given.steps, given.run, given.groups)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(projection._project, arguments, test_utils=checks)
