"""Public holidays of a country as a covariate: known ahead, built from the times of series by the package holidays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.clock import DAY, Clock
from plmu.errors import DataError

if TYPE_CHECKING:
    from plmu.timeseries.series import Numbers, SeriesData

PREFIX = "holidays "  # of the name of the covariate, before the country
AHEAD = 2_000  # steps after the last row for which holidays are counted


def column_of(country: str) -> str:
    """The name of the covariate."""
    return PREFIX + country


def country_of(covariates: tuple[str, ...]) -> str | None:
    """The country of the holidays that are the last of these covariates, if there are any."""
    return covariates[-1].removeprefix(PREFIX) if covariates and covariates[-1].startswith(PREFIX) else None


def with_holidays(data: SeriesData, country: str) -> SeriesData:
    """Series with one more covariate: whether the day of a step is a public holiday, or how many are in a longer step.

    Args:
        data: series with times that are dates.
        country: its code, such as "DE", or with a part of it, "DE-BY".

    Raises:
        DataError: there are no dates, no such country, or the package is not installed.
    """
    clock = data.clock
    if clock.kind in ("rows", "numbers"):
        raise DataError(f"holidays of {country} need dates, and the times are {clock.kind}: give the column of dates")
    first, last = min(piece.start for piece in data.pieces), max(piece.last for piece in data.pieces)
    years = clock.dates(np.array([first, last + AHEAD + 2])).astype("datetime64[Y]").astype(int) + 1970
    days = public_holidays(country, range(int(years[0]), int(years[1]) + 1))
    by_offset: dict[float, Numbers] = {}  # holidays of all steps, by the offset of a series
    pieces = []
    for piece in data.pieces:
        if piece.offset not in by_offset:
            steps = np.arange(first, last + 1 + AHEAD)
            by_offset[piece.offset] = _counts(clock, steps, piece.offset, days)[:, None]
        begin = piece.start - first
        counts = by_offset[piece.offset][begin : begin + len(piece) + AHEAD]
        if piece.covariates is not None:
            others = np.full((len(counts), piece.covariates.shape[1]), np.nan)
            length = min(len(others), len(piece.covariates))
            others[:length] = piece.covariates[:length]
            counts = np.concatenate([others, counts], axis=1)
        pieces.append(replace(piece, covariates=counts))
    columns = replace(data.columns, covariates=(*data.columns.covariates, column_of(country)))
    return replace(data, pieces=pieces, columns=columns)


def public_holidays(country: str, years: range) -> NDArray[Any]:
    """The days of public holidays in these years, sorted, datetime64[D]."""
    try:
        import holidays
    except ImportError:
        raise DataError("holidays need the package of that name: pip install holidays") from None
    code, _, part = country.partition("-")
    try:
        calendar = holidays.country_holidays(code, subdiv=part or None, years=years)
    except NotImplementedError:
        raise DataError(
            f"holidays of {country!r} are not known: give the code of a country such as DE or US, or with a part of it,"
            " such as DE-BY"
        ) from None
    return np.array(sorted(calendar), dtype="datetime64[D]")


def _counts(clock: Clock, steps: NDArray[np.int64], offset: float, days: NDArray[Any]) -> Numbers:
    """Whether each step is in a holiday; the number of holidays in steps of more than a day."""
    begins = clock.dates(steps, offset).astype("datetime64[us]")
    if clock.kind == "weekdays" or (clock.kind == "time" and clock.step <= DAY):
        return np.isin(begins.astype("datetime64[D]"), days).astype(np.float64)
    following = clock.dates(steps + 1, offset).astype("datetime64[us]")
    if clock.kind == "months":
        begins, following = (times.astype("datetime64[M]") for times in (begins, following))
    first, after = (np.searchsorted(days, times.astype("datetime64[D]")) for times in (begins, following))
    return (after - first).astype(np.float64)
