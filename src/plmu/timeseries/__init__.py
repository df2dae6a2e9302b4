"""People's own series: tables and frames to series, estimators fitted in closed form, intervals, scores and reports."""

from plmu.timeseries.classifier import SequenceClassifier
from plmu.timeseries.datasets import ForecastWindows, LabelledSeries
from plmu.timeseries.forecaster import Forecaster

__all__ = ["ForecastWindows", "Forecaster", "LabelledSeries", "SequenceClassifier"]
