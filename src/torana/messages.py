"""The vocabulary: what enters, what runs, what comes out. Values, and how they are named; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from uuid_utils import uuid7

#: Who owns what comes without a token of somebody's own: the gateway itself.
GATEWAY_OWNER = "gateway"
#: In place of an owner, where rows are read: whoever owns them. The operator's view.
EVERYONE = "*"

#: What a principal's name begins with that is a schedule.
SCHEDULE_PRINCIPAL = "schedule:"

#: The contract's bounds, in Unicode code points.
CONTENT_LIMIT = 10_000
ID_LIMIT = 256

#: Characters that a model is shown of the text files that came with one message.
FILE_TEXT_LIMIT = 20_000

#: Money is counted in micro-dollars: so many are a dollar.
MICRO = 1_000_000

TurnState = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
#: What becomes of a message whose session is busy: see ``turns``.
OnBusy = Literal["queue", "steer", "interrupt", "reject"]
#: What a token may do: send messages and follow their turns; read sessions; install and remove skills; keep a
#: user's memory; everything, for everyone; name the user it speaks for.
Scope = Literal["message", "read", "skills", "memory", "admin", "impersonate"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
#: What a file is to a model: read as text, looked at, or read page by page.
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
#: After one of these an event stream ends.
TERMINAL_EVENTS: frozenset[EventType] = frozenset({"turn.completed", "turn.failed"})


def new_id(prefix: str) -> str:
    """A fresh id such as ``turn_0198…``: the prefix and a UUIDv7 (RFC 9562), so ids sort roughly by time.

    Nothing may depend on that order: order comes from ``seq``.
    """
    return f"{prefix}_{uuid7().hex}"


def utc_now() -> datetime:
    """The current time, aware, in UTC. The default of every ``clock`` argument."""
    return datetime.now(UTC)


def owner_of(user: str) -> str:
    """Who owns what a token bound to the user makes, and all that is remembered about the user."""
    return f"user:{user}"


def file_kind(media_type: str) -> FileKind | None:
    """The kind of a file of that media type, which is in lower case and without parameters."""
    if media_type in ("image/png", "image/jpeg", "image/gif", "image/webp"):
        return "image"
    if media_type == "application/pdf":
        return "pdf"
    return "text" if media_type.startswith("text/") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who holds the credential, and what it lets them do.

    ``operator`` (the gateway token), ``local`` (no token is set), or ``token:<id>``.
    """

    name: str
    owner: str = GATEWAY_OWNER
    #: Whom the credential is bound to: it speaks for this user and for nobody else.
    user: str | None = None
    scopes: frozenset[Scope] = SCOPES
    #: The token's id, or where it was rotated the first one's: rules and limits go by it. None is for the
    #: gateway's own.
    token: str | None = None

    @property
    def view(self) -> str:
        """Whose rows are shown to it: its owner's, or ``EVERYONE``'s."""
        return EVERYONE if "admin" in self.scopes else self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that came with a message. ``media_type`` is what its bytes are, whatever was said of them."""

    name: str
    media_type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """A message at the gateway's door, already parsed and checked by its edge."""

    owner: str
    principal: str
    content: str
    #: None stands for a session of its own.
    channel: str | None = None
    #: Whose memory and limits; None is nobody.
    user: str | None = None
    on_busy: OnBusy = "queue"
    #: The caller's name for this message: sent again under it, it is the same turn.
    key: str | None = None
    #: The token it came with, as in ``Principal``; None for the gateway's own.
    token: str | None = None
    #: The connector account that heard it, the platform's id of it there, and where it is answered (JSON).
    account: str | None = None
    message: str | None = None
    place: str | None = None
    #: When it was said, as far as the connector knows: it may have waited since, here or there.
    said_at: datetime | None = None
    #: What came with it and a model may be handed.
    files: tuple[File, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a turn consumed. ``cost_usd`` is 0 for a model whose price is not known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a turn failed: an error's stable code and the text that may be shown to the caller."""

    code: str
    detail: str
    #: Seconds after which to try again, where somebody named a time.
    retry_after: int | None = None
    #: The names of the limits that stood in the way.
    policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message and its answer, as its row says."""

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
    #: The token its message came with, as in ``Principal``.
    token: str | None = None
    #: How often the process died while the turn ran and had settled nothing.
    crashes: int = 0
    reply: str | None = None
    failure: Failure | None = None
    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    on_busy: OnBusy = "queue"
    #: The turn that took this message as a further input while it ran.
    merged_into: str | None = None
    ended_at: datetime | None = None
    #: As in ``Inbound``; None for what no connector heard.
    account: str | None = None
    message: str | None = None
    place: str | None = None
    #: How many files came with it that a model may be handed; they are kept until it has ended and not failed.
    files: int = 0

    @property
    def ended(self) -> bool:
        """True when nothing more will happen to it."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def scheduled(self) -> bool:
        """Whether a schedule said it, and no person."""
        return self.principal.startswith(SCHEDULE_PRINCIPAL)

    @property
    def last_event(self) -> Literal["turn.completed", "turn.failed"]:
        """What is told of it when it has ended."""
        return "turn.completed" if self.state == "completed" else "turn.failed"


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """One thing that happened in a turn. ``id`` is ``<attempt>-<n>``, unique and rising within the turn."""

    id: str
    type: EventType
    data: Mapping[str, Any]

    @property
    def terminal(self) -> bool:
        """True when the stream ends after it."""
        return self.type in TERMINAL_EVENTS
