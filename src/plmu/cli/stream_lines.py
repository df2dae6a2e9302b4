"""`plmu stream`: read lines of numbers or text, and print the prediction after each sample at once."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

import plmu
from plmu.cli.number_lines import NumberLines
from plmu.errors import FileFormatError, printable
from plmu.runs.deployed import Deployed, load
from plmu.runs.forecasts import Forecasts
from plmu.text.symbols import Words
from plmu.timeseries.clock import step_of
from plmu.timeseries.forecast_files import as_text


@dataclass
class Options:
    """How a stream runs."""

    missing: str | None = None  # "raise", "hold" or "zero"
    state: Path | None = None  # file to continue from, and to save to
    on_error: str = "stop"  # or "skip"
    json: bool = False
    time: str | None = None  # of the first sample, where lines have no times


class LineStream:
    """A deployed model that reads lines.

    Args:
        deployed: the model.
        options: how it runs.
    """

    def __init__(self, deployed: Deployed, options: Options) -> None:
        self.deployed, self.options, self.forecasts = deployed, options, deployed.forecasts
        if options.time is not None and self.forecasts is None:
            raise ValueError(f"--time {options.time} is for forecasts: this model does not depend on it")
        frozen = deployed.frozen
        if options.missing is not None and frozen.takes_tokens:
            raise ValueError(f"--missing {options.missing} is for models of numbers: this one reads text")
        outputs = deployed.outputs
        self.numbers = None
        if frozen.features is not None:
            self.numbers = NumberLines(
                frozen.features, outputs.inputs, outputs.time, outputs.series, outputs.header, outputs.sample()
            )
        # In a text of characters or bytes an empty line is part of it.
        self.separable = deployed.kind != "language" or isinstance(deployed.symbols, Words)
        self.ended = False  # whether the next sample begins another sequence
        self.series: str | None = None  # the name of the present one, if series have names
        self.past: dict[str, None] = {}  # the names of those before it
        self.expected: list[float] | None = None  # log-probabilities of the next token
        self.untimed = False  # whether the last sample of a forecast had no time
        self.warned = False  # whether it was said that no time was given
        self.named = False  # whether the columns of forecasts were named
        if options.state is not None and options.state.is_file():
            self.stream = plmu.Stream.restore(frozen, options.state)
            self.stream.missing = options.missing or self.stream.missing
            self._recall(options.state)
        else:
            self.stream = plmu.Stream(frozen, options.missing)

    def answers(self, line: str) -> Iterator[dict[str, Any] | None]:
        """The model's answer after each sample of a line; None where a sequence ends."""
        if self.separable and not line.strip():
            if self.stream.steps and not self.ended:
                self.ended = True
                yield None
            return
        if self.numbers is not None:
            sample = self.numbers.read(line)
            if sample is not None:
                if self.stream.missing == "raise" and any(map(math.isnan, sample)):
                    raise ValueError("a number is missing: --missing hold or --missing zero fills it")
                if self._other_series(self.numbers.sample_series):
                    yield None
                    self.ended = True
                if self.forecasts is not None:
                    yield from self._forecast(sample, self.numbers.sample_time, self.forecasts)
                    return
                self._begin()
                answer = self._answer(self.stream.push(sample).tolist())
                time = self.numbers.sample_time
                yield answer if time is None else {"time": time, **answer}
            return
        for number, name in self.deployed.tokens(line, first=self.ended or not self.stream.steps):
            self._begin()
            before = self.expected
            out = self.stream.push(number)
            if self.deployed.kind == "language":
                self.expected = torch.log_softmax(out.double(), 0).tolist()
                if name or before is not None:
                    yield self._surprise(name, None if before is None else before[number])
            elif name:
                yield {"token": name, **self._answer(out.tolist())}

    def _other_series(self, name: str | None) -> bool:
        """Whether a sample of the series `name` ends the series before it. Remembers new names.

        Raises:
            ValueError: the series `name` has ended already.
        """
        if name is None or name == self.series:
            return False
        if name in self.past:
            raise ValueError(f"series {name} has ended: the samples of a series must follow one another")
        before, self.series = self.series, name
        if before is None:
            return False
        self.past[before] = None
        return self.stream.steps > 0 and not self.ended

    def _forecast(self, sample: list[float], time: str | None, forecasts: Forecasts) -> Iterator[dict[str, Any] | None]:
        """The forecast after a sample, at the step of its time. None first where a sequence ends, since the time is
        long after that of the sample before.

        Raises:
            ValueError: `time` is not written as the times of the training data are, or does not follow the one before.
        """
        self.untimed = time is None
        step = None if time is None else step_of(forecasts.clock, time)
        if step is not None and self.options.time is not None:
            raise ValueError(f"it has a time, {time}: leave out --time {self.options.time}, which is for lines without")
        expected = forecasts.next_step(self.stream.state) if self.stream.steps and not self.ended else None
        gap = 0 if step is None or expected is None else step - expected
        if gap and expected is not None and self._fill(gap, forecasts.time_of(expected), forecasts.model.lookback):
            yield None
            self.ended = True
        first, warning = self.ended or not self.stream.steps, None
        self._begin()
        if first:
            step, warning = self._first_step(step, forecasts)
            self.stream.reset(forecasts.state_at(step))
        output = self.stream.push(sample).tolist()
        following = forecasts.next_step(self.stream.state)
        assert following is not None
        answer = forecasts.answer(output, following - 1, self.stream.state, self.stream.steps) or {"output": output}
        yield answer if warning is None else {**answer, "warning": warning}

    def _first_step(self, step: int | None, forecasts: Forecasts) -> tuple[int, str | None]:
        """The step of the first sample of a sequence, and what is assumed of it if no time tells."""
        if step is not None:
            return step, None
        if self.options.time is not None:
            try:
                return step_of(forecasts.clock, self.options.time), None
            except ValueError as error:
                raise ValueError(f"--time: {error}") from None
        return forecasts.first_step, forecasts.assumption(forecasts.first_step)

    def _fill(self, missing: int, expected: str, lookback: int) -> bool:
        """Push a missing sample for each step between two samples. Returns whether there are so many that a new
        sequence begins instead.

        Raises:
            ValueError: there are missing steps and nothing fills them, or the sample comes too early.
        """
        if missing < 0:
            raise ValueError(f"its time does not follow the line before: the next is {expected}")
        if self.stream.missing == "raise":
            self.ended = True  # the next line begins anew
            steps = "1 step is" if missing == 1 else f"{missing:,} steps are"
            raise ValueError(f"{steps} missing before it, from {expected} on: --missing hold fills gaps")
        if missing > lookback:
            return True
        for _ in range(missing):
            self.stream.push(None)
        return False

    def skip(self) -> None:
        """Pass over a line that cannot be read. Where lines of a forecast have no times, each is a step, so that a
        missing sample takes its place.

        Raises:
            ValueError: nothing fills a missing sample.
        """
        if self.forecasts is None or not self.untimed or not self.stream.steps or self.ended:
            return
        if self.stream.missing == "raise":
            raise ValueError("lines without times cannot be skipped, since each is a step: add --missing hold")
        self.stream.push(None)

    def _begin(self) -> None:
        """Reset the state before a sample that begins another sequence."""
        if self.ended:
            self.stream.reset()
            self.ended, self.expected = False, None

    def _answer(self, output: list[float]) -> dict[str, Any]:
        return self.deployed.answer(output) or {"output": output}

    def _surprise(self, name: str, log_probability: float | None) -> dict[str, Any]:
        """The probability of a token; None for the first one after a saved state."""
        if log_probability is None:
            return {"token": name, "probability": None, "bits": None}
        return {"token": name, "probability": math.exp(log_probability), "bits": -log_probability / math.log(2)}

    def save(self) -> None:
        """Save the state, and what else lines are read by: names of series and of the header's columns."""
        if self.options.state is None:
            return
        self._begin()
        header = self.numbers.names if self.numbers is not None else None
        series = [] if self.series is None else [*self.past, self.series]
        note: dict[str, Any] = {"series": series, "header": header} if series or header else {}
        if self.forecasts is not None:
            note |= {"untimed": self.untimed, "named": self.named}
        self.stream.save(self.options.state, note or None)

    def _recall(self, path: Path) -> None:
        """Take up names of series and columns from the note in a state's file.

        Raises:
            FileFormatError: the note has something else.
        """
        note = self.stream.note
        if note is None:
            return
        kinds = {"series": list, "header": list | None, "untimed": bool, "named": bool}
        taken = note if isinstance(note, dict) else {"": note}
        series, header = taken.get("series", []), taken.get("header")
        fits = all(isinstance(value, kinds.get(key, ())) for key, value in taken.items())
        if not fits or not all(isinstance(name, str) for name in [*series, *(header or [])]):
            raise FileFormatError(f"{path} was not saved by plmu stream: its note is {note!s:.100}")
        self.untimed, self.named = taken.get("untimed", False), taken.get("named", False)
        if series:
            *past, self.series = series
            self.past = dict.fromkeys(past)
        if self.numbers is not None and header:
            try:
                self.numbers.take_header(header)
            except ValueError as error:
                raise FileFormatError(f"{path}: {error}") from None


