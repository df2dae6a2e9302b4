"""Text: every format from small files of it, one form of words for all, and errors that name file and line."""

import lzma
import os
import zipfile

import numpy as np
import pytest
import torch
from texts import (
    imdb_archive,
    keras_file,
    pack,
    qqp_official,
    qqp_partition,
    questions,
    snli_folder,
    snli_lines,
    vector_file,
    vector_lines,
)

from plmu.data import cache
from plmu.data.files import DataConfig
from plmu.errors import DataError
from plmu.experiments.data import imdb, qqp, snli, vectors
from plmu.experiments.data.overview import overview
from plmu.text.words import FIRST, UNKNOWN, Builder, Ragged, completeness, tokenise


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def test_one_form_of_words():
    whole = "It's great — isn't it?<br /><br />You can't, cannot; I’d say (so...): 7/10!"
    apart = "it 's great is n't it ? you ca n't , can not ; i 'd say ( so ... ) : 7/10 !"
    expected = "it 's great is n't it ? you ca n't can not i 'd say so ... 7/10 !"
    assert " ".join(tokenise(whole)) == " ".join(tokenise(apart)) == expected
    assert tokenise("and/or 3.5/5, no. 7 / 10") == ["and", "or", "3.5/5", "no", "7", "10"]
    assert tokenise(" . - .. ") == []


def test_the_vocabulary_is_counted_on_train_alone():
    builder = Builder(1)
    builder.add("train", 0, ["b", "a", "a", "c", "b"])
    builder.add("valid", 1, ["z", "z", "z", "a"])
    builder.add("test", 1, [])
    data = builder.finish(2, "x")
    assert data.words == ["a", "b"]  # as frequent: by alphabet
    assert data.splits["train"].sides[0].values.tolist() == [FIRST + 1, FIRST, FIRST, UNKNOWN, FIRST + 1]
    assert data.splits["valid"].sides[0].values.tolist() == [UNKNOWN] * 3 + [FIRST]
    again = type(data).of(data.arrays())
    assert again.words == data.words
    assert again.completeness == "x"
    assert [len(split.sides[0]) for split in again.splits.values()] == [1, 1, 1]


def test_padding_is_on_the_right_and_truncation_keeps_what_is_asked():
    ragged = Ragged(np.arange(2, 9, dtype=np.uint16), np.array([5, 5, 7]))
    tokens, lengths = ragged.padded(3, "last")
    assert tokens.tolist() == [[4, 5, 6], [0, 0, 0], [7, 8, 0]]
    assert lengths.tolist() == [3, 0, 2]
    assert ragged.padded(3, "first")[0].tolist() == [[2, 3, 4], [0, 0, 0], [7, 8, 0]]
    assert tokens.dtype == torch.int32
    taken = ragged.take(np.array([2, 0]))
    assert taken.values.tolist() == [7, 8, 2, 3, 4, 5, 6]
    assert taken.ends.tolist() == [2, 7]


def test_completeness():
    assert completeness("A", {"train": (2, 2), "test": (1, 1)}, "so") == "A, complete: 2 / 1; so"
    partial = completeness("SNLI", {"train": (100_000, 550_152), "test": (9_824, 9_824)})
    assert partial == "SNLI, train partial: 100,000 of 550,152; test complete: 9,824"


@pytest.mark.parametrize("end", ["tar.gz", "tar.xz", "tar.bz2", "tar"])
def test_imdb_from_its_archive(end, tmp_path):
    imdb_archive(tmp_path / "aclImdb" / f"aclImdb_v1.{end}")
    data = imdb.load(DataConfig(tmp_path))
    assert {name: len(split.labels) for name, split in data.splits.items()} == {"train": 36, "valid": 4, "test": 40}
    assert "IMDB, train partial: 40 of 25,000; test partial: 40 of 25,000; 4 of train validate" in data.completeness
    assert "n't" in data.words
    assert "br" not in data.words
    assert "other" not in data.words
    for split in data.splits.values():
        tokens, _, labels = split.batch(500, "last")
        good = torch.tensor([data.words.index(word) + FIRST for word in ("great", "lovely", "superb")])
        assert torch.equal(torch.isin(tokens, good.int()).any(1).long(), labels)


