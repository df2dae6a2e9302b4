"""`plmu serve` behind a proxy, as docs/deploy.md sets one up: at a path of its own, under another name."""

import os
import signal
import socket
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_serve import saved, serving
from test_serve_faults import collected, served  # noqa: F401
from websockets.sync.client import connect

from plmu.serve import Options


class Proxy:
    """Passes connections on. The first line and the headers are changed as nginx does it with `location /plmu/`.

    Args:
        port: of the server.
        strips: whether it takes /plmu off the path.
        headers: that replace those of the client.
    """

    def __init__(self, port: int, strips: bool, headers: dict[str, str]) -> None:
        self.port, self.strips, self.headers = port, strips, headers
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                threading.Thread(target=self.passes, args=(client,), daemon=True).start()

    def passes(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        lines = head.decode("latin-1").split("\r\n")
        if self.strips:
            lines[0] = lines[0].replace(" /plmu/", " /")
        kept = [line for line in lines[1:] if line.partition(":")[0].lower() not in map(str.lower, self.headers)]
        added = [f"{name}: {value}" for name, value in self.headers.items() if value]
        with client, socket.create_connection(("127.0.0.1", self.port)) as upstream:
            upstream.sendall("\r\n".join([lines[0], *added, *kept]).encode("latin-1"))
            back = threading.Thread(target=pump, args=(upstream, client), daemon=True)
            back.start()
            pump(client, upstream)
            back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.mark.usefixtures("collected")
def test_the_proxy_of_the_docs(tmp_path: Path) -> None:
    """With its paths kept or taken off; the client's own Host, or that which nginx sets if nothing else is said."""

    def talk(address: str) -> None:
        port = int(address.rsplit(":", 1)[1])
        for strips, host in ((True, "public.example"), (False, "public.example"), (True, f"127.0.0.1:{port}")):
            proxy = Proxy(port, strips, {"Host": host, "Connection": "close", "X-Forwarded-For": "198.51.100.7"})
            base = f"http://{proxy.address}/plmu/"
            page = urllib.request.urlopen(base, timeout=20).read().decode()
            assert 'src="static/page.js"' in page
            for path in ("static/page.js", "static/page.css", "model", "memory?order=3&theta=4", "health"):
                with urllib.request.urlopen(base + path, timeout=20) as answer:
                    assert answer.status == 200
            proxy.headers = {"Host": host}
            with connect(f"ws://{proxy.address}/plmu/ws", origin="https://public.example") as client:  # type: ignore[arg-type]
                assert '"step":0' in str(client.recv(20))
                client.send('{"sample":0.5}')
                assert '{"step":1,' in str(client.recv(20))
            proxy.listening.close()
        os.kill(os.getpid(), signal.SIGTERM)

    options = Options(port=0, hosts=["public.example"], origins=["https://public.example"], root="/plmu")
    served(saved(tmp_path / "run"), options, talk)


def test_paths_below_a_root(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run"), root="/of/plmu/") as client:
        for path in ("/of/plmu/model", "/model", "/of/plmu/", "/"):
            assert client.get(path).status_code == 200
        for path in ("/of/plmux/model", "/of/model", "/of/plmu/of/plmu/model"):
            assert client.get(path).status_code == 404
        redirect: Any = client.get("/of/plmu", follow_redirects=False)
        assert (redirect.status_code, redirect.headers["location"]) == (307, "http://127.0.0.1/of/plmu/")


def test_the_page_names_no_path_from_the_root() -> None:
    static = Path(__file__).parents[2] / "src/plmu/serve/static"
    for file in ("index.html", "page.js"):
        text = (static / file).read_text(encoding="utf-8")
        for absolute in ('"/static', '"/ws', '"/model', "`/memory", 'src="/', 'href="/'):
            assert absolute not in text
