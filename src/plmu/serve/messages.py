"""Messages of clients, checked; and the answers to them."""

from __future__ import annotations

import json
import math
import re
from array import array
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from plmu.runs.deployed import Deployed, softmax
from plmu.serve.limits import BadMessage, Limits

KINDS = ("sample", "samples", "text", "reset", "close")
NUMBERS = {float, int}  # types of numbers in JSON, without bool
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which cannot be written in UTF-8
PLAIN = {"step", "outputs"}  # the keys of an answer to numbers
LIKELIEST = 5  # next tokens in an answer of a language model


@dataclass(slots=True)
class Message:
    """A message of a client."""

    samples: array[Any] = field(default_factory=lambda: array("d"))  # the numbers of all samples, or token numbers
    count: int = 0  # of samples
    names: list[str] | None = None  # of tokens of a text
    single: bool = False  # one sample, answered by one output
    reset: bool = False
    close: bool = False
    all_outputs: bool = False  # of a language model, too
    start: int | None = None  # the clock's step of the first sample
    tag: str | int | None = None  # repeated in the answer
    session: str | None = None  # its name, in HTTP


class Reader:
    """Reads messages for one model."""

    def __init__(self, deployed: Deployed, limits: Limits, missing: str) -> None:
        self.deployed, self.limits = deployed, limits
        self.tokens = deployed.frozen.takes_tokens
        self.features = 1 if self.tokens else deployed.frozen.features or 0
        self.fills = missing != "raise"
        wide = not self.tokens and deployed.frozen.place is not None and deployed.frozen.place.dtype == torch.float64
        self.code = "q" if self.tokens else "d" if wide else "f"
        self.most = torch.finfo(torch.float64 if wide else torch.float32).max
        self.decode = json.JSONDecoder(parse_constant=_no_constant).decode

    def read(self, text: str | bytes | None, first: bool = False) -> Message:
        """Read a message, or raise BadMessage. `first`: it is the first of its session."""
        if not isinstance(text, str):
            raise BadMessage("a message must be JSON in a text frame, this one is binary")
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if size > self.limits.message_bytes:
            raise BadMessage(f"a message may have {self.limits.message_bytes} bytes, this one has {size}", 413)
        try:
            content = self.decode(text)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"not JSON: {str(error)[:200]}") from None
        if not isinstance(content, dict):
            raise BadMessage(f"a message must be a JSON object, got {_kind(content)}")
        message = Message()
        kinds = [name for name in KINDS if name in content]
        if len(kinds) != 1:
            raise BadMessage(f"a message must have exactly one of {', '.join(KINDS)}; got {', '.join(kinds) or 'none'}")
        kind = kinds[0]
        self._options(message, content, kind)
        value = content[kind]
        if kind in ("reset", "close"):
            if value is not True:
                raise BadMessage(f"{kind} must be true, got {_kind(value)}")
            setattr(message, kind, True)
        elif kind == "text":
            self._text(message, value, first)
        else:
            message.single = kind == "sample"
            if not message.single and not isinstance(value, list):
                raise BadMessage(f"samples must be a list of samples, got {_kind(value)}")
            self._samples(message, [value] if message.single else value)
        return message

    def _options(self, message: Message, content: dict[str, Any], kind: str) -> None:
        for name, value in content.items():
            if name == "id":
                if not isinstance(value, str | int) or isinstance(value, bool) or len(str(value)) > 64:
                    raise BadMessage("id must be a text or an integer of at most 64 characters")
                if isinstance(value, str) and SURROGATE.search(value):
                    raise BadMessage("id must be a text of characters, not of halves of them (surrogates)")
                message.tag = value
            elif name == "session":
                message.session = checked_name(value)
            elif name == "time":
                message.start = self._step(value, kind)
            elif name == "outputs":
                if not isinstance(value, bool):
                    raise BadMessage(f"outputs must be true or false, got {_kind(value)}")
                message.all_outputs = value
            elif name != kind:
                raise BadMessage(f"a message has no {name[:60]!r}: it has {', '.join(KINDS)}, id, session,"
                                 " outputs or time")  # fmt: skip

    def _step(self, time: Any, kind: str) -> int:
        """The clock's step of the time of a message's first sample."""
        forecasts = self.deployed.forecasts
        if forecasts is None:
            raise BadMessage("time is for forecasts and anomalies: this model does not depend on it")
        if kind not in ("sample", "samples"):
            raise BadMessage(f"time is that of the first sample: it cannot be with {kind}")
        numbers = forecasts.clock.kind in ("rows", "numbers")
        if type(time) is not str and not (numbers and type(time) in NUMBERS):
            example = forecasts.time_of(forecasts.first_step)
            raise BadMessage(f"time must be {'a number' if numbers else 'a text'} such as {example}, got {_kind(time)}")
        try:
            return forecasts.clock.step_of(time)
        except ValueError as error:
            raise BadMessage(f"time {error}") from None

    def _text(self, message: Message, text: Any, first: bool) -> None:
        if not self.tokens:
            raise BadMessage("this model takes numbers, not text: send sample or samples")
        if not isinstance(text, str):
            raise BadMessage(f"text must be a text, got {_kind(text)}")
        try:
            pairs = self.deployed.tokens(text, first)
        except ValueError as error:
            raise BadMessage(f"text: {error}") from None
        if not pairs:
            raise BadMessage("text has nothing in it that this model reads")
        self._check_count(len(pairs))
        message.samples = array(self.code, [number for number, _ in pairs])
        message.count, message.names = len(pairs), [name for _, name in pairs]

    def _check_count(self, count: int) -> None:
        if not 0 < count <= self.limits.samples:
            raise BadMessage(f"a message must have 1 to {self.limits.samples} samples, got {count}")

    def _samples(self, message: Message, samples: list[Any]) -> None:
        self._check_count(len(samples))
        flat: list[Any] = []
        for place, sample in enumerate(samples):
            if type(sample) is list:
                if len(sample) != self.features or self.tokens:
                    expected = "a token number" if self.tokens else f"{self.features} numbers"
                    raise BadMessage(f"sample {place} must be {expected}, got a list of {len(sample)}")
                flat += sample
            elif self.features == 1:
                flat.append(sample)
            else:
                raise BadMessage(f"sample {place} must be a list of {self.features} numbers, got {_kind(sample)}")
        message.samples, message.count = array(self.code, self._checked(flat)), len(samples)

    def _checked(self, flat: list[Any]) -> list[Any]:
        """The numbers, with NaN for missing ones; BadMessage if the model cannot take them."""
        most, vocabulary = self.most, self.deployed.frozen.vocabulary or 2**62
        if not self.tokens and NUMBERS.issuperset(map(type, flat)) and -most <= min(flat) and max(flat) <= most:
            return flat
        for place, value in enumerate(flat):
            kind = type(value)
            if self.tokens:
                if kind is not int or not 0 <= value < vocabulary:
                    raise BadMessage(f"sample {place} must be a token number below {vocabulary}, got {_shown(value)}")
            elif kind in NUMBERS:
                if not -most <= value <= most:
                    raise BadMessage(f"sample {place // self.features} has a number that is too large for the model")
            elif value is None and self.fills:
                flat[place] = math.nan
            else:
                hint = ": start the server with --missing hold or zero to fill it" if value is None else ""
                raise BadMessage(f"sample {place // self.features} must be numbers, got {_kind(value)}{hint}")
        return flat


