"""Lower bounds, as measured, on how often the right memory is among the first five results.

The table lists memories and the questions asked later. All memories of a language are stored together.
``docs/explanation/memory.md`` states the same figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from torana.memory import Memory
from torana.store.engine.database import Database

TABLE = Path(__file__).with_name("recall_pairs.txt")

#: The number of questions whose answer is found.
FLOORS = {"en": 12, "de": 11, "zh": 13, "ja": 13, "ar": 12, "emoji": 4}


@dataclass(frozen=True, slots=True)
class Row:
    """A memory and the question that it answers; a memory without a question is a distractor."""

    language: str
    question: str
    memory: str


def read_table() -> list[Row]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    rows = [line.partition(" | ") for line in lines if line and not line.startswith("#")]
    table: list[Row] = []
    for head, _, rest in rows:
        if head.endswith(" -"):
            table.append(Row(head.removesuffix(" -"), "", rest))
        else:
            question, _, memory = rest.partition(" | ")
            table.append(Row(head, question, memory))
    return table


ROWS = read_table()


def of(language: str) -> list[Row]:
    return [row for row in ROWS if row.language == language]


@pytest.fixture
def memory(database: Database, clock: Callable[[], datetime]) -> Memory:
    return Memory(database=database, clock=clock)


def test_table_has_the_documented_size() -> None:
    assert sum(bool(row.question) for row in ROWS) == 69
    for language in FLOORS.keys() - {"emoji"}:
        assert sum(bool(row.question) for row in of(language)) == 13
        assert sum(not row.question for row in of(language)) >= 30


@pytest.mark.parametrize("language", FLOORS)
async def test_answering_memory_is_among_the_first_five(memory: Memory, language: str) -> None:
    rows = of(language)
    for row in rows:
        await memory.remember("ana", row.memory, subject="", turn_id=None)

    lost: list[str] = []
    for row in rows:
        found = await memory.recall("ana", row.question, limit=5)
        if row.question and row.memory not in [fit.memory.text for fit in found]:
            lost.append(row.question)

    assert sum(bool(row.question) for row in rows) - len(lost) >= FLOORS[language], lost
