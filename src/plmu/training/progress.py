"""Progress on the terminal: a bar with time left, loss and score; a line now and then where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from plmu.errors import printable
from plmu.training.stages import observed
from plmu.training.terminal import Console


class _Bar(Bar):
    """A bar as wide as the terminal, and below it the newest scores."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield from (Text(scores) for task in self.tasks if (scores := task.fields["scores"]))


@contextmanager
def stages_shown(name: str, quiet: bool = False) -> Iterator[None]:
    """Show the stages of what is computed within (`training.stages`) on a terminal, with the time that is left. Where
    the output cannot be written, it goes on without."""
    if quiet or sys.stdout is None or not sys.stdout.isatty():
        yield
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), MofNCompleteColumn(),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    bar = Bar(*columns, console=Console(), expand=True, transient=True)
    row: dict[str, TaskID] = {}

    def show(stage: str, done: int, total: int) -> None:
        with suppress(OSError):
            if stage not in row or not done:
                for old in row.values():
                    bar.remove_task(old)
                row.clear()
                row[stage] = bar.add_task(printable(f"{name}: {stage}"), total=total)
            bar.update(row[stage], completed=done)

    with suppress(OSError):
        bar.start()
    try:
        with observed(show):
            yield
    finally:
        with suppress(OSError):
            bar.stop()


class Progress:
    """`with Progress("psmnist", epochs, quiet=False) as progress: … progress.at(3.5)`.

    Where the output cannot be written, the run goes on without it.
    """

    def __init__(self, name: str, epochs: int, quiet: bool = False) -> None:
        self.name, self.epochs, self.quiet = name, epochs, quiet
        self.started = self.spoken = time.monotonic()
        self.bar: Bar | None = None
        if not quiet and sys.stdout is not None and sys.stdout.isatty():
            self.bar = _Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                TextColumn("{task.completed:.1f}/{task.total} epochs"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(),
                expand=True,
            )
            self.row = self.bar.add_task(printable(name), total=epochs, scores="")

    def __enter__(self) -> Progress:
        if self.bar is not None:
            with self._or_quiet():
                self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            with suppress(OSError):
                self.bar.stop()

    def at(self, epoch: float, scores: dict[str, float] | None = None) -> None:
        """Show the progress in epochs, and the newest scores at the end of an epoch."""
        with self._or_quiet():
            self._show(epoch, scores)

    def _show(self, epoch: float, scores: dict[str, float] | None) -> None:
        shown = "" if scores is None else "  ".join(f"{k} {v:.5g}" for k, v in scores.items() if k != "epoch")
        if self.bar is not None:
            self.bar.update(self.row, completed=epoch)
            if scores is not None:
                self.bar.update(self.row, scores=shown)
        elif not self.quiet and scores is not None and (time.monotonic() - self.spoken > 10 or epoch >= self.epochs):
            self.spoken = time.monotonic()
            print(f"{printable(self.name)}  epoch {int(epoch)}/{self.epochs}  {shown}", flush=True)

    @contextmanager
    def _or_quiet(self) -> Iterator[None]:
        """Stop showing progress if it fails: the reader of the output has gone, or the disk is full."""
        try:
            yield
        except OSError:
            bar, self.bar, self.quiet = self.bar, None, True
            with suppress(OSError):
                if bar is not None:
                    bar.stop()
