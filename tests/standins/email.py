"""A mail server: real Dovecot, and an SMTP server that delivers into it and stores mail for other addresses.

Dovecot runs for a whole module and has an account for each name. A relay between Dovecot and the connector can
cut connections, freeze them, and change data.
"""

from __future__ import annotations

import asyncio
import getpass
import grp
import os
import pwd
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import formatdate
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import aiosmtplib
import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from tests.parts import require

from torana.connectors.platforms.email.connector import Email
from torana.testing.connectors import PATIENCE, Platform, Shown

#: Settings that make Dovecot as inconvenient as possible.
PASSWORD = 'co"rrect{horse'
DOMAIN = "mail.test"
MX = "mx.mail.test"
PEOPLE = "people.test"

_CONFIG = """
protocols = imap
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/log
ssl = yes
ssl_cert = <{home}/cert.pem
ssl_key = <{home}/key.pem
disable_plaintext_auth = no
auth_failure_delay = 0
first_valid_uid = 1
mail_location = maildir:~/Maildir
mail_max_userip_connections = 100
{internal}
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={home}/mail/%u
}}
service anvil {{
  chroot =
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = 0
  }}
  inet_listener imaps {{
    port = 0
  }}
  unix_listener imap.sock {{
    mode = 0666
  }}
}}
"""


