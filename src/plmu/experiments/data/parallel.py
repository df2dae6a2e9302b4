"""Sentences and their translations: IWSLT'15 English–Vietnamese, or files of the user's own.

Stanford's files of IWSLT'15 are downloaded if no data folder is set. They are tokenised as by Moses, and so is each
line of the user's own files. tst2012 is the validation set and tst2013 the test set. Users may leave out validation and
test files: a hash of the source then decides whether a training pair stays in the training set (98 %) or moves to the
validation set (1 %) or the test set (1 %).

Words that occur fewer than 5 times in the training sentences are unknown words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

from plmu.data.cache import Array, array_texts, cached, text_array
from plmu.data.files import DataConfig, Remote, find, is_file, packed, present
from plmu.data.reading import lines
from plmu.errors import DataError
from plmu.experiments.data.reviews import fingerprint, split_of
from plmu.text import moses
from plmu.text.vocabularies import SPECIAL, Pieces, Vocabulary, Words, train_pieces
from plmu.text.words import Ragged, completeness

FOLDER = "iwslt15-en-vi"
HOME = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi/"
SHA256 = {
    "train.en": "c26dfeed74b6bf3752f5ca552f2412456f0de153f7c804df8717931fb3a5c78a",
    "train.vi": "707206edf2dc0280273952c7b70544ea8a1363aa69aaeb9d70514b888dc3067d",
    "tst2012.en": "b8fbcd0d4199d41276421d1f7228298df67dd9e2c5c134c2ee8cdf3ec27801e2",
    "tst2012.vi": "01004078b3f36b0c46e81b65fc6851230b3c823405c76d1d82ef3b786b512ff0",
    "tst2013.en": "3860ce60bc5b85d96cc2d3d580cf1bc9d62440e939c1b964676d3607c4e8f1df",
    "tst2013.vi": "29af16842808da2812b8fd4d47fc05d082ba870e60ab7755090ad04b380994cd",
    "vocab.en": "97ca770fd3a4ebc41ea219d0a89a52e8a50cd426417c1107b9a45e34a0398d55",
    "vocab.vi": "2554d3ca46f046ab40abebee3bebfeff3930dc2d1a737efe6f34526d628d6a7f",
}
LANGUAGES = ("en", "vi")
SPLITS = {"train": "train", "valid": "tst2012", "test": "tst2013"}
WHOLE = {"train": 133_317, "valid": 1_553, "test": 1_268}
RAREST = 5  # occurrences of a word that is in the vocabulary, at least
MOST = 60_000  # words of the vocabulary of own files
LONGEST = 10_000  # characters of a validation or test sentence: all are padded to the longest
VERSION = 1  # of the cached arrays
PURPOSES = {"train": "train on", "valid": "validate on", "test": "test on"}

Pair = tuple[list[str], list[str]]  # words of source and target


@dataclass
class ParallelConfig(DataConfig):
    """Which pairs of sentences, and where they are."""

    source: Path | None = None
    """Sentences of your own to train on, one a line in UTF-8, instead of IWSLT'15."""
    target: Path | None = None
    """Their translations: each line that of the same line of --data.source."""
    valid_source: Path | None = None
    """Sentences to validate on. Default: 1 % of the training pairs, by a hash."""
    valid_target: Path | None = None
    """Their translations."""
    test_source: Path | None = None
    """Sentences to test on. Default: 1 % of the training pairs, by a hash."""
    test_target: Path | None = None
    """Their translations."""

    def own_files(self) -> dict[str, tuple[Path, Path]]:
        """The user's own pairs of files, source and target, by split; empty for IWSLT'15.

        Raises:
            DataError: a file is missing, or is given without the other of its pair or without training files.
        """
        files = {}
        for split, start in (("train", ""), ("valid", "valid_"), ("test", "test_")):
            names = [f"{start}{side}" for side in ("source", "target")]
            paths = [getattr(self, name) for name in names]
            options = [f"--data.{name.replace('_', '-')}" for name in names]
            if None in paths and paths != [None, None]:
                raise DataError(f"{options[0]} and {options[1]} belong together: give both")
            for option, path in zip(options, paths, strict=True):
                if path is not None and not is_file(path):
                    raise DataError(f"{path} is {'not a file' if path.exists() else 'not there'}: {option} takes one")
            if paths[0] is not None:
                files[split] = (paths[0], paths[1])
        if files and "train" not in files:
            raise DataError("--data.source and --data.target are needed beside files that validate or test")
        return files


