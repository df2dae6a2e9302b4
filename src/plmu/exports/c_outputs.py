"""What x and y of a step are, in C: comments, arrays of names, and a function for the probabilities of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plmu.exports.program import Apply, Program

SHOWN = 200  # characters of metadata that stand in a comment
PROBABILITIES = ("softmax", "sigmoid")  # functions of torch, at the end of a model, whose outputs are probabilities


@dataclass(frozen=True)
class Outputs:
    """The parts of header and source that say what the numbers mean."""

    defines: str  # sizes of the arrays
    declared: str
    defined: str
    helpers: tuple[str, ...]  # that `defined` calls
    x: str  # in words, for the comment of the step
    y: str


def outputs_of(program: Program, name: str, metadata: Mapping[str, Any]) -> Outputs:
    """What a step takes and gives, from the entries `columns`, `forecast_columns`, `horizon`, `threshold`,
    `steps_ahead`, `classes` and `units` of the metadata.

    Raises:
        ValueError: the names of classes do not fit the outputs.
    """
    upper, size = name.upper(), program.y.size
    columns, forecast, classes = (_names(metadata, key) for key in ("columns", "forecast_columns", "classes"))
    arrays: dict[str, tuple[tuple[str, ...], str]] = {}
    x = f"{upper}_INPUTS numbers" if program.tokens is None else f"one token number from 0 to {program.tokens - 1}"
    if program.tokens is None and len(columns) == program.x.size:
        arrays["columns"] = columns, "Names of the numbers of x"
        x += f" by the names {name}_columns"
    units = f", in {comment(_text(metadata['units']))}" if "units" in metadata else ""
    y = f"{upper}_OUTPUTS numbers{units}"
    horizon, forecast = metadata.get("horizon"), forecast or columns
    if type(horizon) is int and forecast and len(forecast) * horizon == size:
        arrays["forecast_columns"] = forecast, "Names of the columns that are forecast"
        units = units or ", in the units of x"
        y = (
            f"the forecast{units}: y[i * {upper}_FORECAST_COLUMNS + j] is column\n"
            f" * j of {name}_forecast_columns, i + 1 steps ahead"
        )
    elif "threshold" in metadata and size == 1 + 4 * len(columns):
        y = (
            f"the score of the sample, an alarm above 1 - {comment(_text(metadata['threshold']))}; then of each of\n"
            f" * {name}_columns its score, the expected value, and the lower and upper end of the interval{units}"
        )
    elif "steps_ahead" in metadata:
        y += f", which predict x {comment(_text(metadata['steps_ahead']))} steps ahead"
    softmax, helper = "", "softmax" if size > 1 else "exponential"
    if classes:
        if size not in ((1, 2) if len(classes) == 2 else (len(classes),)):
            raise ValueError(f"metadata classes has {len(classes)} names, and the model has {size} outputs")
        arrays["classes"] = classes, "Names of the classes"
        y = _class_outputs(program, name)
        if _last_function(program) not in PROBABILITIES:
            softmax = f"void {name}_softmax(const float *y, float *probabilities)"
    lists = [(f"{name}_{key}", f"{upper}_{key.upper()}", *value) for key, value in arrays.items()]
    declared = "".join(f"/* {about}, in UTF-8. */\nextern const char *const {array}[{count}];\n"
                       for array, count, _, about in lists)  # fmt: skip
    defined = "".join(f"const char *const {array}[{count}] = {{\n    {_literals(names)}\n}};\n\n"
                      for array, count, names, _ in lists)  # fmt: skip
    if softmax:
        declared += f"/* The {upper}_CLASSES probabilities of the outputs y of a step. */\n{softmax};\n"
        defined += f"{softmax}\n{_softmax(size)}\n"
    defines = "".join(f"#define {count} {len(names)}\n" for _, count, names, _ in lists)
    return Outputs(defines, declared, defined, (helper,) if softmax else (), x, y)


def _class_outputs(program: Program, name: str) -> str:
    """What the outputs of a classifier are, in words."""
    function = _last_function(program)
    if program.y.size == 1:
        if function in PROBABILITIES:
            return f"the probability of {name}_classes[1], of two"
        return f"the logit of {name}_classes[1], of two: {name}_softmax makes probabilities of it"
    if function in PROBABILITIES:
        return f"the probability of each of {name}_classes"
    return (
        f"a logit for each of {name}_classes, the largest of which is\n"
        f" * the likeliest: {name}_softmax makes probabilities of them"
    )


def _last_function(program: Program) -> str | None:
    """The function of torch that makes the outputs."""
    made = next((operation for operation in program.operations if operation.out is program.y), None)
    return made.function if isinstance(made, Apply) else None


def _softmax(size: int) -> str:
    """The body of a function that makes probabilities of logits, or of the single one of two classes."""
    if size > 1:
        return f"{{\n    softmax(probabilities, y, {size}, 0);\n}}\n"
    return """{
    probabilities[1] = 1.0f / (1.0f + exponential(-y[0]));
    probabilities[0] = 1.0f / (1.0f + exponential(y[0]));
}
"""


def comment(text: str) -> str:
    """A text that may stand in a C comment: printable ASCII that neither ends it nor joins lines."""
    ascii_text = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    for pair in ("*/", "/*", "??"):
        while pair in ascii_text:
            ascii_text = ascii_text.replace(pair, f"{pair[0]} {pair[1]}")
    return ascii_text + " " if ascii_text.endswith(("\\", "*")) else ascii_text


def literal(text: str) -> str:
    """A C string of this text in UTF-8."""
    letters = []
    for byte in text.encode():
        plain = " " <= chr(byte) <= "~" and chr(byte) not in '"\\?'
        letters.append(chr(byte) if plain else f"\\{byte:03o}")
    return f'"{"".join(letters)}"'


def _literals(names: tuple[str, ...]) -> str:
    return ",\n    ".join(map(literal, names))


def _names(metadata: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of texts among the metadata; empty if it is not there, or another thing."""
    value = metadata.get(key)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return ()
    return tuple(value)


def _text(value: Any) -> str:
    return str(value)[:SHOWN]
