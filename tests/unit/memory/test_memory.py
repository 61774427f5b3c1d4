"""Remembering, recalling and forgetting, for one user at a time, in any script."""

from __future__ import annotations

import asyncio
import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Literal

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from tests.waiting import eventually

from torana.characters import normalize
from torana.errors import MemoryFull, Unauthorized
from torana.memory import COUNT_LIMIT, SUBJECT_LIMIT, TEXT_LIMIT, Memory, Recalled
from torana.messages import owner_of
from torana.store.engine.database import Database
from torana.store.engine.fts import QUERY_LIMIT, terms
from torana.store.engine.tables import memories
from torana.store.rows.memories import HISTORY_LIMIT, Remembered
from torana.store.rows.reports import memory_index

Keep = Callable[..., Awaitable[str]]

#: A character that NFKC expands to six, which are as many words.
KILOMETRE = "\u3316"


@pytest.fixture
def memory(database: Database, clock: Callable[[], datetime]) -> Memory:
    return Memory(database=database, clock=clock)


@pytest.fixture
def remember(memory: Memory) -> Keep:
    """``await remember("I like tea", subject="tea")`` stores a memory for ana."""

    async def remember(text: str, subject: str = "", *, user: str = "ana") -> str:
        return (await memory.remember(user, text, subject=subject, turn_id="turn_1")).memory.text

    return remember


async def list_texts(memory: Memory, user: str = "ana") -> list[str]:
    return [item.text for item in await memory.list_memories(user)]


async def recall_texts(memory: Memory, query: str, limit: int = 5, *, every_word: bool = False) -> list[str]:
    found = await memory.recall("ana", query, limit=limit, every_word=every_word)
    return [item.memory.text for item in found]


async def forget_texts(memory: Memory, query: str) -> set[str]:
    return {item.text for item in await memory.forget("ana", query)}


async def count_rows(database: Database) -> int:
    counting = sa.select(sa.func.count()).select_from(memories)
    return await database.run(lambda connection: connection.execute(counting).scalar_one())


async def test_memories_are_listed_newest_first(memory: Memory, remember: Keep) -> None:
    assert await remember("I like tea") == "I like tea"
    await remember("I live in Lisbon", "Where I live")

    newest, oldest = await memory.list_memories("ana")

    assert (oldest.text, oldest.subject, oldest.turn_id) == ("I like tea", "", "turn_1")
    assert (newest.text, newest.subject) == ("I live in Lisbon", "where i live")
    assert oldest.created_at < newest.created_at


@pytest.mark.parametrize(
    "same_subject",
    ["favourite colour", "Favourite  COLOUR", " favourite\tcolour ", "ｆａｖｏｕｒｉｔｅ colour"],
)
async def test_newer_statement_supersedes_the_older_one_of_its_subject(
    memory: Memory, remember: Keep, same_subject: str
) -> None:
    await remember("my favourite colour is blue", "favourite colour")
    await remember("my favourite dish is soup", "favourite dish")
    await remember("my favourite colour is red", same_subject)

    assert await list_texts(memory) == ["my favourite colour is red", "my favourite dish is soup"]
    assert await recall_texts(memory, "blue") == []


async def test_memories_without_subject_do_not_supersede_each_other(memory: Memory, remember: Keep) -> None:
    await remember("my sister is tall")
    await remember("my sister is in Porto")

    assert len(await list_texts(memory)) == 2


@pytest.mark.parametrize("again", ["I like tea", "  i LIKE   tea", "Ｉ like tea"])
async def test_remembering_the_same_again_changes_nothing(
    memory: Memory, remember: Keep, database: Database, again: str
) -> None:
    await remember("I like tea", "tea")
    before = await memory.list_memories("ana")

    await remember(again, "TEA")

    assert await memory.list_memories("ana") == before
    assert await count_rows(database) == 1


async def test_concurrent_equal_memories_are_stored_once(
    memory: Memory, remember: Keep, database: Database
) -> None:
    await asyncio.gather(*(remember("I like tea") for _ in range(10)))

    assert await count_rows(database) == 1


async def test_texts_and_subjects_are_cut_at_their_bounds(
    memory: Memory, remember: Keep, database: Database
) -> None:
    long = "long " * TEXT_LIMIT

    kept = await remember(long, "s" * 300)
    await remember(long, "s" * 300)

    (item,) = await memory.list_memories("ana")
    assert item.text == kept == long[:TEXT_LIMIT]
    assert len(item.subject) == SUBJECT_LIMIT
    assert await count_rows(database) == 1


