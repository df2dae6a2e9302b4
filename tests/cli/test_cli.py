"""The command line: every wrong use, closed pipes, tracebacks, and how little it imports."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from program import raising, refused

import plmu
from plmu.cli import bench_command, model_commands
from plmu.cli.arguments import OneOf, Parser
from plmu.cli.catalogue import CATALOGUE, lookup
from plmu.cli.options import parse
from plmu.cli.program import COMMANDS, main
from plmu.cli.train import chosen_model
from plmu.errors import suggestion
from plmu.runs.runner import Options
from plmu.serve.limits import Limits

ROOT = Path(__file__).parents[2]
PLMU = [sys.executable, "-m", "plmu"]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


@pytest.mark.parametrize("missing", ["numpy", "rich", "tyro", "matplotlib", "starlette"])
def test_without_the_extras_the_way_out_is_named(missing, tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    commands = {
        "numpy": [["train", "psmnist"], ["data"]],
        "rich": [["data"], ["report"], ["evaluate", "x"], ["train", "psmnist"]],
        "tyro": [["train", "psmnist"]],
        "matplotlib": [["report"]],
        "starlette": [["serve", "x"]],
    }[missing]
    script = f"""
import sys
sys.modules[{missing!r}] = None
from plmu.cli.program import main
for words in {commands!r}:
    try:
        main(words)
    except SystemExit as stopped:
        assert stopped.code == 2
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    extra = "serve" if missing == "starlette" else "train"
    line = f"plmu: {missing} is missing, which the program needs: pip install '.[{extra}]' in a clone of plmu"
    assert done.stderr.splitlines() == [line] * len(commands)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "there is no command 'trian': the commands are demo, train, evaluate, generate, translate, "),
        (["trian"], "stream, serve, export, data, report, bench, completion; did you mean 'train'?"),
        (["--vresion"], "did you mean '--version'?"),
        (["generate", "x"], "no model at x: expected the folder of a finished run of a language model"),
        (["generate", "x", "--topk", "3"], "there is no argument '--topk'; did you mean '--top-k'?"),
        (["generate", "x", "--threads", "0"], "--threads must be at least 1, got 0"),
        (
            ["train", "mnist"],
            "there is no experiment 'mnist': the experiments are forecast, classify, anomalies, mackey-glass",
        ),
        (["train", "mnist"], "; did you mean 'psmnist'?"),
        (["train", "psmnist", "--model=lstn"], "there is no 'lstn'; did you mean 'lstm'?"),
        (["train", "psmnist", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["evaluate", "x", "--devce", "cpu"], "there is no argument '--devce'; did you mean '--device'?"),
        (["evaluate", "x", "--devce=cpu"], "there is no argument '--devce=cpu'; did you mean '--device'?"),
        (["evaluate", "x", "--dev", "cpu"], "there is no argument '--dev'"),
        (["evaluate"], "the following arguments are required: run (`plmu evaluate --help` says more)"),
        (["data", "--data.rot", "x"], "did you mean '--data.root'?"),
        (["report", "--result", "x"], "did you mean '--results'?"),
        (["completion", "bsh"], "there is no 'bsh': it is one of bash, zsh, fish; did you mean 'bash'?"),
        (["train", "psmnist", "--model", "gru"], "psmnist has the models plmu, lstm, lmu"),
        (["train", "psmnist", "--model"], "--model needs a name"),
        (["train", "psmnist", "--data.root", "/nowhere"], "the data folder /nowhere does not exist"),
        (["train", "psmnist", "--training.epochs", "0"], "training.epochs must be above 0"),
        (["train", "mackey-glass", "--device", "cuda:77"], "device 'cuda:77' is not available"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (["report", "--results", "nowhere"], "no results in nowhere"),
        (["report"], "no results in results: `plmu train` writes them"),
        (["train", "mackey-glass", "--model", "lmu", "--model.layers", "0"], "model.layers must be at least 1; got 0"),
        (["train", "mackey-glass", "--model.order", "0"], "model.order must be at least 1; got 0"),
        (["train", "mackey-glass", "--model.activation", "swish"], "model.activation must be one of relu, tanh"),
        (
            ["train", "psmnist", "--model.label-smoothing", "2"],
            "model.label_smoothing must be a fraction, between 0 and 1",
        ),
        (
            ["train", "psmnist", "--model.dropout", "1"],
            "model.dropout must be a fraction, at least 0 and below 1",
        ),
        (["train", "addition", "--model.length", "50"], "model.shortest must be at most model.length = 50; got 100"),
        (["train", "psmnist", "--seed", "-1"], "seed must be at least 0"),
    ],
)
def test_wrong_use_is_one_message_and_status_2(words, message, capsys):
    assert message in refused(words, capsys)


