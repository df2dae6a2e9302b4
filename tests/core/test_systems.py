"""The Delay Network against the mathematics it comes from, and its discretisations against scipy."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import scipy.signal
import scipy.special
import torch
from closeness import within
from reference import sine_error
from torch import Tensor
from torch.autograd import gradcheck

import plmu
from plmu.ops.recurrent import Stepper

EPS = torch.finfo(torch.float64).eps

# --- the continuous system ---


def pade(order: int, x: complex) -> complex:
    """The Padé approximant [order − 1 / order] of e^(−x), from exact coefficients."""

    def coefficient(j: int, degree: int) -> Fraction:
        total = 2 * order - 1
        return Fraction(
            math.factorial(total - j) * math.factorial(degree),
            math.factorial(total) * math.factorial(j) * math.factorial(degree - j),
        )

    numerator = sum(float(coefficient(j, order - 1)) * (-x) ** j for j in range(order))
    denominator = sum(float(coefficient(j, order)) * x**j for j in range(order + 1))
    return numerator / denominator


@pytest.mark.parametrize("theta", [0.5, 1.0, 30.0])
@pytest.mark.parametrize("order", range(1, 9))
def test_the_transfer_function_is_the_pade_approximant_of_a_delay(order: int, theta: float) -> None:
    """1ᵀ (sI − A)⁻¹ B, with s in units of 1/θ."""
    dn = plmu.DelayNetwork(order, theta)
    for x in (0.1, 1.0, 1j, 3j, 0.5 + 2j, 4 - 1j, 10j):
        matrix = x / theta * torch.eye(order, dtype=torch.complex128) - dn.A
        response = torch.linalg.solve(matrix, dn.B.to(torch.complex128)).sum().item()
        assert response == pytest.approx(pade(order, x), rel=1e-12, abs=1e-12)


def test_the_matrices_are_those_of_the_paper() -> None:
    dn = plmu.DelayNetwork(7, 3.0)
    assert dn.A.dtype == dn.B.dtype == torch.float64
    for i in range(7):
        assert dn.B[i].item() == pytest.approx((2 * i + 1) * (-1) ** i / 3, rel=1e-15)
        for j in range(7):
            expected = (2 * i + 1) / 3 * (-1 if i < j else (-1) ** (i - j + 1))
            assert dn.A[i, j].item() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("order", [1, 2, 3, 12, 100])
def test_decoders_are_shifted_legendre_polynomials(order: int) -> None:
    delays = np.linspace(0, 40.0, 57)
    decoders = plmu.DelayNetwork(order, 40.0).decoder(delays.tolist())
    assert decoders.shape == (57, order)
    expected = scipy.special.eval_sh_legendre(np.arange(order), delays[:, None] / 40.0)
    torch.testing.assert_close(decoders, torch.from_numpy(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 13, 512])
def test_decoders_at_the_ends_of_the_window(order: int) -> None:
    newest, oldest = plmu.DelayNetwork(order, 7.0).decoder([0.0, 7.0])
    assert torch.equal(newest, torch.tensor([(-1.0) ** i for i in range(order)], dtype=torch.float64))
    assert torch.equal(oldest, torch.ones(order, dtype=torch.float64))


def test_decoders_are_orthogonal() -> None:
    """∫ C_i C_j over the window is θ / (2i + 1) for i = j, else 0: exact by Gauss quadrature."""
    order, theta = 60, 9.0
    nodes, weights = np.polynomial.legendre.leggauss(order)
    decoders = plmu.DelayNetwork(order, theta).decoder(torch.from_numpy((nodes + 1) / 2 * theta))
    products = decoders.T @ (torch.from_numpy(weights)[:, None] * theta / 2 * decoders)
    expected = torch.diag(theta / (2 * torch.arange(order, dtype=torch.float64) + 1))
    torch.testing.assert_close(products, expected, rtol=0, atol=1e-12)


def test_decoders_of_a_high_order_stay_bounded() -> None:
    decoders = plmu.DelayNetwork(512, 1000.0).decoder(torch.linspace(0, 1000.0, 997))
    within(decoders.abs().max() - 1, 1e-12)


def test_one_delay_gives_one_decoder() -> None:
    dn = plmu.DelayNetwork(5, 10.0)
    assert dn.decoder(2.5).shape == (5,)
    assert torch.equal(dn.decoder(2.5), dn.decoder([2.5])[0])
    assert torch.equal(dn.decoder(2.5), dn.decoder(torch.tensor(2.5)))


@pytest.mark.parametrize("delays", [-0.1, 10.1, [0.0, 11.0], math.nan, math.inf])
def test_delays_outside_the_window(delays: object) -> None:
    with pytest.raises(ValueError, match=r"delays must lie between 0 and theta = 10, got (-0\.1|10\.1|11|nan|inf)"):
        plmu.DelayNetwork(5, 10.0).decoder(delays)


def test_delays_of_the_wrong_shape() -> None:
    with pytest.raises(ValueError, match="delays must be a number or a list"):
        plmu.DelayNetwork(5, 10.0).decoder([[1.0], [2.0]])


@pytest.mark.parametrize("delays", ["a", ["a"], None, [None], [[1.0], [2.0, 3.0]], {}], ids=repr)
def test_delays_that_are_no_numbers(delays: object) -> None:
    with pytest.raises(TypeError, match=re.escape(f"delays must be a number or a list of numbers, got {delays!r}")):
        plmu.DelayNetwork(5, 10.0).decoder(delays)


def test_decoders_where_values_cannot_be_looked_at() -> None:
    thetas = torch.tensor([7.0, 10.0], dtype=torch.float64)
    found = torch.func.vmap(lambda theta: plmu.DelayNetwork(5, theta).decoder([0.0, 6.0]))(thetas)
    assert torch.equal(found, torch.stack([plmu.DelayNetwork(5, theta).decoder([0.0, 6.0]) for theta in thetas]))
    there = plmu.DelayNetwork(5, torch.tensor(7.0, device="meta"))
    assert there.decoder([0.0, 6.0]).shape == there.discretize().impulse_response(2).mT.shape == (2, 5)
    assert repr(there) == "DelayNetwork(order=5, theta=unknown)"


# --- discretisation ---


@pytest.mark.parametrize(
    ("method", "order", "theta", "dt"),
    [
        *[(method, 1, 5.0, 1.0) for method in ("zoh", "bilinear", "euler")],
        *[(method, 6, 3.0, 0.01) for method in ("zoh", "bilinear", "euler")],
        *[(method, 12, 100.0, 0.5) for method in ("zoh", "bilinear", "euler")],
        *[(method, 40, 5000.0, 1.0) for method in ("zoh", "bilinear", "euler")],
        *[("zoh", 12, theta, 1.0) for theta in (5e2, 5e3, 5e4)],
        *[("zoh", *sizes, 1.0) for sizes in ((15, 15.0), (64, 1.0), (256, 500.0), (468, 784.0))],
    ],
)
def test_discretisation_equals_scipy(method: str, order: int, theta: float, dt: float) -> None:
    """Both sides round: 2 · 2^s · √order · eps, relative to the result. The exponential is made by s squarings, each of
    which doubles what was rounded before, until 2^s exceeds ‖A dt‖: at most 2 (1 + ‖A dt‖) in all. The bilinear form is
    a solution whose condition is less than that. Each number sums `order` products, whose roundings add by chance."""
    dn = plmu.DelayNetwork(order, theta)
    system = dn.discretize(dt, method)
    A, B = dn.A.numpy(), dn.B[:, None].numpy()
    discrete_A, discrete_B, *_ = scipy.signal.cont2discrete((A, B, A[:1], B[:1]), dt, method=method)
    tolerance = 2 * 2 * (1 + np.abs(A * dt).sum(0).max()) * math.sqrt(order) * EPS
    within(np.linalg.norm(system.A.numpy() - discrete_A), tolerance * np.linalg.norm(discrete_A))
    within(np.linalg.norm(system.B.numpy() - discrete_B[:, 0]), tolerance * np.linalg.norm(discrete_B))


@pytest.mark.parametrize("theta", [0.5, 5.0, 20.0, 30.0, 50.0, 100.0, 500.0, 1e3, 1e4, 1e5])
def test_zero_order_hold_of_order_one_is_known(theta: float) -> None:
    """Ā = e^(−1/θ) and B̄ = 1 − e^(−1/θ), at every size of the exponent (matrix_exp has a method for each)."""
    system = plmu.DelayNetwork(1, theta).discretize()
    assert system.A.item() == pytest.approx(math.exp(-1 / theta), rel=4 * EPS, abs=0)
    assert system.B.item() == pytest.approx(-math.expm1(-1 / theta), rel=4 * EPS, abs=0)


def test_the_gradient_of_theta_is_known_for_order_one() -> None:
    for value in (2.0, 30.0, 300.0):
        theta = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        plmu.DelayNetwork(1, theta).discretize().A.sum().backward()
        assert theta.grad.item() == pytest.approx(math.exp(-1 / value) / value**2, rel=16 * EPS, abs=0)


def test_dt_and_theta_matter_by_their_ratio_alone() -> None:
    slow, fast = plmu.DelayNetwork(9, 100.0).discretize(4.0), plmu.DelayNetwork(9, 25.0).discretize()
    torch.testing.assert_close(slow.A, fast.A, rtol=0, atol=1e-14)
    torch.testing.assert_close(slow.B, fast.B, rtol=0, atol=1e-14)


def test_euler_is_refused_where_it_diverges() -> None:
    with pytest.raises(
        ValueError, match="method='euler' is unstable for order 40, theta 50 and dt 1: use method='zoh'"
    ):
        plmu.DelayNetwork(40, 50.0).discretize(method="euler")
    with pytest.raises(ValueError, match="unstable"):
        plmu.DelayNetwork(468, 784.0).discretize(method="euler")
    stable = plmu.DelayNetwork(40, 50.0).discretize(0.01, method="euler")
    assert torch.linalg.eigvals(stable.A).abs().max() < 1


@pytest.mark.parametrize("theta", [1.0, 10.0, 100.0, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("order", [1, 2, 12, 64, 256, 512])
def test_zero_order_hold_is_stable(order: int, theta: float) -> None:
    """ρ = e^(−1/θ) at order 1 and less at every other order. Powers decay too, which rounding cannot feign."""
    A = plmu.DelayNetwork(order, theta).discretize().A
    within(torch.linalg.eigvals(A).abs().max() - math.exp(-1 / theta), 1e-14)
    within(torch.linalg.matrix_norm(torch.linalg.matrix_power(A, 32 * math.ceil(theta))), 1e-9)


@pytest.mark.parametrize("order", [0, -1, 2.5, "3", True, None, torch.tensor(2.5)])
def test_bad_order(order: object) -> None:
    with pytest.raises(ValueError, match="order must be an integer of at least 1, got"):
        plmu.DelayNetwork(order, 10.0)


@pytest.mark.parametrize(
    "theta", [0, -1.0, math.nan, math.inf, None, "10", True, torch.tensor(-1.0), torch.tensor(math.nan)]
)
def test_bad_theta(theta: object) -> None:
    with pytest.raises(ValueError, match="theta must be a positive finite number, got"):
        plmu.DelayNetwork(3, theta)


@pytest.mark.parametrize("theta", [torch.ones(2), torch.ones(2, 1), torch.ones(0)])
def test_several_thetas(theta: Tensor) -> None:
    with pytest.raises(ValueError, match="theta must be one number"):
        plmu.DelayNetwork(3, theta)


def test_complex_theta() -> None:
    with pytest.raises(ValueError, match="theta must be"):
        plmu.DelayNetwork(3, torch.tensor(1 + 1j))


@pytest.mark.parametrize("dt", [0, -1.0, math.nan, math.inf, None, "1"])
def test_bad_dt(dt: object) -> None:
    with pytest.raises(ValueError, match="dt must be a positive finite number, got"):
        plmu.DelayNetwork(3, 10.0).discretize(dt)


def test_unknown_method() -> None:
    with pytest.raises(ValueError, match="method must be one of zoh, bilinear, euler, got 'tustin'"):
        plmu.DelayNetwork(3, 10.0).discretize(method="tustin")


@pytest.mark.parametrize("order", [np.int64(6), np.uint8(6), torch.tensor(6)])
@pytest.mark.parametrize("theta", [np.float32(10), np.float64(10), np.int32(10), 10, torch.tensor([10.0])])
def test_numbers_of_numpy_and_torch(order: object, theta: object) -> None:
    dn, plain = plmu.DelayNetwork(order, theta), plmu.DelayNetwork(6, 10.0)
    assert type(dn.order) is int
    assert torch.equal(dn.A, plain.A)
    assert torch.equal(dn.discretize(np.float64(0.5)).A, plain.discretize(0.5).A)


# --- gradients of θ ---


@pytest.mark.parametrize("method", ["zoh", "bilinear", "euler"])
def test_differentiable_in_theta(method: str) -> None:
    def matrices(theta: Tensor) -> tuple[Tensor, ...]:
        dn = plmu.DelayNetwork(4, theta)
        system = dn.discretize(0.2, method)
        return (
            *(dn.A, dn.B, dn.decoder([0.0, 3.0])),
            *(system.A, system.B, system.impulse_response(7), system.powers(5), system.power(6)),
        )

    assert gradcheck(matrices, torch.tensor(5.0, dtype=torch.float64, requires_grad=True))


def test_a_float32_theta_gets_a_float32_gradient() -> None:
    theta = torch.tensor(5.0, requires_grad=True)
    plmu.DelayNetwork(4, theta).discretize().A.sum().backward()
    assert theta.grad.dtype == torch.float32
    assert theta.grad != 0


# --- what a Delay Network is for ---


@pytest.mark.parametrize(("share", "error"), [(0.25, 0.0013), (0.5, 0.0023), (0.75, 0.0003), (1.0, 0.0014)])
def test_a_band_limited_signal_is_held(share: float, error: float) -> None:
    """m_t contains u_t, held over its step, so decoding at θ' gives u(t − θ' + ½), as well as the order allows."""
    theta, frequency = 100.0, 2 / 100
    dn = plmu.DelayNetwork(12, theta)
    t = torch.arange(1500, dtype=torch.float64)
    m, _ = plmu.states(torch.sin(2 * math.pi * frequency * t)[None, :, None], dn.discretize())
    decoded = m[0, :, :, 0] @ dn.decoder(share * theta)
    expected = torch.sin(2 * math.pi * frequency * (t - share * theta + 0.5))
    after = slice(500, None)
    exact, left = sine_error(dn, frequency, share * theta, 500)
    assert round(exact, 4) == error
    assert ((decoded - expected)[after].norm() / expected[after].norm()).item() == pytest.approx(exact, abs=left)
    plain = torch.sin(2 * math.pi * frequency * (t - share * theta))  # without the half step it is 0.04 off
    assert (decoded - plain)[after].norm() / plain[after].norm() > 0.03


def test_a_delay_of_100_000_steps_is_held() -> None:
    theta, time = 100_000, 600_000
    dn = plmu.DelayNetwork(12, theta)
    t = torch.arange(time, dtype=torch.float64)
    u = torch.sin(2 * math.pi * 2 / theta * t)[None, :, None].float()
    oldest = dn.decoder(theta).float()[None, :, None]
    o, last = plmu.project(u, dn.discretize(), oldest, algorithm="chunked")
    expected = torch.sin(2 * math.pi * 2 / theta * (t - theta + 0.5))
    after = slice(500_000, None)
    exact, left = sine_error(dn, 2 / theta, theta, 500_000)
    rounding = 4 * torch.finfo(torch.float32).eps * math.sqrt(theta)  # of those that the window still holds
    found = ((o[0, after, 0] - expected[after]).norm() / expected[after].norm()).item()
    assert found == pytest.approx(exact, abs=left + rounding)
    assert last.dtype == torch.float32


def test_a_million_steps_do_not_drift() -> None:
    """A float32 stream against all steps at once. Its error does not double from the first tenth to the last, and it is
    rounding: 4 eps for each of the roundings whose effect the window still holds, √θ of them by chance. At once a state
    is a sum over some θ inputs, whose partial sums round by at most eps / 2, √θ of them by chance."""
    order, theta, time, every = 12, 1000.0, 1_000_000, 1000
    system = plmu.DelayNetwork(order, theta).discretize()
    u = torch.randn(1, time, 1) + 1
    exact = plmu.states(u.double(), system, algorithm="chunked")[0][0, every - 1 :: every, :, 0]
    at_once = plmu.states(u, system, algorithm="chunked")[0][0, every - 1 :: every, :, 0]
    step, state, streamed = Stepper(system, torch.float32, u.device), torch.zeros(1, order, 1), []
    with torch.inference_mode():
        for t, sample in enumerate(u[0].unbind()):
            state = step(sample.reshape(1, 1, 1), state)
            if t % every == every - 1:
                streamed.append(state[0, :, 0])
    error = (torch.stack(streamed).double() - exact).norm(dim=1) / exact.norm(dim=1)
    assert len(error) == 1000
    within(error[-100:].max() - error[:100].max(), error[:100].max())
    eps = torch.finfo(torch.float32).eps
    within(error.max(), 4 * eps * math.sqrt(theta))
    within((at_once.double() - exact).norm() / exact.norm(), eps / 2 * math.sqrt(theta))
    assert torch.equal(state, torch.stack(streamed)[-1][None, :, None])
    at_the_end = plmu.final_state(u, system)[0, :, 0].double()
    within((at_the_end - exact[-1]).norm() / exact[-1].norm(), eps / 2 * math.sqrt(theta))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_delay_network_of_a_trained_theta_follows_the_optimizer(dtype: torch.dtype) -> None:
    theta = torch.nn.Parameter(torch.tensor(5.0, dtype=dtype))
    dn = plmu.DelayNetwork(3, theta)
    optimizer = torch.optim.SGD([theta], lr=0.5)
    for _ in range(3):
        now = plmu.DelayNetwork(3, theta.item())
        assert torch.equal(dn.theta, now.theta)
        torch.testing.assert_close(dn.discretize().A, now.discretize().A, rtol=1e-12, atol=0)
        optimizer.zero_grad()
        dn.discretize().A.sum().backward()
        optimizer.step()
    assert theta.item() != 5.0
