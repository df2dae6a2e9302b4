"""`plmu bench`: answers are checked first, and what is measured is written down."""

import json
from pathlib import Path

import pytest
import torch
from closeness import within

import plmu
from plmu.bench import algorithms, complexity, layers, measure, problems, run, streaming, training_time
from plmu.cli.program import COMMANDS

TINY = problems.Shape(2, 20, 4, 3, 2, 5.0)


def test_medians_take_all_candidates() -> None:
    found = measure.medians({"a": lambda: None, "b": lambda: torch.ones(3)}, rounds=3, least=1e-4)
    assert set(found) == {"a", "b"}
    assert all(0 < seconds < 1 for seconds in found.values())


def test_ratios_are_of_the_same_round() -> None:
    times = measure.Times({"a": [2.0, 20.0, 200.0], "b": [1.0, 10.0, 400.0]})
    assert times.ratio("a", "b") == 2.0
    assert times.medians() == {"a": 20.0, "b": 10.0}


def test_algorithms() -> None:
    row = algorithms.over_the_gemm(TINY, torch.float32, "cpu", 1)
    assert row["over the GEMM, both"]["auto"] > 0
    assert row["times faster than the FFT, both"] > 0
    assert set(row["milliseconds forward"]) == {"auto", "chunked", "FFT", "GEMM"}
    within(max(row["error"].values()), 1e-5)
    chosen = algorithms.choice(TINY, torch.float32, "cpu", 1)
    assert chosen["best"] in ("fft", "chunked", "toeplitz", "recurrent")


def test_there_is_one_set_of_shapes_and_one_fft_baseline() -> None:
    root = Path(__file__).parents[2]
    for path in [*(root / "benchmarks").glob("*.py"), *(root / "src" / "plmu" / "bench").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        for unique in ("class Shape", "torch.fft.", "Shape(8, 180,"):
            assert (unique in text) == (path.name == "problems.py"), (path, unique)


def test_every_row_is_kept_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "CPU_SHAPES", (TINY,))
    monkeypatch.setattr(algorithms, "CPU_SHAPES", (TINY,))
    monkeypatch.setattr(algorithms, "CPU_CHOICES", (("project", TINY), ("states", TINY)))
    monkeypatch.setattr(layers, "tokens_per_second", lambda *given: {"time": given[0]})
    names = (["whole layers", "length"], ["over the GEMM", "auto against every algorithm"])
    for kind, tables in zip((layers, algorithms), names, strict=True):
        kept: list[int] = []
        found = kind.run("cpu", 1, lambda tables, kept=kept: kept.append(sum(map(len, tables.values()))))
        assert list(found) == tables
        assert kept == list(range(1, sum(map(len, found.values())) + 1))
    assert [row["shape"] for row in found["auto against every algorithm"]] == [str(TINY)]


def test_a_wrong_answer_is_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = problems.Problem.project

    def wrong(self: problems.Problem, algorithm: str):
        return lambda: right(self, algorithm)() * (1.1 if algorithm == "chunked" else 1.0)

    monkeypatch.setattr(problems.Problem, "project", wrong)
    with pytest.raises(RuntimeError, match=r"wrong answers at b2 n20 .*: chunked 1\.0e-01"):
        algorithms.over_the_gemm(TINY, torch.float32, "cpu", 1)


def test_complexity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity, "ENOUGH", {"cpu": 0.0})
    monkeypatch.setattr(complexity, "MOST", {"cpu": 0})
    monkeypatch.setattr(complexity, "LAYERS", complexity.LAYERS[2:6:3])
    found = complexity.run("cpu", 1)
    assert [(row["layer"], row["size"]) for row in found["growth"]] == [
        ("attention", "n"), ("attention", "d_x"),
        ("DN, final state (eq. 25)", "n"), ("DN, final state (eq. 25)", "d"), ("DN, final state (eq. 25)", "d_x"),
    ]  # fmt: skip
    assert all(len(row["points"]) == 3 for row in found["growth"])
    assert found["base"] == {"batch": 2, "n": 256, "d": 8, "d_x": 64}
    assert all(row["points"][0]["size"] == found["base"][row["size"]] for row in found["growth"])
    assert complexity.slope([(2, 1.0), (4, 3.9), (8, 16.0)]) == pytest.approx(2.0)


def test_complexity_checks_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = complexity.Layer("DN, wrong", "", {"n": 1}, lambda sizes, device: lambda: torch.zeros(2, 40, 6, 3))
    with pytest.raises(AssertionError):
        complexity.check(wrong)


def test_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for experiment, model, algorithm in (("psmnist", "plmu", "recurrent"), ("mackey-glass", "plmu", "auto")):
        (kind, seconds) = training_time.step_times(experiment, model, algorithm, 130, 2, "cpu", 1).popitem()
        assert kind == "eager"  # there are no graphs on a CPU
        assert seconds > 0
    monkeypatch.setattr(plmu.ops.recurrent, "states", lambda *given: torch.zeros(2, 160, 468, 1))
    with pytest.raises(RuntimeError, match="psmnist: step by step the loss is"):
        training_time.check("psmnist", "plmu", "recurrent")


def test_streamed_models_have_the_outputs_of_their_experiments() -> None:
    outputs = [
        plmu.Stream(model).push(torch.zeros(300 if "300 channels" in name else 1)).numel()
        for name, model in streaming.models().items()
    ]
    assert outputs == [346, 1, 2, 212]


def test_the_command_writes_figures_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "copy_bandwidth", lambda device: 1e9)
    small = {"a small model": plmu.ParallelLMU(1, 3, order=4, theta=7.0)}
    monkeypatch.setattr(streaming, "models", lambda: small)
    COMMANDS["bench"](["streaming", "--rounds", "1", "--out", str(tmp_path / "new")])
    found = json.loads((tmp_path / "new" / "bench-streaming-cpu.json").read_text())
    assert found["benchmark"] == "streaming"
    assert found["command"] == "plmu bench streaming --device cpu --rounds 1"
    assert found["machine"]["hardware"]
    assert found["machine"]["source"].split()[0] in ("commit", "source")
    assert [row["model"] for row in found["steps"]] == ["a small model", "torch LSTM on psMNIST: 200 units"]
    assert (tmp_path / "new" / "bench-streaming-cpu.png").stat().st_size > 1000
    assert "a small model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["speed"], "there is no 'speed': it is one of layers, algorithms, training-time, complexity, streaming"),
        (["layer"], "did you mean 'layers'?"),
        (["layers", "--rounds", "0"], "--rounds must be at least 1, got 0"),
        pytest.param(
            ["layers", "--device", "cuda"],
            "--device cuda: there is no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_uses(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        COMMANDS["bench"](words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
