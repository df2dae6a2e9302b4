"""Models and stream states as files: safetensors with a versioned JSON description in the metadata.

Writing goes to a temporary file that then takes the name, so a full disk or a killed process leaves the old file.
Reading builds known classes with named activations only: it never executes code from a file. Nothing is allocated for a
file before the names, shapes and types of its tensors are checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from plmu.core.modes import unwrapped, values_unknown
from plmu.errors import FileFormatError as FileFormatError  # and for those who read them
from plmu.errors import TooLarge
from plmu.modelfiles.atomic import replacing
from plmu.modelfiles.blueprint import SYSTEMS, Description, build, describe
from plmu.modelfiles.compare import difference

FORMAT = 1
# Precisions of weights, as safetensors calls them.
_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_PRECISIONS = tuple(_NAMES.values())
_INTEGERS = {torch.int64: "I64"}
_WEIGHTS_ONLY = "use save(model, path, weights_only=True), and load_into(model, path) to read it back"
ATTACHED = ".attached."  # tensors beside those of a model; no name in a state_dict begins with a dot
Shapes = dict[str, tuple[tuple[int, ...], str]]  # shapes of tensors, and their types in safetensors' words, by name


def save(model: nn.Module, path: str | os.PathLike[str], *, weights_only: bool = False) -> None:
    """Write a model so that `load(path)` rebuilds it, with its weights, their precision and which are frozen.

    This requires known classes with named activations, unchanged since they were built. For any other module use
    `weights_only=True`, which writes only its tensors, and `load_into(model, path)`. AveragedModel, DDP and
    torch.compile wrappers are removed. Hooks are not saved.

    Args:
        model: the model; its classes are those of plmu and the per-step modules of torch.
        path: the file. It is replaced only when all of it has been written.
        weights_only: write the tensors of any `nn.Module`, without a description of the model.

    Raises:
        ValueError: `load` could not rebuild this model, or would build another one.
    """
    _save(model, path, weights_only=weights_only)


@dataclass(frozen=True)
class Attachment:
    """What a model's file holds beside the model, which `load` does not read."""

    content: Any  # as JSON
    tensors: dict[str, Tensor]


def save_attached(model: nn.Module, path: str | os.PathLike[str], attachment: Attachment) -> None:
    """`save` a model with an attachment."""
    _save(model, path, attachment)


def load_attached(path: str | os.PathLike[str]) -> tuple[nn.Module, Attachment | None]:
    """The model that `save_attached` wrote, and what is attached; None if nothing is.

    Raises:
        FileFormatError: as `load`.
    """
    model = load(path)
    with reading(path, ("model",)) as file:
        if "attached" not in file.description:
            return model, None
        names = [name for name in file.shapes if name.startswith(ATTACHED)]
        tensors = {name.removeprefix(ATTACHED): value for name, value in file.tensors(names, "cpu").items()}
        return model, Attachment(file.description["attached"], tensors)


def _save(
    model: nn.Module,
    path: str | os.PathLike[str],
    attachment: Attachment | None = None,
    weights_only: bool = False,
) -> None:
    if not isinstance(model, nn.Module):
        hint = ": pass the model itself, not its state_dict()" if isinstance(model, dict) else ""
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}{hint}")
    model = unwrapped(model)
    tensors, tied = _unique_tensors(model)
    description: Description = {"kind": "weights" if weights_only else "model", "tied": tied}
    if not weights_only:
        try:
            description["model"], systems = describe(model)
            # A trial of what `load` will do.
            size = sum(value.numel() * value.element_size() for value in (*tensors.values(), *systems.values()))
            rebuilt = build(json.loads(json.dumps(description["model"])), systems.__getitem__, size)
            problem = difference(model, rebuilt)
            if problem is not None:
                raise ValueError(problem)
            _check_fit(rebuilt, {name: _shape(tensors[tied.get(name, name)]) for name in (*tensors, *tied)}, "the file")
        except TooLarge as error:
            raise ValueError(f"load would refuse the file, since {error}: {_WEIGHTS_ONLY}") from None
        except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{error}; {_WEIGHTS_ONLY}") from error
        buffers = dict(model.named_buffers(remove_duplicate=False))
        frozen = [name for name, value in tensors.items() if not value.requires_grad and name not in buffers]
        description["frozen"] = frozen
        tensors |= systems
    if attachment is not None:
        description["attached"] = attachment.content
        tensors |= {ATTACHED + name: value for name, value in attachment.tensors.items()}
    write(path, tensors, description)


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> nn.Module:
    """The model that `save` wrote, with its precision, in training mode, like any newly built module.

    Args:
        path: the file.
        device: the device of the model.

    Raises:
        FileFormatError: the file is broken or not a model file, or building it would exceed the time limit (1–2 s +
            0.5 s/MB), as a memory of order 2,000 does: then build the model yourself and call `load_into`.
    """
    place = _checked_device(device)
    with reading(path, ("model", "weights")) as file:
        if file.description["kind"] == "weights":
            raise FileFormatError(f"{path} holds weights alone: build the model and call plmu.load_into(model, path)")
        try:
            model = build(file.description["model"], file.system_tensor, file.size)
        except TooLarge as error:
            raise FileFormatError(f"{path}: {error}: build it yourself and call plmu.load_into(model, path)") from None
        except Exception as error:  # any error of a constructor called with a file's options
            raise FileFormatError(f"{path} has a description that cannot be built: {_short(error)}") from error
        tied = file.tied()
        _check_fit(model, file.own_shapes(), path)
        model.load_state_dict(file.own_tensors(place), assign=True)
        frozen = file.description.get("frozen", [])
    for name, first in tied.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, model.get_parameter(first))
    parameters = dict(model.named_parameters())
    if not isinstance(frozen, list) or not all(isinstance(name, str) and name in parameters for name in frozen):
        raise FileFormatError(f"{path} has a broken description of its frozen weights: {_short(frozen)}")
    for name in frozen:
        parameters[name].requires_grad_(False)
    return model


