"""Layers that train in parallel over time and run as RNNs, by the conventions of torch.nn."""

from plmu.nn.bidirectional import Bidirectional
from plmu.nn.delay import DelayLayer
from plmu.nn.folding import fold
from plmu.nn.original import LMU, LMUCell
from plmu.nn.parallel import ParallelLMU
from plmu.nn.sequential import Residual, Sequential
from plmu.nn.standardization import Standardize, standardize
from plmu.nn.steppable import ACTIVATIONS, Steppable, detached, last_valid, reverse
from plmu.nn.tokens import TokenDelayLayer

__all__ = [
    "ACTIVATIONS",
    "LMU",
    "Bidirectional",
    "DelayLayer",
    "LMUCell",
    "ParallelLMU",
    "Residual",
    "Sequential",
    "Standardize",
    "Steppable",
    "TokenDelayLayer",
    "detached",
    "fold",
    "last_valid",
    "reverse",
    "standardize",
]
