"""IRC: one connection to one server, in the line protocol of RFC 1459 and IRCv3.

On plain streams, because order and refusals matter: lines are dealt with one after the other, and a part counts
as sent when the server has answered a PING that was sent behind it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Self
from uuid import uuid4

from pydantic import Field, SecretStr, model_validator

from torana.connectors.abreast import Hear, abreast
from torana.connectors.base import (
    Abilities,
    Connector,
    ConnectorSettings,
    Ears,
    Heard,
    Ids,
    Part,
    Place,
    Refused,
    Sender,
    TryLater,
    Unsure,
)

log = logging.getLogger(__name__)

#: Bytes of text in a line, and lines in a message: 512 bytes are a line's whole, with names we do not choose.
LINE = 380
LINES = 4

#: Seconds for the network, and between two probes.
TIMEOUT = 30.0
PROBE = 40.0
#: Seconds that a message may wait for those before it.
_QUEUE = 10.0

#: A line with its tags has 8,703 bytes at most; a server that sends a longer one is none.
_READ_LIMIT = 16_384
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
#: Colours take numbers with them: \x03 with up to two pairs of digits, \x04 with up to two of hexadecimal ones.
_FORMATS = re.compile(
    r"\x03(\d{1,2}(,\d{1,2})?)?|\x04([0-9a-fA-F]{6}(,[0-9a-fA-F]{6})?)?|[\x00-\x08\x0b-\x1f\x7f]"
)
#: What a nick is made of, so that `tor` is not found in `torana`.
_NICK = r"[\w\[\]\\`^{|}-]"
_BARRED = re.compile(r"password|denied|banned|[kgz]-?lined|not authori[sz]ed", re.IGNORECASE)
_TAG_ESCAPES = {":": ";", "s": " ", "r": "\r", "n": "\n"}

#: How the name of a channel begins.
_CHANNEL = ("#", "&", "+", "!")
#: What is asked for of what the server can do: who is logged in, and who is a machine.
_TAGS = ("account-tag", "message-tags")
#: What a server answers to a PRIVMSG that nobody gets, and to one that came too early; the target comes second.
_NOBODY = ("401", "403", "404", "407", "477", "486", "489", "531", "716")
_TOO_EARLY = ("439", "707")
#: What a server answers to a JOIN that it does not allow.
_CLOSED = ("403", "405", "437", "470", "471", "473", "474", "475", "476", "477", "489", "520")


class IrcSettings(ConnectorSettings):
    """An account on an IRC network."""

    host: str = Field(min_length=1, description="The server's name.")
    port: int = Field(default=6697, ge=1, le=65_535, description="The server's port.")
    tls: bool = Field(
        default=True,
        description="Whether the connection is encrypted and the certificate checked; off, everybody on the "
        "way reads everything, passwords too.",
    )
    nick: str = Field(
        default="torana",
        pattern=r"^[^\s\d:#&+%~!@*?,.-][^\s:!@*?,.]{0,29}$",
        description="The name to be known by; with `_` behind it while somebody else has it.",
    )
    password: SecretStr | None = Field(default=None, description="The server's password.")
    sasl_user: str = Field(default="", description="The account's name at the network's services.")
    sasl_password: SecretStr | None = Field(default=None, description="The account's password.")
    channels: Ids = Field(
        default=(), description="Channels to be in, such as `#room`, or `#room key` where one needs a key."
    )
    lines_per_second: float = Field(
        default=0.5, ge=0.25, le=1_000, description="Lines a second that the server takes, after four at once."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.sasl_user) != (self.sasl_password is not None):
            raise ValueError("sasl_user and sasl_password belong together")
        secret = [one.get_secret_value() for one in (self.password, self.sasl_password) if one]
        if any(
            _CONTROLS.search(text) for text in (self.host, self.nick, self.sasl_user, *self.channels, *secret)
        ):
            raise ValueError("control characters do not belong here")
        return self


@dataclass(frozen=True, slots=True)
class Message:
    """A line of the protocol."""

    tags: Mapping[str, str]
    source: str
    command: str
    params: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> Message:
        """Any line whatsoever; one that makes no sense has an empty command."""
        tags, source = "", ""
        if line.startswith("@"):
            tags, _, line = line[1:].partition(" ")
        line = line.lstrip(" ")
        if line.startswith(":"):
            source, _, line = line[1:].partition(" ")
        line, colon, trailing = line.lstrip(" ").partition(" :")
        command, *params = line.split() or [""]
        return cls(_tags(tags), source, command.upper(), (*params, trailing) if colon else tuple(params))

    @property
    def nick(self) -> str:
        """Who said it."""
        return self.source.partition("!")[0]

    @property
    def text(self) -> str:
        """The last parameter, which is what people read."""
        return self.params[-1] if self.params else ""

    def param(self, place: int) -> str:
        """A parameter in lower case, in which names are compared; empty if there is none."""
        return self.params[place].lower() if place < len(self.params) else ""


def _tags(text: str) -> dict[str, str]:
    pairs = (tag.partition("=") for tag in text.split(";") if tag)
    return {name: re.sub(r"\\(.?)", _unescaped, value) for name, _, value in pairs}


def _unescaped(found: re.Match[str]) -> str:
    return _TAG_ESCAPES.get(found[1], found[1])


def wrap(text: str, limit: int) -> list[str]:
    """The text in lines of at most so many bytes, cut between words; empty ones and controls are left out."""
    lines: list[str] = []
    for line in text.splitlines():
        rest = _CONTROLS.sub("", line.replace("\t", "    ")).rstrip()
        while len(data := rest.encode(errors="replace")) > limit:
            head = data[:limit].decode(errors="ignore")
            cut = rest.rfind(" ", len(head) // 2, len(head) + 1)
            cut = cut if cut > 0 else len(head)
            lines.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip()
        lines.append(rest)
    return [line for line in lines if line.strip()]


def _measure(text: str) -> int:
    """A short line costs as much as a long one: it is lines that servers count."""
    return LINE * len(wrap(text, LINE))


class Irc(Connector[IrcSettings]):
    """An account on an IRC network."""

    Settings = IrcSettings
    abilities = Abilities(length=LINES * LINE, repeat="blind", measure=_measure, pace=1.0, quiet=120.0)

    def __init__(self, settings: IrcSettings) -> None:
        super().__init__(settings)
        self._nick = settings.nick
        self._spare = [
            f"{self._nick[:-2]}{secrets.randbelow(90) + 10}",
            f"{self._nick[:-1]}_",
            f"{self._nick}_",
        ]
        self._channels = {name.partition(" ")[0].lower(): name for name in settings.channels}
        self._offered: set[str] = set()
        self._identified = not settings.sasl_user
        self._is_registered = self._is_welcome = False
        self._joined: set[str] = set()
        self._closed: dict[str, str] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._sending = asyncio.Lock()
        self._next_line = 0.0
        #: The target and the answer of the part that is being sent.
        self._sent: tuple[str, str, asyncio.Future[None]] | None = None
        self._handlers = self._all_handlers()

    @property
    def credentials(self) -> str:
        """The nick at its server."""
        return f"{self.settings.nick}@{self.settings.host}:{self.settings.port}".lower()

    async def run(self, ears: Ears) -> None:
        """As ``Connector``: ready when every channel was joined, or is closed to us, which is logged."""
        # The server's lines are read on while a message waits to be taken: they say what became of a reply.
        async with abreast(ears) as hear:
            # What ended it is raised when all is taken, which nobody tells again.
            (ended,) = await asyncio.gather(self._connection(ears, hear), return_exceptions=True)
        raise ended

    async def _connection(self, ears: Ears, hear: Hear) -> NoReturn:
        """One connection; raises what ended it."""
        settings = self.settings
        tls = ssl.create_default_context() if settings.tls else None
        probe = asyncio.create_task(self._probe())
        deadline = asyncio.timeout(TIMEOUT)
        try:
            async with deadline:
                reader, self._writer = await asyncio.open_connection(
                    settings.host, settings.port, ssl=tls, limit=_READ_LIMIT
                )
                self._register()
                async for message in _messages(reader):
                    ears.alive()
                    await self._take(message, hear)
                    if deadline.when() is not None and self._is_ready:
                        deadline.reschedule(None)
                        ears.ready()
            raise ConnectionError(f"{settings.host} has closed the connection")
        except TimeoutError as error:
            if deadline.expired():
                raise ConnectionError(f"{settings.host} did not let us in for {TIMEOUT:g} s") from error
            raise
        finally:
            probe.cancel()
            await self._close()

    async def send(self, part: Part) -> str:
        """As ``Connector``: the server has taken all lines, or says why it did not."""
        target = self._target(part.place)
        # What others are sent begins with our full name: the host has 64 bytes at most, the user 11.
        lines = wrap(part.text, min(LINE, 512 - len(f":{self._nick}!@ PRIVMSG {target} :\r\n".encode()) - 75))
        if not lines:
            raise Refused("there is nothing in it that IRC can show")
        begin = self._reserved(len(lines))
        async with self._sending:
            await _sleep_until(begin)
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sent = (target.lower(), uuid4().hex, answer)
            try:
                for number, line in enumerate(lines):
                    await _sleep_until(begin + number / self.settings.lines_per_second)
                    if not answer.done():
                        await self._written("PRIVMSG", target, line)
                if not answer.done():
                    await self._written("PING", self._sent[1])
                async with asyncio.timeout(TIMEOUT):
                    await answer
            except (OSError, TimeoutError) as error:
                raise Unsure("the server did not answer") from error
            finally:
                self._sent = None
        return part.key

    def _target(self, place: Place) -> str:
        chat = place.chat
        if chat.startswith(_CHANNEL):
            if chat in self._closed:
                raise Refused(f"{chat} is closed to us: {self._closed[chat]}")
            if chat not in self._joined:
                raise TryLater(f"we are not in {chat}")
            return chat
        nick = place.reply_to.get("nick", "") or (chat[1:].partition("!")[0] if chat.startswith("~") else "")
        if not re.fullmatch(r"[^\s:,#&][^\s,]*", nick):
            raise Refused(f"nobody is known by {chat} now")
        return nick

    def _reserved(self, lines: int) -> float:
        """When the first of so many lines may go: a few go at once if it was silent before, others wait."""
        gap, now = 1 / self.settings.lines_per_second, asyncio.get_running_loop().time()
        begin = max(self._next_line, now - (LINES - 1) * gap)
        if begin - now > _QUEUE:
            raise TryLater("the server takes lines slowly", seconds=begin - now)
        self._next_line = begin + lines * gap
        return begin

    async def _written(self, *params: str) -> None:
        self._say(*params)
        if self._writer is not None:
            async with asyncio.timeout(TIMEOUT):
                await self._writer.drain()

    def _say(self, *params: str) -> None:
        """Write a line; its last parameter may be any text."""
        if self._writer is None:
            raise TryLater("there is no connection")
        line = " ".join((*params[:-1], f":{params[-1]}"))
        # All that comes from outside was checked before: this is the wall behind it.
        if re.search(r"[\r\n\0]", line):
            raise Refused("a line may not have line ends in it")
        self._writer.write(line.encode(errors="replace") + b"\r\n")

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE)
            self._say("PING", "torana")
            if self._nick.lower() != self.settings.nick.lower():
                self._say("NICK", self.settings.nick)
            self._join(self._channels.keys() - self._joined - self._closed.keys())

    async def _close(self) -> None:
        writer, self._writer = self._writer, None
        if self._sent and not self._sent[2].done():
            self._sent[2].set_exception(Unsure("the connection has ended"))
        if writer is not None:
            writer.write(b"QUIT :\r\n")
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await writer.wait_closed()
            writer.transport.abort()

    async def _take(self, message: Message, hear: Hear) -> None:
        if message.command == "PRIVMSG":
            if heard := self._heard(message):
                await hear(heard)
        elif handler := self._handlers.get(message.command):
            handler(message)

    def _heard(self, message: Message) -> Heard | None:
        """The message, or None where it is none: of a server, of ourselves, a question of a client's."""
        target, text = message.param(0), message.text
        ours, direct = message.nick.lower() == self._nick.lower(), target == self._nick.lower()
        if ours or "!" not in message.source or not (direct or target.startswith(_CHANNEL)):
            return None
        if text.startswith("\x01"):
            if not text.startswith("\x01ACTION "):
                return None
            text = text.removeprefix("\x01ACTION ")
        text = _FORMATS.sub("", text).strip()
        name = f"(?<!{_NICK}){re.escape(self._nick)}(?!{_NICK})"
        mentioned = re.search(name, text, re.IGNORECASE) is not None
        if mentioned:
            text = re.sub(rf"^@?{name}[:,]?\s*", "", text, flags=re.IGNORECASE)
        if not text and not mentioned:
            return None
        account = message.tags.get("account", "").lower()
        sender = account or f"~{message.source}".lower()
        return Heard(
            id=message.tags.get("msgid") or uuid4().hex,
            sender=Sender(id=sender, name=message.nick, automatic="bot" in message.tags),
            place=Place(chat=sender, reply_to={"nick": message.nick}) if direct else Place(chat=target),
            text=text,
            direct=direct,
            addressed=direct or mentioned,
        )

    @property
    def _is_ready(self) -> bool:
        return self._is_welcome and not self._channels.keys() - self._joined - self._closed.keys()

    def _register(self) -> None:
        self._say("CAP", "LS", "302")
        if self.settings.password:
            self._say("PASS", self.settings.password.get_secret_value())
        self._say("NICK", self._nick)
        self._say("USER", re.sub(r"\W", "", self.settings.nick)[:10] or "torana", "0", "*", self.settings.nick)

    def _join(self, names: set[str]) -> None:
        for name in sorted(names):
            self._say("JOIN", *self._channels[name].split())

    def _all_handlers(self) -> dict[str, Callable[[Message], None]]:
        """What is done at each command; all others mean nothing to us."""
        handlers: dict[str, Callable[[Message], None]] = {
            "PING": lambda message: self._say("PONG", message.text),
            "PONG": self._on_pong,
            "ERROR": self._on_error,
            "CAP": self._on_cap,
            "AUTHENTICATE": self._on_authenticate,
            "001": self._on_welcome,
            "903": self._on_identified,
            "JOIN": self._on_join,
            "PART": lambda message: self._on_leave(message, message.nick),
            "KICK": lambda message: self._on_leave(message, message.param(1)),
            "NICK": self._on_nick,
            "INVITE": self._on_invite,
        }
        handlers |= dict.fromkeys((*_NOBODY, *_TOO_EARLY, *_CLOSED, "263"), self._on_rejected)
        handlers |= dict.fromkeys(("376", "422"), self._on_end_of_motd)
        handlers |= dict.fromkeys(("432", "433", "436", "437"), self._on_nick_refused)
        handlers |= dict.fromkeys(("464", "465", "902", "904", "905", "906", "908"), self._on_refused)
        return handlers

    def _on_cap(self, message: Message) -> None:
        if message.param(1) == "ls":
            self._offered |= {name.partition("=")[0] for name in message.text.split()}
            if message.param(2) != "*":
                wanted = {*_TAGS} if self._identified else {*_TAGS, "sasl"}
                if wanted & self._offered:
                    self._say("CAP", "REQ", " ".join(sorted(wanted & self._offered)))
                else:
                    self._say("CAP", "END")
        elif message.param(1) == "ack" and "sasl" in message.text.split():
            self._say("AUTHENTICATE", "PLAIN")
        elif message.param(1) in ("ack", "nak"):
            self._say("CAP", "END")

    def _on_authenticate(self, message: Message) -> None:
        secret = self.settings.sasl_password
        if message.text == "+" and secret is not None:
            user = self.settings.sasl_user
            answer = b64encode(f"{user}\0{user}\0{secret.get_secret_value()}".encode()).decode()
            for start in range(0, len(answer) + 1, 400):  # a piece of 400 says that another follows
                self._say("AUTHENTICATE", answer[start : start + 400] or "+")

    def _on_identified(self, _: Message) -> None:
        self._identified = True
        self._say("CAP", "END")

    def _on_refused(self, message: Message) -> None:
        raise Refused(f"{self.settings.host} refuses the account: {_printable(message.text)}")

    def _on_error(self, message: Message) -> None:
        if not self._is_registered and _BARRED.search(message.text):
            self._on_refused(message)
        raise ConnectionError(f"{self.settings.host} ends the connection: {_printable(message.text)}")

    def _on_welcome(self, message: Message) -> None:
        if not self._identified:
            raise Refused(f"{self.settings.host} has no accounts (SASL); take sasl_user away")
        self._is_registered = True
        self._nick = message.params[0] if message.params else self._nick

    def _on_end_of_motd(self, _: Message) -> None:
        self._is_welcome = True
        self._say("MODE", self._nick, "+B")  # "I am a bot"; who does not know it answers that, and that is all
        self._join(self._channels.keys() - self._joined)

    def _on_nick_refused(self, message: Message) -> None:
        if self._is_registered:  # we asked for our own name again, or it is about a channel
            self._on_rejected(message)
            return
        if message.command == "432" and self._nick == self.settings.nick:
            raise Refused(f"{self.settings.host} does not take the nick: {_printable(message.text)}")
        if not self._spare:
            raise ConnectionError("the nick is in use, and so are those like it")
        taken, self._nick = self._nick, self._spare.pop()
        log.warning("irc_nick_in_use", extra={"nick": taken, "instead": self._nick})
        self._say("NICK", self._nick)

    def _on_join(self, message: Message) -> None:
        if message.nick.lower() == self._nick.lower():
            self._joined.add(message.param(0))
            self._closed.pop(message.param(0), None)

    def _on_leave(self, message: Message, nick: str) -> None:
        if nick.lower() == self._nick.lower():
            self._joined.discard(message.param(0))
            log.warning(
                "irc_channel_left", extra={"channel": message.param(0), "why": _printable(message.text)}
            )

    def _on_nick(self, message: Message) -> None:
        if message.nick.lower() == self._nick.lower():
            self._nick = message.text

    def _on_invite(self, message: Message) -> None:
        self._join({message.param(1)} & (self._channels.keys() - self._joined))

    def _on_rejected(self, message: Message) -> None:
        """A PRIVMSG or a JOIN of ours came to nothing."""
        name, why = message.param(1), _printable(message.text)
        if name in self._channels and name not in self._joined and message.command in _CLOSED:
            self._closed[name] = why
            log.warning("irc_channel_closed", extra={"channel": name, "why": why})
        if self._sent is None or self._sent[2].done():
            return
        if message.command == "263" and name == "privmsg":
            self._sent[2].set_exception(TryLater(why))
        elif name == self._sent[0]:
            early = message.command in _TOO_EARLY
            self._sent[2].set_exception(TryLater(why) if early else Refused(why))

    def _on_pong(self, message: Message) -> None:
        if self._sent and message.text == self._sent[1] and not self._sent[2].done():
            self._sent[2].set_result(None)


async def _sleep_until(when: float) -> None:
    await asyncio.sleep(max(0.0, when - asyncio.get_running_loop().time()))


async def _messages(reader: asyncio.StreamReader) -> AsyncGenerator[Message]:
    while line := await reader.readline():
        try:
            text = line.decode()
        except UnicodeDecodeError:  # from before UTF-8
            text = line.decode("cp1252", errors="replace")
        yield Message.parse(text.rstrip("\r\n"))


def _printable(text: str) -> str:
    return _CONTROLS.sub("", text)[:200]
