"""Checkpoints that survive a kill at any moment: written beside, renamed, two kept, each with its checksum."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

import torch

from plmu.files import replacing

MAGIC = b"plmu checkpoint 1\n"
KEPT = 2


class Checkpoints:
    """The checkpoints of a run, in a folder: `step-00001234.ckpt`, newest last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, content: dict[str, Any]) -> Path:
        """Write one and drop all but the newest two. A full disk raises OSError and leaves the earlier ones."""
        path = self.folder / f"step-{step:08d}.ckpt"
        with replacing(path) as temporary:
            temporary.write_bytes(pack(content))
        for old in self._paths()[:-KEPT]:
            old.unlink(missing_ok=True)
        return path

    def newest(self, device: torch.device) -> dict[str, Any] | None:
        """The newest that can be read; a broken one is passed over with a warning."""
        for path in reversed(self._paths()):
            try:
                return unpack(path.read_bytes(), device)
            except (OSError, ValueError) as error:
                warnings.warn(f"checkpoint {path} cannot be read ({error}): taking the one before", stacklevel=2)
        return None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.ckpt"))


def pack(content: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    return MAGIC + hashlib.sha256(data).digest() + data


def unpack(data: bytes, device: torch.device) -> dict[str, Any]:
    if not data.startswith(MAGIC):
        raise ValueError("it is not a checkpoint of plmu")
    digest, body = data[len(MAGIC) : len(MAGIC) + 32], data[len(MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("its checksum does not match: it is truncated or damaged")
    return torch.load(io.BytesIO(body), map_location=device, weights_only=True)  # type: ignore[no-any-return]
