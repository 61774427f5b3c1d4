"""The Telegram connector against a stand-in of the Bot API."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web
from pydantic import ValidationError
from tests.standins.telegram import DOWNLOAD_LIMIT, ME, NAME, ROOM, TOKEN, Fault, Json, TelegramStandIn, units

from torana.connectors.base import (
    ELSEWHERE,
    IncomingMessage,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    TooLarge,
)
from torana.connectors.platforms.telegram import Telegram, TelegramSettings
from torana.connectors.transport.splitting import split
from torana.testing.connectors import ConnectorContract, Line, listening, part

ROOM_TEXT = str(ROOM)


@pytest.fixture
async def platform() -> AsyncGenerator[TelegramStandIn]:
    async with TelegramStandIn() as platform:
        yield platform


@pytest.fixture
async def line(platform: TelegramStandIn) -> AsyncGenerator[Line]:
    async with listening(platform) as line:
        yield line


def to(chat: str | int, text: str = "hello", **more: Any) -> Part:
    """Return a part for a chat in Telegram's markup."""
    return part(text, Place(chat=str(chat), **more))


class TestTelegram(ConnectorContract):
    """The contract of connectors for Telegram."""


class TestReceiving:
    """Polling and the confirmation of updates."""

    async def test_update_is_confirmed_after_its_message_is_taken(self, platform: TelegramStandIn) -> None:
        taking, taken = asyncio.Event(), asyncio.Event()

        class Slow(Line):
            async def hear(self, heard: IncomingMessage) -> None:
                taking.set()
                await taken.wait()

        connector = Telegram(TelegramSettings.model_validate(platform.settings()))
        await platform.say("one")
        run = asyncio.create_task(connector.run(Slow(connector)))
        await taking.wait()
        assert platform.offset == 0
        assert len(platform.updates) == 1
        taken.set()
        await platform.until(lambda: platform.offset > 0)
        assert platform.updates == []
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    async def test_later_failed_message_keeps_earlier_updates_unconfirmed(
        self, platform: TelegramStandIn
    ) -> None:
        await platform.say("one")
        await platform.say("two")
        connector = Telegram(TelegramSettings.model_validate(platform.settings()))
        line = Line(connector)
        line.broken = True
        with pytest.raises(OSError, match="the store cannot be written"):
            await connector.run(line)
        assert [(await line.next()).text for _ in range(2)] == ["one", "two"]
        assert (platform.offset, len(platform.updates)) == (0, 2)

    async def test_unordered_updates_are_put_in_order(self, platform: TelegramStandIn) -> None:
        numbers = {"second": 902, "third": 903, "first": 901}
        for text, number in numbers.items():
            message = {
                "message_id": number,
                "date": 1,
                "chat": {"id": 5, "type": "private"},
                "from": platform.person("ana"),
                "text": text,
            }
            await platform.push({"message": message}, update_id=number)
        async with listening(platform) as line:
            assert [(await line.next()).text for _ in numbers] == ["first", "second", "third"]
            await platform.until(lambda: platform.offset == 904)

    async def test_repeated_update_has_same_id(self, platform: TelegramStandIn) -> None:
        await platform.say("once")
        platform.updates *= 2
        async with listening(platform) as line:
            assert (await line.next()).id == (await line.next()).id

    async def test_unreadable_update_does_not_block_later_ones(
        self, platform: TelegramStandIn, caplog: pytest.LogCaptureFixture
    ) -> None:
        await platform.push({"message": {"message_id": "what", "text": "secret words"}}, update_id=7)
        await platform.say("after it")
        async with listening(platform) as line:
            assert (await line.next()).text == "after it"
        (record,) = [record for record in caplog.records if record.msg == "telegram_update_unreadable"]
        assert record.__dict__["update"] == 7
        assert "secret words" not in caplog.text

    async def test_edits_and_chat_events_are_ignored(self, platform: TelegramStandIn) -> None:
        chat = int(platform.person("ana")["id"])
        said = platform.messages[_ids(await platform.say("first"))]
        await platform.push({"edited_message": {**said, "text": "changed", "edit_date": 2}})
        await platform.push({"edited_channel_post": {**said, "text": "changed", "edit_date": 2}})
        await platform.push({"message_reaction": {"chat": said["chat"], "message_id": said["message_id"]}})
        for news in (
            {"new_chat_members": [ME]},
            {"pinned_message": said},
            {"group_chat_created": True},
            {"migrate_to_chat_id": -1_000_000_000_001},
            {"text": ""},
        ):
            await platform.post(chat, {"from": platform.person("ana"), **news})
        await platform.post(chat, {"from": ME, "text": "our own"})
        await platform.say("last")
        async with listening(platform) as line:
            assert [(await line.next()).text for _ in range(2)] == ["first", "last"]
            await platform.say("really the last")
            assert (await line.next()).text == "really the last"

    async def test_webhook_is_deleted(self, platform: TelegramStandIn) -> None:
        await platform.set_webhook("https://example.org/hook")
        async with listening(platform) as line:
            await platform.say("hello")
            assert (await line.next()).text == "hello"
        assert platform.webhook == ""

    async def test_second_poller_ends_connection_with_reason(self, platform: TelegramStandIn) -> None:
        connector = Telegram(TelegramSettings.model_validate(platform.settings()))
        run = asyncio.create_task(connector.run(Line(connector)))
        await platform.until(lambda: platform.polls == 2)
        async with httpx2.AsyncClient() as other:
            await other.get(f"{platform.url}/bot{TOKEN}/getUpdates")
        with pytest.raises(ConnectionError, match="another program receives this bot's messages"):
            await run

    async def test_revoked_token_ends_connection(self, platform: TelegramStandIn) -> None:
        connector = Telegram(TelegramSettings.model_validate(platform.settings()))
        line = Line(connector)
        run = asyncio.create_task(connector.run(line))
        await line.is_ready.wait()
        chat = platform.person("ana")["id"]
        await platform.refuse_login()
        with pytest.raises(RetryLater):  # the message is not at fault
            await connector.send(to(chat))
        await platform.push({"message": {}})  # the poll returns, and the next one is refused
        with pytest.raises(PermanentError, match="@BotFather") as raised:
            await run
        assert TOKEN not in "".join(traceback.format_exception(raised.value))

    async def test_failed_poll_ends_connection(self, platform: TelegramStandIn) -> None:
        platform.fails("getUpdates", Fault(502, "Bad Gateway"))
        connector = Telegram(TelegramSettings.model_validate(platform.settings()))
        with pytest.raises(ConnectionError, match="502 Bad Gateway"):
            await connector.run(Line(connector))

    async def test_sending_in_progress_survives_end_of_connection(self, platform: TelegramStandIn) -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def hold(_: web.Request) -> None:
            arrived.set()
            await go_on.wait()

        platform.next["sendMessage"] = [hold]
        connector = Telegram(TelegramSettings.model_validate(platform.settings()))
        line = Line(connector)
        run = asyncio.create_task(connector.run(line))
        await line.is_ready.wait()
        sending = asyncio.create_task(connector.send(to(ROOM)))
        await arrived.wait()
        await platform.set_webhook("https://example.org/hook")

        async def send_more() -> None:
            while True:
                await connector.send(to(ROOM, "another"))

        with pytest.raises(RetryLater, match="ended"):
            await send_more()
        assert not run.done()
        go_on.set()
        assert await sending
        with pytest.raises(ConnectionError):
            await run

    async def test_retry_time_of_poll_is_passed_on(self, platform: TelegramStandIn) -> None:
        platform.fails("getUpdates", platform.too_many(33))
        connector = Telegram(TelegramSettings.model_validate(platform.settings()))
        with pytest.raises(RetryLater) as raised:
            await connector.run(Line(connector))
        assert raised.value.seconds == 33

    async def test_unreachable_platform_is_no_refusal(self, unused_tcp_port: int) -> None:
        settings = {"token": TOKEN, "api_url": f"http://127.0.0.1:{unused_tcp_port}"}
        connector = Telegram(TelegramSettings.model_validate(settings))
        with pytest.raises(ConnectionError) as raised:
            await connector.run(Line(connector))
        assert TOKEN not in "".join(traceback.format_exception(raised.value))


