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


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No test reads this machine's data, or leaves anything in its cache."""
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


@pytest.fixture
def short(tmp_path, monkeypatch):
    """In a folder of its own, where mackey-glass is small."""
    from program import short_task

    from plmu.cli.catalogue import lookup

    monkeypatch.chdir(tmp_path)
    experiment = lookup("mackey-glass")
    monkeypatch.setattr(experiment, "task", short_task(experiment), raising=False)
    return ["train", "mackey-glass", "--training.epochs", "4", "--training.evaluate-every", "1", "--model.order", "8"]


@pytest.fixture(scope="session")
def load_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with load.csv and its run of forecast, which no test changes."""
    from forecasts import written

    from plmu.cli import main

    folder = tmp_path_factory.mktemp("forecast")
    (folder / "load.csv").write_text(written())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "6", "--backtest", "2", "--quiet",
              "--model.pooled", "False"])  # fmt: skip
    return folder


@pytest.fixture
def load_run(load_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That run, in its folder."""
    from forecasts import RUN

    monkeypatch.chdir(load_folder)
    return RUN
