"""A seasonal forecast that starts at any time agrees with `predict`, in every runtime, and far from zero, too."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from forecasts import COUNT, HORIZON, RUN, values, written
from starlette.testclient import TestClient

import plmu
from plmu.cli.program import main
from plmu.cli.stream_lines import Options, show
from plmu.exports.measure import compiler
from plmu.runs import deployed
from plmu.serve import Options as ServerOptions
from plmu.serve import make_server

STARTS, ROWS, SEASON = (0, 5, 101, 1000 * 12 + 7), 40, 12
LEVELS = (0.0, 1e9)
TOLERANCE = 1e-5  # of the scale of the series


def fitted(level: float, covariates: bool = False) -> tuple[plmu.Forecaster, Any]:
    rows = values() + level
    if covariates:
        rows[:, 0] += 0.5 * (rows[:, 1] - level)
        forecaster = plmu.Forecaster(HORIZON, season=SEASON, lookback=24, covariates=[1], lags=3)
    else:
        forecaster = plmu.Forecaster(HORIZON, season=SEASON, lookback=24)
    forecaster.fit(rows[: COUNT - 20])
    assert forecaster.model.season == SEASON
    return forecaster, rows


def close(found: Any, expected: Any, rows: Any) -> None:
    """Within the tolerance, relative to the standard deviation of the series."""
    error = np.abs(np.asarray(found).reshape(expected.shape) - expected).max()
    assert error <= TOLERANCE * rows[:, : expected.shape[-1]].std()


def by_stream(model: Any, rows: Any, start: int) -> Any:
    stream = plmu.Stream(model)
    stream.reset(model.state_at(start))
    return [stream.push(row) for row in rows][-1]


def by_sessions(model: Any, rows: Any, start: int) -> Any:
    sessions = plmu.Sessions(model, 4)
    row = sessions.add()
    sessions.reset(row, model.state_at(start, torch.float64))
    return [sessions.push({row: sample})[row] for sample in rows][-1]


MINE = {"Session-Secret": "of-the-client-of-tests"}


class Onnx:
    """The program of docs/deploy.md."""

    def __init__(self, model: Any, folder: Path) -> None:
        path, _ = plmu.export(model, folder, to="onnx").files
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.about = self.session.get_modelmeta().custom_metadata_map

    def __call__(self, rows: Any, start: int) -> Any:
        states = []
        for state in json.loads(self.about["states"]):
            begin = state.get("start_at_step")
            array = np.zeros((1, *state["shape"][1:]), state["type"])
            states.append(array if begin is None else np.array([[start, begin[1]]], state["type"]))
        y = None
        for row in rows:
            feeds = {f"state_{i}_in": state for i, state in enumerate(states)}
            y, *states = self.session.run(None, {"x": row[None], **feeds})
        return y


class C:
    MAIN = """#include "model.h"
