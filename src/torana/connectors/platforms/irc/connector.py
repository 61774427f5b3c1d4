"""IRC: one connection to one server, in the line protocol of RFC 1459 and IRCv3.

It uses plain streams, because order and errors matter: lines are processed one after another, and a part counts
as sent when the server has answered a PING that was sent after it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import ssl
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn, Self
from uuid import uuid4

from pydantic import Field, SecretStr, model_validator

from torana.connectors.base import (
    Capabilities,
    Connector,
    ConnectorSettings,
    Ids,
    IncomingMessage,
    MessageSink,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
)
from torana.connectors.platforms.irc.protocol import (
    CONTROLS,
    LINE,
    LINES,
    IrcMessage,
    measure,
    printable,
    read_messages,
    wrap,
)
from torana.connectors.transport.concurrency import Hear, concurrently

log = logging.getLogger(__name__)

#: Network timeout and probe interval, in seconds.
TIMEOUT = 30.0
PROBE = 40.0
#: Seconds that a message may wait for earlier messages.
_QUEUE = 10.0

#: A line with its tags has at most 8,703 bytes.
_READ_LIMIT = 16_384
#: Colour codes include numbers: \x03 up to two pairs of digits, \x04 up to two hexadecimal colours.
_FORMATS = re.compile(
    r"\x03(\d{1,2}(,\d{1,2})?)?|\x04([0-9a-fA-F]{6}(,[0-9a-fA-F]{6})?)?|[\x00-\x08\x0b-\x1f\x7f]"
)
#: The characters of a nick, so that `tor` does not match `torana`.
_NICK = r"[\w\[\]\\`^{|}-]"
_ACCESS_REFUSED = re.compile(r"password|denied|banned|[kgz]-?lined|not authori[sz]ed", re.IGNORECASE)

#: Prefixes of channel names.
_CHANNEL = ("#", "&", "+", "!")
#: Requested capabilities: account names of senders, and the mark of bots.
_TAGS = ("account-tag", "message-tags")
#: Errors for a PRIVMSG that cannot be delivered, and for one that came too early; param 1 is the target.
_UNDELIVERABLE = ("401", "403", "404", "407", "477", "486", "489", "531", "716")
_TOO_EARLY = ("439", "707")
#: Errors for a JOIN that the server does not allow.
_CLOSED = ("403", "405", "437", "470", "471", "473", "474", "475", "476", "477", "489", "520")


class IrcSettings(ConnectorSettings):
    """The settings of an account on an IRC network."""

    host: str = Field(min_length=1, description="The server's host name.")
    port: int = Field(default=6697, ge=1, le=65_535, description="The server's port.")
    tls: bool = Field(
        default=True,
        description="Whether the connection is encrypted and the certificate checked. Without TLS, messages "
        "and passwords can be read on the network.",
    )
    nick: str = Field(
        default="torana",
        pattern=r"^[^\s\d:#&+%~!@*?,.-][^\s:!@*?,.]{0,29}$",
        description="The nickname. If another user has it, Torana uses a variant such as `torana_`.",
    )
    password: SecretStr | None = Field(default=None, description="The server's password.")
    sasl_user: str = Field(default="", description="The account name for SASL.")
    sasl_password: SecretStr | None = Field(default=None, description="The account's password for SASL.")
    channels: Ids = Field(
        default=(), description="Channels to join, such as `#room`, or `#room key` for a channel with a key."
    )
    lines_per_second: float = Field(
        default=0.5,
        ge=0.25,
        le=1_000,
        description="The maximum number of lines sent per second, after a first burst of four lines.",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.sasl_user) != (self.sasl_password is not None):
            raise ValueError("sasl_user and sasl_password must be set together")
        secret = [one.get_secret_value() for one in (self.password, self.sasl_password) if one]
        if any(
            CONTROLS.search(text) for text in (self.host, self.nick, self.sasl_user, *self.channels, *secret)
        ):
            raise ValueError("control characters are not allowed")
        return self


#: Handles a line of the server.
Handler = Callable[[IrcMessage], None]


class Irc(Connector[IrcSettings]):
    """An account on an IRC network."""

    Settings = IrcSettings
    abilities = Capabilities(length=LINES * LINE, repeat="blind", measure=measure, pace=1.0, quiet=120.0)

    def __init__(self, settings: IrcSettings) -> None:
        super().__init__(settings)
        self._wire = _Wire()
        self._login = _Login(settings, self._wire)
        self._channels = _Channels(settings.channels, self._wire, self._login)
        self._outgoing = _Outgoing(settings.lines_per_second, self._wire)
        self._is_welcome = False
        self._handlers = self._all_handlers()

    @property
    def credentials(self) -> str:
        return f"{self.settings.nick}@{self.settings.host}:{self.settings.port}".lower()

    async def run(self, sink: MessageSink) -> None:
        """Connect and listen; ready when each channel is joined, or its refusal is logged."""
        # Reading goes on while messages are processed: later lines contain the outcome of replies.
        async with concurrently(sink) as hear:
            # The error is raised after all messages are processed, as IRC does not repeat messages.
            (ended,) = await asyncio.gather(self._connection(sink, hear), return_exceptions=True)
        raise ended

    async def send(self, part: Part) -> str:
        """Send the lines of a part; return after the server has accepted them, or raise its error."""
        target = self._target(part.place)
        # Recipients get the account's full name before the text, with at most 64 bytes for the host and 11 for
        # the user.
        prefix = len(f":{self._login.nick}!@ PRIVMSG {target} :\r\n".encode()) + 75
        lines = wrap(part.text, min(LINE, 512 - prefix))
        if not lines:
            raise PermanentError("the part contains no text that IRC can show")
        await self._outgoing.send(target, lines)
        return part.key

    async def _connection(self, sink: MessageSink, hear: Hear) -> NoReturn:
        settings = self.settings
        probe = asyncio.create_task(self._probe())
        deadline = asyncio.timeout(TIMEOUT)
        try:
            async with deadline:
                reader = await self._wire.open(settings.host, settings.port, tls=settings.tls)
                self._login.begin()
                async for message in read_messages(reader):
                    sink.alive()
                    await self._take(message, hear)
                    if deadline.when() is not None and self._is_welcome and not self._channels.missing:
                        deadline.reschedule(None)
                        sink.ready()
            raise ConnectionError(f"{settings.host} has closed the connection")
        except TimeoutError as error:
            if deadline.expired():
                raise ConnectionError(f"the login at {settings.host} took more than {TIMEOUT:g} s") from error
            raise
        finally:
            probe.cancel()
            self._outgoing.settle(OutcomeUnknown("the connection has ended"))
            await self._wire.close()

    def _target(self, place: Place) -> str:
        chat = place.chat
        if chat.startswith(_CHANNEL):
            self._channels.check(chat)
            return chat
        nick = place.reply_to.get("nick", "") or (chat[1:].partition("!")[0] if chat.startswith("~") else "")
        if not re.fullmatch(r"[^\s:,#&][^\s,]*", nick):
            raise PermanentError(f"the nick of {chat} is unknown")
        return nick

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE)
            self._wire.write_line("PING", "torana")
            self._login.reclaim_nick()
            self._channels.join(self._channels.missing)

    async def _take(self, message: IrcMessage, hear: Hear) -> None:
        if message.command == "PRIVMSG":
            if heard := self._parse_message(message):
                await hear(heard)
        elif handler := self._handlers.get(message.command):
            handler(message)

    def _parse_message(self, message: IrcMessage) -> IncomingMessage | None:
        """Parse a message; None for messages of servers and of the account, and for CTCP requests."""
        target, text, nick = message.param(0), message.text, self._login.nick
        direct = target == nick.lower()
        if (
            self._login.is_ours(message.nick)
            or "!" not in message.source
            or not (direct or target.startswith(_CHANNEL))
        ):
            return None
        if text.startswith("\x01"):
            if not text.startswith("\x01ACTION "):
                return None
            text = text.removeprefix("\x01ACTION ")
        text = _FORMATS.sub("", text).strip()
        name = f"(?<!{_NICK}){re.escape(nick)}(?!{_NICK})"
        mentioned = re.search(name, text, re.IGNORECASE) is not None
        if mentioned:
            text = re.sub(rf"^@?{name}[:,]?\s*", "", text, flags=re.IGNORECASE)
        if not text and not mentioned:
            return None
        account = message.tags.get("account", "").lower()
        sender = account or f"~{message.source}".lower()
        return IncomingMessage(
            id=message.tags.get("msgid") or uuid4().hex,
            sender=Sender(id=sender, name=message.nick, automatic="bot" in message.tags),
            place=Place(chat=sender, reply_to={"nick": message.nick}) if direct else Place(chat=target),
            text=text,
            direct=direct,
            addressed=direct or mentioned,
        )

    def _all_handlers(self) -> dict[str, Handler]:
        """Return the handler of each command; other commands are ignored."""
        handlers: dict[str, Handler] = {
            "PING": lambda message: self._wire.write_line("PONG", message.text),
            "PONG": self._outgoing.on_pong,
            "JOIN": self._channels.on_join,
            "PART": lambda message: self._channels.on_leave(message, message.nick),
            "KICK": lambda message: self._channels.on_leave(message, message.param(1)),
            "INVITE": self._channels.on_invite,
        }
        handlers |= dict.fromkeys((*_UNDELIVERABLE, *_TOO_EARLY, *_CLOSED, "263"), self._on_rejected)
        handlers |= dict.fromkeys(("376", "422"), self._on_end_of_motd)
        handlers |= dict.fromkeys(("432", "433", "436", "437"), self._on_nick_refused)
        return handlers | self._login.handlers()

    def _on_end_of_motd(self, _: IrcMessage) -> None:
        self._is_welcome = True
        self._wire.write_line("MODE", self._login.nick, "+B")  # marks a bot; an error is ignored
        self._channels.join(self._channels.missing)

    def _on_nick_refused(self, message: IrcMessage) -> None:
        if self._login.is_registered:  # a later NICK failed, or the error is about a channel
            self._on_rejected(message)
        else:
            self._login.on_nick_refused(message)

    def _on_rejected(self, message: IrcMessage) -> None:
        self._channels.on_rejected(message)
        self._outgoing.on_rejected(message)


class _Wire:
    """The connection to the server, for writing lines."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, host: str, port: int, *, tls: bool) -> asyncio.StreamReader:
        """Connect, and return the stream of the server's lines."""
        context = ssl.create_default_context() if tls else None
        reader, self._writer = await asyncio.open_connection(host, port, ssl=context, limit=_READ_LIMIT)
        return reader

    def write_line(self, *params: str) -> None:
        """Write a line; its last parameter may contain spaces."""
        if self._writer is None:
            raise RetryLater("there is no connection")
        line = " ".join((*params[:-1], f":{params[-1]}"))
        # A second check, in addition to the checks of all values from outside.
        if re.search(r"[\r\n\0]", line):
            raise PermanentError("a line must not contain line ends")
        self._writer.write(line.encode(errors="replace") + b"\r\n")

    async def write_line_and_flush(self, *params: str) -> None:
        """Write a line, and wait until the output buffer has room."""
        self.write_line(*params)
        if self._writer is not None:
            async with asyncio.timeout(TIMEOUT):
                await self._writer.drain()

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.write(b"QUIT :\r\n")
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await writer.wait_closed()
            writer.transport.abort()


