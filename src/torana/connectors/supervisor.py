"""Keeps one account connected: endlessly, alone, and never deaf."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Literal, Protocol, cast

from pydantic import SecretStr

from torana.connectors.base import Connector, Heard, HookRequest, HookResponse, Refused, TryLater
from torana.connectors.registry import Account, open_connector
from torana.errors import ConfigInvalid, StoreUnavailable
from torana.store import leases
from torana.store.database import Database

ConnectorState = Literal["starting", "active", "backing_off", "refused"]

#: Seconds before the next connection: twice as many each time, up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 300.0
#: Seconds before credentials are tried again that the platform refused, or settings that do not fit.
_REFUSED_PAUSE = 600.0
#: Seconds for connecting; after so many in which it held, a connection counts as good.
_CONNECT, _GOOD = 120.0, 60.0
#: Seconds that a connection gets to end in; after that it is left to itself.
_END = 5.0
#: How long an account is ours without another word.
_LEASE = timedelta(seconds=45)

_log = logging.getLogger(__name__)


class _Deaf(Exception):
    """Nothing was received for too long."""


class _Elsewhere(Exception):
    """Another process listens on the account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How an account stands. ``reason`` is why it is not active, ``next_try`` when it is tried again."""

    account: str
    kind: str
    state: ConnectorState
    since: datetime
    reason: str | None = None
    next_try: datetime | None = None
    connections: int = 0
    heard_at: datetime | None = None


class Surroundings(Protocol):
    """What the account's messages go through, made anew with its settings."""

    async def hear(self, heard: Heard) -> None:
        """Take a message: see ``Ears``."""
        ...

    async def paired(self, most: int) -> Sequence[str]:
        """Those whom the operator let in: see ``Ears``."""
        ...

    async def deliver(self, connector: Connector[Any]) -> None:
        """Send what is to be sent, until cancelled."""
        ...


