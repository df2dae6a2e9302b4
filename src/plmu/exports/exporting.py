"""`plmu.export`: a trained model as files that run without plmu."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plmu
from plmu.errors import how_to_install
from plmu.exports.accuracy import AccuracyWarning, int8_error, int8_warning
from plmu.exports.c_files import c_files, checked_name
from plmu.exports.evaluate import Evaluator
from plmu.exports.forecast import POSITION
from plmu.exports.lowering import lowered
from plmu.exports.pooled import COUNTED
from plmu.exports.program import Program
from plmu.folded import fold
from plmu.folded.base import foldable
from plmu.modelfiles.atomic import replacing

FORMATS = ("onnx", "torch", "c")
_NO_WHOLE = "the model runs one step after another"


@dataclass(frozen=True)
class Exported:
    """The files of an export, with sizes and measurements; `str()` gives a report."""

    files: tuple[Path, ...]
    multiply_adds: int  # of a step, in matrix products only
    weight_bytes: int  # of constants; in C, of flash
    state_bytes: int  # of a stream, between steps
    work_bytes: int | None  # of C: used only within a step
    microseconds: dict[str, float] = field(default_factory=dict)  # time of a step on one core, by runtime
    int8_error: float | None = None  # |y − y with rounded weights| / |y|
    fixed_error: float | None = None  # the same with fixed-point sums too
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{path}  {path.stat().st_size:,} bytes" for path in self.files]
        lines.append(f"multiply-adds per step  {self.multiply_adds:,}")
        if self.work_bytes is None:
            lines.append(f"weights  {self.weight_bytes:,} bytes, state  {self.state_bytes:,} bytes")
        else:
            ram = self.state_bytes + self.work_bytes
            lines.append(f"flash for weights  {self.weight_bytes:,} bytes")
            lines.append(f"RAM  {ram:,} bytes: state {self.state_bytes:,}, work area {self.work_bytes:,}")
        if self.int8_error is not None:
            lines.append(f"relative error of outputs by int8 weights  {self.int8_error:.2e}")
        if self.fixed_error is not None:
            lines.append(f"relative error by int8 weights and fixed-point sums  {self.fixed_error:.2e}")
        lines += [f"time per step, {name}  {value:.2f} µs" for name, value in self.microseconds.items()]
        return "\n".join([*lines, *self.notes])


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    to: str = "onnx",
    *,
    name: str = "model",
    whole: bool = False,
    int8: bool = False,
    fixed_point: bool = False,
    metadata: Mapping[str, Any] | None = None,
    samples: Tensor | None = None,
    measure: bool = False,
) -> Exported:
    """Write a trained model as files that run without plmu: the model of one step, with its states as explicit inputs
    and outputs. It computes in float32. States start as zeros. A model with a season then takes its first sample to be
    at the season's phase that `states` in the metadata names; to start at another step of the clock, set that state to
    [step, -1], as `model.state_at(step)` does, in C by `model_start(state, step)`.

    >>> plmu.export(model, "deploy")                # deploy/model_step.onnx, model.onnx.json
    >>> plmu.export(model, "deploy", to="c")        # deploy/model.c, model.h, model_check.c, Makefile, model.c.json
    >>> plmu.export(model, "deploy", to="torch")    # deploy/model_step.pt2, model.pt2, model.torch.json

    ONNX: inputs x (batch, features), or token numbers (batch,), and state_0_in, state_1_in, …; outputs y and
    state_0_out, state_1_out, … in the same order and with the same shapes. torch: a program (x, state_0, …) → (y,
    state_0, …), and the same for whole sequences (batch, time, features). C: `model_init(state)`, `model_step(state, x,
    y)`, and for a classifier `model_softmax(y, probabilities)`.

    Args:
        model: any steppable module. AveragedModel, DDP and torch.compile wrappers are removed.
        path: a folder, which is made if it is not there. Files are replaced only when all of them have been written.
        to: "onnx", "torch" or "c".
        name: first part of the names of files, and of functions in C.
        whole: also write the ONNX model of a whole sequence, name.onnx, which runs the step in a loop.
        int8: round weights to int8, with a scale for each row; the memory's own matrices stay as they are. In ONNX the
            file is smaller and steps are as fast, in C the program takes less flash.
        fixed_point: in C, with int8: also round the inputs of each product, to int16, and sum in int32. It is for
            processors that have no floating-point unit; the memory and activations stay float32.
        metadata: entries to add to the files, such as {"classes": ["no", "yes"], "units": "mV", "dt": 0.01}: text or
            JSON. C has the names in "classes", "columns" and "forecast_columns" (of "horizon" steps) as arrays.
        samples: inputs (time, features), or token numbers (time,), on which the quantisation error is measured;
            random numbers if not given.
        measure: also measure the time of a step.

    Returns:
        The files, sizes and measurements.

    Warns:
        AccuracyWarning: int8 changes the outputs far more than the weights, as in the original LMU, whose recurrence
            amplifies rounding errors.

    Raises:
        TypeError: the model is not steppable.
        ValueError: an argument is not allowed, or a part of the model, which the message names, cannot be exported.
        OSError: the folder cannot be written.
    """
    if to not in FORMATS:
        raise ValueError(f"to must be one of {', '.join(FORMATS)}, got {to!r}")
    checked_name(name)
    if int8 and to == "torch":
        raise ValueError("int8 is for onnx and c: leave it out for torch")
    if fixed_point and not (int8 and to == "c"):
        raise ValueError("fixed_point is for int8 weights in C: add to='c' and int8=True, or --to c --int8")
    if whole and to == "c":
        raise ValueError("whole is for onnx and torch: C takes one step at a time")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"path must be a folder, and {path} is a file")
    inner = prepared(model)
    program = program_of(inner, int8)
    described = _metadata(program, metadata, to, int8, fixed_point)
    if to == "onnx":
        output = _onnx(inner, program, name, described, whole, int8, measure)
    elif to == "torch":
        output = _torch(inner, program, name, described, whole, measure)
    else:
        output = _c(program, name, described, int8, fixed_point, measure)
    output.contents[f"{name}.{to}.json"] = (json.dumps(described, indent=1) + "\n").encode()
    output.notes += _season_notes(program, name, to)
    if int8 and not program.roundable:
        output.notes.append("int8: nothing was rounded, since all weights of this model are of memories")
    if measure:
        from plmu.exports.measure import stream_time

        output.microseconds["plmu.Stream"] = stream_time(inner, program)
    error = int8_error(inner, program, samples) if int8 else None
    fixed_error = int8_error(inner, program, samples, fixed=True) if fixed_point else None
    warning = None if error is None else int8_warning(error, program, samples is None)
    if warning is not None:
        output.notes.append(f"warning: {warning}")
        warnings.warn(warning, AccuracyWarning, stacklevel=2)
    files = _write(folder, output.contents)
    return Exported(
        files,
        program.multiply_adds,
        program.weight_bytes(int8),
        program.state_bytes,
        output.work_bytes,
        output.microseconds,
        error,
        fixed_error,
        tuple(output.notes),
    )


@dataclass
class _Output:
    """The contents of a format's files, before they are written, and measurements."""

    contents: dict[str, bytes]
    microseconds: dict[str, float] = field(default_factory=dict)
    work_bytes: int | None = None
    notes: list[str] = field(default_factory=list)


