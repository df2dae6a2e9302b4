"""What a `Forecaster` has learned, beside its model in a file: sums, errors, the last rows of each series, and how
series are read. JSON and tensors, so that reading runs no code."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plmu.clock import Clock
from plmu.errors import FileFormatError
from plmu.modelfiles.files import Attachment, load_attached
from plmu.nn.pooled import PooledForecast, PooledMember
from plmu.runs.intervals import Scaling
from plmu.timeseries.calibration import Calibration
from plmu.timeseries.columns import Columns
from plmu.timeseries.comparing import Options
from plmu.timeseries.fitted import Fitted
from plmu.timeseries.frames import Form, SeriesTable
from plmu.timeseries.intervals import Intervals
from plmu.timeseries.learning import Forgetting, ReadoutSums, WindowSums
from plmu.timeseries.learning_pooled import MemberSums, Place, PooledSums
from plmu.timeseries.partial import Learning, tables_of
from plmu.timeseries.predictions import ForecastModel
from plmu.timeseries.series import Key, Piece, SeriesConfig, SeriesData, last_pieces
from plmu.timeseries.split import Settings, Split
from plmu.timeseries.window_linear import WindowLinear

Tensors = dict[str, Tensor]


def read_saved(path: str | os.PathLike[str], estimator: type, model: Any) -> tuple[Any, Attachment]:
    """The model of an estimator that was saved with `updatable=True`, and what is beside it: a dictionary.

    Args:
        path: of the file.
        estimator: its class.
        model: the class of its model, or several.

    Raises:
        FileFormatError: the file is broken, or of something else.
    """
    loaded, attachment = load_attached(path)
    if attachment is None:
        raise FileFormatError(f"{path} holds a model alone: save the estimator with updatable=True")
    content = attachment.content if isinstance(attachment.content, dict) else {}
    if not isinstance(loaded, model) or content.get("estimator") != estimator.__name__:
        raise FileFormatError(f"{path} holds no {estimator.__name__}")
    return loaded, attachment


def packed(fitted: Fitted, learning: Learning) -> Attachment:
    """What was learned, with the last rows of each series."""
    split, tensors = fitted.series("partial_fit"), {}  # type: tuple[Split, Tensors]
    reach = learning.reach(split)
    tails = [piece.since(max(0, len(piece) - reach)) for piece in last_pieces(split.data.pieces).values()]
    config, data = split.data.config, split.data
    content = {
        "settings": dataclasses.asdict(split.settings),
        "columns": dataclasses.asdict(data.columns),
        "config": None if config is None else dataclasses.asdict(dataclasses.replace(config, file=None, root=None)),
        "file": None if config is None or config.file is None else config.file.name,
        "lags": split.lags,
        "calendar": split.calendar,
        "covariates": list(fitted.covariates),
        "options": fitted.options._asdict(),
        "forms": None if fitted.tables is None else [_form(table.form) for table in fitted.tables],
        "several": fitted.several,
        "pieces": [_piece(piece, number, tensors) for number, piece in enumerate(tails)],
        "half_life": learning.forgetting.half_life,
        "latest": learning.forgetting.latest,
        "first": [[*key, step] for key, step in learning.first.items()],
        "calibration": _calibration(learning.calibration, tensors),
        "sums": _pooled(learning.sums, tensors)
        if isinstance(learning.sums, PooledSums)
        else _window_sums(learning.sums, "", tensors),
    }
    tensors["scale"] = split.scale
    return Attachment(as_json(content), tensors)


def unpacked(attachment: Attachment, model: ForecastModel, empty: bool) -> Fitted:
    """What `packed` wrote.

    Args:
        attachment: of the file.
        model: of the same file.
        empty: whether to take what was chosen alone, without rows and sums.

    Raises:
        FileFormatError: it is damaged.
    """
    try:
        return _unpacked(attachment.content, dict(attachment.tensors), model, empty)
    except (ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FileFormatError(f"the file has a broken description of what was learned: {error!r}") from None


def _unpacked(content: Any, tensors: Tensors, model: ForecastModel, empty: bool) -> Fitted:
    settings = _settings(content["settings"])
    columns = _tuples(content["columns"], "values", "notes", "covariates", "names")
    config = content["config"]
    if config is not None:
        config = SeriesConfig(**_tuples(config, "values", "covariates", "absent"))
        config.file = Path(content["file"] or "X")
    described = () if empty else enumerate(content["pieces"])
    pieces = [_read_piece(piece, number, tensors, len(settings.values)) for number, piece in described]
    data = SeriesData(Columns(**columns), settings.clock, pieces, config=config)
    cuts = [(len(piece), len(piece)) for piece in pieces]
    scale = checked_tensor(tensors["scale"], torch.float32, len(settings.values))
    split = Split(data, settings, cuts, [0] * len(pieces), scale, content["lags"], content["calendar"])
    forms, tables = content["forms"], None
    if forms is not None:
        last = sorted({piece.source: piece for piece in pieces}.items())
        empties = [SeriesTable(piece.values[:0], _read_form(forms[source])) for source, piece in last]
        tables = tables_of(empties, pieces, settings.clock)
    named = forms is None
    sums = _read_sums(content["sums"], tensors, model, empty, named)
    learning = Learning(
        sums,
        Forgetting(float(content["half_life"]), int(content["latest"])),
        _read_calibration(content["calibration"], tensors, empty, len(settings.values), settings.horizon),
        {} if empty else {(name, source): int(step) for name, source, step in content["first"]},
    )
    return Fitted(
        model,
        model,
        settings,
        content["covariates"],
        split=split,
        options=Options(**content["options"]),
        tables=tables,
        several=content["several"],
        learning=learning,
        tails=True,
    )


def as_json(content: Any) -> Any:
    """Content as JSON holds it, with numbers of NumPy as plain ones."""
    return json.loads(json.dumps(content, default=lambda value: value.item()))


def _tuples(content: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The content with these lists as tuples."""
    return {**content, **{name: tuple(content[name]) for name in names}}


