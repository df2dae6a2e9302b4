"""plmu: sequence models whose only recurrence is linear. They train in parallel over time and run as RNNs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plmu import nn
    from plmu.core.derived import set_cache_limit
    from plmu.core.systems import DelayNetwork, LinearSystem
    from plmu.errors import FileFormatError
    from plmu.exports import export
    from plmu.modelfiles.files import load, load_into, save
    from plmu.modelfiles.keras_weights import load_keras
    from plmu.nn import (
        LMU,
        Bidirectional,
        CausalAttention,
        CausalConvolution,
        CrossAttention,
        DelayLayer,
        EncoderDecoder,
        Gated,
        Highway,
        LMUBlock,
        LMUCell,
        MemoryBlock,
        ParallelLMU,
        Residual,
        SelectiveLMU,
        Sequential,
        Standardize,
        TimedDelayLayer,
        TokenDelayLayer,
        WeightedStack,
        fold,
        standardize,
    )
    from plmu.ops import Plan, final_state, for_graphs, isolate_nonfinite, plan, project, states
    from plmu.runtime.frozen import FrozenModel
    from plmu.runtime.sampling import generate
    from plmu.runtime.sessions import Sessions
    from plmu.runtime.stream import Stream
    from plmu.timeseries import Forecaster, SequenceClassifier

__version__ = "0.2.0"

__all__ = [
    "LMU",
    "Bidirectional",
    "CausalAttention",
    "CausalConvolution",
    "CrossAttention",
    "DelayLayer",
    "DelayNetwork",
    "EncoderDecoder",
    "FileFormatError",
    "Forecaster",
    "FrozenModel",
    "Gated",
    "Highway",
    "LMUBlock",
    "LMUCell",
    "LinearSystem",
    "MemoryBlock",
    "ParallelLMU",
    "Plan",
    "Residual",
    "SelectiveLMU",
    "SequenceClassifier",
    "Sequential",
    "Sessions",
    "Standardize",
    "Stream",
    "TimedDelayLayer",
    "TokenDelayLayer",
    "WeightedStack",
    "__version__",
    "export",
    "final_state",
    "fold",
    "for_graphs",
    "generate",
    "isolate_nonfinite",
    "load",
    "load_into",
    "load_keras",
    "nn",
    "plan",
    "project",
    "save",
    "set_cache_limit",
    "standardize",
    "states",
]

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
    "timeseries": ("Forecaster", "SequenceClassifier"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_ROOMS = ("core", "datasets", "exports", "folded", "nn", "ops", "runtime", "timeseries")


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
