"""The list of the comparisons closest to their bounds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import closeness
import pytest

COMPARISONS = """
import numpy as np
import pytest
import torch
from closeness import within

@pytest.mark.parametrize("error", [0.1, 0.3])
def test_numbers(error):
    within(np.float64(error), 1.0)
    within(0.0, 0.0)
    assert 1 + error / 4 == pytest.approx(1, abs=0.5)
    assert [1, 2] == pytest.approx([1, 2])
    assert np.nan == pytest.approx(np.nan, nan_ok=True)

def test_tensors():
    for error in (3, 6):
        expected = torch.tensor([0.5, 100, 100])
        torch.testing.assert_close(torch.tensor([0.0, 100 + error, 100]), expected, rtol=0.09, atol=1)
    torch.testing.assert_close(torch.ones(3), torch.ones(3), rtol=0, atol=0)
    torch.testing.assert_close(torch.ones(0), torch.ones(0))
    torch.testing.assert_close(torch.tensor([1j]), torch.tensor([1j + 0.01]), rtol=0, atol=1)
"""


def test_the_closest_are_listed(tmp_path: Path) -> None:
    """From another process, the closest first, each line of a test once."""
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_it.py").write_text(COMPARISONS)
    command = [sys.executable, "-m", "pytest", "-p", "closeness", "-n1", "--closest", "4", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(closeness.__file__).parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    listed = re.findall(r"^(\d\.\d+)  (\S+)  (\S+)  test_it\.py::(.*) line (\d+)$", done.stdout, re.MULTILINE)
    assert listed == [
        ("0.600", "6.00e+00", "1.00e+01", "test_tensors", "18"),
        ("0.300", "3.00e-01", "1.00e+00", "test_numbers[0.3]", "9"),
        ("0.150", "7.50e-02", "5.00e-01", "test_numbers[0.3]", "11"),
        ("0.100", "1.00e-01", "1.00e+00", "test_numbers[0.1]", "9"),
    ]


def test_an_error_above_its_bound_fails() -> None:
    closeness.within(0.1, 2.0)
    for error in (2.1, float("nan")):
        with pytest.raises(AssertionError, match=r"the error is .*, allowed are 2\.00e\+00"):
            closeness.within(error, 2.0)
