"""Weights of keras-lmu in plmu's layers.

keras-lmu keeps the memory channel by channel, m[channel · order + i], and plmu coefficient by coefficient. Its matrices
are transposed, and its hidden layer reads [m, x] by one matrix.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from plmu.core.systems import DelayNetwork, LinearSystem
from plmu.errors import FileFormatError
from plmu.nn.original import LMU, LMUCell
from plmu.nn.parallel import ParallelLMU

Weights = dict[str, Tensor]
Pairs = list[tuple[Tensor, Tensor]]  # parameters of a layer, with their values

CLOSE = 1e-5  # relative difference of equal θ: keras-lmu keeps 1 / θ in float32
_MOST_PER_BYTE = 1024  # bytes of arrays for each byte of a file, which may be compressed


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

    The discretisation is not in the weights either. For `discretizer="euler"` give the layer
    `system=plmu.DelayNetwork(order, theta).discretize(method="euler")`.

    Raises:
        FileFormatError: the file is broken, reads other files, or does not fit the layer.
        ValueError: a weight is missing, left over or of another size, or the trained θ differs from that of `layer`.
    """
    if not isinstance(weights, str | os.PathLike):
        _copy(layer, *_from_paths(weights))
        return
    try:
        _copy(layer, *_from_file(weights, name))
    except ValueError as error:
        raise FileFormatError(f"{os.fspath(weights)}: {error}") from error


def _copy(layer: Any, memory: Weights, hidden: Weights) -> None:
    """Copy the weights of the memory and of the hidden cell into a layer, all or none."""
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
    if cell.encoder_bias is not None:
        pairs.append((cell.encoder_bias, _optional(memory, "bias", cell.encoder_bias)))
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
        rate = float(_take(memory, "theta_inv", ()))
        if not 0 < rate < math.inf:
            raise ValueError(f"keras-lmu's theta_inv must be positive and finite, got {rate:g}")
        theta = 1 / rate
        if cell.memory.trainable == "theta":
            pairs.append((cell.memory.log_theta, torch.full_like(cell.memory.log_theta, theta).log()))
        elif not _has_window(cell, theta):
            raise ValueError(f"the weights have a trained θ of {theta:.6g}: give it as theta, or trainable='theta'")
    return pairs


def _has_window(cell: LMUCell, theta: float) -> bool:
    """Whether the memory of a cell has the window θ; given by its system, by zero-order hold or by Euler's method."""
    memory = cell.memory
    if memory.thetas():
        return all(abs(window - theta) <= CLOSE * theta for window in memory.thetas())
    network, system = DelayNetwork(memory.order, theta), memory.systems()[0]
    zoh = network.discretize()
    euler = LinearSystem(torch.eye(memory.order, dtype=torch.float64) + network.A, network.B)
    return any(
        torch.allclose(system.A, same.A, rtol=0, atol=2 * CLOSE * float((network.A).abs().max()))
        for same in (zoh, euler)
    )  # fmt: skip


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
    for where, value in _datasets(h5py, path):
        groups.setdefault(where.rpartition("/vars/")[0], []).append(value)
    hidden = {group.removesuffix("/hidden_cell"): group for group in groups if group.endswith("/hidden_cell")}
    names = {layer: layer.split("/")[-1] for layer in hidden}  # by path
    chosen = [layer for layer in names if name in (None, names[layer])]
    if len(chosen) != 1:
        all_names = ", ".join(sorted(names.values())) or "none"
        raise ValueError(f"it has the layers of keras-lmu {all_names}; name must be one of them, got {name!r}")
    inner = [group for group in groups if group.startswith(chosen[0]) and group not in hidden.values()]
    memory = groups[inner[0]] if inner else []
    return _named(memory), _named(groups[hidden[chosen[0]]])


def _datasets(h5py: Any, path: str | os.PathLike[str]) -> list[tuple[str, Tensor]]:
    """All arrays of a file by their paths, in the order of names. Raises FileFormatError unless all of them are numbers
    in the file itself: HDF5 can refer to other files of the machine."""
    size = os.stat(path).st_size
    arrays: list[tuple[str, Tensor]] = []
    done: set[Any] = set()

    def collect(group: Any, where: str) -> None:
        for name in group:
            inner = f"{where}{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise FileFormatError(f"{inner} is a link, which Keras does not write")
            item = group[name]
            identity = h5py.h5o.get_info(item.id).addr
            if identity in done:
                raise FileFormatError(f"{inner} is in the file twice")
            done.add(identity)
            if isinstance(item, h5py.Group):
                collect(item, f"{inner}/")
            elif "vars" in where.split("/"):
                arrays.append((inner, _array(item, inner, size)))

    with open(path, "rb") as opened:
        try:
            with h5py.File(opened) as file:
                collect(file, "")
        except FileFormatError:
            raise
        except Exception as error:  # h5py raises errors of many kinds for damaged files
            raise FileFormatError(f"not an HDF5 file, or broken: {error}") from error
    return arrays


def _array(item: Any, where: str, size: int) -> Tensor:
    """A dataset as a tensor."""
    if item.external or item.is_virtual:
        raise FileFormatError(f"{where} is kept in another file, which is not read")
    if item.dtype.kind not in "fiu":
        raise FileFormatError(f"{where} has values of {item.dtype}, not numbers")
    if item.nbytes > _MOST_PER_BYTE * size:
        raise FileFormatError(f"{where} of shape {item.shape} does not fit into a file of {size:,} bytes")
    return torch.tensor(item[()])


def _named(values: list[Tensor]) -> Weights:
    """The weights of a memory or hidden cell by name. Keras saves no names: they follow from the axes and the order."""
    names = dict(zip(("kernel", "recurrent_kernel"), (value for value in values if value.dim() == 2), strict=False))
    return names | {("theta_inv", "bias")[value.dim()]: value for value in values if value.dim() < 2}
