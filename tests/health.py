"""Asking gateways, by HTTP, whether they accept messages."""

from __future__ import annotations

import ssl
from functools import cache

import httpx2


def accepts_messages(url: str, *, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether the ``/health`` at this URL reports that its gateway accepts messages.

    ``tls`` are the trusted certificates of an ``https`` URL.
    """
    try:
        return httpx2.get(url, trust_env=False, verify=tls or certificates()).json()["status"] == "ok"
    except (httpx2.TransportError, ValueError):
        return False


@cache
def certificates() -> ssl.SSLContext:
    """Return the system's certificates. A client of its own reads them anew, for 50 ms of processor time."""
    return httpx2.create_ssl_context()
