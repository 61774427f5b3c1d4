r"""Mail: an account's mailbox is listened to by IMAP, and answered by SMTP.

A mail is marked ``\Seen`` after it was heard, and what is marked is not heard again. Mail by machines is never
answered, nor is mail whose sender may be forged. Each thread is a place of its own.
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
from typing import Literal, Self

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
    Abilities,
    Attachment,
    Connector,
    ConnectorSettings,
    Ears,
    Heard,
    Part,
    Place,
    Refused,
    Sender,
    TooLarge,
    TryLater,
    Unsure,
)
from torana.connectors.letters.mailbox import TIMEOUT, Access, Mailbox, Tls, cancellable, open_mailbox
from torana.connectors.letters.parts import ADDRESS, MESSAGE_ID, File, Letter, header, line, read
from torana.connectors.letters.words import plain_of
from torana.connectors.letters.writers import doubt, machine
from torana.connectors.markup import html
from torana.connectors.times import time_in_mail

_log = logging.getLogger(__name__)

#: Files of a mail that are passed on, and messages of a thread that are named in a reply.
FILES_LIMIT = 50
REFERENCES_LIMIT = 20
#: Seconds for all that comes before a mail, for the mail, and for taking leave: within a minute all is said.
_BEFORE, _DURING, _AFTER = 20.0, 35.0, 2.0

#: Headers are not folded: Python would write message ids that are longer than a line in an encoding of words.
_UNFOLDED = SMTP_POLICY.clone(max_line_length=900)
_REPLY = re.compile(r"(?:re|aw|sv|antw|odp|回复|回覆)(?:\[\d+\])?\s*[:：]", re.IGNORECASE)


class EmailSettings(ConnectorSettings):
    """What the settings say of a mail account."""

    address: str = Field(
        pattern=rf"^{ADDRESS.pattern}$", description="The account's address, from which is answered."
    )
    name: str = Field(default="", max_length=100, description="The name beside the address in answers.")
    user: str = Field(default="", description="The name to log in with; without it the address.")
    password: SecretStr = Field(description="The account's password, or better an app password.")
    imap_host: str = Field(description="The server on which the mailbox is.")
    imap_port: int = Field(default=993, ge=1, le=65535, description="The port of IMAP.")
    imap_tls: Tls = Field(
        default="implicit",
        description="`implicit` (port 993), `starttls` (port 143), or `none`, only to this machine.",
    )
    smtp_host: str = Field(description="The server by which is answered.")
    smtp_port: int = Field(default=587, ge=1, le=65535, description="The port of SMTP.")
    smtp_tls: Tls = Field(
        default="starttls",
        description="`starttls` (port 587), `implicit` (port 465), or `none`, only to this machine.",
    )
    ca_file: Path | None = Field(
        default=None, description="Certificates of authorities that are trusted besides the system's."
    )
    folder: str = Field(default="INBOX", pattern=r"^[ -~]+$", description="The folder that is listened to.")
    since_days: int = Field(
        default=1, ge=0, description="Unread mail that is older than so many days is not answered."
    )
    renew: float = Field(
        default=240, gt=0, le=540, description="Seconds after which waiting for mail begins anew."
    )
    authserv: str = Field(
        default="",
        description="The name with which the mail server signs `Authentication-Results`: only mail that it "
        "found to be from its sender is heard.",
    )
    trust_from: bool = Field(
        default=False, description="Believe every sender, without `authserv`; senders can be forged."
    )
    # Whoever writes to an address at random would learn that it is read, and forged senders would get our mail.
    pairing: bool = Field(
        default=False, description="Whether an unknown person who writes gets a code for the operator."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.authserv) == self.trust_from:
            raise ValueError(
                "set either authserv, the name of your mail server in its Authentication-Results headers, or "
                "trust_from = true, with which anybody can write as anybody"
            )
        for name, tls, host in (
            ("imap_tls", self.imap_tls, self.imap_host),
            ("smtp_tls", self.smtp_tls, self.smtp_host),
        ):
            if tls == "none" and not _is_loopback(host):
                raise ValueError(f'{name} = "none" would send the password in the clear to {host}')
        return self


class Email(Connector[EmailSettings]):
    """A mail account. One mailbox is waited on; each answer goes out on a connection of its own."""

    Settings = EmailSettings
    global_ids = True
    abilities = Abilities(length=100_000, repeat="keyed", render=html, threads=True, pace=1.0, quiet=600.0)

    def __init__(self, settings: EmailSettings) -> None:
        super().__init__(settings)
        self._user = settings.user or settings.address
        self._address = settings.address.lower()
        self._tls: ssl.SSLContext | None = None

    @property
    def credentials(self) -> str:
        """The mailbox."""
        return f"{self._user}@{self.settings.imap_host}".lower()

    async def run(self, ears: Ears) -> None:
        """Take unread mail, and wait for more."""
        await cancellable(self._try_smtp())
        settings = self.settings
        async with open_mailbox(await self.access()) as mailbox:
            ears.ready()
            while True:
                ears.alive()
                new = await mailbox.unseen(datetime.now(UTC) - timedelta(days=settings.since_days))
                for number in new:
                    await self._take(mailbox, number, ears)
                    ears.alive()
                if not new:
                    await mailbox.wait(settings.renew)

    async def send(self, part: Part) -> str:
        """Answer a mail; the same key is the same ``Message-ID``."""
        if not ADDRESS.fullmatch(part.place.chat):
            raise Refused("the place is not an address")
        message = self._reply(part)
        client = await self._smtp()
        try:
            await self._announce(client, part.place.chat)
            await _hand_over(client, message.as_bytes(policy=_UNFOLDED))
            with suppress(SMTPException, OSError):
                await client.quit(timeout=_AFTER)
        finally:
            client.close()
        return str(message["Message-ID"])

    async def access(self) -> Access:
        """How the mailbox is reached."""
        settings = self.settings
        return Access(
            host=settings.imap_host,
            port=settings.imap_port,
            tls=settings.imap_tls,
            context=await self._tls_context(),
            user=self._user,
            password=settings.password.get_secret_value(),
            folder=settings.folder,
        )

    # What comes

    async def _take(self, mailbox: Mailbox, number: int, ears: Ears) -> None:
        """Hear a mail, and only then mark it."""
        fetched = await mailbox.fetch(number)
        if fetched is not None:
            # Parsing may take a second for the worst of mails.
            heard = await asyncio.to_thread(self._read, *fetched)
            if heard is not None:
                await ears.hear(heard)
            await mailbox.mark(number)

    def _read(self, raw: bytes, whole: bool) -> Heard | None:
        """What a mail says, or None where nobody is to hear it."""
        try:
            letter = read(raw, whole=whole)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one mail, the next one is heard
            _log.warning("mail_unreadable", extra={"error": type(error).__name__})
            return None
        why = self._unheard(letter)
        if why:
            _log.info("mail_not_heard", extra={"why": why, "sender": letter.address, "mail": letter.id})
            return None
        thread = next(iter(letter.references), letter.id) or None
        known = f"{letter.address}\n{letter.id}".encode() if letter.id else raw
        directly = not self._is_copy(letter)
        return Heard(
            # Two senders never share an id, whatever one of them claims.
            id=hashlib.sha256(known).hexdigest()[:32],
            sender=Sender(id=letter.address, name=letter.name),
            place=Place(chat=letter.address, thread=thread, reply_to=_reply_to(letter)),
            text=_text(letter),
            direct=directly,
            addressed=directly,
            attachments=[_attachment(file) for file in letter.files[:FILES_LIMIT]],
            said_at=time_in_mail(header(letter.headers, "date")),
        )

    def _unheard(self, letter: Letter) -> str | None:
        """Why this mail must not be heard."""
        if not letter.address:
            return "its sender cannot be read"
        if letter.address == self._address:
            return "our own"
        if why := machine(letter):
            return why
        if not self.settings.trust_from and (why := doubt(letter, self.settings.authserv)):
            return why
        return None if _text(letter) or letter.files else "nothing is said"

    def _is_copy(self, letter: Letter) -> bool:
        """Whether it was written to others, and to us only for information."""
        to, copied = (
            [one.lower() for one in ADDRESS.findall(header(letter.headers, name))] for name in ("to", "cc")
        )
        return self._address in copied and self._address not in to and len(to + copied) > 1

    # What goes

    def _reply(self, part: Part) -> EmailMessage:
        place = part.place
        message = EmailMessage(policy=SMTP_POLICY)
        message["From"] = Address(display_name=line(self.settings.name, 100), addr_spec=self._address)
        message["To"] = place.chat
        message["Subject"] = _subject(line(place.reply_to.get("subject", ""), 200))
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
        """Find out before anything is heard whether it could be answered."""
        client = await self._smtp()
        try:
            await self._log_in(client)
        except SMTPAuthenticationError as error:
            kind = Refused if error.code >= 500 else TryLater
            raise kind(f"the SMTP server refused the login: {_told(error)}") from None
        finally:
            client.close()

    async def _announce(self, client: SMTP, recipient: str) -> None:
        """Everything before the mail itself: whatever fails here, nothing was sent."""
        try:
            async with asyncio.timeout(_BEFORE):
                await self._log_in(client)
                await client.mail(self._address)
                await client.rcpt(recipient)
        except SMTPRecipientRefused as error:
            raise _refusal(error) from None
        except SMTPResponseException as error:  # it is the account that may not send
            raise TryLater(f"the mail server takes nothing from us: {_told(error)}") from None
        except (SMTPException, OSError) as error:
            raise TryLater(f"the mail server cannot be reached ({type(error).__name__})") from None

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
        """What certificates are verified by; reading those of the authorities takes 30 ms, once."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
            if self.settings.ca_file:
                self._tls.load_verify_locations(self.settings.ca_file)
        return self._tls


