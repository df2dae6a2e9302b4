"""A small data set of each kind, and random changes to its files."""

import bz2
import gzip
import hashlib
import io
import lzma
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from texts import (
    FILL,
    amazon_file,
    imdb_archive,
    iwslt_folder,
    keras_file,
    letters,
    opinions,
    pack,
    qqp_official,
    qqp_partition,
    snli_folder,
    snli_lines,
    text8_file,
    vector_file,
)

from plmu.data.files import DataConfig
from plmu.experiments.data import characters, imdb, mackey_glass, mnist, parallel, qqp, reviews, snli, vectors

Load = Callable[[DataConfig], object]


def _mnist(folder: Path) -> Path:
    raw = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (30, 28, 28))
    raw += np.random.default_rng(0).integers(0, 256, 30 * 784, np.uint8).tobytes()
    return pack(folder / "mnist" / "images.gz", raw)


def _images(config: DataConfig) -> object:
    path = config.root / "mnist" / "images.gz"
    return mnist.read_idx(
        path, (30, 28, 28), hashlib.sha256(gzip.decompress(_mnist(path.parent / "x").read_bytes())).hexdigest()
    )


def _words(config: DataConfig) -> object:
    return vectors.load(config, [*FILL, "dreadful"], 20)


def _snli_zip(folder: Path) -> Path:
    path = folder / "snli" / "snli_1.0.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in ("train", "dev", "test"):
            archive.writestr(f"snli_1.0/snli_1.0_{part}.jsonl", "\n".join(snli_lines(30)))
    return path


def _text8(config: DataConfig) -> characters.CharacterData:
    return characters.load(characters.CharactersConfig(config.root))


def _own(config: DataConfig) -> characters.CharacterData:
    return characters.load(characters.CharactersConfig(file=config.root / "own.txt"))


def _pairs(config: DataConfig) -> parallel.ParallelData:
    return parallel.load(parallel.ParallelConfig(config.root))


def _pair_arrays(config: DataConfig) -> dict[str, object]:
    data = _pairs(config)
    sides = {f"{name}.{i}": side for name, split in data.splits.items() for i, side in enumerate(split)}
    return {name: side.values for name, side in sides.items()} | {
        f"{name}.references": np.array(texts) for name, texts in data.references.items()
    }


def _products(config: DataConfig) -> reviews.ReviewData:
    return reviews.load(reviews.ReviewsConfig(config.root))


def _films(config: DataConfig) -> reviews.ReviewData:
    return reviews.load(reviews.ReviewsConfig(config.root, "imdb"))


# Of each kind: what makes the files and returns the one that is changed, and what reads them.
KINDS: dict[str, tuple[Callable[[Path], Path], Load]] = {
    "idx.gz": (_mnist, _images),
    "imdb.tar": (lambda folder: imdb_archive(folder / "aclImdb" / "aclImdb_v1.tar", 5), imdb.load),
    "imdb.tar.gz": (lambda folder: imdb_archive(folder / "aclImdb" / "aclImdb_v1.tar.gz", 5), imdb.load),
    "imdb.tar.xz": (lambda folder: imdb_archive(folder / "aclImdb" / "aclImdb_v1.tar.xz", 5), imdb.load),
    "imdb.npz": (lambda folder: keras_file(folder / "aclImdb" / "imdb.npz", 5), imdb.load),
    "index.json": (lambda folder: keras_file(folder / "aclImdb" / "imdb.npz", 5).with_name(imdb.INDEX), imdb.load),
    "qqp.tsv.xz": (lambda folder: qqp_partition(folder, 10) / "qqp" / "dev.tsv.xz", qqp.load),
    "qqp.tsv": (lambda folder: qqp_official(folder, 30) / "qqp" / qqp.OFFICIAL, qqp.load),
    "snli.jsonl": (lambda folder: snli_folder(folder, 10, "") / "snli" / "snli_1.0_dev.jsonl", snli.load),
    "snli.jsonl.bz2": (lambda folder: snli_folder(folder, 10, ".bz2") / "snli" / "snli_1.0_dev.jsonl.bz2", snli.load),
    "snli.zip": (_snli_zip, snli.load),
    "vectors.txt": (lambda folder: vector_file(folder / "glove" / "v.txt", 20), _words),
    "vectors.txt.xz": (lambda folder: vector_file(folder / "glove" / "v.txt.xz", 20), _words),
    "vectors.zip": (lambda folder: vector_file(folder / "glove" / "v.zip", 20), _words),
    "text8": (lambda folder: text8_file(folder / "text8" / "text8"), _text8),
    "text8.xz": (lambda folder: text8_file(folder / "text8" / "text8-prefix.xz"), _text8),
    "text8.zip": (lambda folder: text8_file(folder / "text8" / "text8.zip"), _text8),
    "own.txt": (lambda folder: pack(folder / "own.txt", letters() + "é\n" * 9), _own),
    "pairs.en": (lambda folder: iwslt_folder(folder, 20, "") / "iwslt15-en-vi" / "train.en", _pairs),
    "pairs.vi.xz": (lambda folder: iwslt_folder(folder, 20) / "iwslt15-en-vi" / "tst2013.vi.xz", _pairs),
    "vocab.en": (
        lambda folder: iwslt_folder(folder, 20, "", words=["dog", "cat"]) / "iwslt15-en-vi" / "vocab.en",
        _pairs,
    ),
    "reviews.json": (lambda folder: amazon_file(folder / "amazon" / "a.json"), _products),
    "reviews.jsonl.gz": (lambda folder: amazon_file(folder / "amazon" / "a.jsonl.gz"), _products),
    "reviews.tar": (
        lambda folder: imdb_archive(folder / "aclImdb" / "aclImdb_v1.tar", 1, unlabelled=opinions(300)),
        _films,
    ),
}

