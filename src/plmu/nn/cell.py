"""One step of the original LMU, a linear memory coupled to a nonlinear recurrence (equations 15 to 17)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from plmu.modes import values_unknown, watched
from plmu.nn.memory import Memory, plain_order, plain_theta
from plmu.nn.steppable import Activation, activation, check_features, factory, options_repr, positive
from plmu.ops.check import check_state, precision, result_dtype
from plmu.ops.nonfinite import infinity_as_nan
from plmu.systems import LinearSystem

State = tuple[Tensor, Tensor]
INITS = ("general", "memory")


class LMUCell(nn.Module):
    """One step of the original LMU: `h, (h, m) = cell(x_t, (h, m))`.

        u_t = E_x x_t + E_h h_{t-1} + E_m m_{t-1}           (15)
        m_t = Ā m_{t-1} + B̄ u_t                             (16)
        h_t = f(W_x x_t + W_h h_{t-1} + W_m m_t)            (17)

    `hidden_to_memory`, `memory_to_memory`, `input_to_hidden` and `hidden_to_hidden` switch E_h, E_m, W_x and W_h;
    `bias` adds one to equation 17. Weights start by `init`: "general" as the original's code does (encoders
    LeCun-uniform but E_m = 0, W Glorot-normal), or "memory" as it does on psMNIST, where h begins as a function of the
    memory alone (W_m Glorot-normal, E_h = E_m = W_x = W_h = 0). A single input enters as it is.

    The state is (h: (batch, hidden), m: (batch, order, memory_size)), float32 or wider. `device` and `dtype` are
    those of the parameters, as in `torch.nn`.

    Args:
        input_size: features of x.
        hidden_size: features of h, and of the output.
        order: how many Legendre coefficients each memory channel keeps.
        theta: the window in steps; several numbers give equal groups of memory channels one window each.
        memory_size: channels of u.
        hidden_to_memory: whether there is an E_h.
        memory_to_memory: whether there is an E_m.
        input_to_hidden: whether there is a W_x.
        hidden_to_hidden: whether there is a W_h.
        hidden_activation: f, by name, as a callable, or None.
        bias: whether equation 17 has a bias.
        init: how weights start: "general" or "memory".
        trainable: "none", "theta" or "system" (Ā and B̄ themselves).
        system: any other `LinearSystem` in place of order and theta.
        device: where the parameters are.
        dtype: the precision of the parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        order: int | None = None,
        theta: float | Sequence[float] | None = None,
        memory_size: int = 1,
        *,
        hidden_to_memory: bool = True,
        memory_to_memory: bool = True,
        input_to_hidden: bool = True,
        hidden_to_hidden: bool = True,
        hidden_activation: Activation = "tanh",
        bias: bool = False,
        init: str = "general",
        trainable: str = "none",
        system: LinearSystem | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = {
            "input_size": positive(input_size, "input_size"),
            "hidden_size": positive(hidden_size, "hidden_size"),
            "order": plain_order(order),
            "theta": plain_theta(theta),
            "memory_size": plain_order(memory_size),
            "hidden_to_memory": hidden_to_memory,
            "memory_to_memory": memory_to_memory,
            "input_to_hidden": input_to_hidden,
            "hidden_to_hidden": hidden_to_hidden,
            "hidden_activation": hidden_activation,
            "bias": bias,
            "init": init,
            "trainable": trainable,
            "system": system,
        }
        if init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}")
        self.init = init
        self.input_size = positive(input_size, "input_size")
        self.hidden_size = positive(hidden_size, "hidden_size")
        place = factory(device, dtype)
        self.memory = Memory(positive(memory_size, "memory_size"), order, theta, system, trainable, **place)
        self.f = activation(hidden_activation, "hidden_activation")
        remembered = self.memory.order * self.memory.channels

        def weight(present: bool, rows: int, columns: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(rows, columns, **place)) if present else None

        self.input_encoder = nn.Parameter(torch.empty(memory_size, input_size, **place))  # E_x
        self.hidden_encoder = weight(hidden_to_memory, memory_size, hidden_size)  # E_h
        self.memory_encoder = weight(memory_to_memory, memory_size, remembered)  # E_m
        self.input_weight = weight(input_to_hidden, hidden_size, input_size)  # W_x
        self.hidden_weight = weight(hidden_to_hidden, hidden_size, hidden_size)  # W_h
        self.memory_weight = nn.Parameter(torch.empty(hidden_size, remembered, **place))  # W_m
        self.bias = nn.Parameter(torch.empty(hidden_size, **place)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """By `init`; see the class."""
        self.memory.reset_parameters()
        for every in self.parameters(recurse=False):
            nn.init.zeros_(every)
        if self.input_size == 1:
            nn.init.ones_(self.input_encoder)
        else:
            _lecun_uniform(self.input_encoder)
        nn.init.xavier_normal_(self.memory_weight)
        if self.init == "general":
            if self.hidden_encoder is not None:
                _lecun_uniform(self.hidden_encoder)
            for weight in (self.input_weight, self.hidden_weight):
                if weight is not None:
                    nn.init.xavier_normal_(weight)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step: the output h (batch, hidden_size), and the state (h, m).

        Args:
            x: one step of the input, (batch, input_size).
            state: the pair (h, m) of the previous step, (batch, hidden_size) and (batch, order, memory_size); None to
                start from zero.

        Returns:
            The output h (batch, hidden_size), and the state (h, m).
        """
        check_features(x, 2, self.input_size, self.memory_weight)
        h, m = self._checked_state(state, x)
        x = infinity_as_nan(x)  # which tanh would make 1
        h, m = Loop(self, x, m.dtype).advance(*self._from_input(x), h.to(result_dtype(x)), m)
        return h, (h.to(m.dtype, copy=True), m)  # what becomes of the output must not reach the state

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state that `None` stands for: zeros.

        Args:
            batch: how many sequences.
            dtype: the precision of the input; states are float32 or wider.
            device: where the state is.
        """
        m = self.memory.initial_state(batch, dtype, device)
        return m.new_zeros(batch, self.hidden_size), m

    def _checked_state(self, state: State | None, x: Tensor) -> State:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        if state is None:
            return self.initial_state(x.shape[0], x.dtype, x.device)
        if not isinstance(state, tuple) or len(state) != 2:
            raise TypeError(f"state must be the pair (h, m), got {type(state).__name__}")
        check_state(state[0], (x.shape[0], self.hidden_size), wide, x.device, "h of state")
        shape = (x.shape[0], self.memory.order, self.memory.channels)
        check_state(state[1], shape, wide, x.device, "m of state")
        return state

    def _from_input(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """E_x x and W_x x + b, for one step or for all."""
        u = linear(x, self.input_encoder)
        if self.input_weight is not None:
            return u, linear(x, self.input_weight, self.bias)
        return u, None if self.bias is None else self.bias.to(u.dtype)

    def _why_not_coupled(
        self, dtype: torch.dtype, device: torch.device, resets: bool, inputs: tuple[Tensor, ...] = ()
    ) -> str | None:
        """Why `coupled` cannot run this, if it cannot: it takes one memory channel in one full precision, tanh, and
        plain autograd."""
        memory, reason = self.memory, None
        if resets:
            reason = "the state is reset inside sequences"
        elif not memory.groups == memory.channels == memory.width == 1:
            reason = "there is more than one memory channel"
        elif self.f is not torch.tanh:
            reason = "the activation is not tanh"
        elif dtype != precision(dtype, device) or dtype not in (torch.float32, torch.float64):
            reason = "the precision is neither float32 nor float64"
        elif any(values_unknown(one) for one in (*inputs, *self.parameters())) or watched():
            reason = "under tracing, torch.func, or fake or meta tensors"
        return reason

    def extra_repr(self) -> str:
        options = options_repr(self, LMUCell, hidden_activation=self.f)
        return f"{self.input_size}, {self.hidden_size}, memory_size={self.memory.channels}{options}"


def _lecun_uniform(weight: Tensor) -> None:
    """Variance 1 / fan in."""
    bound = (3 / weight.shape[1]) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


class Loop:
    """Equations 15 to 17 for one step after another, with the memory's matrices at hand."""

    def __init__(self, cell: LMUCell, x: Tensor, wide: torch.dtype) -> None:
        self.cell, self.wide = cell, wide
        self.memory = cell.memory.stepper(wide, x.device)

    def advance(self, u: Tensor, to_hidden: Tensor | None, h: Tensor, m: Tensor) -> State:
        cell = self.cell
        if cell.hidden_encoder is not None:
            u = u + linear(h, cell.hidden_encoder)
        if cell.memory_encoder is not None:
            u = u + linear(m.to(u.dtype).flatten(1), cell.memory_encoder)
        m = self.memory(u.to(self.wide), m)
        total = linear(m.to(u.dtype).flatten(1), cell.memory_weight)
        if to_hidden is not None:
            total = total + to_hidden
        if cell.hidden_weight is not None:
            total = total + linear(h, cell.hidden_weight)
        return (total if cell.f is None else cell.f(total)), m
