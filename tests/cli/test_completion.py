"""Completion in shells: the scripts, and what bash, zsh and fish make of them."""

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from plmu.cli import program as cli
from plmu.cli.catalogue import CATALOGUE, lookup
from plmu.cli.completion import _flags, _options, _words, paths
from plmu.cli.program import COMMANDS, main, model_commands
from plmu.runs.runner import Options


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def _script(shell: str, capsys) -> str:
    capsys.readouterr()
    main(["completion", shell])
    return capsys.readouterr().out


OWN_FILES = [f"--data.{name}" for name in cli.OWN_FILES]
COMPLETED = [
    ((""), [*COMMANDS, "--help", "--version", "--traceback"]),
    (("trai",), ["train"]),
    (("tr",), ["train", "translate"]),
    (("train", "p"), ["psmnist"]),
    (("train", "psmnist", "--model", ""), ["plmu", "lstm", "lmu"]),
    (("train", "psmnist", "--quiet", "--training.schedule", "co"), ["constant", "cosine"]),
    (("train", "psmnist", "--training.gr"), ["--training.graph"]),
    (("train", "imdb", "--model.the"), ["--model.theta", "--model.thetas"]),
    (("train", "psmnist", "--runs", "fo"), ["folder"]),
    (("train", "psmnist", "fo"), []),
    (
        ("evaluate", ""),
        [
            "-h",
            "--help",
            "--data.root",
            *(f"--data.{name}" for name in cli.OWN_FILES),
            "--other-data",
            "--from",
            "--device",
            "file",
            "folder",
        ],
    ),
    (("evaluate", "--de"), ["--device"]),
    (("data", ""), ["-h", "--help", "--data.root"]),
    (("bench", "l"), ["layers"]),
    (("completion", "z"), ["zsh"]),
    (("nothing", ""), []),
    (("--traceback", "trai"), ["train"]),
    (("--traceback", "train", "p"), ["psmnist"]),
    (("train", "--traceback", "psmnist", "--model", "l"), ["lstm", "lmu"]),
    (("evaluate", "folder", "--device", "c"), ["cpu", "cuda"]),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    script = _script("bash", capsys)
    for words, expected in COMPLETED:
        given = ["plmu", *words] if words else ["plmu", ""]
        call = f'{script}\nCOMP_WORDS=("$@")\nCOMP_CWORD=$(($# - 1))\n_plmu 2>&-\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", call, "x", *given], capture_output=True, text=True, check=True)
        assert sorted(done.stdout.split()) == sorted(expected), words


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("typed", "last"),
    [
        ("evaluate tw", "two words"),
        (r"evaluate two\ w", "two words"),
        ("train psmnist --runs tw", "two words"),
        ("train psmnist --model=ls", "--model=lstm"),
        ("train psmnist --training.schedule=c", "--training.schedule=co"),
        ("--traceback train psmnist --model ls", "lstm"),
    ],
)
def test_bash_completes_a_line_that_is_typed(typed, last, capsys):
    """In a terminal: the tab key is pressed, and a program in place of plmu tells its last word."""
    Path("two words").write_text("")
    Path("rc").write_text(_script("bash", capsys) + "plmu() { printf '%s' \"${!#}\" > last; }\n")
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", "rc", "-i"], stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    os.write(leader, f"plmu {typed}\t\nexit\n".encode())
    shell.wait(30)
    os.close(leader)
    assert Path("last").read_text() == last


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_completes(tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    Path("plmu.fish").write_text(_script("fish", capsys))
    for words, expected in COMPLETED:
        line = " ".join(["plmu", *words] if words else ["plmu", ""])
        call = f"source plmu.fish; complete -C '{line}'"
        done = subprocess.run(["fish", "-c", call], capture_output=True, text=True, check=True)
        found = [one.split("\t")[0].rstrip("/") for one in done.stdout.splitlines()]
        if not words[-1:] or not words[-1].startswith("-"):  # fish offers options once a dash is typed
            expected = [one for one in expected if not one.startswith("-")]
            found = [one for one in found if not one.startswith("-")]
        assert {"plmu.fish", *expected} >= set(found) >= set(expected), words


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_completes(tmp_path, capsys):
    """Its functions replaced by ones that print what they are given."""
    given = "compadd() { shift; print -l -- $@ }; _files() { print file folder }; compdef() { }\n"
    script = given + _script("zsh", capsys)
    for words, expected in COMPLETED:
        call = f'{script}\nwords=("$@")\nCURRENT=$#\n_plmu'
        typed = ["plmu", *words] if words else ["plmu", ""]
        done = subprocess.run(["zsh", "-f", "-c", call, "x", *typed], capture_output=True, text=True)
        found = {word for word in done.stdout.split() if word.startswith(typed[-1])}
        assert found >= set(expected), words
        assert len(found) <= len(expected) + ("file" in done.stdout), words


def test_scripts_hold_words_values_and_paths(capsys):
    """Also where the shell is not there to try them."""
    fish, zsh, bash = (_script(shell, capsys) for shell in ("fish", "zsh", "bash"))
    assert "        case 'train psmnist --model'\n            printf '%s\\n' plmu lstm lmu\n" in fish
    options = ["--runs", "--data.root", *OWN_FILES, "--attention", "--from", "--results", "--out"]
    options += ["--input", "--state", "--states", "--data.future", "--token-file", "--plot"]
    patterns = " ".join(f"'* {option}'" for option in sorted(options))
    assert f"        case {patterns}\n            __fish_complete_path (commandline -ct)\n        case '*'\n" in fish
    names = "forecast classify anomalies mackey-glass psmnist addition"
    assert f"            case train\n                printf '%s\\n' {names}" in fish
    options = "-h --help --input --json --missing --time --state --learn --half-life --on-error --threads"
    shown = f"            case stream\n                printf '%s\\n' {options}\n                __fish_complete_path"
    assert shown in fish
    assert (
        "            case data\n                printf '%s\\n' -h --help --data.root\n            case report" in fish
    )
    for script in (zsh, bash):
        assert "        'train psmnist --model') choices='plmu lstm lmu' ;;\n" in script
        assert f"                stream) choices='{options}' files=1 ;;\n" in script
        assert "                data) choices='-h --help --data.root' ;;\n" in script
    assert zsh.startswith("#compdef plmu\n")


def test_every_option_is_completed(capsys):
    """Those that help lists, of every experiment and model; and those that take a path are known."""
    words, values = _words({}, [])
    for name in CATALOGUE:
        experiment = lookup(name)
        for model in experiment.models:
            with pytest.raises(SystemExit):
                main(["train", name, "--model", model, "--help"])
            shown = {word.strip(",.()") for word in capsys.readouterr().out.split() if re.match("--[a-z]", word)}
            options = {*_flags(Options()), *_options(experiment, model)}
            assert options | ({"--from"} if experiment.starts else set()) == shown - {"--help", "--model"}
            assert set(words[f"train {name}"]) >= options
            assert values[f"train {name} --model"] == list(experiment.models)
    parsers = (
        *(cli._evaluate_parser(), model_commands.translate_parser(), model_commands.stream_parser()),
        *(cli._data_parser(), cli._report_parser()),
    )
    of_parsers = {flag for parser in parsers for flag in parser.paths}
    wanted = {
        "--data.root",
        *OWN_FILES,
        "--attention",
        "--from",
        "--results",
        "--out",
        "--input",
        "--state",
    }
    assert wanted == of_parsers
    assert {"--runs", "--data.root", "--data.test-file"} <= {*paths([])}
