"""The DingTalk connector against a stand-in of the platform, which the platform's own client verifies."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aiohttp import web
from tests.integration.connectors.refused_credentials import check_that_connection_ends
from tests.standins.dingtalk import CLIENT, ROBOT, SECRET, DingtalkStandIn
from tests.standins.http import SignCounter

from torana.connectors.base import OutcomeUnknown, PermanentError, Place, RetryLater, TooLarge
from torana.connectors.platforms.dingtalk import Dingtalk, DingtalkSettings
from torana.testing.connectors import PATIENCE, ConnectorContract, Line, listening, part

ANA = Place(chat="cid1ana==", reply_to={"user": "staff-ana"})


@pytest.fixture
async def platform() -> AsyncGenerator[DingtalkStandIn]:
    async with DingtalkStandIn() as platform:
        yield platform


class TestContract(ConnectorContract):
    """The contract of all connectors."""


class TestHearing:
    async def test_sender_is_known_by_staff_id_or_platform_id(self, platform: DingtalkStandIn) -> None:
        async with listening(platform) as line:
            await platform.say("hello")
            heard = await line.next()
            assert (heard.sender.id, heard.sender.name) == ("staff-ana", "Ms ana")
            outside = {"msgtype": "text", "text": {"content": "hello"}, "senderStaffId": None}
            await platform.tell(outside)
            assert (await line.next()).sender.id == "$:LWCP_v1:$ana"

    async def test_other_frames_are_acknowledged_and_ignored(self, platform: DingtalkStandIn) -> None:
        async with listening(platform) as line:
            await platform.frame("CALLBACK", "/v1.0/card/instances/callback", {"outTrackId": "1"})
            await platform.frame("EVENT", "*", {"eventType": "user_add_org"})
            await platform.frame("CALLBACK", "/v1.0/im/bot/messages/get", "no JSON")
            await platform.frame("CALLBACK", "/v1.0/im/bot/messages/get", {"msgId": 7})
            await platform.tell({"msgtype": "text", "text": {"content": "my own"}, "senderId": ROBOT})
            await platform.tell({"msgtype": "text", "text": "no object"})
            await platform.tell({"msgtype": "picture", "content": {}})
            await platform.tell({"msgtype": "unknownMsgType", "content": "?"})
            await platform.tell({"msgtype": "text", "text": {"content": " "}, "sessionWebhook": "https://[x"})
            await platform.say("a message")
            assert (await line.next()).text == "a message"
            await platform.until(lambda: len(platform.acknowledged) >= 10)

    async def test_message_is_not_acknowledged_before_acceptance(self, platform: DingtalkStandIn) -> None:
        async with listening(platform) as line:
            line.broken = True
            await platform.say("hello")
            await line.next()
        assert platform.acknowledged == []

    async def test_text_and_pictures_form_one_message(self, platform: DingtalkStandIn) -> None:
        pictures = [{"type": "picture", **platform.file_content(b"12345")} for _ in range(200)]
        items = [{"text": "@Torana"}, {"text": " look "}, *pictures, {"text": "@Bob\nhere"}, "nothing"]
        rich = {"msgtype": "richText", "content": {"richText": items}}
        async with listening(platform) as line:
            await platform.tell(rich, room=platform.room, mention=True)
            heard = await line.next()
            assert heard.text == "look @Bob\nhere"
            assert len(heard.attachments) == 200
            await platform.tell(rich)
            assert (await line.next()).text == "@Torana look @Bob\nhere"

    @pytest.mark.parametrize(
        ("told", "file", "text"),
        [
            (
                {"msgtype": "audio", "content": {"recognition": "I said"}},
                ("voice", "voice"),
                "I said",
            ),
            (
                {"msgtype": "video", "content": {"videoType": "mp4"}},
                ("video", "video.mp4"),
                "",
            ),
            ({"msgtype": "file", "content": {"fileName": "a\nb.pdf"}}, ("file", "a b.pdf"), ""),
        ],
    )
    async def test_file_has_kind_name_and_size_limit(
        self, platform: DingtalkStandIn, told: dict[str, Any], file: tuple[str, str], text: str
    ) -> None:
        told = {**told, "content": {**told["content"], **platform.file_content(b"12345")}}
        async with listening(platform) as line:
            await platform.tell(told)
            heard = await line.next()
        attachment = heard.attachments[0]
        assert ((attachment.kind, attachment.name), heard.text) == (file, text)
        assert attachment.fetch is not None
        assert await attachment.fetch(5) == b"12345"  # although the connection has ended
        platform.lengths = True
        platform.end_token()
        with pytest.raises(TooLarge):
            await attachment.fetch(4)

    @pytest.mark.parametrize("url", ["file:///etc/passwd", "nothing", "ftp://example.org/x"])
    async def test_file_is_not_fetched_from_unsafe_url(self, platform: DingtalkStandIn, url: str) -> None:
        async with listening(platform) as line:
            await platform.say("look", file=("cat.png", "image/png", b"12345"))
            fetch = (await line.next()).attachments[0].fetch
            assert fetch is not None
            platform.download_url = url
            with pytest.raises(PermanentError, match="unsafe URL for the file"):
                await fetch(10)


class TestSending:
    @pytest.mark.parametrize(
        ("status", "body"), [(503, {}), (400, {"code": "systemBusy"}), (200, {}), (200, {"expireIn": 7200})]
    )
    async def test_part_without_access_token_is_not_sent(
        self, platform: DingtalkStandIn, status: int, body: dict[str, Any]
    ) -> None:
        async with listening(platform) as line:
            platform.end_token()
            platform.token_answers.append(web.json_response(body, status=status))
            with pytest.raises(RetryLater, match="no access token"):
                await line.connector.send(part("hello", ANA))
            await line.connector.send(part("hello", ANA))
            assert [one.text for one in await platform.shown(1)] == ["hello"]

    async def test_refused_credentials_end_the_connection_and_not_the_reply(
        self, platform: DingtalkStandIn
    ) -> None:
        refusal = web.json_response({"code": "invalidClientIdOrSecret"}, status=400)
        await check_that_connection_ends(platform, refusal, to=ANA)

    async def test_expired_access_token_is_replaced_once(self, platform: DingtalkStandIn) -> None:
        async with listening(platform) as line:
            await line.connector.send(part("first", ANA))
            platform.end_token()
            await asyncio.gather(*(line.connector.send(part(f"{n}", ANA)) for n in range(5)))
            assert len(await platform.shown(6)) == 6
            assert (
                platform.tokens == 3
            )  # one request at the start, one after the expiry, one for all five calls

    @pytest.mark.parametrize("room", [False, True])
    async def test_reply_uses_session_webhook_without_permission(
        self, platform: DingtalkStandIn, *, room: bool
    ) -> None:
        platform.permitted = False
        where = platform.room if room else None
        async with listening(platform) as line:
            await platform.say("hello", room=where, mention=room)
            await line.connector.send(part("hi", (await line.next()).place))
            assert [one.text for one in await platform.shown(1, room=where)] == ["hi"]
            assert platform.ways == ["webhook"]

    async def test_reply_to_external_sender_uses_session_webhook(self, platform: DingtalkStandIn) -> None:
        outside = {"msgtype": "text", "text": {"content": "hello"}, "senderStaffId": ""}
        async with listening(platform) as line:
            await platform.tell(outside)
            await line.connector.send(part("hi", (await line.next()).place))
            await platform.shown(1)
            assert platform.ways == ["webhook"]

    async def test_expired_session_webhook_reports_missing_permission(self, platform: DingtalkStandIn) -> None:
        platform.permitted, platform.answer_seconds = False, -1
        async with listening(platform) as line:
            await platform.say("hello")
            with pytest.raises(PermanentError, match="AccessTokenPermissionDenied"):
                await line.connector.send(part("hi", (await line.next()).place))

    @pytest.mark.parametrize(
        "url",
        [
            "https://example.org/robot/sendBySession?session=x",
            "https://dingtalk.com.example.org/robot/sendBySession?session=x",
            "https://evildingtalk.com/",
            "http://oapi.dingtalk.com/robot/sendBySession?session=x",
            "https://oapi.dingtalk.com@example.org/",
            "https://example.org\\@oapi.dingtalk.com/",
            "http://127.0.0.1:1/",
            "https://[x",
        ],
    )
    async def test_foreign_session_webhook_is_not_called(self, platform: DingtalkStandIn, url: str) -> None:
        platform.permitted, platform.webhook = False, url
        async with listening(platform) as line:
            await platform.say("hello")
            place = (await line.next()).place
            assert "webhook" not in place.reply_to
            kept = Place(chat=place.chat, reply_to={**place.reply_to, "webhook": url, "until": "9" * 14})
            with pytest.raises(PermanentError):
                await line.connector.send(part("hi", kept))

    def test_session_webhook_of_dingtalk_is_trusted(self) -> None:
        settings = DingtalkSettings.model_validate({"client_id": CLIENT, "client_secret": SECRET})
        trusted = Dingtalk(settings)._is_trusted_url  # pyright: ignore[reportPrivateUsage]
        assert trusted("https://oapi.dingtalk.com/robot/sendBySession?session=x")

    @pytest.mark.parametrize(
        ("answer", "error", "seconds"),
        [
            ({"processQueryKey": "k", "flowControlledStaffIdList": ["staff-ana"]}, RetryLater, None),
            ({"processQueryKey": "k", "invalidStaffIdList": ["staff-ana"]}, PermanentError, None),
            ({"status": 1111, "wait": 5, "source": "x5", "punish": "deny", "uuid": "1"}, RetryLater, 300.0),
            (["no object"], OutcomeUnknown, None),
        ],
    )
    async def test_success_status_with_faulty_body_is_error(
        self, platform: DingtalkStandIn, answer: object, error: type[Exception], seconds: float | None
    ) -> None:
        async with listening(platform) as line:
            platform.answer_with(answer)
            with pytest.raises(error) as raised:
                await line.connector.send(part("hi", ANA))
            assert getattr(raised.value, "seconds", None) == seconds

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            ({"errcode": 130101, "errmsg": "send too fast, exceed 20 times per minute"}, RetryLater),
            ({"status": 1111, "wait": 5, "source": "x5", "punish": "deny", "uuid": "1"}, RetryLater),
            ({"errcode": -1, "errmsg": "busy"}, OutcomeUnknown),
            ({}, OutcomeUnknown),
            ({"errcode": 300001, "errmsg": "session does not exist"}, PermanentError),
        ],
    )
    async def test_session_webhook_error_becomes_delivery_error(
        self, platform: DingtalkStandIn, answer: dict[str, Any], error: type[Exception]
    ) -> None:
        platform.permitted = False
        async with listening(platform) as line:
            await platform.say("hello")
            place = (await line.next()).place
            platform.answer_webhook_with(answer)
            with pytest.raises(error):
                await line.connector.send(part("hi", place))

    async def test_rendered_reply_has_no_mentions_colours_or_links(self, platform: DingtalkStandIn) -> None:
        text = "@all hi, a@example.org `@staff-ana`\n```\n@all\n```\n<font color=red>x</font> \\[x](x:1)"
        async with listening(platform) as line:
            await line.connector.send(part(Dingtalk.abilities.render(text), ANA))
            shown = (await platform.shown(1))[0].text
            assert platform.called == []
            assert "a@example.org" in shown
            rendered = Dingtalk.abilities.render(text)
            assert "<font" not in rendered
            assert "](" not in rendered

    @pytest.mark.parametrize("text", ['"\\\n' * 1_333, "😀" * 4_000, "`" * 4_000])
    async def test_longest_part_is_accepted(self, platform: DingtalkStandIn, text: str) -> None:
        async with listening(platform) as line:
            await line.connector.send(part(text, ANA))
            platform.permitted = False
            await platform.say("hello")
            await line.connector.send(part(text, (await line.next()).place))
            assert platform.ways == ["oTo", "webhook"]

    def test_rendering_keeps_literal_characters_and_code(self) -> None:
        render = Dingtalk.abilities.render
        assert render("2\\*3\\*4 snake_case\n_it_ **is**") == "2\\*3\\*4 snake_case  \n*it* **is**"
        assert render("\\# no heading\n\n- item\n\n```\na\n  b\n```") == (
            "\\# no heading\n\n• item\n\n```  \na  \n  b  \n```"
        )

    async def test_failed_connection_raises_retry_later(self, platform: DingtalkStandIn) -> None:
        async with listening(platform) as line:
            settings = platform.settings()
        connector = Dingtalk(DingtalkSettings.model_validate({**settings, "api_url": "http://127.0.0.1:9"}))
        with pytest.raises(RetryLater):
            await connector.run(line)
        with pytest.raises(RetryLater):
            await connector.send(part("hello", ANA))


class TestConnection:
    async def test_ping_is_answered_with_its_data(self, platform: DingtalkStandIn) -> None:
        async with listening(platform):
            await platform.frame("SYSTEM", "ping", {"opaque": "123-dsfs"})
            await platform.until(lambda: len(platform.answered_pings) >= 1)
            assert platform.answered_pings == ["123-dsfs"]

    async def test_disconnect_request_replaces_connection_once(self, platform: DingtalkStandIn) -> None:
        connector = Dingtalk(DingtalkSettings.model_validate(platform.settings()))
        line = Line(connector)
        run = asyncio.create_task(connector.run(line))
        await platform.until(lambda: platform.connections >= 1)
        await platform.disconnect()
        await platform.until(lambda: platform.connections >= 2)
        await platform.say("still there?")
        assert (await line.next()).text == "still there?"
        await platform.disconnect()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(run, PATIENCE)

    @pytest.mark.parametrize("ended", [False, True])
    async def test_new_connection_does_not_wait_for_unfinished_message(
        self, platform: DingtalkStandIn, *, ended: bool
    ) -> None:
        async with listening(platform) as line:
            line.gate = asyncio.Event()
            slow = await platform.say("slow")
            await line.next()
            await platform.disconnect()
            await platform.until(lambda: platform.connections >= 2)
            assert (await line.next()).text == "slow"  # repeated, because it was not acknowledged
            quick = await platform.say("quick", sender="bob")
            assert (await line.next()).text == "quick"
            await platform.until(lambda: platform.acknowledged == [quick])
            if ended:
                await platform.end_silent()
            line.gate.set()
            await platform.until(lambda: slow in platform.acknowledged)
            await platform.say("still there?")
            assert (await line.next()).text == "still there?"

    async def test_silent_connection_is_probed_and_dead_one_ends(
        self, platform: DingtalkStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("torana.connectors.transport.websocket._PROBE", 0.05)
        connector = Dingtalk(DingtalkSettings.model_validate(platform.settings()))
        line = SignCounter(connector)
        run = asyncio.create_task(connector.run(line))
        await asyncio.wait_for(line.enough.wait(), PATIENCE)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        platform.dead = True
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(Dingtalk(connector.settings).run(line), PATIENCE)

    async def test_error_and_settings_hide_secret(self, platform: DingtalkStandIn) -> None:
        connector = Dingtalk(DingtalkSettings.model_validate(platform.settings()))
        assert SECRET not in connector.credentials + repr(connector.settings)
        await platform.refuse_login()
        with pytest.raises(PermanentError) as raised:
            await connector.run(Line(connector))
        assert SECRET not in str(raised.value)


OFFICIAL_CLIENT = """
import sys
import dingtalk_stream

class Handler(dingtalk_stream.ChatbotHandler):
    async def process(self, callback):
        print(dingtalk_stream.ChatbotMessage.from_dict(callback.data).text.content, flush=True)
        return dingtalk_stream.AckMessage.STATUS_OK, "OK"

client = dingtalk_stream.DingTalkStreamClient(dingtalk_stream.Credential(*sys.argv[1:]))
client.register_callback_handler(dingtalk_stream.ChatbotMessage.TOPIC, Handler())
client.start_forever()
"""


async def test_platform_client_receives_message_from_stand_in(platform: DingtalkStandIn) -> None:
    said = await platform.say("hello")
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", OFFICIAL_CLIENT, CLIENT, SECRET),
        env={**os.environ, "DINGTALK_OPENAPI_ENDPOINT": platform.url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert client.stdout is not None
        async with asyncio.timeout(60):
            assert await client.stdout.readline() == b"hello\n"
            await platform.until(lambda: len(platform.acknowledged) >= 1)
        assert platform.acknowledged == [said]
    finally:
        client.kill()
        await client.wait()
