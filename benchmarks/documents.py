"""Write the tables of the README and of docs/ from the files in results/: `python -m benchmarks.documents`.

The table NAME stands between the lines `<!-- NAME: begin -->` and `<!-- NAME: end -->` of a page. `RESULTS` has the
tables of scores of runs, and `BENCHMARKS` those of benchmarks, each with the files that it is made from.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import anomaly_tables, panel_tables, single_series_tables, tables
from plmu.cli.report import load
from plmu.cli.tables import HEADER, rows, shown, titled
from plmu.runs.folder import read_json

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/results.md", "docs/performance.md", "docs/performance-record.md")
MARKED = re.compile(r"<!-- (?P<name>[\w-]+): begin -->\n.*?<!-- (?P=name): end -->", re.DOTALL)
# The README has a row for each experiment, with this model of ours beside the LSTM.
HEADLINES = {
    "psmnist": "plmu",
    "mackey-glass": "plmu",
    "addition": "plmu",
    "imdb": "plmu",
    "qqp": "deep",
    "snli": "deep",
    "text8": "modern",
    "iwslt": "plmu",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of pages from result files.")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder with the result files (results)")
    parser.add_argument("pages", type=Path, nargs="*", help=f"Markdown files ({', '.join(PAGES)})")
    options = parser.parse_args()
    for page in options.pages or [ROOT / name for name in PAGES]:
        write_tables(page, options.results)


def write_tables(path: Path, results: Path) -> None:
    """Write every marked table of a page from the result files of a folder."""
    page = path.read_text(encoding="utf-8")
    if not MARKED.search(page):
        raise ValueError(f"{path} has no place for a table: it needs the lines {' … '.join(marks('results'))}")
    path.write_text(filled(page, results), encoding="utf-8")


def marks(name: str) -> tuple[str, str]:
    """The lines between which a table stands."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def filled(page: str, results: Path) -> str:
    """A page with its marked tables made from the result files of a folder."""

    def place(match: re.Match[str]) -> str:
        begin, end = marks(match["name"])
        return f"{begin}\n{table(match['name'], results)}\n{end}"

    return MARKED.sub(place, page)


def table(name: str, results: Path) -> str:
    """A table by name, or a line that says which command measures what it needs."""
    if name in RESULTS:
        return RESULTS[name](load(results))
    if name not in BENCHMARKS:
        raise ValueError(f"there is no table {name!r}: it is one of {', '.join((*RESULTS, *BENCHMARKS))}")
    file, command, make = BENCHMARKS[name]
    files = (file,) if isinstance(file, str) else file
    benchmarks = [read_json(results / name) if (results / name).is_file() else {} for name in files]
    try:
        text = make(*benchmarks)
    except KeyError:  # an older file, or none
        text = f"*No results in {' and '.join(files)}: run `{command}`.*"
    return text + _measured_with(benchmarks[0].get("machine", {}))


def _measured_with(machine: dict[str, Any]) -> str:
    """A line with the versions and the hardware, as far as a file has them."""
    parts = [f"{name} {machine[name]}" for name in ("plmu", "torch") if name in machine]
    parts += [machine["hardware"]] if "hardware" in machine else []
    return f"\n\nMeasured with {', '.join(parts)}." if parts else ""


def results_table(summaries: list[dict[str, Any]]) -> str:
    """All scores of all results; with the hardware, unless it is the same for all."""
    lines = [row for summary in summaries for row in rows(summary)]
    if len({row[-1] for row in lines}) == 1:
        return tables.markdown(HEADER, (_unbroken(row[:-1]) for row in lines))
    return tables.markdown((*HEADER, "hardware"), map(_unbroken, lines))


