"""The memories of users."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from torana.aio import complete, run_uncancellable
from torana.characters import normalize
from torana.errors import MemoryFull, MemorySuperseded, ModelFailed, NotFound, StoreUnavailable
from torana.memory.bm25 import Recalled, rank
from torana.memory.vectors import Embedder, fuse_rankings, nearest, pack
from torana.messages import new_id, owner_of, utc_now
from torana.store.engine.database import Database
from torana.store.engine.fts import terms
from torana.store.engine.similarity import most_alike
from torana.store.engine.tokenizer import words
from torana.store.rows import memories
from torana.store.rows.audit import Act, with_record
from torana.store.rows.memories import Remembered
from torana.store.rows.reports import memory_index
from torana.workers.fair_slots import FairSlots

__all__ = [
    "COUNT_LIMIT",
    "SUBJECT_LIMIT",
    "TEXT_LIMIT",
    "Memory",
    "Recalled",
    "RememberResult",
    "Remembered",
]

#: Limits per memory and per user.
TEXT_LIMIT = 2_000
SUBJECT_LIMIT = 200
COUNT_LIMIT = 1_000

#: Maximum number of memories found by vectors; more distant ones are rarely relevant.
_NEAREST_LIMIT = 20
#: Number of newest memories that are searched for similar words.
_COMPARED_LIMIT = 100
#: Length from which a word matches another that begins with it.
_STEM = 4
#: Characters of memories whose comparison takes less than 0.1 s.
_SHORT = 10_000
#: Maximum number of memories embedded in one call; the rest follow at the next call.
_EMBEDDED_AT_ONCE = 64

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Matches the property of another person, such as "sister's name", but not "it's warm" or "my name's Ada".
_POSSESSED = re.compile(r"(?!(?:it|he|she|that|what|who|there|here|where)['’])\b(?P<who>\w+)['’]s\s+[a-z]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberResult:
    """The memory after a request to remember, and whether it is new."""

    memory: Remembered
    new: bool


@dataclass(eq=False, repr=False, kw_only=True)
class Memory:
    """Stores, recalls and deletes the memories of one user at a time.

    A user has at most one live memory per subject. Subjects are compared after NFKC and case folding, and ''
    means no subject. A live memory has a history of at most 20 superseded ones. An ``act`` is recorded in the
    audit record.
    """

    database: Database
    embedder: Embedder | None = None
    clock: Callable[[], datetime] = utc_now
    #: The lock of each user whose memories are searched or stored.
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock], init=False
    )
    #: The numbers of deletions, and of those whose words are removed from the index.
    _deletions: int = field(default=0, init=False)
    _scrubbed: int = field(default=0, init=False)
    _scrubbing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _scrubs: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    #: One long comparison at a time, because a computing thread delays the event loop. Users take turns.
    _long: FairSlots = field(default_factory=lambda: FairSlots(total=1, per_user=1), init=False)

    async def remember(
        self,
        user: str,
        text: str,
        *,
        subject: str,
        turn_id: str | None,
        act: Act | None = None,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> RememberResult:
        """Store a text, cut off at 2,000 characters; a memory with the same subject is superseded.

        A subject is cut off at 200 characters. Storing the same text again changes nothing. Raises
        ``MemoryFull`` at 1,000 memories. ``check`` may raise an error after the waits, and nothing is stored.
        """
        new = self._new(text, subject, turn_id)
        # A comparison with long memories takes a quarter of a second. It runs before the transaction, because a
        # transaction delays the writes of all users. Each user has one comparison at a time.
        async with self._one_at_a_time(user):
            live = await self.database.run(partial(memories.live, owner=owner_of(user), subject=new.subject))
            others = await self._compare(user, partial(_find_others, new, live), live)
            if check is not None:
                await check()
            known = partial(_find_duplicate, new, others=others)
            work = partial(memories.add, owner=owner_of(user), new=new, known=known)
            stored = await self.database.run(with_record(work, act, "memory.remember", user))
        if self.embedder:
            await self._embed(self.embedder, user)
        return RememberResult(memory=stored, new=stored.id == new.id)

    async def get(self, user: str, memory_id: str) -> Remembered:
        """Return the user's memory, also a superseded one. Raises ``NotFound``, also for another user's."""
        found = await self.database.run(partial(memories.get, owner=owner_of(user), memory_id=memory_id))
        return _require_memory(found, memory_id)

    async def history(self, user: str, memory_id: str) -> list[Remembered]:
        """Return the memories that this memory superseded, the latest first."""
        return await self.database.run(partial(memories.history, owner=owner_of(user), memory_id=memory_id))

    async def list_memories(
        self,
        user: str,
        *,
        subject: str | None = None,
        before: tuple[datetime, str] | None = None,
        limit: int | None = None,
    ) -> list[Remembered]:
        """Return the live memories, newest first, optionally of a subject or older than ``before``."""
        work = partial(
            memories.list_memories,
            owner=owner_of(user),
            subject=None if subject is None else _normalize_subject(subject),
            before=before,
            limit=limit,
        )
        return await self.database.run(work)

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
        """Replace a live memory with a new one; None leaves its text or subject unchanged.

        Returns the new memory, or the old one if nothing changes. A memory with the new subject is superseded
        too. Raises ``NotFound``, and ``MemorySuperseded`` for a superseded memory.
        """

        def apply(old: Remembered) -> Remembered:
            if old.superseded_by:
                raise MemorySuperseded(f"{old.superseded_by} supersedes {old.id}. Change {old.superseded_by}.")
            return self._new(
                old.text if text is None else text, old.subject if subject is None else subject, turn_id
            )

        await self.get(user, memory_id)  # a missing memory must not be recorded as changed
        work = partial(memories.replace, owner=owner_of(user), memory_id=memory_id, changed=apply)
        recorded_work = with_record(work, act, "memory.change", user, memory=memory_id)
        replaced = _require_memory(await self.database.run(recorded_work), memory_id)
        if self.embedder:
            await self._embed(self.embedder, user)
        return replaced

    async def recall(
        self, user: str, query: str, *, limit: int, every_word: bool = False, subject: str | None = None
    ) -> list[Recalled]:
        """Return the live memories that share words with the query, best first, optionally of one subject.

        With an embedder, memories of similar meaning are included, unless its provider fails. ``every_word``
        requires all words of the query; then "name" does not match "my sister's name", but "sister name" does.
        """
        async with self._one_at_a_time(user):
            wanted = await run_uncancellable(partial(terms, query))
        fits = await self._find_matching(user, wanted, every_word=every_word)
        if not every_word and self.embedder and wanted:
            fits = fuse_rankings(fits, await self._find_similar(self.embedder, user, query))
        if subject is not None:
            named = _normalize_subject(subject)
            fits = [fit for fit in fits if fit.memory.subject == named]
        return fits[:limit]

    async def find_named(self, user: str, query: str) -> list[Remembered]:
        """Return the memories that contain every word of the query, best first."""
        return [fit.memory for fit in await self.recall(user, query, limit=COUNT_LIMIT, every_word=True)]

    async def resembling(self, user: str, query: str) -> list[Remembered]:
        """Return the newest memories with a similar word for each word of the query, newest first."""
        newest = await self.list_memories(user, limit=_COMPARED_LIMIT)
        async with self._one_at_a_time(user):
            wanted = await run_uncancellable(partial(terms, query))
            return await self._compare(user, partial(_resembling, wanted, newest), newest)

    async def forget(self, user: str, query: str, *, act: Act | None = None) -> list[Remembered]:
        """Delete the memories that ``find_named`` returns, with their history, and return them."""
        found = await self.find_named(user, query)
        if found:
            await self._delete(user, found, act)
        return found

    async def forget_one(self, user: str, memory_id: str, *, act: Act | None = None) -> Remembered:
        """Delete a memory with its history, and return it. Raises ``NotFound``."""
        found = await self.get(user, memory_id)
        await self._delete(user, [found], act)
        return found

    def _new(self, text: str, subject: str, turn_id: str | None) -> Remembered:
        return Remembered(
            id=new_id("mem"),
            text=text[:TEXT_LIMIT],
            subject=_normalize_subject(subject),
            turn_id=turn_id,
            created_at=self.clock(),
        )

    async def _find_matching(self, user: str, wanted: Sequence[str], *, every_word: bool) -> list[Recalled]:
        if not wanted:
            return []
        work = partial(memories.holding, owner=owner_of(user), terms=wanted)
        # One search per user at a time, also after a cancellation: a search of long memories occupies a thread
        # for seconds, and other users need the threads.
        async with self._one_at_a_time(user):
            candidates, total = await self.database.search(work)
            if not candidates:
                return []
            found = await run_uncancellable(partial(rank, wanted, candidates, total=total))
            if every_word:
                compared = [fit.memory for fit in found]
                found = await self._compare(user, partial(_with_every_word, found, wanted), compared)
            return found

    async def _compare(self, user: str, work: Callable[[], T], compared: Iterable[Remembered]) -> T:
        """Call ``work``, which compares these memories, in a thread."""
        if sum(len(item.text) for item in compared) <= _SHORT:
            return await run_uncancellable(work)
        async with self._long.slot(user):
            return await run_uncancellable(work)

    def _one_at_a_time(self, user: str) -> asyncio.Lock:
        return self._locks.setdefault(user, asyncio.Lock())

    async def _find_similar(self, embedder: Embedder, user: str, query: str) -> list[Recalled]:
        """Return the memories of similar meaning, nearest first; none if the provider fails."""
        await self._embed(embedder, user)
        known = await self.database.run(partial(memories.list_embedded, owner=owner_of(user), by=embedder.name))
        if not known:
            return []
        try:
            (vector,) = await embedder.vectors([query], query=True)
        except ModelFailed as error:
            _log.warning("memory_embedding_failed", extra={"reason": error.detail})
            return []
        return (await asyncio.to_thread(nearest, vector, known))[:_NEAREST_LIMIT]

    async def _embed(self, embedder: Embedder, user: str) -> None:
        """Compute missing vectors: of new memories, after a failure, or after a change of the model."""
        owner = owner_of(user)
        work = partial(memories.without_vector, owner=owner, by=embedder.name, limit=_EMBEDDED_AT_ONCE)
        missing = await self.database.run(work)
        if not missing:
            return
        try:
            found = await embedder.vectors(
                [f"{item.subject} {item.text}".strip() for item in missing], query=False
            )
        except ModelFailed as error:
            _log.warning("memory_embedding_failed", extra={"reason": error.detail})
            return
        vectors = {item.id: pack(vector) for item, vector in zip(missing, found, strict=True)}
        await self.database.run(partial(memories.embed, owner=owner, vectors=vectors, by=embedder.name))

    async def _delete(self, user: str, found: Sequence[Remembered], act: Act | None) -> None:
        ids = [item.id for item in found]
        work = partial(memories.delete, owner=owner_of(user), ids=ids)
        await self.database.run(with_record(work, act, "memory.forget", user, memories=ids))
        self._deletions += 1
        await complete(self._scrub(self._deletions), self._scrubs)

    async def _scrub(self, deletion: int) -> None:
        """Remove deleted words from the index, in steps between other transactions, once for all callers."""
        async with self._scrubbing:
            if self._scrubbed >= deletion:
                return
            latest, begin = self._deletions, True
            with suppress(StoreUnavailable):  # the next deletion removes the words
                while await self.database.run(partial(memory_index.scrub, begin=begin)):
                    begin = False
                self._scrubbed = latest


def _find_others(new: Remembered, live: Sequence[Remembered]) -> frozenset[str]:
    """Return the ids of the memories with another text. It may take long: call it in a thread."""
    form = _comparison_form(new.text)
    return frozenset(item.id for item in live if _comparison_form(item.text) != form)


def _find_duplicate(
    new: Remembered, live: Sequence[Remembered], *, others: frozenset[str]
) -> Remembered | None:
    """Return the memory with the same subject and text, or None. Raises ``MemoryFull`` if there is no room.

    ``others`` are the ids of memories that are known to have another text.
    """
    rest = [item for item in live if item.subject == new.subject and item.id not in others]
    form = _comparison_form(new.text) if rest else ""
    for item in rest:
        if _comparison_form(item.text) == form:
            return item
    remaining = [item for item in live if not (item.subject and item.subject == new.subject)]
    if len(remaining) >= COUNT_LIMIT:
        raise MemoryFull
    return None


def _require_memory(memory: Remembered | None, memory_id: str) -> Remembered:
    if memory is None:
        raise NotFound(f"there is no memory {memory_id!r} of this user")
    return memory


def _with_every_word(fits: Sequence[Recalled], wanted: Sequence[str]) -> list[Recalled]:
    """Return the memories that match every query word. It may take seconds: call it in a thread."""
    distinct = set(wanted)
    return [fit for fit in fits if fit.matched_terms == len(wanted) and _is_about(fit.memory, distinct)]


def _is_about(item: Remembered, wanted: set[str]) -> bool:
    """Return False if a query word occurs only in a property of a person that the query does not name."""
    text = f"{item.subject}. {item.text}"
    others = {
        found[0]: None for found in _POSSESSED.finditer(text) if not wanted.issuperset(words(found["who"]))
    }
    if not others:
        return True
    rest = _POSSESSED.sub(lambda found: " " if found[0] in others else found[0], text)
    return wanted.intersection(words(" ".join(others))).issubset(words(rest))


def _resembling(terms: Sequence[str], memories: Sequence[Remembered]) -> list[Remembered]:
    """Return the memories that contain a similar word for each term. It may take a second: call it in a thread.

    Returns none for a query with the word "name": the result could be the name of another person.
    """
    if not terms or "name" in terms:
        return []
    return [item for item in memories if _resembles(terms, frozenset(words(item.text)))]


def _resembles(terms: Sequence[str], found: frozenset[str]) -> bool:
    def begins(word: str, other: str) -> bool:
        return min(len(word), len(other)) >= _STEM and (word.startswith(other) or other.startswith(word))

    return all(
        any(begins(word, other) for other in found) or most_alike(word, found) is not None for word in terms
    )


def _normalize_subject(text: str) -> str:
    # Cut before and after: a character can become 18, and a model's argument has up to a megabyte.
    return _comparison_form(text.strip()[: 4 * SUBJECT_LIMIT])[:SUBJECT_LIMIT].rstrip()


def _comparison_form(text: str) -> str:
    """Return the form in which subjects and texts are compared: NFKC, case-folded, single spaces."""
    return " ".join(normalize("NFKC", text).casefold().split())
