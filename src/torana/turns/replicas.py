"""Share the turns with other replicas: notice their changes, and continue the turns of ended replicas."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from datetime import datetime
from functools import partial

from torana.aio import wait_first
from torana.errors import StoreUnavailable, TakenOver
from torana.store.engine.database import Announcement, Connection, Database
from torana.store.engine.postgres import replicas
from torana.store.engine.postgres.announcements import announce_idle_sessions
from torana.store.rows.shared_turns import Changes, Signs, read_changes, read_signs
from torana.turns.approvals import Approvals
from torana.turns.events.activity_sharing import ActivitySharing
from torana.turns.recovery import Recovery
from torana.turns.runner import Runner

#: Seconds between two checks. Each renews the lease of this replica.
_CHECK = 1.0

#: The shortest time between two checks, however often other replicas announce changes: a check that finds a
#: change is a transaction, and the transactions of all replicas run one after the other.
_GAP = 0.05

#: Seconds before the connection for announcements is opened again.
_RECONNECT = 1.0

#: The number of consecutive checks, ``_CHECK`` seconds apart, that must find the same ended lease before its
#: replica counts as ended. A replica that only waited for the database renews its lease between these checks.
_CHECKS = 3

_log = logging.getLogger(__name__)


class ReplicaWatch:
    """Renews the lease of this replica, and applies the changes that other replicas make to turns.

    It ends the waits for turns that another replica has ended or deleted, and wakes those for the questions of
    turns that another replica runs. It cancels turns and continues approvals
    that another replica has decided, and runs the queued turns of idle sessions. When the lease of a replica
    has ended, the turns of that replica are recovered as after a crash. It checks every second, and at once
    when another replica announces a change. The activity of all replicas is shared.
    """

    def __init__(self, *, database: Database, runner: Runner, recovery: Recovery, approvals: Approvals) -> None:
        self._database = database
        self._runner = runner
        self._recovery = recovery
        self._approvals = approvals
        self._activity = ActivitySharing(database=database, activity=runner.live.activity)
        #: The end of the lease of each replica that seems to have ended, and the number of checks that saw it.
        self._suspected: dict[str, tuple[datetime, int]] = {}
        #: The monotonic time of the last count of these checks.
        self._counted = -math.inf
        #: Set when another replica has announced a change that may concern this replica.
        self._announced = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: Set when another replica has taken over the work of this replica.
        self.lost = database.lost
        #: Set by each check that finds erasures that this replica has not carried out.
        self.erasures = asyncio.Event()
        #: Set by each check that finds a change of the accepted tools of MCP servers, and by the first check.
        self.accepted_tools = asyncio.Event()
        self._tool_changes: int | None = None
        #: Set by each check that finds a change of the decisions on skills, and by the first check.
        self.changed_skills = asyncio.Event()
        self._skill_changes: int | None = None

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep_checking(), name="replicas")]
        if self._database.announcements is not None:
            listening = self._keep_listening(self._database.announcements)
            self._tasks.append(asyncio.create_task(listening, name="announcements"))
            self._activity.start()

    async def stop(self) -> None:
        """End the checks. The lease ends with the connection to the database."""
        await self._activity.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def hand_over(self, seconds: float) -> None:
        """Have other replicas continue the turns, and wait for those that callers wait for."""
        with suppress(StoreUnavailable):
            await self._recovery.leave()
            await self._database.read(announce_idle_sessions)
            await self._runner.live.wait_for_other_replicas(seconds)

    async def check(self) -> None:
        """Check once. Raises ``StoreUnavailable``."""
        waited = [one.turn.id for one in self._runner.live.entries() if one.task is None]

        def look(connection: Connection) -> tuple[bool | None, Signs]:
            erasures = replicas.renew_in_read(connection)
            return erasures, read_signs(connection, waited, hold=self._runner.claims_nothing())

        erasures, signs = await self._database.read(look)
        if erasures:
            self.erasures.set()
        self._note_counts(signs.tools, signs.skills)
        for turn_id in signs.asking or ():
            if (one := self._runner.live.get(turn_id)) is not None:
                one.wake_callers_for_approval()
        if signs.changed or erasures is None:
            await self._apply_changes(waited)
        else:
            self._suspected = {}

    async def _apply_changes(self, waited: Collection[str]) -> None:
        """Apply the changes of other replicas. Raises ``TakenOver`` if the row of this replica was deleted."""
        live = self._runner.live

        def look(connection: Connection) -> tuple[Changes, list[replicas.Replica]]:
            replicas.renew(connection)  # a write, which fails if the row was deleted
            changes = read_changes(connection, waited, hold=self._runner.claims_nothing())
            return changes, [one for one in replicas.list_replicas(connection) if not one.alive]

        changes, ended = await self._database.run(look)
        live.end(changes.ended, elsewhere=True)
        live.forget(changes.deleted)
        for turn_id in changes.stopped:
            self._runner.cancel(turn_id)
        for call in changes.decided:
            self._approvals.wake_call(call)
        for turn in changes.claimed:
            await self._runner.adopt(turn)
        await self._remove(ended)
        if changes.abandoned and not self._runner.claims_nothing():
            await self._recovery.start()

    def _note_counts(self, tools: int, skills: int) -> None:
        if tools != self._tool_changes:
            self._tool_changes = tools
            self.accepted_tools.set()
        if skills != self._skill_changes:
            self._skill_changes = skills
            self.changed_skills.set()

    async def _remove(self, ended: list[replicas.Replica]) -> None:
        """Remove the replicas whose lease has ended for several checks."""
        now = asyncio.get_running_loop().time()
        if now - self._counted < _CHECK:
            return
        self._counted = now
        before, self._suspected = self._suspected, {}
        for one in ended:
            lease, checks = before.get(one.id, (one.lease_until, 0))
            self._suspected[one.id] = (one.lease_until, checks + 1 if lease == one.lease_until else 1)
        gone = [id_ for id_, (_, checks) in self._suspected.items() if checks >= _CHECKS]
        if gone:
            for name in await self._database.run(partial(replicas.remove, replicas=gone)):
                _log.warning("replica_ended", extra={"replica": name})
            self._activity.note_missed_events()

    async def _keep_checking(self) -> None:
        while True:
            self._announced.clear()
            try:
                await self.check()
            except TakenOver:
                return
            except StoreUnavailable as error:
                _log.debug("replicas_not_checked", extra={"reason": error.detail})
            except Exception:  # noqa: BLE001 - the lease must be renewed
                _log.exception("replicas_not_checked")
            await asyncio.sleep(_GAP)
            await wait_first(self._announced, asyncio.sleep(_CHECK))

    async def _keep_listening(self, announcements: Callable[[], AsyncGenerator[Announcement]]) -> None:
        """Check at once when another replica announces a change; reconnect after a lost connection."""
        listening = True
        while True:
            try:
                async with aclosing(announcements()) as found:
                    async for announcement in found:
                        listening = True
                        self._receive(announcement)
            except StoreUnavailable as error:
                level = logging.WARNING if listening else logging.DEBUG
                _log.log(level, "announcements_lost", extra={"reason": str(error.__cause__)})
            listening = False
            await asyncio.sleep(_RECONNECT)

    def _receive(self, announcement: Announcement) -> None:
        if announcement.activity is not None:
            self._activity.receive(announcement.activity)
            return
        if announcement.is_first:
            self._activity.begin()
        if not announcement.session or self._runner.live.has_session(announcement.session):
            self._announced.set()
