"""Files of streams: restored it goes on exactly; what is broken or of another model says so and changes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from streams import MODELS, SMALL, TIME, every_model, pushed, stack
from torch import Tensor, nn

import plmu
from plmu import LMU, DelayLayer, FileFormatError, ParallelLMU, Sequential, Stream
from plmu.nn.memory import Memory


def without_fingerprint(path: Path) -> None:
    """Make it a file as they were before they had one."""
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["plmu"])
    del description["fingerprint"]
    save_file(load_file(path), path, {"plmu": json.dumps(description)})


def test_the_state_of_a_model_with_other_inputs_is_refused(tmp_path: Path) -> None:
    stream = Stream(ParallelLMU(3, 4, **SMALL))
    stream.push([1.0, 2.0, 3.0])
    stream.save(tmp_path / "state")
    without_fingerprint(tmp_path / "state")
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
from safetensors import safe_open
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
@pytest.mark.parametrize("old", [False, True], ids=["", "no fingerprint"])
def test_the_state_of_another_model(saved: Path, other, old: bool) -> None:
    if old:
        without_fingerprint(saved)
    with pytest.raises(FileFormatError, match="another model"):
        Stream.restore(other(), saved)


SYSTEM = plmu.LinearSystem([[0.9, 0.3], [-0.3, 0.9]], [0.1, 0.5])


class Scaled(plmu.nn.Steppable):
    """With an option that no weight tells; it is not used here."""

    input_size = 3

    def __init__(self, by: object) -> None:
        super().__init__()
        self.by, self.memory = by, Memory(3, 4, 7.0)

    def forward(self, x: Tensor, state=None, lengths=None, *, resets=None) -> tuple[Tensor, Tensor]:
        return x, self.memory.final_state(x, state, lengths, resets)

    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return x, self.forward(x[:, None], state)[1]

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.memory.initial_state(batch, dtype, device)


class Derived(ParallelLMU):
    scale = 1.0


def having(model: nn.Module, **attributes: object) -> nn.Module:
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


class Doubling(nn.Module):
    per_step = True

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def changed(model: nn.Module, name: str) -> nn.Module:
    value = model.get_parameter(name).data
    value.view(-1)[-1] = torch.nextafter(value.view(-1)[-1], torch.tensor(9.0))  # by one bit
    return model


# A model, and others with states of the same shapes, whose step is not the same.
SIMILAR = {
    "theta": (lambda: ParallelLMU(3, 4, **SMALL), lambda: ParallelLMU(3, 4, order=4, theta=7.5)),
    "theta of a memory": (
        lambda: DelayLayer(3, **SMALL),
        lambda: DelayLayer(3, order=4, theta=7.0001),
    ),
    "weights": (lambda: ParallelLMU(3, 4, **SMALL), lambda: changed(ParallelLMU(3, 4, **SMALL), "memory_weight")),
    "a trained theta": (
        lambda: DelayLayer(3, **SMALL, trainable="theta"),
        lambda: changed(DelayLayer(3, **SMALL, trainable="theta"), "memory.log_theta"),
    ),
    "a system": (
        lambda: DelayLayer(3, system=SYSTEM),
        lambda: DelayLayer(3, system=plmu.LinearSystem(SYSTEM.A, 2 * SYSTEM.B)),
    ),
    "a system's A": (
        lambda: DelayLayer(3, system=SYSTEM),
        lambda: DelayLayer(3, system=plmu.LinearSystem(-SYSTEM.A, SYSTEM.B)),
    ),
    "activation": (lambda: ParallelLMU(3, 4, **SMALL), lambda: ParallelLMU(3, 4, **SMALL, output_activation="tanh")),
    "function": (
        lambda: ParallelLMU(3, 4, **SMALL, output_activation=torch.sin),
        lambda: ParallelLMU(3, 4, **SMALL, output_activation=torch.cos),
    ),
    "an option of torch's": (
        lambda: Sequential(nn.LeakyReLU(0.1), DelayLayer(3, **SMALL)),
        lambda: Sequential(nn.LeakyReLU(0.2), DelayLayer(3, **SMALL)),
    ),
    "a replaced memory": (
        lambda: DelayLayer(3, **SMALL),
        lambda: having(DelayLayer(3, **SMALL), memory=DelayLayer(3, order=4, theta=70.0).memory),
    ),
    "a replaced system": (
        lambda: DelayLayer(3, system=SYSTEM),
        lambda: having(DelayLayer(3, system=SYSTEM), memory=DelayLayer(3, order=2, theta=7.0).memory),
    ),
    "f2": (lambda: ParallelLMU(3, 4, **SMALL), lambda: having(ParallelLMU(3, 4, **SMALL), f2=torch.tanh)),
    "f of a cell": (
        lambda: LMU(3, 4, **SMALL),
        lambda: (model := LMU(3, 4, **SMALL), having(model.cell, f=torch.relu))[0],
    ),
    "a number of a class of one's own": (lambda: Scaled(1.0), lambda: Scaled(2.0)),
    "a function of a class of one's own": (lambda: Scaled(torch.sin), lambda: Scaled(torch.cos)),
    "a tensor of a class of one's own": (lambda: Scaled(torch.ones(3)), lambda: Scaled(torch.zeros(3))),
    "options of a class of one's own": (lambda: Scaled({"by": [1]}), lambda: Scaled({"by": [2]})),
    "a memory of a class of one's own": (lambda: Scaled(1.0), lambda: having(Scaled(1.0), memory=Memory(3, 4, 9.0))),
    "a derived class": (lambda: Derived(3, 4, **SMALL), lambda: Derived(3, 4, order=4, theta=9.0)),
    "an option of a derived class": (
        lambda: Derived(3, 4, **SMALL),
        lambda: having(Derived(3, 4, **SMALL), scale=2.0),
    ),
    "a module without weights": (
        lambda: Sequential(nn.Tanh(), DelayLayer(3, **SMALL)),
        lambda: Sequential(Doubling(), DelayLayer(3, **SMALL)),
    ),
}


@pytest.mark.parametrize("what", SIMILAR)
def test_a_model_of_the_same_shapes_is_another_model(what: str, tmp_path: Path) -> None:
    first, other = SIMILAR[what]
    torch.manual_seed(1)
    stream = Stream(first())
    stream.push([1.0, 2.0, 3.0])
    stream.save(tmp_path / "state")
    torch.manual_seed(1)
    with pytest.raises(FileFormatError, match="another model: its options or weights are not this one's"):
        Stream.restore(other(), tmp_path / "state")
    torch.manual_seed(1)
    assert torch.equal(Stream.restore(first(), tmp_path / "state").push([1.0] * 3), stream.push([1.0] * 3))


def test_what_changes_no_step_may_be_another(tmp_path: Path) -> None:
    model = Sequential(ParallelLMU(3, 4, **SMALL, trainable="theta"), nn.Dropout(0.1))
    stream = Stream(model)
    stream.push([1.0, 2.0, 3.0])
    stream.save(tmp_path / "state")
    layer = ParallelLMU(3, 4, order=4, theta=9.0, memory_size=1, trainable="theta", algorithm="fft",
                        return_sequences=False)  # fmt: skip
    other = Sequential(layer, nn.Dropout(0.5))
    other.load_state_dict(model.state_dict())
    assert torch.equal(Stream.restore(other, tmp_path / "state").push([1.0] * 3), stream.push([1.0] * 3))


def test_a_file_without_a_fingerprint_is_taken_with_a_warning(saved: Path) -> None:
    expected = Stream.restore(stack(), saved).push([1.0, 2.0, 3.0])
    without_fingerprint(saved)
    with pytest.warns(UserWarning, match="no fingerprint"):
        restored = Stream.restore(stack(), saved)
    assert torch.equal(restored.push([1.0, 2.0, 3.0]), expected)


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
        {**GOOD, "missing": []},
        {**GOOD, "steps": -1},
        {**GOOD, "steps": 3.0},
        {**GOOD, "steps": True},
        {**GOOD, "steps": 0},
        {**GOOD, "single": 1},
        {**GOOD, "fingerprint": None},
        {**GOOD, "fingerprint": [1]},
    ],
    ids=str,
)
def test_a_broken_description(description: dict, tmp_path: Path) -> None:
    plmu.modelfiles.files.write(
        tmp_path / "state", {"last": torch.zeros(1, 3), "state.0": torch.zeros(1, 4, 1)}, description
    )
    with pytest.raises(FileFormatError):
        Stream.restore(ParallelLMU(3, 4, **SMALL), tmp_path / "state")


STATE, LAST = torch.zeros(1, 4, 1), torch.zeros(1, 3)
NO_STATES = {
    "nothing": {},
    "no state": {"last": LAST},
    "no sample": {"state.0": STATE},
    "misnumbered": {"last": LAST, "state.1": STATE},
    "more": {"last": LAST, "state.0": STATE, "more": torch.zeros(1)},
    "a state of whole numbers": {"last": LAST, "state.0": STATE.long()},
    "a state of NaN": {"last": LAST, "state.0": STATE + torch.nan},
    "an infinite state": {"last": LAST, "state.0": STATE + torch.inf},
    "another batch": {"last": torch.zeros(2, 3), "state.0": STATE},
    "a batch of single samples": {"last": torch.zeros(2, 3), "state.0": torch.zeros(2, 4, 1)},
    "a huge batch of nothing": {"last": torch.zeros(1 << 40, 0), "state.0": STATE},
    "a sample without a batch": {"last": torch.zeros(()), "state.0": STATE},
    "a sample of more dimensions": {"last": LAST[None], "state.0": STATE},
    "a sample of NaN": {"last": LAST + torch.nan, "state.0": STATE},
    "a sample of whole numbers": {"last": LAST.long(), "state.0": STATE},
    "a sample of another precision": {"last": LAST.double(), "state.0": STATE},
}


@pytest.mark.parametrize("problem", NO_STATES)
def test_tensors_that_are_no_state(problem: str, tmp_path: Path) -> None:
    plmu.modelfiles.files.write(tmp_path / "state", NO_STATES[problem], GOOD)
    with pytest.raises(FileFormatError):
        Stream.restore(ParallelLMU(3, 4, **SMALL), tmp_path / "state")


def test_a_failed_restore_does_not_touch_the_model(saved: Path) -> None:
    model = ParallelLMU(3, 4, **SMALL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(FileFormatError):
        Stream.restore(model, saved)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_large_batch_without_a_state_does_not_run_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 2 MB could take gigabytes."""
    sizes = []

    class Counting(ParallelLMU):
        def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
            sizes.append(x.shape[0])
            return super().step(x, state)

    model = Sequential(nn.Embedding(9, 3), Counting(3, 4, **SMALL))
    last = torch.zeros(1000, dtype=torch.int64)
    description = {**GOOD, "single": False}
    for state in ({}, {"state.0": torch.zeros(1, 4, 1)}):
        plmu.modelfiles.files.write(tmp_path / "state", {"last": last, **state}, description)
        with pytest.raises(FileFormatError, match="another model: it has"):
            Stream.restore(model, tmp_path / "state")
    assert sizes == []
    plmu.modelfiles.files.write(tmp_path / "state", {"last": last, "state.0": torch.zeros(1000, 4, 1)}, description)
    with pytest.warns(UserWarning, match="no fingerprint"):
        Stream.restore(model, tmp_path / "state")
    assert sizes == [1]
    last[-1] = 9
    plmu.modelfiles.files.write(tmp_path / "state", {"last": last, "state.0": torch.zeros(1000, 4, 1)}, description)
    with pytest.raises(FileFormatError, match="token numbers must be between 0 and 8, got 9"):
        Stream.restore(model, tmp_path / "state")


def test_the_last_token_must_be_in_range(tmp_path: Path) -> None:
    model = Sequential(nn.Embedding(9, 3), ParallelLMU(3, 4, **SMALL))
    for last in (torch.tensor([9]), torch.tensor([-1]), torch.tensor([1.0]), torch.tensor([[1]])):
        plmu.modelfiles.files.write(tmp_path / "state", {"last": last, "state.0": torch.zeros(1, 4, 1)}, GOOD)
        with pytest.raises(FileFormatError, match="another model"):
            Stream.restore(model, tmp_path / "state")
