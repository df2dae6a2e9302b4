"""A forecast model that learns while it steps, as a layer around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plmu import folded
from plmu.core.systems import DelayNetwork
from plmu.folded import Folded
from plmu.folded.learning import Learned, Learning
from plmu.folded.scoring import Scoring
from plmu.folded.states import leaves, map_state
from plmu.folded.windowed import Windowed, bounded
from plmu.nn.forecast import LookbackForecast, window_taps
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable
from plmu.nn.windowed import WindowedForecast
from plmu.ops.check import Lengths, checked_lengths, checked_resets, result_dtype

ORDER = 48  # of the memory whose states are features, where the model has none of its own


class Report(NamedTuple):
    """Intervals of a forecast, and the running errors of forecasts."""

    lower: Tensor  # (levels, batch, channels, horizon), NaN where no error is known yet
    upper: Tensor
    error: Tensor  # (batch, channels), the running mean absolute error over all steps ahead; NaN before the first
    without_learning: Tensor  # that of the model that does not learn


@savable(modules=1)
class LearningForecast(Steppable):
    """The forecasts of a model, corrected by what is learned of its errors while it steps; with intervals that adapt.

    >>> learning = plmu.nn.LearningForecast(forecaster.model, half_life=2000)
    >>> stream = plmu.Stream(learning)
    >>> stream.push(sample)  # the forecast; and as earlier forecasts come true, they are scored and learned

    When the values of all steps ahead of a window are known, the features of the window and the errors of the model's
    forecast enter sums, and a ridge regression on these corrects the next forecasts: see `plmu.folded.learning`. The
    model itself does not change, and its readout counts as `prior` horizons of windows: the correction starts at 0. By
    their errors the correction is trusted or not. All of this is the state, so a stream that is saved and restored goes
    on as if it had never stopped; one sample takes the same time however many came before it.

    Features are those of a `LookbackForecast`; of another model the states of a Delay Network over its window.
    `start_from` gives the sums of the fit, and `set_intervals` its intervals. Gradients do not pass through.

    Args:
        model: a fitted forecast: `LookbackForecast`, `CovariateForecast` or `PooledForecast`.
        half_life: steps in which what was learned counts half; infinite to forget nothing.
        prior: how many horizons of windows the model's own readout counts as.
        alpha: penalty of the correction, for features of unit power.
        reject: a sample is not learned if its distance from the running mean, and from the sample before, is more than
            so many mean absolute deviations; after five such samples in a row they are taken for a shift, and learned.
            Errors of more than four times the usual size count as that. Infinite: all samples and errors are learned,
            also missing samples that were filled.
        levels: of the prediction intervals, as fractions.

    Shape:
        x: as of the model, (batch, time, features). NaN is a missing value, which the value before stands for.
        out: as of the model, (batch, time, horizon · channels).
        state: that of the model, then a `plmu.folded.learning.Learned`.
    """

    parallel = False
    gram: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self,
        model: WindowedForecast,
        *,
        half_life: float = 8000.0,
        prior: float = 60.0,
        alpha: float = 0.1,
        reject: float = 100.0,
        levels: Sequence[float] = (0.8, 0.95),
    ) -> None:
        super().__init__()
        if not isinstance(model, WindowedForecast):
            raise TypeError(f"model must be a forecast such as a LookbackForecast, got {type(model).__name__}")
        if not model.returns_sequences:
            raise ValueError("model must return sequences: it has return_sequences=False")
        for name, value in (("half_life", half_life), ("prior", prior), ("alpha", alpha), ("reject", reject)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if not math.isfinite(prior) or not math.isfinite(alpha):
            raise ValueError(f"prior and alpha must be finite, got {prior!r} and {alpha!r}")
        if list(levels) != sorted(set(levels)) or not all(0 < level < 1 for level in levels):
            raise ValueError(f"levels must be ascending fractions between 0 and 1, got {levels!r}")
        self.model = model
        self.input_size, self.output_size = model.input_size, model.horizon * model.channels
        self.half_life, self.prior, self.alpha, self.reject = map(float, (half_life, prior, alpha, reject))
        self.levels = tuple(map(float, levels))
        order, readouts = min(ORDER, model.window_size), 1
        self._system = None
        if type(model) is LookbackForecast:
            order, readouts = model.order, len(model.weight)
        else:
            with torch.device("cpu"):
                self._system = DelayNetwork(order, float(model.window_size)).discretize()
        place: dict[str, Any] = {"dtype": torch.float64, "device": model._like.device}
        self.register_buffer("gram", torch.zeros(readouts, order, order, **place))
        self.register_buffer("scale", torch.ones(model.channels, **place))
        ends = torch.zeros(len(self.levels), model.channels, model.horizon, **place)
        self.register_buffer("low", ends)
        self.register_buffer("high", ends.clone())

    @torch.no_grad()
    def start_from(self, gram: Tensor, scale: Tensor) -> None:
        """Take the sums of a fit as those of the model's readout, instead of guessing them from what comes.

        Args:
            gram: the mean over the windows of the fit of φφᵀ, where φ are features over `scale`, up to a factor:
                (readouts, order, order).
            scale: of the channels, such as their standard deviations, (channels,).
        """
        for name, value in (("gram", gram), ("scale", scale)):
            expected = getattr(self, name)
            if value.shape != expected.shape or not bool(value.isfinite().all()):
                raise ValueError(f"{name} must be {tuple(expected.shape)} finite numbers, got {tuple(value.shape)}")
            expected.copy_(value)
        if not bool((self.scale > 0).all()):
            raise ValueError(f"scale must be positive, got {scale.tolist()!s:.100}")

    @torch.no_grad()
    def set_intervals(self, low: Tensor, high: Tensor) -> None:
        """Take intervals as those to begin with.

        Args:
            low: the lower ends relative to the forecast, (levels, channels, horizon).
            high: the upper ends.
        """
        for name, value in (("low", low), ("high", high)):
            expected = getattr(self, name)
            if value.shape != expected.shape or not bool(value.isfinite().all()):
                raise ValueError(f"{name} must be {tuple(expected.shape)} finite numbers, got {tuple(value.shape)}")
            expected.copy_(value)

    def report(self, output: Tensor, state: Any) -> Report:
        """What is said of a forecast beside it.

        Args:
            output: of the layer, (batch, horizon · channels).
            state: after it.
        """
        scoring, scored = self.learning.scoring, state[-1].scored
        forecast = output.double().unflatten(-1, (self.model.horizon, self.model.channels, 1))
        ends = torch.stack(scoring.ends(scored)) + forecast  # (2, batch, horizon, channels, levels)
        lower, upper = bounded(ends.permute(0, 4, 1, 3, 2), scoring.nonnegative)
        total = scored.errors[..., 2:]
        errors = total[..., 1:] / torch.where(total[..., :1] > 0, total[..., :1], torch.nan)
        return Report(lower, upper, errors[..., 0], errors[..., 1])

    @property
    def percent(self) -> tuple[float, ...]:
        """The levels in percent."""
        return tuple(round(100 * level, 10) for level in self.levels)

    @property
    def learning(self) -> Learning:
        """What is learned, and how."""
        model = self.model
        scoring = Scoring(model.horizon, model.channels, self.levels, model.nonnegative)
        prior = self.prior * model.horizon
        return Learning(scoring, model.window_size, self.half_life, prior, self.alpha, self.reject)

    @torch.no_grad()
    def features(self, windows: Tensor, number: Tensor) -> Tensor:
        """The features (..., channels, order) of windows.

        Args:
            windows: (..., channels, window), in float64.
            number: of their last steps, (...).
        """
        if self._system is None:
            assert isinstance(self.model, LookbackForecast)
            return self.model.standard(windows, number).features
        taps = self._system.derive(window_taps, self.model.window_size, dtype=windows.dtype, device=windows.device)
        return (windows - windows[..., -1:]) @ taps

    @torch.no_grad()
    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        self.model._check(x, 3)
        batch, time, _ = x.shape
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        start = self.initial_state(batch, x.dtype, x.device)
        state, folded_model = start if state is None else state, self.fold()
        outputs = []
        for at in range(time):
            if resets is not None:
                state = _chosen(resets[:, at], start, state)
            out, after = folded_model.step(x[:, at], state)
            valid = torch.ones(batch, dtype=torch.bool, device=x.device) if lengths is None else at < lengths
            outputs.append(torch.where(valid[:, None], out, 0.0))
            state = _chosen(valid, after, state)
        out = torch.stack(outputs, dim=1) if time else x.new_zeros(batch, 0, self.output_size)
        return out.to(result_dtype(x)), state

    @torch.no_grad()
    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self.model._check(x, 2)
        out, after = self.fold().step(x, self.initial_state(len(x), x.dtype, x.device) if state is None else state)
        return out.to(result_dtype(x)), after

    def fold(self) -> Folded:
        model = self.model
        base = model.fold()
        if not isinstance(base, Windowed):
            raise TypeError(f"{type(model).__name__} overrides fold() or what it computes, so it cannot learn in steps")
        taps = torch.zeros(0, dtype=torch.float64)
        if self._system is not None:
            taps = self._system.derive(window_taps, model.window_size, dtype=torch.float64, device=torch.device("cpu"))
        arrays = {name: getattr(self, name).detach().cpu().double() for name in ("gram", "scale", "low", "high")}
        return folded.LearningForecast(base, taps, **arrays, learning=self.learning, first_number=model.first_number)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        arrays = (getattr(self, name).to(device, torch.float64) for name in ("gram", "low", "high"))
        return (*self.model.initial_state(batch, dtype, device), self.learning.start(batch, *arrays))

    def state_at(self, step: int, dtype: torch.dtype | None = None, before: Any = None) -> Any:
        """The state of one sequence before its first step, with a preset number of that step.

        Args:
            step: the number of the first step, as of the model.
            dtype: the precision of x; that of the model's weights by default.
            before: a state after which the sequence begins anew, as after a long gap: what was learned goes on.
        """
        start = self.model.state_at(step, dtype)
        learned: Learned = self.initial_state(1, start[0].dtype, start[0].device)[-1]
        if before is not None:
            rows = {name: getattr(learned, name) for name in ("rows", "odd", "counts")}
            learned = before[-1]._replace(**rows)
        return (*start, learned)

    def _entrance(self) -> nn.Module | None:
        return self.model

    def extra_repr(self) -> str:
        return f"half_life={self.half_life:g}, prior={self.prior:g}, alpha={self.alpha:g}, reject={self.reject:g}"


def _chosen(mask: Tensor, state: Any, other: Any) -> Any:
    """A state whose rows are those of `state` where the mask (batch,) is set, else of another one."""
    rest: Iterator[Tensor] = iter(leaves(other))
    return map_state(state, lambda leaf: torch.where(mask.view(-1, *(1,) * (leaf.dim() - 1)), leaf, next(rest)))
