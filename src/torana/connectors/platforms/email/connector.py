r"""Mail: messages are read by IMAP, and replies are sent by SMTP.

A mail is marked ``\Seen`` after it is processed, and marked mail is not read again. Automatic mail and mail
with an unauthenticated sender get no reply. Each thread is a separate place.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import re
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from pathlib import Path
from typing import Self
from urllib.parse import quote

from aiosmtplib import (
    SMTP,
    SMTPAuthenticationError,
    SMTPDataError,
    SMTPException,
    SMTPRecipientRefused,
    SMTPResponseException,
)
from pydantic import Field, SecretStr, model_validator

from torana.connectors.base import (
    Attachment,
    Capabilities,
    Connector,
    ConnectorSettings,
    IncomingMessage,
    MessageSink,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
    TooLarge,
    attachment_kind,
)
from torana.connectors.platforms.email.imap import (
    TIMEOUT,
    Mailbox,
    MailboxAccess,
    Tls,
    cancellable,
    open_mailbox,
)
from torana.connectors.platforms.email.parser import (
    ADDRESS,
    MESSAGE_ID,
    MailFile,
    ParsedEmail,
    header,
    line,
    read,
)
from torana.connectors.platforms.email.sender_auth import authentication_fault, automatic_reason
from torana.connectors.platforms.email.text import plain_of
from torana.connectors.transport.markup import html
from torana.connectors.transport.parsing import time_in_mail

_log = logging.getLogger(__name__)

#: Maximum number of files of a mail, and of references in a reply.
FILES_LIMIT = 50
REFERENCES_LIMIT = 20
#: Timeouts, in seconds, for the SMTP steps before the mail, for the mail, and for QUIT: together less than a
#: minute.
_BEFORE, _DURING, _AFTER = 20.0, 35.0, 2.0

#: Headers are not folded: Python would write message ids longer than a line as encoded words.
_UNFOLDED = SMTP_POLICY.clone(max_line_length=900)
_REPLY = re.compile(r"(?:re|aw|sv|antw|odp|回复|回覆)(?:\[\d+\])?\s*[:：]", re.IGNORECASE)


class EmailSettings(ConnectorSettings):
    """The settings of a mail account."""

    address: str = Field(
        pattern=rf"^{ADDRESS.pattern}$", description="The account's address, from which replies are sent."
    )
    name: str = Field(default="", max_length=100, description="The display name in replies.")
    user: str = Field(default="", description="The login name; the default is the address.")
    password: SecretStr = Field(description="The account's password; an app password is safer.")
    imap_host: str = Field(description="The IMAP server.")
    imap_port: int = Field(default=993, ge=1, le=65535, description="The port of the IMAP server.")
    imap_tls: Tls = Field(
        default="implicit",
        description="`implicit` (port 993), `starttls` (port 143), or `none`, only for this machine.",
    )
    smtp_host: str = Field(description="The SMTP server.")
    smtp_port: int = Field(default=587, ge=1, le=65535, description="The port of the SMTP server.")
    smtp_tls: Tls = Field(
        default="starttls",
        description="`starttls` (port 587), `implicit` (port 465), or `none`, only for this machine.",
    )
    ca_file: Path | None = Field(default=None, description="A file with additional CA certificates to trust.")
    folder: str = Field(default="INBOX", pattern=r"^[ -~]+$", description="The folder to read.")
    since_days: int = Field(
        default=1, ge=0, description="Maximum age, in days, of unread mail that gets a reply."
    )
    renew: float = Field(
        default=240, gt=0, le=540, description="Seconds after which the wait for mail (IDLE) is renewed."
    )
    authserv: str = Field(
        default="",
        description="The name of your mail server in `Authentication-Results`: only mail whose sender it "
        "authenticated is accepted.",
    )
    trust_from: bool = Field(
        default=False, description="Trust every `From` header, without `authserv`; senders can be forged."
    )
    # With pairing, spammers would learn that the address is read, and forged senders would receive mail.
    pairing: bool = Field(default=False, description="Whether an unknown sender receives a pairing code.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.authserv) == self.trust_from:
            raise ValueError(
                "set either authserv, the name of your mail server in its Authentication-Results headers, or "
                "trust_from = true, with which senders can be forged"
            )
        for name, tls, host in (
            ("imap_tls", self.imap_tls, self.imap_host),
            ("smtp_tls", self.smtp_tls, self.smtp_host),
        ):
            if tls == "none" and not _is_loopback(host):
                raise ValueError(f'{name} = "none" would send the password unencrypted to {host}')
        return self


class Email(Connector[EmailSettings]):
    """A mail account. One connection reads the mailbox; each reply opens its own SMTP connection."""

    Settings = EmailSettings
    global_ids = True
    abilities = Capabilities(length=100_000, repeat="keyed", render=html, threads=True, pace=1.0, quiet=600.0)

    def __init__(self, settings: EmailSettings) -> None:
        super().__init__(settings)
        self._user = settings.user or settings.address
        self._address = settings.address.lower()
        self._tls: ssl.SSLContext | None = None

    @property
    def credentials(self) -> str:
        return f"{self._user}@{self.settings.imap_host}".lower()

    @property
    def link(self) -> str | None:
        return f"mailto:{quote(self.settings.address, safe='@')}"

    async def run(self, sink: MessageSink) -> None:
        """Process unread mail, and wait for more."""
        await cancellable(self._try_smtp())
        settings = self.settings
        async with open_mailbox(await self.access()) as mailbox:
            sink.ready()
            while True:
                sink.alive()
                new = await mailbox.unseen(datetime.now(UTC) - timedelta(days=settings.since_days))
                for number in new:
                    await self._take(mailbox, number, sink)
                    sink.alive()
                if not new:
                    await mailbox.wait(settings.renew)

    async def send(self, part: Part) -> str:
        """Send a reply; the same key gives the same ``Message-ID``."""
        if not ADDRESS.fullmatch(part.place.chat):
            raise PermanentError("the place is not an address")
        message = self._reply(part)
        client = await self._smtp()
        try:
            await self._announce(client, part.place.chat)
            await _send_mail(client, message.as_bytes(policy=_UNFOLDED))
            with suppress(SMTPException, OSError):
                await client.quit(timeout=_AFTER)
        finally:
            client.close()
        return str(message["Message-ID"])

    async def access(self) -> MailboxAccess:
        settings = self.settings
        return MailboxAccess(
            host=settings.imap_host,
            port=settings.imap_port,
            tls=settings.imap_tls,
            context=await self._tls_context(),
            user=self._user,
            password=settings.password.get_secret_value(),
            folder=settings.folder,
        )

    # Incoming mail

    async def _take(self, mailbox: Mailbox, number: int, sink: MessageSink) -> None:
        fetched = await mailbox.fetch(number)
        if fetched is not None:
            # Parsing may take a second in the worst case.
            heard = await asyncio.to_thread(self._parse_mail, *fetched)
            if heard is not None:
                await sink.hear(heard)
            await mailbox.mark(number)

    def _parse_mail(self, raw: bytes, whole: bool) -> IncomingMessage | None:
        try:
            letter = read(raw, whole=whole)
        except Exception as error:  # noqa: BLE001 - one unreadable mail must not stop the others
            _log.warning("mail_unreadable", extra={"error": type(error).__name__})
            return None
        why = self._reason_to_ignore(letter)
        if why:
            _log.info("mail_ignored", extra={"reason": why, "sender": letter.address, "mail": letter.id})
            return None
        thread = next(iter(letter.references), letter.id) or None
        known = f"{letter.address}\n{letter.id}".encode() if letter.id else raw
        directly = not self._is_copy(letter)
        return IncomingMessage(
            # The digest includes the sender, so that one sender cannot use the ids of another.
            id=hashlib.sha256(known).hexdigest()[:32],
            sender=Sender(id=letter.address, name=letter.name),
            place=Place(chat=letter.address, thread=thread, reply_to=_reply_to(letter)),
            text=_text(letter),
            direct=directly,
            addressed=directly,
            attachments=[_attachment(file) for file in letter.files[:FILES_LIMIT]],
            said_at=time_in_mail(header(letter.headers, "date")),
            in_reply_to=letter.in_reply_to,
        )

    def _reason_to_ignore(self, letter: ParsedEmail) -> str | None:
        if not letter.address:
            return "unreadable sender"
        if letter.address == self._address:
            return "own mail"
        if why := automatic_reason(letter):
            return why
        if not self.settings.trust_from and (why := authentication_fault(letter, self.settings.authserv)):
            return why
        return None if _text(letter) or letter.files else "empty"

    def _is_copy(self, letter: ParsedEmail) -> bool:
        """Return whether the account received the mail only as a copy (Cc)."""
        to, copied = (
            [one.lower() for one in ADDRESS.findall(header(letter.headers, name))] for name in ("to", "cc")
        )
        return self._address in copied and self._address not in to and len(to + copied) > 1

    # Outgoing mail

    def _reply(self, part: Part) -> EmailMessage:
        place = part.place
        message = EmailMessage(policy=SMTP_POLICY)
        message["From"] = Address(display_name=line(self.settings.name, 100), addr_spec=self._address)
        message["To"] = place.chat
        subject = line(place.reply_to.get("subject", ""), 200)
        message["Subject"] = subject if _REPLY.match(subject) else f"Re: {subject}".strip()
        message["Date"] = datetime.now(UTC)
        message["Message-ID"] = f"<{part.key}@{self._address.rpartition('@')[2]}>"
        references = MESSAGE_ID.findall(place.reply_to.get("references", "") or place.thread or "")
        answered = MESSAGE_ID.findall(place.reply_to.get("id", "")) or references[-1:]
        if answered:
            message["In-Reply-To"] = answered[0]
            message["References"] = " ".join(dict.fromkeys([*references, answered[0]]))
        message["Auto-Submitted"] = "auto-replied"
        message["X-Auto-Response-Suppress"] = "All"
        text = part.text.encode("utf-8", "replace").decode()
        page = f"<!DOCTYPE html><html><body>{text}</body></html>\n"
        message.set_content(f"{plain_of(text)}\n", cte="quoted-printable")
        message.add_alternative(page, subtype="html", cte="quoted-printable")
        return message

    async def _try_smtp(self) -> None:
        """Check the SMTP login before any mail is processed."""
        client = await self._smtp()
        try:
            await self._log_in(client)
        except SMTPAuthenticationError as error:
            kind = PermanentError if error.code >= 500 else RetryLater
            raise kind(f"the SMTP server refused the login: {_describe_error(error)}") from None
        finally:
            client.close()

    async def _announce(self, client: SMTP, recipient: str) -> None:
        """Do all SMTP steps before the mail itself: after a failure here, nothing was sent."""
        try:
            async with asyncio.timeout(_BEFORE):
                await self._log_in(client)
                await client.mail(self._address)
                await client.rcpt(recipient)
        except SMTPRecipientRefused as error:
            raise _refusal(error) from None
        except SMTPResponseException as error:  # the account, not the recipient, is refused
            raise RetryLater(f"the mail server refuses to send: {_describe_error(error)}") from None
        except (SMTPException, OSError) as error:
            raise RetryLater(f"cannot connect to the mail server ({type(error).__name__})") from None

    async def _log_in(self, client: SMTP) -> None:
        await client.connect()
        await client.ehlo()
        if client.supports_extension("auth") or self.settings.smtp_tls != "none":
            await client.login(self._user, self.settings.password.get_secret_value())

    async def _smtp(self) -> SMTP:
        settings = self.settings
        return SMTP(
            hostname=settings.smtp_host,
            port=settings.smtp_port,
            use_tls=settings.smtp_tls == "implicit",
            start_tls=settings.smtp_tls == "starttls",
            tls_context=await self._tls_context(),
            local_hostname="[127.0.0.1]",
            timeout=TIMEOUT,
        )

    async def _tls_context(self) -> ssl.SSLContext:
        """Return the TLS context; loading the CA certificates takes 30 ms, once."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
            if self.settings.ca_file:
                self._tls.load_verify_locations(self.settings.ca_file)
        return self._tls