class TestReading:
    """The sender, place, text and addressee of a message."""

    @pytest.mark.parametrize(
        ("said", "heard", "addressed"),
        [
            (f"@{NAME.upper()}, hello", "hello", True),
            (f"  @{NAME}:\nhello", "hello", True),
            (f"@{NAME}", "", True),
            (f"/new@{NAME} now", "/new now", True),
            (f"hello @{NAME}!", f"hello @{NAME}!", True),
            (f"🙂 @{NAME} 🙂", f"🙂 @{NAME} 🙂", True),
            (f"@{NAME}2 hello", f"@{NAME}2 hello", False),
            ("/new@other_bot", "/new@other_bot", False),
            ("/new", "/new", False),
            (f"mail me@{NAME}", f"mail me@{NAME}", False),
            (f"https://example.org/@{NAME}", f"https://example.org/@{NAME}", False),
        ],
    )
    async def test_mention_addresses_bot(
        self, platform: TelegramStandIn, line: Line, said: str, heard: str, *, addressed: bool
    ) -> None:
        await platform.say(said, room=ROOM_TEXT)
        told = await line.next()
        assert (told.text, told.addressed) == (heard, addressed)

    async def test_caption_becomes_text(self, platform: TelegramStandIn, line: Line) -> None:
        picture = ("cat.png", "image/png", b"picture")
        await platform.say(f"@{NAME} what is this?", room=ROOM_TEXT, file=picture)
        heard = await line.next()
        assert (heard.text, heard.addressed, len(heard.attachments)) == ("what is this?", True, 1)

    async def test_reply_to_bot_is_addressed(self, platform: TelegramStandIn, line: Line) -> None:
        ana = platform.person("ana")
        ours = platform.messages[ROOM, int(await line.connector.send(to(ROOM)))]
        theirs = platform.messages[_ids(await platform.say("by the way", room=ROOM_TEXT))]
        assert not (await line.next()).addressed
        await platform.post(ROOM, {"from": ana, "text": "thanks", "reply_to_message": ours})
        heard = await line.next()
        assert (heard.addressed, heard.in_reply_to) == (True, str(ours["message_id"]))
        await platform.post(ROOM, {"from": ana, "text": "no", "reply_to_message": theirs})
        assert not (await line.next()).addressed

    @pytest.mark.parametrize(
        "fields",
        [
            {"forward_origin": {"type": "hidden_user", "date": 1, "sender_user_name": "Bob"}},
            {"external_reply": {"origin": {"type": "hidden_user", "date": 1, "sender_user_name": "Bob"}}},
        ],
        ids=["forward", "reply in another chat"],
    )
    async def test_message_about_another_chat_is_no_answer(
        self, platform: TelegramStandIn, line: Line, fields: dict[str, Any]
    ) -> None:
        ana = platform.person("ana")
        await platform.post(ana["id"], {"from": ana, "text": "yes", **fields})

        assert (await line.next()).in_reply_to == ELSEWHERE

    async def test_topic_created_by_bot_is_no_reply_to_bot(self, platform: TelegramStandIn, line: Line) -> None:
        begin = {"message_id": 50, "date": 1, "chat": {"id": ROOM, "type": "supergroup"}, "from": ME}
        begin["forum_topic_created"] = {"name": "ours", "icon_color": 1}
        fields = {"message_thread_id": 50, "is_topic_message": True, "reply_to_message": begin}
        await platform.post(ROOM, {"from": platform.person("ana"), "text": "talk", **fields})
        heard = await line.next()
        assert (heard.addressed, heard.in_reply_to) == (False, None)
        assert heard.place.thread == "50"

    async def test_groups_count_their_messages_alike(self, platform: TelegramStandIn, line: Line) -> None:
        other = platform.add_chat({"id": -1_001_600_000_000, "type": "supergroup", "title": "Other"})
        for chat in (ROOM, other):
            await platform.post(chat, {"from": platform.person("ana"), "text": "hello"})
        one, two = await line.next(), await line.next()
        assert one.place.reply_to == two.place.reply_to
        assert one.id != two.id

    async def test_bots_get_different_ids_for_same_message_number(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In private chats each bot numbers messages separately, so equal numbers are different messages."""
        said: list[str] = []
        heard: list[IncomingMessage] = []
        for bot in (1, 2):
            monkeypatch.setitem(ME, "id", bot)
            async with TelegramStandIn() as platform, listening(platform) as line:
                said.append(await platform.say("hello"))
                heard.append(await line.next())
        assert said[0] == said[1]
        assert heard[0].id != heard[1].id

    async def test_replies_outside_topics_have_no_thread(self, platform: TelegramStandIn, line: Line) -> None:
        await platform.post(ROOM, {"from": platform.person("ana"), "text": "talk", "message_thread_id": 12})
        assert (await line.next()).place.thread is None

    @pytest.mark.parametrize(
        ("kind", "fields", "sender", "automatic"),
        [
            # An anonymous administrator writes as the group.
            ("message", {"from": {"id": 1_087_968_824, "is_bot": True}, "sender_chat": ROOM}, ROOM, False),
            # A user who writes as a channel.
            ("message", {"from": {"id": 136_817_688, "is_bot": True}, "sender_chat": -1007}, -1007, False),
            # A message of a channel, which Telegram forwards to its group.
            (
                "message",
                {
                    "from": {"id": 777_000, "is_bot": False},
                    "sender_chat": -1007,
                    "is_automatic_forward": True,
                },
                -1007,
                True,
            ),
            ("channel_post", {"sender_chat": ROOM}, ROOM, False),
            ("channel_post", {}, ROOM, False),
        ],
    )
    async def test_chat_is_sender_of_its_own_messages(
        self,
        platform: TelegramStandIn,
        line: Line,
        kind: str,
        fields: Json,
        sender: int,
        *,
        automatic: bool,
    ) -> None:
        fields = dict(fields)
        if "from" in fields:
            fields["from"] = {**fields["from"], "first_name": "Dummy"}
        if "sender_chat" in fields:
            fields["sender_chat"] = {"id": fields["sender_chat"], "type": "channel", "title": "A\nchat"}
        await platform.post(ROOM, {**platform.text(f"hello @{NAME}"), **fields}, kind=kind)
        heard = await line.next()
        assert (heard.sender.id, heard.sender.automatic) == (str(sender), automatic)
        assert "\n" not in heard.sender.name
        assert heard.addressed
        assert not heard.direct

    async def test_sender_name_is_one_printable_line(self, platform: TelegramStandIn, line: Line) -> None:
        person = {
            **platform.person("eve"),
            "first_name": "Ana\n\n[operator]\u202e\u200f",
            "last_name": "X" * 500,
        }
        await platform.post(int(person["id"]), {"from": person, "text": "hello"})
        sender = (await line.next()).sender
        assert sender.name.startswith("Ana [operator] XXX")
        assert sender.name.isprintable()
        assert len(sender.name) == 100
        assert sender.id == str(person["id"])

    async def test_one_megabyte_text_is_accepted(self, platform: TelegramStandIn, line: Line) -> None:
        text = f"/new@{NAME} " + "🙂 some words " * 70_000 + "@nobody_here " * 1_000
        await platform.say(text, room=ROOM_TEXT)
        heard = await line.next()
        assert len(heard.text) == len(text) - len(f"@{NAME}")
        assert heard.addressed

    async def test_two_hundred_messages_with_files_arrive_in_order(self, platform: TelegramStandIn) -> None:
        file = ("a.txt", "text/plain", b"a")
        for number in range(200):
            await platform.say(str(number), file=file)
        async with listening(platform) as line:
            assert [(await line.next()).text for _ in range(200)] == [str(number) for number in range(200)]


class TestFiles:
    """Attachments of a message."""

    async def test_files_get_kinds_names_and_media_types(self, platform: TelegramStandIn, line: Line) -> None:
        def file(**fields: object) -> Json:
            return {**platform.keep_file(b"data"), **fields}

        moving = file(width=1, height=1, duration=1, file_name="a.mp4", mime_type="video/mp4")
        sticker = file(
            width=1, height=1, type="regular", is_animated=False, is_video=False, emoji="🙂", set_name="s"
        )
        for fields in (
            {"voice": file(duration=1)},
            {"audio": file(duration=1, mime_type="audio/mpeg", file_name="song.mp3")},
            {"video": moving},
            {"video_note": file(length=1, duration=1)},
            {"animation": moving, "document": file(file_name="a.mp4", mime_type="video/mp4")},
            {"document": file(file_name="../a\nb.png", mime_type="image/png")},
            {"document": file()},
            {"sticker": sticker},
        ):
            await platform.post(platform.person("ana")["id"], {"from": platform.person("ana"), **fields})
        told: list[tuple[str, str, str]] = []
        for _ in range(8):
            (one,) = (await line.next()).attachments
            told.append((one.kind, one.name, one.media_type))
            assert one.kind == "image" or one.fetch is not None
            assert one.fetch is None or await one.fetch(100) == b"data"
        assert told == [
            ("voice", "", "audio/ogg"),
            ("file", "song.mp3", "audio/mpeg"),
            ("video", "a.mp4", "video/mp4"),
            ("video", "", "video/mp4"),
            ("video", "a.mp4", "video/mp4"),
            ("image", "../a b.png", "image/png"),
            ("file", "", "application/octet-stream"),
            ("image", "sticker 🙂", "application/octet-stream"),
        ]

    async def test_largest_allowed_photo_size_is_fetched(self, platform: TelegramStandIn, line: Line) -> None:
        await platform.say("", file=("a.png", "image/png", b"x" * 1000))
        (photo,) = (await line.next()).attachments
        assert photo.fetch is not None
        assert photo.size == 1000
        assert [len(await photo.fetch(limit)) for limit in (1000, 999, 750)] == [1000, 750, 750]
        with pytest.raises(TooLarge):
            await photo.fetch(749)

    async def test_file_of_unknown_size_is_fetched_within_limit(
        self, platform: TelegramStandIn, line: Line
    ) -> None:
        platform.sends = "pieces"
        document = {**platform.keep_file(b"x" * 100_000), "file_name": "a"}
        del document["file_size"]
        await platform.post(
            platform.person("ana")["id"], {"from": platform.person("ana"), "document": document}
        )
        (one,) = (await line.next()).attachments
        assert one.size is None
        assert one.fetch is not None
        assert len(await one.fetch(100_000)) == 100_000
        with pytest.raises(TooLarge):
            await one.fetch(99_999)

    async def test_late_size_does_not_delay_refusal(self, platform: TelegramStandIn, line: Line) -> None:
        platform.sends = "size"
        document = {**platform.keep_file(b"x" * 100), "file_name": "a"}
        del document["file_size"]
        await platform.post(
            platform.person("ana")["id"], {"from": platform.person("ana"), "document": document}
        )
        (one,) = (await line.next()).attachments
        assert one.fetch is not None
        with pytest.raises(TooLarge):
            await one.fetch(99)

    async def test_file_over_bot_limit_is_refused(self, platform: TelegramStandIn, line: Line) -> None:
        await platform.say("", file=("a", "text/plain", bytes(DOWNLOAD_LIMIT + 1)))
        (one,) = (await line.next()).attachments
        assert one.fetch is not None
        with pytest.raises(TooLarge, match="20 MB"):
            await one.fetch(10**9)

    async def test_local_file_path_is_refused(
        self, platform: TelegramStandIn, line: Line, tmp_path: Path
    ) -> None:
        (tmp_path / "secret").write_text("secret")
        for path in (tmp_path / "secret", tmp_path / "elsewhere"):
            platform.local_path = str(path)
            await platform.say("", file=("a", "text/plain", b"a"))
            (one,) = (await line.next()).attachments
            assert one.fetch is not None
            with pytest.raises(PermanentError):
                await one.fetch(100)

    async def test_missing_file_is_refused(self, platform: TelegramStandIn, line: Line) -> None:
        await platform.say("", file=("a", "text/plain", b"a"))
        (one,) = (await line.next()).attachments
        platform.files.clear()
        assert one.fetch is not None
        with pytest.raises(PermanentError, match="wrong file_id"):
            await one.fetch(100)


class TestSending:
    """Sending of parts and its errors."""

    async def test_reply_quotes_message_only_in_group(self, platform: TelegramStandIn, line: Line) -> None:
        said = await platform.say("hello", room=ROOM_TEXT)
        place = (await line.next()).place
        for number in range(2):
            await line.connector.send(part("answer", place, number=number))
        await platform.say("hello")
        await line.connector.send(part("answer", (await line.next()).place))
        replies = [given.get("reply_parameters", {}).get("message_id") for given in sent_messages(platform)]
        assert replies == [_ids(said)[1], None, None]

    async def test_reply_to_deleted_message_is_sent(self, platform: TelegramStandIn, line: Line) -> None:
        said = await platform.say("hello", room=ROOM_TEXT)
        place = (await line.next()).place
        del platform.messages[_ids(said)]
        await line.connector.send(part("answer", place))
        assert [one.text for one in await platform.shown(1, room=ROOM_TEXT)] == ["answer"]

    async def test_mentions_and_link_previews_are_disabled(self, platform: TelegramStandIn, line: Line) -> None:
        text = "ask @ana_maria, (@bob_the_builder) or me@example.org at https://example.org/@carol `@dave_1234`"
        render = line.connector.abilities.render
        await line.connector.send(to(ROOM, render(text)))
        ours = next(one for one in platform.messages.values() if one["from"] == ME)
        assert [one for one in ours["entities"] if one["type"] == "mention"] == []
        assert "me@example.org" in ours["text"]
        assert sent_messages(platform)[0]["link_preview_options"] == {"is_disabled": True}

    async def test_refused_markup_is_removed(self, platform: TelegramStandIn, line: Line) -> None:
        chat = platform.person("ana")["id"]
        sent_id = await line.connector.send(to(chat, "<b>a &lt; b</b> <table>c</table>"))
        changed = part("<b>unclosed &amp;", Place(chat=str(chat)), edits=sent_id)
        assert [one.text for one in await platform.shown(1)] == ["a < b c"]
        assert await line.connector.send(changed) == sent_id
        assert [one.text for one in await platform.shown(1)] == ["unclosed &"]

    async def test_moved_group_is_followed(self, platform: TelegramStandIn, line: Line) -> None:
        old = platform.add_chat({"id": -4001, "type": "group", "title": "small"})
        platform.moved[old] = ROOM
        await line.connector.send(to(old, "<table>here"))
        assert [one.text for one in await platform.shown(1, room=ROOM_TEXT)] == ["here"]

    @pytest.mark.parametrize(
        ("fault", "becomes"),
        [
            (Fault(400, "Bad Request: not enough rights to send text messages to the chat"), PermanentError),
            (Fault(400, "Bad Request: TOPIC_CLOSED"), PermanentError),
            (Fault(403, "Forbidden: bot was kicked from the supergroup chat"), PermanentError),
            (Fault(404, "Not Found"), RetryLater),
            (Fault(500, "Internal Server Error"), OutcomeUnknown),
        ],
    )
    async def test_send_faults_map_to_errors(
        self, platform: TelegramStandIn, line: Line, fault: Fault, becomes: type[Exception]
    ) -> None:
        platform.fails("sendMessage", fault)
        with pytest.raises(becomes, match=str(fault)):
            await line.connector.send(to(ROOM))
        assert [name for name, _ in platform.calls if name == "sendMessage"] == []

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            (to(12345), "chat not found"),
            (to(ROOM, thread="77"), "message thread not found"),
            (to(ROOM, ""), "message text is empty"),
            (to(ROOM, "x" * 4097), "message is too long"),
            (part("x", Place(chat=ROOM_TEXT), edits="999"), "message to edit not found"),
        ],
    )
    async def test_invalid_part_is_refused(self, line: Line, wrong: Part, says: str) -> None:
        with pytest.raises(PermanentError, match=says):
            await line.connector.send(wrong)

    async def test_retry_time_of_edit_is_passed_on(self, platform: TelegramStandIn, line: Line) -> None:
        preview = await line.connector.send(to(ROOM))
        platform.fails("editMessageText", platform.too_many(12))
        with pytest.raises(RetryLater) as raised:
            await line.connector.send(part("changed", Place(chat=ROOM_TEXT), edits=preview))
        assert raised.value.seconds == 12

    async def test_missing_answer_makes_outcome_unknown(self, platform: TelegramStandIn, line: Line) -> None:
        async def hang_up(request: web.Request) -> None:
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(0)

        platform.next["sendMessage"] = [hang_up]
        with pytest.raises(OutcomeUnknown) as raised:
            await line.connector.send(to(ROOM))
        assert TOKEN not in "".join(traceback.format_exception(raised.value))

    async def test_invalid_answer_makes_outcome_unknown(self, platform: TelegramStandIn, line: Line) -> None:
        async def portal(_: web.Request) -> None:
            raise web.HTTPOk(text="<html>Please log in to the hotel's network</html>")

        platform.next["sendMessage"] = [portal]
        with pytest.raises(OutcomeUnknown, match="not from the Bot API"):
            await line.connector.send(to(ROOM))

    async def test_unsent_part_is_retried_later(self, unused_tcp_port: int) -> None:
        settings = {"token": TOKEN, "api_url": f"http://127.0.0.1:{unused_tcp_port}"}
        connector = Telegram(TelegramSettings.model_validate(settings))
        with pytest.raises(RetryLater):
            await connector.send(to(ROOM))

    async def test_parts_are_not_sent_after_close(self, platform: TelegramStandIn) -> None:
        async with listening(platform) as line:
            await line.connector.send(to(ROOM))
        with pytest.raises(RetryLater):
            await line.connector.send(to(ROOM))
        assert len(sent_messages(platform)) == 1

    async def test_concurrent_parts_are_all_sent(self, platform: TelegramStandIn, line: Line) -> None:
        ids = await asyncio.gather(*(line.connector.send(to(ROOM, f"no. {n}")) for n in range(50)))
        assert len(set(ids)) == 50
        assert {one.text for one in await platform.shown(50, room=ROOM_TEXT)} == {f"no. {n}" for n in range(50)}

    async def test_typing_is_shown_in_the_topic(self, platform: TelegramStandIn, line: Line) -> None:
        await line.connector.typing(Place(chat=ROOM_TEXT, thread="9"))
        await line.connector.typing(Place(chat="12345"))  # no such chat
        assert platform.calls[-2] == (
            "sendChatAction",
            {"chat_id": ROOM_TEXT, "action": "typing", "message_thread_id": "9"},
        )


class TestLength:
    """The limit of 4,096 UTF-16 units for a message."""

    def test_length_counts_utf16_units(self) -> None:
        assert [Telegram.abilities.measure(text) for text in ("é", "🙂", "\ud83d")] == [1, 2, 1]

    def test_reply_of_many_astral_characters_fits(self) -> None:
        abilities = Telegram.abilities
        pieces = split("🙂" * 10_000, abilities)
        assert "".join(pieces) == "🙂" * 10_000
        assert max(units(abilities.render(piece)) for piece in pieces) <= 4096


class TestSettings:
    """Validation of settings."""

    @pytest.mark.parametrize("token", ["", "987", "abc:def", f"{TOKEN}/../x", f"{TOKEN} {TOKEN}", "1:a\n1:a"])
    def test_invalid_token_is_refused_and_not_shown(self, token: str) -> None:
        with pytest.raises(ValidationError, match="looks like 123456789:AAE") as raised:
            TelegramSettings(token=token)  # pyright: ignore[reportArgumentType]
        assert not token or token not in str(raised.value)

    def test_trailing_newline_of_token_is_removed(self) -> None:
        settings = TelegramSettings.model_validate({"token": f"{TOKEN}\n", "api_url": "http://127.0.0.1:8081/"})
        assert settings.token.get_secret_value() == TOKEN
        assert settings.api_url == "http://127.0.0.1:8081"
        assert TOKEN not in repr(settings)
        assert Telegram(settings).credentials == "7000000001"

    @pytest.mark.parametrize("url", ["api.telegram.org", "ftp://example.org", "https://example.org/{token}"])
    def test_invalid_api_url_is_refused(self, url: str) -> None:
        with pytest.raises(ValidationError):
            TelegramSettings.model_validate({"token": TOKEN, "api_url": url})


async def test_log_has_no_token(
    platform: TelegramStandIn, logging_as_before: None, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP clients log each address at INFO, so the gateway raises their log level."""
    caplog.set_level(logging.INFO)
    for name in ("httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    async with listening(platform) as line:
        await platform.say("hello", file=("a", "text/plain", b"a"))
        heard = await line.next()
        assert heard.attachments[0].fetch is not None
        await heard.attachments[0].fetch(10)
        await line.connector.send(part("hello", heard.place))
    assert TOKEN not in caplog.text


def sent_messages(platform: TelegramStandIn) -> list[Json]:
    """Return the parameters of all messages that the bot sent."""
    return [given for name, given in platform.calls if name == "sendMessage"]


def _ids(message: str) -> tuple[int, int]:
    """Return the chat and the number of a message."""
    chat, _, number = message.partition(":")
    return int(chat), int(number)


async def test_messages_of_one_poll_are_handled_at_once_and_confirmed_together(
    platform: TelegramStandIn, line: Line
) -> None:
    line.gate = asyncio.Event()
    await platform.say("slow", sender="ana")
    assert (await line.next()).text == "slow"
    await platform.say("slow too", sender="ana")
    await platform.say("quick", sender="bob")
    line.gate.set()  # the next poll brings both
    line.gate = asyncio.Event()

    assert [(await line.next()).text for _ in range(2)] == ["slow too", "quick"]
    async with listening(platform) as again:
        assert [(await again.next()).text for _ in range(2)] == ["slow too", "quick"]
