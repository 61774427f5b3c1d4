"""With an embedding model memories are found by their meaning too; without its provider as before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import pytest

from torana.errors import ModelFailed
from torana.memory import Memory
from torana.memory.nearness import fused, nearest, packed
from torana.memory.relevance import Recalled
from torana.messages import owner_of
from torana.store import memories
from torana.store.database import Database
from torana.store.memories import Embedded, Remembered

#: What texts are about, for an embedder that understands these words and no others.
MEANINGS = ({"dog", "beagle", "hund"}, {"car", "vehicle"}, {"tea", "drink"})


class Dictionary:
    """An embedder of a few words; it fails while it is told to."""

    def __init__(self, name: str = "dictionary") -> None:
        self.name = name
        self.fails = False
        self.asked: list[tuple[str, ...]] = []

    async def vectors(self, texts: Sequence[str], *, query: bool) -> Sequence[Sequence[float]]:
        if self.fails:
            raise ModelFailed("no connection")
        self.asked.append(tuple(texts))
        return [[float(bool(words & set(text.lower().split()))) for words in MEANINGS] for text in texts]


@pytest.fixture
def embedder() -> Dictionary:
    return Dictionary()


@pytest.fixture
def memory(database: Database, clock: Callable[[], datetime], embedder: Dictionary) -> Memory:
    return Memory(database=database, embedder=embedder, clock=clock)


async def keep(memory: Memory, *texts: str, user: str = "ana") -> None:
    for text in texts:
        await memory.remember(user, text, subject="", turn_id=None)


async def recalled(memory: Memory, query: str, user: str = "ana") -> list[str]:
    return [fit.memory.text for fit in await memory.recall(user, query, limit=5)]


async def vectors_in(database: Database, by: str, user: str = "ana") -> int:
    return len(await database.run(lambda c: memories.embedded(c, owner_of(user), by=by)))


async def test_what_shares_no_word_is_found_by_its_meaning(memory: Memory) -> None:
    await keep(memory, "Our beagle was born in 2019", "The vehicle is on level 3")

    assert "Our beagle was born in 2019" in await recalled(memory, "how old is my dog")
    assert await recalled(memory, "dog") == ["Our beagle was born in 2019"]
    assert await recalled(memory, "piano") == []


async def test_what_is_near_and_shares_words_comes_before_what_does_one_of_both(memory: Memory) -> None:
    await keep(memory, "beagle", "dog house", "house dog food dog")

    assert (await recalled(memory, "dog food"))[0] == "house dog food dog"
    assert (await recalled(memory, "dog food"))[-1] == "beagle"


async def test_users_are_apart(memory: Memory) -> None:
    await keep(memory, "my beagle", user="ben")

    assert await recalled(memory, "dog") == []


async def test_while_the_provider_fails_words_alone_count(
    memory: Memory, embedder: Dictionary, database: Database
) -> None:
    await keep(memory, "my beagle")
    embedder.fails = True
    await keep(memory, "the dog next door")

    assert await recalled(memory, "dog") == ["the dog next door"]
    assert await vectors_in(database, "dictionary") == 1

    embedder.fails = False
    assert set(await recalled(memory, "dog")) == {"my beagle", "the dog next door"}
    assert await vectors_in(database, "dictionary") == 2


async def test_a_memory_is_embedded_once_and_anew_for_another_model(
    memory: Memory, embedder: Dictionary, database: Database
) -> None:
    await keep(memory, "my beagle")
    await recalled(memory, "dog")
    await recalled(memory, "dog")
    assert embedder.asked == [("my beagle",), ("dog",), ("dog",)]

    other = Dictionary("other")

    assert await recalled(Memory(database=database, embedder=other), "dog") == ["my beagle"]
    assert other.asked == [("my beagle",), ("dog",)]


async def test_what_was_there_before_gets_its_vector(database: Database, embedder: Dictionary) -> None:
    await keep(Memory(database=database), "my beagle")

    assert await recalled(Memory(database=database, embedder=embedder), "dog") == ["my beagle"]


async def test_what_is_superseded_keeps_no_vector(memory: Memory, database: Database) -> None:
    await memory.remember("ana", "a dog", subject="pet", turn_id=None)
    await memory.remember("ana", "tea", subject="pet", turn_id=None)

    assert await recalled(memory, "beagle") == []
    assert await vectors_in(database, "dictionary") == 1


async def test_to_forget_takes_words_and_not_meaning(memory: Memory) -> None:
    await keep(memory, "my beagle")

    assert await memory.forget("ana", "dog") == []


async def test_without_memories_nothing_is_asked(memory: Memory, embedder: Dictionary) -> None:
    assert await recalled(memory, "dog") == []
    assert embedder.asked == []


def remembered(name: str, at: datetime) -> Remembered:
    return Remembered(id=name, text=name, subject="", turn_id=None, created_at=at)


def test_nearness_is_the_angle_whatever_the_length(clock: Callable[[], datetime]) -> None:
    at = clock()
    vectors = {"same": [2.0, 2.0], "near": [0.1, 0.2], "right": [1.0, -1.0], "other": [1.0], "none": [0.0, 0.0]}
    known = [Embedded(memory=remembered(name, at), vector=packed(v)) for name, v in vectors.items()]

    fits = nearest([1.0, 1.0], known)

    assert [fit.memory.id for fit in fits] == ["same", "near"]
    assert [fit.score for fit in fits] == pytest.approx([1.0, 0.9487], abs=1e-4)


def test_what_stands_high_in_both_orders_comes_first(clock: Callable[[], datetime]) -> None:
    at = clock()
    a, b, c = (Recalled(memory=remembered(name, at), score=1.0, held=0) for name in "abc")

    whole = fused([a, b], [c, b])

    assert [fit.memory.id for fit in whole] == ["b", "a", "c"]
    assert whole[0].score == pytest.approx(2 / 62)
    assert fused() == fused([], []) == []
