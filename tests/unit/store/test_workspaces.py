"""Workspaces store a user's files in rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torana.store.engine.database import Database
from torana.store.workspaces import FileChanged, FileFault, Workspaces

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def _names(workspaces: Workspaces, user: str = "ana") -> list[str]:
    return [entry.name for entry in await workspaces.list_files(user)]


async def _read(workspaces: Workspaces, name: str, user: str = "ana") -> bytes:
    return await workspaces.read(user, name, limit=10_000)


async def test_files_are_stored_and_read(workspaces: Workspaces, open_database: Callable[[], Database]) -> None:
    assert not await workspaces.write("ana", "notes.txt", b"milk")
    assert not await workspaces.write("ana", "trips/oslo/plan.md", b"ferry")

    again = Workspaces(database=open_database(), max_bytes=10_000, max_files=5, clock=lambda: NOON)
    assert await again.write("ana", "notes.txt", b"milk, eggs")
    assert await _names(again) == ["notes.txt", "trips/oslo/plan.md"]
    assert [entry.size for entry in await again.list_files("ana")] == [10, 5]
    assert (await again.list_files("ana"))[0].changed_at == NOON
    assert await _read(again, "notes.txt") == b"milk, eggs"
    assert await _read(again, "trips/oslo/plan.md") == b"ferry"
    assert await again.read("ana", "notes.txt", limit=3) == b"mil"


async def test_users_have_separate_files(workspaces: Workspaces) -> None:
    await workspaces.write("ana", "notes.txt", b"ana's")

    for user in ("ben", "ANA", "../ana", "ana "):
        assert await _names(workspaces, user) == []
        with pytest.raises(FileFault, match=r"no file notes\.txt"):
            await _read(workspaces, "notes.txt", user)
        with pytest.raises(FileFault, match=r"no file notes\.txt"):
            await workspaces.delete(user, "notes.txt")
    assert await _read(workspaces, "notes.txt") == b"ana's"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/",
        "/etc/passwd",
        "../torana.db",
        "a/../../torana.db",
        "a/./b",
        "a//b",
        "a/",
        ".hidden",
        "-rf",
        " a",
        "a ",
        "a.",
        "a\0b",
        "a\nb",
        "a\tb",
        "a\\b",
        "..\\b",
        "c:b",
        "a*",
        "~/a",
        "$HOME",
        "a\u202etxt.exe",
        "a\u200bb",
        "a\u00adb",
        "\uff0e\uff0e\uff0fa",
        "\u2025/a",
        "a\u2215b",
        "a\u2044b",
        "\u2024\u2024/a",
        "\ud800",
        "\U000e0041",
        "x" * 201,
        "é" * 101,
        "/".join("abcdefghi"),
    ],
)
async def test_invalid_names_are_refused(workspaces: Workspaces, name: str) -> None:
    with pytest.raises(FileFault, match="name"):
        await workspaces.write("ana", name, b"x")
    with pytest.raises(FileFault, match="name"):
        await workspaces.replace("ana", name, b"x", before=None)
    with pytest.raises(FileFault, match="name"):
        await _read(workspaces, name)
    with pytest.raises(FileFault, match="name"):
        await workspaces.delete("ana", name)
    assert await _names(workspaces) == []


@pytest.mark.parametrize(
    "name", ["a", "Einkäufe, März.txt", "買い物.md", "हिन्दी.txt", "2026-03-02 (draft) +1@x=y&z_'.txt"]
)
async def test_ordinary_names_are_accepted(workspaces: Workspaces, name: str) -> None:
    await workspaces.write("ana", name, b"x")
    assert await _names(workspaces) == [name]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Notes.txt", "notes.TXT"),
        ("Straße.txt", "STRASSE.txt"),
        ("caf\u00e9.txt", "cafe\u0301.txt"),
        ("ﬁle.txt", "file.txt"),
        ("notes.txt", "ｎｏｔｅｓ.txt"),
        ("Trips/a.txt", "trips/A.txt"),
    ],
)
async def test_equivalent_names_refer_to_one_file(workspaces: Workspaces, first: str, second: str) -> None:
    await workspaces.write("ana", first, b"old")
    assert await _read(workspaces, second) == b"old"
    assert await workspaces.write("ana", second, b"new")
    assert len(await _names(workspaces)) == 1
    assert await _read(workspaces, first) == b"new"


async def test_folders_keep_their_spelling(workspaces: Workspaces) -> None:
    for name in ("Trips/Oslo/a.txt", "trips/OSLO/b.txt", "TRIPS/c.txt", "trips and more/d.txt"):
        await workspaces.write("ana", name, b"x")

    assert await _names(workspaces) == [
        "Trips/Oslo/a.txt",
        "Trips/Oslo/b.txt",
        "Trips/c.txt",
        "trips and more/d.txt",
    ]


async def test_name_is_either_a_file_or_a_folder(workspaces: Workspaces) -> None:
    await workspaces.write("ana", "a/b.txt", b"x")

    with pytest.raises(FileFault, match="A is a folder"):
        await workspaces.write("ana", "A", b"x")
    with pytest.raises(FileFault, match=r"a/b\.txt is a file"):
        await workspaces.write("ana", "a/B.txt/c", b"x")
    for name in ("a", "a/b.txt/c"):
        with pytest.raises(FileFault, match="no file"):
            await _read(workspaces, name)
        with pytest.raises(FileFault, match="no file"):
            await workspaces.delete("ana", name)
    assert await _names(workspaces) == ["a/b.txt"]


async def test_byte_quota_is_enforced(workspaces: Workspaces) -> None:
    await workspaces.write("ana", "a.txt", b"x" * 9_000)
    with pytest.raises(FileFault, match="1,000 are free"):
        await workspaces.write("ana", "b.txt", b"x" * 1_001)
    await workspaces.write("ana", "A.txt", b"x" * 10_000)  # replaces the old content
    with pytest.raises(FileFault, match="10,000 are free"):
        await workspaces.write("ana", "a.txt", b"x" * 10_001)
    assert len(await _read(workspaces, "a.txt")) == 10_000
    await workspaces.write("ben", "a.txt", b"x" * 10_000)


async def test_file_quota_is_enforced(workspaces: Workspaces) -> None:
    for number in range(5):
        await workspaces.write("ana", f"{number}/{number}.txt", b"x")
    with pytest.raises(FileFault, match="5 files"):
        await workspaces.write("ana", "new/new.txt", b"x")
    await workspaces.write("ana", "3/3.txt", b"y")
    await workspaces.delete("ana", "4/4.txt")
    await workspaces.write("ana", "new/new.txt", b"x")


async def test_concurrent_writes_do_not_exceed_the_quota(workspaces: Workspaces) -> None:
    writes = (workspaces.write("ana", f"{number}.txt", b"x" * 3_000) for number in range(8))

    found = await asyncio.gather(*writes, return_exceptions=True)

    assert [isinstance(one, FileFault) for one in found] == [False] * 3 + [True] * 5


async def test_file_is_replaced_only_if_it_is_unchanged(workspaces: Workspaces) -> None:
    await workspaces.replace("ana", "a.txt", b"milk", before=None)
    for before in (None, b"", b"mil", b"milk, eggs"):
        with pytest.raises(FileChanged):
            await workspaces.replace("ana", "a.txt", b"tea", before=before)
    assert await _read(workspaces, "a.txt") == b"milk"

    await workspaces.replace("ana", "a.txt", b"tea", before=b"milk")
    assert await _read(workspaces, "a.txt") == b"tea"


async def test_files_are_deleted(workspaces: Workspaces) -> None:
    await workspaces.write("ana", "a/b/c.txt", b"x")
    await workspaces.write("ana", "a/d.txt", b"x")
    await workspaces.delete("ana", "A/B/C.txt")
    assert await _names(workspaces) == ["a/d.txt"]
    with pytest.raises(FileFault, match="no file"):
        await workspaces.delete("ana", "a/b/c.txt")
    await workspaces.write("ana", "a/b", b"x")  # the folder is gone


@given(name=st.text(max_size=40) | st.text("./\\~aA\0\u202e\uff0e\u2024é ", max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_accepted_names_lead_to_one_file(name: str, workspaces: Workspaces) -> None:
    async def store_and_delete() -> None:
        try:
            await workspaces.write("ana", name, b"x")
        except FileFault:
            return
        assert await _read(workspaces, name) == b"x"
        (entry,) = await workspaces.list_files("ana")
        assert not {"", ".", ".."} & set(entry.name.split("/"))
        await workspaces.delete("ana", entry.name)
        assert await workspaces.list_files("ana") == []

    asyncio.run(store_and_delete())


async def test_calls_of_one_user_do_not_delay_another(workspaces: Workspaces, database: Database) -> None:
    order: list[str] = []

    async def list_as(user: str) -> None:
        await workspaces.list_files(user)
        order.append(user)

    held = threading.Event()
    holding = asyncio.create_task(database.run(lambda _: held.wait()))
    calls = [asyncio.create_task(list_as("ana")) for _ in range(20)]
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(list_as("ben")))
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(holding, *calls)

    assert order.index("ben") <= 2
