"""The WhatsApp connector against a stand-in of Meta's Cloud API."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError
from tests.standins.calling import InOrder
from tests.standins.whatsapp import NUMBER, TOKEN, WORD, Meta, error

from torana.connectors.base import (
    ELSEWHERE,
    HookRequest,
    IncomingMessage,
    OutcomeUnknown,
    PermanentError,
    Place,
    RetryLater,
    TooLarge,
)
from torana.connectors.platforms.whatsapp import Whatsapp, WhatsappSettings
from torana.testing.connectors import ConnectorContract, Line, listening, part

ANA = Place(chat="15550000000")
BSUID = "US.13491208655302741918"


@pytest.fixture
async def platform() -> AsyncGenerator[Meta]:
    async with Meta() as meta:
        yield meta


class TestWhatsapp(ConnectorContract):
    pass


async def heard_of(platform: Meta, line: Line, *messages: dict[str, Any], **more: Any) -> list[IncomingMessage]:
    """Return the messages that the connector reads from a call."""
    answer = await platform.call(platform.request(platform.event(*messages, **more)))
    assert answer.status == 200
    return [line.heard.get_nowait() for _ in range(line.heard.qsize())]


async def test_call_with_wrong_signature_is_refused(platform: Meta) -> None:
    async with listening(platform) as line:
        body = platform.event(platform.message("text", {"body": "hello"}))
        right = platform.request(body)
        signature = right.headers["x-hub-signature-256"]
        wrong = [
            "",
            "sha256=",
            signature[7:],
            signature.upper(),
            signature[:-1],
            f"{signature} ",
            "sha256=ö",
            "\ud800",
        ]
        calls = [
            replace(right, headers={}),
            *(replace(right, headers={"x-hub-signature-256": one}) for one in wrong),
            replace(right, headers={"x-hub-signature": signature}),
            replace(right, body=body + b" "),
            replace(right, body=b""),
            replace(right, method="PUT", body=b"{}"),
            platform.request(body, secret="another"),
        ]
        assert {(await platform.call(call)).status for call in calls} == {401}
        assert line.heard.empty()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 500_000], ids=["none", "open", "bytes", "deep"])
async def test_call_with_invalid_json_is_refused(platform: Meta, body: bytes) -> None:
    async with listening(platform):
        assert (await platform.call(platform.request(body))).status == 400


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "null",
        '{"entry": {}}',
        '{"entry": [null, {"changes": 1}, {"changes": [7, {"field": "messages", "value": []}]}]}',
        '{"entry": [{"changes": [{"field": "account_update", "value": {}}]}]}',
    ],
)
async def test_json_of_other_shape_is_accepted_and_ignored(platform: Meta, body: str) -> None:
    async with listening(platform) as line:
        assert (await platform.call(platform.request(body.encode()))).status == 200
        assert line.heard.empty()


@pytest.mark.parametrize(
    ("changes", "status", "body"),
    [
        ({}, 200, b"1158201444"),
        ({"hub.verify_token": "another word"}, 403, b""),
        ({"hub.verify_token": "wörd"}, 403, b""),
        ({"hub.verify_token": ""}, 403, b""),
        ({"hub.mode": "unsubscribe"}, 403, b""),
    ],
)
async def test_verification_request_of_meta_is_answered(
    platform: Meta, changes: Mapping[str, str], status: int, body: bytes
) -> None:
    async with listening(platform):
        query = {"hub.mode": "subscribe", "hub.verify_token": WORD, "hub.challenge": "1158201444", **changes}
        answer = await platform.call(HookRequest(method="GET", headers={}, query=query, body=b""))
        assert (answer.status, answer.body, answer.media_type) == (status, body, "text/plain")


async def test_failed_message_of_batch_is_repeated_with_following_messages(
    platform: Meta, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(platform) as line:
        monkeypatch.setattr(line, "hear", InOrder(line))
        texts = ["one", "two", "three"]
        messages = [platform.message("text", {"body": text}) for text in texts]
        await platform.call(platform.request(platform.event(messages[0])))
        assert (await line.next()).text == "one"
        line.broken = True
        await platform.tell(lambda: platform.request(platform.event(*messages[1:])))
        assert platform.answers[-1].status == 503
        assert (await line.next()).text == "two"
        assert line.heard.empty()  # those behind wait for their turn
    async with listening(platform) as line:
        assert [(await line.next()).id for _ in range(2)] == [one["id"] for one in messages[1:]]


async def test_two_hundred_pictures_in_one_call_arrive_in_order(platform: Meta) -> None:
    async with listening(platform) as line:
        pictures = [platform.file(f"{n}.png", "image/png", b"x") for n in range(200)]
        messages = [platform.message("image", picture) for picture in pictures]
        heard = await heard_of(platform, line, *messages)
        assert [one.id for one in heard] == [message["id"] for message in messages]
        assert [one.attachments[0].name for one in heard] == [f"{n}.png" for n in range(200)]


async def test_one_megabyte_message_and_empty_message_are_handled(platform: Meta) -> None:
    async with listening(platform) as line:
        long, none = (platform.message("text", {"body": text}) for text in ("x" * 1_000_000, ""))
        assert [len(one.text) for one in await heard_of(platform, line, none, long)] == [1_000_000]


async def test_sender_name_does_not_affect_sender_id(platform: Meta) -> None:
    async with listening(platform) as line:
        message = platform.message("text", {"body": "hi"})
        names: list[Any] = [
            {"profile": {"name": "\u202eadmin\n1"}, "wa_id": message["from"]},
            {"profile": {}},
            7,
        ]
        (heard,) = await heard_of(platform, line, message, contacts=names)
        assert (heard.sender.id, heard.sender.name) == (message["from"], "\u202eadmin\n1")
        assert heard.place.chat == message["from"]


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        ("button", {"payload": "yes-1", "text": "Yes"}, "Yes"),
        ("interactive", {"type": "button_reply", "button_reply": {"id": "a", "title": "Tea"}}, "Tea"),
        (
            "interactive",
            {"type": "list_reply", "list_reply": {"id": "b", "title": "Cake", "description": "x"}},
            "Cake",
        ),
    ],
)
async def test_pressed_button_becomes_text(platform: Meta, kind: str, content: Any, text: str) -> None:
    async with listening(platform) as line:
        (heard,) = await heard_of(platform, line, platform.message(kind, content))
        assert heard.text == text


@pytest.mark.parametrize(
    ("context", "in_reply_to"),
    [
        ({"from": "1", "id": "wamid.1"}, "wamid.1"),
        ({"forwarded": True}, ELSEWHERE),
        ({"frequently_forwarded": True}, ELSEWHERE),
        (7, None),
    ],
)
async def test_quoted_message_is_known(platform: Meta, context: Any, in_reply_to: str | None) -> None:
    async with listening(platform) as line:
        (heard,) = await heard_of(platform, line, platform.message("text", {"body": "yes"}, context=context))
        assert heard.in_reply_to == in_reply_to


@pytest.mark.parametrize(
    ("kind", "media_type", "what", "told"),
    [
        ("audio", "audio/ogg; codecs=opus", "voice", "audio/ogg"),
        ("document", "application/pdf", "file", "application/pdf"),
        ("video", "video/mp4", "video", "video/mp4"),
        ("sticker", "image/webp", "image", "image/webp"),
    ],
)
async def test_files_of_all_kinds(platform: Meta, kind: str, media_type: str, what: str, told: str) -> None:
    async with listening(platform) as line:
        message = platform.message(kind, platform.file("name", media_type, b"content"))
        (heard,) = await heard_of(platform, line, message)
        (file,) = heard.attachments
        assert (file.kind, file.media_type, heard.text) == (what, told, "")
        assert file.fetch is not None
        assert await file.fetch(7) == b"content"


async def test_events_other_than_user_messages_are_ignored(platform: Meta) -> None:
    async with listening(platform) as line:
        text = {"body": "hi"}
        events: list[Any] = [
            platform.message("reaction", {"message_id": "wamid.x", "emoji": "👍"}),
            platform.message(
                "unsupported", None, errors=[{"code": 131051, "title": "Unsupported message type"}]
            ),
            platform.message("system", {"body": "changed their number", "type": "user_changed_number"}),
            platform.message("text", text, group_id="Y2FwaV9ncm91cDox"),
            platform.message("text", {"body": 7}),
            platform.message("image", {"caption": None}),
            {"type": "text", "text": text},
            {**platform.message("text", text), "from": None},
            "text",
        ]
        assert await heard_of(platform, line, *events) == []
        assert await heard_of(platform, line, platform.message("text", text), number="27681414235104944") == []


async def test_failed_message_status_is_logged(platform: Meta, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(platform) as line:
        fault = {"code": 131047, "title": "Re-engagement message"}
        statuses = [
            {"id": "wamid.1", "status": "failed", "recipient_id": "15550000000", "errors": [fault]},
            {"id": "wamid.2", "status": "delivered", "recipient_id": "15550000000"},
            {"id": "wamid.3", "status": "failed", "errors": "?"},
        ]
        with caplog.at_level(logging.WARNING):
            assert await heard_of(platform, line, statuses=statuses) == []
        (record,) = caplog.records
        assert record.getMessage() == "whatsapp_message_failed"
        assert (vars(record)["id"], vars(record)["code"]) == ("wamid.1", 131047)


async def test_sender_without_phone_number_gets_reply(platform: Meta) -> None:
    async with listening(platform) as line:
        message = platform.message("text", {"body": "hi"}, from_user_id=BSUID)
        del message["from"]
        (heard,) = await heard_of(platform, line, message)
        assert heard.sender.id == BSUID
        await line.connector.send(part("hello", heard.place))
        await line.connector.send(part("hello", ANA))
        assert platform.recipients == [{"recipient": BSUID}, {"to": ANA.chat}]


async def test_typing_marks_the_message_as_read(platform: Meta) -> None:
    async with listening(platform) as line:
        said = await platform.say("hello")
        await line.connector.typing((await line.next()).place)
        assert platform.read == [(said, {"type": "text"})]


@pytest.mark.parametrize(
    ("status", "code", "raised"),
    [
        (400, 131047, PermanentError),
        (400, 131026, PermanentError),
        (400, 100, PermanentError),
        (403, 10, PermanentError),
        (400, 80007, RetryLater),
        (400, 131056, RetryLater),
        (400, 131048, RetryLater),
        (429, 130429, RetryLater),
        (400, 4, RetryLater),
        (500, 131000, OutcomeUnknown),
        (503, 2, OutcomeUnknown),
    ],
)
async def test_error_codes_map_to_errors(
    platform: Meta, status: int, code: int, raised: type[Exception]
) -> None:
    async with listening(platform) as line:
        platform.answer_next(status, error(code, "Title", "What it is about."))
        with pytest.raises(raised, match=f"code {code}: What it is about."):
            await line.connector.send(part("hi", ANA))


@pytest.mark.parametrize(
    ("status", "body", "raised"),
    [
        (200, "<html>", OutcomeUnknown),
        (200, {"messages": []}, OutcomeUnknown),
        (200, "x" * 1_100_000, OutcomeUnknown),
        (502, "<html>", OutcomeUnknown),
        (404, None, PermanentError),
        (302, {}, PermanentError),
        (429, [], RetryLater),
    ],
)
async def test_malformed_answers_map_to_errors(
    platform: Meta, status: int, body: Any, raised: type[Exception]
) -> None:
    async with listening(platform) as line:
        text = body if isinstance(body, str) else json.dumps(body)
        platform.instead = lambda: web.Response(status=status, text=text)
        with pytest.raises(raised):
            await line.connector.send(part("hi", ANA))


async def test_revoked_token_ends_connection(platform: Meta) -> None:
    connector = Whatsapp(WhatsappSettings.model_validate(platform.settings()))
    line = Line(connector)
    run = asyncio.create_task(connector.run(line))
    await line.is_ready.wait()
    await platform.refuse_login()
    with pytest.raises(RetryLater) as later:
        await connector.send(part("hi", ANA))
    with pytest.raises(PermanentError) as refused:
        await run
    assert TOKEN not in f"{later.value!r} {refused.value!r}"
    assert (await connector.hook(platform.request(platform.event()))).status == 503


async def test_phone_number_of_another_account_is_refused(platform: Meta) -> None:
    with pytest.raises(PermanentError, match="does not exist"):
        async with listening(platform, {**platform.settings(), "phone_number_id": "1"}):
            pass


async def test_token_is_sent_only_to_meta(platform: Meta) -> None:
    """The announced address of a file does not matter."""
    async with Meta() as other, listening(platform) as line:
        addresses = [
            f"{other.url}/files/1",
            "https://lookaside.fbsbx.com@127.0.0.1/",
            "https://lookaside.fbsbx.com.example.org/",
            "http://lookaside.fbsbx.com/",
            f"{platform.url}@127.0.0.1/",
            "https://[",
            "",
        ]
        for url in addresses:
            content = platform.file("name", "image/png", b"x", url=url)
            (heard,) = await heard_of(platform, line, platform.message("image", content))
            fetch = heard.attachments[0].fetch
            assert fetch is not None
            with pytest.raises(OSError, match="not on a host of Meta"):
                await fetch(1_000)


@pytest.mark.parametrize(("content", "size"), [(b"", 0), (b"x" * 2_000, 2_000), (b"x", 10**12)])
async def test_file_is_cut_off_for_any_announced_size(platform: Meta, content: bytes, size: int) -> None:
    async with listening(platform) as line:
        named = platform.file("name", "image/png", content, file_size=size)
        (heard,) = await heard_of(platform, line, platform.message("image", named))
        fetch = heard.attachments[0].fetch
        assert fetch is not None
        with pytest.raises(TooLarge):
            await fetch(1_000)


async def test_missing_file_is_refused(platform: Meta) -> None:
    async with listening(platform) as line:
        named = platform.file("name", "image/png", b"x")
        platform.files.clear()
        (heard,) = await heard_of(platform, line, platform.message("image", named))
        fetch = heard.attachments[0].fetch
        assert fetch is not None
        with pytest.raises(PermanentError, match="does not exist"):
            await fetch(1_000)


async def test_unreachable_platform_is_retried_later(platform: Meta) -> None:
    async with Meta() as gone:
        settings = gone.settings()
    with pytest.raises(RetryLater):
        async with listening(platform, settings):
            pass


async def test_sending_recovers_from_cut_between_replies(platform: Meta) -> None:
    async with listening(platform) as line:
        await line.connector.send(part("one", ANA))
        await platform.cut()
        await line.connector.send(part("two", ANA))
        assert len(platform.recipients) == 2


@pytest.mark.parametrize(
    "wrong", [{"phone_number_id": "+1 555"}, {"version": "23"}, {"access_token": ""}, {"verify_token": "short"}]
)
def test_invalid_settings_are_refused(wrong: Mapping[str, str]) -> None:
    right = {
        "phone_number_id": NUMBER,
        "access_token": TOKEN,
        "app_secret": "secret",
        "verify_token": WORD,
    }
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        WhatsappSettings.model_validate({**right, **wrong})
