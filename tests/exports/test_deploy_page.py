"""docs/deploy.md is true: its commands and its code run, and its figures are those of the committed results."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plmu
from plmu.cli.program import main
from plmu.exports.measure import compiler

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # of torch.export, about its own code
@pytest.mark.parametrize("with_torch", [False, pytest.param(True, marks=pytest.mark.full)], ids=["", "torch"])
def test_commands_and_code(with_torch: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plmu.exports.measure.SECONDS", 0.001)
    run = tmp_path / "runs" / "mackey-glass-plmu-seed0"
    run.mkdir(parents=True)
    layer = plmu.ParallelLMU(1, 20, order=40, theta=50.0, output_activation="gelu")
    plmu.save(plmu.Sequential(layer, nn.Linear(20, 1)), run / "model.plmu")
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    exports = [words for words in lines if words[:2] == ["plmu", "export"]]
    assert [words[words.index("--to") + 1] for words in exports] == ["onnx", "c", "torch"]
    for words in exports:
        if "torch" not in words or with_torch:
            main(words[1:])
    names: dict[str, Any] = {}
    for block in blocks("python"):
        if with_torch or "torch.export" not in block:
            exec(block, names)
    assert names["y"].shape == ((3, 200, 1) if with_torch else (1, 1))
    if compiler() is not None:
        (source,) = blocks("c")
        (tmp_path / "deploy" / "main.c").write_text(source)
        command = [str(compiler()), "-o", "main", "model.c", "main.c", "-lm"]
        subprocess.run(command, cwd=tmp_path / "deploy", check=True, timeout=60)
        ran = subprocess.run(
            ["./main"], cwd=tmp_path / "deploy", input="0.5\n-1\n", capture_output=True, text=True, timeout=60
        )
        stream = plmu.Stream(names["model"])
        expected = torch.cat([stream.push([0.5]), stream.push([-1.0])])
        torch.testing.assert_close(
            torch.tensor([float(one) for one in ran.stdout.split()]), expected, atol=1e-5, rtol=0
        )


def test_figures() -> None:
    deployment, mcu = (
        json.loads((ROOT / "results" / f"bench-{name}.json").read_text())["rows"] for name in ("deployment", "mcu")
    )
    for row in deployment:
        times = [row["microseconds"][name] for name in ("stream", "onnx", "c", "products", "plain_loops")]
        assert f"{row['multiply_adds']:,} multiply-adds | {' | '.join(f'{one:.1f}' for one in times)} |" in PAGE
    for row in mcu:
        figures = [f"{row['flash']:,} bytes", f"{row['flash_of_weights']:,}", f"{row['ram']:,} bytes"]
        figures += [f"{row['state']}", f"{row['instructions']:,}"]
        assert f"| {row['processor']} | {row['weights']} | {' | '.join(figures)} |" in PAGE


def test_the_reached_figures() -> None:
    """Of the committed results: what a deployment was promised to cost."""
    small, large = json.loads((ROOT / "results" / "bench-deployment.json").read_text())["rows"]
    assert large["onnx_over_products"] <= 2
    assert large["c_over_products"] <= 2
    assert small["c_over_plain_loops"] <= 2
    assert small["microseconds"]["onnx"] <= 15
    assert small["microseconds"]["stream"] <= 60
    for row in json.loads((ROOT / "results" / "bench-mcu.json").read_text())["rows"]:
        assert row["ram"] <= row["state"] + 2048
