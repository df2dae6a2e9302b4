"""Draws the blocks of a language model, from the bottom to the top; `docs/figures.py` calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MEMORY, PLAIN, GATE = "#cfe2f3", "#f2f2f2", "#fde3c8"


def draw(path: Path) -> None:
    """The paper's block beside `plmu.MemoryBlock`."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 7.4), width_ratios=(1, 1.35))
    _the_papers(_Panel(left, 4.4, "LMUBlock: the paper's"))
    _modern(_Panel(right, 6.0, "MemoryBlock"))
    figure.subplots_adjust(left=0.01, right=0.99, top=0.95, bottom=0.01, wspace=0.03)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    print(f"wrote {path}")


def _the_papers(panel: _Panel) -> None:
    x = 1.8
    panel.text(x, 0.35, "x")
    panel.arrow((x, 0.6), (x, 1.6))
    panel.box(x, 2.0, "LayerNorm")
    panel.arrow((x, 2.4), (x, 3.3))
    panel.box(x, 3.8, "Delay Network on every channel\nsmall θ, small order", MEMORY, height=1.0)
    panel.arrow((x, 4.3), (x, 5.2))
    panel.box(x, 5.7, r"dense:  ReLU$(W_m m + W_x x + b)$", height=1.0)
    panel.arrow((x, 6.2), (x, 7.1))
    panel.box(x, 7.7, "highway layers (two)\n" r"$g \cdot f(Wx) + (1 - g) \cdot x$", GATE, height=1.2)
    panel.arrow((x, 8.3), (x, 9.75))
    panel.sign(x, 10.0, "+")
    panel.skip(x, 1.0, 10.0, 4.0)
    panel.arrow((x, 10.25), (x, 11.2))
    panel.text(x, 11.5, "out")


def _modern(panel: _Panel) -> None:
    x, memory, gate = 2.7, 1.55, 4.3
    panel.text(x, 0.35, "x")
    panel.arrow((x, 0.6), (x, 1.1))
    panel.box(x, 1.4, "RMSNorm", height=0.6)
    panel.arrow((x, 1.7), (x, 2.05))
    panel.box(x, 2.35, "short causal convolution (option)", height=0.6, dashed=True)
    panel.split(x, 2.65, 2.95, (memory, 3.2), (gate, 3.55))
    panel.box(memory, 3.75, "Delay Networks\n4 · 16 · 64 · 256 steps", MEMORY, 2.6, 1.1)
    panel.arrow((memory, 4.3), (memory, 4.6))
    panel.box(memory, 4.9, r"$W_m m$, or $C_t m$ with $C_t$ of $x_t$", width=2.8, height=0.6)
    panel.box(gate, 3.9, r"SiLU$(W_g z)$", GATE, 1.6, 0.7)
    panel.join((memory, 5.2), (gate, 4.25), x, 5.6)
    panel.arrow((x, 5.85), (x, 6.1))
    panel.box(x, 6.35, r"$W_o$", height=0.5, width=1.2)
    panel.arrow((x, 6.6), (x, 6.85))
    panel.sign(x, 7.1, "+")
    panel.skip(x, 0.85, 7.1, 5.6)
    panel.arrow((x, 7.35), (x, 7.8))
    panel.box(x, 8.1, "RMSNorm", height=0.6)
    panel.split(x, 8.4, 8.65, (memory, 8.9), (gate, 8.9))
    panel.box(memory, 9.2, r"$W_1 z$", width=1.6, height=0.6)
    panel.box(gate, 9.2, r"SiLU$(W_2 z)$", GATE, 1.6, 0.6)
    panel.join((memory, 9.5), (gate, 9.5), x, 9.85)
    panel.arrow((x, 10.1), (x, 10.3))
    panel.box(x, 10.52, r"$W_3$", height=0.45, width=1.2)
    panel.arrow((x, 10.75), (x, 10.95))
    panel.sign(x, 11.2, "+")
    panel.skip(x, 7.55, 11.2, 5.6)
    panel.arrow((x, 11.45), (x, 11.8))
    panel.text(x + 0.5, 11.7, "out")


class _Panel:
    """One drawing, with boxes at places in units of its own."""

    def __init__(self, axes: Any, width: float, title: str) -> None:
        self.axes = axes
        axes.set_xlim(0, width)
        axes.set_ylim(0, 11.9)
        axes.axis("off")
        axes.set_title(title, fontsize=12, fontweight="bold")

    def text(self, x: float, y: float, words: str) -> None:
        self.axes.text(x, y, words, ha="center", va="center", fontsize=12)

    def box(
        self,
        x: float,
        y: float,
        words: str,
        color: str = PLAIN,
        width: float = 3.2,
        height: float = 0.8,
        dashed: bool = False,
    ) -> None:
        from matplotlib.patches import FancyBboxPatch

        corner = (x - width / 2, y - height / 2)
        style = {"linestyle": "--" if dashed else "-", "edgecolor": "0.35", "facecolor": "white" if dashed else color}
        shape = FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.1", linewidth=1.1, **style)
        self.axes.add_patch(shape)
        self.axes.text(x, y, words, ha="center", va="center", fontsize=10)

    def sign(self, x: float, y: float, sign: str) -> None:
        self.axes.plot([x], [y], "o", markersize=19, markerfacecolor="white", markeredgecolor="0.35")
        self.axes.text(x, y, sign, ha="center", va="center", fontsize=14)

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        style = {"arrowstyle": "-|>", "color": "0.35", "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
        self.axes.annotate("", end, start, arrowprops=style)

    def line(self, *points: tuple[float, float]) -> None:
        across, up = zip(*points, strict=True)
        self.axes.plot(across, up, color="0.35", linewidth=1.1)

    def skip(self, x: float, start: float, end: float, side: float) -> None:
        """A line past the boxes, from the trunk at `start` to the sign at `end`."""
        self.line((x, start), (side, start), (side, end))
        self.arrow((side, end), (x + 0.16, end))

    def split(self, x: float, start: float, fork: float, *ends: tuple[float, float]) -> None:
        """From the trunk to two boxes above."""
        self.line((x, start), (x, fork))
        for side, end in ends:
            self.line((x, fork), (side, fork))
            self.arrow((side, fork), (side, end))

    def join(self, left: tuple[float, float], right: tuple[float, float], x: float, y: float) -> None:
        """From two boxes to a product above."""
        for (side, start), edge in ((left, x - 0.16), (right, x + 0.16)):
            self.line((side, start), (side, y))
            self.arrow((side, y), (edge, y))
        self.sign(x, y, "×")
