"""Any discrete linear system: impulse responses and powers, what it may be made from, and what it refuses."""

import math

import numpy as np
import pytest
import torch

import plmu


def small_system(order: int = 5, inputs: int | None = None) -> plmu.LinearSystem:
    A = torch.randn(order, order, dtype=torch.float64) / (2 * order**0.5)
    return plmu.LinearSystem(A, torch.randn(order, *([] if inputs is None else [inputs]), dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 2, 3, 64, 65, 784])
@pytest.mark.parametrize("order", [1, 12, 468])
def test_the_impulse_response_is_that_of_the_recurrence(order: int, length: int) -> None:
    system = plmu.DelayNetwork(order, max(5.0, 784.0 * order / 468)).discretize()
    response = system.impulse_response(length)
    assert response.shape == (order, length)
    m, expected = system.B, []
    for _ in range(length):
        expected.append(m)
        m = system.A @ m
    torch.testing.assert_close(response, torch.stack(expected, dim=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 7, 64])
def test_the_impulse_response_of_several_inputs(length: int) -> None:
    system = small_system(5, 3)
    response = system.impulse_response(length)
    assert response.shape == (5, length, 3)
    for q in range(3):
        alone = plmu.LinearSystem(system.A, system.B[:, q]).impulse_response(length)
        torch.testing.assert_close(response[:, :, q], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_powers(count: int) -> None:
    system = small_system()
    powers = system.powers(count)
    assert powers.shape == (count, 5, 5)
    product = torch.eye(5, dtype=torch.float64)
    for exponent, power in enumerate(powers, start=1):
        product = system.A @ product
        torch.testing.assert_close(power, product, rtol=0, atol=1e-12)
        torch.testing.assert_close(system.power(exponent), product, rtol=0, atol=1e-12)


def test_lengths_of_any_whole_number_type() -> None:
    system = small_system()
    for length in (np.int64(5), np.uint8(5), torch.tensor(5)):
        assert torch.equal(system.impulse_response(length), system.impulse_response(5))


def test_what_a_system_gives_away_is_no_part_of_it() -> None:
    system = small_system()
    A, B = system.A.clone(), system.B.clone()
    for given in (system.impulse_response(1), system.powers(1), system.power(1)):
        given.zero_()
    assert torch.equal(system.A, A)
    assert torch.equal(system.B, B)


@pytest.mark.parametrize("length", [0, -3, 2.0, None, True, "5"])
def test_bad_length(length: object) -> None:
    with pytest.raises(ValueError, match="length must be an integer of at least 1, got"):
        small_system().impulse_response(length)


def test_systems_from_lists_arrays_and_other_precisions() -> None:
    A, B = [[0.5, 0.25], [0.0, 0.5]], [1.0, 2.0]
    for kind in (list, np.array, torch.tensor, lambda x: torch.tensor(x).half(), lambda x: np.array(x, "float32")):
        system = plmu.LinearSystem(kind(A), kind(B))
        assert system.A.dtype == system.B.dtype == torch.float64
        assert torch.equal(system.A, torch.tensor(A, dtype=torch.float64))
        assert torch.equal(system.B, torch.tensor(B, dtype=torch.float64))
        assert (system.order, system.inputs, system.trained) == (2, None, False)
    assert plmu.LinearSystem([[1]], [[1, 2, 3]]).inputs == 3


def test_a_system_does_not_change_with_what_it_was_made_from() -> None:
    """It is immutable, and what is cached would not follow."""
    for A, B in (
        (torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)),
        (np.array([[0.5]]), np.array([1.0])),
    ):
        system = plmu.LinearSystem(A, B)
        A[0, 0], B[0] = 0.0, 0.0
        assert system.A.item() == 0.5
        assert system.B.item() == 1.0


@pytest.mark.parametrize(
    ("A", "B", "message"),
    [
        (torch.ones(2, 3), torch.ones(2), r"A must be a square matrix \(order, order\), got shape \(2, 3\)"),
        (torch.ones(2), torch.ones(2), r"A must be a square matrix \(order, order\), got shape \(2,\)"),
        (torch.ones(0, 0), torch.ones(0), "A must be a square matrix"),
        (torch.ones(2, 2), torch.ones(3), r"B must have shape \(order,\) or .*with order 2, got \(3,\)"),
        (torch.ones(2, 2), torch.ones(1, 2), r"B must have shape .*with order 2, got \(1, 2\)"),
        (torch.ones(2, 2), torch.ones(2, 1, 1), r"B must have shape .*got \(2, 1, 1\)"),
        (torch.ones(2, 2), torch.ones(2, 0), r"B must have shape .*got \(2, 0\)"),
        (torch.ones(2, 2), torch.tensor(1.0), r"B must have shape .*got \(\)"),
        (torch.full((2, 2), math.nan), torch.ones(2), "A must be finite, got NaN or infinity"),
        (torch.ones(2, 2), torch.tensor([1.0, math.inf]), "B must be finite, got NaN or infinity"),
        (torch.ones(2, 2, dtype=torch.complex64), torch.ones(2), "A must be real, got torch.complex64"),
        (torch.ones(2, 2), torch.ones(2, dtype=torch.complex128), "B must be real, got torch.complex128"),
        ([[1.0, 2.0], [3.0]], [1.0, 1.0], "A must be a tensor or nested lists of numbers"),
        ([[1.0]], ["a"], "B must be a tensor or nested lists of numbers"),
        ([[1.0]], None, "B must be a tensor or nested lists of numbers"),
        ([[1j]], [1.0], "A must be"),
        (np.array([[1j]]), [1.0], "A must be"),
        (torch.ones(2, 2), torch.ones(2, device="meta"), "A and B must be on one device, got cpu and meta"),
    ],
)
def test_bad_systems(A: object, B: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plmu.LinearSystem(A, B)


def test_what_is_printed() -> None:
    assert repr(plmu.DelayNetwork(12, 100.0)) == "DelayNetwork(order=12, theta=100)"
    assert repr(small_system()) == "LinearSystem(order=5)"
    assert repr(small_system(5, 3)) == "LinearSystem(order=5, inputs=3)"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("gradients", [True, False], ids=["", "built without gradients"])
def test_a_system_of_parameters_follows_the_optimizer(dtype: torch.dtype, gradients: bool) -> None:
    A, B = (torch.nn.Parameter(torch.tensor(value, dtype=dtype)) for value in ([[0.5]], [1.0]))
    with torch.set_grad_enabled(gradients):
        system = plmu.LinearSystem(A, B)
    assert system.trained
    optimizer = torch.optim.SGD([A, B], lr=0.25)
    u = torch.ones(1, 3, 1)
    for _ in range(3):
        m, _ = plmu.states(u, system)
        fresh, _ = plmu.states(u, plmu.LinearSystem(A.detach(), B.detach()))
        torch.testing.assert_close(m, fresh)
        optimizer.zero_grad()
        (-m.sum()).backward()
        optimizer.step()
    assert A.item() > 1.0
