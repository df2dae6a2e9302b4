"""The report of all results: a table in the terminal, a page and plots."""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmu.cli.curves import curves, has_curves, labelled, plot_curves
from plmu.cli.tables import HEADER, SHORTENED, rows, shortened, shown, titled
from plmu.errors import RunError, printable
from plmu.runs.folder import read_json, write_figure, write_text
from plmu.timeseries.reporting import literal
from plmu.training.terminal import Console, show_table


def summary_table(summaries: list[dict[str, Any]]) -> None:
    """Print a table of results beside the paper's scores, and the hardware of the runs."""
    console = Console()
    show_table(HEADER, [row[:-1] for summary in summaries for row in rows(summary)], console=console)
    if any(shortened(summary) for summary in summaries):
        console.print(SHORTENED, highlight=False)
    hardware = "; ".join(sorted({summary["hardware"] for summary in summaries}))
    console.print(printable(f"on {hardware}"), markup=False, highlight=False)


def own_data_table(summary: dict[str, Any]) -> None:
    """Print the test scores of a run on the user's own data: a row for each model, a column for each score.

    A score named after a baseline is in the baseline's row: `last_value_mse` is the mse of "last value".
    """
    scores, percent, many = summary["test"], summary["percent"], len(summary["seeds"]) > 1
    table: dict[str, dict[str, str]] = {summary["model"]: {}}
    for name, score in scores.items():
        column = next((other for other in scores if name.endswith(f"_{other}")), name)
        row = summary["model"] if column == name else name.removesuffix(f"_{column}").replace("_", " ")
        std = score["std"] if many and score["std"] > 0 else None
        table.setdefault(row, {})[column] = shown(score["mean"], percent, std)
    columns = list(table[summary["model"]])
    console = Console()
    title = f"test scores, mean of {len(summary['seeds'])} seeds" if many else "test scores"
    show_table(
        ["model", *(column.replace("_", " ") for column in columns)],
        [[row, *(cells.get(column, "") for column in columns)] for row, cells in table.items()],
        title=title,
        console=console,
    )


def load(*folders: Path) -> list[dict[str, Any]]:
    """The summaries in the folders, by file name. Of files of the same name the one in the first folder counts."""
    chosen: dict[str, Path] = {}
    for path in (path for folder in folders for path in _files(folder)):
        chosen.setdefault(path.name, path)
    summaries = (_read(path) for path in sorted(chosen.values(), key=lambda path: path.stem))
    return [summary for summary in summaries if summary is not None]


def _files(folder: Path) -> list[Path]:
    """The JSON files in a folder; nothing else of such a name is opened, since a pipe would be waited for."""
    return [path for path in folder.glob("*.json") if path.is_file()]


def _read(path: Path) -> dict[str, Any] | None:
    """The summary in a file, checked by making all that the report shows of it; None if the file is something else.

    Raises:
        RunError: the file is damaged.
    """
    try:
        summary: dict[str, Any] = read_json(path)
        if not isinstance(summary, dict) or not {"experiment", "seeds"} <= summary.keys():
            return None
        summary["name"] = path.stem
        if not all(isinstance(cell, str) for row in rows(summary) for cell in row):
            raise TypeError("a name is not text")
        _details(summary)
        labelled(summary)
        _points(summary)
        curves(summary)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise RunError(
            f"{path} is damaged ({type(error).__name__}: {error}): remove it, or make it again with `plmu train`"
        ) from None
    return summary


def report(folders: Sequence[Path], out: Path) -> None:
    """Print all results in the folders, and write report.html and the plots to `out`.

    Raises:
        RunError: a folder is missing, there are no results, one is damaged, or `out` cannot be written to.
    """
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    summaries = load(*folders)
    if missing or not summaries:
        where = ", ".join(missing or map(str, folders))
        raise RunError(f"no results in {where}: `plmu train` writes them to runs/, copy those to keep to results/")
    page = _page(summaries)
    try:
        out.mkdir(parents=True, exist_ok=True)
        plot(summaries, out / "results.png")
        drawn = plot_curves(summaries, out / "curves.png")
        write_text(out / "report.html", page)
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror or error}; choose another --out") from None
    summary_table(summaries)
    for number, folder in enumerate(folders):
        for path in sorted(_files(folder)):
            first = next((earlier for earlier in folders[:number] if (earlier / path.name).is_file()), None)
            if first is not None:
                print(printable(f"{path} is not shown: {first / path.name} comes first (--results)"))
    written = ["report.html", "results.png", *(["curves.png"] if drawn else [])]
    print(printable(f"wrote {', '.join(str(out / name) for name in written)}"))


