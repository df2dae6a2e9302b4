"""`plmu stream`: read lines of numbers or text, and print the prediction after each sample at once."""

from __future__ import annotations

import csv
import io
import json
import math
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

import plmu
from plmu.cli.number_lines import NumberLines
from plmu.errors import FileFormatError, printable
from plmu.runs.anomalies import Anomalies
from plmu.runs.deployed import Deployed, Learning, load
from plmu.runs.forecasts import Forecasts
from plmu.runs.predict import without_formula
from plmu.runtime.stream import joined, parted
from plmu.text.symbols import Words
from plmu.timeseries.clock import step_of
from plmu.timeseries.forecast_files import as_text

# The names of what JSON lines say, which the column of names of series may not take.
_TAKEN = frozenset(("line", "error", "end", "time", "times", "forecast", "intervals", "warning", "output", "label"))
_TAKEN |= {"probability", "probabilities", "mae", "mae without learning", "score", "alarm", "channel", "channels"}
REASON = ("value", "expected", "lower", "upper")


class _Gap(ValueError):
    """Steps are missing before a line, and nothing fills them."""


@dataclass
class Options:
    """How a stream runs."""

    missing: str | None = None  # "raise", "hold" or "zero"
    state: Path | None = None  # file to continue from, and to save to
    on_error: str = "stop"  # or "skip"
    json: bool = False
    time: str | None = None  # of the first sample, where lines have no times
    learning: Learning | None = None  # how a forecast learns; None if it does not


