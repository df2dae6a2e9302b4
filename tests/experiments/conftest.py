"""No test of an experiment reads this machine's data, or leaves anything in its cache."""

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)
