"""Characters, bytes and words: to token numbers and back, and in the files beside a model."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmu.errors import RunError
from plmu.text import symbols
from plmu.text.symbols import Bytes, Characters, Words
from plmu.text.words import FIRST, UNKNOWN

VOCABULARY = ("the", "it", "is", "n't", "'s", "'ll", "great", "7/10", "!", "?", "...")


def write(folder, kind):
    for name, content in kind.companions().items():
        (folder / name).write_text(content, encoding="utf-8")
    return kind


def test_characters_outside_the_alphabet_are_named():
    letters = Characters(("\n", " ", "a", "b"))
    assert (letters.kind, letters.size) == ("characters", 4)
    assert letters.encode("ab\na") == [2, 3, 0, 2]
    assert letters.encode("") == []
    with pytest.raises(
        ValueError, match=r"^character 3, 'é', is not in the model's alphabet: '\\n ab'$"
    ):  # of several, the first
        letters.encode("abéaé!")
    for wrong in ((), ("a", "a"), ("ab",), ("",)):
        with pytest.raises(ValueError, match="one or more single characters, each once"):
            Characters(wrong)


@given(st.text(max_size=30))
def test_bytes_are_printed_at_the_end_of_each_character(text):
    raw = Bytes().encode(text)
    assert bytes(raw) == text.encode()
    decoder = Bytes().decoder()
    given_back = [decoder.push(number) for number in raw]
    assert [part for part in given_back if part] == list(text)
    assert decoder.finish() == ""
    assert Bytes().decode(raw) == text


def test_bytes_that_are_no_text():
    decoder = Bytes().decoder()
    assert [decoder.push(number) for number in (0xE2, 0x82, 0x41)] == ["", "", "\ufffdA"]
    assert decoder.push(0xC3) == ""
    assert decoder.finish() == "\ufffd"
    with pytest.raises(ValueError, match=r"^character 2, '\\udcff', cannot be written in UTF-8$"):
        Bytes().encode("a\udcff")


def test_words_are_set_as_one_writes_them():
    words = Words(VOCABULARY)
    text = "It's great... Isn't it? It'll: the Best! 7/10"
    numbers = words.encode(text)
    assert numbers[:3] == [FIRST + 1, FIRST + 4, FIRST + 6]
    assert numbers.count(UNKNOWN) == 1
    assert words.decode(numbers) == "it's great... isn't it? it'll the <unk>! 7/10"
    assert words.decode([0, FIRST, FIRST + 6, 0, FIRST + 1, 0]) == "\nthe great\nit\n"
    assert words.size == FIRST + len(VOCABULARY)
    for wrong in (("a", "a"), ("",), ("a\nb",)):
        with pytest.raises(ValueError, match="each word once, none empty"):
            Words(wrong)


@pytest.mark.parametrize("kind", [Characters(tuple(' ab\n"\\é\u2028')), Bytes(), Words(VOCABULARY)])
def test_a_folder_gives_them_back(kind, tmp_path):
    write(tmp_path, kind)
    again = symbols.read(tmp_path, kind.size)
    assert vars(again) == vars(kind)
    assert type(again) is type(kind)
    decoder = kind.decoder()
    for number in (-1, kind.size):
        with pytest.raises(ValueError, match=rf"token number {number} is not one of 0 … {kind.size - 1}"):
            decoder.push(number)
    with pytest.raises(RunError, match=rf"is for {kind.size} token numbers and the model has 7 embeddings"):
        symbols.read(tmp_path, 7)


def test_what_is_missing_or_damaged_is_named(tmp_path):
    with pytest.raises(RunError, match=r"has no symbols\.json or vocabulary\.txt: it says what"):
        symbols.read(tmp_path, 3)
    path = tmp_path / "symbols.json"
    deep = "[" * 100_000
    for content in (
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        b'{"kind": "words"}',
        b'{"kind": "characters"}',
        b'{"kind": "characters", "alphabet": ""}',
        b'{"kind": "characters", "alphabet": "aa"}',
        b'{"kind": "characters", "alphabet": ["a", "b"]}',
        json.dumps({"kind": deep}).encode(),
        deep.encode(),
    ):
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"symbols\.json is damaged \(.*: copy it again") as told:
            symbols.read(tmp_path, 3)
        assert len(str(told.value)) < 500
        assert "\n" not in str(told.value)
    path.unlink()
    path.mkdir()
    for content in (b"\xff\n", b"a\na\n", b"\n"):
        (tmp_path / "vocabulary.txt").write_bytes(content)
        with pytest.raises(RunError, match=r"vocabulary\.txt is damaged"):
            symbols.read(tmp_path, 3)


def test_a_file_that_is_too_large_or_may_not_be_read(tmp_path, monkeypatch):
    write(tmp_path, Bytes())
    with monkeypatch.context() as patch:
        patch.setattr(symbols, "LARGEST_FILE", 5)
        with pytest.raises(RunError, match=r"symbols\.json has more than the 5 bytes"):
            symbols.read(tmp_path, 256)

    def refused(file, *_, **__):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("plmu.data.reading.open", refused, raising=False)
    with pytest.raises(RunError, match=r"symbols\.json cannot be read \(Permission denied\)"):
        symbols.read(tmp_path, 256)
