"""For all tests: memory that nobody wrote is NaN, and numbers repeat."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from closeness import pytest_addoption, pytest_configure  # noqa: F401
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports a kernel

settings.register_profile("plmu", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("plmu")


@pytest.fixture(autouse=True)
def _poisoned_and_seeded() -> Iterator[None]:
    """In deterministic mode torch fills what `torch.empty` returns with NaN: an unwritten output cannot hide."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a model, in a folder that is empty."""
    return tmp_path / "model.plmu"


def test_memory_is_poisoned() -> None:
    assert torch.empty(3).isnan().all()


@pytest.fixture
def cache_limit() -> Iterator[Callable[[int], int]]:
    """Sets the limit of cached constants for one test, which starts with none cached."""
    from plmu import set_cache_limit

    before = set_cache_limit(0)
    set_cache_limit(before)
    yield set_cache_limit
    set_cache_limit(before)
