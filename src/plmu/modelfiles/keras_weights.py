"""Weights of keras-lmu in plmu's layers.

keras-lmu keeps the memory channel by channel, m[channel · order + i], and plmu coefficient by coefficient. Its matrices
are transposed, and its hidden layer reads [m, x] by one matrix.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from plmu.nn.original import LMU, LMUCell
from plmu.nn.parallel import ParallelLMU

CLOSE = 1e-5  # relative difference of equal θ: keras-lmu keeps 1 / θ in float32
_FREE, _RATIO = 2**30, 50  # bytes that weights of any file may take, and for each byte of the file: it may state more


def load_keras(
    layer: ParallelLMU | LMU | LMUCell, weights: str | os.PathLike[str] | Mapping[str, Any], name: str | None = None
) -> None:
    """Copy the weights of a keras-lmu layer into a plmu layer of the same sizes.

    `LMU` and `LMUFeedforward` without `hidden_to_memory`, `memory_to_memory` and `trainable_theta`, whose hidden cell
    is a `Dense` layer, map to `plmu.ParallelLMU`. All others whose hidden cell is `Dense` or `SimpleRNNCell` map to
    `plmu.LMU` or `plmu.LMUCell`, with `hidden_to_hidden` for a `SimpleRNNCell`.

    >>> layer = plmu.ParallelLMU(3, 5, order=4, theta=20.0, memory_size=2, input_to_output=False)
    >>> plmu.load_keras(layer, "model.weights.h5", "lmu")  # doctest: +SKIP

    Args:
        layer: the plmu layer; its activations, order and θ are not in the weights and stay as they are.
        weights: a `.weights.h5` file of Keras 3, which needs h5py to read; or arrays by the paths of Keras' variables,
            `{variable.path: variable.numpy() for variable in keras_layer.weights}`.
        name: the Keras layer in the file, such as "lmu". May be omitted if the file has one layer of keras-lmu.

    Raises:
        ValueError: a weight is missing, left over or of another size, or the trained θ differs from that of `layer`.
    """
    memory, hidden = _from_file(weights, name) if isinstance(weights, str | os.PathLike) else _from_paths(weights)
    cell = layer.cell if isinstance(layer, LMU) else layer
    if isinstance(cell, ParallelLMU):
        pairs = _parallel(cell, memory, hidden)
    elif isinstance(cell, LMUCell):
        pairs = _original(cell, memory, hidden)
    else:
        raise TypeError(f"layer must be a plmu.ParallelLMU, plmu.LMU or plmu.LMUCell, got {type(layer).__name__}")
    unused = [*memory, *(f"hidden {weight}" for weight in hidden)]
    if unused:
        raise ValueError(f"{type(layer).__name__} has no place for keras-lmu's {', '.join(unused)}: make it with them")
    with torch.no_grad():  # all fit: now they are copied
        for parameter, value in pairs:
            parameter.copy_(value)


Weights = dict[str, Tensor]
Pairs = list[tuple[Tensor, Tensor]]  # parameters of a layer, with their values


def _parallel(layer: ParallelLMU, memory: Weights, hidden: Weights) -> Pairs:
    """The parameters of a parallel LMU with their values, which are removed from `memory` and `hidden`."""
    if layer.gate is not None:
        raise ValueError("keras-lmu has no gated form: the layer must have gated=False")
    channels, order = layer.memory_size, layer.memory.order
    pairs: Pairs = []
    if layer.encoder is not None:
        pairs.append((layer.encoder.weight, _take(memory, "kernel", (layer.input_size, channels)).T))
        if layer.encoder.bias is not None:
            pairs.append((layer.encoder.bias, _optional(memory, "bias", layer.encoder.bias)))
    inputs = 0 if layer.input_weight is None else layer.input_size
    kernel = _take(hidden, "kernel", (channels * order + inputs, layer.hidden_size)).T
    pairs.append((layer.memory_weight, _ordered(kernel[:, : channels * order], channels, order)))
    if layer.input_weight is not None:
        pairs.append((layer.input_weight, kernel[:, channels * order :]))
    if layer.bias is not None:
        pairs.append((layer.bias, _optional(hidden, "bias", layer.bias)))
    return pairs


def _original(cell: LMUCell, memory: Weights, hidden: Weights) -> Pairs:
    """The parameters of an original LMU with their values, which are removed from `memory` and `hidden`."""
    channels, order, size = cell.memory.channels, cell.memory.order, cell.hidden_size
    back = 0 if cell.hidden_encoder is None else size
    kernel = _take(memory, "kernel", (cell.input_size + back, channels)).T
    pairs: Pairs = [(cell.input_encoder, kernel[:, : cell.input_size])]
    if cell.hidden_encoder is not None:
        pairs.append((cell.hidden_encoder, kernel[:, cell.input_size :]))
    if cell.memory_encoder is not None:
        recurrent = _take(memory, "recurrent_kernel", (channels * order, channels)).T
        pairs.append((cell.memory_encoder, _ordered(recurrent, channels, order).flatten(1)))
    inputs = 0 if cell.input_weight is None else cell.input_size
    kernel = _take(hidden, "kernel", (channels * order + inputs, size)).T
    pairs.append((cell.memory_weight, _ordered(kernel[:, : channels * order], channels, order).flatten(1)))
    if cell.input_weight is not None:
        pairs.append((cell.input_weight, kernel[:, channels * order :]))
    if cell.hidden_weight is not None:
        pairs.append((cell.hidden_weight, _take(hidden, "recurrent_kernel", (size, size)).T))
    if cell.bias is not None:
        pairs.append((cell.bias, _optional(hidden, "bias", cell.bias)))
    if "theta_inv" in memory:
        theta = 1 / float(_take(memory, "theta_inv", ()))
        if cell.memory.trainable == "theta":
            pairs.append((cell.memory.log_theta, torch.full_like(cell.memory.log_theta, theta).log()))
        elif any(abs(window - theta) > CLOSE * theta for window in cell.memory.thetas()):
            raise ValueError(f"the weights have a trained θ of {theta:.6g}: give it as theta, or trainable='theta'")
    return pairs


def _ordered(weight: Tensor, channels: int, order: int) -> Tensor:
    """A weight (outputs, channels · order), channel by channel, as (outputs, order, channels)."""
    return weight.reshape(-1, channels, order).transpose(1, 2)


def _take(weights: Weights, name: str, shape: tuple[int, ...]) -> Tensor:
    """Remove and return a weight; ValueError if it is missing or of another shape."""
    if name not in weights:
        raise ValueError(f"keras-lmu's {name} of shape {shape} is missing; there are {', '.join(weights) or 'none'}")
    value = weights.pop(name)
    if tuple(value.shape) != shape:
        raise ValueError(f"keras-lmu's {name} has the shape {tuple(value.shape)}, and the layer needs {shape}")
    return value


def _optional(weights: Weights, name: str, like: Tensor) -> Tensor:
    """Remove and return a bias; zeros if the layer of keras-lmu has none."""
    return _take(weights, name, tuple(like.shape)) if name in weights else torch.zeros_like(like)


def _from_paths(weights: Mapping[str, Any]) -> tuple[Weights, Weights]:
    """The weights of the memory, and of the hidden cell, whose paths are one level deeper."""
    values = {path: torch.tensor(value) for path, value in weights.items()}
    levels = sorted({path.count("/") for path in values})
    if not 1 <= len(levels) <= 2:
        raise ValueError(f"weights must be arrays by the paths of one Keras layer's variables, got {list(weights)}")
    groups = [
        {path.rpartition("/")[2]: v for path, v in values.items() if path.count("/") == level} for level in levels
    ]
    return groups[0], groups[1] if len(groups) > 1 else {}


def _from_file(path: str | os.PathLike[str], name: str | None) -> tuple[Weights, Weights]:
    """The weights of the memory and of the hidden cell of a layer in a file."""
    try:
        import h5py
    except ImportError:
        raise ModuleNotFoundError("reading a .weights.h5 file needs h5py: pip install h5py", name="h5py") from None
    groups: dict[str, list[Tensor]] = {}
    largest = max(_FREE, _RATIO * os.path.getsize(path))

    def collect(where: str, item: Any) -> None:
        nonlocal largest
        if isinstance(item, h5py.Dataset):
            largest -= item.nbytes
            if largest < 0:
                raise ValueError(f"{path} is damaged: {where} says that it has {item.nbytes / 2**30:,.1f} GiB")
            groups.setdefault(where.rpartition("/vars/")[0], []).append(torch.tensor(item[()]))

    with h5py.File(path) as file:
        file.visititems(collect)
    hidden = {group.removesuffix("/hidden_cell"): group for group in groups if group.endswith("/hidden_cell")}
    names = {layer: layer.split("/")[-1] for layer in hidden}  # by path
    chosen = [layer for layer in names if name in (None, names[layer])]
    if len(chosen) != 1:
        all_names = ", ".join(sorted(names.values())) or "none"
        raise ValueError(f"{path} has the layers of keras-lmu {all_names}; name must be one of them, got {name!r}")
    inner = [group for group in groups if group.startswith(chosen[0]) and group not in hidden.values()]
    memory = groups[inner[0]] if inner else []
    return _named(memory), _named(groups[hidden[chosen[0]]])


def _named(values: list[Tensor]) -> Weights:
    """The weights of a memory or hidden cell by name. Keras saves no names: they follow from the axes and the order."""
    names = dict(zip(("kernel", "recurrent_kernel"), (value for value in values if value.dim() == 2), strict=False))
    return names | {("theta_inv", "bias")[value.dim()]: value for value in values if value.dim() < 2}
