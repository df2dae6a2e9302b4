"""Files that are broken or foreign say so and change nothing; a write that fails leaves the old file."""

import json
import os
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import plmu
from plmu import FileFormatError, ParallelLMU, Sequential

SMALL = {"order": 4, "theta": 7.0}
SYSTEM = plmu.LinearSystem([[0.9, 0.3], [-0.3, 0.9]], [0.1, 0.5])


def stack() -> Sequential:
    return Sequential(ParallelLMU(3, 4, system=SYSTEM), nn.Dropout(0.5), nn.Linear(4, 2))


# ---------------------------------------------------------------- broken and foreign files


@pytest.fixture
def saved(path: Path) -> Path:
    plmu.save(stack(), path)
    return path


def test_truncated_at_every_length(saved: Path) -> None:
    content = saved.read_bytes()
    model = stack()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for length in [*range(0, len(content), 11), *range(len(content) - 9, len(content))]:
        saved.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match=r"truncated or not a safetensors file"):
            plmu.load(saved)
        with pytest.raises(FileFormatError, match=r"truncated or not a safetensors file"):
            plmu.load_into(model, saved)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@cache
def saved_once(path: Path) -> bytes:
    plmu.save(Sequential(ParallelLMU(3, 4, **SMALL), nn.Dropout(0.5), nn.Linear(4, 2)), path)
    return path.read_bytes()


@given(data=st.data())
@settings(max_examples=200)
def test_a_changed_byte_is_loaded_or_refused_but_nothing_else(data: st.DataObject, tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.plmu"
    content = bytearray(saved_once(path.with_name("whole.plmu")))
    header = 8 + int.from_bytes(content[:8], "little")
    place = data.draw(st.integers(0, header - 1))
    content[place] = data.draw(st.integers(0, 255) | st.sampled_from(b'0123456789-"{}[],:tfn'))
    path.write_bytes(content)
    try:
        plmu.load(path)
    except FileFormatError as error:
        assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"not a model",
        b'{"a": 1}',
        b"\x00" * 64,
        b"\xff" * 64,
        bytes(range(256)) * 16,
        b"PK\x03\x04" + b"\x00" * 99,
    ],
    ids=["empty", "one byte", "text", "JSON", "zeros", "ones", "bytes", "zip"],
)
def test_foreign_files(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        plmu.load(path)
    with pytest.raises(FileFormatError):
        plmu.load_into(ParallelLMU(3, 4, **SMALL), path)


def test_a_pickle_is_not_opened(path: Path) -> None:
    torch.save(ParallelLMU(3, 4, **SMALL).state_dict(), path)
    with pytest.raises(FileFormatError):
        plmu.load(path)


def test_missing_files_and_folders(path: Path) -> None:
    for place in (path, path.parent, path / "deeper"):
        with pytest.raises(FileNotFoundError):
            plmu.load(place)
        with pytest.raises(FileNotFoundError):
            plmu.load_into(ParallelLMU(3, 4, **SMALL), place)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version(version: object, path: Path) -> None:
    description = {"format": version, "kind": "model", "tied": {}, "model": {"class": "ReLU", "config": {}}}
    save_file({}, path, {"plmu": json.dumps(description)})
    with pytest.raises(FileFormatError, match=f"format version {version}"):
        plmu.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '"text"', "{}", '{"format": 1}', "NaN"])
def test_a_broken_description(text: str, path: Path) -> None:
    save_file({}, path, {"plmu": text})
    with pytest.raises(FileFormatError, match="broken description"):
        plmu.load(path)


def leaf(class_name: object, **config: object) -> dict[str, object]:
    return {"tied": {}, "model": {"class": class_name, "config": config}}


