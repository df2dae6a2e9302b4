"""`plmu serve` over HTTP and WebSockets: sessions, answers, limits, tokens, and messages that are wrong."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from program import refused
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from torch import nn

import plmu
from plmu.runs import outputs
from plmu.runs.deployed import load
from plmu.serve import Options, make_server, usual_width
from plmu.serve.limits import Limits
from plmu.text.symbols import Characters, Symbols

LOCAL = "http://127.0.0.1"
MINE = {"Session-Secret": "of-the-client-of-tests"}


def saved(folder: Path, features: int = 1, out: int = 1, **meaning: Any) -> Path:
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    model = plmu.Sequential(plmu.ParallelLMU(features, 4, order=3, theta=5.0), nn.Linear(4, out))
    plmu.save(model, folder / "model.plmu")
    outputs.write(folder, outputs.Outputs(**meaning))
    return folder


def saved_language(folder: Path, symbols: Symbols) -> Path:
    folder.mkdir(exist_ok=True)
    size = symbols.size
    model = plmu.Sequential(nn.Embedding(size, 4), plmu.ParallelLMU(4, 4, order=2, theta=3.0), nn.Linear(4, size))
    plmu.save(model, folder / "model.plmu")
    for name, content in symbols.companions().items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


@contextmanager
def serving(run: Path, **options: Any) -> Iterator[TestClient]:
    limits = Limits(**options.pop("limits", {}))
    server = make_server(load(run), Options(limits=limits, **options))
    with TestClient(server.app(), base_url=LOCAL, headers=MINE) as client:
        client.server = server  # type: ignore[attr-defined]
        yield client


def socket(client: TestClient, query: str = "", **headers: str) -> Any:
    return client.websocket_connect(f"ws://127.0.0.1/ws{query}", headers=headers)


def ask(connection: Any, message: Any) -> dict[str, Any]:
    connection.send_text(message if isinstance(message, str) else json.dumps(message))
    answer: dict[str, Any] = connection.receive_json()
    return answer


def reference(run: Path, rows: list[list[float]], width: int) -> list[list[float]]:
    sessions = plmu.Sessions(plmu.load(run / "model.plmu"), width)
    row = sessions.add()
    return [sessions.push({row: sample})[row].tolist() for sample in rows]


def test_sessions_over_websockets(tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    with serving(run) as client:
        width = client.server.batcher.sessions.width  # type: ignore[attr-defined]
        wanted = reference(run, [[0.5], [-1.0], [2.0]], width)
        with socket(client) as connection, socket(client) as other:
            hello = connection.receive_json()
            assert hello["step"] == 0
            assert len(hello["session"]) > 20
            assert other.receive_json()["session"] != hello["session"]
            assert ask(connection, {"sample": 0.5, "id": "a"}) == {"id": "a", "step": 1, "output": wanted[0]}
            assert ask(other, {"sample": [0.5]}) == {"step": 1, "output": pytest.approx(wanted[0])}
            assert ask(connection, {"samples": [-1, [2.0]]}) == {"step": 3, "outputs": wanted[1:]}
            assert ask(other, {"samples": [-1.0]})["outputs"][0] == pytest.approx(wanted[1])
            assert ask(connection, {"reset": True}) == {"step": 0}
            assert ask(connection, {"sample": 0.5})["output"] == wanted[0]
            assert ask(connection, {"close": True})["closed"]
            with pytest.raises(WebSocketDisconnect):
                connection.receive_json()


def test_a_named_session_goes_on_in_another_connection(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run")) as client:
        with socket(client, "?session=my.one") as first:
            assert first.receive_json() == {"session": "my.one", "step": 0, "last": []}
            output = ask(first, {"sample": 0.5})["output"]
            with socket(client, "?session=my.one") as second:
                assert second.receive_json() == {"session": "my.one", "step": 1, "last": [output]}
                with pytest.raises(WebSocketDisconnect) as closed:
                    first.receive_json()
                assert closed.value.code == 4409
                assert ask(second, {"sample": 0.5})["step"] == 2
        assert client.get("/sessions/my.one").json()["step"] == 2
        assert client.delete("/sessions/my.one").json() == {"session": "my.one", "closed": True}
        assert client.get("/sessions/my.one").status_code == 404


def test_a_session_without_a_name_ends_with_its_connection(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run")) as client:
        with socket(client) as connection:
            name = connection.receive_json()["session"]
            assert client.get(f"/sessions/{name}").status_code == 200
            connection.close(1000)
        for _ in range(100):
            if client.get(f"/sessions/{name}").status_code == 404:
                break
            time.sleep(0.01)
        assert client.get("/health").json() == {"status": "ok", "sessions": 0}


def test_http(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", 2, 3, labels=("a", "b", "c"))
    with serving(run) as client:
        first = client.post("/step", json={"sample": [1, 2]}).json()
        told = client.post("/step", json={"samples": [[1, 2], [0, 1]], "session": first["session"]}).json()
        assert told["step"] == 3
        assert len(told["outputs"]) == 2
        assert told["label"] == max(told["probabilities"], key=told["probabilities"].__getitem__)
        for content, status in [(b"\xff", 400), (b"{", 400), (b"{}" * 40_000, 413)]:
            response = client.post("/step", content=content)
            assert (response.status_code, "error" in response.json()) == (status, True)
        assert client.get("/step").status_code == 405
        assert client.get("/model").json()["labels"] == ["a", "b", "c"]
        text = client.get("/metrics").text
        assert "plmu_samples_total 3\n" in text
        assert 'plmu_errors_total{status="400"} 2\n' in text
        assert "plmu_latency_seconds_count 2\n" in text


def test_the_memory_of_the_page(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run")) as client:
        memory = client.get("/memory?order=6&theta=20").json()
        network = plmu.DelayNetwork(order=6, theta=20.0)
        system = network.discretize(dt=1.0)
        torch.testing.assert_close(torch.tensor(memory["A"], dtype=torch.float64), system.A)
        torch.testing.assert_close(torch.tensor(memory["C"], dtype=torch.float64), network.decoder(memory["delays"]))
        for query in (
            "",
            "?order=6",
            "?order=x&theta=3",
            "?order=65&theta=3",
            "?order=3&theta=nan",
            "?order=3&theta=0",
        ):
            assert client.get(f"/memory{query}").status_code == 400


WRONG = [
    ('{"sample": "0.1"}', "sample 0 must be numbers, got a text"),
    ('{"sample": true}', "got a boolean"),
    ('{"sample": null}', "--missing hold or zero"),
    ('{"sample": NaN}', "NaN is not a number in JSON"),
    ('{"sample": -Infinity}', "-Infinity is not a number in JSON"),
    ('{"sample": 1e39}', "too large for the model"),
    ('{"sample": 1e999}', "too large for the model"),
    ('{"sample": [1, 2]}', "sample 0 must be 1 numbers, got a list of 2"),
    ('{"sample": {}}', "got an object"),
    ('{"sample": ' + "9" * 5000 + "}", "not JSON"),
    ('{"samples": 3}', "samples must be a list of samples, got a number"),
    ('{"samples": []}', "1 to 1000 samples, got 0"),
    ('{"samples": [' + "0," * 1000 + "0]}", "1 to 1000 samples, got 1001"),
    ('{"samples": [0, [[1]]]}', "sample 1 must be numbers, got a list"),
    ('{"sample": "' + "x" * 70_000 + '"}', "a message may have 65536 bytes, this one has 70014"),
    ("[" * 60_000, "not JSON"),
    ('{"samples": [0.1, 0', "not JSON"),
    ("", "not JSON"),
    ("[]", "must be a JSON object, got a list"),
    ("{}", "exactly one of sample, samples, text, reset, close; got none"),
    ('{"sample": 1, "reset": true}', "got sample, reset"),
    ('{"reset": 1}', "reset must be true"),
    ('{"sample": 1, "extra": 2}', "a message has no 'extra'"),
    ('{"sample": 1, "id": [1]}', "id must be"),
    ('{"sample": 1, "session": "a/b"}', "session must be a name"),
    ('{"sample": 1, "outputs": 1}', "outputs must be true or false"),
    ('{"text": "abc"}', "this model takes numbers, not text"),
    (b"\x00\xff", "this one is binary"),
]


def test_wrong_messages_are_named_and_disturb_no_one(tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    with serving(run) as client, socket(client) as good, socket(client) as bad:
        good.receive_json()
        bad.receive_json()
        width = client.server.batcher.sessions.width  # type: ignore[attr-defined]
        wanted = reference(run, [[0.25]] * (len(WRONG) + 1), width)
        for number, (text, message) in enumerate(WRONG):
            bad.send_bytes(text) if isinstance(text, bytes) else bad.send_text(text)
            answer = bad.receive_json()
            assert message in answer["error"]
            assert answer["step"] == 0
            assert ask(good, {"sample": 0.25})["output"] == wanted[number]
        assert ask(bad, {"sample": 0.25})["output"] == pytest.approx(wanted[0])


def test_a_sample_that_overflows_is_not_taken(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    layer = plmu.ParallelLMU(1, 2, order=2, theta=4.0)
    with torch.no_grad():
        layer.encoder.weight.fill_(1e10)
    plmu.save(layer, folder / "model.plmu")
    with serving(folder) as client, socket(client) as connection:
        connection.receive_json()
        answer = ask(connection, {"samples": [0.5, 3e38, 0.5]})
        assert answer["error"] == "sample 1 would make the state infinite: it was not taken"
        assert (answer["step"], len(answer["outputs"]), answer["status"]) == (1, 1, 422)
        assert ask(connection, {"sample": 0.5})["step"] == 2


def test_missing_samples_are_filled_if_asked(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run"), missing="hold") as client, socket(client) as one, socket(client) as other:
        one.receive_json()
        other.receive_json()
        filled = ask(one, {"samples": [0.5, None, [None]]})
        held = ask(other, {"samples": [0.5, 0.5, 0.5]})
        assert [one[0] for one in filled["outputs"]] == pytest.approx([one[0] for one in held["outputs"]])


def test_language_models_name_the_likeliest_tokens(tmp_path: Path) -> None:
    with serving(saved_language(tmp_path / "run", Characters(tuple(" abc")))) as client, socket(client) as connection:
        connection.receive_json()
        answer = ask(connection, {"text": "ab"})
        assert answer["step"] == 3  # with the space that a text begins with
        assert "outputs" not in answer
        assert sorted(each["text"] for each in answer["next"]) == [" ", "a", "b", "c"]
        assert ask(connection, {"text": "c"})["step"] == 4
        assert len(ask(connection, {"sample": 2, "outputs": True})["output"]) == 4
        assert "character 1, 'x'" in ask(connection, {"text": "x"})["error"]
        assert "below 4" in ask(connection, {"sample": 4})["error"]
        assert "below 4" in ask(connection, {"sample": 0.5})["error"]


def test_limits(tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    with serving(run, limits={"sessions": 1, "rate": 5.0, "samples": 3}) as client, socket(client) as connection:
        connection.receive_json()
        with pytest.raises(WebSocketDenialResponse) as denied, socket(client):
            pass
        assert denied.value.status_code == 503
        assert client.post("/step", json={"sample": 1}).status_code == 503
        assert "1 to 3 samples" in ask(connection, {"samples": [1] * 4})["error"]
        answers = [ask(connection, {"samples": [1, 2, 3]}) for _ in range(3)]
        assert "more than 5 samples a second" in answers[-1]["error"]
        assert answers[-1]["status"] == 429
        assert answers[-1]["step"] == answers[0]["step"]
    for wrong in ({"sessions": 0}, {"idle": -1.0}, {"message_bytes": 0}):
        with pytest.raises(ValueError, match="must be above 0"):
            Limits(**wrong)


def test_the_bounds_of_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is just allowed, and what is just too much."""
    now = 100.0
    monkeypatch.setattr("plmu.serve.limits.time", SimpleNamespace(monotonic=lambda: now))
    limits = {"sessions": 2, "message_bytes": 60, "samples": 4, "rate": 2.0}
    with serving(saved(tmp_path / "run"), limits=limits) as client:
        assert client.post("/step", json={"session": "a", "samples": [0.5] * 4}).status_code == 200
        refusal = client.post("/step", json={"session": "a", "samples": [0.5] * 3}).json()["error"]
        assert refusal == "more than 2 samples a second: send this again in 1.500 s"
        now += 1.5
        assert client.post("/step", json={"session": "a", "samples": [0.5] * 3}).json()["step"] == 7
        assert client.post("/step", json={"session": "a", "reset": True}).json()["step"] == 0
        assert client.post("/step", json={"session": "b", "reset": True}).status_code == 200
        assert client.post("/step", json={"session": "c", "reset": True}).status_code == 503
        text = '{"session": "b", "reset": true}'
        for size, status in ((60, 200), (61, 413)):
            assert client.post("/step", content=text + " " * (size - len(text))).status_code == status
            with socket(client, "?session=b") as connection:
                connection.receive_json()
                assert ask(connection, text + " " * (size - len(text))).get("status", 200) == status
                wide = '{"reset": true, "id": "éé"}'  # of 29 bytes
                assert ask(connection, wide + " " * (size - 29)).get("status", 200) == status


