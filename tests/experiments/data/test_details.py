"""Details of the sources: bounds, defaults and words that no other test looks at."""

import io
import os
import sys
import time

import numpy as np
import pytest
from texts import imdb_archive, keras_file, pack, qqp_official, snli_folder, snli_lines, vector_lines

from plmu.data import cache
from plmu.data.files import DataConfig, Remote, cache_folder, clear_abandoned, find
from plmu.errors import DataError
from plmu.experiments.data import imdb, mnist, qqp, snli, vectors
from plmu.experiments.data.overview import overview
from plmu.text.words import FIRST, Builder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def test_what_can_be_downloaded_says_so(tmp_path):
    message = r"qqp has no a or b\. Put it there \(it comes from here\)"
    with pytest.raises(DataError, match=rf"{message}, or leave --data\.root and PLMU_DATA unset to download it$"):
        find(DataConfig(tmp_path), "qqp", ("a", "b"), Remote("here", ""))
    with pytest.raises(DataError, match=rf"{message}$"):
        find(DataConfig(tmp_path), "qqp", ("a", "b"), "here")


def test_a_cache_folder_that_cannot_be_made_is_named(monkeypatch):
    pytest.importorskip("pooch")
    monkeypatch.setenv("PLMU_CACHE", "/dev/null/none")
    with pytest.raises(DataError, match=r"a cannot be kept in /dev/null/none/qqp \(Not a directory\): set PLMU_CACHE"):
        find(DataConfig(), "qqp", ("a",), Remote("http://127.0.0.1:9/a", ""))


