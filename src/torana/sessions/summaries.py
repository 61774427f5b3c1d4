"""What is told of a session's older history, in place of the messages that the model is not shown any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from torana.store import transcript
from torana.store.database import Database
from torana.store.transcript import Unsummarised

#: Of one message, of a tool's call or result, and of all that is summarised at once, in characters.
_MESSAGE_CHARS = 2_000
_TOOL_CHARS = 300
_ALL_CHARS = 48_000

#: What is read at once, in bytes as it is stored.
_READ_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """What has to be summarised of a session, and what was told of the part before it."""

    turn: Turn
    summary: str | None
    #: Who said what, in order; long messages are cut.
    transcript: str
    #: The place in the history up to which the transcript goes.
    to: int
    known: Unsummarised


class Summaries:
    """Finds what has to be summarised, and keeps what was made of it.

    A session's messages behind its summary may be as many as the model is shown. When they are more, the older
    of them are overdue, until half of these are left: so at any time the model is told of everything, and what
    is summarised at once is bounded, however long a session has become.
    """

    def __init__(self, *, database: Database, history_messages: int) -> None:
        self._database = database
        self._room = history_messages

    async def overdue(self, turn: Turn) -> Overdue | None:
        """What has to be summarised of the turn's session; None where nothing has."""
        limit = self._room + 1  # so many hold more messages than are shown, whatever else there is
        place = {"owner": turn.owner, "session_id": turn.session_id}
        known = await self._database.run(partial(transcript.unsummarised, **place, limit=limit))
        chosen = [] if known is None else self._chosen(known.rows)
        if known is None or not chosen:
            return None
        bodies = await self._database.run(partial(transcript.bodies, **place, first=chosen[0], last=chosen[-1]))
        text, to = _transcript(bodies)
        return Overdue(turn=turn, summary=known.summary, transcript=text, to=to, known=known)

    async def keep(self, overdue: Overdue, text: str) -> bool:
        """Keep what was made of it; False where the session was reset, deleted or summarised meanwhile."""
        return await self._database.run(
            partial(
                transcript.keep_summary,
                owner=overdue.turn.owner,
                session_id=overdue.turn.session_id,
                known=overdue.known,
                text=text,
                to=overdue.to,
            )
        )

    def _chosen(self, rows: Sequence[tuple[int, int, int]]) -> list[int]:
        """The places of the rows to summarise: never the newest one, which is shown in any case."""
        left = sum(messages for _, messages, _ in rows)
        chosen: list[int] = []
        size = 0
        if left <= self._room:
            return chosen
        for seq, messages, length in rows[:-1]:
            size += length
            if left <= self._room // 2 or (chosen and size > _READ_BYTES):
                break
            chosen.append(seq)
            left -= messages
        return chosen


def _transcript(bodies: Sequence[tuple[int, bytes]]) -> tuple[str, int]:
    """The turns as text, as many as may be told at once, and the place of the last one."""
    told: list[str] = []
    room, to = _ALL_CHARS, 0
    for seq, body in bodies:
        text = "\n".join(line for message in history.load(body) for line in _lines(message))
        if told and len(text) > room:
            break
        told.append(_cut(text, _ALL_CHARS))
        room -= len(text)
        to = seq
    return "\n".join(told), to


def _lines(message: ModelMessage) -> Iterator[str]:
    speaker = history.speaker_of(message) if isinstance(message, ModelRequest) else None
    for part in message.parts:
        match part:
            case UserPromptPart(content=str(text)):
                yield f"{history.one_line(speaker or 'User')}: {_below(_cut(text, _MESSAGE_CHARS))}"
            case TextPart(content=text) if text:
                yield f"Assistant: {_below(_cut(text, _MESSAGE_CHARS))}"
            case ToolCallPart():
                yield f"(The assistant called {part.tool_name} {_cut(part.args_as_json_str(), _TOOL_CHARS)})"
            case ToolReturnPart():
                returned = _below(_cut(part.model_response_str(), _TOOL_CHARS))
                yield f"({part.tool_name} returned {returned})"
            case _:
                pass


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} …"


def _below(text: str) -> str:
    """A text whose further lines are indented, so that none of them passes for somebody else's."""
    return "\n    ".join(text.splitlines())
