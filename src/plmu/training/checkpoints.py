"""Checkpoints that survive a kill at any moment: written beside, renamed, two kept, each with its checksum.

Reading a checkpoint never executes code: anything but tensors, numbers, strings, lists and dictionaries is refused.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from pathlib import Path
from types import NoneType
from typing import Any

import torch

import plmu
from plmu.errors import CheckpointError, RunError
from plmu.modelfiles.atomic import replacing

Fields = dict[str, type | tuple[type, ...]]
MAGIC = b"plmu checkpoint 1\n"
KEPT = 2
# What the best model and a whole checkpoint hold.
BEST: Fields = {"epoch": int, "scores": dict, "model": dict}
STATE: Fields = {
    "epoch": int,
    "step": int,
    "model": dict,
    "average": (list, NoneType),
    "optimizer": dict,
    "generators": list,
    "loss_sum": torch.Tensor,
    "history": list,
    "best": (dict, NoneType),
    "seconds": (int, float),
}


class Checkpoints:
    """The checkpoints of a run, in a folder: `step-00001234.ckpt`, and `best.ckpt` if the run diverged.

    One process writes to a folder at a time (see `plmu.runs.folder`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def best_path(self) -> Path:
        return self.folder / "best.ckpt"

    def save(self, step: int, content: dict[str, Any]) -> Path:
        """Write a checkpoint, and remove all but the newest two up to it. A full disk leaves the earlier ones."""
        path = self.folder / f"step-{step:08d}.ckpt"
        self._write(path, content)
        earlier = [path for number, path in self._numbered() if number <= step]
        for old in earlier[:-KEPT]:
            old.unlink(missing_ok=True)
        return path

    def newest(self, rename: bool = True) -> dict[str, Any] | None:
        """The newest checkpoint that is not damaged, on the CPU; None if there is none.

        A damaged one is skipped with a warning.

        Args:
            rename: whether damaged ones are renamed to `….broken`.

        Raises:
            RunError: a file cannot be read, or there is too little memory. Nothing is renamed then.
        """
        paths = [path for _, path in self._numbered()]
        while paths:
            path = paths.pop()
            then = f"taking {paths[-1].name}" if paths else "there is no earlier one"
            content = self._read(path, STATE, then, rename)
            if content is not None:
                return content
        return None

    def keep_best(self, best: dict[str, Any]) -> None:
        """Write the best model of a run that will not write another checkpoint."""
        self._write(self.best_path, best)

    def drop_best(self) -> None:
        """A run that came to its end has its best model in the newest checkpoint."""
        self.best_path.unlink(missing_ok=True)

    def best(self) -> dict[str, Any] | None:
        """The best model: that of a run that diverged, else the newest checkpoint's. Renames nothing."""
        if self.best_path.is_file():
            best = self._read(self.best_path, BEST, "taking the newest checkpoint's", rename=False)
            if best is not None:
                return best
        newest = self.newest(rename=False)
        return None if newest is None or newest["best"] is None else {**newest["best"], "plmu": written_by(newest)}

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(pack(content))
        except OSError as error:
            after = "resumes from the one before" if self._numbered() else "starts again: there is no earlier one"
            raise CheckpointError(
                f"cannot write the checkpoint {path}: {error.strerror or error}. The same command {after}"
            ) from error

    def _read(self, path: Path, fields: Fields, then: str, rename: bool) -> dict[str, Any] | None:
        try:
            content = unpack(path.read_bytes())
            check(content, fields)
            if content.get("best") is not None:
                check(content["best"], BEST)
            return content
        except FileNotFoundError:  # another process has just moved it aside
            return None
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:  # it may well be whole
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0] or "out of memory"
            raise RunError(
                f"checkpoint {path} could not be read ({reason}) and was left as it is: try again, or remove it"
            ) from error
        except ValueError as error:
            moved = f"{_set_aside(path)}; " if rename else ""
            warnings.warn(f"checkpoint {path} cannot be read ({error}): {moved}{then}", stacklevel=3)
            return None

    def _numbered(self) -> list[tuple[int, Path]]:
        """Each step that has a checkpoint, in order."""
        named = ((re.fullmatch(r"step-(\d+)\.ckpt", path.name), path) for path in self.folder.glob("step-*.ckpt"))
        return sorted((int(match[1]), path) for match, path in named if match)


def written_by(content: dict[str, Any]) -> str:
    """The version of plmu that wrote a checkpoint; 0.1.0 did not say so."""
    return str(content.get("plmu", "0.1.0"))


def other_version(content: dict[str, Any]) -> str:
    """The end of an error about a checkpoint that does not fit: whether another version wrote it."""
    version = written_by(content)
    if version == plmu.__version__:
        return ""
    return (
        f". It was written by plmu {version} and this is {plmu.__version__}, whose models may differ: use that version"
    )


def _set_aside(path: Path) -> str:
    """Rename a damaged checkpoint. Returns what was done, in words."""
    aside = path.with_name(f"{path.name}.broken")
    try:
        path.replace(aside)
    except OSError:
        return "left it there"
    return f"renamed it to {aside.name}"


def pack(content: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    return MAGIC + hashlib.sha256(data).digest() + data


def unpack(data: bytes) -> dict[str, Any]:
    """The content, on the CPU. Raises ValueError if it is damaged or of another kind."""
    if not data.startswith(MAGIC):
        raise ValueError("it is not a checkpoint of plmu")
    digest, body = data[len(MAGIC) : len(MAGIC) + 32], data[len(MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("its checksum does not match: it is truncated or damaged")
    try:
        content = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch raises many kinds
        if "allocate memory" in str(error):  # a RuntimeError on the CPU
            raise MemoryError(str(error)) from error
        raise ValueError(f"it holds more than tensors and plain values ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__} instead of a dictionary")
    return content


def check(content: dict[str, Any], fields: Fields) -> None:
    """Raise ValueError unless all fields are there with the right types, and models are tensors by name."""
    for name, kinds in fields.items():
        if name not in content:
            raise ValueError(f"it has no {name!r}")
        if not isinstance(content[name], kinds):
            raise ValueError(f"its {name!r} is a {type(content[name]).__name__}")
    if not all(isinstance(value, torch.Tensor) for value in content["model"].values()):
        raise ValueError("its 'model' holds more than tensors")
