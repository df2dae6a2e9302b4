"""What all plots share."""

from __future__ import annotations

from typing import Any


def pyplot() -> Any:
    """matplotlib's pyplot, drawing into files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as found

    return found


def literal(text: str) -> str:
    """For a plot, where dollars would begin a formula."""
    return text.replace("$", r"\$")