def test_imdb_validates_on_neighbours(tmp_path):
    """Reviews of one film have neighbouring numbers: a block of each class validates, wherever the archive has it."""
    names = [(kind, number) for kind in ("pos", "neg") for number in range(200)]
    changed = {f"aclImdb/train/{kind}/{n}_{9 if kind == 'pos' else 2}.txt": f"x{kind}{n}".encode() for kind, n in names}
    path = imdb_archive(tmp_path / "aclImdb" / "aclImdb_v1.tar", each=200, changed=changed)
    numbered = imdb.read_archive(path, Builder(1))
    assert numbered == names
    order = np.random.default_rng(0).permutation(len(names))
    train, valid = imdb.by_films([numbered[row] for row in order])
    blocks = {("pos", number) for number in range(180, 200)} | {("neg", number) for number in range(58, 78)}
    assert {numbered[row] for row in order[valid]} == blocks
    assert sorted([*train, *valid]) == list(range(400))
    assert set(imdb.load(DataConfig(tmp_path)).words) == {f"x{kind}{n}" for kind, n in set(names) - blocks}


def test_imdb_from_keras(tmp_path):
    path = keras_file(tmp_path / "aclImdb" / "imdb.npz")
    data = imdb.load(DataConfig(tmp_path))
    assert {name: len(split.labels) for name, split in data.splits.items()} == {"train": 36, "valid": 4, "test": 40}
    assert {"great", "awful"} <= set(data.words)
    path.with_name(imdb.INDEX).unlink()
    assert all(word.startswith("#") for word in imdb.load(DataConfig(tmp_path)).words)


def test_broken_imdb_files_are_named(tmp_path):
    config = DataConfig(tmp_path)
    with pytest.raises(DataError, match=r"aclImdb has no aclImdb_v1\.tar\.gz or .*it comes from https://ai\.stanford"):
        imdb.load(config)
    path = imdb_archive(tmp_path / "aclImdb" / "aclImdb_v1.tar.gz", each=200)
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(DataError, match=r"aclImdb_v1\.tar\.gz is truncated or damaged after aclImdb/t"):
        imdb.load(config)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"aclImdb_v1\.tar\.gz is truncated or damaged at its beginning"):
        imdb.load(config)
    name = "aclImdb/train/neg/3_2.txt"
    for raw, message in ((b"caf\xe9 !", "not UTF-8"), (b" ", "the review is empty")):
        imdb_archive(path, changed={name: raw})
        with pytest.raises(DataError, match=f"aclImdb_v1.tar.gz, {name}: .*{message}"):
            imdb.load(config)
    path.unlink()
    (tmp_path / "aclImdb" / "imdb.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"imdb\.npz is not Keras' imdb\.npz: x_train\.npy is not an array"):
        imdb.load(config)
    np.savez(tmp_path / "aclImdb" / "imdb.npz", x_train=[1])
    with pytest.raises(DataError, match=r"imdb\.npz has no y_train\.npy in it"):
        imdb.load(config)


@pytest.mark.parametrize("packing", ["", ".xz", ".gz", ".bz2"])
def test_snli(packing, tmp_path):
    data = snli.load(DataConfig(snli_folder(tmp_path, packing=packing)))
    labelled = sum('"-"' not in line for line in snli_lines(60))
    assert 40 < labelled < 60
    assert [len(split.labels) for split in data.splits.values()] == [labelled] * 3
    assert "SNLI, train partial: 60 of 550,152; dev partial: 60 of 10,000" in data.completeness
    assert len(data.splits["train"].batch(25, "first")) == 5


def test_snli_from_its_archive(tmp_path):
    (tmp_path / "snli").mkdir()
    with zipfile.ZipFile(tmp_path / "snli" / "snli_1.0.zip", "w") as archive:
        for part in ("train", "dev", "test"):
            archive.writestr(f"__MACOSX/snli_1.0/._snli_1.0_{part}.jsonl", "no")
            archive.writestr(f"snli_1.0/snli_1.0_{part}.jsonl", "\n".join(snli_lines(30)))
    assert len(snli.load(DataConfig(tmp_path)).splits["valid"].labels) > 10


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "it is empty"),
        (b"{", "it is not JSON"),
        (b'{"gold_label": "neutral", "sentence1": "a"}', "there is no sentence2"),
        (b'{"gold_label": "maybe", "sentence1": "a", "sentence2": "b"}', "gold_label is 'maybe', not one of"),
        (b'{"gold_label": "neutral", "sentence1": "\xe9", "sentence2": "b"}', "it is not UTF-8"),
    ],
)
def test_a_broken_snli_line_is_named(line, message, tmp_path):
    snli_folder(tmp_path, packing="")
    path = tmp_path / "snli" / "snli_1.0_dev.jsonl"
    rows = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*rows[:6], line, *rows[6:]]))
    with pytest.raises(DataError, match=rf"snli_1\.0_dev\.jsonl, line 7: {message}"):
        snli.load(DataConfig(tmp_path))


