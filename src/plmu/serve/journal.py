"""States that survive the server: a snapshot of all sessions, and a journal of what came after it.

Samples are in the journal before they are answered, so a killed server loses none that was: the next one reads the
snapshot and runs the journal again. Rows and the width of batches are kept, hence the states are the same bits.

A journal is a row of chunks, each with its length and checksum. A chunk is what one batch of the server did.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plmu.errors import FileFormatError, RunError
from plmu.modelfiles.files import reading, write
from plmu.runs.folder import LOCK_FILE
from plmu.runs.lock import locked

OPEN, SAMPLES, RESET, CLOSE = range(4)
CHUNK, RECORD = struct.Struct("<II"), struct.Struct("<BII")
MOST_WIDTH = 4096  # rows of a batch
INTERVAL = 10.0  # seconds between snapshots, at least; what came in that time is run again in less


@dataclass
class Record:
    """What a session did."""

    kind: int
    row: int
    name: str = ""  # of OPEN
    samples: array[Any] | None = None
    count: int = 0


def packed(kind: int, row: int, count: int = 0, content: bytes = b"") -> bytes:
    """A record; `count` is of samples, or of the bytes of a name."""
    return RECORD.pack(kind, row, count) + content


@dataclass
class Snapshot:
    """All sessions at one moment."""

    names: list[str]
    rows: list[int]
    tensors: dict[str, Tensor]
    width: int


class Journal:
    """The states folder of one server."""

    def __init__(self, folder: Path, fingerprint: str, code: str, features: int) -> None:
        self.folder, self.fingerprint, self.code, self.features = folder, fingerprint, code, features
        self._held = ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._held.enter_context(locked(folder / LOCK_FILE))
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None
        except RunError:
            raise RunError(f"{folder} is in use by another server: stop it, or choose another --states") from None
        self.number = max((int(one.stem.split("-")[1]) for one in folder.glob("sessions-*.plmu")), default=0)
        self.file = -1
        self.due = time.monotonic() + INTERVAL
        self.dirty = False  # whether anything was written since the last snapshot

    def snapshot(self) -> Snapshot | None:
        """The last one, if there is any. RunError: it is of another model or damaged."""
        path = self._snapshot_path(self.number)
        if not path.is_file():
            return None
        try:
            with reading(path, ("sessions",)) as file:
                about = file.description
                if about.get("fingerprint") != self.fingerprint:
                    raise RunError(f"{path} has the states of another model: choose another --states")
                names, rows, width = about["names"], about["rows"], about["width"]
                if type(width) is not int or not 1 <= width <= MOST_WIDTH:
                    raise TypeError(f"its width is {width!r:.20}")
                if len(names) != len(rows) or not all(type(row) is int for row in rows):
                    raise TypeError("its rows are wrong")
                return Snapshot([str(name) for name in names], rows, file.tensors(list(file.shapes), "cpu"), width)
        except (FileFormatError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged ({error}): remove it to begin without states") from None

    def chunks(self) -> Iterator[list[Record]]:
        """What came after the snapshot."""
        for path in sorted(self.folder.glob("journal-*.log")):
            if path >= self._journal_path(self.number):
                yield from self._chunks(path)
                self.number = max(self.number, int(path.stem.split("-")[1]))

    def _chunks(self, path: Path) -> Iterator[list[Record]]:
        """A chunk that was cut short was never answered: it is left out."""
        content = path.read_bytes()
        place = 0
        while place + CHUNK.size <= len(content):
            size, checksum = CHUNK.unpack_from(content, place)
            body = content[place + CHUNK.size : place + CHUNK.size + size]
            if len(body) != size or zlib.crc32(body) != checksum:
                break
            yield self._records(body, path)
            place += CHUNK.size + size
        if place < len(content):
            left = len(content) - place
            print(f"plmu: {path}: its last {left} bytes were not written whole and are left out", file=sys.stderr)

    def _records(self, body: bytes, path: Path) -> list[Record]:
        found, place = [], 0
        while place < len(body):
            try:
                kind, row, count = RECORD.unpack_from(body, place)
                place += RECORD.size
                record = Record(kind, row)
                if kind == OPEN:
                    record.name = body[place : place + count].decode()
                    place += count
                elif kind == SAMPLES:
                    record.samples, record.count = array(self.code), count
                    size = count * self.features * record.samples.itemsize
                    record.samples.frombytes(body[place : place + size])
                    place += size
            except (struct.error, UnicodeDecodeError, ValueError) as error:
                raise RunError(f"{path} is damaged ({error}): remove it to begin from the snapshot alone") from None
            found.append(record)
        return found

    def append(self, records: bytes) -> int:
        """Write what one batch did, before it is answered. It then outlives this process; `sync` makes it outlive the
        machine."""
        chunk = CHUNK.pack(len(records), zlib.crc32(records)) + records
        left = memoryview(chunk)
        while left:
            left = left[os.write(self.file, left) :]
        self.dirty = True
        return len(chunk)

    def is_due(self) -> bool:
        """Whether it is time for a snapshot."""
        return self.dirty and time.monotonic() > self.due

    def save(self, snapshot: Snapshot) -> Callable[[], None]:
        """Begin a journal after this snapshot. What is returned writes the snapshot, in any thread; until it has, the
        snapshot before and the journals since then stand."""
        self.number += 1
        number = self.number
        path = self._journal_path(number)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        if self.file >= 0:
            os.close(self.file)
        self.file, self.dirty = file, False
        self.due = time.monotonic() + INTERVAL
        return lambda: self._write(number, snapshot)

    def _write(self, number: int, snapshot: Snapshot) -> None:
        started = time.monotonic()
        description = {
            "kind": "sessions",
            "fingerprint": self.fingerprint,
            "width": snapshot.width,
            "names": snapshot.names,
            "rows": snapshot.rows,
        }
        write(self._snapshot_path(number), snapshot.tensors, description)
        for kind in ("sessions-*.plmu", "journal-*.log"):
            for path in self.folder.glob(kind):
                if int(path.stem.split("-")[1]) < number:
                    path.unlink(missing_ok=True)
        self.due = time.monotonic() + max(INTERVAL, 20 * (time.monotonic() - started))

    def sync(self) -> None:
        """Let what was written reach the disk."""
        with contextlib.suppress(OSError):  # another journal may have begun
            os.fsync(self.file)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self._held.close()

    def _snapshot_path(self, number: int) -> Path:
        return self.folder / f"sessions-{number:08d}.plmu"

    def _journal_path(self, number: int) -> Path:
        return self.folder / f"journal-{number:08d}.log"


def answers_as_tensors(answers: list[list[list[float]]], outputs: int) -> dict[str, Tensor]:
    """The last outputs of each session."""
    rows = [row for answer in answers for row in answer]
    return {
        "answers": torch.tensor(rows, dtype=torch.float64).reshape(-1, outputs),
        "answer_counts": torch.tensor([len(answer) for answer in answers], dtype=torch.int64),
    }


def answers_from_tensors(tensors: dict[str, Tensor]) -> list[list[list[float]]]:
    """What `answers_as_tensors` was given; the tensors are taken out."""
    counts = tensors.pop("answer_counts").tolist()
    return [part.tolist() for part in tensors.pop("answers").split(counts)]
