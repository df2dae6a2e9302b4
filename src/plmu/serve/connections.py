"""Connections of clients within limits: how many there are, how long a request may take to arrive, and how much of a
client waits in memory.

A `Connection` stands between the event loop and uvicorn: it is the protocol of the loop's transport, and the transport
of uvicorn's protocol. It *waits* while the server waits for its request, and is *busy* while its request is carried out
or its session goes on. When there are too many connections, the one that has waited longest is closed: who opens many
and sends nothing does not keep out those who send.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from starlette.types import Scope

from plmu.serve.addresses import is_loopback, network
from plmu.serve.limits import Limits

PATIENCE = 10.0  # seconds for a request to arrive whole, and for a part of an answer to leave
SWEEP = 1.0  # seconds between looks for connections that are late
READ = 2**14  # bytes that are read at once
PART = 2**10  # bytes passed on at once: a message in them holds up the next part
TURN = 0.001  # seconds after which other connections have their turn
MOST_UNREAD = 2**16  # bytes written, such as pongs, while the client does not read
TOO_MANY = b'{"error":"there are too many connections: try again later"}'
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
REFUSAL += b"Content-Length: %d\r\n\r\n%s" % (len(TOO_MANY), TOO_MANY)


def connection_of(scope: Scope) -> Connection | None:
    """The connection of a request, in a server that limits them."""
    connection: Connection | None = scope.get("state", {}).get("connection")
    return connection


class Connections:
    """All connections of a server, at most `most`. `make` makes uvicorn's protocol of one."""

    def __init__(self, most: int, limits: Limits, make: Callable[..., asyncio.Protocol]) -> None:
        self.most, self.most_of_address, self.make = most, limits.address_connections, make
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, float] = {}  # until when; who has waited longest comes first
        self.unread: dict[Connection, tuple[float, int]] = {}  # until when the client must have read of so many bytes
        self.by_network: Counter[str] = Counter()
        self.buffer = memoryview(bytearray(READ))
        self._sweeping: asyncio.TimerHandle | None = None

    def protocol(self, app_state: dict[str, Any], **arguments: Any) -> Connection:
        """A new connection. Its requests have it in the state of their scope."""
        connection = Connection(self)
        connection.inner = self.make(app_state={**app_state, "connection": connection}, **arguments)
        return connection

    def enter(self, connection: Connection) -> bool:
        """Count a new connection. False: there are too many, and none of them waits."""
        origin = connection.network
        if self.by_network[origin] >= self.most_of_address and not is_loopback(origin):
            if not self._drop(origin):
                return False
        elif len(self.open) >= self.most and not self._drop():
            return False
        self.open.add(connection)
        self.by_network[origin] += 1
        self.wait(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP, self.sweep)
        return True

    def _drop(self, origin: str | None = None) -> bool:
        """Close the connection, of this network or of any, that has waited longest."""
        for connection in self.waiting:
            if origin is None or connection.network == origin:
                connection.abort()
                return True
        return False

    def leave(self, connection: Connection) -> None:
        """Forget a connection."""
        if connection in self.open:
            self.open.remove(connection)
            self.by_network -= Counter([connection.network])  # which leaves out those without any
        self.waiting.pop(connection, None)
        self.unread.pop(connection, None)

    def wait(self, connection: Connection) -> None:
        """From now on the server waits for a request."""
        if connection in self.open:
            self.waiting.pop(connection, None)
            self.waiting[connection] = time.monotonic() + PATIENCE

    def must_read(self, connection: Connection) -> None:
        """From now on the client must read some of what is sent."""
        if connection in self.open:
            self.unread[connection] = time.monotonic() + PATIENCE, connection.get_write_buffer_size()

    def sweep(self) -> None:
        """Close the connections that are late."""
        now = time.monotonic()
        late = [connection for connection, until in self.waiting.items() if until < now]
        for connection, (until, size) in list(self.unread.items()):
            if until < now and connection.get_write_buffer_size() >= size:
                late.append(connection)
            elif until < now:
                self.must_read(connection)
        for connection in late:
            connection.abort()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP, self.sweep) if self.open else None


class Connection(asyncio.BufferedProtocol, asyncio.Transport):
    """A connection of a client."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.inner: asyncio.Protocol  # uvicorn's
        self.transport: asyncio.Transport
        self.network = ""
        self.received = b""  # and not passed on
        self._entered = self._lost = False
        self._paused = False  # whether uvicorn's protocol takes nothing at present
        self._feeding: asyncio.Handle | None = None
        self._written: int | None = None  # bytes, since the client does not read; None if it does

    def busy(self) -> None:
        """A request has arrived whole."""
        self.connections.waiting.pop(self, None)

    def wait(self) -> None:
        """The request is answered, or the session has ended."""
        self.connections.wait(self)

    # ---------------------------------------------------------------- the protocol of the loop's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        peer = transport.get_extra_info("peername")
        self.network = network(peer[0]) if isinstance(peer, tuple) else ""
        self._entered = self.connections.enter(self)
        if self._entered:
            self.inner.connection_made(self)
        else:
            self.transport.write(REFUSAL)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self.connections.leave(self)
        if self._entered:
            self.inner.connection_lost(error)

    def get_buffer(self, _: int) -> memoryview:
        return self.connections.buffer

    def buffer_updated(self, size: int) -> None:
        self.received += bytes(self.connections.buffer[:size])
        if self._entered and self._feeding is None:
            self._feed()

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self._entered else None

    def _feed(self) -> None:
        """Pass on what has arrived, until uvicorn's protocol takes no more or others have their turn."""
        self._feeding = None
        until = time.monotonic() + TURN
        while self.received and not self._paused and not self._lost:
            if time.monotonic() > until:
                self._feed_later()
                break
            part, self.received = self.received[:PART], self.received[PART:]
            self.inner.data_received(part)
        self._read_or_not()

    def _feed_later(self) -> None:
        if self._feeding is None:
            self._feeding = asyncio.get_running_loop().call_soon(self._feed)

    def _read_or_not(self) -> None:
        """Read from the client, but not while something it has sent is not passed on."""
        if self.is_closing():
            return
        if self.received or self._paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self._written = 0
        self.connections.must_read(self)
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self._written = None
        if not self.is_closing():
            self.connections.unread.pop(self, None)
        self.inner.resume_writing()

    # ---------------------------------------------------------------- the transport of uvicorn's protocol

    def write(self, data: Any) -> None:
        if self._lost or not data:
            return
        if self._written is not None:
            self._written += len(data)
            if self._written > MOST_UNREAD:
                self.abort()
                return
        self.transport.write(data)

    def pause_reading(self) -> None:
        self._paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        self._paused = False
        if self.received:
            self._feed_later()
        else:
            self._read_or_not()

    def close(self) -> None:
        if not self.is_closing():
            self.transport.close()
            if not self._lost:
                self.connections.must_read(self)

    def abort(self) -> None:
        self.connections.leave(self)
        self.transport.abort()

    def is_closing(self) -> bool:
        return self._lost or self.transport.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.inner = cast(asyncio.Protocol, protocol)

    def get_write_buffer_size(self) -> int:
        return self.transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.transport.get_extra_info(name, default)
