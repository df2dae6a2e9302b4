"""Reviews as a stream of words: which are in which split, which are left out, and errors that name file and line."""

import json

import numpy as np
import pytest
from texts import amazon_file, imdb_archive, opinions, pack

from plmu.data import cache
from plmu.data.files import DataConfig
from plmu.errors import DataError
from plmu.experiments.data import imdb, reviews
from plmu.experiments.data.overview import overview
from plmu.experiments.data.reviews import ReviewsConfig, fingerprint, split_of
from plmu.text.symbols import Words
from plmu.text.words import FIRST, UNKNOWN, Builder, tokenise


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def texts_of(data, split):
    """The reviews of a split, each as its words with spaces between."""
    names = np.array(["|", "<unk>", *data.words], dtype=object)
    return " ".join(names[np.asarray(data.splits[split])]).strip("| ").split(" | ")


def words_of(texts):
    return [" ".join(tokenise(text)) for text in texts]


def test_each_review_is_in_the_split_of_its_hash(tmp_path):
    texts = opinions()
    amazon_file(tmp_path / "amazon" / "a.json.xz", texts[:400])
    amazon_file(tmp_path / "amazon" / "b.jsonl", texts[400:])
    pack(tmp_path / "amazon" / "notes.txt", "no review")
    for kind in (np.ndarray, np.memmap):  # made, and from the cache
        data = reviews.load(ReviewsConfig(tmp_path))
        assert all(type(values) is kind and values.dtype == np.uint16 for values in data.splits.values())
        for split in data.splits:
            assert data.splits[split][0] == 0
        for split in ("train", "valid", "test"):
            own = [text for text in texts if split_of(fingerprint(text)) == split]
            found = [[word for word in text.split() if word != "<unk>"] for text in texts_of(data, split)]
            known = [[word for word in text.split() if word in data.words] for text in words_of(own)]
            assert found == known
            assert own
        assert data.completeness == (
            "Amazon reviews, partial: 600 of the paper's 3.7 million, 0 empty or repeated ones left out;"
            " split 98/1/1 % by a hash"
        )


def test_a_hundredth_validates_and_a_hundredth_tests():
    """Whatever the order, the other reviews and the spaces around a text."""
    numbers = [fingerprint(text) for text in opinions(30_000)]
    shares = {split: sum(split_of(number) == split for number in numbers) for split in reviews.SPLITS}
    spread = 4 * np.sqrt(30_000 * 0.01 * 0.99)
    assert abs(shares["valid"] - 300) < spread
    assert abs(shares["test"] - 300) < spread
    assert sum(shares.values()) == 30_000
    assert fingerprint(" a text\n") == fingerprint("a text") != fingerprint("a  text")
    assert fingerprint("a text") == 0x50E9E05B93086453, "so that splits stay what they are"
    assert fingerprint("\ud800")


def test_repeated_and_empty_reviews_are_left_out(tmp_path):
    texts = opinions()
    lines = [json.dumps({"reviewText": text}) for text in (*texts, texts[3], f" {texts[4]} ", "", " .. ", texts[3])]
    lines += ['{"overall": 5}', '{"reviewText": null}', '{"reviewText": "\\ud800"}']
    pack(tmp_path / "amazon" / "a.json.gz", "\n".join(lines))
    data = reviews.load(ReviewsConfig(tmp_path))
    assert "600 of the paper's 3.7 million, 8 empty or repeated ones" in data.completeness
    assert sum(int((values == 0).sum()) for values in data.splits.values()) == 600


def test_more_reviews_than_the_paper_had(tmp_path, monkeypatch):
    monkeypatch.setattr(reviews, "PAPER", 600)
    amazon_file(tmp_path / "amazon" / "a.json")
    data = reviews.load(ReviewsConfig(tmp_path))
    assert data.completeness.startswith("Amazon reviews, 600, the paper had 3.7 million, 0 empty")


def test_the_vocabulary_is_counted_on_train(tmp_path, monkeypatch):
    monkeypatch.setattr(reviews, "CHUNK", 100)
    texts = opinions()
    amazon_file(tmp_path / "amazon" / "a.json", texts)
    train = [text for text in texts if split_of(fingerprint(text)) == "train"]
    builder = Builder(1)
    for text in train:
        builder.add("train", 0, tokenise(text))
    config = ReviewsConfig(tmp_path)
    for size in (3, 300, 30_000):
        data, expected = reviews.load(config, size), builder.finish(size, "")
        assert data.words == tuple(expected.words)
        stream = data.splits["train"]
        np.testing.assert_array_equal(stream[stream != 0], expected.splits["train"].sides[0].values)
    assert len(data.words) < 30_000
    assert reviews.load(config, 2**16).splits["train"].dtype == np.uint32


