"""What is known of the published files, and how much more than that a file may hold."""

import pytest
from texts import keras_file, npy, zip_file

from plmu.data.files import DataConfig, unreadable
from plmu.errors import DataError
from plmu.experiments.data import characters, imdb, keras, mackey_glass, mnist, qqp, reviews, snli, vectors


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def test_sizes_are_those_of_the_publications():
    assert [shape for _, _, shape in mnist.FILES.values()] == [(60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)]
    assert (imdb.WHOLE, imdb.VALIDATING) == (25_000, 0.1)
    assert snli.WHOLE == {"train": (550_152, 549_367), "dev": (10_000, 9_842), "test": (10_000, 9_824)}
    assert (qqp.PAIRS, qqp.SPLIT_SEED) == (404_290, 0)
    assert qqp.HELD_OUT == {"390k": (8_000, 8_000), "280k": (80_000, 40_000)}
    assert qqp.PARTITION == {"train": 384_348, "dev": 10_000, "test": 10_000}
    assert sum(qqp.PARTITION.values()) == 404_348, "58 more than the official file"
    assert (mackey_glass.SERIES, mackey_glass.LENGTH, mackey_glass.HORIZON) == (128, 5000, 15)
    assert vectors.COMPONENT == 0.3
    assert (characters.WHOLE, characters.PERCENT) == (100_000_000, {"train": 90, "valid": 5, "test": 5})
    assert (reviews.PAPER, reviews.VOCABULARY, reviews.FILMS) == (3_700_000, 30_000, 25_000 - 2_500 + 50_000)


@pytest.mark.parametrize(("count", "message"), [(100_000, "100,000 reviews and 2 labels"), (100_001, "may be 100,000")])
def test_four_times_the_reviews_of_the_original_are_the_most(count, message, tmp_path):
    members = {"x_test.npy": npy("|O", f"({count},)", b""), "y_test.npy": npy("<i8", "(2,)", bytes(16))}
    with pytest.raises(DataError, match=message):
        keras.split(zip_file(tmp_path / "imdb.npz", members), "test")


@pytest.mark.parametrize("more", [0, 1])
def test_a_word_index_of_eight_mebibytes_is_the_largest(more, tmp_path):
    index = keras_file(tmp_path / "aclImdb" / "imdb.npz").with_name(imdb.INDEX)
    index.write_bytes(b'{"a": 1}' + b" " * (2**23 - 8 + more))
    if more:
        with pytest.raises(DataError, match="has more than the 8,388,608 bytes it should have at most"):
            imdb.load(DataConfig(tmp_path))
    else:
        assert "a" in imdb.load(DataConfig(tmp_path)).words


def test_what_cannot_be_read_is_named_with_the_reason(tmp_path):
    full = OSError(28, "No space left on device", "a file")
    assert str(unreadable(full)) == "a file cannot be read (No space left on device)"
    assert str(unreadable(full, tmp_path)) == f"{tmp_path} cannot be read (No space left on device)"
    assert str(unreadable(OSError("in words"), tmp_path)) == f"{tmp_path} cannot be read (in words)"
