"""Argument checks of `plmu.ops` and of layers, and the internal form that every algorithm receives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from plmu.core.modes import autocasts, values_unknown, watched
from plmu.core.systems import LinearSystem

if TYPE_CHECKING:
    from plmu.ops.groups import SystemGroups

Lengths = Tensor | Sequence[int] | None
_HALVES = (torch.float16, torch.bfloat16)  # whose sums overflow early


@dataclass
class Problem:
    """A checked input. Time steps at and past a sequence's length are zero in `u`."""

    u: Tensor  #: (batch, time, inputs, channels)
    system: LinearSystem  #: the system, for example of `DelayNetwork.discretize`
    state: Tensor | None  #: (batch, order, channels), float32 or float64
    lengths: Tensor | None  #: (batch,)
    resets: Tensor | None  #: (batch, time)
    dtype: torch.dtype  #: of m and o
    wide: torch.dtype  #: of states: float32, or float64 for float64 input
    groups: SystemGroups | None = None  #: the systems of equal groups of channels, in place of `system`

    def keep_valid(self, values: Tensor) -> Tensor:
        """`values` (batch, time, ...) with zeros past each sequence's length."""
        return keep_valid(values, self.lengths)

    def stops(self) -> Tensor | None:
        """The resets, and one where each sequence ends, so that nothing grows in the padding: (batch, time)."""
        if self.lengths is None:
            return self.resets
        ends = torch.arange(self.u.shape[1], device=self.u.device) == self.lengths[:, None]
        return ends if self.resets is None else self.resets | ends


class Epilogue(NamedTuple):
    """What a layer does with W_m m: relu(W_m m + W_x x + b), or a part of that."""

    x: Tensor | None = None  #: (batch, time, features); None for the input of the memory itself
    weight: Tensor | None = None  #: W_x (out, features)
    bias: Tensor | None = None  #: (out,)
    relu: bool = False

    def after(self, o: Tensor, u: Tensor) -> Tensor:
        """The layer's output from o = W_m m (batch, time, out) and the memory's input u, by torch's operations."""
        added = self.bias if self.weight is None else linear(u if self.x is None else self.x, self.weight, self.bias)
        if added is not None:
            o = o + added.to(o.dtype)
        return torch.relu(o) if self.relu else o


def checked(u: Tensor, system: LinearSystem, state: Tensor | None, lengths: Lengths, resets: Tensor | None) -> Problem:
    """The problem of a public function. Raises on anything that does not fit, naming the argument."""
    if not isinstance(system, LinearSystem):
        hint = "; call its discretize()" if hasattr(system, "discretize") else ""
        raise TypeError(f"system must be a plmu.LinearSystem, got {type(system).__name__}{hint}")
    check_sequence(u, "u")
    if system.inputs is not None and u.shape[2] != system.inputs:
        raise ValueError(f"u must have {system.inputs} channels, as B has inputs; got shape {tuple(u.shape)}")
    return problem_of(u, system, state, lengths, resets)


def problem_of(
    u: Tensor,
    system: LinearSystem,
    state: Tensor | None,
    lengths: Lengths,
    resets: Tensor | None,
) -> Problem:
    """The problem for an input u that was checked already, as layers do. The other arguments are checked here."""
    batch, time, width = u.shape
    channels = width if system.inputs is None else 1
    dtype = result_dtype(u)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if state is not None:
        check_state(state, (batch, system.order, channels), wide, u.device)
    lengths = checked_lengths(lengths, batch, time, u.device)
    resets = checked_resets(resets, batch, time, u.device)
    masked = keep_valid(u, lengths)
    split = masked.unsqueeze(2) if system.inputs is None else masked.unsqueeze(3)
    return Problem(split, system, state, lengths, resets, dtype, wide)


def result_dtype(x: Tensor) -> torch.dtype:
    """The input's precision, or autocast's where it is on."""
    return precision(x.dtype, x.device)


