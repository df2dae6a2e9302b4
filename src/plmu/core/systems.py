"""Linear systems as data: the Delay Network of the paper's section 3.1 and any other discrete linear system.

Equations 8 to 11 (A, B, C, D), 13 and 14 (the decoders C(θ')) and the zero-order hold of the footnote to
equation 16 are here. Everything is float64 and differentiable in θ, A and B; `plmu.ops` casts it once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from plmu.core.derived import Constants, Derived, constants_of
from plmu.core.describe import Description, describe
from plmu.core.modes import values_unknown

DISCRETIZATIONS = ("zoh", "bilinear", "euler")


class DelayNetwork:
    """The continuous system dm/dt = A m + B u that holds a sliding window of θ time units (equations 8 and 9).

    >>> dn = DelayNetwork(order=12, theta=100.0)
    >>> dn.A.shape, dn.B.shape
    (torch.Size([12, 12]), torch.Size([12]))

    Args:
        order: number of Legendre coefficients in the state.
        theta: the window θ, in the time unit that `dt` has later. A tensor of one element that requires a gradient is
            kept, and everything derived from it carries its gradient.

    Raises:
        ValueError: `order` is below 1, or `theta` is not a positive finite number.
    """

    def __init__(self, order: int, theta: float | Tensor) -> None:
        self.order = _at_least_1(order, "order")
        checked = _checked_theta(theta)
        # As in LinearSystem: a trained θ is cast at each use, so that it follows the optimizer.
        self._theta = theta if isinstance(theta, Tensor) and theta.requires_grad else checked.clone()

    @property
    def theta(self) -> Tensor:
        """θ as it is now: a float64 tensor of one number."""
        return _as_float64(self._theta, "theta").reshape(())

    @property
    def A(self) -> Tensor:
        """Equation 8: (order, order), float64."""
        index = self._index()
        row, column = index[:, None], index[None, :]
        alternating = 1 - 2 * ((row - column + 1) % 2)  # (-1)^(i-j+1)
        return self._scale()[:, None] * torch.where(row >= column, alternating, -torch.ones_like(alternating))

    @property
    def B(self) -> Tensor:
        """Equation 9: (order,), float64."""
        return self._scale() * (1 - 2 * (self._index() % 2))

    def _index(self) -> Tensor:
        return torch.arange(self.order, dtype=torch.float64, device=self._theta.device)

    def _scale(self) -> Tensor:
        return (2 * self._index() + 1) / self.theta

    def decoder(self, delays: float | Sequence[float] | Tensor) -> Tensor:
        """The weights C(θ') that read the input of θ' ago from a state (equations 13 and 14).

        C_i(θ') is the shifted Legendre polynomial P_i(2θ'/θ − 1), built by its three-term recurrence, which
        stays accurate where the printed sum of binomials (equation 14) loses all digits.

        Args:
            delays: one delay θ' or several, each between 0 and θ.

        Returns:
            (delays, order) in float64, or (order,) for a single number.

        Raises:
            ValueError: a delay lies outside the window.
        """
        try:
            values = torch.as_tensor(delays, dtype=torch.float64, device=self.theta.device)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"delays must be a number or a list of numbers, got {delays!r}") from None
        if values.dim() > 1:
            raise ValueError(f"delays must be a number or a list of numbers, got {values.dim()} dimensions")
        if not values_unknown(values) and not values_unknown(self.theta):
            theta = self.theta.item()
            slack = 1e-6 * theta  # a delay that was float32 may round past the end
            outside = ~((values.detach() >= -slack) & (values.detach() <= theta + slack))
            if bool(outside.any()):
                bad = values.detach().reshape(-1)[outside.reshape(-1)][0].item()
                raise ValueError(f"delays must lie between 0 and theta = {theta:g}, got {bad:g}")
        x = (2 * values / self.theta - 1).clamp(-1, 1)
        polynomials = [torch.ones_like(x), x]
        for i in range(1, self.order - 1):
            polynomials.append(((2 * i + 1) * x * polynomials[i] - i * polynomials[i - 1]) / (i + 1))
        return torch.stack(polynomials[: self.order], dim=-1)

    def discretize(self, dt: float = 1.0, method: str = "zoh") -> LinearSystem:
        """The discrete system, which maps one sample after another.

        Args:
            dt: the time between samples, in the unit of θ.
            method: "zoh" (zero-order hold, exact for an input that is constant over each step), "bilinear" or "euler".

        Returns:
            Ā (order, order) and B̄ (order,) as a `LinearSystem`.

        Raises:
            ValueError: `dt` or `method` is wrong, or the result is unstable, as Euler's is unless `dt` is far below
                θ / order².
        """
        if not (isinstance(dt, Real) and math.isfinite(dt) and dt > 0):
            raise ValueError(f"dt must be a positive finite number, got {dt!r}")
        if method not in DISCRETIZATIONS:
            raise ValueError(f"method must be one of {', '.join(DISCRETIZATIONS)}, got {method!r}")
        A, B = self.A, self.B
        identity = torch.eye(self.order, dtype=torch.float64, device=A.device)
        if method == "zoh":
            # exp of [[A, B], [0, 0]] holds Ā and B̄ side by side, without inverting A. A last row and column with a
            # −1 of their own keep the norm at 1 or above: below, torch takes a shorter series, off by 3e-11.
            order = self.order
            rows = torch.cat([A, B[:, None], torch.zeros_like(B[:, None])], dim=1) * dt
            unit = torch.zeros_like(rows[:1])
            last = torch.cat([unit[:, :-1], unit[:, -1:] - 1], dim=1)
            both = torch.linalg.matrix_exp(torch.cat([rows, unit, last], dim=0))
            discrete_A, discrete_B = both[:order, :order], both[:order, order]
        elif method == "bilinear":
            half = A * (dt / 2)
            discrete_A = torch.linalg.solve(identity - half, identity + half)
            discrete_B = torch.linalg.solve(identity - half, B * dt)
        else:
            discrete_A, discrete_B = identity + A * dt, B * dt
        # Zero-order hold of a stable A is stable, and a layer with a trained θ calls it at every training step.
        if method != "zoh" and not values_unknown(discrete_A) and not is_stable(discrete_A.detach()):
            raise ValueError(
                f"method={method!r} is unstable for order {self.order}, theta {self.theta.item():g} and dt {dt:g}:"
                f" use method='zoh', which is exact for a held input, or a smaller dt"
            )
        return LinearSystem(discrete_A, discrete_B)

    def describe(self, dt: float = 1.0, *, channels: int = 1, tolerance: float = 0.05) -> Description:
        """What this order and θ can hold, and what they cost per step. `print` the result.

        Args:
            dt: the time between samples, in the unit of θ.
            channels: number of channels with a memory each; for the size of the state and the cost.
            tolerance: the relative error up to which a sine counts as held.

        Returns:
            The bandwidth, errors by frequency, the size of the state and the cost, as a `Description`.
        """
        return describe(self, dt=dt, channels=channels, tolerance=tolerance)

    def __repr__(self) -> str:
        theta = "unknown" if values_unknown(self.theta) else f"{self.theta.item():g}"
        return f"DelayNetwork(order={self.order}, theta={theta})"


class LinearSystem(Derived):
    """A discrete linear system m_t = Ā m_{t-1} + B̄ u_t (equation 19) with any finite Ā and B̄, stable or not.

    It is immutable. What algorithms derive from it (impulse responses, powers, block matrices) is cached for all
    systems with these values, unless A or B is being trained; `plmu.set_cache_limit` bounds that cache.

    >>> average = LinearSystem([[0.9]], [0.1])

    Args:
        A: Ā (order, order), a tensor or nested lists. A tensor that requires a gradient is kept and trained.
        B: B̄. With shape (order,) each input channel drives its own copy of the system. With shape (order, inputs) the
            input has exactly `inputs` channels, which together drive one system.

    Raises:
        ValueError: shapes do not fit, or a value is not finite.
    """

    def __init__(self, A: Tensor | Sequence[Sequence[float]], B: Tensor | Sequence[Any]) -> None:
        # A trained tensor is kept as it is and cast at each use: a copy would not follow the optimizer.
        self._A, self._B = _copied(A, "A"), _copied(B, "B")
        A, B = self.A, self.B
        if A.dim() != 2 or A.shape[0] != A.shape[1] or A.shape[0] < 1:
            raise ValueError(f"A must be a square matrix (order, order), got shape {tuple(A.shape)}")
        if B.dim() not in (1, 2) or B.shape[0] != A.shape[0] or B.shape[-1] < 1:
            raise ValueError(
                f"B must have shape (order,) or (order, inputs) with order {A.shape[0]}, got {tuple(B.shape)}"
            )
        if A.device != B.device:
            raise ValueError(f"A and B must be on one device, got {A.device} and {B.device}")
        # While tracing, torch.jit.trace makes a tensor of each size.
        self.order: int = operator.index(A.shape[0])
        self.inputs: int | None = operator.index(B.shape[1]) if B.dim() == 2 else None
        unknown = values_unknown(A) or values_unknown(B)
        if not unknown:
            for name, value in (("A", A), ("B", B)):
                if not bool(torch.isfinite(value.detach()).all()):
                    raise ValueError(f"{name} must be finite, got NaN or infinity in it")
        self.near_identity: bool = not unknown and _nearer_to_identity(A.detach())
        self.trained: bool = self._A.requires_grad or self._B.requires_grad
        self._cache: Constants | None = None if unknown or self.trained else constants_of(A, B)
        self.constant: bool = self._cache is not None  # whether its values are known and stay
        # Made here, since torch.export or a transform may be at work when it is needed.
        self._direct = self._driven_directly() if self.constant and (self.inputs or 0) > self.order else None

    @property
    def A(self) -> Tensor:
        """Ā (order, order), float64."""
        return _as_float64(self._A, "A")

    @property
    def B(self) -> Tensor:
        """B̄ (order,) or (order, inputs), float64."""
        return _as_float64(self._B, "B")

    def impulse_response(self, length: int) -> Tensor:
        """The impulse response H, with H[:, k] = Ā^k B̄.

        Built by doubling, H ← [H, Ā^k H]: exact to 1e-13 and O(order² · length).

        Args:
            length: number of steps.

        Returns:
            (order, length) in float64, or (order, length, inputs) for a system with several inputs.
        """
        length = _at_least_1(length, "length")
        response = self.B.reshape(self.order, 1, -1).clone()  # (order, time, inputs)
        power = self.A
        while response.shape[1] < length:
            size = response.shape[1]
            later = (power @ response.reshape(self.order, -1)).reshape(self.order, size, -1)
            response = torch.cat([response, later], dim=1)
            if response.shape[1] < length:
                power = power @ power
        response = response[:, :length]
        return response if self.inputs is not None else response.squeeze(2)

    def powers(self, count: int) -> Tensor:
        """Ā¹ … Ā^count.

        Args:
            count: number of powers.

        Returns:
            (count, order, order) in float64.
        """
        stack = self.A[None].clone()
        while stack.shape[0] < count:
            stack = torch.cat([stack, stack @ stack[-1]], dim=0)
        return stack[:count]

    def power(self, exponent: int) -> Tensor:
        """Ā^exponent by repeated squaring.

        Args:
            exponent: at least 0.

        Returns:
            (order, order) in float64.
        """
        result: Tensor = torch.linalg.matrix_power(self.A, exponent)
        return result

    def driven_directly(self) -> LinearSystem:
        """The system with the same Ā and B̄ = I, which takes B̄ u for its input."""
        return self._direct or self._driven_directly()

    def _driven_directly(self) -> LinearSystem:
        return LinearSystem(self.A, torch.eye(self.order, dtype=torch.float64, device=self.A.device))

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearSystem:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"A": self.A.detach(), "B": self.B.detach()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["A"], state["B"])  # type: ignore[misc]

    def __repr__(self) -> str:
        inputs = "" if self.inputs is None else f", inputs={self.inputs}"
        return f"LinearSystem(order={self.order}{inputs})"


def _copied(value: Any, name: str) -> Tensor:
    """A copy in float64, since the caller may still write into the original; a trained tensor itself."""
    tensor = _as_float64(value, name)
    return value if isinstance(value, Tensor) and value.requires_grad else tensor.clone()


def _as_float64(value: Any, name: str) -> Tensor:
    try:
        # On the CPU whatever the default device is: that may be one without float64, or "meta".
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
        if not isinstance(value, Tensor) and not tensor.is_complex():
            tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a tensor or nested lists of numbers: {error}") from None
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.to(torch.float64)


def _at_least_1(value: int, name: str) -> int:
    try:
        whole = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = 0
    if whole < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return whole


def _checked_theta(theta: float | Tensor) -> Tensor:
    number = isinstance(theta, Real) and not isinstance(theta, bool)
    if not isinstance(theta, Tensor) and not (number and math.isfinite(theta) and theta > 0):
        raise ValueError(f"theta must be a positive finite number, got {theta!r}")
    tensor = _as_float64(theta, "theta")
    if tensor.numel() != 1:
        raise ValueError(f"theta must be one number, got a tensor of shape {tuple(tensor.shape)}")
    tensor = tensor.reshape(())
    if not values_unknown(tensor) and not (math.isfinite(tensor.item()) and tensor.item() > 0):
        raise ValueError(f"theta must be a positive finite number, got {tensor.item()!r}")
    return tensor


def _nearer_to_identity(matrix: Tensor) -> bool:
    """Whether ‖matrix − I‖ < ‖matrix‖: then matrix − I loses less in rounding than the matrix itself."""
    identity = torch.eye(matrix.shape[0], dtype=matrix.dtype, device=matrix.device)
    return bool(torch.linalg.matrix_norm(matrix - identity) < torch.linalg.matrix_norm(matrix))


def is_stable(matrix: Tensor) -> bool:
    """Whether `matrix` is stable: its powers go to zero. Judged by squaring it until they vanish or have clearly grown.

    Unlike eigenvalues this is well conditioned for the strongly non-normal matrices of a Delay Network.
    """
    for _ in range(48):
        norm = float(torch.linalg.matrix_norm(matrix))
        if norm < 0.5:
            return True
        if not norm < 1e8:
            return False
        matrix = matrix @ matrix
    return False
