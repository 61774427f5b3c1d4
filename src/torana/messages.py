"""The values that all layers share: messages, turns, events, principals and their ids. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from uuid_utils import uuid7

#: The owner of data that no bound token created: the gateway itself.
GATEWAY_OWNER = "gateway"
#: The model name of turns that the gateway answers itself: control words, yes and no, and reminders.
GATEWAY_MODEL = "torana"
#: Selects the rows of all owners, for a principal with the scope ``admin``.
EVERYONE = "*"

#: The prefix of the name of a schedule's principal.
SCHEDULE_PRINCIPAL = "schedule:"

#: The text between a message and the note on it in a model request.
NOTE_MARK = "\n\n[Note from the gateway, not from the user]\n"

#: The contract's limits, in Unicode code points.
CONTENT_LIMIT = 10_000
ID_LIMIT = 256

#: The maximum number of bytes of a stored model name. PostgreSQL refuses index rows above 2,704 bytes, and a
#: row of usage has a user and a channel of ``ID_LIMIT`` characters as well.
MODEL_NAME_BYTES = 200

#: The number of characters of text files that a model receives with one message.
FILE_TEXT_LIMIT = 20_000

#: The maximum number of days of a usage report.
USAGE_DAYS_LIMIT = 366

#: Micro-dollars in a dollar; amounts of money are stored in micro-dollars.
MICRO = 1_000_000

TurnState = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
TURN_STATES: tuple[TurnState, ...] = get_args(TurnState)
#: The treatment of a message whose session is busy; see ``turns``.
OnBusy = Literal["queue", "steer", "interrupt", "reject"]
#: The scopes: send messages and follow their turns; read sessions; install and remove skills; change a user's
#: memory; everything, for all users; name the user of a message.
Scope = Literal["message", "read", "skills", "memory", "admin", "impersonate"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
#: The scopes of a token that names none.
DEFAULT_SCOPES: frozenset[Scope] = frozenset({"message", "read", "memory"})
DeliveryState = Literal["preview", "pending", "sending", "sent", "ambiguous", "refused", "stale", "dropped"]
DELIVERY_STATES: tuple[DeliveryState, ...] = get_args(DeliveryState)
ScheduleState = Literal["active", "paused", "ended"]
SCHEDULE_STATES: tuple[ScheduleState, ...] = get_args(ScheduleState)
#: Handling of times that passed while the gateway was down: run once for all of them, or not at all.
MissedPolicy = Literal["run_once", "skip"]
#: The forms in which a session is exported.
ExportFormat = Literal["jsonl", "markdown"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
#: The form in which a model receives a file.
FileKind = Literal["text", "image", "pdf"]
EventType = Literal[
    "turn.accepted",
    "message.delta",
    "tool.started",
    "tool.finished",
    "approval.required",
    "turn.resumed",
    "message.snapshot",
    "turn.completed",
    "turn.failed",
]
#: An event stream ends after one of these events.
TERMINAL_EVENTS: frozenset[EventType] = frozenset({"turn.completed", "turn.failed"})


def new_id(prefix: str) -> str:
    """Return a new id such as ``turn_0198…``: the prefix and a UUIDv7 (RFC 9562), so ids sort roughly by time.

    No code may depend on that order; ``seq`` defines the order of turns.
    """
    return f"{prefix}_{uuid7().hex}"


def utc_now() -> datetime:
    """Return the current time with the time zone UTC. It is the default of every ``clock`` argument."""
    return datetime.now(UTC)


def owner_of(user: str) -> str:
    """Return the owner of the data that a token bound to the user creates."""
    return f"user:{user}"


def file_kind(media_type: str) -> FileKind | None:
    """Return the kind of a file, or None; ``media_type`` is in lower case and has no parameters."""
    if media_type in ("image/png", "image/jpeg", "image/gif", "image/webp"):
        return "image"
    if media_type == "application/pdf":
        return "pdf"
    return "text" if media_type.startswith("text/") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The identity of a credential, and its scopes.

    ``operator`` (the gateway token), ``local`` (no token is set), or ``token:<id>``.
    """

    name: str
    owner: str = GATEWAY_OWNER
    #: The user that the credential is bound to; the credential acts for this user only.
    user: str | None = None
    scopes: frozenset[Scope] = SCOPES
    #: The token's id, or the first id of a rotated token: rules and limits use it. None for the gateway token.
    token: str | None = None

    @property
    def token_id(self) -> str | None:
        """Return the id of the token itself; None for the gateway token."""
        return None if self.token is None else self.name.partition(":")[2]

    @property
    def sharer(self) -> str:
        """Return the name for shares of slots; a sign-in has the name of its token."""
        return self.user or self.token or self.name

    @property
    def view(self) -> str:
        """Return the owner whose rows the principal may read: its own, or ``EVERYONE``."""
        return EVERYONE if "admin" in self.scopes else self.owner

    def may_have_sent(self, turn: Turn) -> bool:
        """Return whether the turn's message came from this principal's user or, without a user, its token."""
        if self.owner != turn.owner:
            return False
        return self.user is not None or self.token == turn.token


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of a message. ``media_type`` is detected from its bytes, not declared by the sender."""

    name: str
    media_type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """A message that the API or a connector has parsed and validated."""

    owner: str
    principal: str
    content: str
    #: The caller's name for the conversation. None creates a separate session.
    channel: str | None = None
    #: The user whose memory and limits apply, or None.
    user: str | None = None
    on_busy: OnBusy = "queue"
    #: The caller's idempotency key: a repeated message with this key returns the same turn.
    key: str | None = None
    #: The token of the request, as in ``Principal``; None for the gateway token.
    token: str | None = None
    #: The connector's account, the platform's id of the message, and the place of the reply (JSON).
    account: str | None = None
    message: str | None = None
    place: str | None = None
    #: The time at which the message was written, if the connector knows it.
    said_at: datetime | None = None
    #: The platform's id of the message that the sender chose to reply to, if the connector knows it.
    in_reply_to: str | None = None
    #: The files that a model may receive.
    files: tuple[File, ...] = ()
    #: False if a yes approves no call: the client decides by ids, or a refused message came before.
    may_approve: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class InputParts:
    """Estimated parts of input tokens: the instructions, the definitions of tools, and the messages."""

    instructions: int = 0
    tools: int = 0
    history: int = 0

    def __add__(self, other: InputParts) -> InputParts:
        return InputParts(
            instructions=self.instructions + other.instructions,
            tools=self.tools + other.tools,
            history=self.history + other.history,
        )

    def scaled_to(self, tokens: int) -> InputParts:
        """Return the parts in the same proportion with a sum of ``tokens``."""
        total = self.instructions + self.tools + self.history
        if total == 0 or tokens == 0:
            return self
        instructions, tools = self.instructions * tokens // total, self.tools * tokens // total
        return InputParts(instructions=instructions, tools=tools, history=tokens - instructions - tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of a turn. ``cost_usd`` is 0 for a model without a known price."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    #: Zero for the builtin model.
    estimated_input: InputParts = InputParts()
    #: The usage of each model by its name, where it is known. It adds up to the whole.
    shares: tuple[tuple[str, Usage], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason of a failed turn: the stable code of an error, and a text for the caller."""

    code: str
    detail: str
    #: Seconds after which a retry may succeed, if the source of the failure named a time.
    retry_after: int | None = None
    #: The names of the limits that refused the turn.
    policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message and its answer, as stored."""

    id: str
    owner: str
    session_id: str
    channel: str
    seq: int
    principal: str
    user: str | None
    content: str
    state: TurnState
    attempt: int
    created_at: datetime
    #: The token of the message, as in ``Principal``.
    token: str | None = None
    #: The number of crashes while the turn ran without a newly settled step.
    crashes: int = 0
    reply: str | None = None
    failure: Failure | None = None
    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    on_busy: OnBusy = "queue"
    #: The running turn that took this message as additional input.
    merged_into: str | None = None
    ended_at: datetime | None = None
    #: As in ``Inbound``; None for messages that no connector received.
    account: str | None = None
    message: str | None = None
    place: str | None = None
    #: The number of files that a model may receive. They are stored until the turn ends; a failed turn keeps
    #: them.
    files: int = 0

    @property
    def has_ended(self) -> bool:
        """Return whether the state of the turn is final."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def is_scheduled(self) -> bool:
        """Return whether a schedule created the turn."""
        return self.principal.startswith(SCHEDULE_PRINCIPAL)

    @property
    def schedule_id(self) -> str | None:
        """Return the id of the schedule that created the turn, or None."""
        return self.principal.removeprefix(SCHEDULE_PRINCIPAL) if self.is_scheduled else None

    @property
    def last_event(self) -> Literal["turn.completed", "turn.failed"]:
        """Return the type of the terminal event of an ended turn."""
        return "turn.completed" if self.state == "completed" else "turn.failed"


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An event of a turn. ``id`` is ``<attempt>-<n>``, unique and increasing within the turn."""

    id: str
    type: EventType
    data: Mapping[str, Any]

    @property
    def terminal(self) -> bool:
        """Return whether an event stream ends after the event."""
        return self.type in TERMINAL_EVENTS
