"""`plmu train forecast --data.covariates` and what is done with its runs, as a user types it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from program import refused
from starlette.testclient import TestClient

import plmu
from plmu.cli.program import main
from plmu.cli.stream_lines import Options, show
from plmu.nn import CovariateForecast
from plmu.runs import deployed
from plmu.serve import Options as ServerOptions
from plmu.serve import make_server
from plmu.timeseries.forecast_experiment import Forecast, prepare
from plmu.timeseries.forecast_files import read_settings
from plmu.timeseries.forecast_models import WindowLSTM
from plmu.timeseries.scores import model_method
from plmu.timeseries.series import SeriesConfig

HORIZON, COUNT = 5, 300
RUN = Path("runs/forecast-sales-seed0")


def columns(count: int = COUNT + HORIZON) -> Any:
    """Sales with a week, which a price and a holiday move: (count, 3)."""
    rng = np.random.default_rng(0)
    price, holiday = 2 + rng.random(count).round(2), rng.random(count) < 0.1
    sales = 50 + 5 * np.sin(2 * np.pi * np.arange(count) / 7) - 10 * price + 8 * holiday
    return np.stack([(sales + rng.standard_normal(count)).round(3), price, holiday], axis=1)


def written(first: int = 0, known: int = COUNT, end: int = COUNT + HORIZON) -> str:
    """Rows as CSV; the sales of those from `known` on are empty."""
    days = np.datetime64("2023-01-01") + np.arange(end)
    rows = [
        f"{days[i]},{sales if i < known else ''},{price},{'yes' if holiday else 'no'}"
        for i, (sales, price, holiday) in enumerate(columns()[:end].tolist())
    ]
    return "\n".join(["day,sales,price,holiday", *rows[first:], ""])


WORDS = ["train", "forecast", "--data.file", "sales.csv", "--data.covariates", "price,holiday", "--horizon", "5"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sales.csv and its run, which no test changes."""
    folder = tmp_path_factory.mktemp("covariates")
    (folder / "sales.csv").write_text(written())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main([*WORDS, "--backtest", "2", "--quiet"])
    return folder


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return RUN


