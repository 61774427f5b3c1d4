"""Erase a user: delete all of their data, and list the deleted and the remaining data in a receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from torana.errors import Conflict, Erased, NotFound, StoreUnavailable
from torana.people.shared_erasures import SharedErasures
from torana.store.backup import erasure
from torana.store.backup.erasure import Counts, ErasedTurns, ErasedUser
from torana.store.engine.database import Connection, Database
from torana.store.engine.postgres import erasures
from torana.store.rows.audit import Act

if TYPE_CHECKING:  # bodies of the API need the receipt without the agent's library
    from torana.turns import Turns

KEPT = (
    "amounts of usage under the user's id, without any text",
    "the audit record: actions on the user's id with their time and principal",
    "the operator's denials of accounts on chat platforms",
    "public keys and names of the devices of Matrix accounts, for encrypted rooms",
    ("the ids of the erased turns, which answer 410, and digests of their Idempotency-Keys for a day"),
    ("messages of other speakers in shared rooms and the replies to them, even if they quote the user"),
)
OUT_OF_REACH = (
    "chat platforms, and all recipients of replies",
    "the model's provider, and the data of the operator's own tools",
    ("the files of MCP servers in their home directories (mcp/ in the data directory) and elsewhere"),
    "backups and exports made earlier",
    "the log on standard error, and lines of the log files without a turn id",
)

#: The maximum number of times that new turns of the user are cancelled before the erasure fails.
_ROUNDS = 10
#: Seconds between two attempts to empty the write-ahead log, and the number of attempts.
_PAUSE = 0.5
_LOOKS = 40
#: The number of such pauses that the receipt waits for other replicas.
_REPLICA_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The erased data, and the data that remains."""

    user: str
    erased_at: datetime
    counts: Counts
    #: Files of the user's workspace.
    files: int
    #: Copies of the database that upgrades and restores left in the data directory.
    copies: int
    kept: Sequence[str] = KEPT
    out_of_reach: Sequence[str] = OUT_OF_REACH


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """Erases users. Afterwards no file of the data directory contains a text of the user.

    The exceptions are files that MCP servers have written into their home directories. The rows are deleted in
    one transaction with the entry in the audit record. If there are many turns, transactions before it delete
    the most, and the first is recorded too. An interrupted erasure is completed by erasing again.
    """

    database: Database
    turns: Turns
    shared: SharedErasures
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def erase(self, user: str, act: Act) -> Receipt:
        """Cancel the user's turns and delete all data; for an unknown user the counts are 0.

        A message of the user that is accepted meanwhile is either erased too, or remains complete and is
        answered. Raises ``Conflict`` if such messages keep coming, and ``StoreUnavailable`` if the files cannot
        be cleaned up: erase again then.
        """
        deleted = await self._delete(user, act)
        copies = await self._clean_up(user, deleted)
        return Receipt(
            user=user,
            erased_at=act.at,
            counts=deleted.counts,
            files=deleted.files,
            copies=copies,
            out_of_reach=(
                *OUT_OF_REACH,
                *self.database.out_of_reach,
                *self.turns.live.sharing.out_of_reach,
                *await self._unconfirmed(),
            ),
        )

    async def _delete(self, user: str, act: Act) -> ErasedUser:
        revoked = await self.database.run(partial(erasure.revoke_tokens, user=user, act=act))
        earlier: list[ErasedTurns] = []
        work: Callable[[Connection], ErasedUser | None] = partial(
            erasure.erase, user=user, act=act, earlier=earlier, tokens_revoked=revoked
        )
        if self.database.records_erasures:
            work = erasures.with_erasure(work, user, act.at)
        for _ in range(_ROUNDS):
            turns = await self.database.run(partial(erasure.unfinished_turns, user=user))
            await asyncio.gather(*(self._cancel(owner, turn_id) for owner, turn_id in turns))
            await self._delete_turns(user, act, earlier)
            deleted = await self.database.run(work)
            if deleted is not None:
                return deleted
        raise Conflict(
            "Messages of the user keep arriving, so not all data could be erased. The user's tokens are "
            "revoked. Stop the client that sends the messages, and erase again."
        )

    async def _delete_turns(self, user: str, act: Act, deleted: list[ErasedTurns]) -> None:
        """Delete turns until a transaction can delete the others, and add what is deleted to ``deleted``."""
        while True:
            work = partial(erasure.erase_some_turns, user=user, act=act, is_first=not deleted)
            part = await self.database.run(work)
            if part is None:
                return
            deleted.append(part)

    async def _cancel(self, owner: str, turn_id: str) -> None:
        with suppress(NotFound, Erased):  # its session was deleted meanwhile
            await self.turns.cancel(owner, turn_id)

    async def _clean_up(self, user: str, deleted: ErasedUser) -> int:
        """Remove the data from files. Return the number of deleted copies."""
        try:
            copies = await self.shared.files.remove([user], deleted.turn_ids)
            if self.database.records_erasures:
                await self.shared.carry_out()
        except OSError as error:
            raise StoreUnavailable(
                f"The user is deleted from the database, but {error.filename} cannot be deleted: "
                f"{error.strerror}. Correct that and erase again."
            ) from error
        await self.database.rewrite()
        for _ in range(_LOOKS):
            if await self.database.empty_log():
                return copies
            await self.pause(_PAUSE)
        raise StoreUnavailable(
            "The user is deleted from the database, but another program, such as `torana "
            "backup`, reads the database and keeps its older pages in use. Erase again when that "
            "program has ended."
        )

    async def _unconfirmed(self) -> list[str]:
        """Return what other replicas have not erased yet, after a short wait for them."""
        if self.database.replica is None:
            return []
        left = await self.database.run(erasures.list_unconfirmed)
        for _ in range(_REPLICA_LOOKS):
            if not left:
                break
            await self.pause(_PAUSE)
            left = await self.database.run(erasures.list_unconfirmed)
        return [
            f"the log files of the replica {replica}, which has not confirmed the erasure yet: "
            "`torana replicas list` shows its pending erasures"
            for replica in left
        ]
