"""The tables of the pages on speed: each function makes one table from a benchmark's results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from plmu.bench.show import comparisons

Results = dict[str, Any]
ALGORITHMS = ("fused", "chunked", "fft", "toeplitz", "recurrent")
BOTH = "milliseconds forward and backward"
EAGER = "milliseconds eager"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def number(value: float | None, digits: int = 3) -> str:
    """To `digits` figures, never as a power of ten."""
    if value is None:
        return ""
    if round(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:#.{digits}g}'):f}"


def _parameters(row: Results) -> str:
    return f"{row['parameters'] / 1e6:.2f}"


def whole(results: Results) -> str:
    """Milliseconds of each layer, and its parameters in millions; a line for each comparison."""
    names = list(dict.fromkeys(row["layer"] for row in results["whole layers"]))
    lines = []
    for rows in comparisons(results):
        cells = {row["layer"]: f"{number(row[BOTH])} ({_parameters(row)})" for row in rows}
        lines.append([_with_channels(rows[0]), *(cells.get(name, "") for name in names)])
    return markdown(["shape", *names], lines)


def _with_channels(ours: Results) -> str:
    """A shape, with the memory channels of our layer where the file has them: one shape may be there twice."""
    channels = re.search(r"on (?:all )?(\d+) channels", ours["width"])
    return f"{ours['shape']}, {channels[1]} memory channels" if channels else str(ours["shape"])


def whole_ratios(results: Results) -> str:
    """The range of each baseline's time relative to ours, and where it is faster: as CUDA graphs and, if measured,
    eager."""
    groups = comparisons(results)
    eager = any(EAGER in rows[0] for rows in groups)
    lines = []
    for name in dict.fromkeys(row["layer"] for rows in groups for row in rows[1:]):
        pairs = [(rows[0], row) for rows in groups for row in rows if row["layer"] == name]
        ratios = [_range([(row["times ours"], row) for _, row in pairs])]
        if eager:
            timed = [(ours, row) for ours, row in pairs if EAGER in ours and EAGER in row]
            ratios.append(_range([(row[EAGER]["both"] / ours[EAGER]["both"], row) for ours, row in timed]))
        lines.append([name, *(cell for cells in ratios for cell in cells)])
    header = [f"time relative to plmu, {way}" for way in ("graph", "eager")[: 1 + eager]]
    return markdown(["baseline", *(cell for name in header for cell in (name, "shapes where it is faster"))], lines)


def _range(rows: Sequence[tuple[float, Results]]) -> tuple[str, str]:
    """The lowest and the highest ratio, and the rows with a ratio below 1."""
    ratios = [ratio for ratio, _ in rows]
    if not ratios:
        return "", ""
    wins = [f"order {row['order']}, {row['time']:,} steps, {_parameters(row)} M" for ratio, row in rows if ratio < 1]
    return f"{number(min(ratios))} to {number(max(ratios))}", "; ".join(wins) or "none"


def whole_widths(results: Results) -> str:
    """The width of each layer, a line for each comparison; and its implementation."""
    names = list(dict.fromkeys(row["layer"] for row in results["whole layers"]))
    lines = []
    for rows in comparisons(results):
        widths = {row["layer"]: row["width"] for row in rows}
        lines.append([rows[0]["shape"], *(widths.get(name, "") for name in names)])
    ran = dict.fromkeys((row["layer"], row["source"]) for rows in comparisons(results) for row in rows)
    sources = "; ".join(f"{name}: {source}" for name, source in ran)
    return f"{markdown(['shape', *names], lines)}\n\nImplementations: {sources}."


def gemm(dtype: str) -> Callable[[Results], str]:
    def make(results: Results) -> str:
        lines = [
            [
                row["shape"],
                number(row["milliseconds forward"]["GEMM"]),
                number(row["milliseconds forward"]["auto"]),
                number(row["over the GEMM, forward"]["auto"]),
                number(row[BOTH]["auto"]),
                number(row["over the GEMM, both"]["auto"]),
                number(row["times faster than the FFT, both"]),
                number(max(0.0, row["working memory over u + o"]["auto"]), 2),
                f"{row['error']['auto']:.1e}",
                f"{row['error']['FFT']:.1e}",
            ]
            for row in results["over the GEMM"]
            if row["dtype"] == dtype
        ]
        header = ["shape", "GEMM, ms forward", "ours, ms forward", "ours / GEMM", "ours, ms both", "ours / GEMM, both"]
        return markdown([*header, "FFT / ours, both", "working memory / (u + o)", "error", "error of the FFT"], lines)

    return make


def choices(name: str) -> Callable[[Results], str]:
    def make(results: Results) -> str:
        rows = results[name]
        names = [name for name in ALGORITHMS if any(name in row["milliseconds"] for row in rows)]
        lines = [
            [
                row["shape"],
                *(number(row["milliseconds"].get(name)) for name in (*names, "auto")),
                row["chosen"],
                number(row["auto over best"]),
            ]
            for row in rows
        ]
        return markdown(["shape", *names, "auto", "chosen", "auto / fastest"], lines)

    return make


def length(results: Results) -> str:
    rows = results["length"]
    header = ["steps per sequence", *(f"{row['time']:,}" for row in rows)]
    return markdown(header, [["million tokens per second", *(f"{row['tokens per second'] / 1e6:.0f}" for row in rows)]])


def training(results: Results) -> str:
    lines = [
        [
            f"{row['task']}, {row['steps']:,} steps, batch {row['batch']}",
            row["model"].replace("LTI", "recurrent"),
            *(number(row["milliseconds"][kind]) for kind in ("eager", "graph")),
            *(number(row["times faster than the original"][kind]) for kind in ("eager", "graph")),
        ]
        for row in results["training step"]
    ]
    faster = "times faster than the original LMU"
    return markdown(["task", "model", "eager, ms", "CUDA graph, ms", f"{faster}, eager", f"{faster}, graph"], lines)


def speed_ups(results: Results) -> str:
    """A training step of the original LMU and of ours."""
    times = {(row["task"], row["model"]): row["milliseconds"] for row in results["training step"]}
    lines = []
    tasks = dict.fromkeys((row["task"], row["steps"], row["batch"]) for row in results["training step"])
    for task, steps, batch in tasks:
        original, ours = times[task, "original LMU"], times[task, "ours, parallel"]
        cells = [f"{task}, {steps:,} steps, batch {batch}"]
        for mode in ("graph", "eager"):
            cells += [f"{original[mode]:.3g}", f"{ours[mode]:.3g}", f"{original[mode] / ours[mode]:.3g}"]
        lines.append(cells)
    columns = ("original LMU, ms", "plmu, ms", "speed-up")
    return markdown(("training step", *columns, *(f"eager: {name}" for name in columns)), lines)


def answers(results: Results) -> str:
    lines = []
    for row in results["rows"]:
        scores = [
            f"{100 * score['accuracy']:.2f} %" if "accuracy" in score else f"NRMSE {score['nrmse']:.4f}"
            for score in (row["valid"], row["test"])
        ]
        lines.append([f"`{row['command']}`", f"{row['seconds']:.1f}", *scores])
    return markdown(["command", "seconds", "validation", "test"], lines)


def growth(results: Results) -> str:
    rows = results["growth"]
    lines = []
    for layer, paper in dict.fromkeys((row["layer"], row["paper"]) for row in rows):
        exponents = {row["size"]: f"{row['growth']:.2f}" for row in rows if row["layer"] == layer}
        lines.append([layer, paper, *(exponents.get(size, "") for size in ("n", "d", "d_x"))])
    return markdown(["layer", "by the paper", "in n", "in d", "in d_x"], lines)


def isolation(results: Results) -> str:
    lines: dict[str, list[str]] = {}
    for row in results["rows"]:
        lines.setdefault(row["shape"], [row["shape"]]).extend(number(row[way]["ratio"]) for way in ("forward", "both"))
    return markdown(["shape", "bf16 forward", "bf16 both", "fp32 forward", "fp32 both"], lines.values())


def calls(results: Results) -> str:
    """Calls of whole layers; times are forward / both."""

    def pair(values: Results, digits: int = 3) -> str:
        return " / ".join(number(values[way], digits) for way in ("forward", "both"))

    lines = [
        [
            row["shape"],
            row["layer"],
            *(pair(row[kind]) for kind in ("host, ms", "eager, ms", "graph, ms", "over the GEMMs")),
        ]
        for row in results["whole layers"]
    ]
    return markdown(["shape", "layer", "host", "eager", "graph", "graph over GEMMs"], lines)


def windows(results: Results) -> str:
    """Layers with several windows over the same with one, forward and backward: of the later run, if there is one."""
    rows = results.get("windows, filtered after the product", {}).get("rows", results["windows"])
    lines = [
        [
            row["shape"],
            ", ".join(f"{theta:g}" for theta in row["windows"]),
            *(number(row["graph, ms"][name]) for name in ("one", "several")),
            number(row["several over one"]["graph, both"]),
        ]
        for row in rows
    ]
    return markdown(["shape", "windows", "one, ms graph", "several, ms graph", "ratio"], lines)


def resets(results: Results) -> str:
    """The time of a training step without resets, and with resets relative to it."""
    kinds = list(results["rows"][0]["over without"])
    lines = [
        [
            row["shape"],
            number(row["graph, ms"]["without, both"]),
            *(number(row["over without"][kind]["both"]) for kind in kinds),
            *(number(row["host, ms"][f"{kind}, both"]) for kind in ("without", kinds[0])),
        ]
        for row in results["rows"]
    ]
    header = ["shape", "without, ms graph", *(f"ratio, {kind}" for kind in kinds)]
    return markdown([*header, "host without, ms", f"host, {kinds[0]}, ms"], lines)


def language(results: Results) -> str:
    """Training steps of language models."""
    lines = [
        [
            f"{row['experiment']} {row['model']}",
            _parameters(row),
            f"{row['batch']} × {row['length']}",
            number(row["milliseconds"]),
            number(row["tokens per second"] / 1e6),
            "" if row["share of the bfloat16 peak"] is None else f"{row['share of the bfloat16 peak']:.0%}",
        ]
        for row in results["rows"]
    ]
    header = ["model", "million parameters", "batch × length", "ms a step", "million tokens a second"]
    return markdown([*header, "of the bfloat16 peak"], lines)


def float32(results: Results) -> str:
    """Float32 beside the plain float32 GEMM of an m in memory."""
    lines = [
        [
            row["shape"],
            *(number(row["ms"][way]) for way in ("GEMM both", "both")),
            *(number(row["over the GEMM"][way]) for way in ("forward", "both")),
            number(row["with resets over without"]),
            number(row["working memory over u + o"], 2),
            number(max(row["error over plain"]), 2),
        ]
        for row in results["rows"]
    ]
    header = ["shape", "GEMM, ms both", "ours, ms both", "ours / GEMM, forward", "ours / GEMM, both"]
    rest = ["with resets / without", "working memory / (u + o)", "largest error / plain float32's"]
    return markdown([*header, *rest], lines)


def cpu(results: Results) -> str:
    lines = [
        [row["name"], row["ours"], number(row["milliseconds"]), number(row["ratio"]), row["bar"]]
        for row in results["rows"]
    ]
    return markdown(["case", "ours", "ms", "ratio", "target"], lines)


def keras_lmu(results: Results) -> str:
    """Each form of keras-lmu: its time over ours, with quartiles; and the errors of both in float32."""
    forms = list(results["rows"][0]["times ours"])

    def ratio(row: Results, form: str) -> str:
        low, high = row["quartiles of times ours"][form]
        return f"{number(row['times ours'][form])} ({number(low)} to {number(high)})"

    lines = [
        [
            f"{row['shape']}, {row['output']}",
            number(row["milliseconds"]["plmu"]),
            *(ratio(row, form) for form in forms),
            *(f"{row['error'][name]:.1e}" for name in ("plmu", "keras-lmu")),
        ]
        for row in results["rows"]
    ]
    return markdown(["shape, output", "plmu, ms", *forms, "error of plmu", "error of keras-lmu"], lines)