def prepared(model: nn.Module) -> Any:
    """A float32 copy of a steppable model, in evaluation mode on the CPU. A pooled forecast keeps its precision: of a
    series that changes little, relative to its level, float32 weights have too few digits."""
    inner = copy.deepcopy(foldable(model)).cpu().eval().requires_grad_(False)
    return inner if isinstance(inner, plmu.nn.PooledForecast) else inner.float()


def program_of(model: Any, int8: bool = False) -> Program:
    """The program of a prepared model, after a trial step of both."""
    features, tokens = model.input_sizes()
    if tokens is None and features is None:
        raise ValueError("the model does not say how many features it takes: begin it with a layer that does")
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    x = torch.zeros(1, dtype=torch.int64) if features is None else torch.zeros(1, features, dtype=dtype)
    model.step(x)  # raises the model's own error if it cannot run
    program = lowered(fold(model), features, tokens, int8)
    for value, computed in Evaluator(program).values(x).items():
        if value is not program.x and computed.shape != (1, value.size):
            raise ValueError(f"a part of the model gives {computed.shape[-1]} numbers where {value.size} are expected")
    return program


def _metadata(program: Program, extra: Mapping[str, Any] | None, to: str, int8: bool, fixed: bool) -> dict[str, Any]:
    """The metadata of every format: plmu's version, inputs, outputs, states, and `extra`."""
    states: list[dict[str, Any]] = [
        {
            "name": f"state_{i}",
            "kind": kind,
            "shape": ["batch", *(state.shape or (state.size,))],
            "type": "int64"
            if to == "torch" and kind in (POSITION, COUNTED)
            else str(state.dtype).removeprefix("torch."),
            "start": 0,
        }
        for i, (state, kind) in enumerate(zip(program.states, program.kinds, strict=True))
    ]
    for season in program.seasons:
        states[season.state] |= {"season": season.steps, "phase": season.phase, "start_at_step": ["step", -1]}
    described = {
        "plmu": plmu.__version__,
        "input": {"tokens": program.tokens},
        "outputs": program.y.size,
        "states": states,
        "weights": "float32" if not (int8 and program.roundable) else "int8, fixed-point sums" if fixed else "int8",
    }
    if program.tokens is None:
        described["input"] = {"features": program.x.size, "type": str(program.x.dtype).removeprefix("torch.")}
    reserved = set(described) & set(extra or {})
    if reserved:
        raise ValueError(f"metadata must not have {', '.join(sorted(reserved))}: plmu writes it")
    described |= {str(key): value for key, value in (extra or {}).items()}
    try:
        text = json.dumps(described, allow_nan=False, ensure_ascii=False)
        text.encode()
        return dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be text or JSON: {error}") from None


