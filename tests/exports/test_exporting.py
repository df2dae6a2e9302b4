"""`plmu.export` and `plmu export`: what is written, what is refused, and that nothing is left half-written."""

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from exported import model_of
from program import refused
from torch import Tensor, nn

import plmu
from plmu import DelayLayer, ParallelLMU, Sequential
from plmu.cli.program import main
from plmu.experiments.mackey_glass import MackeyGlass
from plmu.exports import AccuracyWarning, exporting
from plmu.nn import LookbackForecast
from plmu.text.symbols import Characters, Words

SMALL = {"order": 4, "theta": 7.0}


class Doubled(nn.Module):
    per_step = True

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Misfit(Doubled):
    """Folds to what it is not."""

    def fold(self) -> plmu.folded.Stateless:
        return plmu.folded.Scale(torch.ones(4), None)


class Own(plmu.nn.Steppable):
    input_size = 3

    def forward(self, x: Any, state: Any = None, lengths: Any = None, *, resets: Any = None) -> Any:
        return x, None

    def step(self, x: Any, state: Any = None) -> Any:
        return x, None

    def initial_state(self, batch: int, dtype: Any, device: Any) -> Any:
        return None


def layer(**options: Any) -> ParallelLMU:
    return ParallelLMU(3, 4, **SMALL, **options)


def broken() -> ParallelLMU:
    made = layer()
    with torch.no_grad():
        made.memory_weight[0, 0] = torch.nan
    return made


@pytest.mark.parametrize("to", ["onnx", "c", "torch"])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Sequential(layer(), Doubled()), "Doubled cannot be exported: plmu does not know what it computes"),
        (lambda: Sequential(nn.Linear(3, 3), Own()), "Own cannot be exported"),
        (lambda: layer(output_activation=torch.sin), "the function sin cannot be exported: use one of elu, gelu"),
        (lambda: Sequential(nn.Tanh()), "the model does not say how many features it takes"),
        (lambda: plmu.Gated(nn.Linear(3, 5), nn.Linear(3, 1)), "gate must have as many outputs as module: got 1 and 5"),
        (lambda: plmu.Residual(nn.Linear(3, 1)), "Linear turned 3 features into 1, which must be equal"),
        (lambda: Sequential(nn.Linear(3, 1), Misfit()), "gives 4 numbers where 1 are expected"),
        (broken, "the model has infinite or NaN weights"),
        (lambda: layer().to("meta"), "model is on the meta device"),
        (lambda: plmu.Bidirectional(layer()), "Bidirectional"),
    ],
)
def test_what_cannot_be_exported_is_named(model: Any, message: str, to: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        plmu.export(model(), tmp_path / "out", to=to)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "tflite"}, "to must be one of onnx, torch, c, got 'tflite'"),
        ({"to": "torch", "int8": True}, "int8 is for onnx and c"),
        ({"int8": True, "fixed_point": True}, "fixed_point is for int8 weights in C"),
        ({"to": "c", "fixed_point": True}, "fixed_point is for int8 weights in C"),
        ({"to": "c", "whole": True}, "whole is for onnx and torch"),
        ({"name": "../x"}, "name must be a C name in small letters, such as 'model'; got '../x'"),
        ({"name": "2x"}, "name must be"),
        ({"metadata": {"states": 1}}, "metadata must not have states"),
        ({"metadata": {"dt": float("nan")}}, "metadata must be text or JSON"),
        ({"metadata": {"dt": object()}}, "metadata must be text or JSON"),
        ({"int8": True, "samples": torch.zeros(3)}, r"samples must have shape \(time, 3\), got \(3,\)"),
    ],
)
def test_wrong_arguments(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        plmu.export(layer(), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model must be steppable"):
        plmu.export(nn.Linear(3, 3), tmp_path / "out")
    with pytest.raises(TypeError, match="model must be steppable"):
        plmu.export("model", tmp_path / "out")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"path must be a folder, and .*file is a file"):
        plmu.export(layer(), file)
    with pytest.raises(OSError, match="Not a directory"):
        plmu.export(layer(), file / "below")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "mine"


def test_all_files_or_none(tmp_path: Path, monkeypatch: Any) -> None:
    """A disk that is full at the third file."""
    real, opened = exporting.replacing, []

    def full(path: Path) -> Any:
        opened.append(path)
        if len(opened) % 3:
            return real(path)
        return contextlib.nullcontext(tmp_path / "none" / "none")

    monkeypatch.setattr(exporting, "replacing", full)
    with pytest.raises(OSError, match="No such file"):
        plmu.export(layer(), tmp_path / "new", to="c")
    assert not list(tmp_path.iterdir())
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "model.h").write_text("mine")
    opened.clear()
    with pytest.raises(OSError, match="No such file"):
        plmu.export(layer(), tmp_path / "old", to="c")
    assert [one.name for one in (tmp_path / "old").iterdir()] == ["model.h"]
    assert (tmp_path / "old" / "model.h").read_text() == "mine"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_precisions_become_float32_and_the_model_stays(dtype: torch.dtype, tmp_path: Path) -> None:
    model = model_of("gated").to(dtype).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    files = [plmu.export(one, tmp_path / str(i), to="c").files for i, one in enumerate((model, model.float()))]
    assert files[0][1].read_text() == files[1][1].read_text()
    assert model.training
    assert all(torch.equal(before[name].float(), value) for name, value in model.state_dict().items())


