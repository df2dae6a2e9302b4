"""The original LMU, a linear memory coupled to a nonlinear recurrence (equations 15 to 17).

It cannot be parallelised over time. plmu has it for comparison, and for models trained with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from plmu.core.modes import is_open, values_unknown, watched
from plmu.core.systems import LinearSystem
from plmu.folded import Folded, Stepped
from plmu.nn import coupled
from plmu.nn.folding import is_plain
from plmu.nn.memory import Memory
from plmu.nn.missing import Filling, checked_missing
from plmu.nn.savable import savable
from plmu.nn.steppable import Activation, activation, check_features, factory, last_valid, options_repr, positive
from plmu.ops import Plan, layer_kernels
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, precision, result_dtype
from plmu.ops.matrices import infinity_as_nan

State = tuple[Tensor, Tensor]
INITS = ("general", "memory")


@savable
class LMUCell(nn.Module):
    """One step of the original LMU: `h, (h, m) = cell(x_t, (h, m))`.

        u_t = E_x x_t + E_h h_{t-1} + E_m m_{t-1} (+ b_u)   (15)
        m_t = Ā m_{t-1} + B̄ u_t                             (16)
        h_t = f(W_x x_t + W_h h_{t-1} + W_m m_t)            (17)

    `hidden_to_memory`, `memory_to_memory`, `input_to_hidden` and `hidden_to_hidden` switch E_h, E_m, W_x and W_h;
    `bias` adds a bias to equation 17, `encoder_bias` one to equation 15. `init` sets how weights start: "general" as
    the original's code does (encoders LeCun-uniform but E_m = 0, W Glorot-normal), or "memory" as it does on psMNIST,
    where h begins as a function of the memory alone (W_m Glorot-normal, E_h = E_m = W_x = W_h = 0). A single input
    enters unscaled.

    The state is (h: (batch, hidden), m: (batch, order, memory_size)), float32 or wider. `device` and `dtype` are
    those of the parameters, as in `torch.nn`.

    Args:
        input_size: features of x.
        hidden_size: features of h, and of the output.
        order: number of Legendre coefficients each memory channel keeps.
        theta: the window in steps; several numbers give equal groups of memory channels one window each.
        memory_size: channels of u.
        hidden_to_memory: whether there is an E_h.
        memory_to_memory: whether there is an E_m.
        input_to_hidden: whether there is a W_x.
        hidden_to_hidden: whether there is a W_h.
        hidden_activation: f, by name, as a callable, or None.
        bias: whether equation 17 has a bias.
        encoder_bias: whether equation 15 has a bias.
        init: how weights start: "general" or "memory".
        trainable: "none", "theta" or "system" (Ā and B̄ themselves).
        system: any other `LinearSystem` in place of order and theta.
        device: where the parameters are.
        dtype: the precision of the parameters.
    """

    parallel = False
    config: dict[str, Any]

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
        encoder_bias: bool = False,
        init: str = "general",
        trainable: str = "none",
        system: LinearSystem | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
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
        self.encoder_bias = nn.Parameter(torch.empty(memory_size, **place)) if encoder_bias else None  # b_u
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights as `init` says; see the class."""
        self.memory.reset_parameters()
        for weight in self.parameters(recurse=False):
            nn.init.zeros_(weight)
        if self.input_size == 1:
            nn.init.ones_(self.input_encoder)
        else:
            _lecun_uniform(self.input_encoder)
        nn.init.xavier_normal_(self.memory_weight)
        if self.init == "general":
            if self.hidden_encoder is not None:
                _lecun_uniform(self.hidden_encoder)
            for square_weight in (self.input_weight, self.hidden_weight):
                if square_weight is not None:
                    nn.init.xavier_normal_(square_weight)

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
        h, m = _Loop(self, x, m.dtype).advance(*self._from_input(x), h.to(result_dtype(x)), m)
        return h, (h.to(m.dtype, copy=True), m)  # what becomes of the output must not reach the state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled cell; options that its version did not have get their defaults."""
        super().__setstate__(state)
        if "encoder_bias" not in self._parameters:
            self.__dict__.setdefault("encoder_bias", None)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state that `None` stands for: zeros.

        Args:
            batch: number of sequences.
            dtype: the precision of the input; states are float32 or wider.
            device: where the state is.
        """
        m = self.memory.initial_state(batch, dtype, device)
        return m.new_zeros(batch, self.hidden_size), m

    def _checked_state(self, state: State | None, x: Tensor) -> State:
        """The state after a check of its form; zeros for None."""
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
        """E_x x + b_u, and W_x x + b (None without either), for one step or for all."""
        u = linear(x, self.input_encoder, self.encoder_bias)
        if self.input_weight is not None:
            return u, linear(x, self.input_weight, self.bias)
        return u, None if self.bias is None else self.bias.to(u.dtype)

    def _why_not_coupled(
        self, dtype: torch.dtype, device: torch.device, resets: bool, inputs: tuple[Tensor, ...] = ()
    ) -> str | None:
        """The reason why `coupled` cannot run this, or None: it takes one memory channel in float32 or float64, tanh,
        and plain autograd."""
        memory, reason = self.memory, None
        if resets:
            reason = "the state is reset inside sequences"
        elif not memory.groups == memory.channels == memory.width == 1:
            reason = "there is more than one memory channel"
        elif self.f is not torch.tanh:
            reason = "the activation is not tanh"
        elif dtype != precision(dtype, device) or dtype not in (torch.float32, torch.float64):
            reason = "the precision is neither float32 nor float64"
        elif any(values_unknown(value) for value in (*inputs, *self.parameters())) or watched():
            reason = "under tracing, torch.func, or fake or meta tensors"
        return reason

    def extra_repr(self) -> str:
        options = options_repr(self, LMUCell, hidden_activation=self.f)
        return f"{self.input_size}, {self.hidden_size}, memory_size={self.memory.channels}{options}"


def _lecun_uniform(weight: Tensor) -> None:
    """Fill a weight (out, in) with uniform numbers of variance 1 / in."""
    bound = (3 / weight.shape[1]) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


class _Loop:
    """Equations 15 to 17 for one step after another, with the memory's matrices cast once."""

    def __init__(self, cell: LMUCell, x: Tensor, wide: torch.dtype) -> None:
        self.cell, self.wide = cell, wide
        self.memory = cell.memory.stepper(wide, x.device)

    def advance(self, u: Tensor, to_hidden: Tensor | None, h: Tensor, m: Tensor) -> State:
        """The next h and m, from u = E_x x + b_u and to_hidden = W_x x + b of the step."""
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