def _season_notes(program: Program, name: str, to: str) -> list[str]:
    """How a stream of a model with a season starts at the right phase."""
    notes = []
    for season in program.seasons:
        state = f"state_{season.state}{'_in' if to == 'onnx' else ''}"
        begin = f"{name}_start(&state, step)" if to == "c" else f"{state} = [step, -1]"
        notes.append(f"season of {season.steps} steps: a stream starts at phase {season.phase}, or anywhere by {begin}")
    return notes


def _onnx(
    model: Any, program: Program, name: str, metadata: dict[str, Any], whole: bool, int8: bool, measure: bool
) -> _Output:
    try:
        from plmu.exports.onnx_model import step_model, whole_model
    except ModuleNotFoundError as error:
        missing = (error.name or "onnx").split(".")[0]
        raise ModuleNotFoundError(f"{missing} is missing: {how_to_install('onnx')}", name=missing) from None
    step = step_model(program, metadata, int8)
    output = _Output({f"{name}_step.onnx": step})
    if whole:
        output.contents[f"{name}.onnx"] = whole_model(program, metadata, model.returns_sequences, int8)
    if measure:
        from plmu.exports.measure import onnx_time

        step_time = onnx_time(step, program)
        output.microseconds |= {} if step_time is None else {"ONNX Runtime": step_time}
        output.notes += [] if step_time is not None else ["onnxruntime is not installed, so its time was not measured"]
    return output


def _torch(model: Any, program: Program, name: str, metadata: dict[str, Any], whole: bool, measure: bool) -> _Output:
    from plmu.exports.torch_program import runs_whole, torch_program

    step = torch_program(model, program, metadata, whole=False)
    output = _Output({f"{name}_step.pt2": step})
    if runs_whole(model):
        output.contents[f"{name}.pt2"] = torch_program(model, program, metadata, whole=True)
    elif whole:
        raise ValueError(f"whole cannot be had for torch: {_NO_WHOLE}")
    else:
        output.notes.append(f"{_NO_WHOLE}: there is no program for whole sequences")
    if measure:
        from plmu.exports.measure import torch_time

        output.microseconds["torch.export"] = torch_time(step, model, program)
    return output


def _c(program: Program, name: str, metadata: dict[str, Any], int8: bool, fixed: bool, measure: bool) -> _Output:
    files, code = c_files(program, name, metadata, int8, fixed)
    contents = {file: text.encode() for file, text in files.items()}
    memory = code.memory
    work_bytes = 4 * memory.work_size + 8 * memory.wide_work_size + 2 * code.fixed_inputs
    output = _Output(contents, work_bytes=work_bytes)
    if measure:
        from plmu.exports.measure import c_time

        step_time = c_time(files, name, program)
        output.microseconds |= {} if step_time is None else {"C": step_time}
        output.notes += [] if step_time is not None else ["no C compiler was found, so its time was not measured"]
    return output


def _write(folder: Path, contents: dict[str, bytes]) -> tuple[Path, ...]:
    """Write all files into the folder, or none of them, and return their paths."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            for name, content in contents.items():
                stack.enter_context(replacing(folder / name)).write_bytes(content)
    except BaseException:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return tuple(folder / name for name in contents)
