"""C sources: they compile without a warning, and give what the model gives."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import within
from exported import NAMES, model_of, program
from torch import nn

import plmu
from plmu.exports.c_code import Code, number
from plmu.exports.c_files import TOLERANCE, c_files, expected_outputs, sequence
from plmu.exports.c_memory import Memory
from plmu.exports.evaluate import Evaluator
from plmu.exports.measure import compiler
from plmu.exports.program import Remember, Split, fixed_limit
from plmu.exports.rounding import Rounding

STRICT = "-std=c99 -Wall -Wextra -Wconversion -pedantic -Werror"
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler")


def run_check(folder: Path, flags: str = "-O1", cc: str | None = None) -> str:
    """What the check program of an export says; it fails for a warning and for a wrong output."""
    command = ["make", "-s", "check", f"CC={cc or compiler()}", f"CFLAGS={STRICT} {flags}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


KINDS: dict[str, dict[str, bool]] = {"float": {}, "int8": {"int8": True}, "fixed": {"int8": True, "fixed_point": True}}
anyhow = pytest.mark.filterwarnings("ignore:int8 weights change")


def write(folder: Path, model: Any, kind: str = "float") -> plmu.exports.Exported:
    return plmu.export(model, folder, to="c", **KINDS[kind])  # type: ignore[arg-type]


def check_closely(folder: Path) -> None:
    """The check, whose bound is to hold with room."""
    error, allowed = re.findall(r"(?:error|allowed) ([\d.e+-]+)", run_check(folder, "-O0"))
    within(float(error), float(allowed) / 2)


@needs_compiler
@anyhow
@pytest.mark.parametrize(("name", "kind"), [(name, list(KINDS)[i % 3]) for i, name in enumerate(NAMES)])
def test_every_model_compiles_and_agrees(name: str, kind: str, tmp_path: Path) -> None:
    write(tmp_path, model_of(name), kind)
    check_closely(tmp_path)


@needs_compiler
@anyhow
@pytest.mark.parametrize("kind", KINDS)
def test_the_check_allows_for_what_a_model_amplifies(kind: str, tmp_path: Path) -> None:
    """Differences of numbers 1,000 times as large, which float32 rounds to 6e-5; and how far a model moves that."""
    model = plmu.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    nn.init.constant_(model[0].bias, 1000.0)
    write(tmp_path, model, kind)
    check_closely(tmp_path)
    plain, amplified = (expected_outputs(program(one), False) for one in (plmu.Sequential(model[0]), model))
    assert plain[1] == TOLERANCE < amplified[1]


@pytest.mark.parametrize("name", ["plain", "gated", "functions", "letters with attention", "stack"])
def test_copies_of_a_stream_err_as_float32_does(name: str) -> None:
    """Not by far more, with which a check would find nothing."""
    made = program(model_of(name))
    narrow, copies = Evaluator(made), Rounding(made)
    errors, moved = [], []
    for x in sequence(made, 40):
        outputs = copies.step(x[None])
        errors.append(float((narrow.step(x[None]) - outputs[0]).abs().max()))
        moved.append(float((outputs[1:] - outputs[0]).abs().max()))
    assert max(moved) > 0
    within(max(errors), 2 * max(moved))
    assert max(moved) < 100 * max(errors)


@needs_compiler
def test_one_makefile_checks_all_models_of_a_folder(tmp_path: Path) -> None:
    plmu.export(model_of("plain"), tmp_path, to="c", name="first")
    plmu.export(model_of("gated"), tmp_path, to="c", name="second")
    assert run_check(tmp_path).count("relative error") == 2
    source = tmp_path / "first.c"
    source.write_text(
        re.sub(r"(float constant_\d+\[\d+\] = \{\n    )[^,]+,", r"\g<1>0.9f,", source.read_text(), count=1)
    )
    assert subprocess.run(["make", "-s", "check"], cwd=tmp_path, capture_output=True, timeout=60).returncode != 0
    assert subprocess.run(["make", "-s", "second.o"], cwd=tmp_path, timeout=60).returncode == 0
    assert (tmp_path / "second.o").exists()


def test_an_export_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    model, state = model_of("plain"), torch.get_rng_state()
    write(tmp_path, model, "fixed")
    assert torch.equal(torch.get_rng_state(), state)


@needs_compiler
def test_over_a_thousand_steps(tmp_path: Path, check_steps: pytest.MonkeyPatch) -> None:
    check_steps.setattr("plmu.exports.c_files.CHECK_STEPS", 1000)
    write(tmp_path, model_of("gated"))
    assert run_check(tmp_path).startswith("1000 steps")


@needs_compiler
@anyhow
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_read_or_written_out_of_bounds(name: str, kind: str, tmp_path: Path) -> None:
    write(tmp_path, model_of(name), kind)
    run_check(tmp_path, "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all")


@pytest.mark.skipif(shutil.which("clang") is None, reason="no clang")
@pytest.mark.parametrize(("name", "kind"), [("functions", "float"), ("block: memory, selective", "fixed")])
def test_under_clang(name: str, kind: str, tmp_path: Path) -> None:
    write(tmp_path, model_of(name), kind)
    run_check(tmp_path, "-O2", "clang")


@needs_compiler
@pytest.mark.parametrize(("kind", "numbers", "wrong"), [("float", "float", "0.9f"), ("fixed", "int8_t", "9")])
def test_the_check_fails_for_a_wrong_weight(kind: str, numbers: str, wrong: str, tmp_path: Path) -> None:
    write(tmp_path, model_of("plain"), kind)
    source = (tmp_path / "model.c").read_text()
    pattern = rf"({numbers} constant_\d+\[\d+\] = \{{\n    )[^,]+,"
    changed = re.sub(pattern, rf"\g<1>{wrong},", source, count=1)
    assert changed != source
    (tmp_path / "model.c").write_text(changed)
    done = subprocess.run(["make", "-s", "check"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "relative error" in done.stdout


@pytest.mark.parametrize("name", ["plain", "original", "letters"])
def test_expected_outputs_are_those_of_a_stream(name: str) -> None:
    model = model_of(name)
    made = program(model)
    stream = plmu.Stream(model)
    expected, _ = expected_outputs(made, int8=False)
    found = torch.stack([stream.push(x) for x in sequence(made, len(expected))])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max())))
    assert len(expected) == 60


def test_a_chaotic_model_is_compared_as_long_as_rounding_allows(check_steps: pytest.MonkeyPatch) -> None:
    check_steps.setattr("plmu.exports.c_files.CHECK_STEPS", 400)
    model = model_of("original")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    assert 60 < len(expected_outputs(program(model), int8=False)[0]) < 400


@needs_compiler
def test_a_token_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, plmu.Sequential(nn.Embedding(9, 3), plmu.DelayLayer(3, order=2, theta=5.0)))
    (tmp_path / "try.c").write_text("""
