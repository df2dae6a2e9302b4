"""Who may use a server: clients with its token, and no pages of other sites."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from plmu.serve.limits import BadMessage

MIN_TOKEN = 8  # characters


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def checked_token(host: str, token: str | None) -> str | None:
    """The token of a server on this host. ValueError: it needs one, or a longer one."""
    if token is None and not is_loopback(host):
        raise ValueError(f"--host {host} can be reached from other machines: give --token, or set PLMU_TOKEN")
    if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable()):
        raise ValueError(f"--token must be at least {MIN_TOKEN} printable ASCII characters")
    return token


class Access:
    """Checks the headers and the query of a request."""

    def __init__(self, host: str, token: str | None) -> None:
        self.token, self.local = token, is_loopback(host)

    def check(self, headers: Mapping[str, str], query: str, needs_token: bool = True) -> None:
        """Raise BadMessage for a wrong token (status 401) or a page of another site (403)."""
        host = headers.get("host", "")
        if self.token is None and self.local and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise BadMessage("this server is for this machine: call it 127.0.0.1 or localhost", 403)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise BadMessage("pages of other sites may not use this server", 403)
        if self.token is None or not needs_token:
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            token = parse_qs(query).get("token", [""])[0]
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            raise BadMessage("a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN", 401)