class _Login:
    """The registration at the server: password, capabilities, SASL and nick."""

    def __init__(self, settings: IrcSettings, wire: _Wire) -> None:
        self._settings = settings
        self._wire = wire
        self.nick = nick = settings.nick
        self.is_registered = False
        self._spare = [f"{nick[:-2]}{secrets.randbelow(90) + 10}", f"{nick[:-1]}_", f"{nick}_"]
        self._offered: set[str] = set()
        self._identified = not settings.sasl_user

    def begin(self) -> None:
        nick = self._settings.nick
        self._wire.write_line("CAP", "LS", "302")
        if self._settings.password:
            self._wire.write_line("PASS", self._settings.password.get_secret_value())
        self._wire.write_line("NICK", self.nick)
        self._wire.write_line("USER", re.sub(r"\W", "", nick)[:10] or "torana", "0", "*", nick)

    def is_ours(self, nick: str) -> bool:
        return nick.lower() == self.nick.lower()

    def reclaim_nick(self) -> None:
        """Request the nick of the settings, if the account has another one."""
        if not self.is_ours(self._settings.nick):
            self._wire.write_line("NICK", self._settings.nick)

    def handlers(self) -> dict[str, Handler]:
        refused = ("464", "465", "902", "904", "905", "906", "908")
        return dict.fromkeys(refused, self._on_refused) | {
            "ERROR": self._on_error,
            "CAP": self._on_cap,
            "AUTHENTICATE": self._on_authenticate,
            "001": self._on_welcome,
            "903": self._on_identified,
            "NICK": self._on_nick,
        }

    def on_nick_refused(self, message: IrcMessage) -> None:
        """Try another nick. Raises an error if there is none."""
        host = self._settings.host
        if message.command == "432" and self.nick == self._settings.nick:
            raise PermanentError(f"{host} rejects the nick: {printable(message.text)}")
        if not self._spare:
            raise ConnectionError("the nick and its variants are in use")
        taken, self.nick = self.nick, self._spare.pop()
        log.warning("irc_nick_in_use", extra={"nick": taken, "instead": self.nick})
        self._wire.write_line("NICK", self.nick)

    def _on_cap(self, message: IrcMessage) -> None:
        if message.param(1) == "ls":
            self._offered |= {name.partition("=")[0] for name in message.text.split()}
            if message.param(2) != "*":
                wanted = {*_TAGS} if self._identified else {*_TAGS, "sasl"}
                if wanted & self._offered:
                    self._wire.write_line("CAP", "REQ", " ".join(sorted(wanted & self._offered)))
                else:
                    self._wire.write_line("CAP", "END")
        elif message.param(1) == "ack" and "sasl" in message.text.split():
            self._wire.write_line("AUTHENTICATE", "PLAIN")
        elif message.param(1) in ("ack", "nak"):
            self._wire.write_line("CAP", "END")

    def _on_authenticate(self, message: IrcMessage) -> None:
        secret = self._settings.sasl_password
        if message.text == "+" and secret is not None:
            user = self._settings.sasl_user
            answer = b64encode(f"{user}\0{user}\0{secret.get_secret_value()}".encode()).decode()
            for start in range(0, len(answer) + 1, 400):  # a piece of 400 bytes is never the last
                self._wire.write_line("AUTHENTICATE", answer[start : start + 400] or "+")

    def _on_identified(self, _: IrcMessage) -> None:
        self._identified = True
        self._wire.write_line("CAP", "END")

    def _on_refused(self, message: IrcMessage) -> None:
        raise PermanentError(f"{self._settings.host} refuses the account: {printable(message.text)}")

    def _on_error(self, message: IrcMessage) -> None:
        if not self.is_registered and _ACCESS_REFUSED.search(message.text):
            self._on_refused(message)
        raise ConnectionError(f"{self._settings.host} ended the connection: {printable(message.text)}")

    def _on_welcome(self, message: IrcMessage) -> None:
        if not self._identified:
            raise PermanentError(f"{self._settings.host} does not support SASL; remove sasl_user")
        self.is_registered = True
        self.nick = message.params[0] if message.params else self.nick

    def _on_nick(self, message: IrcMessage) -> None:
        if self.is_ours(message.nick):
            self.nick = message.text


