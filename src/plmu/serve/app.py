"""The server's addresses: HTTP by Starlette, and the WebSocket, where each connection is a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

import plmu
from plmu.runs.deployed import Deployed
from plmu.serve.access import Access
from plmu.serve.batching import Batcher
from plmu.serve.limits import BadMessage
from plmu.serve.messages import Reader, Writer, checked_name
from plmu.serve.openapi import document
from plmu.serve.work import Session

STATIC = Path(__file__).parent / "static"
MAX_ORDER, MAX_THETA, POINTS = 64, 10_000, 100  # of the memory that the page shows
POLICY = "default-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; frame-ancestors 'none'"


class Server:
    """Answers HTTP and WebSocket messages for a deployed model."""

    def __init__(self, deployed: Deployed, batcher: Batcher, reader: Reader, access: Access) -> None:
        self.deployed, self.batcher, self.reader, self.access = deployed, batcher, reader, access
        self.writer, self.metrics = Writer(deployed), batcher.metrics

    def app(self, ready: Callable[[], None] = lambda: None) -> Starlette:
        """The ASGI application. It calls `ready` when clients may connect."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            await self.batcher.start()
            ready()
            yield
            await self.batcher.stop()

        routes = [
            Route("/", self._open(self.page)),
            Route("/health", self._open(self.health)),
            Route("/openapi.json", self._open(self.openapi)),
            Route("/static/{path}", self._open(self.static)),
            Route("/metrics", self._checked(self.numbers)),
            Route("/model", self._checked(self.model)),
            Route("/memory", self._checked(self.memory)),
            Route("/step", self._checked(self.step), methods=["POST"]),
            Route("/sessions/{name}", self._checked(self.session), methods=["GET", "DELETE"]),
            WebSocketRoute("/ws", Connections(self)),
        ]
        return Starlette(routes=routes, lifespan=lifespan)

    def _checked(self, endpoint: Callable[[HttpRequest], Any], needs_token: bool = True) -> Any:
        async def answered(request: HttpRequest) -> Response:
            try:
                self.access.check(request.headers, request.url.query, needs_token)
                response: Response = await endpoint(request)
            except BadMessage as error:
                self.metrics.error(error.status)
                headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
                response = JSONResponse({"error": str(error)}, error.status, headers)
            response.headers.update({"X-Content-Type-Options": "nosniff", "Content-Security-Policy": POLICY})
            return response

        return answered

    def _open(self, endpoint: Callable[[HttpRequest], Any]) -> Any:
        return self._checked(endpoint, needs_token=False)

    async def page(self, _: HttpRequest) -> Response:
        return FileResponse(STATIC / "index.html")

    async def static(self, request: HttpRequest) -> Response:
        return await StaticFiles(directory=STATIC).get_response(request.path_params["path"], request.scope)

    async def health(self, _: HttpRequest) -> Response:
        """Whether a request passes through a batch now, and can be stored."""
        wrong = await self.batcher.check()
        return JSONResponse({"status": wrong or "ok", "sessions": len(self.batcher.by_name)}, 503 if wrong else 200)

    async def openapi(self, _: HttpRequest) -> Response:
        return JSONResponse(document(self.about()))

    async def numbers(self, _: HttpRequest) -> Response:
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def model(self, _: HttpRequest) -> Response:
        return JSONResponse(self.about())

    def about(self) -> dict[str, Any]:
        """The inputs and outputs of the model, for clients."""
        frozen, outputs, memory = self.deployed.frozen, self.deployed.outputs, self.deployed.memory
        forecasts = self.deployed.forecasts
        return {
            "experiment": self.deployed.experiment,
            "kind": self.deployed.kind,
            "features": frozen.features,
            "tokens": frozen.vocabulary,
            "outputs": self.batcher.sessions.outputs,
            "labels": list(outputs.labels),
            "ahead": outputs.ahead,
            "columns": list(outputs.inputs),
            "horizon": outputs.horizon,
            "clock": None if outputs.clock is None else outputs.clock.described(),
            "season": outputs.season,
            "next_time": None if forecasts is None else forecasts.time_of(forecasts.first_step),
            "memory": None if memory is None else {"order": memory[0], "theta": memory[1]},
            "version": plmu.__version__,
        }

    async def memory(self, request: HttpRequest) -> Response:
        """Ā, B̄ and the decoder C of a Delay Network, which the page runs itself."""
        try:
            order, theta = int(request.query_params["order"]), float(request.query_params["theta"])
        except (KeyError, ValueError):
            raise BadMessage("order must be an integer and theta a number: /memory?order=12&theta=50") from None
        if not 1 <= order <= MAX_ORDER or not 1 <= theta <= MAX_THETA:
            raise BadMessage(f"order must be 1 to {MAX_ORDER} and theta 1 to {MAX_THETA}, got {order} and {theta:g}")
        network = plmu.DelayNetwork(order=order, theta=theta)
        system = network.discretize(dt=1.0)
        delays = [theta * point / (POINTS - 1) for point in range(POINTS)]
        matrices = {"A": system.A.tolist(), "B": system.B.flatten().tolist(), "C": network.decoder(delays).tolist()}
        return JSONResponse({"order": order, "theta": theta, "delays": delays, **matrices})

    async def step(self, request: HttpRequest) -> Response:
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > self.reader.limits.message_bytes:
                raise BadMessage(f"a message may have {self.reader.limits.message_bytes} bytes", 413)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise BadMessage("a message must be JSON in UTF-8") from None
        session = await self.batcher.open(self.reader.read(text, first=True).session)
        answer = await self.answer(session, text)
        status = answer.pop("status", 200)
        return Response(self.writer.encode({"session": session.name, **answer}), status, media_type="application/json")

    async def session(self, request: HttpRequest) -> Response:
        session = self.batcher.by_name.get(checked_name(request.path_params["name"]))
        if session is None:
            raise BadMessage(f"there is no session {request.path_params['name']}", 404)
        if request.method == "DELETE":
            await self.batcher.close(session)
            return JSONResponse({"session": session.name, "closed": True})
        return JSONResponse(self.hello(session))

    def hello(self, session: Session) -> dict[str, Any]:
        """The number of samples of a session, and its last outputs, for a client that has lost their answer."""
        hello: dict[str, Any] = {
            "session": session.name,
            "step": session.steps,
            "last": session.last if len(session.last) <= 1000 else [],
        }
        forecasts = self.deployed.forecasts
        if forecasts is not None and self.batcher.by_name.get(session.name) is session:
            step = self.batcher.work.next_step(session)
            hello["next_time"] = forecasts.time_of(forecasts.first_step if step is None else step)
        return hello

    async def answer(self, session: Session, text: str | bytes | None) -> dict[str, Any]:
        """The answer to a message, which may be an error."""
        started = time.perf_counter()
        tag = None
        try:
            message = self.reader.read(text, first=session.steps == 0)
            tag = message.tag
            request = await self.batcher.handle(session, message)
            error = None if request.error is None else str(request.error)
            answer = self.writer.answer(message, session.steps, request.outputs, error, request.forecast)
            if request.assumed is not None:
                answer["warning"] = f'{request.assumed}. Send "time" with the first sample'
            if message.close:
                answer["closed"] = True
            if request.error is not None:
                self.metrics.error(request.error.status)
                answer["status"] = request.error.status
        except BadMessage as error:
            self.metrics.error(error.status)
            answer = {"error": str(error), "status": error.status, "step": session.steps}
            if tag is not None:
                answer["id"] = tag
        self.metrics.messages += 1
        self.metrics.latency.add(time.perf_counter() - started)
        return answer


