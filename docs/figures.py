"""Draws the pictures of the pages into docs/images. Run it with `make figures`."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import block_diagrams
import matplotlib
import torch
from torch import Tensor

import plmu
from plmu.bench import show
from plmu.cli import report

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
    idea(IMAGES / "idea.png")
    delay_orders(IMAGES / "delay-orders.png")
    block_diagrams.draw(IMAGES / "blocks.png")
    for kind in ("layers", "training-time", "complexity"):
        results = json.loads((RESULTS / f"bench-{kind}-cuda.json").read_text(encoding="utf-8"))
        show.figure(kind, results, IMAGES / f"bench-{kind}.png")
        print(f"wrote {IMAGES / f'bench-{kind}.png'}")
    report.plot(report.load(RESULTS), IMAGES / "results.png")
    print(f"wrote {IMAGES / 'results.png'}")


def signal(time: Tensor) -> Tensor:
    """A sum of sines, silent before time 0."""
    waves = sum(height * torch.sin(2 * math.pi * cycles * time) for cycles, height in WAVES)
    return torch.where(time < 0, 0.0, waves)


def idea(path: Path) -> None:
    """The memory in three panels: a window of the input, the state, and the window read back from the state."""
    from matplotlib import pyplot

    order, now = 12, 3.4
    time = torch.arange(0, SECONDS, DT, dtype=torch.float64)
    u = signal(time)
    dn = plmu.DelayNetwork(order, THETA)
    m, _ = plmu.states(u[None, :, None], dn.discretize(DT))
    state = m[0, round(now / DT), :, 0]
    ago = torch.linspace(0, THETA, 200, dtype=torch.float64)
    figure, (signal_axes, state_axes, window_axes) = pyplot.subplots(1, 3, figsize=(7.6, 3), width_ratios=(1.2, 1, 1.1))
    signal_axes.plot(time, u, color="0.65", linewidth=1.8)
    inside = (time > now - THETA) & (time <= now)
    signal_axes.plot(time[inside], u[inside], color="tab:blue", linewidth=2.4)
    signal_axes.axvspan(now - THETA, now, color="tab:blue", alpha=0.12, linewidth=0)
    signal_axes.set_xticks((now - THETA, now), ("t − θ", "t"))
    signal_axes.set_title("input u:\nthe last θ time units")
    signal_axes.set_xlim(1.7, 4.2)
    state_axes.bar(range(order), state, color="tab:orange", width=0.7)
    state_axes.axhline(0, color="0.4", linewidth=0.8)
    state_axes.set_xticks((0, order - 1), ("1", f"d = {order}"))
    state_axes.set_title("state $m_t$:\nd numbers")
    window_axes.plot(-ago, signal(now - ago), color="0.7", linewidth=5, solid_capstyle="butt", label="u")
    window_axes.plot(-ago, dn.decoder(ago) @ state, color="tab:blue", linewidth=1.6, label="from $m_t$")
    window_axes.set_xticks((-THETA, 0), ("t − θ", "t"))
    window_axes.set_title("the window,\nread back from $m_t$")
    window_axes.legend(frameon=False, fontsize=11, loc="upper left", handlelength=1.2, borderaxespad=0)
    window_axes.set_ylim(-2.2, 3.8)
    panels = (signal_axes, state_axes, window_axes)
    for panel in panels:
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.set_yticks(())
        panel.tick_params(labelsize=13)
        panel.title.set_fontsize(13)
    figure.subplots_adjust(left=0.02, right=0.97, top=0.79, bottom=0.12, wspace=0.42)
    for before, after in pairwise(panels):
        center = (before.get_position().x1 + after.get_position().x0) / 2
        arrow = {"arrowstyle": "-|>", "color": "0.3", "linewidth": 1.8}
        after.annotate("", (center + 0.035, 0.46), (center - 0.035, 0.46), xycoords="figure fraction", arrowprops=arrow)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    print(f"wrote {path}")


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
