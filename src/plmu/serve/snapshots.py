"""Snapshots: files with the states of all sessions of a server, and a checksum."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plmu.errors import FileFormatError, RunError
from plmu.modelfiles.files import reading, write
from plmu.serve.chunks import DIGEST, Chain, Damage

MOST_WIDTH = 4096  # rows of a batch
MODE = 0o600
OLD_KEYS = {"format", "kind", "fingerprint", "width", "names", "rows"}  # of version 1
KEYS = OLD_KEYS | {"version", "owners", "chunk", "chain", "checksum"}


@dataclass
class Snapshot:
    """The states of all sessions."""

    names: list[str]
    rows: list[int]
    owners: list[str]  # digests of their secrets
    tensors: dict[str, Tensor]
    width: int
    chain: Chain = field(default_factory=Chain)  # of the journal, which goes on from here
    old: bool = False  # of version 1, without a checksum


def write_snapshot(path: Path, fingerprint: str, snapshot: Snapshot) -> None:
    """Write a snapshot, which only the owner can read. OSError: it could not be written, and the old file is there."""
    description = {
        "kind": "sessions",
        "version": 2,
        "fingerprint": fingerprint,
        "width": snapshot.width,
        "names": snapshot.names,
        "rows": snapshot.rows,
        "owners": snapshot.owners,
        "chunk": snapshot.chain.number,
        "chain": snapshot.chain.digest.hex(),
    }
    write(path, snapshot.tensors, {**description, "checksum": _checksum(description, snapshot.tensors)}, MODE)


def read_snapshot(path: Path, fingerprint: str) -> Snapshot:
    """Read a snapshot and compare its checksum.

    Raises:
        Damage: it is not what was written.
        RunError: it is of another model.
        OSError: it cannot be read.
    """
    try:
        with reading(path, ("sessions",)) as file:
            content, tensors = dict(file.description), file.tensors(list(file.shapes), "cpu")
        old = content.keys() == OLD_KEYS
        if not old and content.keys() != KEYS:
            raise TypeError(f"it has {', '.join(content)!s:.200}")
        content.pop("format")
        if not old and content.pop("checksum") != _checksum(content, tensors):
            raise TypeError("its checksum is wrong")
        if content["fingerprint"] != fingerprint:
            raise RunError(f"{path} has the states of another model: choose another --states")
        names, rows, width = content["names"], content["rows"], content["width"]
        if type(width) is not int or not 1 <= width <= MOST_WIDTH:
            raise TypeError(f"its width is {width!r:.20}")
        owners = [""] * len(names) if old else content["owners"]
        if not len(names) == len(rows) == len(owners) or not all(type(row) is int for row in rows):
            raise TypeError("its rows are wrong")
        chain = Chain() if old else Chain(content["chunk"], bytes.fromhex(content["chain"]))
        return Snapshot(list(map(str, names)), rows, list(map(str, owners)), tensors, width, chain, old)
    except (FileFormatError, KeyError, TypeError, UnicodeError) as error:
        raise Damage(str(error)) from None


def _checksum(description: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """The checksum of a description and of tensors with their names, types and shapes."""
    digest = blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=DIGEST)
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def answers_as_tensors(answers: list[list[list[float]]], outputs: int) -> dict[str, Tensor]:
    """The last outputs of each session, as tensors for a snapshot."""
    rows = [row for answer in answers for row in answer]
    return {
        "answers": torch.tensor(rows, dtype=torch.float64).reshape(-1, outputs),
        "answer_counts": torch.tensor([len(answer) for answer in answers], dtype=torch.int64),
    }


def answers_from_tensors(tensors: dict[str, Tensor]) -> list[list[list[float]]]:
    """The inverse of `answers_as_tensors`, which removes its tensors."""
    counts = tensors.pop("answer_counts").tolist()
    return [part.tolist() for part in tensors.pop("answers").split(counts)]
