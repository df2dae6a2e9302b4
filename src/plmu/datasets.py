"""Moved to `plmu.timeseries`; this name goes in the next version."""

import warnings

from plmu.timeseries.datasets import ForecastWindows, LabelledSeries

__all__ = ["ForecastWindows", "LabelledSeries"]

warnings.warn("plmu.datasets is now plmu.timeseries", DeprecationWarning, stacklevel=2)
