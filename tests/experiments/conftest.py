"""No test of an experiment reads this machine's data, or leaves anything in its cache."""

from pathlib import Path

import pytest
from forecasts import RUN, written
from program import short_task

from plmu.cli import main
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


@pytest.fixture(scope="session")
def load_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with load.csv and its run of forecast, which no test changes."""
    folder = tmp_path_factory.mktemp("forecast")
    (folder / "load.csv").write_text(written())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "6", "--backtest", "2", "--quiet"])
    return folder


@pytest.fixture
def load_run(load_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That run, in its folder."""
    monkeypatch.chdir(load_folder)
    return RUN
