"""The gateway of a chat: a remote one, the one on this data directory, or a temporary one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus

import httpx2
import typer

from torana.characters import is_header_value
from torana.cli.gateway import Gateway, listen
from torana.cli.remote import RunningGateway, gateway_at, running_gateway
from torana.cli.terminal import printable
from torana.config import Loaded
from torana.config.fields import is_loopback
from torana.errors import OperatorError
from torana.store.engine.lock import DataDirLock
from torana.telemetry import configure_logging

_LOCKED = "the gateway at {url} needs a token; set {variable} to it"
_UNENCRYPTED = "warning: {url} is not encrypted; others on the network can read the token and the messages"


def remote_gateway(url: str, variable: str) -> RunningGateway:
    """Return the gateway at a URL, with the token from the environment variable or a hidden prompt.

    Raises ``OperatorError`` for an address that is no URL or does not answer, and if a token is missing.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise OperatorError(f"--url {url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise OperatorError(f"--url {url!r} must look like https://torana.example.org, without a password")
    token = os.environ.get(variable) or _ask_for_token(url, variable)
    if token and not is_header_value(token):
        raise OperatorError("the token contains a character that no token has; copy it again")
    if token and parsed.scheme == "http" and not is_loopback(parsed.host):
        typer.echo(printable(_UNENCRYPTED.format(url=url)), err=True)
    return RunningGateway(address=url, headers={"Authorization": f"Bearer {token}"} if token else {})


@contextmanager
def local_gateway(loaded: Loaded) -> Generator[RunningGateway]:
    """Yield the gateway on this data directory, or a temporary one."""
    running = running_gateway(loaded.settings)
    if running is not None:
        yield running
    else:
        with _own_gateway(loaded) as own:
            yield own


def _ask_for_token(url: str, variable: str) -> str:
    """Return the token that the user types, or an empty text if the gateway needs none."""
    probe = RunningGateway(address=url, headers={})
    try:
        with probe.client(timeout=10) as client:
            status = client.get("v1/sessions", params={"limit": "1"}).status_code
    except httpx2.HTTPError as error:
        raise OperatorError(f"no gateway responds at {url}: {error}") from error
    if status != HTTPStatus.UNAUTHORIZED:
        return ""
    if not sys.stdin.isatty():
        raise OperatorError(_LOCKED.format(url=url, variable=variable))
    return typer.prompt("Token", hide_input=True, err=True)


@contextmanager
def _own_gateway(loaded: Loaded) -> Generator[RunningGateway]:
    """Run a gateway in a thread, on a free port of this machine.

    It uses the token of the settings, so that a second ``torana chat`` can use it as well.
    """
    local = replace(loaded, settings=loaded.settings.model_copy(update={"host": "127.0.0.1"}))
    with listen("127.0.0.1", 0) as listener, ThreadPoolExecutor(1, "torana-gateway") as thread:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with DataDirLock(data_dir=loaded.settings.data_dir, address=address):
            configure_logging(level="error", format="console", file=None, stream=sys.stderr)
            up_or_failed = threading.Event()
            gateway = Gateway(loaded=local, on_ready=up_or_failed.set)
            running = thread.submit(gateway.run, listener)
            running.add_done_callback(lambda _: up_or_failed.set())
            try:
                up_or_failed.wait()
                if not running.done():
                    yield gateway_at(address, loaded.settings)
            finally:
                gateway.stop()
                running.result()  # raises the error of the gateway
