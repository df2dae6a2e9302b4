"""plmu: sequence models whose only recurrence is linear. They train in parallel over time and run as RNNs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plmu import nn as nn
    from plmu.core.derived import set_cache_limit as set_cache_limit
    from plmu.core.systems import DelayNetwork as DelayNetwork
    from plmu.core.systems import LinearSystem as LinearSystem
    from plmu.errors import FileFormatError as FileFormatError
    from plmu.exports import export as export
    from plmu.modelfiles.files import load as load
    from plmu.modelfiles.files import load_into as load_into
    from plmu.modelfiles.files import save as save
    from plmu.modelfiles.keras_weights import load_keras as load_keras
    from plmu.nn import LMU as LMU
    from plmu.nn import Bidirectional as Bidirectional
    from plmu.nn import CausalAttention as CausalAttention
    from plmu.nn import CausalConvolution as CausalConvolution
    from plmu.nn import CrossAttention as CrossAttention
    from plmu.nn import DelayLayer as DelayLayer
    from plmu.nn import EncoderDecoder as EncoderDecoder
    from plmu.nn import Gated as Gated
    from plmu.nn import Highway as Highway
    from plmu.nn import LMUBlock as LMUBlock
    from plmu.nn import LMUCell as LMUCell
    from plmu.nn import MemoryBlock as MemoryBlock
    from plmu.nn import ParallelLMU as ParallelLMU
    from plmu.nn import Residual as Residual
    from plmu.nn import SelectiveLMU as SelectiveLMU
    from plmu.nn import Sequential as Sequential
    from plmu.nn import Standardize as Standardize
    from plmu.nn import TimedDelayLayer as TimedDelayLayer
    from plmu.nn import TokenDelayLayer as TokenDelayLayer
    from plmu.nn import WeightedStack as WeightedStack
    from plmu.nn import fold as fold
    from plmu.nn import standardize as standardize
    from plmu.ops import Plan as Plan
    from plmu.ops import final_state as final_state
    from plmu.ops import for_graphs as for_graphs
    from plmu.ops import isolate_nonfinite as isolate_nonfinite
    from plmu.ops import plan as plan
    from plmu.ops import project as project
    from plmu.ops import states as states
    from plmu.runtime.frozen import FrozenModel as FrozenModel
    from plmu.runtime.sampling import generate as generate
    from plmu.runtime.sessions import Sessions as Sessions
    from plmu.runtime.stream import Stream as Stream
    from plmu.timeseries import AnomalyDetector as AnomalyDetector
    from plmu.timeseries import Forecaster as Forecaster
    from plmu.timeseries import SequenceClassifier as SequenceClassifier

__version__ = "0.2.0"

# Which module each public name is in. They are imported at first use, so that `plmu --version` need not import torch.
_MODULES: dict[str, tuple[str, ...]] = {
    "core.derived": ("set_cache_limit",),
    "exports": ("export",),
    "errors": ("FileFormatError",),
    "modelfiles.files": ("load", "load_into", "save"),
    "modelfiles.keras_weights": ("load_keras",),
    "runtime.frozen": ("FrozenModel",),
    "nn": (
        "LMU",
        "Bidirectional",
        "CausalAttention",
        "CausalConvolution",
        "CrossAttention",
        "DelayLayer",
        "EncoderDecoder",
        "Gated",
        "Highway",
        "LMUBlock",
        "LMUCell",
        "MemoryBlock",
        "ParallelLMU",
        "Residual",
        "SelectiveLMU",
        "Sequential",
        "Standardize",
        "TimedDelayLayer",
        "TokenDelayLayer",
        "WeightedStack",
        "fold",
        "standardize",
    ),
    "ops": ("Plan", "final_state", "for_graphs", "isolate_nonfinite", "plan", "project", "states"),
    "runtime.sampling": ("generate",),
    "runtime.sessions": ("Sessions",),
    "runtime.stream": ("Stream",),
    "core.systems": ("DelayNetwork", "LinearSystem"),
    "timeseries": ("AnomalyDetector", "Forecaster", "SequenceClassifier"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_ROOMS = ("core", "datasets", "exports", "folded", "nn", "ops", "runtime", "timeseries")

__all__ = sorted(["__version__", "nn", *_HOMES])


def __getattr__(name: str) -> Any:
    """A public name, or a room of the library, at its first use; from then on it is an ordinary attribute."""
    if name in _ROOMS:
        return import_module(f"plmu.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'plmu' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"plmu.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
