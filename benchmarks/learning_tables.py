"""The tables of forecasts that learn, from the results of `python -m benchmarks.learning`."""

from __future__ import annotations

from benchmarks.tables import Results, markdown, number

HEADER = ("set", "frozen MSE", "learning MSE", "change", "frozen MAE", "learning MAE", "ms a sample")


def sets(result: Results) -> str:
    """Mean errors over the horizons of each set, and the processor time of a sample at the longest horizon."""
    lines = []
    for name, tested in result["sets"].items():
        mean, longest = tested["mean"], tested["rows"][-1]
        change = f"{100 * (mean['mse'] / mean['mse frozen'] - 1):+.2f} %"
        errors = [f"{mean[key]:.4f}" for key in ("mse frozen", "mse")]
        others = [f"{mean[key]:.4f}" for key in ("mae frozen", "mae")]
        lines.append([name, *errors, change, *others, number(longest["milliseconds a sample"], 2)])
    return markdown(HEADER, lines)


def coverage(result: Results) -> str:
    """Shares of values in 80 and 95 % intervals, over streams that change again and again."""
    header = ("streams with", "frozen", "learning", "learning, worst stream", "learning, worst step ahead")
    lines = []
    for kind, methods in result["coverage"]["kinds"].items():
        shown = [_percent(methods[name]["coverage"]) for name in ("frozen", "learning")]
        worst = [_percent(methods["learning"][name]) for name in ("worst stream", "worst step ahead")]
        lines.append([kind, *shown, *worst])
    return markdown(header, lines)


def after(result: Results) -> str:
    """How many samples after one change the coverage of the last 200 samples is back."""
    header = ("change", "frozen", "learning")
    titles = {
        "level shifts": "level, by 5 standard deviations",
        "changes of trend": "trend",
        "changes of variance": "standard deviation, to the double",
    }
    lines = []
    for kind, title in titles.items():
        methods = result["coverage"]["after one change"][kind]
        cells = [
            " / ".join("never" if count is None else str(count) for count in methods[name]["samples"])
            for name in ("frozen", "learning")
        ]
        lines.append([title, *cells])
    return markdown(header, lines)


def cost(result: Results) -> str:
    """Processor time of a sample and the size of a state."""
    header = ("channels", "horizon", "order", "look-back", "frozen, ms", "learning, ms", "worst, ms", "state")
    lines = []
    for row in result["cost"]:
        sizes = [str(row[name]) for name in ("channels", "horizon", "order", "lookback")]
        times = [number(row[name], 2) for name in ("frozen ms", "learning ms", "learning worst ms")]
        lines.append([*sizes, *times, f"{row['state bytes'] / 2**20:.2f} MiB"])
    return markdown(header, lines)


def _percent(shares: list[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares) + " %"
