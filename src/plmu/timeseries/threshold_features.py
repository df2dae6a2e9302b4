"""Features of whole series: how often, and where, random projections of the memory's states exceed thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from plmu.nn import CausalConvolution, DelayLayer, Sequential, ThresholdShares
from plmu.timeseries.frames import Array

_DEGREE = 3  # of positions
_POSITIONS = 0.5  # weight of positions beside shares in the ridge regression
_BLOCK = 2**22  # numbers of projections that are held at a time
_SAMPLE = 1000  # steps of training series from which thresholds are taken
_SERIES = 100  # training series from which scales and thresholds are taken
_GOLDEN = 0.6180339887498949  # its multiples fill the unit interval evenly


def padded(arrays: list[Array], normalize: Any) -> tuple[Tensor, Tensor]:
    """Series (examples, time, channels), normalised and padded on the right with zeros, and their lengths."""
    lengths = torch.tensor([len(one) for one in arrays])
    out = torch.zeros(len(arrays), int(lengths.max()), arrays[0].shape[1] * (2 if normalize == "both" else 1))
    for row, one in zip(out, arrays, strict=True):
        taken = one
        if normalize:
            spread = one.std(axis=0)
            taken = (one - one.mean(axis=0)) / np.where(spread > 1e-12 * np.abs(one).max(axis=0), spread, 1.0)
            taken = np.concatenate([taken, one], axis=1) if normalize == "both" else taken
        row[: len(one)] = torch.from_numpy(taken)
    if not bool(out.isfinite().all()):
        raise ValueError("X has numbers too large for float32")
    return out, lengths


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
    """Memories of each source of channels and of its differences, random projections, and the shares of time above
    their thresholds.

    Args:
        x: training series (examples, time, channels), padded.
        lengths: of them.
        sources: groups of channels, such as a normalised and a plain copy, which are projected apart.
        order: of the memories.
        windows: θ of the memories.
        projections: of each window, source and its differences.
        thresholds: of each projection.
        generator: of the random projections.
    """
    channels = x.shape[2] // sources
    groups = 2 * sources * len(windows)  # for each window the sources, of each the signal and its differences
    inputs = nn.Linear(x.shape[2], groups * channels)
    changes = CausalConvolution(groups * channels, 2)
    memory = DelayLayer(groups * channels, order, list(windows))
    projection = nn.Linear(order * groups * channels, groups * projections)
    counts = ThresholdShares(groups * projections, thresholds, positions=_DEGREE, return_sequences=False)
    front = Sequential(inputs, changes, memory, projection, counts).requires_grad_(False)
    sample = torch.randperm(len(x), generator=generator)[:_SERIES]
    some, known = x[sample], lengths[sample]
    valid = torch.arange(x.shape[1]) < known[:, None]
    # Without its mean, as the memory begins with zeros.
    spread, mean = torch.std_mean(some[valid].double(), dim=0, correction=0)
    scale = 1 / torch.where(spread > 1e-12 * mean.abs(), spread, 1.0)
    copies = torch.eye(x.shape[2]).view(sources, 1, channels, -1).expand(-1, 2, -1, -1).reshape(-1, x.shape[2])
    inputs.weight.copy_((copies * scale).repeat(len(windows), 1))
    inputs.bias.copy_(-(copies.double() @ (scale * mean)).repeat(len(windows)))
    changes.weight.zero_()[0] = 1
    changes.weight.view(2, -1, 2, channels)[1, :, 1] = -1
    states = torch.cat(
        [block[mask] for block, mask in _states(front[:3], order * groups * channels, some, known, valid)]
    )
    spread, mean = torch.std_mean(states.double(), dim=0, correction=0)
    spread = torch.where(spread > 1e-6 * spread.max(), spread, torch.inf).float()
    weight = torch.zeros(groups, projections, order, groups, channels)
    for place in range(groups):
        random = torch.randn(projections, order, channels, generator=generator)
        weight[place, :, :, place] = random / random.flatten(1).norm(dim=1)[:, None, None]
    projection.weight.copy_(weight.flatten(0, 1).flatten(1) / spread)
    projection.bias.copy_(-projection.weight.double() @ mean)
    picked = states[torch.randperm(len(states), generator=generator)[:_SAMPLE]]
    ordered = projection(picked).mT.sort(dim=1).values
    # Quantiles at equal distances, which begin at another place for each projection. They lie between two samples:
    # rounding must not decide on which side of a threshold a training series is.
    begin = (torch.arange(groups * projections) * _GOLDEN) % 1
    levels = (torch.arange(thresholds) + begin[:, None]) / thresholds
    below = (levels * (len(picked) - 1)).long()
    above = (below + 1).clamp(max=len(picked) - 1)
    counts.thresholds.copy_((ordered.gather(1, below) + ordered.gather(1, above)).mT / 2)
    return front


def scales(features: int) -> Tensor:
    """What so many standardised features, shares before positions of each degree, are multiplied by."""
    out = torch.ones(features)
    out[features // (1 + _DEGREE) :] = _POSITIONS**0.5
    return out


def over_blocks(model: Sequential, x: Tensor, lengths: Tensor) -> Iterator[Tensor]:
    """The model's outputs of some series at a time, so that memory stays bounded."""
    equal = bool((lengths == x.shape[1]).all())
    place = next(model.parameters()).device
    with torch.no_grad():
        parts = _by_windows(model)
        head, layers = model[:2], [*model[:2], *parts[0]] if parts else model
        *_, projections = widths = [one.out_features for one in layers if isinstance(one, nn.Linear)]
        rows = max(1, _BLOCK // (x.shape[1] * max(widths)))
        for first in range(0, len(x), rows):
            some = slice(first, first + rows)
            series, known = x[some].to(place), None if equal else lengths[some].to(place)
            if not parts:
                yield model(series, lengths=known)[0].cpu()
                continue
            inputs = head(series, lengths=known)[0].chunk(len(parts), 2)
            found = [part(one, lengths=known)[0] for part, one in zip(parts, inputs, strict=True)]
            # Of each degree and threshold, the projections of all windows.
            out = torch.cat([one.unflatten(1, (-1, projections)) for one in found], 2).flatten(1)
            for readout in list(model)[5:]:
                out = readout(out)
            yield out.cpu()


def _by_windows(model: Sequential) -> list[Sequential]:
    """For each window its memory, projections and shares: less work, as the weight of all has zeros between windows.

    Nothing where a projection sees several windows, as it may after training, or the model is not as `build` made it.
    """
    kinds = [nn.Linear, CausalConvolution, DelayLayer, nn.Linear, ThresholdShares]
    if [type(one) for one in model] not in (kinds, [*kinds, nn.Linear]):
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
    """States (some, time, width) of some series at a time, and which of their steps are no padding."""
    rows = max(1, _BLOCK // (x.shape[1] * width))
    for first in range(0, len(x), rows):
        some = slice(first, first + rows)
        yield front(x[some], lengths=lengths[some])[0], valid[some]
