"""Keras' imdb.npz: reviews as lists of word ranks, which NumPy stored as a pickle.

Nothing in a file is ever executed. A regular expression checks that the pickle names nothing but NumPy's array and
holds nothing but lists of integers. Only the lists are unpickled, by an unpickler that refuses every name.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from plmu.data.cache import Array
from plmu.data.reading import Damaged, content
from plmu.errors import DataError

HOME = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb.npz"
MOST = 2**25  # bytes of one array: twice what the original has
REVIEWS = 100_000  # in one array: four times what the original has

_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|]\w+)', 'fortran_order': False, 'shape': \((\d{1,9})L?,\), \} *\n", re.S
)
_LABELS = {b"|b1": "|u1", b"|u1": "|u1", b"|i1": "|u1", b"<i2": "<i2", b"<i4": "<i4", b"<i8": "<i8", b"<u8": "<u8"}

# Instructions of pickle, protocols 2 to 5. Quantifiers are possessive: there is one way to read a pickle, so a failure
# takes no more time and memory than a match.
_FRAME = rb"(?:\x95.{8})?+"  # says how many bytes to read at once
_MEMO = rb"(?:q.|r..[\0-\3]\0|\x94)?+"  # remembers a value; the number bounds the memory that the memo takes
_INTEGER = _FRAME + rb"(?:K.|M..|J...[\0-\x7f])"  # of 1, 2 or 4 bytes
_REVIEW = rb"\]" + _MEMO + rb"(?:%b\((?:%b)++e|%ba)++" % (_FRAME, _INTEGER, _INTEGER)
_LISTS = rb"\]" + _MEMO + rb"(?:%b\(?+%b%b%b[ae]?+){%%d}+" % (_FRAME, _FRAME, _REVIEW, _FRAME)
# Before the lists stand the array's class, shape and type; after them its state ends.
_WORD = rb"(?:numpy\.(?:_?core\.)multiarray|_reconstruct|numpy|ndarray|dtype|_codecs|encode|latin1|O8|b|\|)"
_NAMED = rb"c%b\n%b\n|(?:[CU\x8c].|X.\0\0\0)%b" % (_WORD, _WORD, _WORD)
_ARRAY = rb"\x80.(?:\x95.{8}|%b|q.|\x94|[Kh].|M..|J....|[(NRtb\x85-\x89\x93]){5,100}+" % _NAMED
_PICKLE = _ARRAY + rb"(?P<lists>%b)t%bb\." % (_LISTS, _MEMO)


class Lists(pickle.Unpickler):
    """An unpickler that refuses every name: nothing can be imported or called."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def split(path: Path, name: str) -> tuple[list[list[int]], Array]:
    """The reviews of "train" or "test", each as the ranks of its words, and their labels, 0 or 1."""
    (kind, count, raw), (label_kind, label_count, labels) = (_array(path, f"{letter}_{name}.npy") for letter in "xy")
    if kind != b"|O" or label_kind not in _LABELS:
        raise DataError(f"{path} is not Keras' imdb.npz: x_{name} and y_{name} are not lists of ranks and labels")
    if count > REVIEWS:
        raise DataError(f"{path}: {count:,} reviews in {name}, where there may be {REVIEWS:,} at most: get it again")
    if count != label_count:
        raise DataError(f"{path}: {count:,} reviews and {label_count:,} labels in {name}")
    try:
        numbers = np.frombuffer(labels, _LABELS[label_kind], count)
        reviews = ranks(raw, count)
    except ValueError as error:
        raise Damaged(path, error, f" in {name}") from None
    for number, label in enumerate(numbers):
        if label not in (0, 1):
            raise DataError(f"{path}: the label of review {number} of {name} is not 0 or 1")
    return reviews, numbers


def ranks(raw: bytes, count: int) -> list[list[int]]:
    """The lists of integers, none of them empty, in the pickle of an array of `count` lists.

    Raises:
        ValueError: the pickle holds anything else.
    """
    match = re.compile(_PICKLE % count, re.S).fullmatch(raw)
    if match is None:
        raise ValueError(f"not {count:,} lists of ranks")
    end = match.end("lists")
    lists = raw[match.start("lists") : end] + b"." + raw[end:]  # "." ends a pickle; the last frame reaches beyond it
    try:
        reviews: list[list[int]] = Lists(io.BufferedReader(io.BytesIO(lists))).load()
    except (pickle.UnpicklingError, EOFError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not {count:,} lists of ranks: {error}") from None
    if len(reviews) != count or not all(isinstance(review, list) for review in reviews):
        raise ValueError(f"not {count:,} lists of ranks")
    return reviews


def _array(path: Path, name: str) -> tuple[bytes, int, bytes]:
    """NumPy's type code, length and bytes of the one-dimensional array `name` in the file."""
    raw = content(path, MOST, name)
    head = _HEAD.match(raw)
    if head is None:
        raise DataError(f"{path} is not Keras' imdb.npz: {name} is not an array of one axis")
    return head[1], int(head[2]), raw[head.end() :]