async def _send_mail(client: SMTP, message: bytes) -> None:
    """Send the mail itself; raise the connector error for a failure."""
    try:
        await client.data(message, timeout=_DURING)
    except SMTPDataError as error:
        raise _refusal(error) from None
    except (SMTPException, OSError) as error:
        raise OutcomeUnknown(f"the mail server did not confirm the mail ({type(error).__name__})") from None


def _refusal(error: SMTPResponseException) -> Exception:
    reason = f"the mail server answered {_describe_error(error)}"
    if error.code < 400:
        return OutcomeUnknown(reason)
    # Gmail uses 5.4.5 for too many mails a day.
    return RetryLater(reason) if error.code < 500 or "5.4.5" in error.message else PermanentError(reason)


def _describe_error(error: SMTPResponseException) -> str:
    return f"{error.code} {line(error.message, 200)}"


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _text(letter: ParsedEmail) -> str:
    """Return the text of a mail; the subject of a thread's first mail is included, except for a command."""
    subject, text = letter.subject, letter.text
    if letter.references or _REPLY.match(subject) or text.startswith(("/", subject)):
        return text
    return f"{subject}\n\n{text}".strip()


def _reply_to(letter: ParsedEmail) -> dict[str, str]:
    references = [*letter.references[:1], *letter.references[1:][1 - REFERENCES_LIMIT :]]
    return {"id": letter.id, "subject": letter.subject, "references": " ".join(references)}


def _attachment(file: MailFile) -> Attachment:
    async def fetch(limit: int) -> bytes:
        content = await asyncio.to_thread(file.decode) if file.whole else b""
        if not file.whole or len(content) > limit:
            raise TooLarge(f"{file.name} is too large")
        return content

    return Attachment(
        kind=attachment_kind(file.media_type),
        name=file.name,
        media_type=file.media_type,
        size=file.size if file.whole else None,
        fetch=fetch,
    )