def _page(summaries: list[dict[str, Any]]) -> str:
    """The report as HTML."""
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for summary in summaries
        for row in rows(summary)
    )
    details = "\n".join(_details(summary) for summary in summaries)
    head = "".join(f"<th>{name}</th>" for name in (*HEADER, "hardware"))
    drawn = CURVES if any(map(has_curves, summaries)) else ""
    return PAGE.format(head=head, body=body, details=details, shortened=html.escape(SHORTENED), curves=drawn)


def _details(summary: dict[str, Any]) -> str:
    """A section of the page on one result: command, source, versions and notes."""
    return (
        f"<h2>{html.escape(summary['name'])}: {html.escape(summary['experiment'])},"
        f" {html.escape(summary['model'])}</h2>"
        f"<p><code>{html.escape(summary['command'])}</code>"
        f"<br>{html.escape(summary['source'])}, torch {html.escape(summary['torch'])};"
        f" {html.escape('; '.join(f'{k}: {v}' for k, v in summary['notes'].items()))}</p>"
    )


def _points(summary: dict[str, Any]) -> tuple[float, float, float | None]:
    """The experiment's main score as it is plotted: mean, standard deviation over seeds, and the paper's score."""
    factor = 100 if summary["percent"] else 1
    score, paper = summary["test"][summary["metric"]], summary["paper"]
    return factor * float(score["mean"]), factor * float(score["std"]), None if paper is None else factor * float(paper)


def _wrapped(label: str) -> str:
    """A label wrapped at 20 characters, to fit under the plot."""
    return "\n".join(textwrap.fill(line, 20) for line in label.splitlines())


def plot(summaries: list[dict[str, Any]], path: Path) -> None:
    """Draw a panel for each experiment: each model's test score with its spread, and the paper's score."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    experiments = sorted({summary["experiment"] for summary in summaries})
    across = min(3, len(experiments))
    down = -(-len(experiments) // across)
    most = max(Counter(summary["experiment"] for summary in summaries).values())
    size = (max(4.2, 0.9 * most) * across, 3.4 * down)  # a name takes 0.9 inches
    figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False)
    for axis in axes.flat[len(experiments) :]:
        axis.remove()
    for axis, experiment in zip(axes.flat, experiments, strict=False):
        group = [summary for summary in summaries if summary["experiment"] == experiment]
        for i, summary in enumerate(group):
            mean, std, paper = _points(summary)
            axis.errorbar(i, mean, std, fmt="o", color="tab:blue", capsize=4)
            if paper is not None:
                axis.plot(i, paper, "_", color="tab:orange", markersize=22, markeredgewidth=2.5)
        axis.set_xticks(
            range(len(group)),
            [_wrapped(labelled(summary)) for summary in group],
            fontsize="small",
            rotation=25,
            ha="right",
        )
        axis.set_xlim(-0.6, len(group) - 0.4)
        axis.set_title(literal(titled(group[0])))
        axis.set_ylabel(literal(group[0]["metric"]) + (", %" if group[0]["percent"] else ""))
        axis.grid(axis="y", alpha=0.3)
        low, high = min(_points(summary)[0] for summary in group), max(_points(summary)[0] for summary in group)
        if not group[0]["percent"] and 0 < 3 * low < high:
            axis.set_yscale("log")
    handles = [
        Line2D([], [], color="tab:blue", marker="o", linestyle="", label="here, mean ± spread of seeds"),
        Line2D([], [], color="tab:orange", marker="_", markersize=14, linestyle="", label="the paper"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.07 / down, 1, 1))
    write_figure(path, figure, dpi=120)
    pyplot.close(figure)


CURVES = """<h2>Learning curves</h2>
<p>Training loss and validation score after each epoch, mean over seeds.</p>
<p><img src="curves.png" alt="Training loss and validation score over epochs"></p>
"""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>plmu results</title>
<style>
body {{ font-family: system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .35rem .7rem; border-bottom: 1px solid #ddd; text-align: left; }}
code {{ background: #f3f3f3; padding: .1rem .3rem; }} img {{ max-width: 100%; }}
</style></head><body>
<h1>plmu: results</h1>
<p>Test scores, chosen on validation data, mean and spread over seeds, beside the paper's. A model that was refit was
trained on validation data too, with settings chosen before. {shortened}</p>
<table><tr>{head}</tr>
{body}</table>
<p><img src="results.png" alt="Each model's test score beside the paper's"></p>
{curves}{details}
</body></html>
"""
