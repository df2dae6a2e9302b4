"""Features of whole series: how often, and where, random projections of the memory's states exceed thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from plmu.nn import CausalConvolution, DelayLayer, Sequential, ThresholdShares
from plmu.timeseries.frames import Array

_DEGREE = 3  # of the polynomials in time that tell where in a series thresholds are exceeded
_POSITION_WEIGHT = 0.5  # weight of these positions in the ridge regression, relative to shares of time
_BLOCK = 2**22  # largest number of projected values held at a time
_SAMPLED_STEPS = 1000  # of training series, from which thresholds are taken
_SAMPLED_SERIES = 100  # training series from which scales and thresholds are taken
_DIGITS = 2.0**-14  # least changes of series as they are, relative to their level: 10 of the 24 digits of float32
_GOLDEN = 0.6180339887498949  # its multiples fill the unit interval evenly


def padded(arrays: list[Array], normalize: Any, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Series (examples, time, channels), normalised and padded on the right with zeros, and their lengths (examples,).

    `normalize` is True, False, or "both": then the normalised channels come first, and the plain ones after them.
    """
    lengths = torch.tensor([len(array) for array in arrays])
    channels = arrays[0].shape[1] * (2 if normalize == "both" else 1)
    out = torch.zeros(len(arrays), int(lengths.max()), channels, dtype=dtype)
    for row, array in zip(out, arrays, strict=True):
        values = array
        if normalize:
            spread = array.std(axis=0)
            values = (array - array.mean(axis=0)) / np.where(spread > 1e-12 * np.abs(array).max(axis=0), spread, 1.0)
            values = np.concatenate([values, array], axis=1) if normalize == "both" else values
        row[: len(array)] = torch.from_numpy(values)
    if not bool(out.isfinite().all()):
        raise ValueError("X has numbers too large for float32")
    if normalize is not True and (fault := lacks_digits(arrays)) is not None:
        raise ValueError(fault)
    return out, lengths


def lacks_digits(arrays: list[Array]) -> str | None:
    """Where series as they are, are so far from zero that float32 has no digits for their changes; None if nowhere."""
    changes = np.max([np.abs(array - array[:1]).max(axis=0) for array in arrays], axis=0)
    changes = np.maximum(changes, np.ptp(np.stack([array[0] for array in arrays]), axis=0))
    level = np.max([np.abs(array).max(axis=0) for array in arrays], axis=0)
    for channel in np.flatnonzero((changes > 0) & (changes < _DIGITS * level)):
        return (
            f"X is at {level[channel]:.3g} in channel {channel} and changes by {changes[channel]:.3g}: float32 has not"
            " that many digits. Subtract a constant from X, or normalize=True"
        )
    return None


def build(
    x: Tensor,
    lengths: Tensor,
    sources: int,
    *,
    order: int,
    windows: Sequence[float],
    projections: int,
    thresholds: int,
    generator: torch.Generator,
) -> Sequential:
    """Layers from series to features: memories of each source of channels and of its differences, random projections
    of their states, and the shares of time in which these exceed thresholds.

    Args:
        x: training series (examples, time, channels), padded.
        lengths: their lengths (examples,).
        sources: the number of groups of channels, such as a normalised and a plain copy, projected separately.
        order: the order of the memories.
        windows: θ of the memories.
        projections: the number of projections of each window, source and its differences.
        thresholds: the number of thresholds of each projection.
        generator: draws the random projections.
    """
    channels = x.shape[2] // sources
    groups = 2 * sources * len(windows)  # for each window the sources, of each the signal and its differences
    inputs = nn.Linear(x.shape[2], groups * channels)
    changes = CausalConvolution(groups * channels, 2)
    memory = DelayLayer(groups * channels, order, list(windows))
    projection = nn.Linear(order * groups * channels, groups * projections)
    counts = ThresholdShares(groups * projections, thresholds, positions=_DEGREE, return_sequences=False)
    front = Sequential(inputs, changes, memory, projection, counts).requires_grad_(False)
    sample = torch.randperm(len(x), generator=generator)[:_SAMPLED_SERIES]
    x, lengths = x[sample], lengths[sample]
    valid = torch.arange(x.shape[1]) < lengths[:, None]
    # The mean is subtracted, as the memory begins with zeros.
    spread, mean = torch.std_mean(x[valid].double(), dim=0, correction=0)
    scale = 1 / torch.where(spread > 1e-12 * mean.abs(), spread, 1.0)
    copies = torch.eye(x.shape[2]).view(sources, 1, channels, -1).expand(-1, 2, -1, -1).reshape(-1, x.shape[2])
    inputs.weight.copy_((copies * scale).repeat(len(windows), 1))
    inputs.bias.copy_(-(copies.double() @ (scale * mean)).repeat(len(windows)))
    changes.weight.zero_()[0] = 1
    changes.weight.view(2, -1, 2, channels)[1, :, 1] = -1
    states = torch.cat(
        [block[mask] for block, mask in _states(front[:3], order * groups * channels, x, lengths, valid)]
    )
    spread, mean = torch.std_mean(states.double(), dim=0, correction=0)
    spread = torch.where(spread > 1e-6 * spread.max(), spread, torch.inf).float()
    weight = torch.zeros(groups, projections, order, groups, channels)
    for group in range(groups):
        random = torch.randn(projections, order, channels, generator=generator)
        weight[group, :, :, group] = random / random.flatten(1).norm(dim=1)[:, None, None]
    projection.weight.copy_(weight.flatten(0, 1).flatten(1) / spread)
    projection.bias.copy_(-projection.weight.double() @ mean)
    picked = states[torch.randperm(len(states), generator=generator)[:_SAMPLED_STEPS]]
    ordered = projection(picked).mT.sort(dim=1).values
    # Equally spaced quantiles, with another offset for each projection. They lie between two samples, so that rounding
    # does not decide on which side of a threshold a training series is.
    offsets = (torch.arange(groups * projections) * _GOLDEN) % 1
    levels = (torch.arange(thresholds) + offsets[:, None]) / thresholds
    below = (levels * (len(picked) - 1)).long()
    above = (below + 1).clamp(max=len(picked) - 1)
    counts.thresholds.copy_((ordered.gather(1, below) + ordered.gather(1, above)).mT / 2)
    return front


