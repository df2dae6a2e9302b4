"""Pairs of sentences: Stanford's files and files of one's own, words and pieces, and every fault of a file."""

import functools
import hashlib
import http.server
import json
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from texts import iwslt_folder, pack, pairs

from plmu.errors import DataError, RunError
from plmu.experiments.data import parallel
from plmu.experiments.data.parallel import ParallelConfig, load
from plmu.text import vocabularies
from plmu.text.vocabularies import SPECIAL, UNKNOWN, Pieces, Words


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def _sentences(data, split, side):
    ragged, vocabulary = data.splits[split][side], (data.source, data.target)[side]
    starts = [0, *ragged.ends[:-1]]
    return [vocabulary.decode(ragged.values[a:b].tolist()) for a, b in zip(starts, ragged.ends, strict=True)]


def _own(tmp_path: Path, source: str | bytes, target: str | bytes, name: str = "") -> dict[str, Path]:
    a, b = pack(tmp_path / f"{name}a.txt", source), pack(tmp_path / f"{name}b.txt", target)
    return {f"{name}source": a, f"{name}target": b}


def _text(lines) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("packing", ["", ".xz", ".gz"])
def test_stanfords_files_are_read_as_they_are(packing, tmp_path):
    folder = iwslt_folder(tmp_path, 60, packing)
    data = load(ParallelConfig(folder))
    assert data.completeness == (
        "IWSLT'15 En–Vi, train partial: 60 of 133,317; valid partial: 60 of 1,553; test partial: 60 of 1,268"
    )
    raw = pairs(60, 2)
    words = [text.replace(".", " .").replace("'", " &apos;").split() for text in raw[1]]
    assert data.references["test"] == [" ".join(one) for one in words]
    assert _sentences(data, "test", 1) == words, "no word is rarer than five"
    assert data.splits["train"][0].values.dtype == np.uint16


def test_stanfords_files_are_downloaded_and_verified(tmp_path, monkeypatch):
    pytest.importorskip("pooch")
    folder = iwslt_folder(tmp_path, 60, "", ["the", "Dog", "gato"]) / parallel.FOLDER
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setattr(parallel, "HOME", f"http://127.0.0.1:{server.server_port}/")
        try:
            with pytest.raises(DataError, match=r"train\.en is not the file it should be"):
                load(ParallelConfig())
            sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
            assert sums.keys() == parallel.SHA256.keys()
            monkeypatch.setattr(parallel, "SHA256", sums)
            data = load(ParallelConfig())
        finally:
            server.shutdown()
    assert len(data.references["test"]) == 60
    assert data.source.words == ("the", "Dog", "gato")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_the_vocabularies_of_the_files_come_before_counted_ones(tmp_path):
    data = load(ParallelConfig(iwslt_folder(tmp_path, words=["the", "Dog", "gato"])))
    assert data.source.words == data.target.words == ("the", "Dog", "gato")
    assert {word for one in _sentences(data, "train", 0) for word in one} <= {"the", "Dog", "gato", "<unk>"}


def test_words_seen_fewer_than_five_times_are_unknown(tmp_path):
    sources, targets = pairs(400)
    sources[:5], targets[:4] = ["Five rare."] * 5, ["four rare."] * 4
    data = load(ParallelConfig(**_own(tmp_path, _text(sources), _text(targets))))
    assert ("Five" in data.source.words) == (sum("Five" in one for one in _sentences(data, "train", 0)) >= 5)
    assert "four" not in data.target.words
    assert data.source.words[0] == ".", "most frequent first"


def test_own_files_are_tokenised_and_split_by_a_hash(tmp_path):
    sources, targets = pairs(600)
    data = load(ParallelConfig(**_own(tmp_path, _text(sources), _text(targets))))
    counts = [len(data.splits[split][0]) for split in ("train", "valid", "test")]
    assert sum(counts) == 600
    assert counts[0] > 500
    assert min(counts) > 0
    assert re.fullmatch(
        rf"own pairs a.txt – b.txt: {counts[0]}/{counts[1]}/{counts[2]} \(train/valid/test\);"
        " split by a hash where no files are given",
        data.completeness,
    )
    assert {word for one in _sentences(data, "train", 0) for word in one} >= {"&apos;s", "dog", "."}
    held_out = {tuple(one) for split in ("valid", "test") for one in _sentences(data, split, 0)}
    assert not held_out & {tuple(one) for one in _sentences(data, "train", 0)}, "repeated sentences stay together"


