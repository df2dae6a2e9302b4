"""The Delay Network at irregular times: exact, trained in parallel over time, and stepped."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import among_fakes, is_open, values_unknown
from plmu.core.systems import DelayNetwork
from plmu.folded import Folded, TimedDelay, wide_dtype
from plmu.folded.base import copied
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable, changed, check_features, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, result_dtype
from plmu.ops.matrices import infinity_as_nan
from plmu.ops.nonfinite import isolated_values

_BLOCK = 16  # steps of a block; blocks run in parallel, their steps one after another
_MOST_BLOCKS = 1 << 27  # where torch.export leaves their number open
_AT_ONCE = 4096  # matrix exponentials computed together, which bounds memory


@savable
class TimedDelayLayer(Steppable):
    """The Delay Network on each channel, for samples that come at irregular times.

    The first feature of each step is the time since the step before, in the unit of theta; the others are the sample.
    A sample is held over the time before it (zero-order hold), so the state is exact at every sample:

        m_t = e^{A Δ_t} m_{t-1} + (∫_0^{Δ_t} e^{A s} ds) B u_t

    With every Δ = 1 it is `DelayLayer`. Trained over whole sequences it takes blocks of steps in parallel, and needs
    order² numbers for each step; there is no gradient for the times. Between samples that are far apart the memory
    fades as it does in a long pause. A first step has no step before it: give any Δ, such as the usual one.

    >>> layer = plmu.TimedDelayLayer(1, order=12, theta=60.0)  # a window of a minute
    >>> times = torch.tensor([0.0, 1.0, 4.5, 5.0])
    >>> intervals = times.diff(prepend=times.new_zeros(1))
    >>> m, state = layer(torch.stack([intervals, torch.randn(4)], dim=-1)[None])

    Args:
        channels: features of a sample; each has a memory of its own.
        order: number of Legendre coefficients each memory keeps.
        theta: the window, in the unit of the times.
        return_sequences: False gives the output at each sequence's last step alone.

    Shape:
        x: (batch, time, 1 + channels), the time since the step before and the sample.
        out: (batch, time, order · channels), flattened as in `DelayLayer`; or (batch, order · channels).
        state: m after the last step, (batch, order, channels), float32 or wider.
    """

    input_size: int

    def __init__(self, channels: int, order: int, theta: float, *, return_sequences: bool = True) -> None:
        super().__init__()
        self.channels = positive(channels, "channels")
        with torch.device("cpu"):
            network = DelayNetwork(order, float(theta))
            self.order = len(network.B)
            self._matrix = torch.zeros(self.order + 1, self.order + 1, dtype=torch.float64)  # [[A, B], [0, 0]]
            self._matrix[:-1, :-1], self._matrix[:-1, -1] = network.A, network.B
        self.input_size, self.output_size = self.channels + 1, self.order * self.channels
        self.returns_sequences = return_sequences

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """All steps at once: the outputs, and the state after the last step.

        Args:
            x: times since the step before and samples, (batch, time, 1 + channels).
            state: the state that the previous piece returned; None to start from zero.
            lengths: the length of each sequence, (batch,), where they are padded on the right; None for no padding.
            resets: (batch, time) of bools: steps before which the state is set to zero.

        Returns:
            m flattened, (batch, time, order · channels), zero in the padding; or (batch, order · channels), that of
            each sequence's last step, with `return_sequences=False`. And the state (batch, order, channels).
        """
        check_features(x, 3, self.input_size)
        batch, time, _ = x.shape
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        before, narrow = self._before(x, state), result_dtype(x)
        x = keep_valid(x, lengths).to(before.dtype)  # in the padding no time passes
        if resets is not None:
            resets = keep_valid(resets, lengths).bool()
        keep, change, take = self._transitions(x[:, :, 0])
        u, start, spoilt = isolated_values(x[:, :, None, 1:], before, lengths, resets)
        assert start is not None  # as `before` is not
        if resets is not None:
            keep, change = (part.masked_fill(resets[:, :, None, None], 0.0) for part in (keep, change))
        first = _moved(keep[:, :1], change[:, :1], start[:, None])  # of the state; u: (batch, time, order, channels)
        inputs = take[..., None] * u + torch.nn.functional.pad(first, (0, 0, 0, 0, 0, x.shape[1] - 1))
        m = _scan(keep, change, inputs)
        last = m[:, -1].clone()
        if spoilt is not None:
            m, last = spoilt.mark_states(m), spoilt.mark_final(last)
        out = m.flatten(2) if self.returns_sequences else last.flatten(1)[:, None]
        out = keep_valid(out, lengths).to(narrow, copy=True)
        return out if self.returns_sequences else out[:, 0], last

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step.

        Args:
            x: the time since the step before and the sample, (batch, 1 + channels).
            state: what the step before returned; None at the start.

        Returns:
            m flattened, (batch, order · channels), and the state (batch, order, channels).
        """
        check_features(x, 2, self.input_size)
        before = self._before(x, state)
        wide = x.to(before.dtype)
        keep, change, take = self._transitions(wide[:, 0])
        m = _moved(keep, change, before) + take[..., None] * infinity_as_nan(wide[:, None, 1:])
        return m.flatten(1).to(result_dtype(x), copy=True), m

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        return TimedDelay(copied(self), self._matrix[:-1].clone(), self.channels)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(batch, self.order, self.channels, dtype=wide_dtype(dtype), device=device)

    def _before(self, x: Tensor, state: Any) -> Tensor:
        """The checked state; zeros for None."""
        start = self.initial_state(x.shape[0], x.dtype, x.device)
        if state is None:
            return start
        check_state(state, tuple(start.shape), start.dtype, start.device)
        before: Tensor = state
        return before

    def _transitions(self, intervals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each interval Δ, e^{A Δ} as k I + P, k (..., 1, 1) and P (..., order, order), and (∫ e^{A s} ds) B (...,
        order), the weights of the sample.

        k is 1 for short intervals: then P = e^{A Δ} − I has digits that e^{A Δ} has not. The exponentials are blocks of
        e^{[[A, B], [0, 0]] Δ}, which is computed once for equal intervals.
        """
        lags = intervals.detach()
        if not (values_unknown(lags) or torch.jit.is_tracing()):  # type: ignore[attr-defined]
            wrong = ~((lags >= 0) & torch.isfinite(lags))
            if wrong.any():
                place = tuple(wrong.nonzero()[0].tolist())
                raise ValueError(
                    f"x[..., 0] must be the time since the step before, at least 0 and finite; got"
                    f" {float(lags[place]):.6g} at {place}"
                )
            lags, places = torch.unique(lags, return_inverse=True)
            right = None
        else:
            lags, places = lags.flatten(), torch.arange(lags.numel(), device=lags.device).reshape(lags.shape)
            right = (lags >= 0) & torch.isfinite(lags)
            lags = torch.where(right, lags, 0.0)
        matrix = among_fakes(self._matrix)
        matrix = matrix.to(lags.device) if lags.device.type != "mps" else matrix
        wide = lags.to(matrix.device, torch.float64)[:, None, None]
        parts = (wide,) if is_open(lags.numel()) else wide.split(_AT_ONCE)
        # A last row and column with a −1 of their own keep the norm at 1 or above, as in `DelayNetwork.discretize`.
        matrix = torch.nn.functional.pad(matrix, (0, 1, 0, 1))
        corner = torch.zeros_like(matrix)
        corner[-1, -1] = -1
        powers = torch.cat([torch.linalg.matrix_exp(part * matrix + corner) for part in parts])
        if right is not None:  # where a wrong interval is no error, all after it is NaN
            powers = torch.where(right.to(powers.device)[:, None, None], powers, math.nan)
        powers, take = powers[:, : self.order, : self.order], powers[:, : self.order, self.order]
        changes = powers - torch.eye(self.order, dtype=powers.dtype, device=powers.device)
        near = torch.linalg.matrix_norm(changes) < torch.linalg.matrix_norm(powers)
        changes = torch.where(near[:, None, None], changes, powers)
        keep, changes, take = (part.to(intervals.dtype).to(intervals.device)[places] for part in (near, changes, take))
        return keep[..., None, None], changes, take

    def extra_repr(self) -> str:
        return f"{self.channels}, order={self.order}, theta={self.config['theta']}"


def _moved(keep: Tensor, change: Tensor, m: Tensor) -> Tensor:
    """(k I + P) m for k (..., 1, 1), P (..., order, order) and m (..., order, channels)."""
    return keep * m + change @ m


def _scan(keep: Tensor, changes: Tensor, inputs: Tensor) -> Tensor:
    """m_t = (k_t I + P_t) m_{t-1} + v_t from zero, for k (batch, time, 1, 1), P (batch, time, order, order) and v
    (batch, time, order, channels).

    All blocks run at once from zero, step by step; the same recurrence over the ends of the blocks then gives the
    state before each block.
    """
    batch, time, order, channels = inputs.shape
    any_length = is_open(time)
    if not any_length and time <= _BLOCK:
        states = [inputs[:, 0]]
        for t in range(1, time):
            states.append(inputs[:, t] + _moved(keep[:, t], changes[:, t], states[-1]))
        return torch.stack(states, dim=1)
    # Two blocks at least where torch would specialise on a single one.
    blocks = (time + 2 * _BLOCK - 1) // _BLOCK if any_length else -(-time // _BLOCK)
    padding = blocks * _BLOCK - time
    inputs = torch.nn.functional.pad(inputs, (0, 0, 0, 0, 0, padding)).reshape(batch, blocks, _BLOCK, order, channels)
    changes = torch.nn.functional.pad(changes, (0, 0, 0, 0, 0, padding)).reshape(batch, blocks, _BLOCK, order, order)
    keep = torch.nn.functional.pad(keep, (0, 0, 0, 0, 0, padding)).reshape(batch, blocks, _BLOCK, 1, 1)
    local, factors, changed = [inputs[:, :, 0]], [keep[:, :, 0]], [changes[:, :, 0]]  # from the beginning of each block
    for t in range(1, _BLOCK):
        keep_t, change_t = keep[:, :, t], changes[:, :, t]
        local.append(inputs[:, :, t] + _moved(keep_t, change_t, local[-1]))
        changed.append(_moved(keep_t, change_t, changed[-1]) + change_t * factors[-1])
        factors.append(keep_t * factors[-1])
    carry = _doubled if any_length else _scan
    ends = carry(factors[-1], changed[-1], local[-1])  # the state at the end of each block
    before = _first(torch.cat([torch.zeros_like(local[0][:, :1]), ends], dim=1), blocks)[:, :, None]
    whole = torch.stack(local, dim=2) + _moved(torch.stack(factors, dim=2), torch.stack(changed, dim=2), before)
    return _first(whole.reshape(batch, blocks * _BLOCK, order, channels), time)


def _doubled(keep: Tensor, changes: Tensor, inputs: Tensor) -> Tensor:
    """`_scan` for any number of steps. The number of steps that are joined is doubled until it is all there may be."""
    steps, shift = torch.arange(inputs.shape[1], device=inputs.device), 1
    while shift < _MOST_BLOCKS:
        present, earlier = (steps >= shift)[:, None, None], (steps - shift).clamp(min=0)
        earlier_keep, changed, added = (part.index_select(1, earlier) for part in (keep, changes, inputs))
        inputs = torch.where(present, inputs + _moved(keep, changes, added), inputs)
        changed = _moved(keep, changes, changed) + changes * earlier_keep
        keep, changes = torch.where(present, keep * earlier_keep, keep), torch.where(present, changed, changes)
        shift *= 2
    return inputs


def _first(values: Tensor, count: int) -> Tensor:
    """The first `count` steps (axis 1); torch.export would compare the strides of a slice with its sizes."""
    if is_open(count):
        return values.index_select(1, torch.arange(count, device=values.device))
    return values[:, :count]
