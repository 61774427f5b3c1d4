"""What a connector is: a platform's events become ``Heard``, a ``Part`` of a reply becomes a platform's call.

A connector is one file with one class. It knows its platform and nothing else: whether somebody may talk, what
is answered, in how many parts and when something is tried again is decided around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Annotated, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from torana.connectors.markup import plain

#: What becomes of a message that may or may not have arrived when the process died: ``keyed`` platforms know a
#: key that is sent again, ``readable`` ones can be asked, and on ``blind`` ones it is sent once more, marked.
Repeat = Literal["keyed", "readable", "blind"]


#: The longest time, in seconds, for which a platform is left alone because it says so.
_LONGEST = 86_400.0


class Refused(Exception):
    """The platform will never take this: bad credentials, a chat that is gone, a text that it cannot show."""


class TryLater(Exception):
    """Nothing was done, and the platform wants to be asked again, after ``seconds`` where it named a time.

    They may be as the platform wrote them: more than a day is a day, and what is no finite number is None.
    """

    def __init__(self, reason: str, *, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = _bounded(seconds)


class Unsure(Exception):
    """The platform was told and did not answer: the message may have arrived."""


class TooLarge(Exception):
    """The file is larger than what may be fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something is said: a chat, perhaps a thread in it, by the platform's own ids.

    ``reply_to`` is what the connector itself needs in order to answer just there, such as the id of the message
    that is answered. It is kept with the reply, outlives the process, and is nobody else's business.
    """

    chat: str
    thread: str | None = None
    reply_to: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who said it: the platform's id, which never changes and cannot be chosen, and a name to show.

    ``automatic`` is true of bots, mailing lists and other machines; they are not answered unless allowed.
    """

    id: str
    name: str = ""
    automatic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Something that came with a message. ``size`` is in bytes, where the platform tells it.

    ``fetch(limit)`` gets the bytes, or raises ``TooLarge`` as soon as there are more than ``limit`` of them.
    """

    kind: Literal["image", "file", "voice", "video"]
    name: str = ""
    media_type: str = "application/octet-stream"
    size: int | None = None
    fetch: Callable[[int], Awaitable[bytes]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A message as the platform told it.

    ``id`` is the platform's, unique in the account: heard again it is the same message. ``addressed`` tells
    that it is meant for the agent: every direct message is, in a group a mention of the account or a reply to
    it. A mention at the beginning is not part of ``text``. ``said_at`` is the platform's time (aware), where it
    tells one: a message may come late.
    """

    id: str
    sender: Sender
    place: Place
    text: str
    direct: bool
    addressed: bool
    attachments: Sequence[Attachment] = ()
    said_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a reply, or the whole of it, in the platform's own markup.

    ``key`` is a UUID, the same at each try. ``number`` counts a reply's parts from 0. ``edits`` is the
    platform's id of an earlier message of ours whose text this one replaces.
    """

    key: str
    place: Place
    text: str
    number: int = 0
    edits: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a platform can do.

    ``length`` is the most that one message takes, as ``measure`` counts its text after ``render`` made the
    platform's markup of Markdown. ``edit_every`` and ``typing_every`` are seconds. ``pace`` is how many
    messages a second the account may send. After ``quiet`` seconds in which nothing at all was received, not
    even the answer to a probe, the connection is taken for dead; None where the platform calls us.
    ``asks`` tells that people read what is said there and can answer a question.
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


class Ears(Protocol):
    """Where a connector takes what it hears."""

    def ready(self) -> None:
        """Say that messages are received from now on, and can be sent."""
        ...

    def alive(self) -> None:
        """Say that something was received: a message, an empty poll, the answer to a probe."""
        ...

    async def hear(self, heard: Heard) -> None:
        """Take a message. When this returns it is durable or refused for good: now the platform may be told.

        Whatever it raises, the platform must not be told, and the connector passes it on.
        """
        ...

    async def paired(self, most: int) -> Sequence[str]:
        """The ids of so many senders whom the operator let in, the latest first.

        For platforms that do not tell with whom the account has direct chats: there it is asked for what was
        missed. Those of ``allow`` and ``users`` are in the settings.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRequest:
    """A platform's call of ``/hooks/{account}``. Names of ``headers`` are in lower case."""

    method: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HookResponse:
    """What the platform is answered."""

    status: int = 200
    body: bytes = b""
    media_type: str = "text/plain"


