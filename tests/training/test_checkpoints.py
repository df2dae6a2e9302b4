"""Checkpoints: what is damaged, foreign or crafted is set aside, and nothing in one is executed."""

import errno
import hashlib
import io
import math
import os
import pickle
from pathlib import Path

import pytest
import torch
from program import raising
from worker import config, model, task

from plmu.errors import CheckpointError, RunError
from plmu.training.checkpoints import BEST, MAGIC, STATE, Checkpoints, pack, unpack
from plmu.training.loop import Trainer
from plmu.training.processes import Processes

ONE = Processes(0, 1, torch.device("cpu"))


def _content(epoch: int = 1) -> dict:
    """The smallest that is whole."""
    empty = {int: 0, dict: {}, list: [], torch.Tensor: torch.zeros(())}
    made = {name: empty.get(kind if isinstance(kind, type) else kind[0], 0) for name, kind in STATE.items()}
    return {**made, "epoch": epoch, "best": None}


def _packed(content: object) -> bytes:
    """As a checkpoint with the right checksum, pickled without torch's limits."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    body = buffer.getvalue()
    return MAGIC + hashlib.sha256(body).digest() + body


def test_what_was_saved_comes_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(12, {**_content(3), "model": {"w": torch.arange(3.0)}, "seconds": 1.5})
    assert path == tmp_path / "step-00000012.ckpt"
    found = checkpoints.newest()
    assert (found["epoch"], found["seconds"], found["model"]["w"].tolist()) == (3, 1.5, [0.0, 1.0, 2.0])
    assert checkpoints.best() is None
    checkpoints.keep_best({"epoch": 2, "scores": {}, "model": {}})
    assert checkpoints.best()["epoch"] == 2
    checkpoints.drop_best()
    checkpoints.drop_best()
    assert not checkpoints.best_path.exists()
    checkpoints.save(13, {**_content(4), "best": {"epoch": 1, "scores": {}, "model": {}}})
    assert checkpoints.best()["epoch"] == 1


def test_a_disk_that_fills_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, _content(1))

    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CheckpointError, match=r"00002\.ckpt: No space left on device\. The same command"):
        checkpoints.save(2, _content(2))
    monkeypatch.setattr(Path, "write_bytes", raising(OSError("in words")))
    with pytest.raises(CheckpointError, match=r"00002\.ckpt: in words\. The same command"):
        checkpoints.save(2, _content(2))
    monkeypatch.undo()
    assert checkpoints.newest()["epoch"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.ckpt"]


def test_a_checkpoint_that_cannot_be_written_says_what_comes_next(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(CheckpointError, match="The same command starts again: there is no earlier one"):
        checkpoints.save(1, _content(1))
    monkeypatch.undo()
    checkpoints.save(1, _content(1))
    monkeypatch.setattr(Path, "write_bytes", raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(CheckpointError, match="The same command resumes from the one before"):
        checkpoints.save(2, _content(2))


@pytest.mark.parametrize(
    ("owner", "name", "error", "reason"),
    [
        (Path, "read_bytes", OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (Path, "read_bytes", OSError("in words"), "in words"),
        (Path, "read_bytes", MemoryError(), "out of memory"),
        (torch, "load", torch.OutOfMemoryError("CUDA out of memory\nin detail"), "CUDA out of memory"),
        (torch, "load", MemoryError("no more"), "no more"),
        (torch, "load", RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "Default.* memory: you"),
    ],
)
def test_what_passes_harms_no_checkpoint(owner, name, error, reason, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {**_content(step), "best": {"epoch": 1, "scores": {}, "model": {}}})
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising(error))
        for read in (checkpoints.newest, checkpoints.best):
            with pytest.raises(RunError, match=rf"00002\.ckpt could not be read \({reason}\) and was left as it is"):
                read()
    assert sorted(tmp_path.iterdir()) == before
    assert checkpoints.newest()["epoch"] == 2


def test_looking_for_the_best_model_renames_nothing(tmp_path):
    for name in ("step-00000001.ckpt", "best.ckpt"):
        (tmp_path / name).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"not a checkpoint of plmu\): (there is no|taking the)"):
        assert Checkpoints(tmp_path).best() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.ckpt", "step-00000001.ckpt"]


def test_foreign_files_among_the_checkpoints(tmp_path):
    (tmp_path / "step-00000009.ckpt").write_bytes(b"something else")
    (tmp_path / "step-mine.ckpt").write_bytes(b"of the user")
    with pytest.warns(
        UserWarning, match=r"not a checkpoint of plmu\): renamed it to .*broken; there is no earlier one"
    ) as warned:
        assert Checkpoints(tmp_path).newest() is None
    assert warned[0].filename == __file__, "where it is asked for"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000009.ckpt.broken", "step-mine.ckpt"]


def test_damaged_checkpoints_of_later_steps_do_not_push_out_new_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, _content(1))
    for step in (8, 9):
        (tmp_path / f"step-{step:08d}.ckpt").write_bytes(b"damaged")
    assert checkpoints.save(2, _content(2)).is_file()  # even before anyone has tried to read the others
    with pytest.warns(UserWarning, match="cannot be read") as warned:
        assert checkpoints.newest()["epoch"] == 2
    said = [str(one.message) for one in warned]
    assert ["taking step-00000008.ckpt" in said[0], "taking step-00000002.ckpt" in said[1]] == [True, True]
    for step in (3, 4):
        checkpoints.save(step, _content(step))
    assert [path.name for path in sorted(tmp_path.glob("*.ckpt"))] == ["step-00000003.ckpt", "step-00000004.ckpt"]
    assert checkpoints.newest()["epoch"] == 4


class _Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("where", ["model", "best", "the whole"])
def test_a_pickled_object_is_refused_and_never_run(where, tmp_path):
    harmful = _Harmful(tmp_path / "executed")
    assert not isinstance(pickle.loads(pickle.dumps(_Harmful(tmp_path / "proof"))), _Harmful)  # it does execute
    assert (tmp_path / "proof").is_dir()
    content = harmful if where == "the whole" else {**_content(), where: {"epoch": harmful}}
    with pytest.raises(ValueError, match="it holds more than tensors and plain values"):
        unpack(_packed(content))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "step-00000001.ckpt").write_bytes(_packed(content))
    with pytest.warns(UserWarning, match=r"more than tensors .*: renamed it to step-00000001\.ckpt\.broken"):
        assert Checkpoints(folder).newest() is None
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "a list instead of a dictionary"),
        (torch.zeros(2), "a Tensor instead of a dictionary"),
        ({**_content(), "model": {"w": 1}}, "'model' holds more than tensors"),
        ({**_content(), "best": {"epoch": 1, "scores": {}}}, "it has no 'model'"),
        ({**_content(), "best": {"epoch": 1, "scores": {}, "model": {"w": []}}}, "'model' holds more than tensors"),
        ({**_content(), "best": {"epoch": 1.5, "scores": {}, "model": {}}}, "its 'epoch' is a float"),
        *(({name: v for name, v in _content().items() if name != left}, f"it has no '{left}'") for left in STATE),
        *(({**_content(), name: "text"}, f"its '{name}' is a str") for name in STATE),
    ],
)
def test_a_right_checksum_over_a_wrong_structure_is_set_aside(content, message, tmp_path):
    (tmp_path / "step-00000001.ckpt").write_bytes(pack(_content(7)))
    (tmp_path / "step-00000002.ckpt").write_bytes(_packed(content))
    with pytest.warns(UserWarning, match="cannot be read") as warned:
        assert Checkpoints(tmp_path).newest()["epoch"] == 7
    assert message in str(warned[0].message)
    assert "taking step-00000001.ckpt" in str(warned[0].message)


@pytest.mark.parametrize("left", BEST)
def test_a_damaged_best_model_is_passed_over(left, tmp_path):
    whole = {"epoch": 5, "scores": {}, "model": {}}
    Checkpoints(tmp_path).save(1, {**_content(), "best": {**whole, "epoch": 4}})
    (tmp_path / "best.ckpt").write_bytes(pack({name: value for name, value in whole.items() if name != left}))
    with pytest.warns(UserWarning, match=f"it has no '{left}'.*taking the newest checkpoint's"):
        assert Checkpoints(tmp_path).best()["epoch"] == 4


@pytest.mark.parametrize("cut", [0, 5, len(MAGIC), len(MAGIC) + 31, len(MAGIC) + 32, 400, -1])
def test_a_truncated_checkpoint_is_damaged(cut):
    with pytest.raises(ValueError, match=r"not a checkpoint|checksum"):
        unpack(pack(_content())[:cut])


def _trained(folder: Path) -> dict:
    """The content of the newest checkpoint of a short run."""
    folder.mkdir(exist_ok=True)
    Trainer(task(), model(0.0), config(2), ONE, 3, Checkpoints(folder)).run()
    return Checkpoints(folder).newest()


WRONG = {
    "epoch below": (lambda c: c | {"epoch": -1}, "it is of step 0 in epoch -1"),
    "epoch above": (lambda c: c | {"epoch": 3}, "it is of step 0 in epoch 3"),
    "step below": (lambda c: c | {"step": -1}, "it is of step -1"),
    "step above": (lambda c: c | {"step": 8}, "it is of step 8 in epoch 2"),
    "another model": (lambda c: c | {"model": {"w": torch.zeros(1)}}, "Missing key"),
    "best of another model": (lambda c: c | {"best": c["best"] | {"model": {}}}, "Missing key"),
    "best without a score": (lambda c: c | {"best": c["best"] | {"scores": {}}}, "mse"),
    "best score of text": (lambda c: c | {"best": c["best"] | {"scores": {"mse": "x"}}}, "score of its best model"),
    "history of text": (lambda c: c | {"history": [{"epoch": "x"}]}, "its history is not of numbers"),
    "history of lists": (lambda c: c | {"history": [[1]]}, ""),
    "no average": (lambda c: c | {"average": None}, ""),
    "short average": (lambda c: c | {"average": c["average"][:-1]}, ""),
    "no generators": (lambda c: c | {"generators": []}, ""),
    "wrong generators": (lambda c: c | {"generators": [[torch.zeros(3), None]]}, ""),
    "loss of a shape": (lambda c: c | {"loss_sum": torch.zeros(5)}, ""),
    "optimiser's names": (lambda c: c | {"optimizer": {0: {"step": torch.zeros(())}}}, "has the names step"),
    "optimiser's count": (lambda c: c | {"optimizer": {99: c["optimizer"][0]}}, ""),
    "optimiser's shape": (
        lambda c: c | {"optimizer": {0: c["optimizer"][0] | {"exp_avg": torch.zeros(2)}}},
        r"the optimiser's 'exp_avg' has the shape \(2,\)",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_checkpoint_of_another_run_is_refused_in_words(wrong, tmp_path):
    change, message = WRONG[wrong]
    torch.manual_seed(1)
    content = change(_trained(tmp_path / "a"))
    (tmp_path / "b").mkdir()
    Checkpoints(tmp_path / "b").save(99, content)
    with pytest.raises(RunError, match=f"the newest checkpoint in .*b is not of this run.*{message}") as raised:
        Trainer(task(), model(0.0), config(2), ONE, 3, Checkpoints(tmp_path / "b")).run()
    assert "remove it, or choose another --name" in str(raised.value)
    assert raised.value.__cause__ is not None  # for --traceback


def test_an_unchanged_checkpoint_fits(tmp_path):
    torch.manual_seed(1)
    content = _trained(tmp_path / "a")
    (tmp_path / "b").mkdir()
    Checkpoints(tmp_path / "b").save(16, content)
    torch.manual_seed(1)
    outcome = Trainer(task(), model(0.0), config(2), ONE, 3, Checkpoints(tmp_path / "b")).run()
    assert outcome.history == content["history"]
    assert outcome.seconds == content["seconds"]
    assert math.isfinite(outcome.test["mse"])


def test_too_little_memory_to_resume_is_not_put_down_to_the_checkpoint(tmp_path, monkeypatch):
    _trained(tmp_path)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", raising(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(RunError, match="cpu has too little memory to resume: CUDA out of memory"):
        Trainer(task(), model(0.0), config(2), ONE, 3, Checkpoints(tmp_path)).run()
