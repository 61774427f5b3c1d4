r"""Read unread mail from a folder on an IMAP server, and wait for more.

The flag ``\Seen`` marks processed mail. No other state is stored: mail numbers are used only within a
connection, so that the server may renumber the folder.
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

from torana.connectors.base import PermanentError, RetryLater
from torana.connectors.platforms.email.parser import line

_log = logging.getLogger(__name__)

#: Seconds after which a server that does not answer counts as dead.
TIMEOUT = 30.0
#: Maximum number of bytes that are fetched of a mail.
MAIL_LIMIT = 10 * 1024 * 1024
#: Maximum length, in bytes, of a line from the server, such as a list of mail numbers.
LINE_LIMIT = 4 * 1024 * 1024
#: Seconds between checks of the folder if the server does not support IDLE.
POLL = 60.0
#: Seconds to process what the server sent before it closed the connection, such as the reason.
_LAST_WORDS = 0.5

Tls = Literal["implicit", "starttls", "none"]

_SIZE = re.compile(rb"RFC822\.SIZE (\d+)")
#: Response codes of temporary login failures (RFC 5530), and texts of servers without codes.
_TEMPORARY = re.compile(r"\[(?:UNAVAILABLE|INUSE|LIMIT|SERVERBUG)|too many|try again|temporar", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxAccess:
    """The access data of a folder."""

    host: str
    port: int
    tls: Tls
    context: ssl.SSLContext
    user: str
    password: str = field(repr=False)
    folder: str


class _Answer(NamedTuple):
    """The untyped library's response: ``OK`` or not, and lines, with literals as ``bytearray``."""

    result: str
    lines: list[bytes | bytearray]