class _Channels:
    """The channels of the settings: which are joined, and which refuse the account."""

    def __init__(self, names: Sequence[str], wire: _Wire, login: _Login) -> None:
        self._names = {name.partition(" ")[0].lower(): name for name in names}
        self._wire = wire
        self._login = login
        self._joined: set[str] = set()
        self._closed: dict[str, str] = {}

    @property
    def missing(self) -> set[str]:
        return self._names.keys() - self._joined - self._closed.keys()

    def check(self, name: str) -> None:
        if name in self._closed:
            raise PermanentError(f"cannot join {name}: {self._closed[name]}")
        if name not in self._joined:
            raise RetryLater(f"not in {name} at the moment")

    def join(self, names: set[str]) -> None:
        for name in sorted(names):
            self._wire.write_line("JOIN", *self._names[name].split())

    def on_join(self, message: IrcMessage) -> None:
        if self._login.is_ours(message.nick):
            self._joined.add(message.param(0))
            self._closed.pop(message.param(0), None)

    def on_leave(self, message: IrcMessage, nick: str) -> None:
        if self._login.is_ours(nick):
            self._joined.discard(message.param(0))
            extra = {"channel": message.param(0), "reason": printable(message.text)}
            log.warning("irc_channel_left", extra=extra)

    def on_invite(self, message: IrcMessage) -> None:
        """Join a channel of the settings after an invitation."""
        self.join({message.param(1)} & (self._names.keys() - self._joined))

    def on_rejected(self, message: IrcMessage) -> None:
        name, why = message.param(1), printable(message.text)
        if name in self._names and name not in self._joined and message.command in _CLOSED:
            self._closed[name] = why
            log.warning("irc_channel_closed", extra={"channel": name, "reason": why})


