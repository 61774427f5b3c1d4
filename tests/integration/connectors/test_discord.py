"""The Discord connector against a stand-in of Discord's gateway and HTTP API."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from tests.standins.discord import DEFAULT, REPLY, THREAD_STARTED, TOKEN, DiscordStandIn

from torana.connectors.base import (
    ELSEWHERE,
    IncomingMessage,
    OutcomeUnknown,
    PermanentError,
    Place,
    RetryLater,
    TooLarge,
)
from torana.connectors.platforms.discord import Discord, DiscordSettings
from torana.connectors.registry import Account
from torana.connectors.runtime.hub import Connectors
from torana.connectors.runtime.ingress import Admission
from torana.limits.rates import MessageRates
from torana.messages import Turn, utc_now
from torana.people.pairing import Pairing
from torana.store.engine.database import Database
from torana.store.rows.audit import Act
from torana.testing import ScriptedModel
from torana.testing.connectors import PATIENCE, ConnectorContract, Line, listening, part
from torana.turns import Turns

ROLE = "<@&4242>"


@pytest.fixture
async def platform() -> AsyncGenerator[DiscordStandIn]:
    async with DiscordStandIn() as platform:
        yield platform


class TestDiscord(ConnectorContract):
    """The contract of all connectors."""


async def ended(line: Line, run: asyncio.Task[None]) -> None:
    """Wait until a run ends, and raise its error."""
    del line
    async with asyncio.timeout(PATIENCE):
        await run


async def started(platform: DiscordStandIn) -> tuple[Line, asyncio.Task[None]]:
    """Start a connector and return its line and its run."""
    line = Line(Discord(DiscordSettings.model_validate(platform.settings())))
    run = asyncio.create_task(line.connector.run(line))
    ready = asyncio.create_task(line.is_ready.wait())
    await asyncio.wait({run, ready}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    return line, run


def client_of(line: Line) -> Any:
    """Return the library's client of a connected line."""
    assert isinstance(line.connector, Discord)
    return line.connector._client  # pyright: ignore[reportPrivateUsage]


# Received messages


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<@{me}>, what is 2+2?", "what is 2+2?"),
        (" <@!{me}>\n/new", "/new"),
        ("what do you and <@{bob}> think, <@{me}>, of <@1>?", "what do you and @Bob think, @torana, of <@1>?"),
    ],
)
async def test_mention_of_bot_addresses_it_and_ids_become_names(
    platform: DiscordStandIn, content: str, text: str
) -> None:
    platform.people["bob"]["global_name"] = "Bob"
    said = content.format(me=platform.me["id"], bob=platform.people["bob"]["id"])
    async with listening(platform) as line:
        await platform.say(said, room=platform.general)
        heard = await line.next()
        assert heard.addressed
        assert heard.text == text


@pytest.mark.parametrize("content", ["@everyone hello", f"{ROLE} hello", "Torana, hello"])
async def test_everyone_role_and_plain_name_do_not_address_bot(platform: DiscordStandIn, content: str) -> None:
    async with listening(platform) as line:
        await platform.say(content, room=platform.general)
        heard = await line.next()
        assert not heard.addressed
        assert heard.text == content


async def test_reply_to_bot_addresses_it_without_mention(platform: DiscordStandIn) -> None:
    async with listening(platform) as line:
        for answered, addressed in ((platform.me, True), (platform.people["bob"], False)):
            first = await platform.create(platform.general, answered, content="first")
            reference = {"message_id": first["id"], "channel_id": platform.general}
            reply = {"type": REPLY, "message_reference": reference, "referenced_message": first}
            await platform.create(platform.general, platform.people["ana"], content="second", **reply)
            heard = await line.next()
            while heard.text != "second":
                heard = await line.next()
            assert (heard.addressed, heard.in_reply_to) == (addressed, first["id"])