async def _hand_over(client: SMTP, message: bytes) -> None:
    """Send the mail itself, and tell what became of it."""
    try:
        await client.data(message, timeout=_DURING)
    except SMTPDataError as error:
        raise _refusal(error) from None
    except (SMTPException, OSError) as error:
        raise Unsure(f"the mail server did not say whether it took it ({type(error).__name__})") from None


def _refusal(error: SMTPResponseException) -> Exception:
    told = f"the mail server answered {_told(error)}"
    if error.code < 400:
        return Unsure(told)
    # 5.4.5 is Gmail's word for too many mails a day.
    return TryLater(told) if error.code < 500 or "5.4.5" in error.message else Refused(told)


def _told(error: SMTPResponseException) -> str:
    return f"{error.code} {line(error.message, 200)}"


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _text(letter: Letter) -> str:
    """What is said; the subject of a thread's first mail is part of it, and not of a command."""
    subject, text = letter.subject, letter.text
    if letter.references or _REPLY.match(subject) or text.startswith(("/", subject)):
        return text
    return f"{subject}\n\n{text}".strip()


def _reply_to(letter: Letter) -> dict[str, str]:
    references = [*letter.references[:1], *letter.references[1:][1 - REFERENCES_LIMIT :]]
    return {"id": letter.id, "subject": letter.subject, "references": " ".join(references)}


def _subject(subject: str) -> str:
    return subject if _REPLY.match(subject) else f"Re: {subject}".strip()


def _attachment(file: File) -> Attachment:
    kinds: dict[str, Literal["image", "voice", "video"]] = {
        "image": "image",
        "audio": "voice",
        "video": "video",
    }

    async def fetch(limit: int) -> bytes:
        content = await asyncio.to_thread(file.decoded) if file.whole else b""
        if not file.whole or len(content) > limit:
            raise TooLarge(f"{file.name} is too large")
        return content

    return Attachment(
        kind=kinds.get(file.media_type.partition("/")[0], "file"),
        name=file.name,
        media_type=file.media_type,
        size=file.size if file.whole else None,
        fetch=fetch,
    )
