"""`plmu stream`: numbers, classes, text and tokens line by line; states, bad lines, pipes and signals."""

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from program import refused
from torch import nn

import plmu
from plmu.cli.catalogue import CATALOGUE, lookup
from plmu.cli.program import main
from plmu.cli.stream_lines import LineStream, Options
from plmu.errors import RunError
from plmu.runs import deployed, outputs
from plmu.runs.deployed import load
from plmu.runs.experiment import outputs_of
from plmu.text.symbols import Bytes, Characters, Symbols, Words


def saved(folder: Path, features: int = 2, out: int = 3, **known: object) -> Path:
    """The folder of a finished run of a model of numbers."""
    torch.manual_seed(0)
    folder.mkdir()
    plmu.save(
        plmu.Sequential(plmu.ParallelLMU(features, 4, order=3, theta=5.0), nn.Linear(4, out)), folder / "model.plmu"
    )
    outputs.write(folder, outputs.Outputs(**known))  # type: ignore[arg-type]
    return folder


def saved_language(folder: Path, symbols: Symbols) -> Path:
    torch.manual_seed(0)
    folder.mkdir()
    size = symbols.size
    model = plmu.Sequential(nn.Embedding(size, 4), plmu.ParallelLMU(4, 4, order=2, theta=3.0), nn.Linear(4, size))
    plmu.save(model, folder / "model.plmu")
    for name, content in symbols.companions().items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


@pytest.fixture
def stream(monkeypatch, capsys):
    """What `plmu stream` prints for this text on its standard input."""

    def run(folder: Path, text: str, *options: str) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        capsys.readouterr()
        main(["stream", str(folder), *options])
        return capsys.readouterr().out.splitlines()

    return run


def expected(folder: Path, samples: list[list[float]]) -> list[list[float]]:
    own = plmu.Stream(plmu.load(folder / "model.plmu"))
    return [own.push(sample).tolist() for sample in samples]


@pytest.mark.parametrize(
    "text",
    [
        "1.5,-2\n0,3e-1\n",
        "left,right\n1.5,-2\n0,3e-1\n",
        '"1.5","-2"\r\n0 , 0.3\r\n',
        "\ufeff1.5;-2\n0;0.3",
        "1.5\t-2\n0\t0.3\n",
        " 1.5  -2\n0 0.3\n",
        "[1.5, -2]\n[0, 0.3]\n",
        '{"a": 1.5, "b": -2}\n{"b": 0.3, "a": 0}\n',
    ],
)
def test_numbers_in_every_form(text: str, tmp_path: Path, stream) -> None:
    folder = saved(tmp_path / "run")
    wanted = expected(folder, [[1.5, -2.0], [0.0, 0.3]])
    lines = stream(folder, text)
    assert [[float(field) for field in line.split(",")] for line in lines] == [
        [pytest.approx(value, rel=1e-6) for value in row] for row in wanted
    ]
    assert all(len(field.strip("-0.").replace(".", "")) >= 6 for line in lines for field in line.split(","))
    objects = [json.loads(line) for line in stream(folder, text, "--json")]
    assert [one["output"] for one in objects] == wanted
    assert objects[-1]["line"] == text.rstrip().count("\n") + 1


def test_classes_by_name(tmp_path: Path, stream) -> None:
    folder = saved(tmp_path / "run", labels=("left", "middle", "right"))
    logits = torch.tensor(expected(folder, [[1.0, 2.0]])[0])
    (line,) = stream(folder, "1,2\n")
    best = int(logits.argmax())
    assert line == f"{('left', 'middle', 'right')[best]} {logits.softmax(0)[best]:.6f}"
    (told,) = map(json.loads, stream(folder, "1,2\n", "--json"))
    assert told["label"] == line.split()[0]
    assert sum(told["probabilities"].values()) == pytest.approx(1)


def test_an_empty_line_starts_another_sequence(tmp_path: Path, stream) -> None:
    folder = saved(tmp_path / "run")
    lines = stream(folder, "\n1,2\n3,4\n\n\n1,2\n\n")
    assert lines[0] == lines[3] != lines[1]
    assert lines[2] == lines[4] == ""
    assert len(lines) == 5


