"""Tables of benchmark results for a page: what `plmu report --readme FILE` writes between the page's marks.

A place for the table NAME is marked by the lines `<!-- bench NAME: begin -->` and `<!-- bench NAME: end -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from plmu.bench.show import comparisons

Found = dict[str, Any]
MARK = re.compile(r"<!-- bench (?P<name>[\w-]+): begin -->\n.*?<!-- bench (?P=name): end -->", re.DOTALL)
ALGORITHMS = ("fused", "chunked", "fft", "toeplitz", "recurrent")
BOTH = "milliseconds forward and backward"
EAGER = "milliseconds eager"


def fill(page: str, results: Path) -> str:
    """The page with every marked table made anew from the JSON files of a folder."""

    def table(mark: re.Match[str]) -> str:
        name = mark["name"]
        if name not in TABLES:
            raise ValueError(f"there is no table {name!r}: it is one of {', '.join(TABLES)}")
        file, command, make = TABLES[name]
        path = results / file
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        try:
            made = make(found)
        except KeyError:  # an older file, or none
            made = f"*No results in {file}: run `{command}`.*"
        made += _measured_with(found.get("machine", {}))
        return f"<!-- bench {name}: begin -->\n{made}\n<!-- bench {name}: end -->"

    return MARK.sub(table, page)


def _measured_with(machine: Found) -> str:
    """A line with the versions and the hardware, as far as a file has them."""
    known = [f"{name} {machine[name]}" for name in ("plmu", "torch") if name in machine]
    known += [machine["hardware"]] if "hardware" in machine else []
    return f"\n\nMeasured with {', '.join(known)}." if known else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _number(value: float | None, digits: int = 3) -> str:
    """To `digits` figures, never as a power of ten."""
    if value is None:
        return ""
    if round(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:#.{digits}g}'):f}"


def _parameters(row: Found) -> str:
    return f"{row['parameters'] / 1e6:.2f}"


def whole(found: Found) -> str:
    """Milliseconds of each layer, and its parameters in millions; a line for each comparison."""
    names = list(dict.fromkeys(row["layer"] for row in found["whole layers"]))
    lines = []
    for rows in comparisons(found):
        known = {row["layer"]: f"{_number(row[BOTH])} ({_parameters(row)})" for row in rows}
        lines.append([_with_channels(rows[0]), *(known.get(name, "") for name in names)])
    return _table(["shape", *names], lines)


def _with_channels(ours: Found) -> str:
    """A shape, with the memory channels of our layer where the file has them: one shape may be there twice."""
    channels = re.search(r"on (?:all )?(\d+) channels", ours["width"])
    return f"{ours['shape']}, {channels[1]} memory channels" if channels else str(ours["shape"])


def whole_ratios(found: Found) -> str:
    """For each baseline: its time relative to ours, from the least to the most, and where it is faster; as graphs and,
    where that was measured, eager."""
    groups = comparisons(found)
    eager = any(EAGER in rows[0] for rows in groups)
    lines = []
    for name in dict.fromkeys(row["layer"] for rows in groups for row in rows[1:]):
        pairs = [(rows[0], row) for rows in groups for row in rows if row["layer"] == name]
        ratios = [_range([(row["times ours"], row) for _, row in pairs])]
        if eager:
            known = [(ours, row) for ours, row in pairs if EAGER in ours and EAGER in row]
            ratios.append(_range([(row[EAGER]["both"] / ours[EAGER]["both"], row) for ours, row in known]))
        lines.append([name, *(cell for cells in ratios for cell in cells)])
    header = [f"time relative to plmu, {way}" for way in ("graph", "eager")[: 1 + eager]]
    return _table(["baseline", *(cell for one in header for cell in (one, "shapes where it is faster"))], lines)


def _range(known: Sequence[tuple[float, Found]]) -> tuple[str, str]:
    """The least and the most of several ratios, and the rows of those below one; nothing of none."""
    ratios = [ratio for ratio, _ in known]
    if not ratios:
        return "", ""
    wins = [f"order {row['order']}, {row['time']:,} steps, {_parameters(row)} M" for ratio, row in known if ratio < 1]
    return f"{_number(min(ratios))} to {_number(max(ratios))}", "; ".join(wins) or "none"


def whole_widths(found: Found) -> str:
    """How wide each layer was made, a line for each comparison; and what ran it."""
    names = list(dict.fromkeys(row["layer"] for row in found["whole layers"]))
    lines = []
    for rows in comparisons(found):
        known = {row["layer"]: row["width"] for row in rows}
        lines.append([rows[0]["shape"], *(known.get(name, "") for name in names)])
    ran = dict.fromkeys((row["layer"], row["source"]) for rows in comparisons(found) for row in rows)
    sources = "; ".join(f"{name}: {source}" for name, source in ran)
    return f"{_table(['shape', *names], lines)}\n\nImplementations: {sources}."


def gemm(dtype: str) -> Callable[[Found], str]:
    def make(found: Found) -> str:
        lines = [
            [
                row["shape"],
                _number(row["milliseconds forward"]["GEMM"]),
                _number(row["milliseconds forward"]["auto"]),
                _number(row["over the GEMM, forward"]["auto"]),
                _number(row[BOTH]["auto"]),
                _number(row["over the GEMM, both"]["auto"]),
                _number(row["times faster than the FFT, both"]),
                _number(max(0.0, row["working memory over u + o"]["auto"]), 2),
                f"{row['error']['auto']:.1e}",
                f"{row['error']['FFT']:.1e}",
            ]
            for row in found["over the GEMM"]
            if row["dtype"] == dtype
        ]
        header = ["shape", "GEMM, ms forward", "ours, ms forward", "ours / GEMM", "ours, ms both", "ours / GEMM, both"]
        return _table([*header, "FFT / ours, both", "working memory / (u + o)", "error", "error of the FFT"], lines)

    return make


def choices(name: str) -> Callable[[Found], str]:
    def make(found: Found) -> str:
        rows = found[name]
        names = [one for one in ALGORITHMS if any(one in row["milliseconds"] for row in rows)]
        lines = [
            [
                row["shape"],
                *(_number(row["milliseconds"].get(one)) for one in (*names, "auto")),
                row["chosen"],
                _number(row["auto over best"]),
            ]
            for row in rows
        ]
        return _table(["shape", *names, "auto", "chosen", "auto / fastest"], lines)

    return make


def length(found: Found) -> str:
    rows = found["length"]
    header = ["steps per sequence", *(f"{row['time']:,}" for row in rows)]
    return _table(header, [["million tokens per second", *(f"{row['tokens per second'] / 1e6:.0f}" for row in rows)]])


def training(found: Found) -> str:
    lines = [
        [
            f"{row['task']}, {row['steps']:,} steps, batch {row['batch']}",
            row["model"].replace("LTI", "recurrent"),
            *(_number(row["milliseconds"][kind]) for kind in ("eager", "graph")),
            *(_number(row["times faster than the original"][kind]) for kind in ("eager", "graph")),
        ]
        for row in found["training step"]
    ]
    faster = "times faster than the original LMU"
    return _table(["task", "model", "eager, ms", "CUDA graph, ms", f"{faster}, eager", f"{faster}, graph"], lines)


def answers(found: Found) -> str:
    lines = []
    for row in found["rows"]:
        scores = [
            f"{100 * score['accuracy']:.2f} %" if "accuracy" in score else f"NRMSE {score['nrmse']:.4f}"
            for score in (row["valid"], row["test"])
        ]
        lines.append([f"`{row['command']}`", f"{row['seconds']:.1f}", *scores])
    return _table(["command", "seconds", "validation", "test"], lines)


def growth(found: Found) -> str:
    rows = found["growth"]
    lines = []
    for layer, paper in dict.fromkeys((row["layer"], row["paper"]) for row in rows):
        known = {row["size"]: f"{row['growth']:.2f}" for row in rows if row["layer"] == layer}
        lines.append([layer, paper, *(known.get(size, "") for size in ("n", "d", "d_x"))])
    return _table(["layer", "by the paper", "in n", "in d", "in d_x"], lines)


def isolation(found: Found) -> str:
    lines: dict[str, list[str]] = {}
    for row in found["rows"]:
        lines.setdefault(row["shape"], [row["shape"]]).extend(_number(row[way]["ratio"]) for way in ("forward", "both"))
    return _table(["shape", "bf16 forward", "bf16 both", "fp32 forward", "fp32 both"], lines.values())


def calls(found: Found) -> str:
    """Whole layers as they are called; times are forward / both."""

    def pair(values: Found, digits: int = 3) -> str:
        return " / ".join(_number(values[way], digits) for way in ("forward", "both"))

    lines = [
        [
            row["shape"],
            row["layer"],
            *(pair(row[kind]) for kind in ("host, ms", "eager, ms", "graph, ms", "over the GEMMs")),
        ]
        for row in found["whole layers"]
    ]
    return _table(["shape", "layer", "host", "eager", "graph", "graph over GEMMs"], lines)


def windows(found: Found) -> str:
    """Layers with several windows over the same with one, forward and backward: of the later run, if there is one."""
    rows = found.get("windows, filtered after the product", {}).get("rows", found["windows"])
    lines = [
        [
            row["shape"],
            ", ".join(f"{theta:g}" for theta in row["windows"]),
            *(_number(row["graph, ms"][name]) for name in ("one", "several")),
            _number(row["several over one"]["graph, both"]),
        ]
        for row in rows
    ]
    return _table(["shape", "windows", "one, ms graph", "several, ms graph", "ratio"], lines)


def resets(found: Found) -> str:
    """A training step without resets, and how long it takes with them relative to that."""
    kinds = list(found["rows"][0]["over without"])
    lines = [
        [
            row["shape"],
            _number(row["graph, ms"]["without, both"]),
            *(_number(row["over without"][kind]["both"]) for kind in kinds),
            *(_number(row["host, ms"][f"{kind}, both"]) for kind in ("without", kinds[0])),
        ]
        for row in found["rows"]
    ]
    header = ["shape", "without, ms graph", *(f"ratio, {kind}" for kind in kinds)]
    return _table([*header, "host without, ms", f"host, {kinds[0]}, ms"], lines)


def language(found: Found) -> str:
    """Training steps of language models."""
    lines = [
        [
            f"{row['experiment']} {row['model']}",
            _parameters(row),
            f"{row['batch']} × {row['length']}",
            _number(row["milliseconds"]),
            _number(row["tokens per second"] / 1e6),
            "" if row["share of the bfloat16 peak"] is None else f"{row['share of the bfloat16 peak']:.0%}",
        ]
        for row in found["rows"]
    ]
    header = ["model", "million parameters", "batch × length", "ms a step", "million tokens a second"]
    return _table([*header, "of the bfloat16 peak"], lines)


def float32(found: Found) -> str:
    """Float32 beside the plain float32 GEMM of an m in memory."""
    lines = [
        [
            row["shape"],
            *(_number(row["ms"][way]) for way in ("GEMM both", "both")),
            *(_number(row["over the GEMM"][way]) for way in ("forward", "both")),
            _number(row["with resets over without"]),
            _number(row["working memory over u + o"], 2),
            _number(max(row["error over plain"]), 2),
        ]
        for row in found["rows"]
    ]
    header = ["shape", "GEMM, ms both", "ours, ms both", "ours / GEMM, forward", "ours / GEMM, both"]
    rest = ["with resets / without", "working memory / (u + o)", "largest error / plain float32's"]
    return _table([*header, *rest], lines)


def cpu(found: Found) -> str:
    lines = [
        [row["name"], row["ours"], _number(row["milliseconds"]), _number(row["ratio"]), row["bar"]]
        for row in found["rows"]
    ]
    return _table(["case", "ours", "ms", "ratio", "target"], lines)


def keras_lmu(found: Found) -> str:
    """Each form of keras-lmu: its time over ours, with quartiles; and the errors of both in float32."""
    forms = list(found["rows"][0]["times ours"])

    def ratio(row: Found, form: str) -> str:
        low, high = row["quartiles of times ours"][form]
        return f"{_number(row['times ours'][form])} ({_number(low)} to {_number(high)})"

    lines = [
        [
            f"{row['shape']}, {row['output']}",
            _number(row["milliseconds"]["plmu"]),
            *(ratio(row, form) for form in forms),
            *(f"{row['error'][name]:.1e}" for name in ("plmu", "keras-lmu")),
        ]
        for row in found["rows"]
    ]
    return _table(["shape, output", "plmu, ms", *forms, "error of plmu", "error of keras-lmu"], lines)


_CALLS = ("bench-calls-cuda.json", "python -m benchmarks.calls --json results/bench-calls-cuda.json")
_LAYERS = ("bench-layers-cuda.json", "plmu bench layers --device cuda")
_ALGORITHMS = ("bench-algorithms-cuda.json", "plmu bench algorithms --device cuda")
# For each table its file, the command that writes the file, and what makes the table.
TABLES: dict[str, tuple[str, str, Callable[[Found], str]]] = {
    "whole": (*_LAYERS, whole),
    "whole-ratios": (*_LAYERS, whole_ratios),
    "whole-widths": (*_LAYERS, whole_widths),
    "gemm-bfloat16": (*_ALGORITHMS, gemm("bfloat16")),
    "gemm-float32": (*_ALGORITHMS, gemm("float32")),
    "choices-graphs": (*_ALGORITHMS, choices("auto against every algorithm, as graphs")),
    "choices-eager": (*_ALGORITHMS, choices("auto against every algorithm")),
    "choices-resets": (*_ALGORITHMS, choices("with resets, as graphs")),
    "length": (*_LAYERS, length),
    "float32": (
        "bench-float32-cuda.json",
        "python -m benchmarks.float32 --json results/bench-float32-cuda.json",
        float32,
    ),
    "language": (
        "bench-language-cuda.json",
        "python -m benchmarks.language --device cuda --json results/bench-language-cuda.json",
        language,
    ),
    "calls": (*_CALLS, calls),
    "windows": (*_CALLS, windows),
    "resets": (
        "bench-resets-cuda.json",
        "python -m benchmarks.resets --json results/bench-resets-cuda.json",
        resets,
    ),
    "training": ("bench-training-time-cuda.json", "plmu bench training-time --device cuda", training),
    "growth": ("bench-complexity-cuda.json", "plmu bench complexity --device cuda", growth),
    "answers": ("answers.json", "python -m benchmarks.answers --json results/answers.json", answers),
    "isolation": (
        "bench-isolation-cuda.json",
        "python -m benchmarks.isolation --json results/bench-isolation-cuda.json",
        isolation,
    ),
    "cpu": ("bench-cpu.json", "python -m benchmarks.cpu --json results/bench-cpu.json", cpu),
    "keras-lmu": (
        "bench-keras-lmu-cpu.json",
        "python -m benchmarks.keras_lmu --json results/bench-keras-lmu-cpu.json",
        keras_lmu,
    ),
}
