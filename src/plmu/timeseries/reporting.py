"""What reports share: names that are cut, tables of plain text, and plots."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmu.runs.folder import write_figure

_LONGEST = 40  # letters of a name
WIDTH = 80  # letters of a line


def pyplot() -> Any:
    """matplotlib's pyplot, set to draw into files and to be silent on letters that its fonts lack."""
    import matplotlib

    warnings.filterwarnings("ignore", "Glyph .* missing from")  # names may be in any script; they are drawn as boxes
    matplotlib.use("Agg")
    from matplotlib import pyplot as drawing

    return drawing


def write_plot(figure: Any, path: str | Path) -> None:
    """Write a figure of `pyplot` to a file, and close it."""
    figure.tight_layout()
    write_figure(Path(path), figure, dpi=120)
    pyplot().close(figure)


def shortened(name: str) -> str:
    """A name for a table or plot, cut if it is long."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def literal(text: str) -> str:
    """A name for a plot, cut if it is long, with dollars escaped, which would begin a formula."""
    return shortened(text).replace("$", r"\$")


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A header and rows as aligned lines: the first column to the left, the others to the right. If these do not fit in
    80 letters, columns are left out from the right, down to three."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    while len(widths) > 3 and sum(widths) + 2 * len(widths) > WIDTH:
        widths.pop()
    lines = []
    for name, *cells in [header, *rows]:
        numbers = (f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=False))
        lines.append(f"  {name:<{widths[0]}}" + "".join(numbers))
    return lines