def test_missing_numbers(tmp_path: Path, stream, capsys) -> None:
    folder = saved(tmp_path / "run")
    text = "1,2\n,nan\n[null, 3]\n"
    for policy, filled in (("hold", [[1, 2], [1, 2], [1, 3]]), ("zero", [[1, 2], [0, 0], [0, 3]])):
        lines = stream(folder, text, "--missing", policy, "--json")
        assert [json.loads(line)["output"] for line in lines] == expected(folder, filled)
    with pytest.raises(SystemExit):
        stream(folder, text)
    assert capsys.readouterr().err == "plmu: line 2: a number is missing: --missing hold or --missing zero fills it\n"


BAD = [
    ("1", "expected 2 numbers, got 1"),
    ("1,x", "'x', in column 2, is not a number"),
    ("[1, ", "it is not JSON"),
    ('[1, "2"]', "'2', in place 2, is not a number"),
    ("[1, true]", "'True', in place 2, is not a number"),
    ("[[1, 2]]", "'[1, 2]', in place 1, is not a number"),
    ("[" * 100_000, "it is not JSON"),
    ("1,inf", "infinity"),
    (f"[1, 1{'0' * 400}]", "the number in place 2 is too large"),
    ('1,"2', "unexpected end of data"),
]


def test_bad_lines_are_named_and_skipped_or_stop(tmp_path: Path, stream, capsys) -> None:
    folder = saved(tmp_path / "run")
    text = "".join(f"1,2\n{line}\n" for line, _ in BAD) + "1,2\n"
    lines = [json.loads(line) for line in stream(folder, text, "--on-error", "skip", "--json")]
    answers, faults = [one for one in lines if "output" in one], [one for one in lines if "error" in one]
    assert [one["output"] for one in answers] == expected(folder, [[1, 2]] * (len(BAD) + 1))
    assert [one["line"] for one in faults] == [2 * number for number in range(1, len(BAD) + 1)]
    for fault, (_, message) in zip(faults, BAD, strict=True):
        assert message in fault["error"]
    with pytest.raises(SystemExit) as stopped:
        stream(folder, "1,2\nx,1\n1,2\n")
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert err == "plmu: line 2: 'x', in column 1, is not a number\n"
    assert len(out.splitlines()) == 1


def test_a_header_of_other_columns_is_refused(tmp_path: Path, stream, capsys) -> None:
    with pytest.raises(SystemExit):
        stream(saved(tmp_path / "run"), "a,b,c\n1,2,3\n")
    assert capsys.readouterr().err == "plmu: line 1: the header names 3 columns, the model takes 2\n"


def test_a_stream_resumes_from_a_saved_state(tmp_path: Path, stream) -> None:
    folder, state = saved(tmp_path / "run"), tmp_path / "state"
    rows = [[float(i), -0.5 * i] for i in range(6)]
    lines = [",".join(map(str, row)) + "\n" for row in rows]
    whole = stream(folder, "".join(lines))
    (tmp_path / "first.csv").write_text("".join(lines[:3]))
    parts = stream(folder, "", "--state", str(state), "--input", str(tmp_path / "first.csv"))
    with pytest.raises(SystemExit):
        stream(folder, f"{lines[3]}broken\n", "--state", str(state))
    assert plmu.Stream.restore(plmu.load(folder / "model.plmu"), state).steps == 4
    parts += [whole[3], *stream(folder, "".join(lines[4:]), "--state", str(state))]
    assert parts == whole


PANEL = "site,b,a\nx,1,2\nx,3,4\ny,1,2\n\ny,5,6\nz,1,2\nz,3,4\n"
CUT = {  # a model's outputs, and lines
    "empty lines": ({}, "1,2\n3,4\n\n\n1,2\n\n1,2\n5,6\n"),
    "a panel": ({"inputs": ("a", "b"), "series": "site"}, PANEL),
    "a mixed panel": ({"inputs": ("a", "b"), "series": "site"}, PANEL + "x,5,6\ny,1,1\n\nx,1,1\nx,2,2\n"),
    "objects": ({}, '{"a": 1, "b": 2}\n{"b": 4, "a": 3}\n\n{"b": 2, "a": 1}\n'),
    "a header without meaning": ({}, "a,b\n1,2\n3,4\n"),
}