def test_where_the_cache_is(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("PLMU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "plmu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "plmu"


def test_a_temporary_file_is_left_for_an_hour(tmp_path):
    for name, age in ((".a.tmp", 3500), (".b.tmp", 3700)):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    clear_abandoned(tmp_path)
    assert [path.name for path in tmp_path.glob(".?.tmp")] == [".a.tmp"]


@pytest.mark.parametrize("terminal", [True, False])
def test_reading_is_announced_on_a_terminal(terminal, tmp_path, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    path = pack(tmp_path / "a", b"")
    for _ in range(2):
        cache.cached("x", [path], {}, lambda: {"a": np.arange(3)}, dict)
    cache.cached("x", [], {}, lambda: {"a": np.arange(3)}, dict)
    assert screen.getvalue() == (f"reading {path}, once\n" if terminal else "")


def test_token_numbers_are_as_short_as_they_can_be():
    for size, kind in ((2**16 - FIRST - 1, np.uint16), (2**16 - FIRST, np.uint32)):
        builder = Builder(1)
        builder.add("train", 1, ["a"])
        assert builder.finish(size, "").splits["train"].sides[0].values.dtype == kind


def test_an_archive_without_reviews_is_named(tmp_path):
    imdb_archive(tmp_path / "aclImdb" / "aclImdb_v1.tar", 0)
    with pytest.raises(DataError, match=r"has no train/pos and train/neg reviews in it: it is not the IMDB archive"):
        imdb.load(DataConfig(tmp_path))
    imdb_archive(tmp_path / "aclImdb" / "aclImdb_v1.tar", 1)
    assert [len(split.labels) for split in imdb.load(DataConfig(tmp_path)).splits.values()] == [2, 0, 2]


def test_a_seeded_tenth_of_the_numbered_reviews_validates(tmp_path):
    keras_file(tmp_path / "aclImdb" / "imdb.npz")
    order = np.random.default_rng(0).permutation(40)
    found = imdb.load(DataConfig(tmp_path)).splits
    np.testing.assert_array_equal(found["valid"].labels, order[36:] % 2)
    np.testing.assert_array_equal(found["train"].labels, order[:36] % 2)
    assert [len(part) for part in imdb._seeded(4)] == [3, 1]


def test_too_few_pairs_for_three_splits(tmp_path):
    with pytest.raises(DataError, match=r"questions\.tsv has 9 pairs: too few for three splits"):
        qqp.load(DataConfig(qqp_official(tmp_path, 9)))
    parts = qqp.load(DataConfig(qqp_official(tmp_path, 10))).splits.values()
    assert [len(split.labels) for split in parts] == [8, 1, 1]


def test_splits_without_their_unlabelled_pairs_are_complete(tmp_path, monkeypatch):
    """A published dev file has no pairs without a label: it is complete by its labelled ones."""
    labelled = sum('"-"' not in line for line in snli_lines(60, 0))
    counts = {part: sum('"-"' not in line for line in snli_lines(60, seed)) for seed, part in enumerate(snli.WHOLE)}
    assert set(counts.values()) == {labelled}
    whole = {"train": (60, labelled + 1), "dev": (61, labelled), "test": (60, labelled)}
    monkeypatch.setattr(snli, "WHOLE", whole)
    data = snli.load(DataConfig(snli_folder(tmp_path)))
    kept = f"{labelled:,}"
    assert data.completeness == (
        f"SNLI, train partial: {kept} of {labelled + 1}; dev complete: {kept}; test complete: {kept}"
    )


def test_vectors_with_too_many_numbers_or_none_that_count(tmp_path):
    path = tmp_path / "v.txt"
    for number in (1, 2, 3):
        pack(path, "".join(f"w{n} 1 2{' 3' * (n == number)}\n" for n in (1, 2, 3, 4)))
        if number <= 2:
            with pytest.raises(
                DataError, match=rf"v\.txt, line {number}: 3 numbers instead of 2; --model\.embedding 3"
            ):
                vectors.read(path, ["w4"], 2)
        else:
            assert vectors.read(path, ["w3", "w4"], 2)[1] == 1  # a word with spaces
    pack(tmp_path / "glove" / "v.txt", "a 0 0\nb 1e-40 0\n")
    with pytest.raises(DataError, match="has nothing but zeros for the words of the vocabulary"):
        vectors.load(DataConfig(tmp_path), ["a", "b"], 2)
    pack(tmp_path / "glove" / "v.txt", "a 1e-25 0\nb 3e38 -3e38\n")
    assert np.isfinite(vectors.load(DataConfig(tmp_path), ["a", "b"], 2).matrix).all()
    pack(tmp_path / "glove" / "v.txt", "a 1e39 0\n")
    with pytest.raises(DataError, match=r"v\.txt, line 1: the vector of 'a' is not 2 finite numbers"):
        vectors.load(DataConfig(tmp_path), ["a"], 2)
    assert len(vector_lines()[0].split()) == 301


def test_vectors_by_their_name(tmp_path):
    config = DataConfig(tmp_path)
    first, other = (pack(tmp_path / "glove" / f"{name}.txt", "a 1 2\n") for name in "ab")
    pack(tmp_path / "glove" / "0.pdf", "")
    assert vectors.locate(config) == first
    assert vectors.locate(config, "b.txt") == other
    assert vectors.locate(DataConfig(), str(other)) == other
    glove = pack(tmp_path / "glove" / "glove.840B.300d.txt.gz", "a 1 2\n")
    assert vectors.locate(config) == glove


def test_what_the_overview_says_of_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")

    def shown() -> str:
        overview(DataConfig(tmp_path))
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "MNIST" in line)
        return line.split("│")[3].strip()

    assert shown() == "no"
    names = list(mnist.FILES)
    pack(tmp_path / "mnist" / names[0], b"x")
    assert shown() == "partial: 1 of 4 files"
    for name in names[1:]:
        pack(tmp_path / "mnist" / f"{name}.gz", b"x")
    assert shown().startswith(f"damaged: {tmp_path / 'mnist' / names[0]} is not an idx file of shape (60000, 28, 28)")
    monkeypatch.setattr(mnist, "load", lambda config: {})
    assert shown() == "complete"


def test_sequences_are_shuffled_split_and_permuted_as_published(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8)
    labels = np.arange(60_000) % 251
    names = list(mnist.FILES)
    given = (np.broadcast_to(pixels, (60_000, 28, 28)), labels, np.broadcast_to(pixels, (3, 28, 28)), labels[:3])
    monkeypatch.setattr(mnist, "load", lambda config: dict(zip(names, given, strict=True)))
    train, valid, test = mnist.permuted_sequences(DataConfig(tmp_path))
    assert [len(part[0]) for part in (train, valid, test)] == [50_000, 10_000, 3]
    generator = np.random.RandomState(50)
    order, places = generator.permutation(60_000), generator.permutation(784)
    np.testing.assert_array_equal(np.concatenate([train[1], valid[1]]), labels[order])
    assert test[1].tolist() == [0, 1, 2]
    for part in (train, valid, test):
        np.testing.assert_array_equal(part[0][-1], pixels.reshape(-1)[places].astype(np.float32) / 255)