#include <stdio.h>
#include <stdlib.h>
static model_state state;
int main(int count, char **arguments)
{
    double x[MODEL_INPUTS], y[MODEL_OUTPUTS];
    int i = 0, k;
    START
    while (scanf("%lf", &x[i]) == 1)
        if (++i == MODEL_INPUTS) {
            model_step(&state, x, y);
            i = 0;
        }
    for (k = 0; k < MODEL_OUTPUTS; k++)
        printf("%.17g\\n", y[k]);
    return 0;
}
"""

    def __init__(self, model: Any, folder: Path) -> None:
        plmu.export(model, folder, to="c")
        start = "model_start(&state, atoll(arguments[count - 1]));" if model.timed else "model_init(&state);"
        (folder / "main.c").write_text(self.MAIN.replace("START", f"(void)count, (void)arguments, {start}"))
        command = [str(compiler()), "-std=c99", "-Wall", "-Werror", "-o", "main", "model.c", "main.c", "-lm"]
        subprocess.run(command, cwd=folder, check=True, timeout=60)
        self.folder = folder

    def __call__(self, rows: Any, start: int) -> Any:
        text = "\n".join(f"{number:.17g}" for number in rows.ravel())
        command = ["./main", str(start)]
        ran = subprocess.run(command, cwd=self.folder, input=text, capture_output=True, text=True, timeout=60)
        return [float(line) for line in ran.stdout.split()]


class Torch:
    def __init__(self, model: Any, folder: Path) -> None:
        files = plmu.export(model, folder, to="torch").files
        self.step, self.whole = (torch.export.load({file.name: file for file in files}[name]).module()
                                 for name in ("model_step.pt2", "model.pt2"))  # fmt: skip
        self.lookback, self.columns = model.lookback, model.channels

    def __call__(self, rows: Any, start: int) -> Any:
        begin = (torch.zeros(1, self.lookback, self.columns, dtype=torch.float64), torch.tensor([[start, -1]]))
        x, states = torch.from_numpy(rows), begin
        for row in x:
            y, *states = self.step(row[None], *states)  # type: ignore[assignment]
        whole, *_ = self.whole(x[None], *begin)
        torch.testing.assert_close(whole[:, -1], y)
        return y


needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("runtime", ["stream", "sessions", "onnx", pytest.param("c", marks=needs_compiler), "torch"])
@pytest.mark.filterwarnings("ignore")  # of torch.export, about its own code
def test_a_start_at_any_step_agrees_with_predict(runtime: str, level: float, tmp_path: Path) -> None:
    forecaster, rows = fitted(level)
    kinds: dict[str, Any] = {"onnx": Onnx, "c": C, "torch": Torch}
    if runtime in kinds:
        program = kinds[runtime](forecaster.model, tmp_path)
        run = program.__call__
    else:
        functions = {"stream": by_stream, "sessions": by_sessions}
        run = lambda sample, start: functions[runtime](forecaster.model, sample, start)  # noqa: E731
    for start in STARTS:
        first = start % (COUNT - ROWS)
        sample = rows[first : first + ROWS]
        expected = forecaster.predict(sample, start=start)
        close(run(sample, start), expected, rows)
        other = forecaster.predict(sample, start=start + 3)  # which it is not, at another phase
        assert np.abs(other - expected).max() > 1000 * TOLERANCE * rows.std()


def test_forecasts_of_several_series_agree_with_predict(tmp_path: Path) -> None:
    """Of pooled readouts, with members for the day and for the week, from windows of any length, near and far from
    zero. They need no start; a stream that is given one has the same forecasts."""
    k, rng = np.arange(140), np.random.default_rng(3)
    wave = 10 * np.sin(2 * np.pi * k / 4) + 6 * ((k // 4) % 7 > 4) + 0.02 * k
    for number, level in enumerate((50.0, 1e9)):
        series = [level + size * (wave + rng.standard_normal(len(k))) for size in (1.0, 2.0, 3.0)]
        forecaster = plmu.Forecaster(HORIZON, season=7 * 4, pooled=True).fit(series)
        model = forecaster.model
        assert isinstance(model, plmu.nn.PooledForecast)
        programs = []
        for kind in (Onnx, *([Torch] if number else []), *([C] if compiler() else [])):
            (folder := tmp_path / f"{number} {kind.__name__}").mkdir()
            programs.append(kind(model, folder))
        for rows, start in ((series[1][:5, None], 0), (series[1][:60, None], 101), (series[2][:, None], 3)):
            expected = forecaster.predict(rows, start=start)
            for run in (by_stream, by_sessions):
                close(run(model, rows, start), expected, series[1][:, None])
            for program in programs:
                close(program(rows, start), expected, series[1][:, None])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("runtime", [by_stream, Onnx, pytest.param(C, marks=needs_compiler)])
def test_with_covariates(runtime: Any, level: float, tmp_path: Path) -> None:
    forecaster, rows = fitted(level, covariates=True)
    model = forecaster.model
    assert isinstance(model, plmu.nn.CovariateForecast)
    ahead = [rows[k : COUNT - HORIZON + k, 1:] for k in range(1 + HORIZON)]
    samples = np.concatenate([rows[: COUNT - HORIZON, :1], *ahead], axis=1)
    run = runtime(model, tmp_path) if isinstance(runtime, type) else lambda sample, start: runtime(model, sample, start)
    for start in (6, 113):
        sample = slice(start, start + ROWS)
        future = rows[start + ROWS : start + ROWS + HORIZON, 1:]
        expected = forecaster.predict(rows[sample], start=start, future=future)
        close(run(np.ascontiguousarray(samples[sample]), start), expected[:, None], rows)


def lines_of(first: int) -> list[str]:
    """40 rows of the file, under its header."""
    return written(first=first).splitlines(keepends=True)[: 1 + ROWS]


def expected_of(run: Path, first: int) -> dict[str, Any]:
    """What `predict` says after 40 rows: times, columns and intervals."""
    forecaster = plmu.Forecaster.from_run(run)
    rows = run.parents[1] / f"rows-{first}.csv"
    if not rows.is_file():
        rows.write_text("".join(lines_of(first)))
    frame = forecaster.predict(rows, level=forecaster.levels_)
    columns = frame.to_dict(as_series=False)
    columns["time"] = [str(time)[:16] for time in columns["time"]]
    return columns


def check_answer(answer: dict[str, Any], run: Path, first: int) -> None:
    expected = expected_of(run, first)
    assert answer["times"] == expected.pop("time")
    assert {**answer["forecast"], **answer["intervals"]}.keys() == expected.keys()
    for name, ahead in {**answer["forecast"], **answer["intervals"]}.items():
        np.testing.assert_allclose(ahead, expected[name], rtol=0, atol=2 * TOLERANCE)


@pytest.mark.parametrize("first", [0, 7, 100])
def test_streams_with_times(load_run: Path, first: int) -> None:
    lines = lines_of(first)
    time = lines[1].split(",")[0]
    without = [line.partition(",")[2] for line in lines[1:]]
    for given, options in ((lines, Options(json=True)), (without, Options(json=True, time=time))):
        out = io.StringIO()
        show(load_run, given, options, out)
        check_answer(json.loads(out.getvalue().splitlines()[-1]), load_run, first)


def message(first: int, last: int, **more: Any) -> dict[str, Any]:
    time = lines_of(first)[1].split(",")[0]
    return {"samples": values()[first:last].tolist(), "time": time, **more}


@pytest.mark.parametrize("first", [0, 7, 100])
def test_a_server_takes_the_time_of_the_first_sample(load_run: Path, first: int) -> None:
    server = make_server(deployed.load(load_run), ServerOptions())
    with TestClient(server.app(), base_url="http://127.0.0.1", headers=MINE) as client:
        answer = client.post("/step", json=message(first, first + ROWS)).json()
        assert "warning" not in answer
        check_answer(answer, load_run, first)
        with client.websocket_connect("ws://127.0.0.1/ws?session=a") as connection:
            assert connection.receive_json()["next_time"] == "2024-01-31 00:00"
            for begin in range(first, first + ROWS, 20):  # the second message continues the first one
                connection.send_json(message(begin, begin + 20))
                answer = connection.receive_json()
        check_answer(answer, load_run, first)


def test_a_missing_number_changes_the_forecast_of_its_channel_alone(load_run: Path) -> None:
    """In a stream, in sessions and in a server: forecasts and intervals of the other column have the same bits."""
    rows = values()[:ROWS].tolist()
    spoiled = [*rows[:30], [None, rows[30][1]], *rows[31:]]
    answers = []
    server = make_server(deployed.load(load_run), ServerOptions(missing="hold"))
    with TestClient(server.app(), base_url="http://127.0.0.1", headers=MINE) as client:
        for name, samples in (("a", rows), ("b", spoiled)):
            content = {"samples": samples, "time": "2024-01-01 00:00", "session": name}
            answers.append(client.post("/step", json=content).json())
    whole, other = answers
    assert other["forecast"]["temp"] == whole["forecast"]["temp"]
    assert other["forecast"]["load"] != whole["forecast"]["load"]
    for name, ahead in whole["intervals"].items():
        assert (other["intervals"][name] == ahead) == name.startswith("temp")
    lines = [["" if number is None else str(number) for number in row] for row in spoiled]
    out = io.StringIO()
    options = Options(missing="hold", json=True, time="2024-01-01 00:00")
    show(load_run, [",".join(line) + "\n" for line in lines], options, out)
    streamed = json.loads(out.getvalue().splitlines()[-1])
    for name in ("load", "temp"):
        np.testing.assert_allclose(streamed["forecast"][name], other["forecast"][name], rtol=0, atol=2 * TOLERANCE)


def test_a_server_says_where_it_takes_a_stream_to_begin(load_run: Path) -> None:
    server = make_server(deployed.load(load_run), ServerOptions())
    with TestClient(server.app(), base_url="http://127.0.0.1", headers=MINE) as client:

        def ask(**content: Any) -> Any:
            return client.post("/step", json={"session": "a", **content})

        first = ask(sample=[50, 15]).json()
        assert first["warning"] == (
            "no time was given: the first sample is taken to be at 2024-01-31 00:00, one step after its training data."
            " Forecasts are wrong if it is not, since the model has a season of 12 steps."
            ' Send "time" with the first sample'
        )
        assert first["time"] == "2024-01-31 00:00"
        assert first["times"][0] == "2024-01-31 02:00"
        assert "warning" not in ask(sample=[50, 15]).json()
        wrong = ask(sample=[50, 15], time="2024-01-31 06:00")
        assert wrong.status_code == 409
        assert (
            "the next sample of this session is at 2024-01-31 04:00, not at 2024-01-31 06:00" in wrong.json()["error"]
        )
        assert ask(sample=[50, 15], time="2024-01-31 04:00").json()["step"] == 3
        assert client.get("/sessions/a").json()["next_time"] == "2024-01-31 06:00"
        ask(reset=True)
        assert client.get("/sessions/a").json()["next_time"] == "2024-01-31 00:00"
        assert ask(sample=[50, 15], time="2030-02-01").json()["time"] == "2030-02-01 00:00"
        about = client.get("/model").json()
        assert (about["next_time"], about["season"], about["clock"]["every"]) == ("2024-01-31 00:00", 12, "2 h")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"sample": [1, 2], "time": "soon"}, "time 'soon' is not a date or time: write it as '2024-01-01 02:00'"),
        ({"sample": [1, 2], "time": 1706680800}, "time must be a text such as 2024-01-31 00:00, got a number"),
        ({"sample": [1, 2], "time": None}, "time must be a text such as 2024-01-31 00:00, got null"),
        ({"reset": True, "time": "2024-01-31"}, "time is that of the first sample: it cannot be with reset"),
    ],
)
def test_a_wrong_time_is_an_error(load_run: Path, content: dict[str, Any], fault: str) -> None:
    server = make_server(deployed.load(load_run), ServerOptions())
    with TestClient(server.app(), base_url="http://127.0.0.1", headers=MINE) as client:
        answer = client.post("/step", json=content)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(fault)


def test_a_time_off_the_grid_is_an_error_everywhere(load_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the nearest times, in lines, --time and messages; the state is as before."""
    fault = "2024-01-31 02:07 is off the grid of the data, every 2 h: the nearest times are 2024-01-31 02:00 and"
    for lines, options in (
        (["2024-01-31 00:00,50,15\n", "2024-01-31 02:07,50,15\n"], Options()),
        (["50,15\n"], Options(time="2024-01-31 02:07")),
    ):
        with pytest.raises(ValueError, match=f"{fault} 2024-01-31 04:00"):
            show(load_run, lines, options, io.StringIO())
    out = io.StringIO()
    lines = ["2024-01-31 00:00,50,15\n", "2024-01-31 02:07,50,15\n", "2024-01-31 02:00,50,15\n"]
    show(load_run, lines, Options(json=True, on_error="skip"), out)
    assert [json.loads(line).get("time") for line in out.getvalue().splitlines()] == [
        "2024-01-31 00:00",
        None,
        "2024-01-31 02:00",
    ]
    server = make_server(deployed.load(load_run), ServerOptions())
    with TestClient(server.app(), base_url="http://127.0.0.1", headers=MINE) as client:
        for time, status in (("2024-01-31 00:00", 200), ("2024-01-31 02:07", 400), ("2024-01-31 02:00", 200)):
            answer = client.post("/step", json={"sample": [50, 15], "time": time, "session": "a"})
            assert answer.status_code == status
            if status == 400:
                assert answer.json()["error"].startswith(f"time {fault}")


