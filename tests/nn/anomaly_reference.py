"""The scores of anomalies of one channel, value by value with lists: what `plmu.nn.AnomalyScore` must compute."""

import bisect
import math
from statistics import NormalDist

import numpy as np

from plmu.core.systems import DelayNetwork


class View:
    """The values that a view remembers, and the novelty of the next one."""

    def __init__(self, half_life: float) -> None:
        self.half_life, self.number = half_life, 0
        self.codes: list[tuple[float, int]] = []  # values with the step at which each was added
        self.mean = self.deviation = 0.0
        self.step = 0

    def novelty(self, value: float, rounding: float) -> float:
        self.step += 1
        if not self.number:
            self.codes = [(value, self.step - 1)] * 128
        unit = 10 * self.deviation + rounding + np.finfo(float).tiny

        def mapped(z: float) -> float:
            return math.asinh(max(-1e6, min(1e6, (z - self.mean) / unit)))

        distance = min(abs(mapped(value) - mapped(code)) for code, _ in self.codes)
        span = mapped(self.codes[-1][0]) - mapped(self.codes[0][0])
        self.codes.insert(bisect.bisect_left([code for code, _ in self.codes], value), (value, self.step))
        places = [mapped(code) for code, _ in self.codes]
        worth = []
        for k, (_, since) in enumerate(self.codes):
            apart = min(abs(places[k] - places[j]) for j in (k - 1, k + 1) if 0 <= j <= 128)
            total = apart + 1e-3 * (span + distance) + np.finfo(float).tiny
            worth.append(math.log2(total) - (self.step - since) / self.half_life)
        del self.codes[int(np.argmin(worth))]
        return distance / (span + distance + np.finfo(float).tiny)

    def learn(self, value: float) -> None:
        rate = max(1 / (self.number + 1), 1 - 0.5 ** (1 / self.half_life))
        if not self.number:
            self.mean = value
        limit = 20 * self.deviation if self.deviation > 0 and self.number > 100 else math.inf
        off = max(-limit, min(limit, value - self.mean))
        self.mean += rate * off
        self.deviation += rate * (abs(off) - self.deviation)
        self.number += 1


