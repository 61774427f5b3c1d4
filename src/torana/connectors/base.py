"""The interface of connectors: platform events become ``IncomingMessage``, a ``Part`` becomes a platform call.

A connector is one file with one class, and it contains only code for its platform. The connector runtime checks
senders, splits replies into parts and retries failed deliveries.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Annotated, ClassVar, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from torana.connectors.transport.markup import plain

#: The way to repeat a part after a crash that left its delivery unknown: ``keyed`` platforms recognise a
#: repeated key, ``readable`` platforms can be searched for the part, and ``blind`` platforms get it again
#: with a mark.
Repeat = Literal["keyed", "readable", "blind"]


AttachmentKind = Literal["image", "file", "voice", "video"]

#: The longest wait, in seconds, that a platform can request.
_LONGEST = 86_400.0


class PermanentError(Exception):
    """The platform will never accept this: bad credentials, a deleted chat or a text that it cannot show."""


class RetryLater(Exception):
    """The platform did nothing; the call can be repeated, after ``seconds`` if the platform named a time.

    ``seconds`` may be the platform's raw value: more than a day becomes a day, a non-finite value becomes None.
    """

    def __init__(self, reason: str, *, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = _clamp_seconds(seconds)


class OutcomeUnknown(Exception):
    """The platform did not answer the call: the message may have arrived."""


class TooLarge(Exception):
    """The file is larger than the limit."""


async def collect(chunks: AsyncIterable[bytes], limit: int, *, announced: int = 0) -> bytes:
    """Join the chunks of a file. Raises ``TooLarge`` if more than ``limit`` bytes come or are announced."""
    content = bytearray()
    if announced <= limit:
        async for chunk in chunks:
            content += chunk
            if len(content) > limit:
                break
        else:
            return bytes(content)
    raise TooLarge(f"the file has more than {limit} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a message: the platform's id of a chat, and optionally of a thread in it.

    ``reply_to`` holds values that only the connector reads, such as the id of the message to reply to. They are
    stored with the reply.
    """

    chat: str
    thread: str | None = None
    reply_to: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The sender of a message: the platform's permanent id, and a display name.

    ``automatic`` marks bots, mailing lists and other programs; they get no replies unless ``bots`` is set.
    """

    id: str
    name: str = ""
    automatic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that came with a message. ``size`` is in bytes, or None if the platform does not report it.

    ``fetch(limit)`` returns the content. It raises ``TooLarge`` for more than ``limit`` bytes.
    """

    kind: AttachmentKind
    name: str = ""
    media_type: str = "application/octet-stream"
    size: int | None = None
    fetch: Callable[[int], Awaitable[bytes]] | None = None


#: The id of a message that is not in the chat.
ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingMessage:
    """A message as the platform delivered it.

    ``id`` is the platform's id, unique in the account: a repeated delivery has the same id. ``addressed`` is
    true for direct messages, and in groups for messages that mention the account or reply to it.
    ``replies_to_us`` asks the platform whether a message that is not known to be addressed replies to the
    account; it is called only for permitted senders and rooms. ``text`` contains no leading mention.
    ``said_at`` is the platform's time (aware), or None: a message may come late. ``in_reply_to`` is the id of
    the message that the sender chose to reply to, or None; ``ELSEWHERE`` if it is a message of another chat, or
    if the sender forwarded it.
    """

    id: str
    sender: Sender
    place: Place
    text: str
    direct: bool
    addressed: bool
    replies_to_us: Callable[[], Awaitable[bool]] | None = None
    attachments: Sequence[Attachment] = ()
    said_at: datetime | None = None
    in_reply_to: str | None = None

    async def is_for_us(self) -> bool:
        """Return whether the message is addressed to the account; may ask the platform.

        Raises ``RetryLater`` and ``OutcomeUnknown`` if the platform does not say it.
        """
        return self.addressed or (self.replies_to_us is not None and await self.replies_to_us())


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a reply, or the whole reply, in the platform's own markup.

    ``key`` is a UUID, the same for each attempt. ``number`` counts a reply's parts from 0. ``edits`` is the
    platform's id of an earlier message of the account whose text this part replaces.
    """

    key: str
    place: Place
    text: str
    number: int = 0
    edits: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of a platform.

    ``length`` is the maximum size of one message: ``render`` converts Markdown to the platform's markup, and
    ``measure`` counts the result. ``edit_every`` and ``typing_every`` are seconds. ``pace`` is the number of
    messages that the account may send in a second. A connection that received nothing for ``quiet`` seconds,
    not even the response to a probe, counts as dead; None is for platforms that call the gateway.
    ``asks`` says that people read the messages and can answer a question.
    """

    length: int
    repeat: Repeat
    measure: Callable[[str], int] = len
    render: Callable[[str], str] = plain
    edits: bool = False
    edit_every: float = 1.5
    typing_every: float | None = None
    threads: bool = False
    pace: float = 5.0
    quiet: float | None = 120.0
    asks: bool = True


