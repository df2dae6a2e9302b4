"""`plmu serve` of a detector of anomalies: answers with scores and reasons, gaps, names of series, and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anomalies import stamps, values, written
from test_serve import ask, serving, socket
from test_serve_openapi import faults

import plmu
from plmu.cli.program import main

RUN = Path("runs/anomalies-my-seed0")
COUNT = 490  # rows of training, without an anomaly


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("anomalies")
    (folder / "my.csv").write_text(written(COUNT))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["train", "anomalies", "my.csv", "--quiet"])
    return folder / RUN


def expected(run: Path, samples: Any, width: int) -> list[list[float]]:
    """Outputs of a session of the model, alone."""
    sessions = plmu.Sessions(plmu.load(run / "model.plmu"), width)
    row = sessions.add()
    return [sessions.push({row: sample})[row].tolist() for sample in samples]


def without_nan(numbers: list[float]) -> list[float | None]:
    return [number if number == number else None for number in numbers]


def test_answers_have_the_score_and_its_reason(run: Path) -> None:
    later = values(COUNT + 3)[COUNT:].tolist()
    later[1] = [None, 200.0]
    samples = [[float("nan") if number is None else number for number in sample] for sample in later]
    with serving(run) as client, socket(client) as connection:
        assert connection.receive_json()["next_time"] == "2024-01-21 10:00"
        outputs = expected(run, samples, client.server.batcher.sessions.width)  # type: ignore[attr-defined]
        answers = [ask(connection, {"sample": sample}) for sample in later]
        document = client.get("/openapi.json").json()
        schema = document["components"]["schemas"]["Answer"]
        for number, (answer, output) in enumerate(zip(answers, outputs, strict=True)):
            assert faults(answer, schema, document) == []
            assert answer["output"] == without_nan(output)
            assert answer["time"] == str(stamps(COUNT + 3)[COUNT + number])[:16].replace("T", " ")
            assert [answer["score"], answer["alarm"]] == [*without_nan(output[:1]), output[0] > 0.999]
            for place, name in enumerate(("load", "temp")):
                parts = zip(("score", "expected", "lower", "upper"), without_nan(output[1 + 4 * place :]), strict=False)
                assert answer["channels"][name] == dict(parts)
        assert (answers[1]["alarm"], answers[1]["channel"]) == (True, "temp")
        assert "warning" in answers[0]
        about = client.get("/model").json()
        assert (about["kind"], about["threshold"], about["columns"]) == ("anomalies", 0.001, ["load", "temp"])


def test_a_session_begins_at_a_time(run: Path) -> None:
    """Steps between the training data and the first sample are missing samples."""
    later = values(COUNT + 12)[COUNT:].tolist()
    gap = [[float("nan")] * 2] * 10
    with serving(run) as client, socket(client) as connection:
        connection.receive_json()
        wanted = expected(run, [*gap, later[10]], client.server.batcher.sessions.width)[-1]  # type: ignore[attr-defined]
        answer = ask(connection, {"sample": later[10], "time": "2024-01-21T20:00"})
        assert answer["output"] == pytest.approx(wanted, abs=1e-9)
        assert (answer["time"], "warning" in answer) == ("2024-01-21 20:00", False)
        wrong = ask(connection, {"sample": later[11], "time": "2024-01-21T23:00"})
        assert wrong["status"] == 409
        assert "send the samples between" in wrong["error"]


def test_what_a_session_has_learned_survives(run: Path, tmp_path: Path) -> None:
    later: Any = values(COUNT + 8)[COUNT:].tolist()
    later[4] = [None, 15.0]  # the last sample before the restart
    answers = []
    with serving(run) as client, socket(client) as connection:
        connection.receive_json()
        whole = [ask(connection, {"sample": sample})["output"] for sample in later]
    for part in (later[:5], later[5:]):
        with serving(run, states=tmp_path / "states") as client, socket(client, "?session=a") as connection:
            connection.receive_json()
            answers += [ask(connection, {"sample": sample})["output"] for sample in part]
    assert answers == whole


def test_a_session_that_is_called_like_a_series_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = values(COUNT)[:, 0]
    rows = [
        f"{str(time)[:16]},{name},{factor * load:.3f}"
        for time, load in zip(stamps(COUNT), x, strict=True)
        for name, factor in (("a", 1.0), ("b", 3.0))
    ]
    Path("my.csv").write_text("\n".join(["time,id,load", *rows, ""]))
    main(["train", "anomalies", "my.csv", "--quiet"])
    with serving(RUN) as client:
        for name, sample, alarm in (("a", 60.0, False), ("b", 60.0, True), ("b", 180.0, False), ("c", 60.0, False)):
            with socket(client, f"?session={name}") as connection:
                connection.receive_json()
                assert ask(connection, {"sample": sample, "time": "2024-01-22T06:00"})["alarm"] == alarm
                ask(connection, {"close": True})