def _settings(content: Mapping[str, Any]) -> Settings:
    return Settings(**{**_tuples(content, "values", "covariates", "lookbacks"), "clock": Clock(**content["clock"])})


def _piece(piece: Piece, number: int, tensors: Tensors) -> dict[str, Any]:
    tensors[f"piece.{number}.values"] = torch.from_numpy(piece.values.copy())
    tensors[f"piece.{number}.measured"] = torch.from_numpy(piece.measured.copy())
    if piece.covariates is not None:
        tensors[f"piece.{number}.covariates"] = torch.from_numpy(piece.covariates.copy())
    return {"name": piece.name, "start": piece.start, "offset": piece.offset, "source": piece.source}


def checked_tensor(tensor: Tensor, dtype: torch.dtype | None, *shape: int | None) -> Tensor:
    """The tensor; ValueError unless it has this type, or without one is of floating point, and this shape, in which
    None is any size."""
    sizes = zip(tensor.shape, shape, strict=False)
    typed = tensor.is_floating_point() if dtype is None else tensor.dtype == dtype
    if typed and tensor.ndim == len(shape) and all(wanted in (None, size) for size, wanted in sizes):
        return tensor
    raise ValueError(f"a tensor must be {dtype} of shape {shape}, got {tensor.dtype} of shape {tuple(tensor.shape)}")


def _read_piece(content: Mapping[str, Any], number: int, tensors: Tensors, channels: int) -> Piece:
    covariates = tensors.get(f"piece.{number}.covariates")
    values = checked_tensor(tensors[f"piece.{number}.values"], torch.float64, None, channels)
    measured = checked_tensor(tensors[f"piece.{number}.measured"], torch.bool, *values.shape)
    if not len(values) or (covariates is not None and len(covariates) < len(values)):
        raise ValueError(f"piece {number} has too few rows")
    return Piece(
        content["name"],
        int(content["start"]),
        values.numpy(),
        measured.numpy(),
        float(content["offset"]),
        None if covariates is None else covariates.numpy(),
        int(content["source"]),
    )


def _form(form: Form) -> dict[str, Any]:
    times = None
    if form.times is not None:
        zone = getattr(form.times.dtype, "tz", getattr(form.times.dtype, "time_zone", None))
        times = {"name": form.times.name, "zone": None if zone is None else str(zone)}
    return {**dataclasses.asdict(dataclasses.replace(form, times=None)), "times": times}


def _read_form(content: Mapping[str, Any]) -> Form:
    """The form; times are those of the library, to the microsecond."""
    names, columns = (None if content[name] is None else tuple(content[name]) for name in ("names", "columns"))
    form, times = Form(content["flat"], content["frame"], names, columns, None, content["index"]), content["times"]
    if form.frame is not None:
        if form.frame not in ("pandas", "polars"):
            raise ValueError(f"no library of data frames: {form.frame!r}")
        library = import_module(form.frame)
        if times is not None and form.frame == "pandas":
            stamps = library.DatetimeIndex([], tz=times["zone"], name=times["name"])
            form = dataclasses.replace(form, times=stamps if form.index else stamps.to_series())
        elif times is not None:
            stamps = library.Series(times["name"], [], dtype=library.Datetime("us", times["zone"]))
            form = dataclasses.replace(form, times=stamps)
    return form


def _calibration(calibration: Calibration, tensors: Tensors) -> dict[str, Any]:
    unit = calibration.unit
    tensors |= {f"calibration.{name}": getattr(calibration, name) for name in ("errors", "series", "steps")}
    tensors["calibration.floor"] = unit.floor
    scaling = None if unit.scaling is None else dataclasses.asdict(unit.scaling)
    names = {"relative": unit.relative, "lookback": unit.lookback, "nonnegative": unit.nonnegative}
    return {**names, "scaling": scaling, "names": calibration.names}


