"""The list tools as the model calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.unit.tools.test_memory_tools import context

from torana.store.workspaces import Workspaces
from torana.tools import ToolError
from torana.tools.builtin import lists
from torana.tools.builtin.lists import ListTools
from torana.tools.computing import Computing


@pytest.fixture
def tools(workspaces: Workspaces, computing: Computing) -> ListTools:
    return ListTools(workspaces=workspaces, computing=computing)


async def test_entries_are_added_shown_and_removed(tools: ListTools) -> None:
    assert await tools.add_to_list(context(), "shopping", ["milk", " two  eggs "]) == (
        "Added to your shopping list: milk, two eggs."
    )
    assert await tools.show_list(context(), "shopping") == (
        "Your shopping list has 2 entries:\n- milk\n- two eggs"
    )
    assert await tools.remove_from_list(context(), "shopping", ["Milk"]) == (
        "Removed from your shopping list: milk. It has 1 entry left."
    )
    assert await tools.show_list(context(), "shopping") == "Your shopping list has 1 entry:\n- two eggs"


async def test_repeated_call_adds_an_entry_once(tools: ListTools) -> None:
    await tools.add_to_list(context(), "shopping", ["milk"])

    assert await tools.add_to_list(context(), "shopping", ["Milk", "tea", "tea"]) == (
        "Added to your shopping list: tea. Already on your shopping list: Milk."
    )


async def test_list_is_a_file_of_its_user(tools: ListTools, workspaces: Workspaces) -> None:
    await tools.add_to_list(context("ana"), "Shopping List", ["milk"])

    assert await workspaces.read("ana", "lists/shopping.txt", limit=100) == b"milk\n"
    assert await tools.show_list(context("ben"), "shopping") == "You have no shopping list yet."


async def test_misspelt_names_match_the_stored_list_and_entry(tools: ListTools) -> None:
    await tools.add_to_list(context(), "shopping", ["bananas"])
    await tools.add_to_list(context(), "shoping", ["milk"])

    assert await tools.show_list(context()) == "Your lists:\n- shopping (2 entries)"
    assert "Removed from your shopping list: bananas." in (
        await tools.remove_from_list(context(), "shopping", ["banana"])
    )


async def test_missing_list_and_entry_are_named(tools: ListTools) -> None:
    assert await tools.show_list(context()) == "You have no lists yet."
    await tools.add_to_list(context(), "packing", [])

    assert await tools.show_list(context(), "packing") == "Your packing list is empty."
    assert await tools.show_list(context(), "todo") == "You have no todo list yet. Your lists are: packing."
    assert await tools.remove_from_list(context(), "todo", ["x"]) == (
        "You have no todo list yet. Your lists are: packing."
    )
    assert await tools.remove_from_list(context(), "packing", ["socks"]) == "Not on your packing list: socks."


async def test_whole_list_is_deleted(tools: ListTools) -> None:
    await tools.add_to_list(context(), "packing", ["socks"])

    assert (
        await tools.remove_from_list(context(), "packing", [], everything=True) == "Deleted your packing list."
    )
    assert await tools.show_list(context()) == "You have no lists yet."


async def test_concurrent_additions_are_all_kept(tools: ListTools) -> None:
    entries = [f"thing number {number * 7919}" for number in range(20)]

    await asyncio.gather(*(tools.add_to_list(context(), "todo", [entry]) for entry in entries))

    shown = await tools.show_list(context(), "todo")
    assert sorted(shown.splitlines()[1:]) == sorted(f"- {entry}" for entry in entries)


async def test_similar_entries_are_looked_up_for_some_entries_of_a_call(tools: ListTools) -> None:
    stored = [f"entry number {number * 7919}" for number in range(30)]
    await tools.add_to_list(context(), "todo", stored)

    similar = [entry.replace("entry", "entri") for entry in stored]
    assert "It has 20 entries left." in await tools.remove_from_list(context(), "todo", similar)
    assert "It has 0 entries left." in await tools.remove_from_list(context(), "todo", stored[10:])


async def test_additions_of_two_replicas_are_all_kept(
    tools: ListTools, workspaces: Workspaces, computing: Computing
) -> None:
    other = ListTools(workspaces=workspaces, computing=computing)
    entries = [f"thing number {number * 7919}" for number in range(20)]

    await asyncio.gather(
        *(one.add_to_list(context(), "todo", [entry]) for one in (tools, other) for entry in entries)
    )

    shown = await tools.show_list(context(), "todo")
    assert sorted(shown.splitlines()[1:]) == sorted(f"- {entry}" for entry in entries)


async def test_lists_need_a_channel_with_one_user(tools: ListTools) -> None:
    with pytest.raises(ToolError, match="send a userId"):
        await tools.add_to_list(context(None), "shopping", ["milk"])
    with pytest.raises(ToolError, match="The channel has several users"):
        await tools.show_list(context(may_recall=False), "shopping")


@pytest.mark.parametrize("name", ["", " ", "x" * (lists.NAME_LIMIT + 1), "a/b", "../a", "list:x"])
async def test_invalid_name_is_refused(tools: ListTools, name: str) -> None:
    with pytest.raises(ToolError):
        await tools.add_to_list(context(), name, ["milk"])


async def test_calls_of_a_user_wait_for_one_another_and_delay_no_other_user(
    tools: ListTools, computing: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = asyncio.Event(), asyncio.Event()
    compared: list[str] = []
    run = computing.run

    async def slow(function: Callable[..., Any], arguments: Mapping[str, Any], *, user: str) -> Any:
        compared.extend(arguments["wanted"])
        if "tödo" in arguments["wanted"]:
            begun.set()
            await release.wait()
        return await run(function, arguments, user=user)

    await tools.add_to_list(context("ana"), "todo", ["milk"])
    await tools.add_to_list(context("ben"), "plan", ["rest"])
    monkeypatch.setattr(computing, "run", slow)
    calls = [asyncio.create_task(tools.add_to_list(context("ana"), "tödo", ["tea"])) for _ in range(10)]
    await begun.wait()

    calls[1].cancel()
    assert "Removed" in await tools.remove_from_list(context("ben"), "plan", ["rests"])

    assert compared == ["tödo", "rests"]
    release.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert [found[0], *found[2:]] == ["Added to your tödo list: tea.", *["Already on your tödo list: tea."] * 8]


@pytest.mark.parametrize("body", ["x\n" * 501, "x" * 201])
async def test_file_that_is_too_long_for_a_list_is_not_changed(
    tools: ListTools, workspaces: Workspaces, body: str
) -> None:
    await workspaces.write("ana", "lists/todo.txt", body.encode())

    for call in (
        tools.add_to_list(context(), "todo", ["x"]),
        tools.remove_from_list(context(), "todo", ["x"]),
        tools.show_list(context(), "todo"),
    ):
        with pytest.raises(ToolError, match=r"lists/todo\.txt is too long for a list"):
            await call
    assert await tools.show_list(context()) == "Your lists:\n- todo (too long)"
    assert await workspaces.read("ana", "lists/todo.txt", limit=1_000_000) == body.encode()


async def test_bounds_of_a_list_are_checked(tools: ListTools) -> None:
    for change in (tools.add_to_list, tools.remove_from_list):
        with pytest.raises(ToolError, match="at most 500 entries; make several calls"):
            await change(context(), "todo", ["x"] * 501)
    with pytest.raises(ToolError, match="1 to 200 characters"):
        await tools.add_to_list(context(), "todo", ["x" * 201])
    await tools.add_to_list(context(), "todo", [str(number) for number in range(500)])
    with pytest.raises(ToolError, match="at most 500 entries; remove some first"):
        await tools.add_to_list(context(), "todo", ["one more"])
