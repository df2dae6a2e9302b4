"""Anomaly scores that are learned online, as a layer that steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from plmu import folded
from plmu.core.systems import DelayNetwork
from plmu.folded import Folded
from plmu.folded.anomalies import Learned, advanced
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable, changed, check_features, last_valid, options_repr, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, result_dtype


@savable
class AnomalyScore(Steppable):
    """How anomalous each sample is, and what was expected, for streams: all that it learns is in its state.

    A score is 1 minus a p-value: of normal samples a share of about 0.001 has a score above 0.999, once there have been
    some thousands; of counts, whose values come again, a smaller one. Higher is more anomalous. A channel has four
    views: the value; the value without its season; the error of a forecast; and how calm the last steps were, which
    sees flat lines. Each remembers its past values by 128 of them. The novelty of a sample is its distance to the
    nearest of these, relative to their range, and its p-value the share of samples that were more novel. So a value is
    an anomaly when it is new, and less so when it comes again. The score of a sample is that of its most anomalous
    channel, where the p-value is multiplied by the number of channels.

    The forecast is the last value and a change that is linear in a Delay Network's state and the season, learned by
    recursive least squares. The bounds of the interval follow the errors so that each side has its share of them. Both
    are made before the sample is seen.

    To begin with what is normal, run the layer over past samples and go on with the state that it returns. The layer
    has no weights and no gradient.

    Args:
        channels: features of x.
        season: the seasonal period in steps; 0 for none.
        half_life: samples after which the forecast's errors count half. What is normal is forgotten ten times slower.
        order: of the Delay Network.
        theta: its window in steps.
        level: the share of values that the interval is to contain.
        return_sequences: False gives the scores of each sequence's last step alone.

    Shape:
        x: (batch, time, channels). NaN and infinite values are missing: nothing is learned from them.
        out: (batch, time, 1 + 4 · channels), or (batch, 1 + 4 · channels): the score of the sample, then for each
            channel its score, the expected value and the lower and the upper end of the interval. Scores of what is
            missing are NaN; so is the expectation before the first value.
        state: `plmu.folded.anomalies.Learned`, tensors (batch, channels, …) in float64 (float32 on MPS).

    Raises:
        ValueError: an option is out of its range.
    """

    parallel = False
    input_size: int

    def __init__(
        self,
        channels: int,
        *,
        season: int = 0,
        half_life: float = 500.0,
        order: int = 6,
        theta: float = 32.0,
        level: float = 0.95,
        return_sequences: bool = True,
    ) -> None:
        super().__init__()
        self.input_size = self.channels = positive(channels, "channels")
        self.output_size = 1 + 4 * self.channels
        self.season = 0 if season == 0 and not isinstance(season, bool) else positive(season, "season")
        self.half_life = float(half_life)
        if not (math.isfinite(self.half_life) and self.half_life >= 1):
            raise ValueError(f"half_life must be a number of at least 1, got {half_life!r}")
        self.level = float(level)
        if not 0 < self.level < 1:
            raise ValueError(f"level must be a share between 0 and 1, such as 0.95; got {level!r}")
        with torch.device("cpu"):
            system = DelayNetwork(order, float(theta)).discretize(dt=1.0)
            identity = torch.eye(system.order, dtype=torch.float64)
            self._constants = folded.AnomalyScore(
                system=torch.cat([system.A, system.B[:, None]], dim=1),
                steady=torch.linalg.solve(identity - system.A, system.B),
                channels=self.channels,
                season=self.season,
                half_life=self.half_life,
                bounds=((1 - self.level) / 2, (1 + self.level) / 2),
            )
        self.returns_sequences = return_sequences

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        check_features(x, 3, self.input_size)
        batch, time, _ = x.shape
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        start = self.initial_state(batch, x.dtype, x.device)
        learned = self._start(x, state)
        part = self._constants_on(x)
        outputs = []
        for t in range(time):
            if resets is not None:
                learned = _chosen(resets[:, t], start, learned)
            out, after = advanced(part, x[:, t], learned)
            learned = after if lengths is None else _chosen(lengths > t, after, learned)
            outputs.append(out.to(result_dtype(x)))
        scores = keep_valid(torch.stack(outputs, dim=1), lengths)
        return (scores if self.returns_sequences else last_valid(scores, lengths)), learned

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_features(x, 2, self.input_size)
        out, after = advanced(self._constants_on(x), x, self._start(x, state))
        return out.to(result_dtype(x)), after

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self._constants.initial_state(batch, dtype, device)

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        return self._constants

    def _constants_on(self, x: Tensor) -> folded.AnomalyScore:
        """The constants on the device of x."""
        if self._constants.system.device != x.device:
            self._constants = self._constants.on(x.device)
        return self._constants

    def _start(self, x: Tensor, state: Any) -> Learned:
        start: Learned = self.initial_state(x.shape[0], x.dtype, x.device)
        if state is None:
            return start
        if not isinstance(state, tuple) or len(state) != len(start):
            raise ValueError(
                f"state must be the {len(start)} tensors that the layer returned, {', '.join(start._fields)}"
            )
        for tensor, expected in zip(state, start, strict=True):
            check_state(tensor, tuple(expected.shape), expected.dtype, expected.device)
        return Learned(*state)

    def _fills(self) -> str | None:
        return "pass"

    def extra_repr(self) -> str:
        return f"{self.channels}{options_repr(self, AnomalyScore)}"


def _chosen(mask: Tensor, new: Learned, old: Learned) -> Learned:
    """The new state of the sequences with True, the old one of the others."""
    return Learned(*(torch.where(mask.reshape(-1, *(1,) * (b.dim() - 1)), a, b) for a, b in zip(new, old, strict=True)))
