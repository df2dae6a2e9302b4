"""torch.export of layers and stacks with a batch and a time left open: the answers hold for other sizes too."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from closeness import assert_same
from layers import INPUTS, LAYERS, SMALL, build, random_state
from torch import Tensor, nn
from torch.export import Dim, export

import plmu
from plmu import DelayLayer, ParallelLMU, Residual, Sequential

BATCH, TIME = Dim("batch", min=1, max=64), Dim("time", min=1, max=4096)
SIZES = [(1, 1), (3, 2), (2, 64), (1, 130), (5, 1000)]  # a chunk has 64 steps, and the example 20
PARALLEL = [name for name in LAYERS if not name.startswith("original") and name != "stack"]
ROUNDINGS = 10_000  # a state is a sum over 1,000 steps; see `assert_same`


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def arguments(layer: plmu.nn.Steppable, batch: int, time: int, *given: str) -> dict[str, Any]:
    found: dict[str, Any] = {"x": torch.randn(batch, time, INPUTS, dtype=torch.float64)}
    if "state" in given:
        found["state"] = random_state(layer, batch)
    if "lengths" in given:
        found["lengths"] = torch.randint(0, time + 1, (batch,))
    if "resets" in given:
        found["resets"] = torch.rand(batch, time) < 0.1
    return found


def exported(layer: nn.Module, example: dict[str, Any], time: Any = TIME, strict: bool = False) -> Any:
    axes = {"x": {0: BATCH, 1: time}, "state": {0: BATCH}, "lengths": {0: BATCH}, "resets": {0: BATCH, 1: time}}
    open_axes = {name: {at: axis for at, axis in axes[name].items() if axis is not None} for name in example}
    return export(layer, (), example, dynamic_shapes=open_axes, strict=strict)


def check(layer: plmu.nn.Steppable, *given: str, time: Any = TIME, strict: bool = False) -> Any:
    program = exported(layer, arguments(layer, 2, 20, *given), time, strict)
    run = program.module()
    for batch, steps in SIZES if time is not None else [(1, 20), (5, 20)]:
        inputs = arguments(layer, batch, steps, *given)
        assert_same(run(**inputs), layer(**inputs), ROUNDINGS)
    return program


def stack(**last: bool) -> Sequential:
    inner = Sequential(nn.LayerNorm(3), ParallelLMU(3, 5, **SMALL), nn.GELU(), nn.Linear(5, 3))
    return Sequential(nn.Linear(3, 3), Residual(inner), DelayLayer(3, **SMALL, **last), nn.Dropout(0.1)).double().eval()


@pytest.mark.parametrize("last", [False, True], ids=["sequence", "last"])
def test_a_stack_with_batch_and_time_open(last: bool) -> None:
    check(stack(return_sequences=not last))


@pytest.mark.parametrize("last", [False, pytest.param(True, marks=pytest.mark.full)], ids=["sequence", "last"])
def test_states_lengths_and_resets(last: bool) -> None:
    check(build("chunked", return_sequences=not last), "state", "lengths", "resets")


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11's own reading of the file
def test_batch_alone_and_a_file() -> None:
    layer = build("plain")
    program = check(layer, time=None)
    data = io.BytesIO()
    torch.export.save(program, data)
    data.seek(0)
    x = torch.randn(7, 20, INPUTS, dtype=torch.float64)
    assert_same(torch.export.load(data).module()(x=x), layer(x))


@pytest.mark.full
def test_by_the_compiler() -> None:
    """`strict=True` reads the code through torch.compile."""
    check(build("delay", return_sequences=False), "state", strict=True)


@pytest.mark.full
def test_a_memory_that_never_fades_in_sequences_without_end() -> None:
    """No number of rounds is enough for every length, so it has as many as a tensor has steps."""
    total = plmu.LinearSystem([[1.0]], [1.0])
    layer = DelayLayer(INPUTS, system=total)
    run = exported(layer, {"x": torch.ones(2, 20, INPUTS)}, Dim("time")).module()
    for steps in (3, 20_000):
        assert torch.equal(run(x=torch.ones(1, steps, INPUTS))[0][0, :, 0], torch.arange(1.0, steps + 1))


def test_a_memory_that_grows_stays_finite_where_it_is() -> None:
    """Ā^64 overflows, and a short sequence does not need it."""
    layer = DelayLayer(INPUTS, system=plmu.LinearSystem([[1e6, 1.0], [0.0, 0.5]], [1e-3, 1.0]))
    x = torch.randn(1, 3, INPUTS, dtype=torch.float64)
    example = {"x": x, "state": torch.randn(1, 2, INPUTS, dtype=torch.float64)}
    run = exported(layer, {name: value.expand(2, -1, -1) for name, value in example.items()}).module()
    assert_same(run(**example), layer(**example))


def test_the_original_lmu_says_that_it_needs_a_fixed_time() -> None:
    layer = build("original")
    with pytest.raises(ValueError, match=r"LMU runs one step after another: .* needs a fixed number"):
        exported(layer, arguments(layer, 2, 4))


@pytest.mark.full
@pytest.mark.parametrize("last", [False, True], ids=["sequence", "last"])
@pytest.mark.parametrize("time", [TIME, None], ids=["time open", "time fixed"])
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("name", PARALLEL)
def test_every_layer(name: str, strict: bool, time: Any, last: bool) -> None:
    if last and name.startswith("residual"):
        return
    layer = build(name, **({"return_sequences": False} if last else {}))
    for given in ((), ("state",), ("lengths", "resets"), ("state", "lengths", "resets")):
        check(layer, *given, time=time, strict=strict)


@pytest.mark.full
def test_the_original_lmu_with_the_batch_open() -> None:
    check(build("original"), time=None)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["recurrent", "toeplitz", "fft", "chunked", "auto"])
@pytest.mark.parametrize("time", [TIME, None], ids=["time open", "time fixed"])
def test_every_algorithm(algorithm: str, time: Any) -> None:
    check(DelayLayer(INPUTS, **SMALL, algorithm=algorithm), "state", "lengths", time=time)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision(dtype: torch.dtype) -> None:
    layer = build("chunked", dtype)

    def sequence(*shape: int) -> Tensor:
        return torch.randn(*shape, INPUTS, dtype=dtype)

    run = exported(layer, {"x": sequence(2, 20)}).module()
    for batch, time in SIZES:
        x = sequence(batch, time)
        out, end = run(x=x)
        expected, expected_end = layer(x)
        assert_same(out, expected, ROUNDINGS if dtype == torch.float32 else 40)
        assert_same(end, expected_end, ROUNDINGS)
