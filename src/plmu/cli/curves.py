"""Learning curves of results: training loss and validation score over epochs, mean over seeds."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from plmu.cli.tables import epochs, named, run_name, shortened, titled
from plmu.runs.folder import write_figure
from plmu.runs.results import is_history
from plmu.timeseries.reporting import literal

Curve = tuple[list[float], list[float]]  # epochs and values
WIDE = 10.0  # ratio of the largest to the smallest value from which an axis is logarithmic


def labelled(summary: dict[str, Any]) -> str:
    """The label in a plot, a line each: model, name unless the default, epochs if fewer than usual."""
    short = f"{epochs(summary)} epochs" if shortened(summary) else ""
    return literal("\n".join(part for part in (named(summary), run_name(summary), short) if part))


def curves(summary: dict[str, Any]) -> tuple[Curve, Curve]:
    """Training loss, and the validation score that chooses the epoch: each the mean over the seeds with a history.

    Raises:
        TypeError: a history is damaged.
    """
    histories = [seed["history"] for seed in summary["seeds"] if "history" in seed]
    if not all(map(is_history, histories)):
        raise TypeError("a history is not a list of numbers by name")
    factor = 100.0 if summary["percent"] else 1.0
    return _mean(histories, "loss"), _mean(histories, f"valid_{summary['metric']}", factor)


def _mean(histories: list[list[dict[str, float]]], name: str, factor: float = 1.0) -> Curve:
    """`factor` times the mean of a value over histories, at the epochs that all have: thinned ones differ a little."""
    values = [{entry["epoch"]: factor * entry[name] for entry in history if name in entry} for history in histories]
    shared = sorted(set.intersection(*map(set, values))) if values else []
    return shared, [sum(curve[epoch] for curve in values) / len(values) for epoch in shared]


def has_curves(summary: dict[str, Any]) -> bool:
    return bool(curves(summary)[0][0])


def _label(summary: dict[str, Any]) -> str:
    """The label in a legend, wrapped at 30 characters."""
    return textwrap.fill(", ".join(labelled(summary).splitlines()), 30)


def plot_curves(summaries: list[dict[str, Any]], path: Path) -> bool:
    """Draw a row for each experiment with a history: loss on the left, score on the right. Returns whether any has."""
    shown = [summary for summary in summaries if has_curves(summary)]
    if not shown:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    names = sorted({summary["experiment"] for summary in shown})
    rows = [[summary for summary in shown if summary["experiment"] == name] for name in names]
    legends = [sum(_label(summary).count("\n") + 1 for summary in group) for group in rows]  # lines
    heights = [max(3.4, 1 + 0.2 * lines) for lines in legends]
    figure, axes = pyplot.subplots(
        len(rows), 2, figsize=(11, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for (loss_axis, score_axis), group in zip(axes, rows, strict=True):
        for summary in group:
            for axis, (x, y) in zip((loss_axis, score_axis), curves(summary), strict=True):
                axis.plot(x, y, label=_label(summary), linewidth=1.4, marker="." if len(x) < 25 else "", markersize=5)
        score = literal(group[0]["metric"].replace("_", " ")) + (", %" if group[0]["percent"] else "")
        for axis, title in ((loss_axis, "training loss"), (score_axis, f"validation {score}")):
            axis.set_title(f"{literal(titled(group[0]))}: {title}", fontsize="medium")
            axis.set_xlabel("epoch")
            axis.set_xlim(left=0)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            axis.grid(alpha=0.3)
            values = [value for line in axis.lines for value in line.get_ydata()]
            if values and min(values) > 0 and max(values) > WIDE * min(values):
                axis.set_yscale("log")
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.yaxis.set_minor_formatter(NullFormatter())
        handles = loss_axis.get_legend_handles_labels()
        score_axis.legend(*handles, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    write_figure(path, figure, dpi=120)
    pyplot.close(figure)
    return True
