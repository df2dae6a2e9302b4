"""The memory alone as a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plmu.core.systems import LinearSystem
from plmu.folded import Folded
from plmu.nn.memory import Memory
from plmu.nn.missing import Filling, checked_missing
from plmu.nn.savable import savable
from plmu.nn.steppable import check_features, factory, options_repr, positive
from plmu.ops import Plan
from plmu.ops.check import Lengths, check_state, checked_lengths, keep_valid, result_dtype
from plmu.ops.matrices import infinity_as_nan


@savable
class DelayLayer(Filling):
    """The Delay Network on each channel (equation 19), with no trainable parameters by default.

    The output flattens order-major: feature i · channels + j is the order-i coefficient of channel j, so
    `out.unflatten(-1, (order, channels))` is m. `device` and `dtype` are those of trained parameters; without any, the
    layer computes on the device and in the precision of its input.

    Args:
        channels: features of x; each has a memory of its own.
        order: number of Legendre coefficients each memory channel keeps.
        theta: the window in steps; several numbers give equal groups of memory channels one window each.
        trainable: "none", "theta" or "system" (Ā and B̄ themselves).
        system: any other `LinearSystem` in place of order and theta.
        return_sequences: False gives the output at each sequence's last step alone.
        algorithm: "auto", or one by name; see `plmu.plan`.
        missing: treatment of NaN in x: None leaves it, "hold" repeats the last value of that feature, "zero"
            takes zero.
        device: where the parameters are.
        dtype: the precision of the parameters.

    Shape:
        x: (batch, time, channels).
        out: (batch, time, order · channels), or (batch, order · channels) with `return_sequences=False`.
        state: m after the last step, (batch, order, channels), float32 or wider; one channel for a `system` with
            several inputs. With `missing="hold"` the pair of m and the last values (batch, channels).
    """

    input_size: int

    def __init__(
        self,
        channels: int,
        order: int | None = None,
        theta: float | Sequence[float] | None = None,
        *,
        trainable: str = "none",
        system: LinearSystem | None = None,
        return_sequences: bool = True,
        algorithm: str = "auto",
        missing: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.missing = checked_missing(missing)
        self.input_size = positive(channels, "channels")
        self.memory = Memory(channels, order, theta, system, trainable, algorithm, **factory(device, dtype))
        self.output_size = self.memory.order * self.memory.channels
        self.returns_sequences = return_sequences

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """All steps at once: the outputs, and the state after the last step.

        Args:
            x: the input, (batch, time, channels).
            state: the state that the previous piece returned; None to start from zero.
            lengths: the length of each sequence, (batch,), where they are padded on the right; None if all have
                `time` steps.
            resets: (batch, time) of bools: steps before which the state is set to zero.

        Returns:
            m flattened, (batch, time, order · channels), zero in the padding; or (batch, order · channels), that of
            each sequence's last step, with `return_sequences=False`. And the state (batch, order, channels).
        """
        if self.missing is None:
            return self._forward(x, state, lengths, resets)
        return self._filled_forward(x, state, lengths, resets)

    def _forward(
        self, x: Tensor, state: Tensor | None, lengths: Lengths, resets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        check_features(x, 3, self.input_size)
        if self.returns_sequences:
            m, last = self.memory.states(x, state, lengths, resets)
            return m.flatten(2), last
        last = self.memory.final_state(x, state, lengths, resets)
        lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
        out = last.to(result_dtype(x), copy=True).flatten(1)[:, None]  # a copy: the state must not change with it
        return keep_valid(out, lengths)[:, 0], last

    def plan(
        self,
        *,
        batch: int,
        time: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        lengths: bool = False,
        resets: bool = False,
    ) -> Plan:
        """What `layer(x)` runs for an x of (batch, time, channels), and why.

        Args:
            batch: number of sequences.
            time: number of steps.
            dtype: of x; torch's default if not given.
            device: where x is.
            lengths: whether the call has lengths.
            resets: whether the call has resets.

        Returns:
            The plan of the memory; its `kind` is "states", or "final_state" with `return_sequences=False`.

        >>> print(layer.plan(batch=8, time=500))  # doctest: +SKIP
        """
        kind = "states" if self.returns_sequences else "final_state"
        dtype, device = dtype or torch.get_default_dtype(), torch.device(device)
        return self.memory.plan(
            kind, batch=batch, time=time, dtype=dtype, device=device, lengths=lengths, resets=resets
        )

    def _step(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        check_features(x, 2, self.input_size)
        before = self._start(x)
        if state is not None:
            check_state(state, tuple(before.shape), before.dtype, before.device)
            before = state
        m = self.memory.stepper(before.dtype, x.device)(infinity_as_nan(x).to(before.dtype), before)
        out = m.to(result_dtype(x)).flatten(1)
        return (out.clone() if out.dtype == m.dtype else out), m  # what becomes of the output must not reach the state

    def _fold(self) -> Folded:
        return self.memory.fold()

    def _initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.memory.initial_state(batch, dtype, device)

    def extra_repr(self) -> str:
        return f"{self.input_size}{options_repr(self, DelayLayer)}"
