"""Whether two models are the same: the first difference in words, and a fingerprint of what one step computes."""

from __future__ import annotations

import ctypes
import hashlib
import json
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from plmu.core.systems import LinearSystem
from plmu.modelfiles.blueprint import TORCH
from plmu.nn.memory import Memory
from plmu.nn.savable import Savable, savable_base
from plmu.nn.steppable import activation_name


def difference(model: nn.Module, rebuilt: nn.Module) -> str | None:
    """The first difference of a rebuilt model from the model that was described, in words, apart from weights; or
    None."""
    modules, rebuilt_modules = (dict(module.named_modules(remove_duplicate=False)) for module in (model, rebuilt))
    for name in {**rebuilt_modules, **modules}:
        module, rebuilt_module = modules.get(name), rebuilt_modules.get(name)
        where = f"model.{name}" if name else "model"
        if module is None or rebuilt_module is None or type(module) is not type(rebuilt_module):
            before, after = (
                "nothing" if each is None else f"a {type(each).__name__}" for each in (module, rebuilt_module)
            )
            return f"{where} is {before} where load would build {after}"
        for key, value in vars(rebuilt_module).items():
            if key.startswith("_") or key in ("training", "inplace", "config"):
                continue
            if key not in vars(module) or not _equal(vars(module)[key], value):
                return f"{where}.{key} was changed to {vars(module).get(key)!r}, where load would give {value!r}"
        if isinstance(module, Memory) and isinstance(rebuilt_module, Memory) and module.trainable == "none":
            if module.thetas() != rebuilt_module.thetas():
                return f"{where} has theta {module.thetas()}, where load would build {rebuilt_module.thetas()}"
            if not _same_systems(module, rebuilt_module):
                return f"{where} has a system with other matrices than load would build"
    return None


def _equal(value: Any, rebuilt: Any) -> bool:
    return type(value) is type(rebuilt) and bool(value == rebuilt)


def _same_systems(memory: Memory, rebuilt: Memory) -> bool:
    """Whether two fixed memories have the same matrices."""
    # Matrices made from one θ on two machines may differ by rounding.
    same = torch.allclose if memory.thetas() else torch.equal
    pairs = zip(memory.systems(), rebuilt.systems(), strict=True)
    return all(same(a.cpu(), b.cpu()) for x, y in pairs for a, b in ((x.A, y.A), (x.B, y.B)))


# Options that do not change a step or its state, or that follow from the shapes of weights.
_IGNORED = {"algorithm", "return_sequences", "init", "sparse", "scale_grad_by_freq", "padding_idx", "memory_size"}
_IGNORED |= {"p", "memory_noise", "memory_dropout", "token_dropout"}  # used only in training
# Attributes of plmu's layers added after fingerprints were introduced: the fingerprint of a subclass has their options
# instead.
_ADDED_LATER = {"standardize"}
# Layers whose fingerprints also include options with their default value; those of layers registered later do not.
_WITH_DEFAULTS = {"CausalAttention", "CausalConvolution", "Highway", "LMUBlock", "MemoryBlock", "SelectiveLMU"}
_WITH_DEFAULTS |= {"Standardize"}
_FUNCTIONS = {"input_activation": "f1", "output_activation": "f2", "hidden_activation": "f"}  # attributes of options


