"""What a user asked to be remembered."""

from __future__ import annotations

import asyncio
import logging
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from weakref import WeakValueDictionary

from torana.errors import MemoryFull, MemorySuperseded, ModelFailed, NotFound
from torana.memory.nearness import Embedder, fused, nearest, packed
from torana.memory.relevance import Recalled, ranked
from torana.messages import new_id, owner_of, utc_now
from torana.store import memories
from torana.store.audit import Act, recorded
from torana.store.database import Database
from torana.store.fts import terms
from torana.store.memories import Remembered
from torana.store.words import words

__all__ = [
    "COUNT_LIMIT",
    "SUBJECT_LIMIT",
    "TEXT_LIMIT",
    "Kept",
    "Memory",
    "Recalled",
    "Remembered",
]

#: Bounds, per memory and per user.
TEXT_LIMIT = 2_000
SUBJECT_LIMIT = 200
COUNT_LIMIT = 1_000

#: How many of the nearest by their vectors come into consideration: the farther ones only seem to fit.
_NEAREST = 20
#: Memories whose vectors are asked for in one call; the rest gets them at the next occasion.
_EMBEDDED_AT_ONCE = 64

_log = logging.getLogger(__name__)

# "sister's name": a name, but only for who asks about the sister. Not "it's warm" and not "my name's Ada".
_POSSESSED = re.compile(r"(?!(?:it|he|she|that|what|who|there|here|where)['’])\b(?P<who>\w+)['’]s\s+[a-z]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What stands after something was to be remembered, and whether it is new."""

    memory: Remembered
    new: bool


class Memory:
    """Remembers, recalls and forgets for one user at a time; never across users.

    At most one memory stands per subject. Subjects are compared after NFKC and case folding, and '' is no
    subject. A superseded memory is kept in the history of the one that stands in its place, at most 20 there.
    """

    def __init__(
        self,
        *,
        database: Database,
        embedder: Embedder | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._clock = clock
        #: By user, for as long as somebody searches.
        self._searches: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def remember(
        self, user: str, text: str, *, subject: str, turn_id: str | None, act: Act | None = None
    ) -> Kept:
        """Keep a text, cut at 2,000 characters; an older one under the same subject is superseded.

        A subject is cut at 200 characters. Remembering the same again changes nothing. An operator's act is
        written down, here as wherever something is changed. Raises ``MemoryFull`` at 1,000 memories.
        """
        new = self._new(text, subject, turn_id)
        work = partial(memories.add, owner=owner_of(user), new=new, known=partial(_known, new))
        kept = await self._database.run(recorded(work, act, "memory.remember", user))
        if self._embedder:
            await self._embed(self._embedder, user)
        return Kept(memory=kept, new=kept.id == new.id)

    async def get(self, user: str, memory_id: str) -> Remembered:
        """The user's memory of that id, also a superseded one. Raises ``NotFound``, also for another user's."""
        found = await self._database.run(partial(memories.get, owner=owner_of(user), memory_id=memory_id))
        return _found(found, memory_id)

    async def history(self, user: str, memory_id: str) -> list[Remembered]:
        """What a memory superseded, the latest first."""
        return await self._database.run(partial(memories.history, owner=owner_of(user), memory_id=memory_id))

    async def listed(
        self,
        user: str,
        *,
        subject: str | None = None,
        before: tuple[datetime, str] | None = None,
        limit: int | None = None,
    ) -> list[Remembered]:
        """What stands, newest first: under a subject, or behind a place in that order (a time and an id)."""
        work = partial(
            memories.listed,
            owner=owner_of(user),
            subject=None if subject is None else _subject(subject),
            before=before,
            limit=limit,
        )
        return await self._database.run(work)

    async def edit(
        self,
        user: str,
        memory_id: str,
        *,
        text: str | None = None,
        subject: str | None = None,
        turn_id: str | None,
        act: Act | None = None,
    ) -> Remembered:
        """Let a new memory supersede one that stands; None leaves its text or subject as it is.

        Returns what stands then: the old one, where nothing changes. One under the new subject is superseded
        too. Raises ``NotFound``, and ``MemorySuperseded`` for one that does not stand.
        """

        def changed(old: Remembered) -> Remembered:
            if old.superseded_by:
                raise MemorySuperseded(f"{old.superseded_by} stands in the place of {old.id}; change that one.")
            return self._new(
                old.text if text is None else text, old.subject if subject is None else subject, turn_id
            )

        await self.get(user, memory_id)  # what is not there is not changed, and no act
        work = partial(memories.replace, owner=owner_of(user), memory_id=memory_id, changed=changed)
        noted = recorded(work, act, "memory.change", user, memory=memory_id)
        now = _found(await self._database.run(noted), memory_id)
        if self._embedder:
            await self._embed(self._embedder, user)
        return now

    async def recall(
        self, user: str, query: str, *, limit: int, every_word: bool = False, subject: str | None = None
    ) -> list[Recalled]:
        """What stands and shares words with the query, best first; under a subject where one is named.

        With an embedder also what is near to it in meaning; while its provider fails, words alone count. With
        ``every_word`` only what holds all of them, where "my sister's name" holds no name for a query that
        does not name the sister.
        """
        wanted = terms(query)
        fits = await self._fitting(user, wanted)
        if every_word:
            fits = [fit for fit in fits if fit.held == len(wanted) and _is_about(fit.memory, set(wanted))]
        elif self._embedder and wanted:
            fits = fused(fits, await self._near(self._embedder, user, query))
        if subject is not None:
            fits = [fit for fit in fits if fit.memory.subject == _subject(subject)]
        return fits[:limit]

    async def named(self, user: str, query: str) -> list[Remembered]:
        """What a query names: the memories that ``recall`` finds with ``every_word``, best first."""
        return [fit.memory for fit in await self.recall(user, query, limit=COUNT_LIMIT, every_word=True)]

    async def forget(self, user: str, query: str, *, act: Act | None = None) -> list[Remembered]:
        """Delete what a query names, with all that it superseded; returns what was deleted."""
        doomed = await self.named(user, query)
        if doomed:
            await self._delete(user, doomed, act)
        return doomed

    async def forget_one(self, user: str, memory_id: str, *, act: Act | None = None) -> Remembered:
        """Delete a memory with all that it superseded, and return it. Raises ``NotFound``."""
        doomed = await self.get(user, memory_id)
        await self._delete(user, [doomed], act)
        return doomed

    def _new(self, text: str, subject: str, turn_id: str | None) -> Remembered:
        return Remembered(
            id=new_id("mem"),
            text=text[:TEXT_LIMIT],
            subject=_subject(subject),
            turn_id=turn_id,
            created_at=self._clock(),
        )

    async def _fitting(self, user: str, wanted: Sequence[str]) -> list[Recalled]:
        if not wanted:
            return []
        work = partial(memories.holding, owner=owner_of(user), terms=wanted)
        # One at a time: long memories take a quarter of a second, and nobody else shall wait for many of them.
        async with self._searches.setdefault(user, asyncio.Lock()):
            candidates, total = await self._database.run(work)
            if not candidates:
                return []
            return await asyncio.to_thread(ranked, wanted, candidates, total=total)

    async def _near(self, embedder: Embedder, user: str, query: str) -> list[Recalled]:
        """What is near to a query in meaning, the nearest first; nothing where the provider fails."""
        await self._embed(embedder, user)
        known = await self._database.run(partial(memories.embedded, owner=owner_of(user), by=embedder.name))
        if not known:
            return []
        try:
            (vector,) = await embedder.vectors([query], query=True)
        except ModelFailed as error:
            _log.warning("memories are searched by their words alone: %s", error.detail)
            return []
        return (await asyncio.to_thread(nearest, vector, known))[:_NEAREST]

    async def _embed(self, embedder: Embedder, user: str) -> None:
        """Give vectors to what has none yet: because it is new, or the provider failed, or was another."""
        owner = owner_of(user)
        work = partial(memories.without_vector, owner=owner, by=embedder.name, limit=_EMBEDDED_AT_ONCE)
        waiting = await self._database.run(work)
        if not waiting:
            return
        try:
            found = await embedder.vectors(
                [f"{item.subject} {item.text}".strip() for item in waiting], query=False
            )
        except ModelFailed as error:
            _log.warning("memories got no vectors: %s", error.detail)
            return
        vectors = {item.id: packed(vector) for item, vector in zip(waiting, found, strict=True)}
        await self._database.run(partial(memories.embed, owner=owner, vectors=vectors, by=embedder.name))

    async def _delete(self, user: str, doomed: Sequence[Remembered], act: Act | None) -> None:
        ids = [item.id for item in doomed]
        work = partial(memories.delete, owner=owner_of(user), ids=ids)
        await self._database.run(recorded(work, act, "memory.forget", user, memories=ids))


def _known(new: Remembered, standing: Sequence[Remembered]) -> Remembered | None:
    """The memory that already says what a new one says. Raises ``MemoryFull`` where the new one has no room."""
    said = _normalised(new.text)
    for item in standing:
        if item.subject == new.subject and _normalised(item.text) == said:
            return item
    kept = [item for item in standing if not (item.subject and item.subject == new.subject)]
    if len(kept) >= COUNT_LIMIT:
        raise MemoryFull
    return None


def _found(memory: Remembered | None, memory_id: str) -> Remembered:
    if memory is None:
        raise NotFound(f"there is no memory {memory_id!r} of this user")
    return memory


def _is_about(item: Remembered, wanted: set[str]) -> bool:
    """Whether none of the words stands only for what is somebody's whom they do not name."""
    text = f"{item.subject}. {item.text}"
    others = [found[0] for found in _POSSESSED.finditer(text) if not wanted.issuperset(words(found["who"]))]
    if not others:
        return True
    rest = _POSSESSED.sub(lambda found: " " if found[0] in others else found[0], text)
    return wanted.intersection(words(" ".join(others))).issubset(words(rest))


def _subject(text: str) -> str:
    return _normalised(text)[:SUBJECT_LIMIT].rstrip()


def _normalised(text: str) -> str:
    """The form in which subjects and texts are compared: NFKC, case-folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
