"""`plmu generate`: characters, bytes and words from a folder, stop strings, pipes, and what is refused."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from program import refused
from torch import nn

import plmu
from plmu.cli.program import main
from plmu.runs import generate
from plmu.text.symbols import Bytes, Characters, Symbols, Words, beginning
from plmu.text.words import UNKNOWN

LETTERS = Characters(tuple(" abcdefgh"))
WORDS = Words(("it", "is", "n't", "great", "?"))


def saved(folder: Path, symbols: Symbols, bias: torch.Tensor | None = None) -> Path:
    """The folder of a finished run."""
    torch.manual_seed(0)
    head = nn.Linear(8, symbols.size)
    model = plmu.Sequential(nn.Embedding(symbols.size, 8), plmu.MemoryBlock(8, 2, (3.0, 9.0)), head)
    if bias is not None:
        with torch.no_grad():
            head.bias.copy_(bias)
    folder.mkdir()
    plmu.save(model, folder / "model.plmu")
    for name, content in symbols.companions().items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    return saved(tmp_path / "letters", LETTERS)


def shown(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The text that the program prints."""
    main(["generate", *map(str, words)])
    out, err = capsys.readouterr()
    kinds = "characters|bytes|words"
    assert re.fullmatch(rf"[\d,]+ tokens \(({kinds})\) in [\d.]+ s: [\d,]+ tokens per second\n", err)
    return out


def test_characters(letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = plmu.load(letters / "model.plmu")
    options = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 4}
    expected = LETTERS.decode(list(plmu.generate(model, LETTERS.encode("a bad"), 60, **options)))
    words = ["--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--seed", "4", "--length", "60"]
    for run in (letters, letters / "model.plmu"):
        assert shown(capsys, run, "--prompt", "a bad", *words) == f"a bad{expected}\n"


def test_the_usual_options(letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, letters)
    assert len(text) == 501  # and a line break; no prompt is shown where there is none
    assert shown(capsys, letters, "--seed", "1") == shown(capsys, letters, "--seed", "1") != text


def test_a_text_begins_with_what_a_new_text_begins_with() -> None:
    assert beginning(LETTERS) == LETTERS.encode(" ")
    assert beginning(Characters(tuple("\n ab"))) == [0]
    assert beginning(Characters(tuple(" \nab"))) == [1]
    assert beginning(Characters(tuple("ab"))) == [0]
    assert beginning(Bytes()) == [10]
    assert beginning(WORDS) == [0]


def test_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The unknown word is never sampled, however likely it is; one of the prompt is shown as what the model reads."""
    bias = torch.zeros(WORDS.size)
    bias[UNKNOWN] = 50.0
    run = saved(tmp_path / "words", WORDS, bias)
    text = shown(capsys, run, "--prompt", "Isn't it odd?", "--length", "40", "--seed", "0")
    begin = "isn't it <unk>?"
    assert text.startswith(begin)
    assert "<unk>" not in text.removeprefix(begin)
    assert set(WORDS.encode(text.removeprefix(begin))) <= set(range(2, WORDS.size))
    model = plmu.load(run / "model.plmu")
    for words, start in (([], [0]), (["--prompt", "it is"], [0, 2, 3])):
        expected = plmu.generate(model, start, 40, seed=7, excluded=[UNKNOWN])
        text = shown(capsys, run, "--length", "40", "--seed", "7", *words)
        assert text.rstrip("\n") == WORDS.decode(start[1:] + list(expected)).rstrip("\n")


def test_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A character of several bytes is printed when it is whole; one that is cut off at the end shows too."""
    bias = torch.full((256,), -50.0)
    bias[list("é".encode())] = 50.0
    run = saved(tmp_path / "bytes", Bytes(), bias)
    text = shown(capsys, run, "--prompt", "né", "--length", "31", "--seed", "0")
    assert set(text) == set("né\n\ufffd")
    assert text.startswith("né")
    assert list(generate.pieces(Bytes(), [], [0xC3, 0xA9, 0xC3], None)) == ["", "", "é", "", "\ufffd"]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (None, ["", "is", "n't", " it", " great", "?", "\n", "it", ""]),
        ("?", ["", "is", "n't", " it", " great", "?"]),
        ("it gr", ["", "is", "n't", " it", " gr"]),  # over two words, and not to the end of the second
        ("great? ", ["", "is", "n't", " it", " great", "?", "\n", "it", ""]),
        ("?\nit", ["", "is", "n't", " it", " great", "?", "\n", "it"]),
        ("n", ["", "is", "n"]),
    ],
)
def test_stop_strings(stop: str | None, expected: list[str]) -> None:
    tokens = [3, 4, 2, 5, 6, 0, 2]
    assert list(generate.pieces(WORDS, [], tokens, stop)) == expected


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    numbers = LETTERS.encode("abcab")
    assert list(generate.pieces(LETTERS, LETTERS.encode("ab"), numbers, "ab")) == ["ab", "a", "b"]
    assert list(generate.pieces(LETTERS, LETTERS.encode("a"), LETTERS.encode("bab"), "ab")) == ["a", "b", "a", "b"]


