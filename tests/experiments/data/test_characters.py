"""text8 and texts of one's own: what becomes of each character, the splits, and errors that name file and line."""

import lzma

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from texts import letters, pack, text8_file, zip_file

from plmu.data import cache
from plmu.errors import DataError
from plmu.experiments.data import characters
from plmu.experiments.data.characters import CharactersConfig
from plmu.text.symbols import Bytes, Characters


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def whole(data):
    return data.symbols.decode(np.concatenate(list(data.splits.values())).tolist())


@pytest.mark.parametrize("name", characters.NAMES)
def test_text8_by_any_of_its_names(name, tmp_path):
    text = letters(1_239)
    text8_file(tmp_path / "text8" / name, text)
    for kind in (np.ndarray, np.memmap):  # made, and from the cache
        data = characters.load(CharactersConfig(tmp_path))
        assert {split: len(values) for split, values in data.splits.items()} == {"train": 1115, "valid": 61, "test": 63}
        assert all(type(values) is kind and values.dtype == np.uint8 for values in data.splits.values())
        assert whole(data) == text
        assert data.symbols.encode(" abz") == [0, 1, 2, 26]
        assert data.completeness == "text8, partial: the first 1,239 of 100,000,000 bytes, split 90/5/5 % by length"


def test_the_whole_of_text8(tmp_path, monkeypatch):
    monkeypatch.setattr(characters, "WHOLE", 2_000)
    text8_file(tmp_path / "text8" / "text8.zip", letters(2_000))
    text8_file(tmp_path / "text8" / "text8-prefix.xz", letters(1_000))
    data = characters.load(CharactersConfig(tmp_path))
    assert data.completeness == "text8, complete: 90/5/5 million"
    assert [len(values) for values in data.splits.values()] == [1_800, 100, 100]
    text8_file(tmp_path / "text8" / "text8.zip", letters(2_001))
    with pytest.raises(DataError, match=r"text8\.zip, text8: it has more than the 2,000 bytes"):
        characters.load(CharactersConfig(tmp_path))


def test_broken_text8_is_named(tmp_path):
    config = CharactersConfig(tmp_path)
    with pytest.raises(DataError, match=r"text8 has no text8\.zip or text8 or .*it comes from http://mattmahoney"):
        characters.load(config)
    path = tmp_path / "text8" / "text8"
    for text, message in (
        (letters() + "\n", r"text8, line 1, byte 1201: it has '\\n', and text8 has nothing but spaces and a to z"),
        (letters()[:700] + "é" + letters(), r"text8, line 1, byte 701: it has 'Ã'"),
        ("A" + letters(), r"text8, line 1, byte 1: it has 'A'"),
        (letters(999), r"text8 has a text of 999 characters: at least 1,000 are needed"),
        ("", r"text8 has a text of 0 characters"),
    ):
        text8_file(path, text)
        with pytest.raises(DataError, match=message):
            characters.load(config)
    path.unlink()
    packed = text8_file(tmp_path / "text8" / "text8-prefix.xz", letters(9_000))
    packed.write_bytes(packed.read_bytes()[:-2_000])
    with pytest.raises(DataError, match=r"text8-prefix\.xz is truncated or damaged \(.*\): get it again"):
        characters.load(config)
    packed.write_bytes(lzma.compress(b"a" * 2**24))
    with pytest.raises(DataError, match=r"text8-prefix\.xz unpacks to more than 50 times its size"):
        characters.load(config)
    zip_file(tmp_path / "text8" / "text8.zip", {"other": letters().encode()})
    with pytest.raises(DataError, match=r"text8\.zip has no text8 in it"):
        characters.load(config)


def own(path, tokens="auto"):
    return characters.load(CharactersConfig(file=path, tokens=tokens))


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".bz2"])
def test_a_text_of_ones_own(packing, tmp_path):
    text = "Zwölf Boxkämpfer\r\njagen Viktor\n\t— quer.\u2028" * 30
    path = pack(tmp_path / f"my.txt{packing}", b"\xef\xbb\xbf" + text.encode())
    for _ in range(2):
        data = own(path)
        assert isinstance(data.symbols, Characters)
        assert data.symbols.alphabet == tuple(sorted(set(text)))
        assert whole(data) == text
        assert [len(values) for values in data.splits.values()] == [1080, 60, 60]
        assert data.completeness == (
            f"own text my.txt{packing}: 1,200 characters, {len(set(text))} different ones, split 90/5/5 % by length"
        )
    data = own(path, "bytes")
    assert isinstance(data.symbols, Bytes)
    assert whole(data) == text
    assert f"{len(text.encode()):,} bytes, split" in data.completeness


