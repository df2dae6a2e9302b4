"""Reading files from elsewhere: unpacked within bounds, and every fault is a DataError that names the file.

A file may be plain or packed with gzip, xz or bzip2, whatever its name says, or be a member of a zip or tar archive. It
is unpacked piece by piece, and the unpacked bytes may at no point be more than RATIO times the bytes read: real data
sets grow 2 to 20 times, a file made to fill the memory 1,000 times and more.
"""

from __future__ import annotations

import bz2
import csv
import io
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from plmu.data.files import unreadable
from plmu.errors import DataError

RATIO, ALLOWANCE = 50, 2**20  # a file may unpack to RATIO times its size, plus ALLOWANCE bytes
LONGEST = 2**20  # bytes of a line, of a wanted file of a tar archive and of a header in it
LARGEST = 2**30  # bytes of any other file of a tar archive
PIECE = 2**15  # bytes read or unpacked at a time
DICTIONARY = 2**27  # bytes that unpacking xz may need; `xz -9` makes files that need 65 MiB

_UNPACKERS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(31),
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=DICTIONARY),
    b"BZh": bz2.BZ2Decompressor,
}
_ZIP = (b"PK\3\4", b"PK\5\6")


class Damaged(DataError):
    """A file that cannot be unpacked to its end."""

    def __init__(self, path: Path | str, reason: object, after: str = "") -> None:
        super().__init__(f"{path} is truncated or damaged{after} ({reason}): get it again")
        self.reason = reason


@contextmanager
def opened(path: Path, member: str | None = None, allowance: int = ALLOWANCE) -> Iterator[IO[bytes]]:
    """The unpacked bytes of a file; of a zip archive, those of the first file whose name ends like `member`. It may
    unpack to `allowance` bytes more than RATIO times its size."""
    try:
        packed = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise unreadable(error, path) from None
    with packed:
        start = packed.peek(6)
        make = next((make for magic, make in _UNPACKERS.items() if start.startswith(magic)), None)
        if (make or start.startswith(_ZIP)) and not packed.seekable():
            raise DataError(f"{path} is a pipe of packed bytes: unpack them before, or give a file")
        if start.startswith(_ZIP):
            pieces = _member_pieces(path, packed, member, allowance)
        elif make:
            pieces = _bounded(path, packed, _unpacked(packed, make), allowance)
        else:
            pieces = iter(lambda: packed.read1(PIECE), b"")
        with io.BufferedReader(_Stream(path, pieces), PIECE) as file:
            yield file


def content(path: Path, most: int, member: str | None = None) -> bytes:
    """All bytes of a file or of a member of a zip archive. DataError if there are more than `most`."""
    pieces, budget = [], most + 1
    with opened(path, member) as file:
        while piece := file.read(min(budget, LONGEST)):  # read(budget) would reserve memory for all of `most` at once
            pieces.append(piece)
            budget -= len(piece)
    if not budget:
        where = f"{path}, {member}: it" if member else f"{path}"
        raise DataError(f"{where} has more than the {most:,} bytes it should have at most: get it again")
    return b"".join(pieces)


def lines(path: Path, member: str | None = None) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file, or of a member of a zip archive, without their ends."""
    with opened(path, member) as file:
        yield from lines_of(file, path)


def lines_of(file: IO[bytes], name: Path | str) -> Iterator[tuple[int, str]]:
    """Numbered lines of an open file, such as standard input; `name` is what errors call it."""
    number = 0
    try:
        while raw := file.readline(LONGEST + 1):
            number += 1
            if len(raw) > LONGEST:
                raise DataError(f"{name}, line {number}: it is longer than {LONGEST:,} bytes")
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}, line {number}: it is not UTF-8 ({error.reason} at byte {error.start})") from None
    except Damaged as error:
        raise Damaged(name, error.reason, f" after line {number}") from None


def filled_lines(path: Path, member: str | None = None) -> Iterator[tuple[int, str]]:
    """Numbered lines of a file in which no line may be empty."""
    for number, line in lines(path, member):
        if not line.strip():
            raise DataError(f"{path}, line {number}: it is empty")
        yield number, line


def json_lines(path: Path, member: str | None = None) -> Iterator[tuple[int, Any]]:
    """Numbered values of a file with one JSON value a line."""
    for number, line in filled_lines(path, member):
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: it is not JSON ({error})") from None


def table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows of a tab-separated file with a header and quoted fields: the line where each ends, and these columns."""
    rows = csv.reader((f"{line}\n" for _, line in lines(path)), delimiter="\t", strict=True)
    try:
        header = next(rows, [])
        missing = [name for name in columns if name not in header]
        if missing:
            names = ", ".join(header)[:200]
            raise DataError(f"{path}, line 1: there is no column {', '.join(missing)}; there are {names}")
        wanted = [header.index(name) for name in columns]
        for row in rows:
            if not row:
                raise DataError(f"{path}, line {rows.line_num}: it is empty")
            if len(row) != len(header):
                raise DataError(f"{path}, line {rows.line_num}: {len(row)} columns instead of {len(header)}")
            yield rows.line_num, [row[i] for i in wanted]
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}") from None


