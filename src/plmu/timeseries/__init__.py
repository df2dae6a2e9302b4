"""Users' own series: tables and frames to series, estimators fitted in closed form, intervals, scores and reports."""

from plmu.timeseries.anomaly_detector import AnomalyDetector
from plmu.timeseries.classification_report import ClassificationReport
from plmu.timeseries.classifier import SequenceClassifier
from plmu.timeseries.datasets import ForecastWindows, LabelledSeries
from plmu.timeseries.forecaster import Forecaster
from plmu.timeseries.labelled import LabelledData
from plmu.timeseries.labelled_files import read_labelled
from plmu.timeseries.predictions import Forecast
from plmu.timeseries.series import SeriesData, read_series

__all__ = [
    "AnomalyDetector",
    "ClassificationReport",
    "Forecast",
    "ForecastWindows",
    "Forecaster",
    "LabelledData",
    "LabelledSeries",
    "SequenceClassifier",
    "SeriesData",
    "read_labelled",
    "read_series",
]
