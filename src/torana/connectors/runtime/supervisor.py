"""Keep one account connected, and detect dead connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from pydantic import SecretStr

from torana.connectors.base import (
    Connector,
    HookRequest,
    HookResponse,
    IncomingMessage,
    PermanentError,
    RetryLater,
    TakesCalls,
)
from torana.connectors.registry import Account, open_connector
from torana.connectors.runtime.ingress import Ingress
from torana.errors import ConfigInvalid, StoreUnavailable
from torana.store.engine.database import Connection, Database
from torana.store.rows import leases
from torana.store.rows.extensions import connector_records
from torana.supervision import ConnectionStatus, ConnectionSupervisor, Ended, cancel_with_grace
from torana.web.interim_responses import bound_interim_responses

#: Seconds that a lease lasts without renewal.
_LEASE = timedelta(seconds=45)
#: Seconds between two attempts to take a lease that another holder has.
_STANDBY = 5.0
#: Timeout, in seconds, for connecting.
_CONNECT = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(ConnectionStatus):
    account: str
    kind: str
    heard_at: datetime | None = None
    #: The address that opens a chat with the account, after its first connection.
    link: str | None = None


class _StandBy(RetryLater):
    """Another holder has the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLease:
    """The leases of an account, among the holders that share a database.

    One has the account's name, one identifies its credentials: neither replicas with different settings nor
    two accounts with the same credentials listen at the same time.
    """

    database: Database
    account: str
    process: str
    clock: Callable[[], datetime]
    duration: timedelta = _LEASE

    @property
    def holder(self) -> str:
        return f"{self.process}#{self.account}"

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncGenerator[asyncio.Task[None]]:
        """Hold the leases of the account and of ``name``, which identifies its credentials, inside the block.

        The task that is returned renews them, and fails when one is lost. Raises ``RetryLater`` if another
        holder has one of them.
        """
        names = (name, f"account:{self.account}")
        until = await self._take(names)
        renewal = asyncio.create_task(self._renew(names, until), name=f"lease {self.holder}")
        try:
            yield renewal
        finally:
            renewal.cancel()
            with suppress(Exception):
                await self.database.run(partial(self._give_back, names=names))

    def records(self, name: str) -> AccountRecords:
        return AccountRecords(database=self.database, account=name, holder=self.holder)

    async def _take(self, names: Sequence[str]) -> datetime:
        until = self.clock() + self.duration
        if not await self.database.run(partial(self._take_in, names=names)):
            raise _StandBy(
                "another process listens on this account, or another account has its credentials",
                seconds=_STANDBY,
            )
        return until

    def _take_in(self, connection: Connection, names: Sequence[str]) -> bool:
        now = leases.shared_time(connection, self.clock())
        if all(
            leases.take(connection, name, self.holder, now=now, until=now + self.duration) for name in names
        ):
            return True
        self._give_back(connection, names)
        return False

    def _give_back(self, connection: Connection, names: Sequence[str]) -> None:
        for name in names:
            leases.give_back(connection, name, self.holder)

    async def _renew(self, names: Sequence[str], until: datetime) -> None:
        """Renew the leases three times in their duration, until one cannot be renewed."""
        while True:
            await asyncio.sleep(min(self.duration.total_seconds() / 3, self._seconds_until(until)))
            try:
                async with asyncio.timeout(self._seconds_until(until)):
                    until = await self._take(names)
            except (StoreUnavailable, TimeoutError):
                if self.clock() >= until:  # no other holder can take the lease before its end
                    raise RetryLater("the lease expired and could not be renewed") from None

    def _seconds_until(self, until: datetime) -> float:
        return max(0.0, (until - self.clock()).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRecords:
    """The records of an account whose lease the holder has; see ``MessageSink``.

    ``account`` is the name of the lease that identifies the credentials.
    """

    database: Database
    account: str
    holder: str

    async def load(self, name: str) -> Mapping[str, bytes]:
        """Return the records of this name. Raises ``RetryLater``."""
        try:
            return await self.database.read(partial(connector_records.load, account=self.account, name=name))
        except StoreUnavailable as error:
            raise RetryLater(f"records of the account cannot be read: {error.detail}") from error

    async def save(self, name: str, changes: Mapping[str, bytes | None]) -> None:
        """Store or delete records, all or none. Raises ``RetryLater``, also without the lease."""

        def work(connection: Connection) -> None:
            if not leases.is_held(connection, self.account, self.holder):
                raise RetryLater("another process listens with these credentials")
            connector_records.save(connection, self.account, name, changes)

        try:
            await self.database.run(work)
        except StoreUnavailable as error:
            raise RetryLater(f"records of the account cannot be stored: {error.detail}") from error


class Supervisor(ConnectionSupervisor[Status]):
    """Keeps one account connected until the gateway stops or the settings of the account change."""

    log_names = ("connector", "account")

    def __init__(
        self,
        *,
        account: Account,
        ingress: Callable[[Connector[Any]], Ingress],
        deliver: Callable[[Connector[Any]], Coroutine[Any, Any, None]],
        lease: AccountLease,
        clock: Callable[[], datetime],
        on_status: Callable[[Status], None] = lambda _: None,
        open_: Callable[[Account], Connector[Any]] = open_connector,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``deliver`` sends the deliveries until cancelled; ``on_status`` receives each new status."""
        status = Status(account=account.name, kind=account.kind, since=clock())
        super().__init__(account.name, status, clock=clock, pause=pause)
        self._account = account
        self._ingress = ingress
        self._deliver = deliver
        self._lease = lease
        self._on_status = on_status
        self._open = open_
        self._secrets: Sequence[str] = ()
        #: The current connection, while messages can be received and sent.
        self.connector: Connector[Any] | None = None
        #: The connector that takes the platform's calls while another holder has the lease.
        self.standby: Connector[Any] | None = None

    async def hook(self, request: HookRequest) -> HookResponse:
        """Answer the platform's request; 503 while the account is not connected."""
        connector = self.connector or self.standby
        return HookResponse(status=503) if connector is None else await connector.hook(request)

    async def _connect(self) -> str:
        try:
            connector = await asyncio.to_thread(self._open, self._account)
            bound_interim_responses()  # the library of the platform is imported by now
        except ConfigInvalid:
            raise
        except Exception as error:
            raise ConfigInvalid(f"{type(error).__name__}: {error}") from error
        self._secrets = _secrets_of(connector)
        name = f"{self._account.kind}:{sha256(connector.credentials.encode()).hexdigest()[:32]}"
        async with AsyncExitStack() as stack:
            renewal = await self._take_lease(stack, connector, name)
            await self._listen(connector, renewal, self._lease.records(name))
        return "the connection ended"

    async def _take_lease(
        self, stack: AsyncExitStack, connector: Connector[Any], name: str
    ) -> asyncio.Task[None]:
        """Hold the lease until the stack ends; return the task that renews it.

        While another holder has it, take the platform's calls: they reach any of the replicas. Raises
        ``_StandBy`` if the platform does not call.
        """
        try:
            return await stack.enter_async_context(self._lease.hold(name))
        except _StandBy as error:
            if not isinstance(connector, TakesCalls):
                raise
            self._set_state("backing_off", reason=str(error))
        sink = _ConnectionSink(self._ingress(connector), self._lease.records(name), heard=self._note_heard)
        taking = asyncio.create_task(connector.take_calls(sink), name=f"{self._name} takes calls")
        self.standby = connector
        try:
            while True:
                pause = asyncio.ensure_future(self._pause(_STANDBY))
                await asyncio.wait({taking, pause}, return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                if taking.done():
                    taking.result()
                    raise RetryLater("the platform refuses the access token")
                with suppress(_StandBy):
                    renewal = await stack.enter_async_context(self._lease.hold(name))
                    self._set_state("starting")
                    return renewal
        finally:
            self.standby = None
            await cancel_with_grace(taking)

    def _describe(self, error: BaseException) -> Ended:
        expected = isinstance(error, PermanentError | RetryLater | StoreUnavailable)
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        for secret in self._secrets:  # libraries put URLs into their errors
            text = text.replace(secret, "***")
        seconds = (error.seconds or 0.0) if isinstance(error, RetryLater) else 0.0
        # The database's fault is not the platform's: the account connects soon after the end of an outage.
        return Ended(
            reason=text[:500],
            refused=isinstance(error, PermanentError),
            seconds=_STANDBY if isinstance(error, StoreUnavailable) else seconds,
            standby=isinstance(error, _StandBy | StoreUnavailable),
        )

    def _on_change(self) -> None:
        self._on_status(self.status)

    async def _listen(
        self, connector: Connector[Any], renewal: asyncio.Task[None], records: AccountRecords
    ) -> None:
        """Run the connector, deliver over it, and detect silence and the loss of the lease."""
        sink = _ConnectionSink(self._ingress(connector), records, heard=self._note_heard)
        run = asyncio.create_task(connector.run(sink), name=f"{self._name} listens")
        tasks: set[asyncio.Task[Any]] = {run, renewal}
        deliveries: set[asyncio.Task[None]] = set()
        try:
            await _wait_until_ready(tasks, sink)
            if not (run.done() or renewal.done()):
                self.connector = connector
                self.status = replace(self.status, link=connector.link)
                self._set_active()
                deliveries.add(asyncio.create_task(self._deliver(connector)))
                tasks.add(asyncio.create_task(sink.wait_until_silent(connector.abilities.quiet)))
            done, _ = await asyncio.wait(tasks | deliveries, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.connector = None
            for ending in (deliveries, tasks):  # calls in progress need the connection
                await asyncio.gather(*(cancel_with_grace(task) for task in ending))

    def _note_heard(self) -> None:
        self.status = replace(self.status, heard_at=self._clock())


class _ConnectionSink:
    """Passes a connector's messages on, and notes each sign of life."""

    def __init__(self, ingress: Ingress, records: AccountRecords, *, heard: Callable[[], None]) -> None:
        self._ingress = ingress
        self._heard = heard
        self.paired_ids = ingress.paired_ids
        self.load_records, self.save_records = records.load, records.save
        self._sign = asyncio.Event()
        self._listening = 0
        self.is_ready = asyncio.Event()

    def ready(self) -> None:
        self.is_ready.set()

    def alive(self) -> None:
        self._sign.set()

    async def hear(self, heard: IncomingMessage) -> None:
        self._heard()
        self._sign.set()
        self._listening += 1  # while a message is being processed, the connector does not read
        try:
            await self._ingress.hear(heard)
        finally:
            self._listening -= 1
            self._sign.set()

    async def wait_until_silent(self, quiet: float | None) -> None:
        """Raise ``RetryLater`` after ``quiet`` seconds without a sign of life; with None never."""
        while True:
            self._sign.clear()
            try:
                async with asyncio.timeout(quiet):
                    await self._sign.wait()
            except TimeoutError:
                if not self._listening:
                    raise RetryLater(f"nothing was received for {quiet:g} s") from None


async def _wait_until_ready(tasks: set[asyncio.Task[Any]], sink: _ConnectionSink) -> None:
    """Wait until the connector is ready, or one of the tasks has ended. Raises ``RetryLater`` in time."""
    ready = asyncio.create_task(sink.is_ready.wait())
    try:
        done, _ = await asyncio.wait({*tasks, ready}, timeout=_CONNECT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
    if not done:
        raise RetryLater(f"not connected after {_CONNECT:g} s")


def _secrets_of(connector: Connector[Any]) -> list[str]:
    values: Iterable[Any] = dict(connector.settings).values()
    items: list[Any] = []
    for value in values:
        items += value if isinstance(value, tuple) else (value,)
    return [
        item.get_secret_value() for item in items if isinstance(item, SecretStr) and item.get_secret_value()
    ]
