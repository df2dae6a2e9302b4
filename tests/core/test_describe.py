"""What `describe` says about an order and a window, against what is known and what the states themselves show."""

import math

import pytest
import torch
from closeness import within

import plmu
from plmu.core.describe import Description, reconstruction_error

WINDOWS = 14  # after which e^−14 is left of the start, or less: order 1 forgets most slowly


def measured_error(order: int, theta: float, cycles: float, dt: float = 1.0) -> float:
    """Relative error with which samples of a sine in the window are decoded from states that have run some windows: the
    one of k steps ago at the middle of its step, θ' = (k + ½) dt, for the 33 values of k that `describe` takes."""
    dn = plmu.DelayNetwork(order, theta)
    window = round(theta / dt)
    u = torch.sin(2 * math.pi * cycles / window * torch.arange((WINDOWS + 2) * window, dtype=torch.float64))
    m, _ = plmu.states(u[None, :, None], dn.discretize(dt))
    ago = torch.linspace(0, window - 0.5, 33, dtype=torch.float64).long().unique()
    decoded = m[0, -2 * window :, :, 0] @ dn.decoder((ago + 0.5) * dt).T  # (two windows, delays)
    expected = u[(torch.arange(WINDOWS * window, (WINDOWS + 2) * window)[:, None] - ago)]
    return ((decoded - expected).norm() / expected.norm()).item()


def test_the_known_figures_of_order_12() -> None:
    found = plmu.DelayNetwork(12, 100.0).describe()
    within(found.error_at[2.0], 0.005)
    assert found.error_at[4.0] > 0.2
    assert 2 < found.cycles_per_window < 4
    assert found.bandwidth == pytest.approx(found.cycles_per_window / 100)
    assert found.nyquist == 0.5


@pytest.mark.parametrize(
    ("order", "theta", "cycles", "dt"),
    [(12, 100.0, 1.0, 1.0), (12, 100.0, 2.0, 1.0), (12, 100.0, 4.0, 1.0), (6, 20.0, 1.0, 0.5), (1, 50.0, 0.5, 1.0)],
)
def test_the_error_is_that_of_the_states(order: int, theta: float, cycles: float, dt: float) -> None:
    dn = plmu.DelayNetwork(order, theta)
    predicted = reconstruction_error(dn, dn.discretize(dt), cycles / theta, dt)
    assert predicted == pytest.approx(measured_error(order, theta, cycles, dt), rel=math.exp(-WINDOWS))


def test_the_bandwidth_is_where_the_error_reaches_the_tolerance() -> None:
    for tolerance in (0.01, 0.05, 0.2):
        dn = plmu.DelayNetwork(9, 60.0)
        found = dn.describe(tolerance=tolerance)
        system = dn.discretize()
        assert reconstruction_error(dn, system, found.bandwidth, 1.0) == pytest.approx(tolerance, rel=0.05)
        for share in (0.2, 0.5, 0.8):
            within(reconstruction_error(dn, system, share * found.bandwidth, 1.0), tolerance)


def test_bandwidth_grows_with_order_and_shrinks_with_the_window() -> None:
    by_order = [plmu.DelayNetwork(order, 200.0).describe().cycles_per_window for order in (2, 4, 8, 16, 32)]
    assert by_order == sorted(by_order)
    assert by_order[-1] > 4 * by_order[0] > 0
    by_theta = [plmu.DelayNetwork(8, theta).describe().bandwidth for theta in (50.0, 100.0, 200.0)]
    assert by_theta == sorted(by_theta, reverse=True)


def test_another_sampling_interval_is_another_number_of_samples() -> None:
    """θ and dt in other units: the same window, the same cycles, frequencies in the other unit."""
    samples, seconds = plmu.DelayNetwork(8, 400.0).describe(), plmu.DelayNetwork(8, 4.0).describe(dt=0.01)
    assert seconds.cycles_per_window == pytest.approx(samples.cycles_per_window, rel=1e-6)
    assert seconds.bandwidth == pytest.approx(100 * samples.bandwidth, rel=1e-6)
    assert seconds.nyquist == pytest.approx(50)
    assert seconds.leakage == pytest.approx(samples.leakage, rel=1e-6)


