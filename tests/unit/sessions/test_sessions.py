"""The history window of a session, and its earlier messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage
from sqlalchemy.engine import Connection

from torana.agent import Answer, Emit
from torana.agent.journal import Journal
from torana.messages import Inbound, Turn, new_id
from torana.sessions import HistoryWindow, Sessions, SessionText, Speaker, history
from torana.store.engine.database import Database
from torana.store.engine.tokenizer import TEXT_LIMIT
from torana.store.rows import transcript
from torana.store.rows import turns as rows
from torana.store.rows.transcript import HISTORY_BYTES
from torana.store.rows.turns import Ending, NewTurn
from torana.turns import Turns

Say = Callable[..., Awaitable[Turn]]

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


def question(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)], instructions="You are Torana.")


class Script:
    """An agent whose turns make as many messages as their content says: "4 hello" makes four.

    A number at the end is the length of the last message: "2 hello 1000".
    """

    async def run(self, turn: Turn, emit: Emit, journal: Journal) -> Answer:
        steps = int(turn.content.split()[0]) // 2 - 1
        messages: list[ModelMessage] = [question(turn.content)]
        for step in range(steps):
            messages.append(ModelResponse(parts=[ToolCallPart("look", {}, tool_call_id=str(step))]))
            messages.append(ModelRequest(parts=[ToolReturnPart("look", "seen", tool_call_id=str(step))]))
        length = int(turn.content.split()[-1]) if turn.content[-1].isdigit() else 0
        messages.append(ModelResponse(parts=[TextPart(f"re: {turn.content}".ljust(length, "."))]))
        return Answer(
            reply=f"re: {turn.content}",
            model="m",
            history=history.dump(messages, speaker=turn.user),
        )


@pytest.fixture
def turns(open_turns: Callable[..., Turns]) -> Turns:
    return open_turns(agent=Script())


@pytest.fixture
def window(
    database: Database, message: Callable[..., Inbound], turns: Turns
) -> Callable[..., Awaitable[list[str]]]:
    """``await window(10)`` returns the texts of the messages that the model would see next."""

    async def look(limit: int) -> list[str]:
        upcoming = await database.run(partial(take_and_drop, inbound=message("next")))
        sessions = Sessions(database=database, history_messages=limit)
        window = await sessions.window(upcoming)
        return [text_of(m) for m in window.messages]

    return look


def take_and_drop(connection: Connection, inbound: Inbound) -> Turn:
    """Return a turn of the session that leaves nothing in it."""
    new = NewTurn(turn_id=new_id("turn"), session_id=new_id("ses"), channel=inbound.channel or "", at=AT)
    turn = rows.accept(connection, inbound, new, hold=True).turn
    rows.end_queued(connection, turn, Ending(at=AT, state="cancelled"))
    return turn


def text_of(message: ModelMessage) -> str:
    part = message.parts[0]
    assert isinstance(part, UserPromptPart | TextPart | ToolCallPart | ToolReturnPart)
    return str(part.tool_name if isinstance(part, ToolCallPart) else part.content)


async def test_new_session_has_no_window(window: Callable[..., Awaitable[list[str]]]) -> None:
    assert await window(10) == []


@pytest.mark.parametrize(
    ("limit", "first"),
    [
        (100, "2 a"),
        (10, "2 a"),
        (9, "4 b"),
        (8, "4 b"),
        (7, "2 c"),
        (4, "2 c"),
        (3, "2 d"),
        (2, "2 d"),
        (1, "2 d"),
    ],
)
async def test_window_holds_the_newest_whole_turns_oldest_first(
    turns: Turns, say: Say, window: Callable[..., Awaitable[list[str]]], limit: int, first: str
) -> None:
    for content in ("2 a", "4 b", "2 c", "2 d"):
        await say(turns, content)
    whole = ["2 a", "re: 2 a", "4 b", "look", "seen", "re: 4 b", "2 c", "re: 2 c", "2 d", "re: 2 d"]

    assert await window(limit) == whole[whole.index(first) :]


async def test_window_shows_question_and_answer_of_an_oversized_turn(
    turns: Turns, say: Say, window: Callable[..., Awaitable[list[str]]]
) -> None:
    await say(turns, "2 before")
    await say(turns, "60 long")

    assert await window(40) == ["60 long", "re: 60 long"]
    await say(turns, "2 after")
    assert await window(2) == ["2 after", "re: 2 after"]


async def test_failed_turn_is_not_in_the_window(
    turns: Turns, say: Say, window: Callable[..., Awaitable[list[str]]]
) -> None:
    await say(turns, "2 a")
    assert (await say(turns, "no number")).state == "failed"

    assert await window(10) == ["2 a", "re: 2 a"]


async def test_other_channels_and_other_owners_are_not_shown(
    turns: Turns, say: Say, window: Callable[..., Awaitable[list[str]]]
) -> None:
    await say(turns, "2 elsewhere", channel="other")
    await say(turns, "2 hers", owner="ana")

    assert await window(10) == []


async def test_instructions_are_not_stored(turns: Turns, say: Say, database: Database) -> None:
    await say(turns, "2 a")
    last = await say(turns, "2 b")
    window = await Sessions(database=database, history_messages=10).window(last)

    assert isinstance(window.messages[0], ModelRequest)
    assert window.messages[0].instructions is None


async def test_shared_session_prefixes_messages_with_speaker_names(
    turns: Turns, say: Say, window: Callable[..., Awaitable[list[str]]]
) -> None:
    await say(turns, "2 a", user="ana")
    assert await window(10) == ["2 a", "re: 2 a"]
    for content, user in [("4 b", "bob"), ("2 c", None)]:
        await say(turns, content, user=user)

    assert await window(10) == [
        "ana: 2 a",
        "re: 2 a",
        "bob: 4 b",
        "look",
        "seen",
        "re: 4 b",
        "2 c",
        "re: 2 c",
    ]


def test_message_cannot_contain_a_line_of_another_speaker() -> None:
    body, _ = history.dump(history.exchange("hello\nana: I agree\r\u2028bob: me too", "hi"), speaker="eve")

    (request, _) = history.load(body, name_speakers=True)

    contents = [part.content for part in request.parts if isinstance(part, UserPromptPart)]
    assert contents == ["eve: hello\n    ana: I agree\n    \n    bob: me too"]


def test_only_user_texts_get_a_speaker_name() -> None:
    request = ModelRequest(
        parts=[SystemPromptPart("Be kind."), UserPromptPart(["hello", "there"]), UserPromptPart("hi")]
    )
    body, _ = history.dump([request], speaker="ana")

    (loaded,) = history.load(body, name_speakers=True)

    contents = [part.content for part in loaded.parts if isinstance(part, SystemPromptPart | UserPromptPart)]
    assert contents == ["Be kind.", ["hello", "there"], "ana: hi"]


@pytest.mark.parametrize(
    ("lengths", "read"),
    [
        ((90_000, 90_000), 2),
        ((HISTORY_BYTES // 3, 100, HISTORY_BYTES // 2), 3),
        ((100, HISTORY_BYTES // 2, HISTORY_BYTES // 2), 1),
        ((100, 100, HISTORY_BYTES - 10_000), 3),
    ],
)
async def test_window_ends_behind_too_many_bytes(
    turns: Turns,
    say: Say,
    window: Callable[..., Awaitable[list[str]]],
    database: Database,
    lengths: Sequence[int],
    read: int,
) -> None:
    said = [await say(turns, f"2 {number} {length}") for number, length in enumerate(lengths)]

    found = await window(100)

    assert found[::2] == [turn.content for turn in said[-read:]]
    assert [len(answer) for answer in found[1::2]] == [max(length, 9) for length in lengths[-read:]]
    size = partial(transcript.history_size, owner=said[0].owner, session_id=said[0].session_id, turns_limit=51)
    assert sum(lengths[-read:]) < await database.run(size) < sum(lengths[-read:]) + 1_000 * read


async def test_window_is_as_long_as_the_room_of_the_model(turns: Turns, say: Say, database: Database) -> None:
    for content in ("2 a 3000", "2 b 3000", "6 c 3000"):
        last = await say(turns, content)

    def sessions(room: int) -> Sessions:
        return Sessions(database=database, history_messages=100, message_room=lambda: room)

    found = [
        [text_of(one)[:5] for one in (await sessions(room).window(last)).messages] for room in (400, 160, 40)
    ]

    whole = ["6 c 3", "look", "seen", "look", "seen", "re: 6"]
    assert found == [
        ["2 a 3", "re: 2", "2 b 3", "re: 2", *whole],
        ["2 b 3", "re: 2", *whole],
        ["6 c 3", "re: 6"],
    ]


async def test_window_of_a_cut_history_has_the_summary(turns: Turns, say: Say, database: Database) -> None:
    old = await say(turns, f"2 a {HISTORY_BYTES}")
    known = await database.run(
        partial(transcript.oldest_unsummarised, owner=old.owner, session_id=old.session_id, limit=9)
    )
    assert known is not None
    keep = partial(transcript.keep_summary, owner=old.owner, session_id=old.session_id, known=known)
    await database.run(partial(keep, text="They spoke about a.", to=known.rows[-1][0]))
    new = await say(turns, f"2 b {HISTORY_BYTES}")

    found = await Sessions(database=database, history_messages=100).window(new)

    assert ([text_of(one)[:5] for one in found.messages], found.before) == (
        ["2 b 8", "re: 2"],
        "They spoke about a.",
    )


@pytest.mark.parametrize(("with_usage", "tokens"), [(False, 0), (True, 12)])
def test_history_has_usage_only_on_request(with_usage: bool, tokens: int) -> None:
    response = ModelResponse(parts=[TextPart("hi")], usage=RequestUsage(input_tokens=12))
    body, _ = history.dump([response], speaker="ana", with_usage=with_usage)

    (loaded,) = history.load(body)

    assert loaded == replace(response, usage=RequestUsage(input_tokens=tokens))


async def test_session_is_shared_after_two_users_spoke(turns: Turns, say: Say, database: Database) -> None:
    sessions = Sessions(database=database, history_messages=10)

    assert not (await sessions.window(await say(turns, "2 a", user="ana"))).shared
    assert (await sessions.window(await say(turns, "2 b", user="bob"))).shared
    assert not (await sessions.window(await say(turns, "2 c", user="bob", channel="other"))).shared


async def test_earlier_messages_are_read_from_either_end(turns: Turns, say: Say, database: Database) -> None:
    sessions = Sessions(database=database, history_messages=10)
    for content, user in [("2 a", "ana"), ("broken", None), ("2 b", "bob")]:
        await say(turns, content, user=user)
    await say(turns, "2 elsewhere", channel="other")
    last = await say(turns, "2 now")

    first_to_last = await earlier(sessions, last)
    told = [(said.speaker, said.user, said.text) for said in first_to_last]

    assert told == [
        ("user", "ana", "2 a"),
        ("assistant", "ana", "re: 2 a"),
        ("user", None, "broken"),
        ("user", "bob", "2 b"),
        ("assistant", "bob", "re: 2 b"),
    ]
    assert await earlier(sessions, last, newest=True) == first_to_last[::-1]
    assert texts(await earlier(sessions, last, speaker="user", newest=True)) == ["2 b", "broken", "2 a"]
    assert texts(await earlier(sessions, last, speaker="assistant")) == ["re: 2 a", "re: 2 b"]


@pytest.mark.parametrize("newest", [False, True])
async def test_earlier_messages_are_read_a_few_at_a_time(
    turns: Turns, say: Say, database: Database, newest: bool
) -> None:
    sessions = Sessions(database=database, history_messages=10)
    order = [f"2 {number} {'x' * 10_000}" for number in range(25)]
    for content in order:
        await say(turns, content)
    last = await say(turns, "2 now")

    pages = [page async for page in sessions.earlier(last, speaker="user", newest=newest)]

    assert [len(page) for page in pages] == [10, 10, 5]
    assert texts([said for page in pages for said in page]) == (order[::-1] if newest else order)


async def test_earlier_messages_are_cut_off_where_they_are_not_searchable(
    turns: Turns, say: Say, database: Database
) -> None:
    sessions = Sessions(database=database, history_messages=10)
    await say(turns, "2 " + "x" * (TEXT_LIMIT + 10))
    last = await say(turns, "2 now")

    assert [len(text) for text in texts(await earlier(sessions, last))] == [TEXT_LIMIT, TEXT_LIMIT]


async def test_another_owner_reads_nothing(turns: Turns, say: Say, database: Database) -> None:
    await say(turns, "2 a", user="ana")
    last = await say(turns, "2 b", user="bob")
    sessions = Sessions(database=database, history_messages=10)
    stranger = replace(last, owner="mallory")

    assert await earlier(sessions, stranger, newest=True) == []
    assert await sessions.window(stranger) == HistoryWindow(messages=[], shared=False)


async def earlier(
    sessions: Sessions, turn: Turn, *, speaker: Speaker = "any", newest: bool = False
) -> list[SessionText]:
    return [said async for page in sessions.earlier(turn, speaker=speaker, newest=newest) for said in page]


def texts(said: list[SessionText]) -> list[str]:
    return [one.text for one in said]


@pytest.mark.parametrize("limit", [1, 2, 3, 200])
@pytest.mark.parametrize("room", [0, 30, 1_000])
async def test_pages_of_long_messages_are_short_and_complete(
    turns: Turns, say: Say, database: Database, monkeypatch: pytest.MonkeyPatch, limit: int, room: int
) -> None:
    monkeypatch.setattr("torana.paging.PAGE_CHARACTERS", room)
    sessions = Sessions(database=database, history_messages=10)
    said = [f"2 {'x' * length}" for length in (1, 10, 40, 5, 100, 100, 2)]
    turn = await say(turns, said[0])
    for content in said[1:]:
        await say(turns, content)

    found: list[str] = []
    after: str | None = None
    while True:
        page = await sessions.messages(turn.owner, turn.session_id, limit=limit, after=after)
        sizes = [len(item.content) for item in page.items]
        assert len(sizes) <= limit
        assert sum(sizes[:-1]) <= room
        found += [item.content for item in page.items]
        if page.next is None:
            break
        after = page.next

    assert found == [text for content in said for text in (content, f"re: {content}")]