def test_a_truncated_file_is_named(tmp_path):
    snli_folder(tmp_path, count=2000, packing=".gz")
    path = tmp_path / "snli" / "snli_1.0_train.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"snli_1\.0_train\.jsonl\.gz is truncated or damaged after line \d+"):
        snli.load(DataConfig(tmp_path))
    path.unlink()
    with pytest.raises(DataError, match=r"snli has no snli_1\.0_train\.jsonl or .*it comes from https://nlp\.stanford"):
        snli.load(DataConfig(tmp_path))


def test_qqp_partition(tmp_path):
    data = qqp.load(DataConfig(qqp_partition(tmp_path)))
    assert [len(split.labels) for split in data.splits.values()] == [60] * 3
    assert "QQP, train partial: 60 of 384,348; dev partial: 60 of 10,000" in data.completeness
    assert data.splits["train"].labels[:4].tolist() == [0, 1, 0, 1]


def test_qqp_official_file_and_its_splits(tmp_path, monkeypatch):
    config = DataConfig(qqp_official(tmp_path))
    data = qqp.load(config)
    assert {name: len(split.labels) for name, split in data.splits.items()} == {"train": 384, "valid": 8, "test": 8}
    assert "official file partial: 400 of 404,290; split 390k, seed 0: 384 / 8 / 8" in data.completeness
    assert "so" in data.words  # quoted fields, with a line break inside
    other = qqp.load(config, "280k")
    assert [len(split.labels) for split in other.splits.values()] == [281, 79, 40]
    monkeypatch.setattr(qqp, "PAIRS", 400)
    monkeypatch.setattr(qqp, "HELD_OUT", {"390k": (30, 20)})
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "other"))
    whole = qqp.load(config)
    assert [len(split.labels) for split in whole.splits.values()] == [350, 30, 20]
    assert whole.completeness == "QQP, complete: 400; split 390k, seed 0: 350 / 30 / 20"
    labels = np.array([label for label, _, _ in questions(400)])
    order = np.random.default_rng(0).permutation(400)
    np.testing.assert_array_equal(whole.splits["test"].labels, labels[order[-20:]])


def test_broken_qqp_lines_are_named(tmp_path):
    config = DataConfig(tmp_path)
    with pytest.raises(DataError, match=r"qqp has no train\.tsv .*BiMPM.*quora_duplicate_questions\.tsv"):
        qqp.load(config)
    with pytest.raises(DataError, match=r"is not here and is not downloaded: get it from http://qim"):
        qqp.load(DataConfig())
    qqp_partition(tmp_path)
    for line, message in (("", "it is empty"), ("0\tonly", "2 columns, not label"), ("yes\ta\tb\t1", "label is 'yes'")):
        pack(tmp_path / "qqp" / "dev.tsv.xz", f"1\ta\tb\t0\n{line}\n1\ta\tb\t2\n")
        with pytest.raises(DataError, match=rf"dev\.tsv\.xz, line 2: .*{message}"):
            qqp.load(config)
    path = tmp_path / "qqp" / "quora_duplicate_questions.tsv"
    path.write_text("id\tquestion1\tis_duplicate\n")
    with pytest.raises(DataError, match=r"questions\.tsv, line 1: there is no column question2; there are id"):
        qqp.load(config)
    head = "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\n"
    for line, message in (("", "it is empty"), ("1\ta\tb", "3 columns instead of 4"), ("1\ta\tb\t2", "label is '2'")):
        path.write_text(f"{head}{line}\n")
        with pytest.raises(DataError, match=rf"questions\.tsv, line 3: .*{message}"):
            qqp.load(config)
    path.write_bytes(head.encode() + b"1\t\xff\tb\t0\n")
    with pytest.raises(DataError, match=r"questions\.tsv, line 3: it is not UTF-8"):
        qqp.load(config)


@pytest.mark.parametrize("name", ["v.txt", "v.txt.xz", "v.txt.gz", "glove.840B.300d.zip"])
def test_vectors(name, tmp_path):
    vector_file(tmp_path / "glove" / name)
    found = vectors.load(DataConfig(tmp_path), ["the", "dreadful", "missing", "n't"], 300)
    assert found.matrix.shape == (4 + FIRST, 300)
    kind = "GloVe 840B" if "840B" in name else "not GloVe 840B"
    assert found.description.startswith(f"{name} ({kind}), 3 of 4 words, scaled by 0.1")
    there = found.matrix[[FIRST, FIRST + 1, FIRST + 3]]
    assert np.abs(there).mean() == pytest.approx(0.3, rel=1e-5)
    assert not found.matrix[[0, 1, FIRST + 2]].any()
    raw = np.array(vector_lines()[0].split()[1:], np.float32)
    np.testing.assert_allclose(there[0] / raw, there[0, 0] / raw[0], rtol=1e-4)


