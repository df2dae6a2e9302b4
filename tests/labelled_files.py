"""Labelled series of files that tests write."""

from pathlib import Path
from typing import Any

import pytest

from plmu.errors import DataError
from plmu.timeseries import labelled_files
from plmu.timeseries.labelled import LabelledConfig, LabelledData


def load(path: Path, content: str | None = None, **options: Any) -> LabelledData:
    """The series of a file, which is written first where its content is given."""
    if content is not None:
        path.write_text(content)
    return labelled_files.load(LabelledConfig(file=path, **options))


def refused(path: Path, content: str | None = None, **options: Any) -> str:
    """What is said of a file that cannot be read."""
    with pytest.raises(DataError) as error:
        load(path, content, **options)
    return str(error.value)
