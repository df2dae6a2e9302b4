"""States that survive the server: a snapshot of all sessions, and a journal of what they did since.

Samples are written to the journal before they are answered, so a killed server loses none that it has answered. The
next server reads the snapshot and runs the journal again. It has the same rows and the same width of batches, hence the
same bits in the states.

A journal is a list of chunks, each with its length and checksum. A chunk holds the records of one batch.
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
INTERVAL = 10.0  # least seconds between snapshots; running the journal of that time again takes less


@dataclass
class Record:
    """A request that a session has carried out."""

    kind: int
    row: int
    name: str = ""  # of OPEN
    samples: array[Any] | None = None
    count: int = 0


def packed(kind: int, row: int, count: int = 0, content: bytes = b"") -> bytes:
    """A record as bytes; `count` is the number of samples, or of bytes of a name."""
    return RECORD.pack(kind, row, count) + content


@dataclass
class Snapshot:
    """The states of all sessions."""

    names: list[str]
    rows: list[int]
    tensors: dict[str, Tensor]
    width: int


class Journal:
    """The states folder of one server."""

    def __init__(self, folder: Path, fingerprint: str, code: str, features: int) -> None:
        self.folder, self.fingerprint, self.code, self.features = folder, fingerprint, code, features
        self._lock = ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.enter_context(locked(folder / LOCK_FILE))
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None
        except RunError:
            raise RunError(f"{folder} is in use by another server: stop it, or choose another --states") from None
        self.number = max((int(path.stem.split("-")[1]) for path in folder.glob("sessions-*.plmu")), default=0)
        self.file = -1
        self.due = time.monotonic() + INTERVAL
        self.dirty = False  # whether anything was written since the last snapshot

    def snapshot(self) -> Snapshot | None:
        """The last snapshot; None without one. RunError: it is of another model or damaged."""
        path = self._snapshot_path(self.number)
        if not path.is_file():
            return None
        try:
            with reading(path, ("sessions",)) as file:
                description = file.description
                if description.get("fingerprint") != self.fingerprint:
                    raise RunError(f"{path} has the states of another model: choose another --states")
                names, rows, width = (description[key] for key in ("names", "rows", "width"))
                if type(width) is not int or not 1 <= width <= MOST_WIDTH:
                    raise TypeError(f"its width is {width!r:.20}")
                if len(names) != len(rows) or not all(type(row) is int for row in rows):
                    raise TypeError("its rows are wrong")
                return Snapshot([str(name) for name in names], rows, file.tensors(list(file.shapes), "cpu"), width)
        except (FileFormatError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged ({error}): remove it to begin without states") from None

    def chunks(self) -> Iterator[list[Record]]:
        """The records since the snapshot, chunk by chunk."""
        for path in sorted(self.folder.glob("journal-*.log")):
            if path >= self._journal_path(self.number):
                yield from self._chunks(path)
                self.number = max(self.number, int(path.stem.split("-")[1]))

    def _chunks(self, path: Path) -> Iterator[list[Record]]:
        """The chunks of a file. A chunk that is cut short was never answered, and is skipped."""
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
            rest = len(content) - place
            print(f"plmu: {path}: its last {rest} bytes were not written whole and are left out", file=sys.stderr)

    def _records(self, body: bytes, path: Path) -> list[Record]:
        records, place = [], 0
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
            records.append(record)
        return records

    def append(self, records: bytes) -> int:
        """Write the records of a batch before it is answered. They survive a kill of this process, and after `sync` a
        crash of the machine. Returns the number of bytes."""
        chunk = CHUNK.pack(len(records), zlib.crc32(records)) + records
        unwritten = memoryview(chunk)
        while unwritten:
            unwritten = unwritten[os.write(self.file, unwritten) :]
        self.dirty = True
        return len(chunk)

    def is_due(self) -> bool:
        """Whether it is time for a snapshot."""
        return self.dirty and time.monotonic() > self.due

    def save(self, snapshot: Snapshot) -> Callable[[], None]:
        """Begin a journal after this snapshot. Returns a function that writes the snapshot, for any thread; until then
        the previous snapshot and the journals since stay valid."""
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
        """Flush the journal to the disk."""
        with contextlib.suppress(OSError):  # another journal may have begun
            os.fsync(self.file)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self._lock.close()

    def _snapshot_path(self, number: int) -> Path:
        return self.folder / f"sessions-{number:08d}.plmu"

    def _journal_path(self, number: int) -> Path:
        return self.folder / f"journal-{number:08d}.log"


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
