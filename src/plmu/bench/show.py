"""The results of a benchmark as tables and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plmu.training.terminal import show_table

FEW = 5  # entries of a mapping that become columns


def tables(results: dict[str, Any]) -> None:
    """Print every list of rows as a table. A value that is a mapping of a few entries becomes several columns; larger
    ones are only in the JSON file."""
    for title, rows in results.items():
        if not isinstance(rows, list) or not rows:
            continue
        flat = [_flat(row) for row in rows]
        columns = list(dict.fromkeys(name for row in flat for name in row))
        show_table(columns, [[_shown(row.get(name)) for name in columns] for row in flat], title)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and len(value) <= FEW:
            flat |= {f"{name}: {key}": entry for key, entry in value.items()}
        elif not isinstance(value, dict | list):
            flat[name] = value
    return flat


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def figure(kind: str, results: dict[str, Any], path: Path) -> None:
    """Draw the figure of a kind of benchmark."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    widths = {"layers": (1.7, 1), "training-time": (1, 1)}.get(kind, (1,))
    picture, axes = pyplot.subplots(
        1, len(widths), figsize=(11, 4.5), squeeze=False, gridspec_kw={"width_ratios": widths}
    )
    _DRAW[kind](axes[0], results)
    picture.tight_layout()
    picture.savefig(path, dpi=120)
    pyplot.close(picture)


def comparisons(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The whole layers that were timed, ours first, in groups of parameter counts within 5 % of each other."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in results["whole layers"]:
        if row.get("matched"):
            groups.setdefault((row["shape"], row["budget"]), []).append(row)
    return sorted(groups.values(), key=lambda rows: (rows[0]["order"], rows[0]["time"], rows[0]["budget"]))


def _layers(axes: Any, results: dict[str, Any]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    groups = comparisons(results)
    peers = list(dict.fromkeys(row["layer"] for rows in groups for row in rows[1:]))
    for number, peer in enumerate(peers):
        points = [
            (row["times ours"], place) for place, rows in enumerate(groups) for row in rows if row["layer"] == peer
        ]
        style = {"color": f"C{number + 1}", "marker": "os^Dv"[number % 5]}
        axes[0].plot(*zip(*points, strict=True), linestyle="", markersize=9, label=peer, **style)
    axes[0].axvline(1, color="C0", linewidth=2, label="ours")
    labels = [
        f"order {rows[0]['order']}, {rows[0]['time']:,} steps, {rows[0]['parameters'] / 1e6:.1f} M" for rows in groups
    ]
    axes[0].set_yticks(range(len(groups)), labels)
    axes[0].set_ylim(len(groups) - 0.5, -0.5)
    axes[0].set_xscale("log")
    axes[0].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0].xaxis.set_major_formatter(lambda value, place: f"{value:g}×")
    axes[0].xaxis.set_minor_locator(NullLocator())
    axes[0].grid(axis="y", alpha=0.3)
    axes[0].set_xlabel("time over ours, forward + backward (right of the line: slower than ours)")
    axes[0].set_title("Whole layers with equally many parameters", pad=28)
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, fontsize=8, frameon=False, columnspacing=1)
    length = results["length"]
    axes[1].semilogx([row["time"] for row in length], [row["tokens per second"] / 1e6 for row in length], marker="o")
    axes[1].set_ylim(0, 1.1 * max(row["tokens per second"] for row in length) / 1e6)
    axes[1].set_xlabel("steps per sequence")
    axes[1].set_ylabel("million tokens per second")
    axes[1].set_title("Ours at any length", pad=28)


def _algorithms(axes: Any, results: dict[str, Any]) -> None:
    rows = results["over the GEMM"]
    for way, shift in (("forward", -0.2), ("both", 0.2)):
        values = [row[f"over the GEMM, {way}"]["auto"] for row in rows]
        axes[0].barh(
            [k + shift for k in range(len(rows))], values, 0.4, label=way.replace("both", "forward + backward")
        )
    axes[0].axvline(1, color="k", linewidth=1)
    axes[0].set_yticks(range(len(rows)), [f"{row['shape']}, {row['dtype']}" for row in rows], fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("time of W m over the GEMM with m in memory")
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _training_time(axes: Any, results: dict[str, Any]) -> None:
    rows = results["training step"]
    for kind, shift in (("eager", -0.2), ("graph", 0.2)):
        values = [row["milliseconds"].get(kind, float("nan")) for row in rows]
        axes[0].barh([k + shift for k in range(len(rows))], values, 0.4, label=kind)
    axes[0].set_yticks(range(len(rows)), [f"{row['task']}: {row['model']}" for row in rows], fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set_xscale("log")
    axes[0].set_xlabel("milliseconds per training step")
    axes[0].legend(loc="lower right")
    length = results["over the length"]
    for name in ("LTI", "parallel"):
        points = [(row["steps"], row[f"milliseconds, {name}"]) for row in length if f"milliseconds, {name}" in row]
        axes[1].loglog(*zip(*points, strict=True), marker="o", label=name)
    axes[1].set_xlabel("steps per sequence")
    axes[1].set_ylabel("milliseconds per training step")
    axes[1].legend()


def _complexity(axes: Any, results: dict[str, Any]) -> None:
    rows = results["growth"]
    places = range(len(rows))
    axes[0].barh(places, [row["growth"] for row in rows], color="tab:blue", label="measured")
    axes[0].plot([row["expected"] for row in rows], places, "k|", markersize=12, label="by the paper's table")
    axes[0].set_yticks(places, [f"{row['layer']}, in {row['size']}" for row in rows], fontsize=7)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("growth: the exponent of that size")
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _streaming(axes: Any, results: dict[str, Any]) -> None:
    rows = results["steps"]
    places = range(len(rows))
    axes[0].barh(places, [row["microseconds"] for row in rows], label="a step of the stream")
    products = [row.get("microseconds of the products alone", float("nan")) for row in rows]
    axes[0].plot(products, places, "k|", markersize=14, label="its matrix products alone")
    axes[0].set_yticks(places, [row["model"] for row in rows], fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("microseconds")
    axes[0].legend()


_DRAW = {
    "layers": _layers,
    "algorithms": _algorithms,
    "training-time": _training_time,
    "complexity": _complexity,
    "streaming": _streaming,
}
