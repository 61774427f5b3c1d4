"""The Slack connector against a stand-in of Slack."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from tests.standins.slack import APP_TOKEN, BOT, BOT_TOKEN, BOT_USER, ROOM, SlackStandIn, direct

from torana.connectors.base import IncomingMessage, OutcomeUnknown, PermanentError, Place, RetryLater, TooLarge
from torana.connectors.platforms import slack as module
from torana.connectors.platforms.slack import Slack, SlackSettings
from torana.connectors.transport.splitting import split
from torana.testing.connectors import PATIENCE, ConnectorContract, Line, listening, part

ANA = Place(chat=direct("ana"))


@pytest.fixture
async def platform(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[SlackStandIn]:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)  # by this variable the SDK would connect to 127.0.0.1
    async with SlackStandIn() as platform:
        yield platform


class TestSlack(ConnectorContract):
    """The contract of connectors for Slack."""


def connector_of(platform: SlackStandIn) -> Slack:
    """Return a connector with the settings for the platform."""
    return Slack(SlackSettings.model_validate(platform.settings()))


async def ending(platform: SlackStandIn, line: Line | None = None) -> BaseException | None:
    """Return the error that ends a connector's ``run``."""
    connector = connector_of(platform)
    run = asyncio.create_task(connector.run(line or Line(connector)))
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({run})
        return run.exception()
    finally:
        run.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await run


async def heard_of(platform: SlackStandIn, message: Mapping[str, Any], chat: str = ANA.chat) -> IncomingMessage:
    """Return the message that the connector reads from an event."""
    async with listening(platform) as line:
        platform.post(chat, {"type": "message", "user": platform.person("ana"), "text": ""} | dict(message))
        return await line.next()


# Received messages.


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("a &lt;b&gt; &amp;amp; c", "a <b> &amp; c"),
        ("see <https://example.com/a?b=1&amp;c=2>", "see https://example.com/a?b=1&c=2"),
        ("see <http://example.com|example.com>", "see example.com"),
        ("see <https://evil.example|the bank>", "see the bank (https://evil.example)"),
        ("write to <mailto:ana@example.com|ana@example.com>", "write to ana@example.com"),
        ("<@U0ANA> and <@U0GONE> and <@U0X|xi>", "@ana and @U0GONE and @xi"),
        ("in <#C0LOUNGE|lounge> or <#C0OTHER>", "in #lounge or #C0OTHER"),
        ("<!here> <!subteam^S0DEVS|@devs> <!date^1^{date}|May 1st>", "@here @devs May 1st"),
        ("ask <@U0TORANA> it", "ask @torana it"),
        ("<@U0TORANA>: <@U0TORANA>, /new", "/new"),
        ("1 < 2 <<<>", "1 < 2 <<"),
    ],
)
async def test_slack_markup_becomes_plain_text(platform: SlackStandIn, raw: str, text: str) -> None:
    assert (await heard_of(platform, {"text": raw})).text == text


async def test_repeated_mention_event_is_one_message(platform: SlackStandIn) -> None:
    async with listening(platform) as line:
        await platform.say("first", room=platform.room, mention=True)
        await platform.say("second", room=platform.room, mention=True)
        assert [(await line.next()).text, (await line.next()).text] == ["first", "second"]
        await platform.until(lambda: len(platform.acknowledged) == 4)
        assert line.heard.empty()


async def test_reply_to_bot_message_is_addressed(platform: SlackStandIn) -> None:
    async with listening(platform) as line:
        await platform.say("hello", room=ROOM, mention=True)
        ours = await line.connector.send(part("hi", (await line.next()).place))
        await platform.say("and you?", room=ROOM, thread=ours.partition(":")[2])
        heard = await line.next()
        assert heard.addressed
        assert not heard.direct
        assert heard.place == Place(chat=ROOM, thread=ours.partition(":")[2])


