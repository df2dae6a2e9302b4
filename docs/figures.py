"""Draws the pictures of the guide, and those of the benchmarks from results/, into docs/images: `make figures`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib
import torch
from torch import Tensor

import plmu
from plmu.bench import show

IMAGES = Path(__file__).parent / "images"
RESULTS = Path(__file__).parents[1] / "results"
ORDERS = (3, 6, 12, 24)
THETA = 1.0  # seconds: the window
DT = 0.001  # seconds: the sampling interval
SECONDS = 5.0  # how much of the signal is shown
WAVES = ((0.4, 0.7), (1.1, 0.9), (1.9, -0.6), (3.0, 0.5))  # (cycles per second, height)


def main() -> None:
    matplotlib.use("Agg")
    IMAGES.mkdir(exist_ok=True)
    delay_orders(IMAGES / "delay-orders.png")
    for kind in ("layers", "training-time", "complexity"):
        found = json.loads((RESULTS / f"bench-{kind}-cuda.json").read_text(encoding="utf-8"))
        show.figure(kind, found, IMAGES / f"bench-{kind}.png")
        print(f"wrote {IMAGES / f'bench-{kind}.png'}")


def signal(time: Tensor) -> Tensor:
    """A sum of sines, silent before time 0."""
    waves = sum(height * torch.sin(2 * math.pi * cycles * time) for cycles, height in WAVES)
    return torch.where(time < 0, 0.0, waves)


def delay_orders(path: Path) -> None:
    """The ideal delay of θ (equation 1) against what Delay Networks of four orders decode at θ (equation 12)."""
    from matplotlib import pyplot

    time = torch.arange(0, SECONDS, DT, dtype=torch.float64)
    u = signal(time)
    ideal = signal(time - THETA + DT / 2)  # the state holds each sample over its step: half a step younger
    figure, panels = pyplot.subplots(len(ORDERS), 1, figsize=(9, 7.2), sharex=True, sharey=True)
    for panel, order in zip(panels, ORDERS, strict=True):
        dn = plmu.DelayNetwork(order, THETA)
        m, _ = plmu.states(u[None, :, None], dn.discretize(DT))  # (1, time, order, 1)
        decoded = m[0, :, :, 0] @ dn.decoder(THETA)
        running = time > 2 * THETA  # the window is full and the start has left it
        error = (decoded - ideal)[running].square().mean().sqrt() / ideal[running].square().mean().sqrt()
        panel.plot(time, ideal, color="0.75", linewidth=5, solid_capstyle="butt", label="ideal delay, u(t − θ)")
        panel.plot(time, decoded, color="tab:blue", linewidth=1.6, label="decoded from the state")
        panel.axvline(THETA, color="0.4", linewidth=0.8, linestyle=":")
        held = dn.describe(DT).cycles_per_window
        shown = f"{100 * error:.2g} %" if error > 1e-4 else "below 0.01 %"
        panel.set_title(f"order {order}", loc="left", fontsize=12, fontweight="bold")
        panel.set_title(f"holds {held:.1f} cycles per window to 5 %; error here {shown}", loc="right", fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=10)
        panel.set_yticks((-2, 0, 2))
    panels[0].set_ylim(-2.8, 2.8)
    panels[0].set_xlim(0, SECONDS)
    panels[0].annotate("θ", (THETA, 2.0), xytext=(4, 0), textcoords="offset points", color="0.3", fontsize=11)
    fastest = max(cycles for cycles, _ in WAVES) * THETA
    panels[-1].set_xlabel(
        f"time in seconds (θ = {THETA:g} s; the fastest wave has {fastest:g} cycles per window)", fontsize=11
    )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=2, frameon=False, fontsize=11)
    figure.tight_layout(rect=(0, 0, 1, 0.955), h_pad=0.8)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
