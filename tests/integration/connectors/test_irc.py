"""The IRC connector against ngIRCd, and against a small server with features that ngIRCd lacks."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.standins.irc import ROOM, IrcPlatform
from tests.standins.servers import certify, free_port
from tests.waiting import PATIENCE

from torana.connectors.base import IncomingMessage, OutcomeUnknown, PermanentError, Place, RetryLater
from torana.connectors.platforms.irc import connector as irc
from torana.connectors.platforms.irc.connector import Irc, IrcSettings
from torana.connectors.platforms.irc.protocol import IrcMessage, wrap
from torana.connectors.transport.splitting import split
from torana.testing.connectors import ConnectorContract, Line, listening, part

pytestmark = pytest.mark.long


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncGenerator[IrcPlatform]:
    async with IrcPlatform(tmp_path) as platform:
        yield platform


class TestIrc(ConnectorContract):
    pass


async def test_reply_with_any_characters_is_text_and_no_command(platform: IrcPlatform) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        place = (await line.next()).place
        nasty = (
            "one\r\nQUIT :gone\rJOIN #evil\x00\nPRIVMSG bob :x\u2028KICK #room ana\x85NICK x\x01ACTION y\x01"
        )
        await line.connector.send(part(nasty, place))
        shown = [one.text for one in await platform.shown(6)]
        assert shown == [
            "one",
            "QUIT :gone",
            "JOIN #evil",
            "PRIVMSG bob :x",
            "KICK #room ana",
            "NICK xACTION y",
        ]


@pytest.mark.parametrize(
    "chat", ["#room\r\nQUIT", "#room,#other", "#elsewhere", "~a b!c@d", "~a,b!c@d", "~:!", ""]
)
async def test_part_for_invalid_place_is_not_sent(platform: IrcPlatform, chat: str) -> None:
    async with listening(platform) as line:
        with pytest.raises((PermanentError, RetryLater)):
            await line.connector.send(part("hello", Place(chat=chat)))
        await platform.say("still there?")
        assert (await line.next()).text == "still there?"
        assert platform.watcher.said("torana", ROOM) == []


@pytest.mark.parametrize(("nick", "room"), [("torana", ROOM), ("a_nick_of_20_letters", "#" + "r" * 49)])
async def test_longest_lines_arrive_whole(platform: IrcPlatform, nick: str, room: str) -> None:
    text = "🙂" * 500 + " " + "ü" * 1000 + "\n\n" + "word " * 90
    watcher = platform.watcher
    watcher.write(f"JOIN {room}")
    async with listening(platform, {**platform.settings(), "nick": nick, "channels": [room]}) as line:
        await line.connector.send(part(text, Place(chat=room)))
        await watcher.is_up_to_date()
        lines = [one for one in watcher.lines if b" PRIVMSG " in one and one.startswith(f":{nick}!".encode())]
        said = "".join(one.partition(b" :")[2].decode() for one in lines)
        assert said.replace(" ", "") == text.replace(" ", "").replace("\n", "")
        # This does not depend on the server: with the longest host name, nothing is cut either.
        assert max(len(one) - len(b"127.0.0.1") + 64 for one in lines) <= 510


@given(st.text(max_size=300), st.integers(min_value=64, max_value=400))
def test_wrapped_lines_fit_and_lose_nothing(text: str, limit: int) -> None:
    lines = wrap(text, limit)
    assert all(0 < len(line.encode(errors="replace")) <= limit for line in lines)
    assert not any(character in line for line in lines for character in "\r\n\0\x01")
    kept = "".join(irc.CONTROLS.sub("", "".join(text.split())).split())
    assert "".join("".join(lines).split()) == kept


@given(st.text())
def test_any_line_can_be_read(text: str) -> None:
    message = IrcMessage.parse(text)
    assert message.command == message.command.upper()
    assert isinstance(message.param(0) + message.text + message.nick, str)


def test_complete_line_is_parsed() -> None:
    message = IrcMessage.parse(r"@account=Ana;x=a\:b\sc\\d;bot :ana!u@h PRIVMSG #Room  :a :b")
    assert message.tags == {"account": "Ana", "x": r"a;b c\d", "bot": ""}
    assert (message.nick, message.command, message.params) == ("ana", "PRIVMSG", ("#Room", "a :b"))


async def test_mention_addresses_bot_and_leading_mention_is_cut(platform: IrcPlatform) -> None:
    said = {
        "torana: one": ("one", True),
        "Torana, two": ("two", True),
        "@torana three": ("three", True),
        "is torana there?": ("is torana there?", True),
        "toranas are many": ("toranas are many", False),
        "xtorana torana_ [torana]": ("xtorana torana_ [torana]", False),
        "torana:": ("", True),
    }
    async with listening(platform) as line:
        for text, (heard, addressed) in said.items():
            await platform.say(text, room=ROOM)
            message = await line.next()
            assert (message.text, message.addressed) == (heard, addressed), text
            assert message.place.chat == ROOM


async def test_lines_other_than_user_messages_are_ignored(platform: IrcPlatform) -> None:
    ana = await platform.person("ana")
    async with listening(platform) as line:
        ana.write("NOTICE torana :beep", "PRIVMSG torana :\x01VERSION\x01", "PRIVMSG torana :\x02\x0f")
        ana.write("PRIVMSG torana :\x01ACTION waves\x01", "PRIVMSG torana :\x0304,05red\x03 \x02bold\x02 plain")
        assert (await line.next()).text == "waves"
        assert (await line.next()).text == "red bold plain"
        assert line.heard.empty()


async def test_sender_without_account_is_identified_by_full_address(platform: IrcPlatform) -> None:
    async with listening(platform) as line:
        await platform.say("hello", sender="Bob")
        heard = await line.next()
        assert heard.sender.id == "~bob!~bob@127.0.0.1"
        assert heard.sender.name == "Bob"
        assert heard.place.chat == heard.sender.id


async def test_bot_mode_is_set(platform: IrcPlatform) -> None:
    async with listening(platform):
        platform.watcher.write("WHOIS torana")
        assert b"bot" in (await platform.watcher.saw(" 335 ")).lower()


def test_part_has_few_lines_for_any_line_length() -> None:
    pieces = split("\n".join(f"- item {n}" for n in range(10)), Irc.abilities)
    assert [len(wrap(Irc.abilities.render(piece), irc.LINE)) for piece in pieces] == [4, 4, 2]


async def test_old_encodings_are_decoded(platform: IrcPlatform) -> None:
    ana = await platform.person("ana")
    async with listening(platform) as line:
        ana.write("PRIVMSG torana :é", encoding="cp1252")
        assert (await line.next()).text == "é"


async def test_taken_nick_is_replaced_and_regained(
    platform: IrcPlatform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(irc, "PROBE", 0.05)
    squatter = await platform.person("torana")
    async with listening(platform) as line:
        assert "irc_nick_in_use" in caplog.text
        squatter.write(f"JOIN {ROOM}", f"PRIVMSG {ROOM} :torana_: hello", f"PRIVMSG {ROOM} :torana is me")
        assert (await line.next()).text == "hello"
        assert not (await line.next()).addressed
        squatter.write("NICK other")
        await platform.watcher.saw(":torana_!~torana@127.0.0.1 NICK :torana")
        await platform.say("again", room=ROOM, mention=True)
        assert (await line.next()).addressed


async def test_nick_is_found_when_similar_nicks_are_taken(platform: IrcPlatform) -> None:
    for nick in ("torana", "torana_", "toran_"):
        await platform.person(nick)
    async with listening(platform) as line:
        joined = await platform.watcher.saw("!~torana@127.0.0.1 JOIN ")
        nick = joined[1:].partition(b"!")[0].decode()
        assert nick[:4] == "tora"
        (await platform.person("ana")).write(f"PRIVMSG {nick} :hello")
        assert (await line.next()).direct


async def test_closed_channel_does_not_block_other_channels(
    platform: IrcPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    owner = await platform.person("owner")
    owner.write("JOIN #closed", "MODE #closed +i", "JOIN #locked", "MODE #locked +k opener")
    await owner.is_up_to_date()
    settings = {**platform.settings(), "channels": [ROOM, "#Closed", "#locked opener"]}
    async with listening(platform, settings) as line:
        assert "irc_channel_closed" in caplog.text
        with pytest.raises(PermanentError, match="cannot join #closed"):
            await line.connector.send(part("hello", Place(chat="#closed")))
        owner.write("PRIVMSG #locked :in the locked one")
        assert (await line.next()).place.chat == "#locked"
        owner.write("INVITE torana #closed")
        await owner.saw(":torana!~torana@127.0.0.1 JOIN :#Closed")
        owner.write("PRIVMSG #closed :in the closed one")
        assert (await line.next()).place.chat == "#closed"
        await line.connector.send(part("thanks", Place(chat="#closed")))


async def test_sending_to_channel_after_kick_is_retried_later(platform: IrcPlatform) -> None:
    async with listening(platform) as line:
        platform.watcher.write(f"KICK {ROOM} torana :out")
        await platform.watcher.saw(f" KICK {ROOM} torana")
        await platform.say("seen?")
        await line.next()
        with pytest.raises(RetryLater, match="not in #room"):
            await line.connector.send(part("anybody?", Place(chat=ROOM)))


async def test_connector_rejoins_channel_after_kick(
    platform: IrcPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(irc, "PROBE", 0.05)
    async with listening(platform) as line:
        await platform.watcher.is_up_to_date()
        since = len(platform.watcher.lines)
        platform.watcher.write(f"KICK {ROOM} torana :out")
        await platform.watcher.saw(f":torana!~torana@127.0.0.1 JOIN :{ROOM}", since=since)
        await platform.say("next", room=ROOM)
        await line.next()
        await line.connector.send(part("back again", Place(chat=ROOM)))
        assert (await platform.shown(1, room=ROOM))[0].text == "back again"


async def test_muted_channel_refuses_part(platform: IrcPlatform) -> None:
    platform.watcher.write(f"MODE {ROOM} +m")
    async with listening(platform) as line:
        with pytest.raises(PermanentError, match=r"(?i)cannot send"):
            await line.connector.send(part("hello\n" * 4, Place(chat=ROOM)))
        await platform.say("hello")
        await line.connector.send(part("directly", (await line.next()).place))


async def test_concurrent_parts_are_not_interleaved(platform: IrcPlatform) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        place = (await line.next()).place
        texts = [f"{n} a\n{n} b\n{n} c" for n in range(10)]
        await asyncio.gather(*(line.connector.send(part(text, place)) for text in texts))
        assert [one.text for one in await platform.shown(30)] == "\n".join(texts).split("\n")


async def test_lines_are_sent_at_rate_that_server_allows(
    platform: IrcPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(platform, {**platform.settings(), "lines_per_second": 0.5}) as line:
        await platform.say("hello")
        place = (await line.next()).place
        sleep = AsyncMock()
        monkeypatch.setattr(irc.asyncio, "sleep", sleep)
        await line.connector.send(part("a\nb\nc\nd", place))
        assert not any(call.args[0] for call in sleep.await_args_list)  # four at once
        await line.connector.send(part("e\nf\ng\nh", place))
        assert 0 < max(call.args[0] for call in sleep.await_args_list) <= 8
        more = [line.connector.send(part("i", place)) for _ in range(20)]
        answers = await asyncio.gather(*more, return_exceptions=True)
        monkeypatch.undo()
        too_many = [answer for answer in answers if isinstance(answer, RetryLater)]  # the queue is not endless
        assert 10 <= len(too_many) < 20
        assert all(answer.seconds is not None and 10 < answer.seconds <= 12 for answer in too_many)


async def test_replies_are_sent_while_message_waits_for_ingress(platform: IrcPlatform) -> None:
    """While the gateway stops, a message that ingress no longer takes does not block replies."""
    async with listening(platform) as line:
        line.gate = asyncio.Event()
        await platform.say("slow")
        place = (await line.next()).place
        await line.connector.send(part("an answer", place))
        assert [one.text for one in await platform.shown(1)] == ["an answer"]


async def test_message_waiting_for_ingress_survives_connection(platform: IrcPlatform) -> None:
    """IRC does not repeat messages. Nothing is sent meanwhile, because there is no connection."""
    connector = Irc(IrcSettings.model_validate(platform.settings()))
    gate, taken = asyncio.Event(), asyncio.Queue[str]()

    class Slow(Line):
        async def hear(self, heard: IncomingMessage) -> None:
            await super().hear(heard)
            await gate.wait()
            taken.put_nowait(heard.text)

    line = Slow(connector)
    run = asyncio.create_task(connector.run(line))
    await line.is_ready.wait()
    for text in ("one", "two"):
        await platform.say(text)
    place = (await line.next()).place
    await line.next()
    await platform.cut()
    async with asyncio.timeout(PATIENCE):
        while not isinstance(await _outcome(line, place), RetryLater):
            pass
    gate.set()
    with pytest.raises(ConnectionError):
        await run
    assert [taken.get_nowait() for _ in range(2)] == ["one", "two"]


async def _outcome(line: Line, place: Place) -> Exception | None:
    try:
        await line.connector.send(part("hello?", place))
    except (RetryLater, OutcomeUnknown) as error:
        return error
    return None


async def test_dead_connection_reports_no_activity(
    platform: IrcPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(irc, "PROBE", 0.02)
    signs: asyncio.Queue[None] = asyncio.Queue()
    async with listening(platform) as line:
        line.alive = lambda: signs.put_nowait(None)
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):  # probes are answered
                await signs.get()
        platform.proxy.stall()
        monkeypatch.setattr(irc, "TIMEOUT", 0.05)
        with pytest.raises(OutcomeUnknown):  # the line in transit has arrived meanwhile
            await line.connector.send(part("hello", Place(chat=ROOM)))
        before = signs.qsize()
        with pytest.raises(OutcomeUnknown):
            await line.connector.send(part("hello?", Place(chat=ROOM)))
        assert signs.qsize() == before


async def test_trickled_connection_works_and_corrupted_one_ends(platform: IrcPlatform) -> None:
    platform.proxy.trickle()
    connector = Irc(IrcSettings.model_validate(platform.settings()))
    line = Line(connector)
    run = asyncio.create_task(connector.run(line))
    await line.is_ready.wait()
    await platform.say("hello")
    assert (await line.next()).text == "hello"
    platform.proxy.corrupt()
    await platform.say("x" * 400)
    platform.proxy.cut()
    with pytest.raises(OSError, match=r"."):
        await run
    assert line.heard.empty()


@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncGenerator[IrcPlatform]:
    await certify(tmp_path)
    async with IrcPlatform(tmp_path, tls_port=free_port()) as platform:
        yield platform


async def test_certificate_is_verified(
    encrypted: IrcPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**encrypted.settings(), "tls": True, "port": encrypted.tls_port}
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        async with listening(encrypted, settings):
            pass
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    async with listening(encrypted, settings) as line:
        await encrypted.say("hello")
        await line.connector.send(part("safely", (await line.next()).place))
        assert (await encrypted.shown(1))[0].text == "safely"


class Services:
    """A server with the commands that an account login needs; it follows https://ircv3.net/irc/."""

    def __init__(self) -> None:
        self.offers = ["account-tag message-tags", "sasl=EXTERNAL,PLAIN multi-prefix"]
        self.password = "secret"
        self.got: list[str] = []
        self.writer: asyncio.StreamWriter | None = None
        self._pieces = ""
        self.answer: Callable[[str], list[str]] = self.as_a_server

    def write(self, *lines: str) -> None:
        assert self.writer is not None
        self.writer.write("".join(f"{line}\r\n" for line in lines).encode())

    def as_a_server(self, line: str) -> list[str]:
        word, _, rest = line.partition(" ")
        match word, rest:
            case "CAP", _:
                return self._negotiate(rest)
            case "AUTHENTICATE", ":PLAIN":
                return ["AUTHENTICATE +"]
            case "AUTHENTICATE", _:
                return self._authenticate(rest.removeprefix(":"))
            case "PING", _:
                return [f":s PONG s {rest}"]
            case "JOIN", _:
                return [f":torana!u@h {line}"]
            case "PRIVMSG", "#fast :hello":
                return [":s 439 torana #fast :Target changes too fast"]
            case "PRIVMSG", "#busy :hello":
                return [":s 263 torana PRIVMSG :Please wait a while and try again"]
            case _:
                return []

    def _negotiate(self, line: str) -> list[str]:
        if line == "LS :302":
            *more, last = self.offers
            return [f":s CAP * LS * :{one}" for one in more] + [f":s CAP * LS :{last}"]
        if line.startswith("REQ"):
            return [f":s CAP * ACK {line.removeprefix('REQ ')}"]
        return [":s 001 torana :Welcome", ":s 422 torana :no message of the day"]

    def _authenticate(self, piece: str) -> list[str]:
        self._pieces += piece.removeprefix("+")
        if len(piece) == 400:
            return []
        if self._pieces == b64encode(f"torana\0torana\0{self.password}".encode()).decode():
            return [":s 900 torana t!t@h torana :Logged in", ":s 903 torana :Welcome"]
        return [":s 904 torana :SASL authentication failed"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while line := await reader.readline():
            self.got.append(line.decode().rstrip("\r\n"))
            self.write(*self.answer(self.got[-1]))
        writer.close()


@asynccontextmanager
async def logged_in(services: Services, **more: Any) -> AsyncGenerator[Line]:
    server = await asyncio.start_server(services.serve, "127.0.0.1", 0)
    async with server:
        settings = {
            "host": "127.0.0.1",
            "port": server.sockets[0].getsockname()[1],
            "tls": False,
            "sasl_user": "torana",
            "sasl_password": "secret",
            "lines_per_second": 1000,
            **more,
        }
        async with listening(IrcPlatform(Path()), settings) as line:
            yield line


async def test_account_identifies_sender_and_bot_tag_marks_bot() -> None:
    services = Services()
    async with logged_in(services) as line:
        assert services.got.index("CAP :END") > services.got.index("AUTHENTICATE :PLAIN")
        services.write(
            "@account=Ana;msgid=m1 :x!u@h PRIVMSG torana :one",
            "@account=Ana;msgid=m2;bot :y!u@other PRIVMSG torana :two",
            ":ana!u@h PRIVMSG torana :three",
        )
        one, two, three = [await line.next() for _ in range(3)]
        assert one.sender.id == two.sender.id == one.place.chat == "ana"
        assert [one.id, two.id] == ["m1", "m2"]
        assert [one.sender.automatic, two.sender.automatic] == [False, True]
        assert three.sender.id == "~ana!u@h"
        await line.connector.send(part("hello", two.place))
        assert "PRIVMSG y :hello" in services.got


async def test_part_for_account_without_known_nick_is_not_sent() -> None:
    async with logged_in(Services()) as line:
        with pytest.raises(PermanentError, match="the nick of ana is unknown"):
            await line.connector.send(part("hello", Place(chat="ana")))


async def test_early_rejection_is_retried_later() -> None:
    async with logged_in(Services(), channels=["#fast", "#busy"]) as line:
        for chat in ("#fast", "#busy"):
            with pytest.raises(RetryLater):
                await line.connector.send(part("hello", Place(chat=chat)))
        await line.connector.send(part("in time", Place(chat="#fast")))


@pytest.mark.parametrize("refusal", ["439 torana #fast :Too fast", "263 torana PRIVMSG :Please wait"])
@pytest.mark.parametrize(
    ("refused", "raised"),
    [("abc", RetryLater), ("bc", OutcomeUnknown), ("c", OutcomeUnknown)],
)
async def test_part_of_which_some_lines_were_accepted_has_unknown_outcome(
    refusal: str, refused: str, raised: type[Exception]
) -> None:
    services = Services()

    def answer(line: str) -> list[str]:
        if line.startswith("PRIVMSG") and line[-1] in refused:
            return [f":s {refusal}"]
        return services.as_a_server(line)

    services.answer = answer
    async with logged_in(services, channels=["#fast"]) as line:
        with pytest.raises(raised):
            await line.connector.send(part("a\nb\nc", Place(chat="#fast")))


@pytest.mark.parametrize("length", [10, 292, 293, 700])
async def test_long_password_is_sent_in_pieces(length: int) -> None:
    services = Services()
    services.password = "p" * length
    async with logged_in(services, sasl_password="p" * length):
        pass


async def test_wrong_account_password_is_refused_and_not_shown() -> None:
    services = Services()
    services.password = "other"
    with pytest.raises(PermanentError, match="SASL authentication failed") as raised:
        async with logged_in(services):
            pass
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("offers", [["multi-prefix"], [""]])
async def test_server_without_sasl_is_refused(offers: list[str]) -> None:
    services = Services()
    services.offers = offers
    with pytest.raises(PermanentError, match="does not support SASL"):
        async with logged_in(services):
            pass


@pytest.mark.parametrize(
    ("goodbye", "error"),
    [
        ("ERROR :Closing Link: torana[1.2.3.4] (K-Lined)", PermanentError),
        (":s 465 torana :You are banned from this server", PermanentError),
        (":s 464 torana :Password incorrect", PermanentError),
        (":s 432 torana :Erroneous nickname", PermanentError),
        ("ERROR :Trying to reconnect too fast.", ConnectionError),
        ("ERROR", ConnectionError),
        ("x" * 20_000, ValueError),
    ],
)
async def test_failed_login_raises_matching_error(goodbye: str, error: type[Exception]) -> None:
    services = Services()
    services.answer = lambda line: [goodbye] if line.startswith("USER") else []
    with pytest.raises(error):
        async with logged_in(services):
            pass


async def test_log_has_no_secrets(platform: IrcPlatform, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with listening(platform) as line:
        await platform.say("hello")
        await line.next()
    assert "open sesame" not in caplog.text
    assert "open sesame" not in repr(line.connector.settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nick": "to rana"},
        {"nick": "#torana"},
        {"channels": ["#a\r\nQUIT"]},
        {"password": "a\nb"},
        {"sasl_user": "x"},
        {"host": "irc\r\n"},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        IrcSettings.model_validate({"host": "irc.test", **wrong})