class LineStream:
    """A deployed model that reads lines. Where these name series, each series is a stream of its own, and lines of
    several series may be mixed.

    Args:
        deployed: the model.
        options: how it runs.
    """

    def __init__(self, deployed: Deployed, options: Options) -> None:
        self.deployed, self.options, self.forecasts = deployed, options, deployed.forecasts
        if options.time is not None and self.forecasts is None:
            raise ValueError(f"--time {options.time} is for forecasts and anomalies: this model does not depend on it")
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
        self.series: str | None = None  # the name of the present one, if series have names
        self.streams: dict[str, plmu.Stream] = {}  # of each series by its name
        self.expected: list[float] | None = None  # log-probabilities of the next token
        self.untimed = False  # whether the last sample of a forecast had no time
        self.warned = False  # whether it was said that no time was given
        self.header = ""  # the names of columns that were printed last
        if options.state is not None and options.state.is_file():
            self.stream = plmu.Stream.restore(frozen, options.state)
            self.stream.missing = options.missing or self.stream.missing
            self._recall(options.state)
        else:
            self.stream = plmu.Stream(frozen, options.missing)

    @property
    def named(self) -> dict[str, str]:
        """The name of the present series, by that of its column; empty if series have no names."""
        if self.series is None:
            return {}
        column = self.deployed.outputs.series
        return {"series" if column in _TAKEN else column: self.series}

    def answers(self, line: str) -> Iterator[dict[str, Any] | None]:
        """The model's answer after each sample of a line; None where a sequence ends.

        Raises:
            ValueError: says what is wrong with the line.
        """
        if self.numbers is not None:
            self.numbers.sample_time = self.numbers.sample_series = None
        line = _utf8(line)
        if self.separable and not line.strip():
            if self.stream.steps:
                self._end()
                yield None
            return
        if self.numbers is not None:
            sample = self.numbers.read(line)
            if sample is not None:
                if self.stream.missing == "raise" and any(map(math.isnan, sample)):
                    raise ValueError("a number is missing: --missing hold or --missing zero fills it")
                self._turn_to(self.numbers.sample_series)
                if isinstance(self.forecasts, Anomalies):
                    yield self._scored(sample, self.numbers.sample_time, self.forecasts)
                    return
                if self.forecasts is not None:
                    yield from self._forecast(sample, self.numbers.sample_time, self.forecasts)
                    return
                answer = self._answer(self.stream.push(sample).tolist())
                time = self.numbers.sample_time
                yield answer if time is None else {"time": time, **answer}
            return
        for number, name in self.deployed.tokens(line, first=not self.stream.steps):
            before = self.expected
            out = self.stream.push(number)
            if self.deployed.kind == "language":
                self.expected = torch.log_softmax(out.double(), 0).tolist()
                if name or before is not None:
                    yield self._surprise(name, None if before is None else before[number])
            elif name:
                yield {"token": name, **self._answer(out.tolist())}

    def _turn_to(self, name: str | None) -> None:
        """Make the series `name` the present one. A line without a name is of the series before."""
        if name is None or name == self.series:
            return
        if name not in self.streams:  # the first name is that of the lines before, too
            unnamed = self.series is None
            self.streams[name] = self.stream if unnamed else plmu.Stream(self.deployed.frozen, self.stream.missing)
        self.series, self.stream = name, self.streams[name]

    def _forecast(self, sample: list[float], time: str | None, forecasts: Forecasts) -> Iterator[dict[str, Any] | None]:
        """The forecast after a sample, at the step of its time. None first where a sequence ends, since the time is
        long after that of the sample before.

        Raises:
            ValueError: `time` is not written as the times of the training data are, or does not follow the one before.
        """
        step, before = self._step_of(time, forecasts), self.stream.state if self.stream.steps else None
        expected = None if before is None else forecasts.next_step(before)
        gap = 0 if step is None or expected is None else step - expected
        if gap and expected is not None and self._fill(gap, forecasts.time_of(expected), forecasts.model.lookback):
            self._end()
            yield None
        warning = None
        if not self.stream.steps:
            step, warning = self._first_step(step, forecasts)
            self.stream.reset(forecasts.state_at(step, before))
        output = self.stream.push(sample).tolist()
        following = forecasts.next_step(self.stream.state)
        assert following is not None
        answer = forecasts.answer(output, following - 1, self.stream.state, self.stream.steps) or {"output": output}
        yield answer if warning is None else {**answer, "warning": warning}

    def _scored(self, sample: list[float], time: str | None, anomalies: Anomalies) -> dict[str, Any]:
        """The score of a sample, at the step of its time. Steps without a line are missing samples.

        Raises:
            ValueError: `time` is not written as the times of the training data are, or does not follow the one before.
        """
        step, expected, warning = self._step_of(time, anomalies), anomalies.next_step(self.stream.state), None
        if expected is None:
            step, warning = self._first_step(step, anomalies)
            self.stream.reset(anomalies.state_at(step, self.series))
        elif step is not None and step < expected:
            raise ValueError(f"its time does not follow the line before: the next is {anomalies.time_of(expected)}")
        elif step is not None and step > expected:
            self.stream.reset(anomalies.moved(self.stream.state, step))
        output = self.stream.push(sample).tolist()
        following = anomalies.next_step(self.stream.state)
        assert following is not None
        answer = anomalies.answer(output, following - 1, self.stream.state, self.stream.steps)
        for name, value in zip(answer["channels"], sample, strict=True):
            answer["channels"][name] = {"value": value, **answer["channels"][name]}
        return answer if warning is None else {**answer, "warning": warning}

    def _step_of(self, time: str | None, forecasts: Forecasts | Anomalies) -> int | None:
        """The step of a line's time; None for a line without."""
        self.untimed = time is None
        step = None if time is None else step_of(forecasts.clock, time)
        if step is not None and self.options.time is not None:
            raise ValueError(f"it has a time, {time}: leave out --time {self.options.time}, which is for lines without")
        return step

    def _first_step(self, step: int | None, forecasts: Forecasts | Anomalies) -> tuple[int, str | None]:
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
            steps = "1 step is" if missing == 1 else f"{missing:,} steps are"
            raise _Gap(f"{steps} missing before it, from {expected} on: --missing hold fills gaps")
        if missing > lookback:
            return True
        for _ in range(missing):
            self.stream.push(None)
        return False

    def skip(self, fault: Exception) -> Iterator[None]:
        """Pass over a line that cannot be read; None where a sequence ends with it. Where lines of a forecast have no
        times, each is a step, so that a missing sample takes its place.

        Raises:
            ValueError: nothing fills a missing sample, or the line does not say of which series it is.
        """
        if isinstance(fault, _Gap):
            self._end()  # the next line begins anew
            yield None
            return
        if self.forecasts is None or self.numbers is None or not self.untimed:
            return
        if self.series is not None and self.numbers.sample_series is None:
            raise ValueError("lines without times cannot be skipped if they do not say of which series they are")
        self._turn_to(self.numbers.sample_series)
        if not self.stream.steps:
            return
        if self.stream.missing == "raise":
            raise ValueError("lines without times cannot be skipped, since each is a step: add --missing hold")
        self.stream.push(None)

    def _end(self) -> None:
        """End the present sequence: the next sample begins another."""
        self.stream.reset()
        self.expected = None

    def _answer(self, output: list[float]) -> dict[str, Any]:
        return self.deployed.answer(output) or {"output": output}

    def _surprise(self, name: str, log_probability: float | None) -> dict[str, Any]:
        """The probability of a token; None for the first one after a saved state."""
        if log_probability is None:
            return {"token": name, "probability": None, "bits": None}
        return {"token": name, "probability": math.exp(log_probability), "bits": -log_probability / math.log(2)}

    def save(self) -> None:
        """Save the state of each series, and what else lines are read by: their names and the header's columns."""
        if self.options.state is None:
            return
        series = {name: stream.steps for name, stream in self.streams.items() if stream.steps}
        header = self.numbers.names if self.numbers is not None else None
        note: dict[str, Any] = {"series": series, "present": self.series, "header": header}
        note = note if self.series or header else {}
        if self.forecasts is not None:
            note |= {"untimed": self.untimed, "shown": self.header}
        stream = joined([self.streams[name] for name in series]) if series else self.stream
        stream.save(self.options.state, note or None)

    def _recall(self, path: Path) -> None:
        """Take up series and names of columns from the note in a state's file.

        Raises:
            FileFormatError: the note has something else.
        """
        note = self.stream.note
        if note is None:
            return
        kinds = {"series": dict, "present": str | None, "header": list | None, "untimed": bool, "shown": str}
        taken = note if isinstance(note, dict) else {"": note}
        fits = all(isinstance(value, kinds.get(key, ())) for key, value in taken.items())
        if not fits or not all(isinstance(name, str) for name in taken.get("header") or []):
            raise FileFormatError(f"{path} was not saved by plmu stream: its note is {note!s:.100}")
        self.untimed, self.header = taken.get("untimed", False), taken.get("shown", "")
        self.series, series, header = taken.get("present"), taken.get("series", {}), taken.get("header")
        try:
            if series:
                self.streams = dict(zip(series, parted(self.stream, list(series.values())), strict=True))
            if self.series is not None:
                fresh = plmu.Stream(self.deployed.frozen, self.stream.missing)
                self.stream = self.streams.setdefault(self.series, fresh)
            if self.numbers is not None and header:
                self.numbers.take_header(header)
        except ValueError as error:
            raise FileFormatError(f"{path}: {error}") from None


