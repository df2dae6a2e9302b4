"""A WebSocket client that costs little, so that thousands of messages a second leave time for the server beside it."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from typing import cast

HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(payload: bytes, opcode: int = 1) -> bytes:
    """The frame of a message. Its mask is zero, which does not change the payload."""
    size = len(payload)
    if size < 126:
        head = bytes([0x80 | opcode, 0x80 | size])
    elif size < 2**16:
        head = bytes([0x80 | opcode, 0xFE]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 0xFF]) + size.to_bytes(8, "big")
    return head + bytes(4) + payload


class Connection(asyncio.Protocol):
    """A connection that calls `heard` with the text of each message, and `lost` with why it has ended."""

    def __init__(self, heard: Callable[[bytes], None]) -> None:
        self.heard = heard
        self.buffer = b""
        self.opened = False
        self.closed = asyncio.Event()
        self.code: int | None = None  # of the close frame, or the HTTP status of a refusal
        self.transport: asyncio.Transport

    @classmethod
    async def open(cls, port: int, heard: Callable[[bytes], None], path: str = "/ws") -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(heard), "127.0.0.1", port)
        key = base64.b64encode(os.urandom(16)).decode()
        connection.transport.write(HANDSHAKE.format(path=path, port=port, key=key).encode())
        while not connection.opened and not connection.closed.is_set():
            await asyncio.sleep(0.002)
        if not connection.opened:
            raise ConnectionRefusedError(f"the server answered {connection.code}")
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def send(self, text: bytes) -> None:
        self.transport.write(frame(text))

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data
        if not self.opened:
            end = buffer.find(b"\r\n\r\n")
            if end >= 0:
                status = int(buffer.split(b" ", 2)[1])
                if status != 101:
                    self.code = status
                    self.transport.close()
                    return
                self.opened, buffer = True, buffer[end + 4 :]
        if self.opened:
            buffer = self._messages(buffer)
        self.buffer = buffer

    def _messages(self, buffer: bytes) -> bytes:
        """Remove complete messages from the buffer."""
        while len(buffer) >= 2:
            size, head = buffer[1] & 127, 2
            if size == 126:
                size, head = int.from_bytes(buffer[2:4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(buffer[2:10], "big"), 10
            if len(buffer) < head + size:
                break
            opcode, payload, buffer = buffer[0] & 15, buffer[head : head + size], buffer[head + size :]
            if opcode == 1:
                self.heard(payload)
            elif opcode == 8:
                self.code = int.from_bytes(payload[:2], "big")
            elif opcode == 9:
                self.transport.write(frame(payload, 10))
        return buffer

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
