"""Estimators with `fit`, `predict` and `score` on arrays and data frames, fitted in closed form."""

from plmu.estimators.classifier import SequenceClassifier
from plmu.estimators.forecaster import Forecaster

__all__ = ["Forecaster", "SequenceClassifier"]
