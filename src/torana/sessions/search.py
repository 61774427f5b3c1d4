"""Full-text search over messages and replies.

A search first indexes the turns that have ended since the last one, so the end of a turn does not wait for the
index. The index finds turns; the words in their texts are located here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torana.errors import InvalidField
from torana.paging import NUMBER_KEY, Page, cut, read_cursor
from torana.sessions.listing import SessionMessage, messages_of
from torana.store.engine.database import Database
from torana.store.engine.fts import terms
from torana.store.engine.tokenizer import TEXT_LIMIT, last_characters, words
from torana.store.rows.reports import message_index
from torana.store.rows.reports.message_index import Words

#: Turns that one search indexes, in total and at a time.
_MOST, _BATCH = 1_000, 50

#: Characters of a snippet, and of it before the first match.
_SNIPPET, _BEFORE = 240, 60
#: Maximum matches of a snippet.
_MATCHES = 20

_RUN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHit:
    """A message that contains words of the query. ``matches`` are places in the snippet: start and end.

    ``offset`` is the place of the snippet in the message. ``seq`` is the place of the turn in its session.
    """

    message: SessionMessage
    session_id: str
    channel: str
    seq: int
    snippet: str
    offset: int
    matches: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A page of hits. ``complete`` is false while older turns are not indexed yet."""

    page: Page[MessageHit]
    complete: bool


class MessageSearch:
    """Searches the messages and replies of ended turns."""

    def __init__(self, *, database: Database) -> None:
        self._database = database
        self._indexing = asyncio.Lock()

    async def find(
        self, owner: str, query: str, *, session_id: str | None, limit: int, after: str | None
    ) -> Found:
        """Return the turns that contain all words of the query, the newest first, one message for each.

        ``owner`` may be ``EVERYONE``. Raises ``InvalidField`` for a query without words or an invalid cursor.
        """
        before = read_cursor(after, NUMBER_KEY)
        wanted = terms(query)
        if not wanted:
            raise InvalidField("`q` must contain a letter, a digit or an emoji.")
        complete = await self._index(owner)
        work = partial(
            message_index.find,
            owner=owner,
            terms=wanted,
            session_id=session_id,
            before=before,
            limit=limit + 1,
        )
        rows = await self._database.run(work)
        page = cut(rows, limit, lambda row: int(row["words_row"]), NUMBER_KEY)
        hits = await asyncio.to_thread(lambda: [_hit(row, wanted) for row in page.items])
        return Found(page=Page(items=hits, next=page.next), complete=complete)

    async def _index(self, owner: str) -> bool:
        """Index the owner's newest ended turns that are not indexed; return whether none is left."""
        async with self._indexing:
            for _ in range(0, _MOST, _BATCH):
                rows = await self._database.run(partial(message_index.missing, owner=owner, limit=_BATCH))
                if not rows:
                    return True
                found = await asyncio.to_thread(_words_of_all, rows)
                await self._database.run(partial(message_index.add, found=found))
        return not await self._database.run(partial(message_index.missing, owner=owner, limit=1))


def _words_of_all(rows: Sequence[Mapping[Any, Any]]) -> list[Words]:
    return [_words_of(row) for row in rows]


def _words_of(row: Mapping[Any, Any]) -> Words:
    texts = [row["content"], row["reply"] or ""]
    found = [word for text in texts for word in (*words(text), *last_characters(text))]
    return Words(turn_id=row["id"], words=" ".join(dict.fromkeys(found)))


def _hit(row: Mapping[Any, Any], wanted: Sequence[str]) -> MessageHit:
    """Return the hit of a turn's row: its message with the most of the words."""
    messages = messages_of(row)
    places = [_places(message.content, wanted) for message in messages]
    best = max(range(len(messages)), key=lambda index: len(places[index][1]))
    message, matches = messages[best], places[best][0]
    start = max(0, matches[0][0] - _BEFORE) if matches else 0
    snippet = message.content[start : start + _SNIPPET]
    return MessageHit(
        message=message,
        session_id=row["session_id"],
        channel=row["channel"],
        seq=row["seq"],
        snippet=snippet,
        offset=start,
        matches=[(a - start, b - start) for a, b in matches if b - start <= len(snippet)],
    )


def _places(text: str, wanted: Sequence[str]) -> tuple[list[tuple[int, int]], set[str]]:
    """Return the first places of the words in a text, and the words that are there."""
    places: list[tuple[int, int]] = []
    seen: set[str] = set()
    beginnings = {term[:2] for term in wanted}
    for run in _RUN.finditer(text, 0, TEXT_LIMIT):
        folded = run[0].casefold()
        if folded.isascii() and folded[:2] not in beginnings:
            continue
        within = _within(run[0], folded, wanted)
        seen |= {term for term, _, _ in within}
        for _, start, end in sorted(within, key=lambda place: place[1]):
            _merge(places, run.start() + start, run.start() + end)
        if len(places) >= _MATCHES:
            break
    return places[:_MATCHES], seen


def _within(run: str, folded: str, wanted: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the wanted words of a run of letters with their places: pairs of characters, or the whole run."""
    has = {*words(run), *last_characters(run)}
    found: list[tuple[str, int, int]] = []
    for term in wanted:
        is_there = term in has or (len(term) == 1 and not term.isascii() and term in folded)
        if not is_there:
            continue
        if term.isascii() or len(folded) != len(run) or term not in folded:
            found.append((term, 0, len(run)))
        else:
            found += [(term, at.start(), at.start() + len(term)) for at in re.finditer(re.escape(term), folded)]
    return found


def _merge(places: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a place to the places in order; overlapping and adjacent ones become one."""
    if places and start <= places[-1][1]:
        places[-1] = (places[-1][0], max(end, places[-1][1]))
    else:
        places.append((start, end))
