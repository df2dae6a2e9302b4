"""Results as rows of tables, and as Markdown in the marked places of the README and the documentation.

A place is between the lines `<!-- NAME: begin -->` and `<!-- NAME: end -->`; `PLACES` has the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from plmu.bench.markdown import MARK, fill
from plmu.errors import RunError
from plmu.experiments import EXPERIMENTS
from plmu.runs.folder import read_json

HEADER = ("experiment", "model", "run", "epochs", "parameters", "metric", "test", "paper", "seeds", "validation")
SHORTENED = "“n of N” epochs: the run was given fewer epochs than the experiment has by default."
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


def rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line for each score of a result, the deciding one first; the hardware comes last."""
    metric = summary["metric"]
    names = [metric, *(name for name in summary["test"] if name != metric)]
    lines: list[tuple[str, ...]] = []
    for name in names:
        score = summary["test"][name]
        paper = summary["paper"] if name == metric else None
        valid = [one["valid"].get(name) for one in summary["seeds"]]
        mean_valid = None if None in valid else sum(valid) / len(valid)
        lines.append(
            (
                titled(summary),
                named(summary),
                run_name(summary),
                epochs(summary),
                f"{summary['parameters']:,}",
                name.replace("_", " "),
                shown(score["mean"], summary["percent"], score["std"] if len(summary["seeds"]) > 1 else None),
                "" if paper is None else shown(paper, summary["percent"]),
                str(len(summary["seeds"])),
                "" if mean_valid is None else shown(mean_valid, summary["percent"]),
                summary["hardware"],
            )
        )
    return lines


def titled(summary: dict[str, Any]) -> str:
    """The experiment, and whether its data were not all there."""
    partial = "partial" in str(summary.get("notes", {}).get("data", ""))
    return f"{summary['experiment']} (partial data)" if partial else str(summary["experiment"])


def named(summary: dict[str, Any]) -> str:
    """The model, and whether it was trained on validation data too."""
    refit = summary["config"]["training"].get("refit", False)
    return f"{summary['model']}, refit" if refit else str(summary["model"])


def epochs(summary: dict[str, Any]) -> str:
    """How many epochs; and of how many, where the run was shortened. A closed form has none."""
    experiment = EXPERIMENTS.get(summary["experiment"])
    if experiment is not None and experiment.closed_form(summary["model"]):
        return ""
    given, usual = summary["config"]["training"]["epochs"], _usual_epochs(summary)
    return f"{given:,} of {usual:,}" if shortened(summary) else f"{given:,}"


def shortened(summary: dict[str, Any]) -> bool:
    """Whether it had fewer epochs than the experiment gives this model by default. A refit has epochs of its own."""
    training, usual = summary["config"]["training"], _usual_epochs(summary)
    return usual is not None and not training.get("refit", False) and bool(training["epochs"] < usual)


def _usual_epochs(summary: dict[str, Any]) -> int | None:
    """None for an experiment or a model of another version."""
    experiment = EXPERIMENTS.get(summary["experiment"])
    if experiment is None or summary["model"] not in experiment.models:
        return None
    return experiment.defaults(summary["model"]).training.epochs


def run_name(summary: dict[str, Any]) -> str:
    """The name of a run where it has one of its own, else nothing."""
    usual = f"{summary['experiment']}-{summary['model']}"
    return "" if summary["name"] == usual else str(summary["name"])


def shown(value: float, percent: bool, std: float | None = None) -> str:
    if percent:
        return f"{100 * value:.2f}" + ("" if std is None else f" ± {100 * std:.2f}") + " %"
    mean = f"{value:#.{3 if abs(value) < 1 else 4}g}".rstrip(".")  # with its zeros: 1.470
    return mean + ("" if std is None else f" ± {std:.1g}")


def results_table(summaries: list[dict[str, Any]]) -> str:
    """All scores of all results; with the hardware, unless it is the same for all."""
    lines = [row for summary in summaries for row in rows(summary)]
    if len({row[-1] for row in lines}) == 1:
        return _markdown(HEADER, (_unbroken(row[:-1]) for row in lines))
    return _markdown((*HEADER, "hardware"), map(_unbroken, lines))


