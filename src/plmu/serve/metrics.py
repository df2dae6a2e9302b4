"""Counts and times of a server, as text for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)  # seconds


class Histogram:
    """The number of values up to each bound, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(BOUNDS, value)] += 1
        self.total += value


class Metrics:
    """The counters and histograms of a server."""

    def __init__(self) -> None:
        self.samples = self.messages = self.ticks = self.journal_bytes = self.snapshots = self.expired = 0
        self.sessions = self.connections = 0
        self.errors: dict[int, int] = {}  # by status
        self.latency, self.step = Histogram(), Histogram()

    def error(self, status: int) -> None:
        self.errors[status] = self.errors.get(status, 0) + 1

    def text(self) -> str:
        """In the text format of Prometheus."""
        lines: list[str] = []
        for name, kind, description, value in (
            ("sessions", "gauge", "Sessions.", self.sessions),
            ("connections", "gauge", "Open WebSocket connections.", self.connections),
            ("samples_total", "counter", "Samples that the model has taken.", self.samples),
            ("messages_total", "counter", "Messages answered, including errors.", self.messages),
            ("ticks_total", "counter", "Batches run.", self.ticks),
            ("expired_total", "counter", "Sessions that ended because they were idle.", self.expired),
            ("journal_bytes_total", "counter", "Bytes written to the journal.", self.journal_bytes),
            ("snapshots_total", "counter", "Snapshots of all states.", self.snapshots),
        ):
            lines += [f"# HELP plmu_{name} {description}", f"# TYPE plmu_{name} {kind}", f"plmu_{name} {value}"]
        lines += ["# HELP plmu_errors_total Messages answered with an error, by HTTP status."]
        lines += ["# TYPE plmu_errors_total counter"]
        lines += [f'plmu_errors_total{{status="{status}"}} {count}' for status, count in sorted(self.errors.items())]
        lines += _histogram("latency_seconds", "From a message to its answer.", self.latency)
        lines += _histogram("batch_seconds", "One batch: steps and journal.", self.step)
        return "\n".join(lines) + "\n"


def _histogram(name: str, description: str, values: Histogram) -> Iterable[str]:
    yield f"# HELP plmu_{name} {description}"
    yield f"# TYPE plmu_{name} histogram"
    below = 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), values.counts, strict=True):
        below += count
        yield f'plmu_{name}_bucket{{le="{bound}"}} {below}'
    yield f"plmu_{name}_sum {values.total:.6f}"
    yield f"plmu_{name}_count {below}"
