"""For all tests of exports."""

import pytest


@pytest.fixture(autouse=True)
def check_steps(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A C check program compares 60 steps instead of 1,000, whose expected outputs would take most of the time."""
    monkeypatch.setattr("plmu.exports.c_files.CHECK_STEPS", 60)
    return monkeypatch
