"""Protect a gateway without a token from the web pages that its user visits.

Against DNS rebinding, it accepts only hosts that name this machine. Against cross-site requests, it checks the
headers that browsers send (Fetch Metadata, https://www.w3.org/TR/fetch-metadata/, and ``Origin``, RFC 6454).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from torana.errors import CrossSite, HostNotAllowed


class SameSiteCheck:
    """Refuses unknown ``Host`` names and cross-site requests of browsers, except for ``/health``."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        own = {"localhost", socket.gethostname().lower()}
        self._hosts = own | {host.lower() for host in allowed_hosts}
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on. Raises ``HostNotAllowed`` or ``CrossSite``."""
        if scope["path"] != "/health":
            request = Request(scope)
            self._check_host(request)
            self._check_site(request)
        await self._app(scope, receive, send)

    def _check_host(self, request: Request) -> None:
        hosts = request.headers.getlist("host")
        # DNS rebinding sends the attacker's host name in `Host`; it cannot send an IP address there.
        if len(hosts) != 1 or not (_is_address(_name(hosts[0])) or _name(hosts[0]) in self._hosts):
            raise HostNotAllowed

    def _check_site(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin in self._origins:
            return
        site = request.headers.get("sec-fetch-site")
        if site is None:
            is_cross_site = origin is not None and origin.partition("://")[2] != request.headers.get("host")
        else:
            is_cross_site = site not in ("same-origin", "none") and not _is_navigation(request)
        if is_cross_site:
            raise CrossSite


def _is_navigation(request: Request) -> bool:
    """Return whether the request is a navigation, which is safe: the linking page cannot read the response."""
    return (
        request.method in ("GET", "HEAD")
        and request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-dest") == "document"
    )


def _name(host: str) -> str:
    """Return the name or address in a ``Host`` header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
