"""Who may use `plmu serve`: tokens, hosts, pages of other sites, and sessions, which belong to who made them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from program import refused
from starlette.testclient import WebSocketDenialResponse
from test_serve import LOCAL, ask, saved, serving, socket
from test_serve_states import batcher, do

from plmu.serve import access, checked_root
from plmu.serve.access import Access, checked_token, digest, query_of
from plmu.serve.addresses import network
from plmu.serve.chunks import OPEN, RESET
from plmu.serve.limits import BadMessage, Rate

TOKEN = "a-long-secret"
SITE = "https://page.example"


def request(query: str = "", address: str = "198.51.100.7", host: str = "127.0.0.1", **headers: str) -> dict[str, Any]:
    """A scope with these headers."""
    pairs = {"host": host, **headers}.items()
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in pairs]
    return {"type": "http", "headers": raw, "query_string": query.encode(), "client": (address, 1234)}


def status(access: Access, *query: str, needs_token: bool = True, **request_: str) -> int:
    try:
        access.check(request(*query, **request_), needs_token)
    except BadMessage as error:
        return error.status
    return 200


def test_tokens_and_other_sites(tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    with serving(run, token=TOKEN) as client:
        for path in ("/model", "/metrics", "/sessions/x", "/memory?order=3&theta=4"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert client.get("/model", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/model", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get(f"/model?token={TOKEN}").status_code == 200
        assert client.get("/health").status_code == client.get("/").status_code == 200
        with pytest.raises(WebSocketDenialResponse) as denied, socket(client):
            pass
        assert denied.value.status_code == 401
        with socket(client, f"?token={TOKEN}") as connection:
            assert connection.receive_json()["step"] == 0
    with serving(run) as client:
        assert client.get("/model", headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.get("/model", headers={"Host": "evil.example"}).status_code == 403
        assert client.get("/model", headers={"Host": "localhost:8000", "Origin": "http://localhost:8000"}).is_success
        with pytest.raises(WebSocketDenialResponse) as denied, socket(client, Origin="http://evil.example"):
            pass
        assert denied.value.status_code == 403


def test_wrong_tokens_are_slowed_for_their_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("plmu.serve.limits.time.monotonic", lambda: now)
    server = Access("0.0.0.0", TOKEN)
    right = {"authorization": f"bearer {TOKEN}"}
    assert [status(server, "token=wrong") for _ in range(12)] == [401] * 10 + [429] * 2
    assert status(server, **right) == 429  # so that it cannot be told from a wrong one
    assert status(server, needs_token=False) == 200
    assert status(server, address="198.51.100.8", **right) == 200
    now += 1.0
    assert [status(server, **right) for _ in range(20)] == [200] * 20  # right ones cost nothing
    assert [status(server, authorization="Bearer wrong"), status(server, **right)] == [401, 429]
    assert [status(server, address="198.51.100.9") for _ in range(20)] == [401] * 20  # nor do missing ones
    assert [status(server, "token=x", address=f"2001:db8::{i}") for i in range(11)] == [401] * 10 + [429]
    assert status(server, "token=x", address="2001:db8:0:1::1") == 401
    monkeypatch.setattr(access, "MOST_NETWORKS", 5)
    for number in range(9):
        status(server, "token=x", address=f"203.0.113.{number}")
    assert list(server._attempts) == [f"203.0.113.{number}" for number in range(4, 9)]  # the last five


def test_networks_of_addresses() -> None:
    for address, expected in [
        ("198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("::1", "::1"),
        ("testclient", "testclient"),
        ("x" * 100, "x" * 64),
    ]:
        assert network(address) == expected


def test_a_bucket_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr("plmu.serve.limits.time.monotonic", lambda: now)
    rate = Rate(2.0, 6.0)
    assert [rate.take(4), rate.take(2), rate.take(3)] == [0.0, 0.0, 1.5]
    now += 1.0
    assert [rate.take(2), rate.take(1)] == [0.0, 0.5]
    now += 100.0
    assert rate.take(7) == 0.5
    assert rate.take(6) == 0.0


def test_hosts() -> None:
    local, named = Access("127.0.0.1", None), Access("127.0.0.1", None, ["Public.example", "[2001:db8::1]"])
    with_token, both = Access("0.0.0.0", TOKEN), Access("0.0.0.0", TOKEN, ["public.example"])
    right = f"token={TOKEN}"
    for host, expected in {
        "127.0.0.1": (200, 200, 200, 200),
        "LOCALHOST:8000": (200, 200, 200, 200),
        "[::1]:8000": (200, 200, 200, 200),
        "public.example": (403, 200, 200, 200),
        "PUBLIC.example:8443": (403, 200, 200, 200),
        "[2001:db8::1]:80": (403, 200, 200, 403),
        "evil.example": (403, 403, 200, 403),
        "": (403, 403, 200, 403),
        "[": (400, 400, 400, 400),
        "\xff": (403, 403, 200, 403),
    }.items():
        answers = [status(server, right, host=host) for server in (local, named, with_token, both)]
        assert answers == list(expected), host


def test_origins() -> None:
    site, every = Access("127.0.0.1", None, ["p.example"], [SITE]), Access("::", TOKEN, [], ["*"])
    for origin, host, allowed in [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://127.0.0.1:8001", "127.0.0.1:8000", False),
        ("https://P.example", "p.EXAMPLE", True),
        ("HTTPS://page.example", "p.example", True),
        ("http://page.example", "p.example", False),
        ("null", "p.example", False),
        ("http://[", "p.example", False),
        ("", "p.example", False),
    ]:
        assert status(site, host=host, origin=origin) == (200 if allowed else 403), origin
        headers = site.cors(request(host=host, origin=origin))
        assert headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
        assert headers["Vary"] == "Origin"
        assert status(every, f"token={TOKEN}", host=host, origin=origin) == 200
    assert Access("127.0.0.1", None).cors(request(origin=SITE)) == {}


def test_pages_of_allowed_sites_can_read_all_answers(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run"), origins=[SITE]) as client:
        asked = {"Origin": SITE, "Access-Control-Request-Method": "POST"}
        answer = client.options("/step", headers=asked)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, SITE)
        assert answer.headers["access-control-allow-methods"] == "GET, POST, DELETE"
        assert "Session-Secret" in answer.headers["access-control-allow-headers"]
        other = client.options("/step", headers={**asked, "Origin": "https://evil.example"})
        assert (other.status_code, "access-control-allow-origin" in other.headers) == (405, False)
        assert client.options("/step", headers={"Origin": SITE}).status_code == 405
        for path, expected in [("/model", 200), ("/step", 405), ("/nowhere", 404), ("/sessions/x", 404)]:
            answer = client.get(path, headers={"Origin": SITE})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (expected, SITE)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "error" in answer.json() or expected == 200
        with socket(client, Origin=SITE) as connection:
            assert connection.receive_json()["step"] == 0


def test_options_of_access_are_checked() -> None:
    assert checked_token("127.0.0.1", None) is None
    for host, token, message in [
        ("0.0.0.0", None, "give --token-file"),
        ("::", None, "give --token-file"),
        ("127.0.0.1", "1234567", "at least 8"),
        ("0.0.0.0", "nön-ascii-token", "ASCII"),
        ("0.0.0.0", "tab\tin token", "printable"),
    ]:
        with pytest.raises(ValueError, match=message):
            checked_token(host, token)
    assert checked_token("0.0.0.0", "12345678") == "12345678"
    for origin in ("page.example", "https://page.example/", "https://", "http://[", ""):
        with pytest.raises(ValueError, match="--allow-origin must be like"):
            Access("127.0.0.1", None, [], [origin])
    with pytest.raises(ValueError, match=r"--allow-origin \* lets every page in"):
        Access("127.0.0.1", None, [], ["*"])
    for host in ("", "a:80", "https://a", "a/b", "["):
        with pytest.raises(ValueError, match="--allow-host must be a name without a port"):
            Access("127.0.0.1", None, [host])
    for root in ("plmu", "/a b", "/a//b", "//a", "/a?b"):
        with pytest.raises(ValueError, match="--root-path must be like /plmu"):
            checked_root(root)
    assert [checked_root(root) for root in ("", "/", "/a/b", "/a/")] == ["", "", "/a/b", "/a"]
    assert query_of(request("a=1&a=2&b=%ff&c=")) == {"a": "1", "b": "\ufffd"}


def test_where_the_token_comes_from(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[str | None] = []
    monkeypatch.setattr("plmu.serve.serve", lambda run, options, ready: tokens.append(options.token))
    from plmu.cli.program import main

    file, run = tmp_path / "token", str(saved(tmp_path / "run"))
    file.write_text(f"{TOKEN}\n")
    main(["serve", run])
    main(["serve", run, "--token-file", str(file)])
    monkeypatch.setenv("PLMU_TOKEN", "of-the-environment")
    main(["serve", run])
    assert "others on this machine can see --token" not in capsys.readouterr().err
    main(["serve", run, "--token", "of-the-command-line"])
    said = "others on this machine can see --token in the list of processes: use --token-file or PLMU_TOKEN"
    assert said in capsys.readouterr().err
    assert tokens == [None, TOKEN, "of-the-environment", "of-the-command-line"]
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for words, message in [
        (["--token-file", str(tmp_path / "none")], "cannot be read"),
        (["--token-file", str(tmp_path / "bytes")], "cannot be read"),
        (["--token-file", str(tmp_path / "empty")], "is empty"),
        (["--token-file", str(file), "--token", TOKEN], "give --token-file or --token, not both"),
    ]:
        assert message in refused(["serve", run, *words], capsys)


def test_a_session_belongs_to_its_client(tmp_path: Path) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"
    message = {"session": "pump", "sample": 0.5}
    with serving(run, states=states) as client:
        del client.headers["Session-Secret"]
        first = client.post("/step", json=message).json()
        secret = first.pop("secret")
        assert len(secret) == 22
        assert first == {"session": "pump", "step": 1, "output": first["output"]}
        with socket(client, f"?session=pump&secret={secret}") as connection:
            assert connection.receive_json() == {"session": "pump", "step": 1, "last": [first["output"]]}
            for headers in ({}, {"Session-Secret": "that-of-another-client"}):
                refusals = [client.post("/step", json=message, headers=headers)]
                refusals += [client.request(way, "/sessions/pump", headers=headers) for way in ("GET", "DELETE")]
                for refusal in refusals:
                    assert refusal.status_code == 403
                    assert "the session pump is another client's: send its secret" in refusal.json()["error"]
                with pytest.raises(WebSocketDenialResponse) as denied, socket(client, "?session=pump", **headers):
                    pass
                assert denied.value.status_code == 403
            assert ask(connection, {"sample": 0.5})["step"] == 2  # which goes on
        mine = {"Session-Secret": secret}
        assert client.get("/sessions/pump", headers=mine).json()["step"] == 2
        with socket(client) as connection:
            assert len(connection.receive_json()["secret"]) == 22
        for wrong in ("too-short-012345"[:15], "x" * 129, "with a space 0123"):
            assert client.post("/step", json=message, headers={"Session-Secret": wrong}).status_code == 400
        chosen = {"Session-Secret": "chosen-by-client"}  # is not repeated
        assert "secret" not in client.post("/step", json={"session": "b", "sample": 0.5}, headers=chosen).json()
    with serving(run, states=states) as client:
        del client.headers["Session-Secret"]
        assert client.post("/step", json=message).status_code == 403
        assert client.post(f"/step?secret={secret}", json=message).json()["step"] == 3
        assert client.delete("/sessions/b", headers=mine).status_code == 403
        assert client.delete("/sessions/b", headers=chosen).json() == {"session": "b", "closed": True}
    content = b"".join(path.read_bytes() for path in states.iterdir())
    assert secret.encode() not in content
    assert digest(secret).encode() in content


def test_owners_are_in_the_journal(tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    server = batcher(run, tmp_path / "states")
    do(server, (OPEN, "a"), (OPEN, "b"), owner=digest("of-a-and-of-b-000"))
    shutil.copytree(tmp_path / "states", tmp_path / "left")
    again = batcher(run, tmp_path / "left")
    assert [again.by_name[name].owner for name in "ab"] == [digest("of-a-and-of-b-000")] * 2
    (other,) = do(again, (OPEN, "a"), owner=digest("of-another"))
    assert other.error is not None
    assert other.error.status == 403
    assert [request.error for request in do(again, (OPEN, "a"), (RESET, "b"), owner=again.by_name["a"].owner)] == [
        None
    ] * 2


def test_requests_that_cannot_be_read(tmp_path: Path) -> None:
    """None of them is an error of the server (status 500)."""
    with serving(saved(tmp_path / "run")) as client:
        for headers in (
            {"Host": "["},
            {"Host": "[x"},
            {"Origin": "http://["},
            {b"Host": b"\xff"},
            {b"Origin": b"\xff"},
        ):
            assert client.get("/model", headers=headers).status_code in (400, 403)
        for path in ("/static/%00", "/static/%ff", "/sessions/%ff", "/sessions/%00", "/static/" + "x" * 5000):
            assert client.get(path).status_code in (400, 404), path
        assert client.get("/model?token=%ff&secret=%ff").status_code == 200
        assert client.get("/sessions/x?secret=%ff").status_code in (400, 404)
        del client.headers["Session-Secret"]
        for query in ("?session=%ff", "?secret=%ff"):
            with pytest.raises(WebSocketDenialResponse) as denied, socket(client, query):
                pass
            assert denied.value.status_code == 400
        surrogate = client.post("/step", content=b'{"sample": 0.5, "id": "\\ud800"}')
        assert surrogate.status_code == 400
        with socket(client) as connection:
            connection.receive_json()
            assert ask(connection, '{"sample": 0.5, "id": "\\ud800"}')["status"] == 400
            assert ask(connection, '{"sample": 0.5, "\\ud800": 1}')["status"] == 400
        assert client.get(f"{LOCAL}/health").status_code == 200
