"""SNLI 1.0: does the second sentence follow from the first, contradict it, or neither?

The files are JSON lines. Pairs without a gold label ("-") are left out, as usual.
"""

from __future__ import annotations

from pathlib import Path

from plmu.data.cache import Array, cached
from plmu.data.files import DataConfig, Remote, find, packed, present
from plmu.data.reading import json_lines
from plmu.errors import DataError
from plmu.text.words import RULES, VOCABULARY, Builder, TextData, completeness, tokenise

FOLDER = "snli"
ORIGINAL = Remote(
    "https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
    "afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
)
HOME = ORIGINAL.url
CLASSES = ("entailment", "neutral", "contradiction")
FILES = {"train": "train", "valid": "dev", "test": "test"}
WHOLE = {"train": (550_152, 549_367), "dev": (10_000, 9_842), "test": (10_000, 9_824)}  # pairs, and those with a label


def names(part: str) -> tuple[str, ...]:
    return packed(f"snli_1.0_{part}.jsonl")


def locate(config: DataConfig) -> dict[str, Path]:
    """The file of each split, which may be the archive of all three."""
    archive = present(config, FOLDER, ("snli_1.0.zip",))
    if config.folder() is None:
        archive = find(config, FOLDER, ("snli_1.0.zip",), ORIGINAL)
    return {split: archive or find(config, FOLDER, names(part), HOME) for split, part in FILES.items()}


def load(config: DataConfig, size: int = VOCABULARY) -> TextData:
    """Train, valid and test; a class is an index into CLASSES."""
    paths = locate(config)

    def make() -> dict[str, Array]:
        builder = Builder(2)
        counts = {}
        for split, part in FILES.items():
            pairs = read(paths[split], part, split, builder)
            whole, labelled = WHOLE[part]
            count = builder.count(split)
            if not count:
                raise DataError(f"{paths[split]} has no pair with a label")
            counts[part] = (count, labelled) if pairs == whole or count == labelled else (pairs, whole)
        return builder.finish(size, completeness("SNLI", counts)).arrays()

    settings = {"size": size, "rules": RULES, "version": 1}
    return cached("snli", list(dict.fromkeys(paths.values())), settings, make, TextData.of)


def read(path: Path, part: str, split: str, builder: Builder) -> int:
    """Add the labelled pairs of a file to a split. Returns the number of all pairs, with and without a label.

    `part` is train, dev or test: the name of the split in the archive.
    """
    pairs = 0
    for number, pair in json_lines(path, f"snli_1.0_{part}.jsonl"):
        names = ("gold_label", "sentence1", "sentence2")
        missing = [name for name in names if not isinstance(pair, dict) or not isinstance(pair.get(name), str)]
        if missing:
            raise DataError(f"{path}, line {number}: there is no {', '.join(missing)}")
        label, first, second = (pair[name] for name in names)
        pairs += 1
        if label == "-":
            continue
        if label not in CLASSES:
            raise DataError(
                f"{path}, line {number}: gold_label is {label[:40]!r}, not one of {', '.join(CLASSES)} or -"
            )
        builder.add(split, CLASSES.index(label), tokenise(first), tokenise(second))
    return pairs
