"""Which model a `Forecaster` fits, by the error on the validation rows: the memory of a look-back, or a mean of members
in a `PooledForecast`, among which are the simple baselines."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.folded.pooled import LEAST_LEVEL
from plmu.timeseries import pooled
from plmu.timeseries.pooled import PooledFit
from plmu.timeseries.predictions import ForecastModel
from plmu.timeseries.ridge import ScaledSeries
from plmu.timeseries.scores import baselines, model_method
from plmu.timeseries.series import Piece
from plmu.timeseries.split import Split
from plmu.timeseries.window_linear import linear_maps, seasonal_map
from plmu.timeseries.windows import Method, Windows
from plmu.training.processes import ALONE

MEMORY = 8  # the shortest look-back with which a LookbackForecast is tried beside a PooledForecast
BLOCK = 1024  # windows that are forecast at a time
CLEAR = 0.97  # with several columns the memory loses to a `PooledForecast` with an error below this share of its own,
SURE = 0.99  # or to any with a smaller error if that of a simple method is below this share
_SIMPLE = ("seasonal last value", "linear", "Theta")
ROWS = 5_000  # rows of all columns of a single series, up to which pooled readouts are fitted


class Summary(dict[str, Any]):
    """The options that were chosen, by name, and their validation errors."""

    def __missing__(self, name: str) -> Any:
        if name != "strength":
            raise KeyError(name)
        warnings.warn("validation_['strength'] is now validation_['alpha']", DeprecationWarning, stacklevel=2)
        return self["alpha"]


@dataclass(frozen=True)
class Chosen:
    """The fitted models, in the units of the data, and what was chosen."""

    model: ForecastModel
    unrefitted: ForecastModel  # the model fitted without the validation rows
    summary: Summary
    without_covariates: ForecastModel | None = None  # fitted without the validation rows, too


class Options(NamedTuple):
    """Options of a `Forecaster` for the fit; None where one is to be chosen."""

    individual: bool | None = None
    alpha: float | None = None
    refit: bool | None = None  # None for yes where a `PooledForecast` is tried, and else no
    lags: int | None = None
    calendar: str | None = None  # what a row is, if that is known
    pooled: bool = False  # whether a PooledForecast is used in any case
    nonnegative: bool | None = None  # None for yes in channels without a value below 0


def compared(
    split: Split,
    options: Options,
    pieces: Sequence[Piece],
    validation_rows: Sequence[int],
    data: ScaledSeries,
    lookback_model: Callable[[], Chosen],
) -> Chosen:
    """A `PooledForecast`, or the model of a look-back where most series are long enough for it and its error on the
    validation rows is smaller. Of a single series the linear maps of windows and the seasonal last value are candidates
    for members, too.

    Args:
        split: the series.
        options: of the fit.
        pieces: the rows that are fitted, those of validation included.
        validation_rows: the last rows of each, by which models are chosen.
        data: the same rows, scaled.
        lookback_model: fits the other model.
    """
    settings = split.settings
    channels, horizon = pieces[0].values.shape[1], settings.horizon
    series = [piece.values[:, channel] for piece in pieces for channel in range(channels)]
    lengths, rows = ([count for count in counts for _ in range(channels)] for counts in
                     ([len(piece) for piece in pieces], validation_rows))  # fmt: skip
    single = not data.relative
    maps = []
    if single and any(validation_rows):
        maps = linear_maps(data, (settings.lookback, *settings.lookbacks))
        maps += [seasonal_map(horizon, settings.season)] if settings.season > 1 else []
    closed_forms = options.pooled or not single or sum(lengths) <= ROWS
    processes = ALONE if maps else split.data.processes  # the work on a single series is not shared
    shared = pooled.fit(series, lengths, rows, horizon, settings.season, channels, processes, maps, closed_forms)
    summary = Summary(
        model="pooled",
        errors={"pooled": shared.error},
        season=settings.season,
        calendar=False,
        lookback=shared.model.window,
        members=[(*kind, alpha, count) for kind, alpha, count in shared.members],
        tried=[],
    )
    chosen = Chosen(shared.unrefitted if options.refit is False else shared.model, shared.unrefitted, summary)
    methods: dict[str, Method] = baselines(split) if single and len(shared.checked.level) else {}
    long = sum(len(piece) - count - horizon >= 2 * settings.lookback and count >= horizon
               for piece, count in zip(pieces, validation_rows, strict=True))  # fmt: skip
    if not options.pooled and settings.lookback >= MEMORY and 2 * long >= len(pieces):
        other = lookback_model()
        methods = {"look-back": model_method(other.unrefitted), **methods}
    if not methods:
        return chosen
    errors = {"pooled": shared.error, **_errors(methods, pieces, split.length, shared)}
    simple = min((error for name, error in errors.items() if name in _SIMPLE), default=math.inf)
    sure = single and channels > 1 and simple >= SURE * errors.get("look-back", math.inf)
    clear = CLEAR if sure else 1.0  # columns may have readouts of their own in the memory alone
    best = chosen if errors["pooled"] <= clear * errors.get("look-back", math.inf) else other
    return replace(best, summary=Summary(best.summary, errors=errors))


def _errors(methods: dict[str, Method], pieces: Sequence[Piece], length: int, shared: PooledFit) -> dict[str, float]:
    """Errors of methods, which read windows of this length, on the validation windows of a `PooledFit`."""
    windows, places, horizon = Windows.of(pieces), shared.checked.places, shared.checked.horizon
    channels = pieces[0].values.shape[1]
    piece, channel = places.series // channels, places.series % channels
    forecasts: dict[str, list[Tensor]] = {name: [] for name in methods}
    origins = windows.offsets[piece] + places.ends - 1
    with torch.no_grad():
        for block, lane in zip(origins.split(BLOCK), channel.split(BLOCK), strict=True):
            examples, rows = windows.take(block, length, horizon), torch.arange(len(block))
            for name, method in methods.items():
                forecasts[name].append((method(examples) + examples.level[..., None])[rows, lane])
    level = shared.checked.level.clamp(min=LEAST_LEVEL)
    return {name: shared.error_of(torch.cat(blocks) / level) for name, blocks in forecasts.items()}