def test_a_misspelt_option_is_answered_with_the_right_one(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "plmu", "train", "psmnist", "--traning.epochs", "3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 2
    assert "--training.epochs" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("word", ["zzz", "--zzz", "", "é"])
def test_what_resembles_nothing_gets_no_suggestion(word, capsys):
    assert "did you mean" not in refused([word], capsys)
    assert suggestion(word, ["train"]) == ""


def test_the_words_are_those_that_were_typed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/plmu", "--version"])
    main()
    assert capsys.readouterr().out == f"plmu {plmu.__version__}\n"


def test_version_and_help(capsys):
    for words in (["--version"], ["version"]):
        main(words)
        assert capsys.readouterr().out == f"plmu {plmu.__version__}\n"
    for words in ([], ["-h"], ["--help"], ["help"]):
        main(words)
        shown = capsys.readouterr().out
        assert all(f"  plmu {command} " in shown for command in COMMANDS)
        assert "--traceback" in shown
    for words in (["train"], ["train", "-h"], ["train", "--help"]):
        main(words)
        shown = capsys.readouterr().out.splitlines()
        assert all(f"  {name:<14}{entry.about}" in shown for name, entry in CATALOGUE.items())
        assert max(map(len, shown)) <= 80
    for command in ("evaluate", "generate", "stream", "data", "report", "bench", "completion"):
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
        assert f"usage: plmu {command} " in capsys.readouterr().out


def test_the_model_decides_which_options_there_are():
    experiment = lookup("psmnist")
    assert chosen_model(experiment, ["--seed", "3"]) == ("plmu", ["--seed", "3"])
    assert chosen_model(experiment, ["--seed", "3", "--model", "lmu", "--quiet"]) == (
        "lmu",
        ["--seed", "3", "--quiet"],
    )
    assert chosen_model(experiment, ["--seed", "3", "--model=lstm", "--quiet"]) == (
        "lstm",
        ["--seed", "3", "--quiet"],
    )
    config, options = parse(experiment, "lmu", ["--model.order", "5", "--training.epochs", "3", "--name", "x"])
    expected = experiment.defaults("lmu")
    expected.model.order, expected.training.epochs = 5, 3
    assert config == expected
    assert options == dataclasses.replace(Options(), name="x")


def test_help_of_an_experiment_says_what_it_and_its_models_are(capsys):
    with pytest.raises(SystemExit):
        main(["train", "psmnist", "--model", "lstm", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "usage: plmu train psmnist" in shown
    assert "psMNIST (the paper's section 4.1)" in shown
    assert "--model {plmu,lstm,lmu} (default: plmu). The options below are those of lstm." in shown


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["evaluate", "--help"], ["trian"]])
def test_what_needs_no_torch_does_not_import_it(words):
    script = (
        "import sys, plmu.cli.program\n"
        "try:\n    plmu.cli.program.main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, 'tyro' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("words", [["--help"], ["evaluate", "--help"], ["train", "psmnist", "--help"], ["data"]])
def test_a_reader_that_has_gone_is_no_error(words):
    """As in `plmu --help | head -1`, whose pipe may be closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # else each line is written at once, and the end writes none
    done = subprocess.run([*PLMU, *words], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, env=env)
    os.close(writing)
    assert (done.stderr, done.returncode) == ("", 0)


def test_help_names_the_defaults_of_the_options():
    """Of numbers, which stand in brackets at the end of a help text; those of limits are the server's."""
    parsers = [
        bench_command.bench_parser(),
        *(make() for name, make in vars(model_commands).items() if "_parser" in name),
    ]
    numbers = {}
    for parser in parsers:
        for action in parser._actions:
            ending = re.search(r"\(([\d.]+)\)$", action.help or "")
            if ending and action.option_strings:
                assert float(action.default) == float(ending[1]), (parser.prog, action.option_strings)
                numbers[parser.prog, action.dest] = action.default
    limits = dataclasses.asdict(Limits())
    shared = {name: number for (program, name), number in numbers.items() if program == "plmu serve" and name in limits}
    assert len(shared) >= 6
    assert shared == {name: limits[name] for name in shared}


def test_a_program_without_standard_output_runs(monkeypatch):
    """As in `plmu --version >&-`, or started from a window on Windows."""
    monkeypatch.setattr("sys.stdout", None)
    main(["--version"])


def test_work_that_a_closed_pipe_cuts_short_is_not_done(monkeypatch, tmp_path):
    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        for words, status in ((["train", "psmnist"], 141), (["bench", "layers"], 141)):
            monkeypatch.setitem(COMMANDS, words[0], raising(BrokenPipeError()))
            with pytest.raises(SystemExit) as stopped:
                main(words)
            assert stopped.value.code == status
        for words in (["train", "--help"], ["train", "psmnist", "-h"], ["train"]):
            main(words)


def test_errors_are_one_line_and_their_traceback_is_shown_on_request(capsys):
    words = ["evaluate", "nowhere"]
    plain = refused(words, capsys)
    assert plain.startswith("plmu: nowhere is not a run")
    for given in (["--traceback", *words], [*words, "--traceback"]):
        with pytest.raises(SystemExit) as stopped:
            main(given)
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("Traceback (most recent call last):")
        assert "RunError" in said
        assert said.splitlines()[-1] == plain


def test_what_is_stopped_ends_as_a_shell_expects(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "data", raising(KeyboardInterrupt("stopped; and more")))
    assert refused(["data"], capsys, status=130) == "plmu: stopped; and more"
    monkeypatch.setitem(COMMANDS, "data", raising(KeyboardInterrupt()))
    assert refused(["data"], capsys, status=130) == "plmu: stopped"


def test_errors_of_the_program_itself_are_not_hidden(monkeypatch):
    monkeypatch.setitem(COMMANDS, "data", raising(RuntimeError("a mistake of ours")))
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        main(["data"])
    monkeypatch.setitem(COMMANDS, "data", raising(ModuleNotFoundError("no", name="plmu.nothing")))
    with pytest.raises(ModuleNotFoundError):
        main(["data"])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("wrong"), "plmu: wrong"),
        (PermissionError(13, "Permission denied", "a.json"), "plmu: a.json: Permission denied"),
        (OSError("only a text"), "plmu: only a text"),
        (
            ModuleNotFoundError("no", name="rich.table"),
            "plmu: rich is missing, which the program needs",
        ),
    ],
)
def test_what_a_user_can_mend_is_said(error, said, monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "data", raising(error))
    assert refused(["data"], capsys).startswith(said)


def test_an_interrupted_stream_ends(monkeypatch, capsys):
    monkeypatch.setattr("plmu.cli.stream_lines.show", raising(KeyboardInterrupt()))
    main(["stream", "x"])


def test_a_parser_knows_its_words():
    parser = Parser(prog="p")
    parser.add_argument("kind", type=OneOf("a", "b"))
    parser.add_argument("--shade", type=OneOf("dark", "light"))
    assert parser.completions == {"-h": (), "--help": (), "a": (), "b": (), "--shade": ("dark", "light")}
    assert not parser.takes_path
    parser.add_argument("--out", type=Path)
    assert not parser.takes_path
    parser.add_argument("run", type=Path)
    assert parser.takes_path
    given = parser.parse_args(["a", "x", "--shade", "dark"])
    assert (given.kind, given.run, given.shade) == ("a", Path("x"), "dark")


@pytest.mark.parametrize("words", [["--help"], ["train", "psmnist", "--help"]], ids=" ".join)
def test_a_terminal_without_greek_letters(words: list[str]) -> None:
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*PLMU, *words], env=plain, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "?" in done.stdout
