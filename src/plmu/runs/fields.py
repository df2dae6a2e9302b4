"""The ranges of the fields of models' configurations. A field has the same meaning and range in all models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from plmu.nn import ACTIVATIONS

Range = tuple[Callable[[Any], bool], str]

COUNT: Range = (lambda value: value >= 1, "at least 1")
DROPPED: Range = (lambda value: 0 <= value < 1, "a fraction, at least 0 and below 1")
FINITE: Range = (math.isfinite, "a finite number")
NAMES = ", ".join(ACTIVATIONS)
COUNTS = (
    *("order", "hidden", "dense", "layers", "lmu_hidden", "lstm_hidden", "embedding", "vocabulary", "longest"),
    *("width", "blocks", "encoder_blocks", "decoder_blocks", "attention_heads", "beam"),
)
RANGES: dict[str, Range] = {
    **dict.fromkeys((*COUNTS, "memory", "pool_order", "lookback", "lags", "projections", "thresholds"), COUNT),
    "theta": (lambda value: 0 < value < math.inf, "a number of steps, above 0"),
    **dict.fromkeys(
        ("thetas", "windows"),
        (
            lambda value: isinstance(value, tuple) and bool(value) and all(0 < number < math.inf for number in value),
            "one or more numbers of steps, above 0",
        ),
    ),
    "vectors": (lambda value: isinstance(value, str) and bool(value), "auto, random, zero or the name of a file"),
    "window": (lambda value: value >= 2, "at least 2 steps"),
    "length": (lambda value: value >= 2, "at least 2 steps"),
    "shortest": (lambda value: value >= 2, "at least 2 steps, one for each marker"),
    **dict.fromkeys(
        ("attention", "highways", "heads", "kernel", "units", "season"),
        (lambda value: value >= 0, "0 for none, or more"),
    ),
    "layer_rate": (lambda value: 0 < value <= 1, "a fraction, above 0 and at most 1"),
    "pieces": (lambda value: 300 <= value < 2**16, "at least 300 and below 65536"),
    **dict.fromkeys(
        ("noise", "unfreezing", "length_penalty", "adversarial"), (lambda value: 0 <= value < math.inf, "at least 0")
    ),
    "alpha": (lambda value: 0 < value < math.inf, "above 0 and finite"),
    "half_life": (lambda value: 1 <= value < math.inf, "a number of steps, at least 1"),
    "level": (lambda value: 0 < value < 1, "a share, above 0 and below 1"),
    "individual": (lambda value: value in (True, False), "True or False"),
    "dropout": DROPPED,
    "memory_dropout": DROPPED,
    "word_dropout": DROPPED,
    "label_smoothing": (lambda value: 0 <= value <= 1, "a fraction, between 0 and 1"),
    "forget_bias": FINITE,
    "activation": (lambda value: value in ACTIVATIONS, f"one of {NAMES}"),
    "input_activation": (lambda value: value is None or value in ACTIVATIONS, f"None or one of {NAMES}"),
}


class Checked:
    """Base of a model's configuration: a dataclass whose fields must be in their ranges.

    A field whose default is None may also be None.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            holds, wanted = RANGES.get(name, (lambda _: True, ""))
            left_open = value is None and getattr(type(self), name, ...) is None
            if not left_open and not holds(value):
                raise ValueError(f"model.{name} must be {wanted}; got {value!r}")