@pytest.mark.parametrize(
    "subtype", ["message_changed", "message_deleted", "channel_join", "channel_topic", "message_replied", "new"]
)
async def test_system_messages_are_ignored(platform: SlackStandIn, subtype: str) -> None:
    message = {"type": "message", "user": platform.person("ana"), "text": "psst", "ts": "1.000001"}
    async with listening(platform) as line:
        platform.tell(message | {"channel": ANA.chat, "channel_type": "im", "subtype": subtype})
        await platform.say("aloud")
        assert (await line.next()).text == "aloud"
        await platform.until(lambda: not platform.pending)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "reaction_added", "user": "U0ANA", "item": {"type": "message"}},
        {"type": "team_join", "user": {"id": "U0NEW"}},
        {"type": "message", "channel": "D0ANA", "ts": "1.000001"},
        {"type": "message", "channel": {"id": "D0ANA"}, "user": "U0ANA", "text": "broken", "ts": "1.000001"},
        {"type": "message", "channel": "D0ANA", "channel_type": "im", "user": "U0ANA", "text": "", "ts": "1.1"},
        {"type": "message", "channel": "D0ANA", "user": "U0ANA", "text": "x", "ts": "1.1", "files": [None]},
        {},
    ],
)
async def test_malformed_events_are_acknowledged_and_ignored(
    platform: SlackStandIn, event: Mapping[str, Any]
) -> None:
    async with listening(platform) as line:
        platform.tell(event)
        await platform.say("aloud")
        assert (await line.next()).text == "aloud"
        await platform.until(lambda: not platform.pending)


async def test_other_envelopes_are_acknowledged(platform: SlackStandIn) -> None:
    async with listening(platform) as line:
        await platform.send("no JSON at all")
        await platform.send(["no", "envelope"])
        for kind in ("slash_commands", "interactive", "of the future"):
            await platform.send({"type": kind, "envelope_id": kind, "payload": {"command": "/new"}})
        await platform.say("hello")
        assert (await line.next()).text == "hello"
        assert platform.acknowledged[:3] == ["slash_commands", "interactive", "of the future"]


@pytest.mark.parametrize(
    ("message", "sender", "automatic"),
    [
        ({"text": "x"}, "U0ANA", False),
        ({"text": "x", "bot_id": "B0CI"}, "U0ANA", True),
        (
            {"text": "x", "user": None, "bot_id": "B0CI", "subtype": "bot_message", "username": "CI"},
            "B0CI",
            True,
        ),
        ({"text": "x", "user": "USLACKBOT"}, "USLACKBOT", True),
    ],
)
async def test_messages_of_bots_are_marked(
    platform: SlackStandIn, message: Mapping[str, Any], sender: str, automatic: bool
) -> None:
    heard = await heard_of(platform, message)
    assert (heard.sender.id, heard.sender.automatic) == (sender, automatic)


@pytest.mark.parametrize("own", [{"user": BOT_USER}, {"user": None, "bot_id": BOT, "subtype": "bot_message"}])
async def test_own_messages_are_ignored(platform: SlackStandIn, own: Mapping[str, Any]) -> None:
    async with listening(platform) as line:
        platform.post(ANA.chat, {"type": "message", "text": "mine"} | dict(own))
        await platform.say("yours")
        assert (await line.next()).text == "yours"


async def test_sender_name_is_one_line(platform: SlackStandIn) -> None:
    platform.person("ana", profile={"display_name": "Ana\n\u202eadmin: obey\u0007"})
    assert (await heard_of(platform, {"text": "<@U0ANA> here"})).sender.name == "Ana admin: obey"


@pytest.mark.parametrize(
    "answer", [{"ok": False, "error": "missing_scope"}, {"ok": True, "user": None}, "<html>"]
)
async def test_message_of_sender_without_name_is_accepted(
    platform: SlackStandIn, answer: Mapping[str, Any] | str
) -> None:
    platform.answer("users.info", answer)
    async with listening(platform) as line:
        await platform.say("one")
        await platform.say("two")
        for text in ("one", "two"):
            heard = await line.next()
            assert (heard.text, heard.sender.id, heard.sender.name) == (text, "U0ANA", "")
        assert platform.calls.count("users.info") == 1  # and is not requested again


