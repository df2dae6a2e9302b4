"""`plmu demo`: a forecast of data that is included, from a file of measurements to C code, explained in plain words."""

from __future__ import annotations

import csv
import shutil
import sys
import time
from argparse import Namespace
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from plmu.cli.arguments import Parser

if TYPE_CHECKING:
    import plmu

HORIZON = 26  # weeks
TEST = 0.2  # the share of the weeks that is tested on
METHODS = {  # prefixes of the names of scores, and what each model is called here
    "": "plmu",
    "last value ": "last value",
    "seasonal last value ": "value a year ago",
    "linear ": "linear map",
}


def demo_parser() -> Parser:
    parser = Parser(
        prog="plmu demo",
        description="Forecast the weekly carbon dioxide of Mauna Loa, which is included: fit, test, plot, stream and"
        " export. It takes a few seconds and downloads nothing.",
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to (demo)")
    return parser


def demo(options: Namespace) -> None:
    """Run the demo and print what was done, where the plot is and what to type next."""
    with as_file(files("plmu.cli") / "demo_data" / "mauna-loa-co2.csv") as path:
        _demo(path, options.out)


def _demo(path: Path, out: Path) -> None:
    """Fit, test, plot, stream and export a forecast of the table at `path`, and write everything into `out`."""
    import plmu

    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, out / "co2.csv")
    print(f"Carbon dioxide on Mauna Loa, measured weekly from 1958 to 2001: {HORIZON} weeks ahead.\n")

    start = time.perf_counter()
    forecaster = plmu.Forecaster(horizon=HORIZON, test=TEST).fit(path)
    _say("1. fit", f"the first {1 - TEST:.0%} of {out / 'co2.csv'}, in {time.perf_counter() - start:.1f} s:")
    gaps = next(note for note in forecaster.notes_ if note.startswith("gaps"))
    memory = forecaster.validation_["model"] == "look-back"
    kind = "a ridge regression on the memory" if memory else "a mean of linear maps and other readouts"
    _say("", f"{kind} of the last {forecaster.model.lookback} weeks")
    _say("", gaps.split(";")[0])

    errors = forecaster.evaluate()
    _say("2. test", f"{errors['windows']:.0f} forecasts of the last {TEST:.0%}, mean absolute error in ppm:")
    for name, shown in METHODS.items():
        _say("", f"  {shown:<18}{errors[f'{name}mae'] * forecaster.scale_[0]:5.2f}")

    forecaster.plot(out / "forecast.png")
    ahead = forecaster.predict(level=[80, 95])
    ahead.write_csv(out / "forecast.csv", date_format="%Y-%m-%d", datetime_format="%Y-%m-%d", float_precision=2)
    _say("3. plot", f"{out / 'forecast.png'}: the last forecasts of the test, with intervals")
    _say("", f"{out / 'forecast.csv'}: the {HORIZON} weeks after the last one")

    _stream(forecaster, path)

    plmu.save(forecaster.model, out / "co2.plmu")
    _say("5. export", f"{out / 'co2.plmu'}: for plmu.load and plmu.Stream")
    plmu.export(forecaster.model, out / "c", to="c", name="co2")
    _say("", f"{out / 'c'}: C without libraries; `make` there compiles and checks it")
    if find_spec("onnx") and find_spec("onnxruntime"):
        plmu.export(forecaster.model, out / "onnx", to="onnx", name="co2")
        _say("", f"{out / 'onnx'}: one step for ONNX Runtime")

    command = _command()
    print("\nnext: a table of your own, as CSV, Parquet, NumPy, JSON or Excel")
    print(f"  {command} train forecast my.csv")
    print(f"  {command} train forecast --help")


def _say(part: str, text: str) -> None:
    print(f"{part:<11}{text}")


def _stream(forecaster: plmu.Forecaster, path: Path) -> None:
    """Push all weeks one at a time, and compare the last output with the forecast from the whole series."""
    weeks: list[float] = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            weeks.append(float(row["co2"]) if row["co2"] else weeks[-1])
    stream = forecaster.stream(start=0)
    start = time.perf_counter()
    for value in weeks:
        ahead = stream.push([value])
    microseconds = 1e6 * (time.perf_counter() - start) / len(weeks)
    expected = forecaster.predict()["co2"]
    difference = max(abs(float(a) - b) for a, b in zip(ahead, expected, strict=True))
    _say("4. stream", f"one week in, the next {HORIZON} out: {len(weeks):,} weeks, {microseconds:.0f} µs each")
    _say("", f"the last output differs from the forecast of the file by {difference:.0e} ppm")


def _command() -> str:
    """The command that started this program, for the reader to type again: plmu, or its path if that is not on PATH."""
    program = shutil.which("plmu")
    started = Path(sys.argv[0])
    if started.name != "plmu" or (program is not None and Path(program).resolve() == started.resolve()):
        return "plmu"
    return str(started)