#include "model.h"
#include <stdio.h>
int main(void)
{
    static model_state one, other;
    float y[MODEL_OUTPUTS];
    int32_t good = 8, bad[] = {-1, 9, 2147483647, -2147483647};
    int i, same = 1;
    unsigned long k;
    model_init(&one);
    model_init(&other);
    for (i = 0; i < 4; i++)
        if (model_step(&one, &bad[i], y) != -1)
            return 1;
    if (model_step(&one, &good, y) != 0 || model_step(&other, &good, y) != 0)
        return 2;
    for (k = 0; k < sizeof one.memory / sizeof one.memory[0]; k++)
        same &= one.memory[k] == other.memory[k];
    return same ? 0 : 3;
}
""")
    subprocess.run([str(compiler()), "-o", "try", "model.c", "try.c", "-lm"], cwd=tmp_path, check=True, timeout=60)
    assert subprocess.run(["./try"], cwd=tmp_path, timeout=60).returncode == 0


@needs_compiler
def test_missing_values_and_a_stream_that_starts_again(tmp_path: Path) -> None:
    model = plmu.ParallelLMU(2, 3, order=4, theta=7.0, missing="hold")
    write(tmp_path, model)
    (tmp_path / "try.c").write_text("""
#include "model.h"
#include <stdio.h>
int main(void)
{
    static model_state state;
    float x[2], y[MODEL_OUTPUTS];
    model_init(&state);
    while (scanf("%f %f", &x[0], &x[1]) == 2) {
        if (x[0] == 9.0f) {
            model_init(&state);
            continue;
        }
        model_step(&state, x, y);
        printf("%.9g %.9g %.9g\\n", (double)y[0], (double)y[1], (double)y[2]);
    }
    return 0;
}
""")
    subprocess.run([str(compiler()), "-o", "try", "model.c", "try.c", "-lm"], cwd=tmp_path, check=True, timeout=60)
    text = "nan 1\n0.5 nan\nnan nan\n9 9\nnan 0.25\n"
    ran = subprocess.run(["./try"], cwd=tmp_path, input=text, capture_output=True, text=True, timeout=60)
    found = torch.tensor([[float(word) for word in line.split()] for line in ran.stdout.splitlines()])
    nan = float("nan")
    folded, state, expected = plmu.fold(model), None, []
    for row in ([nan, 1.0], [0.5, nan], [nan, nan], None, [nan, 0.25]):
        if row is None:
            state = None
            continue
        y, state = folded.step(torch.tensor([row]), state)
        expected.append(y[0])
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-5)


@needs_compiler
def test_fixed_point_sums_do_not_overflow_and_nan_stays(tmp_path: Path) -> None:
    """The largest sum that there can be: all weights and inputs alike. The sanitizer fails for an overflow."""
    count = 700  # for which int16 numbers up to 32767 would be too large
    assert 127 * count * fixed_limit(count) < 2**31 <= 127 * count * (fixed_limit(count) + 1)
    model = plmu.Sequential(nn.Linear(count, 2, bias=False))
    nn.init.ones_(model[0].weight)
    write(tmp_path, model, "fixed")
    (tmp_path / "try.c").write_text("""
