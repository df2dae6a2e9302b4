"""The Delay Network at irregular times, for single steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plmu.folded.stacks import Stepped


@dataclass(frozen=True, eq=False)
class TimedDelay(Stepped):
    """m_t = e^{A Δ} m_{t-1} + (∫ e^{A s} ds) B u for x = (Δ, u): a copy of `plmu.nn.TimedDelayLayer`, and what it
    computes. The state is m (batch, order, channels)."""

    rate: Tensor  # [A | B], (order, order + 1), float64
    channels: int

    def takes_tokens(self) -> bool:
        return False

    def arrays(self) -> dict[str, Tensor]:
        return {"rate": self.rate}
