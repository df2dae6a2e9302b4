"""The counts and times of `plmu serve` for Prometheus."""

from pathlib import Path
from types import SimpleNamespace

from test_serve import ask, saved, serving, socket

from plmu.serve import metrics
from plmu.serve.metrics import BOUNDS, Histogram, Metrics


def test_the_text_of_metrics(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "BOUNDS", (0.5, 2.0))
    counted = Metrics()
    names = ("sessions", "connections", "samples", "messages", "ticks", "expired", "journal_bytes", "snapshots")
    for number, name in enumerate(names, 1):
        setattr(counted, name, number)
    for status in (404, 400, 404):
        counted.error(status)
    for seconds in (0.25, 0.5, 0.75, 2.0, 2.5, 4.0):
        counted.latency.add(seconds)
    counted.step.add(1.5)
    expected = """
        plmu_sessions 1|plmu_connections 2|plmu_samples_total 3|plmu_messages_total 4|plmu_ticks_total 5
        plmu_expired_total 6|plmu_journal_bytes_total 7|plmu_snapshots_total 8
        plmu_errors_total{status="400"} 1|plmu_errors_total{status="404"} 2
        plmu_latency_seconds_bucket{le="0.5"} 2|plmu_latency_seconds_bucket{le="2.0"} 4
        plmu_latency_seconds_bucket{le="+Inf"} 6|plmu_latency_seconds_sum 10.000000|plmu_latency_seconds_count 6
        plmu_batch_seconds_bucket{le="0.5"} 0|plmu_batch_seconds_bucket{le="2.0"} 1
        plmu_batch_seconds_bucket{le="+Inf"} 1|plmu_batch_seconds_sum 1.500000|plmu_batch_seconds_count 1
    """
    lines = counted.text().splitlines()
    assert [line for line in lines if line[0] != "#"] == [
        line.strip() for group in expected.strip().splitlines() for line in group.split("|")
    ]
    kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert kinds == {
        **{f"plmu_{name}": "gauge" for name in names[:2]},
        **{f"plmu_{name}_total": "counter" for name in (*names[2:], "errors")},
        **{f"plmu_{name}_seconds": "histogram" for name in ("latency", "batch")},
    }
    assert {line.split()[2] for line in lines if line.startswith("# HELP")} == set(kinds)
    assert counted.text().endswith("\n")


def test_bounds_of_histograms() -> None:
    values = Histogram()
    for bound in BOUNDS:
        values.add(bound)
        values.add(bound * 1.001)
    assert values.counts == [1] + [2] * (len(BOUNDS) - 1) + [1]


def test_what_is_counted(tmp_path: Path, monkeypatch) -> None:
    """The latency of a message is from its arrival to its answer, also of an error; a batch's is its own."""
    run = saved(tmp_path / "run")
    with serving(run, states=tmp_path / "states", limits={"samples": 4}) as client:
        seconds = iter([10.0, 10.25, 20.0, 20.5, 30.0, 31.0])
        monkeypatch.setattr("plmu.serve.app.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
        counted = client.server.metrics  # type: ignore[attr-defined]
        with socket(client, "?session=a") as connection:
            connection.receive_json()
            assert (counted.connections, counted.sessions, counted.messages, counted.ticks) == (1, 1, 0, 1)
            stored = counted.journal_bytes
            assert stored > 0
            ask(connection, {"samples": [0.1, 0.2]})
            assert (counted.samples, counted.messages, counted.ticks, counted.errors) == (2, 1, 2, {})
            assert counted.journal_bytes - stored > 8
            ask(connection, {"samples": []})
            assert (counted.samples, counted.messages, counted.errors) == (2, 2, {400: 1})
            assert ask(connection, {"close": True})["closed"]
            assert (counted.messages, counted.sessions, counted.errors) == (3, 0, {400: 1})
            assert counted.latency.total == 1.75
            assert sum(counted.latency.counts) == 3
            assert sum(counted.step.counts) == 3 == counted.ticks
            assert 0 < counted.step.total < 20
        client.get("/nowhere")
        client.get("/sessions/none")
        assert counted.errors == {400: 1, 404: 1}
        assert counted.connections == 0
        assert counted.snapshots == 1