def predicted(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    main(["predict", str(RUN), *words, "--quiet"])
    return np.array([float(row["sales"]) for row in csv.DictReader(io.StringIO(capsys.readouterr().out))])


def test_covariates_help_and_the_run_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = json.loads((run / "result.json").read_text())["test"]
    assert test["mse"] < 0.3 * test["without_covariates_mse"]
    assert 0.7 < test["in_80_%_interval"] <= test["in_95_%_interval"] <= 1
    told = json.loads((run / "forecast.json").read_text())
    assert all(one["model_mse"] < 0.3 * one["last_value_mse"] for one in told["backtest"])
    assert read_settings(run).covariates == ("price", "holiday")
    main(["evaluate", str(run)])
    printed = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert float(printed["mse"]) == pytest.approx(test["mse"], rel=1e-4)
    main([*WORDS, "--backtest", "2"])
    assert "is finished: nothing was trained" in capsys.readouterr().out
    assert "another configuration (data.covariates was ['price,holiday'], now [])" in refused(
        [*WORDS[:4], *WORDS[6:], "--backtest", "2"], capsys
    )


def test_what_is_found_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sales.csv").write_text(written(end=COUNT))
    main([*WORDS, "--refit"])
    out = capsys.readouterr().out
    for line in (
        "values: sales",
        "covariates, known ahead: price, holiday",
        "column 'holiday': true and yes are taken as 1, false and no as 0",
        "covariates price, holiday: used, with ",
        f"next: plmu predict {RUN} sales.csv --data.future FILE, with price, holiday of the next 5 rows",
    ):
        assert line in out
    values = np.sin(np.arange(200) / 3) + np.random.default_rng(0).normal(0, 0.3, 200)
    (tmp_path / "noise.csv").write_text(
        "\n".join(["t,v,x", *(f"{i},{value:.4f},{(i * 7919) % 101}" for i, value in enumerate(values)), ""])
    )
    main(["train", "forecast", "--data.file", "noise.csv", "--data.covariates", "x", "--horizon", "5"])
    assert "covariates x: not used, since they did not clearly help" in capsys.readouterr().out


def test_predict_reads_rows_ahead_or_a_plan(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ahead = predicted(["--data.file", "sales.csv"], capsys)
    assert np.abs(ahead - columns()[COUNT:, 0]).max() < 4  # noise of 1
    for name, content in (("past.csv", written(end=COUNT)), ("plan.csv", written(first=COUNT))):
        (tmp_path / name).write_text(content)
    words = ["--data.file", str(tmp_path / "past.csv")]
    np.testing.assert_array_equal(predicted([*words, "--data.future", str(tmp_path / "plan.csv")], capsys), ahead)
    (tmp_path / "plan.csv").write_text(written(first=COUNT).replace("2.", "3."))
    dear = predicted([*words, "--data.future", str(tmp_path / "plan.csv")], capsys)
    assert (dear - ahead).min() < -5  # a price of 1 more costs 10


def test_the_future_of_the_values_does_not_enter(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in a plan that has values nor in the windows that are scored."""
    expected = predicted(["--data.file", "sales.csv"], capsys)
    (tmp_path / "past.csv").write_text(written(end=COUNT))
    (tmp_path / "plan.csv").write_text(written(first=COUNT, known=COUNT + HORIZON))
    words = ["--data.file", str(tmp_path / "past.csv"), "--data.future", str(tmp_path / "plan.csv")]
    np.testing.assert_array_equal(predicted(words, capsys), expected)
    config: Any = Forecast().defaults("closed")
    config.data = SeriesConfig(file=Path("sales.csv"), covariates=("price", "holiday"))
    config.horizon = (HORIZON,)
    task = prepare(config)
    model = Forecast().build(config, task)
    examples = task.split.windows.take(task.test[0], task.split.length, HORIZON)
    forecast = model_method(model)(examples)
    assert torch.equal(model_method(model)(examples._replace(future=torch.full_like(examples.future, 1e9))), forecast)
    lines = written().splitlines()
    start = 1 + task.split.cuts[0][1]
    other = [
        ",".join([day, str(7.5 * i % 11), "9", "no"])
        for i, (day, *_) in enumerate(map(_cells, lines[start : 1 + COUNT]))
    ]
    (tmp_path / "other.csv").write_text("\n".join([*lines[:start], *other, ""]))
    config.data = SeriesConfig(file=tmp_path / "other.csv", covariates=("price", "holiday"))
    again = Forecast().build(config, prepare(config))
    for one, two in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_scores_are_those_of_a_loop_over_windows(run: Path) -> None:
    config: Any = Forecast().defaults("closed")
    config.data = SeriesConfig(file=Path("sales.csv"), covariates=("price", "holiday"))
    config.horizon, config.model.lags = (HORIZON,), 4
    task = prepare(config)
    model = Forecast().build(config, task)
    (piece,), forecaster = task.split.data.pieces, task.fitted
    assert piece.covariates is not None
    assert forecaster.model.lags == 4  # type: ignore[union-attr]
    squares = []
    for origin in task.test[0].tolist():
        past = replace(piece.until(origin + 1), covariates=piece.covariates)
        out = forecaster.predict(replace(task.split.data, pieces=[past]))[["sales"]].to_numpy()
        squares += ((out - piece.values[origin + 1 : origin + 1 + HORIZON]) / task.split.scale.numpy()).ravel().tolist()
    assert task.scores(model, task.test)["mse"] == pytest.approx(np.mean(np.square(squares)), rel=1e-4)


def _cells(line: str) -> list[str]:
    return line.split(",")


def test_missing_covariates_are_counted_and_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    past, plan = tmp_path / "past.csv", tmp_path / "plan.csv"
    past.write_text(written(end=COUNT))
    words = ["predict", str(run), "--data.file", str(past)]
    assert (
        "past.csv, column 'price': 5 values are needed after 2023-10-27, the last row, and there are 0: add rows in"
        in (refused(words, capsys))
    )
    plan.write_text("\n".join(written(first=COUNT).splitlines()[:4]))
    fault = refused([*words, "--data.future", str(plan)], capsys)
    assert fault.endswith(
        "plan.csv, column 'price': 5 values are needed after 2023-10-27, the last row, and there are 3"
    )
    plan.write_text(written(first=COUNT).replace(",no\n", ",\n"))
    assert "plan.csv, column 'holiday': 5 values are needed" in refused([*words, "--data.future", str(plan)], capsys)
    plan.write_text(written(first=COUNT).replace("2.", "x"))
    assert "plan.csv, line 2, column 'price': 'x" in refused([*words, "--data.future", str(plan)], capsys)
    assert "is not there" in refused([*words, "--data.future", str(tmp_path / "none.csv")], capsys)


def test_an_lstm_takes_covariates(run: Path) -> None:
    sizes = ["--model.lookback", "14", "--model.hidden", "8", "--training.epochs", "4", "--training.batch-size", "8"]
    main([*WORDS, "--model", "lstm", *sizes, "--training.learning-rate", "0.03", "--quiet"])
    found = json.loads(Path("runs/forecast-sales-lstm-seed0/result.json").read_text())["test"]
    assert found["mse"] < 0.7 * found["linear_mse"]  # which has no covariates
    main(["evaluate", "runs/forecast-sales-lstm-seed0"])
    network = WindowLSTM(3, HORIZON, 14, torch.tensor([2.0, 1.0]))
    torch.nn.init.ones_(network.effect)
    windows, covariates = torch.randn(4, 1, 20), torch.randn(4, 2, 20 + HORIZON)
    out = network(windows, covariates)
    torch.testing.assert_close(network(windows, covariates + 3), out)  # a level has no effect
    moved = covariates.clone()
    moved[:, 0, -1] += 2.0  # by its scale, at the last step ahead
    spread = (windows[..., -14:] - windows[..., -1:]).square().mean(-1).sqrt()
    torch.testing.assert_close((network(windows, moved) - out)[..., -1], spread)


def test_where_covariates_have_no_place(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sales.csv").write_text(written(end=200))
    main([*WORDS[:4], "--data.values", "sales", "--horizon", "5", "--quiet"])
    words = ["predict", str(RUN), "--data.file", "sales.csv"]
    assert "was trained without: give --data.file alone" in refused([*words, "--data.future", "sales.csv"], capsys)
    assert "covariates" not in json.loads(
        (RUN / "series.json").read_text()
    )  # by which runs of older versions are known
    outputs = json.loads((RUN / "outputs.json").read_text())
    del outputs["columns"]  # as older versions wrote it
    (RUN / "outputs.json").write_text(json.dumps(outputs))
    main(words)
    assert deployed.load(RUN).outputs.inputs == ("sales",)


def test_a_stream_takes_the_covariates_ahead(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = predicted(["--data.file", "sales.csv"], capsys)
    data = columns()
    names = ["day", "sales", "price", "holiday", *(f"{one} +{k}" for k in range(1, 6) for one in ("price", "holiday"))]
    days = np.datetime64("2023-01-01") + np.arange(COUNT)
    lines = [",".join(names)] + [
        ",".join(map(str, [days[i], data[i, 0], *data[i : i + 1 + HORIZON, 1:].ravel()])) for i in range(COUNT)
    ]
    out = io.StringIO()
    show(run, [f"{line}\n" for line in lines], Options(json=True), out)
    last = json.loads(out.getvalue().splitlines()[-1])
    np.testing.assert_allclose(last["forecast"]["sales"], expected, rtol=1e-5)
    for wrong in (written().splitlines(keepends=True), ["1,2,3\n"], ['{"sales": 1}\n']):
        with pytest.raises(
            ValueError, match=r"a sample has sales, price, holiday, and price, holiday of each of the next 5"
        ):
            show(run, wrong, Options(), io.StringIO())


def test_a_server_and_an_export(run: Path, tmp_path: Path) -> None:
    server = make_server(deployed.load(run), ServerOptions())
    with TestClient(server.app(), base_url="http://127.0.0.1") as client:
        about = client.get("/model").json()
        assert about["columns"][:4] == ["sales", "price", "holiday", "price +1"]
        with client.websocket_connect("ws://127.0.0.1/ws") as connection:
            connection.receive_json()
            connection.send_json({"samples": [[20.0, *[2.5, 0.0] * 6]] * 2})
            answer = connection.receive_json()
    assert {name: len(ahead) for name, ahead in answer["forecast"].items()} == {"sales": HORIZON}
    main(["export", str(run), "--to", "onnx", "--out", str(tmp_path)])
    assert (tmp_path / "model_step.onnx").is_file()


def test_the_gradient_model_starts_from_the_closed_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sales.csv").write_text(written())
    main([*WORDS, "--model", "gradient", "--training.epochs", "2", "--quiet"])
    folder = Path("runs/forecast-sales-gradient-seed0")
    test = json.loads((folder / "result.json").read_text())["test"]
    assert test["mse"] < 0.3 * test["without_covariates_mse"]
    assert isinstance(plmu.load(folder / "model.plmu"), CovariateForecast)
    capsys.readouterr()
    main(["predict", str(folder), "--data.file", "sales.csv", "--quiet"])
    assert capsys.readouterr().out.count("\n") == 1 + HORIZON


def test_several_series_without_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of files, each a series of its own size, in which rows are counted."""
    monkeypatch.chdir(tmp_path)
    data = columns()
    (tmp_path / "shops").mkdir()
    for name, size in (("a", 1.0), ("b", 40.0)):
        rows = [f"{size * s if i < COUNT else ''},{p},{h}" for i, (s, p, h) in enumerate(data.tolist())]
        (tmp_path / "shops" / f"{name}.csv").write_text("\n".join(["sales,price,holiday", *rows, ""]))
    main(["train", "forecast", "--data.file", "shops", *WORDS[4:], "--quiet"])
    capsys.readouterr()
    main(["predict", "runs/forecast-shops-seed0", "--data.file", "shops", "--quiet"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    found = {name: [float(row["sales"]) for row in rows if row["series"] == name] for name in "ab"}
    np.testing.assert_allclose(np.array(found["b"]) / 40, found["a"], rtol=1e-3)
    assert np.abs(np.array(found["a"]) - data[COUNT:, 0]).max() < 8
    main(["predict", "runs/forecast-shops-seed0", "--data.file", "shops/a.csv", "--quiet"])
    (tmp_path / "one.csv").write_text("\n".join((tmp_path / "shops" / "a.csv").read_text().splitlines()[: COUNT + 3]))
    words = ["predict", "runs/forecast-shops-seed0", "--data.file", "one.csv"]
    assert "one.csv, column 'price': 5 values are needed after row 300, the last row, and there are 2" in refused(
        words, capsys
    )
