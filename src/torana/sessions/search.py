"""Full-text search over messages and replies.

A search first indexes the turns that have ended since the last one, so the end of a turn does not wait for the
index. The index finds turns; the words in their texts are located here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torana.aio import run_uncancellable
from torana.errors import InvalidField
from torana.paging import NUMBER_KEY, Page, cut, read_cursor
from torana.sessions.listing import SessionMessage, messages_of
from torana.store.engine.database import Database
from torana.store.engine.fts import terms
from torana.store.engine.tokenizer import TEXT_LIMIT, last_characters, words
from torana.store.rows.reports import message_index
from torana.store.rows.reports.message_index import Words

#: Turns that one search indexes, in total and at a time, and the seconds after which the indexing ends.
_MOST, _BATCH = 1_000, 10
_SECONDS = 2.0

#: Characters of a snippet, and of its part before the first match.
_SNIPPET, _BEFORE = 240, 60
#: Maximum matches of a snippet.
_MATCHES = 20
#: Maximum number of different runs of letters that one search examines.
_RUNS = 20_000

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

    def __init__(self, *, database: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic

    async def find(
        self, owner: str, query: str, *, session_id: str | None, limit: int, after: str | None
    ) -> Found:
        """Return the turns that contain all words of the query, the newest first, one message for each.

        ``owner`` may be ``EVERYONE``. Raises ``InvalidField`` for a query without words or an invalid cursor.
        """
        before = read_cursor(after, NUMBER_KEY)
        wanted = await run_uncancellable(partial(terms, query))
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
        rows = await self._database.search(work)
        page = cut(rows, limit, lambda row: int(row["words_row"]), NUMBER_KEY)
        # The search waits for its thread even if it is cancelled, so that the caller's limit on concurrent
        # searches holds.
        hits = await run_uncancellable(partial(_hits, page.items, wanted))
        return Found(page=Page(items=hits, next=page.next), complete=complete)

    async def _index(self, owner: str) -> bool:
        """Index the owner's newest ended turns that are not indexed; return whether none is left."""
        ends = self._monotonic() + _SECONDS
        for _ in range(0, _MOST, _BATCH):
            rows = await self._database.run(partial(message_index.missing, owner=owner, limit=_BATCH))
            if not rows:
                return True
            found = await run_uncancellable(partial(_words_of_all, rows))
            await self._database.run(partial(message_index.add, found=found))
            if self._monotonic() > ends:
                break
        return not await self._database.run(partial(message_index.missing, owner=owner, limit=1))


def _words_of_all(rows: Sequence[Mapping[Any, Any]]) -> list[Words]:
    return [_words_of(row) for row in rows]


def _words_of(row: Mapping[Any, Any]) -> Words:
    texts = [row["content"], row["reply"] or ""]
    found = [word for text in texts for word in (*words(text), *last_characters(text))]
    return Words(turn_id=row["id"], words=" ".join(dict.fromkeys(found)))


def _hits(rows: Sequence[Mapping[Any, Any]], wanted: Sequence[str]) -> list[MessageHit]:
    runs = _Runs(wanted)
    return [_hit(row, runs) for row in rows]


class _Runs:
    """Locates the wanted words in runs of letters. Each different run is read once."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = wanted
        self._beginnings = {term[:2] for term in wanted}
        self._known: dict[str, list[tuple[str, int, int]]] = {}

    def matching(self, text: str) -> Mapping[str, list[tuple[str, int, int]]]:
        """Return the runs of a text that contain words, with their places in order.

        New runs after ``_RUNS`` others are left out.
        """
        different = set(_RUN.findall(text, 0, TEXT_LIMIT))
        return {run: found for run in different if (found := self._places_in(run))}

    def _places_in(self, run: str) -> list[tuple[str, int, int]]:
        found = self._known.get(run)
        if found is not None or len(self._known) >= _RUNS:
            return found or []
        folded = run.casefold()
        is_other = folded.isascii() and folded[:2] not in self._beginnings
        found = [] if is_other else sorted(_within(run, folded, self._wanted), key=lambda place: place[1])
        self._known[run] = found
        return found


def _hit(row: Mapping[Any, Any], runs: _Runs) -> MessageHit:
    """Return the hit of a turn's row: its message with the most of the words."""
    messages = messages_of(row)
    places = [_places(message.content, runs) for message in messages]
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


def _places(text: str, runs: _Runs) -> tuple[list[tuple[int, int]], set[str]]:
    """Return the first places of the words in a text, and the words that the text contains."""
    places: list[tuple[int, int]] = []
    seen: set[str] = set()
    matching = runs.matching(text)
    for run in _RUN.finditer(text, 0, TEXT_LIMIT) if matching else ():
        for term, start, end in matching.get(run[0], ()):
            seen.add(term)
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
