"""No test of an experiment reads this machine's data, or leaves anything in its cache."""

import pytest
from program import short_task

from plmu.experiments import EXPERIMENTS


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


@pytest.fixture
def short(tmp_path, monkeypatch):
    """In a folder of its own, where mackey-glass is small."""
    monkeypatch.chdir(tmp_path)
    experiment = EXPERIMENTS["mackey-glass"]
    monkeypatch.setattr(experiment, "task", short_task(experiment), raising=False)
    return ["train", "mackey-glass", "--training.epochs", "4", "--training.evaluate-every", "1", "--model.order", "8"]