def show(run: Path, lines: Iterable[str], options: Options, out: IO[str] | None = None) -> None:
    """Print the prediction of a run's model after each sample of these lines at once.

    At a line that cannot be read `options.on_error` decides: "stop" raises ValueError, "skip" reports the line on
    standard error and goes on. The state is saved at the end, also after an error or a signal.
    """
    screen = sys.stdout if out is None else out
    stream = LineStream(load(run), options)
    try:
        with _stoppable() as reading:
            for number, line in enumerate(reading(lines), 1):
                try:
                    line = _utf8(line.removeprefix("\ufeff") if number == 1 else line)
                    for answer in stream.answers(line):
                        _warn(answer, stream)
                        header = _header(answer, stream)
                        if header is not None:
                            print(printable(header).replace("\n", "\\n"), file=screen)
                        print(printable(_shown(answer, number, stream)).replace("\n", "\\n"), file=screen, flush=True)
                except (TypeError, ValueError) as error:
                    fault = f"line {number}: {error}"
                    if options.on_error == "stop":
                        raise ValueError(fault) from None
                    if options.json:
                        print(json.dumps({"line": number, "error": str(error)}), file=screen, flush=True)
                    print(f"plmu: {printable(fault)}", file=sys.stderr, flush=True)
                    stream.skip()
    finally:
        stream.save()