def load_into(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Fill a model's parameters from a file of `save`, or from any safetensors file of its `state_dict()`.

    Names and shapes must match exactly; if they do not, the model is left unchanged. Frozen parameters stay frozen.

    Args:
        model: any `nn.Module`, built by you.
        path: the file.

    Returns:
        The same model.

    Raises:
        FileFormatError: the file is broken or does not fit the model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    with reading(path, ("model", "weights", None)) as file:
        shapes = file.own_shapes()
        filled = model if set(shapes) == set(model.state_dict()) else unwrapped(model)
        _check_fit(filled, shapes, path)
        filled.load_state_dict(file.own_tensors("cpu"))
    return model


def write(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], description: Description, mode: int | None = None
) -> None:
    """Write tensors and a description to a temporary file beside `path`, then rename it to `path`.

    `mode` are its permissions, as in `replacing`.
    """
    metadata = {"plmu": json.dumps({"format": FORMAT, **description})}
    with replacing(_checked_path(path), mode) as temporary:
        try:
            # save_file of safetensors would write to a temporary file of its own, which a kill leaves behind.
            temporary.write_bytes(serialized(_separate(tensors), metadata))
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        except KeyError as error:  # raised by safetensors for a type that it does not know
            name = next((name for name, value in tensors.items() if value.dtype == error.args[0]), "a tensor")
            raise ValueError(f"{name} cannot be saved: safetensors has no {error}") from None
        except UnicodeEncodeError as error:
            raise ValueError(f"a name in the model cannot be saved: {error}") from None


@dataclass
class Contents:
    """The description of an open file; tensors are read on request."""

    path: str | os.PathLike[str]
    description: Description
    shapes: Shapes
    opened: Any  # the file as opened by safetensors

    @property
    def size(self) -> int:
        """Size of all tensors in bytes."""
        with open(self.path, "rb") as file:
            header = int.from_bytes(file.read(8), "little")
        return os.path.getsize(self.path) - 8 - header

    def tensors(self, names: list[str], device: torch.device | str) -> dict[str, Tensor]:
        """Copies of these tensors: safetensors returns views of the file, which another write may change."""
        try:
            return {name: self.opened.get_tensor(name).to(device=device, copy=True) for name in names}
        except SafetensorError as error:
            raise FileFormatError(f"{self.path} has tensors that cannot be read: {error}") from error

    def system_tensor(self, name: str) -> Tensor:
        """A matrix of a system given by its matrices."""
        if name not in self.shapes or self.shapes[name][1] not in _PRECISIONS:
            raise FileFormatError(f"there is no system {name!r} of floating-point numbers")
        return self.tensors([name], "cpu")[name]

    def tied(self) -> dict[str, str]:
        """For each tied tensor, the name under which the file has it."""
        if self.description["kind"] is None:
            return {}
        tied = self.description.get("tied")
        if not isinstance(tied, dict) or not all(
            isinstance(first, str) and first in self.shapes for first in tied.values()
        ):
            raise FileFormatError(f"{self.path} has a broken description of its tied tensors: {_short(tied)}")
        return tied

    def own_shapes(self) -> Shapes:
        """Shapes of the model's tensors, with tied tensors under all their names."""
        return {name: self.shapes[first] for name, first in self._places().items()}

    def own_tensors(self, device: torch.device | str) -> dict[str, Tensor]:
        """The model's tensors, with tied tensors under all their names."""
        places = self._places()
        tensors = self.tensors(sorted(set(places.values())), device)
        return {name: tensors[first] for name, first in places.items()}

    def _places(self) -> dict[str, str]:
        """For each tensor of the model, the name under which the file has it."""
        return {**{name: name for name in self.shapes if not name.startswith((SYSTEMS, ATTACHED))}, **self.tied()}