@pytest.mark.parametrize("order", [1, 4, 12])
def test_what_is_left_beyond_the_window(order: int) -> None:
    dn = plmu.DelayNetwork(order, 100.0)
    sizes = dn.discretize().impulse_response(1500).norm(dim=0)
    assert dn.describe().leakage == pytest.approx((sizes[100:].sum() / sizes.sum()).item(), rel=0.02)


def test_less_is_left_the_higher_the_order() -> None:
    left = [plmu.DelayNetwork(order, 100.0).describe().leakage for order in (1, 4, 12)]
    assert left[0] == pytest.approx(math.exp(-1), rel=0.01)
    assert left == sorted(left, reverse=True)


def test_costs() -> None:
    found = plmu.DelayNetwork(12, 100.0).describe(channels=3)
    assert found.state_numbers == 12 * 3
    assert found.state_bytes == 4 * 12 * 3
    assert found.multiplications_per_step == 3 * (12 * 12 + 12)
    assert (found.order, found.theta, found.dt, found.channels, found.tolerance) == (12, 100.0, 1.0, 3, 0.05)


def test_what_is_printed() -> None:
    text = str(plmu.DelayNetwork(12, 100.0).describe(0.5))
    assert text.startswith("Delay Network of order 12 over 100 time units (200 samples)")
    for part in (
        "holds to 5 %",
        "cycles per window",
        "beyond the window",
        "48 bytes in float32",
        "156 multiplications",
    ):
        assert part in text
    assert "all that this sampling rate can carry" not in text


@pytest.mark.parametrize(
    ("order", "theta", "cycles"),
    [
        (12, 100.0, [0.5, 1, 2, 4]),
        (64, 400.0, [4, 8, 16, 32]),
        (2, 100.0, [0.5]),
        (256, 1000.0, [16, 32, 64, 128]),
        (3, 1.0, [0.5]),
        (3, 0.5, [0.25]),
    ],
)
def test_errors_are_shown_around_the_bandwidth(order: int, theta: float, cycles: list[float]) -> None:
    """The last four numbers of cycles per window up to twice the bandwidth, none beyond the sampling rate."""
    dn = plmu.DelayNetwork(order, theta)
    found = dn.describe()
    assert list(found.error_at) == cycles
    for each, error in found.error_at.items():
        assert error == reconstruction_error(dn, dn.discretize(), each / theta, 1.0)


def test_percentages_that_are_printed() -> None:
    text = str(Description(2, 8.0, 0.5, 1, 0.25, 1.234, 0.5678, 1.0, {0.5: 0.0123, 2.0: 0.1}, 0.0456, 2, 8, 6))
    assert text.splitlines() == [
        "Delay Network of order 2 over 8 time units (16 samples)",
        "  holds to 25 %      1.23 cycles per window = 0.5678 cycles per time unit",
        "  error              1.2 % at 0.5, 10 % at 2 cycles per window",
        "  beyond the window  4.6 % of the impulse response is left after θ",
        "  state              2 numbers, 8 bytes in float32",
        "  cost per step      6 multiplications",
    ]


def test_an_order_that_holds_all_that_is_sampled_says_so() -> None:
    found = plmu.DelayNetwork(64, 8.0).describe(tolerance=0.9)
    assert found.bandwidth == found.nyquist
    assert "all that this sampling rate can carry" in str(found)


def test_a_trained_theta_can_be_described() -> None:
    theta = torch.tensor(100.0, requires_grad=True)
    found = plmu.DelayNetwork(12, theta).describe()
    assert isinstance(found, Description)
    assert found.bandwidth == plmu.DelayNetwork(12, 100.0).describe().bandwidth


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dt": 0.0}, "dt must be a positive finite number, got 0.0"),
        ({"dt": math.nan}, "dt must be a positive finite number, got nan"),
        ({"channels": 0}, "channels must be an integer of at least 1, got 0"),
        ({"channels": 1.5}, "channels must be an integer of at least 1, got 1.5"),
        ({"tolerance": 0.0}, "tolerance must lie between 0 and 1, got 0.0"),
        ({"tolerance": 1.0}, "tolerance must lie between 0 and 1, got 1.0"),
        ({"tolerance": math.nan}, "tolerance must lie between 0 and 1, got nan"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plmu.DelayNetwork(12, 100.0).describe(**arguments)