def precision(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The precision of results for inputs of `dtype` on a device: autocast's where it is on, except for float64."""
    if dtype != torch.float64 and autocasts(device):
        return torch.get_autocast_dtype(device.type)
    return dtype


def check_sequence(x: Tensor, name: str) -> None:
    """Raise unless x is a floating-point tensor (batch, time, channels) with at least one step and channel."""
    check_padded(x, name)
    if x.dim() != 3:
        hint = f": for one sequence give {name}[None]" if x.dim() == 2 else ""
        raise ValueError(f"{name} must have shape (batch, time, channels), got {tuple(x.shape)}{hint}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}: convert it, for example {name}.float()")
    if x.shape[1] == 0 or x.shape[2] == 0:
        raise ValueError(f"{name} must have at least one time step and one channel, got shape {tuple(x.shape)}")


def check_features(x: Tensor, dims: int, features: int, weight: Tensor | None = None) -> None:
    """Raise unless x has `dims` dimensions, of which the last is `features`, and the precision of the weight."""
    check_padded(x, "x")
    if x.dim() != dims or x.shape[-1] != features:
        expected = "(batch, time, {})" if dims == 3 else "(batch, {})"
        unbatched = x.dim() == dims - 1 and x.shape[-1] == features
        hint = ": for one sequence give x[None]" if unbatched and dims == 3 else ": give x[None]" if unbatched else ""
        raise ValueError(f"x must have shape {expected.format(features)}, got {tuple(x.shape)}{hint}")
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}: convert it, for example x.float()")
    if weight is not None and x.dtype != weight.dtype and not autocasts(x.device):
        raise TypeError(f"x is {x.dtype} and the layer {weight.dtype}: convert one of them, for example x.to(...)")
    if dims == 3 and x.shape[1] == 0:
        raise ValueError(f"x must have at least one time step, got shape {tuple(x.shape)}")


def check_padded(x: Tensor, name: str) -> None:
    """Raise unless x is a tensor of one shape, padded where sequences differ in length."""
    if isinstance(x, PackedSequence):
        raise TypeError(
            f"{name} must be a tensor, got a PackedSequence: torch.nn.utils.rnn.pad_packed_sequence({name},"
            f" batch_first=True) gives {name} and its lengths"
        )
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.is_nested:
        raise TypeError(
            f"{name} must be a padded tensor, got a nested one: give torch.nested.to_padded_tensor({name}, 0.0)"
            " and lengths"
        )


def check_state(
    state: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, name: str = "state"
) -> None:
    if not isinstance(state, Tensor):
        raise TypeError(f"{name} must be a tensor of shape {shape}, got {type(state).__name__}")
    if tuple(state.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(state.shape)}")
    if state.dtype != dtype:
        raise TypeError(f"{name} must be {dtype} for this input, got {state.dtype}")
    if state.device != device:
        raise ValueError(f"{name} must be on {device}, as the input is; got {state.device}")


class _Checked:
    """Attached to checked lengths: the sizes that they were checked for, and masks derived from them, which the layers
    of a stack share."""

    def __init__(self, batch: int, time: int) -> None:
        self.sizes = (batch, time)
        self.valid: Tensor | None = None  # (batch, time)
        self.reversed: Tensor | None = None  # (batch, time)


def checked_lengths(lengths: Lengths, batch: int, time: int, device: torch.device) -> Tensor | None:
    """The lengths (batch,) as int64 on the device. Raises unless each is between 0 and `time`. Checked once in a stack:
    the layers inside recognise the tensor that this returns. On a GPU a check waits for the device."""
    if lengths is None:
        return None
    earlier = _earlier(lengths)
    same = earlier is not None and earlier.sizes == (batch, time)
    if same and isinstance(lengths, Tensor) and lengths.device == device:
        return lengths
    values = _checked_lengths(lengths, batch, time, device)
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return values  # a compiler sees for itself what is computed twice
    values = values.view_as(values)  # another tensor object: nothing is written on the caller's
    values._plmu_checked = _Checked(batch, time)  # type: ignore[attr-defined]
    return values


