"""Exported C in other programs: C++, WebAssembly; what it says of its outputs, and names with any characters."""

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from closeness import within
from ctested import STRICT, CModel, compiled
from exported import TOLERANCE, model_of, program
from test_c import needs_compiler
from test_forecast_export import model_of as forecast_of
from torch import nn

import plmu
from plmu.exports.c_files import c_files
from plmu.exports.c_outputs import comment, literal

CXX = shutil.which("g++") or shutil.which("c++")
ODD = [
    'quo"te', "back\\slash", "*/ int x; /*", "/*", "new\nline\r", "??/", "??/\n*??//", "\x1b[31mred",
    "é ☃ \U0001f600", "", "\x00",
    "%s%n", "</script>", "'", "a*", "/", "\\", "\x7f\x80", "#define X", "1\u2028\u202e2",
]  # fmt: skip


def classifier(count: int, *more: nn.Module) -> Any:
    torch.manual_seed(0)
    return plmu.Sequential(plmu.ParallelLMU(2, 4, order=3, theta=5.0), nn.Linear(4, count), *more).eval()


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
@needs_compiler
@pytest.mark.parametrize("source", ["in C", "in C++"])
def test_a_program_in_cpp(source: str, tmp_path: Path) -> None:
    """Linked with the model that a compiler of C or C++ made."""
    model = classifier(3)
    plmu.export(model, tmp_path, to="c", metadata={"classes": ["a", "b", "c"]})
    (tmp_path / "main.cpp").write_text("""
#include "model.h"
#include <cstdio>
int main()
{
    static model_state state;
    float x[MODEL_INPUTS] = {0.5f, -1.0f}, y[MODEL_OUTPUTS], probabilities[MODEL_CLASSES];
    model_init(&state);
    model_step(&state, x, y);
    model_softmax(y, probabilities);
    for (int i = 0; i < MODEL_CLASSES; i++)
        std::printf("%s %.9g\\n", model_classes[i], static_cast<double>(probabilities[i]));
    return 0;
}
""")
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-O1"]
    if source == "in C":
        subprocess.run([*commands("cc"), *STRICT.split(), "-c", "model.c"], cwd=tmp_path, check=True, timeout=60)
    else:
        subprocess.run([str(CXX), *strict, "-x", "c++", "-c", "model.c"], cwd=tmp_path, check=True, timeout=60)
    subprocess.run([str(CXX), *strict, "-o", "main", "main.cpp", "model.o"], cwd=tmp_path, check=True, timeout=60)
    ran = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    words = ran.stdout.split()
    assert words[::2] == ["a", "b", "c"]
    expected = plmu.fold(model).step(torch.tensor([[0.5, -1.0]]))[0][0].softmax(0)
    torch.testing.assert_close(torch.tensor([float(word) for word in words[1::2]]), expected, rtol=0, atol=1e-5)


def commands(name: str) -> list[str]:
    from plmu.exports.measure import compiler

    return [str(compiler())] if name == "cc" else [name]


WASM = """
const fs = require("fs");
WebAssembly.instantiate(fs.readFileSync("model.wasm"), {}).then(({instance}) => {
    const {memory, model_init, model_step, __heap_base} = instance.exports, at = __heap_base.value;
    const x = new Float32Array(memory.buffer, at, 3), y = new Float32Array(memory.buffer, at + 16, 4);
    model_init(at + 64);
    for (let i = 0; i < 5; i++) {
        x.set([0.1 * i, -0.2, 0.3]);
        model_step(at + 64, at, at + 16);
    }
    console.log([...y].join(" "));
});
"""


@pytest.mark.skipif(not all(map(shutil.which, ("clang", "wasm-ld", "node"))), reason="no clang for wasm32, or no node")
def test_webassembly(tmp_path: Path) -> None:
    """By the command of docs/deploy.md: no header of a system, no import."""
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^clang --target=wasm32 .*$", page, re.MULTILINE)
    model = model_of("functions")
    plmu.export(model, tmp_path, to="c")
    command = command.replace("deploy/", "")
    subprocess.run([*command.split(), "-Wl,--export=__heap_base", "-Werror"], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "run.js").write_text(WASM)
    ran = subprocess.run(["node", "run.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    folded, state = plmu.fold(model), None
    for i in range(5):
        expected, state = folded.step(torch.tensor([[0.1 * i, -0.2, 0.3, 0.0]])[:, : program(model).x.size], state)
    found = torch.tensor([[float(word) for word in ran.stdout.split()]])[:, : expected.shape[1]]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max())))