async def test_edits_pins_threads_and_stickers_are_ignored(platform: DiscordStandIn) -> None:
    ana = platform.people["ana"]
    chat = platform.direct(ana)["id"]
    async with listening(platform) as line:
        said = await platform.say("first")
        assert (await line.next()).text == "first"
        await platform.edit(said, "first, edited")
        await platform.create(chat, ana, type=6)  # a pin
        await platform.create(platform.general, ana, content="a thread", type=THREAD_STARTED)
        await platform.create(chat, ana, sticker_items=[{"id": "1", "name": "wave", "format_type": 1}])
        await platform.say("last")
        assert (await line.next()).text == "last"


async def test_forwarded_message_is_received(platform: DiscordStandIn) -> None:
    ana = platform.people["ana"]
    snapshot = {
        "content": "the original", "type": DEFAULT, "mentions": [], "mention_roles": [], "embeds": [],
        "attachments": [platform.attachment("a.txt", "text/plain", b"text")], "flags": 0,
        "timestamp": "2026-01-01T00:00:00+00:00", "edited_timestamp": None,
    }  # fmt: skip
    reference = {"type": 1, "message_id": "1", "channel_id": platform.general}
    async with listening(platform) as line:
        chat = platform.direct(ana)["id"]
        forwarded = {"message_snapshots": [{"message": snapshot}], "message_reference": reference}
        await platform.create(chat, ana, **forwarded)
        heard = await line.next()
        assert (heard.text, heard.in_reply_to) == ("the original", ELSEWHERE)
        assert [file.kind for file in heard.attachments] == ["file"]


async def test_webhook_sender_is_automatic_and_user_has_id(platform: DiscordStandIn) -> None:
    hook = platform.user("CI")
    ana = platform.people["ana"]
    ana["global_name"] = "ana\n\u202egnimaerts"
    async with listening(platform) as line:
        await platform.create(platform.general, hook, content="built", webhook_id=hook["id"])
        assert (await line.next()).sender.automatic
        await platform.say("hello")
        sender = (await line.next()).sender
        assert sender.id == ana["id"]
        assert not sender.automatic


async def test_huge_message_with_many_files_is_one_message(platform: DiscordStandIn) -> None:
    ana = platform.people["ana"]
    voice = platform.attachment("voice-message.ogg", "audio/ogg", b"opus")
    voice |= {"duration_secs": 1.5, "waveform": "AAAA", "flags": 0}
    files = [platform.attachment(f"{n}.mp4", "video/mp4", b"") for n in range(199)]
    async with listening(platform) as line:
        chat = platform.direct(ana)["id"]
        await platform.create(chat, ana, content="x" * 1_000_000, attachments=[voice, *files])
        heard = await line.next()
        assert len(heard.text) == 1_000_000
        assert [file.kind for file in heard.attachments] == ["voice", *["video"] * 199]


async def test_file_size_limit_ignores_declared_size(platform: DiscordStandIn) -> None:
    small = platform.attachment("a.bin", "application/x-thing", bytes(10_000), size=10)
    large = platform.attachment("b.bin", "application/x-thing", b"never asked for", size=10_000)
    del platform.files[large["id"]]
    async with listening(platform) as line:
        chat = platform.direct(platform.people["ana"])["id"]
        await platform.create(chat, platform.people["ana"], attachments=[small, large])
        fetches = [file.fetch for file in (await line.next()).attachments if file.fetch]
        for fetch in fetches:
            with pytest.raises(TooLarge):
                await fetch(1_000)
        with pytest.raises(ConnectionError) as raised:  # deleted meanwhile; its address gives access to files
            await fetches[1](20_000)
        assert "signature" not in str(raised.value)


# Sent messages


async def test_reply_mentions_no_user_or_role(platform: DiscordStandIn) -> None:
    text = f"@everyone @here {ROLE} <@{platform.people['bob']['id']}>"
    async with listening(platform) as line:
        await platform.say("hello", room=platform.general, mention=True)
        place = (await line.next()).place
        shown = await line.connector.send(part(text, place))
        await line.connector.send(part(text + "!", place, edits=shown))
        assert platform.pinged == []
        assert [one.text for one in await platform.shown(1, room=platform.general)] == [text + "!"]