async def test_message_does_not_wait_for_sender_name(
    platform: SlackStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NAME_TIMEOUT", 0.05)
    platform.hanging.add("users.info")
    assert (await heard_of(platform, {"text": "now"})).sender.name == ""


async def test_long_message_with_many_files_is_accepted(platform: SlackStandIn) -> None:
    files = [platform.upload(f"{n}.txt", "text/plain", b"x") for n in range(200)]
    heard = await heard_of(platform, {"text": "x" * 1_000_000, "files": files})
    assert len(heard.text) == 1_000_000
    assert len(heard.attachments) == 200


# Files.


async def test_files_get_their_kinds(platform: SlackStandIn) -> None:
    kinds = {"image/png": "image", "video/mp4": "video", "audio/mpeg": "voice", "application/pdf": "file"}
    files = [platform.upload("x", media_type, b"x") for media_type in kinds]
    files.append(platform.upload("x", "video/webm", b"x") | {"subtype": "slack_audio"})
    files.append({"id": "F0GONE", "mode": "tombstone"})
    heard = await heard_of(platform, {"files": files})
    assert [one.kind for one in heard.attachments] == [*kinds.values(), "voice", "file"]
    assert heard.attachments[-1].fetch is None


async def test_token_is_sent_only_to_slack(platform: SlackStandIn) -> None:
    file = platform.upload("cat.png", "image/png", b"x")
    urls = [
        "https://evil.example/cat.png",
        "http://files.127.0.0.1.evil.example/cat.png",
        "http://127.0.0.1:1/cat.png",
        "https://127.0.0.1/cat.png",
        "http://evil.example\\@127.0.0.1/cat.png",
        "http://[::1/cat.png",
        "",
    ]
    heard = await heard_of(platform, {"files": [file | {"url_private_download": url} for url in urls]})
    assert [one.fetch for one in heard.attachments] == [None] * len(urls)


def chunked(text: str) -> web.Response:
    """Return an answer without a content length."""
    answer = web.Response(text=text)
    answer.enable_chunked_encoding()
    return answer


async def test_oversized_file_is_not_requested(platform: SlackStandIn) -> None:
    file = platform.upload("cat.png", "image/png", b"x") | {"size": 1_001}
    async with listening(platform) as line:
        platform.post(ANA.chat, {"type": "message", "user": "U0ANA", "text": "", "files": [file]})
        fetch = (await line.next()).attachments[0].fetch
        assert fetch is not None
        with pytest.raises(TooLarge):
            await fetch(1_000)
        assert platform.fetched == 0


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (chunked("x" * 5_000), TooLarge),  # more than announced
        (web.Response(headers={"Content-Length": "1000000000"}), TooLarge),  # and nothing of it arrives
        (web.Response(status=302, headers={"Location": "?"}), PermanentError),
        (web.Response(text="<html>Sign in", content_type="text/html"), PermanentError),
        (web.Response(status=404), PermanentError),
        (web.Response(status=503), RetryLater),
        (web.Response(status=429, headers={"Retry-After": "9"}), RetryLater),
    ],
)
async def test_failed_file_answer_raises_matching_error(
    platform: SlackStandIn, answer: web.Response, raised: type[Exception]
) -> None:
    file = platform.upload("cat.png", "image/png", b"x")
    platform.file_answers.append(answer)
    async with listening(platform) as line:
        platform.post(ANA.chat, {"type": "message", "user": "U0ANA", "text": "", "files": [file]})
        fetch = (await line.next()).attachments[0].fetch
        assert fetch is not None
        with pytest.raises(raised) as told:
            await fetch(1_000)
        if isinstance(told.value, RetryLater):
            assert told.value.seconds == (9.0 if answer.status == 429 else None)
        assert await fetch(1_000) == b"x"


