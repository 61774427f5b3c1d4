"""The LINE connector and LINE's official library against a stand-in of the platform."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import ClientTimeout, web
from tests.standins.calling import InOrder
from tests.standins.line import BOT, SECRET, TOKEN, LinePlatform, mentioned

from torana.connectors.base import IncomingMessage, OutcomeUnknown, PermanentError, Place, RetryLater, TooLarge
from torana.connectors.platforms import line as line_module
from torana.connectors.platforms.line import LineConnector, LineSettings
from torana.testing import connectors as testing
from torana.testing.connectors import ConnectorContract, listening, part

ANA = Place(chat="U" + "0" * 32, reply_to={"direct": "yes"})
GROUP = "C" + "0" * 32


@pytest.fixture
async def platform() -> AsyncGenerator[LinePlatform]:
    async with LinePlatform() as line:
        yield line


class TestLine(ConnectorContract):
    pass


async def heard_of(platform: LinePlatform, line: testing.Line, *events: Any) -> list[IncomingMessage]:
    """Return the messages that the connector reads from a call."""
    assert (await platform.call(platform.request(platform.call_of(*events)))).status == 200
    return [line.heard.get_nowait() for _ in range(line.heard.qsize())]


async def test_official_library_accepts_stand_in(platform: LinePlatform) -> None:
    """LINE's library confirms that the stand-in follows LINE's protocol."""
    from linebot.v3 import messaging  # here, because its import takes more than a second

    timeout = ClientTimeout(total=10)
    configuration = messaging.Configuration(host=platform.url, access_token=TOKEN)
    async with messaging.AsyncApiClient(configuration) as client:
        api: Any = messaging.AsyncMessagingApi(client)
        assert (await api.get_bot_info(_request_timeout=timeout)).user_id == BOT
        push: Any = messaging.PushMessageRequest
        request = push.from_dict({"to": ANA.chat, "messages": [{"type": "text", "text": "hi"}]})
        key = str(uuid4())
        sent = await api.push_message(request, x_line_retry_key=key, _request_timeout=timeout)
        with pytest.raises(messaging.ApiException) as again:
            await api.push_message(request, x_line_retry_key=key, _request_timeout=timeout)
        told: Any = again.value
        assert told.status == 409
        assert json.loads(told.body)["sentMessages"][0]["id"] == sent.sent_messages[0].id
        loading: Any = messaging.ShowLoadingAnimationRequest
        request = loading.from_dict({"chatId": ANA.chat, "loadingSeconds": 20})
        await api.show_loading_animation(request, _request_timeout=timeout)
    assert platform.loading == [{"chatId": ANA.chat, "loadingSeconds": 20}]


def test_official_library_parses_calls_of_stand_in() -> None:
    from linebot.v3.webhook import WebhookParser  # here, because its import takes more than a second
    from linebot.v3.webhooks import MessageEvent

    platform = LinePlatform()
    messages = [
        platform.text("hi"),
        platform.text("@Torana hi", mention={"mentionees": [mentioned(0, 7), mentioned(8, 2, own=False)]}),
        platform.file("image", b"", quoteToken="q", contentProvider={"type": "line"}),
        platform.file("video", b"", quoteToken="q", duration=60_000, contentProvider={"type": "line"}),
        platform.file("audio", b"", duration=60_000, contentProvider={"type": "line"}),
        platform.file("file", b"", fileName="a.txt", fileSize=3),
        sticker(platform, ["happy"]),
    ]
    events = [platform.event(message, room=room) for message in messages for room in (None, GROUP)]
    call = platform.request(platform.call_of(*events))
    parser: Any = WebhookParser(SECRET)
    read = parser.parse(call.body.decode(), call.headers["x-line-signature"])

    assert [type(event) for event in read] == [MessageEvent] * 14
    assert read[2].message.mention.mentionees[0].is_self is True


def sticker(platform: LinePlatform, keywords: list[str]) -> dict[str, Any]:
    return {
        "type": "sticker",
        "id": str(platform.number()),
        "quoteToken": "q3Plxr4AgKd",
        "packageId": "446",
        "stickerId": "1988",
        "stickerResourceType": "STATIC",
        "keywords": keywords,
    }


@pytest.mark.parametrize(("quoted", "in_reply_to"), [("468789577898262530", "468789577898262530"), (7, None)])
async def test_quoted_message_is_known(platform: LinePlatform, quoted: Any, in_reply_to: str | None) -> None:
    async with listening(platform) as line:
        event = platform.event(platform.text("yes", quotedMessageId=quoted))
        assert (await platform.call(platform.request(platform.call_of(event)))).status == 200
        assert (await line.next()).in_reply_to == in_reply_to


async def test_call_with_wrong_signature_is_refused(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        body = platform.call_of(platform.event(platform.text("hello")))
        right = platform.request(body)
        signature = right.headers["x-line-signature"]
        wrong = ["", "=", signature[:-1], f" {signature}", signature.swapcase(), "ö" * 44, "\ud800"]
        calls = [
            replace(right, headers={}),
            *(replace(right, headers={"x-line-signature": one}) for one in wrong),
            replace(right, body=body + b"\n"),
            replace(right, body=body.replace(b"hello", b"hullo")),
            replace(right, body=b""),
            replace(right, method="GET", body=b"{}"),
            platform.request(body, secret=SECRET.upper()),
        ]
        assert {(await platform.call(call)).status for call in calls} == {401}
        assert line.heard.empty()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 500_000, b"{}", b"[]", b'{"events": "all"}'],
    ids=["none", "open", "bytes", "deep", "empty", "list", "text"],
)
async def test_malformed_call_is_refused(platform: LinePlatform, body: bytes) -> None:
    async with listening(platform):
        assert (await platform.call(platform.request(body))).status == 400


async def test_call_without_events_is_accepted(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        assert await heard_of(platform, line) == []


async def test_events_other_than_user_messages_are_ignored(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        text = platform.text("hi")
        events: list[Any] = [
            platform.event(text, type="messageEdited"),
            platform.event(text, mode="standby"),
            platform.event(text, source={"type": "group", "groupId": GROUP}),
            platform.event(text, source=None),
            platform.event({"type": "text", "text": "hi"}),
            platform.event({"id": "1", "type": "text", "text": 7}),
            platform.event({"id": "1", "type": "location", "latitude": 1.0, "longitude": 2.0}),
            platform.event({"id": "1", "type": "something new"}),
            {"type": "follow", "source": {"type": "user", "userId": ANA.chat}, "mode": "active"},
            {"type": "unsend", "unsend": {"messageId": text["id"]}},
            {},
            None,
            7,
        ]
        assert await heard_of(platform, line, *events) == []


async def test_unknown_field_does_not_hide_message(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        mention = {
            "mentionees": [{"type": "here", "index": 3, "length": 5}, {"type": "all", "index": 0, "length": 2}]
        }
        (heard,) = await heard_of(
            platform, line, platform.event(platform.text("@A @here", mention=mention, new={}))
        )
        assert (heard.text, heard.addressed) == ("@A @here", True)


@pytest.mark.parametrize(
    ("text", "mentions", "left", "addressed"),
    [
        ("@Torana", [mentioned(0, 7)], "", True),
        ("  @Torana\n /new now", [mentioned(2, 7)], "/new now", True),
        ("@Torana @Torana hi", [mentioned(8, 7), mentioned(0, 7)], "hi", True),
        ("hello @Torana", [mentioned(6, 7)], "hello @Torana", True),
        ("🙂🙂 @Torana hi", [mentioned(5, 7)], "🙂🙂 @Torana hi", True),
        ("@To🙂 hi 🙂", [mentioned(0, 5)], "hi 🙂", True),
        ("@Bob hi", [mentioned(0, 4, own=False)], "@Bob hi", False),
        ("@Torana hi", [], "@Torana hi", False),
        ("@Torana hi", [{**mentioned(0, 7), "index": "0"}], "@Torana hi", False),
        ("@Torana hi", [mentioned(0, 7), mentioned(1, 2)], "hi", True),
        ("@Torana hi", [mentioned(7, -7)], "@Torana hi", False),
        ("@Torana hi", [mentioned(-10, 7)], "@Torana hi", False),
    ],
)
async def test_leading_mention_is_cut(
    platform: LinePlatform, text: str, mentions: list[Any], left: str, addressed: bool
) -> None:
    """The position of a mention is counted in UTF-16 units."""
    async with listening(platform) as line:
        events = [platform.event(platform.text(text, mention={"mentionees": mentions}), room=GROUP)]
        heard = await heard_of(platform, line, *events)
        assert [(one.text, one.addressed) for one in heard] == [(left, addressed)]


async def test_multi_user_room_is_place_too(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        room = "R" + "0" * 32
        source = {"type": "room", "roomId": room, "userId": ANA.chat}
        (heard,) = await heard_of(platform, line, platform.event(platform.text("hi"), source=source))
        assert (heard.place.chat, heard.sender.id, heard.direct) == (room, ANA.chat, False)
        await line.connector.send(part("hello", heard.place))
        assert len(await platform.shown(1, room=room)) == 1


async def test_files_of_all_kinds(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        events = [
            platform.event(platform.file("audio", b"voice", duration=5, contentProvider={"type": "line"})),
            platform.event(platform.file("video", b"video", duration=5, contentProvider={"type": "line"})),
            platform.event(platform.file("file", b"a,b", fileName="\u202eb/a.csv", fileSize=3)),
        ]
        files = [heard.attachments[0] for heard in await heard_of(platform, line, *events)]
        assert [(file.kind, file.media_type, file.name, file.size) for file in files] == [
            ("voice", "audio/x-m4a", "", None),
            ("video", "video/mp4", "", None),
            ("file", "text/csv", "\u202eb/a.csv", 3),
        ]
        assert [await file.fetch(10) for file in files if file.fetch] == [b"voice", b"video", b"a,b"]


async def test_sticker_becomes_text(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        plain = sticker(platform, [])
        del plain["keywords"]
        heard = await heard_of(
            platform, line, platform.event(sticker(platform, ["happy", "joy"])), platform.event(plain)
        )
        assert [one.text for one in heard] == ["[sticker: happy, joy]", "[sticker]"]


async def test_file_at_external_address_is_not_fetched(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        provider = {"type": "external", "originalContentUrl": "http://169.254.169.254/"}
        (heard,) = await heard_of(
            platform, line, platform.event(platform.file("image", b"", contentProvider=provider))
        )
        assert heard.attachments[0].fetch is None


async def test_fetch_waits_until_file_is_ready(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        (heard,) = await heard_of(platform, line, platform.event(platform.file("audio", b"voice")))
        platform.not_yet = 1
        fetch = heard.attachments[0].fetch
        assert fetch is not None
        assert await fetch(10) == b"voice"


async def test_file_that_is_never_ready_or_gone_raises_error(
    platform: LinePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_module, "_PAUSES", (0.0, 0.0))
    async with listening(platform) as line:
        (heard,) = await heard_of(platform, line, platform.event(platform.file("audio", b"voice")))
        fetch = heard.attachments[0].fetch
        assert fetch is not None
        platform.not_yet = 2
        with pytest.raises(OSError, match="did not prepare the file in time"):
            await fetch(10)
        platform.files.clear()
        with pytest.raises(OSError, match="404"):
            await fetch(10)


async def test_endless_file_is_cut_off(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        (heard,) = await heard_of(platform, line, platform.event(platform.file("video", b"")))
        fetch = heard.attachments[0].fetch
        assert fetch is not None
        with pytest.raises(TooLarge):
            await fetch(100_000)


async def test_failed_message_of_batch_is_repeated_with_following_messages(
    platform: LinePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(platform) as line:
        monkeypatch.setattr(line, "hear", InOrder(line))
        events = [platform.event(platform.text(text)) for text in ("one", "two", "three")]
        (first,) = await heard_of(platform, line, events[0])
        line.broken = True
        await platform.tell(lambda: platform.request(platform.call_of(*events)))
        assert platform.answers[-1].status == 503
        assert (await line.next()).id == first.id
        assert line.heard.empty()  # those behind wait for their turn
    async with listening(platform) as line:
        assert [(await line.next()).text for _ in range(3)] == ["one", "two", "three"]


async def test_messages_of_next_call_wait_behind_all_messages_of_slow_call(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        line.gate = asyncio.Event()
        slow, two, three = (platform.event(platform.text(text)) for text in ("slow", "two", "three"))
        first = asyncio.create_task(platform.call(platform.request(platform.call_of(slow, two))))
        assert (await line.next()).text == "slow"
        second = asyncio.create_task(platform.call(platform.request(platform.call_of(three))))
        assert [(await line.next()).text for _ in range(2)] == ["two", "three"]
        line.gate.set()
        assert [answer.status for answer in await asyncio.gather(first, second)] == [200, 200]


async def test_two_hundred_pictures_in_one_call_arrive_in_order(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        messages = [platform.file("image", b"x") for _ in range(200)]
        heard = await heard_of(platform, line, *(platform.event(message) for message in messages))
        assert [one.id for one in heard] == [message["id"] for message in messages]


async def test_one_megabyte_message_and_empty_message_are_handled(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        events = [platform.event(platform.text(text)) for text in ("x" * 1_000_000, "")]
        assert [len(one.text) for one in await heard_of(platform, line, *events)] == [1_000_000]


async def test_typing_is_sent_only_to_direct_chats(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        await line.connector.typing(ANA)
        await line.connector.typing(Place(chat=GROUP))
        assert platform.loading == [{"chatId": ANA.chat, "loadingSeconds": 20}]


async def test_repeated_key_returns_first_message_id(platform: LinePlatform) -> None:
    """The second answer contains the first id; without an id the connector returns the key."""
    async with listening(platform) as line:
        message = part("once", ANA)
        first = await line.connector.send(message)
        assert await line.connector.send(message) == first
        platform.answer_next(409, {"message": "The retry key is already accepted"})
        assert await line.connector.send(message) == message.key


async def test_failed_answer_after_acceptance_is_resolved_by_key(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        message = part("once", ANA)
        first = await line.connector.send(message)
        platform.answer_next(500, {"message": "Internal Server Error"})
        with pytest.raises(OutcomeUnknown):
            await line.connector.send(message)
        assert await line.connector.send(message) == first
        assert len(await platform.shown(1)) == 1


@pytest.mark.parametrize(
    ("status", "body", "raised", "told"),
    [
        (429, {"message": "You have reached your monthly limit."}, RetryLater, "monthly limit"),
        (
            400,
            {"message": "Bad", "details": [{"message": "too long", "property": "text"}]},
            PermanentError,
            "text: too long",
        ),
        (
            403,
            {"message": "Access to this API is not available for your account"},
            PermanentError,
            "not available",
        ),
        (404, None, PermanentError, "404"),
        (302, None, PermanentError, "302"),
        (503, "<html>", OutcomeUnknown, "503"),
        (200, "x" * 1_100_000, OutcomeUnknown, "TooLarge"),
    ],
)
async def test_answers_map_to_errors(
    platform: LinePlatform, status: int, body: Any, raised: type[Exception], told: str
) -> None:
    async with listening(platform) as line:
        text = body if isinstance(body, str) else json.dumps(body)
        platform.instead = lambda: web.Response(status=status, text=text)
        with pytest.raises(raised, match=told):
            await line.connector.send(part("hi", ANA))


async def test_revoked_token_ends_connection(platform: LinePlatform) -> None:
    connector = LineConnector(LineSettings.model_validate(platform.settings()))
    line = testing.Line(connector)
    run = asyncio.create_task(connector.run(line))
    await line.is_ready.wait()
    await platform.refuse_login()
    with pytest.raises(RetryLater):
        await connector.send(part("hi", ANA))
    with pytest.raises(PermanentError) as refused:
        await run
    assert TOKEN not in repr(refused.value)
    assert (await connector.hook(platform.request(platform.call_of()))).status == 503


async def test_unreachable_platform_is_retried_later(platform: LinePlatform) -> None:
    async with LinePlatform() as gone:
        settings = gone.settings()
    with pytest.raises(RetryLater):
        async with listening(platform, settings):
            pass


async def test_repeated_key_after_cut_shows_message_once(platform: LinePlatform) -> None:
    async with listening(platform) as line:
        await line.connector.send(part("one", ANA))
        await platform.cut()
        message = part("two", ANA)
        try:
            await line.connector.send(message)
        except OutcomeUnknown:
            await line.connector.send(message)
        assert [one.text for one in await platform.shown(2)] == ["one", "two"]