def fingerprint(model: nn.Module) -> str:
    """A hash of a model's classes, options and weights, which determine what one step computes.

    The options of a class that plmu does not know are its public attributes that are numbers, names, tensors, systems
    or functions, and lists or dictionaries of those. A function counts by its name. Options of plmu's layers at their
    default are left out, so that a new option does not change the fingerprint of old models.
    """
    digest = hashlib.sha256()
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = {module: layer for module in modules.values() if (layer := _layer(module)) is not None}
    layer_memories = {id(_memory(module)) for module in layers}
    for name, module in modules.items():
        kind = type(module)
        options: dict[str, Any] = {}
        if module in layers:
            options = _layer_options(module, layers[module])
        elif isinstance(module, Memory) and id(module) not in layer_memories:
            options = {"width": module.width, **_memory_options(module)}
        else:
            names = TORCH.get(kind, tuple(module.config) if _has_defaults(module) else ())
            options = {key: getattr(module, key) for key in names if key != "dropout"}  # used only in training
        if kind not in TORCH and not kind.__module__.startswith("plmu."):
            later = _ADDED_LATER if module in layers else ()
            options |= {key: value for key, value in vars(module).items() if _is_option(key) and key not in later}
        described = {key: _hashable(value) for key, value in options.items() if key not in _IGNORED}
        described = {key: value for key, value in described.items() if value is not ...}
        digest.update(json.dumps([name, kind.__name__, described], sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape), _hashed(tensor)]).encode())
    return digest.hexdigest()


def _layer(module: nn.Module) -> Savable | None:
    """The registered class of a layer or its nearest registered base; None if there is none, or if options at their
    default count too."""
    layer = savable_base(module)
    return None if layer is None or layer.kind.__name__ in _WITH_DEFAULTS else layer


def _has_defaults(module: nn.Module) -> bool:
    """Whether the module's own class is registered."""
    layer = savable_base(module)
    return layer is not None and layer.kind is type(module)


def _is_option(name: str) -> bool:
    return not name.startswith("_") and name not in ("training", "config")


def _holder(layer: nn.Module) -> Any:
    """The module that holds a layer's memory and activations: the cell of an LMU, else the layer."""
    return getattr(layer, "cell", layer)


def _memory(layer: nn.Module) -> Memory | None:
    """The memory of a layer; None for a layer without, such as one that keeps a window."""
    return getattr(_holder(layer), "memory", None)


def _layer_options(layer: nn.Module, registered: Savable) -> dict[str, Any]:
    """The options of a layer that differ from their defaults, read from its attributes, which may have changed."""
    holder, memory = _holder(layer), _memory(layer)
    options: dict[str, Any] = {**layer.config, **({} if memory is None else _memory_options(memory))}  # type: ignore[dict-item]
    for option, attribute in _FUNCTIONS.items():
        if option in options:
            options[option] = getattr(holder, attribute)
    if "missing" in options:
        options["missing"] = layer.missing
    defaults = {key: option.default for key, option in registered.options.items()}
    return {key: value for key, value in options.items() if _hashable(value) != defaults[key]}


def _memory_options(memory: Memory) -> dict[str, Any]:
    """The options of a memory; a trained memory's weights take the place of theta and system."""
    if memory.trainable != "none":
        return {"trainable": memory.trainable, "theta": None, "system": None}
    thetas = memory.thetas()
    if not thetas:
        return {"trainable": "none", "order": None, "theta": None, "system": memory.systems()[0]}
    theta = thetas[0] if len(thetas) == 1 else thetas
    return {"trainable": "none", "order": memory.order, "theta": theta, "system": None}


def _hashable(value: Any) -> Any:
    """A value as JSON, tensors by a hash and functions by name; `...` for other kinds of values."""
    if value is None or isinstance(value, Number | str):
        return value
    if isinstance(value, list | tuple):
        return [plain for part in value if (plain := _hashable(part)) is not ...]
    if isinstance(value, dict):
        return {str(key): plain for key, part in value.items() if (plain := _hashable(part)) is not ...}
    if isinstance(value, LinearSystem):
        return [_hashed(value.A), _hashed(value.B)]
    if isinstance(value, Tensor) and not value.is_meta and not value.is_nested:
        return [str(value.dtype), list(value.shape), _hashed(value)]
    if callable(value):
        return activation_name(value) or getattr(value, "__qualname__", type(value).__qualname__)
    return ...


def _hashed(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's values."""
    values = (tensor if tensor.layout is torch.strided else tensor.to_dense()).detach().cpu().contiguous()
    content = (ctypes.c_char * values.nbytes).from_address(values.data_ptr()) if values.nbytes else b""
    return hashlib.sha256(content).hexdigest()
