"""Tables as lines of plain text."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 80  # letters of a line


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A header and rows as aligned lines: the first column to the left, the others to the right. Columns after the
    third that do not fit into a line of 80 letters are left out."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    while len(widths) > 3 and sum(widths) + 2 * len(widths) > WIDTH:
        widths.pop()
    lines = []
    for name, *cells in [header, *rows]:
        numbers = (f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=False))
        lines.append(f"  {name:<{widths[0]}}" + "".join(numbers))
    return lines
