"""The XMPP connector against Prosody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError
from slixmpp import Presence
from tests.standins.servers import certify
from tests.standins.xmpp import HOST, MASKED, ROOM, Person, XmppPlatform
from tests.waiting import PATIENCE

from torana.connectors.base import IncomingMessage, OutcomeUnknown, PermanentError, Place, RetryLater
from torana.connectors.platforms.xmpp import Xmpp, XmppSettings, client
from torana.connectors.platforms.xmpp import connector as xmpp
from torana.connectors.platforms.xmpp.room import XmppRoom
from torana.connectors.runtime.addressing import channel_of
from torana.testing.connectors import ConnectorContract, Line, listening, part

pytestmark = pytest.mark.long

US = f"torana@{HOST}"


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncGenerator[XmppPlatform]:
    async with XmppPlatform(tmp_path) as platform:
        yield platform


class TestXmpp(ConnectorContract):
    pass


class Run:
    """A running connector whose end the test awaits."""

    def __init__(self, platform: XmppPlatform, **settings: Any) -> None:
        self.connector = Xmpp(XmppSettings.model_validate({**platform.settings(), **settings}))
        self.line = Line(self.connector)
        self.task = asyncio.create_task(self.connector.run(self.line))

    async def is_ready(self) -> Line:
        async with asyncio.timeout(PATIENCE):
            await self.line.is_ready.wait()
        return self.line

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.task


async def texts(line: Line, count: int) -> list[str]:
    return [(await line.next()).text for _ in range(count)]


async def test_messages_sent_while_offline_arrive_later(platform: XmppPlatform) -> None:
    for number in range(5):
        await platform.say(f"old {number}")
    await platform.person("ana").is_up_to_date()
    async with listening(platform) as line:
        await platform.say("new")
        assert await texts(line, 6) == [*(f"old {number}" for number in range(5)), "new"]


async def test_only_failed_messages_are_repeated(platform: XmppPlatform) -> None:
    """The second of three messages fails: it and the third are repeated in order."""
    run = Run(platform)
    line = await run.is_ready()
    taken = line.hear

    async def hear(heard: IncomingMessage) -> None:
        await taken(heard)
        if heard.text == "two":
            raise OSError("the store cannot be written")

    line.hear = hear
    for text in ("one", "two", "three"):
        await platform.say(text)
    with pytest.raises(OSError, match="the store"):
        await run.ended()
    async with listening(platform) as again:
        await platform.say("four")
        assert await texts(again, 3) == ["two", "three", "four"]
        assert again.heard.empty()


async def test_connection_cut_during_ingress_loses_no_message(platform: XmppPlatform) -> None:
    run = Run(platform)
    line = await run.is_ready()
    taking, written = asyncio.Event(), asyncio.Event()

    async def hear(heard: IncomingMessage) -> None:
        del heard
        taking.set()
        await written.wait()

    line.hear = hear
    await platform.say("one")
    await platform.say("two")
    await taking.wait()
    platform.proxy.cut()
    written.set()
    with pytest.raises(ConnectionError):
        await run.ended()
    async with listening(platform) as again:
        assert await texts(again, 2) == ["one", "two"]


async def test_second_login_ends_first(platform: XmppPlatform) -> None:
    first = Run(platform)
    await first.is_ready()
    async with listening(platform) as line:
        with pytest.raises(ConnectionError, match="another client has logged in"):
            await first.ended()
        await platform.say("who?")
        assert (await line.next()).text == "who?"


async def test_many_messages_are_taken_one_by_one(
    platform: XmppPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the limit of waiting messages the connector stops reading and loses none."""
    monkeypatch.setattr(xmpp, "_BACKLOG", 3)
    async with listening(platform) as line:
        assert isinstance(line.connector, Xmpp)
        untaken = line.connector._untaken  # pyright: ignore[reportPrivateUsage]
        taken = line.hear
        begin = asyncio.Event()
        waiting: list[int] = []

        async def hear(heard: IncomingMessage) -> None:
            await begin.wait()
            await asyncio.sleep(0)
            waiting.append(len(untaken))
            await taken(heard)

        line.hear = hear
        said = [f"{number} " + "x" * 4_000 for number in range(400)]
        for text in said:
            await platform.say(text)
        await platform.person("ana").is_up_to_date()
        client = line.connector._client  # pyright: ignore[reportPrivateUsage]
        assert client is not None
        async with asyncio.timeout(PATIENCE):
            while client.transport is None or client.transport.is_reading():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        begin.set()
        assert await texts(line, 400) == said
        assert max(waiting) < 100  # the content of a buffer, which had arrived before the reading stopped


