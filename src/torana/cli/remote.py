"""Changes by hand: asked of the running gateway, or made without one under the data directory's lock."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import httpx
import typer

from torana.cli.terminal import printable
from torana.config import Settings
from torana.errors import OperatorError
from torana.messages import utc_now
from torana.store.audit import Act
from torana.store.backup import DATABASE_NAME
from torana.store.database import Database
from torana.store.lock import DataDirLock, is_gateway, read_address
from torana.store.migrate import migrate
from torana.store.reading import check_there

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """The gateway that holds the data directory, asked over HTTP with its own token."""

    address: str
    headers: Mapping[str, str]

    def ask(
        self, method: str, path: str, *, read: Callable[[Any], T], body: Mapping[str, Any] | None = None
    ) -> T:
        """What ``read`` makes of the answer's JSON.

        Raises ``OperatorError``, in the gateway's own words where it refuses.
        """
        # ASCII throughout: what is no Unicode in an argument is for the gateway to refuse.
        content = None if body is None else json.dumps(body)
        with self.stream(method, path, timeout=60, content=content) as answer:
            return read(json.loads(answer.read()))

    def send(self, method: str, path: str, *, read: Callable[[Any], T], archive: bytes, timeout: float) -> T:
        """The same of an archive that is sent, which may take so many seconds to be looked at."""
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
    ) -> Generator[httpx.Response]:
        """The answer, not yet read.

        Raises ``OperatorError`` as ``ask`` does, also for what breaks off or is no answer while it is read.
        """
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
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise OperatorError(f"the gateway at {self.address} did not answer as one: {error!r}") from error

    def client(self, *, timeout: float | httpx.Timeout) -> httpx.Client:
        """What asks it anything else, with its token and through no proxy."""
        return httpx.Client(base_url=self.address, headers=self.headers, timeout=timeout, trust_env=False)


def other_token(address: str) -> str:
    """What an operator is told whose settings have not the token of the gateway at that address."""
    return f"the gateway at {address} has another token; set TORANA_GATEWAY_TOKEN to it"


def gateway_at(address: str, settings: Settings) -> RunningGateway:
    """The gateway at an address, which has the token of the settings."""
    token = settings.gateway_token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    return RunningGateway(address=address, headers=headers)


def running_gateway(settings: Settings) -> RunningGateway | None:
    """The gateway that runs on the data directory of the settings; None where none does."""
    address = read_address(settings.data_dir)
    return gateway_at(address, settings) if address is not None and is_gateway(address) else None


def the_gateway(settings: Settings) -> RunningGateway:
    """The gateway that runs on the data directory. Raises ``OperatorError`` where none does."""
    gateway = running_gateway(settings)
    if gateway is None:
        raise OperatorError("no gateway runs on this data directory; start it with `torana serve`")
    return gateway


@contextmanager
def own_database(settings: Settings, *, making: bool = False) -> Generator[Database]:
    """The database while no gateway runs; none can start meanwhile.

    One that is not there yet is made with ``making``, and when all is done that is said on standard error: its
    place may be mistyped. Raises ``DataDirBusy``, and ``DataDirUnusable`` for what is not there and not made.
    """
    path = settings.data_dir / DATABASE_NAME
    if not making:
        check_there(path)
    with DataDirLock(data_dir=settings.data_dir, address="a command of torana"):
        new = not path.exists()
        migrate(path)
        database = Database(path=path)
        try:
            yield database
        finally:
            database.close()
        if new:
            line = f"made a new database {path}; if the gateway has another, name its place with --data-dir"
            typer.echo(printable(line), err=True)


def act_by_hand() -> Act:
    """What is written down of a change that is made without a gateway."""
    return Act(principal="operator", source="command line", at=utc_now())
