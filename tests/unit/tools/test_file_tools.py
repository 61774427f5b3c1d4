"""The file tools, as the model calls them."""

from __future__ import annotations

import pytest
from tests.unit.tools.test_memory_tools import context

from torana.store.workspaces import Workspaces
from torana.tools import ToolError
from torana.tools.files import FileTools


@pytest.fixture
def tools(workspaces: Workspaces) -> FileTools:
    return FileTools(workspaces=workspaces)


async def test_saving_listing_reading_deleting(tools: FileTools) -> None:
    assert await tools.list_files(context()) == "There are no files yet."
    assert await tools.write_file(context(), "shopping.txt", "milk") == "Saved shopping.txt (4 bytes)."
    assert await tools.write_file(context(), "shopping.txt", "é") == "Replaced shopping.txt (2 bytes)."
    assert (await tools.list_files(context())).startswith("- shopping.txt (2 bytes, ")
    assert await tools.read_file(context(), "shopping.txt") == "é"
    assert await tools.delete_file(context(), "shopping.txt") == "Deleted shopping.txt."
    with pytest.raises(ToolError, match=r"no file shopping\.txt"):
        await tools.read_file(context(), "shopping.txt")


async def test_nobody_has_no_files(tools: FileTools) -> None:
    nobody = context(None)
    for call in (
        tools.list_files(nobody),
        tools.read_file(nobody, "a"),
        tools.write_file(nobody, "a", "x"),
        tools.delete_file(nobody, "a"),
    ):
        with pytest.raises(ToolError, match="send a userId"):
            await call


async def test_in_a_room_nothing_private_is_read(tools: FileTools) -> None:
    room = context(may_recall=False)
    assert await tools.write_file(room, "a.txt", "x") == "Saved a.txt (1 bytes)."
    for call in (tools.list_files(room), tools.read_file(room, "a.txt")):
        with pytest.raises(ToolError, match="More than one person"):
            await call
    assert await tools.read_file(context(), "a.txt") == "x"


async def test_what_is_no_text(tools: FileTools, workspaces: Workspaces) -> None:
    workspaces.write("ana", "a", b"\xff\xfe")
    workspaces.write("ana", "b", b"a\0b")
    workspaces.write("ana", "c", b"")
    for name in ("a", "b"):
        with pytest.raises(ToolError, match="not a text"):
            await tools.read_file(context(), name)
    assert await tools.read_file(context(), "c") == "c is empty."


async def test_a_long_file_is_cut(
    tools: FileTools, workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torana.tools.files._SHOWN", 5)
    workspaces.write("ana", "a", "ééé".encode())
    assert (await tools.read_file(context(), "a")).splitlines() == [
        "éé",
        "[cut off here; only the first 5 bytes are read]",
    ]


async def test_a_bad_name_is_told(tools: FileTools) -> None:
    with pytest.raises(ToolError, match="is no name for a file"):
        await tools.write_file(context(), "../x", "x")