def _unbroken(cells: Sequence[str]) -> list[str]:
    """Scores with no-break spaces, so that a narrow column does not split "98.61 ± 0.06 %"."""
    return [cell.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%") for cell in cells]


def headlines_table(summaries: list[dict[str, Any]]) -> str:
    """For each experiment the deciding score of our model, of the LSTM on the same data, and of the paper."""
    by_name = {summary["name"]: summary for summary in summaries}
    lines = []
    for experiment, model in HEADLINES.items():
        ours, lstm = by_name.get(f"{experiment}-{model}"), by_name.get(f"{experiment}-lstm")
        if ours is None:
            continue
        rises = ours["percent"] or ours["metric"] == "bleu"
        cells = [titled(ours), model, f"{ours['metric']} {'↑' if rises else '↓'}"]
        cells += [_score(ours), "" if lstm is None else _score(lstm)]
        cells.append("" if ours["paper"] is None else shown(ours["paper"], ours["percent"]))
        cells += [f"{summary['parameters']:,}" if summary else "" for summary in (ours, lstm)]
        lines.append(_unbroken(cells))
    header = ("experiment", "model", "metric", "ours", "LSTM", "paper", "parameters (ours)", "parameters (LSTM)")
    return tables.markdown(header, lines)


def _score(summary: dict[str, Any]) -> str:
    score = summary["test"][summary["metric"]]
    return shown(score["mean"], summary["percent"], score["std"] if len(summary["seeds"]) > 1 else None)


# Tables of scores.
RESULTS: dict[str, Callable[[list[dict[str, Any]]], str]] = {"results": results_table, "headlines": headlines_table}
_CALLS = ("bench-calls-cuda.json", "python -m benchmarks.calls --json results/bench-calls-cuda.json")
_LAYERS = ("bench-layers-cuda.json", "python -m benchmarks.layers --out results")
_ALGORITHMS = ("bench-algorithms-cuda.json", "plmu bench algorithms --device cuda")
_TRAINING = ("bench-training-time-cuda.json", "plmu bench training-time --device cuda")
_PANELS = (("panels.json", "panels-peers.json"), "python -m benchmarks.panels --json results")
# Other tables: the file or the files, the command that writes the first, and what makes the table.
BENCHMARKS: dict[str, tuple[str | tuple[str, ...], str, Callable[..., str]]] = {
    "whole": (*_LAYERS, tables.whole),
    "whole-ratios": (*_LAYERS, tables.whole_ratios),
    "whole-widths": (*_LAYERS, tables.whole_widths),
    "gemm-bfloat16": (*_ALGORITHMS, tables.gemm("bfloat16")),
    "gemm-float32": (*_ALGORITHMS, tables.gemm("float32")),
    "choices-graphs": (*_ALGORITHMS, tables.choices("auto against every algorithm, as graphs")),
    "choices-eager": (*_ALGORITHMS, tables.choices("auto against every algorithm")),
    "choices-resets": (*_ALGORITHMS, tables.choices("with resets, as graphs")),
    "length": (*_LAYERS, tables.length),
    "float32": (
        "bench-float32-cuda.json",
        "python -m benchmarks.float32 --json results/bench-float32-cuda.json",
        tables.float32,
    ),
    "language": (
        "bench-language-cuda.json",
        "python -m benchmarks.language --device cuda --json results/bench-language-cuda.json",
        tables.language,
    ),
    "calls": (*_CALLS, tables.calls),
    "windows": (*_CALLS, tables.windows),
    "resets": (
        "bench-resets-cuda.json",
        "python -m benchmarks.resets --json results/bench-resets-cuda.json",
        tables.resets,
    ),
    "training-time": (*_TRAINING, tables.training),
    "training": (*_TRAINING, tables.speed_ups),
    "growth": ("bench-complexity-cuda.json", "plmu bench complexity --device cuda", tables.growth),
    "answers": ("answers.json", "python -m benchmarks.answers --json results/answers.json", tables.answers),
    "isolation": (
        "bench-isolation-cuda.json",
        "python -m benchmarks.isolation --json results/bench-isolation-cuda.json",
        tables.isolation,
    ),
    "cpu": ("bench-cpu.json", "python -m benchmarks.cpu --json results/bench-cpu.json", tables.cpu),
    "keras-lmu": (
        "bench-keras-lmu-cpu.json",
        "python -m benchmarks.keras_lmu --json results/bench-keras-lmu-cpu.json",
        tables.keras_lmu,
    ),
    "panels": (*_PANELS, panel_tables.points),
    "panel-m4": (*_PANELS, panel_tables.competition),
    "panel-intervals": (*_PANELS, panel_tables.intervals),
    "panel-seconds": (*_PANELS, panel_tables.seconds),
    "single-series": (
        "single-series.json",
        "python -m benchmarks.single_series --peers PYTHON --json results",
        single_series_tables.series,
    ),
    "alarm-rates": (
        "alarm-rates.json",
        "python -m benchmarks.alarm_rates --json results",
        anomaly_tables.rates,
    ),
    "nab": ("nab.json", "python -m benchmarks.nab --json results", anomaly_tables.detectors),
}

if __name__ == "__main__":
    main()
