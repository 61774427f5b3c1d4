"""What a user asked to be remembered."""

from __future__ import annotations

import asyncio
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial

from torana.errors import GatewayError
from torana.messages import new_id, utc_now
from torana.store import memories
from torana.store.database import Database
from torana.store.memories import Remembered
from torana.store.ranking import Ranking
from torana.store.words import words

__all__ = ["COUNT_LIMIT", "SUBJECT_LIMIT", "TEXT_LIMIT", "Memory", "MemoryFull", "Remembered"]

#: Bounds, per memory and per user.
TEXT_LIMIT = 2_000
SUBJECT_LIMIT = 200
COUNT_LIMIT = 1_000


class MemoryFull(GatewayError):
    """There is no room for another memory of this user; forget some first."""

    code = "memory_full"


class Memory:
    """Remembers, recalls and forgets for one user at a time; never across owners or users."""

    def __init__(self, *, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def remember(self, owner: str, user: str, text: str, *, subject: str, turn_id: str) -> str:
        """Keep a text, cut at 2,000 characters, and return what is kept.

        An older one under the same subject is superseded; '' is no subject, and one is cut at 200 characters.
        Subjects are compared after NFKC and case folding. Remembering the same again changes nothing. Raises
        ``MemoryFull`` at 1,000 memories.
        """
        new = Remembered(
            id=new_id("mem"),
            text=text[:TEXT_LIMIT],
            subject=_normalised(subject)[:SUBJECT_LIMIT],
            turn_id=turn_id,
            created_at=self._clock(),
        )
        await self._database.run(
            partial(memories.add, owner=owner, user=user, new=new, wanted=partial(_is_news, new))
        )
        return new.text

    async def all(self, owner: str, user: str) -> list[Remembered]:
        """Everything that stands, newest first."""
        return await self._database.run(partial(memories.live, owner=owner, user=user))

    async def recall(self, owner: str, user: str, query: str, *, limit: int) -> list[Remembered]:
        """What stands and shares words with the query, best first."""
        known = await self.all(owner, user)
        # A full memory takes most of a second to cut into words: not in the loop's thread.
        return await asyncio.to_thread(_ranked, known, query, limit) if known else []

    async def forget(self, owner: str, user: str, query: str) -> list[Remembered]:
        """Delete what holds every word of the query, with all that it superseded; returns what was deleted.

        Where nothing holds every word, the best fit goes if it holds at least half of them.
        """
        known = await self.all(owner, user)
        doomed = await asyncio.to_thread(_named, known, query) if known else []
        if doomed:
            await self._database.run(
                partial(memories.delete, owner=owner, user=user, ids=[item.id for item in doomed])
            )
        return doomed


def _is_news(new: Remembered, standing: Sequence[Remembered]) -> bool:
    """Whether a memory says what none says yet, and there is room for it."""
    said = _normalised(new.text)
    if any(item.subject == new.subject and _normalised(item.text) == said for item in standing):
        return False
    kept = [item for item in standing if not (item.subject and item.subject == new.subject)]
    if len(kept) >= COUNT_LIMIT:
        raise MemoryFull
    return True


def _ranked(known: Sequence[Remembered], query: str, limit: int) -> list[Remembered]:
    by_id = {item.id: item for item in known}
    with closing(_ranking(known)) as ranking:
        return [by_id[match.key] for match in ranking.rank(query, limit=limit)]


def _named(known: Sequence[Remembered], query: str) -> list[Remembered]:
    """What a query to forget means, as ``Memory.forget`` says."""
    wanted = set(words(query))
    with closing(_ranking(known)) as ranking:
        held = Counter(match.key for word in wanted for match in ranking.rank(word, limit=len(known)))
        best = {match.key for match in ranking.rank(query, limit=1)}
    holds_all = [item for item in known if 0 < held[item.id] == len(wanted)]
    return holds_all or [item for item in known if item.id in best and 2 * held[item.id] >= len(wanted)]


def _ranking(known: Sequence[Remembered]) -> Ranking:
    return Ranking({item.id: f"{item.subject} {item.text}" for item in known})


def _normalised(text: str) -> str:
    """The form in which subjects and texts are compared: NFKC, case-folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
