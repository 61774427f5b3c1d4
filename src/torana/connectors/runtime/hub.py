"""All accounts of the gateway: start, stop and change them one by one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from datetime import datetime
from functools import partial
from typing import Any

from torana.connectors.base import Connector, HookRequest, HookResponse
from torana.connectors.registry import Account, open_connector
from torana.connectors.runtime.ingress import Admission
from torana.connectors.runtime.outbox import Outbox
from torana.connectors.runtime.progress import ProgressReporter
from torana.connectors.runtime.supervisor import AccountLease, Status, Supervisor
from torana.messages import Turn
from torana.store.engine.database import Connection, Database
from torana.store.rows import deliveries

#: Seconds between two runs of ``deliveries.sweep``.
_SWEEP = 3600.0

#: The number of threads that render replies for all accounts. Slow renderings wait for each other, and do not
#: occupy the default threads.
_RENDERING = 2

_log = logging.getLogger(__name__)


class Connectors:
    """The connectors of a gateway. A failing account affects neither the others nor the start."""

    def __init__(
        self,
        *,
        accounts: Sequence[Account],
        admission: Admission,
        holder: str,
        on_status: Callable[[Status], None] = lambda _: None,
        open_: Callable[[Account], Connector[Any]] = open_connector,
        sweep_every: float = _SWEEP,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``holder`` identifies this gateway among those that share the database, across restarts.

        ``on_status`` receives each new status of an account. ``sweep_every`` is in seconds.
        """
        self._accounts = accounts
        self._admission = admission
        self._rendering = ThreadPoolExecutor(_RENDERING, thread_name_prefix="rendering")
        self._open_account = partial(
            _RunningAccount,
            admission=admission,
            holder=holder,
            on_status=on_status,
            open_=open_,
            rendering=self._rendering,
            pause=pause,
        )
        self._sweeper = _DeliverySweeper(database=admission.database, clock=admission.clock, every=sweep_every)
        self._running: dict[str, _RunningAccount] = {}
        #: Held during a start, a change and a stop.
        self._changing = asyncio.Lock()
        self._stopped = False

    async def start(self) -> None:
        """Begin to connect all accounts, without waiting for them."""
        async with self._changing:
            await self._sweeper.set_accounts([account.name for account in self._accounts])
            self._start_all(self._accounts)
            self._sweeper.start()

    async def flush(self, *, within: float) -> None:
        """Send the due deliveries of connected accounts, for at most ``within`` seconds."""
        active = [running for running in self._running.values() if running.supervisor.connector is not None]
        for running in active:
            running.outbox.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await asyncio.gather(*(running.outbox.until_idle() for running in active))

    async def stop(self) -> None:
        """End all connections permanently."""
        async with self._changing:
            self._stopped = True
            self._sweeper.stop()
            await asyncio.gather(*(self._stop(name) for name in self._running.copy()))
            self._rendering.shutdown(wait=False, cancel_futures=True)

    def changes(self, accounts: Sequence[Account]) -> list[str]:
        """Return the names of accounts that these settings add, change or remove."""
        wanted = {account.name: account for account in accounts}
        present = {name: running.account for name, running in self._running.items()}
        return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))

    async def apply(self, accounts: Sequence[Account]) -> list[str]:
        """Apply changed settings: reconnect the accounts that changed, and those that are refused, because
        their fault may be fixed on the platform. Return the names of both.
        """
        async with self._changing:
            if self._stopped:
                return []
            changed = sorted({*self.changes(accounts), *self.refused_accounts()})
            self._accounts = accounts
            await asyncio.gather(*(self._stop(name) for name in changed if name in self._running))
            await self._sweeper.set_accounts([account.name for account in accounts])
            self._start_all([account for account in accounts if account.name in changed])
            return changed

    def refused_accounts(self) -> list[str]:
        """Return the names of accounts whose credentials or settings are refused."""
        return [status.account for status in self.statuses() if status.state == "refused"]

    def active(self) -> list[str]:
        return sorted(status.account for status in self.statuses() if status.state == "active")

    def statuses(self) -> Sequence[Status]:
        return [self._running[name].supervisor.status for name in sorted(self._running)]

    async def status(self) -> Sequence[Mapping[str, Any]]:
        """Return the status of each account, with its numbers of open and held deliveries."""
        waiting = await self._admission.database.run(deliveries.count_waiting)
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
                "link": status.link,
                "deliveries": waiting.get(status.account, {}),
            }
            for status in self.statuses()
        ]

    async def hook(self, account: str, request: HookRequest) -> HookResponse:
        """Answer a platform's request; 404 for an unknown account, and 503 while the account does not run."""
        running = self._running.get(account)
        if running is None:
            return HookResponse(status=503 if self.has_account(account) else 404)
        return await running.supervisor.hook(request)

    def on_turn_ended(self, turn: Turn) -> None:
        """Deliver the end of a turn to its account and to subscribed accounts."""
        subscribed = {name for name, running in self._running.items() if running.is_subscribed}
        for account in {turn.account, *subscribed}:
            self.wake(account)

    def can_ask(self, account: str) -> bool:
        """Return whether users can see a question on an account, now or after it has connected."""
        if account not in self._running:
            return self.has_account(account)
        supervisor = self._running[account].supervisor
        connector = supervisor.connector or supervisor.standby
        return connector is None or connector.abilities.asks

    def wake(self, account: str | None) -> None:
        """Report that an account may have new deliveries."""
        if account is not None and account in self._running:
            self._running[account].outbox.wake()
        elif account is not None:
            self._sweeper.wake()

    def has_account(self, name: str) -> bool:
        """Return whether the settings name an account."""
        return any(account.name == name for account in self._accounts)

    def _start_all(self, accounts: Sequence[Account]) -> None:
        for account in accounts:
            self._running[account.name] = self._open_account(account)
        names = {account.name for account in accounts}
        for turn in self._admission.turns.live:
            if turn.account in names:
                self._running[turn.account].progress.start(turn)

    async def _stop(self, name: str) -> None:
        await self._running[name].stop()
        del self._running[name]