def strings(library: Any, name: str, count: int) -> list[bytes]:
    return list((ctypes.c_char_p * count).in_dll(library, name))


@needs_compiler
@pytest.mark.parametrize("last", [(), (nn.LogSoftmax(-1),)], ids=["logits", "logarithms"])
def test_classes_have_names_and_probabilities(last: Any, tmp_path: Path) -> None:
    model = classifier(3, *last)
    plmu.export(model, tmp_path, to="c", name="net", metadata={"classes": ["no", "ja", "é"]})
    library = compiled(tmp_path, "net")
    assert strings(library, "net_classes", 3) == [b"no", b"ja", "é".encode()]
    y = CModel(library, program(model), "net")(torch.tensor([[1.0, 2.0]]))
    probabilities = torch.zeros(1, 3)
    library.net_softmax(*(ctypes.c_void_p(value.data_ptr()) for value in (y, probabilities)))
    torch.testing.assert_close(probabilities, y.softmax(1))
    library.net_softmax(*(ctypes.c_void_p(y.fill_(torch.nan).data_ptr()), ctypes.c_void_p(probabilities.data_ptr())))
    assert probabilities.isnan().all()
    header = (tmp_path / "net.h").read_text()
    assert "#define NET_CLASSES 3\n" in header
    assert "y is a logit for each of net_classes, the largest of which is\n * the likeliest: net_softmax" in header


@needs_compiler
def test_the_logit_of_the_second_of_two_classes(tmp_path: Path) -> None:
    model = classifier(1)
    plmu.export(model, tmp_path, to="c", metadata={"classes": ["negative", "positive"]})
    library = compiled(tmp_path, "model")
    y, probabilities = torch.tensor([1.5]), torch.zeros(2)
    library.model_softmax(*(ctypes.c_void_p(value.data_ptr()) for value in (y, probabilities)))
    torch.testing.assert_close(probabilities, torch.tensor([-1.5, 1.5]).sigmoid())
    assert "y is the logit of model_classes[1], of two: model_softmax" in (tmp_path / "model.h").read_text()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (classifier(3, nn.Softmax(-1)), "y is the probability of each of model_classes."),
        (classifier(1, nn.Sigmoid()), "y is the probability of model_classes[1], of two."),
    ],
)
def test_probabilities_are_not_made_twice(model: Any, said: str) -> None:
    names = ["a", "b", "c"][: 3 if program(model).y.size == 3 else 2]
    files, _ = c_files(program(model), "model", {"classes": names}, False)
    assert said in files["model.h"]
    assert "model_softmax" not in files["model.h"] + files["model.c"]


def test_classes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for count, names in ((2, ["a", "b", "c"]), (1, ["a"] * 3), (3, ["a", "b"]), (2, ["a"])):
        with pytest.raises(
            ValueError, match=f"metadata classes has {len(names)} names, and the model has {count} outputs"
        ):
            plmu.export(classifier(count), tmp_path / "out", to="c", metadata={"classes": names})
    assert not (tmp_path / "out").exists()
    plmu.export(classifier(3), tmp_path, to="c", metadata={"classes": {"a": 1}})  # something else of the same name
    assert "MODEL_CLASSES" not in (tmp_path / "model.h").read_text()