def test_no_more_tokens_are_sampled_after_the_stop_string() -> None:
    tokens = iter(LETTERS.encode("abcdef"))
    assert "".join(generate.pieces(LETTERS, [], tokens, "bc")) == "abc"
    assert list(tokens) == LETTERS.encode("def")


def test_stop_on_the_command_line(letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, letters, "--seed", "0", "--stop", "a")
    assert text.index("a") == len(text) - 2


def test_an_interrupt_ends_it_quietly(
    letters: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(*_: object, **__: object) -> itertools.chain[int]:
        def stopped() -> int:
            raise KeyboardInterrupt

        return itertools.chain([1, 2, 3], iter(stopped, None))

    monkeypatch.setattr(plmu, "generate", tokens)
    assert shown(capsys, letters, "--prompt", "h") == "habc\n"
    monkeypatch.setattr(generate, "load", lambda _: list(tokens()))  # while the model is loaded
    main(["generate", str(letters)])
    assert capsys.readouterr() == ("", "")


def test_each_piece_is_written_at_once(letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Screen:
        written, flushed = "", 0

        def write(self, text: str) -> None:
            self.written += text

        def flush(self) -> None:
            self.flushed += 1

    screen = Screen()
    generate.show(letters, "abc", 20, None, screen, temperature=0)  # type: ignore[arg-type]
    assert len(screen.written) == 24
    assert screen.flushed > 20
    assert capsys.readouterr().out == ""


def test_a_reader_that_has_gone_is_no_error(letters: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "plmu", "generate", str(letters)]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.stderr, done.returncode) == ("", 0)


def test_threads(letters: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as asked for, one if nothing is said; afterwards as many as before."""
    used: list[int] = []
    monkeypatch.setattr(generate, "show", lambda *_, **__: used.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    for words in ([], ["--threads", "2"]):
        main(["generate", str(letters), *words])
    assert used == [1, 2]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", ""], "--prompt has nothing in it, got '': write some text, or leave --prompt out"),
        (["--prompt", "bad Art"], "--prompt: character 5, 'A', is not in the model's alphabet: ' abcdefgh'"),
        (["--prompt", "é"], "--prompt: character 1, 'é', is not in the model's alphabet"),
        (["--stop", ""], "--stop must have at least one character"),
        (["--length", "0"], "length must be an integer of at least 1, got 0"),
        (["--length", "many"], "argument --length: invalid int value: 'many'"),
        (["--temperature", "-1"], "temperature must be a finite number of at least 0, got -1.0"),
        (["--temperature", "nan"], "temperature must be a finite number of at least 0, got nan"),
        (["--top-k", "0"], "top_k must be an integer of at least 1, got 0"),
        (["--top-p", "0"], "top_p must be above 0 and at most 1, got 0.0"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--promt", "a"], "there is no argument '--promt'; did you mean '--prompt'?"),
    ],
)
def test_wrong_options(words: list[str], message: str, letters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(["generate", str(letters), *words], capsys)


def test_a_prompt_without_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "words", WORDS)
    assert "--prompt has no words" in refused(["generate", str(run), "--prompt", " , "], capsys)


def test_wrong_runs(letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(run: Path) -> str:
        return refused(["generate", str(run)], capsys)

    assert f"no model at {tmp_path / 'nowhere'}: expected the folder of a finished run" in said(tmp_path / "nowhere")
    assert f"no model at {tmp_path}" in said(tmp_path)
    for name, model, words in (
        ("numbers", plmu.Sequential(nn.Linear(2, 2)), "is not a model of text"),
        ("classifier", plmu.Sequential(nn.Embedding(9, 2), nn.Linear(2, 1)), "one output for each of its 9 tokens"),
        ("other", plmu.Sequential(nn.Embedding(5, 2)), "is for 9 token numbers and the model has 5 embeddings"),
    ):
        plmu.save(model, letters / name)
        assert words in said(letters / name)
    (letters / "broken").write_bytes(b"no model")
    assert "broken" in said(letters / "broken")
    (letters / "symbols.json").unlink()
    assert f"{letters} has no symbols.json or vocabulary.txt" in said(letters)
