"""The paper's model: a linear memory between two time-distributed dense layers (equations 18 to 20)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, relu

from plmu.core.modes import autocasts, is_open, is_plain, values_unknown, watched_backward
from plmu.core.systems import LinearSystem
from plmu.folded import Folded
from plmu.nn import encoder_after
from plmu.nn.memory import Memory
from plmu.nn.missing import Filling, checked_missing
from plmu.nn.parallel_folding import fold_parallel
from plmu.nn.savable import savable
from plmu.nn.standardization import Standardize
from plmu.nn.steppable import (
    Activation,
    activation,
    factory,
    last_valid,
    options_repr,
    positive,
    probability,
)
from plmu.ops import Plan, layer_kernels, routes
from plmu.ops.check import Epilogue, Lengths, check_features, check_state, checked_lengths, keep_valid
from plmu.ops.matrices import infinity_as_nan
from plmu.ops.rates import DEVICES


@savable
class ParallelLMU(Filling):
    """The parallel LMU. Batch first, like `nn.LSTM`: `out, state = layer(x)`, `out_t, state = layer.step(x_t, state)`.

        u_t = f1(U_x x_t + b_u)                             (18)
        m_t = Ā m_{t-1} + B̄ u_t                             (19)
        o_t = f2(W_m m_t + W_x x_t + b_o)                   (20)

    With `gated=True`, u_t = g · f1(W_u x_t + b_u) + (1 − g) · x_t with g = σ(W_g x_t + b_g), b_g starting at −1.

    Args:
        input_size: features of x.
        hidden_size: features of the output.
        order: number of Legendre coefficients each memory channel keeps.
        theta: the window in steps; several numbers give equal groups of memory channels one window each.
        memory_size: channels of u; by default 1, or `input_size` if gated or encoder=False.
        gated: mix x into u by a learned gate; needs `memory_size == input_size`.
        encoder: encode x by U_x; if False, x feeds the memory directly (u = x).
        input_to_output: add W_x x to the output.
        input_activation: f1, by name, as a callable, or None; the names are those of `plmu.nn.ACTIVATIONS`.
        output_activation: f2, in the same way.
        bias: add b_u and b_o.
        trainable: "none", "theta" or "system" (Ā and B̄ themselves).
        system: any other `LinearSystem` in place of order and theta.
        return_sequences: False gives the output at each sequence's last step alone, through equation 25.
        algorithm: "auto", or one by name; see `plmu.plan`.
        missing: treatment of NaN in x: None leaves it, "hold" repeats the last value of that feature, "zero"
            takes zero. With "hold" the state is the pair of the layer's own state and the last values (batch,
            input_size).
        standardize: read (m − μ) / σ instead of m in equation 20, a reparametrisation of W_m and b_o. It equalises the
            scale of the coefficients, so that training does not slow down for long windows. `plmu.standardize(model,
            data)` measures μ and σ; until then μ is 0 and σ that of white noise of variance 1 in u.
        memory_noise: standard deviation of noise on the standardised memory in training; needs `standardize`.
        memory_dropout: dropout probability of memory coefficients in training. With this or noise, m is stored in
            training.
        device: where the parameters are.
        dtype: the precision of the parameters; a trained memory's own are float32 or wider.

    Shape:
        x: (batch, time, input_size).
        out: (batch, time, hidden_size), or (batch, hidden_size) with `return_sequences=False`.
        state: m after the last step, (batch, order, memory_size), float32 or wider; one channel for a `system` with
            several inputs. With `missing="hold"` the pair of m and the last values (batch, input_size).
    """

    input_size: int
    standardize: Standardize | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        order: int | None = None,
        theta: float | Sequence[float] | None = None,
        memory_size: int | None = None,
        *,
        gated: bool = False,
        encoder: bool = True,
        input_to_output: bool = True,
        input_activation: Activation = None,
        output_activation: Activation = "relu",
        bias: bool = True,
        trainable: str = "none",
        system: LinearSystem | None = None,
        return_sequences: bool = True,
        algorithm: str = "auto",
        missing: str | None = None,
        standardize: bool = False,
        memory_noise: float = 0.0,
        memory_dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.missing = checked_missing(missing)
        self.memory_noise = _checked_noise(memory_noise, standardize)
        self.memory_dropout = probability(memory_dropout, "memory_dropout")
        place = factory(device, dtype)
        if not encoder and input_activation is not None:
            raise ValueError("input_activation is applied to the encoded input: with encoder=False it must be None")
        self.input_size = positive(input_size, "input_size")
        self.hidden_size = self.output_size = positive(hidden_size, "hidden_size")
        width = _memory_width(input_size, memory_size, gated, encoder, system)
        self.memory = Memory(width, order, theta, system, trainable, algorithm, **place)
        self.memory_size = self.memory.channels
        self.returns_sequences = return_sequences
        self.f1 = activation(input_activation, "input_activation")
        self.f2 = activation(output_activation, "output_activation")
        self.encoder = nn.Linear(input_size, width, bias=bias, **place) if encoder else None
        self.gate = nn.Linear(input_size, width, **place) if gated else None
        self.memory_weight = nn.Parameter(torch.empty(hidden_size, self.memory.order, self.memory_size, **place))
        self.input_weight = nn.Parameter(torch.empty(hidden_size, input_size, **place)) if input_to_output else None
        self.bias = nn.Parameter(torch.empty(hidden_size, **place)) if bias else None
        shape = (self.memory.order, self.memory_size)
        self.standardize = Standardize(shape, **place) if standardize else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform weights and zero biases; a single input enters the memory unscaled; the gate's bias is −1."""
        self.memory.reset_parameters()
        for dense in (self.encoder, self.gate):
            if dense is not None:
                nn.init.xavier_uniform_(dense.weight)
                if dense.bias is not None:
                    nn.init.zeros_(dense.bias)
        if self.encoder is not None and self.input_size == 1:
            nn.init.ones_(self.encoder.weight)
        if self.gate is not None:
            nn.init.constant_(self.gate.bias, -1.0)
        nn.init.xavier_uniform_(self.memory_weight.data.view(self.hidden_size, -1))
        if self.input_weight is not None:
            nn.init.xavier_uniform_(self.input_weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.standardize is not None and not values_unknown(self.standardize.std):
            self.standardize.set(0.0, self.memory.noise_std())

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
            The output o (batch, time, hidden_size), zero in the padding; or (batch, hidden_size), that of each
            sequence's last step, with `return_sequences=False`. And the state, m after each sequence's last step
            (batch, order, memory_size), float32 or wider.
        """
        if self.missing is None:
            return self._forward(x, state, lengths, resets)
        return self._filled_forward(x, state, lengths, resets)

    def _forward(
        self, x: Tensor, state: Tensor | None, lengths: Lengths, resets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        check_features(x, 3, self.input_size, self.memory_weight)
        lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
        x = keep_valid(x, lengths)
        if lengths is None and x.device.type in routes.DEVICES:
            result = self._encoded_output(x, state, resets)
            if result is not None:
                return result
        fresh = state is None and resets is None
        after = fresh and encoder_after.applies(self, x.shape[0], x.shape[1], x.dtype, x.device)
        u, x = (x, x) if after else self._encoded(x)
        if not self.returns_sequences:
            last = self.memory.final_state(u, state, lengths, resets)
            if after:
                last = encoder_after.encoded_state(self, last, x.shape[1], lengths)
            out = self._output_of_final(last, x[:, -1] if lengths is None else last_valid(x, lengths), lengths)
            return out if lengths is None else torch.where((lengths > 0)[:, None], out, 0.0), last
        if self._measures or self._disturbs:
            m, last = self.memory.states(u, state, lengths, resets)
            m = encoder_after.encoded_states(self, m) if after else m
            out = self._output(self._joint_product(self._standardized(m, lengths), x, self.memory_weight, self.bias))
        else:
            out, last = self._projected(u, x, state, lengths, resets, after)
        if after:
            last = encoder_after.encoded_state(self, last, x.shape[1], lengths)
        return keep_valid(out, lengths), last

    def _encoded_output(self, x: Tensor, state: Tensor | None, resets: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """The result of `_forward` in one call, for a linear encoder and repeated calls on a GPU; None elsewhere."""
        encoder = self.encoder
        if encoder is None or self.f1 is not None or self.gate is not None or not self.returns_sequences:
            return None
        if self._measures or self._disturbs or not is_plain(encoder, nn.Linear) or watched_backward(encoder):
            return None
        weight, bias = self.readout()
        epilogue = self._epilogue(x, bias)
        result = self.memory.encoded_output(x, encoder, weight, state, resets, epilogue)
        return None if result is None else (self._finished(result[0], epilogue), result[1])

    def _projected(
        self, u: Tensor, x: Tensor, state: Tensor | None, lengths: Tensor | None, resets: Tensor | None, after: bool
    ) -> tuple[Tensor, Tensor]:
        """Equation 20 for all steps, and the final state for u; m is stored only where that is faster. `after` says
        that u is x, to be encoded after the memory."""
        weight, bias = self.readout()
        constant = None
        if after:
            weight, constant = encoder_after.readout(self, weight, x)
        channels = x.shape[2] if after else self.memory.channels
        if self._why_not_stored(u.shape[0], u.shape[1], channels, u.dtype, u.device) is None:
            m, last = self.memory.states(u, state, lengths, resets)
            total = self._joint_product(m.flatten(2), x, weight, bias)
            return self._output(total if constant is None else total + constant), last
        epilogue = self._epilogue(None if u is x else x, bias, rectify=constant is None)
        total, last = self.memory.output(u, weight, state, lengths, resets, epilogue)
        return self._finished(total if constant is None else total + constant, epilogue), last

    def plan(
        self,
        *,
        batch: int,
        time: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        lengths: bool = False,
        resets: bool = False,
        state: bool = False,
    ) -> Plan:
        """The algorithm that `layer(x)` runs for x (batch, time, input_size), and why.

        Args:
            batch: number of sequences.
            time: number of steps.
            dtype: of x; that of the weights if not given.
            device: of x; that of the weights if not given.
            lengths: whether the call has lengths.
            resets: whether the call has resets.
            state: whether the call has a state: the encoder then comes before the memory.

        Returns:
            The plan of the memory. Its `kind` is "project" where m is multiplied by W_m while it is computed, "states"
            where m is stored and multiplied together with x, and "final_state" with `return_sequences=False`.

        >>> print(layer.plan(batch=64, time=512))  # doctest: +SKIP
        """
        dtype = dtype or self.memory_weight.dtype
        device = self.memory_weight.device if device is None else torch.device(device)
        sizes: dict[str, Any] = {"batch": batch, "time": time, "dtype": dtype, "device": device}
        sizes |= {"lengths": lengths, "resets": resets}
        after = not resets and not state and encoder_after.applies(self, batch, time, dtype, device)
        if after:
            sizes["width"] = self.input_size
        if not self.returns_sequences:
            plan = self.memory.plan("final_state", **sizes)
            stored = (*plan.stored, "the final state", "x at the end", "weight")
        elif self._disturbs:
            plan = self.memory.plan("states", **sizes)
            plan = replace(plan, reason=f"{plan.reason} m is stored: noise or dropout acts on it.")
            stored = (*plan.stored, "m", "x", "weight")
        else:
            why_not = self._why_not_stored(batch, time, sizes.get("width", self.memory.channels), dtype, device)
            if why_not is None:
                plan = self.memory.plan("states", **sizes)
                plan = replace(plan, reason=f"{plan.reason} m is small: it is stored, and multiplied together with x.")
                stored = (*plan.stored, "m", "x", "weight")
            else:
                plan = self.memory.plan("project", out=self.hidden_size, **sizes)
                plan = replace(plan, passed_over={**plan.passed_over, "one product for m and x": why_not})
                stored = (*plan.stored, *(("x",) if self.input_weight is not None else ()))
        inputs = f"{self.input_size} input channel{'' if self.input_size == 1 else 's'}"
        first = f"The encoder comes after the memory, which runs on {inputs}. " if after else ""
        return replace(plan, stored=stored, reason=first + plan.reason)

    def _step(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        check_features(x, 2, self.input_size, self.memory_weight)
        if state is None:
            state = self._start(x)
        else:
            wide = torch.float64 if x.dtype == torch.float64 else torch.float32
            check_state(state, (x.shape[0], self.memory.order, self.memory_size), wide, x.device)
        u = infinity_as_nan(self._encode(x))
        m = self.memory.stepper(state.dtype, x.device)(_as(u, state.dtype), state)
        return self._output_of_state(m, x), m

    def _fold(self) -> Folded:
        return fold_parallel(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled layer; options that its version did not have get their defaults."""
        super().__setstate__(state)
        if "standardize" not in self._modules:
            self.__dict__.setdefault("standardize", None)
        for name in ("memory_noise", "memory_dropout"):
            self.__dict__.setdefault(name, 0.0)

    def _initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.memory.initial_state(batch, dtype, device)

    def _encoded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u by equation 18, and x for use in equation 20."""
        encoder = self.encoder
        if encoder is None or self.gate is not None or x.device.type not in layer_kernels.DEVICES:
            return self._encode(x), x
        plain = is_plain(encoder, nn.Linear) and not watched_backward(encoder)
        encoded = layer_kernels.encoded(x, encoder.weight, encoder.bias) if plain else None
        if encoded is None:
            return self._encode(x), x
        u, x = encoded
        return u if self.f1 is None else self.f1(u), x

    def _encode(self, x: Tensor) -> Tensor:
        """u by equation 18, or its gated form."""
        if self.encoder is None:
            return x
        u: Tensor = self.encoder(x)
        if self.f1 is not None:
            u = self.f1(u)
        if self.gate is not None:
            gate = torch.sigmoid(self.gate(x))
            u = gate * u + (1 - gate) * x
        return u

    @property
    def _measures(self) -> bool:
        """Whether `plmu.standardize` is measuring m."""
        return self.standardize is not None and self.standardize.measuring

    @property
    def _disturbs(self) -> bool:
        """Whether there is noise or dropout on the memory, in training."""
        return self.training and bool(self.memory_noise or self.memory_dropout)

    def _standardized(self, m: Tensor, lengths: Tensor | None) -> Tensor:
        """The input of W_m, (..., order · channels): m standardised, and in training with noise and dropout."""
        if self.standardize is not None:
            m = self.standardize(m, lengths)
        if self.training and self.memory_noise:
            m = torch.add(m, torch.randn_like(m), alpha=self.memory_noise)
        return dropout(m.flatten(-2), self.memory_dropout, self.training)

    def readout(self) -> tuple[Tensor, Tensor | None]:
        """W_m and b_o for m that is not standardised, with the standardisation multiplied in."""
        if self.standardize is None:
            return self.memory_weight, self.bias
        weight = (self.memory_weight / self.standardize.std).to(self.memory_weight.dtype)
        # The offset from the rounded weight, so that its rounding error multiplies m − μ, not m.
        wide = weight.to(self.standardize.mean.dtype)
        offset = wide.flatten(1) @ self.standardize.mean.flatten()
        bias = -offset if self.bias is None else self.bias - offset
        return weight, bias.to(weight.dtype)

    def _from_input(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """W_x x + b_o, without the terms that the layer does not have."""
        return bias if self.input_weight is None else linear(x, self.input_weight, bias)

    def _epilogue(self, x: Tensor | None, bias: Tensor | None, rectify: bool = True) -> Epilogue | None:
        """What a kernel adds to W_m m in equation 20: W_x x, b_o and ReLU; None for nothing. x is None if it is also
        the memory's input."""
        rectify = rectify and (self.f2 is torch.relu or self.f2 is relu)
        if self.input_weight is None and bias is None and not rectify:
            return None
        return Epilogue(None if self.input_weight is None else x, self.input_weight, bias, rectify)

    def _finished(self, total: Tensor, epilogue: Epilogue | None) -> Tensor:
        """f2 of the sum, unless the epilogue has applied it."""
        return total if epilogue is not None and epilogue.relu else self._output(total)

    def _why_not_stored(
        self, batch: int, time: int, channels: int, dtype: torch.dtype, device: torch.device
    ) -> str | None:
        """The reason why m is not stored and multiplied together with x, or None. m is stored if it has one channel, is
        small, no larger than the output, and would not be rounded."""
        memory, reason = self.memory, None
        if memory.algorithm != "auto":
            reason = "an algorithm was chosen by name"
        elif channels != 1 or memory.order > self.hidden_size:
            reason = "m has several channels, or more numbers than the output"
        elif dtype in (torch.float16, torch.bfloat16) or autocasts(device):
            reason = "m would be rounded"
        elif not is_open(batch, time) and batch * time * memory.order > DEVICES.get(device.type, DEVICES["cpu"]).stored:
            reason = "m is too large to be stored"
        return reason

    def _joint_product(self, m: Tensor, x: Tensor, memory_weight: Tensor, bias: Tensor | None) -> Tensor:
        """W_m m + W_x x + b_o for m (..., order · channels) as one product, of m, x and a column of ones side by side.

        A separate product with few features of x would take as long, and so would summing the gradient of b_o.
        """
        inputs, weights = [_as(m, x.dtype)], [memory_weight.flatten(1)]
        if self.input_weight is not None:
            inputs.append(x)
            weights.append(self.input_weight)
        if bias is not None:
            inputs.append(x.new_ones(1).expand(*x.shape[:-1], 1))
            weights.append(bias[:, None])
        return torch.cat(inputs, dim=-1) @ torch.cat(weights, dim=1).mT

    def _output(self, total: Tensor) -> Tensor:
        return total if self.f2 is None else self.f2(total)

    def _output_of_state(self, m: Tensor, x: Tensor) -> Tensor:
        """Equation 20 for one state m (batch, order, channels)."""
        z = m if self.standardize is None else self.standardize(m)
        flat, weight = _as(z, x.dtype).flatten(1), self.memory_weight.flatten(1)
        from_input = self._from_input(x, self.bias)
        return self._output(linear(flat, weight) if from_input is None else torch.addmm(from_input, flat, weight.mT))

    def _output_of_final(self, m: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Equation 20 for final states m (batch, order, channels), which `plmu.standardize` may measure; in training
        with noise and dropout."""
        if self.standardize is None and not self._disturbs:
            return self._output_of_state(m, x)
        z = self._standardized(m, lengths)  # in the precision of the state, to be rounded without its mean
        return self._output(self._joint_product(z, x, self.memory_weight, self.bias))

    def extra_repr(self) -> str:
        options = options_repr(self, ParallelLMU, input_activation=self.f1, output_activation=self.f2)
        return f"{self.input_size}, {self.hidden_size}, memory_size={self.memory_size}{options}"


def _checked_noise(noise: float, standardize: bool) -> float:
    """memory_noise as a float; raises if it is negative or needs `standardize`."""
    if not isinstance(noise, int | float) or not 0 <= noise < math.inf:
        raise ValueError(f"memory_noise must be a number of at least 0, got {noise!r}")
    if noise and not standardize:
        raise ValueError(f"memory_noise={noise} is relative to the standardised memory: it needs standardize=True")
    return float(noise)


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), without the call where the dtype is right: a step takes few microseconds."""
    return x if x.dtype == dtype else x.to(dtype)


def _memory_width(
    input_size: int, memory_size: int | None, gated: bool, encoder: bool, system: LinearSystem | None
) -> int:
    """Number of channels of u; raises if the options contradict each other."""
    if gated and not encoder:
        raise ValueError("gated=True needs the encoder: it mixes the encoded input with the input itself")
    if memory_size is not None:
        width = positive(memory_size, "memory_size")
    elif isinstance(system, LinearSystem) and system.inputs is not None:
        width = system.inputs
    else:
        width = input_size if gated or not encoder else 1
    if (gated or not encoder) and width != input_size:
        reason = "gated=True" if gated else "encoder=False"
        raise ValueError(f"{reason} feeds x to the memory: memory_size must be input_size = {input_size}, got {width}")
    return width
