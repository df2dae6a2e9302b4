"""What one client may ask of a server."""

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
        for one in fields(self):
            value = getattr(self, one.name)
            if not value > 0:
                raise ValueError(f"--{one.name.replace('_', '-')} must be above 0, got {value}")


class BadMessage(ValueError):
    """A message that cannot be answered otherwise than by saying what is wrong with it."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status  # of the same answer in HTTP


class Rate:
    """A bucket that fills with `rate` samples a second, and holds those of one second or of one message."""

    def __init__(self, limits: Limits) -> None:
        self.rate = limits.rate
        self.most = max(limits.rate, float(limits.samples))
        self.left, self.at = self.most, time.monotonic()

    def take(self, count: int) -> None:
        """Take so many samples. BadMessage: there are too few left."""
        now = time.monotonic()
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        if count > self.left:
            wait = (count - self.left) / self.rate
            raise BadMessage(f"more than {self.rate:g} samples a second: send this again in {wait:.3f} s", 429)
        self.left -= count