async def test_first_part_in_room_is_reply_if_possible(platform: DiscordStandIn) -> None:
    async with listening(platform) as line:
        said = await platform.say("hello", room=platform.general, mention=True)
        place = (await line.next()).place
        for number in range(2):
            await line.connector.send(part(f"part {number}", place, number=number))
        platform.answer(403, {"message": "Cannot reply without permission", "code": 160002})
        await line.connector.send(part("no reply", place))
        platform.delete(said)
        await line.connector.send(part("to nothing", place))
        await platform.shown(4, room=platform.general)
        types = {m["content"]: m["type"] for m in platform.messages(platform.general)}
        assert types == {"part 0": REPLY, "part 1": DEFAULT, "no reply": DEFAULT, "to nothing": REPLY}


async def test_deleted_preview_is_replaced_by_one_message(platform: DiscordStandIn) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        place = (await line.next()).place
        preview = await line.connector.send(part("…", place, key="one key"))
        platform.delete(preview)
        final = part("the answer", place, key="one key", edits=preview)
        shown = await line.connector.send(final)
        assert shown != preview
        assert await line.connector.send(final) == shown
        assert [one.text for one in await platform.shown(1)] == ["the answer"]


@pytest.mark.parametrize("text", ["x" * 2_001, " ", ""])
async def test_unshowable_text_is_refused(platform: DiscordStandIn, text: str) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        with pytest.raises(PermanentError):
            await line.connector.send(part(text, (await line.next()).place))


async def test_unknown_chat_is_refused_and_proxy_error_is_retried(
    platform: DiscordStandIn,
) -> None:
    async with listening(platform) as line:
        with pytest.raises(PermanentError, match="10003"):
            await line.connector.send(part("hello?", Place(chat="1")))
        platform.answer(403, "<html>Sorry, you have been blocked</html>")
        with pytest.raises(RetryLater):
            await line.connector.send(part("hello?", Place(chat=platform.general)))


async def test_concurrent_parts_all_arrive_within_rate_limit(platform: DiscordStandIn) -> None:
    async with listening(platform) as line:
        await platform.say("hello")
        place = (await line.next()).place
        await asyncio.gather(*(line.connector.send(part(f"part {n}", place)) for n in range(12)))
        shown = await platform.shown(12)
        assert sorted(one.text for one in shown) == sorted(f"part {n}" for n in range(12))
        assert platform.overrun == 0


async def test_typing_is_sent_once_and_ignores_unknown_chat(platform: DiscordStandIn) -> None:
    async with listening(platform) as line:
        await line.connector.typing(Place(chat=platform.general))
        assert platform.typings == 1
        await line.connector.typing(Place(chat="1"))


