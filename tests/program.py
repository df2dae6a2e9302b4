"""What tests of the command line share."""

import pytest

from plmu.cli.program import main


def refused(words, capsys, status=2) -> str:
    """What the program says on the error stream, without tyro's frame, when it stops with this status."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == status
    return " ".join(word for word in capsys.readouterr().err.split() if word != "│")


def raising(error):
    def function(*_, **__):
        raise error

    return function


def short_task(experiment):
    whole = type(experiment).task

    def task(config):
        made = whole(experiment, config)
        for name in ("train", "valid", "test"):
            setattr(made, name, tuple(part[:4, :200] for part in getattr(made, name)))
        return made

    return task
