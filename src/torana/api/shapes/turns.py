"""Bodies of turns and sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from torana.api.shapes.approvals import ApprovalBody
from torana.api.shapes.base import CLEAN, Id, Wire
from torana.api.shapes.contract import UsageBody
from torana.messages import TurnState


class FailureBody(Wire):
    """Why a turn failed."""

    code: str
    detail: str


class TurnBody(Wire):
    """A message and what became of it so far."""

    id: str
    channel_id: str
    user_id: str | None
    session_id: str
    status: TurnState
    reply: str | None
    model: str | None
    usage: UsageBody
    error: FailureBody | None
    approvals: Annotated[
        list[ApprovalBody],
        Field(description="Its calls that wait for a yes; while there are any it is `waiting`."),
    ]
    merged_into: Annotated[str | None, Field(description="The turn that took this message in while it ran.")]
    created_at: AwareDatetime
    ended_at: AwareDatetime | None


class SessionBody(Wire):
    """A conversation."""

    id: str
    owner: Annotated[str, Field(description="`gateway`, or `user:` and the user whose token began it.")]
    channel_id: str
    title: Annotated[str | None, Field(description="The beginning of what was said first, if it is known.")]
    turns: Annotated[int, Field(description="How many messages were accepted.")]
    created_at: AwareDatetime
    updated_at: AwareDatetime


class ForkBody(Wire):
    """Where a session is copied from and to. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    turn_id: Annotated[
        str | None,
        Field(
            description="The last turn to copy; without it the last that has ended.",
            json_schema_extra={"pattern": CLEAN},
        ),
    ] = None
    channel_id: Annotated[
        Id, Field(description="The channel of the new session; without it the session gets one of its own.")
    ] = None


class DeletedBody(Wire):
    """What was deleted of a session."""

    id: str
    turns: Annotated[int, Field(description="How many turns; their ids answer 410 from now on.")]
    idempotency_keys: Annotated[int, Field(description="How many keys stand for no turn any more.")]


class SessionsBody(Wire):
    """A page of sessions."""

    items: list[SessionBody]
    next: Annotated[str | None, Field(description="`after` for the next page.")]


class MessageItem(Wire):
    """One side of a turn."""

    id: str
    turn_id: str
    role: Literal["user", "assistant"]
    content: str
    user_id: str | None
    created_at: AwareDatetime


class MessagesBody(Wire):
    """A page of messages."""

    items: list[MessageItem]
    next: Annotated[str | None, Field(description="`after` for the next page.")]
