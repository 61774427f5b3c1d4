"""An embedding model finds memories by meaning; without its provider, words alone count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import pytest

from torana.errors import ModelFailed
from torana.memory import Memory
from torana.memory.bm25 import Recalled
from torana.memory.vectors import fuse_rankings, nearest, pack
from torana.messages import owner_of
from torana.store.engine.database import Database
from torana.store.rows import memories
from torana.store.rows.memories import Embedded, Remembered

#: The meanings that the test embedder knows, each with its words.
MEANINGS = ({"dog", "beagle", "hund"}, {"car", "vehicle"}, {"tea", "drink"})


class Dictionary:
    """An embedder of a few words that fails while ``fails`` is set."""

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


async def remember_all(memory: Memory, *texts: str, user: str = "ana") -> None:
    for text in texts:
        await memory.remember(user, text, subject="", turn_id=None)


async def recall_texts(memory: Memory, query: str, user: str = "ana") -> list[str]:
    return [fit.memory.text for fit in await memory.recall(user, query, limit=5)]


async def vectors_in(database: Database, by: str, user: str = "ana") -> int:
    return len(await database.run(lambda c: memories.list_embedded(c, owner_of(user), by=by)))


async def test_memory_without_common_words_is_found_by_meaning(memory: Memory) -> None:
    await remember_all(memory, "Our beagle was born in 2019", "The vehicle is on level 3")

    assert "Our beagle was born in 2019" in await recall_texts(memory, "how old is my dog")
    assert await recall_texts(memory, "dog") == ["Our beagle was born in 2019"]
    assert await recall_texts(memory, "piano") == []


async def test_match_by_words_and_meaning_ranks_first(memory: Memory) -> None:
    await remember_all(memory, "beagle", "dog house", "house dog food dog")

    assert (await recall_texts(memory, "dog food"))[0] == "house dog food dog"
    assert (await recall_texts(memory, "dog food"))[-1] == "beagle"


async def test_users_do_not_see_each_others_memories(memory: Memory) -> None:
    await remember_all(memory, "my beagle", user="ben")

    assert await recall_texts(memory, "dog") == []


async def test_words_alone_count_while_the_provider_fails(
    memory: Memory, embedder: Dictionary, database: Database
) -> None:
    await remember_all(memory, "my beagle")
    embedder.fails = True
    await remember_all(memory, "the dog next door")

    assert await recall_texts(memory, "dog") == ["the dog next door"]
    assert await vectors_in(database, "dictionary") == 1

    embedder.fails = False
    assert set(await recall_texts(memory, "dog")) == {"my beagle", "the dog next door"}
    assert await vectors_in(database, "dictionary") == 2


async def test_memory_is_embedded_once_per_model(
    memory: Memory, embedder: Dictionary, database: Database
) -> None:
    await remember_all(memory, "my beagle")
    await recall_texts(memory, "dog")
    await recall_texts(memory, "dog")
    assert embedder.asked == [("my beagle",), ("dog",), ("dog",)]

    other = Dictionary("other")

    assert await recall_texts(Memory(database=database, embedder=other), "dog") == ["my beagle"]
    assert other.asked == [("my beagle",), ("dog",)]


async def test_existing_memories_get_a_vector(database: Database, embedder: Dictionary) -> None:
    await remember_all(Memory(database=database), "my beagle")

    assert await recall_texts(Memory(database=database, embedder=embedder), "dog") == ["my beagle"]


async def test_superseded_memory_keeps_no_vector(memory: Memory, database: Database) -> None:
    await memory.remember("ana", "a dog", subject="pet", turn_id=None)
    await memory.remember("ana", "tea", subject="pet", turn_id=None)

    assert await recall_texts(memory, "beagle") == []
    assert await vectors_in(database, "dictionary") == 1


async def test_forget_matches_words_and_not_meaning(memory: Memory) -> None:
    await remember_all(memory, "my beagle")

    assert await memory.forget("ana", "dog") == []


async def test_embedder_is_not_called_without_memories(memory: Memory, embedder: Dictionary) -> None:
    assert await recall_texts(memory, "dog") == []
    assert embedder.asked == []


def stored_memory(name: str, at: datetime) -> Remembered:
    return Remembered(id=name, text=name, subject="", turn_id=None, created_at=at)


def test_similarity_is_the_angle_between_vectors(clock: Callable[[], datetime]) -> None:
    at = clock()
    vectors = {"same": [2.0, 2.0], "near": [0.1, 0.2], "right": [1.0, -1.0], "other": [1.0], "none": [0.0, 0.0]}
    known = [Embedded(memory=stored_memory(name, at), vector=pack(v)) for name, v in vectors.items()]

    fits = nearest([1.0, 1.0], known)

    assert [fit.memory.id for fit in fits] == ["same", "near"]
    assert [fit.score for fit in fits] == pytest.approx([1.0, 0.9487], abs=1e-4)


def test_fused_ranking_prefers_items_high_in_both(clock: Callable[[], datetime]) -> None:
    at = clock()
    a, b, c = (Recalled(memory=stored_memory(name, at), score=1.0, matched_terms=0) for name in "abc")

    whole = fuse_rankings([a, b], [c, b])

    assert [fit.memory.id for fit in whole] == ["b", "a", "c"]
    assert whole[0].score == pytest.approx(2 / 62)
    assert fuse_rankings() == fuse_rankings([], []) == []