@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        ("chat", "<composing xmlns='http://jabber.org/protocol/chatstates'/>"),
        ("chat", "<body>  </body>"),
        ("headline", "<body>news</body>"),
        ("error", "<body>x</body><error type='cancel'/>"),
        ("groupchat", "<body>no room of ours</body>"),
        ("chat", "<body>x</body><replace id='a' xmlns='urn:xmpp:message-correct:0'/>"),
        ("chat", "<body>x</body><reactions id='a' xmlns='urn:xmpp:reactions:0'/>"),
        ("chat", "<body>x</body><retract id='a' xmlns='urn:xmpp:message-retract:1'/>"),
        ("chat", "<body>x</body><x xmlns='jabber:x:conference' jid='a@b'/>"),
        ("chat", "<body>x</body><received xmlns='urn:xmpp:carbons:2'/>"),
    ],
)
async def test_stanzas_other_than_messages_are_ignored(platform: XmppPlatform, kind: str, inside: str) -> None:
    async with listening(platform) as line:
        platform.person("ana").write(f"<message to='{US}' type='{kind}'>{inside}</message>")
        await platform.say("after")
        assert (await line.next()).text == "after"


async def test_plain_messages_without_id_are_accepted(platform: XmppPlatform) -> None:
    """They have no type and no id; two equal stanzas are two messages."""
    async with listening(platform) as line:
        for _ in range(2):
            platform.person("ana").write(f"<message to='{US}'><body>the disk is full</body></message>")
        one, two = await line.next(), await line.next()
        assert one.text == two.text == "the disk is full"
        assert one.id != two.id
        assert one.sender.id == "ana@localhost"


