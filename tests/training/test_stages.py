"""Stages of a computation: an observer is told of them, and a terminal shows them."""

import io
import sys

import pytest

from plmu.training.progress import stages_shown
from plmu.training.stages import counted, observed


def test_an_observer_is_told_of_each_step() -> None:
    told: list[tuple[str, int, int]] = []
    with observed(lambda *step: told.append(step)):
        assert list(counted("ab", "letters")) == ["a", "b"]
        assert list(counted([], "nothing")) == []
    assert list(counted([1], "later")) == [1]
    assert told == [("letters", 0, 2), ("letters", 1, 2), ("letters", 2, 2), ("nothing", 0, 0)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_stages_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with stages_shown("forecast [x]"):
        for _ in counted(range(3), "candidates"):
            pass
        for _ in counted(range(2), "members"):
            pass
    shown = screen.getvalue()
    assert "forecast [x]: members" in shown
    assert "2/2" in shown
    assert "left" in shown


@pytest.mark.parametrize("quiet", [False, True])
def test_files_and_quiet_runs_show_nothing(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen := Terminal() if quiet else io.StringIO())
    with stages_shown("forecast", quiet):
        assert list(counted([1], "candidates")) == [1]
    assert not screen.getvalue()


def test_an_error_passes_and_a_closed_terminal_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(Terminal):
        def write(self, text: str) -> int:
            raise OSError("gone")

    monkeypatch.setattr(sys, "stdout", Closed())
    with stages_shown("forecast"):
        assert list(counted([1, 2], "candidates")) == [1, 2]
    monkeypatch.setattr(sys, "stdout", Terminal())
    with pytest.raises(KeyError), stages_shown("forecast"):
        raise KeyError
