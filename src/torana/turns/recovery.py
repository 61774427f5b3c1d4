"""Continue the turns that an earlier process or another replica left unfinished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from torana.errors import CrashedRepeatedly, Expired
from torana.limits.budgets import Budgets, log_warnings
from torana.limits.limit_usage import BudgetWarning
from torana.messages import Turn
from torana.store.engine.database import Connection, Database
from torana.store.rows import shared_turns
from torana.store.rows import turns as rows
from torana.store.rows.turns import SUSPECT, Ending
from torana.turns.journal import settled_text
from torana.turns.outcomes import cut_off, failed_outcome
from torana.turns.runner import Runner

#: A queued message that is older than this when the gateway starts expires.
_STALE = timedelta(days=1)

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Starts unfinished turns in order, and isolates a turn that may have crashed the process."""

    database: Database
    runner: Runner
    budgets: Budgets
    max_crashes: int
    clock: Callable[[], datetime]
    _isolating: asyncio.Task[None] | None = field(default=None, init=False)

    async def start(self) -> None:
        """Charge interrupted model requests, and end or start every unfinished turn.

        A turn that two processes crashed on runs alone, until it has settled a step or ended; all other turns
        wait for that. So a message that crashes the process is identified, and other turns are not blamed.
        """
        log_warnings(await self.database.run(self.budgets.charge_interrupted))
        for turn in await self.database.run(shared_turns.list_interrupted):
            await self._end(turn, cut_off(turn, await self._settled_text(turn), self.clock()))
        unfinished = await self.database.run(shared_turns.recover)
        for turn in unfinished:
            if turn.id not in self.runner.live:
                self.runner.live.add(turn, settled=await self._settled_text(turn))
        remaining = [turn for turn in unfinished if not await self._ended_as_lost(turn)]
        suspects = [turn for turn in remaining if turn.crashes >= SUSPECT]
        if suspects:
            self.runner.holding = True
            # The turns behind a suspect of the same session follow in their order.
            sessions = dict.fromkeys(turn.session_id for turn in suspects)
            self._isolating = asyncio.create_task(self._isolate(sessions))
        else:
            await self._start_all()

    def stop(self) -> None:
        if self._isolating is not None:
            self._isolating.cancel()

    async def leave(self) -> None:
        """Queue the stopped turns of this process for the next one, and charge their interrupted requests.

        Raises ``StoreUnavailable``; the next start then recovers the turns as after a crash.
        """

        def work(connection: Connection) -> Sequence[BudgetWarning]:
            warned = self.budgets.charge_interrupted(connection, own=True)
            shared_turns.requeue(connection)
            return warned

        log_warnings(await self.database.run(work))

    async def _ended_as_lost(self, turn: Turn) -> bool:
        """Fail a turn that waited too long or crashed too many processes; return whether it failed."""
        if turn.crashes >= SUSPECT + self.max_crashes:
            error: CrashedRepeatedly | Expired = CrashedRepeatedly()
        elif turn.attempt == 0 and turn.merged_into is None and self.clock() - turn.created_at > _STALE:
            error = Expired()
        else:
            return False
        await self._end(turn, failed_outcome(error, self.clock()))
        return True

    async def _settled_text(self, turn: Turn) -> str:
        return await self.database.run(partial(settled_text, turn=turn)) if turn.attempt else ""

    async def _end(self, turn: Turn, ending: Ending) -> None:
        self.runner.live.end(await self.database.run(partial(shared_turns.end_left, turn=turn, ending=ending)))

    async def _isolate(self, sessions: Iterable[str]) -> None:
        """Run the next turn of each session, one after the other, then start everything else."""
        for session_id in sessions:
            try:
                turn = await self.runner.writer.persist(partial(shared_turns.claim_left, session_id=session_id))
                if turn is not None:  # neither cancelled nor taken up in the meantime
                    _log.warning(
                        "turn_isolated_after_crashes", extra={"turn_id": turn.id, "crashes": turn.crashes}
                    )
                    await self.runner.start_alone(turn)
            except Exception:  # noqa: BLE001 - all other turns wait for this loop
                _log.exception("session_not_isolated", extra={"session_id": session_id})
        self.runner.holding = False
        await self.runner.writer.retry_until_done(self._start_all)

    async def _start_all(self) -> None:
        """Start the first turn of every session in which no turn runs."""
        for turn in await self.runner.writer.persist(rows.claim_all):
            _log.info("turn_resumed", extra={"turn_id": turn.id})
            await self.runner.adopt(turn)
