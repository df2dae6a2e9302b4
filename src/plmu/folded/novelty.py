"""How new a value is among those that a stream has had, and how rare such novelty is; all of fixed size.

`CODES` values are remembered that are as far apart as possible. The novelty of a value is its distance to the nearest
of them, relative to their range. Distances are linear up to `LINEAR` mean deviations from the mean, and logarithmic
beyond.
"""

from __future__ import annotations

import torch
from torch import Tensor

CODES = 128  # values that are remembered
LINEAR, LARGEST = 10.0, 1e6  # mean deviations; `LARGEST` of these units from the mean all values are equal
CLOSE = 1e-3  # added to the distance between codes, in ranges: of codes that are closer the older is left out
OCTAVES, FINE = 14, 4  # the novelty 2^-14 to 1 is counted, in `FINE` bins for each factor of 2
PRIOR, USUAL = 10.0, 0.003  # samples that the prior of novelty counts for, and its median
FIRST, FAR = 100.0, 20.0  # samples before which nothing is clipped, then deviations from the mean that count at most


def novel(
    values: Tensor, codes: Tensor, ages: Tensor, place: Tensor, rounding: Tensor, new: Tensor, half_life: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The novelty of values, from 0 to 1, and what is remembered next.

    A value is added to the codes, and the one that is closest to another is left out.

    Args:
        values: (..., views).
        codes: (..., views, CODES), in order.
        ages: of the codes, in steps, (..., views, CODES).
        place: mean and mean deviation, (..., views, 2).
        rounding: a size below which differences do not count, (..., 1).
        new: whether nothing is remembered yet, (..., views).
        half_life: steps after which the distances of a code count half.

    Returns:
        novelty (..., views), codes and ages.
    """
    tiny = torch.finfo(values.dtype).tiny
    values = values[..., None]
    codes = torch.where(new[..., None], values, codes)
    unit = LINEAR * place[..., 1:] + rounding[..., None] + tiny
    both = ((torch.cat([codes, values], dim=-1) - place[..., :1]) / unit).clamp(-LARGEST, LARGEST).asinh()
    mapped, at = both[..., :-1], both[..., -1:]
    distance = (mapped - at).abs().amin(-1)
    span = mapped[..., -1] - mapped[..., 0]
    novelty = distance / (span + distance + tiny)
    # The codes with the value among them: each is the median of itself, the value and the code before it.
    end = torch.full_like(values, torch.inf)
    before, after = torch.cat([-end, codes], dim=-1), torch.cat([codes, end], dim=-1)
    added = before.maximum(after.minimum(values))
    ages, zero = ages + 1, torch.zeros_like(values)
    later = torch.where(before >= values, torch.cat([zero, ages], dim=-1), 0.0)
    age = torch.where(after < values, torch.cat([ages, zero], dim=-1), later)
    among = torch.cat([-end, mapped], dim=-1).maximum(torch.cat([mapped, end], dim=-1).minimum(at))
    gaps = among[..., 1:] - among[..., :-1]
    apart = torch.cat([end, gaps], dim=-1).minimum(torch.cat([gaps, end], dim=-1))
    worth = (apart + CLOSE * (span + distance)[..., None] + tiny).log2() - age / half_life
    stay = torch.arange(CODES, device=values.device) < worth.argmin(-1, keepdim=True)
    codes = torch.where(stay, added[..., :-1], added[..., 1:])
    return novelty, codes, torch.where(stay, age[..., :-1], age[..., 1:])


def tail(novelty: Tensor, counts: Tensor, half_life: float) -> tuple[Tensor, Tensor]:
    """The share of samples so far that were more novel, with a prior; and the next counts.

    Args:
        novelty: (...).
        counts: of samples in the bins of novelty, (..., OCTAVES · FINE).
        half_life: samples after which a sample counts half.
    """
    bins = OCTAVES * FINE
    position = FINE * (novelty.clamp(min=2.0**-OCTAVES).log2() + OCTAVES)
    at = torch.arange(1, bins + 1, dtype=counts.dtype, device=counts.device)  # upper ends of the bins
    within = (at - position[..., None].clamp(max=bins - 1e-6)).clamp(max=1.0)  # from 0 to 1 for its own bin
    above = (counts * within.clamp(min=0.0)).sum(-1)
    prior = PRIOR / (1 + (novelty / USUAL) * (novelty / USUAL))
    p_value = (above + prior) / (counts.sum(-1) + PRIOR)
    here = (within > 0) & (at - 1 <= position[..., None])
    return p_value.clamp(max=1.0), counts * 0.5 ** (1 / half_life) + here.to(counts.dtype)


def placed(place: Tensor, values: Tensor, number: Tensor, half_life: float) -> Tensor:
    """The next mean and mean deviation.

    Args:
        place: mean and mean deviation, (..., views, 2).
        values: (..., views).
        number: of values before, (..., views).
        half_life: values after which a value counts half.
    """
    mean, deviation = place.unbind(-1)
    rate = (1 / (number + 1)).clamp(min=1 - 0.5 ** (1 / half_life))
    limit = torch.where((deviation > 0) & (number > FIRST), FAR * deviation, torch.inf)
    off = torch.where(number > 0, values - mean, 0.0).minimum(limit).maximum(-limit)
    mean = torch.where(number > 0, mean, values) + rate * off
    return torch.stack([mean, deviation + rate * (off.abs() - deviation)], dim=-1)
