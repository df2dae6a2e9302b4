"""Stream: states of classes of one's own, of every kind, and those that are infinite by design."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from streams import SMALL
from torch import Tensor, nn

import plmu
from plmu import DelayLayer, FileFormatError, ParallelLMU, Sequential, Stream

# ---------------------------------------------------------------- classes of one's own


class Largest(plmu.nn.Steppable):
    """The running maximum of each feature; of `limit` and above it becomes `beyond`."""

    def __init__(self, start: float = -torch.inf, limit: float = torch.inf, beyond: float = torch.inf) -> None:
        super().__init__()
        self.start, self.limit, self.beyond = start, limit, beyond

    def forward(self, x: Tensor, state: Any = None, lengths: Any = None, *, resets: Any = None) -> tuple[Tensor, Any]:
        raise AssertionError("a stream takes steps alone")

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if state is None:
            state = self.initial_state(x.shape[0], x.dtype, x.device)
        state = torch.where(x > 0, torch.fmax(state, x), state)
        state = torch.where(x >= self.limit, self.beyond, state)
        return state.clone(), state

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full((batch, 2), self.start, dtype=dtype)  # on the default device


@pytest.mark.parametrize("start", [-torch.inf, torch.nan])
def test_a_state_that_begins_infinite_or_nan(start: float, tmp_path: Path) -> None:
    model = Largest(start)
    stream = Stream(model)
    assert stream.push([0.0, 0.0]).isfinite().logical_not().all()
    stream.push([0.0, 3.0])
    stream.save(tmp_path / "state")
    restored = Stream.restore(model, tmp_path / "state")
    assert torch.equal(restored.push([0.0, 1.0]).nan_to_num(9.0), torch.tensor([start, 3.0]).nan_to_num(9.0))
    assert torch.equal(restored.push([2.0, 1.0]), torch.tensor([2.0, 3.0]))
    assert restored.steps == 4


@pytest.mark.parametrize("beyond", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("start", [0.0, -torch.inf])
def test_a_state_that_becomes_infinite_or_nan_raises(start: float, beyond: float) -> None:
    if start == beyond:
        return
    stream = Stream(Largest(start, limit=5.0, beyond=beyond))
    with pytest.raises(ValueError, match="infinite or NaN in rows 1 of the batch"):
        stream.push([[0.0, 0.0], [0.0, 6.0]])  # as the first sample
    for _ in range(2):
        stream.push([[1.0, 0.0], [0.0, 2.0]])
        with pytest.raises(ValueError, match="infinite or NaN in rows 0 of the batch"):
            stream.push([[5.0, 0.0], [0.0, 0.0]])
    assert stream.steps == 2


def test_a_file_with_other_infinite_numbers_is_broken(tmp_path: Path) -> None:
    description = {"kind": "stream", "steps": 3, "single": True, "missing": "raise"}
    for bad in (torch.inf, torch.nan):
        state = torch.tensor([[-torch.inf, bad]])
        plmu.modelfiles.files.write(tmp_path / "state", {"last": torch.zeros(1, 2), "state.0": state}, description)
        with pytest.raises(FileFormatError, match="infinite or NaN"):
            Stream.restore(Largest(), tmp_path / "state")


class Pair(NamedTuple):
    mean: Tensor
    count: Tensor


class Mean(plmu.nn.Steppable):
    """The running mean; its state is made by `pack`."""

    def __init__(self, pack: Any) -> None:
        super().__init__()
        self._pack = pack

    def forward(self, x: Tensor, state: Any = None, lengths: Any = None, *, resets: Any = None) -> tuple[Tensor, Any]:
        raise AssertionError("a stream takes steps alone")

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if state is None:
            state = self.initial_state(x.shape[0], x.dtype, x.device)
        if self._pack is Pair:
            assert isinstance(state, Pair)
        mean, count = state
        assert count.dtype == torch.int64
        mean = mean + (x - mean) / (count + 1)
        return mean.clone(), self._packed(mean, count + 1)

    def _packed(self, mean: Tensor, count: Tensor) -> Any:
        return Pair(mean, count) if self._pack is Pair else self._pack((mean, count))

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        count = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        return self._packed(torch.zeros(batch, 2, dtype=dtype, device=device), count)


@pytest.mark.parametrize("pack", [tuple, list, Pair])
def test_a_state_keeps_its_kind(pack: Any, tmp_path: Path) -> None:
    """Also past the steps at which subnormal numbers are cleared."""
    model = Mean(pack)
    stream = Stream(model)
    for step in range(600):
        out = stream.push([float(step), 1.0])
    stream.save(tmp_path / "state")
    assert torch.equal(Stream.restore(model, tmp_path / "state").push([0.0, 1.0]), stream.push([0.0, 1.0]))
    torch.testing.assert_close(out, torch.tensor([299.5, 1.0]))


@pytest.mark.parametrize(
    ("pack", "kind"),
    [
        (lambda parts: dict(zip("ab", parts, strict=True)), "dict"),
        (lambda parts: ("name", *parts), "str"),
        (lambda parts: (parts, [None, 3.0]), "float"),
    ],
    ids=["dict", "str", "float"],
)
def test_a_state_of_no_known_kind_is_named(pack: Any, kind: str) -> None:
    stream = Stream(Mean(pack))
    stream._step = lambda x, state: (x, pack((x, x)))
    with pytest.raises(TypeError, match=f"state must be a tensor, None or nested tuples of them, got {kind} in it"):
        stream.push([1.0, 2.0])
    assert stream.steps == 0


def test_weights_that_are_not_finite_are_named() -> None:
    model = Sequential(nn.Linear(3, 3), ParallelLMU(3, 4, **SMALL))
    nn.init.constant_(model.layers[0].bias, torch.nan)
    with pytest.raises(ValueError, match=r"infinite or NaN.* weights are not finite: layers\.0\.bias") as caught:
        Stream(model).push([1.0, 2.0, 3.0])
    assert "smaller" not in str(caught.value)


def test_a_model_without_values_is_named() -> None:
    with pytest.raises(ValueError, match="model is on the meta device"):
        Stream(ParallelLMU(3, 4, **SMALL).to("meta"))


# ---------------------------------------------------------------- samples that are no plain tensors


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layer", [lambda: DelayLayer(2, **SMALL), lambda: ParallelLMU(2, 3, **SMALL)])
def test_tensors_without_plain_values_are_named(layer: Any) -> None:
    rows = [torch.ones(2), torch.ones(2)]
    wrong = {
        "dense tensor, got a tensor that is nested": torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(4, 2)]),
        "dense tensor, got a tensor that is nested ?": torch.nested.nested_tensor(rows, layout=torch.jagged),
        "dense tensor, got a tensor that is torch.sparse_coo": torch.ones(2).to_sparse(),
        "must have values, got a tensor on the meta device": torch.ones(2, device="meta"),
    }
    stream = Stream(layer())
    for words, sample in wrong.items():
        with pytest.raises(TypeError, match=words):
            stream.push(sample)
    assert stream.steps == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_what_is_masked_is_missing(dtype: type) -> None:
    layer = DelayLayer(2, **SMALL)
    masked = np.ma.masked_array([5, 7], [False, True], dtype=dtype)
    with pytest.raises(ValueError, match="a sample is NaN"):
        Stream(layer).push(masked)
    for missing, filled in (("hold", 3.0), ("zero", 0.0)):
        stream, other = Stream(layer.float(), missing), Stream(layer, missing)
        stream.push(torch.tensor([1.0, 3.0]))
        other.push(torch.tensor([1.0, 3.0]))
        assert torch.equal(stream.push(masked), other.push([5.0, filled]))
    whole = np.ma.masked_array([5, 7], [False, False], dtype=dtype)
    assert torch.equal(Stream(layer).push(whole), Stream(layer).push(whole.data))


def test_masked_tokens_raise() -> None:
    stream = Stream(Sequential(nn.Embedding(9, 3), ParallelLMU(3, 4, **SMALL)))
    with pytest.raises(TypeError, match="masked token numbers"):
        stream.push(np.ma.masked_array([5, 7], [False, True]))
    assert torch.equal(stream.push(np.ma.masked_array([5, 7])), Stream(stream._frozen).push([5, 7]))
