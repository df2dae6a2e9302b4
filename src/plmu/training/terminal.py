"""Printing to the terminal: tables are never cut off, however narrow it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import rich.console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from plmu.errors import printable


class Console(rich.console.Console):
    """rich's console, but a closed pipe raises BrokenPipeError, which the program handles."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, console: Console | None = None
) -> None:
    """Print a table; where the terminal is too narrow for it, each row as a list of names and values.

    Where the output is no terminal, lines are as long as the table needs.
    """
    console = console or Console()
    columns, rows = [*map(printable, columns)], [[*map(printable, row)] for row in rows]
    title = None if title is None else printable(title)
    table = Table(title=None if title is None else Text(title))
    for name in columns:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*map(Text, row))  # brackets are no markup
    needed = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    if not console.is_terminal:
        console.width = max(console.width, needed)
    if needed <= console.width:
        console.print(table)
        return
    if title is not None:
        console.print(title, style="italic", markup=False)
    widest = max(map(len, columns))
    for row in rows:
        for name, value in zip(columns, row, strict=True):
            if value:
                console.print(f"{name:<{widest}}  {value}", markup=False, highlight=False, soft_wrap=True)
        console.print()