def test_wrappers_are_removed_and_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    model = layer()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for to in ("onnx", "c"):
        one, other = plmu.export(model, tmp_path / "a", to=to), plmu.export(averaged, tmp_path / "b", to=to)
        assert [path.read_bytes() for path in one.files] == [path.read_bytes() for path in other.files]


def test_the_error_of_int8_is_measured_on_the_samples(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Sequential(ParallelLMU(2, 16, **SMALL), nn.Linear(16, 1))
    random, given = (
        plmu.export(model, tmp_path, to="c", int8=True, samples=one).int8_error
        for one in (None, torch.tensor([[0.5, -0.5]]).expand(100, 2))
    )
    assert random is not None
    assert given is not None
    assert random != given
    assert 0 < given < 0.05


def test_int8_that_grows_is_warned_of(tmp_path: Path) -> None:
    """The original LMU of Mackey-Glass feeds its rounded weights back; a parallel LMU does not."""
    torch.manual_seed(0)
    experiment: Any = MackeyGlass()
    model = experiment.build(experiment.defaults("lmu"), None)
    with pytest.warns(AccuracyWarning, match=r"by \d+ % on random inputs.* Rounding alone explains \d\.\d %"):
        written = plmu.export(model, tmp_path, int8=True)
    with pytest.warns(AccuracyWarning, match="on the given samples"):
        plmu.export(model, tmp_path, int8=True, samples=0.5 * torch.rand(200, 1))
    assert written.int8_error is not None
    assert written.int8_error > 0.1
    assert "warning: int8 weights change the outputs" in str(written)
    quiet = plmu.export(Sequential(ParallelLMU(1, 49, **SMALL), nn.Linear(49, 1)), tmp_path, int8=True)
    assert not quiet.notes
    exact = Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    for value in exact.parameters():
        nn.init.ones_(value)  # no rounding at all
    assert not plmu.export(exact, tmp_path, int8=True).notes


def test_a_layer_of_your_own_that_folds(tmp_path: Path) -> None:
    """To a kind that plmu knows."""

    class Tripled(Doubled):
        def fold(self) -> plmu.folded.Stateless:
            return plmu.folded.Scale(torch.full((4,), 3.0), None, dtype=torch.float32)

    first, second = (
        plmu.export(Sequential(layer_, one), tmp_path / str(i), to="c").files[1].read_text()
        for i, (layer_, one) in enumerate([(model_of("plain"), Tripled()), (model_of("plain"), nn.Identity())])
    )
    assert first != second


@pytest.mark.filterwarnings("ignore")  # of torch, about its own code
def test_formats_share_a_folder(tmp_path: Path) -> None:
    """Each describes its own files, whichever was written last."""
    model = LookbackForecast(1, horizon=4, order=5, theta=9.0, lookback=8, season=5)
    alone, together = tmp_path / "alone", tmp_path / "together"
    names: list[str] = []
    for to, options in (("c", {"int8": True}), ("torch", {}), ("onnx", {"metadata": {"units": "mV"}})):
        plmu.export(model, alone / to, to=to, **options)  # type: ignore[arg-type]
        plmu.export(model, together, to=to, **options)  # type: ignore[arg-type]
        names += [f"{to}/{path.name}" for path in (alone / to).iterdir()]
    for path in names:
        assert (together / path.split("/")[1]).read_bytes() == (alone / path).read_bytes()
    assert len(names) == len({path.split("/")[1] for path in names})
    about = {to: json.loads((together / f"model.{to}.json").read_text()) for to in exporting.FORMATS}
    assert {to: described["weights"] for to, described in about.items()} == {
        "onnx": "float32", "torch": "float32", "c": "int8",
    }  # fmt: skip
    assert {to: described["states"][1]["type"] for to, described in about.items()} == {
        "onnx": "float64", "torch": "int64", "c": "float64",
    }  # fmt: skip


# ---------------------------------------------------------------- the command


@pytest.fixture
def quick(monkeypatch: Any) -> None:
    monkeypatch.setattr("plmu.exports.measure.SECONDS", 0.001)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    plmu.save(Sequential(layer(), nn.Linear(4, 2)), folder / "model.plmu")
    (folder / "config.json").write_text('{"experiment": "psmnist", "model": "plmu"}')
    (folder / "outputs.json").write_text('{"labels": ["no", "yes"], "ahead": 0, "start": []}')
    return folder


def test_the_command_writes_files_and_prints_figures(run_folder: Path, tmp_path: Path, quick: Any, capsys: Any) -> None:
    out = tmp_path / "out"
    main(["export", str(run_folder), "--out", str(out), "--whole", "--units", "mV", "--dt", "0.01"])
    said = capsys.readouterr().out
    assert {one.name for one in out.iterdir()} == {"model_step.onnx", "model.onnx", "model.onnx.json"}
    assert "multiply-adds per step  64" in said  # (4 + 4) · (4 + 3) and 2 · 4
    assert re.search(r"time per step, ONNX Runtime  [\d.]+ µs", said)
    assert re.search(r"time per step, plmu.Stream  [\d.]+ µs", said)
    metadata = {one.key: one.value for one in onnx.load(out / "model_step.onnx").metadata_props}
    assert (metadata["units"], metadata["dt"], metadata["experiment"]) == ("mV", "0.01", "psmnist")
    assert json.loads(metadata["classes"]) == ["no", "yes"]


def test_the_command_for_c(run_folder: Path, tmp_path: Path, quick: Any, capsys: Any) -> None:
    out = tmp_path / "out"
    options = ["--int8", "--fixed-point", "--name", "net"]
    main(["export", str(run_folder / "model.plmu"), "--to", "c", "--out", str(out), *options])
    said = capsys.readouterr().out
    assert {one.name for one in out.iterdir()} == {"net.c", "net.h", "net_check.c", "net.c.json", "Makefile"}
    assert re.search(r"flash for weights  \d+ bytes\nRAM  \d+ bytes: state 16, work area \d+\n", said)
    assert re.search(r"relative error of outputs by int8 weights  \d.\d\de-\d\d\n", said)
    assert re.search(r"relative error by int8 weights and fixed-point sums  \d.\d\de-\d\d\n", said)
    assert json.loads((out / "net.c.json").read_text())["classes"] == ["no", "yes"]


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        (Characters(" ab"), {"symbols": "characters", "alphabet": " ab"}),
        (Words(("good",)), {"symbols": "words", "vocabulary": '["good"]', "first_word": "2"}),
    ],
)
def test_symbols_travel_along(symbols: Any, expected: Any, tmp_path: Path, quick: Any, capsys: Any) -> None:
    plmu.save(Sequential(nn.Embedding(3, 2), DelayLayer(2, **SMALL)), tmp_path / "model.plmu")
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "has no symbols.json or vocabulary.txt" in capsys.readouterr().err
    for name, content in symbols.companions().items():
        (tmp_path / name).write_text(content)
    main(["export", str(tmp_path), "--out", str(tmp_path / "out")])
    metadata = {one.key: one.value for one in onnx.load(tmp_path / "out" / "model_step.onnx").metadata_props}
    assert expected.items() <= metadata.items()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export"], "the following arguments are required: run"),
        (["export", "nowhere"], "no model at nowhere: expected the folder of a finished run"),
        (["export", "x", "--to", "onx"], "there is no 'onx': it is one of onnx, torch, c; did you mean 'onnx'?"),
        (["export", "RUN", "--to", "c", "--name", "a-b"], "name must be a C name"),
        (["export", "RUN", "--out", "RUN/model.plmu"], "path must be a folder"),
        (["export", "RUN", "--out", "/dev/null/x"], "Not a directory"),
        (["export", "RUN", "--dt", "nan"], "metadata must be text or JSON"),
    ],
)
def test_wrong_uses_of_the_command(
    words: list[str], message: str, run_folder: Path, tmp_path: Path, quick: Any, capsys: Any
) -> None:
    given = [word.replace("RUN", str(run_folder)) for word in words]
    given += ["--out", str(tmp_path / "out")] if "--out" not in words and len(words) > 1 else []
    assert message in refused(given, capsys)
    assert not (tmp_path / "out").exists()


def test_damaged_files_beside_the_model(run_folder: Path, tmp_path: Path, capsys: Any) -> None:
    (run_folder / "config.json").write_text("[")
    words = ["export", str(run_folder), "--out", str(tmp_path / "out")]
    assert "config.json is damaged" in refused(words, capsys)
    assert not (tmp_path / "out").exists()


def test_without_onnx_the_way_out_is_named(run_folder: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "plmu.exports.onnx_model", raising=False)
    monkeypatch.delattr("plmu.exports.onnx_model", raising=False)
    words = ["export", str(run_folder), "--out", str(tmp_path / "out")]
    assert "onnx is missing, which the program needs: pip install '.[export]' in a clone of plmu" in refused(
        words, capsys
    )
    assert not (tmp_path / "out").exists()
