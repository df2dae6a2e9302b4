"""Translations of raw sentences by a trained model: `plmu translate RUN`."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from plmu.data.reading import lines, lines_of
from plmu.errors import RunError
from plmu.experiments import EXPERIMENTS
from plmu.experiments.translation import models
from plmu.experiments.translation.decoding import Translation, translate
from plmu.experiments.translation.models import TranslationModel
from plmu.runs.configuration import read_config
from plmu.text import vocabularies
from plmu.text.moses import detokenise, tokenise, unescaped
from plmu.text.vocabularies import PADDING, UNKNOWN, Vocabulary
from plmu.training.checkpoints import Checkpoints, other_version

READ_AHEAD = 8  # batches that are read to find sentences of similar length
MOST_TOKENS = 4_096  # of the sources of a batch, padding included, unless it is a single sentence
LARGEST_SIDE, MOST_NAMES, LONGEST_NAME = 60, 200, 40  # of a picture: inches, names at a side, and their characters


@dataclass
class Options:
    """How sentences are translated; None for what the run was tested with."""

    beam: int | None = None
    length_penalty: float | None = None
    copy_unknown: bool = False
    batch: int = 32
    scores: bool = False
    attention: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("beam", self.beam), ("batch", self.batch)):
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if self.length_penalty is not None and not 0 <= self.length_penalty < torch.inf:
            raise ValueError(f"--length-penalty must be at least 0, got {self.length_penalty}")
        if self.attention is not None:
            _check_picture(self.attention)


@dataclass
class Written:
    """A sentence's translation, as words of the tokenised text."""

    source: list[str]  # its tokens, for the attention
    words: list[str]
    found: Translation