def members(path: Path, wanted: re.Pattern[str]) -> Iterator[tuple[re.Match[str], bytes]]:
    """Names and contents of the plain files of a tar archive whose names match. Links and devices are left out."""
    after = " at its beginning"
    try:
        with opened(path) as file, tarfile.open(fileobj=file, mode="r|", tarinfo=_Header) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # or it keeps them all
                if not 0 <= member.size <= LARGEST:
                    raise tarfile.ReadError(f"{member.name[:80]} claims {member.size:,} bytes")
                match = wanted.search(member.name)
                stream = archive.extractfile(member) if match and member.type in _FILES else None
                if match is None or stream is None:
                    continue
                raw = stream.read(LONGEST + 1)
                if len(raw) > LONGEST:
                    raise DataError(f"{path}, {match.string}: it is longer than {LONGEST:,} bytes")
                if len(raw) < member.size:
                    raise tarfile.ReadError(f"{match.string} is cut short")
                yield match, raw
                after = f" after {member.name}"
    except Damaged as error:
        raise Damaged(path, error.reason, after) from None
    except DataError:
        raise
    except Exception as error:  # whatever tarfile raises for a damaged header
        raise Damaged(path, error, after) from None


_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)


class _Header(tarfile.TarInfo):
    """A header of a tar archive. tarfile reads those that hold long names at once, so they must be short."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if not 0 <= header.size <= (LARGEST if header.type in tarfile.REGULAR_TYPES else LONGEST):
            raise tarfile.ReadError(f"a header claims {header.size:,} bytes")
        return header


class _Stream(io.RawIOBase):
    """Pieces of bytes as a stream. A piece that cannot be unpacked raises Damaged."""

    def __init__(self, path: Path, pieces: Iterator[bytes]) -> None:
        self.path, self.pieces = path, pieces
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.rest:
            try:
                self.rest = memoryview(next(self.pieces, b""))
            except DataError:
                raise
            except Exception as error:  # whatever an unpacker raises for a damaged file
                raise Damaged(self.path, error) from None
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def _bounded(path: Path, packed: IO[bytes], pieces: Iterator[bytes], allowance: int) -> Iterator[bytes]:
    """Pieces, up to RATIO times the bytes read for them and `allowance`; of an archive, only the member counts."""
    start, count = packed.tell(), 0
    for piece in pieces:
        count += len(piece)
        if count > RATIO * (packed.tell() - start) + allowance:
            reason = f"unpacks to more than {RATIO} times its size"
            raise DataError(f"{path} {reason}: it is not the data it should be, get it again")
        yield piece


def _unpacked(packed: IO[bytes], make: Callable[[], Any]) -> Iterator[bytes]:
    """The unpacked pieces of one stream after another; zeros may follow each."""
    chunk = packed.read(PIECE)
    while chunk:
        unpacker = make()
        while not unpacker.eof:
            if not chunk and getattr(unpacker, "needs_input", True):
                chunk = packed.read(PIECE)
                if not chunk:
                    raise EOFError("it ends too early")
            piece = unpacker.decompress(chunk, PIECE)
            chunk = getattr(unpacker, "unconsumed_tail", b"")  # zlib's; the other unpackers keep unused bytes
            if piece:
                yield piece
        chunk = unpacker.unused_data.lstrip(b"\0")
        while not chunk and (following := packed.read(PIECE)):
            chunk = following.lstrip(b"\0")


def _member_pieces(path: Path, packed: IO[bytes], member: str | None, allowance: int) -> Iterator[bytes]:
    with zipfile.ZipFile(packed) as archive:
        for info in archive.infolist():
            if info.is_dir() or info.filename.startswith("__MACOSX") or not info.filename.endswith(member or ""):
                continue
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"{path}, {info.filename}: pack it with deflate, the usual method of zip")
            with archive.open(info) as file:
                yield from _bounded(path, packed, iter(partial(file.read, PIECE), b""), allowance)
            return
    raise DataError(f"{path} has no {member or 'file'} in it")
