"""Quora question pairs: do two questions ask the same? From the official file, or from the partition of Wang et al.

The official file has no splits. The paper's two are drawn here, since their lists are unpublished: all pairs in the
order of `numpy.random.default_rng(0).permutation`, of which the last ones are the test set, those before them the
validation set and the rest the training set: 8,000 and 8,000 ("390k"), or 40,000 and 80,000 ("280k"). The partition
("partition": train, dev and test files of label, question, question and number) is used as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from plmu.data.cache import Array, cached
from plmu.data.files import DataConfig, find, packed, present
from plmu.data.reading import filled_lines, table
from plmu.errors import DataError
from plmu.text.words import RULES, VOCABULARY, Builder, TextData, completeness, tokenise

Choice = Literal["auto", "390k", "280k", "partition"]

FOLDER = "qqp"
OFFICIAL = "quora_duplicate_questions.tsv"
HOME = "http://qim.fs.quoracdn.net/quora_duplicate_questions.tsv"
PARTITION_HOME = "the partition of Wang et al., BiMPM: https://github.com/zhiguowang/BiMPM"
COLUMNS = ("question1", "question2", "is_duplicate")
PAIRS = 404_290
HELD_OUT = {"390k": (8_000, 8_000), "280k": (80_000, 40_000)}  # sizes of validation and test set
FILES = {"train": "train", "valid": "dev", "test": "test"}
PARTITION = {"train": 384_348, "dev": 10_000, "test": 10_000}
SPLIT_SEED = 0


def locate(config: DataConfig, choice: Choice = "auto") -> tuple[str, list[Path]]:
    """The split that is chosen, and its files. "auto" is 390k if the official file is there, else the partition."""
    split: str = choice
    if choice == "auto":
        official = present(config, FOLDER, packed(OFFICIAL))
        split = "390k" if official is not None or config.folder() is None else "partition"
    if split == "partition":
        home = f"{PARTITION_HOME}, or put {OFFICIAL} there, from {HOME}"
        return split, [find(config, FOLDER, packed(f"{part}.tsv"), home) for part in FILES.values()]
    return split, [find(config, FOLDER, packed(OFFICIAL), HOME)]


def load(config: DataConfig, choice: Choice = "auto", size: int = VOCABULARY) -> TextData:
    """Train, valid and test; class 1 is a duplicate."""
    split, paths = locate(config, choice)

    def make() -> dict[str, Array]:
        builder = Builder(2)
        remark = _partition(paths, builder) if split == "partition" else _official(paths[0], split, builder)
        return builder.finish(size, remark).arrays()

    settings = {"size": size, "rules": RULES, "split": split, "seed": SPLIT_SEED, "version": 1}
    return cached("qqp", paths, settings, make, TextData.of)


def _official(path: Path, split: str, builder: Builder) -> str:
    """Add the pairs of the official file, split at random. Returns how complete the data is."""
    for number, (first, second, label) in table(path, COLUMNS):
        builder.add("all", _label(path, number, label), tokenise(first), tokenise(second))
    count = builder.count("all")
    if count < 10:
        raise DataError(f"{path} has {count} pairs: too few for three splits")
    sizes = tuple(round(part / PAIRS * count) for part in HELD_OUT[split]) if count < PAIRS else HELD_OUT[split]
    valid, test = (max(1, size) for size in sizes)
    order = np.random.default_rng(SPLIT_SEED).permutation(count)
    parts = {"train": order[: -valid - test], "valid": order[-valid - test : -test], "test": order[-test:]}
    builder.divide("all", parts)
    remark = f"split {split}, seed {SPLIT_SEED}: " + " / ".join(f"{len(rows):,}" for rows in parts.values())
    return completeness("QQP", {"official file": (count, PAIRS)}, remark)


def _partition(paths: list[Path], builder: Builder) -> str:
    """Add the pairs of the partition's files, in the order of FILES. Returns how complete the data is."""
    counts = {}
    for path, (split, part) in zip(paths, FILES.items(), strict=True):
        for number, line in filled_lines(path):
            fields = line.split("\t")
            if len(fields) < 3:
                raise DataError(f"{path}, line {number}: {len(fields)} columns, not label, question, question, id")
            builder.add(split, _label(path, number, fields[0]), tokenise(fields[1]), tokenise(fields[2]))
        if not builder.count(split):
            raise DataError(f"{path} has no pairs")
        counts[part] = (builder.count(split), PARTITION[part])
    return completeness("QQP", counts, "partition of Wang et al.")


def _label(path: Path, number: int, label: str) -> int:
    if label not in ("0", "1"):
        raise DataError(f"{path}, line {number}: the label is {label[:40]!r} and must be 0 or 1")
    return int(label)