def _unbroken(cells: Sequence[str]) -> list[str]:
    """Scores with no-break spaces, so that a narrow column does not split "98.61 ± 0.06 %"."""
    return [cell.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%") for cell in cells]


def headlines_table(summaries: list[dict[str, Any]]) -> str:
    """For each experiment the deciding score of our model, of the LSTM on the same data, and of the paper."""
    by_name = {one["name"]: one for one in summaries}
    lines = []
    for experiment, model in HEADLINES.items():
        ours, lstm = by_name.get(f"{experiment}-{model}"), by_name.get(f"{experiment}-lstm")
        if ours is None:
            continue
        rises = ours["percent"] or ours["metric"] == "bleu"
        cells = [titled(ours), model, f"{ours['metric']} {'↑' if rises else '↓'}"]
        cells += [_score(ours), "" if lstm is None else _score(lstm)]
        cells.append("" if ours["paper"] is None else shown(ours["paper"], ours["percent"]))
        cells += [f"{one['parameters']:,}" if one else "" for one in (ours, lstm)]
        lines.append(_unbroken(cells))
    header = ("experiment", "model", "metric", "ours", "LSTM", "paper", "parameters (ours)", "parameters (LSTM)")
    return _markdown(header, lines)


def _score(summary: dict[str, Any]) -> str:
    score = summary["test"][summary["metric"]]
    return shown(score["mean"], summary["percent"], score["std"] if len(summary["seeds"]) > 1 else None)


def training_table(benchmark: dict[str, Any]) -> str:
    """A training step of the original LMU and of ours, from the file of `plmu bench training-time`."""
    times = {(row["task"], row["model"]): row["milliseconds"] for row in benchmark["training step"]}
    lines = []
    tasks = dict.fromkeys((row["task"], row["steps"], row["batch"]) for row in benchmark["training step"])
    for task, steps, batch in tasks:
        original, ours = times[task, "original LMU"], times[task, "ours, parallel"]
        cells = [f"{task}, {steps:,} steps, batch {batch}"]
        for mode in ("graph", "eager"):
            cells += [f"{original[mode]:.3g}", f"{ours[mode]:.3g}", f"{original[mode] / ours[mode]:.3g}"]
        lines.append(cells)
    columns = ("original LMU, ms", "plmu, ms", "speed-up")
    return _markdown(("training step", *columns, *(f"eager: {name}" for name in columns)), lines)


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*head, *("| " + " | ".join(cells) + " |" for cells in lines)])


# What is written into each place: the function, and the benchmark's file that it is given. Without one, the results.
PLACES: dict[str, tuple[Callable[[Any], str], str | None]] = {
    "results": (results_table, None),
    "headlines": (headlines_table, None),
    "training": (training_table, "bench-training-time-cuda.json"),
}


def marks(place: str) -> tuple[str, str]:
    """The lines between which a table stands."""
    return f"<!-- {place}: begin -->", f"<!-- {place}: end -->"


def write_tables(path: Path, summaries: list[dict[str, Any]], folders: Sequence[Path]) -> None:
    """Write the tables into the marked places of a file; benchmarks are read from the first folder that has them."""
    text = path.read_text(encoding="utf-8")
    found = [place for place in PLACES if all(mark in text for mark in marks(place))]
    if not found and not MARK.search(text):
        known = " or ".join(" … ".join(marks(place)) for place in PLACES)
        raise ValueError(f"{path} has no place for a table: it needs the lines {known}")
    for place in found:
        table, file = PLACES[place]
        made = table(summaries if file is None else _benchmark(file, folders))
        begin, end = marks(place)
        before, rest = text.split(begin, 1)
        text = f"{before}{begin}\n{made}\n{end}{rest.split(end, 1)[1]}"
    path.write_text(fill(text, folders[0]), encoding="utf-8")


def _benchmark(file: str, folders: Sequence[Path]) -> dict[str, Any]:
    for folder in folders:
        if (folder / file).is_file():
            content: dict[str, Any] = read_json(folder / file)
            return content
    raise RunError(f"{file} is in none of {', '.join(map(str, folders))}: `plmu bench` writes it")