class Connections:
    """The WebSocket endpoint: each connection is a session, whose messages are answered one after another."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self.server
        await receive()  # websocket.connect
        query = scope["query_string"].decode("latin-1")
        try:
            server.access.check(Headers(scope=scope), query)
            names = parse_qs(query).get("session")
            name = None if names is None else checked_name(names[0])
            session = await server.batcher.open(name)
        except BadMessage as error:
            server.metrics.error(error.status)
            await _refuse(send, error, server.writer.encode({"error": str(error)}))
            return
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
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": server.writer.encode(server.hello(session))})
            talk = asyncio.create_task(self._talk(session, receive, send))
            leaving = asyncio.create_task(asked_to_leave.wait())
            await asyncio.wait({talk, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not talk.done():
                talk.cancel()
                await send({"type": "websocket.close", "code": reason[0], "reason": reason[1]})
            leaving.cancel()
            if talk.done() and not talk.cancelled():
                ended = talk.result()
        except OSError:  # the client has gone
            pass
        finally:
            server.metrics.connections -= 1
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
            await send({"type": "websocket.send", "text": server.writer.encode(answer)})
            if answer.get("closed"):
                await send({"type": "websocket.close", "code": 1000, "reason": "closed as asked"})
                return False
            if answer.get("status") == 404:
                await send({"type": "websocket.close", "code": 4404, "reason": "the session has ended"})
                return False


async def _refuse(send: Send, error: BadMessage, text: str) -> None:
    """Answer the request to connect with an error of HTTP."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": text.encode()})