def scales(features: int) -> Tensor:
    """Factors (features,) of the standardised features: 1 for shares of time, which come first, and less for the
    positions of each degree after them."""
    out = torch.ones(features)
    out[features // (1 + _DEGREE) :] = _POSITION_WEIGHT**0.5
    return out


def outputs(model: Sequential, x: Tensor, lengths: Tensor) -> Tensor:
    """The model's outputs (examples, …) of padded series, computed in blocks so that memory stays bounded."""
    return torch.cat(list(_output_blocks(model, x, lengths)))


def _output_blocks(model: Sequential, x: Tensor, lengths: Tensor) -> Iterator[Tensor]:
    """The outputs of blocks of series, window by window where `_by_windows` can split the model."""
    equal = bool((lengths == x.shape[1]).all())
    device = next(model.parameters()).device
    with torch.no_grad():
        branches = _by_windows(model)
        head, layers = model[:2], [*model[:2], *branches[0]] if branches else model
        *_, projections = widths = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
        rows = max(1, _BLOCK // (x.shape[1] * max(widths)))
        for first in range(0, len(x), rows):
            block = slice(first, first + rows)
            series, block_lengths = x[block].to(device), None if equal else lengths[block].to(device)
            if not branches:
                yield model(series, lengths=block_lengths)[0].cpu()
                continue
            inputs = head(series, lengths=block_lengths)[0].chunk(len(branches), 2)
            parts = [branch(part, lengths=block_lengths)[0] for branch, part in zip(branches, inputs, strict=True)]
            # The order of the whole model's features: for each degree and threshold the projections of all windows.
            out = torch.cat([part.unflatten(1, (-1, projections)) for part in parts], 2).flatten(1)
            for readout in list(model)[5:]:
                out = readout(out)
            yield out.cpu()


def _by_windows(model: Sequential) -> list[Sequential]:
    """For each window the memory, projections and shares of a model of `build`. Computing these one after the other is
    less work than the whole model, whose projection is 0 between windows.

    Empty where a projection sees several windows, as it may after training, or the model is not as `build` made it.
    """
    kinds = [nn.Linear, CausalConvolution, DelayLayer, nn.Linear, ThresholdShares]
    if [type(layer) for layer in model] not in (kinds, [*kinds, nn.Linear]):
        return []
    _, _, memory, projection, counts, *_ = cast(Any, model)
    systems = memory.memory.systems()
    windows = len(systems)
    if projection.bias is None or projection.out_features % windows or counts.returns_sequences:
        return []
    weight = projection.weight.unflatten(1, (memory.memory.order, windows, -1)).unflatten(0, (windows, -1))
    blocks = weight.diagonal(dim1=0, dim2=3)  # (projections, order, channels, windows)
    if torch.count_nonzero(blocks) < torch.count_nonzero(weight):
        return []
    out = []
    biases, thresholds = projection.bias.chunk(windows), counts.thresholds.chunk(windows, 1)
    for system, block, bias, levels in zip(systems, blocks.unbind(3), biases, thresholds, strict=True):
        states = DelayLayer(block.shape[2], system=system, algorithm=memory.memory.algorithm, missing=memory.missing)
        linear = nn.Linear(block[0].numel(), len(block), device="meta")
        linear.weight, linear.bias = nn.Parameter(block.flatten(1)), nn.Parameter(bias)
        shares = ThresholdShares(**counts.config | {"features": len(block)}, device="meta")
        shares.thresholds = levels
        out.append(Sequential(states, linear, shares))
    return out


def _states(
    front: Sequential, width: int, x: Tensor, lengths: Tensor, valid: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of states (series, time, width), and which of their steps are not padding."""
    rows = max(1, _BLOCK // (x.shape[1] * width))
    for first in range(0, len(x), rows):
        block = slice(first, first + rows)
        yield front(x[block], lengths=lengths[block])[0], valid[block]