@pytest.mark.parametrize("kind", CUT)
def test_cut_anywhere_a_stream_resumes_as_if_uncut(kind: str, tmp_path: Path, stream, capsys) -> None:
    known, text = CUT[kind]
    folder, lines = saved(tmp_path / "run", **known), text.splitlines(keepends=True)
    whole = stream(folder, text)
    for cut in range(1, len(lines)):
        state = tmp_path / f"state{cut}"
        parts = [stream(folder, "".join(part), "--state", str(state)) for part in (lines[:cut], lines[cut:])]
        assert parts[0] + parts[1] == whole, cut


INPUTS = {"inputs": ("a", "b"), "series": "site"}


def test_mixed_series_are_named_and_each_has_a_state_of_its_own(tmp_path: Path, stream) -> None:
    """As if each were streamed alone; an empty line ends the series before it, and no other."""
    folder = saved(tmp_path / "run", **INPUTS)
    samples = {"x": [[1, 2], [3, 4], [5, 6]], 'y, "z"': [[-1, 0], [2, 2]], "=1+1": [[7, 7]]}
    wanted = {name: expected(folder, [row[::-1] for row in rows]) for name, rows in samples.items()}
    text = 'site,b,a\nx,1,2\n"y, ""z""",-1,0\nx,3,4\n"=1+1",7,7\n"y, ""z""",2,2\nx,5,6\n\nx,1,2\n"y, ""z""",2,2\n'
    told = [json.loads(line) for line in stream(folder, text, "--json")]
    assert told[6] == {"line": 8, "site": "x", "end": True}
    answers = [(one["site"], one["output"]) for one in told if "output" in one]
    y = expected(folder, [[0, -1], [2, 2], [2, 2]])
    assert answers == [
        ("x", wanted["x"][0]),
        ('y, "z"', y[0]),
        ("x", wanted["x"][1]),
        ("=1+1", wanted["=1+1"][0]),
        ('y, "z"', y[1]),
        ("x", wanted["x"][2]),
        ("x", wanted["x"][0]),
        ('y, "z"', y[2]),
    ]
    rows = list(csv.reader(stream(folder, text)))
    assert [row[0] for row in rows if row] == ["x", 'y, "z"', "x", "'=1+1", 'y, "z"', "x", "x", 'y, "z"']
    assert rows[6] == []
    named = saved(tmp_path / "labelled", labels=("left", "middle", "right"), inputs=("a", "b"), series="line")
    text = text.replace("site", "line")
    assert [line.split()[0] for line in stream(named, text)[:1]] == ["x"]
    told = [json.loads(line) for line in stream(named, text, "--json")]
    assert (told[0]["line"], told[0]["series"]) == (2, "x")  # "line" has its own meaning


def test_the_state_of_a_panel_has_each_series(tmp_path: Path, stream) -> None:
    folder, state = saved(tmp_path / "run", **INPUTS), tmp_path / "state"
    lines = ["site,b,a\n", "x,1,2\n", "y,3,4\n", "x,5,6\n", "z,1,1\n", "\n", "y,0,1\n", "z,2,2\n", "3,3\n", "x,1,2\n"]
    lines[8] = "z,3,3\n"
    whole = stream(folder, "".join(lines))
    for cut in range(1, len(lines)):
        state.unlink(missing_ok=True)
        parts = [stream(folder, "".join(part), "--state", str(state)) for part in (lines[:cut], lines[cut:])]
        assert parts[0] + parts[1] == whole, cut
    restored = plmu.Stream.restore(plmu.load(folder / "model.plmu"), state)
    assert restored.note["series"] == {"x": 3, "y": 2, "z": 2}
    assert restored.push([[1.0, 2.0]] * 3).shape == (3, 3)


def test_a_state_with_a_foreign_note_is_refused(tmp_path: Path, capsys) -> None:
    folder = saved(tmp_path / "run", inputs=("a", "b"))
    streaming = plmu.Stream(plmu.load(folder / "model.plmu"))
    streaming.push([1.0, 2.0])
    for note, message in (
        ({"offset": 7}, "was not saved by plmu stream: its note is {'offset': 7}"),
        ([1], "was not saved by plmu stream"),
        ({"series": ["x", 1], "header": None}, "was not saved by plmu stream"),
        ({"series": {}, "header": ["b"]}, "state: the header has no a"),
        ({"series": {"x": 1, "y": 2}, "present": "x"}, "state: it has 1 rows, for numbers of samples of [1, 2]"),
        ({"series": {"x": 0}, "present": "x"}, "state: it has 1 rows, for numbers of samples of [0]"),
    ):
        streaming.save(tmp_path / "state", note)
        assert plmu.Stream.restore(plmu.load(folder / "model.plmu"), tmp_path / "state").note == note
        assert message in refused(["stream", str(folder), "--state", str(tmp_path / "state")], capsys)


