"""A model as a JSON description, and the model built from it: known classes with checked options, no code.

A description may come from a hostile file. A model built from it has its tensors on the `meta` device, where they take
no memory, and the cost of building it is bounded: see `LIMIT`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from plmu.core.systems import LinearSystem
from plmu.errors import FileFormatError, TooLarge
from plmu.nn import Bidirectional, Continued, Gated, LearningForecast, Residual, Sequential, WeightedStack
from plmu.nn.folding import MODULES
from plmu.nn.savable import REGISTERED

Description = dict[str, Any]

# The highest cost of building a description, in multiplications: 1–2 s and less than 200 MiB, and half a second more
# for each megabyte of tensors. Without any tensors one memory of order 1,024 may be built, or 500 of order 4.
LIMIT = 24_000_000_000
LIMIT_PER_BYTE = 10_000
_MODULE, _LAYER, _SYSTEM = 3_000_000, 20_000_000, 25_000_000  # a torch module, a layer of plmu, a θ: costs if small
_MATRICES = 20  # matrices that discretising holds at once; counted as products, so that the limit bounds memory too
_DEEPEST = 64  # nested stacks

# Modules of torch that may be built, with the constructor arguments that are their attributes too. The layers of plmu
# are in `REGISTERED`.
TORCH: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Embedding: (
        "num_embeddings",
        "embedding_dim",
        "padding_idx",
        "max_norm",
        "norm_type",
        "scale_grad_by_freq",
        "sparse",
    ),
    nn.LayerNorm: ("normalized_shape", "eps", "elementwise_affine"),
    nn.RMSNorm: ("normalized_shape", "eps", "elementwise_affine"),
    nn.Dropout: ("p",),
    nn.Dropout1d: ("p",),
    nn.AlphaDropout: ("p",),
    nn.PReLU: ("num_parameters",),
    nn.Identity: (),
    **{kind: options for kind, (_, options) in MODULES.items()},
}
_WITH_BIAS = (nn.Linear, nn.LayerNorm)
_TORCH_NAMES = {kind.__name__: kind for kind in TORCH}
_STACKS: dict[str, Callable[..., nn.Module]] = {
    "Sequential": Sequential,
    "Residual": Residual,
    "Continued": Continued,
    "Bidirectional": Bidirectional,
    "Gated": Gated,
    "WeightedStack": WeightedStack,
    "torch.Sequential": nn.Sequential,
}
SYSTEMS = ".systems."  # tensors of systems given as matrices; no name in a state_dict begins with a dot


def describe(model: nn.Module) -> tuple[Description, dict[str, Tensor]]:
    """The description from which `build` rebuilds the model, and the matrices of its given systems by name."""
    tensors: dict[str, Tensor] = {}
    return _describe(model, tensors, "model"), tensors


def _describe(module: nn.Module, tensors: dict[str, Tensor], where: str) -> Description:
    """`describe` for a module at the path `where`; adds matrices to `tensors`. ValueError if it cannot be saved."""
    kind = type(module)
    if kind is Sequential or kind is nn.Sequential:
        # Not children() or named_children(), which omit a module that occurs a second time.
        inside = (module.layers if isinstance(module, Sequential) else module)._modules
        children = {key: child for key, child in inside.items() if child is not None}
        name = "Sequential" if kind is Sequential else "torch.Sequential"
        modules = [_describe(child, tensors, f"{where}.{key}") for key, child in children.items()]
        description: Description = {"class": name, "modules": modules}
        if list(children) != [str(i) for i in range(len(children))]:
            description["names"] = list(children)
        if isinstance(module, Sequential) and module.missing is not None:
            description["missing"] = module.missing
        return description
    if isinstance(module, Residual) and kind is Residual:
        return {"class": "Residual", "modules": [_describe(module.module, tensors, f"{where}.module")]}
    if isinstance(module, Continued) and kind is Continued:
        inner = _describe(module.module, tensors, f"{where}.module")
        return {"class": "Continued", "modules": [inner], "first": module.first}
    if isinstance(module, Bidirectional) and kind is Bidirectional:
        sides = ("forward_layer", "backward_layer")
        modules = [_describe(getattr(module, side), tensors, f"{where}.{side}") for side in sides]
        return {"class": "Bidirectional", "modules": modules, "merge": module.merge}
    if isinstance(module, Gated) and kind is Gated:
        modules = [_describe(getattr(module, part), tensors, f"{where}.{part}") for part in ("module", "gate")]
        return {"class": "Gated", "modules": modules}
    if isinstance(module, WeightedStack) and kind is WeightedStack:
        modules = [_describe(child, tensors, f"{where}.{i}") for i, child in enumerate(module.layers)]
        return {"class": "WeightedStack", "modules": modules}
    if isinstance(module, LearningForecast) and kind is LearningForecast:
        modules = [_describe(module.model, tensors, f"{where}.model")]
        return {"class": "LearningForecast", "modules": modules, "config": dict(module.config)}
    if kind.__name__ in REGISTERED and REGISTERED[kind.__name__].kind is kind:
        config = dict(module.config)  # type: ignore[arg-type]
        for key, value in config.items():
            if isinstance(value, LinearSystem):
                place = f"{SYSTEMS}{len(tensors) // 2}"
                tensors[f"{place}.A"], tensors[f"{place}.B"] = value.A, value.B
                config[key] = {"system": place}
            elif callable(value):
                raise ValueError(f"{where} ({kind.__name__}) has {key}={value!r}: only activations given by name can be"
                                 " saved")  # fmt: skip
        return {"class": kind.__name__, "config": config}
    if kind in TORCH:
        config = {name: getattr(module, name) for name in TORCH[kind]}
        if kind in _WITH_BIAS:
            config["bias"] = module.bias is not None
        return {"class": kind.__name__, "config": config}
    place = "" if where == "model" else f" ({where})"
    raise ValueError(f"cannot save {kind.__name__}{place}: only plmu layers and per-step torch modules are supported")


def build(description: Description, tensor: Callable[[str], Tensor], size: int) -> nn.Module:
    """The model of a description, with parameters on the `meta` device.

    Raises `TooLarge`, another `FileFormatError`, or the error of a constructor, for a description that cannot be built.

    Args:
        description: as `describe` returns it.
        tensor: returns the matrix of a system by its name.
        size: bytes of the model's tensors, which raise the limit of the cost.
    """
    if _cost(description, "model", 0) > LIMIT + LIMIT_PER_BYTE * size:
        raise TooLarge(f"to build this model takes too long for one with {size:,} bytes of tensors")
    # Cached by name: a small file must not ask for many copies of a large system.
    system = cache(lambda place: LinearSystem(tensor(f"{place}.A"), tensor(f"{place}.B")))
    with torch.device("meta"):
        return _build(description, system)


def _build(description: Description, system: Callable[[str], LinearSystem]) -> nn.Module:
    """`build` without the check of the cost; `system` returns a given system by its name."""
    name = description["class"]
    if name in _STACKS:
        modules = [_build(inner, system) for inner in description["modules"]]
        if name == "torch.Sequential" and "names" in description:
            return nn.Sequential(OrderedDict(zip(description["names"], modules, strict=True)))
        options = {key: description[key] for key in ("missing", "merge", "first") if key in description}
        return _STACKS[name](*modules, **options)
    config = dict(description["config"])
    if config.get("system") is not None:
        with torch.device("cpu"):
            config["system"] = system(config["system"]["system"])
    kind = REGISTERED[name].kind if name in REGISTERED else _TORCH_NAMES[name]
    return kind(*(_build(inner, system) for inner in description.get("modules", ())), **config)


def _cost(description: Description, where: str, depth: int) -> float:
    """The approximate number of multiplications to build a description; FileFormatError if it has unknown classes,
    unknown options or wrong values."""
    name = description["class"]
    if depth > _DEEPEST:
        raise FileFormatError(f"stacks are nested more than {_DEEPEST} deep")
    if name in _STACKS:
        modules = description["modules"]
        if name == "Bidirectional" and len(modules) != 2:  # the constructor would make the second from the first
            raise FileFormatError(f"{where} (Bidirectional) must have two modules")
        return _MODULE + sum(_cost(inner, f"{where}.{i}", depth + 1) for i, inner in enumerate(modules))
    if name not in REGISTERED and name not in _TORCH_NAMES:
        raise FileFormatError(f"the file names a class {name!r} that this plmu does not know")
    config, meanings = description["config"], _meanings(name)
    for key, value in config.items():
        if key not in meanings:
            raise FileFormatError(f"{where} ({name}) has an option {key!r}, which this plmu does not know")
        meaning, fits = meanings[key]
        if not fits(value):
            raise FileFormatError(f"{where} ({name}) has {key}={value!r}, which must be {meaning}")
    modules = description.get("modules", ())
    if len(modules) != (1 if name == "LearningForecast" else 0):
        raise FileFormatError(f"{where} ({name}) has {len(modules)} modules inside")
    inside = REGISTERED[name].modules if name in REGISTERED else 0
    cost: float = _LAYER if inside is None else _MODULE * (1 + inside + max(config.get("highways", 0), 0))
    cost += sum(_MODULE * (1 + sum(map(len, member[4:5]))) for member in config.get("members", ()))
    cost += sum(_cost(inner, f"{where}.model", depth + 1) for inner in modules)
    for order, theta in ((config.get("order"), config.get("theta")), (config.get("lag_order"), config.get("lags"))):
        if order is None or order < 1:  # a given system, or an order that the constructor refuses
            continue
        for window in theta if isinstance(theta, list) else [theta]:
            if window is not None and window > 0:
                # Discretising takes some products of matrices, and one more whenever order² / θ doubles.
                products = 8 + 2 * math.log2(order) - math.log2(window)
                cost += _SYSTEM + order**3 * max(products, _MATRICES)
    return cost


_Meaning = tuple[str, Callable[[Any], bool]]  # what values an option may have, in words and as a check


@cache
def _meanings(name: str) -> dict[str, _Meaning]:
    """The values that a file may have for each option of a class; `device` and `dtype` are no options."""
    if name in REGISTERED:
        return {key: _by_annotation(option.annotation) for key, option in REGISTERED[name].options.items()}
    kind = _TORCH_NAMES[name]
    return {key: _TORCH_MEANINGS[key] for key in (*TORCH[kind], *(("bias",) if kind in _WITH_BIAS else ()))}


def _is_integer(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and value == value


def _is_switch(value: object) -> bool:
    return value is None or (isinstance(value, int) and value in (0, 1))


def _list_of(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_member(value: object) -> bool:
    """Whether it is a member of a `PooledForecast`."""
    kinds = [int, int, bool, bool, list, int]  # the last three may be left out
    if not isinstance(value, list) or len(value) < 3 or list(map(type, value)) != kinds[: len(value)]:
        return False
    return all(_is_integer(size) for sizes in value[4:5] for size in sizes)


# What the parts of an annotation, such as `int | None`, allow.
_PARTS: dict[str, _Meaning] = {
    "int": ("an integer", _is_integer),
    "float": ("a number", _is_number),
    "bool": ("true or false", _is_switch),
    "str": ("a name", lambda value: isinstance(value, str)),
    "Activation": ("a name or null", lambda value: value is None or isinstance(value, str)),
    "Sequence[int]": ("a list of integers", _list_of(_is_integer)),
    "Sequence[float]": ("a list of numbers", _list_of(_is_number)),
    "Sequence[Member]": ("a list of [lookback, season, log, smooth, hidden, adaptive]", _list_of(_is_member)),
    "LinearSystem": (
        "the name of a system",
        lambda value: isinstance(value, dict) and str(value.get("system")).startswith(SYSTEMS),
    ),
    "None": ("null", lambda value: value is None),
}


def _by_annotation(annotation: str) -> _Meaning:
    """The values that an annotation such as "int | None" allows."""
    parts = [_PARTS[part.strip()] for part in annotation.split("|")]
    return " or ".join(words for words, _ in parts), lambda value: any(fits(value) for _, fits in parts)


_INTEGER, _NUMBER, _SWITCH = _PARTS["int"], _PARTS["float"], _PARTS["bool"]
_TORCH_MEANINGS: dict[str, _Meaning] = {
    **dict.fromkeys(("in_features", "out_features", "num_embeddings", "embedding_dim", "num_parameters"), _INTEGER),
    **dict.fromkeys(("padding_idx", "dim"), _by_annotation("int | None")),
    **dict.fromkeys(("p", "negative_slope", "alpha", "beta", "threshold", "min_val", "max_val", "norm_type"), _NUMBER),
    **dict.fromkeys(("eps", "max_norm"), _by_annotation("float | None")),
    **dict.fromkeys(("scale_grad_by_freq", "sparse", "elementwise_affine", "bias"), _SWITCH),
    "approximate": ("none or tanh", lambda value: value in ("none", "tanh")),
    "normalized_shape": _PARTS["Sequence[int]"],
}