class Dovecot:
    """The server, with a mailbox for every user name with the password."""

    def __init__(self) -> None:
        command = require("dovecot", "dovecot-imapd")
        self._home = Path(tempfile.mkdtemp(prefix="dovecot-"))
        self._home.chmod(0o755)
        self._owner = pwd.getpwnam("nobody" if os.geteuid() == 0 else getpass.getuser())
        self._make_certificate()
        (self._home / "mail").mkdir()
        self._own(self._home / "mail")
        (self._home / "dovecot.conf").write_text(self._config())
        self._process = subprocess.Popen([command, "-F", "-c", str(self._home / "dovecot.conf")])
        self._await()

    @property
    def socket(self) -> Path:
        return self._home / "run" / "imap.sock"

    @property
    def certificate(self) -> Path:
        return self._home / "cert.pem"

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for servers with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self._home / "key.pem")
        return context

    def deliver(self, user: str, content: bytes) -> Path:
        """Deliver a mail into a mailbox, as an MTA does."""
        return self.deliver_to(self.folder(user), content)

    def deliver_to(self, folder: Path, content: bytes) -> Path:
        """Deliver a mail into a folder."""
        name = f"{time.time()}.{uuid4().hex}.{DOMAIN}"
        (folder / "tmp" / name).write_bytes(content)
        self._own(folder / "tmp" / name)
        return (folder / "tmp" / name).rename(folder / "new" / name)

    def folder(self, user: str, name: str = "") -> Path:
        """Return the path of a mailbox, or of a folder in it, whose name begins with a dot there."""
        root = self._home / "mail" / user / "Maildir"
        folder = root / name
        for one in (root.parent, root, folder, folder / "tmp", folder / "new", folder / "cur"):
            if not one.exists():
                one.mkdir()
                self._own(one)
        return folder

    def seen(self, user: str) -> list[str]:
        """Return the names of the mails that are marked as seen."""
        return [
            one.name for one in (self.folder(user) / "cur").iterdir() if "S" in one.name.partition(":2,")[2]
        ]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)
        shutil.rmtree(self._home)

    def _config(self) -> str:
        internal = ""
        if os.geteuid() != 0:  # all files belong to the user of the tests
            name, group = self._owner.pw_name, grp.getgrgid(self._owner.pw_gid).gr_name
            internal = (
                f"default_internal_user = {name}\ndefault_internal_group = {group}\ndefault_login_user = {name}"
            )
        uid, gid = self._owner.pw_uid, self._owner.pw_gid
        return _CONFIG.format(home=self._home, password=PASSWORD, uid=uid, gid=gid, internal=internal)

    def _make_certificate(self) -> None:
        openssl = require("openssl", "openssl")
        key, cert = self._home / "key.pem", self._home / "cert.pem"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        command = [openssl, "req", "-x509", *kind, *subject, "-keyout", str(key), "-out", str(cert)]
        subprocess.run(command, check=True, capture_output=True)

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid)

    def _await(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self.socket.exists():
            assert self._process.poll() is None, (self._home / "log").read_text()
            assert time.monotonic() < until, "dovecot does not start"
            time.sleep(0.005)


class Relay:
    """A relay between the connector and Dovecot."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: While this event is not set, no data passes, and no error occurs.
        self.open = asyncio.Event()
        self.open.set()
        #: Changes the data of the connector, and the data of the server.
        self.on_command: Callable[[bytes], Awaitable[bytes]] | None = None
        self.on_answer: Callable[[bytes], bytes] = bytes
        self.connections = 0

    async def start(self, tls: ssl.SSLContext | None = None) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self.open.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(reader, far_writer))
                group.create_task(self._down(far_reader, writer))
        except* (OSError, EOFError):
            pass
        finally:
            for one in (writer, far_writer):
                self._writers.discard(one)
                one.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.on_command is not None:
                data = await self.on_command(data)
            await self.open.wait()
            writer.write(data)
            await writer.drain()
        raise EOFError

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self.open.wait()
            writer.write(self.on_answer(data))
            await writer.drain()
        raise EOFError


@dataclass
class Smtp:
    """The SMTP server, which receives mail to the account and mail from the account.

    ``answers`` are the next responses by command, in place of the usual ones: a status, or None to close the
    connection.
    """

    dovecot: Dovecot
    user: str
    password: str = PASSWORD
    kept: list[tuple[str, EmailMessage]] = field(default_factory=list[tuple[str, EmailMessage]])
    answers: dict[str, list[str | None]] = field(default_factory=dict[str, list[str | None]])
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    logins: int = 0
    #: Whether it removes headers that others wrote in its name, as RFC 8601 requires.
    strips: bool = True
    _server: asyncio.Server | None = None
    _connections: list[SMTP] = field(default_factory=list[SMTP])

    async def start(self, *, tls: ssl.SSLContext | None = None, start_tls: ssl.SSLContext | None = None) -> int:
        def connection() -> SMTP:
            self._connections.append(
                SMTP(
                    self,
                    hostname=MX,
                    loop=loop,
                    authenticator=self._authenticate,
                    auth_require_tls=start_tls is not None,
                    tls_context=start_tls,
                    require_starttls=start_tls is not None,
                    data_size_limit=0,
                )
            )
            return self._connections[-1]

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(connection, "127.0.0.1", 0, ssl=tls)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            _hang_up(connection)
            task = connection._handler_coroutine  # pyright: ignore[reportPrivateUsage]
            if task is not None:
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def handle_RCPT(  # noqa: N802 - a name of aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        del options
        if answers := self.answers.get("rcpt"):
            return answers.pop(0) or _hang_up(server)
        if address != self.user and not session.authenticated:
            return "550 5.7.1 we relay for nobody"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 good"

    async def handle_MAIL(  # noqa: N802 - a name of aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        del session
        if answers := self.answers.get("mail"):
            return answers.pop(0) or _hang_up(server)
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 2.1.0 good"

    async def handle_DATA(  # noqa: N802 - a name of aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        del session
        if answers := self.answers.get("data"):
            return answers.pop(0) or _hang_up(server)
        content = cast("bytes", envelope.content)
        for recipient in envelope.rcpt_tos:
            if recipient == self.user:
                self.dovecot.deliver(self.user, self._received(content, envelope.mail_from or ""))
            else:
                message = message_from_bytes(content, policy=policy.default)
                self.kept.append((recipient, message))
        async with self.arrived:
            self.arrived.notify_all()
        return "250 2.0.0 taken"

    def _received(self, content: bytes, sender: str) -> bytes:
        """Return the mail with the server's authentication result: only the sender's own domain passes."""
        author = str(message_from_bytes(content, policy=policy.default)["From"] or "")
        envelope, domain = sender.rpartition("@")[2], author.rstrip(">").rpartition("@")[2].lower()
        verdict = "pass" if envelope == domain else "fail"
        told = (
            f"Return-Path: <{sender}>\r\n"
            f"Authentication-Results: {MX}; spf=pass (ip; of {sender}) smtp.mailfrom={sender};\r\n"
            f"\tdmarc={verdict} (p=reject) header.from={domain}\r\n"
            f"Received: from somewhere by {MX}; Mon, 2 Mar 2026 09:30:00 +0000\r\n"
        )
        if self.strips:
            content = content.replace(f"Authentication-Results: {MX};".encode(), b"X-Forged: ")
        return told.encode() + content

    def _authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        del server, session, envelope, mechanism
        self.logins += 1
        if answers := self.answers.get("auth"):
            return AuthResult(success=False, handled=False, message=answers.pop(0))
        given = cast("LoginPassword", data)
        good = given.login == self.user.encode() and given.password == self.password.encode()
        return AuthResult(success=good, handled=False, message=None if good else "535 5.7.8 who are you?")


def _hang_up(connection: SMTP) -> str:
    if connection.transport is not None:
        cast("asyncio.Transport", connection.transport).abort()
    return "421 nobody hears this"


class MailServer(Platform):
    """An account on the server, and users who write to it."""

    connector = Email
    has_bots = False
    _accounts = count()

    def __init__(self, dovecot: Dovecot, *, tls: str = "none") -> None:
        self.dovecot = dovecot
        self.tls = tls
        self.user = f"agent{next(self._accounts)}@{DOMAIN}"
        self.imap = Relay(dovecot.socket)
        self.smtp = Smtp(dovecot, self.user)
        self.password = PASSWORD
        self.link = f"mailto:{self.user}"
        self.ports = (0, 0)
        self._said: dict[str, bytes] = {}

    async def __aenter__(self) -> MailServer:
        implicit = self.dovecot.tls() if self.tls == "implicit" else None
        upgrade = self.dovecot.tls() if self.tls == "starttls" else None
        self.ports = (await self.imap.start(implicit), await self.smtp.start(tls=implicit, start_tls=upgrade))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.imap.stop()
        await self.smtp.stop()

    def settings(self) -> Mapping[str, Any]:
        return {
            "address": self.user,
            "password": self.password,
            "imap_host": "127.0.0.1",
            "imap_port": self.ports[0],
            "imap_tls": "none",
            "smtp_host": "127.0.0.1",
            "smtp_port": self.ports[1],
            "smtp_tls": "none",
            "authserv": MX,
            # Dovecot reports new mail after half a second.
            "renew": 0.1,
        }

    async def say(
        self,
        text: str,
        *,
        sender: str = "ana",
        room: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        bot: bool = False,
        file: tuple[str, str, bytes] | None = None,
    ) -> str:
        del room, mention, bot
        message = self.mail(text, sender=sender, thread=thread)
        if file is not None:
            name, media_type, content = file
            main, _, sub = media_type.partition("/")
            message.add_attachment(content, maintype=main, subtype=sub, filename=name)
        return await self.post(message)

    def mail(
        self, text: str, *, sender: str = "ana", thread: str | None = None, subject: str = ""
    ) -> EmailMessage:
        """Return a mail to the account, as mail programs write it."""
        message = EmailMessage(policy=policy.SMTP)
        message["From"] = f"{sender.title()} <{sender}@{PEOPLE}>"
        message["To"] = self.user
        message["Subject"] = f"Re: {subject}" if thread else subject
        message["Date"] = formatdate()
        message["Message-ID"] = f"<{uuid4()}@{PEOPLE}>"
        if thread is not None:
            message["In-Reply-To"] = thread
            message["References"] = thread
        message.set_content(text + "\n")
        return message

    async def post(self, message: EmailMessage, *, envelope: str | None = None) -> str:
        """Send a mail to the account."""
        content = message.as_bytes()
        self._said[str(message["Message-ID"])] = content
        await self.post_raw(content, envelope=envelope or str(message["From"]).rpartition("<")[2].rstrip(">"))
        return str(message["Message-ID"])

    async def post_raw(self, content: bytes, *, envelope: str = f"ana@{PEOPLE}") -> None:
        await aiosmtplib.send(
            content,
            sender=envelope,
            recipients=[self.user],
            hostname="127.0.0.1",
            port=self.ports[1],
            start_tls=False,
            local_hostname=PEOPLE,
        )

    async def repeat(self, message: str) -> None:
        await self.post_raw(self._said[message])

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        del room
        find = partial(self._shown_to, f"{to}@{PEOPLE}", thread)
        async with asyncio.timeout(PATIENCE), self.smtp.arrived:
            await self.smtp.arrived.wait_for(lambda: len(find()) >= count)
        return find()

    def _shown_to(self, recipient: str, thread: str | None) -> list[Shown]:
        """Return the mails as mail programs show them: a mail that arrived several times appears once."""
        shown: dict[str, Shown] = {}
        for to, message in self.smtp.kept:
            text = message.get_body(("plain",))
            root = str(message["References"] or "").split()[:1]
            if to == recipient and text is not None and (thread is None or root == [thread]):
                shown[str(message["Message-ID"])] = Shown(
                    id=str(message["Message-ID"]), text=text.get_content(), thread=next(iter(root), None)
                )
        return list(shown.values())

    async def cut(self) -> None:
        self.imap.cut()

    async def limit(self, seconds: float | None) -> None:
        if seconds is not None:
            pytest.skip("SMTP names no time")
        self.smtp.answers["rcpt"] = ["451 4.7.1 slower, please"]

    async def fail(self) -> None:
        self.smtp.answers["data"] = [None]

    async def refuse_message(self) -> None:
        self.smtp.answers["rcpt"] = ["550 5.1.1 nobody of this name"]

    async def refuse_login(self) -> None:
        self.password = "wrong"
