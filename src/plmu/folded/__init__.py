"""Folded models: a trained model as named, read-only arrays, with its constants multiplied out.

`plmu.fold(model)` makes one, `plmu.Stream` runs on it, and export can start from it. Each kind is a frozen dataclass:
its tensors are arrays, its other fields plain options, and fields that are folded themselves nest. To add a kind,
derive it from `Folded`, or from `Stateless`, and return it from the `fold()` of your layer.
"""

from plmu.folded.anomalies import AnomalyScore
from plmu.folded.attention import WindowAttention
from plmu.folded.base import Folded, Place, Stateless, wide_dtype
from plmu.folded.base import fold as fold
from plmu.folded.blocks import SelectiveMemory, Taps
from plmu.folded.continued import Continued
from plmu.folded.forecast import CovariateForecast, WindowForecast
from plmu.folded.functions import Affine, Applied, Carry, Function, Gate, Identity, Lookup, Norm, Scale, Unit
from plmu.folded.joining import chain
from plmu.folded.learning import LearningForecast
from plmu.folded.memory import CoupledMemory, Delay, LinearMemory, ParallelMemory
from plmu.folded.pooled import PooledForecast
from plmu.folded.shares import RunningShares
from plmu.folded.stacks import After, Chain, Filled, Product, Stepped, Sum, WeightedSum
from plmu.folded.timed import TimedDelay

__all__ = [
    "Affine",
    "After",
    "AnomalyScore",
    "Applied",
    "Carry",
    "Chain",
    "Continued",
    "CoupledMemory",
    "CovariateForecast",
    "Delay",
    "Filled",
    "Folded",
    "Function",
    "Gate",
    "Identity",
    "LearningForecast",
    "LinearMemory",
    "Lookup",
    "Norm",
    "ParallelMemory",
    "Place",
    "PooledForecast",
    "Product",
    "RunningShares",
    "Scale",
    "SelectiveMemory",
    "Stateless",
    "Stepped",
    "Sum",
    "Taps",
    "TimedDelay",
    "Unit",
    "WeightedSum",
    "WindowAttention",
    "WindowForecast",
    "chain",
    "wide_dtype",
]
