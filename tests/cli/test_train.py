"""`plmu train` before anything is trained: the list of experiments, bare file names, and help in plain words."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from forecasts import written
from program import refused

from plmu.cli.catalogue import CATALOGUE, OWN_DATA, PAPER, lookup
from plmu.cli.options import documentation, shown
from plmu.cli.program import main
from plmu.cli.train import with_option


@pytest.mark.parametrize("words", [["train"], ["train", "--help"], ["train", "forecast"], ["train", "classify"]])
def test_the_list_and_the_way_to_own_data_need_no_torch(words):
    script = (
        "import sys; from plmu.cli.program import main\ntry: main(sys.argv[1:])\nfinally: print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "False"
    assert "`plmu demo`" in result.stdout + result.stderr
    assert "plmu train forecast my.csv" in result.stdout or f"plmu train {words[1]} my.csv" in result.stderr


def test_own_data_comes_first(capsys):
    main(["train"])
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in CATALOGUE]
    assert names == [*OWN_DATA, *PAPER] == [*CATALOGUE]


def test_the_catalogue_has_the_experiments_by_their_names():
    for name in CATALOGUE:
        assert lookup(name).name == name
        assert lookup(name).own_data == (name in OWN_DATA)
        assert lookup(name) is lookup(name)
    with pytest.raises(KeyError):
        lookup("nothing")


def test_a_bare_file_name_is_data_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text("")
    assert with_option("forecast", ["my.csv", "--horizon", "3"]) == ["--data.file", "my.csv", "--horizon", "3"]
    assert with_option("text8", ["my.csv"]) == ["--data.file", "my.csv"]
    assert with_option("classify", [".", "--quiet"]) == ["--data.file", ".", "--quiet"]
    assert with_option("psmnist", ["--seed", "3"]) == ["--seed", "3"]
    message = refused(["train", "forecast", "mi.csv"], capsys)
    assert message == "plmu: there is no file or folder 'mi.csv': plmu train forecast FILE trains on a file of your own"
    assert "psmnist takes no file, got 'my.csv'" in refused(["train", "psmnist", "my.csv"], capsys)
    message = refused(["train", "forecast", "my.csv", "--data.file=my.csv"], capsys)
    assert "the file is given twice, as my.csv and --data.file" in message
    assert "forecast needs a file of your own: a table" in refused(["train", "forecast", "--seed", "3"], capsys)
    assert "a file is missing: plmu predict RUN my.csv" in refused(["predict", "run"], capsys)
    assert "the file is given twice" in refused(["predict", "run", "my.csv", "--data.file", "my.csv"], capsys)


def test_own_data_ends_with_what_to_do_next(tmp_path, monkeypatch, capsys):
    """Also after several seeds, whose mean is shown; and a finished run shows its scores, inside 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("load.csv").write_text(written())
    main(["train", "forecast", "load.csv", "--horizon", "3"])
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("next: plmu predict runs/forecast-load-seed0")
    assert "paper" not in out
    assert "epochs" not in out
    main(["train", "forecast", "load.csv", "--horizon", "3", "--seeds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("next: plmu predict runs/forecast-load-seed1")
    assert sum(line.startswith("next: ") for line in lines) == 1
    assert any("test scores, mean of 2 seeds" in line for line in lines)
    main(["train", "forecast", "load.csv", "--horizon", "3", "--quiet"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert next(line.split("│")[1].strip() for line in lines if "│" in line) == "closed"
    for run in ("runs/forecast-load-seed0", "runs/forecast-load-seed1"):
        main(["predict", run, "load.csv", "--quiet"])
        assert capsys.readouterr().out.count("\n") == 4  # a header and three steps


@pytest.mark.parametrize("name", CATALOGUE)
def test_help_is_plain(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for model in lookup(name).models:
        with pytest.raises(SystemExit) as stopped:
            main(["train", name, "--model", model, "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        for wrong in ("None}", "{None", "(default: None)", "(default: )", "Default:", "(default: False)"):
            assert wrong not in text, (name, model, wrong)
        assert max(map(len, text.splitlines())) <= 80
        _, table = text.split("usage: ")
        options = re.findall(r"^[│ ]{0,2}--[a-z]\S+", table, re.MULTILINE)
        assert len(options) == len(re.findall(r"\((?:default:|required;)", table))


@dataclass
class Base:
    first: int = 1
    """In two
    lines. Default: 3, or 4.5 where it fits. More."""
    second: tuple[int, ...] = ()


@dataclass
class Derived(Base):
    second: tuple[int, ...] = ()
    """Another."""


def test_defaults_are_in_brackets():
    texts = documentation(Derived)
    assert texts == {"first": "In two lines. Default: 3, or 4.5 where it fits. More.", "second": "Another."}
    assert shown(texts["first"], None) == ("In two lines. More.", "(default: 3, or 4.5 where it fits)")
    assert shown(texts["first"], 7) == ("In two lines. More.", "(default: 7)")
    assert shown(texts["second"], ()) == ("Another.", "(default: none)")
    assert shown(texts["second"], (1, 2)) == ("Another.", "(default: 1 2)")
    assert shown("", True) == ("", "(default: on)")
    assert documentation(type("Made", (Base,), {})) == documentation(Base)
