r"""Read unread mail from a folder on an IMAP server, and wait for more.

The flag ``\Seen`` marks processed mail. No other state is stored: mail numbers are used only within a
connection, so that the server may renumber the folder.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from typing import Any, Literal

from torana.connectors.base import PermanentError, RetryLater
from torana.connectors.platforms.email.parser import line
from torana.connectors.platforms.email.wire import ImapConnection, ResponseLine, quote

_log = logging.getLogger(__name__)

#: Seconds after which a server that does not answer counts as dead.
TIMEOUT = 30.0
#: Maximum number of bytes that are fetched of a mail.
MAIL_LIMIT = 10 * 1024 * 1024
#: Maximum length, in bytes, of a line from the server, such as a list of mail numbers.
LINE_LIMIT = 4 * 1024 * 1024
#: Seconds between checks of the folder if the server does not support IDLE.
POLL = 60.0

Tls = Literal["implicit", "starttls", "none"]

_SIZE = re.compile(rb"RFC822\.SIZE (\d+)")
#: Response codes of temporary login failures (RFC 5530), and texts of servers without codes.
_TEMPORARY = re.compile(r"\[(?:UNAVAILABLE|INUSE|LIMIT|SERVERBUG)|too many|try again|temporar", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxAccess:
    host: str
    port: int
    tls: Tls
    context: ssl.SSLContext
    user: str
    password: str = field(repr=False)
    folder: str


class Mailbox:
    """An open folder. It returns each mail once, even if the mail cannot be marked."""

    def __init__(self, connection: ImapConnection, *, can_idle: bool) -> None:
        self._connection = connection
        self._can_idle = can_idle
        self._given: set[int] = set()
        #: Mails that the server refused to send; they are requested again after the next wait.
        self._refused: set[int] = set()
        self._size: bytes | None = None

    async def unseen(self, since: datetime) -> list[int]:
        """Return the numbers of unread mails of this day or later that were not returned before."""
        day = "-".join(format_datetime(since).split()[1:4])
        while True:
            found = await self._connection.command(f"UID SEARCH UNSEEN UNDELETED SINCE {day}")
            if found.result != "OK":
                raise ConnectionError("the mail server refused the search")
            numbers = {int(word) for one in found.lines for word in _numbers(one)}
            new = sorted(numbers - self._given)
            # A server may announce mail that arrives during SEARCH only once: in this response or that of NOOP.
            noop = await self._connection.command("NOOP")
            lines = [*found.lines, *noop.lines]
            sizes = [one.text for one in lines if one.text.rstrip().endswith(b" EXISTS")]
            if new or not sizes or sizes[-1] == self._size:
                self._given.update(new)
                return new
            self._size = sizes[-1]

    async def fetch(self, number: int) -> tuple[bytes, bool] | None:
        """Return a mail, and whether it is complete; None if it is gone, or temporarily unavailable."""
        answer = await self._connection.command(f"UID FETCH {number} (RFC822.SIZE BODY.PEEK[]<0.{MAIL_LIMIT}>)")
        mails = [one for one in answer.lines if one.literals]
        if answer.result != "OK" or not mails:
            _log.warning("mail_not_fetched", extra={"uid": number, "result": answer.result})
            if answer.result != "OK":  # the refusal may be temporary, and an error would delay all later mails
                self._refused.add(number)
            return None
        size = _SIZE.search(mails[0].text)
        return mails[0].literals[0], size is None or int(size[1]) <= MAIL_LIMIT

    async def mark(self, number: int) -> None:
        """Mark a mail as processed; if that fails, the next connection returns it again."""
        answer = await self._connection.command(rf"UID STORE {number} +FLAGS.SILENT (\Seen)")
        if answer.result != "OK":
            _log.warning("mail_not_marked", extra={"uid": number, "result": answer.result})

    async def wait(self, renew: float) -> None:
        """Wait until the folder changes, for at most ``renew`` seconds."""
        self._given -= self._refused
        self._refused.clear()
        if self._can_idle:
            await self._connection.idle(renew)
        else:
            await asyncio.sleep(min(renew, POLL))


@asynccontextmanager
async def open_mailbox(access: MailboxAccess) -> AsyncGenerator[Mailbox]:
    """Log in and open the folder. Every call raises ``ConnectionError`` after the connection ended.

    Raises ``PermanentError`` if the server refuses the login or the folder.
    """
    connection = await ImapConnection.open(
        access.host,
        access.port,
        tls=access.context if access.tls == "implicit" else None,
        line_limit=LINE_LIMIT,
        limit=MAIL_LIMIT + LINE_LIMIT,
        seconds=TIMEOUT,
    )
    try:
        await connection.read_greeting()
        if access.tls == "starttls":
            await connection.start_tls(access.context, access.host)
        await _log_in(connection, access)
        # Servers offer more capabilities after the login.
        capabilities = await _capabilities(connection)
        selected = await connection.command(f"SELECT {quote(access.folder)}")
        if selected.result != "OK":
            raise PermanentError(f"the folder {access.folder} cannot be opened")
        yield Mailbox(connection, can_idle="IDLE" in capabilities)
    finally:
        connection.close()


async def _log_in(connection: ImapConnection, access: MailboxAccess) -> None:
    login = f"LOGIN {quote(access.user)} {quote(access.password)}"
    answer = await connection.command(login)
    if answer.result != "OK":
        reason = answer.text.replace(access.password, "***")
        kind = RetryLater if _TEMPORARY.search(reason) else PermanentError
        raise kind(f"the IMAP server refused the login: {line(reason, 200)}")


async def _capabilities(connection: ImapConnection) -> set[str]:
    """Return what the server offers. Raises ``ConnectionError`` if it does not offer IMAP."""
    answer = await connection.command("CAPABILITY")
    offers = [
        set(one.text.decode("ascii", "replace").upper().split())
        for one in answer.lines
        if one.text.upper().startswith(b"* CAPABILITY ")
    ]
    if not offers or not all("IMAP4REV1" in offer for offer in offers):
        raise ConnectionError("the server does not support IMAP4rev1")
    return offers[-1]


def _numbers(found: ResponseLine) -> list[bytes]:
    """Return the words of a line that are numbers, if it is the result of a search."""
    star, _, result = found.text.partition(b" ")
    words = result.split()
    return [word for word in words if word.isdigit()] if star == b"*" and words[:1] == [b"SEARCH"] else []


async def cancellable(work: Awaitable[Any]) -> Any:
    """Return the result of the work.

    Mail libraries use ``asyncio.wait_for``, which may lose a cancellation before Python 3.12, so that cancelled
    work goes on. ``gather`` does not lose it.
    """
    (result,) = await asyncio.gather(work)
    return result
