"""Who may use a server: clients with its token, by names of hosts that it has, and pages of sites that it allows."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from hashlib import blake2b
from urllib.parse import SplitResult, parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from plmu.serve.addresses import is_loopback, network
from plmu.serve.limits import BadMessage, Rate

MIN_TOKEN = 8  # characters
WRONG_TOKENS, WRONG_RATE = 10, 1.0  # that an address may send at once, and a second
MOST_NETWORKS = 10_000  # whose wrong tokens are counted
SECRET = re.compile(r"[!-~]{16,128}")
METHODS, HEADERS = "GET, POST, DELETE", "Authorization, Content-Type, Session-Secret"


def checked_token(host: str, token: str | None) -> str | None:
    """The token of a server on this host. ValueError: it needs one, or a longer one."""
    if token is None and not is_loopback(host):
        raise ValueError(f"--host {host} can be reached from other machines: give --token-file, or set PLMU_TOKEN")
    if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable()):
        raise ValueError(f"the token must be at least {MIN_TOKEN} printable ASCII characters")
    return token


def checked_origins(origins: Sequence[str], token: str | None) -> frozenset[str]:
    """Origins of pages that may use a server. ValueError: one is wrong, or needs a token."""
    for origin in origins:
        parts = _parts(origin)
        if origin != "*" and (parts is None or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
            raise ValueError(f"--allow-origin must be like https://example.org, or *, got {origin}")
    if "*" in origins and token is None:
        raise ValueError("--allow-origin * lets every page in: give --token-file, or set PLMU_TOKEN")
    return frozenset(origin.lower() for origin in origins)


def checked_hosts(hosts: Sequence[str]) -> frozenset[str]:
    """Names of hosts by which a server is called. ValueError: one is wrong."""
    for host in hosts:
        if not host or _hostname(host) != host.strip("[]").lower():
            raise ValueError(f"--allow-host must be a name without a port, like example.org, got {host!r}")
    return frozenset(host.strip("[]").lower() for host in hosts)


def checked_secret(secret: str | None) -> str | None:
    """The secret of a session; BadMessage if it cannot be."""
    if secret is not None and not SECRET.fullmatch(secret):
        raise BadMessage("the secret of a session must be 16 to 128 printable ASCII characters without spaces")
    return secret


def digest(secret: str) -> str:
    """What the server keeps of a session's secret."""
    return blake2b(secret.encode(), digest_size=16).hexdigest()


class Access:
    """Checks requests by their headers, query and address.

    Args:
        host: on which the server listens.
        token: that clients need.
        hosts: names by which it may be called, apart from this machine's own.
        origins: of pages of other sites that may use it; `*` for all.
    """

    def __init__(self, host: str, token: str | None, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> None:
        self.token, self.local = checked_token(host, token), is_loopback(host)
        self.hosts, self.origins = checked_hosts(hosts), checked_origins(origins, token)
        self._attempts: dict[str, Rate] = {}  # of networks that have sent wrong tokens

    def check(self, scope: Scope, needs_token: bool = True) -> None:
        """Raise BadMessage for a Host that is not a name (status 400), a wrong token (401), a wrong host or a page of
        another site (403), and too many wrong tokens (429)."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = _hostname(host)
        if name is None:
            raise BadMessage(f"the header Host must be the name of a host, got {host[:60]!r}")
        only_local = self.local and self.token is None
        if (only_local or self.hosts) and name not in self.hosts and not is_loopback(name):
            raise BadMessage(f"this server may not be called {name[:60]!r}: add --allow-host with that name", 403)
        origin = headers.get("origin")
        if origin is not None and not self._allows(origin, host):
            raise BadMessage(f"pages of {origin[:60]!r} may not use this server: add --allow-origin with that", 403)
        if self.token is not None and needs_token:
            client = scope.get("client")  # behind a proxy on this machine that of the header X-Forwarded-For
            self._check_token(self.token, headers, query_of(scope), network(str(client[0])) if client else "")

    def _allows(self, origin: str, host: str) -> bool:
        """Whether pages of this origin may use the server, which they call `host`."""
        parts = _parts(origin)
        same = parts is not None and bool(host) and parts.netloc.lower() == host.lower()
        return same or "*" in self.origins or origin.lower() in self.origins

    def cors(self, scope: Scope) -> dict[str, str]:
        """Headers of an answer that let a page of another site read it, if it may."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if not self.origins:
            return {}
        if origin is None or not self._allows(origin, headers.get("host", "")):
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": HEADERS,
            "Access-Control-Max-Age": "600",
        }

    def _check_token(self, token: str, headers: Headers, query: dict[str, str], address: str) -> None:
        attempts = self._attempts.get(address) or Rate(WRONG_RATE, WRONG_TOKENS)
        if attempts.take(1):
            raise BadMessage("too many wrong tokens came from this address: try again in 1 s", 429)
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            value = query.get("token", "")
        right = hmac.compare_digest(value.encode("utf-8", "replace"), token.encode())
        if right or not value:  # those are no attempts
            attempts.available += 1
        else:
            self._attempts[address] = attempts
            if len(self._attempts) > MOST_NETWORKS:
                del self._attempts[next(iter(self._attempts))]
        if not right:
            raise BadMessage("a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN", 401)


def secret_of(scope: Scope) -> str | None:
    """The secret of a session in a request; BadMessage if it cannot be."""
    return checked_secret(Headers(scope=scope).get("session-secret") or query_of(scope).get("secret"))


def query_of(scope: Scope) -> dict[str, str]:
    """The query of a request."""
    return {name: values[0] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}


def _parts(url: str) -> SplitResult | None:
    """The parts of a URL; None if it is not a URL."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _hostname(host: str) -> str | None:
    """The name in a header Host, without the port; None if there is none in it."""
    parts = _parts(f"//{host}")
    return None if parts is None else parts.hostname or ""