# The same for caches of ours, which are made again whatever was changed.
CACHES: dict[str, tuple[Callable[[Path], object], Load]] = {
    "qqp": (lambda folder: qqp_partition(folder, 10), lambda config: qqp.load(config).arrays()),
    "vectors": (lambda folder: vector_file(folder / "glove" / "v.txt", 20), lambda config: {"": _words(config).matrix}),
    "text8": (
        lambda folder: text8_file(folder / "text8" / "text8"),
        lambda config: _text8(config).splits | {"alphabet": np.array(_text8(config).symbols.alphabet)},
    ),
    "reviews": (
        lambda folder: amazon_file(folder / "amazon" / "a.json"),
        lambda config: _products(config).splits | {"words": np.array(_products(config).words)},
    ),
    "parallel": (lambda folder: iwslt_folder(folder, 20), _pair_arrays),
    "mackey-glass": (lambda folder: None, lambda config: {"": mackey_glass._cached()}),
}

_SPECIAL = (
    b"\0" * 8,
    b"\xff" * 8,
    b"\x80" + b"\0" * 7,
    b"\x7f" + b"\xff" * 7,
    b"PK\3\4",
    b"\x1f\x8b\x08",
    b"\xfd7zXZ\0",
)
_SPECIAL += (
    b"9" * 40,
    b"-1",
    b"1e999",
    b"nan",
    b"\t",
    b"\n",
    b'"',
    b"[" * 3000,
    b"\\ud800",
    b"\xe9",
    b"\xef\xbb\xbf",
    b"77777777777",
)


def mutate(rng: random.Random, raw: bytes) -> bytes:
    """One to four changes: bits, bytes, values of note, parts left out, repeated, moved or cut off."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        size = len(data)
        at = rng.randrange(size + 1)
        near = min(size, rng.choice((rng.randrange(600), at)))  # headers are at the start
        length = rng.choice((1, 2, 4, 8, 64, 512))
        match rng.randrange(8):
            case 0 if size:
                data[near % size] ^= 1 << rng.randrange(8)
            case 1 if size:
                data[near % size] = rng.randrange(256)
            case 2:
                data[near : near + length] = rng.choice(_SPECIAL)
            case 3:
                data[near:near] = rng.choice(_SPECIAL)
            case 4:
                del data[at : at + length]
            case 5:
                data[at:at] = data[at : at + length] * rng.choice((1, 2, 50))
            case 6:
                del data[at:]
            case _:
                data[at : at + length] = rng.randbytes(length)
    return bytes(data)


def mutated_file(rng: random.Random, name: str, raw: bytes) -> bytes:
    """A changed file, or, of a packed one, as often what is inside it, packed again with the right checksums."""
    if rng.randrange(2):
        return mutate(rng, raw)
    if name.endswith((".zip", ".npz")):
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(raw)) as archive, zipfile.ZipFile(out, "w") as other:
            chosen = rng.choice(archive.namelist())
            if grows := rng.randrange(4) == 0:
                other.writestr("first", rng.randbytes(2**19))
            for each in archive.namelist():
                inside = archive.read(each)
                if each == chosen:
                    inside = _grown(rng, inside) if grows else mutate(rng, inside)
                other.writestr(each, inside, zipfile.ZIP_DEFLATED if grows else zipfile.ZIP_STORED)
        return out.getvalue()
    if name.endswith(".tar") and rng.randrange(2):
        return _other_header(rng, raw)
    for end, module in ((".gz", gzip), (".xz", lzma), (".bz2", bz2)):
        if name.endswith(end):
            inside = module.decompress(raw)
            return module.compress(_other_header(rng, inside) if ".tar" in name else mutate(rng, inside))
    return mutate(rng, raw)


def _grown(rng: random.Random, raw: bytes) -> bytes:
    """A few bytes of it repeated up to 16 MiB, which a packer makes small again."""
    at, length = rng.randrange(len(raw) + 1), rng.choice((2, 4, 64))
    part = rng.choice((b"]a", b"\x85", raw[at : at + length]))
    return raw[:at] + part * (2**24 // max(1, len(part))) + raw[at:]


def _other_header(rng: random.Random, raw: bytes) -> bytes:
    """A tar archive with a changed header whose checksum is right."""
    data = bytearray(raw)
    at = 512 * rng.randrange(len(data) // 512)
    for _ in range(rng.choice((1, 3))):
        field = at + rng.choice((0, 124, 125, 135, 156, 157, 257, 345, rng.randrange(512)))
        data[field] = rng.choice((0, 32, 48, 55, 128, 255, *b"12345LKxgXSVM", rng.randrange(256)))
    data[at + 148 : at + 156] = b" " * 8
    total = sum(data[at : at + 512])
    data[at + 148 : at + 156] = f"{total:06o}\0 ".encode()
    return bytes(data)
