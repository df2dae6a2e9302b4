"""What the tests of `plmu.ops` share."""

from contextlib import AbstractContextManager
from unittest.mock import patch

from plmu import Plan

ALGORITHMS = ("recurrent", "toeplitz", "fft", "chunked", "auto")
RESETTING = ("recurrent", "chunked", "auto")  # the algorithms that take resets


def in_chunks(chunk: int, fold: bool = False, tile: int = 1) -> AbstractContextManager:
    """Within this context everything runs chunked, in chunks and tiles smaller than the plan would ever take."""
    return patch("plmu.ops._plan", lambda kind, *_, **__: Plan(kind, "chunked", chunk, fold, tile))