@dataclass
class ParallelData:
    """Token numbers of both sides by split, their vocabularies, and the target's sentences as references."""

    splits: dict[str, tuple[Ragged, Ragged]]
    source: Vocabulary
    target: Vocabulary
    references: dict[str, list[str]]  # of valid and test: tokenised target sentences, words separated by spaces
    completeness: str


def load(config: ParallelConfig, pieces: int = 0) -> ParallelData:
    """The pairs as words; or, with `pieces` above 0, as pieces of one vocabulary of that size for both languages.

    They come through the cache, whose files also work on other machines, even without a tokenizer library.
    """
    own_files = config.own_files()
    files = own_files or {split: _files(config, stem) for split, stem in SPLITS.items()}
    vocabularies = [] if own_files or pieces else [_vocabulary_file(config, language) for language in LANGUAGES]
    word_files = [path for path in vocabularies if path is not None] if None not in vocabularies else []
    split_words: Callable[[str], list[str]] = moses.tokenise if own_files else str.split

    def make() -> dict[str, Array]:
        pairs, skipped = _read(files, split_words)
        if own_files:
            counts = "/".join(f"{len(examples):,}" for examples in pairs.values())
            names = ", ".join(f"{a.name} – {b.name}" for a, b in own_files.values())
            by = "" if len(own_files) == len(SPLITS) else "; split by a hash where no files are given"
            remark = f"own pairs {names}: {counts} (train/valid/test){by}"
        else:
            remark = completeness("IWSLT'15 En–Vi", {split: (len(pairs[split]), WHOLE[split]) for split in SPLITS})
        if skipped:
            remark += f"; {len(skipped):,} training pairs with an empty side left out, the first at line {skipped[0]:,}"
        if pieces:
            sentences = (" ".join(words) for pair in pairs["train"] for words in pair)
            tokenizer = train_pieces(sentences, pieces)
            return _arrays(pairs, Pieces(tokenizer), Pieces(tokenizer), tokenizer, remark)
        if word_files:
            source, target = (Words(_vocabulary(path)) for path in word_files)
        else:
            source, target = (Words(_frequent(pairs["train"], side, files["train"][side])) for side in (0, 1))
        return _arrays(pairs, source, target, "", remark)

    settings = {"pieces": pieces, "own": sorted(own_files), "version": VERSION}
    if own_files:
        settings["tokeniser"] = moses.VERSION
    paths = [*chain.from_iterable(files.values()), *word_files]
    return cached("parallel", paths, settings, make, _data)


def _files(config: DataConfig, stem: str) -> tuple[Path, Path]:
    """The files of IWSLT'15 for a split, source and target; `stem` is the name without its language."""
    source, target = (_file(config, f"{stem}.{language}") for language in LANGUAGES)
    return source, target


def _file(config: DataConfig, name: str) -> Path:
    return find(config, FOLDER, packed(name), Remote(f"{HOME}{name}", SHA256[name]))


def _vocabulary_file(config: DataConfig, language: str) -> Path | None:
    """The vocabulary file of a language; None if the user's folder has none: training sentences then give the words."""
    name = f"vocab.{language}"
    if config.folder() is None:
        return _file(config, name)
    return present(config, FOLDER, packed(name))


def _vocabulary(path: Path) -> list[str]:
    """The words of a vocabulary file with one word per line, without SPECIAL."""
    words: dict[str, int] = {}
    for number, line in lines(path):
        word = line.strip()
        if not word or len(word.split()) > 1 or word in words:
            reason = "is there twice" if word in words else "is not one word"
            raise DataError(f"{path}, line {number}: {word!r} {reason}")
        words[word] = number
    return [word for word in words if word not in SPECIAL]


def _frequent(pairs: Iterable[Pair], side: int, path: Path) -> list[str]:
    """The words of one side, 0 source or 1 target, that occur at least RAREST times, most frequent first, MOST at most.

    `path` is the file of this side, for an error message.
    """
    counts = Counter(word for pair in pairs for word in pair[side])
    frequent = [word for word, count in counts.items() if count >= RAREST]
    if not frequent:
        raise DataError(f"{path} is too short: no word is there {RAREST} times")
    return sorted(frequent, key=lambda word: (-counts[word], word))[:MOST]


