"""Models and stream states as files: safetensors with a versioned JSON description in the metadata.

Writing goes to a temporary file that then takes the name, so a full disk or a killed process leaves the old file.
Reading builds known classes with named activations only: it never executes code from a file.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from plmu.nn import LMU, DelayLayer, LMUCell, ParallelLMU, Residual, Sequential
from plmu.systems import LinearSystem

FORMAT = 1
Description = dict[str, Any]


class FileFormatError(ValueError):
    """A file that is broken, foreign, of a newer version, or of another model."""


def save(model: nn.Module, path: str | os.PathLike[str], *, weights_only: bool = False) -> None:
    """Write a model so that `load(path)` rebuilds it.

    That takes known classes with named activations. For any other module use `weights_only=True`, which writes its
    tensors alone, and `load_into(model, path)`.
    """
    tensors, tied = _unique_tensors(model)
    description: Description = {"kind": "weights" if weights_only else "model", "tied": tied}
    if not weights_only:
        description["model"] = _describe(model, tensors, "model")
    write(path, tensors, description)


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> nn.Module:
    """The model that `save` wrote, with its precision, in training mode as any new module."""
    tensors, description = read(path, ("model", "weights"), device)
    if description["kind"] == "weights":
        raise FileFormatError(f"{path} holds weights alone: build the model and call plmu.load_into(model, path)")
    try:
        model = _build(description["model"], tensors)
    except FileFormatError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileFormatError(f"{path} has a description that cannot be built: {error}") from error
    own = _own_tensors(tensors, description, path)
    _check_fit(model, own, path)
    model.load_state_dict(own, assign=True)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, first in description["tied"].items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, parameters[first])
    return model.to(device)


def load_into(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Fill a model's parameters from a file of `save`, or from any safetensors file of its `state_dict()`.

    Names and shapes must match exactly; if they do not, the model is left as it was.
    """
    tensors, description = read(path, ("model", "weights", None), "cpu")
    own = tensors if description["kind"] is None else _own_tensors(tensors, description, path)
    _check_fit(model, own, path)
    model.load_state_dict(own)
    return model