class Translator:
    """The best model of a run, with its vocabularies."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        experiment, config = read_config(folder, EXPERIMENTS.__getitem__)
        if not isinstance(config.model, TranslationModel):
            raise RunError(f"{folder} is a run of {experiment.name}, which does not translate: give one of iwslt")
        self.config: TranslationModel = config.model
        self.source, self.target = vocabularies.read(folder)
        best = Checkpoints(folder / "checkpoints").best()
        if best is None:
            raise RunError(f"{folder} has no trained model: checkpoints/ must hold what `plmu train` wrote there")
        self.model = models.build(self.config, self.source, self.target)
        try:
            self.model.load_state_dict(best["model"])
        except RuntimeError as error:
            differ = " ".join(str(error).split())
            raise RunError(
                f"{folder}: its checkpoints are not of its vocabularies: {differ}{other_version(best)}"
            ) from None
        self.model.to(device).eval()
        self.device = torch.device(device)

    def translate(self, sentences: Sequence[str], options: Options) -> list[Written | None]:
        """The translation of each raw sentence; None for one without words."""
        words = [tokenise(text) for text in sentences]
        numbered = [list(self.source.encode([word] for word in one)) for one in words]  # tokens of each word
        filled = sorted((i for i, one in enumerate(words) if one), key=lambda i: sum(map(len, numbered[i])))
        found: list[Written | None] = [None] * len(words)
        while filled:
            count = 1  # sentences of the next batch; the last is the longest
            while count < min(options.batch, len(filled)):
                if (count + 1) * sum(map(len, numbered[filled[count]])) > MOST_TOKENS:
                    break
                count += 1
            some, filled = filled[:count], filled[count:]
            given = [[number for word in numbered[i] for number in word] for i in some]
            for i, one in zip(some, self._translated(given, options), strict=True):
                found[i] = self._written(words[i], numbered[i], one, options)
        return found

    def _translated(self, sources: list[list[int]], options: Options) -> list[Translation]:
        lengths = torch.tensor([len(one) for one in sources])
        padded = torch.full((len(sources), int(lengths.max())), PADDING)
        for row, one in enumerate(sources):
            padded[row, : len(one)] = torch.tensor(one)
        penalty = self.config.length_penalty if options.length_penalty is None else options.length_penalty
        return translate(
            self.model,
            padded.to(self.device),
            lengths.to(self.device),
            options.beam or self.config.beam,
            penalty,
            attention=options.copy_unknown or options.attention is not None,
        )

    def _written(self, words: list[str], numbered: list[list[int]], found: Translation, options: Options) -> Written:
        owners = [place for place, numbers in enumerate(numbered) for _ in numbers]  # the word of each source token
        copied: list[str] = []
        if options.copy_unknown:
            assert found.attention is not None
            unknown = [place for place, number in enumerate(found.tokens) if number == UNKNOWN]
            copied = [words[owners[int(found.attention[place].argmax())]] for place in unknown]
        pairs = zip(words, numbered, strict=True)
        source = [_shown(self.source, number, word) for word, numbers in pairs for number in numbers]
        return Written(source, self.target.decode(found.tokens, copied), found)

    def drawn(self, written: Written) -> list[str]:
        """The tokens of a translation and its end, for the picture of its attention."""
        return [*(_shown(self.target, number, "<unk>") for number in written.found.tokens), "</s>"]


def _shown(vocabulary: Vocabulary, number: int, unknown: str) -> str:
    words = vocabulary.decode([number], [unknown])
    return unescaped(words[0]) if words else ""


def show(folder: Path, file: Path | None, options: Options, device: str = "cpu", out: IO[str] | None = None) -> None:
    """Print a line for each line of a file, or of standard input: its translation. Then how fast that was, on standard
    error. An empty line stays one."""
    screen = sys.stdout if out is None else out
    translator = Translator(folder, device)
    if file is None and sys.stdin is None:
        raise ValueError("there is no standard input to read from: give a file of sentences")
    interactive = file is None and sys.stdin.isatty()
    at_once = 1 if interactive or options.batch == 1 else options.batch * READ_AHEAD
    count, seconds, drawn = 0, 0.0, False
    for some in _chunks(_given(file), at_once):
        started = time.perf_counter()
        found = translator.translate(some, options)
        seconds += time.perf_counter() - started
        for one in found:
            text = "" if one is None else detokenise(one.words)
            print(f"{one.found.score:.4f}\t{text}" if one is not None and options.scores else text, file=screen)
            if one is not None and options.attention is not None and not drawn:
                draw(options.attention, one.source, translator.drawn(one), one.found.attention)
                drawn = True
        screen.flush()
        count += sum(one is not None for one in found)
    if options.attention is not None and not drawn:
        raise ValueError("--attention: there is no sentence to draw the attention of")
    if count:
        plural = "" if count == 1 else "s"
        print(f"{count:,} sentence{plural} in {seconds:.2f} s: {count / seconds:.3g} a second", file=sys.stderr)


def _given(file: Path | None) -> Iterator[str]:
    """Standard input is read as bytes: how it is decoded must not depend on the terminal's settings."""
    given = lines_of(sys.stdin.buffer, "standard input") if file is None else lines(file)
    yield from (line for _, line in given)


def _chunks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    given = iter(texts)
    while some := list(islice(given, size)):
        yield some


def _check_picture(path: Path) -> None:
    """Before anything is translated."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"--attention {path}: the name must end like that of a picture, such as .png or .pdf")
    if not path.parent.is_dir():
        raise ValueError(f"--attention {path}: there is no folder {path.parent}")


def draw(path: Path, source: Sequence[str], target: Sequence[str], weights: Tensor | None) -> None:
    """A picture of which tokens of the source (columns) each token of the target (rows) attended to."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    assert weights is not None
    across, down = (min(2 + 0.3 * len(names), LARGEST_SIDE) for names in (source, target))
    figure: Any = Figure(figsize=(across, down - 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(weights.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto")
    for axis, names in ((axes.xaxis, source), (axes.yaxis, target)):
        places = range(0, len(names), math.ceil(len(names) / MOST_NAMES))
        axis.set_ticks(places, [names[place][:LONGEST_NAME].replace("$", r"\$") for place in places])
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", rotation=90)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        figure.savefig(path)
    if any("missing from font" in str(one.message) for one in found):
        print(f"{path} has boxes for characters that its font does not have", file=sys.stderr)