async def test_same_id_from_two_senders_is_distinct(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        platform.person("ana").says(US, "hello", id="1")
        platform.person("bob").says(US, "hello", id="1")
        platform.person("ana").says(US, "other", id="1")
        assert len({(await line.next()).id for _ in range(3)}) == 3


async def test_same_id_from_two_devices_is_distinct(platform: XmppPlatform) -> None:
    """Clients may restart their numbering in each stream, and users may repeat a question."""
    async with listening(platform) as line:
        for device in ("laptop-monday", "phone-friday"):
            ana = Person("ana")
            await ana.connect(platform.port, device)
            ana.says(US, "what is new?", id="1")
            await ana.is_up_to_date()
            await ana.leave()
        assert (await line.next()).id != (await line.next()).id


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncGenerator[XmppPlatform]:
    async with XmppPlatform(tmp_path, archives=True) as platform:
        yield platform


@pytest.mark.parametrize(("to", "kind"), [(US, "chat"), (ROOM, "groupchat")])
async def test_server_ids_distinguish_messages(archive: XmppPlatform, to: str, kind: str) -> None:
    ana = archive.person("ana")
    await ana.enters(ROOM)
    async with listening(archive) as line:
        for _ in range(2):
            ana.says(to, "torana: what is new?", kind=kind, id="1")
        assert (await line.next()).id != (await line.next()).id


@pytest.mark.parametrize("name", ["id='1'", ""])
async def test_message_repeated_by_archive_has_same_id(archive: XmppPlatform, name: str) -> None:
    """The archive repeats failed messages and messages that arrived while the connector was offline."""
    run = Run(archive)
    line = await run.is_ready()
    line.broken = True
    archive.person("ana").write(f"<message to='{US}' type='chat' {name}><body>hello</body></message>")
    missed = await line.next()
    with pytest.raises(OSError, match="the store"):
        await run.ended()
    async with listening(archive) as again:
        assert (await again.next()).id == missed.id


async def test_origin_id_identifies_message_on_all_connections(archive: XmppPlatform) -> None:
    """The client repeats an unconfirmed message, and the server treats it as a new message."""
    vouched = "<origin-id xmlns='urn:xmpp:sid:0' id='a-uuid'/>"
    async with listening(archive) as line:
        for device in ("one", "two"):
            ana = Person("ana")
            await ana.connect(archive.port, device)
            ana.says(US, "hello", vouched)
            await ana.is_up_to_date()
            await ana.leave()
        archive.person("ana").says(US, "hello", vouched.replace("a-uuid", "another"))
        one, two, other = [(await line.next()).id for _ in range(3)]
        assert one == two
        assert one != other


async def test_forged_stanza_ids_are_ignored(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        for by in ("ana@localhost", ROOM, f"{US}/torana", "localhost", "@/"):
            claimed = f"<stanza-id xmlns='urn:xmpp:sid:0' by='{by}' id='{by}'/>"
            platform.person("ana").says(US, "hello", claimed, id="1")
        assert len({(await line.next()).id for _ in range(5)}) == 1


async def test_own_messages_from_other_devices_are_ignored(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        phone = Person("torana")
        await phone.connect(platform.port)
        phone.says(US, "a note to myself")
        await phone.is_up_to_date()
        await phone.leave()
        await platform.say("hello")
        assert (await line.next()).text == "hello"


async def test_sender_is_identified_in_open_and_anonymous_rooms(platform: XmppPlatform) -> None:
    settings = {**platform.settings(), "join": [ROOM, MASKED]}
    async with listening(platform, settings) as line:
        await platform.say("hello", room=ROOM)
        known = await line.next()
        await platform.say("hello", room=MASKED)
        masked = await line.next()
        assert (known.sender.id, known.sender.name) == ("ana@localhost", "ana")
        assert (masked.sender.id, masked.sender.name) == (f"{MASKED}/ana", "ana")
        assert [known.place.chat, masked.place.chat] == [ROOM, MASKED]


async def test_private_message_in_room_is_answered_privately(platform: XmppPlatform) -> None:
    async with listening(platform, {**platform.settings(), "join": [MASKED]}) as line:
        bob = platform.person("bob")
        await bob.enters(MASKED)
        bob.says(f"{MASKED}/torana", "psst")
        whisper = await line.next()
        assert whisper.direct
        assert whisper.sender.id == whisper.place.chat == f"{MASKED}/bob"
        await line.connector.send(part("yes?", whisper.place))
        await bob.is_up_to_date()
        await platform.watcher.is_up_to_date()
        assert [text for _, text in bob.said(f"{MASKED}/torana")] == ["yes?"]
        assert platform.watcher.said(f"{MASKED}/torana") == []


async def test_next_user_of_a_nick_gets_no_private_chat_of_an_earlier_one(platform: XmppPlatform) -> None:
    async with listening(platform, {**platform.settings(), "join": [ROOM]}) as line:
        ana, bob = platform.person("ana"), platform.person("bob")
        await ana.enters(ROOM, "guest")
        ana.says(f"{ROOM}/torana", "my secret")
        secret = await line.next()
        await line.connector.send(part("noted", secret.place))
        ana.write(f"<presence to='{ROOM}/guest' type='unavailable'/>")
        await ana.got(lambda one: one.get("from") == f"{ROOM}/guest" and one.get("type") == "unavailable")
        await bob.enters(ROOM, "guest")
        bob.says(f"{ROOM}/torana", "what did I say?")
        question = await line.next()

        assert (secret.sender.id, question.sender.id) == ("ana@localhost", "bob@localhost")
        assert channel_of("home", secret.place) != channel_of("home", question.place)
        with pytest.raises(PermanentError):
            await line.connector.send(part("your secret", secret.place))
        await line.connector.send(part("nothing", question.place))
        await bob.is_up_to_date()
        assert [text for _, text in bob.said(f"{ROOM}/torana")] == ["nothing"]


async def test_room_history_is_ignored(platform: XmppPlatform) -> None:
    await platform.say("before", room=ROOM, mention=True)
    await platform.watcher.got(lambda one: one.findtext("{jabber:client}body") == "torana: before")
    async with listening(platform) as line:
        # A room that sends its history although it was not requested.
        old = "<delay xmlns='urn:xmpp:delay' stamp='2020-01-01T00:00:00Z'/>"
        platform.watcher.says(ROOM, "torana: forged", old, kind="groupchat")
        await platform.say("now", room=ROOM)
        assert (await line.next()).text == "now"


async def test_mention_of_nick_or_reply_addresses_bot(platform: XmppPlatform) -> None:
    said = {
        "torana: one": ("one", True),
        "Torana, two": ("two", True),
        "@torana three": ("three", True),
        "is torana there?": ("is torana there?", True),
        "toranas are many": ("toranas are many", False),
    }
    async with listening(platform) as line:
        for text, (heard, addressed) in said.items():
            await platform.say(text, room=ROOM)
            message = await line.next()
            assert (message.text, message.addressed) == (heard, addressed), text
        reply = f"<reply xmlns='urn:xmpp:reply:0' to='{ROOM}/torana' id='x'/>"
        platform.person("ana").says(ROOM, "and this?", reply, kind="groupchat")
        assert (await line.next()).addressed


async def test_taken_nick_in_room_is_replaced(platform: XmppPlatform) -> None:
    bob = platform.person("bob")
    await bob.enters(ROOM, "torana")
    async with listening(platform) as line:
        bob.says(ROOM, "torana_: hello", kind="groupchat")
        assert (await line.next()).addressed
        bob.says(ROOM, "I am torana", kind="groupchat")
        message = await line.next()
        assert not message.addressed
        await line.connector.send(part("hello", message.place))


async def test_closed_room_does_not_block_other_rooms(
    platform: XmppPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    await admin(platform, f"<item affiliation='outcast' jid='{US}'/>")
    settings = {**platform.settings(), "join": [ROOM, MASKED, "x@nowhere.invalid"]}
    async with listening(platform, settings) as line:
        assert "xmpp_room_closed" in caplog.text
        with pytest.raises(PermanentError, match="forbidden"):
            await line.connector.send(part("hello", Place(chat=ROOM)))
        await line.connector.send(part("hello", Place(chat=MASKED)))


async def admin(platform: XmppPlatform, item: str) -> None:
    """Send an admin request as the watcher, who owns the room."""
    name = uuid4().hex
    query = f"<query xmlns='http://jabber.org/protocol/muc#admin'>{item}</query>"
    await platform.watcher.asks(f"<iq type='set' id='{name}' to='{ROOM}'>{query}</iq>", name)


async def test_sending_after_kick_is_retried_and_room_is_rejoined(
    platform: XmppPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(platform) as line:
        await admin(platform, "<item nick='torana' role='none'/>")
        await platform.say("seen?")
        await line.next()
        with pytest.raises(RetryLater):
            await line.connector.send(part("hello", Place(chat=ROOM)))
    monkeypatch.setattr(xmpp, "PROBE", 0.05)
    async with listening(platform) as line:
        await admin(platform, "<item nick='torana' role='none'/>")
        await send_when_possible(line, Place(chat=ROOM))


async def send_when_possible(line: Line, place: Place) -> None:
    """Send a part as soon as sending is possible."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await line.connector.send(part("back again", place))
            except RetryLater:
                await asyncio.sleep(0.02)
            else:
                return


@pytest.mark.parametrize("noticed", ["by asking", "by sending"])
async def test_room_that_lost_occupant_is_rejoined(
    platform: XmppPlatform, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    """The room's server restarts without notice."""
    monkeypatch.setattr(xmpp, "PROBE", 0.05)
    monkeypatch.setattr(xmpp, "ROOM_PROBES", 1 if noticed == "by asking" else 1_000)
    take = XmppRoom.take
    deaf = [False]

    def take_unless_deaf(room: Any, presence: Presence) -> None:
        if not deaf[0]:
            take(room, presence)

    monkeypatch.setattr(XmppRoom, "take", take_unless_deaf)
    async with listening(platform) as line:
        assert isinstance(line.connector, Xmpp)
        client = line.connector._client  # pyright: ignore[reportPrivateUsage]
        assert client is not None
        deaf[0] = True
        client.send_presence(pto=f"{ROOM}/torana", ptype="unavailable")
        await platform.watcher.got(
            lambda one: one.get("from") == f"{ROOM}/torana" and one.get("type") == "unavailable"
        )
        await line.connector.send(
            part("hello", Place(chat="ana@localhost"))
        )  # the messages behind it have arrived
        platform.watcher.stanzas.clear()
        deaf[0] = False
        if noticed == "by sending":
            with pytest.raises(RetryLater, match="not-acceptable"):
                await line.connector.send(part("hello", Place(chat=ROOM)))
        await platform.watcher.got(lambda one: one.tag.endswith("}presence"))
        await send_when_possible(line, Place(chat=ROOM))
        await platform.say("welcome", room=ROOM, mention=True)
        assert (await line.next()).addressed


async def test_muted_room_refuses_part(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        await admin(platform, "<item nick='torana' role='visitor'/>")
        with pytest.raises(PermanentError, match="forbidden"):
            await line.connector.send(part("hello", Place(chat=ROOM)))


@pytest.mark.parametrize("chat", ["nobody@localhost", "x@nowhere.invalid", "@", "a@b@c", ""])
async def test_invalid_address_is_refused(platform: XmppPlatform, chat: str) -> None:
    async with listening(platform) as line:
        with pytest.raises(PermanentError):
            await line.connector.send(part("hello", Place(chat=chat)))
        await platform.say("still there?")
        await line.connector.send(part("yes", (await line.next()).place))


async def test_reply_with_any_characters_is_text(platform: XmppPlatform) -> None:
    nasty = "a\x00b\x1bc\ufffed\ud800e </body></message><presence type='unavailable'/> & ]]> 🙂\tf\n"
    async with listening(platform) as line:
        await platform.say("hello")
        await line.connector.send(part(nasty, (await line.next()).place))
        shown = (await platform.shown(1))[0].text
        assert shown == "abcde </body></message><presence type='unavailable'/> & ]]> 🙂\tf\n"


async def test_concurrent_parts_arrive_in_order(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        place = (await line.next()).place
        parts = [part(f"number {number}", place) for number in range(20)]
        ids = await asyncio.gather(*(line.connector.send(one) for one in parts))
        assert ids == [one.key for one in parts]
        assert [one.id for one in await platform.shown(20)] == ids


async def test_edits_in_room_replace_first_message(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        place = Place(chat=ROOM)
        first = await line.connector.send(part("one", place))
        assert await line.connector.send(part("two", place, edits=first)) == first
        assert await line.connector.send(part("three", place, edits=first)) == first
        shown = await platform.shown(1, room=ROOM)
        assert [(one.id, one.text) for one in shown] == [(first, "three")]


async def test_typing_is_shown(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        await line.connector.typing((await line.next()).place)
        state = "{http://jabber.org/protocol/chatstates}composing"
        shown = await platform.person("ana").got(lambda one: one.find(state) is not None)
        assert shown.find("{jabber:client}body") is None


async def test_file_is_named_and_not_fetched(platform: XmppPlatform) -> None:
    url = "https://files.example.org/abc/holiday%20photo.jpg?x=1"
    async with listening(platform) as line:
        platform.person("ana").says(US, url, f"<x xmlns='jabber:x:oob'><url>{url}</url></x>")
        (attachment,) = (await line.next()).attachments
        assert (attachment.kind, attachment.name) == ("image", "holiday photo.jpg")
        assert attachment.media_type == "image/jpeg"
        assert attachment.fetch is None


async def test_file_without_address_has_no_name(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        platform.person("ana").says(US, "look", "<x xmlns='jabber:x:oob'><url>https://[::1/a.jpg</url></x>")
        heard = await line.next()
        assert (heard.text, [one.name for one in heard.attachments]) == ("look", [""])


async def test_contact_requests_are_accepted(platform: XmppPlatform) -> None:
    ana = platform.person("ana")
    async with listening(platform):
        await ana.asks("<iq type='get' id='roster'><query xmlns='jabber:iq:roster'/></iq>", "roster")
        ana.write(f"<presence to='{US}' type='subscribe'/>")
        await ana.got(lambda one: one.get("from") == US and one.get("type") == "subscribed")


async def test_deeply_nested_stanza_is_dropped_alone(
    platform: XmppPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    deep = "<a>" * 900 + "</a>" * 900
    async with listening(platform) as line:
        await platform.say("before")
        for stanza in (
            f"<message to='{US}'><body>deep</body>{deep}</message>",
            f"<presence to='{US}'>{deep}</presence>",
        ):
            platform.person("ana").write(stanza)
        platform.person("ana").write(f"<iq type='get' id='deep' to='{US}/torana'>{deep}</iq>")
        await platform.say("after")

        assert await texts(line, 2) == ["before", "after"]
        assert (await platform.person("ana").got(lambda one: one.get("id") == "deep")).get("type") == "error"
    assert caplog.messages.count("xmpp_stanza_unreadable") == 3


async def test_presence_and_requests_of_strangers_are_not_remembered(platform: XmppPlatform) -> None:
    async with listening(platform) as line:
        ana = platform.person("ana")
        await ana.asks("<iq type='get' id='roster'><query xmlns='jabber:iq:roster'/></iq>", "roster")
        for kind in ("", "type='unavailable'", "type='unsubscribe'", "type='subscribe'"):
            ana.write(f"<presence to='{US}' {kind}/>")
        await ana.got(lambda one: one.get("from") == US and one.get("type") == "subscribed")
        await platform.say("after")
        assert await texts(line, 1) == ["after"]

        roster = vars(line.connector)["_client"].roster
        remembered = [sender for name in list(roster.keys()) for sender in list(roster[name].keys())]
        assert not [sender for sender in remembered if "ana" in str(sender)]


async def test_dead_connection_is_detected(platform: XmppPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xmpp, "PROBE", 0.02)
    run = Run(platform)
    line = await run.is_ready()
    signs: asyncio.Queue[None] = asyncio.Queue()
    line.alive = lambda: signs.put_nowait(None)
    async with asyncio.timeout(PATIENCE):
        for _ in range(3):  # probes are answered
            await signs.get()
    platform.proxy.stall()
    monkeypatch.setattr(client, "TIMEOUT", 0.1)
    monkeypatch.setattr(xmpp, "TIMEOUT", 0.1)
    with pytest.raises(OutcomeUnknown):
        await line.connector.send(part("hello", Place(chat="ana@localhost")))
    with pytest.raises(TimeoutError, match="does not answer"):
        await run.ended()


async def test_unreachable_server_fails_at_once(platform: XmppPlatform) -> None:
    platform.proxy.cut(refuse=True)
    run = Run(platform)
    with pytest.raises(ConnectionError):
        await run.ended()
    with pytest.raises(ConnectionError, match="Connect call failed"):
        await Run(platform, port=1).ended()


async def test_silent_server_times_out(platform: XmppPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xmpp, "TIMEOUT", 0.1)
    platform.proxy.stall()
    before = asyncio.all_tasks()
    run = Run(platform)
    with pytest.raises(ConnectionError, match="the login took more than"):
        await run.ended()
    left = {task for task in asyncio.all_tasks() - before if "slixmpp" in repr(task)}
    assert left == set()


async def test_trickled_connection_works_and_corrupted_one_ends(platform: XmppPlatform) -> None:
    platform.proxy.trickle()
    run = Run(platform)
    line = await run.is_ready()
    await platform.say("hello")
    assert (await line.next()).text == "hello"
    platform.proxy.corrupt()
    await platform.say("x" * 400)
    with pytest.raises(ConnectionError):
        await run.ended()
    assert line.heard.empty()
    platform.proxy.heal()
    async with listening(platform) as line:
        assert (await line.next()).text == "x" * 400


@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncGenerator[XmppPlatform]:
    await certify(tmp_path)
    async with XmppPlatform(tmp_path, certified=True) as platform:
        yield platform


@pytest.mark.parametrize("tls", ["starttls", "direct"])
async def test_certificate_is_verified(
    encrypted: XmppPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: str
) -> None:
    port = encrypted.port if tls == "starttls" else encrypted.tls_port
    settings = {**encrypted.settings(), "tls": tls, "port": port}
    with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        async with listening(encrypted, settings):
            pass
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    async with listening(encrypted, settings) as line:
        await encrypted.say("hello")
        await line.connector.send(part("safely", (await line.next()).place))
        assert (await encrypted.shown(1))[0].text == "safely"


async def test_password_is_not_sent_unencrypted(platform: XmppPlatform) -> None:
    """A server, or an attacker in between, offers no encryption."""
    with pytest.raises(PermanentError, match="no secure login method"):
        async with listening(platform, {**platform.settings(), "tls": "starttls"}):
            pass


async def test_passwords_appear_in_no_log_or_error(
    platform: XmppPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with listening(platform) as line:
        await platform.say("hello")
        await line.next()
        assert "open sesame" not in repr(line.connector.settings)
    await platform.refuse_login()
    with pytest.raises(PermanentError, match="not-authorized") as raised:
        async with listening(platform):
            pass
    assert "wrong" not in str(raised.value)
    for secret in ("open sesame", "b3BlbiBzZXNhbWU", "AHRvcmFuYQ"):  # as it is, in base64, in SASL PLAIN
        assert secret not in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"jid": "localhost"},
        {"jid": "a@b c"},
        {"join": ["room@rooms.localhost/nick"]},
        {"join": ["rooms.localhost"]},
        {"tls": "none", "host": "xmpp.example.org"},
        {"tls": "none"},
        {"nick": ""},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        XmppSettings.model_validate({"jid": "torana@example.org", "password": "x", **wrong})