def _read_calibration(
    content: Mapping[str, Any], tensors: Tensors, empty: bool, channels: int, horizon: int
) -> Calibration:
    scaling, floor = content["scaling"], tensors["calibration.floor"]
    unit = Intervals(
        (),
        bool(content["relative"]),
        int(content["lookback"]),
        checked_tensor(floor, None, channels),
        scaling=None if scaling is None else Scaling(**_tuples(scaling, "powers")),
        nonnegative=tuple(content["nonnegative"]),
    )
    names = tuple(content["names"])
    errors = checked_tensor(tensors["calibration.errors"], torch.float32, None, channels, horizon)
    series = checked_tensor(tensors["calibration.series"], torch.int64, len(errors))
    steps = checked_tensor(tensors["calibration.steps"], torch.int64, len(errors))
    if not ((series >= 0) & (series < len(names))).all():
        raise ValueError("an error is of a series without a name")
    if empty:
        return Calibration(unit, errors[:0], series[:0], steps[:0], ())
    return Calibration(unit, errors, series, steps, names)


def _sums(sums: ReadoutSums, prefix: str, tensors: Tensors) -> dict[str, float]:
    tensors |= {f"{prefix}{name}": getattr(sums, name) for name in ("gram", "cross", "unit")}
    return {"alpha": sums.alpha, "pull": sums.pull, "count": sums.count}


def _read_readout_sums(
    content: Mapping[str, float], prefix: str, tensors: Tensors, empty: bool, features: int, horizon: int, units: int
) -> ReadoutSums:
    gram = checked_tensor(tensors[f"{prefix}gram"], torch.float64, None, features, features)
    cross = checked_tensor(tensors[f"{prefix}cross"], torch.float64, len(gram), features, horizon)
    unit = checked_tensor(tensors[f"{prefix}unit"], None, units)
    alpha, pull, count = (float(content[name]) for name in ("alpha", "pull", "count"))
    if empty:
        gram, cross, count = torch.zeros_like(gram), torch.zeros_like(cross), 0.0
    return ReadoutSums(gram, cross, count, alpha, pull, unit)


def _window_sums(sums: WindowSums, prefix: str, tensors: Tensors) -> dict[str, Any]:
    if sums.sizes:
        tensors[f"{prefix}sizes"] = torch.stack([*sums.sizes.values()])
    lookback = sums.reader.lookback
    return {**_sums(sums.sums, prefix, tensors), "lookback": lookback, "names": [*sums.sizes]}


def _read_window_sums(
    content: Mapping[str, Any], prefix: str, tensors: Tensors, reader: Any, empty: bool, named: bool
) -> WindowSums:
    """Without names of series, empty sums have no units of series either: position tells arrays apart."""
    sums = _read_readout_sums(content, prefix, tensors, empty, reader.order, reader.horizon, reader.channels)
    names = content["names"] if named or not empty else []
    if not names:
        return WindowSums(reader, sums)
    sizes = checked_tensor(tensors[f"{prefix}sizes"], torch.float64, len(names), len(sums.unit))
    return WindowSums(reader, sums, dict(zip(names, sizes, strict=True)))


def _pooled(sums: PooledSums, tensors: Tensors) -> dict[str, Any]:
    members, maps = {}, {}
    for number, part in sums.members.items():
        prefix = f"member.{number}."
        members[str(number)] = _sums(part.sums, prefix, tensors)
        tensors[f"{prefix}reference"] = part.member.weight.detach()
    for number, linear in sums.maps.items():
        maps[str(number)] = _window_sums(linear, f"map.{number}.", tensors)
    if sums.units:
        tensors["units"] = torch.stack([*sums.units.values()])
    places = [[*key, *place] for key, place in sums.places.items()]
    return {"members": members, "maps": maps, "usual": sums.usual, "places": places, "units": [*sums.units]}


def _read_sums(
    content: Mapping[str, Any], tensors: Tensors, model: ForecastModel, empty: bool, named: bool
) -> WindowSums | PooledSums:
    if not isinstance(model, PooledForecast):
        return _read_window_sums(content, "", tensors, model, empty, named)
    members, maps = {}, {}
    for name, part in content["members"].items():
        number = int(name)
        member = model.readouts[number]
        reference = PooledMember(member.kind, model.horizon).double().requires_grad_(False)
        reference.load_state_dict(member.state_dict())
        reference.weight.copy_(tensors[f"member.{name}.reference"])
        features, horizon = reference.weight.shape
        readout_sums = _read_readout_sums(part, f"member.{name}.", tensors, empty, features, horizon, 1)
        members[number] = MemberSums(reference, readout_sums)
    for name, part in content["maps"].items():
        reader = WindowLinear(model.channels, model.horizon, int(part["lookback"]))
        maps[int(name)] = _read_window_sums(part, f"map.{name}.", tensors, reader, empty, named)
    places: dict[Key, Place] = {}
    units: dict[Key, Tensor] = {}
    if not empty:
        places = {(name, source): Place(*map(int, place)) for name, source, *place in content["places"]}
    if named or not empty:
        rows: Sequence[Tensor] = [*tensors["units"]] if content["units"] else []
        units = {(name, source): unit for (name, source), unit in zip(content["units"], rows, strict=True)}
    return PooledSums(model, members, maps, units, float(content["usual"]), places)
