"""The WebSocket: each connection is a session, whose messages are answered one after another."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Scope, Send

from plmu.serve.access import query_of, secret_of
from plmu.serve.connections import connection_of
from plmu.serve.limits import WRONG_SECONDS, BadMessage
from plmu.serve.messages import checked_name
from plmu.serve.work import Session

if TYPE_CHECKING:
    from plmu.serve.app import Server


class Sockets:
    """The WebSocket endpoint."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server, connection = self.server, connection_of(scope)
        await receive()  # websocket.connect
        try:
            server.access.check(scope)
            name = query_of(scope).get("session")
            session, secret = await server.batcher.open(name and checked_name(name), secret_of(scope))
        except BadMessage as error:
            server.metrics.error(error.status)
            await asyncio.sleep(WRONG_SECONDS)
            with suppress(OSError):
                await _refuse(send, error, server.writer.encode({"error": str(error)}))
            return
        if connection is not None:
            connection.busy()
        asked_to_leave = asyncio.Event()
        reason: list[Any] = []

        def leave(code: int, why: str) -> None:
            reason[:] = [code, why]
            asked_to_leave.set()

        if session.leave is not None:
            session.leave(4409, "the session goes on in another connection")
        session.leave = leave
        server.metrics.connections += 1
        ended = False
        try:
            await _send(send, {"type": "websocket.accept"})
            await _send(send, {"type": "websocket.send", "text": server.writer.encode(server.hello(session, secret))})
            talk = asyncio.create_task(self._talk(session, receive, send))
            leaving = asyncio.create_task(asked_to_leave.wait())
            await asyncio.wait({talk, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not talk.done():
                talk.cancel()
                await _send(send, {"type": "websocket.close", "code": reason[0], "reason": reason[1]})
            leaving.cancel()
            if talk.done() and not talk.cancelled():
                ended = talk.result()
        except OSError:  # the client has gone
            pass
        finally:
            server.metrics.connections -= 1
            if connection is not None:
                connection.wait()
            if session.leave is leave:
                session.leave = None
                if ended and name is None:  # a session that the client has not named ends with its connection
                    with suppress(BadMessage):
                        await server.batcher.close(session)

    async def _talk(self, session: Session, receive: Receive, send: Send) -> bool:
        """Answer messages. Returns whether the client has closed the connection, rather than lost it."""
        server = self.server
        while True:
            event = await receive()
            if event["type"] != "websocket.receive":
                return event.get("code") in (1000, 1001)
            content = event.get("text")
            answer = await server.answer(session, content if content is not None else event.get("bytes"))
            if "error" in answer:
                await asyncio.sleep(WRONG_SECONDS)
            await _send(send, {"type": "websocket.send", "text": server.writer.encode(answer)})
            if answer.get("closed"):
                await _send(send, {"type": "websocket.close", "code": 1000, "reason": "closed as asked"})
                return False
            if answer.get("status") == 404:
                await _send(send, {"type": "websocket.close", "code": 4404, "reason": "the session has ended"})
                return False


async def _send(send: Send, event: Message) -> None:
    """Send, or raise OSError if the client has gone."""
    try:
        await send(event)
    except RuntimeError as error:  # of uvicorn, after it has closed the connection
        raise ConnectionResetError(str(error)) from None


async def _refuse(send: Send, error: BadMessage, text: str) -> None:
    """Answer the request to connect with an error of HTTP."""
    headers = [(b"content-type", b"application/json")]
    await _send(send, {"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await _send(send, {"type": "websocket.http.response.body", "body": text.encode()})