def _read(
    files: dict[str, tuple[Path, Path]], words: Callable[[str], list[str]]
) -> tuple[dict[str, list[Pair]], list[int]]:
    """The pairs of each split as words, and the numbers of the training lines with an empty side, which are left out.

    Args:
        files: source and target by split. Splits without files get training pairs by a hash.
        words: splits a line into words.
    """
    splits: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    skipped = []
    for split, paths in files.items():
        for number, texts in _aligned(*paths):
            pair = words(texts[0]), words(texts[1])
            if split != "train":
                _check_held_out(paths, number, texts, pair, split)
            if not all(pair):
                skipped.append(number)
            else:
                # A training pair may move to a split without files, unless it is too long to be held out.
                stays = split != "train" or max(map(len, texts)) > LONGEST
                target = split if stays else split_of(fingerprint(texts[0]))
                splits[split if target in files else target].append(pair)
    for split, pairs in splits.items():
        if not pairs:
            paths, hint = files.get(split, files["train"]), ""
            if split not in files:
                hint = f"; give some by --data.{split}-source and --data.{split}-target"
            raise DataError(f"{paths[0]} and {paths[1]} have too few pairs: there is none to {PURPOSES[split]}{hint}")
    return splits, skipped


def _check_held_out(paths: tuple[Path, Path], number: int, texts: tuple[str, str], pair: Pair, split: str) -> None:
    """Raise DataError if a line of a validation or test file, on either side, is empty or too long."""
    for path, text, words in zip(paths, texts, pair, strict=True):
        if not words:
            raise DataError(f"{path}, line {number}: it is empty, and a sentence to {PURPOSES[split]} may not be")
        if len(text) > LONGEST:
            raise DataError(
                f"{path}, line {number}: it has {len(text):,} characters, and a sentence to {PURPOSES[split]} at most"
                f" {LONGEST:,}"
            )


def _aligned(source: Path, target: Path) -> Iterator[tuple[int, tuple[str, str]]]:
    """Line numbers, from 1, and the lines of two files side by side. DataError if one is longer."""
    for first, second in zip_longest(lines(source), lines(target)):
        if first is None or second is None:
            number, longer, shorter = (second or first)[0], *((target, source) if first is None else (source, target))
            raise DataError(
                f"{longer}, line {number}: {shorter} ends before it, at line {number - 1}; each line of one must be the"
                " translation of the same line of the other"
            )
        yield first[0], (first[1], second[1])


def _arrays(
    pairs: dict[str, list[Pair]], source: Vocabulary, target: Vocabulary, tokenizer: str, remark: str
) -> dict[str, Array]:
    """The arrays for the cache. `tokenizer` is its JSON, empty for words; `remark` says how complete the data is."""
    arrays: dict[str, Array] = {}
    for split, examples in pairs.items():
        for side, vocabulary in enumerate((source, target)):
            numbers = list(vocabulary.encode(pair[side] for pair in examples))
            arrays[f"{split}.{side}.values"] = np.fromiter(chain.from_iterable(numbers), np.uint16)
            arrays[f"{split}.{side}.ends"] = np.cumsum([len(sentence) for sentence in numbers], dtype=np.int64)
        if split != "train":
            arrays[f"{split}.references"] = text_array(" ".join(pair[1]) for pair in examples)
    for side, vocabulary in enumerate((source, target)):
        arrays[f"words.{side}"] = text_array(vocabulary.words if isinstance(vocabulary, Words) else ())
    arrays["tokenizer"], arrays["completeness"] = text_array([tokenizer]), text_array([remark])
    return arrays


def _data(arrays: dict[str, Array]) -> ParallelData:
    """Build ParallelData from cached arrays.

    Raises:
        KeyError, ValueError: the arrays do not fit together.
    """
    tokenizer = bytes(arrays["tokenizer"]).decode()
    vocabularies: list[Vocabulary] = []
    for side in (0, 1):
        vocabularies.append(Pieces(tokenizer) if tokenizer else Words(array_texts(arrays[f"words.{side}"])))
    splits, references = {}, {}
    for split in SPLITS:
        sides = [Ragged(arrays[f"{split}.{side}.values"], arrays[f"{split}.{side}.ends"]) for side in (0, 1)]
        for ragged, vocabulary in zip(sides, vocabularies, strict=True):
            if ragged.values.dtype != np.uint16 or ragged.values.max() >= vocabulary.size:
                raise ValueError(f"{split}: its numbers are not those of the vocabulary")
            if (np.diff(ragged.ends, prepend=0) < 1).any() or ragged.ends[-1] != len(ragged.values):
                raise ValueError(f"{split}: sentences have no order")
        splits[split] = (sides[0], sides[1])
        if split != "train":
            references[split] = array_texts(arrays[f"{split}.references"])
        if len(sides[0]) != len(sides[1]) or len(references.get(split, sides[0].ends)) != len(sides[0]):
            raise ValueError(f"{split}: its sides are not equally long")
    return ParallelData(splits, vocabularies[0], vocabularies[1], references, bytes(arrays["completeness"]).decode())