def _utf8(line: str) -> str:
    """A line that was read with the error handler "surrogateescape".

    Raises:
        ValueError: it was not UTF-8.
    """
    try:
        return line.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start} of the line)") from None


def _shown(answer: dict[str, Any] | None, line: int, stream: LineStream) -> str:
    """An answer as a line to print; `line` is the number of the line that it was read from."""
    if stream.options.json:
        return json.dumps({"line": line, **({"end": True} if answer is None else answer)}, ensure_ascii=False)
    if answer is None:
        return ""
    if stream.deployed.kind == "text":
        labels = stream.deployed.outputs.labels
        if len(labels) == 2:
            return f"{answer['probabilities'][labels[1]]:.3f}  {answer['token']}"
        class_or_numbers = f"{answer['label']} {answer['probability']:.6f}" if labels else _joined(answer["output"])
        return f"{class_or_numbers}  {answer['token']}"
    if stream.deployed.kind == "language":
        quoted = not isinstance(stream.deployed.symbols, Words)  # a space or a line break could not be seen
        name = json.dumps(answer["token"], ensure_ascii=False) if quoted else answer["token"]
        probability = answer["probability"]
        return f"{'-' if probability is None else format(probability, '.6f')}  {name}"
    if "label" in answer:
        return f"{answer['label']} {answer['probability']:.6f}"
    if "forecast" in answer:  # all columns of the next step, then those of the step after it
        values = np.array(list(answer["forecast"].values()))
        texts = as_text(values, values[:, 0])
        horizon = values.shape[1]
        return ",".join([answer["time"], *(text for step in range(horizon) for text in texts[step::horizon])])
    return _joined(answer["output"])


def _header(answer: dict[str, Any] | None, stream: LineStream) -> str | None:
    """The line of names before the first forecast; None if there is none to print."""
    if answer is None or "forecast" not in answer or stream.options.json or stream.named:
        return None
    assert stream.forecasts is not None
    stream.named = True
    steps = range(1, stream.forecasts.model.horizon + 1)
    return ",".join([stream.forecasts.column, *(f"{name} +{step}" for step in steps for name in answer["forecast"])])


def _warn(answer: dict[str, Any] | None, stream: LineStream) -> None:
    """Say on standard error, once, that no time was given."""
    warning = None if answer is None else answer.get("warning")
    if warning is not None and not stream.warned:
        stream.warned = True
        print(f"plmu: {warning}. Give --time TIME, or lines with times", file=sys.stderr, flush=True)


def _joined(output: list[float]) -> str:
    """Numbers with commas between them, in 9 digits, which identify a float32."""
    return ",".join(f"{value:.9g}" for value in output)


@contextmanager
def _stoppable() -> Iterator[Any]:
    """Give a function that yields lines until SIGINT or SIGTERM.

    A signal ends the lines at once while the next is awaited, and after the present line while it is worked on.
    """
    asked, waits = False, False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True
        if waits:
            raise KeyboardInterrupt

    def reading(lines: Iterable[str]) -> Iterator[str]:
        nonlocal waits
        source = iter(lines)
        try:
            while not asked:
                waits = True
                line = next(source, None)
                waits = False
                if line is None:
                    return
                yield line
        except KeyboardInterrupt:
            return
        finally:
            waits = False

    before: dict[int, Any] = {}
    try:
        for kind in (signal.SIGINT, signal.SIGTERM):
            before[kind] = signal.signal(kind, stop)
    except ValueError:  # not in the main thread, where no signal comes
        pass
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
