"""Parsed data as arrays in one file: memory-mapped, tied to its source files and settings, made again if damaged.

A file is a magic word, length and checksum of a JSON header, the header (the key, and place and checksum of each array)
and the arrays, each at a multiple of 64 bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from plmu.data.files import cache_folder, clear_abandoned, file_sha256, unreadable
from plmu.errors import DataError
from plmu.modelfiles.atomic import replacing

Array = np.ndarray[Any, np.dtype[Any]]
Parsed = TypeVar("Parsed")
MAGIC = b"plmu-arrays-2\n"
START = len(MAGIC) + 12  # where the header begins
TYPES = ("|u1", "<u2", "<u4", "<i8", "<f4", "<f8")


def cached(
    source: str,
    files: Sequence[Path],
    settings: Mapping[str, object],
    make: Callable[[], dict[str, Array]],
    parse: Callable[[dict[str, Array]], Parsed],
) -> Parsed:
    """Parsed data, from the cache if the same files were read with the same settings before.

    Files are the same if their names and sha256 are, so a cache that was made on one machine serves on another.

    Args:
        source: begins the name of the cache file.
        files: what the data is read from.
        settings: options of reading, as JSON can hold them.
        make: reads the files and returns named arrays.
        parse: makes the data of these arrays; raises KeyError or ValueError for arrays that do not fit together.

    Raises:
        DataError: a file cannot be read, or changes while it is read.
    """
    hashes = _hashes(files)
    key = json.dumps({"source": source, "files": hashes, "settings": dict(settings)}, sort_keys=True)
    path = cache_folder() / "parsed" / f"{source}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.bin"
    arrays = _read(path, key)
    if arrays is not None:
        try:
            return parse(arrays)
        except (KeyError, ValueError):
            pass  # undamaged, but not written by this code
    if files and sys.stderr.isatty():
        print(f"reading {', '.join(str(file) for file in files)}, once", file=sys.stderr)
    arrays = make()
    if _hashes(files) != hashes:
        names = ", ".join(str(file) for file in files)
        raise DataError(f"{names}: changed while it was read. Start again when nothing writes to it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_abandoned(path.parent)
        _write(path, key, arrays)
    except OSError:
        pass  # a cache that cannot be written is no reason to stop
    return parse(arrays)


def _hashes(files: Sequence[Path]) -> list[list[str]]:
    """Name and sha256 of each file."""
    try:
        return [[path.name, file_sha256(path)] for path in files]
    except OSError as error:
        raise unreadable(error) from None


def _write(path: Path, key: str, arrays: dict[str, Array]) -> None:
    plain = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    places: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    position = 0
    for name, value in plain.items():
        places[name] = (value.dtype.str, value.shape, position, zlib.crc32(value.reshape(-1).view(np.uint8).data))
        position += -(-value.nbytes // 64) * 64
    header = json.dumps({"key": key, "arrays": places}).encode()
    start = _aligned(header)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(4, "little") + header)
        for name, value in plain.items():
            file.seek(start + places[name][2])
            file.write(value.reshape(-1).view(np.uint8).data)
        file.truncate(start + position)


def _read(path: Path, key: str) -> dict[str, Array] | None:
    """The arrays of an undamaged cache file with this key; None for anything else."""
    try:
        if not path.is_file():
            return None
        mapped = np.memmap(path, np.uint8, mode="c")  # copy on write: torch warns of read-only arrays
        magic, size, check = (bytes(mapped[i:j]) for i, j in pairwise((0, len(MAGIC), START - 4, START)))
        raw = bytes(mapped[START : START + int.from_bytes(size, "little")])
        if magic != MAGIC or zlib.crc32(raw) != int.from_bytes(check, "little"):
            return None
        header = json.loads(raw)
        if header["key"] != key:
            return None
        start = _aligned(raw)
        arrays = {}
        for name, (dtype, shape, position, checksum) in header["arrays"].items():
            if dtype not in TYPES or position < 0 or any(length < 0 for length in shape):
                return None
            count = np.dtype(dtype).itemsize * math.prod(shape)
            part = mapped[start + position : start + position + count]
            if len(part) != count or zlib.crc32(part.data) != checksum:
                return None
            arrays[name] = part.view(dtype).reshape(shape)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return arrays


def _aligned(header: bytes) -> int:
    return -(-(START + len(header)) // 64) * 64


def text_array(texts: Iterable[str]) -> Array:
    """Texts without line breaks as an array of bytes."""
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def array_texts(array: Array) -> list[str]:
    """The texts of a `text_array`."""
    text = bytes(array).decode()
    return text.split("\n") if text else []
