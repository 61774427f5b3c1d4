"""The Feishu connector against a stand-in of the platform, which the platform's own client verifies."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest
from aiohttp import web
from tests.integration.connectors.refused_credentials import check_that_connection_ends
from tests.standins.feishu import APP, BOT, SECRET, FeishuStandIn, write_frame
from tests.standins.http import SignCounter

from torana.connectors.base import OutcomeUnknown, PermanentError, Place, RetryLater, TooLarge
from torana.connectors.platforms.feishu import Feishu, FeishuSettings
from torana.testing.connectors import PATIENCE, ConnectorContract, Line, listening, part

CHAT = Place(chat="oc_p2p_ana")


@pytest.fixture
async def platform() -> AsyncGenerator[FeishuStandIn]:
    async with FeishuStandIn() as platform:
        yield platform


class TestContract(ConnectorContract):
    """The contract of all connectors."""


def shown_as(text: str) -> str:
    return Feishu.abilities.render(text)


class TestHearing:
    async def test_event_in_several_frames_is_assembled(self, platform: FeishuStandIn) -> None:
        platform.frame_bytes = 97
        async with listening(platform) as line:
            said = await platform.say("ü" * 3_000)
            assert (await line.next()).text == "ü" * 3_000
            assert await platform.acknowledgements(1) == [said]

    async def test_other_events_are_acknowledged_and_ignored(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            await platform.event("im.message.reaction.created_v1", {"message_id": "om_1"})
            await platform.event("im.message.receive_v1", {"sender": 3, "message": None})
            await platform.tell("sticker", {"file_key": "file_1"})
            await platform.tell("text", {"text": "my own"}, sender=BOT.removeprefix("ou_"))
            await platform.tell("text", ["no object"])  # pyright: ignore[reportArgumentType]
            await platform.tell("post", {"content": [3, ["x"], [{"tag": "img"}]]})
            await platform.say("a message")
            assert (await line.next()).text == "a message"
            await platform.acknowledgements(7)

    async def test_malformed_frames_are_ignored(self, platform: FeishuStandIn) -> None:
        event = {"type": "event", "message_id": "bad"}
        async with listening(platform) as line:
            for frame in (
                b"\xff",
                write_frame(0, {"type": "pong"}, b'{"PingInterval": 1' + b"0" * 400 + b"}"),
                write_frame(1, event | {"sum": "x"}, b"{}"),
                write_frame(1, event | {"sum": "2", "seq": "-1"}, b"{}"),
                write_frame(1, event | {"sum": "9" * 5_000, "seq": "1"}, b"{}"),
                write_frame(1, event | {"sum": "200", "seq": "150"}, b"{}"),
                write_frame(1, event | {"sum": "2", "seq": "0"}, b"{}"),
            ):
                await platform.send_frame(frame)
            await platform.tell("text", {"text": "@_user_1 hi"}, mentions=[{"key": ["@_user_1"], "id": {}}])
            await platform.say("a message")
            assert (await line.next()).text == "a message"

    async def test_event_in_pieces_has_a_limit(self, platform: FeishuStandIn) -> None:
        platform.frame_bytes = 400_000
        async with listening(platform) as line:
            await platform.event("im.message.receive_v1", "x" * 1_200_000)
            said = await platform.say("y" * 500_000)
            assert (await line.next()).text == "y" * 500_000
            assert await platform.acknowledgements(1) == [said]

    async def test_message_is_not_acknowledged_before_acceptance(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            line.broken = True
            await platform.say("hello")
            await line.next()
        assert platform.acknowledged == []

    async def test_placeholders_are_replaced_by_names(self, platform: FeishuStandIn) -> None:
        mentions = [
            {"key": "@_user_1", "id": {"open_id": BOT}, "name": "Torana"},
            {"key": "@_user_10", "id": {"open_id": "ou_eve"}, "name": "Eve\n\u202ethe 10th"},
            {"key": "@_user_2", "id": None, "name": "Bob"},
        ]
        async with listening(platform) as line:
            text = "@_user_1 @_user_1 ask @_user_10, @_user_2, @_user_3, @_all and @_user_1"
            await platform.tell("text", {"text": text}, room=platform.room, mentions=mentions)
            heard = await line.next()
            assert heard.text == "ask @Eve the 10th, @Bob, @_user_3, @all and @Torana"
            assert heard.addressed
            await platform.tell("text", {"text": "@_all hear"}, room=platform.room)
            assert not (await line.next()).addressed

    async def test_many_leading_mentions_cost_as_much_as_mentions_of_others(
        self, platform: FeishuStandIn
    ) -> None:
        mentions = [
            {"key": "@_user_1", "id": {"open_id": BOT}, "name": "Torana"},
            {"key": "@_user_2", "id": {"open_id": "ou_eve"}, "name": "Eve"},
        ]
        costs: dict[str, float] = {}
        async with listening(platform) as line:
            for key, left in (("@_user_2", "@Eve " * 100_000 + "hi"), ("@_user_1", "hi")):
                before = time.process_time()
                text = {"text": f"{key} " * 100_000 + "hi"}
                await platform.tell("text", text, room=platform.room, mentions=mentions)
                assert (await line.next()).text == left
                costs[key] = time.process_time() - before
        assert costs["@_user_1"] < 5 * costs["@_user_2"]

    async def test_reply_to_bot_addresses_it(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            first = await platform.say("hello", room=platform.room, mention=True)
            ours = await line.connector.send(part("hi", (await line.next()).place))
            await platform.tell("text", {"text": "and you?"}, room=platform.room, parent=ours)
            heard = await line.next()
            assert (await heard.is_for_us(), heard.in_reply_to) == (True, ours)
            platform.odd = True
            await platform.tell("text", {"text": "odd"}, room=platform.room, parent=ours)
            assert not await (await line.next()).is_for_us()
            platform.odd = False
            for other in (first, "om_unknown"):
                await platform.tell("text", {"text": "I mean her"}, room=platform.room, parent=other)
                assert not await (await line.next()).is_for_us()

    async def test_post_is_read_with_and_without_language_key(self, platform: FeishuStandIn) -> None:
        paragraphs = [
            [
                {"tag": "at", "user_id": "@_user_1"},
                {"tag": "text", "text": " see "},
                {"tag": "a", "text": "this", "href": "https://example.org"},
                {"tag": "emotion", "emoji_type": "SMILE"},
            ],
            [{"tag": "code_block", "text": "x = 1"}],
            *([{"tag": "img", "image_key": f"img_{n}"}] for n in range(200)),
        ]
        mentions = [{"key": "@_user_1", "id": {"open_id": BOT}, "name": "Torana"}]
        async with listening(platform) as line:
            content = {"title": "News", "content": paragraphs}
            await platform.tell("post", content, mentions=mentions)
            heard = await line.next()
            assert heard.text == "News\n@Torana see this (https://example.org):SMILE:\nx = 1"
            assert len(heard.attachments) == 200
            await platform.tell("post", {"en_us": content}, mentions=mentions)
            assert (await line.next()).text == heard.text

    @pytest.mark.parametrize(
        ("kind", "content", "told"),
        [
            ("file", {"file_name": "a\nb.pdf"}, ("file", "a b.pdf", "application/pdf")),
            ("audio", {"duration": 2000}, ("voice", "voice.ogg", "audio/ogg")),
            ("media", {"file_name": "c.mp4", "image_key": "img_9"}, ("video", "c.mp4", "video/mp4")),
        ],
    )
    async def test_file_has_kind_name_media_type_and_size_limit(
        self, platform: FeishuStandIn, kind: str, content: dict[str, object], told: tuple[str, str, str]
    ) -> None:
        async with listening(platform) as line:
            await platform.tell(kind, {**content, "file_key": platform.put_file(b"12345")})
            file = (await line.next()).attachments[0]
        assert (file.kind, file.name, file.media_type) == told
        assert file.fetch is not None
        assert await file.fetch(5) == b"12345"  # although the connection has ended
        platform.lengths = True
        platform.end_token()
        with pytest.raises(TooLarge):
            await file.fetch(4)

    async def test_deleted_file_is_refused(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            await platform.tell("file", {"file_key": "file_gone", "file_name": "x"})
            fetch = (await line.next()).attachments[0].fetch
            assert fetch is not None
            with pytest.raises(PermanentError, match="234003"):
                await fetch(10)


class TestSending:
    @pytest.mark.parametrize(("status", "body"), [(503, {}), (200, {}), (200, {"code": 1})])
    async def test_part_without_access_token_is_not_sent(
        self, platform: FeishuStandIn, status: int, body: dict[str, int]
    ) -> None:
        async with listening(platform) as line:
            platform.end_token()
            platform.token_answers.append(web.json_response(body, status=status))
            with pytest.raises(RetryLater, match="no access token"):
                await line.connector.send(part("hello", CHAT))

    async def test_refused_credentials_end_the_connection_and_not_the_reply(
        self, platform: FeishuStandIn
    ) -> None:
        refusal = web.json_response({"code": 10014, "msg": "app secret invalid"})
        await check_that_connection_ends(platform, refusal, to=CHAT)

    async def test_expired_access_token_is_replaced_once(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            platform.end_token()
            await asyncio.gather(*(line.connector.send(part(f"{n}", CHAT)) for n in range(5)))
            assert len(await platform.shown(5)) == 5
            assert (
                platform.tokens == 3
            )  # one request at the start, one after the expiry, one for all five calls

    async def test_repeatedly_refused_access_token_raises_retry_later(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            for _ in range(2):
                platform.refuse_with(99991663, "Invalid access token")
            with pytest.raises(RetryLater):
                await line.connector.send(part("hello", CHAT))

    async def test_reply_to_recalled_message_goes_to_chat_but_not_outside_thread(
        self, platform: FeishuStandIn
    ) -> None:
        async with listening(platform) as line:
            said = await platform.say("hello", room=platform.room, mention=True)
            place = (await line.next()).place
            platform.posted[said].taken_back = True
            await line.connector.send(part("still here", place))
            assert platform.posted[(await platform.shown(1, room=platform.room))[0].id].parent is None
            thread = Place(chat=place.chat, thread="omt_1", reply_to=place.reply_to)
            with pytest.raises(PermanentError, match="recalled"):
                await line.connector.send(part("here", thread))

    async def test_only_first_part_quotes_message(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            said = await platform.say("hello", room=platform.room, mention=True)
            place = (await line.next()).place
            for number in (0, 1):
                await line.connector.send(part(f"part {number}", place, number=number))
            shown = await platform.shown(2, room=platform.room)
            assert [platform.posted[one.id].parent for one in shown] == [said, None]

    async def test_reply_that_fits_no_card_is_sent_as_text(self, platform: FeishuStandIn) -> None:
        platform.unfit = "**"
        async with listening(platform) as line:
            sent = await line.connector.send(part(shown_as("**2 < 3**"), CHAT))
            await line.connector.send(part(shown_as("**4 < 5**"), CHAT, edits=sent))
            assert [one.text for one in await platform.shown(1)] == ["**4 < 5**"]

    def test_rendering_keeps_literal_characters_and_code(self) -> None:
        assert shown_as("2\\*3\\*4 _it_ **is** &lt;") == "2&#42;3&#42;4 *it* **is** &#60;"
        assert shown_as("`` a`b ``\n\n~~~\na ``` b\n~~~").count("`") == 2 + 3 + 3 + 3
        assert shown_as("[x_y](https://a.b/c_(d))") == "[x&#95;y](https://a.b/c_%28d%29)"

    async def test_reply_mentions_no_user(self, platform: FeishuStandIn) -> None:
        text = (
            "<at id=all></at> `<at id=all></at>`\n```\n<at id=all></at>\n```\n[x](<https://a/<at id=all></at>>)"
        )
        async with listening(platform) as line:
            await line.connector.send(part(shown_as(text), CHAT))
            await platform.shown(1)
            assert platform.called == []

    @pytest.mark.parametrize("text", ['"\\\n' * 9_000, "☃" * 30_000, "a" * 40_000])
    async def test_longest_part_is_accepted(self, platform: FeishuStandIn, text: str) -> None:
        low, high = 0, len(text)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if Feishu.abilities.measure(text[:middle]) <= 20_000 else (low, middle)
        assert low > 2_000
        place = Place(chat="oc_" + "c" * 60, reply_to={})
        async with listening(platform) as line:
            await line.connector.send(part(text[:low], place))

    @pytest.mark.parametrize("code", [99991400, 230020, 230049, 11232])
    async def test_rate_limit_codes_raise_retry_later(self, platform: FeishuStandIn, code: int) -> None:
        async with listening(platform) as line:
            platform.refuse_with(code, "has more than 1000 digits")
            with pytest.raises(RetryLater) as raised:
                await line.connector.send(part("hello", CHAT))
            assert raised.value.seconds is None

    async def test_unsuccessful_status_with_success_code_has_unknown_outcome(
        self, platform: FeishuStandIn
    ) -> None:
        async with listening(platform) as line:
            platform.refuse_with(0, "a success that is none", status=502)
            with pytest.raises(OutcomeUnknown):
                await line.connector.send(part("hello", CHAT))

    async def test_failed_connection_raises_retry_later(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            settings = platform.settings()
        connector = Feishu(FeishuSettings.model_validate({**settings, "domain": "http://127.0.0.1:9"}))
        with pytest.raises(RetryLater):
            await connector.run(line)
        with pytest.raises(RetryLater):
            await connector.send(part("hello", CHAT))


class TestConnection:
    async def test_connector_sends_pings_at_requested_interval(self, platform: FeishuStandIn) -> None:
        async with listening(platform) as line:
            await platform.say("hello")
            await line.next()
            await platform.until(lambda: platform.pings)

    async def test_silent_connection_is_probed_and_dead_one_ends(
        self, platform: FeishuStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("torana.connectors.transport.websocket._PROBE", 0.05)
        connector = Feishu(FeishuSettings.model_validate(platform.settings()))
        line = SignCounter(connector)
        run = asyncio.create_task(connector.run(line))
        await asyncio.wait_for(line.enough.wait(), PATIENCE)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        platform.dead = True
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(Feishu(connector.settings).run(line), PATIENCE)

    async def test_app_without_bot_is_refused(self, platform: FeishuStandIn) -> None:
        platform.has_bot = False
        with pytest.raises(PermanentError, match="Bot"):
            async with listening(platform):
                pass

    async def test_error_and_settings_hide_secret(self, platform: FeishuStandIn) -> None:
        connector = Feishu(FeishuSettings.model_validate(platform.settings()))
        assert SECRET not in connector.credentials + repr(connector.settings)
        await platform.refuse_login()
        with pytest.raises(PermanentError) as raised:
            await connector.run(Line(connector))
        assert SECRET not in str(raised.value)


OFFICIAL_CLIENT = """
import sys
import torana.connectors.platforms.feishu
assert not [name for name in sys.modules if name.startswith("lark_oapi.api")], "all of the library was loaded"
import lark_oapi
from lark_oapi.api.im.v1 import P2ImMessageReceiveV1

def heard(event: P2ImMessageReceiveV1) -> None:
    print(event.event.message.content, flush=True)

handler = lark_oapi.EventDispatcherHandler.builder("", "").register_p2_im_message_receive_v1(heard).build()
app, secret, domain = sys.argv[1:]
quiet = lark_oapi.LogLevel.ERROR
lark_oapi.ws.Client(app, secret, event_handler=handler, domain=domain, log_level=quiet).start()
"""


@pytest.mark.long
async def test_platform_client_receives_message_from_stand_in(platform: FeishuStandIn) -> None:
    platform.frame_bytes = 200
    said = await platform.say("hello")
    settings = platform.settings()
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", OFFICIAL_CLIENT, APP, SECRET, settings["domain"]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert client.stdout is not None
        async with asyncio.timeout(60):
            assert json.loads(await client.stdout.readline()) == {"text": "hello"}
            assert await platform.acknowledgements(1) == [said]
    finally:
        client.kill()
        await client.wait()


async def test_idempotency_key_may_be_any_uuid(platform: FeishuStandIn) -> None:
    async with listening(platform) as line:
        key = str(uuid4())
        first, second = [await line.connector.send(part("hello", CHAT, key=key)) for _ in range(2)]
        assert first == second