@contextmanager
def reading(path: str | os.PathLike[str], kinds: tuple[str | None, ...]) -> Iterator[Contents]:
    """Open a file of one of these kinds; None allows any safetensors file without a description."""
    if not Path(_checked_path(path)).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        opened = safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise FileFormatError(f"{path} is truncated or not a safetensors file: {error}") from error
    with opened as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: (tuple(tensor.get_shape()), tensor.get_dtype()) for name, tensor in slices.items()}
        yield Contents(path, _description(path, file.metadata() or {}, kinds), shapes, file)


def _description(path: str | os.PathLike[str], metadata: dict[str, str], kinds: tuple[str | None, ...]) -> Description:
    """The checked description in a file's metadata."""
    if "plmu" not in metadata:
        if None in kinds:
            return {"kind": None}
        raise FileFormatError(f"{path} was not written by plmu: it has no description; see plmu.load_into")
    try:
        description: Description = json.loads(metadata["plmu"])
        version, kind = description["format"], description["kind"]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} has a broken description: {_short(error)}") from error
    if version != FORMAT:
        raise FileFormatError(
            f"{path} has format version {_short(version)}, this plmu reads version {FORMAT}: upgrade plmu"
        )
    if kind not in kinds:
        expected = " or ".join(str(name) for name in kinds if name)
        raise FileFormatError(f"{path} holds a {_short(kind)}, not a {expected}")
    return description


def _short(value: object) -> str:
    """A value from a file, short enough for an error message."""
    text = str(value)
    return text if len(text) <= 300 else text[:300] + "…"


def _checked_path(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The path; raises unless it is a string or a path without null characters."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"path must be a string or a path, got {type(path).__name__}")
    if "\0" in os.fspath(path):
        raise ValueError(f"path must not have a null character, got {path!r}")
    return path


def _checked_device(device: torch.device | str) -> torch.device:
    """The device; ValueError unless torch can use it here."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"device must be one that torch has here, such as 'cpu'; got {device!r}: {reason}") from None
    return place


def _unique_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A module's tensors by name, each once; and for each further name of a tied tensor, its first name."""
    unique: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first_name: dict[int, str] = {}
    try:
        state = model.state_dict(keep_vars=True)
    except RecursionError:
        raise ValueError("model cannot be saved: it is nested too deep, or holds itself") from None
    for name, value in state.items():
        problem = _problem(value)
        if problem is not None:
            raise ValueError(f"{name} cannot be saved: it {problem}")
        if id(value) in first_name:
            tied[name] = first_name[id(value)]
        else:
            first_name[id(value)] = name
            unique[name] = value
    return unique, tied


def _problem(value: object) -> str | None:
    """The reason why a value of a state_dict cannot be written, or None."""
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__}"
    if is_lazy(value):
        return "has no shape yet: run the model once"
    if value.is_nested or value.layout is not torch.strided:
        return f"is {'nested' if value.is_nested else value.layout}, not a dense tensor"
    if value.is_meta:
        return "is on the meta device and has no values"
    return "has no values" if values_unknown(value) else None


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, none sharing memory, as safetensors requires."""
    separate: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, value in tensors.items():
        copied = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if copied.untyped_storage().data_ptr() in places:
            copied = copied.clone()
        places.add(copied.untyped_storage().data_ptr())
        separate[name] = copied
    return separate


def _shape(value: Tensor) -> tuple[tuple[int, ...], str]:
    """Shape and type of a tensor, as in `Shapes`."""
    return tuple(value.shape), (_NAMES | _INTEGERS).get(value.dtype, str(value.dtype))


def _check_fit(model: nn.Module, shapes: Shapes, path: str | os.PathLike[str]) -> None:
    """Raise unless names and shapes are the model's, and floating-point tensors correspond to floating-point
    tensors."""
    expected = model.state_dict()
    problems = [f"missing {name}" for name in expected if name not in shapes]
    problems += [f"unexpected {name}" for name in shapes if name not in expected]
    for name, value in expected.items():
        if name not in shapes:
            continue
        shape, dtype = shapes[name]
        fits = dtype in _PRECISIONS  # a model that `load` builds takes the file's precision, any other keeps its own
        if value.is_meta and not value.is_floating_point():
            fits = dtype == _INTEGERS.get(value.dtype)
        elif not value.is_meta:
            fits = value.is_floating_point() == (fits or dtype.startswith("F"))
        if shape != value.shape:
            problems.append(f"{name} is {shape} in the file and {tuple(value.shape)} in the model")
        elif not fits:
            problems.append(f"{name} is {dtype} in the file and {value.dtype} in the model")
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise FileFormatError(f"{path} does not fit the model: {_short(shown)}")