RELU = {"class": "ReLU", "config": {}}
BROKEN = {
    "no model": {"tied": {}},
    "no ties": {"model": RELU},
    "ties to nothing": {"tied": {"a": "b"}, "model": RELU},
    "ties of a wrong kind": {"tied": [], "model": RELU},
    "model of a wrong kind": {"tied": {}, "model": "ReLU"},
    "no class": {"tied": {}, "model": {"config": {}}},
    "no config": {"tied": {}, "model": {"class": "ReLU"}},
    "unknown class": leaf("Conv1d"),
    "class of a wrong kind": leaf(["ReLU"]),
    "code": leaf("os.system", command="touch executed"),
    "builtin": leaf("eval", source="1"),
    "dunder": leaf("__import__", name="os"),
    "option": leaf("ReLU", no=1),
    "option of a wrong kind": leaf("Dropout", p="half"),
    "negative size": leaf("Linear", in_features=-1, out_features=2),
    "huge size": leaf("Linear", in_features=1 << 40, out_features=1 << 20),
    "activation": leaf("ParallelLMU", input_size=1, hidden_size=1, **SMALL, output_activation="os.system"),
    "no system": leaf("DelayLayer", channels=1, system={"system": "systems.0"}),
    "modules of a leaf": {"tied": {}, "model": {"class": "ReLU", "modules": [RELU]}},
    "modules of a wrong kind": {"tied": {}, "model": {"class": "Sequential", "modules": 3}},
    "empty stack": {"tied": {}, "model": {"class": "Sequential", "modules": []}},
    "state missing": leaf("Linear", in_features=1, out_features=2),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_description_that_cannot_be_built(problem: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    save_file({}, path, {"plmu": json.dumps({"format": 1, "kind": "model", **BROKEN[problem]})})
    with pytest.raises(FileFormatError):
        plmu.load(path)
    assert os.listdir() == [path.name]  # nothing ran


def test_the_error_names_the_unknown_class(path: Path) -> None:
    save_file({}, path, {"plmu": json.dumps({"format": 1, "kind": "model", **BROKEN["code"]})})
    with pytest.raises(FileFormatError, match=r"'os\.system'"):
        plmu.load(path)


def test_ties_that_do_not_fit_leave_the_model_as_it_was(path: Path) -> None:
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    plmu.modelfiles.files.write(path, {"weight": torch.zeros(2, 2)}, {"kind": "weights", "tied": {"bias": "nothing"}})
    with pytest.raises(FileFormatError):
        plmu.load_into(model, path)
    assert torch.equal(model.weight, before)


# ---------------------------------------------------------------- failing writes


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
def test_a_failing_write_leaves_the_old_file(error: BaseException, old: bool, path: Path, monkeypatch) -> None:
    if old:
        plmu.save(ParallelLMU(3, 4, **SMALL), path)
    before = path.read_bytes() if old else None

    whole = Path.write_bytes

    def half(place: Path, content: bytes) -> None:
        whole(place, content[: len(content) // 2])
        raise error

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OSError):
        plmu.save(stack(), path)
    _assert_untouched(path, before)


def test_a_failing_rename_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plmu.save(ParallelLMU(3, 4, **SMALL), path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("rename failed")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="rename failed"):
        plmu.save(stack(), path)
    _assert_untouched(path, before)


def test_a_stream_state_is_written_the_same_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = plmu.Stream(ParallelLMU(3, 4, **SMALL))
    stream.push(torch.randn(3))
    stream.save(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("rename failed")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="rename failed"):
        stream.save(path)
    _assert_untouched(path, before)


def test_where_nothing_can_be_written(path: Path) -> None:
    model = ParallelLMU(3, 4, **SMALL)
    with pytest.raises(FileNotFoundError, match=r"cannot write .*folder"):
        plmu.save(model, path.parent / "nowhere" / "model")
    with pytest.raises(OSError, match="it is a folder"):
        plmu.save(model, path.parent)
    if sys.platform == "linux":
        with pytest.raises(OSError, match="/proc"):  # not even for root
            plmu.save(model, "/proc/model.plmu")


def test_an_unwritable_folder(path: Path) -> None:
    plmu.save(ParallelLMU(3, 4, **SMALL), path)
    before = path.read_bytes()
    path.parent.chmod(0o500)
    try:
        if os.access(path.parent, os.W_OK):
            pytest.skip("root may write anywhere")
        with pytest.raises(PermissionError):
            plmu.save(stack(), path)
        _assert_untouched(path, before)
    finally:
        path.parent.chmod(0o700)


def _assert_untouched(path: Path, before: bytes | None) -> None:
    """The old file as it was, and no temporary file beside it."""
    assert os.listdir(path.parent) == ([] if before is None else [path.name])
    if before is not None:
        assert path.read_bytes() == before