def test_the_bounds_of_ids_and_names(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run")) as client:
        for tag, status in (("i" * 64, 200), ("i" * 65, 400), (10**63, 200), (10**64, 400), (None, 400)):
            assert client.post("/step", json={"sample": 0.5, "id": tag}).status_code == status
        for name, status in (("n" * 64, 200), ("n" * 65, 400), ("", 400), (7, 400)):
            assert client.post("/step", json={"sample": 0.5, "session": name}).status_code == status
        for order, theta, status in (
            (64, 10_000, 200),
            (65, 9, 400),
            (1, 1, 200),
            (0, 9, 400),
            (3, 10_001, 400),
            (3, 0.9, 400),
        ):
            assert client.get(f"/memory?order={order}&theta={theta}").status_code == status
        memory = client.get("/memory?order=3&theta=9").json()
        assert (len(memory["delays"]), memory["delays"][0], memory["delays"][-1]) == (100, 0.0, 9.0)
        assert (memory["order"], memory["theta"], len(memory["B"])) == (3, 9.0, 3)


def test_long_answers_are_not_repeated(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run"), limits={"samples": 1001, "rate": 5000.0}) as client:
        for count in (1000, 1001):
            client.post("/step", json={"session": "a", "samples": [0.5] * count})
            assert len(client.get("/sessions/a").json()["last"]) == (count if count <= 1000 else 0)


def test_idle_sessions_end(tmp_path: Path) -> None:
    with (
        serving(saved(tmp_path / "run"), limits={"idle": 0.2}) as client,
        socket(client, "?session=idler") as connection,
    ):
        connection.receive_json()
        with pytest.raises(WebSocketDisconnect) as closed:
            connection.receive_json()
        assert closed.value.code == 4408
        assert client.get("/sessions/idler").status_code == 404
        assert "plmu_expired_total 1\n" in client.get("/metrics").text


def test_a_long_message_does_not_hold_up_others(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run")) as client, socket(client) as connection, socket(client) as other:
        connection.receive_json()
        other.receive_json()
        connection.send_text(json.dumps({"samples": [0.5] * 1000}))
        answer = ask(other, {"sample": 0.5})
        assert answer["step"] == 1
        whole = connection.receive_json()
        assert (whole["step"], len(whole["outputs"])) == (1000, 1000)
        assert whole["outputs"][0] == pytest.approx(answer["output"])
        assert client.server.metrics.ticks > 4  # type: ignore[attr-defined]


def test_files_of_the_page_and_nothing_else(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run")) as client:
        assert client.get("/").headers["content-security-policy"].startswith("default-src 'self'")
        assert client.get("/static/index.html").status_code == 200
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/none.js"):
            assert client.get(path).status_code == 404


def test_widths_are_chosen_by_the_size_of_the_model() -> None:
    small = plmu.FrozenModel(plmu.ParallelLMU(1, 4, order=3, theta=5.0))
    large = plmu.FrozenModel(plmu.Sequential(plmu.ParallelLMU(1, 346, order=468, theta=784.0), nn.Linear(346, 10)))
    assert (usual_width(small), usual_width(large)) == (256, 16)


def test_wrong_use_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(saved(tmp_path / "run"))
    for words, message in [
        ([run, "--host", "0.0.0.0"], "--host 0.0.0.0 can be reached from other machines: give --token"),
        ([str(tmp_path / "nowhere")], "no model at"),
        ([run, "--idle", "0"], "--idle must be above 0"),
        ([run, "--port", "65536"], "--port must be 0 to 65535, got 65536"),
        ([run, "--port", "0", "--width", "0"], "--width must be 1 to 4096, got 0"),
        ([run, "--port", "0", "--width", "100000000"], "--width must be 1 to 4096"),
        ([run, "--port", "0", "--root-path", "x"], "--root-path must be like /plmu, got 'x'"),
        ([run, "--port", "0", "--allow-origin", "x"], "--allow-origin must be like https://example.org, or *, got x"),
        ([run, "--port", "0", "--allow-host", "a:1"], "--allow-host must be a name without a port"),
        ([run, "--connections", "0"], "--connections must be above 0, got 0"),
        ([run, "--address-connections", "0"], "--address-connections must be above 0, got 0"),
        ([run, "--host", "203.0.113.1", "--token", "long-enough"], "cannot listen on 203.0.113.1:8000"),
    ]:
        assert message in refused(["serve", *words], capsys)