async def test_lost_response_has_unknown_outcome_and_lost_connection_is_retried(
    platform: DiscordStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(platform) as line:
        platform.hang_up_on_a_message()
        with pytest.raises(OutcomeUnknown):
            await line.connector.send(part("hello", Place(chat=platform.general)))
        monkeypatch.setattr(
            "discord.http.Route.BASE", "http://127.0.0.1:1/api/v10"
        )  # in a channel without members
        with pytest.raises(RetryLater):
            await line.connector.send(part("hello", Place(chat=platform.general)))


async def test_sending_before_connection_raises_retry_later(platform: DiscordStandIn) -> None:
    connector = Discord(DiscordSettings.model_validate(platform.settings()))
    with pytest.raises(RetryLater):
        await connector.send(part("hello", Place(chat=platform.general)))
    await connector.typing(Place(chat=platform.general))


# The connection


async def test_interrupted_session_resumes_without_losing_messages(platform: DiscordStandIn) -> None:
    async with listening(platform) as line:
        await platform.say("before")
        await line.next()
        await platform.cut()
        for n in range(3):
            await platform.say(f"missed {n}", sender="carol")  # a user who is not in the settings
        assert [(await line.next()).text for _ in range(3)] == ["missed 0", "missed 1", "missed 2"]
        assert (platform.identified, platform.resumed) == (1, 1)


async def test_new_session_after_failed_resume_fetches_missed_messages(
    platform: DiscordStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torana.connectors.platforms.discord._SESSION", 0.0)
    async with listening(platform) as line:
        await platform.say("before", sender="carol")
        await line.next()
        platform.forget_sessions()
        await platform.cut()
        await platform.say("missed", sender="carol")
        await platform.say("missed too", room=platform.general)
        assert {(await line.next()).text for _ in range(2)} == {"missed", "missed too"}
        await platform.say("after", sender="carol")
        assert (await line.next()).text == "after"
        assert platform.identified == 2


async def test_repeatedly_invalid_session_ends_run(platform: DiscordStandIn) -> None:
    line, run = await started(platform)
    platform.invalidate = True
    await platform.cut()
    with pytest.raises(Exception, match="soon after"):
        await ended(line, run)
    assert platform.identified == 1


async def test_repeatedly_broken_connection_ends_run(platform: DiscordStandIn) -> None:
    line, run = await started(platform)
    platform.hang_up = True
    await platform.cut()
    with pytest.raises(ConnectionError, match="breaks repeatedly"):
        await ended(line, run)
    assert platform.connected <= 15


async def test_unreachable_gateway_is_reported_at_start(platform: DiscordStandIn) -> None:
    platform.hang_up = True
    with pytest.raises(ConnectionError, match="cannot connect to Discord's gateway"):
        await ended(*await started(platform))


async def test_heartbeat_answers_count_as_signs_of_life_only_in_session(platform: DiscordStandIn) -> None:
    platform.heartbeat = 20
    async with listening(platform) as line:
        await platform.until(lambda: platform.heartbeats > 20)
        assert line.signs > 10
        platform.silent = True
        await platform.cut()
        await platform.until(lambda: platform.connected == 2 and platform.heartbeats > 25)
        signs, beats = line.signs, platform.heartbeats
        await platform.until(lambda: platform.heartbeats > beats + 10)
        assert line.signs == signs
    platform.heartbeats = 0
    line = Line(Discord(DiscordSettings.model_validate(platform.settings())))
    run = asyncio.create_task(line.connector.run(line))
    await platform.until(lambda: platform.heartbeats > 20)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert line.signs == 0


@pytest.mark.parametrize(("code", "told"), [(4004, "token"), (4011, "4011"), (4013, "4013")])
async def test_permanent_close_codes_are_refused(platform: DiscordStandIn, code: int, told: str) -> None:
    line, run = await started(platform)
    await platform.close(code)
    with pytest.raises(PermanentError, match=told):
        await ended(line, run)


async def test_missing_intent_is_reported_with_cure(platform: DiscordStandIn) -> None:
    platform.content_intent = False
    with pytest.raises(PermanentError, match="Privileged Gateway Intents"):
        await ended(*await started(platform))


async def test_revoked_token_is_detected_when_sending(platform: DiscordStandIn) -> None:
    line, run = await started(platform)
    await platform.refuse_login()
    with pytest.raises(RetryLater):
        await line.connector.send(part("hello", Place(chat=platform.general)))
    with pytest.raises(PermanentError, match="token"):
        await ended(line, run)


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ("<html>error 1015</html>", 1800),
        ('{"retry_after": 64.5}', 64.5),
        pytest.param(f'{{"retry_after": {"9" * 400}}}', 1800, id="too long a number"),
        ('{"retry_after": Infinity}', None),
    ],
)
async def test_retry_after_at_login_is_kept(platform: DiscordStandIn, body: str, seconds: float | None) -> None:
    platform.answer(429, body, headers={"Retry-After": "1800"}, to="GET .*/users/@me$")
    with pytest.raises(RetryLater) as raised:
        await ended(*await started(platform))
    assert raised.value.seconds == seconds


