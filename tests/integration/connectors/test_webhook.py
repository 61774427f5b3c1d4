"""The webhook connector against a program that follows the Standard Webhooks specification."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
from pydantic import ValidationError
from tests.standins.webhook import SECRET, Program

from torana.connectors.base import HookRequest, OutcomeUnknown, PermanentError, Place, RetryLater
from torana.connectors.platforms.webhook import WebhookSettings
from torana.testing.connectors import ConnectorContract, Line, listening, part

NEW = "whsec_" + base64.b64encode(b"the other secret, which is newer").decode()
ANA = json.dumps({"content": "hello", "sender": "ana"}).encode()


@pytest.fixture
async def platform() -> AsyncGenerator[Program]:
    async with Program() as program:
        yield program


class TestWebhook(ConnectorContract):
    pass


def with_headers(request: HookRequest, **headers: str) -> HookRequest:
    """Return the call with changed headers; an empty value removes the header."""
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    merged = {name: value for name, value in {**request.headers, **told}.items() if value}
    return replace(request, headers=merged)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("value", ["", "0", "v1,", "ö", "v1,\ud800", "v1,ŝignature v1a,YWJj", "1" * 5_000])
async def test_call_with_wrong_header_is_refused(platform: Program, name: str, value: str) -> None:
    async with listening(platform) as line:
        answer = await platform.call(with_headers(platform.request(ANA), **{name: value}))

        assert answer.status == 401
        assert line.heard.empty()


async def test_call_with_wrong_body_or_secret_is_refused(platform: Program) -> None:
    async with listening(platform) as line:
        signed = platform.request(ANA)
        calls = [
            replace(signed, body=ANA.replace(b"hello", b"hullo")),
            replace(signed, body=ANA + b" "),
            replace(signed, body=b""),
            platform.request(ANA, secret=NEW),
            replace(signed, headers={}),
        ]
        assert [(await platform.call(call)).status for call in calls] == [401] * 5
        assert line.heard.empty()


@pytest.mark.parametrize("away", [-310, -86_400 * 365, 310, 86_400 * 365, 10**14])
async def test_old_and_future_calls_are_refused(platform: Program, away: float) -> None:
    async with listening(platform) as line:
        answer = await platform.call(platform.request(ANA, moment=time.time() + away))

        assert (answer.status, answer.body) == (401, b"not within 300 s")
        assert line.heard.empty()


async def test_time_window_is_configurable(platform: Program) -> None:
    async with listening(platform, {**platform.settings(), "tolerance": 1_000}):
        for away in (-900, 900):
            answer = await platform.call(platform.request(ANA, moment=time.time() + away))
            assert answer.status == 200


@pytest.mark.parametrize("moment", ["١٧٠٠٠٠٠٠٠٠", "1700000000.5", "-1", "1e9", " 1700000000", "0x10", "17²"])
async def test_timestamp_must_be_whole_number_of_seconds(platform: Program, moment: str) -> None:
    """Even a signed call with a malformed timestamp is refused."""
    async with listening(platform):
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        digest = hmac.digest(key, f"msg_1.{moment}.".encode() + ANA, hashlib.sha256)
        sign = f"v1,{base64.b64encode(digest).decode()}"
        request = with_headers(platform.request(ANA), webhook_timestamp=moment, webhook_signature=sign)

        assert (await platform.call(request)).status == 401


async def test_secret_is_replaced_without_downtime(platform: Program) -> None:
    """While both secrets are set, a signature by either is accepted, alone or among others."""
    async with listening(platform, {**platform.settings(), "secrets": [SECRET, NEW]}) as line:
        by_new = platform.request(ANA, secret=NEW)
        both = f"v1a,YWJj v1,{'A' * 43}= {by_new.headers['webhook-signature']}"
        calls = [platform.request(ANA), by_new, with_headers(by_new, webhook_signature=both)]

        assert [(await platform.call(call)).status for call in calls] == [200] * 3
        assert line.heard.qsize() == 3


async def test_only_the_first_signatures_are_compared(platform: Program) -> None:
    async with listening(platform, platform.settings()) as line:
        request = platform.request(ANA)
        right = request.headers["webhook-signature"]
        calls = [with_headers(request, webhook_signature="a " * before + right) for before in (9, 10, 30_000)]

        assert [(await platform.call(call)).status for call in calls] == [200, 401, 401]
        assert line.heard.qsize() == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"content": "hi" "sender": 1}',
        b"[" * 40_000,
        b'{"content": "\xc3"}',
        b"[0" + b",0" * 60_000 + b"]",
    ],
    ids=["none", "open", "bytes", "comma", "deep", "cut", "many values"],
)
async def test_call_with_invalid_json_is_refused(platform: Program, body: bytes) -> None:
    async with listening(platform) as line:
        assert (await platform.call(platform.request(body))).status == 400
        assert line.heard.empty()


@pytest.mark.parametrize(
    "body",
    ["{}", "[]", "1", "null", '"content"', '{"content": null}', '{"content": ""}', '{"content": ["hi"]}'],
)
async def test_json_without_message_is_accepted_with_notice(platform: Program, body: str) -> None:
    """A program that also sends other events must not repeat them forever."""
    async with listening(platform) as line:
        answer = await platform.call(platform.request(body.encode()))

        assert (answer.status, answer.body) == (200, b"no message: nothing at $.content")
        assert line.heard.empty()


async def test_room_message_is_not_direct(platform: Program) -> None:
    async with listening(platform) as line:
        await platform.say("in the room", room="ops", thread="t1")
        heard = await line.next()
        assert (heard.place.chat, heard.place.thread) == ("ops", "t1")
        assert (heard.direct, heard.addressed) == (False, True)
        await line.connector.send(part("noted", heard.place))
        assert [one.text for one in await platform.shown(1, room="ops", thread="t1")] == ["noted"]


async def test_reply_names_message_that_it_answers(platform: Program) -> None:
    async with listening(platform) as line:
        said = await platform.say("hello")
        message = part("**hi**", (await line.next()).place, number=2)
        assert await line.connector.send(message) == message.key
        assert platform.keys[message.key] == {
            "chat": "ana",
            "thread": None,
            "in_reply_to": said,
            "number": 2,
            "text": "**hi**",
        }


async def test_names_and_texts_are_kept_unchanged(platform: Program) -> None:
    name, text = "\u202eanA\n<b>ö", "x" * 1_000_000
    async with listening(platform) as line:
        await platform.say(text, sender=name)
        heard = await line.next()
        assert (heard.sender.id, heard.text) == (name, text)


@pytest.mark.parametrize("name", ["sender", "chat", "thread"])
@pytest.mark.parametrize(
    "value", ["x" * 201, "a\0b", "\ud800", "ö" * 101], ids=["long", "zero", "half", "bytes"]
)
async def test_unstorable_id_is_refused(platform: Program, name: str, value: str) -> None:
    async with listening(platform) as line:
        body = json.dumps({"content": "hi", name: value}).encode()
        assert (await platform.call(platform.request(body))).status == 400
        assert line.heard.empty()


async def test_message_without_valid_sender_is_from_program(platform: Program) -> None:
    async with listening(platform) as line:
        for body in ('{"content": "hi"}', '{"content": "hi", "sender": true}', '{"content": 42, "sender": 7}'):
            await platform.call(platform.request(body.encode()))
        heard = [await line.next() for _ in range(3)]
        assert [(one.sender.id, one.text) for one in heard] == [
            ("program", "hi"),
            ("program", "hi"),
            ("7", "42"),
        ]


async def test_hook_is_unavailable_before_connection(platform: Program) -> None:
    connector = platform.connector(WebhookSettings.model_validate(platform.settings()))
    assert (await connector.hook(platform.request(ANA))).status == 503


GITHUB = {
    "secrets": "It's a Secret to Everybody",
    "scheme": "github",
    "content": "$.comment.body",
    "sender": "$.sender.id",
    "chat": "$.repository.full_name",
    "thread": "$.issue.number",
    "id": "$.comment.node_id",
    "when": "$[?$.action == 'created' && $.sender.type != 'Bot']",
}


def commented(action: str = "created", kind: str = "User", *, right: bool = True) -> HookRequest:
    """Return a call in which GitHub reports a comment."""
    event = {
        "action": action,
        "issue": {"number": 12, "body": "it is broken"},
        "comment": {"id": 1, "node_id": "IC_1", "body": "why?"},
        "repository": {"full_name": "octo/cat"},
        "sender": {"login": "octocat", "id": 583231, "type": kind},
    }
    body = json.dumps(event).encode()
    digest = hmac.new(GITHUB["secrets"].encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "x-github-delivery": "72d3162e",
        "x-hub-signature-256": f"sha256={digest if right else '0' * 64}",
    }
    return HookRequest(method="POST", headers=headers, query={}, body=body)


async def test_github_comment_becomes_message(platform: Program) -> None:
    async with listening(platform, GITHUB) as line:
        assert (await platform.call(commented())).status == 200
        heard = await line.next()
        assert (heard.id, heard.sender.id, heard.text) == ("IC_1", "583231", "why?")
        assert (heard.place.chat, heard.place.thread, heard.direct) == ("octo/cat", "12", False)


async def test_github_event_without_id_uses_delivery_id(platform: Program) -> None:
    async with listening(platform, {name: value for name, value in GITHUB.items() if name != "id"}) as line:
        await platform.call(commented())
        assert (await line.next()).id == "72d3162e"
        anonymous = commented()
        assert (await platform.call(with_headers(anonymous, x_github_delivery=""))).status == 400


async def test_other_github_events_are_accepted_and_ignored(platform: Program) -> None:
    async with listening(platform, GITHUB) as line:
        for call in (commented("edited"), commented("deleted"), commented(kind="Bot")):
            assert (await platform.call(call)).status == 200
        assert line.heard.empty()


async def test_github_call_with_wrong_signature_is_refused(platform: Program) -> None:
    async with listening(platform, GITHUB) as line:
        right = commented()
        calls = [
            commented(right=False),
            with_headers(right, x_hub_signature_256=""),
            with_headers(
                right, x_hub_signature_256=right.headers["x-hub-signature-256"].removeprefix("sha256=")
            ),
            with_headers(right, x_hub_signature_256="sha256=ö"),
            replace(right, body=right.body + b"\n"),
            platform.request(ANA),
        ]
        assert {(await platform.call(call)).status for call in calls} == {401}
        assert line.heard.empty()


async def send_part(platform: Program, line: Line) -> str:
    return await line.connector.send(part("hi", Place(chat="ana")))


@pytest.mark.parametrize(
    ("status", "headers", "error", "seconds"),
    [
        (400, {}, PermanentError, None),
        (404, {}, PermanentError, None),
        (410, {"Retry-After": "5"}, PermanentError, None),
        (408, {}, OutcomeUnknown, None),
        (409, {}, OutcomeUnknown, None),
        (425, {}, OutcomeUnknown, None),
        (429, {}, RetryLater, None),
        (429, {"Retry-After": "120"}, RetryLater, 120.0),
        (429, {"Retry-After": "soon"}, RetryLater, None),
        (429, {"Retry-After": "Mon, 01 Jan 99999999999 00:00:00 GMT"}, RetryLater, None),
        (429, {"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, RetryLater, 0.0),
        (503, {"Retry-After": "3"}, RetryLater, 3.0),
        (503, {}, OutcomeUnknown, None),
        (500, {"Retry-After": "3"}, OutcomeUnknown, None),
        (302, {"Location": "/replies"}, PermanentError, None),
        (307, {"Location": "/replies"}, PermanentError, None),
    ],
)
async def test_answers_map_to_errors(
    platform: Program, status: int, headers: Mapping[str, str], error: type[Exception], seconds: float | None
) -> None:
    async with listening(platform) as line:
        platform.answer_next(status, headers=headers)
        with pytest.raises(error, match=str(status)) as raised:
            await send_part(platform, line)
        assert getattr(raised.value, "seconds", None) == seconds
        assert platform.keys == {}


async def test_retry_time_can_be_date(platform: Program) -> None:
    async with listening(platform) as line:
        platform.answer_next(503, headers={"Retry-After": formatdate(time.time() + 3_600, usegmt=True)})
        with pytest.raises(RetryLater) as raised:
            await send_part(platform, line)
        assert raised.value.seconds is not None
        assert 3_500 < raised.value.seconds <= 3_601


async def test_endless_answer_is_not_read(platform: Program) -> None:
    async with listening(platform, {**platform.settings(), "reply_url": f"{platform.url}/endless"}) as line:
        assert await send_part(platform, line)


async def test_unreachable_reply_url_is_retried_and_missing_one_refused(platform: Program) -> None:
    async with Program() as gone:
        url = f"{gone.url}/replies"
    async with listening(platform, {**platform.settings(), "reply_url": url}) as line:
        with pytest.raises(RetryLater):
            await send_part(platform, line)
    async with listening(platform, {"secrets": SECRET}) as line:
        with pytest.raises(PermanentError, match="reply_url"):
            await send_part(platform, line)


async def test_sending_recovers_from_cut_between_replies(platform: Program) -> None:
    async with listening(platform) as line:
        await send_part(platform, line)
        await platform.cut()
        await send_part(platform, line)
        assert len(await platform.shown(2)) == 2


async def test_local_calls_bypass_proxy(platform: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with listening(platform) as line:
        await send_part(platform, line)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/hook",
        "ftp://127.0.0.1/",
        "https://",
        "https://user:pass@example.org/",
        "http://127.0.0.1.example.org/",
        "http://[::1/",
        "https://example.org:99999/",
        "file:///etc/passwd",
        "/replies",
    ],
)
def test_reply_url_requires_encryption_or_local_address(url: str) -> None:
    with pytest.raises(ValidationError, match="reply_url"):
        WebhookSettings.model_validate({"secrets": SECRET, "reply_url": url})


@pytest.mark.parametrize("url", ["https://example.org:8443/hook", "http://localhost:1/", "http://[::1]:1/"])
def test_encrypted_or_local_reply_urls_are_accepted(url: str) -> None:
    assert WebhookSettings.model_validate({"secrets": SECRET, "reply_url": url}).reply_url == url


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"secrets": []},
        {"secrets": ""},
        {"secrets": "hunter2hunter2hunter2hunter2!"},
        {"secrets": base64.b64encode(b"too short").decode()},
        {"secrets": [SECRET, ""]},
        {"secrets": "", "scheme": "github"},
        {"secrets": SECRET, "content": "$.a["},
        {"secrets": SECRET, "when": "a == 'b'"},
        {"secrets": SECRET, "tolerance": 0},
    ],
)
def test_invalid_settings_are_refused(settings: Any) -> None:
    with pytest.raises(ValidationError) as raised:
        WebhookSettings.model_validate(settings)
    assert "hunter2" not in str(raised.value)