def show(run: Path, lines: Iterable[str], options: Options, out: IO[str] | None = None) -> None:
    """Print the prediction of a run's model after each sample of these lines at once.

    At a line that cannot be read `options.on_error` decides: "stop" raises ValueError, "skip" reports the line on
    standard error and goes on. The state is saved at the end, also after an error or a signal.
    """
    screen = sys.stdout if out is None else out
    stream = LineStream(load(run, options.learning), options)
    try:
        with _stoppable() as reading:
            for number, line in enumerate(reading(lines), 1):
                try:
                    for answer in stream.answers(line.removeprefix("\ufeff") if number == 1 else line):
                        _print(answer, number, stream, screen)
                except (TypeError, ValueError) as error:
                    fault = f"line {number}: {error}"
                    if options.on_error == "stop":
                        raise ValueError(fault) from None
                    if options.json:
                        print(json.dumps({"line": number, "error": str(error)}), file=screen, flush=True)
                    print(f"plmu: {printable(fault)}", file=sys.stderr, flush=True)
                    for end in stream.skip(error):
                        _print(end, number, stream, screen)
    finally:
        stream.save()


def _print(answer: dict[str, Any] | None, line: int, stream: LineStream, screen: IO[str]) -> None:
    """Print an answer to the line with this number, under the names of columns if these are others than before."""
    _warn(answer, stream)
    header = _header(answer, stream)
    if header != stream.header:
        stream.header = header
        print(printable(header).replace("\n", "\\n"), file=screen)
    print(printable(_shown(answer, line, stream)).replace("\n", "\\n"), file=screen, flush=True)


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
        content = {"line": line, **stream.named, **({"end": True} if answer is None else answer)}
        return json.dumps(_finite(content) if "channels" in content else content, ensure_ascii=False)
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
        return " ".join([*stream.named.values(), answer["label"], f"{answer['probability']:.6f}"])
    if "channels" in answer:
        reason = answer["channels"][answer["channel"]]
        numbers = (reason[name] for name in REASON)
        shown = [_cell(answer["score"]), str(int(answer["alarm"])), answer["channel"], *map(_cell, numbers)]
        return _cells([*stream.named.values(), answer["time"], *shown])
    if "forecast" in answer:  # all columns of the next step, then those of the step after it
        values = np.array(list(answer["forecast"].values()))
        texts = as_text(values, values[:, 0])
        horizon = values.shape[1]
        ahead = [text for step in range(horizon) for text in texts[step::horizon]]
        return _cells([*stream.named.values(), answer["time"], *ahead])
    return ",".join([*map(_cells, zip(stream.named.values())), _joined(answer["output"])])


def _header(answer: dict[str, Any] | None, stream: LineStream) -> str:
    """The names of an answer's columns; those that were printed last where it has none."""
    if answer is None or stream.options.json or not answer.keys() & {"forecast", "channels"}:
        return stream.header
    assert stream.forecasts is not None
    if isinstance(stream.forecasts, Anomalies):
        return _cells([*stream.named, stream.forecasts.column, "score", "alarm", "channel", *REASON])
    steps = range(1, stream.forecasts.model.horizon + 1)
    ahead = [f"{name} +{step}" for step in steps for name in answer["forecast"]]
    return _cells([*stream.named, stream.forecasts.column, *ahead])


def _warn(answer: dict[str, Any] | None, stream: LineStream) -> None:
    """Say on standard error, once, that no time was given."""
    warning = None if answer is None else answer.get("warning")
    if warning is not None and not stream.warned:
        stream.warned = True
        print(f"plmu: {warning}. Give --time TIME, or lines with times", file=sys.stderr, flush=True)


def _cells(texts: Sequence[str]) -> str:
    """A line of CSV, which holds nothing that a spreadsheet would compute."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(without_formula, texts))
    return line.getvalue()


def _cell(value: float) -> str:
    """A number in nine digits; nothing for a missing one."""
    return "" if math.isnan(value) else f"{value:.9g}"


def _finite(value: Any) -> Any:
    """Content for JSON, with null for missing numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return {name: _finite(item) for name, item in value.items()} if isinstance(value, dict) else value


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
