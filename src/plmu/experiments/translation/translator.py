"""Translating raw sentences with a trained model: `plmu translate RUN`."""

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
from plmu.experiments.iwslt import IWSLT
from plmu.experiments.translation import models
from plmu.experiments.translation.decoding import Translation, translate
from plmu.experiments.translation.models import TranslationModel
from plmu.runs.configuration import read_config
from plmu.runs.experiment import Experiment
from plmu.runs.folder import write_figure
from plmu.text import vocabularies
from plmu.text.moses import detokenise, tokenise, unescaped
from plmu.text.vocabularies import PADDING, UNKNOWN, Vocabulary
from plmu.training.checkpoints import Checkpoints, other_version

READ_AHEAD = 8  # batches that are read to find sentences of similar length
MOST_TOKENS = 4_096  # of the sources of a batch of two or more sentences, padding included
LARGEST_SIDE, MOST_NAMES, LONGEST_NAME = 60, 200, 40  # of a picture: inches, labels of an axis, characters of a label


@dataclass
class Options:
    """How sentences are translated. None: as in the run's test."""

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
    """A sentence's translation as tokenised words."""

    source: list[str]  # its tokens, for the attention
    words: list[str]
    translation: Translation


class Translator:
    """The best model of a run, with its vocabularies.

    Args:
        folder: of a run of `iwslt`.
        device: where the model runs.

    Raises:
        RunError: it is a run of another experiment, or has no trained model.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        def lookup(name: str) -> Experiment:
            if name != IWSLT.name:
                raise RunError(f"{folder} is a run of {name}, which does not translate: give one of {IWSLT.name}")
            return IWSLT()

        self.config: TranslationModel = read_config(folder, lookup)[1].model
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
        token_ids = [list(self.source.encode([word] for word in sentence)) for sentence in words]  # of each word
        by_length = sorted(
            (i for i, sentence in enumerate(words) if sentence), key=lambda i: sum(map(len, token_ids[i]))
        )
        result: list[Written | None] = [None] * len(words)
        while by_length:
            count = 1  # sentences of the next batch; the last is the longest
            while count < min(options.batch, len(by_length)):
                if (count + 1) * sum(map(len, token_ids[by_length[count]])) > MOST_TOKENS:
                    break
                count += 1
            batch, by_length = by_length[:count], by_length[count:]
            sources = [[number for word in token_ids[i] for number in word] for i in batch]
            for i, translation in zip(batch, self._decode_batch(sources, options), strict=True):
                result[i] = self._written(words[i], token_ids[i], translation, options)
        return result

    def _decode_batch(self, sources: list[list[int]], options: Options) -> list[Translation]:
        """Pads sources, the token numbers of sentences, and runs beam search."""
        lengths = torch.tensor([len(source) for source in sources])
        padded = torch.full((len(sources), int(lengths.max())), PADDING)
        for row, source in enumerate(sources):
            padded[row, : len(source)] = torch.tensor(source)
        penalty = self.config.length_penalty if options.length_penalty is None else options.length_penalty
        return translate(
            self.model,
            padded.to(self.device),
            lengths.to(self.device),
            options.beam or self.config.beam,
            penalty,
            attention=options.copy_unknown or options.attention is not None,
        )

    def _written(
        self, words: list[str], token_ids: list[list[int]], translation: Translation, options: Options
    ) -> Written:
        """A translation as words; with `copy_unknown` each <unk> is the source word with the highest attention.

        Args:
            words: of the source sentence.
            token_ids: the token numbers of each of these words.
            translation: of the sentence.
            options: how it is translated.
        """
        owners = [place for place, numbers in enumerate(token_ids) for _ in numbers]  # the word of each source token
        copied: list[str] = []
        if options.copy_unknown:
            assert translation.attention is not None
            unknown = [place for place, number in enumerate(translation.tokens) if number == UNKNOWN]
            copied = [words[owners[int(translation.attention[place].argmax())]] for place in unknown]
        pairs = zip(words, token_ids, strict=True)
        source = [_shown(self.source, number, word) for word, numbers in pairs for number in numbers]
        return Written(source, self.target.decode(translation.tokens, copied), translation)

    def target_labels(self, written: Written) -> list[str]:
        """The tokens of a translation and END, to label the picture of its attention."""
        return [*(_shown(self.target, number, "<unk>") for number in written.translation.tokens), "</s>"]


def _shown(vocabulary: Vocabulary, number: int, unknown: str) -> str:
    """The text of a token number; `unknown` stands for that of an unknown word."""
    words = vocabulary.decode([number], [unknown])
    return unescaped(words[0]) if words else ""


def show(folder: Path, file: Path | None, options: Options, device: str = "cpu", out: IO[str] | None = None) -> None:
    """Print the translation of each line of a file, or of standard input; then the speed, on standard error. An empty
    line stays empty."""
    screen = sys.stdout if out is None else out
    translator = Translator(folder, device)
    if file is None and sys.stdin is None:
        raise ValueError("there is no standard input to read from: give a file of sentences")
    interactive = file is None and sys.stdin.isatty()
    at_once = 1 if interactive or options.batch == 1 else options.batch * READ_AHEAD
    count, seconds, drawn = 0, 0.0, False
    for chunk in _chunks(_lines(file), at_once):
        started = time.perf_counter()
        translated = translator.translate(chunk, options)
        seconds += time.perf_counter() - started
        for written in translated:
            if written is None:
                print(file=screen)
                continue
            count += 1
            text = detokenise(written.words)
            print(f"{written.translation.score:.4f}\t{text}" if options.scores else text, file=screen)
            if options.attention is not None and not drawn:
                draw(
                    options.attention, written.source, translator.target_labels(written), written.translation.attention
                )
                drawn = True
        screen.flush()
    if options.attention is not None and not drawn:
        raise ValueError("--attention: there is no sentence to draw the attention of")
    if count:
        plural = "" if count == 1 else "s"
        print(f"{count:,} sentence{plural} in {seconds:.2f} s: {count / seconds:.3g} a second", file=sys.stderr)


def _lines(file: Path | None) -> Iterator[str]:
    """Lines of a file or of standard input, which is read as UTF-8 whatever the terminal's settings are."""
    numbered = lines_of(sys.stdin.buffer, "standard input") if file is None else lines(file)
    yield from (line for _, line in numbered)


def _chunks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(texts)
    while chunk := list(islice(remaining, size)):
        yield chunk


def _check_picture(path: Path) -> None:
    """Raise ValueError if a picture cannot be written there, before anything is translated."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if path.suffix[1:].lower() not in FigureCanvasAgg.get_supported_filetypes():
        raise ValueError(f"--attention {path}: the name must end like that of a picture, such as .png or .pdf")
    if not path.parent.is_dir():
        raise ValueError(f"--attention {path}: there is no folder {path.parent}")


def draw(path: Path, source: Sequence[str], target: Sequence[str], weights: Tensor | None) -> None:
    """A picture of the attention of each token of the target (rows) to the tokens of the source (columns)."""
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
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        write_figure(path, figure)
    if any("missing from font" in str(warning.message) for warning in raised):
        print(f"{path} has boxes for characters that its font does not have", file=sys.stderr)
