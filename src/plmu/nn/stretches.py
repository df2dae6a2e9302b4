"""Stretches of consecutive steps at which features are above their thresholds: how many, the longest, the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_FOLLOWED = {"cpu": 2**16, "cuda": 2**24}  # stretches that are followed at a time


def followed(
    x: Tensor, thresholds: Tensor, longest: Tensor, run: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """How many steps go on with a stretch, the longest stretch and the one that has not ended, after all steps of x.

    Steps are taken one after another, for as many sequences at a time as stay in a processor's cache.

    Args:
        x: (batch, time, features).
        thresholds: (count, features).
        longest: the longest stretch before x, (batch, count · features).
        run: steps of the stretch that has not ended before x, (batch, count · features).
        lengths: of the sequences, (batch,).
    """
    batch, time, _ = x.shape
    dtype, shape = run.dtype, thresholds.shape
    thresholds = thresholds.to(dtype)
    ends = [time] * batch if lengths is None else lengths.tolist()
    order = sorted(range(batch), key=lambda i: -ends[i])
    rows = max(1, _FOLLOWED.get(x.device.type, 2**16) // thresholds.numel())
    out = torch.zeros_like(run), longest.clone(), run.clone()
    for first in range(0, batch, rows):
        some = order[first : first + rows]
        place = torch.tensor(some, device=x.device)
        mine = x[place].to(dtype)
        kept = [one[place].unflatten(1, shape) for one in out]
        above, before = torch.empty_like(kept[2]), (kept[2] > 0).to(dtype)
        for left, begin, end in _active([ends[i] for i in some]):
            now, last, values = above[:left], before[:left], mine[:left, :, None]
            more, most, current = (one[:left] for one in kept)
            for t in range(begin, end):
                # Written as numbers: as truth values they would be compared one by one.
                torch.gt(values[:, t], thresholds, out=now)
                torch.addcmul(now, current, now, out=current)
                torch.maximum(most, current, out=most)
                more.addcmul_(now, last)
                now, last = last, now
            if (end - begin) % 2:
                above, before = before, above
        for one, value in zip(out, kept, strict=True):
            one[place] = value.flatten(1)
    return out


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
