"""Sessions and messages as the API lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation: the turns of an owner's channel."""

    id: str
    owner: str
    channel: str
    #: The title that a user set, or the beginning of its first message; None if unknown.
    title: str | None
    archived_at: datetime | None
    turns: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMessage:
    """A question or an answer of a turn."""

    id: str
    turn_id: str
    role: Literal["user", "assistant"]
    content: str
    user: str | None
    at: datetime


def session_of(row: Mapping[Any, Any]) -> Session:
    """Return the session of a row."""
    return Session(
        id=row["id"],
        owner=row["owner"],
        channel=row["channel"],
        title=row["title"],
        archived_at=row["archived_at"],
        turns=row["next_seq"] - 1,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def messages_of(row: Mapping[Any, Any]) -> list[SessionMessage]:
    """Return the messages of a turn's row, the question before its answer."""
    question = SessionMessage(
        id=f"{row['id']}_user",
        turn_id=row["id"],
        role="user",
        content=row["content"],
        user=row["user"],
        at=row["created_at"],
    )
    if not row["reply"]:
        return [question]
    answer = replace(
        question,
        id=f"{row['id']}_assistant",
        role="assistant",
        content=row["reply"],
        user=None,
        at=row["ended_at"],
    )
    return [question, answer]
