"""Stretches of consecutive steps at which features are above their thresholds: how many, the longest, the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_FOLLOWED = {"cpu": 2**17, "cuda": 2**24}  # stretches that are followed at a time


def followed(
    x: Tensor, thresholds: Tensor, longest: Tensor, run: Tensor, degree: int, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The steps t of x that are above each threshold, taken one after another.

    Args:
        x: (batch, time, features).
        thresholds: (count, features).
        longest: the longest stretch before x, (batch, count · features).
        run: steps of the stretch that has not ended before x, (batch, count · features).
        degree: the highest power of t + ½ that is summed.
        lengths: of the sequences, (batch,).

    Returns:
        The sums of (t + ½)ᵏ of those steps, (batch, 1 + degree, count · features); how many of them go on with a
        stretch; the longest stretch; and the one that has not ended.
    """
    batch, dtype, shape = len(x), run.dtype, thresholds.shape
    thresholds = thresholds.to(dtype)
    ends = lengths.tolist()
    order = sorted(range(batch), key=lambda i: -ends[i])
    equal = min(ends, default=0) == max(ends, default=0)
    rows = max(1, _FOLLOWED.get(x.device.type, 2**17) // thresholds.numel())  # as many as stay in a cache
    sums, more = run.new_zeros(1 + degree, *run.shape), torch.zeros_like(run)
    longest, run = longest.clone(), run.clone()
    for first in range(0, batch, rows):
        some = order[first : first + rows]
        place = torch.tensor(some, device=x.device)
        mine = (x[first : first + rows] if equal else x[place]).to(dtype)
        kept = [one[place].unflatten(1, shape) for one in (*sums, more, longest, run)]
        above, before = torch.empty_like(kept[-1]), (kept[-1] > 0).to(dtype)
        for left, begin, end in _active([ends[i] for i in some]):
            now, last, values = above[:left], before[:left], mine[:left, :, None]
            count, *moments, went_on, most, current = (one[:left] for one in kept)
            for t in range(begin, end):
                # Written as numbers: as truth values they would be compared one by one.
                torch.gt(values[:, t], thresholds, out=now)
                count.add_(now)
                for k, moment in enumerate(moments, 1):
                    moment.add_(now, alpha=(t + 0.5) ** k)
                went_on.addcmul_(now, last)
                torch.addcmul(now, current, now, out=current)
                torch.maximum(most, current, out=most)
                now, last = last, now
            if (end - begin) % 2:
                above, before = before, above
        for one, value in zip((*sums, more, longest, run), kept, strict=True):
            one[place] = value.flatten(1)
    return sums.movedim(0, 1), more, longest, run


def followed_at_steps(
    above: Tensor, longest: Tensor, run: Tensor, resets: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Which steps begin a stretch, the longest stretch so far and the one that has not ended, at each step.

    Args:
        above: whether each feature is above each threshold, (batch, time, count · features).
        longest: the longest stretch before, (batch, count · features).
        run: steps of the stretch that has not ended before, (batch, count · features).
        resets: steps before which all begins anew, (batch, time).
    """
    at = torch.arange(above.shape[1], device=above.device)[:, None]
    first = torch.zeros_like(above[:, :, :1], dtype=torch.bool) if resets is None else resets[:, :, None]
    part = first.cumsum(1)  # how many resets there were
    # The last step that is not above, or the one before the last reset.
    stop = torch.maximum(torch.where(above, -1, at), torch.where(first, at - 1, -1)).cummax(1).values
    carried = (part == 0) & (stop < 0)
    steps = at - stop + torch.where(carried, run.long()[:, None], 0)
    # A longest stretch of an earlier part never counts: each part's numbers lie above those of the parts before.
    offset = part * (above.shape[1] + 1 + torch.maximum(run, longest).long()[:, None])
    held = torch.where(part == 0, torch.maximum(steps, longest.long()[:, None]), steps)
    most = (held + offset).cummax(1).values - offset
    return steps == 1, most, steps


def _active(ends: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Of sequences whose ends fall: how many go on from which step to which."""
    begin = 0
    for left in range(len(ends), 0, -1):
        if ends[left - 1] > begin:
            yield left, begin, ends[left - 1]
            begin = ends[left - 1]
