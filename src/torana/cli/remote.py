"""Make an operator's change through the running gateway, or directly if no gateway runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from torana.cli.terminal import printable
from torana.errors import GatewayError, OperatorError
from torana.messages import utc_now

if TYPE_CHECKING:
    import httpx2

    from torana.config import Settings
    from torana.store.engine.database import Database
    from torana.store.rows.audit import Act

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """The gateway that holds the data directory, called over HTTP with the gateway token."""

    address: str
    headers: Mapping[str, str]

    def ask(
        self, method: str, path: str, *, read: Callable[[Any], T], body: Mapping[str, Any] | None = None
    ) -> T:
        """Return the result of ``read`` for the response's JSON.

        Raises ``OperatorError``, with the gateway's text if it refuses.
        """
        # json.dumps writes ASCII, so that the gateway, not the client, refuses invalid Unicode.
        content = None if body is None else json.dumps(body)
        with self.stream(method, path, timeout=60, content=content) as answer:
            return read(json.loads(answer.read()))

    def send(self, method: str, path: str, *, read: Callable[[Any], T], archive: bytes, timeout: float) -> T:
        """Upload an archive, and return the result of ``read``. The gateway may take ``timeout`` seconds."""
        kind = "application/octet-stream"
        with self.stream(method, path, timeout=timeout, content=archive, media_type=kind) as answer:
            return read(json.loads(answer.read()))

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        timeout: float,
        content: str | bytes | None = None,
        media_type: str = "application/json",
    ) -> Generator[httpx2.Response]:
        """Yield the unread response.

        Raises ``OperatorError`` as ``ask`` does, also if the response ends early.
        """
        import httpx2

        headers = {} if content is None else {"Content-Type": media_type}
        try:
            with (
                self.client(timeout=timeout) as client,
                client.stream(method, path, content=content, headers=headers) as answer,
            ):
                if answer.is_error:
                    answer.read()
                    if answer.status_code == HTTPStatus.UNAUTHORIZED:
                        raise OperatorError(other_token(self.address))
                    raise OperatorError(str(answer.json()["detail"]))
                yield answer
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise OperatorError(f"no valid response of a gateway from {self.address}: {error!r}") from error

    def client(self, *, timeout: float | httpx2.Timeout) -> httpx2.Client:
        """Return a client for other requests, with the gateway's token and without a proxy."""
        import httpx2

        return httpx2.Client(
            base_url=self.address, headers=self.headers, timeout=timeout, trust_env=False, verify=self._uses_tls
        )

    def async_client(self, *, timeout: float | httpx2.Timeout) -> httpx2.AsyncClient:
        """Return a client as ``client`` does, for a program with an event loop."""
        import httpx2

        return httpx2.AsyncClient(
            base_url=self.address, headers=self.headers, timeout=timeout, trust_env=False, verify=self._uses_tls
        )

    @property
    def _uses_tls(self) -> bool:
        """Return whether certificates are needed; reading them takes 50 ms of processor time."""
        return self.address.startswith("https:")


def other_token(address: str) -> str:
    """Return the error for settings whose token is not the token of the gateway at that address."""
    return f"the gateway at {address} has another token; set TORANA_GATEWAY_TOKEN to that token"


def gateway_at(address: str, settings: Settings) -> RunningGateway:
    """Return the gateway at an address, which must accept the token of the settings."""
    token = settings.gateway_token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    return RunningGateway(address=address, headers=headers)


def running_gateway(settings: Settings) -> RunningGateway | None:
    """Return the gateway that runs on the data directory of the settings, or None."""
    from torana.store.engine.lock import is_gateway, read_address

    address = read_address(settings.data_dir)
    return gateway_at(address, settings) if address is not None and is_gateway(address) else None


def the_gateway(settings: Settings) -> RunningGateway:
    """Return the gateway that runs on the data directory. Raises ``OperatorError`` if none runs."""
    gateway = running_gateway(settings)
    if gateway is None:
        raise OperatorError("no gateway runs on this data directory; start it with `torana serve`")
    return gateway


@contextmanager
def own_database(settings: Settings, *, making: bool = False) -> Generator[Database]:
    """Open the database while no gateway runs; no gateway can start meanwhile.

    With ``making`` a missing database is created, and standard error reports it, because the path may be
    mistyped. Raises ``DataDirBusy`` or ``DatabaseBusy``, and other ``OperatorError`` if the database is missing
    and not created.
    """
    from torana.config.database import database_place
    from torana.store.engine.lock import DataDirLock

    place = database_place(settings)
    if not making:
        place.check_exists()
    with DataDirLock(data_dir=settings.data_dir, address="a command of torana"):
        new = not place.exists()
        database = place.open(purpose="command")
        try:
            yield database
        finally:
            database.close()
        if new:
            line = (
                f"created a new database {place}; if the gateway uses another one, name its "
                "directory with --data-dir"
            )
            typer.echo(printable(line), err=True)


def run_by_hand(
    settings: Settings, work: Callable[[Database], Coroutine[Any, Any, T]], *, making: bool = False
) -> T:
    """Return the result of the work on ``own_database``. Raises ``OperatorError``, also for a refusal."""
    import asyncio

    with own_database(settings, making=making) as database:
        try:
            return asyncio.run(work(database))
        except GatewayError as error:
            raise OperatorError(error.detail) from error


def act_by_hand() -> Act:
    """Return the audit record's principal and source for a change that is made without a gateway."""
    from torana.store.rows.audit import Act

    return Act(principal="operator", source="command line", at=utc_now())
