"""Files of streams: restored it goes on exactly; what is broken or of another model says so and changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from streams import MODELS, SMALL, TIME, every_model, pushed, stack
from torch import Tensor, nn

import plmu
from plmu import LMU, DelayLayer, FileFormatError, ParallelLMU, Sequential, Stream


def test_the_state_of_a_model_with_other_inputs_is_refused(tmp_path: Path) -> None:
    stream = Stream(ParallelLMU(3, 4, **SMALL))
    stream.push([1.0, 2.0, 3.0])
    stream.save(tmp_path / "state")
    with pytest.raises(FileFormatError, match="another model, whose samples this one cannot take"):
        Stream.restore(ParallelLMU(2, 4, **SMALL), tmp_path / "state")


@every_model
@pytest.mark.parametrize("batch", [None, 2])
def test_restored_it_goes_on_exactly(name: str, batch: int | None, tmp_path: Path) -> None:
    model = MODELS[name]()
    x = torch.randn(TIME, 3) if batch is None else torch.randn(TIME, batch, 3)
    stream = Stream(model, missing="hold")
    pushed(stream, x[:9])
    stream.save(tmp_path / "state")
    expected = pushed(stream, x[9:])
    again = Stream.restore(model, tmp_path / "state")
    assert (again.steps, again.missing) == (9, "hold")
    assert torch.equal(pushed(again, x[9:]), expected)
    assert again.steps == TIME
    held = Stream.restore(model, tmp_path / "state")
    copy = Stream(model, missing="hold")
    pushed(copy, x[:9])
    assert torch.equal(held.push(None), copy.push(None))


def test_a_stream_that_has_seen_nothing_can_be_saved(tmp_path: Path) -> None:
    model = stack()
    Stream(model, missing="zero").save(tmp_path / "state")
    again = Stream.restore(model, tmp_path / "state")
    assert (again.steps, again.missing) == (0, "zero")
    x = torch.randn(TIME, 2, 3)
    assert torch.equal(pushed(again, x), pushed(Stream(model), x))


def test_tokens_and_half_precision_are_restored(tmp_path: Path) -> None:
    model = Sequential(nn.Embedding(9, 3), ParallelLMU(3, 4, **SMALL)).bfloat16()
    tokens = torch.randint(9, (TIME,))
    stream = Stream(model)
    pushed(stream, tokens[:9])
    stream.save(tmp_path / "state")
    assert torch.equal(pushed(Stream.restore(model, tmp_path / "state"), tokens[9:]), pushed(stream, tokens[9:]))


def test_in_another_process(tmp_path: Path) -> None:
    model = stack()
    x = torch.randn(TIME, 3)
    stream = Stream(model)
    pushed(stream, x[:9])
    plmu.save(model, tmp_path / "model")
    stream.save(tmp_path / "state")
    save_file({"x": x[9:].contiguous()}, tmp_path / "x")
    program = """
import sys, torch, plmu
from safetensors.torch import load_file, save_file
folder = sys.argv[1]
stream = plmu.Stream.restore(plmu.load(folder + "/model"), folder + "/state")
assert stream.steps == 9
out = torch.stack([stream.push(sample) for sample in load_file(folder + "/x")["x"]])
save_file({"out": out}, folder + "/out")
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True, timeout=120)
    assert torch.equal(load_file(tmp_path / "out")["out"], pushed(stream, x[9:]))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    stream = Stream(stack())
    pushed(stream, torch.randn(5, 3))
    stream.save(tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.parametrize(
    "other",
    [
        lambda: ParallelLMU(3, 4, **SMALL),
        lambda: ParallelLMU(3, 3, order=5, theta=7.0),
        lambda: DelayLayer(3, **SMALL),
        lambda: Sequential(nn.Linear(3, 3), nn.ReLU()),
        lambda: Sequential(stack(), LMU(1, 2, **SMALL)),
        lambda: stack().double(),
    ],
    ids=["parallel", "order", "delay", "no state", "more", "precision"],
)
def test_the_state_of_another_model(saved: Path, other) -> None:
    with pytest.raises(FileFormatError, match="another model"):
        Stream.restore(other(), saved)


def test_truncated_at_every_length(saved: Path) -> None:
    content = saved.read_bytes()
    for length in range(0, len(content), 7):
        saved.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match=r"truncated|not a safetensors"):
            Stream.restore(stack(), saved)


def test_foreign_files(saved: Path, tmp_path: Path) -> None:
    model = stack()
    for content in (b"", b"not a state", b'{"a": 1}', bytes(range(256)) * 8):
        (tmp_path / "foreign").write_bytes(content)
        with pytest.raises(FileFormatError):
            Stream.restore(model, tmp_path / "foreign")
    save_file({"state.0": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(FileFormatError, match="not written by plmu"):
        Stream.restore(model, tmp_path / "foreign")
    for weights_only in (False, True):
        plmu.save(model, tmp_path / "model", weights_only=weights_only)
        with pytest.raises(FileFormatError, match=r"holds a (model|weights), not a stream"):
            Stream.restore(model, tmp_path / "model")
    with pytest.raises(FileFormatError, match="holds a stream, not a model"):
        plmu.load(saved)
    with pytest.raises(FileFormatError, match="holds a stream"):
        plmu.load_into(model, saved)
    with pytest.raises(FileNotFoundError):
        Stream.restore(model, tmp_path / "nothing")


GOOD = {"kind": "stream", "steps": 3, "single": True, "missing": "raise"}


@pytest.mark.parametrize(
    "description",
    [
        {"kind": "stream"},
        {**GOOD, "steps": "three"},
        {**GOOD, "missing": "skip"},
    ],
    ids=str,
)
def test_a_broken_description(description: dict, tmp_path: Path) -> None:
    plmu.files.write(tmp_path / "state", {"last": torch.zeros(1, 3), "state.0": torch.zeros(1, 4, 1)}, description)
    with pytest.raises(FileFormatError):
        Stream.restore(ParallelLMU(3, 4, **SMALL), tmp_path / "state")


@pytest.mark.parametrize(
    "tensors",
    [
        {"last": torch.zeros(1, 3)},
        {"last": torch.zeros(1, 3), "state.1": torch.zeros(1, 4, 1)},
        {"last": torch.zeros(1, 3), "state.0": torch.zeros(1, 4, 1), "more": torch.zeros(1)},
        {"last": torch.zeros(1, 3), "state.0": torch.zeros(1, 4, 1, dtype=torch.int64)},
        {"last": torch.zeros(()), "state.0": torch.zeros(1, 4, 1)},
        {"last": torch.zeros(2, 3), "state.0": torch.zeros(1, 4, 1)},
        {"state.0": torch.zeros(1, 4, 1)},
    ],
    ids=["no state", "misnumbered", "more", "whole numbers", "no batch", "batch", "no sample"],
)
def test_tensors_that_are_no_state(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    plmu.files.write(tmp_path / "state", tensors, GOOD)
    with pytest.raises(FileFormatError):
        Stream.restore(ParallelLMU(3, 4, **SMALL), tmp_path / "state")


def test_a_failed_restore_does_not_touch_the_model(saved: Path) -> None:
    model = ParallelLMU(3, 4, **SMALL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(FileFormatError):
        Stream.restore(model, saved)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
