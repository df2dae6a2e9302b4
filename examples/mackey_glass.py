"""Train a parallel LMU to predict a chaotic series, then run it as a stream and see that both give the same answer.

    python examples/mackey_glass.py [--epochs 120] [--out demo]

This is `plmu train mackey-glass` with fewer epochs than the paper's 500, followed by what one does with a trained
model. The series are generated; nothing is downloaded. Takes about two minutes on two cores. Run again, it takes the
finished model, or goes on with one that was cut short.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib
import torch
from torch import Tensor

import plmu
from plmu.cli.program import main as program
from plmu.experiments.data.mackey_glass import HORIZON, prediction_task

PAPER = 0.044


def nrmse(prediction: Tensor, target: Tensor) -> float:
    return float(((prediction - target).square().mean() / target.square().mean()).sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=120, help="passes over the training series (120)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the run and the plot (demo)")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {arguments.epochs}")
    name = f"mackey-glass-{arguments.epochs}-epochs"
    options = ["--training.epochs", str(arguments.epochs), "--runs", str(arguments.out), "--name", name]
    start = time.perf_counter()
    program(["train", "mackey-glass", *options])
    print(f"done in {time.perf_counter() - start:.0f} s, generating the series and all")

    model = plmu.load(arguments.out / f"{name}-seed0" / "model.plmu").eval()
    x, y = prediction_task()[2]
    with torch.no_grad():
        parallel, _ = model(x)
    stream = plmu.Stream(model)
    start = time.perf_counter()
    streamed = torch.stack([stream.push(x[:, t]) for t in range(x.shape[1])], dim=1)
    each = (time.perf_counter() - start) / x.shape[1]

    difference = float((streamed - parallel).abs().max() / parallel.abs().max())
    # float32 rounds the memory's high orders, which are small and read out with weights of up to a thousand.
    verdict = "agree" if difference < 1e-3 else "DIFFER"
    print(f"streamed {x.shape[0]} test series side by side, {x.shape[1]} steps at {1e6 * each:.0f} µs a step")
    print(f"parallel and streaming outputs {verdict}: they differ by {difference:.1e} of the largest output")
    print(f"test NRMSE {nrmse(parallel, y):.4f} in parallel, {nrmse(streamed, y):.4f} streamed; the paper's: {PAPER}")

    plot = arguments.out / "mackey_glass.png"
    draw(plot, y[0, :, 0], parallel[0, :, 0], streamed[0, :, 0])
    print(f"wrote {plot}")
    if verdict != "agree":
        raise SystemExit(1)


def draw(path: Path, truth: Tensor, parallel: Tensor, streamed: Tensor) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(9, 5), sharex=True, height_ratios=(2, 1))
    shown = slice(0, 400)
    top.plot(truth[shown], color="0.6", linewidth=3, label=f"the series, {HORIZON} steps ahead")
    top.plot(parallel[shown], color="tab:blue", label="predicted, all steps in parallel")
    top.plot(
        streamed[shown], color="tab:orange", linestyle=":", linewidth=2.5, label="predicted, streamed step by step"
    )
    top.set_ylim(top=1.8 * float(truth[shown].max()))  # room for the legend
    top.legend(loc="upper center", ncols=3, fontsize="small")
    top.set_ylabel("x")
    top.set_title("Mackey-Glass: one model, two ways to run it")
    bottom.semilogy((parallel - truth).abs()[shown].clamp(min=1e-9), color="tab:blue", label="error of the prediction")
    bottom.semilogy(
        (parallel - streamed).abs()[shown].clamp(min=1e-9), color="tab:orange", label="parallel against streamed"
    )
    bottom.set_ylim(top=1e2)
    bottom.legend(loc="upper center", ncols=2, fontsize="small")
    bottom.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
