"""Layers that train in parallel over time and run as RNNs, by the conventions of torch.nn."""

from plmu.folded import fold
from plmu.nn.attention import CausalAttention
from plmu.nn.bidirectional import Bidirectional
from plmu.nn.blocks import LMUBlock, MemoryBlock
from plmu.nn.combining import Gated, WeightedStack
from plmu.nn.convolution import CausalConvolution
from plmu.nn.covariates import CovariateForecast
from plmu.nn.cross_attention import Attended, CrossAttention
from plmu.nn.delay import DelayLayer
from plmu.nn.encoder_decoder import EncoderDecoder
from plmu.nn.forecast import LookbackForecast
from plmu.nn.highway import Highway
from plmu.nn.lstm import LSTM
from plmu.nn.original import LMU, LMUCell
from plmu.nn.parallel import ParallelLMU
from plmu.nn.selective import SelectiveLMU
from plmu.nn.sequential import Residual, Sequential
from plmu.nn.shares import ThresholdShares
from plmu.nn.standardization import Standardize, standardize
from plmu.nn.steppable import ACTIVATIONS, Steppable, detached, last_valid, reverse
from plmu.nn.timed import TimedDelayLayer
from plmu.nn.tokens import TokenDelayLayer

__all__ = [
    "ACTIVATIONS",
    "LMU",
    "LSTM",
    "Attended",
    "Bidirectional",
    "CausalAttention",
    "CausalConvolution",
    "CovariateForecast",
    "CrossAttention",
    "DelayLayer",
    "EncoderDecoder",
    "Gated",
    "Highway",
    "LMUBlock",
    "LMUCell",
    "LookbackForecast",
    "MemoryBlock",
    "ParallelLMU",
    "Residual",
    "SelectiveLMU",
    "Sequential",
    "Standardize",
    "Steppable",
    "ThresholdShares",
    "TimedDelayLayer",
    "TokenDelayLayer",
    "WeightedStack",
    "detached",
    "fold",
    "last_valid",
    "reverse",
    "standardize",
]
