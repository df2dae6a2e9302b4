"""Keras' imdb.npz: reviews as lists of word ranks, which NumPy kept as a pickle.

No pickle is loaded here. The few instructions that lists of numbers take are followed, and all that would name, call or
build something else leaves a None behind. So nothing of a file is ever executed, whatever it holds.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from plmu.data.cache import Array
from plmu.data.reading import Damaged, content
from plmu.errors import DataError

HOME = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb.npz"
MOST = 2**25  # bytes of one array: twice what the original has
REVIEWS = 100_000  # in one array: four times what the original has
DEEPEST = 5_000  # values at once on the stack; pickle hands lists over in parts of 1,000
INSTRUCTIONS = 10  # of a review, apart from its numbers; pickle needs about 5. The array itself takes up to 1,000.

_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|]\w+)', 'fortran_order': False, 'shape': \((\d{1,9})L?,\), \} *\n", re.S
)
_LABELS = {b"|b1": "|u1", b"|u1": "|u1", b"|i1": "|u1", b"<i2": "<i2", b"<i4": "<i4", b"<i8": "<i8", b"<u8": "<u8"}

# Bytes that follow an instruction, for those that matter in no other way, and values that each takes and leaves.
_NUMBERS = {b"K"[0]: 1, b"M"[0]: 2, b"J"[0]: 4}
_IGNORED = {b"\x80": 1, b"\x95": 8, b"q": 1, b"r": 4, b"\x94": 0}  # protocol, frame, and remembering in three forms
_TEXTS = {b"C": 1, b"U": 1, b"\x8c": 1, b"X": 4}  # by the bytes of their length
_NOTHING = {b"N": (0, 0), b"\x88": (0, 0), b"\x89": (0, 0), b"h": (1, 0), b"j": (4, 0), b"\x93": (0, 2), b"R": (0, 2)}
_TUPLES = {b")": 0, b"\x85": 1, b"\x86": 2, b"\x87": 3}


def split(path: Path, name: str) -> tuple[list[array[int]], Array]:
    """The reviews of "train" or "test", each with the ranks of its words, and their labels."""
    (kind, count, raw), (own, labelled, labels) = (_array(path, f"{letter}_{name}.npy") for letter in "xy")
    if kind != b"|O" or own not in _LABELS:
        raise DataError(f"{path} is not Keras' imdb.npz: x_{name} and y_{name} are not lists of ranks and labels")
    if count > REVIEWS:
        raise DataError(f"{path}: {count:,} reviews in {name}, where there may be {REVIEWS:,} at most: get it again")
    if count != labelled:
        raise DataError(f"{path}: {count:,} reviews and {labelled:,} labels in {name}")
    try:
        numbers = np.frombuffer(labels, _LABELS[own], count)
        reviews = ranks(raw, count)
    except ValueError as error:
        raise Damaged(path, error, f" in {name}") from None
    for number, label in enumerate(numbers):
        if label not in (0, 1):
            raise DataError(f"{path}: the label of review {number} of {name} is not 0 or 1")
    return reviews, numbers


def ranks(raw: bytes, count: int) -> list[array[int]]:
    """The lists of numbers, none empty, in the pickle of an array of `count` of them. Else it raises ValueError."""
    try:
        state = _followed(raw, 1_000 + INSTRUCTIONS * count)
    except (IndexError, TypeError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"not lists of ranks: {error}") from None
    lists = state[-1] if isinstance(state, tuple) and state else None
    if not isinstance(lists, list) or len(lists) != count:
        raise ValueError(f"not {count:,} lists of ranks")
    return lists


def _followed(raw: bytes, most: int) -> Any:
    """What is left on the stack at the end, an object being its state. Instructions other than numbers: at most `most`.

    A list of numbers becomes an array, of 4 bytes each; every other value takes an instruction. So `most` and the size
    of `raw` bound the memory.
    """
    stack: list[Any] = []
    marks: list[int] = []
    at = 0
    while len(stack) + len(marks) < DEEPEST:
        code = raw[at]
        at += 1
        if code in _NUMBERS:
            size = _NUMBERS[code]
            stack.append(int.from_bytes(raw[at : at + size], "little", signed=size == 4))
            at += size
            continue
        most -= 1
        if most < 0:
            raise ValueError("it has more instructions than its number of reviews takes")
        name = raw[at - 1 : at]
        if name == b".":
            return stack.pop()
        if name in _IGNORED:
            at += _IGNORED[name]
        elif name in _NOTHING:
            size, taken = _NOTHING[name]
            at += size
            del stack[len(stack) - taken :]
            stack.append(None)
        elif name in _TEXTS:
            size = _TEXTS[name]
            at += size + int.from_bytes(raw[at : at + size], "little")
            stack.append(None)
        elif name == b"c":  # two names, a line each
            at = raw.index(b"\n", raw.index(b"\n", at) + 1) + 1
            stack.append(None)
        elif name == b"(":
            marks.append(len(stack))
        elif name == b"]":
            stack.append([])
        elif name in (b"a", b"e"):
            mark = len(stack) - 1 if name == b"a" else marks.pop()
            given = stack[mark:]
            del stack[mark:]
            stack[-1] = _extended(stack[-1], given)
        elif name == b"t" or name in _TUPLES:
            mark = marks.pop() if name == b"t" else len(stack) - _TUPLES[name]
            parts = tuple(stack[mark:])
            del stack[mark:]
            stack.append(parts)
        elif name == b"b":
            stack[-2:] = stack[-1:]
        else:
            raise ValueError(f"it holds the instruction {name!r}")
    raise ValueError("it is nested too deeply")


def _extended(target: Any, given: list[Any]) -> list[array[int]] | array[int]:
    """A list with more in it: of numbers, which becomes an array, or of such arrays."""
    if isinstance(target, list) and given and all(isinstance(each, array) for each in given):
        target.extend(given)
        return target
    if not given or not (target == [] or isinstance(target, array)):
        raise TypeError("something is added to what is no list of it")
    numbers = target if isinstance(target, array) else array("I")
    numbers.extend(array("I", given))
    return numbers


def _array(path: Path, name: str) -> tuple[bytes, int, bytes]:
    """Type and length of an array of one axis, and its bytes."""
    raw = content(path, MOST, name)
    head = _HEAD.match(raw)
    if head is None:
        raise DataError(f"{path} is not Keras' imdb.npz: {name} is not an array of one axis")
    return head[1], int(head[2]), raw[head.end() :]
