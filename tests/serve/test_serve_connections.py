"""Connections of `plmu serve`: how many, how late, how much of a client waits in memory, and whose turn it is."""

import asyncio
import base64
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import WebSocketDenialResponse
from test_serve import ask, saved, serving
from test_serve import socket as websocket
from test_serve_faults import collected, post, served  # noqa: F401

from benchmarks import serving as script
from benchmarks.websocket import HANDSHAKE, frame
from plmu.errors import RunError
from plmu.serve import BACKLOG, RESERVE, Options, connections, open_files
from plmu.serve.connections import MOST_UNREAD, PART, PATIENCE, READ, REFUSAL, Connection, Connections, connection_of
from plmu.serve.limits import Limits


class Transport:
    """That of the event loop, as far as a connection uses it."""

    def __init__(self, address: str) -> None:
        self.address, self.written, self.buffered = address, b"", 0
        self.reading, self.closed, self.aborted = True, False, False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 4321) if name == "peername" and self.address else default

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Inner(asyncio.Protocol):
    """Uvicorn's protocol, as far as a connection uses it. It pauses at a line break."""

    def __init__(self, app_state: dict[str, Any]) -> None:
        self.app_state, self.parts, self.events = app_state, [], []
        self.cost: Callable[[], None] = lambda: None
        self.transport: Connection

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.cost()
        self.parts.append(data)
        if b"\n" in data:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(connections, "time", made)
    return made


def made(most: int = 3, of_address: int = 2) -> Connections:
    return Connections(most, Limits(address_connections=of_address), Inner)  # type: ignore[arg-type]


def connect(all_: Connections, address: str = "127.0.0.1") -> tuple[Connection, Any, Any]:
    connection = all_.protocol(app_state={"of": "all"})
    transport = Transport(address)
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport, connection.inner


