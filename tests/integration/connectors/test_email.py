"""The email connector against Dovecot and an SMTP server."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtplib import SMTPException
from pydantic import ValidationError
from tests.standins.email import MX, PASSWORD, PEOPLE, Dovecot, MailServer

from torana.connectors.base import OutcomeUnknown, Part, PermanentError, Place, RetryLater, TooLarge
from torana.connectors.platforms.email import imap
from torana.connectors.platforms.email.connector import FILES_LIMIT, Email, EmailSettings
from torana.connectors.platforms.email.imap import open_mailbox
from torana.testing.connectors import ConnectorContract, Line, listening, part

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def dovecot() -> Generator[Dovecot]:
    server = Dovecot()
    yield server
    server.stop()


@pytest.fixture
async def platform(dovecot: Dovecot) -> AsyncGenerator[MailServer]:
    async with MailServer(dovecot) as platform:
        yield platform


class TestEmail(ConnectorContract):
    """The contract of all connectors."""


@asynccontextmanager
async def running(platform: MailServer, **settings: Any) -> AsyncGenerator[tuple[Line, asyncio.Task[None]]]:
    """Run a connector, and yield its line and its run."""
    connector = Email(EmailSettings.model_validate({**platform.settings(), **settings}))
    line = Line(connector)
    run = asyncio.create_task(connector.run(line))
    ready = asyncio.create_task(line.is_ready.wait())
    try:
        await asyncio.wait({run, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield line, run
    finally:
        ready.cancel()
        run.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await run


def settings(platform: MailServer, **changed: Any) -> dict[str, Any]:
    return {**platform.settings(), **changed}


async def until_seen(platform: MailServer, count: int) -> None:
    async with asyncio.timeout(20):
        while len(platform.dovecot.seen(platform.user)) < count:  # noqa: ASYNC110 - the server announces nothing
            await asyncio.sleep(0.01)


def unseen(platform: MailServer) -> int:
    folder = platform.dovecot.folder(platform.user)
    return len([*(folder / "new").iterdir(), *(folder / "cur").iterdir()]) - len(
        platform.dovecot.seen(platform.user)
    )


# Incoming mail


async def test_mail_is_marked_seen_only_after_acceptance(platform: MailServer) -> None:
    async with running(platform) as (line, run):
        line.broken = True
        await platform.say("one")
        await line.next()
        with pytest.raises(OSError, match="cannot be written"):
            await run
        assert platform.dovecot.seen(platform.user) == []
    async with listening(platform) as line:
        await line.next()
        await until_seen(platform, 1)


async def test_server_announces_new_mail_through_idle(platform: MailServer) -> None:
    async with listening(platform, settings(platform, renew=500)) as line:
        for number in range(2):
            await platform.say(f"mail {number}")
            assert (await line.next()).text == f"mail {number}"


async def test_server_without_idle_is_polled(platform: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "POLL", 0.05)
    platform.imap.on_answer = lambda data: data.replace(b" IDLE", b"")
    asked: list[bytes] = []

    async def note(data: bytes) -> bytes:
        asked.append(data)
        return data

    platform.imap.on_command = note
    async with listening(platform, settings(platform, renew=500)) as line:
        await platform.say("hello")
        assert (await line.next()).text == "hello"
    assert not any(b"IDLE" in data for data in asked)


async def test_mail_that_arrives_during_search_is_found(platform: MailServer) -> None:
    """The server announces the mail in its answer to the search and does not announce it again."""

    searched = 0

    async def deliver(data: bytes) -> bytes:
        nonlocal searched
        if b"SEARCH" in data:
            searched += 1
            if searched == 1:
                await platform.say("just now")
        if b"IDLE" in data:  # from now on the server reports no changes
            platform.imap.open.clear()
        return data

    platform.imap.on_command = deliver
    async with listening(platform, settings(platform, renew=500)) as line:
        assert (await line.next()).text == "just now"


async def test_mail_that_cannot_be_marked_is_received_once(platform: MailServer) -> None:
    async def spoil(data: bytes) -> bytes:
        return data.replace(rb"\Seen", rb"\Flagged")

    platform.imap.on_command = spoil
    async with listening(platform) as line:
        for text in ("one", "two", "three"):
            await platform.say(text)
            assert (await line.next()).text == text
    assert line.heard.empty()


async def test_failed_fetch_is_repeated(platform: MailServer, caplog: pytest.LogCaptureFixture) -> None:
    refused = 0

    async def spoil(data: bytes) -> bytes:
        nonlocal refused
        if b"PEEK" not in data or refused == 2:
            return data
        refused += 1
        return data.replace(b"PEEK", b"NONE")

    platform.imap.on_command = spoil
    async with listening(platform, settings(platform, renew=0.05)) as line:
        await platform.say("one")
        assert (await line.next()).text == "one"
    assert [record.msg for record in caplog.records if "fetched" in record.msg] == ["mail_not_fetched"] * 2
    assert platform.imap.connections == 1


async def test_permanently_failing_fetch_does_not_block_other_mail(platform: MailServer) -> None:
    numbers: list[bytes] = []

    async def spoil(data: bytes) -> bytes:
        if b"PEEK" in data:
            numbers.append(data.lower().partition(b"fetch ")[2].partition(b" ")[0])
        return data.replace(b"PEEK", b"NONE") if numbers and numbers[-1] == numbers[0] else data

    await platform.say("broken")
    platform.imap.on_command = spoil
    async with listening(platform, settings(platform, renew=500)) as line:
        for text in ("one", "two"):
            await platform.say(text)
            assert (await line.next()).text == text


async def test_mail_from_downtime_is_received_and_old_mail_is_not(platform: MailServer) -> None:
    await platform.say("old")
    (old,) = (platform.dovecot.folder(platform.user) / "new").iterdir()
    os.utime(old, (0, time.time() - 3 * 86_400))
    await platform.say("yesterday")
    async with listening(platform) as line:
        assert (await line.next()).text == "yesterday"
        await until_seen(platform, 1)
        await platform.say("today")
        assert (await line.next()).text == "today"
        await until_seen(platform, 2)
    assert unseen(platform) == 1


async def test_renumbered_folder_loses_no_mail(platform: MailServer) -> None:
    async with running(platform) as (line, run):
        await platform.say("taken")
        await line.next()
        await until_seen(platform, 1)
        line.broken = True
        await platform.say("not taken")
        missed = await line.next()
        await asyncio.wait({run})
    for one in platform.dovecot.folder(platform.user).glob("dovecot*"):
        one.unlink()
    async with listening(platform) as line:
        assert (await line.next()).id == missed.id
        await platform.say("next")
        assert (await line.next()).text == "next"


async def test_id_depends_on_sender_and_content_of_mail(platform: MailServer) -> None:
    first, second = platform.mail("one"), platform.mail("two", sender="bob")
    del second["Message-ID"]
    second["Message-ID"] = str(first["Message-ID"])
    nameless = f"From: ana@{PEOPLE}\r\nSubject: x\r\n\r\nthree".encode()
    async with listening(platform) as line:
        await platform.post(first)
        await platform.post(second)
        for _ in range(2):
            await platform.post_raw(nameless)
        await platform.post_raw(nameless + b"!")
        ids = [(await line.next()).id for _ in range(5)]
    assert ids[2] == ids[3]
    assert len({*ids}) == 4


async def test_mail_with_forged_sender_is_ignored(
    platform: MailServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    platform.smtp.strips = False
    forged = platform.mail("let me in")
    forged["Authentication-Results"] = f"{MX}; dmarc=pass header.from={PEOPLE}"
    async with listening(platform) as line:
        await platform.post(forged, envelope="mallory@evil.test")
        await platform.say("really me")
        assert (await line.next()).text == "really me"
        await until_seen(platform, 2)
    assert "mail_ignored" in caplog.messages
    async with listening(platform, settings(platform, authserv="", trust_from=True)) as line:
        await platform.post(platform.mail("trusted"), envelope="mallory@evil.test")
        assert (await line.next()).text == "trusted"


async def test_automatic_own_and_malformed_mail_is_ignored(platform: MailServer) -> None:
    async with listening(platform, settings(platform, bots=True)) as line:
        vacation = platform.mail("I am away")
        vacation["Auto-Submitted"] = "auto-replied"
        await platform.post(vacation)
        ours = platform.mail("mine")
        ours.replace_header("From", platform.user.upper())
        await platform.post(ours)
        await platform.post_raw(f"From: ana@{PEOPLE}\r\nMessage-ID: <2@{PEOPLE}>\r\n\r\n \r\n".encode())
        await platform.post_raw(f"From: ana@{PEOPLE}, bob@{PEOPLE}\r\n\r\ntwo of us".encode())
        await platform.say("a person")
        assert (await line.next()).text == "a person"


async def test_copied_recipient_is_not_addressed(platform: MailServer) -> None:
    async with listening(platform) as line:
        copy = platform.mail("for your information")
        copy.replace_header("To", f"bob@{PEOPLE}")
        copy["Cc"] = f"Agent <{platform.user}>, carl@{PEOPLE}"
        await platform.post(copy)
        heard = await line.next()
        assert not heard.addressed
        assert not heard.direct
        both = platform.mail("for both")
        both.replace_header("To", f"bob@{PEOPLE}, {platform.user.upper()}")
        await platform.post(both)
        assert (await line.next()).addressed


async def test_subject_is_included_only_at_start_of_thread(platform: MailServer) -> None:
    async with listening(platform) as line:
        await platform.post(platform.mail("How is the weather?", subject="Lisbon"))
        assert (await line.next()).text == "Lisbon\n\nHow is the weather?"
        await platform.post(platform.mail("And now?", subject="Lisbon", thread="<1@people.test>"))
        heard = await line.next()
        assert (heard.text, heard.place.thread) == ("And now?", "<1@people.test>")
        await platform.post(platform.mail("/new", subject="whatever"))
        assert (await line.next()).text == "/new"
        await platform.post(platform.mail("", subject="call me"))
        assert (await line.next()).text == "call me"


async def test_large_mail_is_bounded(platform: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(platform) as line:
        await platform.say("word " * 200_000)
        assert len((await line.next()).text) > 900_000
        many = platform.mail("see")
        for number in range(200):
            many.add_attachment(b"x", "application", "x", filename=f"{number}\u202e.txt")
        await platform.post(many)
        heard = await line.next()
        assert len(heard.attachments) == FILES_LIMIT
        assert heard.attachments[1].name == "1.txt"
        monkeypatch.setattr(imap, "MAIL_LIMIT", 50_000)
        await platform.say("too much", file=("a.bin", "application/x", bytes(100_000)))
        heard = await line.next()
        assert heard.text == "too much"
        assert heard.attachments[0].fetch is not None
        with pytest.raises(TooLarge):
            await heard.attachments[0].fetch(10**9)


async def test_unreadable_mail_does_not_block_next_mail(platform: MailServer) -> None:
    async with listening(platform) as line:
        await platform.post_raw(b"X: y\r\n" * 100_000 + b"\r\nbad")
        await platform.say("good")
        assert (await line.next()).text == "good"
        await until_seen(platform, 2)


# Outgoing mail


async def test_reply_has_standard_headers_text_and_html(platform: MailServer) -> None:
    first = platform.mail("hello", subject="=?utf-8?q?H=C3=A9llo=0D=0ABcc:_bob@people.test?=")
    first["Reply-To"] = "mallory@evil.test"
    async with listening(platform, settings(platform, name='The "Agent"\r\nBcc: x')) as line:
        said = await platform.post(first)
        heard = await line.next()
        assert heard.place.chat == f"ana@{PEOPLE}"
        message = part(Email.abilities.render("It is **4**.\n\n> Héllo\n\n- a & b"), heard.place)
        sent = await line.connector.send(message)
        await platform.shown(1)
        await line.connector.send(part("wörd " * 500 + "\ud800", heard.place))
        await platform.shown(2)
    (_, long) = platform.smtp.kept.pop()
    assert max(len(one) for one in str(next(long.iter_parts()).get_payload()).splitlines()) <= 78
    (to, reply), *rest = platform.smtp.kept
    assert rest == []
    assert to == reply["To"] == f"ana@{PEOPLE}"
    assert sent == reply["Message-ID"] == f"<{message.key}@mail.test>"
    assert reply["From"].addresses[0].addr_spec == platform.user
    assert reply["Subject"] == "Re: Héllo Bcc: bob@people.test"
    assert reply["In-Reply-To"] == reply["References"] == said
    assert reply["Auto-Submitted"] == "auto-replied"
    assert reply["Bcc"] is None
    plain, rich = reply.iter_parts()
    assert isinstance(plain, EmailMessage)
    assert isinstance(rich, EmailMessage)
    assert plain.get_content().splitlines() == ["It is 4.", "", "> Héllo", "", "• a & b"]
    assert "<strong>4</strong>" in rich.get_content()


async def test_answered_mail_is_known(platform: MailServer) -> None:
    async with listening(platform) as line:
        said = await platform.say("hello")
        sent = await line.connector.send(part("hi", (await line.next()).place))
        for answered in (sent, said):
            await platform.post(platform.mail("yes", thread=answered))
            assert (await line.next()).in_reply_to == answered


async def test_references_of_long_thread_keep_first_and_latest(platform: MailServer) -> None:
    ids = [f"<{number}.{'x' * 200}@people.test>" for number in range(60)]
    mail = platform.mail("hello", thread=ids[0])
    mail.replace_header("References", " ".join(ids))
    raw = re.sub(rb"References:.*?\r\n(?! )", b"", mail.as_bytes(), flags=re.DOTALL)
    references = b"References: " + b"\r\n ".join(one.encode() for one in ids[:30]) + b"\r\n"
    async with listening(platform) as line:
        await platform.post_raw(references + raw)
        heard = await line.next()
        assert heard.place.thread == ids[0]
        await line.connector.send(part("yes", heard.place))
        await platform.shown(1)
    reply = platform.smtp.kept[0][1]
    assert reply["References"].split() == [ids[0], *ids[11:30], str(mail["Message-ID"])]


@pytest.mark.parametrize(
    ("command", "answer", "error"),
    [
        ("mail", "452 4.3.1 full", RetryLater),
        ("mail", "553 5.7.1 not yours", RetryLater),
        ("mail", None, RetryLater),
        ("auth", "535 5.7.8 who?", RetryLater),
        ("auth", "454 4.7.0 later", RetryLater),
        ("rcpt", "421 4.3.2 closing", RetryLater),
        ("rcpt", None, RetryLater),
        ("data", "451 4.3.0 later", RetryLater),
        ("data", "550 5.4.5 daily limit", RetryLater),
        ("data", "554 5.7.1 spam", PermanentError),
        ("data", None, OutcomeUnknown),
    ],
)
async def test_smtp_answer_becomes_delivery_error(
    platform: MailServer, command: str, answer: str | None, error: type[Exception]
) -> None:
    async with listening(platform) as line:
        # Several login methods are tried.
        platform.smtp.answers[command] = [answer] * (2 if command == "auth" else 1)
        place = Place(chat=f"ana@{PEOPLE}")
        with pytest.raises(error) as raised:
            await line.connector.send(part("hello", place))
        assert PASSWORD not in str(raised.value)
        await line.connector.send(part("again", place))
        assert len(await platform.shown(1)) == 1


async def test_unreachable_smtp_server_raises_retry_later(platform: MailServer) -> None:
    async with listening(platform) as line:
        await platform.smtp.stop()
        with pytest.raises(RetryLater):
            await line.connector.send(part("hello", Place(chat=f"ana@{PEOPLE}")))


async def test_place_without_single_valid_address_is_refused(platform: MailServer) -> None:
    connector = Email(EmailSettings.model_validate(platform.settings()))
    for chat in ("ana", f"ana@{PEOPLE}\r\nBcc: bob@{PEOPLE}", f"ana@{PEOPLE}, bob@{PEOPLE}", ""):
        with pytest.raises(PermanentError):
            await connector.send(part("hello", Place(chat=chat)))


async def test_ten_replies_can_be_sent_concurrently(platform: MailServer) -> None:
    async with listening(platform) as line:
        places = [Place(chat=f"p{number}@{PEOPLE}") for number in range(10)]
        await asyncio.gather(*(line.connector.send(part("hello", place)) for place in places))
    assert {to for to, _ in platform.smtp.kept} == {place.chat for place in places}


# Connections


async def test_lost_connection_ends_run(platform: MailServer) -> None:
    async with running(platform, renew=500) as (_, run):
        await platform.cut()
        with pytest.raises(ConnectionError, match="lost"):
            await asyncio.wait_for(run, 20)


async def test_dead_connection_times_out(platform: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def freeze(data: bytes) -> bytes:
        if data.startswith(b"DONE"):
            platform.imap.open.clear()
        return data

    monkeypatch.setattr(imap, "TIMEOUT", 3)
    async with running(platform) as (_, run):
        platform.imap.on_command = freeze
        await asyncio.wait({run}, timeout=20)
        with pytest.raises(TimeoutError):
            run.result()


async def test_swallowed_cancellation_is_raised_again() -> None:
    """``asyncio.wait_for``, which mail libraries use, can swallow a cancellation before Python 3.12."""
    begun = asyncio.Event()

    async def lose() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "went on"
        return ""

    task = asyncio.create_task(imap.cancellable(lose()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_login_leaves_no_task(platform: MailServer) -> None:
    connector = Email(EmailSettings.model_validate(platform.settings()))
    before = asyncio.all_tasks()
    task = asyncio.create_task(open_mailbox(await connector.access()).__aenter__())
    await asyncio.sleep(0)
    ours = asyncio.all_tasks() - before
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [one for one in ours if not one.done()] == []


async def test_run_can_be_cancelled_at_any_moment(platform: MailServer) -> None:
    for step in range(30):
        before = asyncio.all_tasks()
        connector = Email(EmailSettings.model_validate(settings(platform, renew=0.02)))
        run = asyncio.create_task(connector.run(Line(connector)))
        await asyncio.wait({run}, timeout=0.004 * step)
        ours = asyncio.all_tasks() - before
        run.cancel()
        done, _ = await asyncio.wait({run}, timeout=20)
        assert done
        servers = ("standins", "aiosmtpd")
        left = [task for task in ours if not task.done() and not any(name in repr(task) for name in servers)]
        assert left == []


async def test_idle_connection_gives_signs_of_life(platform: MailServer) -> None:
    signs: asyncio.Queue[None] = asyncio.Queue()
    async with listening(platform) as line:
        line.alive = lambda: signs.put_nowait(None)
        async with asyncio.timeout(20):
            for _ in range(3):
                await signs.get()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("[AUTHENTICATIONFAILED]", PermanentError),
        ("[UNAVAILABLE]", RetryLater),
        ("[ALERT] Too many logins:", RetryLater),
    ],
)
async def test_imap_login_error_is_permanent_or_retried(
    platform: MailServer, code: str, error: type[Exception]
) -> None:
    await platform.refuse_login()
    platform.smtp.password = platform.password  # the SMTP server is checked first
    platform.imap.on_answer = lambda data: data.replace(b"[AUTHENTICATIONFAILED]", code.encode())
    with pytest.raises(error, match="IMAP") as raised:
        async with listening(platform):
            pass
    assert "wrong" not in str(raised.value)


async def test_smtp_login_error_is_reported_before_imap_connects(platform: MailServer) -> None:
    platform.smtp.password = "another"
    with pytest.raises(PermanentError, match="SMTP"):
        async with listening(platform):
            pass
    assert platform.imap.connections == 0


async def test_configured_folder_is_read_and_missing_one_is_refused(platform: MailServer) -> None:
    with pytest.raises(PermanentError, match="No such"):
        async with listening(platform, settings(platform, folder="No such")):
            pass
    folder = platform.dovecot.folder(platform.user, ".For the agent")
    platform.dovecot.deliver_to(folder, platform.mail("filed").as_bytes())
    trusting = settings(platform, folder="For the agent", authserv="", trust_from=True)
    async with listening(platform, trusting) as line:
        assert (await line.next()).text == "filed"


async def test_refused_login_is_permanent_although_connection_closes(platform: MailServer) -> None:
    await platform.refuse_login()
    platform.smtp.password = platform.password

    def hang_up(data: bytes) -> bytes:
        if b"AUTHENTICATIONFAILED" in data:
            asyncio.get_running_loop().call_soon(platform.imap.cut)
        return data

    platform.imap.on_answer = hang_up
    with pytest.raises(PermanentError):
        async with listening(platform):
            pass


@pytest.mark.parametrize("end", [b"* BYE too many of you\r\n", b"* OK but not IMAP\r\n* \xff\r\n"])
async def test_invalid_greeting_raises_connection_error(platform: MailServer, end: bytes) -> None:
    platform.imap.on_answer = lambda data: end if data.startswith(b"* OK") else b"* CAPABILITY POP3\r\n" + data
    with pytest.raises(ConnectionError):
        async with listening(platform):
            pass


async def test_unparsable_answer_ends_connection_without_logging_password(
    platform: MailServer, caplog: pytest.LogCaptureFixture
) -> None:
    platform.imap.on_answer = lambda data: b"ZZZZ9 OK Logged in\r\n" if b"Logged in" in data else data
    with pytest.raises(ConnectionError):
        async with listening(platform):
            pass
    assert PASSWORD not in caplog.text
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_log_does_not_contain_password(platform: MailServer, caplog: pytest.LogCaptureFixture) -> None:
    said: list[bytes] = []

    async def note(data: bytes) -> bytes:
        said.append(data)
        return data

    platform.imap.on_command = note
    caplog.set_level(logging.DEBUG)
    async with listening(platform) as line:
        await platform.say("hello")
        await line.next()
    (login,) = (data.decode() for data in said if b" LOGIN " in data)
    assert PASSWORD in login.replace("\\", "")
    logged = "".join(str(vars(record)) for record in caplog.records)
    assert logged
    assert PASSWORD not in logged.replace("\\", "")


async def test_endless_line_ends_connection(platform: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "LINE_LIMIT", 1_000)
    async with running(platform) as (_, run):
        platform.imap.on_answer = lambda data: b"* " + b"x" * 2_000
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(run, 20)


async def test_mail_larger_than_requested_ends_connection(platform: MailServer) -> None:
    async with running(platform) as (line, run):
        platform.imap.on_answer = lambda data: re.sub(rb"\{\d+\}", b"{99999999999}", data)
        await platform.say("hello")
        with pytest.raises(ConnectionError, match="more than"):
            await asyncio.wait_for(run, 20)
        assert line.heard.empty()


# Encryption


def encrypted(platform: MailServer, mode: str, **changed: Any) -> dict[str, Any]:
    return (
        settings(
            platform,
            imap_host="localhost",
            imap_port=platform.ports[0],
            imap_tls=mode,
            smtp_host="localhost",
            smtp_port=platform.ports[1],
            smtp_tls=mode,
            ca_file=str(platform.dovecot.certificate),
        )
        | changed
    )


@pytest.fixture(params=["implicit", "starttls"])
async def secure(
    request: pytest.FixtureRequest, dovecot: Dovecot
) -> AsyncGenerator[tuple[MailServer, dict[str, Any]]]:
    async with MailServer(dovecot, tls=request.param) as platform:
        yield platform, encrypted(platform, request.param)


async def test_encrypted_connections_receive_and_send(secure: tuple[MailServer, dict[str, Any]]) -> None:
    platform, values = secure
    async with listening(platform, values) as line:
        platform.dovecot.deliver(
            platform.user,
            f"Authentication-Results: {MX}; spf=pass smtp.mailfrom={PEOPLE}\r\n".encode()
            + platform.mail("secret").as_bytes(),
        )
        heard = await line.next()
        await line.connector.send(part("yes", heard.place))
        assert (await platform.shown(1))[0].text.strip() == "yes"


@pytest.mark.parametrize("changed", [{"ca_file": None}, {"imap_host": "127.0.0.1", "smtp_host": "127.0.0.1"}])
async def test_certificates_are_verified(
    secure: tuple[MailServer, dict[str, Any]], changed: dict[str, Any]
) -> None:
    platform, values = secure
    for half in ("imap", "smtp"):
        mine = {key: value for key, value in changed.items() if key in ("ca_file", f"{half}_host")}
        with pytest.raises(Exception, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            async with listening(platform, values | mine):
                pass
    assert platform.smtp.kept == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"OK Begin\r\n* OK and what else", "sent data between STARTTLS and the encryption"),
        (b"NO not today\r\n", "does not support STARTTLS"),
    ],
)
async def test_missing_encryption_prevents_login(platform: MailServer, answer: bytes, reason: str) -> None:
    """The server refuses encryption, or an attacker on the network suppresses it."""
    said: list[bytes] = []

    async def note(data: bytes) -> bytes:
        said.append(data)
        return data

    platform.imap.on_command = note
    platform.imap.on_answer = lambda data: data.replace(b"OK Begin TLS negotiation now.\r\n", answer)
    with pytest.raises(ConnectionError, match=reason):
        async with listening(platform, encrypted(platform, "starttls", smtp_tls="none")):
            pass
    with pytest.raises(SMTPException, match="STARTTLS"):
        async with listening(platform, encrypted(platform, "starttls")):
            pass
    assert any(b"STARTTLS" in data for data in said)
    assert not any(b"LOGIN" in data for data in said)
    assert platform.smtp.logins == 1


# Settings


def test_sender_verification_must_be_configured(platform_settings: dict[str, Any]) -> None:
    for changed in ({"authserv": ""}, {"trust_from": True}):
        with pytest.raises(ValidationError, match=r"authserv.*trust_from") as raised:
            EmailSettings.model_validate(platform_settings | changed)
        assert PASSWORD not in str(raised.value)
    EmailSettings.model_validate(platform_settings | {"authserv": "", "trust_from": True})


@pytest.mark.parametrize("half", ["imap", "smtp"])
def test_unencrypted_connection_is_allowed_only_to_this_machine(
    platform_settings: dict[str, Any], half: str
) -> None:
    for host in ("mail.example.org", "192.0.2.1", "127.0.0.1.example.org"):
        with pytest.raises(ValidationError, match="unencrypted"):
            EmailSettings.model_validate(platform_settings | {f"{half}_host": host})
    for host in ("localhost", "127.0.0.2", "::1"):
        EmailSettings.model_validate(platform_settings | {f"{half}_host": host})


def test_settings_have_defaults_and_are_validated(platform_settings: dict[str, Any]) -> None:
    whole = EmailSettings.model_validate(platform_settings)
    assert (whole.pairing, whole.since_days, whole.imap_port, whole.folder) == (False, 1, 993, "INBOX")
    assert PASSWORD not in repr(whole)
    for wrong in ({"address": "agent"}, {"address": "a@b\r\nc"}, {"renew": 600}, {"folder": "a\nb"}, {"x": 1}):
        with pytest.raises(ValidationError):
            EmailSettings.model_validate(platform_settings | wrong)


def test_same_mailbox_has_same_credentials(platform_settings: dict[str, Any]) -> None:
    one, other = (
        Email(EmailSettings.model_validate(platform_settings | changed)).credentials
        for changed in ({}, {"address": "alias@mail.test", "user": "Agent@mail.test"})
    )
    assert one == other


@pytest.fixture
def platform_settings() -> dict[str, Any]:
    return {
        "address": "agent@mail.test",
        "password": PASSWORD,
        "imap_host": "localhost",
        "imap_tls": "none",
        "smtp_host": "localhost",
        "smtp_tls": "none",
        "authserv": MX,
    }


def test_reply_without_known_message_has_subject_and_references() -> None:
    connector = Email(
        EmailSettings(
            address="agent@mail.test",
            password=PASSWORD,  # pyright: ignore[reportArgumentType]
            imap_host="x",
            smtp_host="y",
            authserv=MX,
        )
    )
    message = connector._reply(  # pyright: ignore[reportPrivateUsage]
        Part(key="k", place=Place(chat="ana@people.test", thread="<1@people.test>"), text="hi")
    )
    assert message["Subject"] == "Re:"
    assert message["In-Reply-To"] == message["References"] == "<1@people.test>"