async def test_cancelled_connector_closes_its_session(platform: DiscordStandIn) -> None:
    async with listening(platform):
        assert len(platform.sessions) == 1
    await platform.until(lambda: not platform.sessions)


async def test_cancellation_before_hello_closes_socket(platform: DiscordStandIn) -> None:
    platform.mute = True
    connector = Discord(DiscordSettings.model_validate(platform.settings()))
    run = asyncio.create_task(connector.run(Line(connector)))
    await platform.until(lambda: platform.connected == 1)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    gc.collect()  # an open socket would cause a warning now
    await platform.until(lambda: not platform.connections)


async def test_stopped_connector_leaves_no_thread(platform: DiscordStandIn) -> None:
    async with listening(platform):
        beating = [thread for thread in threading.enumerate() if thread.name.startswith("keep-alive")]
        assert len(beating) == 1
    await asyncio.to_thread(beating[0].join, PATIENCE)
    assert not beating[0].is_alive()


async def test_log_does_not_contain_token(platform: DiscordStandIn, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with listening(platform) as line:
        await platform.say("hello")
        await line.connector.send(part("hello", (await line.next()).place))
        await platform.cut()
        await platform.say("again")
        await line.next()
    assert "hello" in caplog.text  # the library logs much at this level
    assert TOKEN not in caplog.text


# Messages during an interruption


async def test_missed_messages_of_rooms_and_threads_keep_their_order(platform: DiscordStandIn) -> None:
    first = await platform.say("in the room", room=platform.general)
    await platform.say("in the thread", room=platform.general, thread=first)
    await platform.say("in the room too", room=platform.general)
    async with listening(platform) as line:
        heard = [await line.next() for _ in range(3)]
    assert {(one.text, one.place.thread) for one in heard} == {
        ("in the room", None),
        ("in the thread", first),
        ("in the room too", None),
    }
    texts = [one.text for one in heard]
    assert texts.index("in the room") < texts.index("in the room too")


async def requested_rooms(platform: DiscordStandIn) -> list[str]:
    """Return the rooms whose history a connector requests at its start."""
    async with listening(platform) as line:
        assert (await line.next()).text == "missed"
        await platform.say("now")
        assert (await line.next()).text == "now"
    return [channel for channel in platform.asked_for_history if channel in (platform.general, platform.side)]


async def test_unreadable_channel_is_not_asked_for_history(platform: DiscordStandIn) -> None:
    platform.hide_history(platform.side)
    await platform.say("missed", room=platform.general)
    await platform.say("hidden", room=platform.side)
    assert await requested_rooms(platform) == [platform.general]


async def test_channel_with_only_old_messages_is_not_asked_for_history(platform: DiscordStandIn) -> None:
    platform.minutes = -20
    await platform.say("long ago", room=platform.side)
    await platform.say("long ago")
    platform.minutes = 0
    await platform.say("missed", room=platform.general)
    assert await requested_rooms(platform) == [platform.general]


async def test_catch_up_of_zero_minutes_asks_for_no_history(platform: DiscordStandIn) -> None:
    await platform.say("missed", room=platform.general)
    await platform.say("missed")
    async with listening(platform, {**platform.settings(), "catch_up_minutes": 0}) as line:
        await platform.say("now")
        assert (await line.next()).text == "now"
    assert platform.asked_for_history == []


@pytest.mark.parametrize("status", [400, 403, 404])
async def test_unreadable_history_does_not_stop_connector(platform: DiscordStandIn, status: int) -> None:
    await platform.say("missed", sender="bob")
    platform.answer(status, {"message": "no", "code": 50001}, to="GET .*/messages")
    platform.answer(status, {"message": "no", "code": 50007}, to="POST .*/users/@me/channels")
    async with listening(platform) as line:
        await platform.say("now")
        assert (await line.next()).text == "now"
        await platform.say("and then")
        assert (await line.next()).text == "and then"


@pytest.mark.parametrize("call", ["GET .*/messages", "POST .*/users/@me/channels"])
@pytest.mark.parametrize(
    ("status", "body"), [(502, "<html>"), (403, "<html>Sorry, you have been blocked</html>")]
)
async def test_temporary_failure_of_fetch_ends_connection_and_next_one_fetches(
    platform: DiscordStandIn, call: str, status: int, body: str
) -> None:
    await platform.say("missed", sender="bob")
    platform.answer(status, body, to=call)
    with pytest.raises(Exception, match=str(status)):
        await ended(*await started(platform))
    async with listening(platform) as line:
        assert (await line.next()).text == "missed"


async def test_message_behind_failed_fetch_is_processed_before_connection_ends(
    platform: DiscordStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = "POST .*/users/@me/channels"
    platform.gates[call] = asyncio.Event()
    platform.answer(502, "<html>", to=call)
    line, run = await started(platform)
    client = client_of(line)
    queue = client.on_message

    async def queue_and_answer(message: Any) -> None:
        await queue(message)
        platform.gates[call].set()

    monkeypatch.setattr(client, "on_message", queue_and_answer)
    await platform.say("from a stranger", sender="carol")
    with pytest.raises(ConnectionError, match="missed messages could not be fetched"):
        await ended(line, run)
    assert (await line.next()).text == "from a stranger"


async def test_messages_in_progress_are_processed_before_connection_ends(
    platform: DiscordStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, run = await started(platform)
    line.gate, taken, hear = asyncio.Event(), asyncio.Event(), line.hear

    async def take(heard: IncomingMessage) -> None:
        await hear(heard)
        taken.set()

    monkeypatch.setattr(line, "hear", take)
    await platform.say("slow", sender="carol")
    assert (await line.next()).text == "slow"
    client_of(line).fail(ConnectionError("the connection breaks"))
    for _ in range(20):  # longer than a cancellation takes
        await asyncio.sleep(0)
    line.gate.set()
    with pytest.raises(ConnectionError, match="breaks"):
        await ended(line, run)
    assert taken.is_set()


async def test_fetch_waits_for_rate_limit(platform: DiscordStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torana.connectors.platforms.discord._PAUSE", 0.0)
    await platform.say("missed", sender="bob")
    for call in ("GET .*/messages", "POST .*/users/@me/channels"):
        platform.answer(429, {"retry_after": 0.01}, to=call)
    async with listening(platform) as line:
        assert (await line.next()).text == "missed"


async def test_approved_sender_is_answered_after_downtime(
    platform: DiscordStandIn, database: Database, open_turns: Callable[..., Turns]
) -> None:
    pairing = Pairing(database=database, clock=utc_now)
    act = Act(principal="operator", source="test", at=utc_now())
    missed = {name: await platform.say("hello?", sender=name) for name in ("carol", "dave", "eve")}
    ids = {name: platform.people[name]["id"] for name in missed}
    await pairing.approve(f"discord:{ids['carol']}", kinds=("discord",), act=act)
    await pairing.deny(f"discord:{ids['eve']}", kinds=("discord",), act=act)
    ended: list[Callable[[Turn], None]] = []

    def notify(turn: Turn) -> None:
        for listener in ended:
            listener(turn)

    turns = open_turns(ScriptedModel("welcome back"), clock=utc_now, ended=notify)
    hub = Connectors(
        accounts=[Account(name="home", kind="discord", values=platform.settings())],
        admission=Admission(
            turns=turns, rates=MessageRates(per_user=0, overall=0), pairing=pairing, database=database
        ),
        holder="here",
    )
    ended.append(hub.on_turn_ended)
    await hub.start()
    try:
        assert [one.text for one in await platform.shown(1, to="carol")] == ["welcome back"]
        turn = await turns.reader.find_by_platform_message("home", missed["carol"])
        assert turn is not None
        assert turn.user == f"discord:{ids['carol']}"
        chats = {name: platform.direct(platform.people[name])["id"] for name in ids}
        assert set(platform.asked_for_history) & set(chats.values()) == {chats["carol"]}
    finally:
        await hub.stop()
