r"""A folder on an IMAP server: what is unread in it, and waiting for more.

The flag ``\Seen`` is what was taken. Nothing else is kept: no number of a mail outlives a connection, so that a
folder which the server numbers anew is no matter.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from typing import Any, Literal, NamedTuple, cast

from aioimaplib import IMAP4
from aioimaplib.aioimaplib import Command, IMAP4ClientProtocol, quoted

from torana.connectors.base import Refused, TryLater
from torana.connectors.letters.parts import line

_log = logging.getLogger(__name__)

#: Seconds after which a server that does not answer is taken for dead.
TIMEOUT = 30.0
#: Bytes of a mail that are fetched; of a longer one its beginning.
MAIL_LIMIT = 10 * 1024 * 1024
#: Bytes of a line from the server, such as the numbers of many mails.
LINE_LIMIT = 4 * 1024 * 1024
#: Seconds between looks into a folder whose server cannot tell of new mail by itself.
POLL = 60.0
#: Seconds in which is still dealt with what a server said before it hung up, such as why.
_LAST_WORDS = 0.5

Tls = Literal["implicit", "starttls", "none"]

_SIZE = re.compile(rb"RFC822\.SIZE (\d+)")
#: Why a login fails that may work tomorrow (RFC 5530), and what servers say who name no code.
_TEMPORARY = re.compile(r"\[(?:UNAVAILABLE|INUSE|LIMIT|SERVERBUG)|too many|try again|temporar", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a folder is reached."""

    host: str
    port: int
    tls: Tls
    context: ssl.SSLContext
    user: str
    password: str = field(repr=False)
    folder: str


class _Answer(NamedTuple):
    """What the library, which has no types, answers: ``OK`` or not, and lines, literals as ``bytearray``."""

    result: str
    lines: list[bytes | bytearray]