@needs_compiler
def test_columns_and_units_of_a_forecast(tmp_path: Path) -> None:
    """Two columns and a covariate."""
    torch.manual_seed(0)
    model = plmu.nn.CovariateForecast(
        2, covariates=1, horizon=3, order=3, theta=5.0, lookback=6, lags=2, lag_order=1
    ).eval()
    columns = ["a", "b", "c", "c +1", "c +2", "c +3"]
    metadata = {"columns": columns, "forecast_columns": ["a", "b"], "horizon": 3, "units": "mV */ per ??/ s"}
    plmu.export(model, tmp_path, to="c", metadata=metadata)
    library, header = compiled(tmp_path, "model"), (tmp_path / "model.h").read_text()
    assert strings(library, "model_columns", 6) == [name.encode() for name in columns]
    assert strings(library, "model_forecast_columns", 2) == [b"a", b"b"]
    assert "x is MODEL_INPUTS numbers by the names model_columns.\n" in header
    assert "y is the forecast, in mV * / per ? ?/ s: y[i * MODEL_FORECAST_COLUMNS + j] is column\n" in header
    assert " * j of model_forecast_columns, i + 1 steps ahead.\n" in header
    files, _ = c_files(program(model_of("plain")), "net", {"steps_ahead": 15, "columns": ["u", "v", "w"]}, False)
    assert "y is NET_OUTPUTS numbers, which predict x 15 steps ahead.\n" in files["net.h"]
    assert "extern const char *const net_columns[NET_COLUMNS];" in files["net.h"]


@needs_compiler
def test_any_name_is_a_name(tmp_path: Path) -> None:
    """As data: in C nothing else than an array of strings, in JSON and ONNX the same text."""
    names, model = [*ODD, "last"], classifier(len(ODD) + 1)
    metadata: dict[str, Any] = {
        "classes": names,
        "columns": ODD[:2],
        "units": ODD[6],
        **{f"note {name}": name for name in ODD},
    }
    plmu.export(model, tmp_path, to="c", metadata=metadata)
    texts = [name.encode().split(b"\0")[0] for name in names]  # C ends a string there
    library = compiled(tmp_path, "model")
    assert strings(library, "model_classes", len(names)) == texts
    header = (tmp_path / "model.h").read_text()
    assert header.isascii()
    assert header.isprintable() or set(header) - set(map(chr, range(32, 127))) == {"\n"}
    assert header.count("*/") == header.count("/*")
    source = (tmp_path / "model.c").read_text()
    assert source.isascii()
    assert "??" not in header + source
    content = json.loads((tmp_path / "model.c.json").read_text(encoding="ascii"))
    assert metadata.items() <= content.items()
    plmu.export(model, tmp_path, metadata=metadata)
    stored = {item.key: item.value for item in onnx.load(tmp_path / "model_step.onnx").metadata_props}
    assert json.loads(stored["classes"]) == names
    assert all(stored[f"note {name}"] == name for name in ODD)
    assert metadata.items() <= json.loads((tmp_path / "model.onnx.json").read_text(encoding="ascii")).items()


@pytest.mark.parametrize("to", ["c", "onnx", "torch"])
def test_text_that_is_not_unicode_is_refused(to: str, tmp_path: Path) -> None:
    for metadata in ({"units": "\udcff"}, {"classes": ["\udcff"] * 3}, {"\udcff": 1}):
        with pytest.raises(ValueError, match="metadata must be text or JSON"):
            plmu.export(classifier(3), tmp_path / "out", to=to, metadata=metadata)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ODD)
def test_comments_and_literals(text: str) -> None:
    inside = comment(text)
    assert inside.isascii()
    assert not any(bad in f" * {inside}\n" for bad in ("*/", "/*", "??", "\\\n", "*\n"))
    written = literal(text)
    assert written.isascii()
    decoded = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), written[1:-1].encode())
    assert decoded == text.encode()
    assert not re.search(r'["?]|\\(?![0-7]{3})', written[1:-1])


@needs_compiler
def test_a_stream_starts_at_any_step_of_a_season(tmp_path: Path) -> None:
    """Also at steps far away, before the first one of the data, and after other samples."""
    model = forecast_of("season").requires_grad_(False)
    plmu.export(model, tmp_path, to="c")
    library = compiled(tmp_path, "model")
    stream = CModel(library, program(model))
    for step in (0, 1, 4, 5, 1_000_003, -1, -7):
        stream(torch.ones(1, 1))
        library.model_start(stream.state, ctypes.c_int64(step))
        state = model.state_at(step)
        for x in torch.randn(9, 1, 1):
            expected, state = model.step(x, state)
            within(float((stream(x) - expected).abs().max()) / max(1.0, float(expected.abs().max())), TOLERANCE)
