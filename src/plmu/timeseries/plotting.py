"""What all plots share."""

from __future__ import annotations

import warnings
from typing import Any

_LONGEST = 40  # letters of a name


def pyplot() -> Any:
    """matplotlib's pyplot, drawing into files."""
    import matplotlib

    warnings.filterwarnings("ignore", "Glyph .* missing from")  # names may be in any script; they are drawn as boxes
    matplotlib.use("Agg")
    from matplotlib import pyplot as drawing

    return drawing


def shortened(name: str) -> str:
    """A name for a table or plot, cut if it is long."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def literal(text: str) -> str:
    """A name for a plot, where dollars would begin a formula."""
    return shortened(text).replace("$", r"\$")
