"""Small files in the format of each text source."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

GOOD, BAD = ("great", "lovely", "superb"), ("awful", "boring", "dreadful")
FILL = ("the", "film", "was", "a", "it", "story", "actor", "plot", "ending", "scene")
PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def review(rng: random.Random, positive: bool, words: int = 12) -> str:
    chosen = [*rng.choices(FILL, k=words - 3), *rng.choices(GOOD if positive else BAD, k=3)]
    rng.shuffle(chosen)
    return " ".join(chosen).capitalize() + ".<br /><br />Isn't it?"


def pack(path: Path, content: str | bytes) -> Path:
    """Write a file, compressed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(PACK.get(path.suffix, bytes)(raw))
    return path


def imdb_archive(
    path: Path, each: int = 20, changed: dict[str, bytes] | None = None, unlabelled: Sequence[str] = ("other",)
) -> Path:
    rng = random.Random(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = {".gz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for split in ("train", "test"):
            for kind in ("pos", "neg"):
                for number in range(each):
                    name = f"aclImdb/{split}/{kind}/{number}_{9 if kind == 'pos' else 2}.txt"
                    raw = (changed or {}).get(name, review(rng, kind == "pos").encode())
                    member = tarfile.TarInfo(name)
                    member.size = len(raw)
                    archive.addfile(member, io.BytesIO(raw))
        for number, text in enumerate(unlabelled):
            member = tarfile.TarInfo(f"aclImdb/train/unsup/{number}_0.txt")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def keras_file(path: Path, each: int = 20, index: bool = True) -> Path:
    rng = random.Random(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [*FILL, *GOOD, *BAD]
    ranks = {word: rank for rank, word in enumerate(words, 1)}
    arrays = {}
    for split in ("train", "test"):
        labels = np.array([number % 2 for number in range(2 * each)])
        lists = np.empty(2 * each, object)
        for number, label in enumerate(labels):
            chosen = [*rng.choices(FILL, k=9), *rng.choices(GOOD if label else BAD, k=3)]
            lists[number] = [ranks[word] for word in chosen]
        arrays |= {f"x_{split}": lists, f"y_{split}": labels}
    np.savez(path, **arrays)
    if index:
        path.with_name("imdb_word_index.json").write_text(json.dumps(ranks))
    return path


def npy(kind: str, shape: str, raw: bytes) -> bytes:
    """An array as NumPy writes it, of this type and shape, with these bytes."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + raw


def snli_lines(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    out = []
    for number in range(count):
        label = ("entailment", "neutral", "contradiction", "-")[number % 7 if number % 7 < 4 else number % 3]
        other = {"entailment": GOOD, "neutral": FILL, "contradiction": BAD, "-": FILL}[label]
        one = " ".join(rng.choices(FILL, k=6)).capitalize() + "."
        pair = {"gold_label": label, "sentence1": one, "sentence2": " ".join(rng.choices(other, k=4)) + " ."}
        out.append(json.dumps(pair))
    return out


def snli_folder(folder: Path, count: int = 60, packing: str = ".xz") -> Path:
    for seed, part in enumerate(("train", "dev", "test")):
        lines = snli_lines(count, seed)
        pack(folder / "snli" / f"snli_1.0_{part}.jsonl{packing}", "\n".join(lines) + "\n")
    return folder


def questions(count: int, seed: int = 0) -> list[tuple[int, str, str]]:
    rng = random.Random(seed)
    out = []
    for number in range(count):
        one = rng.choices(FILL, k=5)
        two = one[::-1] if number % 2 else rng.choices(BAD, k=5)
        out.append((number % 2, " ".join(one).capitalize() + "?", " ".join(two) + " ?"))
    return out


def qqp_partition(folder: Path, count: int = 60) -> Path:
    for seed, part in enumerate(("train", "dev", "test")):
        rows = [f"{label}\t{one}\t{two}\t{i}\n" for i, (label, one, two) in enumerate(questions(count, seed))]
        pack(folder / "qqp" / f"{part}.tsv.xz", "".join(rows))
    return folder


def qqp_official(folder: Path, count: int = 400) -> Path:
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = [f'{i}\t{2 * i}\t{2 * i + 1}\t"{a} ""so""\nit"\t{b}\t{y}\n' for i, (y, a, b) in enumerate(questions(count))]
    pack(folder / "qqp" / "quora_duplicate_questions.tsv", head + "".join(rows))
    return folder


def vector_lines(dimension: int = 300, scale: float = 2.0) -> list[str]:
    rng = np.random.default_rng(0)
    words = [*FILL, *GOOD, *BAD[:-1], "Dreadful", ". . .", "n't"]
    return [" ".join([word, *(f"{value:.4f}" for value in scale * rng.normal(size=dimension))]) for word in words]


def vector_file(path: Path, dimension: int = 300) -> Path:
    content = "\n".join(vector_lines(dimension)) + "\n"
    if path.suffix != ".zip":
        return pack(path, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("glove.840B.300d.txt", content)
    return path


def letters(count: int = 1_200) -> str:
    """Text as text8 has it."""
    rng = random.Random(0)
    return "".join(rng.choices(" abcdefghijklmnopqrstuvwxyz", k=count))


def text8_file(path: Path, text: str | None = None) -> Path:
    content = letters() if text is None else text
    return zip_file(path, {"text8": content.encode()}) if path.suffix == ".zip" else pack(path, content)


def opinions(count: int = 600, kind: str = "radio") -> list[str]:
    """Texts of which each is another; with this many, some are in each split."""
    rng = random.Random(kind)
    return [f"{kind.capitalize()} {number}: {' '.join(rng.choices(FILL, k=4))}, isn't it?" for number in range(count)]


def amazon_file(path: Path, texts: Sequence[str] | None = None) -> Path:
    rows = opinions() if texts is None else texts
    return pack(path, "".join(json.dumps({"overall": 5.0, "reviewText": text}) + "\n" for text in rows))


def zip_file(path: Path, members: dict[str, bytes], **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


GLOSSARY = {"the": "el", "red": "rojo", "dog": "perro", "cat": "gato", "sees": "ve", "it's": "es", "old": "viejo"}


def pairs(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Raw sentences and their translations, word by word."""
    rng = random.Random(seed)
    chosen = [rng.choices(list(GLOSSARY), k=rng.randint(1, 4)) for _ in range(count)]
    sources = [f"{' '.join(words).capitalize()}." for words in chosen]
    return sources, [f"{' '.join(GLOSSARY[word] for word in words)}." for words in chosen]


def iwslt_folder(folder: Path, count: int = 60, packing: str = ".xz", words: Sequence[str] | None = None) -> Path:
    """Stanford's layout; with `words`, vocabularies of these."""
    for seed, part in enumerate(("train", "tst2012", "tst2013")):
        for language, texts in zip(("en", "vi"), pairs(count, seed), strict=True):
            tokenised = [text.replace(".", " .").replace("'", " &apos;") for text in texts]
            pack(folder / "iwslt15-en-vi" / f"{part}.{language}{packing}", "\n".join(tokenised) + "\n")
    for language in ("en", "vi") if words is not None else ():
        names = ["</s>", "<unk>", "<s>", *(words or ())]
        pack(folder / "iwslt15-en-vi" / f"vocab.{language}{packing}", "\n".join(names) + "\n")
    return folder
