"""All accounts of the gateway: started, stopped and changed one by one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from torana.connectors.base import Connector, Heard, HookRequest, HookResponse
from torana.connectors.company import Company
from torana.connectors.door import Admission, Door
from torana.connectors.outbox import Outbox
from torana.connectors.registry import Account, open_connector
from torana.connectors.supervisor import Status, Supervisor
from torana.messages import Turn, utc_now
from torana.store import deliveries
from torana.store.database import Database
from torana.turns import Turns

#: Seconds after which deliveries are looked at that nobody sends.
_SWEEP = 3600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """An account with what belongs to it."""

    account: Account
    supervisor: Supervisor
    outbox: Outbox
    company: Company
    task: asyncio.Task[None]


class Connectors:
    """The connectors of a gateway. None of them disturbs another, or the start."""

    def __init__(
        self,
        *,
        accounts: Sequence[Account],
        admission: Admission,
        turns: Turns,
        database: Database,
        holder: str,
        clock: Callable[[], datetime] = utc_now,
        told: Callable[[Status], None] = lambda _: None,
        open_: Callable[[Account], Connector[Any]] = open_connector,
        sweep_every: float = _SWEEP,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``holder`` is whoever shares the database with nobody, across restarts; ``told`` hears of every
        change in how an account stands. Deliveries that nobody sends are looked after every ``sweep_every``
        seconds.
        """
        self._accounts = accounts
        self._admission = admission
        self._turns = turns
        self._database = database
        self._clock = clock
        self._told = told
        self._open = open_
        self._pause = pause
        self._holder = holder
        self._running: dict[str, _Running] = {}
        #: Those that are told of the ends of all turns.
        self._subscribed: set[str] = set()
        #: One thing after the other: starting, changing, stopping.
        self._changing = asyncio.Lock()
        self._stopped = False
        self._sweep_every = sweep_every
        self._unswept = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect all of them; nothing is waited for."""
        async with self._changing:
            await self._keep_deliveries()
            self._start_all(self._accounts)
            self._sweeper = asyncio.create_task(self._sweep_again_and_again())

    async def flush(self, *, within: float) -> None:
        """Deliver what can be delivered at once, over the connections there are, for so many seconds."""
        active = [running for running in self._running.values() if running.supervisor.connector is not None]
        for running in active:
            running.outbox.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await asyncio.gather(*(running.outbox.until_idle() for running in active))

    async def stop(self) -> None:
        """End all connections; nothing begins any more."""
        async with self._changing:
            self._stopped = True
            if self._sweeper is not None:
                self._sweeper.cancel()
            await asyncio.gather(*(self._stop(name) for name in self._running.copy()))

    def changes(self, accounts: Sequence[Account]) -> list[str]:
        """The names of the accounts that are new with these settings, different, or gone."""
        wanted = {account.name: account for account in accounts}
        present = {name: running.account for name, running in self._running.items()}
        return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))

    async def apply(self, accounts: Sequence[Account]) -> list[str]:
        """Take on changed settings: only accounts that changed are connected anew, and those that are refused:
        what refused them may have been mended at the platform. Returns the names of both.
        """
        async with self._changing:
            if self._stopped:
                return []
            changed = sorted({*self.changes(accounts), *self.refused()})
            await asyncio.gather(*(self._stop(name) for name in changed if name in self._running))
            self._accounts = accounts
            await self._keep_deliveries()
            self._start_all([account for account in accounts if account.name in changed])
            return changed

    async def _keep_deliveries(self) -> None:
        """Tell no others of anything any more, and say what becomes of what is for others."""
        names = [account.name for account in self._accounts]
        self._subscribed.intersection_update(names)
        await self._database.run(partial(deliveries.keep_subscriptions, accounts=names))
        await self._sweep()

    async def _sweep(self) -> None:
        names = [account.name for account in self._accounts]
        try:
            await self._database.run(partial(deliveries.sweep, accounts=names, now=self._clock()))
        except Exception as error:  # noqa: BLE001 - nobody else would, and another time it may succeed
            _log.warning("deliveries could not be looked through", exc_info=error)

    async def _sweep_again_and_again(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._sweep_every):
                    await self._unswept.wait()
            self._unswept.clear()
            await self._sweep()

    def refused(self) -> list[str]:
        """The names of those whose credentials or settings are refused."""
        return [status.account for status in self.statuses() if status.state == "refused"]

    def active(self) -> list[str]:
        """The names of those that receive."""
        return sorted(status.account for status in self.statuses() if status.state == "active")

    def statuses(self) -> Sequence[Status]:
        """How each stands, by name."""
        return [self._running[name].supervisor.status for name in sorted(self._running)]

    async def status(self) -> Sequence[Mapping[str, Any]]:
        """How each stands, and how many deliveries of it are open or held, for people and programs."""
        waiting = await self._database.run(deliveries.waiting)
        return [
            {
                "account": status.account,
                "kind": status.kind,
                "state": status.state,
                "since": status.since.isoformat(),
                "reason": status.reason,
                "nextTry": status.next_try and status.next_try.isoformat(),
                "connections": status.connections,
                "lastHeard": status.heard_at and status.heard_at.isoformat(),
                "deliveries": waiting.get(status.account, {}),
            }
            for status in self.statuses()
        ]

    async def hook(self, account: str, request: HookRequest) -> HookResponse:
        """A platform's call."""
        running = self._running.get(account)
        return HookResponse(status=404) if running is None else await running.supervisor.hook(request)

    def turn_ended(self, turn: Turn) -> None:
        """Have the end of a turn delivered, and told to those who asked for it."""
        for account in {turn.account, *self._subscribed}:
            self.wake(account)

    def can_ask(self, account: str) -> bool:
        """Whether people may see a question on an account; where it is not connected, they may later."""
        if account not in self._running:
            return any(known.name == account for known in self._accounts)
        connector = self._running[account].supervisor.connector
        return connector is None or connector.abilities.asks

    def wake(self, account: str | None) -> None:
        """Say that there may be something to deliver on an account."""
        if account is not None and account in self._running:
            self._running[account].outbox.wake()
        elif account is not None:
            self._unswept.set()  # it will be told why it waits

    def _start_all(self, accounts: Sequence[Account]) -> None:
        for account in accounts:
            self._start(account)
        names = {account.name for account in accounts}
        for turn in self._turns.live:
            if turn.account in names:
                self._keep_company(turn)

    def _start(self, account: Account) -> None:
        company = Company(
            turns=self._turns,
            database=self._database,
            connector=lambda: supervisor.connector,
            clock=self._clock,
            pause=self._pause,
        )
        outbox = Outbox(
            account=account.name,
            database=self._database,
            clock=self._clock,
            settled=company.left,
            pause=self._pause,
        )
        supervisor = Supervisor(
            account=account,
            surround=partial(self._surround, account, outbox),
            database=self._database,
            holder=f"{self._holder}#{account.name}",
            clock=self._clock,
            told=self._told,
            open_=self._open,
            pause=self._pause,
        )
        # In a context of its own: it outlives the request that may have asked for it.
        task = asyncio.create_task(supervisor.run(), name=f"supervisor {account.name}", context=Context())
        task.add_done_callback(partial(_note_end, account.name))
        self._running[account.name] = _Running(
            account=account, supervisor=supervisor, outbox=outbox, company=company, task=task
        )

    def _surround(self, account: Account, outbox: Outbox, connector: Connector[Any]) -> _Surroundings:
        door = self._admission.door(account, connector, taken=partial(self._taken, account.name))
        subscribe = partial(self._subscribe, account.name, connector.events)
        return _Surroundings(door=door, outbox=outbox, subscribe=subscribe)

    async def _subscribe(self, account: str, events: Collection[str]) -> None:
        await self._database.run(partial(deliveries.subscribe, account=account, events=events))
        (self._subscribed.add if events else self._subscribed.discard)(account)

    def _taken(self, account: str, turn: Turn | None) -> None:
        if turn is None or turn.ended:
            self.wake(account)
        else:
            self._keep_company(turn)

    def _keep_company(self, turn: Turn) -> None:
        if turn.account in self._running:
            self._running[turn.account].company.keep(turn)

    async def _stop(self, name: str) -> None:
        running = self._running[name]
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        await running.company.stop()
        del self._running[name]


def _note_end(account: str, task: asyncio.Task[None]) -> None:
    """Say of an account that nobody connects it any more; only a fault of ours ends it unless it is stopped."""
    if not task.cancelled():
        told = "an account is connected no more, for a fault of the gateway's own: restart it"
        _log.error(told, extra={"account": account}, exc_info=task.exception())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surroundings:
    """The way in and the way out of one connection."""

    door: Door
    outbox: Outbox
    subscribe: Callable[[], Awaitable[None]]

    async def hear(self, heard: Heard) -> None:
        await self.door.hear(heard)

    async def paired(self, most: int) -> Sequence[str]:
        return await self.door.paired(most)

    async def deliver(self, connector: Connector[Any]) -> None:
        await self.subscribe()
        await self.outbox.deliver(connector)