class _RunningAccount:
    """An account, connected from its creation until ``stop``."""

    def __init__(
        self,
        account: Account,
        *,
        admission: Admission,
        holder: str,
        on_status: Callable[[Status], None],
        open_: Callable[[Account], Connector[Any]],
        rendering: Executor,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        database, clock = admission.database, admission.clock
        self.account = account
        #: True if the account receives events of all turns.
        self.is_subscribed = False
        self._database = database
        self.progress = ProgressReporter(
            turns=admission.turns,
            database=database,
            connector=lambda: self.supervisor.connector,
            clock=clock,
            rendering=rendering,
            pause=pause,
        )
        self.outbox = Outbox(
            account=account.name,
            database=database,
            clock=clock,
            settled=self.progress.wait_until_hidden,
            rendering=rendering,
            measurements=admission.turns.live.measurements,
            activity=admission.turns.live.activity,
            pause=pause,
        )
        self.supervisor = Supervisor(
            account=account,
            ingress=partial(admission.ingress, account, taken=self._on_accepted),
            deliver=self._deliver,
            lease=AccountLease(database=database, account=account.name, process=holder, clock=clock),
            clock=clock,
            on_status=on_status,
            open_=open_,
            pause=pause,
        )
        # The task gets a new context, because it outlives the request that may have started it.
        name = f"supervisor {account.name}"
        self._task = asyncio.create_task(self.supervisor.run(), name=name, context=Context())
        self._task.add_done_callback(self._log_end)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.progress.stop()

    async def _deliver(self, connector: Connector[Any]) -> None:
        work = partial(deliveries.subscribe, account=self.account.name, events=connector.events)
        await self._database.run(work)
        self.is_subscribed = bool(connector.events)
        await self.outbox.deliver(connector)

    def _on_accepted(self, turn: Turn | None) -> None:
        if turn is None or turn.has_ended:
            self.outbox.wake()
        else:
            self.progress.start(turn)

    def _log_end(self, task: asyncio.Task[None]) -> None:
        """Log the end of the supervisor; without a stop, only a bug ends it."""
        if not task.cancelled():
            _log.error(
                "connector_supervisor_failed", extra={"account": self.account.name}, exc_info=task.exception()
            )


class _DeliverySweeper:
    """Marks late deliveries and those of missing accounts, at regular times and when it is woken."""

    def __init__(self, *, database: Database, clock: Callable[[], datetime], every: float = _SWEEP) -> None:
        self._database = database
        self._clock = clock
        self._every = every
        self._accounts: Collection[str] = ()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """Sweep soon: there is a delivery for a missing account."""
        self._woken.set()

    async def set_accounts(self, accounts: Collection[str]) -> None:
        """Set the accounts of the settings; remove the subscriptions of others, and sweep their deliveries."""
        self._accounts = accounts
        await self._sweep()

    async def _sweep(self) -> None:
        accounts, now = self._accounts, self._clock()

        def sweep(connection: Connection) -> None:
            deliveries.keep_subscriptions(connection, accounts)
            deliveries.sweep(connection, accounts, now)

        try:
            await self._database.run(sweep)
        except Exception as error:  # noqa: BLE001 - the next sweep may succeed
            _log.warning("deliveries_not_swept", exc_info=error)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._woken.wait()
            self._woken.clear()
            await self._sweep()
