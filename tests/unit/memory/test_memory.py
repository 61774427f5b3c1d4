"""Remember, recall, forget: for one user at a time, in any script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from torana.errors import MemoryFull
from torana.memory import COUNT_LIMIT, SUBJECT_LIMIT, TEXT_LIMIT, Memory
from torana.messages import owner_of
from torana.store import memory_words
from torana.store.database import Database
from torana.store.memories import HISTORY_LIMIT
from torana.store.tables import memories

Keep = Callable[..., Awaitable[str]]


@pytest.fixture
def memory(database: Database, clock: Callable[[], datetime]) -> Memory:
    return Memory(database=database, clock=clock)


@pytest.fixture
def keep(memory: Memory) -> Keep:
    """``await keep("I like tea", subject="tea")`` remembers for ana."""

    async def remember(text: str, subject: str = "", *, user: str = "ana") -> str:
        return (await memory.remember(user, text, subject=subject, turn_id="turn_1")).memory.text

    return remember


async def known(memory: Memory, user: str = "ana") -> list[str]:
    return [item.text for item in await memory.listed(user)]


async def recalled(memory: Memory, query: str, limit: int = 5, *, every_word: bool = False) -> list[str]:
    found = await memory.recall("ana", query, limit=limit, every_word=every_word)
    return [item.memory.text for item in found]


async def forgotten(memory: Memory, query: str) -> set[str]:
    return {item.text for item in await memory.forget("ana", query)}


async def count_rows(database: Database) -> int:
    counting = sa.select(sa.func.count()).select_from(memories)
    return await database.run(lambda connection: connection.execute(counting).scalar_one())


async def test_what_is_remembered_stands_newest_first(memory: Memory, keep: Keep) -> None:
    assert await keep("I like tea") == "I like tea"
    await keep("I live in Lisbon", "Where I live")

    newest, oldest = await memory.listed("ana")

    assert (oldest.text, oldest.subject, oldest.turn_id) == ("I like tea", "", "turn_1")
    assert (newest.text, newest.subject) == ("I live in Lisbon", "where i live")
    assert oldest.created_at < newest.created_at


@pytest.mark.parametrize(
    "same_subject",
    ["favourite colour", "Favourite  COLOUR", " favourite\tcolour ", "ｆａｖｏｕｒｉｔｅ colour"],
)
async def test_a_newer_statement_supersedes_the_older_one_of_its_subject(
    memory: Memory, keep: Keep, same_subject: str
) -> None:
    await keep("my favourite colour is blue", "favourite colour")
    await keep("my favourite dish is soup", "favourite dish")
    await keep("my favourite colour is red", same_subject)

    assert await known(memory) == ["my favourite colour is red", "my favourite dish is soup"]
    assert await recalled(memory, "blue") == []


async def test_without_a_subject_both_stand(memory: Memory, keep: Keep) -> None:
    await keep("my sister is tall")
    await keep("my sister is in Porto")

    assert len(await known(memory)) == 2


@pytest.mark.parametrize("again", ["I like tea", "  i LIKE   tea", "Ｉ like tea"])
async def test_remembering_the_same_again_changes_nothing(
    memory: Memory, keep: Keep, database: Database, again: str
) -> None:
    await keep("I like tea", "tea")
    before = await memory.listed("ana")

    await keep(again, "TEA")

    assert await memory.listed("ana") == before
    assert await count_rows(database) == 1


async def test_the_same_at_once_is_remembered_once(memory: Memory, keep: Keep, database: Database) -> None:
    await asyncio.gather(*(keep("I like tea") for _ in range(10)))

    assert await count_rows(database) == 1


async def test_texts_and_subjects_are_cut_at_their_bounds(
    memory: Memory, keep: Keep, database: Database
) -> None:
    long = "long " * TEXT_LIMIT

    kept = await keep(long, "s" * 300)
    await keep(long, "s" * 300)

    (item,) = await memory.listed("ana")
    assert item.text == kept == long[:TEXT_LIMIT]
    assert len(item.subject) == SUBJECT_LIMIT
    assert await count_rows(database) == 1


async def test_a_full_memory_refuses_another_and_takes_a_newer_one(
    memory: Memory, keep: Keep, database: Database
) -> None:
    await keep("my favourite colour is blue", "colour")
    fill = [
        {
            "id": f"mem_{number}",
            "owner": owner_of("ana"),
            "subject": "",
            "text": f"note {number}",
            "created_at": datetime.fromisoformat("2026-01-01T00:00:00+00:00"),
        }
        for number in range(COUNT_LIMIT - 1)
    ]
    await database.run(lambda connection: connection.execute(sa.insert(memories), fill) and None)

    with pytest.raises(MemoryFull, match="forget some"):
        await keep("one more")
    await keep("note 1")
    await keep("my favourite colour is red", "colour")
    await keep("bob has room", user="bob")

    assert len(await known(memory)) == COUNT_LIMIT
    assert await recalled(memory, "favourite") == ["my favourite colour is red"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("my sister's name is Ana", "SISTERS"),
        ("我喜欢绿茶", "绿茶"),
        ("私は緑茶が好きです", "緑茶"),
        ("أحب الشاي الأخضر", "الشاي"),
        ("my favourite is 🍵", "🍵"),
        ("chá de limão", "limao"),
        ("я люблю чай", "ЧАЙ"),
    ],
    ids=["english", "chinese", "japanese", "arabic", "emoji", "portuguese", "russian"],
)
async def test_what_was_remembered_is_recalled_in_any_script(
    memory: Memory, keep: Keep, text: str, query: str
) -> None:
    await keep("something else entirely")
    await keep(text)

    assert await recalled(memory, query) == [text]
    assert await forgotten(memory, query) == {text}


async def test_a_subject_is_found_too_and_the_best_comes_first(memory: Memory, keep: Keep) -> None:
    await keep("blue", "favourite colour")
    await keep("the colour of the house is green")
    await keep("I like tea")

    assert (await recalled(memory, "favourite colour"))[0] == "blue"
    assert len(await recalled(memory, "colour tea", limit=2)) == 2


async def test_every_word_leaves_out_what_holds_only_some(memory: Memory, keep: Keep) -> None:
    for text in ("my green hat is on the shelf", "green tea is in the cupboard", "I like tea"):
        await keep(text)

    assert set(await recalled(memory, "green tea")) == set(await known(memory))
    assert await recalled(memory, "green tea", every_word=True) == ["green tea is in the cupboard"]
    assert await recalled(memory, "green coffee", every_word=True) == []
    assert await recalled(memory, "???", every_word=True) == []


@pytest.mark.parametrize(
    ("text", "subject", "query", "told"),
    [
        ("my sister is called Ana", "my sister's name", "name", False),
        ("my sister is called Ana", "my sister's name", "sister name", True),
        ("my sister is called Ana", "my sister's name", "sister's name", True),
        ("my sister is called Ana", "my sister's name", "Ana", True),
        ("my sister’s birthday is in May", "", "birthday", False),
        ("my birthday is in May, my sister's birthday in June", "", "birthday", True),
        ("my name's Ada", "my name", "Ada", True),
        ("it's my turn to cook", "", "turn", True),
        ("我喜欢绿茶", "my sister's drink", "绿", True),
    ],
)
async def test_what_is_somebody_elses_is_told_only_where_that_somebody_is_named(
    memory: Memory, keep: Keep, text: str, subject: str, query: str, told: bool
) -> None:
    await keep(text, subject)

    assert await recalled(memory, query, every_word=True) == ([text] if told else [])


@pytest.mark.parametrize("query", ["", "   ", "???", '"', "NEAR(", "* OR"])
async def test_a_query_without_a_known_word_finds_nothing(memory: Memory, keep: Keep, query: str) -> None:
    await keep("I like tea")

    assert await recalled(memory, query) == []
    assert await forgotten(memory, query) == set()
    assert await known(memory) == ["I like tea"]


async def test_only_the_latest_of_what_was_superseded_is_kept(
    memory: Memory, keep: Keep, database: Database
) -> None:
    for number in range(HISTORY_LIMIT + 5):
        await keep(f"number {number}", "number")

    (stands,) = await memory.listed("ana")
    history = await memory.history("ana", stands.id)

    assert [item.text for item in history] == [f"number {n}" for n in range(HISTORY_LIMIT + 3, 3, -1)]
    assert {item.superseded_by for item in history} == {stands.id}
    assert await count_rows(database) == HISTORY_LIMIT + 1


async def test_a_memory_of_what_was_superseded_is_left_when_another_is_forgotten(
    memory: Memory, keep: Keep
) -> None:
    await keep("blue", "colour")
    await keep("red", "colour")
    (stands,) = await memory.listed("ana")
    (old,) = await memory.history("ana", stands.id)

    await memory.forget_one("ana", old.id)

    assert await known(memory) == ["red"]
    assert await memory.history("ana", stands.id) == []


async def test_what_is_forgotten_leaves_no_word_in_the_index(
    memory: Memory, keep: Keep, database: Database
) -> None:
    await keep("the secret is xylophone", "the secret")
    await keep("the secret is zugzwang", "the secret")
    await keep("I like tea")
    assert b"zugzwang" in await index_of(database)

    await memory.forget("ana", "secret")

    index = await index_of(database)
    assert [word for word in (b"xylophone", b"zugzwang", b"secret") if word in index] == []
    assert b"tea" in index


async def test_an_owners_words_are_cleared_at_once_and_nobody_elses(
    memory: Memory, keep: Keep, database: Database
) -> None:
    await keep("zugzwang")
    await keep("xylophone", user="bob")

    await database.run(partial(memory_words.clear, owner=owner_of("ana")))

    assert b"zugzwang" not in await index_of(database)
    assert await recalled(memory, "zugzwang") == []
    assert len(await memory.recall("bob", "xylophone", limit=5)) == 1


async def index_of(database: Database) -> bytes:
    """All that the index of words holds: what it is made of, and the texts it was made from."""

    def read(connection: sa.Connection) -> bytes:
        made_of = connection.exec_driver_sql("SELECT block FROM memory_words_data").scalars()
        made_from = connection.exec_driver_sql("SELECT c2 FROM memory_words_content").scalars()
        return b" ".join(made_of) + " ".join(made_from).encode()

    return await database.run(read)


async def test_forgetting_deletes_all_that_hold_every_word(memory: Memory, keep: Keep) -> None:
    for text in ("I like green tea.", "Green tea, at four!", "I like tea", "I like green hats"):
        await keep(text)

    assert await forgotten(memory, "green TEA") == {"I like green tea.", "Green tea, at four!"}
    assert set(await known(memory)) == {"I like tea", "I like green hats"}


async def test_forgetting_takes_what_was_superseded_with_it(
    memory: Memory, keep: Keep, database: Database
) -> None:
    await keep("my favourite colour is blue", "colour")
    await keep("my favourite colour is red", "colour")
    await keep("I like tea")

    assert await forgotten(memory, "favourite colour") == {"my favourite colour is red"}
    assert await count_rows(database) == 1


async def test_where_nothing_holds_every_word_nothing_goes(memory: Memory, keep: Keep) -> None:
    await keep("my job is baker")
    await keep("my favourite colour is blue")

    assert await forgotten(memory, "brother's job") == set()
    assert await forgotten(memory, "favourite colour red") == set()


async def test_what_is_somebody_elses_goes_only_where_that_somebody_is_named(
    memory: Memory, keep: Keep
) -> None:
    await keep("my name is Bob", "my name")
    await keep("my sister is called Ana", "my sister's name")
    await keep("my dog's name is Rex")

    assert await forgotten(memory, "name") == {"my name is Bob"}
    assert await forgotten(memory, "sister's name") == {"my sister is called Ana"}


async def test_users_are_apart(memory: Memory, keep: Keep) -> None:
    await keep("hers")
    await keep("his", user="bob")
    await keep("hers of a subject", "s")
    await keep("his of a subject", "s", user="bob")

    assert await known(memory) == ["hers of a subject", "hers"]
    assert await known(memory, user="bob") == ["his of a subject", "his"]
    assert await memory.recall("ana", "his", limit=5) == []
    assert await memory.forget("ana", "his") == []
    await memory.forget("ana", "subject")
    assert await known(memory, user="bob") == ["his of a subject", "his"]


async def test_the_database_holds_one_living_memory_per_subject(keep: Keep, database: Database) -> None:
    await keep("blue", "colour")
    await keep("red", "colour")
    revive = sa.update(memories).values(superseded_at=None)

    with pytest.raises(IntegrityError):
        await database.run(partial(execute, statement=revive))


def execute(connection: sa.Connection, statement: sa.Update) -> None:
    connection.execute(statement)


async def test_a_user_searches_once_at_a_time(
    memory: Memory, keep: Keep, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep("tea with milk")
    asked: list[int] = []
    run = database.run

    async def counted(work: Callable[[sa.Connection], object]) -> object:
        asked.append(len(asked))
        return await run(work)

    monkeypatch.setattr(database, "run", counted)
    searches = [asyncio.create_task(recalled(memory, "tea")) for _ in range(3)]
    await asyncio.sleep(0)
    assert asked == [0]
    assert await asyncio.gather(*searches) == [["tea with milk"]] * 3
