"""Summaries of a session's older history, for the messages that the model no longer receives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from torana.messages import Turn
from torana.sessions import history
from torana.store.engine.database import Database
from torana.store.rows import transcript
from torana.store.rows.transcript import Unsummarised

#: Maximum characters of a message, of a tool call or result, and of a whole transcript.
_MESSAGE_CHARS = 2_000
_TOOL_CHARS = 300
_ALL_CHARS = 48_000

#: Maximum characters of a summary; the rest is cut off.
_SUMMARY_CHARS = 6_000

#: Estimated number of stored bytes for each token of messages in the model's window.
_BYTES_PER_TOKEN = 16

#: Maximum stored bytes that are read at once.
_READ_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """The part of a session to summarise, and the summary of the part before it."""

    turn: Turn
    summary: str | None
    #: The messages as text, in order; long messages are cut off.
    transcript: str
    #: The number of the last history row in the transcript.
    to: int
    known: Unsummarised


@dataclass(eq=False, repr=False, kw_only=True)
class Summaries:
    """Finds the history to summarise, and stores its summaries.

    When the messages after a session's summary exceed the model's history window, the oldest of them are
    summarised until half of the window is free. The window and the summary together always cover the whole
    session, and the size of one summary request is bounded.

    ``message_room`` returns how many tokens of the model's window messages may use at least, or None.
    """

    database: Database
    history_messages: int
    message_room: Callable[[], int | None] = lambda: None

    @property
    def summary_chars(self) -> int:
        """Return the maximum number of characters of a summary."""
        return self._bounded(_SUMMARY_CHARS, 2)

    async def overdue(self, turn: Turn) -> Overdue | None:
        """Return the part of the session to summarise, or None."""
        limit = self.history_messages + 1  # each row has a message, so these exceed the window
        session = {"owner": turn.owner, "session_id": turn.session_id}
        known = await self.database.read(partial(transcript.oldest_unsummarised, **session, limit=limit))
        chosen = [] if known is None else self._choose_rows(known.rows)
        if known is None or not chosen:
            return None
        bodies = await self.database.read(
            partial(transcript.bodies, **session, first=chosen[0], last=chosen[-1])
        )
        text, to = _transcript(bodies, self._bounded(_ALL_CHARS, 8))
        return Overdue(turn=turn, summary=known.summary, transcript=text, to=to, known=known)

    async def store(self, overdue: Overdue, text: str) -> bool:
        """Store the summary; return False if the session was reset, deleted or summarised in the meantime."""
        return await self.database.run(
            partial(
                transcript.keep_summary,
                owner=overdue.turn.owner,
                session_id=overdue.turn.session_id,
                known=overdue.known,
                text=text,
                to=overdue.to,
            )
        )

    def _choose_rows(self, rows: Sequence[tuple[int, int, int]]) -> list[int]:
        """Return the numbers of the rows to summarise. The newest row is never among them."""
        left = sum(messages for _, messages, _ in rows)
        bytes_left = sum(length for _, _, length in rows)
        bytes_room = self._bounded(_READ_BYTES, _BYTES_PER_TOKEN)
        chosen: list[int] = []
        size = 0
        if left <= self.history_messages and bytes_left <= bytes_room:
            return chosen
        for seq, messages, length in rows[:-1]:
            size += length
            is_short = left <= self.history_messages // 2 and bytes_left <= bytes_room // 2
            if is_short or (chosen and size > _READ_BYTES):
                break
            chosen.append(seq)
            left -= messages
            bytes_left -= length
        return chosen

    def _bounded(self, limit: int, per_token: int) -> int:
        """Return the limit of characters, or a lower one if the model's window is small."""
        room = self.message_room()
        return limit if room is None else min(limit, room * per_token)


def _transcript(bodies: Sequence[tuple[int, bytes]], limit: int) -> tuple[str, int]:
    """Return the text of the oldest turns within the limit, and the number of the last row of these turns."""
    texts: list[str] = []
    room, to = limit, 0
    for seq, body in bodies:
        text = "\n".join(line for message in history.load_readable(body) for line in _lines(message))
        if texts and len(text) > room:
            break
        texts.append(_truncate(text, limit))
        room -= len(text)
        to = seq
    return "\n".join(texts), to


def _lines(message: ModelMessage) -> Iterator[str]:
    speaker = history.speaker_of(message) if isinstance(message, ModelRequest) else None
    for part in message.parts:
        match part:
            case UserPromptPart(content=str(text)):
                content = history.indent_below(_truncate(text, _MESSAGE_CHARS))
                yield f"{history.one_line(speaker or 'User')}: {content}"
            case TextPart(content=text) if text:
                yield f"Assistant: {history.indent_below(_truncate(text, _MESSAGE_CHARS))}"
            # Other users of the session may receive the summary, so it omits private arguments and results.
            case ToolCallPart(tool_name=name) if name in history.PRIVATE_TOOLS:
                yield f"(The assistant called {name})"
            case ToolCallPart():
                arguments = _truncate(part.args_as_json_str(), _TOOL_CHARS)
                yield f"(The assistant called {part.tool_name} {arguments})"
            case ToolReturnPart(tool_name=name) if name in history.PRIVATE_TOOLS:
                pass
            case ToolReturnPart():
                returned = history.indent_below(_truncate(part.model_response_str(), _TOOL_CHARS))
                yield f"({part.tool_name} returned {returned})"
            case _:
                pass


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} …"