def test_at_most_256_characters_are_tokens(tmp_path):
    for count in (256, 257):
        path = pack(tmp_path / f"{count}.txt", "".join(map(chr, range(300, 300 + count))) * 4)
        assert own(path).symbols.kind == ("characters" if count == 256 else "bytes")
        assert own(path, "bytes").symbols.kind == "bytes"
        if count == 256:
            assert own(path, "characters").symbols.size == 256
        else:
            with pytest.raises(DataError, match=r"has 257 different characters, .* 256 can be .*--data\.tokens bytes"):
                own(path, "characters")


@given(st.text(min_size=1_000, max_size=1_030), st.integers(4, 40))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_characters_come_back_wherever_a_chunk_ends(tmp_path, monkeypatch, text, chunk):
    monkeypatch.setattr(characters, "CHUNK", chunk)
    monkeypatch.setenv("PLMU_CACHE", "/dev/null/none")
    path = pack(tmp_path / "my.txt", text)
    assert whole(own(path)) == text.removeprefix("\ufeff")


def test_broken_texts_of_ones_own_are_named(tmp_path):
    path = tmp_path / "my.txt"
    with pytest.raises(DataError, match=r"my\.txt is not there: --data\.file takes a text file"):
        own(path)
    with pytest.raises(DataError, match=r"is not a file: --data\.file takes a text file"):
        own(tmp_path)
    start = b"\n".join([b"line"] * 300)
    for raw, message in (
        (b"", r"my\.txt has a text of 0 characters: at least 1,000 are needed"),
        (b"\xef\xbb\xbf" + b"a" * 999, r"my\.txt has a text of 999 characters"),
        ("é".encode() * 999, r"my\.txt has a text of 999 characters"),
        (start + b"\nab\xff", r"my\.txt, line 301, byte 3: it is not UTF-8 .*; --data\.tokens bytes takes any file"),
        (start + b"\n" + "€".encode()[:2], r"my\.txt, line 301, byte 1: it is not UTF-8 \(unexpected end of data\)"),
    ):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=message) as told:
            own(path)
        assert "\n" not in str(told.value)
    path.write_bytes(bytes(range(256)) * 4)
    data = own(path, "bytes")
    assert bytes(np.concatenate(list(data.splits.values()))) == bytes(range(256)) * 4
    packed = pack(tmp_path / "my.txt.gz", letters(9_000))
    packed.write_bytes(packed.read_bytes()[:-2_000])
    with pytest.raises(DataError, match=r"my\.txt\.gz is truncated or damaged"):
        own(packed)


def test_a_cache_that_does_not_fit_is_made_again(tmp_path, monkeypatch):
    path = pack(tmp_path / "my.txt", letters())
    first = own(path)
    good = {name: np.asarray(values) for name, values in first.splits.items()}
    good["alphabet"] = np.array([ord(one) for one in first.symbols.alphabet], np.uint32)
    good["completeness"] = np.frombuffer(b"from the cache", np.uint8)
    monkeypatch.setattr(cache, "_read", lambda *_: good)
    assert own(path).completeness == "from the cache"
    for name, other in (
        ("train", good["train"] + 1),
        ("train", good["train"][:0]),
        ("valid", good["valid"][None]),
        ("test", good["test"].astype(np.int64)),
        ("alphabet", good["alphabet"][:3]),
        ("alphabet", good["alphabet"] * 0),
        ("alphabet", good["alphabet"] + 0x110000),
        ("completeness", np.array([255], np.uint8)),
    ):
        monkeypatch.setattr(cache, "_read", lambda *_, arrays=good | {name: other}: arrays)
        assert own(path).completeness == first.completeness
    monkeypatch.setattr(cache, "_read", lambda *_: {})
    assert whole(own(path)) == letters()
