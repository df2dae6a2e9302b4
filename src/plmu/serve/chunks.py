"""The bytes of a journal: a header, then chunks. A chunk holds the records of one batch.

Chunks are numbered through all journals of a folder. Each has two digests, of its head and of its records, which depend
on all chunks before it. So a bit that has changed, and a chunk that is missing, repeated or at another place, are
noticed. Only the end of a file may be missing: a killed process may leave half a chunk, which it has not answered.

Version 1 had no header, and chunks of size, CRC-32 and records.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

OPEN, SAMPLES, RESET, CLOSE, START = range(5)
RECORD = struct.Struct("<BII")  # kind, row and count
STEP = struct.Struct("<q")  # of START
MAGIC = b"plmu-j2\n"
HEADER = struct.Struct("<8sQQ16s")  # magic, number of the journal, number of its first chunk, digest of the one before
HEAD = struct.Struct("<IQ")  # of a chunk: size of its records, and its number
CHECK, DIGEST = 8, 16  # bytes of the digests of a head, and of a whole chunk
HEADER_SIZE, HEAD_SIZE = HEADER.size + CHECK, HEAD.size + CHECK + DIGEST
OLD_HEAD = struct.Struct("<II")  # of version 1: size and CRC-32


class Damage(Exception):
    """A journal or a snapshot is not what was written. `place` is the byte, in a journal."""

    def __init__(self, reason: str, place: int | None = None) -> None:
        super().__init__(reason)
        self.place = place


@dataclass
class Chain:
    """The end of a journal: the number of the next chunk, and the digest that depends on all before it."""

    number: int = 0
    digest: bytes = bytes(DIGEST)

    def header(self, journal: int) -> bytes:
        """The header of a journal of this number that begins here."""
        head = HEADER.pack(MAGIC, journal, self.number, self.digest)
        return head + _digest(head, CHECK)

    def chunk(self, records: bytes) -> tuple[bytes, Chain]:
        """A chunk of these records, and the chain after it."""
        head = HEAD.pack(len(records), self.number)
        digest = _digest(self.digest + head + records, DIGEST)
        return head + _digest(self.digest + head, CHECK) + digest + records, Chain(self.number + 1, digest)


def _digest(content: bytes, size: int) -> bytes:
    return blake2b(content, digest_size=size).digest()


@dataclass
class Record:
    """A request that a session has carried out."""

    kind: int
    row: int
    name: str = ""  # of OPEN
    owner: str = ""  # of OPEN: the digest of the session's secret
    samples: array[Any] | None = None
    count: int = 0
    step: int | None = None  # of START: the clock's step of the next sample


def packed(kind: int, row: int, count: int = 0, content: bytes = b"", step: int | None = None) -> bytes:
    """A record as bytes; `count` is the number of samples, or of bytes, `step` that of START."""
    return RECORD.pack(kind, row, count) + (content if step is None else STEP.pack(step))


def packed_open(row: int, name: str, owner: str) -> bytes:
    """The record of OPEN. In version 1 it had no owner."""
    content = f"{name} {owner}".encode()
    return packed(OPEN, row, len(content), content)


class JournalReader:
    """Reads the journals of a folder one after another.

    Args:
        code: type code of the samples, as of `array`.
        features: numbers of a sample.
        chain: the end of the chain at the snapshot.
        old: whether the snapshot is of version 1, after which journals of version 1 may come.
    """

    def __init__(self, code: str, features: int, chain: Chain, old: bool) -> None:
        self.code, self.features, self.chain, self.old = code, features, chain, old
        self.torn = 0  # bytes at the end of the last journal that were not written whole

    def read(self, content: bytes, number: int, first: bool) -> Iterator[list[Record]]:
        """The records of a journal, chunk by chunk.

        Args:
            content: the bytes of the file.
            number: that of its name.
            first: whether it is the journal of the snapshot, which was begun before that was written.

        Raises:
            Damage: these are not the bytes that were written after those before.
        """
        if self.old and not content.startswith(MAGIC):
            yield from self._read_old(content)
            return
        self.old, self.torn = False, 0
        if len(content) < HEADER_SIZE:
            if first:
                raise Damage("its header is missing", 0)
            self.torn = len(content)
            return
        head = content[: HEADER.size]
        magic, journal, chunk, digest = HEADER.unpack(head)
        if magic != MAGIC or content[HEADER.size : HEADER_SIZE] != _digest(head, CHECK) or journal != number:
            raise Damage("its header is wrong", 0)
        if Chain(chunk, digest) != self.chain:
            raise Damage(f"it begins at chunk {chunk} and does not continue what was before, {self.chain.number}", 0)
        place = HEADER_SIZE
        while place < len(content):
            records = self._chunk(content, place)
            if records is None:
                self.torn = len(content) - place
                return
            yield self._records(records, place)
            place += HEAD_SIZE + len(records)

    def _chunk(self, content: bytes, place: int) -> bytes | None:
        """The records of the chunk at this place; None if its end is missing."""
        if len(content) < place + HEAD_SIZE:
            return None
        head = content[place : place + HEAD.size]
        size, number = HEAD.unpack(head)
        check = content[place + HEAD.size : place + HEAD.size + CHECK]
        if check != _digest(self.chain.digest + head, CHECK):
            raise Damage(f"what is there is not chunk {self.chain.number}", place)
        start = place + HEAD_SIZE
        if len(content) < start + size:
            return None
        chunk, chain = self.chain.chunk(records := content[start : start + size])
        if chunk != content[place : start + size]:
            raise Damage(f"the checksum of chunk {number} is wrong", place)
        self.chain = chain
        return records

    def _read_old(self, content: bytes) -> Iterator[list[Record]]:
        """The records of a journal of version 1."""
        place = 0
        while place < len(content):
            start = place + OLD_HEAD.size
            size, checksum = OLD_HEAD.unpack_from(content, place) if start <= len(content) else (0, 0)
            if start > len(content) or start + size > len(content):
                self.torn = len(content) - place
                return
            records = content[start : start + size]
            if zlib.crc32(records) != checksum:
                raise Damage("the checksum of a chunk is wrong", place)
            yield self._records(records, place)
            place = start + size

    def _records(self, body: bytes, chunk: int) -> list[Record]:
        """The records of the chunk at byte `chunk`."""
        records, place = [], 0
        try:
            while place < len(body):
                kind, row, count = RECORD.unpack_from(body, place)
                place += RECORD.size
                record, size = Record(kind, row), 0
                if kind == OPEN:
                    size, text = count, body[place : place + count].decode()
                    record.name, _, record.owner = text.partition(" ")
                elif kind == SAMPLES:
                    record.samples, record.count = array(self.code), count
                    size = count * self.features * record.samples.itemsize
                    record.samples.frombytes(body[place : place + size])
                elif kind == START:
                    size, (record.step,) = STEP.size, STEP.unpack_from(body, place)
                elif kind not in (RESET, CLOSE):
                    raise ValueError(f"a record is of kind {kind}")
                place += size
                if place > len(body):
                    raise ValueError("a record is cut short")
                records.append(record)
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise Damage(f"a chunk cannot be read: {error}", chunk) from None
        return records
