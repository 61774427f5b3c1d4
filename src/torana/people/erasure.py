"""Erasing a user: everything that is kept of somebody goes, and a receipt says what went and what did not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from torana.errors import Conflict, Erased, NotFound, StoreUnavailable
from torana.store import erasure
from torana.store.audit import Act
from torana.store.copies import delete_copies
from torana.store.database import Database
from torana.store.erasure import Counts, ErasedUser
from torana.store.workspaces import Workspaces
from torana.telemetry import drop_turns, logged_turns
from torana.turns import Turns

KEPT = (
    "amounts of usage under the user's id, without a text",
    "the audit record: who did what to the user's id, and when",
    "that the operator turned an account on a chat platform away",
    "the ids of the erased turns, so that they answer 410; digests of their Idempotency-Keys for a day",
    "what other speakers said in shared rooms and were answered, also where it repeats the user's words",
)
OUT_OF_REACH = (
    "chat platforms, and all who received an answer",
    "the model's provider, and whatever the operator's own tools keep",
    "what programs of MCP servers keep in their homes (mcp/ in the data directory) and elsewhere",
    "backups and exports made earlier",
    "the log on standard error, and lines of the log files that name no turn",
)

#: How often what was accepted meanwhile is stopped, before the erasure is given up.
_ROUNDS = 10
#: Seconds between two looks whether a reader has let go of the log, and how many there are.
_PAUSE = 0.5
_LOOKS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was erased, and what was not."""

    user: str
    erased_at: datetime
    counts: Counts
    #: Files of the user's workspace.
    files: int
    #: Copies of the database that upgrades and restores had left in the data directory.
    copies: int
    kept: Sequence[str] = KEPT
    out_of_reach: Sequence[str] = OUT_OF_REACH


class Erasure:
    """Erases users, so that no file of the data directory holds a text of theirs afterwards, but for what
    programs of MCP servers have written into their homes there.

    The rows go in one transaction, with the entry in the audit record: a crash leaves all of them or none. The
    steps behind it can be repeated, and are by erasing again.
    """

    def __init__(
        self,
        *,
        database: Database,
        turns: Turns,
        data_dir: Path,
        workspaces: Workspaces,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database = database
        self._turns = turns
        self._data_dir = data_dir
        self._workspaces = workspaces
        self._pause = pause

    async def erase(self, user: str, act: Act) -> Receipt:
        """Stop what the user is waiting for, and delete everything; for nobody known the counts are 0.

        A message of the user's that is accepted meanwhile is either erased with the rest, or stays whole and
        is answered. Raises ``Conflict`` where such messages do not cease to come, and ``StoreUnavailable``
        where the files cannot be cleaned up: the answer to another call then says whether that was done.
        """
        deleted = await self._delete(user, act)
        self._turns.forget(deleted.turn_ids)
        files, copies = await self._clean_up(user)
        return Receipt(user=user, erased_at=act.at, counts=deleted.counts, files=files, copies=copies)

    async def _delete(self, user: str, act: Act) -> ErasedUser:
        revoked = await self._database.run(partial(erasure.revoke_tokens, user=user, act=act))
        for _ in range(_ROUNDS):
            for owner, turn_id in await self._database.run(partial(erasure.unfinished, user=user)):
                with suppress(NotFound, Erased):  # its session was deleted meanwhile
                    await self._turns.cancel(owner, turn_id)
            deleted = await self._database.run(
                partial(erasure.erase, user=user, act=act, tokens_revoked=revoked)
            )
            if deleted is not None:
                return deleted
        raise Conflict(
            "Messages that name the user keep coming, so nothing was erased but the user's tokens, which are "
            "revoked; stop what sends the messages, and erase again."
        )

    async def _clean_up(self, user: str) -> tuple[int, int]:
        """Let no file hold what was deleted; returns how many of the user's own and how many copies went."""
        try:
            files = await asyncio.to_thread(self._workspaces.erase, user)
            await self._clean_logs()
            copies = await asyncio.to_thread(delete_copies, self._data_dir)
        except OSError as error:
            raise StoreUnavailable(
                f"The user is deleted from the database, but {error.filename} cannot be cleaned up: "
                f"{error.strerror}; mend that and erase again."
            ) from error
        await self._database.rewrite()
        for _ in range(_LOOKS):
            if await self._database.empty_log():
                return files, copies
            await self._pause(_PAUSE)
        raise StoreUnavailable(
            "The user is deleted from the database, but another program reads it and keeps older pages of it "
            "in use, such as `torana backup`; erase again when that has ended."
        )

    async def _clean_logs(self) -> None:
        # By what the files say and not by what was deleted just now: an earlier call may have been cut off.
        logged = await asyncio.to_thread(logged_turns)
        erased = await self._database.run(partial(erasure.erased_among, turn_ids=logged))
        await asyncio.to_thread(drop_turns, erased)
