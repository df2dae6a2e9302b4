"""Word vectors in GloVe's text format: a word and its numbers per line; plain, .zip, .gz, .bz2 or .xz.

Vectors of different origin differ in size: all are scaled to the same mean absolute component, about GloVe 840B's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plmu.data.cache import Array, cached
from plmu.data.files import DataConfig, find, is_file, packed, present
from plmu.data.reading import filled_lines
from plmu.errors import DataError
from plmu.text.words import FIRST

FOLDER = "glove"
HOME = "https://nlp.stanford.edu/data/glove.840B.300d.zip"
GLOVE = ("glove.840B.300d.zip", *packed("glove.840B.300d.txt"))
COMPONENT = 0.3  # mean absolute component after loading


@dataclass
class Vectors:
    """A row for each token number: zeros for padding, unknown words and words without a vector."""

    matrix: Array  # (words + FIRST, dimension), float32
    description: str  # name, coverage and scale, for the result


def locate(config: DataConfig, name: str = "auto") -> Path:
    """The vector file of this name; for "auto" GloVe 840B if it exists, else the first other file of vectors."""
    folder = config.folder()
    if name != "auto":
        return Path(name) if is_file(Path(name)) else find(config, FOLDER, (name,), HOME)
    if folder is not None and present(config, FOLDER, GLOVE) is None:
        ends = (*packed(".txt"), ".zip")
        others = sorted(path for path in (folder / FOLDER).glob("*") if path.name.endswith(ends) and is_file(path))
        if others:
            return others[0]
    try:
        return find(config, FOLDER, GLOVE, HOME)
    except DataError as error:
        raise DataError(f"{error}; or train the embeddings from a random start: --model.vectors random") from None


def load(config: DataConfig, words: Sequence[str], dimension: int, name: str = "auto") -> Vectors:
    """Scaled vectors for a vocabulary, through the cache; `name` as in `locate`."""
    path = locate(config, name)
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()

    def make() -> dict[str, Array]:
        matrix, count = read(path, words, dimension)
        if not count:
            raise DataError(f"{path} has a vector for none of the {len(words):,} words of the vocabulary")
        return {"matrix": matrix, "found": np.array(count)}

    def parse(arrays: dict[str, Array]) -> tuple[Array, int]:
        matrix, count = arrays["matrix"], arrays["found"]
        fits = matrix.shape == (len(words) + FIRST, dimension) and np.isfinite(matrix).all()
        if not fits or count.shape or not 1 <= count <= len(words):
            raise ValueError(f"a matrix {matrix.shape} for {len(words)} words")
        return matrix, int(count)

    matrix, count = cached("vectors", [path], {"words": digest, "dimension": dimension}, make, parse)
    size = float(np.abs(matrix).sum(dtype=np.float64)) / (count * dimension)
    if size < 1e-30:  # or the scale would overflow
        raise DataError(f"{path} has nothing but zeros for the words of the vocabulary")
    scale = COMPONENT / size
    kind = "GloVe 840B" if path.name in GLOVE else "not GloVe 840B"
    description = f"{path.name} ({kind}), {count:,} of {len(words):,} words, scaled by {scale:.3g}"
    return Vectors((matrix * scale).astype(np.float32), description)


@np.errstate(over="ignore")  # a number too large for float32 is refused below
def read(path: Path, words: Sequence[str], dimension: int) -> tuple[Array, int]:
    """The matrix (words + FIRST, dimension), unscaled, and the number of words with a vector.

    A word without a vector takes that of the same word with capitals.
    """
    numbers = {word: number for number, word in enumerate(words, FIRST)}
    matrix = np.zeros((len(words) + FIRST, dimension), np.float32)
    state = bytearray(len(matrix))  # of a row: 1 a vector of the word in another case, 2 the word's own
    for number, line in filled_lines(path):
        count = line.rstrip().count(" ")
        if number == 1 and count == 1 and all(part.isdigit() for part in line.split()):
            continue  # word2vec's header: number and size of the vectors
        if count < dimension or (count > dimension and number <= 2):
            raise DataError(
                f"{path}, line {number}: {count} numbers instead of {dimension}; --model.embedding {count} takes them"
            )
        if count > dimension:
            continue  # GloVe 840B has some words with spaces
        word, rest = line.split(" ", 1)
        row, rank = numbers.get(word), 2
        if row is None:
            row, rank = numbers.get(word.lower()), 1
        if row is None or state[row] >= rank:
            continue
        try:
            values = np.array(rest.split(), np.float32)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {str(error)[:100]}") from None
        if len(values) != dimension or not np.isfinite(values).all():
            raise DataError(f"{path}, line {number}: the vector of {word[:40]!r} is not {dimension} finite numbers")
        matrix[row], state[row] = values, rank
    return matrix, sum(map(bool, state))
