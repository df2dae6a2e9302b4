"""`plmu serve`: a trained model as a server for many sessions, over HTTP and WebSockets."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

import plmu
from plmu.errors import RunError
from plmu.runs.deployed import Deployed, Learning, load
from plmu.runtime.state_tree import leaves
from plmu.serve.access import Access, checked_token
from plmu.serve.app import Server
from plmu.serve.batching import Batcher
from plmu.serve.connections import Connections
from plmu.serve.journal import Journal
from plmu.serve.limits import Limits
from plmu.serve.messages import Reader
from plmu.serve.metrics import Metrics
from plmu.serve.snapshots import MOST_WIDTH

BATCH_COST = 2**22  # multiply-adds of a batch, which take a fraction of a millisecond
MOST_PORT = 65_535
YOUNG_OBJECTS = 50_000  # at which the garbage collector runs
HEADROOM = 2  # messages up to this many times the limit are read and answered with an error
BACKLOG = 1024  # clients that wait to be accepted, at most
RESERVE = 64  # open files other than connections
OF_CLIENTS = ("completing handshake", "Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket library")
ROOT = re.compile(r"(/[A-Za-z0-9_.~-]+)+/?")

log = logging.getLogger("plmu.serve")


@dataclass
class Options:
    """How a server runs."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    states: Path | None = None
    missing: str | None = None
    width: int | None = None
    tick: float = 0.01  # most seconds between batches under load
    fsync: bool = False  # whether records are on the disk before they are answered
    recover: bool = False  # whether to go on from what can be read of damaged states
    limits: Limits = field(default_factory=Limits)
    hosts: Sequence[str] = ()  # names by which it may be called, apart from this machine's own
    origins: Sequence[str] = ()  # of pages of other sites that may use it
    root: str = ""  # the path below which a proxy has it
    learning: Learning | None = None  # how the sessions of a forecast learn; None if they do not


def make_server(deployed: Deployed, options: Options) -> Server:
    """The server of a model. It continues the sessions in `options.states`."""
    access = Access(options.host, options.token, options.hosts, options.origins)
    root = checked_root(options.root)
    if options.width is not None and not 1 <= options.width <= MOST_WIDTH:
        raise ValueError(f"--width must be 1 to {MOST_WIDTH}, got {options.width}")
    missing = deployed.frozen.checked_missing(options.missing)
    reader = Reader(deployed, options.limits, missing)
    journal, width = None, options.width
    with ExitStack() as on_error:
        if options.states is not None:
            fingerprint, code, features = deployed.frozen.fingerprint, reader.code, reader.features
            journal = Journal(options.states, fingerprint, code, features, options.fsync, options.recover)
            on_error.callback(journal.close)
            snapshot = journal.snapshot()
            if snapshot is not None:
                width = snapshot.width  # with another one sums would round differently
        sessions = plmu.Sessions(deployed.frozen, width or usual_width(deployed.frozen), missing=missing)
        batcher = Batcher(sessions, options.limits, Metrics(), reader.code, journal, options.tick, deployed.forecasts)
        on_error.pop_all()
    return Server(deployed, batcher, reader, access, root)


def checked_root(root: str) -> str:
    """A path below which a server is, without a slash at its end. ValueError: it is no path."""
    if root.strip("/") and not ROOT.fullmatch(root):
        raise ValueError(f"--root-path must be like /plmu, got {root!r}")
    return root.rstrip("/")


def usual_width(frozen: plmu.FrozenModel) -> int:
    """Rows of a batch, a power of two from 16 to 256: the smaller the model, the more."""
    size = sum(array.numel() for name, array in frozen.folded.arrays().items() if not name.endswith("table"))
    start = frozen.folded.initial_state(1, torch.float64, torch.device("cpu"))
    size = max(1, size, sum(leaf.numel() for leaf in leaves(start)))
    return int(2 ** max(4, min(8, (BATCH_COST // size).bit_length() - 1)))


def serve(run: Path, options: Options, ready: Callable[[str], None] | None = None) -> None:
    """Serve the model of a run until SIGINT or SIGTERM. `ready` is called with the address.

    Raises:
        RunError: there is no model that streams, its states cannot be read, or the server has failed.
        ValueError: an option is wrong.
        OSError: the port is taken.
    """
    checked_token(options.host, options.token)
    if not 0 <= options.port <= MOST_PORT:
        raise ValueError(f"--port must be 0 to {MOST_PORT}, got {options.port}")
    deployed = load(run, options.learning)
    most, backlog = open_files(options.limits.most_connections)
    with _listening(options, backlog) as listening:
        shown = f"[{options.host}]" if listening.family == socket.AF_INET6 else options.host
        address = f"http://{shown}:{listening.getsockname()[1]}"
        server = make_server(deployed, options)
        app = server.app(lambda: None if ready is None else ready(address))
        connections = Connections(most, options.limits, H11Protocol)
        if not _run(app, listening, backlog, connections, server.batcher):
            sys.exit(1)
        if server.batcher.failed is not None:
            raise RunError(server.batcher.failed)


def open_files(most: int) -> tuple[int, int]:
    """Raise the limit of open files as far as `most` connections need it and the system allows.

    Returns:
        How many connections there can be, and how many more can wait to be accepted. Those who wait are all accepted
        before the first is told that there are too many, so each of them needs a file, too.
    """
    if resource is None:
        return most, BACKLOG
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = most + BACKLOG + RESERVE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return most, BACKLOG
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    backlog = BACKLOG if soft == needed else min(BACKLOG, soft // 4)
    allowed = min(most, soft - backlog - RESERVE)
    if allowed < 1:
        raise RunError(f"the limit of open files is {soft}: raise it, as with `ulimit -n 4096`")
    if allowed < most:
        log.warning("plmu: %d connections at once instead of %d: the limit of open files is %d", allowed, most, soft)
    return allowed, backlog


def _listening(options: Options, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
        listening.listen(backlog)
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}") from None
    return listening


def _is_of_server(record: logging.LogRecord) -> bool:
    """Whether a message of uvicorn is not about one wrong request: clients could fill the disk with those."""
    message = record.getMessage()
    return not any(words in message for words in OF_CLIENTS)


def _run(app: Starlette, listening: socket.socket, backlog: int, connections: Connections, batcher: Batcher) -> bool:
    """Run until a signal, or until the batcher has failed, and return whether the server had started."""
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], connections.protocol),
        ws="websockets-sansio",
        ws_max_size=HEADROOM * batcher.limits.message_bytes,
        backlog=backlog,
        ws_per_message_deflate=False,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_of_server)
    # uvicorn raises a signal again after it has stopped, which must not end this process.
    handlers = {kind: signal.signal(kind, lambda *_: None) for kind in (signal.SIGINT, signal.SIGTERM)}
    running = uvicorn.Server(config)
    batcher.on_failure = lambda: setattr(running, "should_exit", True)
    # Collect rarely: a batch makes thousands of objects and frees them soon. At the usual threshold they start
    # collections that go through all connections, a tenth of the time under load. What torch has loaded is frozen.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(running.serve(sockets=[listening]))
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
    return running.started
