"""`plmu demo`: the main job on data that is included, from a file of measurements to C code, in plain words."""

from __future__ import annotations

import shutil
import sys
import time
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmu.cli.arguments import Parser

if TYPE_CHECKING:
    import plmu

HORIZON = 26  # weeks
TEST = 0.2  # the last part of the rows, which nothing is fitted to
STREAMED = 4  # weeks


def demo_parser() -> Parser:
    parser = Parser(
        prog="plmu demo",
        description="Forecast the weekly carbon dioxide of Mauna Loa, which is included: fit, test, plot, stream and"
        " export. It takes a few seconds and downloads nothing.",
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for what it writes (demo)")
    return parser


def main(words: list[str]) -> None:
    """Run the demo and say what was done, where the plot is and what to type next."""
    out = demo_parser().parse_args(words).out

    import polars as pl

    import plmu

    out.mkdir(parents=True, exist_ok=True)
    with as_file(files("plmu.cli") / "demo_data" / "mauna-loa-co2.csv") as path:
        table = pl.read_csv(path, try_parse_dates=True)
    gaps = table["co2"].null_count()
    table = table.with_columns(pl.col("co2").forward_fill())
    past, test = table[: round((1 - TEST) * len(table))], table[round((1 - TEST) * len(table)) :]
    print(f"Forecast carbon dioxide on Mauna Loa {HORIZON} weeks ahead, from weekly measurements\nof 1958 to 2001.\n")

    start = time.perf_counter()
    forecaster = plmu.Forecaster(horizon=HORIZON).fit(past)
    seconds = time.perf_counter() - start
    _say("1. fit", f"{len(past):,} of {len(table):,} weeks, in {seconds:.1f} s; {gaps} gaps take the last value")

    errors = _test(forecaster, table, len(past))
    _say("2. test", f"the last {len(test):,} weeks, mean absolute error in ppm:")
    for name, error in errors.items():
        _say("", f"  {name:<24}{error:5.2f}")

    plot = out / "forecast.png"
    _plot(plot, forecaster, table, len(past))
    _say("3. plot", f"{plot}")

    _say("4. stream", f"one week in, the next {HORIZON} out, with a small state:")
    stream = forecaster.stream()
    for date, value in test[:STREAMED].iter_rows():
        start = time.perf_counter()
        ahead = stream.push([value])
        microseconds = 1e6 * (time.perf_counter() - start)
        _say("", f"  {date}  measured {value:.1f}, in {HORIZON} weeks {float(ahead[-1]):.1f}  ({microseconds:.0f} µs)")

    model = out / "co2.plmu"
    plmu.save(forecaster.model, model)
    _say("5. export", f"{model}, for `plmu.load` and `plmu.Stream`")
    plmu.export(forecaster.model, out / "c", to="c", name="co2")
    _say("", f"{out / 'c'}: C without libraries; `make` there compiles and checks it")
    if find_spec("onnx") and find_spec("onnxruntime"):
        plmu.export(forecaster.model, out / "onnx", to="onnx", name="co2")
        _say("", f"{out / 'onnx'}: the same step for ONNX Runtime")

    command = _command()
    print(f"""
next: a table of your own, as CSV, Parquet or NumPy
  {command} train forecast my.csv
  {command} train forecast --help""")


def _say(part: str, text: str) -> None:
    print(f"{part:<11}{text}")


def _test(forecaster: plmu.Forecaster, table: Any, start: int) -> dict[str, float]:
    scores = forecaster.evaluate(table[start - forecaster.model.lookback :])
    scale = float(forecaster.scale_[0])
    return {"plmu": scores["mae"] * scale, "last value": scores["last value mae"] * scale}


def _plot(path: Path, forecaster: plmu.Forecaster, table: Any, start: int) -> None:
    """Four forecasts of the last weeks on what was measured."""
    from plmu.timeseries.plotting import pyplot

    drawing = pyplot()
    figure, axis = drawing.subplots(figsize=(9, 3.6))
    first = len(table) - 4 * HORIZON
    shown = table[first - 2 * HORIZON :]
    axis.plot(shown["date"], shown["co2"], color="0.25", linewidth=1, label="measured")
    for origin in range(first, len(table), HORIZON):
        ahead = forecaster.predict(table[:origin])
        label = "forecast" if origin == first else None
        axis.plot(table["date"][origin : origin + HORIZON], ahead["co2"], color="tab:blue", label=label)
        axis.axvline(table["date"][origin - 1], color="0.8", linewidth=0.8)
    axis.set_ylabel("CO₂, ppm")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", ncols=3, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    drawing.close(figure)


def _command() -> str:
    """How the reader started this program."""
    program = shutil.which("plmu")
    started = Path(sys.argv[0])
    if started.name != "plmu" or (program is not None and Path(program).resolve() == started.resolve()):
        return "plmu"
    return str(started)
