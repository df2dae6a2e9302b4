"""States that survive the server: a snapshot of all sessions, and a journal of what they did since.

Samples are written to the journal before they are answered, so a killed server loses none that it has answered. The
next server reads the snapshot and runs the journal again. It has the same rows and the same width of batches, hence the
same bits in the states.

The folder has numbered files: journal N begins where snapshot N was taken. The snapshot before the last one and its
journal are kept, in case the last one is damaged. Files are not changed once there is any doubt about them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from plmu.errors import RunError
from plmu.modelfiles.atomic import flush_folder, opened_folder
from plmu.runs.folder import LOCK_FILE
from plmu.runs.lock import locked
from plmu.serve.chunks import Chain, Damage, JournalReader, Record
from plmu.serve.snapshots import MODE, Snapshot, read_snapshot, write_snapshot

INTERVAL = 10.0  # least seconds between snapshots; running the journal of that time again takes less
SNAPSHOT, JOURNAL = re.compile(r"sessions-(\d{8})\.plmu"), re.compile(r"journal-(\d{8})\.log")


class StorageLost(RuntimeError):
    """The disk may not have what was written: nothing more can be acknowledged."""


class Journal:
    """The states folder of one server.

    Args:
        folder: it is made if need be, for its owner alone.
        fingerprint: of the model.
        code: type code of the samples, as of `array`.
        features: numbers of a sample.
        fsync: whether records are on the disk, rather than with the system, before they are answered.
        recover: whether to go on from what can be read of damaged files, which then are renamed to `*.damaged`.

    Raises:
        RunError: the folder cannot be written, or is in use.
    """

    def __init__(
        self, folder: Path, fingerprint: str, code: str, features: int, fsync: bool = False, recover: bool = False
    ) -> None:
        self.folder, self.fingerprint, self.code, self.features = folder, fingerprint, code, features
        self.fsync, self.recover = fsync, recover
        self._held = ExitStack()  # the lock, and the descriptor of the folder
        try:
            self._claim()
            files = [*self._numbered(SNAPSHOT), *self._numbered(JOURNAL)]
            for _, path in files:
                with contextlib.suppress(PermissionError):
                    path.chmod(MODE)  # those of earlier versions could be read by all
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None
        self.number = max((number for number, _ in files), default=0)
        self.chain = Chain()
        self.damaged: list[Path] = []
        self.file, self.size = -1, 0  # of the present journal: its descriptor, and the bytes that are certain
        self.due = time.monotonic() + INTERVAL
        self.dirty = False  # whether anything was written since the last snapshot
        self.unsynced = False  # whether anything was written since the last flush
        self._based = False  # whether the snapshot on which the journal is based is there
        self._new_name = False  # whether the name of the journal is not on the disk yet
        self._flushing = threading.Lock()  # held while a journal is flushed or closed

    def _claim(self) -> None:
        """Make and lock the folder."""
        self._held.close()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._held.enter_context(locked(self.folder / LOCK_FILE))
        except RunError:
            raise RunError(f"{self.folder} is in use by another server: stop it, or choose another --states") from None
        self._descriptor = self._held.enter_context(opened_folder(self.folder))

    # ---------------------------------------------------------------- reading what an earlier server left

    def snapshot(self) -> Snapshot | None:
        """The last snapshot, or the last that can be read if asked to recover; None without one.

        Raises:
            RunError: it is of another model, or damaged. The message says what can be saved.
        """
        for number, path in reversed(self._numbered(SNAPSHOT)):
            try:
                snapshot = read_snapshot(path, self.fingerprint)
            except Damage as damage:
                if not self.recover:
                    raise RunError(f"{path} is damaged: {damage}. {self._saved_without(number)}") from None
                self._set_aside(path, str(damage))
                continue
            self._start = number
            return snapshot
        self._start = 0
        return None

    def _saved_without(self, damaged: int) -> str:
        """What can be saved without this snapshot and later ones, and how."""
        for number, path in reversed(self._numbered(SNAPSHOT)):
            if number < damaged:
                with contextlib.suppress(Damage):
                    read_snapshot(path, self.fingerprint)
                    return self.advice(f"{path.name} and the journals after it can be read")
        for number, path in self._numbered(JOURNAL)[:1]:
            if path.read_bytes().startswith(Chain().header(number)):
                return self.advice("The journals can be read from the first one on, which began without sessions")
        return self.advice("There is no older snapshot: no session can be saved")

    def advice(self, saved: str) -> str:
        """What can be saved of damaged states, and how; and how to begin without them."""
        return (
            f"{saved}. To go on from that, add --recover, which renames damaged files to *.damaged. To begin without"
            f" states, move {self.folder} away, or choose another --states"
        )

    def chunks(self, snapshot: Snapshot | None) -> Iterator[list[Record]]:
        """The records since the snapshot, chunk by chunk.

        Raises:
            Damage: a journal is damaged from here on, and this is not to be recovered.
        """
        journals = [(number, path) for number, path in self._numbered(JOURNAL) if number >= self._start]
        chain, old = (Chain(), False) if snapshot is None else (snapshot.chain, snapshot.old)
        reader = JournalReader(self.code, self.features, chain, old)
        place = self.folder
        try:
            if snapshot is not None and not journals:
                raise Damage(f"the journal after sessions-{self._start:08d}.plmu is missing")
            for number, path in journals:
                place = path
                yield from reader.read(path.read_bytes(), number, number == self._start)
                if reader.torn:
                    torn = f"its last {reader.torn} bytes were not written whole and are left out"
                    print(f"plmu: {path}: {torn}", file=sys.stderr)
        except Damage as damage:
            where = "" if damage.place is None else f" at byte {damage.place}"
            if not self.recover:
                raise Damage(f"{place} is damaged{where}: {damage}") from None
            for _, path in journals:
                if path >= place:
                    self._set_aside(path, f"{damage}{where}" if path == place else "it follows a damaged one")
        self.chain = reader.chain

    def _set_aside(self, path: Path, reason: str) -> None:
        if path not in self.damaged:
            self.damaged.append(path)
            print(f"plmu: {path} is left out: {reason}", file=sys.stderr)

    # ---------------------------------------------------------------- writing

    def append(self, records: bytes) -> int:
        """Write the records of a batch before it is answered. They survive a kill of this process, and after `sync` a
        crash of the machine.

        Returns:
            The number of bytes.

        Raises:
            OSError: nothing was written.
            StorageLost: it is not known what was written.
        """
        chunk, chain = self.chain.chunk(records)
        try:
            _write_all(self.file, chunk)
        except OSError:
            try:
                os.ftruncate(self.file, self.size)
            except OSError as error:
                raise StorageLost(f"half a chunk stays in journal {self.number}: {error.strerror}") from error
            raise
        self.chain, self.size = chain, self.size + len(chunk)
        self.dirty = self.unsynced = True
        if self.fsync:
            self.sync()
        return len(chunk)

    def sync(self) -> None:
        """Flush the journal to the disk. StorageLost: it could not be flushed."""
        with self._flushing:
            self.unsynced = False
            try:
                os.fsync(self.file)
                if self._new_name:
                    flush_folder(self._descriptor)
                    self._new_name = False
            except OSError as error:
                raise StorageLost(f"journal {self.number} was not flushed to the disk: {error.strerror}") from error

    def is_usable(self) -> bool:
        """Whether the journal is where the next server will look for it, after its snapshot."""
        try:
            there, here = os.stat(self._path(self.number)), os.fstat(self.file)
        except OSError:
            return False
        return self._based and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def is_due(self) -> bool:
        """Whether it is time for a snapshot."""
        return self.dirty and time.monotonic() > self.due

    def begin(self, snapshot: Snapshot) -> None:
        """Begin with a snapshot of all sessions, in a folder that may be gone. OSError: try again."""
        if self.file >= 0:  # someone has removed the folder, or a file of it
            self._based = False
            self._claim()
        self.save(snapshot)()
        self._based = True

    def save(self, snapshot: Snapshot) -> Callable[[], None]:
        """Begin a journal after this snapshot.

        Returns:
            A function that writes the snapshot, for any thread. Until then the previous snapshot and the journals since
            stay valid.

        Raises:
            OSError: it cannot be begun; the present journal goes on.
        """
        self.due = time.monotonic() + INTERVAL
        number, snapshot.chain = self.number + 1, self.chain
        path, header = self._path(number), self.chain.header(number)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, MODE)
        try:
            _write_all(file, header)
        except OSError:
            os.close(file)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        before, self.file = self.file, file
        self.number, self.size, self.dirty, self._new_name = number, len(header), False, True
        return lambda: self._write(number, snapshot, before)

    def _write(self, number: int, snapshot: Snapshot, before: int) -> None:
        """Flush and close the journal before, then write the snapshot and remove what is not needed any more."""
        started = time.monotonic()
        if before >= 0:
            with self._flushing:
                try:
                    os.fsync(before)
                except OSError as error:
                    raise StorageLost(f"a journal was not flushed to the disk: {error.strerror}") from error
                finally:
                    os.close(before)
        write_snapshot(self.folder / f"sessions-{number:08d}.plmu", self.fingerprint, snapshot)
        for path in self.damaged:
            path.rename(f"{path}.damaged")
        self.damaged = []
        snapshots, journals = self._numbered(SNAPSHOT), self._numbered(JOURNAL)
        previous = max((other for other, _ in snapshots if other < number), default=number)
        for other, path in [*snapshots, *journals]:
            if other < previous:
                path.unlink(missing_ok=True)
        self.due = time.monotonic() + max(INTERVAL, 20 * (time.monotonic() - started))

    def close(self) -> None:
        """Close the journal and free the folder for another server."""
        with self._flushing:
            if self.file >= 0:
                os.close(self.file)
                self.file = -1
        self._held.close()

    def _numbered(self, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        """The files of this kind with their numbers, in order."""
        matches = (pattern.fullmatch(name) for name in os.listdir(self.folder))
        return sorted((int(match[1]), self.folder / match[0]) for match in matches if match)

    def _path(self, number: int) -> Path:
        return self.folder / f"journal-{number:08d}.log"


def _write_all(file: int, content: bytes) -> None:
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[os.write(file, unwritten) :]
