"""The files of installed skills in the database, from which other replicas unpack them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.unit.skills.archives import tarred
from tests.unit.skills.test_changes import ACT, NEEDY_TEA, Place

from torana.errors import SkillConflict
from torana.skills.errors import SkillInvalid
from torana.skills.installation import decisions
from torana.skills.installation.staging import restore
from torana.store.engine.database import Database
from torana.store.rows.extensions import change_counts, skill_archives
from torana.store.rows.extensions import skills as rows

NEWER = tarred({**NEEDY_TEA, "tea/new": "x"})


class Announcement(asyncio.Event):
    """Tells when it has been noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed = asyncio.Event()

    def clear(self) -> None:
        super().clear()
        self.noticed.set()


class Elsewhere(Place):
    """The skills of another replica on the same database."""

    def __init__(self, path: Path, database: Database) -> None:
        super().__init__(path, database)
        self.changed = Announcement()

    async def follow(self) -> None:
        """Apply the changes of the other replica, as after a check."""
        self.changed.noticed.clear()
        self.changed.set()
        await self.changed.noticed.wait()
        async with self.changes.decisions.changing():  # wait for the end
            pass


@pytest.fixture
def database(open_database: Callable[[], Database]) -> Database:
    return open_database()


@pytest.fixture
async def here(tmp_path: Path, database: Database) -> Place:
    place = Place(tmp_path / "here", database)
    await place.changes.decisions.start()
    return place


@pytest.fixture
async def there(tmp_path: Path, database: Database) -> AsyncGenerator[Elsewhere]:
    place = Elsewhere(tmp_path / "there", database)
    await place.changes.decisions.start(place.changed)
    yield place
    await place.changes.decisions.stop()


async def stored(database: Database) -> frozenset[str]:
    return await database.run(skill_archives.list_folders)


async def test_installed_and_approved_skill_is_loaded_elsewhere(here: Place, there: Elsewhere) -> None:
    await here.install_and_approve()

    await there.follow()

    assert there.loaded()
    assert there.approve_with_grant() == here.approve_with_grant()
    assert (there.folder() / "scripts" / "brew.sh").stat().st_mode & 0o100 == (
        here.folder() / "scripts" / "brew.sh"
    ).stat().st_mode & 0o100


async def test_newer_version_that_is_approved_elsewhere_replaces_the_older_one(
    here: Place, there: Elsewhere
) -> None:
    await here.install_and_approve()
    updated = await here.changes.update_from_archive("tea", NEWER, act=ACT)

    await there.changes.approve("tea", digest=str(updated.next_digest), act=ACT)

    assert (there.folder() / "new").exists()
    assert there.leftovers() == set()
    assert await stored(here.database) == {there.folder().parent.name}


async def test_removed_skill_disappears_elsewhere(here: Place, there: Elsewhere) -> None:
    await here.install_and_approve()
    await there.follow()
    await here.changes.remove("tea", act=ACT)

    await there.follow()

    assert not there.loaded()
    assert list(there.root.iterdir()) == []
    assert await stored(here.database) == frozenset()


async def test_change_from_an_older_decision_is_refused(
    here: Place, there: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = await here.install()
    await there.follow()
    put = rows.put

    def put_late(connection: Connection, **arguments: Any) -> None:
        monkeypatch.setattr(rows, "put", put)
        rows.remove(connection, rows.list_decisions(connection)["tea"], act=ACT)  # another replica was first
        put(connection, **arguments)

    monkeypatch.setattr(rows, "put", put_late)
    with pytest.raises(SkillConflict, match="Another replica changed the skill"):
        await there.changes.approve("tea", digest=digest, act=ACT)

    assert there.state() == "quarantine"


async def test_folder_of_an_earlier_version_is_stored_at_the_start(
    here: Place, there: Elsewhere, database: Database
) -> None:
    await here.install_and_approve()
    await database.run(partial(skill_archives.delete_all_but, folders=()))

    await Place(here.root.parent, database).changes.decisions.start()
    await there.follow()

    assert there.loaded()


async def test_missing_folder_is_unpacked_at_the_start(here: Place, tmp_path: Path) -> None:
    await here.install_and_approve()
    shutil.rmtree(here.folder().parent)

    again = Place(tmp_path / "here", here.database)
    await again.changes.decisions.start()

    assert again.loaded()


async def test_damaged_archive_leaves_the_skill_broken(
    here: Place, there: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    await here.install_and_approve()
    folder = here.folder().parent.name
    await here.database.run(partial(skill_archives.delete_all_but, folders=()))
    await here.database.run(partial(skill_archives.put, folder=folder, archive=b"\x1f\x8bno archive"))

    await there.follow()

    assert not there.loaded()
    assert "skill_not_unpacked" in caplog.messages


async def test_archive_with_other_files_than_the_approved_ones_is_not_loaded(
    here: Place, there: Elsewhere
) -> None:
    await here.install_and_approve()
    folder = here.folder().parent.name
    await here.database.run(partial(skill_archives.delete_all_but, folders=()))
    await here.database.run(partial(skill_archives.put, folder=folder, archive=NEWER))

    await there.follow()

    assert not there.loaded()


@pytest.mark.parametrize("folder", ["../tea@0123456789abcdef", "tea", "/tmp/tea@0123456789abcdef", ""])
def test_other_names_of_folders_are_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(SkillInvalid):
        restore(NEWER, root=tmp_path / "root", folder=folder)

    assert not list(tmp_path.rglob("SKILL.md"))


async def test_folder_that_is_too_large_to_store_is_logged(
    here: Place, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await here.install_and_approve()
    await database.run(partial(skill_archives.delete_all_but, folders=()))

    def refuse(archive: bytes) -> None:
        raise SkillInvalid("too large")

    monkeypatch.setattr(decisions, "check_size", refuse)
    await Place(here.root.parent, database).changes.decisions.start()

    assert "skill_not_stored" in caplog.messages
    assert await stored(database) == frozenset()


async def test_archive_is_stored_in_parts(database: Database) -> None:
    archive = bytes(range(256)) * 10_000
    await database.run(partial(skill_archives.put, folder="a", archive=archive))

    assert await database.run(partial(skill_archives.read, folder="a")) == archive
    assert await database.run(partial(skill_archives.read, folder="b")) is None


async def test_each_change_is_counted(here: Place) -> None:
    async def changes() -> int:
        query = sa.select(change_counts.number_of("skills"))
        return await here.database.read(lambda connection: connection.execute(query).scalar_one())

    assert await changes() == 0
    await here.install_and_approve()
    await here.changes.remove("tea", act=ACT)

    assert await changes() == 3
