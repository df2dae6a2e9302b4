"""Methods for intermittent demand in `benchmarks.intermittent`."""

import numpy as np
import pytest

from benchmarks.intermittent import adida, croston, pinball, sba, scores, simulated


def test_a_demand_in_every_third_step() -> None:
    series = np.tile([0.0, 0.0, 6.0], 10)
    assert croston(series) == pytest.approx(2.0)
    assert sba(series) == pytest.approx(1.9)
    assert adida(series) == pytest.approx(2.0)


def test_croston_by_hand() -> None:
    """Sizes 4 and 2, intervals 2 and 3; both smoothed with 0.1."""
    assert croston(np.array([0.0, 4, 0, 0, 2])) == pytest.approx((4 + 0.1 * (2 - 4)) / (2 + 0.1 * (3 - 2)))
    assert croston(np.zeros(5)) == sba(np.zeros(5)) == adida(np.zeros(5)) == 0.0


def test_pinball() -> None:
    quantiles = np.array([[1.0], [2.0], [5.0]])
    assert pinball(np.array([3.0]), quantiles) == pytest.approx((0.1 * 2 + 0.5 * 1 + 0.1 * 2) / 3)


def test_forecasts_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of plmu have no larger absolute errors, and no quantile below 0."""
    scores("rare", simulated("rare", 30))
    lines = {line[10:22].strip(): line for line in capsys.readouterr().out.splitlines()}
    mase = {name: float(line.split("MASE ")[1].split()[0]) for name, line in lines.items()}
    assert mase["plmu"] < min(mase["Croston"], mase["SBA"], mase["ADIDA"])
    assert float(lines["plmu"].split("least ")[1]) >= 0
