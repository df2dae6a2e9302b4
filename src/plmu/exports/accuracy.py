"""The error of int8 weights: measured on the outputs, and a warning where a model amplifies it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plmu.exports.c_files import TOLERANCE, sequence
from plmu.exports.evaluate import Evaluator, one_thread
from plmu.exports.program import Program
from plmu.folded import fold

_STEPS = 200  # steps over which the error is measured without samples
_AMPLIFIED = 4  # an output error above this many times that of the rounded weights is amplified by the model


class AccuracyWarning(UserWarning):
    """Rounded weights change the outputs of a model more than rounding explains."""


def int8_error(model: nn.Module, program: Program, samples: Tensor | None, fixed: bool = False) -> float:
    """|y − y with rounded weights| / |y| over the samples (time, features), by default random numbers. Of wide outputs,
    whose level is no work of the weights, the mean is subtracted from the y below the line. `fixed` also sums in fixed
    point."""
    inputs = sequence(program, _STEPS) if samples is None else samples
    shape = "(time,)" if program.tokens is not None else f"(time, {program.x.size})"
    if inputs.dim() != (1 if program.tokens is not None else 2) or not inputs.shape[0]:
        raise ValueError(f"samples must have shape {shape}, got {tuple(inputs.shape)}")
    folded, evaluator, state = fold(model), Evaluator(program, int8=True, fixed=fixed), None
    wrong, outputs = 0.0, []
    with torch.inference_mode(), one_thread():
        for x in inputs if program.tokens is not None else inputs.to(program.x.dtype):
            y, state = folded.step(x[None], state)
            wrong += float((evaluator.step(x[None]) - y).square().sum())
            outputs.append(y)
    y = torch.cat(outputs)
    right = float((y - y.mean(0) if program.y.wide else y).square().sum())
    return (wrong / right) ** 0.5 if right else 0.0


def int8_warning(error: float, program: Program, random: bool) -> str | None:
    """A warning if the error is far larger than rounding explains, else None; `random`: it was measured on random
    inputs."""
    usual = program.rounding_error
    if error <= max(_AMPLIFIED * usual, TOLERANCE):
        return None
    on = "random inputs (samples= takes yours)" if random else "the given samples"
    return (
        f"int8 weights change the outputs by {100 * error:.2g} % on {on}. Rounding alone explains {100 * usual:.2g} %:"
        " it grows in this model. Export it without int8, unless that is accurate enough for you."
    )
