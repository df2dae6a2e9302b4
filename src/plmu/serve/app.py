"""The server's addresses: HTTP by Starlette; the WebSocket is in `sockets.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import plmu
from plmu.runs.deployed import Deployed
from plmu.serve.access import Access, digest, secret_of
from plmu.serve.batching import Batcher
from plmu.serve.connections import connection_of
from plmu.serve.limits import WRONG_SECONDS, BadMessage
from plmu.serve.messages import Reader, Writer, checked_name
from plmu.serve.openapi import document
from plmu.serve.sockets import Sockets
from plmu.serve.work import SECRET_HINT, Session

STATIC = Path(__file__).parent / "static"
MAX_ORDER, MAX_THETA, POINTS = 64, 10_000, 100  # of the memory that the page shows
POLICY = "default-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; frame-ancestors 'none'"
OF_STATUS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}  # headers


class Server:
    """Answers HTTP and WebSocket messages for a deployed model. `root` is the path below which a proxy has it."""

    def __init__(self, deployed: Deployed, batcher: Batcher, reader: Reader, access: Access, root: str = "") -> None:
        self.deployed, self.batcher, self.reader, self.access, self.root = deployed, batcher, reader, access, root
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
            WebSocketRoute("/ws", Sockets(self)),
        ]
        return Starlette(
            routes=routes,
            lifespan=lifespan,
            middleware=[Middleware(Front, self)],
            exception_handlers={HTTPException: _no_such_address},
        )

    def _checked(self, endpoint: Callable[[HttpRequest], Any], needs_token: bool = True) -> Any:
        async def answered(request: HttpRequest) -> Response:
            try:
                self.access.check(request.scope, needs_token)
                response: Response = await endpoint(request)
            except BadMessage as error:
                self.metrics.error(error.status)
                await asyncio.sleep(WRONG_SECONDS)
                response = JSONResponse({"error": str(error)}, error.status, OF_STATUS.get(error.status))
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
        return JSONResponse(document(self.about(), self.reader.limits, self.root))

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
            "time": outputs.time,
            "threshold": outputs.threshold,
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
        try:
            async for part in request.stream():
                content += part
                if len(content) > self.reader.limits.message_bytes:
                    raise BadMessage(f"a message may have {self.reader.limits.message_bytes} bytes", 413)
            text = content.decode()
        except ClientDisconnect:
            raise BadMessage("the message has not arrived whole") from None
        except UnicodeDecodeError:
            raise BadMessage("a message must be JSON in UTF-8") from None
        if connection := connection_of(request.scope):
            connection.busy()
        name = self.reader.read(text, first=True).session
        session, secret = await self.batcher.open(name, secret_of(request.scope))
        answer = {**_named(session, secret), **await self.answer(session, text)}
        status = answer.pop("status", 200)
        return Response(self.writer.encode(answer), status, media_type="application/json")

    async def session(self, request: HttpRequest) -> Response:
        session = self.batcher.by_name.get(checked_name(request.path_params["name"]))
        if session is None:
            raise BadMessage(f"there is no session {request.path_params['name']}", 404)
        if not session.belongs(digest(secret_of(request.scope) or "")):
            raise BadMessage(f"the session {session.name} is another client's: {SECRET_HINT}", 403)
        if request.method == "DELETE":
            await self.batcher.close(session)
            return JSONResponse({"session": session.name, "closed": True})
        return JSONResponse(self.hello(session))

    def hello(self, session: Session, secret: str | None = None) -> dict[str, Any]:
        """The number of samples of a session, and its last outputs, for a client that has lost their answer."""
        hello: dict[str, Any] = {
            **_named(session, secret),
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


class Front:
    """What all requests pass: the path below which the server is, and what all answers have."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        scope["root_path"] = self.server.root  # which Starlette takes off a path that begins with it
        if scope["type"] == "websocket":
            await self.app(scope, receive, send)
            return
        cors = self.server.access.cors(scope)
        added = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": POLICY, **cors}
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in added.items()]

        async def sending(event: Message) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", []), *raw]
            await send(event)

        asks = scope["method"] == "OPTIONS" and "access-control-request-method" in Headers(scope=scope)
        app = Response(status_code=204) if asks and "Access-Control-Allow-Origin" in cors else self.app
        try:
            await app(scope, receive, sending)
        finally:
            if connection := connection_of(scope):
                connection.wait()


def _named(session: Session, secret: str | None) -> dict[str, Any]:
    """The name of a session, and its secret if it is new."""
    return {"session": session.name} | ({} if secret is None else {"secret": secret})


async def _no_such_address(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": f"{error.detail}: see /openapi.json"}, error.status_code, error.headers)