class Reference:
    def __init__(self, season: int, half_life: float, order: int, theta: float, level: float) -> None:
        system = DelayNetwork(order, theta).discretize(dt=1.0)
        self.A, self.B = system.A.numpy(), system.B.numpy()
        self.steady = np.linalg.solve(np.eye(order) - self.A, self.B)
        self.season, self.half_life, self.alpha = season, half_life, (1 - level) / 2
        self.views = {name: View(10 * half_life) for name in ("value", "rest", "error", "calm")}
        self.steps = self.count = 0
        self.origin = self.last = self.pace = self.quick = self.mean_error = 0.0
        start = math.log((math.pi / 2) ** 0.5 * NormalDist().inv_cdf(1 - self.alpha))
        self.above = self.below = start
        self.m = np.zeros(order)
        size = 1 + order + (2 if season else 0)
        self.w, self.P = np.zeros(size), 10 * np.eye(size)
        self.profile: dict[int, float] = {}
        self.counts = np.zeros(56)

    def push(self, x: float) -> tuple[float, float, float, float]:
        """The score, what was expected, and the ends of the interval."""
        phase = self.steps % max(self.season, 1)
        in_season = bool(self.season) and self.steps >= self.season
        unit = self.pace if self.pace > 0 else 1.0
        features = [*(self.m - self.last * self.steady)]
        if self.season:
            now, before = self.profile.get(phase, 0.0), self.profile.get((phase - 1) % self.season, 0.0)
            features += [now - before, now - self.last] if in_season else [0.0, 0.0]
        phi = np.array([1.0, *np.clip(np.array(features) / unit, -20, 20)])
        forecast = self.w @ phi
        expected = self.last + float(np.clip(forecast, -20, 20)) * unit
        started = self.count > 0
        ends = expected - self.mean_error * math.exp(self.below), expected + self.mean_error * math.exp(self.above)
        shown = [v + self.origin if started else math.nan for v in (expected, *ends)]
        missing = not math.isfinite(x)
        if not started and not missing:
            self.origin = x
        u = (expected if started else 0.0) if missing else x - self.origin
        limit = 100 * self.mean_error + 30 * self.views["value"].deviation
        error = u - expected if started else 0.0
        cut = error if limit == 0 or self.count <= 20 else max(-limit, min(limit, error))
        trusted = u - error + cut
        score = math.nan if missing else self._learn(u, trusted, error, phi, forecast, unit, phase, in_season)
        if self.season:
            rate = 1.0 if self.steps < self.season else max(self.season / (self.steps + self.season), 0.2)
            old = self.profile.get(phase, 0.0)
            self.profile[phase] = old + rate * (trusted - old)
        self.steps += 1
        return score, *shown  # type: ignore[return-value]

    def _learn(
        self,
        u: float,
        trusted: float,
        error: float,
        phi: np.ndarray,
        forecast: float,
        unit: float,
        phase: int,
        in_season: bool,
    ) -> float:
        n, started = self.count, self.count > 0
        change = trusted - self.last if started else 0.0
        self.quick += max(1 / max(n, 1), 0.1) * (abs(change) - self.quick)
        calm = math.log(min(max(self.quick / unit, 0.01), 1.0)) if self.pace > 0 else 0.0
        rounding = 1e-9 * (abs(self.origin) + self.views["value"].deviation)
        values = {"value": (u, 1.0), "error": (error, 0.1), "calm": (calm, 0.4)}
        if self.season:
            values["rest"] = (u - self.profile.get(phase, 0.0) if in_season else 0.0, 0.3)
        most = 0.0
        for name, (value, weight) in values.items():
            view = self.views[name]
            number = max(0, min(self.steps - self.season, n)) if name == "rest" else n
            view.number = number
            most = max(most, view.novelty(value, rounding) * weight * number / (number + 700))
            view.learn(value)
        position = 4 * (math.log2(max(most, 2.0**-14)) + 14)
        k = min(int(position), 55)
        inside = min(position, 56 - 1e-6) - k
        above = self.counts[k + 1 :].sum() + self.counts[k] * (1 - inside)
        p = min(1.0, (above + 10 / (1 + (most / 0.003) ** 2)) / (self.counts.sum() + 10))
        self.counts *= 0.5 ** (1 / (10 * self.half_life))
        self.counts[k] += 1
        if n > 1:
            self._regress(change / unit, phi, forecast, self.mean_error / unit)
        slow = max(1 / max(n, 1), 1 - 0.5 ** (1 / self.half_life))
        clipped = min(abs(change), 10 * self.pace if self.pace > 0 and n > 100 else math.inf)
        self.pace += slow * (clipped - self.pace)
        if started:
            self._widths(error)
        self.m = self.A @ self.m + self.B * trusted
        self.last = trusted
        self.count += 1
        return 1 - p

    def _regress(self, target: float, phi: np.ndarray, forecast: float, usual: float) -> None:
        limit = 5 * usual if usual > 0 and self.count > 100 else math.inf
        wrong = max(-limit, min(limit, max(-20.0, min(20.0, target)) - forecast))
        forget = 0.5 ** (1 / self.half_life)
        gain = self.P @ phi
        scale = forget + gain @ phi
        self.w = self.w + gain * wrong / scale
        self.P = (self.P - np.outer(gain, gain) / scale) / forget
        bound = np.sqrt(10 / np.maximum(np.diagonal(self.P), 10))
        self.P = self.P * np.outer(bound, bound)

    def _widths(self, error: float) -> None:
        mean = self.mean_error
        over, under = error > mean * math.exp(self.above), -error > mean * math.exp(self.below)
        self.above += 0.02 / math.sqrt(self.alpha) * (over - self.alpha)
        self.below += 0.02 / math.sqrt(self.alpha) * (under - self.alpha)
        size = min(abs(error), 5 * mean if mean > 0 and self.count > 100 else math.inf)
        self.mean_error += max(1 / self.count, 0.02) * (size - mean)