class MessageSink(Protocol):
    """The receiver of a connector's messages."""

    def ready(self) -> None:
        """Report that messages can be received and sent from now on."""
        ...

    def alive(self) -> None:
        """Report that something was received: a message, an empty poll or the response to a probe."""
        ...

    async def hear(self, heard: IncomingMessage) -> None:
        """Process a message. After this returns, the message is stored or rejected, and can be acknowledged.

        If it raises, the connector must not acknowledge the message, and must propagate the error.
        """
        ...

    async def paired_ids(self, most: int) -> Sequence[str]:
        """Return the ids of up to ``most`` paired senders, the latest first.

        For platforms that do not list the account's direct chats: the connector asks each of these chats for
        missed messages. Senders in the settings ``allow`` and ``users`` are included only if they are paired.
        """
        ...

    async def load_records(self, name: str) -> Mapping[str, bytes]:
        """Return the records that the account has stored under this name, by their keys.

        They are for state that the next process or replica that listens needs, such as encryption keys. Raises
        ``RetryLater``.
        """
        ...

    async def save_records(self, name: str, changes: Mapping[str, bytes | None]) -> None:
        """Store records, or delete those with None: all or none, durably when this returns.

        Raises ``RetryLater``, also if another process listens on the account by now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRequest:
    """A platform's request to ``/hooks/{account}``. Names of ``headers`` are in lower case."""

    method: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HookResponse:
    """The response to a platform's request."""

    status: int = 200
    body: bytes = b""
    media_type: str = "text/plain"


def attachment_kind(media_type: str) -> AttachmentKind:
    """Return the kind of a file with this media type; audio counts as a voice message."""
    kinds: Mapping[str, AttachmentKind] = {"image": "image", "audio": "voice", "video": "video"}
    return kinds.get(media_type.partition("/")[0], "file")


def _clamp_seconds(seconds: object) -> float | None:
    """Return a finite number of seconds in the allowed range; None for any other value."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not -inf < seconds < inf:
        return None
    return float(min(max(seconds, 0), _LONGEST))


def _ids(value: object) -> object:
    """Convert ids to texts: a settings file may contain numbers."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return tuple(str(item) if type(item) is int else item for item in items)
    return value


Ids = Annotated[tuple[str, ...], BeforeValidator(_ids)]


