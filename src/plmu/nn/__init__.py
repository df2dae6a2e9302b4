"""Layers that train in parallel over time and run as RNNs, by the conventions of torch.nn.

Each line below makes a name public: `plmu.nn.LMU`.
"""

from types import ModuleType as _ModuleType

from plmu.folded import fold as fold
from plmu.nn.anomalies import AnomalyScore as AnomalyScore
from plmu.nn.attention import CausalAttention as CausalAttention
from plmu.nn.bidirectional import Bidirectional as Bidirectional
from plmu.nn.blocks import LMUBlock as LMUBlock
from plmu.nn.blocks import MemoryBlock as MemoryBlock
from plmu.nn.combining import Gated as Gated
from plmu.nn.combining import WeightedStack as WeightedStack
from plmu.nn.continued import Continued as Continued
from plmu.nn.convolution import CausalConvolution as CausalConvolution
from plmu.nn.covariates import CovariateForecast as CovariateForecast
from plmu.nn.cross_attention import Attended as Attended
from plmu.nn.cross_attention import CrossAttention as CrossAttention
from plmu.nn.delay import DelayLayer as DelayLayer
from plmu.nn.encoder_decoder import EncoderDecoder as EncoderDecoder
from plmu.nn.forecast import LookbackForecast as LookbackForecast
from plmu.nn.highway import Highway as Highway
from plmu.nn.learning import LearningForecast as LearningForecast
from plmu.nn.lstm import LSTM as LSTM
from plmu.nn.lstm import open_forget_gates as open_forget_gates
from plmu.nn.original import LMU as LMU
from plmu.nn.original import LMUCell as LMUCell
from plmu.nn.parallel import ParallelLMU as ParallelLMU
from plmu.nn.pooled import PooledForecast as PooledForecast
from plmu.nn.selective import SelectiveLMU as SelectiveLMU
from plmu.nn.sequential import Residual as Residual
from plmu.nn.sequential import Sequential as Sequential
from plmu.nn.shares import ThresholdShares as ThresholdShares
from plmu.nn.standardization import Standardize as Standardize
from plmu.nn.standardization import standardize as standardize
from plmu.nn.steppable import ACTIVATIONS as ACTIVATIONS
from plmu.nn.steppable import Steppable as Steppable
from plmu.nn.steppable import detached as detached
from plmu.nn.steppable import last_valid as last_valid
from plmu.nn.steppable import reverse as reverse
from plmu.nn.timed import TimedDelayLayer as TimedDelayLayer
from plmu.nn.tokens import TokenDelayLayer as TokenDelayLayer

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _ModuleType))