def test_own_files_to_validate_and_test(tmp_path):
    given = {}
    for seed, name in enumerate(("", "valid_", "test_")):
        given |= _own(tmp_path, *map(_text, pairs(50 + seed, seed)), name=name)
    data = load(ParallelConfig(**given))
    assert [len(data.splits[split][0]) for split in ("train", "valid", "test")] == [50, 51, 52]
    assert "hash" not in data.completeness
    del given["test_source"], given["test_target"]
    more = load(ParallelConfig(**{**given, **_own(tmp_path, *map(_text, pairs(600)))}))
    assert len(more.splits["valid"][0]) == 51
    assert len(more.splits["train"][0]) + len(more.splits["test"][0]) == 600


def test_pieces_are_of_one_vocabulary_and_lose_nothing(tmp_path):
    data = load(ParallelConfig(iwslt_folder(tmp_path, 60)), pieces=300)
    assert isinstance(data.source, Pieces)
    assert data.source.pieces == data.target.pieces
    assert tuple(data.source.pieces[:4]) == SPECIAL
    for side in (0, 1):
        texts = [text.replace(".", " .").replace("'", " &apos;").split() for text in pairs(60, 2)[side]]
        assert _sentences(data, "test", side) == texts
    (numbers,) = data.source.encode([["dog", "☃"]])
    assert UNKNOWN in numbers
    assert data.source.decode(numbers) == ["dog", "<unk>"]
    assert data.source.decode(numbers, ["snow"]) == ["dog", "snow"]


def test_there_are_no_more_pieces_than_asked_for_however_many_characters():
    sentences = ["".join(chr(0x4E00 + number) for number in range(start, start + 20)) for start in range(0, 1000, 10)]
    assert Pieces(vocabularies.train_pieces(sentences, 400)).size == 400


@pytest.mark.parametrize("pieces", [0, 300])
def test_the_cache_serves_a_machine_without_a_tokenizer(pieces, tmp_path, monkeypatch):
    """Files are known by their content: their times may differ."""
    folder = iwslt_folder(tmp_path, 60)
    before = load(ParallelConfig(folder), pieces)
    for path in (folder / parallel.FOLDER).iterdir():
        os.utime(path, (1, 1))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr(parallel, "_read", lambda *_: pytest.fail("the files were read again"))
    after = load(ParallelConfig(folder), pieces)
    assert _sentences(after, "train", 0) == _sentences(before, "train", 0)
    assert after.references == before.references
    pack(folder / parallel.FOLDER / "train.en.xz", "other\n")
    with pytest.raises(BaseException, match="were read again"):
        load(ParallelConfig(folder), pieces)


def test_what_is_missing_to_make_pieces_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match="byte-pair encoding needs tokenizers"):
        load(ParallelConfig(iwslt_folder(tmp_path)), pieces=300)


