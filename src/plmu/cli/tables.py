"""Results as rows of tables."""

from __future__ import annotations

from typing import Any

from plmu.cli.catalogue import CATALOGUE, lookup

HEADER = ("experiment", "model", "run", "epochs", "parameters", "metric", "test", "paper", "seeds", "validation")
SHORTENED = "“n of N” epochs: the run was given fewer epochs than the experiment has by default."


def rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each score of a result, its main score first: the cells of HEADER and the hardware."""
    metric = summary["metric"]
    names = [metric, *(name for name in summary["test"] if name != metric)]
    lines: list[tuple[str, ...]] = []
    for name in names:
        score = summary["test"][name]
        paper = summary["paper"] if name == metric else None
        valid = [seed["valid"].get(name) for seed in summary["seeds"]]
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
    """The experiment's name, marked if its data were incomplete."""
    partial = "partial" in str(summary.get("notes", {}).get("data", ""))
    return f"{summary['experiment']} (partial data)" if partial else str(summary["experiment"])


def named(summary: dict[str, Any]) -> str:
    """The model's name, marked if it was trained on validation data too."""
    refit = summary["config"]["training"].get("refit", False)
    return f"{summary['model']}, refit" if refit else str(summary["model"])


def epochs(summary: dict[str, Any]) -> str:
    """The number of epochs, "n of N" if the run was shortened; empty for a model fitted in closed form."""
    name = summary["experiment"]
    if name in CATALOGUE and lookup(name).closed_form(summary["model"]):
        return ""
    trained, usual = summary["config"]["training"]["epochs"], _usual_epochs(summary)
    return f"{trained:,} of {usual:,}" if shortened(summary) else f"{trained:,}"


def shortened(summary: dict[str, Any]) -> bool:
    """Whether a result had fewer epochs than its model has by default. The epochs of a refit are not compared."""
    training, usual = summary["config"]["training"], _usual_epochs(summary)
    return usual is not None and not training.get("refit", False) and bool(training["epochs"] < usual)


def _usual_epochs(summary: dict[str, Any]) -> int | None:
    """The model's default number of epochs; None for an experiment or a model that this version does not have."""
    name, model = summary["experiment"], summary["model"]
    if name not in CATALOGUE or model not in lookup(name).models:
        return None
    return lookup(name).defaults(model).training.epochs


def run_name(summary: dict[str, Any]) -> str:
    """The name of a run, empty for the default name."""
    usual = f"{summary['experiment']}-{summary['model']}"
    return "" if summary["name"] == usual else str(summary["name"])


def shown(value: float, percent: bool, std: float | None = None) -> str:
    """A score, a fraction if `percent`, as text with its standard deviation: "98.49 ± 0.03 %", "1.470"."""
    if percent:
        return f"{100 * value:.2f}" + ("" if std is None else f" ± {100 * std:.2f}") + " %"
    mean = f"{value:#.{3 if abs(value) < 1 else 4}g}".rstrip(".")  # with its zeros: 1.470
    return mean + ("" if std is None else f" ± {std:.1g}")