@dataclass(slots=True)
class _Sending:
    """A message that is being sent: its target, its PING token and its outcome."""

    target: str
    token: str
    answer: asyncio.Future[None]
    #: The number of lines that were written.
    written: int = 0
    #: The reasons why the server refuses lines at the moment, one for each refused line.
    refusals: list[str] = field(default_factory=list[str])


class _Outgoing:
    """Sends messages one after another, at the rate that the server accepts."""

    def __init__(self, lines_per_second: float, wire: _Wire) -> None:
        self._gap = 1 / lines_per_second
        self._wire = wire
        self._sending = asyncio.Lock()
        self._next_line = 0.0
        self._sent: _Sending | None = None

    async def send(self, target: str, lines: Sequence[str]) -> None:
        """Send lines; return after the server has accepted them, or raise its error."""
        begin = self._reserve(len(lines))
        async with self._sending:
            await _sleep_until(begin)
            sent = self._sent = _Sending(
                target.lower(), uuid4().hex, asyncio.get_running_loop().create_future()
            )
            try:
                for number, line in enumerate(lines):
                    await _sleep_until(begin + number * self._gap)
                    if not (sent.answer.done() or sent.refusals):
                        sent.written += 1
                        await self._wire.write_line_and_flush("PRIVMSG", target, line)
                if not sent.answer.done():
                    await self._wire.write_line_and_flush("PING", sent.token)
                async with asyncio.timeout(TIMEOUT):
                    await sent.answer
            except (OSError, TimeoutError) as error:
                raise OutcomeUnknown("the server did not answer") from error
            finally:
                self._sent = None

    def settle(self, error: Exception | None) -> None:
        """Set the outcome of the message that is being sent; None is success."""
        if self._sent is None or self._sent.answer.done():
            return
        if error is None:
            self._sent.answer.set_result(None)
        else:
            self._sent.answer.set_exception(error)

    def on_pong(self, message: IrcMessage) -> None:
        sent = self._sent
        if sent is None or message.text != sent.token:
            return
        if not sent.refusals:
            self.settle(None)
        elif len(sent.refusals) == sent.written:
            self.settle(RetryLater(sent.refusals[-1]))
        else:
            self.settle(OutcomeUnknown(f"the server has refused some of the lines: {sent.refusals[-1]}"))

    def on_rejected(self, message: IrcMessage) -> None:
        sent, name, why = self._sent, message.param(1), printable(message.text)
        if sent is None or name != ("privmsg" if message.command == "263" else sent.target):
            return
        if message.command != "263" and message.command not in _TOO_EARLY:
            self.settle(PermanentError(why))
        elif sent.written == 1:
            self.settle(RetryLater(why))
        else:  # earlier lines may have been accepted; the answer to PING comes after all refusals
            sent.refusals.append(why)

    def _reserve(self, lines: int) -> float:
        """Reserve time for some lines, and return when the first may be sent; a burst is allowed."""
        now = asyncio.get_running_loop().time()
        begin = max(self._next_line, now - (LINES - 1) * self._gap)
        if begin - now > _QUEUE:
            raise RetryLater("too many lines are waiting (lines_per_second)", seconds=begin - now)
        self._next_line = begin + lines * self._gap
        return begin


async def _sleep_until(when: float) -> None:
    await asyncio.sleep(max(0.0, when - asyncio.get_running_loop().time()))
