"""Attachments: how the model sees them, and where and for how long they are stored."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    TextContent,
    ToolCallPart,
    UserContent,
    UserPromptPart,
)
from sqlalchemy import event
from tests.assembling import erasure_over
from tests.unit.turns.conftest import Gateway

from torana.agent import TurnAgent
from torana.errors import BudgetSpent, ModelFailed
from torana.limits.budgets import Budgets, Estimate
from torana.limits.policies import Limits, parse_limit
from torana.limits.prices import Prices
from torana.messages import FILE_TEXT_LIMIT, File, FileKind, Inbound, Turn, utc_now
from torana.store.engine import tables
from torana.store.rows.audit import Act
from torana.testing import ScriptedModel
from torana.tools import ToolContext
from torana.turns import Turns

Message = Callable[..., Inbound]
Boot = Callable[..., Awaitable[Gateway]]
Say = Callable[..., Awaitable[Turn]]

#: Bytes that occur nowhere else, plain and in base64.
MARK = b"zanzibarisch-" * 3
PNG = b"\x89PNG\r\n\x1a\n" + MARK
CAT = File(name="cat.png", media_type="image/png", body=PNG)
DOC = File(name="doc.pdf", media_type="application/pdf", body=b"%PDF-" + MARK)
NOTES = File(name="notes.txt", media_type="text/plain", body=b"Buy " + MARK)
FILES = (CAT, DOC, NOTES)

ACT = Act(principal="operator", source="test", at=utc_now())


def prompts(messages: Sequence[ModelMessage]) -> list[list[str | bytes]]:
    """Return the content of each user prompt."""
    parts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    return [
        [part.content] if isinstance(part.content, str) else [_plain(item) for item in part.content]
        for part in parts
    ]


def _plain(item: UserContent) -> str | bytes:
    match item:
        case BinaryContent():
            return item.data
        case TextContent():
            return item.content
        case _:
            return str(item)


def model_input(content: str, *files: str | bytes) -> list[str | bytes]:
    """Return a message with its files as the model receives it."""
    return [content, "Attachments of this message:", *files]


async def bodies(where: Gateway, table: sa.Table) -> list[bytes]:
    return await where.database.run(lambda c: list(c.execute(sa.select(table.c.body)).scalars()))


def holds(haystack: bytes) -> bool:
    """Return whether the data contains the files, plain or in base64 at any of its three offsets."""
    forms = [base64.b64encode(MARK[skip : skip + 30]) for skip in range(3)]
    return any(form in haystack for form in (MARK, *forms))


@pytest.fixture
def stop() -> asyncio.Event:
    """Set when the tool ``wait`` is called; the tool never returns."""
    return asyncio.Event()


@pytest.fixture
def toolset(stop: asyncio.Event) -> FunctionToolset[ToolContext]:
    tools = FunctionToolset[ToolContext]()

    async def look() -> str:
        """Look."""
        return "seen"

    async def wait() -> str:
        """Wait."""
        stop.set()
        await asyncio.Event().wait()
        return "never"

    for function in (look, wait):
        tools.add_function(function, metadata={"idempotent": True, "permission": "allow"})
    return tools


def call(tool: str) -> ToolCallPart:
    return ToolCallPart(tool, {}, tool_call_id=tool)


async def test_model_sees_files_in_their_turn_and_only_names_later(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel("A cat.", "I no longer see it."))
    content = "what is it?\n[image: cat.png]"
    turn = await gateway.turns.reader.wait_for_end(
        await gateway.turns.accept(message(content, files=FILES, user="ana"))
    )
    await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("and now?", user="ana")))

    first, second = (prompts(asked.messages) for asked in gateway.model.requests)
    text = f"notes.txt:\n{NOTES.body.decode()}\n[end of notes.txt]"
    assert first == [model_input(content, "cat.png:", PNG, "doc.pdf:", DOC.body, text)]
    assert second == [[content], ["and now?"]]
    assert (turn.state, turn.files) == ("completed", 3)
    assert not any(map(holds, await bodies(gateway, tables.history)))
    assert await bodies(gateway, tables.attachments) == []


@pytest.mark.parametrize(
    ("takes", "seen"),
    [
        ([], None),
        (["text"], [f"notes.txt:\n{NOTES.body.decode()}\n[end of notes.txt]"]),
        (["image"], ["cat.png:", PNG]),
    ],
)
async def test_unsupported_file_kinds_are_not_sent_to_the_model(
    open_turns: Callable[..., Turns],
    open_agent: Callable[..., TurnAgent],
    say: Say,
    message: Message,
    takes: list[FileKind],
    seen: list[str | bytes] | None,
) -> None:
    model = ScriptedModel("ok")
    turns = open_turns(agent=open_agent(model, takes=takes))
    await turns.reader.wait_for_end(await turns.accept(message("look", files=FILES)))
    assert prompts(model.requests[0].messages) == [["look"] if seen is None else model_input("look", *seen)]


async def test_long_text_files_are_cut_to_a_total_limit(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel("ok"))
    long = File(name="long", media_type="text/plain", body=("é" * (FILE_TEXT_LIMIT - 5)).encode())
    other = File(name="", media_type="text/plain", body=b"0123456789" * 100_000)
    none = File(name="none", media_type="text/plain", body=b"left out")
    await gateway.turns.reader.wait_for_end(
        await gateway.turns.accept(message("read", files=[long, other, none]))
    )

    ((_, _, first, second, third),) = prompts(gateway.model.requests[0].messages)
    assert first == f"long:\n{long.body.decode()}\n[end of long]"
    name = "a file without a name"
    assert second == f"{name} (its first 5 of 1,000,000 characters):\n01234\n[end of {name}]"
    assert third == "none (its first 0 of 8 characters):\n\n[end of none]"


async def test_files_are_sent_again_after_a_crash_and_never_journaled(
    boot: Boot, toolset: FunctionToolset[ToolContext], stop: asyncio.Event, message: Message
) -> None:
    before = await boot(ScriptedModel([call("look")], [call("wait")]), toolset)
    turn = await before.turns.accept(message("what is it?", files=[CAT, NOTES]))
    await stop.wait()
    steps = await bodies(before, tables.steps)
    assert len(steps) == 2
    assert not any(map(holds, steps))
    await before.crash()
    stop.clear()

    after = await boot(ScriptedModel([call("look")], "A cat."), FunctionToolset[ToolContext]())
    ended = await after.turns.reader.wait_for_end(turn)

    assert (ended.state, ended.reply) == ("completed", "A cat.")
    undisturbed = prompts(before.model.requests[-1].messages)
    assert [prompts(asked.messages) for asked in after.model.requests] == [undisturbed] * 2
    assert PNG in undisturbed[0]
    (kept,) = await bodies(after, tables.history)
    assert not holds(kept)
    assert await bodies(after, tables.attachments) == []


async def test_files_are_sent_again_after_a_crash_before_the_first_step(boot: Boot, message: Message) -> None:
    before = await boot(ScriptedModel([asyncio.Event()]))
    turn = await before.turns.accept(message("look", files=[CAT]))
    await before.until_asked(1)
    await before.crash()

    after = await boot(ScriptedModel("A cat."))

    assert (await after.turns.reader.wait_for_end(turn)).reply == "A cat."
    assert prompts(after.model.requests[0].messages) == [model_input("look", "cat.png:", PNG)]


async def test_files_of_a_steering_message_survive_a_crash(
    boot: Boot, toolset: FunctionToolset[ToolContext], stop: asyncio.Event, message: Message
) -> None:
    gate = asyncio.Event()
    before = await boot(ScriptedModel([gate, call("look")], [call("wait")]), toolset)
    turn = await before.turns.accept(message("look", files=[NOTES]))
    await before.until_asked(1)
    steer = await before.turns.accept(message("rather at this", files=[CAT], on_busy="steer"))
    gate.set()
    await stop.wait()
    seen = prompts(before.model.requests[1].messages)
    assert seen[1] == model_input("rather at this", "cat.png:", PNG)
    await before.crash()

    after = await boot(ScriptedModel("done"), FunctionToolset[ToolContext]())
    await after.turns.reader.wait_for_end(turn)

    assert prompts(after.model.requests[0].messages) == seen
    assert (await after.turns.reader.get("gateway", steer.id)).merged_into == turn.id
    assert await bodies(after, tables.attachments) == []
    assert not any(map(holds, await bodies(after, tables.history)))


async def test_failed_turn_keeps_its_files_for_a_retry(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel([ModelFailed("no")], "A cat."))
    turn = await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("look", files=[CAT])))
    assert turn.state == "failed"
    assert await bodies(gateway, tables.attachments) == [PNG]

    again = await gateway.turns.reader.wait_for_end(await gateway.turns.retry("gateway", turn.id))

    assert again.reply == "A cat."
    assert prompts(gateway.model.requests[1].messages) == [model_input("look", "cat.png:", PNG)]
    assert await bodies(gateway, tables.attachments) == []


@pytest.mark.parametrize("waits", [True, False])
async def test_cancelled_turn_keeps_no_files(boot: Boot, message: Message, waits: bool) -> None:
    gateway = await boot(ScriptedModel([asyncio.Event()]))
    if waits:
        await gateway.turns.accept(message("first"))
    turn = await gateway.turns.accept(message("look", files=[CAT]))
    await gateway.until_asked(1)
    assert await bodies(gateway, tables.attachments) == [PNG]

    await gateway.turns.cancel("gateway", turn.id)

    assert await bodies(gateway, tables.attachments) == []


async def test_files_count_towards_the_budget_reservation(
    open_turns: Callable[..., Turns], message: Message
) -> None:
    limits = Limits(per_user=[parse_limit("3000 tokens/day")])
    budgets = Budgets(limits=limits, prices=Prices(), estimate=Estimate(output=100, overhead=100))
    turns = open_turns(ScriptedModel("one", "two"), budgets=budgets)
    big = File(name="big", media_type="application/pdf", body=b"%PDF-" + bytes(40_000))

    with pytest.raises(BudgetSpent):
        await turns.accept(message("look", user="ana", files=[CAT, CAT]))
    with pytest.raises(BudgetSpent):
        await turns.accept(message("look", user="ana", files=[big]))
    await turns.accept(message("look", user="ana", files=[CAT, NOTES]))
    await turns.accept(message("look", user="ben", files=[DOC]))


async def test_message_without_files_runs_no_attachment_statement(boot: Boot, message: Message) -> None:
    gateway = await boot(ScriptedModel("ok"))
    statements: list[str] = []

    def listen(connection: sa.Connection) -> None:
        def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            statements.append(statement)

        event.listen(connection.engine, "before_cursor_execute", note)

    await gateway.database.run(listen)
    await gateway.turns.reader.wait_for_end(await gateway.turns.accept(message("hello")))

    assert statements
    assert [statement for statement in statements if "attachments" in statement] == []


async def test_erasure_removes_every_byte_of_the_files(boot: Boot, message: Message, path: Path) -> None:
    gateway = await boot(ScriptedModel([ModelFailed("no")], "ok", [asyncio.Event()]))
    for content in ("failed", "completed"):
        said = message(content, user="ana", files=FILES)
        await gateway.turns.reader.wait_for_end(await gateway.turns.accept(said))
    bens = File(name="bens", media_type="text/plain", body=b"ben's own")
    await gateway.turns.accept(message("stays", user="ben", channel="elsewhere", files=[bens]))
    assert sorted(await bodies(gateway, tables.attachments)) == sorted([*(f.body for f in FILES), bens.body])

    erasure = erasure_over(gateway.database, gateway.turns, data_dir=path.parent)
    receipt = await erasure.erase("ana", ACT)

    assert receipt.counts.turns == 2
    left = b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())
    assert not holds(left)
    assert b"ben's own" in left