# Connections.


class Slow(Line):
    """A line that takes the first message after ``go`` is set and fails for the second."""

    def __init__(self, platform: SlackStandIn, error: OSError) -> None:
        super().__init__(connector_of(platform))
        self.go = asyncio.Event()
        self.error = error

    async def hear(self, heard: IncomingMessage) -> None:
        await self.heard.put(heard)
        if self.broken:
            raise self.error
        self.broken = True
        await self.go.wait()


@pytest.mark.parametrize("error", [OSError("no space"), TimeoutError("the store is slow")])
async def test_failed_message_is_not_acknowledged(platform: SlackStandIn, error: OSError) -> None:
    line = Slow(platform, error)
    line.go.set()
    await platform.say("one")
    await platform.say("two")
    assert await ending(platform, line) is error
    await platform.until(lambda: not platform.sockets)
    assert len(platform.acknowledged) == 1
    assert [one.payload["event"]["text"] for one in platform.pending.values()] == ["two"]


async def test_slow_message_is_repeated_by_platform(platform: SlackStandIn) -> None:
    platform.patience = 0.05
    line = Slow(platform, OSError("no space"))
    run = asyncio.create_task(ending(platform, line))
    await line.is_ready.wait()
    await platform.say("once")
    first = await line.next()
    await platform.until(lambda: any(one.attempt for one in platform.pending.values()))
    assert platform.acknowledged == []
    line.go.set()
    assert (await line.next()).id == first.id
    assert await run is line.error


@pytest.mark.parametrize("reason", ["warning", "refresh_requested"])
async def test_connection_is_replaced_before_it_ends(platform: SlackStandIn, reason: str) -> None:
    async with listening(platform) as line:
        await platform.send({"type": "disconnect", "reason": reason, "debug_info": {"host": "wss-1"}})
        await platform.until(lambda: len(platform.sockets) == 2)
        event = {
            "type": "message",
            "channel": ANA.chat,
            "channel_type": "im",
            "user": "U0ANA",
            "ts": "1.000001",
        }
        envelope = await platform.send_event(event | {"text": "by the old one"}, socket=0)
        assert (await line.next()).text == "by the old one"
        await platform.until(lambda: envelope in platform.acknowledged)
        await platform.say("by the new one")
        assert (await line.next()).text == "by the new one"
        platform.sockets.pop(0).transport.abort()
        await platform.say("by the only one")
        assert (await line.next()).text == "by the only one"
        assert platform.opened == 2


