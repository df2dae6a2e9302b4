"""plmu: sequence models whose only recurrence is linear. They train in parallel over time and run as RNNs."""

from plmu import nn
from plmu.cache import set_cache_limit
from plmu.files import FileFormatError, load, load_into, save
from plmu.nn import LMU, DelayLayer, LMUCell, ParallelLMU, Residual, Sequential
from plmu.ops import Plan, final_state, for_graphs, isolate_nonfinite, plan, project, states
from plmu.stream import Stream
from plmu.systems import DelayNetwork, LinearSystem

__version__ = "0.1.0"

__all__ = [
    "LMU",
    "DelayLayer",
    "DelayNetwork",
    "FileFormatError",
    "LMUCell",
    "LinearSystem",
    "ParallelLMU",
    "Plan",
    "Residual",
    "Sequential",
    "Stream",
    "__version__",
    "final_state",
    "for_graphs",
    "isolate_nonfinite",
    "load",
    "load_into",
    "nn",
    "plan",
    "project",
    "save",
    "set_cache_limit",
    "states",
]