class Supervisor:
    """One account, from the start of the gateway, or of its settings, to their end."""

    def __init__(
        self,
        *,
        account: Account,
        surround: Callable[[Connector[Any]], Surroundings],
        database: Database,
        holder: str,
        clock: Callable[[], datetime],
        told: Callable[[Status], None] = lambda _: None,
        open_: Callable[[Account], Connector[Any]] = open_connector,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lease: timedelta = _LEASE,
    ) -> None:
        """``holder`` names who listens, among those that share the database; ``told`` hears how it stands.

        A ``lease`` of the account is renewed three times before it runs out.
        """
        self._account = account
        self._surround = surround
        self._database = database
        self._holder = holder
        self._clock = clock
        self._told = told
        self._open = open_
        self._pause = pause
        self._lease = lease
        #: How the account stands.
        self.status = Status(account=account.name, kind=account.kind, state="starting", since=clock())
        #: The connection of the moment, while messages can be received and sent.
        self.connector: Connector[Any] | None = None

    async def run(self) -> None:
        """Connect again and again until cancelled."""
        failures = 0
        while True:
            begun = asyncio.get_running_loop().time()
            self._tell("starting")
            state, wait, reason = await self._connection(failures)
            held = asyncio.get_running_loop().time() - begun
            failures = 0 if self.status.state == "active" and held > _GOOD else failures + 1
            self._tell(state, reason=reason, next_try=self._clock() + timedelta(seconds=wait))
            await self._pause(wait)

    async def hook(self, request: HookRequest) -> HookResponse:
        """The platform's call; 503 while there is nobody to take it."""
        if self.connector is None:
            return HookResponse(status=503)
        return await self.connector.hook(request)

    async def _connection(self, failures: int) -> tuple[ConnectorState, float, str]:
        """One connection to its end: how the account stands then, for how long, and why."""
        try:
            connector = await asyncio.to_thread(self._open, self._account)
        except Exception as error:  # noqa: BLE001 - a library that fails at its import is its connector's fault
            text = error.detail if isinstance(error, ConfigInvalid) else f"{type(error).__name__}: {error}"
            return "refused", _jittered(_REFUSED_PAUSE), text
        try:
            await self._leased(connector)
        except Refused as error:
            return "refused", _jittered(_REFUSED_PAUSE), _masked(connector, str(error))
        except TryLater as error:
            wait = max(error.seconds or 0, _backoff(failures))
            return "backing_off", wait, _masked(connector, str(error))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return "backing_off", _backoff(failures), "the connection was cut off from within"
        except (_Deaf, _Elsewhere) as error:
            return "backing_off", _backoff(failures), str(error)
        except Exception as error:  # noqa: BLE001 - whatever a platform or its library does, we come back
            reason = _masked(connector, f"{type(error).__name__}: {error}")
            _log.debug("connection failed", exc_info=error)
            return "backing_off", _backoff(failures), reason
        finally:
            self.connector = None
        return "backing_off", _backoff(failures), "the connection ended"

    async def _leased(self, connector: Connector[Any]) -> None:
        """Run the connection while no other process has the account."""
        name = f"{self._account.kind}:{sha256(connector.credentials.encode()).hexdigest()[:32]}"
        until = await self._take_lease(name)
        work = asyncio.create_task(self._listen(connector), name=f"connector {self._account.name}")
        renewal = asyncio.create_task(self._renew(name, until))
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if renewal.done():
                renewal.result()
            work.result()
        finally:
            renewal.cancel()
            await _ended(work)
            with suppress(Exception):
                await self._database.run(partial(leases.give_back, account=name, holder=self._holder))

    async def _take_lease(self, name: str) -> datetime:
        """Take the lease, or hold on to it, until the time that is returned."""
        now = self._clock()
        until = now + self._lease
        work = partial(leases.take, account=name, holder=self._holder, now=now, until=until)
        if not await self._database.run(work):
            raise _Elsewhere(
                "another process, or another account of the settings, listens with these credentials"
            )
        return until

    async def _renew(self, name: str, until: datetime) -> None:
        while True:
            await asyncio.sleep(min(self._lease.total_seconds() / 3, self._left(until)))
            try:
                async with asyncio.timeout(self._left(until)):
                    until = await self._take_lease(name)
            except (StoreUnavailable, TimeoutError):
                if self._clock() >= until:  # before that nobody else can take it
                    raise _Elsewhere("the lease ran out, and could not be renewed") from None

    def _left(self, until: datetime) -> float:
        return max(0.0, (until - self._clock()).total_seconds())

    async def _listen(self, connector: Connector[Any]) -> None:
        """Run the connector, deliver over it, and watch that it receives."""
        surroundings = self._surround(connector)
        ears = _Ears(surroundings, heard=self._note_heard)
        run = asyncio.create_task(connector.run(ears), name=f"{self._account.name} listens")
        tasks: set[asyncio.Task[Any]] = {run}
        try:
            await self._until_ready(run, ears)
            if run.done():
                return run.result()
            self.status = replace(self.status, connections=self.status.connections + 1)
            self.connector = connector
            self._tell("active")
            delivery = asyncio.create_task(surroundings.deliver(connector))
            watch = asyncio.create_task(ears.until_deaf(connector.abilities.quiet))
            tasks |= {delivery, watch}
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.connector = None
            await asyncio.gather(*(_ended(task) for task in tasks))

    async def _until_ready(self, run: asyncio.Task[Any], ears: _Ears) -> None:
        ready = asyncio.create_task(ears.is_ready.wait())
        try:
            await asyncio.wait({run, ready}, timeout=_CONNECT, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not run.done() and not ears.is_ready.is_set():
            raise _Deaf(f"not connected after {_CONNECT:g} s")

    def _note_heard(self) -> None:
        self.status = replace(self.status, heard_at=self._clock())

    def _tell(
        self, state: ConnectorState, *, reason: str | None = None, next_try: datetime | None = None
    ) -> None:
        before = self.status
        self.status = replace(before, state=state, since=self._clock(), reason=reason, next_try=next_try)
        self._told(self.status)
        if (before.state, before.reason) != (state, reason) and state != "starting":
            level = logging.INFO if state == "active" else logging.WARNING
            extra = {"account": self._account.name, "state": state, "reason": reason}
            _log.log(level, "connector %s", state.replace("_", " "), extra=extra)


class _Ears:
    """What a connector hears goes on; each sign of life is noted."""

    def __init__(self, surroundings: Surroundings, *, heard: Callable[[], None]) -> None:
        self._surroundings = surroundings
        self._heard = heard
        self._sign = asyncio.Event()
        self._listening = 0
        self.is_ready = asyncio.Event()

    def ready(self) -> None:
        self.is_ready.set()

    def alive(self) -> None:
        self._sign.set()

    async def hear(self, heard: Heard) -> None:
        self._heard()
        self._sign.set()
        self._listening += 1  # while a message is being written down, the silence is ours
        try:
            await self._surroundings.hear(heard)
        finally:
            self._listening -= 1
            self._sign.set()

    async def paired(self, most: int) -> Sequence[str]:
        return await self._surroundings.paired(most)

    async def until_deaf(self, quiet: float | None) -> None:
        """Raise when nothing was received for so many seconds; never where the platform calls us."""
        while True:
            self._sign.clear()
            try:
                async with asyncio.timeout(quiet):
                    await self._sign.wait()
            except TimeoutError:
                if not self._listening:
                    raise _Deaf(f"nothing was received for {quiet:g} s") from None


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task, and not what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and give it a little time; one that will not end is left to itself."""
    task.cancel()
    _, left = await asyncio.wait({task}, timeout=_END)
    if left:
        _log.error("a connection does not end, and is left behind", extra={"task": task.get_name()})
    elif not task.cancelled():
        task.exception()  # somebody has looked at it


def _masked(connector: Connector[Any], text: str) -> str:
    """The text without the account's secrets: libraries put addresses into their errors."""
    for value in dict(connector.settings).values():
        for item in cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,):
            if isinstance(item, SecretStr) and item.get_secret_value():
                text = text.replace(item.get_secret_value(), "***")
    return text[:500]


def _backoff(failures: int) -> float:
    return _jittered(min(_LAST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 20)))


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