class ConnectorSettings(BaseModel):
    """The settings of every connector; each platform adds its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    enabled: bool = Field(default=True, description="Whether the connector runs.")
    allow: Ids = Field(
        default=(), description='Ids of senders who may talk without pairing; `"*"` allows every sender.'
    )
    rooms: Ids = Field(
        default=("*",),
        description='Ids of the groups in which the agent replies; `["*"]` is every group, `[]` is none.',
    )
    pairing: bool = Field(
        default=True, description="Whether an unknown sender of a direct message receives a pairing code."
    )
    bots: bool = Field(default=False, description="Whether bots and other programs may talk.")
    users: Mapping[str, str] = Field(
        default_factory=dict, description="The `userId` of a sender's id; the default is `kind:id`."
    )
    per_minute: int = Field(default=20, ge=1, description="Messages per minute that one sender may send.")
    on_busy: Literal["queue", "steer", "interrupt"] = Field(
        default="queue", description="The effect of a message on a running turn of the same sender."
    )
    per_session: int = Field(
        default=20, ge=0, description="Maximum number of turns of a session in ten minutes; 0 is no limit."
    )
    previews: bool = Field(
        default=True, description="Whether a growing reply is shown, on platforms where messages can be edited."
    )
    files: int = Field(
        default=5,
        ge=0,
        le=20,
        description="Maximum number of files of a message that are passed to the model, if it accepts such "
        "files (`model_files`). The message text names all files.",
    )
    file_bytes: int = Field(
        default=3_750_000,
        ge=1,
        le=50_000_000,
        description="Maximum size, in bytes, of a file that is passed to the model.",
    )
    on_ambiguous: Literal["resend", "hold"] = Field(
        default="resend",
        description="The handling of a part that may have arrived, on platforms that cannot be searched: "
        "`resend` sends it again with a mark, `hold` leaves it to the operator.",
    )


S = TypeVar("S", bound=ConnectorSettings)


class Connector(ABC, Generic[S]):
    """One connection of one account. After a failure the runtime creates a new object.

    A subclass defines ``Settings`` and ``abilities``, and implements ``run`` and ``send``; ``abilities`` says
    which other methods it implements.
    """

    Settings: ClassVar[type[ConnectorSettings]]
    abilities: ClassVar[Capabilities]
    #: True if a sender's id means the same person on every account of the platform, on any server.
    #: If not, a sender who is paired with one account is unknown to the other accounts.
    global_ids: ClassVar[bool] = False

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @property
    @abstractmethod
    def credentials(self) -> str:
        """Return the secret that identifies the account, such as a token. Two listeners never share it."""

    @property
    def link(self) -> str | None:
        """The address that opens a chat with the account; None if unknown, as before the first connection."""
        return None

    @property
    def events(self) -> Collection[str]:
        """The names of the events that the account receives, of all turns.

        The possible names are ``turn.completed`` and ``turn.failed``. ``send`` receives each event as a
        ``Part``: ``place.reply_to["event"]`` is the event's name, and the text is JSON.
        """
        return ()

    @abstractmethod
    async def run(self, sink: MessageSink) -> None:
        """Connect, call ``sink.ready()``, and listen until cancelled; release all resources at the end.

        Returns or raises when the connection has ended: ``PermanentError`` when the platform rejects the
        credentials, ``RetryLater`` when it names a time.
        """

    @abstractmethod
    async def send(self, part: Part) -> str:
        """Send a part, and return its id on the platform; called only while ``run`` is ready.

        Raises ``PermanentError``, ``RetryLater`` or ``OutcomeUnknown``; any other error counts as
        ``OutcomeUnknown``.
        """

    async def find(self, part: Part) -> str | None:
        """Return the platform's id of a part that has arrived (``readable``); raises the errors of ``send``."""
        raise NotImplementedError

    async def confirm(self, part: Part) -> str | None:
        """Return the platform's id of a part that may have arrived; a keyed platform shows it if it has not.

        Returns None if it has not arrived, or if that cannot be known. Raises the errors of ``send``.
        """
        match self.abilities.repeat:
            case "keyed":
                return await self.send(part)
            case "readable":
                return await self.find(part)
            case "blind":
                return None

    async def typing(self, place: Place) -> None:
        """Show the typing indicator; errors are ignored."""

    async def hook(self, request: HookRequest) -> HookResponse:
        """Answer the platform's request; the connector must check its signature."""
        del request
        return HookResponse(status=404)


@runtime_checkable
class TakesCalls(Protocol):
    """A connector whose platform calls the gateway (``hook``): each of several replicas takes calls."""

    async def take_calls(self, sink: MessageSink) -> None:
        """Pass the messages of the platform's calls on until cancelled, while another process has the account.

        ``sink`` has no records, and nothing is sent over this connector.
        """
        ...


#: Earlier names of classes in this module; version 1.0 removes them.
_EARLIER_NAMES = {
    "Abilities": Capabilities,
    "Ears": MessageSink,
    "Heard": IncomingMessage,
    "Refused": PermanentError,
    "TryLater": RetryLater,
    "Unsure": OutcomeUnknown,
}


def __getattr__(name: str) -> object:
    """Return a class by its earlier name, with a ``DeprecationWarning``."""
    if name not in _EARLIER_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _EARLIER_NAMES[name]
    warnings.warn(f"{name} is now {new.__name__}", DeprecationWarning, stacklevel=2)
    return new
