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
NUMBERS = {float, int}  # types of numbers in JSON; bool is another one
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
USUAL = {"step", "outputs"}  # what the answer to numbers has
LIKELY = 5  # next tokens that an answer of a language model names


@dataclass(slots=True)
class Message:
    """What a client asks."""

    samples: array[Any] = field(default_factory=lambda: array("d"))  # all numbers, or token numbers
    count: int = 0  # of samples
    names: list[str] | None = None  # of tokens of a text
    single: bool = False  # whether there is one sample, and the answer has one output
    reset: bool = False
    close: bool = False
    whole: bool = False  # whether a language model is to answer with all outputs
    tag: str | int | None = None  # comes back in the answer
    session: str | None = None  # of HTTP


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
        """A message, or BadMessage. `first` says whether a text would begin here."""
        if not isinstance(text, str):
            raise BadMessage("a message must be JSON in a text frame, this one is binary")
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if size > self.limits.message_bytes:
            raise BadMessage(f"a message may have {self.limits.message_bytes} bytes, this one has {size}", 413)
        try:
            found = self.decode(text)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"not JSON: {str(error)[:200]}") from None
        if not isinstance(found, dict):
            raise BadMessage(f"a message must be a JSON object, got {_kind(found)}")
        message = Message()
        chosen = [name for name in KINDS if name in found]
        if len(chosen) != 1:
            raise BadMessage(
                f"a message must have exactly one of {', '.join(KINDS)}; got {', '.join(chosen) or 'none'}"
            )
        self._extras(message, found, chosen[0])
        given = found[chosen[0]]
        if chosen[0] in ("reset", "close"):
            if given is not True:
                raise BadMessage(f"{chosen[0]} must be true, got {_kind(given)}")
            setattr(message, chosen[0], True)
        elif chosen[0] == "text":
            self._text(message, given, first)
        else:
            message.single = chosen[0] == "sample"
            if not message.single and not isinstance(given, list):
                raise BadMessage(f"samples must be a list of samples, got {_kind(given)}")
            self._samples(message, [given] if message.single else given)
        return message

    def _extras(self, message: Message, found: dict[str, Any], chosen: str) -> None:
        for name, value in found.items():
            if name == "id":
                if not isinstance(value, str | int) or isinstance(value, bool) or len(str(value)) > 64:
                    raise BadMessage("id must be a text or whole number of at most 64 characters")
                message.tag = value
            elif name == "session":
                message.session = checked_name(value)
            elif name == "outputs":
                if not isinstance(value, bool):
                    raise BadMessage(f"outputs must be true or false, got {_kind(value)}")
                message.whole = value
            elif name != chosen:
                raise BadMessage(f"a message has no {name[:60]!r}: it has {', '.join(KINDS)}, id, session or outputs")

    def _text(self, message: Message, given: Any, first: bool) -> None:
        if not self.tokens:
            raise BadMessage("this model takes numbers, not text: send sample or samples")
        if not isinstance(given, str):
            raise BadMessage(f"text must be a text, got {_kind(given)}")
        try:
            pairs = self.deployed.tokens(given, first)
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

    def _samples(self, message: Message, given: list[Any]) -> None:
        self._check_count(len(given))
        flat: list[Any] = []
        for place, sample in enumerate(given):
            if type(sample) is list:
                if len(sample) != self.features or self.tokens:
                    wanted = "a token number" if self.tokens else f"{self.features} numbers"
                    raise BadMessage(f"sample {place} must be {wanted}, got a list of {len(sample)}")
                flat += sample
            elif self.features == 1:
                flat.append(sample)
            else:
                raise BadMessage(f"sample {place} must be a list of {self.features} numbers, got {_kind(sample)}")
        message.samples, message.count = array(self.code, self._checked(flat)), len(given)

    def _checked(self, flat: list[Any]) -> list[Any]:
        """Numbers that the model takes, or BadMessage."""
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
        """An answer as JSON, which has no infinite numbers: they become null."""
        if answer.keys() == USUAL:  # Python writes such lists as JSON does, and in half the time
            text = f'{{"step":{answer["step"]},"outputs":{answer["outputs"]}}}'
            if "n" not in text:  # neither nan nor inf
                return text
        try:
            return self._encode(answer)
        except ValueError:
            return self._encode(_finite(answer))

    def answer(
        self, message: Message, step: int, outputs: list[list[float]], error: str | None = None
    ) -> dict[str, Any]:
        """What is said of the outputs of a message."""
        told: dict[str, Any] = {} if message.tag is None else {"id": message.tag}
        told["step"] = step
        if error is not None:
            told["error"] = error
        if not self.language or message.whole:
            if message.single and outputs:
                told["output"] = outputs[0]
            elif message.count:
                told["outputs"] = outputs
        if self.language and outputs:
            told["next"] = self._likely(outputs[-1])
        elif outputs and (self.deployed.outputs.labels or self.deployed.outputs.horizon):
            told |= self.deployed.answer(outputs[-1])
        return told

    def _likely(self, logits: list[float]) -> list[dict[str, Any]]:
        shares = softmax(logits)
        best = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)[:LIKELY]
        symbols = self.deployed.symbols
        assert symbols is not None
        return [{"token": one, "text": symbols.decode([one]), "probability": shares[one]} for one in best]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value


def checked_name(name: Any) -> str:
    """The name of a session, or BadMessage."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadMessage("session must be a name of 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON; null stands for a missing one")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a text", list: "a list", dict: "an object", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    return str(value)[:20] if isinstance(value, int | float) and not isinstance(value, bool) else _kind(value)
