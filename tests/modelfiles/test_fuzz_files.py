"""Files with random changes are loaded or refused by `FileFormatError`, below 200 MiB; see mutations.py."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("mutations.py")


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.parametrize("count", [200, pytest.param(4000, marks=pytest.mark.full)])
def test_changed_files_are_loaded_or_refused(count: int, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(count), "0", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    loaded = int(done.stdout.split()[0])
    assert count / 20 < loaded < count / 2, done.stdout  # both kinds are among them
