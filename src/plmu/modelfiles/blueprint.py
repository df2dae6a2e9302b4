"""A model as a description in JSON, and the model built from one: known classes with checked options, no code.

A description comes from a file that anyone may have written. What is built from it has its tensors on the `meta`
device, where they take no memory; and what building costs is bounded: see `LIMIT`.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from plmu.core.systems import LinearSystem
from plmu.errors import FileFormatError, TooLarge
from plmu.nn import (
    LMU,
    Bidirectional,
    CausalAttention,
    CausalConvolution,
    CovariateForecast,
    DelayLayer,
    Gated,
    Highway,
    LMUBlock,
    LMUCell,
    LookbackForecast,
    MemoryBlock,
    ParallelLMU,
    Residual,
    SelectiveLMU,
    Sequential,
    Standardize,
    ThresholdShares,
    TimedDelayLayer,
    TokenDelayLayer,
    WeightedStack,
)

Description = dict[str, Any]

# The most that building a description may cost, in multiplications: one or two seconds and less than 200 MiB, and half
# a second more for each megabyte of tensors. Without any tensors one memory of order 1,024 fits, or 500 of order 4.
LIMIT = 24_000_000_000
LIMIT_PER_BYTE = 10_000
_MODULE, _LAYER, _SYSTEM = 3_000_000, 20_000_000, 25_000_000  # what small ones cost: torch's, plmu's, a θ
_MATRICES = 20  # of order², that discretising holds at a time; counted as products, so that a limit bounds memory too
_DEEPEST = 64  # stacks within stacks


# What may be built: each class with the constructor arguments that it keeps as attributes of the same name.
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
    nn.LeakyReLU: ("negative_slope",),
    nn.PReLU: ("num_parameters",),
    nn.ELU: ("alpha",),
    nn.CELU: ("alpha",),
    nn.GELU: ("approximate",),
    nn.Softplus: ("beta", "threshold"),
    nn.Hardtanh: ("min_val", "max_val"),
    nn.Softmax: ("dim",),
    nn.LogSoftmax: ("dim",),
    nn.GLU: ("dim",),
    Standardize: ("features",),
}
_PLAIN = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softsign,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.LogSigmoid,
    nn.Tanhshrink,
)
TORCH.update(dict.fromkeys(_PLAIN, ()))
BLOCKS: dict[type[nn.Module], tuple[str, ...]] = {
    Highway: ("features", "activation"),
    CausalConvolution: ("channels", "kernel_size"),
    CausalAttention: ("width", "heads", "window", "bias"),
    SelectiveLMU: ("input_size", "hidden_size", "order", "theta", "heads", "algorithm"),
    LMUBlock: ("width", "order", "theta", "highways", "activation", "norm", "dropout", "standardize", "algorithm"),
    MemoryBlock: ("width", "order", "theta", "hidden", "kernel_size", "heads", "dropout", "standardize", "algorithm"),
}
_INSIDE = {CausalAttention: 2, SelectiveLMU: 8, LMUBlock: 12, MemoryBlock: 32}  # modules that these make
OPTIONS = {**TORCH, **BLOCKS}
RARE = (
    TimedDelayLayer,
    CovariateForecast,
    LookbackForecast,
    ThresholdShares,
)  # the kind before what it is derived from
OWN: tuple[type[nn.Module], ...] = (ParallelLMU, DelayLayer, TokenDelayLayer, LMU, LMUCell, *RARE)
_WITH_BIAS = (nn.Linear, nn.LayerNorm)
_LEAVES: dict[str, type[nn.Module]] = {one.__name__: one for one in (*OWN, *OPTIONS)}
_STACKS: dict[str, Callable[..., nn.Module]] = {
    "Sequential": Sequential,
    "Residual": Residual,
    "Bidirectional": Bidirectional,
    "Gated": Gated,
    "WeightedStack": WeightedStack,
    "torch.Sequential": nn.Sequential,
}
SYSTEMS = ".systems."  # tensors of systems given as matrices; no name in a state_dict begins with a dot


def describe(model: nn.Module) -> tuple[Description, dict[str, Tensor]]:
    """What `build` needs to make the model again, and the matrices of its systems by name."""
    tensors: dict[str, Tensor] = {}
    return _describe(model, tensors, "model"), tensors


def _describe(module: nn.Module, tensors: dict[str, Tensor], where: str) -> Description:
    kind = type(module)
    if kind is Sequential or kind is nn.Sequential:
        # Not children() or named_children(): they leave out what is there for the second time.
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
    if kind in OWN:
        config = dict(module.config)  # type: ignore[arg-type]
        for key, value in config.items():
            if isinstance(value, LinearSystem):
                place = f"{SYSTEMS}{len(tensors) // 2}"
                tensors[f"{place}.A"], tensors[f"{place}.B"] = value.A, value.B
                config[key] = {"system": place}
            elif callable(value):
                raise ValueError(f"{where} ({kind.__name__}) has {key}={value!r}: only activations given by name can"
                                 " be saved")  # fmt: skip
        return {"class": kind.__name__, "config": config}
    if kind in OPTIONS:
        config = {name: getattr(module, name) for name in OPTIONS[kind]}
        if callable(config.get("activation")):
            raise ValueError(f"{where} ({kind.__name__}) has activation={config['activation']!r}: only activations"
                             " given by name can be saved")  # fmt: skip
        if kind in _WITH_BIAS:
            config["bias"] = module.bias is not None
        return {"class": kind.__name__, "config": config}
    place = "" if where == "model" else f" ({where})"
    raise ValueError(f"cannot save {kind.__name__}{place}: only plmu layers and per-step torch modules are supported")


def build(description: Description, tensor: Callable[[str], Tensor], size: int) -> nn.Module:
    """The model of a description, its parameters on the `meta` device.

    Raises `TooLarge`, another `FileFormatError`, or what a constructor raises, for a description that cannot be built.

    Args:
        description: of `describe`.
        tensor: gives a system's matrix by name.
        size: of the model's tensors in bytes.
    """
    if _cost(description, "model", 0) > LIMIT + LIMIT_PER_BYTE * size:
        raise TooLarge(f"to build this model takes too long for one with {size:,} bytes of tensors")
    # One for each name: a small file must not ask for many copies of a large system.
    system = cache(lambda place: LinearSystem(tensor(f"{place}.A"), tensor(f"{place}.B")))
    with torch.device("meta"):
        return _build(description, system)


def _build(description: Description, system: Callable[[str], LinearSystem]) -> nn.Module:
    name = description["class"]
    if name in _STACKS:
        modules = [_build(one, system) for one in description["modules"]]
        if name == "torch.Sequential" and "names" in description:
            return nn.Sequential(OrderedDict(zip(description["names"], modules, strict=True)))
        return _STACKS[name](*modules, **{key: description[key] for key in ("missing", "merge") if key in description})
    config = dict(description["config"])
    if config.get("system") is not None:
        with torch.device("cpu"):
            config["system"] = system(config["system"]["system"])
    return _LEAVES[name](**config)


def _cost(description: Description, where: str, depth: int) -> float:
    """About how many multiplications it takes to build a description; raises where it has unknown parts."""
    name = description["class"]
    if depth > _DEEPEST:
        raise FileFormatError(f"stacks are nested more than {_DEEPEST} deep")
    if name in _STACKS:
        inside = enumerate(description["modules"])
        if name == "Bidirectional" and len(description["modules"]) != 2:  # of one it would make another
            raise FileFormatError(f"{where} (Bidirectional) must have two modules")
        return _MODULE + sum(_cost(one, f"{where}.{i}", depth + 1) for i, one in inside)
    if name not in _LEAVES:
        raise FileFormatError(f"the file names a class {name!r} that this plmu does not know")
    kind, config = _LEAVES[name], description["config"]
    allowed = _options(kind)
    for key, value in config.items():
        if key not in allowed:
            raise FileFormatError(f"{where} ({name}) has an option {key!r}, which this plmu does not know")
        meaning, fits = _MEANINGS.get(key, _ANY)
        if not fits(value):
            raise FileFormatError(f"{where} ({name}) has {key}={value!r}, which must be {meaning}")
    cost: float = _LAYER if kind in OWN else _MODULE * (1 + _INSIDE.get(kind, 0) + max(config.get("highways", 0), 0))
    for order, theta in ((config.get("order"), config.get("theta")), (config.get("lag_order"), config.get("lags"))):
        if order is None or order < 1:  # a given system, or what the constructor refuses
            continue
        for one in theta if isinstance(theta, list) else [theta]:
            if one is not None and one > 0:
                # Discretising takes some products of matrices, and one more whenever order² / θ doubles.
                products = 8 + 2 * math.log2(order) - math.log2(one)
                cost += _SYSTEM + order**3 * max(products, _MATRICES)
    return cost


def _options(kind: type[nn.Module]) -> set[str]:
    """What a description may give to a constructor; never `device` or `dtype`."""
    if kind in OWN:
        return set(inspect.signature(kind).parameters) - {"device", "dtype"}
    return {*OPTIONS[kind], *(("bias",) if kind in _WITH_BIAS else ())}


def _is_whole(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and value == value


def _is_switch(value: object) -> bool:
    return value is None or (isinstance(value, int) and value in (0, 1))


_Meaning = tuple[str, Callable[[object], bool]]
_WHOLE: _Meaning = ("a whole number", _is_whole)
_WHOLE_OR_NONE: _Meaning = ("a whole number or null", lambda value: value is None or _is_whole(value))
_NUMBER_OR_NONE: _Meaning = ("a number or null", lambda value: value is None or _is_number(value))
_SWITCH: _Meaning = ("true or false", _is_switch)
_ANY: _Meaning = (
    "a name, a number, true, false or null",
    lambda value: isinstance(value, str) or _is_number(value) or _is_switch(value),
)
_MEANINGS: dict[str, _Meaning] = {
    **dict.fromkeys(("in_features", "out_features", "num_embeddings", "embedding_dim", "num_parameters"), _WHOLE),
    **dict.fromkeys(("input_size", "hidden_size", "channels", "width", "window", "highways"), _WHOLE),
    **dict.fromkeys(("horizon", "lookback", "season", "phase", "count", "covariates", "lags", "lag_order"), _WHOLE),
    **dict.fromkeys(("padding_idx", "dim", "order", "memory_size", "hidden", "kernel_size", "heads"), _WHOLE_OR_NONE),
    **dict.fromkeys(("p", "negative_slope", "alpha", "beta", "threshold"), ("a number", _is_number)),
    **dict.fromkeys(("min_val", "max_val", "norm_type"), ("a number", _is_number)),
    **dict.fromkeys(("eps", "max_norm"), _NUMBER_OR_NONE),
    **dict.fromkeys(("scale_grad_by_freq", "sparse", "elementwise_affine", "bias", "norm"), _SWITCH),
    **dict.fromkeys(("memory_noise", "memory_dropout", "token_dropout", "dropout"), ("a number", _is_number)),
    **dict.fromkeys(("gated", "standardize", "encoder", "input_to_output", "return_sequences"), _SWITCH),
    **dict.fromkeys(("individual", "relative"), _SWITCH),
    **dict.fromkeys(("hidden_to_memory", "memory_to_memory", "input_to_hidden", "hidden_to_hidden"), _SWITCH),
    "approximate": ("none or tanh", lambda value: value in ("none", "tanh")),
    "normalized_shape": (
        "a list of whole numbers",
        lambda value: isinstance(value, list) and all(_is_whole(one) for one in value),
    ),
    "features": (
        "a whole number or a list of them",
        lambda value: _is_whole(value) or (isinstance(value, list) and all(_is_whole(one) for one in value)),
    ),
    "theta": (
        "a number, a list of numbers or null",
        lambda value: all(map(_is_number, value)) if isinstance(value, list) else _NUMBER_OR_NONE[1](value),
    ),
    "system": (
        "null or the name of a system",
        lambda value: value is None or (isinstance(value, dict) and str(value.get("system")).startswith(SYSTEMS)),
    ),
}