class Writer:
    """Writes the answers of one model."""

    def __init__(self, deployed: Deployed) -> None:
        self.deployed = deployed
        self.language = deployed.kind == "language"
        self._encode = json.JSONEncoder(
            separators=(",", ":"), ensure_ascii=False, check_circular=False, allow_nan=False
        ).encode

    def encode(self, answer: dict[str, Any]) -> str:
        """An answer as JSON. Infinite numbers become null."""
        if answer.keys() == PLAIN:  # Python writes such lists as JSON in half the time
            text = f'{{"step":{answer["step"]},"outputs":{answer["outputs"]}}}'
            if "n" not in text:  # neither nan nor inf
                return text
        try:
            return self._encode(answer)
        except ValueError:
            return self._encode(_finite(answer))

    def answer(
        self,
        message: Message,
        step: int,
        outputs: list[list[float]],
        error: str | None = None,
        forecast: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The answer to a message with these outputs; `forecast` is what `Forecasts.answer` says of the last one."""
        answer: dict[str, Any] = {} if message.tag is None else {"id": message.tag}
        answer["step"] = step
        if error is not None:
            answer["error"] = error
        if not self.language or message.all_outputs:
            if message.single and outputs:
                answer["output"] = outputs[0]
            elif message.count:
                answer["outputs"] = outputs
        if self.language and outputs:
            answer["next"] = self._likeliest(outputs[-1])
        elif outputs and self.deployed.outputs.labels:
            answer |= self.deployed.answer(outputs[-1])
        return answer | (forecast or {})

    def _likeliest(self, logits: list[float]) -> list[dict[str, Any]]:
        """The likeliest next tokens."""
        probabilities = softmax(logits)
        best = sorted(range(len(logits)), key=probabilities.__getitem__, reverse=True)[:LIKELIEST]
        symbols = self.deployed.symbols
        assert symbols is not None
        return [
            {"token": token, "text": symbols.decode([token]), "probability": probabilities[token]} for token in best
        ]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def checked_name(name: Any) -> str:
    """The name of a session; BadMessage if it is not a name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadMessage("session must be a name of 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON; null stands for a missing number")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a text", list: "a list", dict: "an object", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    return str(value)[:20] if isinstance(value, int | float) and not isinstance(value, bool) else _kind(value)