def test_the_time_of_a_session_survives_the_server(load_run: Path, tmp_path: Path) -> None:
    """In the journal and in a snapshot."""
    options = ServerOptions(states=tmp_path / "states")
    for first in (100, 120):
        server = make_server(deployed.load(load_run), options)
        if first == 120:
            assert server.hello(server.batcher.by_name["a"])["next_time"] == "2024-01-11 00:00"
        with TestClient(server.app(), base_url="http://127.0.0.1", headers=MINE) as client:
            answer = client.post("/step", json=message(first, first + 20, session="a")).json()
            if first == 100:  # as a killed server leaves it
                copied = tmp_path / "copied"
                copied.mkdir()
                for path in (tmp_path / "states").iterdir():
                    (copied / path.name).write_bytes(path.read_bytes())
    check_answer(answer, load_run, 100)
    server = make_server(deployed.load(load_run), ServerOptions(states=tmp_path / "copied"))
    with TestClient(server.app(), base_url="http://127.0.0.1", headers=MINE) as client:
        check_answer(client.post("/step", json=message(120, 140, session="a")).json(), load_run, 100)


CLOCKS = {
    "months": ("1990-01", 12, [f"{1990 + k // 12}-{k % 12 + 1:02}-01" for k in range(240)]),
    "weekdays": ("2020-01-06", 5, [str(np.busday_offset("2020-01-06", k)) for k in range(240)]),
    "days of another order": ("d", 7, [f"{d.item():%d/%m/%Y}" for d in np.datetime64("2023-01-01") + np.arange(240)]),
    "numbers": ("n", 8, [str(1700 + k / 4) for k in range(240)]),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_other_clocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Months, weekdays, dates in another order and numbers: lines of the file, and messages."""
    monkeypatch.chdir(tmp_path)
    _, season, times = CLOCKS[name]
    k = np.arange(240)
    load = (50 + 10 * np.sin(2 * np.pi * k / season) + np.random.default_rng(1).standard_normal(240)).round(3)
    lines = [f"{time},{value}\n" for time, value in zip(times, load, strict=True)]
    Path("load.csv").write_text("".join(["time,load\n", *lines[:200]]))
    options = ["--horizon", "3", "--model.season", str(season), "--quiet"]
    main(["train", "forecast", "--data.file", "load.csv", *options])
    Path("later.csv").write_text("".join(["time,load\n", *lines[203:240]]))
    forecaster = plmu.Forecaster.from_run(RUN)
    expected = forecaster.predict(tmp_path / "later.csv", level=forecaster.levels_).to_dict(as_series=False)
    out = io.StringIO()
    show(RUN, ["time,load\n", *lines[203:240]], Options(json=True), out)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    iso = times[203] if "/" not in times[203] else "-".join(times[203].split("/")[::-1])
    server = make_server(deployed.load(RUN), ServerOptions())
    with TestClient(server.app(), base_url="http://127.0.0.1", headers=MINE) as client:
        message = {"samples": load[203:240].tolist(), "time": float(iso) if name == "numbers" else iso}
        answers.append(client.post("/step", json=message).json())
    for answer in answers[-2:]:
        np.testing.assert_allclose(answer["forecast"]["load"], expected["load"], rtol=0, atol=1e-8)
        np.testing.assert_allclose(answer["intervals"]["load-lo-80"], expected["load-lo-80"], rtol=0, atol=1e-5)
        shown = [f"{time:g}" if name == "numbers" else str(time)[:10] for time in expected["time"]]
        assert [time[:10] for time in answer["times"]] == shown