class Mailbox:
    """An open folder. It returns each mail once, even if the mail cannot be marked."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self._given: set[int] = set()
        #: Mails that the server refused to send; they are requested again after the next wait.
        self._refused: set[int] = set()
        self._size: bytes | None = None

    async def unseen(self, since: datetime) -> list[int]:
        """Return the numbers of unread mails of this day or later that were not returned before."""
        day = "-".join(format_datetime(since).split()[1:4])
        while True:
            # A server may announce mail that arrives during the search only in the search response. The library
            # drops the announcement, unless a NOOP waits at the same time.
            search = self._client.uid_search("UNSEEN", "UNDELETED", "SINCE", day, charset=None)
            answers = await asyncio.gather(search, self._client.noop())
            found, told = cast("list[_Answer]", answers)
            if found.result != "OK":
                raise ConnectionError("the mail server refused the search")
            numbers = {int(word) for one in found.lines[:-1] for word in one.split() if word.isdigit()}
            new = sorted(numbers - self._given)
            sizes = [bytes(one) for one in told.lines if one.endswith(b" EXISTS")]
            if new or not sizes or sizes[-1] == self._size:
                self._given.update(new)
                return new
            self._size = sizes[-1]

    async def fetch(self, number: int) -> tuple[bytes, bool] | None:
        """Return a mail, and whether it is complete; None if it is gone, or temporarily unavailable."""
        wanted = f"(RFC822.SIZE BODY.PEEK[]<0.{MAIL_LIMIT}>)"
        answer = await _answer(self._client.uid("fetch", str(number), wanted), None)
        contents = [bytes(one) for one in answer.lines if isinstance(one, bytearray)]
        if answer.result != "OK" or not contents:
            _log.warning("mail_not_fetched", extra={"uid": number, "result": answer.result})
            if answer.result != "OK":  # perhaps temporary; an error would delay all later mails
                self._refused.add(number)
            return None
        size = _SIZE.search(b" ".join(one for one in answer.lines if isinstance(one, bytes)))
        return contents[0], size is None or int(size[1]) <= MAIL_LIMIT

    async def mark(self, number: int) -> None:
        """Mark a mail as processed; if that fails, the next connection returns it again."""
        store = self._client.uid("store", str(number), "+FLAGS.SILENT", r"(\Seen)")
        answer = await _answer(store)
        if answer.result != "OK":
            _log.warning("mail_not_marked", extra={"uid": number, "result": answer.result})

    async def wait(self, renew: float) -> None:
        """Wait until the folder changes, for at most ``renew`` seconds."""
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
async def open_mailbox(access: MailboxAccess) -> AsyncGenerator[Mailbox]:
    """Log in and open the folder. When the connection ends, the block is cancelled with ``ConnectionError``.

    Raises ``PermanentError`` if the server refuses the login or the folder.
    """
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    try:
        async with scope:
            # After a lost connection, the library never ends calls that wait for a response.
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
    """The library's client, with STARTTLS; ``leave`` ends all its tasks."""

    def __init__(self, access: MailboxAccess, *, lost: Callable[[Exception | None], None]) -> None:
        self._access = access
        tls = cast("ssl.SSLContext", access.context if access.tls == "implicit" else None)
        super().__init__(access.host, access.port, timeout=TIMEOUT, ssl_context=tls)
        # The library reads these attributes when it connects, not earlier.
        self.wire = _Wire(lost)
        self.protocol = self.wire

    async def enter(self) -> None:
        access = self._access
        await cancellable(self.wait_hello_from_server())
        if access.tls == "starttls":
            await self._start_tls()
        answer = await _answer(self.login(quoted(access.user), access.password))
        if answer.result != "OK":
            told = answer.lines[-1].decode("utf-8", "replace").replace(access.password, "***")
            kind = RetryLater if _TEMPORARY.search(told) else PermanentError
            raise kind(f"the IMAP server refused the login: {line(told, 200)}")
        # Servers offer more capabilities after the login.
        await cancellable(self.wire.capability(), TIMEOUT)
        if (await _answer(self.select(quoted(access.folder)))).result != "OK":
            raise PermanentError(f"the folder {access.folder} cannot be opened")

    async def _start_tls(self) -> None:
        wire, access = self.wire, self._access
        answer = await _answer(wire.execute(Command("STARTTLS", wire.new_tag())))
        # Data after the response was not encrypted, and may come from an attacker.
        if answer.result != "OK" or wire.incomplete_line or wire.transport is None:
            raise ConnectionError("the mail server does not support STARTTLS")
        loop = asyncio.get_running_loop()
        upgrade = loop.start_tls(wire.transport, wire, access.context, server_hostname=access.host)
        wire.transport = await cancellable(upgrade, TIMEOUT)

    async def leave(self) -> None:
        """End the connection and all tasks that wait for it."""
        self.wire.lost = None
        if self.has_pending_idle():
            self.idle_done()  # also ends its timer
        self.wire.end()
        tasks = cast("set[asyncio.Future[Any]]", {self._client_task, *self.tasks, *self.wire.tasks})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Wire(IMAP4ClientProtocol):
    """Ends the connection when the library cannot parse a response.

    Otherwise asyncio would log the error with the waiting command, which may contain the password.
    """

    transport: asyncio.Transport | None

    def __init__(self, lost: Callable[[Exception | None], None]) -> None:
        super().__init__(asyncio.get_running_loop())
        self.lost: Callable[[Exception | None], None] | None = lost

    def send(self, line: str, scrub: str | None = None) -> None:
        """Send a line; the library would log a quoted password that it does not recognise."""
        super().send(line, scrub and quoted(scrub)[1:-1])  # pyright: ignore[reportArgumentType]

    def data_received(self, d: bytes) -> None:
        try:
            super().data_received(d)
        except Exception:  # noqa: BLE001 - the library raises many errors for unexpected input
            self.end()
        if len(self.incomplete_line) > LINE_LIMIT:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost is not None:
            self.lost(exc)

    async def welcome(self, command: bytes) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Handle the greeting; the library would lose its errors."""
        try:
            await super().welcome(command)  # pyright: ignore[reportUnknownMemberType]
        except Exception:  # noqa: BLE001 - also for a server that greets with BYE
            self.end()

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()


async def cancellable(work: Awaitable[Any], seconds: float | None = None) -> Any:
    """Return the result of the work. Raises ``TimeoutError`` after ``seconds``.

    Mail libraries use ``asyncio.wait_for``, which may lose a cancellation before Python 3.12, so that cancelled
    work goes on. ``gather`` does not lose it.
    """
    async with asyncio.timeout(seconds):
        (result,) = await asyncio.gather(work)
    return result


async def _answer(response: Awaitable[Any], seconds: float | None = TIMEOUT) -> _Answer:
    return cast("_Answer", await cancellable(response, seconds))
