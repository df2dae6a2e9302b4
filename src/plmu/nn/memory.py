"""The linear memory inside every layer: one or more linear systems, fixed or trained, over groups of channels."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from plmu.core.modes import among_fakes, autocasts, values_unknown, watched
from plmu.core.systems import DelayNetwork, LinearSystem, is_stable
from plmu.folded import Delay
from plmu.nn.steppable import Factory
from plmu.ops import Plan, dispatch, routes
from plmu.ops.check import Epilogue, Lengths, check_state, problem_of, result_dtype
from plmu.ops.groups import SystemGroups, together
from plmu.ops.matrices import step_matrix
from plmu.ops.plan import joined, named
from plmu.ops.recurrent import Stepper

TRAINABLE = ("none", "theta", "system")
_NARROW = (torch.float16, torch.bfloat16)


class Memory(nn.Module):
    """Equation 19 for `width` input channels. No derived tensor is a buffer: a checkpoint holds parameters only.

    Several numbers as `theta` divide the channels into that many equal groups, with one θ each.
    """

    _together: SystemGroups | None = None  # the systems of all groups, where one kernel launch may run them

    def __init__(
        self,
        width: int,
        order: int | None = None,
        theta: float | Sequence[float] | None = None,
        system: LinearSystem | None = None,
        trainable: str = "none",
        algorithm: str = "auto",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if trainable not in TRAINABLE:
            raise ValueError(f"trainable must be one of {', '.join(TRAINABLE)}, got {trainable!r}")
        if algorithm != "auto":
            named(algorithm)
        self.trainable, self.algorithm, self.width = trainable, algorithm, width
        place = Factory(device=device, dtype=_wide(dtype))
        self._thetas: list[float] = []
        if system is not None:
            self._fixed = [_checked_system(system, order, theta, trainable, width)]
        elif order is None or theta is None:
            raise ValueError("pass order and theta, or system")
        else:
            plain = plain_theta(theta)
            thetas = plain if isinstance(plain, list) else [plain]
            if not thetas:
                raise ValueError("theta must be a number or several, got none")
            if width % len(thetas):
                raise ValueError(
                    f"theta has {len(thetas)} values, which do not divide the number of memory channels, {width}: make"
                    f" memory_size, or the channels of a DelayLayer, a multiple of {len(thetas)}"
                )
            with torch.device("cpu"):  # the default device may be "meta"
                self._fixed = [DelayNetwork(order, window).discretize() for window in thetas]
            self._thetas = thetas
            if trainable == "theta":
                self.log_theta = nn.Parameter(torch.empty(len(thetas), **place))
        self.order = self._fixed[0].order
        self.groups = len(self._fixed)
        if trainable == "none":
            self._together = together(self._fixed)
        self.channels = width if self._fixed[0].inputs is None else 1  # of the state
        if trainable == "system":
            self.A = nn.Parameter(torch.empty(self.groups, *self._fixed[0].A.shape, **place))
            self.B = nn.Parameter(torch.empty(self.groups, *self._fixed[0].B.shape, **place))
        self._snapshot: tuple[list[Tensor], list[LinearSystem]] | None = None
        self._stepper: MemoryStepper | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set trained parameters to the θ, or the Ā and B̄, passed to the constructor."""
        with torch.no_grad():
            if self.trainable == "theta":
                self.log_theta.copy_(torch.tensor([math.log(value) for value in self._thetas], dtype=torch.float64))
            elif self.trainable == "system":
                self.A.copy_(torch.stack([among_fakes(value.A) for value in self._fixed]))
                self.B.copy_(torch.stack([among_fakes(value.B) for value in self._fixed]))

    def systems(self) -> list[LinearSystem]:
        """One discrete system for each group, with gradients if something is trained."""
        if self.trainable == "none":
            return self._fixed
        if torch.is_grad_enabled() or watched():  # tensors of a mode must not outlive it
            return self._build()
        values = list(self.parameters())
        if any(map(values_unknown, values)):
            return self._build()
        if self._snapshot is None or not all(map(_same, values, self._snapshot[0])):
            self._snapshot = ([value.detach().clone() for value in values], self._build())
        return self._snapshot[1]

    def _build(self) -> list[LinearSystem]:
        if self.trainable == "theta":
            thetas = self.log_theta.double().exp() if self.log_theta.device.type != "mps" else self.log_theta.exp()
            return [DelayNetwork(self.order, theta).discretize() for theta in thetas.unbind()]
        return [LinearSystem(A, B) for A, B in zip(self.A.unbind(), self.B.unbind(), strict=True)]

    def thetas(self) -> list[float]:
        """The θ of each group as it is now; empty where it is unknown: for a system given as matrices or trained, and
        on the meta device."""
        if self.trainable == "theta":
            has_values = not values_unknown(self.log_theta)
            return [math.exp(value) for value in self.log_theta.tolist()] if has_values else []
        return self._thetas if self.trainable == "none" else []

    def noise_std(self) -> Tensor:
        """The standard deviation (order, channels) of each coefficient for white noise of variance 1, once the window
        is full; 1 for an unstable system, which has none."""
        with torch.no_grad():
            stds = [system.numbers(_stationary_std) for system in self._fixed]
        columns = torch.tensor(stds, dtype=torch.float64).mT  # (order, groups)
        return columns.repeat_interleave(self.channels // self.groups, dim=1)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.zeros(batch, self.order, self.channels, dtype=wide, device=device)

    def states(self, u: Tensor, state: Tensor | None, lengths: Lengths, resets: Tensor | None) -> tuple[Tensor, Tensor]:
        """m of all steps (batch, time, order, channels), and the final state (batch, order, channels)."""
        parts = [
            dispatch.states_of(problem_of(u_part, system, state_part, lengths, resets), self.algorithm)
            for system, u_part, state_part in self._groups(u, state)
        ]
        return _joined([m for m, _ in parts], 3), _joined([last for _, last in parts], 2)

    def final_state(self, u: Tensor, state: Tensor | None, lengths: Lengths, resets: Tensor | None) -> Tensor:
        """The final state (batch, order, channels)."""
        parts = [
            dispatch.final_state_of(problem_of(u_part, system, state_part, lengths, resets))
            for system, u_part, state_part in self._groups(u, state)
        ]
        return _joined(parts, 2)

    def output(
        self,
        u: Tensor,
        weight: Tensor,
        state: Tensor | None,
        lengths: Lengths,
        resets: Tensor | None,
        epilogue: Epilogue | None,
    ) -> tuple[Tensor, Tensor]:
        """W_m m (batch, time, out) for a weight (out, order, channels), with what the epilogue adds, and the final
        state. With an epilogue, outputs in the padding are not zero."""
        how = (lengths, self.algorithm, resets)
        system = self._together if self.groups > 1 else self.systems()[0]
        if system is not None:
            result = dispatch.output(u, system, weight, state, *how, epilogue)
            if result is not None:
                return result
        total, ends = None, []
        weights = weight.chunk(self.groups, dim=2)
        for (group_system, u_part, state_part), weight_part in zip(self._groups(u, state), weights, strict=True):
            result = dispatch.output(u_part, group_system, weight_part, state_part, *how, None)
            assert result is not None  # only groups together may give None
            total = result[0] if total is None else total + result[0]
            ends.append(result[1])
        assert total is not None
        return (total if epilogue is None else epilogue.after(total, u)), _joined(ends, 2)

    def encoded_output(
        self,
        x: Tensor,
        encoder: nn.Linear,
        weight: Tensor,
        state: Tensor | None,
        resets: Tensor | None,
        epilogue: Epilogue | None,
    ) -> tuple[Tensor, Tensor] | None:
        """`output` of the encoded x in one call, for a linear encoder and repeated calls on a GPU; None where that is
        not possible."""
        system = self._together if self.groups > 1 else self._fixed[0]
        if self.trainable != "none" or system is None:
            return None
        options = (system, weight, state, resets, self.algorithm, epilogue)
        return routes.run_encoded(x, (encoder.weight, encoder.bias), *options)

    def plan(
        self,
        kind: str,
        *,
        batch: int,
        time: int,
        dtype: torch.dtype,
        device: torch.device,
        out: int | None = None,
        lengths: bool = False,
        resets: bool = False,
        width: int | None = None,
    ) -> Plan:
        """The algorithm that `states`, `final_state` or `output` (kind "project") runs for these sizes, and why.

        `width` is the number of input channels, if not the memory's own.
        """
        channels = width or self.width
        if kind == "project" and self._together is not None and out is not None:
            plan = dispatch.plan_groups(
                self._together,
                batch=batch,
                time=time,
                channels=channels,
                out=out,
                dtype=dtype,
                device=device,
                algorithm=self.algorithm,
                lengths=lengths,
                resets=resets,
            )
            if plan is not None:
                return plan
        plans = [
            dispatch.plan(
                kind,
                batch=batch,
                time=time,
                channels=channels // self.groups,
                system=system,
                out=out,
                dtype=dtype,
                device=device,
                algorithm="auto" if kind == "final_state" else self.algorithm,
                lengths=lengths,
                resets=resets,
            )
            for system in self.systems()
        ]
        return joined(plans)

    def stepper(self, dtype: torch.dtype, device: torch.device) -> MemoryStepper:
        """One step as a function, with the matrices cast once; kept for later calls while the systems stay the same."""
        systems = self.systems()
        key = (dtype, device)
        if watched():
            return MemoryStepper(systems, key)
        if self._stepper is None or self._stepper.systems is not systems or self._stepper.key != key:
            stepper = MemoryStepper(systems, key)
            if systems[0].trained:
                return stepper
            self._stepper = stepper
        return self._stepper

    def fold(self) -> Delay:
        """The memory as arrays; see `plmu.fold`."""
        systems = self.systems()
        matrix = torch.stack([step_matrix(system).detach().cpu() for system in systems])
        return Delay(matrix, tuple(system.near_identity for system in systems), self.channels)

    def _groups(self, u: Tensor, state: Tensor | None) -> list[tuple[LinearSystem, Tensor, Tensor | None]]:
        """For each group of channels, its system and its part of u (batch, time, width) and of the state."""
        if self.groups == 1:
            return [(self.systems()[0], u, state)]
        if state is None:
            states: Sequence[Tensor | None] = [None] * self.groups
        else:
            wide = torch.float64 if result_dtype(u) == torch.float64 else torch.float32
            check_state(state, (u.shape[0], self.order, self.channels), wide, u.device)
            states = state.chunk(self.groups, dim=2)
        return list(zip(self.systems(), u.chunk(self.groups, dim=2), states, strict=True))

    def _apply(self, fn: Any, recurse: bool = True) -> Memory:
        """`nn.Module._apply`, but parameters stay float32 or wider: rounded to half precision, θ, Ā and B̄ would be
        those of another system."""
        parameters = dict(self.named_parameters(recurse=False))
        before = {
            name: (value.detach(), None if value.grad is None else value.grad.detach())
            for name, value in parameters.items()
        }
        super()._apply(fn, recurse)
        for name, value in self.named_parameters(recurse=False):
            if value.dtype in _NARROW:
                data, gradient = before[name]
                value.data = data.to(device=value.device, dtype=torch.float32)
                if gradient is not None:
                    value.grad = gradient.to(device=value.device, dtype=torch.float32)
        return self

    def extra_repr(self) -> str:
        text = f"width={self.width}, order={self.order}"
        if self.thetas():
            text += ", theta=" + ", ".join(f"{theta:g}" for theta in self.thetas())
        return text + (f", trainable={self.trainable}" if self.trainable != "none" else "")


class MemoryStepper:
    """One step of a `Memory`: `stepper(u, state)` for u (batch, width) and a state (batch, order, channels)."""

    def __init__(self, systems: list[LinearSystem], key: tuple[torch.dtype, torch.device]) -> None:
        self.systems, self.key = systems, key
        self.multi_input = systems[0].inputs is not None
        self.parts = [Stepper(system, *key) for system in systems]

    def __call__(self, u: Tensor, state: Tensor) -> Tensor:
        if autocasts(state.device):  # never carry a state in half precision
            with torch.autocast(state.device.type, enabled=False):
                return self(u, state)
        u = u.unsqueeze(2) if self.multi_input else u.unsqueeze(1)
        if len(self.parts) == 1:
            return self.parts[0](u, state)
        groups = len(self.parts)
        pairs = zip(self.parts, u.chunk(groups, dim=2), state.chunk(groups, dim=2), strict=True)
        return torch.cat([part(u_part, state_part) for part, u_part, state_part in pairs], dim=2)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """The groups' parts concatenated along the channels; without a copy for one group."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def _checked_system(system: LinearSystem, order: int | None, theta: object, trainable: str, width: int) -> LinearSystem:
    """The system given in place of order and theta; raises if it does not fit the other arguments."""
    if not isinstance(system, LinearSystem):
        raise TypeError(f"system must be a plmu.LinearSystem, got {type(system).__name__}")
    if order is not None or theta is not None:
        raise ValueError("give either order and theta, or a system; not both")
    if trainable == "theta":
        raise ValueError("trainable='theta' needs order and theta; for a system use trainable='system'")
    if system.inputs is not None and system.inputs != width:
        raise ValueError(f"the system has {system.inputs} inputs, but the memory gets {width} channels")
    if system.trained:
        raise ValueError("the system's matrices require gradients: use trainable='system' to train them in the layer")
    return system


def plain_order(order: Any) -> Any:
    """The order as a Python integer, from any kind of integer."""
    return operator.index(order) if hasattr(order, "__index__") and not isinstance(order, bool) else order


def plain_theta(theta: Any) -> Any:
    """θ as a Python number or a list of them, as a layer keeps and saves it."""
    if isinstance(theta, Tensor) or hasattr(theta, "tolist"):
        theta = theta.tolist()
    if isinstance(theta, Sequence) and not isinstance(theta, str):
        return [plain_theta(part) for part in theta]
    return float(theta) if isinstance(theta, Real) and not isinstance(theta, bool) else theta


def _stationary_std(system: LinearSystem) -> Tensor:
    """The stationary standard deviation of each coefficient, (order,), for white noise of variance 1.

    The covariance P = Ā P Āᵀ + B̄ B̄ᵀ is summed over 1, 2, 4, … steps. 1 for an unstable system.
    """
    if not is_stable(system.A):
        return torch.ones(system.order, dtype=torch.float64)
    B = system.B.reshape(system.order, -1)
    power, covariance = system.A, B @ B.mT
    for _ in range(64):  # 2^64 steps, more than a stable system in float64 can remember
        older = power @ covariance @ power.mT
        covariance = covariance + older
        if float(older.diagonal().abs().max()) <= 1e-12 * float(covariance.diagonal().max()):
            break
        power = power @ power
    std = covariance.diagonal().sqrt()
    return torch.where((std > 0) & std.isfinite(), std, 1.0)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)


def _wide(dtype: torch.dtype | None) -> torch.dtype:
    """The precision of the memory's own parameters in a layer of this precision, or of torch's default."""
    chosen = dtype or torch.get_default_dtype()
    return torch.float32 if chosen in _NARROW else chosen
