"""Stages of a computation without epochs, such as a fit in closed form: who counts their steps, and a bar that shows
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Observer = Callable[[str, int, int], None]  # name of a stage, steps that are done, steps in all
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


def counted(items: Sequence[Item], stage: str) -> Iterator[Item]:
    """The items, of which each is a step of a stage; tells an observer how many are done."""
    tell = _observer.get()
    for done, item in enumerate(items):
        if tell is not None:
            tell(stage, done, len(items))
        yield item
    if tell is not None:
        tell(stage, len(items), len(items))


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Tell an observer of all stages within."""
    before = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(before)