#include "model.h"
#include <math.h>
int main(void)
{
    static model_state state;
    static float x[MODEL_INPUTS];
    float y[MODEL_OUTPUTS];
    int i;
    model_init(&state);
    model_step(&state, x, y);
    if (y[0] != 0.0f)
        return 1;
    for (i = 0; i < MODEL_INPUTS; i++)
        x[i] = -2.0f;
    model_step(&state, x, y);
    if (!(fabsf(y[0] + 2.0f * MODEL_INPUTS) < 0.01f))
        return 2;
    x[3] = NAN;
    model_step(&state, x, y);
    if (!isnan(y[0]))
        return 3;
    x[3] = INFINITY;
    model_step(&state, x, y);
    return isfinite(y[1]) ? 4 : 0;
}
""")
    flags = ["-fsanitize=undefined", "-fno-sanitize-recover=all", "-o", "try", "model.c", "try.c", "-lm"]
    subprocess.run([str(compiler()), *flags], cwd=tmp_path, check=True, timeout=60)
    assert subprocess.run(["./try"], cwd=tmp_path, timeout=60).returncode == 0


@pytest.mark.parametrize("name", NAMES)
def test_no_two_living_values_share_memory(name: str) -> None:
    """A run of the plan with every number marked by who wrote it: what is read is what was written."""
    made = program(model_of(name))
    memory = Memory(made)

    def cells(value: Any) -> list[tuple[Any, int]]:
        place = memory.places[value]
        root = place.buffer.name or ("wide" if place.buffer.wide else "work")
        start = place.start + place.buffer.offset
        return [(root, start + i) for i in range(place.size)]

    owner: dict[Any, Any] = {}
    pieces: dict[Any, tuple[Any, int]] = {}

    def source(value: Any, index: int) -> tuple[Any, int]:
        while value in pieces:
            value, start = pieces[value]
            index += start
        return value, index

    def write_value(value: Any) -> None:
        owner.update({cell: (value, i) for i, cell in enumerate(cells(value))})

    def read_value(value: Any) -> None:
        for i, cell in enumerate(cells(value)):
            assert owner[cell] == source(value, i)

    for one in (made.x, *made.states):
        write_value(one)
    for index, one in enumerate(made.operations):
        for value in one.inputs():
            read_value(value)
        if isinstance(one, Split):
            start = 0
            for piece in one.pieces:
                pieces[piece] = (one.x, start)
                start += piece.size
        else:
            write_value(one.out)
        for state, after in memory.stores.get(index, ()):
            read_value(after)
            owner.update(dict.fromkeys(cells(state), None))
    read_value(made.y)
    assert sum(map(len, memory.stores.values())) == len(made.states)


def test_the_work_area_of_a_small_model_is_small(tmp_path: Path) -> None:
    model = plmu.Sequential(
        plmu.ParallelLMU(1, 140, order=40, theta=50.0, output_activation="gelu"),
        nn.Linear(140, 80), nn.GELU(), nn.Linear(80, 1),
    )  # fmt: skip
    written = plmu.export(model, tmp_path, to="c")
    assert written.state_bytes == 4 * 40
    assert written.work_bytes is not None
    assert written.work_bytes <= 2048
    small, fixed = write(tmp_path, model, "int8"), write(tmp_path, model, "fixed")
    assert small.weight_bytes == fixed.weight_bytes < 0.4 * written.weight_bytes
    assert small.work_bytes is not None
    assert fixed.work_bytes == small.work_bytes + 2 * 140  # of the widest product
    assert "int16_t whole[140];" in (tmp_path / "model.h").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_weights_are_those_of_the_arrays(kind: str) -> None:
    int8 = kind != "float"
    for name in NAMES:
        made = program(model_of(name), int8)
        source = "".join(Code(made, int8, kind == "fixed").arrays)
        arrays = re.findall(r"static const (float|int8_t) constant_\d+\[(\d+)\]", source)
        near = [one for one in made.operations if isinstance(one, Remember) and any(one.near_identity)]
        found = sum(int(count) * (4 if kind == "float" else 1) for kind, count in arrays)
        assert found == made.weight_bytes(int8) + sum(4 * one.channels for one in near)


@needs_compiler
def test_silence_ends_in_zeros(tmp_path: Path) -> None:
    """Not in subnormal numbers, with which many processors are slow."""
    write(tmp_path, plmu.DelayLayer(1, order=4, theta=3.0))
    (tmp_path / "try.c").write_text("""