class Mailbox:
    """A folder that is open. No mail that could be fetched is given out twice, even if it cannot be marked."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self._given: set[int] = set()
        #: Those that the server did not give out; after the next wait they are asked for again.
        self._refused: set[int] = set()
        self._size: bytes | None = None

    async def unseen(self, since: datetime) -> list[int]:
        """The numbers of unread mails that came on this day or later, and were not given out yet."""
        day = "-".join(format_datetime(since).split()[1:4])
        while True:
            # Mail that came during the search may be told of with its answer, and then never again. The library
            # drops that, unless a NOOP waits at the same time.
            search = self._client.uid_search("UNSEEN", "UNDELETED", "SINCE", day, charset=None)
            answers = await asyncio.gather(search, self._client.noop())
            found, told = cast("list[_Answer]", answers)
            if found.result != "OK":
                raise ConnectionError("the mail server did not search")
            numbers = {int(word) for one in found.lines[:-1] for word in one.split() if word.isdigit()}
            new = sorted(numbers - self._given)
            sizes = [bytes(one) for one in told.lines if one.endswith(b" EXISTS")]
            if new or not sizes or sizes[-1] == self._size:
                self._given.update(new)
                return new
            self._size = sizes[-1]

    async def fetch(self, number: int) -> tuple[bytes, bool] | None:
        """A mail, and whether it is the whole of it; None where it is gone, or not given out for now."""
        wanted = f"(RFC822.SIZE BODY.PEEK[]<0.{MAIL_LIMIT}>)"
        answer = await _answer(self._client.uid("fetch", str(number), wanted), None)
        contents = [bytes(one) for one in answer.lines if isinstance(one, bytearray)]
        if answer.result != "OK" or not contents:
            _log.warning("mail_not_fetched", extra={"uid": number, "result": answer.result})
            if answer.result != "OK":  # that may pass; an error here would keep all those behind it waiting
                self._refused.add(number)
            return None
        size = _SIZE.search(b" ".join(one for one in answer.lines if isinstance(one, bytes)))
        return contents[0], size is None or int(size[1]) <= MAIL_LIMIT

    async def mark(self, number: int) -> None:
        """Note that a mail was taken; where that fails, the next connection gives it out again."""
        store = self._client.uid("store", str(number), "+FLAGS.SILENT", r"(\Seen)")
        answer = await _answer(store)
        if answer.result != "OK":
            _log.warning("mail_not_marked", extra={"uid": number, "result": answer.result})

    async def wait(self, renew: float) -> None:
        """Wait until something happens in the folder, and ``renew`` seconds at most."""
        self._given -= self._refused
        self._refused.clear()
        if not self._client.has_capability("IDLE"):
            await asyncio.sleep(min(renew, POLL))
            return
        start = cast("Awaitable[Any]", self._client.idle_start(renew))  # pyright: ignore[reportUnknownMemberType]
        idle = await cancellable(start, TIMEOUT)
        await cancellable(self._client.wait_server_push(renew + TIMEOUT))
        self._client.idle_done()
        await cancellable(idle, TIMEOUT)


@asynccontextmanager
async def open_mailbox(access: Access) -> AsyncGenerator[Mailbox]:
    """Log in and open the folder. Whatever is awaited inside ends with an error when the connection does.

    Raises ``Refused`` where the login or the folder is.
    """
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    try:
        async with scope:
            # The library lets those wait for ever who wait for an answer.
            client = _Client(access, lost=lambda _: scope.reschedule(loop.time() + _LAST_WORDS))
            try:
                await client.enter()
                yield Mailbox(client)
            finally:
                await client.leave()
    except TimeoutError:
        if scope.expired():
            raise ConnectionError("the connection to the mailbox was lost") from None
        raise


class _Client(IMAP4):
    """The library's client, which here also encrypts, and leaves nothing behind."""

    def __init__(self, access: Access, *, lost: Callable[[Exception | None], None]) -> None:
        self._access = access
        tls = cast("ssl.SSLContext", access.context if access.tls == "implicit" else None)
        super().__init__(access.host, access.port, timeout=TIMEOUT, ssl_context=tls)
        # The library looks here when the connection is made, and not earlier.
        self.wire = _Wire(lost)
        self.protocol = self.wire

    async def enter(self) -> None:
        """Connect, log in, and open the folder."""
        access = self._access
        await cancellable(self.wait_hello_from_server())
        if access.tls == "starttls":
            await self._start_tls()
        answer = await _answer(self.login(quoted(access.user), access.password))
        if answer.result != "OK":
            told = answer.lines[-1].decode("utf-8", "replace").replace(access.password, "***")
            kind = TryLater if _TEMPORARY.search(told) else Refused
            raise kind(f"the IMAP server refused the login: {line(told, 200)}")
        # More is offered to those who are known.
        await cancellable(self.wire.capability(), TIMEOUT)
        if (await _answer(self.select(quoted(access.folder)))).result != "OK":
            raise Refused(f"the folder {access.folder} cannot be opened")

    async def _start_tls(self) -> None:
        wire, access = self.wire, self._access
        answer = await _answer(wire.execute(Command("STARTTLS", wire.new_tag())))
        # Whatever came behind the answer was not encrypted, and may be anybody's.
        if answer.result != "OK" or wire.incomplete_line or wire.transport is None:
            raise ConnectionError("the mail server does not encrypt")
        loop = asyncio.get_running_loop()
        upgrade = loop.start_tls(wire.transport, wire, access.context, server_hostname=access.host)
        wire.transport = await cancellable(upgrade, TIMEOUT)

    async def leave(self) -> None:
        """End the connection and whatever still waits for it."""
        self.wire.lost = None
        if self.has_pending_idle():
            self.idle_done()  # also ends its timer
        self.wire.end()
        tasks = cast("set[asyncio.Future[Any]]", {self._client_task, *self.tasks, *self.wire.tasks})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Wire(IMAP4ClientProtocol):
    """Ends the connection when something comes that the library cannot read.

    Left to asyncio it would be logged, with the command that waits for its answer, and the password in it.
    """

    transport: asyncio.Transport | None

    def __init__(self, lost: Callable[[Exception | None], None]) -> None:
        super().__init__(asyncio.get_running_loop())
        self.lost: Callable[[Exception | None], None] | None = lost

    def send(self, line: str, scrub: str | None = None) -> None:
        """As the library's, which does not know a password again that it has quoted, and logs it."""
        super().send(line, scrub and quoted(scrub)[1:-1])  # pyright: ignore[reportArgumentType]

    def data_received(self, d: bytes) -> None:
        """As the library's."""
        try:
            super().data_received(d)
        except Exception:  # noqa: BLE001 - the library trips in many ways over what it does not expect
            self.end()
        if len(self.incomplete_line) > LINE_LIMIT:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """As the library's."""
        if self.lost is not None:
            self.lost(exc)

    async def welcome(self, command: bytes) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the library's, whose errors nobody awaits."""
        try:
            await super().welcome(command)  # pyright: ignore[reportUnknownMemberType]
        except Exception:  # noqa: BLE001 - among others of a server that greets us with a farewell
            self.end()

    def end(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()


async def cancellable(work: Awaitable[Any], seconds: float | None = None) -> Any:
    """What comes of it within ``seconds``.

    Mail libraries make much use of ``asyncio.wait_for``, which may lose a cancellation before Python 3.12, so
    that what was cancelled goes on. ``gather`` does not lose it.
    """
    async with asyncio.timeout(seconds):
        (result,) = await asyncio.gather(work)
    return result


async def _answer(response: Awaitable[Any], seconds: float | None = TIMEOUT) -> _Answer:
    return cast("_Answer", await cancellable(response, seconds))
