"""Adding what two forecasters with the same choices have learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from plmu.timeseries.calibration import Calibration
from plmu.timeseries.fitted import Fitted
from plmu.timeseries.learning import ReadoutSums, WindowSums
from plmu.timeseries.learning_pooled import PooledSums
from plmu.timeseries.partial import Learning
from plmu.timeseries.series import Key, Piece


def merged(fitted: Fitted, learning: Learning, other: Fitted, others: Learning) -> Fitted:
    """The first fit with what the second has learned, too.

    Raises:
        ValueError: something else was chosen, or both have learned the same times of a series.
    """
    check_same(fitted, learning, other, others)
    split, added = fitted.series("partial_fit"), other.series("partial_fit")
    pieces, tables = added.data.pieces, fitted.tables
    if tables is not None and other.tables is not None:
        others, pieces = _after(len(tables), others, pieces)
        tables = [*tables, *other.tables]
    _check_apart(fitted, learning, others, split.data.pieces, pieces)
    latest = max(learning.forgetting.latest, others.forgetting.latest)
    first = {key: min(part.first[key] for part in (learning, others) if key in part.first)
             for key in [*learning.first, *others.first]}  # fmt: skip
    together = Learning(
        _added(
            learning.sums.decayed(learning.forgetting.factor(latest)),
            others.sums.decayed(others.forgetting.factor(latest)),
        ),
        learning.forgetting._replace(latest=latest),
        _calibration(learning.calibration, others.calibration),
        first,
    ).bounded(sorted({*learning.model.nonnegative} & {*others.model.nonnegative}))
    cuts = [
        *((begin, len(piece)) for (begin, _), piece in zip(split.cuts, split.data.pieces, strict=True)),
        *((len(piece), len(piece)) for piece in pieces),
    ]
    rows = [*split.validation_rows, *(0 for _ in pieces)]
    places = {piece.key: place for place, piece in reversed([*enumerate([*split.data.pieces, *pieces])])}
    ordered = sorted(
        zip([*split.data.pieces, *pieces], cuts, rows, strict=True),
        key=lambda part: (places[part[0].key], part[0].start),
    )
    data = replace(split.data, pieces=[piece for piece, _, _ in ordered])
    frame, added_frame = split.data.frame, added.data.frame
    data.frame = None if frame is None or added_frame is None else frame.joined(added_frame)
    split = replace(
        split, data=data, cuts=[cut for _, cut, _ in ordered], validation_rows=[count for *_, count in ordered]
    )
    tails = fitted.tails or other.tails
    several = fitted.several or len(tables or ()) > 1
    return fitted.with_learning(
        together, split=split, tables=tables, tails=tails, several=several, validation_rows=None
    )


def check_same(fitted: Fitted, learning: Learning, other: Fitted, others: Learning) -> None:
    """Raise ValueError, with the first difference, unless the same was chosen in both."""
    pairs = zip(_choices(fitted, learning), _choices(other, others), strict=False)
    for (name, value), (other_name, other_value) in pairs:
        if name == other_name and _same(value, other_value):
            continue
        values = "" if isinstance(value, Tensor) or name != other_name else f": {value} and {other_value}"
        raise ValueError(f"merge needs the same choices in both, and {name} differs{values}. Fit once, save with"
                         " updatable=True, and load on each machine with empty=True")  # fmt: skip


def _choices(fitted: Fitted, learning: Learning) -> Iterator[tuple[str, Any]]:
    """What was chosen, by name; and what tells how series are read."""
    settings, model = fitted.settings, learning.solved()
    yield "the model", type(model).__name__
    for field in dataclasses.fields(settings):
        yield field.name, getattr(settings, field.name)
    yield "half_life", learning.forgetting.half_life
    yield "whether series are arrays", fitted.tables is not None
    for name, value in model.config.items():
        if name != "nonnegative" or fitted.options.nonnegative is not None:
            yield name, value
    parts = learning.sums
    sums = _of_members(parts)
    learned = {f"members.{name}.weight" for name in sums} if isinstance(parts, PooledSums) else {"weight"}
    for name, tensor in model.state_dict().items():
        if name not in learned:
            yield name, tensor
    for name, part in sums.items():
        yield f"alpha{name and f' of member {name}'}", part.alpha
        yield f"pull{name and f' of member {name}'}", part.pull
        yield f"the unit{name and f' of member {name}'}", part.unit
    if isinstance(parts, PooledSums):
        for number, member in parts.members.items():
            yield f"the reference of member {number}", member.member.weight


def _of_members(sums: WindowSums | PooledSums) -> dict[str, ReadoutSums]:
    """By the number of a member; "" for those of a look-back."""
    if isinstance(sums, WindowSums):
        return {"": sums.sums}
    members = {str(number): part.sums for number, part in sums.members.items()}
    return members | {str(number): part.sums for number, part in sums.maps.items()}


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return torch.equal(value, other)
    return bool(value == other)


def _after(count: int, learning: Learning, pieces: list[Piece]) -> tuple[Learning, list[Piece]]:
    """What was learned of arrays and wide frames, with `count` others before them."""
    keys = (piece.key for piece in pieces)
    names = {name: str(source + count) if name == str(source) else name for name, source in keys}

    def moved(key: Key) -> Key:
        return names.get(key[0], key[0]), key[1] + count

    sums, calibration = learning.sums, learning.calibration
    if isinstance(sums, WindowSums):
        sums = _renamed(sums, names)
    else:
        units = {moved(key): unit for key, unit in sums.units.items()}
        places = {moved(key): place for key, place in sums.places.items()}
        maps = {number: _renamed(part, names) for number, part in sums.maps.items()}
        sums = replace(sums, units=units, places=places, maps=maps)
    calibration = replace(calibration, names=tuple(names.get(name, name) for name in calibration.names))
    first = {moved(key): step for key, step in learning.first.items()}
    learning = replace(learning, sums=sums, calibration=calibration, first=first)
    return learning, [replace(piece, name=names[piece.name], source=piece.source + count) for piece in pieces]


def _renamed(sums: WindowSums, names: dict[str, str]) -> WindowSums:
    return replace(sums, sizes={names.get(name, name): size for name, size in sums.sizes.items()})


def _check_apart(
    fitted: Fitted, learning: Learning, others: Learning, pieces: list[Piece], others_pieces: list[Piece]
) -> None:
    """Raise ValueError where both have learned the same times of a series."""
    clock, last, other_last = fitted.settings.clock, *({piece.key: piece.last for piece in rows}
                                                       for rows in (pieces, others_pieces))  # fmt: skip
    for key in (key for key in learning.first if key in others.first):
        spans = (learning.first[key], last[key]), (others.first[key], other_last[key])
        if spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]:
            written = [" to ".join(clock.times(torch.tensor(span).numpy())) for span in spans]
            raise ValueError(f"merge: both have learned rows of series {key[0]!r}, from {written[0]} and from"
                             f" {written[1]}: each row may be learned once")  # fmt: skip


def _added(sums: WindowSums | PooledSums, others: WindowSums | PooledSums) -> WindowSums | PooledSums:
    if isinstance(sums, WindowSums) and isinstance(others, WindowSums):
        return _added_windows(sums, others)
    assert isinstance(sums, PooledSums)
    assert isinstance(others, PooledSums)
    members = {number: replace(part, sums=_added_sums(part.sums, others.members[number].sums))
               for number, part in sums.members.items()}  # fmt: skip
    maps = {number: _added_windows(part, others.maps[number]) for number, part in sums.maps.items()}
    places = {**sums.places}
    for key, place in others.places.items():
        if key not in places or places[key].following < place.following:
            places[key] = place
    return replace(sums, members=members, maps=maps, units={**others.units, **sums.units}, places=places)


def _added_windows(sums: WindowSums, others: WindowSums) -> WindowSums:
    return replace(sums, sums=_added_sums(sums.sums, others.sums), sizes={**others.sizes, **sums.sizes})


def _added_sums(sums: ReadoutSums, others: ReadoutSums) -> ReadoutSums:
    return sums.added(others.gram, others.cross, others.count)


def _calibration(calibration: Calibration, others: Calibration) -> Calibration:
    """The errors of both, in the order of time."""
    names = tuple(dict.fromkeys((*calibration.names, *others.names)))
    places = torch.tensor([names.index(name) for name in others.names], dtype=torch.long)
    steps = torch.cat([calibration.steps, others.steps])
    order = steps.argsort(stable=True)
    series = torch.cat([calibration.series, places[others.series]])
    errors = torch.cat([calibration.errors, others.errors])
    return Calibration(calibration.unit, errors[order], series[order], steps[order], names)