#include "model.h"
int main(void)
{
    static model_state state;
    float x[1] = {1.0f}, y[4];
    int i;
    model_init(&state);
    for (i = 0; i < 1000; i++) {
        model_step(&state, x, y);
        x[0] = 0.0f;
    }
    return state.memory[0] != 0.0f || state.memory[1] != 0.0f || state.memory[2] != 0.0f || state.memory[3] != 0.0f;
}
""")
    subprocess.run([str(compiler()), "-o", "try", "model.c", "try.c", "-lm"], cwd=tmp_path, check=True, timeout=60)
    assert subprocess.run(["./try"], cwd=tmp_path, timeout=60).returncode == 0


def test_neither_allocation_nor_input_and_output(tmp_path: Path) -> None:
    files, _ = c_files(program(model_of("block: memory, selective")), "net", {}, False)
    included = set(re.findall(r"#include [<\"](.*?)[>\"]", files["net.c"] + files["net.h"]))
    assert included == {"net.h", "stddef.h", "stdint.h"}  # which freestanding compilers have, too
    assert not re.search(r"\b(malloc|calloc|free|printf|double)\b", files["net.c"])
    assert re.search(r"^int net_step\(net_state \*state, const float \*x, float \*y\)$", files["net.c"], re.M)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.0, 1e-30, 16777216.0, 0.1, 3.4e38, 1.17549435e-38])
def test_numbers_survive_as_text(value: float) -> None:
    exact = torch.tensor(value).item()
    text = number(exact)
    assert text.endswith("f")
    assert set(text[:-1]) & set(".e")
    assert torch.tensor(float(text[:-1])).item() == exact


def test_metadata_cannot_end_the_comment() -> None:
    files, _ = c_files(program(model_of("plain")), "net", {"units": "*/ int x; /*\n\\"}, False)
    before = files["net.h"].split("#ifndef")[0]
    assert before.count("*/") == 1
    assert before.count("/*") == 1