def test_a_vocabulary_that_is_given(tmp_path):
    texts = opinions()
    amazon_file(tmp_path / "amazon" / "a.json", texts)
    imdb_archive(tmp_path / "aclImdb" / "aclImdb_v1.tar")
    words = ("film", "never-there", "it")
    for _ in range(2):
        data = reviews.load(ReviewsConfig(tmp_path), words=words)
        assert data.words == words
        own = [text for text in texts if split_of(fingerprint(text)) == "test"]
        expected = [number for text in own for number in (0, *Words(words).encode(text))]
        assert data.splits["test"].tolist() == expected
        labelled = imdb.load(DataConfig(tmp_path), words=words)
        assert labelled.words == list(words)
    counted = imdb.load(DataConfig(tmp_path))
    assert len(counted.words) > 10
    table = np.array([0, UNKNOWN, *({"film": FIRST, "it": FIRST + 2}.get(word, UNKNOWN) for word in counted.words)])
    for name, split in counted.splits.items():
        np.testing.assert_array_equal(labelled.splits[name].sides[0].values, table[split.sides[0].values])
        np.testing.assert_array_equal(labelled.splits[name].sides[0].ends, split.sides[0].ends)
        np.testing.assert_array_equal(labelled.splits[name].labels, split.labels)


@pytest.fixture
def films(tmp_path):
    """An archive whose texts are all known: 40 training reviews, of which 4 validate, 40 to test, 600 unlabelled."""
    names = [
        f"aclImdb/{s}/{k}/{n}_{9 if k == 'pos' else 2}.txt"
        for s in ("train", "test")
        for k in ("pos", "neg")
        for n in range(20)
    ]
    labelled = {name: f"{name.replace('/', ' ').split('_')[0]} x" for name in names}
    valid = [f"aclImdb/train/pos/{n}_9.txt" for n in (18, 19)] + [f"aclImdb/train/neg/{n}_2.txt" for n in (6, 7)]
    test = [name for name in names if "/test/" in name]
    held_out = [labelled[name] for name in (*valid, *test)]
    train = [text for text in labelled.values() if text not in held_out]
    other = opinions(600, "movie")
    unlabelled = [*other[:300], held_out[0], train[3], held_out[-1], *other[300:], other[0]]
    changed = {name: text.encode() for name, text in labelled.items()}
    imdb_archive(tmp_path / "aclImdb" / "aclImdb_v1.tar.xz", 20, changed, unlabelled)
    return train, other, held_out


def test_imdb_without_what_validates_and_tests_classifiers(films, tmp_path):
    train, other, held_out = films
    data = reviews.load(ReviewsConfig(tmp_path, "imdb"))
    found = {text for split in data.splits for text in texts_of(data, split)}
    assert {text for text in found if "<unk>" not in text} <= set(words_of([*train, *other]))
    assert not found & set(words_of(held_out))
    assert sum(int((values == 0).sum()) for values in data.splits.values()) == len(train) + len(other)
    assert data.completeness == (
        "IMDB, training and unlabelled reviews partial: 640 of 72,500; 4 repeated or held-out ones left out;"
        " split 98/1/1 % by a hash"
    )
    labelled = imdb.load(DataConfig(tmp_path))
    assert len(labelled.splits["valid"].labels) == 4


def test_both_are_amazon_and_then_imdb_in_one_vocabulary(films, tmp_path):
    """A text that occurs in both is Amazon's; one that is held out is in neither."""
    _, other, held_out = films
    amazon_file(tmp_path / "amazon" / "a.json", [*opinions(), held_out[0], other[7]])
    both = reviews.load(ReviewsConfig(tmp_path, "both"))
    one, two = (reviews.load(ReviewsConfig(tmp_path, corpus), words=both.words) for corpus in ("amazon", "imdb"))
    assert {"radio", "movie"} <= set(both.words)
    for split in both.splits:
        first = [text for text in texts_of(one, split) if text not in words_of(held_out[:1])]
        second = [text for text in texts_of(two, split) if text not in words_of([other[7]])]
        assert texts_of(both, split) == first + second
    assert words_of(held_out[:1])[0] in texts_of(one, split_of(fingerprint(held_out[0])))
    assert "partial: 601 of the paper's 3.7 million, 1 empty" in both.completeness
    assert "IMDB, training and unlabelled reviews partial: 640 of 72,500; 5 repeated" in both.completeness


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"Amazon's reviews are not downloaded: get files of them from https://nij"):
        reviews.load(ReviewsConfig())
    (tmp_path / "amazon").mkdir()
    (tmp_path / "amazon" / "a.json").mkdir()
    for corpus in ("amazon", "both"):
        with pytest.raises(DataError, match=r"amazon has no \.json or \.jsonl file, plain or packed\. Put"):
            reviews.load(ReviewsConfig(tmp_path, corpus))
    with pytest.raises(DataError, match=r"aclImdb has no aclImdb_v1\.tar\.gz"):
        reviews.load(ReviewsConfig(tmp_path, "imdb"))
    pack(tmp_path / "aclImdb" / "imdb.npz", b"Keras' copy has no unlabelled reviews")
    with pytest.raises(DataError, match=r"aclImdb has no aclImdb_v1\.tar\.gz"):
        reviews.load(ReviewsConfig(tmp_path, "imdb"))
    imdb_archive(tmp_path / "aclImdb" / "aclImdb_v1.tar", 5)
    with pytest.raises(DataError, match=r"aclImdb_v1\.tar: too few reviews for three splits"):
        reviews.load(ReviewsConfig(tmp_path, "imdb"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "it is empty"),
        (b"{", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"{'reviewText': 'a'}", "it is not JSON"),
        (b"7", "it is not a JSON object with a reviewText"),
        (b'["reviewText"]', "it is not a JSON object with a reviewText"),
        (b'{"reviewText": 7}', "its reviewText is not a text but 7"),
        (b'{"reviewText": ["a"]}', r"its reviewText is not a text but \['a'\]"),
        (b'{"reviewText": "\xe9"}', "it is not UTF-8"),
        (b'{"reviewText": "' + b"a" * 2**20 + b'"}', "it is longer than 1,048,576 bytes"),
    ],
)
def test_a_broken_line_is_named(line, message, tmp_path):
    path = amazon_file(tmp_path / "amazon" / "a.json")
    rows = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*rows[:6], line, *rows[6:]]))
    with pytest.raises(DataError, match=rf"a\.json, line 7: {message}") as told:
        reviews.load(ReviewsConfig(tmp_path))
    assert "\n" not in str(told.value)