def write(path: str | os.PathLike[str], tensors: dict[str, Tensor], description: Description) -> None:
    """Write tensors and a description to a temporary file beside `path`, then rename it to `path`."""
    metadata = {"plmu": json.dumps({"format": FORMAT, **description})}
    with replacing(path) as temporary:
        try:
            save_file({name: value.detach().contiguous().cpu() for name, value in tensors.items()}, temporary, metadata)
        except SafetensorError as error:
            raise OSError(f"cannot write {path}: {error}") from error


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path` to write to, which takes its name at the end; on an error the old file stays."""
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        reason = "it is a folder" if target.is_dir() else f"there is no folder {target.parent}"
        raise FileNotFoundError(f"cannot write {target}: {reason}")
    temporary = target.parent / f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # as the user's umask has it
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read(
    path: str | os.PathLike[str], kinds: tuple[str | None, ...], device: torch.device | str
) -> tuple[dict[str, Tensor], Description]:
    """Tensors and description of a file of one of these kinds; None stands for a file without a description."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            # Copies: what safetensors gives is a view of the file, which a write to it would change or crash.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise FileFormatError(f"{path} is truncated or not a safetensors file: {error}") from error
    if "plmu" not in metadata:
        if None in kinds:
            return tensors, {"kind": None}
        raise FileFormatError(f"{path} was not written by plmu: it has no description; see plmu.load_into")
    try:
        description = json.loads(metadata["plmu"])
        version, kind = description["format"], description["kind"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} has a broken description: {error}") from error
    if version != FORMAT:
        raise FileFormatError(f"{path} has format version {version}, this plmu reads version {FORMAT}: upgrade plmu")
    if kind not in kinds:
        expected = " or ".join(str(one) for one in kinds if one)
        raise FileFormatError(f"{path} holds a {kind}, not a {expected}")
    return tensors, description


# What `load` may build: each class with the constructor arguments that it keeps as attributes of the same name.
_TORCH: dict[type[nn.Module], tuple[str, ...]] = {
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
_TORCH.update(dict.fromkeys(_PLAIN, ()))
_OWN: tuple[type[nn.Module], ...] = (ParallelLMU, DelayLayer, LMU, LMUCell)
_WITH_BIAS = (nn.Linear, nn.LayerNorm)
_CLASSES: dict[str, Callable[..., nn.Module]] = {
    **{one.__name__: one for one in (*_OWN, *_TORCH)},
    "Sequential": Sequential,
    "Residual": Residual,
    "torch.Sequential": nn.Sequential,
}
_SYSTEMS = ".systems."  # tensors of systems given as matrices; no name in a state_dict begins with a dot
_STACKS = ("Sequential", "Residual", "torch.Sequential")


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
        return description
    if isinstance(module, Residual) and kind is Residual:
        return {"class": "Residual", "modules": [_describe(module.module, tensors, f"{where}.module")]}
    if kind in _OWN:
        config = dict(module.config)  # type: ignore[arg-type]
        for key, value in config.items():
            if isinstance(value, LinearSystem):
                place = f"{_SYSTEMS}{sum(name.startswith(_SYSTEMS) for name in tensors) // 2}"
                tensors[f"{place}.A"], tensors[f"{place}.B"] = value.A.clone(), value.B.clone()
                config[key] = {"system": place}
            elif callable(value):
                raise ValueError(
                    f"{where} ({kind.__name__}) has {key}={value!r}: only activations given by name can be saved;"
                    " use save(..., weights_only=True) and load_into"
                )
        return {"class": kind.__name__, "config": config}
    if kind in _TORCH:
        config = {name: getattr(module, name) for name in _TORCH[kind]}
        if kind in _WITH_BIAS:
            config["bias"] = module.bias is not None
        return {"class": kind.__name__, "config": config}
    raise ValueError(
        f"{where} is a {kind.__name__}, which load could not rebuild: use save(model, path, weights_only=True), and"
        " load_into(model, path) to read it back"
    )


def _build(description: Description, tensors: dict[str, Tensor]) -> nn.Module:
    name = description["class"]
    if name not in _CLASSES:
        raise FileFormatError(f"the file names a class {name!r} that this plmu does not know")
    if name in _STACKS:
        modules = [_build(one, tensors) for one in description["modules"]]
        if "names" in description:
            return nn.Sequential(OrderedDict(zip(description["names"], modules, strict=True)))
        return _CLASSES[name](*modules)
    config = dict(description["config"])
    if isinstance(config.get("system"), dict):
        place = config["system"]["system"]
        config["system"] = LinearSystem(tensors[f"{place}.A"].cpu(), tensors[f"{place}.B"].cpu())
    return _CLASSES[name](**config)


def _own_tensors(
    tensors: dict[str, Tensor], description: Description, path: str | os.PathLike[str]
) -> dict[str, Tensor]:
    """The model's own tensors by name, tied ones under all their names."""
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_SYSTEMS)}
    try:
        own.update({name: own[first] for name, first in description["tied"].items()})
    except (AttributeError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} has a broken description of its tied tensors: {error}") from error
    return own


def _unique_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A module's tensors by name, each once, and for tied ones the name under which they are kept."""
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first_name: dict[int, str] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, value in model.state_dict().items():
        owner = id(parameters.get(name, value))
        if owner in first_name:
            tied[name] = first_name[owner]
        else:
            first_name[owner] = name
            kept[name] = value
    return kept, tied


def _check_fit(model: nn.Module, tensors: dict[str, Tensor], path: str | os.PathLike[str]) -> None:
    expected = model.state_dict()
    problems = [f"missing {name}" for name in expected if name not in tensors]
    problems += [f"unexpected {name}" for name in tensors if name not in expected]
    problems += [
        f"{name} is {tuple(tensors[name].shape)} in the file and {tuple(value.shape)} in the model"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise FileFormatError(f"{path} does not fit the model: {shown}")