def test_a_word_takes_its_own_case_first(tmp_path):
    path = pack(tmp_path / "v.txt", "3 2\nUS 9 9\nus 1 2\nUs 8 8\n")
    matrix, found = vectors.read(path, ["us"], 2)
    assert matrix[FIRST].tolist() == [1, 2]
    assert found == 1


def test_broken_vectors_are_named(tmp_path):
    config = DataConfig(tmp_path)
    with pytest.raises(DataError, match=r"glove\.840B\.300d\.zip.*--model\.vectors random"):
        vectors.load(config, ["a"], 300)
    path = pack(tmp_path / "glove" / "v.txt", "a 1 2 3\nb 1 2 3\n")
    with pytest.raises(DataError, match=r"v\.txt, line 1: 3 numbers instead of 300; --model\.embedding 3 takes them"):
        vectors.load(config, ["a"], 300)
    for text, line, message in (
        ("a 1 2\nb 1\n", 2, "1 numbers instead of 2"),
        ("a 1 2\n\nb 1 2\n", 2, "it is empty"),
        ("a 1 2\nc 1 2\nb x 2\n", 3, "could not convert"),
        ("a 1 2\nc 1 2\nb nan 2\n", 3, "not 2 finite numbers"),
    ):
        pack(path, text)
        with pytest.raises(DataError, match=rf"v\.txt, line {line}: .*{message}"):
            vectors.load(config, ["a", "b"], 2)
    pack(path, "a 1 2\n")
    with pytest.raises(DataError, match="for none of the 1 words"):
        vectors.load(config, ["b"], 2)
    with pytest.raises(DataError, match=r"glove has no other\.txt"):
        vectors.load(config, ["b"], 2, "other.txt")


def test_the_cache_is_used_and_made_again_when_it_must(tmp_path, monkeypatch):
    config = DataConfig(qqp_partition(tmp_path))
    first = qqp.load(config)
    (made,) = (tmp_path / "cache" / "parsed").glob("qqp-*.bin")
    with monkeypatch.context() as patch:
        patch.setattr(qqp, "_partition", lambda *_: pytest.fail("parsed again"))
        assert qqp.load(config).words == first.words
    whole = made.read_bytes()
    for damaged in (
        b"",
        whole[:200],
        whole[:-100],
        whole[:-200] + bytes([255 - whole[-200]]) + whole[-199:],
        b"x" * 999,
    ):
        made.write_bytes(damaged)
        again = qqp.load(config)
        np.testing.assert_array_equal(again.splits["train"].sides[1].values, first.splits["train"].sides[1].values)
        assert again.words == first.words
        assert made.read_bytes() == whole
    foreign = made.read_bytes().replace(b"qqp", b"qqq", 1)
    made.write_bytes(foreign)
    assert qqp.load(config).words == first.words
    compressed = tmp_path / "qqp" / "dev.tsv.xz"
    os.utime(compressed, (1, 1))  # the same file at another time
    assert qqp.load(config).words == first.words
    assert made.read_bytes() == whole
    compressed.write_bytes(lzma.compress(lzma.decompress(compressed.read_bytes()), preset=0, check=lzma.CHECK_CRC32))
    qqp.load(config)  # another file of the same content
    assert len(list((tmp_path / "cache" / "parsed").glob("qqp-*.bin"))) == 2
    monkeypatch.setenv("PLMU_CACHE", "/dev/null/x")
    assert qqp.load(config).words == first.words


def test_arrays_of_every_shape_are_kept(tmp_path):
    made = {"empty": np.zeros(0, np.uint16), "number": np.array(7), "table": np.arange(6.0).reshape(2, 3)}
    for _ in range(2):
        found = cache.cached("x", [], {"a": 1}, lambda: made, dict)
        for name, value in made.items():
            np.testing.assert_array_equal(found[name], value)
            assert found[name].shape == value.shape


def test_the_overview_names_what_is_partial(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    snli_folder(tmp_path)
    pack(tmp_path / "qqp" / "train.tsv", "\n")
    vector_file(tmp_path / "glove" / "v.txt")
    overview(DataConfig(tmp_path))
    shown = capsys.readouterr().out
    assert "train partial: 60 of 550,152" in shown
    assert "damaged or missing" in shown
    assert "v.txt" in shown