def test_many_series_take_time_in_proportion(tmp_path: Path) -> None:
    """The names of past series are looked up, not searched: each is compared with few others."""
    folder = saved(tmp_path / "run", inputs=("a", "b"), series="site")
    reading = LineStream(load(folder), Options())
    compared = 0

    class Name(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    for number in range(500):
        reading._turn_to(Name(number))
    assert compared < 2000


def test_lines_that_are_not_utf8_are_named_and_skipped(tmp_path: Path, stream, capsys, monkeypatch) -> None:
    folder, file = saved(tmp_path / "run"), tmp_path / "lines.csv"
    content = b"1,2\n1,2 caf\xe9\n3,4\n"
    file.write_bytes(content)
    wanted = expected(folder, [[1, 2], [3, 4]])
    message = "line 2: it is not UTF-8 (invalid continuation byte at byte 7 of the line)"
    for words in (["--input", str(file)], []):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
        main(["stream", str(folder), "--on-error", "skip", "--json", *words])
        out, err = capsys.readouterr()
        assert [found["output"] for found in map(json.loads, out.splitlines()) if "output" in found] == wanted
        assert err == f"plmu: {message}\n"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
        assert refused(["stream", str(folder), *words], capsys) == f"plmu: {message}"


def test_a_closed_standard_input_is_an_error(tmp_path: Path, capsys, monkeypatch) -> None:
    folder = saved(tmp_path / "run")
    monkeypatch.setattr("sys.stdin", None)  # as Python has it after `<&-`
    assert refused(["stream", str(folder)], capsys) == "plmu: standard input is closed: --input names a file"


@pytest.mark.parametrize(
    ("symbols", "text", "names"),
    [
        (Characters(tuple(" abc")), "ab c\ncab\n", ['"a"', '"b"', '" "', '"c"', '"c"', '"a"', '"b"']),
        (Bytes(), "é\n\n", ['""', '"é"', r'"\n"', r'"\n"']),
        (Words(("it", "is")), "It is\n\nwhat it", ["it", "is", "", "what", "it"]),
    ],
    ids=["characters", "bytes", "words"],
)
def test_language_models_say_how_likely_each_token_was(symbols, text, names, tmp_path: Path, stream) -> None:
    folder = saved_language(tmp_path / "run", symbols)
    lines = stream(folder, text)
    assert [line.split("  ", 1)[-1] for line in lines] == names
    told = [json.loads(line) for line in stream(folder, text, "--json")]
    model = plmu.load(folder / "model.plmu").eval()
    first = load(folder).tokens(text.split("\n")[0] + "\n", first=True)
    numbers = torch.tensor([[number for number, _ in first]])
    likely = model(numbers)[0].log_softmax(2)[0]
    wanted = [likely[t, numbers[0, t + 1]].exp().item() for t in range(numbers.shape[1] - 1)]
    assert [one["probability"] for one in told[: len(wanted)]] == pytest.approx(wanted, rel=1e-4)
    assert told[0]["bits"] == pytest.approx(-math.log2(told[0]["probability"]))
    assert float(lines[0].split()[0]) == pytest.approx(told[0]["probability"], abs=1e-6)  # it has six decimals


def test_a_character_that_the_model_does_not_know(tmp_path: Path, stream, capsys) -> None:
    folder = saved_language(tmp_path / "run", Characters(tuple(" abc")))
    assert len(stream(folder, "ab\naxb\nc\n", "--on-error", "skip")) == 3
    refusal = refused(["stream", str(folder), "--missing", "hold"], capsys)
    assert "--missing hold is for models of numbers" in refusal


def test_what_does_not_stream_says_why(tmp_path: Path) -> None:
    for experiment, model, message in [
        ("qqp", "plmu", "qqp compares pairs of texts, which are no stream"),
        ("snli", "deep", "snli compares pairs of texts, which are no stream"),
        ("iwslt", "lstm", "iwslt reads whole sentences, which are no stream: `plmu translate` translates them"),
        ("mackey-glass", "lstm", "the models plmu, lmu, lmu-single are steppable and saved, lstm is not"),
    ]:
        (tmp_path / "config.json").write_text(json.dumps({"experiment": experiment, "model": model}))
        with pytest.raises(RunError, match=message):
            load(tmp_path)
    with pytest.raises(RunError, match=r"no model at .*nowhere: expected the folder of a finished run"):
        load(tmp_path / "nowhere")


def test_tables_of_deployed_models_agree_with_the_experiments() -> None:
    """`deployed` has them as plain strings: it imports no experiment."""
    streamable = {name: lookup(name).streamable for name in CATALOGUE if lookup(name).streamable}
    assert {name: deployed.STEPPABLE[name] for name in streamable} == streamable
    for name, models in deployed.STEPPABLE.items():
        for model in models if name in CATALOGUE else ():
            expected = outputs_of(lookup(name), model)
            assert deployed._old_outputs(name, model) == expected, (name, model)


def test_names_of_outputs_are_of_the_experiment(tmp_path: Path) -> None:
    assert lookup("imdb").labels == ("negative", "positive")
    for name, model, known in [
        ("psmnist", "plmu", outputs.Outputs(tuple("0123456789"))),
        ("mackey-glass", "lmu", outputs.Outputs(ahead=15)),
        ("imdb", "scratch", outputs.Outputs(("negative", "positive"), start=(0,))),
    ]:
        assert outputs_of(lookup(name), model) == known
        outputs.write(tmp_path, known)
        assert outputs.read(tmp_path) == known
    old = saved(tmp_path / "old", 1, 10)  # of a version that did not write it
    (old / "outputs.json").unlink()
    (old / "config.json").write_text(json.dumps({"experiment": "psmnist", "model": "plmu"}))
    assert load(old).outputs.labels == tuple("0123456789")
    for damage in ("[]", '{"labels": [1], "ahead": 0, "start": []}', '{"labels": [], "ahead": -1, "start": []}'):
        (old / "outputs.json").write_text(damage)
        with pytest.raises(RunError, match=r"outputs\.json is damaged"):
            load(old)
    outputs.write(old, outputs.Outputs(("a", "b")))
    with pytest.raises(RunError, match="has 10 outputs for 2 classes"):
        load(old)


def test_one_output_of_tokens_has_no_labels_of_its_own(tmp_path: Path, stream) -> None:
    """Only a run says what its outputs mean: imdb's labels belong to imdb."""
    folder = saved_language(tmp_path / "run", Bytes())
    model = plmu.Sequential(nn.Embedding(256, 4), plmu.ParallelLMU(4, 4, order=2, theta=3.0), nn.Linear(4, 1))
    plmu.save(model, folder / "model.plmu")
    told = json.loads(stream(folder / "model.plmu", "ab", "--json")[0])
    assert set(told) == {"line", "token", "output"}
    (folder / "config.json").write_text(json.dumps({"experiment": "imdb", "model": "plmu"}))
    assert load(folder).outputs.labels == ("negative", "positive")


def test_signals_are_handled_as_before_once_the_stream_ends(tmp_path: Path, stream) -> None:
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(kind) for kind in kinds]
    try:
        assert len(stream(saved(tmp_path / "run"), "1,2\n")) == 1
        assert [signal.getsignal(kind) for kind in kinds] == before
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


def test_pipes_and_signals(tmp_path: Path) -> None:
    """Each answer comes before the next line is sent, and SIGTERM saves the state."""
    folder, state = saved(tmp_path / "run"), tmp_path / "state"
    command = [sys.executable, "-m", "plmu", "stream", str(folder), "--state", str(state), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        found = []
        for number in range(3):
            program.stdin.write(f"{number},1\n")
            program.stdin.flush()
            found.append(json.loads(program.stdout.readline())["output"])
        program.send_signal(signal.SIGTERM)
        assert (program.wait(60), program.stderr.read()) == (0, "")
    assert found == expected(folder, [[float(number), 1.0] for number in range(3)])
    assert plmu.Stream.restore(plmu.load(folder / "model.plmu"), state).steps == 3
