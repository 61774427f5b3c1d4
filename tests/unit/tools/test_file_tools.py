"""The file tools as the model calls them."""

from __future__ import annotations

import pytest
from tests.unit.tools.test_memory_tools import context

from torana.store.workspaces import Workspaces
from torana.tools import ToolError
from torana.tools.builtin.files import FileTools


@pytest.fixture
def tools(workspaces: Workspaces) -> FileTools:
    return FileTools(workspaces=workspaces)


async def test_files_are_saved_listed_read_and_deleted(tools: FileTools) -> None:
    assert await tools.list_files(context()) == "There are no files yet."
    assert await tools.write_file(context(), "shopping.txt", "milk") == "Saved shopping.txt (4 bytes)."
    assert await tools.write_file(context(), "shopping.txt", "é") == "Replaced shopping.txt (2 bytes)."
    assert (await tools.list_files(context())).startswith("- shopping.txt (2 bytes, ")
    assert await tools.read_file(context(), "shopping.txt") == "é"
    assert await tools.delete_file(context(), "shopping.txt") == "Deleted shopping.txt."
    with pytest.raises(ToolError, match=r"no file shopping\.txt"):
        await tools.read_file(context(), "shopping.txt")


async def test_file_tools_need_a_user(tools: FileTools) -> None:
    nobody = context(None)
    for call in (
        tools.list_files(nobody),
        tools.read_file(nobody, "a"),
        tools.write_file(nobody, "a", "x"),
        tools.delete_file(nobody, "a"),
    ):
        with pytest.raises(ToolError, match="send a userId"):
            await call


async def test_files_are_not_read_in_a_shared_session(tools: FileTools) -> None:
    room = context(may_recall=False)
    assert await tools.write_file(room, "a.txt", "x") == "Saved a.txt (1 bytes)."
    for call in (tools.list_files(room), tools.read_file(room, "a.txt")):
        with pytest.raises(ToolError, match="The channel has several users"):
            await call
    assert await tools.read_file(context(), "a.txt") == "x"


async def test_binary_file_is_refused_and_empty_file_is_named(tools: FileTools, workspaces: Workspaces) -> None:
    await workspaces.write("ana", "a", b"\xff\xfe")
    await workspaces.write("ana", "b", b"a\0b")
    await workspaces.write("ana", "c", b"")
    for name, kind in (("a", "UTF-8 text"), ("b", "text")):
        with pytest.raises(ToolError, match=f"{name} is not {kind}"):
            await tools.read_file(context(), name)
    assert await tools.read_file(context(), "c") == "c is empty."


async def test_long_file_is_cut(
    tools: FileTools, workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torana.tools.builtin.files._SHOWN", 5)
    await workspaces.write("ana", "a", "ééé".encode())
    assert (await tools.read_file(context(), "a")).splitlines() == [
        "éé",
        "[truncated; only the first 5 bytes are read]",
    ]


async def test_invalid_file_name_is_refused(tools: FileTools) -> None:
    with pytest.raises(ToolError, match="is not a valid file name"):
        await tools.write_file(context(), "../x", "x")
