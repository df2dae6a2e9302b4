"""The examples run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_mackey_glass(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "mackey_glass.py", "--epochs", "1", "--out", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "parallel and streaming outputs agree" in done.stdout
    assert (tmp_path / "demo" / "mackey_glass.png").is_file()
