"""Bodies of turns and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, field_validator, model_validator

from torana.agent.tool_errors import RESULT_LIMIT
from torana.api.schemas.approvals import ApprovalBody
from torana.api.schemas.base import (
    CLEAN,
    Id,
    NotBlank,
    Page,
    ReadFrom,
    Renamed,
    RequestBody,
    Time,
    Wire,
)
from torana.api.schemas.contract import UsageBody
from torana.errors import InvalidField
from torana.messages import MICRO, Turn, TurnState
from torana.sessions.titles import OWN_LIMIT, own_title
from torana.store.rows.approvals import Approval
from torana.store.rows.reports.timings import StepTime
from torana.turns.calls import CallState
from torana.turns.reader import EXCERPT


class FailureBody(Wire):
    """The reason why a turn failed."""

    code: str
    detail: str


class TurnBody(Renamed):
    """A turn: a message and its processing."""

    id: str
    channel_id: Annotated[str, ReadFrom("channel")]
    user_id: Annotated[str | None, ReadFrom("user")]
    session_id: str
    status: Annotated[TurnState, ReadFrom("state")]
    reply: str | None
    model: str | None
    usage: UsageBody
    error: Annotated[FailureBody | None, ReadFrom("failure")]
    approvals: list[ApprovalBody]
    """The open approvals of the turn. A turn with an open approval is `waiting`."""
    merged_into: str | None
    """The turn that took in this message while it was running."""
    created_at: Time
    ended_at: Time | None

    @classmethod
    def from_turn(cls, turn: Turn, approvals: Sequence[Approval] = ()) -> Self:
        """Return the body of a turn with its open approvals."""
        return cls.from_object(turn, approvals=approvals)


class TurnItem(Renamed):
    """A turn in a list."""

    id: str
    owner: Annotated[str, Field(description="`gateway`, or `user:` and the user whose token sent the message.")]
    channel_id: Annotated[str, ReadFrom("channel")]
    user_id: Annotated[str | None, ReadFrom("user")]
    session_id: str
    account: str | None
    """The connector's account; null for a message over HTTP or of a schedule."""
    schedule_id: Annotated[str | None, Field(description="The schedule that created the turn.")]
    status: Annotated[TurnState, ReadFrom("state")]
    attempt: Annotated[int, Field(description="The number of the attempt; 0 until the first one begins.")]
    excerpt: Annotated[
        str, ReadFrom("content"), Field(description=f"The first {EXCERPT} characters of the message.")
    ]
    model: str | None
    usage: UsageBody
    error: Annotated[FailureBody | None, ReadFrom("failure")]
    merged_into: str | None
    created_at: Time
    ended_at: Time | None


class StepBody(Wire):
    """A step of a turn with its time. Fields that do not apply to its kind are null."""

    kind: Literal["queue", "model", "tool", "approval", "delivery"]
    """`queue` is the wait for the start of an attempt."""
    state: str
    """`running`, `completed`, `failed` or `interrupted`. An approval or a delivery has its own states."""
    attempt: Annotated[int | None, Field(description="The attempt of the turn, from 1.")]
    step: Annotated[int | None, Field(description="The number of the model request in the turn, from 0.")]
    name: Annotated[str | None, Field(description="The model, or the tool of a call or an approval.")]
    call_id: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    approval_id: str | None
    delivery_id: str | None
    account: Annotated[str | None, Field(description="The connector's account of a delivery.")]
    decided_by: str | None
    reason: Annotated[str | None, Field(description="The reason of a denial, or the error of a delivery.")]
    tries: Annotated[int | None, Field(description="The number of attempts of a delivery.")]
    started_at: Time
    ended_at: Annotated[Time | None, Field(description="Null for a step in progress.")]

    @classmethod
    def from_step(cls, step: StepTime) -> Self:
        """Return the body of a step."""
        is_approval, is_delivery = step.kind == "approval", step.kind == "delivery"
        return cls.from_object(
            step,
            cost_usd=None if step.microusd is None else step.microusd / MICRO,
            approval_id=step.reference if is_approval else None,
            delivery_id=step.reference if is_delivery else None,
            account=step.by if is_delivery else None,
            decided_by=step.by if is_approval else None,
        )


class CallBody(Wire):
    """A tool call of a turn."""

    id: Annotated[str, Field(description="The id of the call, unique within the turn.")]
    tool: str
    state: CallState
    """`waiting` for an approval; `interrupted` if the turn ended before the call; a denied call is `failed`."""
    arguments: dict[str, Any] | None
    """The arguments that the model chose; null if they are unknown or hidden."""
    arguments_text: str | None
    """`arguments` as JSON text for people: exact, with invisible characters escaped."""
    result: Annotated[
        str | None,
        Field(description=f"The result or the failure as text, of about {RESULT_LIMIT:,} characters at most."),
    ]
    hidden: bool
    """True if `arguments` and `result` are left out: they are private data of one user in a channel with
    several users.
    """
    approval: ApprovalBody | None
    started_at: Time | None
    """The start of its last attempt; null if it never ran."""
    ended_at: Time | None


class CallsBody(Page[CallBody]):
    """A page of a turn's calls."""


class StepsBody(Page[StepBody]):
    """A page of a turn's steps."""


class TurnsBody(Page[TurnItem]):
    """A page of turns."""


class SessionBody(Renamed):
    """A session: a conversation in a channel."""

    id: str
    owner: str
    """`gateway`, or `user:` and the user whose token started the session."""
    channel_id: Annotated[str, ReadFrom("channel")]
    title: str | None
    """The title that was set, or the beginning of the first message, if it is known."""
    archived: Annotated[bool, ReadFrom("archived_at"), BeforeValidator(bool)]
    turns: Annotated[int, Field(description="The number of accepted messages.")]
    created_at: Time
    updated_at: Time


class SessionChange(RequestBody):
    """A change of a session: at least one of the fields. Unknown fields are ignored."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["title"]}, {"required": ["archived"]}]}
    )

    title: Annotated[NotBlank, Field(max_length=OWN_LIMIT)] | None = None
    """The new title; null removes it, and the next message gives the session a title."""
    archived: StrictBool | None = None
    """True to archive the session, until its next message."""

    @field_validator("title")
    @classmethod
    def _clean(cls, title: str | None) -> str | None:
        return None if title is None else own_title(title) or None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not self.model_fields_set & {"title", "archived"}:
            raise InvalidField("The change is empty; send `title`, `archived` or both.")
        return self


class ForkBody(RequestBody):
    """The turn and the channel of a fork. Unknown fields are ignored."""

    turn_id: Annotated[str, Field(json_schema_extra={"pattern": CLEAN})] | None = None
    """The last turn to copy. Without it the last ended turn."""
    channel_id: Id | None = None
    """The channel of the new session. Default: a new channel."""


class DeletedBody(Wire):
    """The numbers of deleted rows of a session."""

    id: str
    turns: Annotated[int, Field(description="The number of turns. Their ids answer 410 from now on.")]
    idempotency_keys: Annotated[int, Field(description="The number of idempotency keys of these turns.")]


class SessionsBody(Page[SessionBody]):
    """A page of sessions."""


class MessageItem(Renamed):
    """The message or the reply of a turn."""

    id: str
    turn_id: str
    role: Literal["user", "assistant"]
    content: str
    user_id: Annotated[str | None, ReadFrom("user")]
    created_at: Annotated[Time, ReadFrom("at")]


class MessagesBody(Page[MessageItem]):
    """A page of messages."""
