"""Pairs of sentences, one the translation of the other: IWSLT'15 English–Vietnamese, or files of one's own.

Stanford's files of IWSLT'15 are downloaded where no data folder is set. They are tokenised as Moses does; of one's own
files each line is a sentence, which is tokenised in the same way. tst2012 validates and tst2013 tests. Where one's own
files for that are not given, a hash of its source says whether a pair trains (98 %), validates (1 %) or tests (1 %).

Words that are seen fewer than 5 times in the training sentences have no number of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

from plmu.data.cache import Array, cached
from plmu.data.files import DataConfig, Remote, find, is_file, present
from plmu.data.reading import lines
from plmu.errors import DataError
from plmu.experiments.data.reviews import fingerprint, split_of
from plmu.text import moses
from plmu.text.vocabularies import SPECIAL, Pieces, Vocabulary, Words, train_pieces
from plmu.text.words import PACKINGS, Ragged, completeness

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
RAREST = 5  # occurrences of a word that has a number
MOST = 60_000  # words of a vocabulary of one's own
LONGEST = 10_000  # characters of a sentence to validate or test on: all of these are padded to the longest
VERSION = 1  # of what is cached
PURPOSES = {"train": "train on", "valid": "validate on", "test": "test on"}

Pair = tuple[list[str], list[str]]  # words of source and target


@dataclass
class ParallelConfig(DataConfig):
    """Which pairs of sentences, and where they are."""

    source: Path | None = None
    """Sentences of your own to train on, one a line in UTF-8, instead of IWSLT'15."""
    target: Path | None = None
    """Their translations: line by line, those of `source`."""
    valid_source: Path | None = None
    """Sentences to validate on. Default: 1 % of the training pairs, by a hash."""
    valid_target: Path | None = None
    """Their translations."""
    test_source: Path | None = None
    """Sentences to test on. Default: 1 % of the training pairs, by a hash."""
    test_target: Path | None = None
    """Their translations."""

    def own(self) -> dict[str, tuple[Path, Path]]:
        """The pairs of files that are given, by split; none for IWSLT'15."""
        found = {}
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
                found[split] = (paths[0], paths[1])
        if found and "train" not in found:
            raise DataError("--data.source and --data.target are needed beside files that validate or test")
        return found


@dataclass
class ParallelData:
    """Token numbers of both sides by split, what they stand for, and the target's words as they are, to score by."""

    splits: dict[str, tuple[Ragged, Ragged]]
    source: Vocabulary
    target: Vocabulary
    references: dict[str, list[str]]  # of valid and test: a sentence each, its words with spaces between them
    completeness: str


def load(config: ParallelConfig, pieces: int = 0) -> ParallelData:
    """The pairs as words; or, if asked, as pieces of one vocabulary of so many for both languages.

    Read once and kept in the cache, which another machine may use, even one without a tokenizer library.
    """
    own = config.own()
    files = own or {split: _files(config, stem) for split, stem in SPLITS.items()}
    vocabularies = [] if own or pieces else [_vocabulary_file(config, language) for language in LANGUAGES]
    known = [path for path in vocabularies if path is not None] if None not in vocabularies else []
    split_words: Callable[[str], list[str]] = moses.tokenise if own else str.split

    def make() -> dict[str, Array]:
        pairs, skipped = _read(files, split_words)
        if own:
            counts = "/".join(f"{len(some):,}" for some in pairs.values())
            names = ", ".join(f"{a.name} – {b.name}" for a, b in own.values())
            by = "" if len(own) == len(SPLITS) else "; split by a hash where no files are given"
            remark = f"own pairs {names}: {counts} (train/valid/test){by}"
        else:
            remark = completeness("IWSLT'15 En–Vi", {split: (len(pairs[split]), WHOLE[split]) for split in SPLITS})
        if skipped:
            remark += f"; {len(skipped):,} training pairs with an empty side left out, the first at line {skipped[0]:,}"
        if pieces:
            sentences = (" ".join(words) for pair in pairs["train"] for words in pair)
            tokenizer = train_pieces(sentences, pieces)
            return _arrays(pairs, Pieces(tokenizer), Pieces(tokenizer), tokenizer, remark)
        if known:
            source, target = (Words(_vocabulary(path)) for path in known)
        else:
            source, target = (Words(_frequent(pairs["train"], side, files["train"][side])) for side in (0, 1))
        return _arrays(pairs, source, target, "", remark)

    settings = {"pieces": pieces, "own": sorted(own), "version": VERSION}
    if own:
        settings["tokeniser"] = moses.VERSION
    every = [*chain.from_iterable(files.values()), *known]
    return cached("parallel", every, settings, make, _data, portable=True)


def _files(config: DataConfig, stem: str) -> tuple[Path, Path]:
    source, target = (_file(config, f"{stem}.{language}") for language in LANGUAGES)
    return source, target


def _file(config: DataConfig, name: str) -> Path:
    names = tuple(f"{name}{end}" for end in PACKINGS)
    return find(config, FOLDER, names, Remote(f"{HOME}{name}", SHA256[name]))