def _bounded(seconds: object) -> float | None:
    """A time that can be reckoned with; None for what is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not -inf < seconds < inf:
        return None
    return float(min(max(seconds, 0), _LONGEST))


def _ids(value: object) -> object:
    """Ids as texts: a settings file may name them as numbers."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return tuple(str(item) if type(item) is int else item for item in items)
    return value


Ids = Annotated[tuple[str, ...], BeforeValidator(_ids)]


class ConnectorSettings(BaseModel):
    """What the settings say of every connector; each adds what its platform needs."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    enabled: bool = Field(default=True, description="Whether the connector runs.")
    allow: Ids = Field(
        default=(), description='Ids of the senders who may talk, besides those paired; `"*"` is everyone.'
    )
    rooms: Ids = Field(
        default=("*",),
        description="Ids of the groups in which the agent answers those who may talk; `[]` is none.",
    )
    pairing: bool = Field(
        default=True, description="Whether an unknown person who writes directly gets a code for the operator."
    )
    bots: bool = Field(default=False, description="Whether bots and other machines may talk.")
    users: Mapping[str, str] = Field(
        default_factory=dict, description="The userId of a sender's id, where it is not `kind:id`."
    )
    per_minute: int = Field(default=20, ge=1, description="Messages a minute taken from one sender.")
    on_busy: Literal["queue", "steer", "interrupt"] = Field(
        default="queue", description="What a message does to the running turn of its own sender."
    )
    per_session: int = Field(
        default=20, ge=0, description="Turns in ten minutes after which a session is paused; 0 is no bound."
    )
    previews: bool = Field(
        default=True, description="Whether a reply is shown while it grows, where the platform has edits."
    )
    files: int = Field(
        default=5,
        ge=0,
        le=20,
        description="How many files of a message are fetched for the model, where it takes such files "
        "(`model_files`); all are named.",
    )
    file_bytes: int = Field(
        default=3_750_000,
        ge=1,
        le=50_000_000,
        description="Bytes of a file above which it is only named.",
    )
    on_ambiguous: Literal["resend", "hold"] = Field(
        default="resend",
        description="What becomes of a part that may have arrived, where the platform cannot be asked: sent "
        "once more with a mark, or held for the operator.",
    )


S = TypeVar("S", bound=ConnectorSettings)


class Connector(ABC, Generic[S]):
    """One connection of one account. A broken one is thrown away, and a new one made.

    A subclass names its ``Settings`` and ``abilities``, and implements ``run`` and ``send``; what else it
    implements its abilities announce.
    """

    Settings: ClassVar[type[ConnectorSettings]]
    abilities: ClassVar[Abilities]
    #: Whether a sender's id is the same person wherever the platform is met, whatever server the account is on.
    #: Else people are the account's own: who was let in on one of two accounts is a stranger on the other.
    global_ids: ClassVar[bool] = False

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @property
    @abstractmethod
    def credentials(self) -> str:
        """What makes the account this one and no other, such as a token. Two listeners never share it."""

    @property
    def events(self) -> Collection[str]:
        """Events of all turns that the account is told: ``turn.completed`` and ``turn.failed``.

        Each is a ``Part`` whose place has the event's name in ``reply_to``, and whose text is JSON.
        """
        return ()

    @abstractmethod
    async def run(self, ears: Ears) -> None:
        """Connect, say ``ears.ready()``, and listen until cancelled; leave nothing behind.

        Returns or raises when the connection has ended: ``Refused`` where the credentials are, ``TryLater``
        where the platform named a time.
        """

    @abstractmethod
    async def send(self, part: Part) -> str:
        """Show a part, and return the platform's id of it; called only while ``run`` is ready.

        Raises ``Refused``, ``TryLater`` or ``Unsure``; anything else counts as ``Unsure``.
        """

    async def find(self, part: Part) -> str | None:
        """The platform's id of a part that arrived already (``readable``); raises as ``send`` does."""
        raise NotImplementedError

    async def typing(self, place: Place) -> None:
        """Show that the agent works; whatever goes wrong is of no matter."""

    async def hook(self, request: HookRequest) -> HookResponse:
        """Answer the platform's call; whoever called is not known before its signature is checked."""
        del request
        return HookResponse(status=404)
