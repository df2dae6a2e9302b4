"""Train a parallel LMU to predict a chaotic series, then run it as a stream and see that both give the same answer.

    python examples/mackey_glass.py [--epochs 150] [--out demo]

The series is generated; nothing is downloaded. Takes about half a minute on two cores.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib
import torch
from torch import Tensor, nn

import plmu

HORIZON = 15  # how many steps ahead to predict
TAU = 17  # the delay of the equation, in samples; chaotic above 16.8
SUBSTEPS = 10  # Euler steps a sample


def mackey_glass(series: int, length: int, generator: torch.Generator) -> Tensor:
    """dx/dt = 0.2 x(t − τ) / (1 + x(t − τ)^10) − 0.1 x(t), from random histories: (series, length)."""
    delay = TAU * SUBSTEPS
    history = 1.2 + 0.2 * (torch.rand(series, delay, generator=generator, dtype=torch.float64) - 0.5)
    ring = list(history.unbind(1))
    x = ring[-1]
    samples = []
    for step in range(length * SUBSTEPS):
        past = ring[step % delay]
        ring[step % delay] = x
        x = x + (0.2 * past / (1 + past**10) - 0.1 * x) / SUBSTEPS
        if step % SUBSTEPS == SUBSTEPS - 1:
            samples.append(x)
    return torch.tanh(torch.stack(samples, dim=1) - 1).float()


def nrmse(prediction: Tensor, target: Tensor) -> float:
    return float(((prediction - target).square().mean() / target.square().mean()).sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=150, help="passes over the training series (150)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and the model (demo)")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {arguments.epochs}")
    arguments.out.mkdir(parents=True, exist_ok=True)  # before training: an unwritable folder costs nothing yet

    torch.manual_seed(0)
    data = mackey_glass(24, 1200 + HORIZON + 100, torch.Generator().manual_seed(0))[:, 100:, None]
    data = data - data[:16].mean()
    x, y = data[:, :-HORIZON], data[:, HORIZON:]
    print(f"24 series of {x.shape[1]} steps, predicting {HORIZON} ahead: 16 to train, 8 to test")

    model = plmu.Sequential(
        plmu.ParallelLMU(1, 140, order=40, theta=50.0),
        nn.Linear(140, 80),
        nn.ReLU(),
        nn.Linear(80, 1),
    )
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps = arguments.epochs * 4
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    start = time.perf_counter()
    for epoch in range(arguments.epochs):
        total = 0.0
        for batch in torch.randperm(16).split(4):
            out, _ = model(x[batch])
            loss = (out - y[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() / 4
        if epoch % 25 == 24 or epoch == arguments.epochs - 1:
            print(f"epoch {epoch + 1:4d}  loss {total:.6f}  {time.perf_counter() - start:.1f} s")

    model.eval()
    with torch.no_grad():
        parallel, _ = model(x[16:])
    print(f"test NRMSE {nrmse(parallel, y[16:]):.4f}, after 100 steps {nrmse(parallel[:, 100:], y[16:, 100:]):.4f}")

    plmu.save(model, arguments.out / "model.plmu")
    stream = plmu.Stream(plmu.load(arguments.out / "model.plmu"))
    start = time.perf_counter()
    streamed = torch.stack([stream.push(x[16:, t]) for t in range(x.shape[1])], dim=1)
    each = (time.perf_counter() - start) / x.shape[1]
    difference = float((streamed - parallel).abs().max() / parallel.abs().max())
    verdict = "agree" if difference < 1e-4 else "DIFFER"
    print(
        f"streamed {x.shape[1]} steps at {1e6 * each:.0f} µs a step: parallel and streaming outputs {verdict}", end=""
    )
    print(f" (largest difference {difference:.1e} of the largest output)")

    plot = arguments.out / "mackey_glass.png"
    draw(plot, y[16, :, 0], parallel[0, :, 0], streamed[0, :, 0])
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
    top.legend(loc="upper right", framealpha=1)
    top.set_ylabel("x")
    top.set_title("Mackey-Glass: one model, two ways to run it")
    bottom.semilogy((parallel - truth).abs()[shown].clamp(min=1e-9), color="tab:blue", label="error of the prediction")
    bottom.semilogy(
        (parallel - streamed).abs()[shown].clamp(min=1e-9), color="tab:orange", label="parallel against streamed"
    )
    bottom.legend(loc="upper right", framealpha=1)
    bottom.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