def arrive(connection: Connection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def run(test: Callable[[], Any]) -> None:
    async def running() -> None:
        result = test()
        if result is not None:
            await result

    asyncio.run(running())


def test_too_many_connections(clock: Clock) -> None:
    def test() -> None:
        all_ = made()
        first, second, third = (connect(all_) for _ in range(3))
        first[0].busy()
        fourth = connect(all_)
        assert [each[1].aborted for each in (first, second, third, fourth)] == [False, True, False, False]
        assert all_.open == {first[0], third[0], fourth[0]}
        third[0].busy()
        fourth[0].busy()
        fifth = connect(all_)
        assert (fifth[1].written, fifth[1].closed, fifth[1].aborted) == (REFUSAL, True, False)
        arrive(fifth[0], b"GET / HTTP/1.1")
        assert (fifth[0].eof_received(), fifth[2].parts) == (None, [])
        fifth[0].connection_lost(None)
        assert fifth[2].events == []
        first[0].wait()  # its request is answered
        sixth = connect(all_)
        assert (first[1].aborted, sixth[1].closed) == (True, False)
        for each in (second, first):
            each[0].connection_lost(None)
            assert each[2].events == ["lost"]
        assert len(all_.open) == 3

    run(test)
    head, _, body = REFUSAL.partition(b"\r\n\r\n")
    assert b"503" in head
    assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")
    assert "too many connections" in json.loads(body)["error"]


def test_connections_that_end_are_forgotten(clock: Clock) -> None:
    def test() -> None:
        all_ = made()
        connection, _, _ = connect(all_)
        connection.pause_writing()
        assert (list(all_.open), list(all_.waiting), list(all_.unread)) == ([connection],) * 3
        connection.connection_lost(None)
        assert not any((all_.open, all_.waiting, all_.unread, all_.by_network))
        connection.pause_writing()
        connection.wait()
        assert not any((all_.waiting, all_.unread))

    run(test)


def test_when_connections_wait_and_are_busy(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run")) as client:
        calls: list[str] = []
        watched = SimpleNamespace(busy=lambda: calls.append("busy"), wait=lambda: calls.append("wait"))
        client.app_state["connection"] = watched
        for path, content, expected in [
            ("/step", b'{"sample": 0.5}', ["busy", "wait"]),
            ("/step", b"\xff", ["wait"]),
            ("/nowhere", b"", ["wait"]),
        ]:
            client.post(path, content=content)
            assert calls == expected
            calls.clear()
        with websocket(client) as connection:
            connection.receive_json()
            assert calls == ["busy"]
            assert ask(connection, {"close": True})["closed"]
        assert calls == ["busy", "wait"]


def test_wrong_messages_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmu.serve.sockets.WRONG_SECONDS", 0.03)
    monkeypatch.setattr("plmu.serve.app.WRONG_SECONDS", 0.04)
    with serving(saved(tmp_path / "run"), limits={"sessions": 1}) as client, websocket(client) as connection:
        connection.receive_json()
        for least, request in [
            (0.03, lambda: ask(connection, {})),
            (0.04, lambda: client.post("/step", content=b"{}")),
            (0.03, lambda: refused_socket(client)),
        ]:
            start = time.monotonic()
            request()
            assert time.monotonic() - start >= least


def refused_socket(client: Any) -> None:
    with pytest.raises(WebSocketDenialResponse), websocket(client):
        pass


def test_who_has_waited_longest_makes_room(clock: Clock) -> None:
    def test() -> None:
        all_ = made()
        first, second, _ = (connect(all_) for _ in range(3))
        first[0].wait()  # for the next request
        connect(all_)
        assert (first[1].aborted, second[1].aborted) == (False, True)

    run(test)


def test_too_many_connections_of_an_address(clock: Clock) -> None:
    def test() -> None:
        all_ = made(most=100)
        local = [connect(all_) for _ in range(5)]
        first, second = (connect(all_, "198.51.100.7") for _ in range(2))
        other = connect(all_, "198.51.100.8")
        third = connect(all_, "198.51.100.7")
        assert [each[1].aborted for each in (first, second, third, other, *local)] == [True, *[False] * 8]
        second[0].busy()
        third[0].busy()
        assert connect(all_, "198.51.100.7")[1].written == REFUSAL
        second[0].connection_lost(None)
        assert connect(all_, "198.51.100.7")[1].written == b""
        assert all_.by_network == {"127.0.0.1": 5, "198.51.100.7": 2, "198.51.100.8": 1}
        first[0].connection_lost(None)  # it was counted once
        other[0].connection_lost(None)
        assert all_.by_network == {"127.0.0.1": 5, "198.51.100.7": 2}
        connect(all_, "2001:db8::1")
        connect(all_, "2001:db8::2")
        assert all_.by_network["2001:db8::"] == 2
        connect(all_, "")  # a socket without an address

    run(test)


def test_requests_that_are_late(clock: Clock) -> None:
    def test() -> None:
        all_ = made(most=10)
        slow, busy, again = (connect(all_) for _ in range(3))
        busy[0].busy()
        clock.now += PATIENCE - 1
        again[0].wait()
        all_.sweep()
        assert not slow[1].aborted
        clock.now += 1.5
        all_.sweep()
        assert [each[1].aborted for each in (slow, busy, again)] == [True, False, False]
        clock.now += PATIENCE
        all_.sweep()
        assert [each[1].aborted for each in (busy, again)] == [False, True]
        busy[0].wait()
        clock.now += PATIENCE + 0.5
        all_.sweep()
        assert busy[1].aborted
        busy[0].connection_lost(None)
        busy[0].wait()
        assert not all_.open
        assert not all_.waiting

    run(test)


def test_looks_for_late_connections_go_on_while_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(connections, "SWEEP", 0.001)
        monkeypatch.setattr(connections, "PATIENCE", 0.01)
        all_ = made()
        for _ in range(2):
            _, transport, _ = connect(all_)
            for _ in range(1000):
                if transport.aborted:
                    break
                await asyncio.sleep(0.002)
            assert transport.aborted
            await asyncio.sleep(0.005)
            assert all_._sweeping is None

    run(test)


def test_clients_that_do_not_read(clock: Clock) -> None:
    def test() -> None:
        all_ = made(most=10)
        stuck, slow, fast = (connect(all_) for _ in range(3))
        for connection, transport, inner in (stuck, slow, fast):
            connection.busy()
            connection.write(b"a" * 10_000_000)  # a long answer is no fault
            transport.buffered = 9_000_000
            connection.pause_writing()
            assert inner.events == ["pause"]
        fast[1].buffered = 0
        fast[0].resume_writing()
        assert fast[2].events == ["pause", "resume"]
        clock.now += PATIENCE + 0.5
        slow[1].buffered -= 1
        all_.sweep()
        assert [each[1].aborted for each in (stuck, slow, fast)] == [True, False, False]
        clock.now += PATIENCE + 0.5
        all_.sweep()
        assert slow[1].aborted
        assert not fast[1].aborted

    run(test)


def test_pongs_for_a_client_that_does_not_read(clock: Clock) -> None:
    def test() -> None:
        all_ = made()
        connection, transport, _ = connect(all_)
        connection.write(b"a" * 2 * MOST_UNREAD)
        connection.write(b"")
        connection.pause_writing()
        connection.write(b"b" * MOST_UNREAD)
        assert not transport.aborted
        connection.resume_writing()
        connection.pause_writing()
        connection.write(b"c" * (MOST_UNREAD - 1))
        connection.write(b"c")
        assert not transport.aborted
        connection.write(b"d")
        assert transport.aborted
        assert transport.written.count(b"d") == 0
        connection.connection_lost(None)
        connection.write(b"e")
        assert transport.written.count(b"e") == 0

    run(test)


def test_a_close_that_does_not_end(clock: Clock) -> None:
    def test() -> None:
        all_ = made()
        connection, transport, _ = connect(all_)
        connection.busy()
        transport.buffered = 100
        connection.close()
        assert (transport.closed, transport.aborted, connection.is_closing()) == (True, False, True)
        connection.resume_writing()
        connection.close()
        clock.now += PATIENCE + 0.5
        all_.sweep()
        assert transport.aborted

    run(test)


def test_what_arrives_is_passed_on_in_parts_until_there_is_a_message(clock: Clock) -> None:
    async def test() -> None:
        connection, transport, inner = connect(made())
        assert len(connection.get_buffer(-1)) == READ
        data = b"a" * 2500
        arrive(connection, data)
        assert list(map(len, inner.parts)) == [PART, PART, 2500 - 2 * PART]
        assert (b"".join(inner.parts), transport.reading) == (data, True)
        inner.parts.clear()
        arrive(connection, b"b" * 10 + b"\n" + b"c" * 2000)
        assert (list(map(len, inner.parts)), transport.reading) == ([PART], False)
        await asyncio.sleep(0)
        assert len(inner.parts) == 1
        connection.resume_reading()
        assert (len(inner.parts), transport.reading) == (1, False)  # it is the turn of others
        await asyncio.sleep(0)
        assert (b"".join(inner.parts), transport.reading) == (b"b" * 10 + b"\n" + b"c" * 2000, True)
        connection.pause_reading()
        assert not transport.reading
        connection.resume_reading()
        assert transport.reading

    run(test)


def test_many_small_frames_leave_turns_to_others(clock: Clock) -> None:
    async def test() -> None:
        connection, transport, inner = connect(made())

        def cost() -> None:
            clock.now += 0.0006

        inner.cost = cost
        arrive(connection, b"p" * 5 * PART)
        assert (len(inner.parts), transport.reading) == (2, False)
        arrive(connection, b"q")  # the loop may have read more
        assert len(inner.parts) == 2
        await asyncio.sleep(0)
        assert (len(inner.parts), transport.reading) == (4, False)
        await asyncio.sleep(0)
        assert (b"".join(inner.parts), transport.reading) == (b"p" * 5 * PART + b"q", True)
        arrive(connection, b"r" * 5 * PART)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert len(inner.parts) == 6 + 2

    run(test)


def test_protocols_are_exchanged_and_know_their_connection(clock: Clock) -> None:
    def test() -> None:
        connection, _, inner = connect(made())
        assert inner.app_state == {"of": "all", "connection": connection}
        assert connection_of({"state": inner.app_state}) is connection
        assert connection_of({}) is None
        other = Inner({})
        connection.set_protocol(other)
        arrive(connection, b"later")
        assert (inner.parts, other.parts) == ([], [b"later"])
        assert connection.get_extra_info("peername") == ("127.0.0.1", 4321)
        assert connection.get_extra_info("nothing", 7) == 7
        assert connection.eof_received() is None

    run(test)


class Files:
    """The limit of open files of a system."""

    RLIM_INFINITY, RLIMIT_NOFILE = -1, 7

    def __init__(self, soft: int, hard: int) -> None:
        self.limits = soft, hard

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.limits

    def setrlimit(self, kind: int, limits: tuple[int, int]) -> None:
        assert kind == self.RLIMIT_NOFILE
        assert limits[0] <= limits[1] or limits[1] == -1
        self.limits = limits


def test_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    needed = 2000 + BACKLOG + RESERVE
    for soft, hard, raised, connections_, backlog in [
        (1024, -1, needed, 2000, BACKLOG),
        (1024, 9999, needed, 2000, BACKLOG),
        (needed, needed, needed, 2000, BACKLOG),
        (-1, -1, -1, 2000, BACKLOG),
        (1024, 2048, 2048, 2048 - 512 - RESERVE, 512),
        (256, 1024, 1024, 1024 - 256 - RESERVE, 256),
    ]:
        files = Files(soft, hard)
        monkeypatch.setattr("plmu.serve.resource", files)
        caplog.clear()
        assert open_files(2000) == (connections_, backlog)
        assert files.limits == (raised, hard)
        assert ("connections at once instead of 2000" in caplog.text) == (connections_ < 2000)
    monkeypatch.setattr("plmu.serve.resource", Files(64, 80))
    with pytest.raises(RunError, match="the limit of open files is 80: raise it, as with `ulimit -n 4096`"):
        open_files(10)
    monkeypatch.setattr("plmu.serve.resource", None)
    assert open_files(10) == (10, BACKLOG)


def test_limits_of_connections() -> None:
    assert Limits().most_connections == 2100
    assert Limits(sessions=5).most_connections == 110
    assert Limits(connections=7).most_connections == 7
    assert (Limits(rate=10.0).burst, Limits(rate=2000.0).burst) == (1000.0, 2000.0)


def opened(port: int, path: str = "/ws") -> socket.socket:
    """A WebSocket by hand."""
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    key = base64.b64encode(os.urandom(16)).decode()
    client.sendall(HANDSHAKE.format(path=path, port=port, key=key).encode())
    return client


@pytest.mark.usefixtures("collected")
def test_a_server_with_clients_that_send_too_little_or_too_much(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    monkeypatch.setattr(connections, "SWEEP", 0.05)

    def talk(address: str) -> None:
        port = int(address.rsplit(":", 1)[1])
        with opened(port) as healthy, opened(port) as bad, opened(port) as deaf:
            for client in (healthy, bad, deaf):
                assert b'"step":0' in read_until(client, b"}")
            half_open = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(20)]
            for client in half_open:
                client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            bad.sendall(frame(b"{}") * 3000)
            deaf.setblocking(False)
            for step in range(1, 21):
                with suppress(BlockingIOError):
                    deaf.send(frame(b"x" * 125, 9) * 200)
                healthy.sendall(frame(b'{"sample":0.5}'))
                assert b'{"step":%d,' % step in read_until(healthy, b"}")
            assert post(address, 0.5) == 200
            for client in half_open:  # closed: too late, or for others
                with suppress(ConnectionResetError):
                    assert client.recv(100) == b""
                client.close()
            assert b"exactly one of" in bad.recv(100)
            healthy.sendall(frame(b" " * 140_000))  # twice as long as a message may be, and more
            with suppress(ConnectionResetError):  # closed with code 1009, perhaps before all has been sent
                assert read_until(healthy, b"\x03\xf1")[:1] == b"\x88"
            for wrong in (b"\x16\x03\x01", b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2\r\n"):
                with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
                    client.sendall(wrong + b"\r\n\r\n")
                    assert client.recv(100).startswith(b"HTTP/1.1 40")
        os.kill(os.getpid(), signal.SIGTERM)

    served(saved(tmp_path / "run"), Options(port=0, limits=Limits(connections=8)), talk)
    assert [record.getMessage() for record in caplog.records] == []


def read_until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        part = client.recv(4096)
        assert part, data
        data += part
    return data


@pytest.mark.usefixtures("collected")
def test_malformed_messages_beside_healthy_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of what `python -m benchmarks.serving` measures with a process of its own."""
    run = script.save_model(tmp_path / "run")
    counts: dict[str, Any] = {}

    def talk(address: str) -> None:
        program = SimpleNamespace(port=int(address.rsplit(":", 1)[1]), memory=lambda: 0.0)
        monkeypatch.setattr(script, "server", lambda _: nullcontext(program))
        counts.update(asyncio.run(script.hostile(run, messages=300, healthy=4)))
        os.kill(os.getpid(), signal.SIGTERM)

    served(run, Options(port=0), talk)
    assert counts["answered_with_an_error"] == 300
    assert counts["healthy_samples"] > 0
    assert (counts["healthy_lost"], counts["healthy_wrong"], counts["closed_connections"]) == (0, 0, 0)
