"""The memory tools as the model calls them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from itertools import count

import pytest
from tests.unit.tools.contexts import context

from torana import memory as bounds
from torana.memory import Memory
from torana.store.engine.database import Database
from torana.tools import ToolError
from torana.tools.builtin.memory import MemoryTools


@pytest.fixture
def tools(database: Database, clock: Callable[[], datetime]) -> MemoryTools:
    return MemoryTools(memory=Memory(database=database, clock=clock))


async def test_memories_are_recalled_with_their_date(tools: MemoryTools) -> None:
    assert await tools.remember(context(), "  Ana likes tea ") == "Remembered: Ana likes tea"
    await tools.remember(context(), "Ana lives in Lisbon", "where Ana lives")

    assert await tools.recall(context(), "tea") == "- Ana likes tea (2026-03-02)"
    assert await tools.recall(context()) == "- Ana lives in Lisbon (2026-03-02)\n- Ana likes tea (2026-03-02)"


async def test_long_memory_is_cut_and_the_stored_text_returned(tools: MemoryTools) -> None:
    told = await tools.remember(context(), "x" * 3_000)

    assert told == "Remembered: " + "x" * bounds.TEXT_LIMIT


async def test_recall_returns_at_most_ten_memories(tools: MemoryTools) -> None:
    for number in range(12):
        await tools.remember(context(), f"note number {number}")

    assert len((await tools.recall(context())).splitlines()) == 10
    assert len((await tools.recall(context(), "note")).splitlines()) == 10


async def test_empty_results_are_reported(tools: MemoryTools) -> None:
    assert await tools.recall(context()) == "There are no memories yet."
    assert await tools.recall(context(), "tea") == "No memory matches that."
    assert await tools.forget(context(), "tea") == "No memory contains all of these words."


@pytest.mark.parametrize("query", ["favorite color", "favourit colour", "colours"])
async def test_recall_of_every_word_accepts_another_spelling(tools: MemoryTools, query: str) -> None:
    await tools.remember(context(), "my favourite colour is green")
    await tools.remember(context(), "my car is red")

    found = await tools.recall(context(), query, every_word=True)

    assert found == "- my favourite colour is green (2026-03-02)"


async def test_similar_words_do_not_match_another_persons_name(tools: MemoryTools) -> None:
    await tools.remember(context(), "my sister's name is Ana", "my sister's name")

    assert await tools.recall(context(), "name", every_word=True) == "No memory matches that."


async def test_every_word_does_not_match_another_persons_name(tools: MemoryTools) -> None:
    await tools.remember(context(), "my sister is called Ana", "my sister's name")

    assert await tools.recall(context(), "name") == "- my sister is called Ana (2026-03-02)"
    assert await tools.recall(context(), "name", every_word=True) == "No memory matches that."


async def test_forget_returns_the_forgotten_memories(tools: MemoryTools) -> None:
    await tools.remember(context(), "Ana likes tea")

    assert await tools.forget(context(), "tea") == "Forgotten: Ana likes tea"
    assert await tools.recall(context()) == "There are no memories yet."


async def test_partial_matches_are_listed_and_kept(tools: MemoryTools) -> None:
    await tools.remember(context(), "my job is baker")
    near = "No memory contains all of these words. Similar memories:\n- my job is baker (2026-03-02)"

    assert await tools.forget(context(), "brother's job") == near
    assert await tools.correct(context(), "brother's job", "my job is cook") == near
    assert await tools.recall(context()) == "- my job is baker (2026-03-02)"
    unnamed = await tools.forget(context(may_recall=False), "brother's job")
    assert unnamed == "No memory contains all of these words."


async def test_memory_is_corrected_by_words_that_identify_it(tools: MemoryTools) -> None:
    await tools.remember(context(), "Ana likes green tea", "tea")
    await tools.remember(context(), "Ana has a green hat")

    assert await tools.correct(context(), "tea", " Ana likes black tea ") == "Remembered: Ana likes black tea"
    assert await tools.recall(context(), "tea") == "- Ana likes black tea (2026-03-02)"
    assert await tools.correct(context(), "piano", "x") == ("No memory contains all of these words.")


async def test_ambiguous_correction_is_refused(tools: MemoryTools) -> None:
    await tools.remember(context(), "Ana likes green tea")
    await tools.remember(context(), "Ana has a green hat")

    with pytest.raises(ToolError, match="2 memories contain these words"):
        await tools.correct(context(), "green", "Ana has a red hat")
    with pytest.raises(ToolError, match="The new text is empty"):
        await tools.correct(context(), "hat", " ")


async def test_correction_in_a_shared_session_hides_the_old_text(tools: MemoryTools) -> None:
    await tools.remember(context(), "Ana likes green tea")

    told = await tools.correct(context(may_recall=False), "tea", "Ana likes coffee")

    assert told == "Remembered: Ana likes coffee"


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_empty_memory_is_refused(tools: MemoryTools, text: str) -> None:
    with pytest.raises(ToolError, match="The text to remember is empty"):
        await tools.remember(context(), text)


async def test_full_memory_is_reported(
    database: Database, monkeypatch: pytest.MonkeyPatch, tools: MemoryTools
) -> None:
    monkeypatch.setattr(bounds, "COUNT_LIMIT", 3)
    numbers = count()
    for _ in range(3):
        await tools.remember(context(), f"note {next(numbers)}")

    with pytest.raises(ToolError, match="forget some first"):
        await tools.remember(context(), f"note {next(numbers)}")


async def test_memory_tools_need_a_user(tools: MemoryTools) -> None:
    nobody = context(None)
    calls: list[Awaitable[str]] = [
        tools.remember(nobody, "x"),
        tools.recall(nobody),
        tools.correct(nobody, "x", "y"),
        tools.forget(nobody, "x"),
    ]
    for call in calls:
        with pytest.raises(ToolError, match="send a userId"):
            await call


async def test_shared_session_can_write_and_forget_but_not_read_memories(tools: MemoryTools) -> None:
    room = context(may_recall=False)
    await tools.remember(room, "Ana likes tea")

    with pytest.raises(ToolError, match="private memories are not read here"):
        await tools.recall(room)
    assert await tools.recall(context()) == "- Ana likes tea (2026-03-02)"
    assert await tools.forget(room, "tea") == "Forgotten: 1 of the user's memories."


async def test_users_do_not_see_each_others_memories(tools: MemoryTools) -> None:
    await tools.remember(context("ana"), "Ana likes tea")

    assert await tools.recall(context("bob"), "tea") == "No memory matches that."
    assert await tools.forget(context("bob"), "tea") == "No memory contains all of these words."
