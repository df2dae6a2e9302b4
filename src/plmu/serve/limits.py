"""What a client may ask of a server."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Bounds that keep one client from disturbing others."""

    sessions: int = 1000  # at once
    message_bytes: int = 65_536  # of one message
    samples: int = 1000  # of one message
    rate: float = 1000.0  # samples of one session a second
    idle: float = 300.0  # seconds after which a session without messages ends

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"--{field.name.replace('_', '-')} must be above 0, got {value}")


class BadMessage(ValueError):
    """A message is wrong; the text, which is the answer to it, says why."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status  # of HTTP


class Rate:
    """A token bucket that gains `rate` samples a second and holds those of one second, or of one message if more."""

    def __init__(self, limits: Limits) -> None:
        self.rate = limits.rate
        self.most = max(limits.rate, float(limits.samples))
        self.available, self.updated = self.most, time.monotonic()

    def take(self, count: int) -> None:
        """Take `count` samples, or raise BadMessage if fewer are available."""
        now = time.monotonic()
        self.available = min(self.most, self.available + (now - self.updated) * self.rate)
        self.updated = now
        if count > self.available:
            wait = (count - self.available) / self.rate
            raise BadMessage(f"more than {self.rate:g} samples a second: send this again in {wait:.3f} s", 429)
        self.available -= count