def test_missing_files_say_where_they_come_from(tmp_path):
    (iwslt_folder(tmp_path) / parallel.FOLDER / "tst2012.vi.xz").unlink()
    with pytest.raises(
        DataError, match=r"has no tst2012\.vi or .*it comes from https://nlp\.stanford\.edu/.*tst2012\.vi"
    ):
        load(ParallelConfig(tmp_path))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\nb\nc\n", "x\ny\n", r"a\.txt, line 3: .*b\.txt ends before it, at line 2"),
        ("a\n", "x\ny\n", r"b\.txt, line 2: .*a\.txt ends before it, at line 1"),
        (b"a\nb\xff\n", "x\ny\n", r"a\.txt, line 2: it is not UTF-8"),
        ("a\nb\n", b"x\n\xe9\n", r"b\.txt, line 2: it is not UTF-8"),
        ("\n \n", "x\ny\n", "have too few pairs: there is none to train on$"),
        (
            "a\nb\n",
            "x\ny\n",
            r"there is none to validate on; give some by --data\.valid-source and --data\.valid-target",
        ),
    ],
)
def test_faults_of_files_are_named_with_their_line(source, target, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load(ParallelConfig(**_own(tmp_path, source, target)))


def test_empty_lines_are_left_out_of_training_and_refused_elsewhere(tmp_path):
    sources, targets = pairs(300)
    sources[3], targets[7] = "", "  "
    given = _own(tmp_path, _text(sources), _text(targets))
    data = load(ParallelConfig(**given))
    assert data.completeness.endswith("; 2 training pairs with an empty side left out, the first at line 4")
    assert sum(len(data.splits[split][0]) for split in parallel.SPLITS) == 298
    given |= _own(tmp_path, "a\n\n", "b\nc\n", name="test_")
    with pytest.raises(DataError, match=r"test_a\.txt, line 2: it is empty, and a sentence to test on may not be"):
        load(ParallelConfig(**given))


def test_very_long_lines_are_not_taken_to_validate_or_test(tmp_path):
    """All sentences to validate or test on are padded to the longest, and are translated."""
    sources, targets = pairs(600)
    longs = [f"{number}{'x' * 10_000}" for number in range(200)]
    data = load(ParallelConfig(**_own(tmp_path, _text(sources + longs), _text(targets + targets[:200]))))
    for split, count in (("train", 200), ("valid", 0), ("test", 0)):
        assert _sentences(data, split, 0).count(["<unk>"]) == count
    given = _own(tmp_path, _text(sources), _text(targets)) | _own(tmp_path, "a\nb\n", f"x\n{longs[0]}\n", "valid_")
    with pytest.raises(
        DataError, match=r"valid_b\.txt, line 2: it has 10,001 characters, and a sentence to validate on"
    ):
        load(ParallelConfig(**given))


def test_a_text_in_which_no_word_is_frequent_is_too_short(tmp_path):
    given = {}
    for name in ("", "valid_", "test_"):
        given |= _own(tmp_path, "a b c\n" * 5, "one\n" * 4 + "two\n", name=name)
    with pytest.raises(DataError, match=r"/b\.txt is too short: no word is there 5 times"):
        load(ParallelConfig(**given))


def test_files_that_belong_together_are_given_together(tmp_path):
    given = _own(tmp_path, "a\n", "b\n")
    with pytest.raises(DataError, match=r"--data\.source and --data\.target belong together"):
        load(ParallelConfig(source=given["source"]))
    with pytest.raises(DataError, match=r"--data\.valid-source and --data\.valid-target belong together"):
        load(ParallelConfig(**given, valid_target=given["target"]))
    with pytest.raises(DataError, match=r"--data\.source and --data\.target are needed beside"):
        load(ParallelConfig(test_source=given["source"], test_target=given["target"]))
    with pytest.raises(DataError, match=r"nothing is not there: --data\.target takes one"):
        load(ParallelConfig(source=given["source"], target=tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("words", "message"), [("a\nb\na\n", "line 3: 'a' is there twice"), ("a\n\n", "line 2: '' is not one word")]
)
def test_a_damaged_vocabulary_is_named_with_its_line(words, message, tmp_path):
    folder = iwslt_folder(tmp_path, words=["x"])
    pack(folder / parallel.FOLDER / "vocab.en.xz", words)
    with pytest.raises(DataError, match=rf"vocab\.en\.xz, {message}"):
        load(ParallelConfig(folder))


def test_vocabularies_are_read_from_beside_a_model(tmp_path):
    source, target = Words(["a", "b"]), Words(["x"])
    for name, content in vocabularies.companions(source, target).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    found = vocabularies.read(tmp_path)
    assert [one.words for one in found] == [("a", "b"), ("x",)]
    (tmp_path / "target-vocabulary.txt").write_text("x\nx\n")
    with pytest.raises(RunError, match=r"target-vocabulary\.txt is damaged \(a vocabulary has each word once"):
        vocabularies.read(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    with pytest.raises(RunError, match=r"tokenizer\.json is damaged \(its first pieces must be <pad>"):
        vocabularies.read(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "source-vocabulary.txt").unlink()
    with pytest.raises(RunError, match=r"source-vocabulary\.txt cannot be read .*token numbers stand for"):
        vocabularies.read(tmp_path)