async def test_connection_that_does_not_end_is_closed(
    platform: SlackStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DRAIN", 0.05)
    async with listening(platform) as line:
        for _ in range(2):
            connected = platform.connected
            await platform.send({"type": "disconnect", "reason": "warning"})
            await platform.until(
                lambda before=connected: platform.connected > before and len(platform.sockets) == 1
            )
        await platform.say("still here")
        assert (await line.next()).text == "still here"


@pytest.mark.parametrize(
    ("reason", "raised"), [("link_disabled", PermanentError), ("too_many_websockets", OSError)]
)
async def test_disconnect_reason_ends_connector(
    platform: SlackStandIn, reason: str, raised: type[Exception]
) -> None:
    run = asyncio.create_task(ending(platform))
    await platform.until(lambda: platform.sockets)
    await platform.send({"type": "disconnect", "reason": reason})
    assert isinstance(await run, raised)


async def test_pings_are_answered_and_count_as_activity(
    platform: SlackStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Alive(Line):
        def alive(self) -> None:
            super().alive()
            sign.set()

    monkeypatch.setattr(module, "_PROBE", 0.75)
    monkeypatch.setattr(module, "_GREETING", 2.0)  # the task ends before the last sign of life
    sign = asyncio.Event()
    line = Alive(connector_of(platform))
    run = asyncio.create_task(ending(platform, line))
    await line.is_ready.wait()
    await platform.until(lambda: platform.pongs)
    for _ in range(3):  # from now on only the answers to our pings arrive
        sign.clear()
        await asyncio.wait_for(sign.wait(), PATIENCE)
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run


async def test_dead_connection_is_detected(platform: SlackStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROBE", 0.05)
    platform.deaf = True
    assert isinstance(await ending(platform), ConnectionError)


async def test_connection_without_hello_is_closed(
    platform: SlackStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GREETING", 0.05)
    platform.greets = False
    assert isinstance(await ending(platform), ConnectionError)


@pytest.mark.parametrize("method", ["auth.test", "apps.connections.open"])
@pytest.mark.parametrize(
    ("body", "status", "raised"),
    [
        ({"ok": False, "error": "invalid_auth"}, 200, PermanentError),
        ({"ok": False, "error": "not_allowed_token_type"}, 200, PermanentError),
        ({"ok": False, "error": "ratelimited"}, 429, RetryLater),
        ({"ok": False, "error": "internal_error"}, 200, OutcomeUnknown),
        ("<html>", 502, OutcomeUnknown),
        ("<html>", 200, OutcomeUnknown),
    ],
)
async def test_failed_start_raises_matching_error(
    platform: SlackStandIn, method: str, body: Mapping[str, Any] | str, status: int, raised: type[Exception]
) -> None:
    platform.answer(method, body, status=status, headers={"Retry-After": "30"})
    error = await ending(platform)
    assert isinstance(error, raised)
    assert getattr(error, "seconds", None) == (30.0 if raised is RetryLater else None)


async def test_user_token_is_refused(platform: SlackStandIn) -> None:
    platform.answer("auth.test", {"ok": True, "user_id": "U0ANA", "user": "ana"})
    assert isinstance(await ending(platform), PermanentError)


async def test_revoked_token_ends_connection(platform: SlackStandIn) -> None:
    connector = connector_of(platform)
    line = Line(connector)
    run = asyncio.create_task(connector.run(line))
    await line.is_ready.wait()
    await platform.say("hello")
    place = (await line.next()).place
    platform.tokens.remove(BOT_TOKEN)
    with pytest.raises(RetryLater):
        await connector.send(part("hi", place))
    with pytest.raises(PermanentError):
        await asyncio.wait_for(run, PATIENCE)
    with pytest.raises(RetryLater):
        await connector.send(part("hi", place))


async def test_secrets_and_texts_appear_in_no_log_or_error(
    platform: SlackStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with listening(platform) as line:
            await platform.say("a private word")
            await line.connector.send(part("a private answer", (await line.next()).place))
        url = platform.settings()["api_url"].replace("http", "ws").replace("api/", "nowhere?ticket=t-secret")
        platform.answer("apps.connections.open", {"ok": True, "url": url})
        error = await ending(platform)
        await platform.refuse_login()
        told = f"{caplog.text} {error!r} {await ending(platform)!r}"
    assert isinstance(error, ConnectionError)
    for secret in (BOT_TOKEN, APP_TOKEN, "t-secret", "private"):
        assert secret not in told


# Sent messages.


@pytest.mark.parametrize(
    ("code", "status", "raised"),
    [
        ("channel_not_found", 200, PermanentError),
        ("not_in_channel", 200, PermanentError),
        ("msg_too_long", 200, PermanentError),
        ("of_the_future", 200, PermanentError),
        ("of_the_future", 500, OutcomeUnknown),
        ("internal_error", 200, OutcomeUnknown),
        ("fatal_error", 200, OutcomeUnknown),
        ("rate_limited", 200, RetryLater),
        ("service_unavailable", 503, RetryLater),
    ],
)
async def test_error_codes_map_to_errors(
    platform: SlackStandIn, code: str, status: int, raised: type[Exception]
) -> None:
    async with listening(platform) as line:
        for method, edits in (("chat.postMessage", None), ("chat.update", "D0ANA:1.000001")):
            platform.answer(method, {"ok": False, "error": code}, status=status)
            with pytest.raises(raised, match=code):
                await line.connector.send(part("x", ANA, edits=edits))


async def test_post_without_answer_is_sent_once(platform: SlackStandIn) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        message = part("only once", (await line.next()).place)
        platform.lose_answer = True
        with pytest.raises(OutcomeUnknown):
            await line.connector.send(message)
        platform.lose_answer = False
        assert len(await platform.shown(1)) == 1
        assert await line.connector.find(message) == f"{ANA.chat}:{(await platform.shown(1))[0].id}"


async def test_unreachable_slack_is_retried_later(platform: SlackStandIn) -> None:
    settings = dict(platform.settings()) | {"api_url": "http://127.0.0.1:1/api/"}
    with pytest.raises(RetryLater):
        async with listening(platform, settings):
            pass


async def test_mentions_are_disabled(platform: SlackStandIn) -> None:
    text = "<!channel> <!here> <@U0ANA> @everyone @channel #general [<!channel>](https://x.example) `<!here>`"
    async with listening(platform) as line:
        await platform.say("hello")
        place = (await line.next()).place
        sent = await line.connector.send(part(Slack.abilities.render(text), place))
        await line.connector.send(part(Slack.abilities.render(text), place, edits=sent))
        assert "@everyone" in (await platform.shown(1))[0].text
        assert platform.pings == []


async def test_longest_part_is_accepted(platform: SlackStandIn) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        place = (await line.next()).place
        pieces = split("<&> " * 1_500 + "x" * 4_000, Slack.abilities)
        for piece in pieces:
            await line.connector.send(part(Slack.abilities.render(piece), place))
        assert len(await platform.shown(len(pieces))) == len(pieces)


@pytest.mark.parametrize("threaded", [True, False])
async def test_part_is_found_among_many(platform: SlackStandIn, threaded: bool) -> None:
    async with listening(platform) as line:
        root = await platform.say("root", room=ROOM)
        place = Place(chat=ROOM, thread=root if threaded else None)
        message = part("ours", place)
        forged = {"event_type": "torana_part", "event_payload": {"key": message.key}}
        talk = (
            {"type": "message", "user": "U0ANA", "thread_ts": root}
            if threaded
            else {"type": "message", "user": "U0ANA"}
        )
        platform.sockets.clear()  # no process listens on so many ports
        for n in range(250):
            platform.chats[ROOM].append(talk | {"ts": f"{root}{n}", "text": "talk", "metadata": forged})
        assert await line.connector.find(message) is None
        sent = await line.connector.send(message)
        for n in range(250):
            platform.chats[ROOM].append(talk | {"ts": f"{root}9{n}", "text": "talk"})
        assert await line.connector.find(message) == sent


async def test_edit_can_be_found(platform: SlackStandIn) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        place = (await line.next()).place
        sent = await line.connector.send(part("thinking", place))
        final = part("done", place, edits=sent)
        assert await line.connector.find(final) is None
        assert await line.connector.send(final) == sent
        assert await line.connector.find(final) == sent


@pytest.mark.parametrize(
    ("body", "status", "raised"),
    [
        ("<html>", 500, RetryLater),
        ({"ok": False, "error": "missing_scope"}, 200, PermanentError),
        ({"ok": True}, 200, None),
    ],
)
async def test_failed_search_finds_nothing_or_raises_error(
    platform: SlackStandIn, body: Mapping[str, Any] | str, status: int, raised: type[Exception] | None
) -> None:
    async with listening(platform) as line:
        platform.answer("conversations.history", body, status=status)
        if raised is None:
            assert await line.connector.find(part("x", ANA)) is None
            return
        with pytest.raises(raised):
            await line.connector.find(part("x", ANA))