def _vocabulary_file(config: DataConfig, language: str) -> Path | None:
    """One's own folder of files may be without; then the training sentences give the words."""
    name = f"vocab.{language}"
    if config.folder() is None:
        return _file(config, name)
    return present(config, FOLDER, tuple(f"{name}{end}" for end in PACKINGS))


def _vocabulary(path: Path) -> list[str]:
    words: dict[str, int] = {}
    for number, line in lines(path):
        word = line.strip()
        if not word or len(word.split()) > 1 or word in words:
            reason = "is there twice" if word in words else "is not one word"
            raise DataError(f"{path}, line {number}: {word!r} {reason}")
        words[word] = number
    return [word for word in words if word not in SPECIAL]


def _frequent(pairs: Iterable[Pair], side: int, path: Path) -> list[str]:
    counts = Counter(word for pair in pairs for word in pair[side])
    kept = [word for word, count in counts.items() if count >= RAREST]
    if not kept:
        raise DataError(f"{path} is too short: no word is there {RAREST} times")
    return sorted(kept, key=lambda word: (-counts[word], word))[:MOST]


def _read(
    files: dict[str, tuple[Path, Path]], words: Callable[[str], list[str]]
) -> tuple[dict[str, list[Pair]], list[int]]:
    """The pairs of each split, and at which lines a training pair had an empty side."""
    found: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    skipped = []
    for split, paths in files.items():
        for number, texts in _aligned(*paths):
            pair = words(texts[0]), words(texts[1])
            if split != "train":
                _check_held_out(paths, number, texts, pair, split)
            if not all(pair):
                skipped.append(number)
            else:
                stays = split != "train" or max(map(len, texts)) > LONGEST
                apart = split if stays else split_of(fingerprint(texts[0]))
                found[split if apart in files else apart].append(pair)
    for split, pairs in found.items():
        if not pairs:
            given, hint = files.get(split, files["train"]), ""
            if split not in files:
                hint = f"; give some by --data.{split}-source and --data.{split}-target"
            raise DataError(f"{given[0]} and {given[1]} have too few pairs: there is none to {PURPOSES[split]}{hint}")
    return found, skipped


def _check_held_out(paths: tuple[Path, Path], number: int, texts: tuple[str, str], pair: Pair, split: str) -> None:
    for path, text, words in zip(paths, texts, pair, strict=True):
        if not words:
            raise DataError(f"{path}, line {number}: it is empty, and a sentence to {PURPOSES[split]} may not be")
        if len(text) > LONGEST:
            raise DataError(
                f"{path}, line {number}: it has {len(text):,} characters, and a sentence to {PURPOSES[split]} at most"
                f" {LONGEST:,}"
            )


def _aligned(source: Path, target: Path) -> Iterator[tuple[int, tuple[str, str]]]:
    """Numbered lines of two files, side by side."""
    for one, other in zip_longest(lines(source), lines(target)):
        if one is None or other is None:
            number, longer, shorter = (other or one)[0], *((target, source) if one is None else (source, target))
            raise DataError(
                f"{longer}, line {number}: {shorter} ends before it, at line {number - 1}; each line of one must be the"
                " translation of the same line of the other"
            )
        yield one[0], (one[1], other[1])


def _arrays(
    pairs: dict[str, list[Pair]], source: Vocabulary, target: Vocabulary, tokenizer: str, remark: str
) -> dict[str, Array]:
    """For the cache."""
    out: dict[str, Array] = {}
    for split, some in pairs.items():
        for side, vocabulary in enumerate((source, target)):
            numbers = list(vocabulary.encode(pair[side] for pair in some))
            out[f"{split}.{side}.values"] = np.fromiter(chain.from_iterable(numbers), np.uint16)
            out[f"{split}.{side}.ends"] = np.cumsum([len(one) for one in numbers], dtype=np.int64)
        if split != "train":
            out[f"{split}.references"] = _bytes(" ".join(pair[1]) for pair in some)
    for side, vocabulary in enumerate((source, target)):
        out[f"words.{side}"] = _bytes(vocabulary.words if isinstance(vocabulary, Words) else ())
    out["tokenizer"], out["completeness"] = _bytes([tokenizer]), _bytes([remark])
    return out


def _data(arrays: dict[str, Array]) -> ParallelData:
    """From the cache. Raises KeyError or ValueError if they do not belong together."""
    tokenizer = bytes(arrays["tokenizer"]).decode()
    vocabularies: list[Vocabulary] = []
    for side in (0, 1):
        vocabularies.append(Pieces(tokenizer) if tokenizer else Words(_texts(arrays[f"words.{side}"])))
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
            references[split] = _texts(arrays[f"{split}.references"])
        if len(sides[0]) != len(sides[1]) or len(references.get(split, sides[0].ends)) != len(sides[0]):
            raise ValueError(f"{split}: its sides are not equally long")
    return ParallelData(splits, vocabularies[0], vocabularies[1], references, bytes(arrays["completeness"]).decode())


def _bytes(texts: Iterable[str]) -> Array:
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def _texts(array: Array) -> list[str]:
    text = bytes(array).decode()
    return text.split("\n") if text else []
