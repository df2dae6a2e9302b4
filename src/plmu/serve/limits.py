"""What a client may ask of a server."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

WRONG_SECONDS = 0.01  # after which a wrong message is answered: a client that sends many must not hold up others


@dataclass(frozen=True)
class Limits:
    """Bounds that keep one client from disturbing others."""

    sessions: int = 1000  # at once
    message_bytes: int = 65_536  # of one message
    samples: int = 1000  # of one message
    rate: float = 1000.0  # samples of one session a second
    idle: float = 300.0  # seconds after which a session without messages ends
    connections: int | None = None  # at once; None for two a session and 100 more
    address_connections: int = 200  # at once from one address, which is not of this machine

    @property
    def most_connections(self) -> int:
        """Connections at once."""
        return self.connections or 2 * self.sessions + 100

    @property
    def burst(self) -> float:
        """Samples that a session may send at once: those of one second, or of one message if more."""
        return max(self.rate, float(self.samples))

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ValueError(f"--{field.name.replace('_', '-')} must be above 0, got {value}")


class BadMessage(ValueError):
    """A message is wrong; the text, which is the answer to it, says why."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status  # of HTTP


class Rate:
    """A token bucket that gains `rate` a second and holds `most`."""

    def __init__(self, rate: float, most: float) -> None:
        self.rate = rate
        self.most = most
        self.available, self.updated = most, time.monotonic()

    def take(self, count: int) -> float:
        """Take `count` and return 0; or if fewer are available, return the seconds until they are."""
        now = time.monotonic()
        self.available = min(self.most, self.available + (now - self.updated) * self.rate)
        self.updated = now
        if count > self.available:
            return (count - self.available) / self.rate
        self.available -= count
        return 0.0