def test_files_without_reviews_and_truncated_ones(tmp_path):
    amazon_file(tmp_path / "amazon" / "a.json")
    for content in ("", '{"overall": 5}\n' * 9, '{"reviewText": ""}\n' * 9):
        pack(tmp_path / "amazon" / "b.json", content)
        with pytest.raises(DataError, match=r"b\.json has no review in it: each line should be a JSON object"):
            reviews.load(ReviewsConfig(tmp_path))
    (tmp_path / "amazon" / "b.json").unlink()
    amazon_file(tmp_path / "amazon" / "a.json", opinions(5))
    with pytest.raises(DataError, match=r"amazon/a\.json: too few reviews for three splits"):
        reviews.load(ReviewsConfig(tmp_path))
    path = amazon_file(tmp_path / "amazon" / "c.json.gz", opinions(3_000))
    path.write_bytes(path.read_bytes()[:-2_000])
    with pytest.raises(DataError, match=r"c\.json\.gz is truncated or damaged after line \d+"):
        reviews.load(ReviewsConfig(tmp_path))


def test_a_cache_that_does_not_fit_is_made_again(tmp_path, monkeypatch):
    amazon_file(tmp_path / "amazon" / "a.json")
    config = ReviewsConfig(tmp_path)
    first = reviews.load(config)
    good = {name: np.asarray(values) for name, values in first.splits.items()}
    good["words"] = np.frombuffer("\n".join(first.words).encode(), np.uint8)
    good["completeness"] = np.frombuffer(b"from the cache", np.uint8)
    monkeypatch.setattr(cache, "_read", lambda *_: good)
    assert reviews.load(config).completeness == "from the cache"
    for name, other in (
        ("train", good["train"] + len(first.words)),
        ("train", good["train"][1:]),
        ("train", good["train"][:0]),
        ("valid", good["valid"][None]),
        ("test", good["test"].astype(np.int64)),
        ("words", good["words"][:9]),
        ("words", good["words"][:0]),
        ("completeness", np.array([255], np.uint8)),
    ):
        monkeypatch.setattr(cache, "_read", lambda *_, arrays=good | {name: other}: arrays)
        assert reviews.load(config).completeness == first.completeness
    monkeypatch.setattr(cache, "_read", lambda *_: {})
    assert reviews.load(config).words == first.words


def test_the_overview_names_text8_and_the_files_of_reviews(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")

    def shown(source):
        overview(DataConfig(tmp_path))
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(f"│ {source} "))
        return line.split("│")[3].strip()

    assert shown("Amazon reviews") == shown("text8") == "no"
    amazon_file(tmp_path / "amazon" / "b.json")
    assert shown("Amazon reviews") == "b.json"
    pack(tmp_path / "amazon" / "a.jsonl.xz", "damaged")
    assert shown("Amazon reviews") == "a.jsonl.xz, b.json"
    pack(tmp_path / "text8" / "text8", "a" * 2_000)
    assert shown("text8") == "text8, partial: the first 2,000 of 100,000,000 bytes, split 90/5/5 % by length"
    pack(tmp_path / "text8" / "text8", "a")
    assert shown("text8").startswith(f"damaged or missing: {tmp_path}/text8/text8 has a text of 1 characters")