@savable
class LMU(Filling):
    """The original LMU over a sequence: `out, (h, m) = lmu(x)`. The options are those of `LMUCell`,
    plus `return_sequences` and `missing` from `ParallelLMU`.

    Args:
        input_size: features of x.
        hidden_size: features of h, and of the output.
        order: number of Legendre coefficients each memory channel keeps.
        theta: the window in steps; several numbers give equal groups of memory channels one window each.
        memory_size: channels of u.
        hidden_to_memory: whether there is an E_h.
        memory_to_memory: whether there is an E_m.
        input_to_hidden: whether there is a W_x.
        hidden_to_hidden: whether there is a W_h.
        hidden_activation: f, by name, as a callable, or None.
        bias: whether equation 17 has a bias.
        encoder_bias: whether equation 15 has a bias.
        init: how weights start: "general" or "memory".
        trainable: "none", "theta" or "system" (Ā and B̄ themselves).
        system: any other `LinearSystem` in place of order and theta.
        return_sequences: False gives the output at each sequence's last step alone.
        missing: treatment of NaN in x: None leaves it, "hold" repeats the last value of that feature, "zero"
            takes zero.
        device: where the parameters are.
        dtype: the precision of the parameters.

    Shape:
        x: (batch, time, input_size).
        out: (batch, time, hidden_size), or (batch, hidden_size) with `return_sequences=False`.
        state: (h, m) after the last step, (batch, hidden_size) and (batch, order, memory_size), float32 or wider. With
            `missing="hold"` the pair of this pair and the last values (batch, input_size).
    """

    input_size: int

    parallel = False

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
        encoder_bias: bool = False,
        init: str = "general",
        trainable: str = "none",
        system: LinearSystem | None = None,
        return_sequences: bool = True,
        missing: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.cell = LMUCell(
            input_size,
            hidden_size,
            order,
            theta,
            memory_size,
            hidden_to_memory=hidden_to_memory,
            memory_to_memory=memory_to_memory,
            input_to_hidden=input_to_hidden,
            hidden_to_hidden=hidden_to_hidden,
            hidden_activation=hidden_activation,
            bias=bias,
            encoder_bias=encoder_bias,
            init=init,
            trainable=trainable,
            system=system,
            device=device,
            dtype=dtype,
        )
        self.missing = checked_missing(missing)
        self.input_size = input_size
        self.hidden_size = self.output_size = hidden_size
        self.returns_sequences = return_sequences

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """All steps at once: the outputs, and the state after the last step.

        Args:
            x: the input, (batch, time, input_size).
            state: the state that the previous piece returned; None to start from zero.
            lengths: the length of each sequence, (batch,), where they are padded on the right; None if all have
                `time` steps.
            resets: (batch, time) of bools: steps before which the state is set to zero.

        Returns:
            The output h (batch, time, hidden_size), zero in the padding; or (batch, hidden_size), that of each
            sequence's last step, with `return_sequences=False`. And the state (h, m), (batch, hidden_size) and (batch,
            order, memory_size).
        """
        if self.missing is None:
            return self._forward(x, state, lengths, resets)
        return self._filled_forward(x, state, lengths, resets)

    def _forward(self, x: Tensor, state: State | None, lengths: Lengths, resets: Tensor | None) -> tuple[Tensor, State]:
        cell = self.cell
        check_features(x, 3, self.input_size, cell.memory_weight)
        batch, time, _ = x.shape
        if is_open(time):
            raise ValueError("LMU runs one step after another: torch.export needs a fixed number of time steps for it")
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        x = infinity_as_nan(keep_valid(x, lengths))  # infinity would be 1 behind a tanh
        h, m = cell._checked_state(state, x)
        if cell._why_not_coupled(x.dtype, x.device, resets is not None, (x, h, m)) is None:
            return self._coupled(x, h, m, lengths)
        h = h.to(result_dtype(x))
        u, to_hidden = cell._from_input(x)
        loop = _Loop(cell, x, m.dtype)
        outputs = []
        for t in range(time):
            if resets is not None:
                fresh = resets[:, t, None] if lengths is None else resets[:, t, None] & (t < lengths)[:, None]
                h = torch.where(fresh, 0.0, h)
                m = torch.where(fresh[:, :, None], 0.0, m)
            driven = to_hidden if to_hidden is None or to_hidden.dim() == 1 else to_hidden[:, t]
            new_h, new_m = loop.advance(u[:, t], driven, h, m)
            if lengths is not None:
                running = (t < lengths)[:, None]
                new_h = torch.where(running, new_h, h)
                new_m = torch.where(running[:, :, None], new_m, m)
            h, m = new_h, new_m
            if self.returns_sequences:
                outputs.append(h)
        state = (h.to(m.dtype, copy=True), m)
        if self.returns_sequences:
            return keep_valid(torch.stack(outputs, dim=1), lengths), state
        return h if lengths is None else torch.where((lengths > 0)[:, None], h, 0.0), state

    def _coupled(self, x: Tensor, h: Tensor, m: Tensor, lengths: Tensor | None) -> tuple[Tensor, State]:
        """`_forward` with one product for each step, for checked arguments."""
        order = self.cell.memory.order
        z = coupled.states(self.cell, self.cell.memory.systems()[0], x, h, m, lengths).transpose(0, 1)
        last = last_valid(z, lengths).clone()  # a copy: a state must not keep, or change with, the whole sequence
        if lengths is not None:  # an empty sequence keeps its state
            last = torch.where((lengths > 0)[:, None], last, torch.cat([m.squeeze(2), h], dim=1))
        state = (last[:, order:], last[:, :order, None])
        if self.returns_sequences:
            return z[:, :, order:].clone(memory_format=torch.contiguous_format), state
        out = last[:, order:].clone()
        return out if lengths is None else torch.where((lengths > 0)[:, None], out, 0.0), state

    def plan(
        self,
        *,
        batch: int,
        time: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        lengths: bool = False,
        resets: bool = False,
    ) -> Plan:
        """The algorithm that `layer(x)` runs for x (batch, time, input_size), and why: always one step after another.

        Args:
            batch: number of sequences.
            time: number of steps.
            dtype: of x; that of the weights if not given.
            device: where x is; where the weights are if not given.
            lengths: whether the call has lengths.
            resets: whether the call has resets.

        Returns:
            The plan; its `kind` is "recurrence", its algorithm "coupled" or "step by step".

        >>> print(layer.plan(batch=64, time=512))  # doctest: +SKIP
        """
        weight = self.cell.memory_weight
        dtype, device = dtype or weight.dtype, weight.device if device is None else torch.device(device)
        time = positive(time, "time")
        reason = self.cell._why_not_coupled(dtype, device, resets)
        if reason is not None:
            why = f"Equations 15 to 17 for {time} steps, one after another, each in several products."
            stored = ("x", "h and m of every step", "weights")
            return Plan("recurrence", "step by step", 1, reason=why, stored=stored, passed_over={"coupled": reason})
        reason = layer_kernels.why_no_steps(device, dtype, batch)
        why = f"Equations 15 to 17 multiplied out: {time} steps, one product and one tanh each."
        stored = ("x", "h and m of every step", "weights multiplied out")
        if reason is None:
            return Plan("recurrence", "coupled", 1, reason=why, kernel="Triton", stored=stored)
        return Plan("recurrence", "coupled", 1, reason=why, stored=stored, passed_over={"Triton": reason})

    def _step(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        return self.cell(x, state)  # type: ignore[no-any-return]

    def _fold(self) -> Folded:
        return coupled.fold_cell(self.cell) if is_plain(self.cell, LMUCell) else Stepped.of(self)

    def _initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        return self.cell.initial_state(batch, dtype, device)

    def extra_repr(self) -> str:
        """Options not shown by the cell."""
        shown = {"return_sequences": (self.returns_sequences, True), "missing": (self.missing, None)}
        return ", ".join(f"{name}={value}" for name, (value, default) in shown.items() if value != default)