async def test_full_memory_refuses_additions_but_allows_replacements(
    memory: Memory, remember: Keep, database: Database
) -> None:
    await remember("my favourite colour is blue", "colour")
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
        await remember("one more")
    await remember("note 1")
    await remember("my favourite colour is red", "colour")
    await remember("bob has room", user="bob")

    assert len(await list_texts(memory)) == COUNT_LIMIT
    assert await recall_texts(memory, "favourite") == ["my favourite colour is red"]


@pytest.mark.parametrize(("text", "stored"), [("one more", "one more"), ("NOTE  7", "note 7")])
async def test_texts_are_not_compared_within_the_transaction(
    remember: Keep, monkeypatch: pytest.MonkeyPatch, text: str, stored: str
) -> None:
    compared = Counter[str]()

    def count(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
        compared[threading.current_thread().name] += 1
        return normalize(form, text)

    for number in range(20):
        await remember(f"note {number}")
    monkeypatch.setattr("torana.memory.normalize", count)

    assert await remember(text) == stored
    assert compared.total() > 20
    assert compared["torana-store"] <= 2


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
async def test_memories_are_recalled_in_any_script(
    memory: Memory, remember: Keep, text: str, query: str
) -> None:
    await remember("something else entirely")
    await remember(text)

    assert await recall_texts(memory, query) == [text]
    assert await forget_texts(memory, query) == {text}


async def test_long_subject_is_cut_before_it_is_normalised(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these characters becomes 18, which takes a second for a megabyte."""
    lengths: list[int] = []

    def measured(form: Literal["NFKC"], text: str) -> str:
        lengths.append(len(text))
        return normalize(form, text)

    monkeypatch.setattr("torana.memory.normalize", measured)

    stored = await memory.remember("ana", "tea", subject="  \ufdfa" + "\ufdfa" * 100_000, turn_id="turn_1")

    assert len(stored.memory.subject) == SUBJECT_LIMIT
    assert max(lengths) <= 4 * SUBJECT_LIMIT


async def test_recall_searches_subjects_and_ranks_the_best_first(memory: Memory, remember: Keep) -> None:
    await remember("blue", "favourite colour")
    await remember("the colour of the house is green")
    await remember("I like tea")

    assert (await recall_texts(memory, "favourite colour"))[0] == "blue"
    assert len(await recall_texts(memory, "colour tea", limit=2)) == 2


async def test_every_word_excludes_partial_matches(memory: Memory, remember: Keep) -> None:
    for text in ("my green hat is on the shelf", "green tea is in the cupboard", "I like tea"):
        await remember(text)

    assert set(await recall_texts(memory, "green tea")) == set(await list_texts(memory))
    assert await recall_texts(memory, "green tea", every_word=True) == ["green tea is in the cupboard"]
    assert await recall_texts(memory, "green coffee", every_word=True) == []
    assert await recall_texts(memory, "???", every_word=True) == []


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
async def test_possessives_are_recalled_only_when_the_query_names_them(
    memory: Memory, remember: Keep, text: str, subject: str, query: str, told: bool
) -> None:
    await remember(text, subject)

    assert await recall_texts(memory, query, every_word=True) == ([text] if told else [])


@pytest.mark.parametrize("query", ["", "   ", "???", '"', "NEAR(", "* OR"])
async def test_query_without_a_known_word_finds_nothing(memory: Memory, remember: Keep, query: str) -> None:
    await remember("I like tea")

    assert await recall_texts(memory, query) == []
    assert await forget_texts(memory, query) == set()
    assert await list_texts(memory) == ["I like tea"]


async def test_history_keeps_only_the_latest_superseded_memories(
    memory: Memory, remember: Keep, database: Database
) -> None:
    for number in range(HISTORY_LIMIT + 5):
        await remember(f"number {number}", "number")

    (stands,) = await memory.list_memories("ana")
    history = await memory.history("ana", stands.id)

    assert [item.text for item in history] == [f"number {n}" for n in range(HISTORY_LIMIT + 3, 3, -1)]
    assert {item.superseded_by for item in history} == {stands.id}
    assert await count_rows(database) == HISTORY_LIMIT + 1


async def test_forgetting_a_superseded_memory_keeps_the_current_one(memory: Memory, remember: Keep) -> None:
    await remember("blue", "colour")
    await remember("red", "colour")
    (stands,) = await memory.list_memories("ana")
    (old,) = await memory.history("ana", stands.id)

    await memory.forget_one("ana", old.id)

    assert await list_texts(memory) == ["red"]
    assert await memory.history("ana", stands.id) == []


async def test_forgotten_memory_leaves_no_word_in_the_index(
    memory: Memory, remember: Keep, database: Database
) -> None:
    await remember("the secret is xylophone", "the secret")
    await remember("the secret is zugzwang", "the secret")
    await remember("I like tea")
    assert b"zugzwang" in await index_of(database)

    await memory.forget("ana", "secret")

    index = await index_of(database)
    assert [word for word in (b"xylophone", b"zugzwang", b"secret") if word in index] == []
    assert b"tea" in index


async def test_removal_of_forgotten_words_lets_other_transactions_in(
    memory: Memory, database: Database
) -> None:
    """Removing them from a large index at once would hold up the messages of all users."""
    letters = random.Random(1)
    for number in range(300):
        text = "".join(chr(letters.randint(0x4E00, 0x9000)) for _ in range(TEXT_LIMIT))
        await memory.remember(f"user {number % 7}", text, subject=f"{number}", turn_id=None)
    old = await memory.list_memories("user 1")
    meanwhile = 0

    forgets = [asyncio.create_task(memory.forget_one("user 1", item.id)) for item in old]
    while not all(forget.done() for forget in forgets):
        await database.run(lambda _: None)
        meanwhile += 1

    assert meanwhile > 10
    index = await index_of(database)
    assert not [item.id for item in old if item.text[:2].encode() in index]


async def test_clearing_the_index_affects_one_owner_only(
    memory: Memory, remember: Keep, database: Database
) -> None:
    await remember("zugzwang")
    await remember("xylophone", user="bob")

    await database.run(partial(memory_index.clear, owner=owner_of("ana")))

    assert b"zugzwang" not in await index_of(database)
    assert await recall_texts(memory, "zugzwang") == []
    assert len(await memory.recall("bob", "xylophone", limit=5)) == 1


async def index_of(database: Database) -> bytes:
    """Return all bytes of the word index: its blocks and the texts that it indexes."""

    def read(connection: sa.Connection) -> bytes:
        made_of = connection.exec_driver_sql("SELECT block FROM memory_words_data").scalars()
        made_from = connection.exec_driver_sql("SELECT c2 FROM memory_words_content").scalars()
        return b" ".join(made_of) + " ".join(made_from).encode()

    return await database.run(read)


async def test_forget_deletes_memories_that_contain_every_word(memory: Memory, remember: Keep) -> None:
    for text in ("I like green tea.", "Green tea, at four!", "I like tea", "I like green hats"):
        await remember(text)

    assert await forget_texts(memory, "green TEA") == {"I like green tea.", "Green tea, at four!"}
    assert set(await list_texts(memory)) == {"I like tea", "I like green hats"}


async def test_forget_deletes_superseded_memories_too(
    memory: Memory, remember: Keep, database: Database
) -> None:
    await remember("my favourite colour is blue", "colour")
    await remember("my favourite colour is red", "colour")
    await remember("I like tea")

    assert await forget_texts(memory, "favourite colour") == {"my favourite colour is red"}
    assert await count_rows(database) == 1


async def test_forget_deletes_nothing_on_a_partial_match(memory: Memory, remember: Keep) -> None:
    await remember("my job is baker")
    await remember("my favourite colour is blue")

    assert await forget_texts(memory, "brother's job") == set()
    assert await forget_texts(memory, "favourite colour red") == set()


async def test_possessives_are_forgotten_only_when_the_query_names_them(memory: Memory, remember: Keep) -> None:
    await remember("my name is Bob", "my name")
    await remember("my sister is called Ana", "my sister's name")
    await remember("my dog's name is Rex")

    assert await forget_texts(memory, "name") == {"my name is Bob"}
    assert await forget_texts(memory, "sister's name") == {"my sister is called Ana"}


async def test_memories_are_separate_for_each_user(memory: Memory, remember: Keep) -> None:
    await remember("hers")
    await remember("his", user="bob")
    await remember("hers of a subject", "s")
    await remember("his of a subject", "s", user="bob")

    assert await list_texts(memory) == ["hers of a subject", "hers"]
    assert await list_texts(memory, user="bob") == ["his of a subject", "his"]
    assert await memory.recall("ana", "his", limit=5) == []
    assert await memory.forget("ana", "his") == []
    await memory.forget("ana", "subject")
    assert await list_texts(memory, user="bob") == ["his of a subject", "his"]


async def test_database_allows_one_current_memory_per_subject(remember: Keep, database: Database) -> None:
    await remember("blue", "colour")
    await remember("red", "colour")
    revive = sa.update(memories).values(superseded_at=None)

    with pytest.raises(IntegrityError):
        await database.run(partial(execute, statement=revive))


def execute(connection: sa.Connection, statement: sa.Update) -> None:
    connection.execute(statement)


async def test_characters_that_expand_to_many_words_cost_little_memory(
    memory: Memory, remember: Keep, database: Database
) -> None:
    for number in range(20):
        await remember(f"tea {number} {KILOMETRE * 1_900}")

    tracemalloc.start()
    found = await recall_texts(memory, "tea", limit=30)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(found) == 20
    assert peak < 5_000_000
    counting = "SELECT max(length(words) - length(replace(words, ' ', ''))) FROM memory_words"
    spaces = await database.run(lambda connection: connection.exec_driver_sql(counting).scalar_one())
    assert spaces == memory_index.WORDS_LIMIT - 1


async def test_searches_of_a_user_run_one_at_a_time(
    memory: Memory, remember: Keep, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remember("tea with milk")
    asked: list[int] = []
    begun, release = asyncio.Event(), asyncio.Event()
    search = database.search

    async def counted(work: Callable[[sa.Connection], object]) -> object:
        asked.append(len(asked))
        begun.set()
        await release.wait()
        return await search(work)

    monkeypatch.setattr(database, "search", counted)
    searches = [asyncio.create_task(recall_texts(memory, "tea")) for _ in range(3)]
    await begun.wait()
    await asyncio.sleep(0)
    assert asked == [0]
    release.set()
    assert await asyncio.gather(*searches) == [["tea with milk"]] * 3


async def test_search_for_similar_words_compares_few_words_outside_of_the_event_loop(
    memory: Memory, remember: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[tuple[int, bool]] = []

    def search(wanted: Sequence[str], known: Sequence[Remembered]) -> list[Remembered]:
        searched.append((len(wanted), threading.current_thread() is threading.main_thread()))
        return list(known)

    monkeypatch.setattr("torana.memory._resembling", search)
    await remember("I like tea")

    await memory.resembling("ana", "tea " * 5_000)
    await memory.resembling("ana", " ".join(map(str, range(5_000))))

    assert searched == [(1, False), (QUERY_LIMIT, False)]


async def test_queries_are_split_one_at_a_time_outside_of_the_event_loop(
    memory: Memory, remember: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = Counter[str](), Counter[str]()

    def split(query: str) -> list[str]:
        name = threading.current_thread().name
        running["now"] += 1
        most["once"] = max(most["once"], running["now"])
        most[name] += 1
        found = terms(query)
        running["now"] -= 1
        return found

    monkeypatch.setattr("torana.memory.terms", split)
    await remember("I like tea")

    await asyncio.gather(*(recall_texts(memory, "\ufdfa" * 20_000) for _ in range(4)))
    await memory.resembling("ana", "coffee")

    assert most.pop("once") == 1
    assert most.total() == 5
    assert threading.main_thread().name not in most


async def test_long_comparisons_of_all_users_run_one_at_a_time_and_delay_no_short_one(
    memory: Memory, remember: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = threading.Event(), list[int]()

    def search(fits: Sequence[Recalled], wanted: Sequence[str]) -> list[Recalled]:
        if len(fits) > 1:
            begun.append(len(fits))
            release.wait(60)
        return list(fits)

    monkeypatch.setattr("torana.memory._with_every_word", search)
    for user in ("ana", "ben"):
        for number in range(6):
            await remember(f"{number} tea {'x' * 1_900}", user=user)
    await remember("Bob likes tea", user="bob")
    searches = [asyncio.create_task(memory.find_named(user, "tea")) for user in ("ana", "ben")]
    await asyncio.to_thread(eventually, lambda: begun)

    assert len(await memory.find_named("bob", "tea")) == 1
    assert begun == [6]

    release.set()
    assert [len(found) for found in await asyncio.gather(*searches)] == [6, 6]
    assert begun == [6, 6]


async def test_error_of_the_check_stores_nothing(memory: Memory) -> None:
    async def refuse() -> None:
        raise Unauthorized

    with pytest.raises(Unauthorized):
        await memory.remember("ana", "I like tea", subject="", turn_id=None, check=refuse)

    assert await memory.list_memories("ana", limit=5) == []


async def test_cancelled_searches_of_a_user_occupy_one_thread(
    memory: Memory, remember: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = threading.Event(), list[str]()

    def search(fits: Sequence[Recalled], wanted: Sequence[str]) -> list[Recalled]:
        begun.append(threading.current_thread().name)
        release.wait(60)
        return list(fits)

    monkeypatch.setattr("torana.memory._with_every_word", search)
    await remember("I like tea")
    searches = [asyncio.create_task(memory.find_named("ana", "tea")) for _ in range(10)]
    await asyncio.to_thread(eventually, lambda: begun)

    searches[0].cancel()
    await remember("Bob likes coffee", user="bob")
    assert [item.memory.text for item in await memory.recall("bob", "coffee", limit=5)] == ["Bob likes coffee"]

    assert len(begun) == 1
    release.set()
    found = await asyncio.gather(*searches, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert all(isinstance(one, list) for one in found[1:])