def _earlier(lengths: object) -> _Checked | None:
    """The `_Checked` that an earlier check attached to these lengths, or None."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return None
    return getattr(lengths, "_plmu_checked", None)


def _checked_lengths(lengths: Tensor | Sequence[int], batch: int, time: int, device: torch.device) -> Tensor:
    try:
        values = lengths if isinstance(lengths, Tensor) else torch.as_tensor(lengths, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"lengths must be integers, one for each sequence; got {lengths!r}") from None
    if values.numel() == 0:
        values = values.to(torch.int64)  # an empty list has no type of its own
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"lengths must be integers, got {values.dtype}")
    if tuple(values.shape) != (batch,):
        raise ValueError(f"lengths must have shape ({batch},), one for each sequence; got {tuple(values.shape)}")
    values = values.to(torch.int64)
    visible = _visible(values)
    if visible is None:
        return _held_within(values.to(device), time)
    if visible.numel():
        low, high = int(visible.min()), int(visible.max())
        if low < 0 or high > time:
            bad = low if low < 0 else high
            raise ValueError(f"lengths must lie between 0 and the {time} time steps, got {bad}")
    return values.to(device)


def checked_resets(resets: Tensor | None, batch: int, time: int, device: torch.device) -> Tensor | None:
    if resets is None:
        return None
    if not isinstance(resets, Tensor) or resets.dtype != torch.bool:
        kind = resets.dtype if isinstance(resets, Tensor) else type(resets).__name__
        hint = "use resets.bool()" if isinstance(resets, Tensor) else "use torch.tensor(resets, dtype=torch.bool)"
        raise TypeError(f"resets must be a tensor of bool, got {kind}: {hint}")
    if tuple(resets.shape) != (batch, time):
        raise ValueError(f"resets must have shape ({batch}, {time}), got {tuple(resets.shape)}")
    if resets.device != device:
        raise ValueError(f"resets must be on {device}, as the input is; got {resets.device}")
    return resets


def keep_valid(values: Tensor, lengths: Tensor | None) -> Tensor:
    """`values` (batch, time, ...) with zeros at and past each length, whatever stood there, NaN included."""
    if lengths is None:
        return values
    valid = _valid(lengths, values.shape[1])
    return torch.where(valid.reshape(*valid.shape, *(1,) * (values.dim() - 2)), values, 0)


def _valid(lengths: Tensor, time: int) -> Tensor:
    """Which steps are not padding, (batch, time); cached with checked lengths."""
    earlier = _earlier(lengths)
    if earlier is not None and earlier.valid is not None and earlier.valid.shape[1] == time:
        return earlier.valid
    valid = torch.arange(time, device=lengths.device) < lengths[:, None]
    if earlier is not None:
        earlier.valid = valid
    return valid


def reversed_steps(lengths: Tensor, time: int) -> Tensor:
    """(batch, time) indices: `x[b, index[b]]` is sequence b reversed within its length, the padding in its place."""
    earlier = _earlier(lengths)
    if earlier is not None and earlier.reversed is not None and earlier.reversed.shape[1] == time:
        return earlier.reversed
    steps, ends = torch.arange(time, device=lengths.device), lengths[:, None]
    index = torch.where(steps < ends, ends - 1 - steps, steps)
    if earlier is not None:
        earlier.reversed = index
    return index


def _visible(values: Tensor) -> Tensor | None:
    """The tensor whose values can be read: under torch.func, the unwrapped tensor of the whole batch. None while
    compiling or capturing a CUDA graph, and for a tensor without values."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return None
    values = torch.func.debug_unwrap(values, recurse=True)
    if values_unknown(values) or (values.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    return values


def _held_within(lengths: Tensor, time: int) -> Tensor:
    """`lengths` clamped to 0 … `time`, for lengths whose values cannot be read now. A compiled or captured call raises
    for a bad length when it runs; a trace loses that check, and the length is clamped."""
    if torch.compiler.is_compiling() or lengths.is_cuda:
        good = ((lengths >= 0) & (lengths <= time)).all()
        torch._assert_async(good, "lengths must lie between 0 and the number of time steps")
    return lengths.clamp(0, time)


def finite_by_sum(*tensors: Tensor | None) -> bool | None:
    """Whether no value of these tensors is NaN or infinite, judged by their sums: one fast pass. False may also mean
    that a sum overflowed. None if values are not read: in a traced or compiled call, and on a GPU, where reading would
    wait for the device."""
    for values in tensors:
        if values is None:
            continue
        if values.device.type != "cpu" or watched() or (type(values) is not Tensor and values_unknown(values)):
            return None
        values = values.detach() if values.requires_grad else values
        total = values.sum(dtype=torch.float32) if values.dtype in _HALVES else values.sum()
        if not math.isfinite(total.item()):
            return False
    return True
