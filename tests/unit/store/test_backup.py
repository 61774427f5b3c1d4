"""Backups are complete and private, and a restore is safe."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from torana.errors import BackupInvalid, DatabaseTooNew, DataDirUnusable, OperatorError
from torana.skills.folder import files_to_keep
from torana.store.backup.archive import DATABASE_NAME, Restored, restore_backup, write_backup
from torana.store.backup.entries import select_entries
from torana.store.backup.targets import SqliteBackupTarget
from torana.store.backup.upgrade_copies import delete_copies
from torana.store.engine import migrate as migrations
from torana.store.engine.integrity import check_database
from torana.store.engine.migrate import HEAD, migrate
from torana.store.engine.snapshot import Progress, copy_database
from torana.store.engine.sqlite import SqliteDatabase, sqlite_engine
from torana.store.workspace_folders import WORKSPACES_NAME
from torana.tools.mcp.pins import Pins

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
KEPT = ".replaced-20260302T093000Z"


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def owners(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT owner FROM memories ORDER BY id")]


def ignore(_done: int, _all: int) -> None:
    """Ignore the progress."""


def remember(path: Path, owner: str, text: str = "tea") -> None:
    change(
        path,
        "INSERT INTO memories (id, owner, subject, text, created_at) "
        f"VALUES (hex(randomblob(8)), '{owner}', '', '{text}', 0)",
    )


@pytest.fixture
def data_dir(path: Path) -> Path:
    """A data directory with a memory of `old` and a skill with a script."""
    remember(path, "old")
    scripts = path.parent / "skills" / "tea" / "scripts"
    scripts.mkdir(parents=True)
    (scripts.parent / "SKILL.md").write_text("# Tea\n")
    (scripts / "brew.sh").write_text("#!/bin/sh\n")
    (scripts / "brew.sh").chmod(0o755)
    return path.parent


@pytest.fixture
def back_up(data_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """``back_up()`` writes a backup of the data directory and returns its file."""

    def write(target: Path = tmp_path / "torana.zip", **changed: Any) -> Path:
        arguments: dict[str, Any] = {
            "database": SqliteBackupTarget(changed.get("data_dir", data_dir)),
            "data_dir": data_dir,
            "skill_files": files_to_keep(data_dir / "skills"),
            "target": target,
            "version": "1.2.3",
            "at": AT,
            "progress": ignore,
        }
        write_backup(**(arguments | changed))
        return target

    return write


def restore(source: Path, data_dir: Path, progress: Progress = ignore, max_size: int | None = None) -> Restored:
    return restore_backup(
        source=source,
        database=SqliteBackupTarget(data_dir),
        data_dir=data_dir,
        skills_dir=data_dir / "skills",
        at=AT,
        progress=progress,
        max_size=max_size,
    )


def test_restore_brings_everything_back_and_keeps_the_replaced_data(
    back_up: Callable[..., Path], data_dir: Path
) -> None:
    backup = back_up()
    remember(data_dir / DATABASE_NAME, "new")
    (data_dir / "skills" / "tea" / "SKILL.md").write_text("# Changed\n")

    restored = restore(backup, data_dir)

    assert restored == Restored(version="1.2.3", created_at=AT.isoformat(), skill_files=2, replaced=True)
    assert owners(data_dir / DATABASE_NAME) == ["old"]
    assert (data_dir / "skills" / "tea" / "SKILL.md").read_text() == "# Tea\n"
    assert set(owners(data_dir / f"{DATABASE_NAME}{KEPT}")) == {"old", "new"}
    assert (data_dir / f"skills{KEPT}" / "tea" / "SKILL.md").read_text() == "# Changed\n"


def test_backup_and_restored_files_are_private(back_up: Callable[..., Path], data_dir: Path) -> None:
    backup = back_up()
    restore(backup, data_dir)

    script = data_dir / "skills" / "tea" / "scripts" / "brew.sh"
    files = (backup, data_dir / DATABASE_NAME, script.parents[1] / "SKILL.md", script)
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600, 0o600, 0o700]


def test_backup_completes_beside_a_continuous_writer(back_up: Callable[..., Path], data_dir: Path) -> None:
    database = data_dir / DATABASE_NAME
    change(database, "PRAGMA journal_mode = WAL")
    for number in range(3):
        remember(database, f"old {number}", text="tea" * 300_000)
    steps: list[tuple[int, int]] = []

    def write_between_steps(done: int, total: int) -> None:
        steps.append((done, total))
        remember(database, f"new {len(steps)}")

    backup = back_up(progress=write_between_steps)
    assert len(steps) > 2
    assert steps[-1][0] == steps[-1][1]

    restore(backup, data_dir)
    assert set(owners(database)) == {"old", "old 0", "old 1", "old 2"}
    assert check_database(database) == HEAD


def test_last_writes_of_a_killed_gateway_are_kept(
    back_up: Callable[..., Path], data_dir: Path, tmp_path: Path
) -> None:
    backup = back_up()
    database = data_dir / DATABASE_NAME
    # As after kill -9: the last writes are only in the journal.
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        remember(database, "last")
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        for file in data_dir.glob(f"{DATABASE_NAME}*"):
            (crashed / file.name).write_bytes(file.read_bytes())

    restore(backup, crashed)

    assert owners(crashed / DATABASE_NAME) == ["old"]
    assert set(owners(crashed / f"{DATABASE_NAME}{KEPT}")) == {"old", "last"}


def write_file(folder: Path, name: str, text: str) -> None:
    """Write a user's file as an earlier version does."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_folders_of_an_earlier_version_are_restored(back_up: Callable[..., Path], data_dir: Path) -> None:
    workspaces = data_dir / WORKSPACES_NAME
    write_file(workspaces / "ana", "trips/oslo.md", "ferry")
    outside = data_dir / "outside.txt"
    outside.write_text("secret")
    (workspaces / "ana" / "link.txt").symlink_to(outside)
    backup = back_up()
    write_file(workspaces / "ana", "trips/oslo.md", "train")
    write_file(workspaces / "ben", "new.txt", "new")

    restore(backup, data_dir)

    assert [file.relative_to(workspaces) for file in workspaces.rglob("*.*")] == [Path("ana/trips/oslo.md")]
    assert (workspaces / "ana/trips/oslo.md").read_text() == "ferry"
    assert (data_dir / f"workspaces{KEPT}" / "ben" / "new.txt").read_text() == "new"
    delete_copies(data_dir)  # as an erasure does
    assert not (data_dir / f"workspaces{KEPT}").exists()


def test_records_of_mcp_servers_are_restored_without_their_own_files(
    back_up: Callable[..., Path], data_dir: Path, tmp_path: Path
) -> None:
    mcp = data_dir / "mcp"
    (mcp / "notes").mkdir(parents=True)
    (mcp / "notes" / "home.json").touch()
    (mcp / "notes.json").write_text("seen")
    (mcp / "link.json").symlink_to("/etc/passwd")
    backup = back_up()
    (mcp / "notes.json").write_text("seen later")
    (mcp / "new.json").write_text("new")

    restore(backup, data_dir)

    assert (mcp / "notes.json").read_text() == "seen"
    assert (mcp / f"notes.json{KEPT}").read_text() == "seen later"
    assert (mcp / "new.json").read_text() == "new"
    assert (mcp / "notes" / "home.json").exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    restore(backup, elsewhere)
    assert [file.name for file in (elsewhere / "mcp").iterdir()] == ["notes.json"]


def test_backup_without_mcp_records_keeps_the_existing_ones(
    back_up: Callable[..., Path], data_dir: Path
) -> None:
    backup = back_up()
    (data_dir / "mcp").mkdir()
    (data_dir / "mcp" / "notes.json").write_text("seen")

    restore(backup, data_dir)

    assert [file.read_text() for file in (data_dir / "mcp").iterdir()] == ["seen"]


async def accepted_digests(data_dir: Path, first: dict[str, str]) -> Mapping[str, str]:
    """Return the accepted tools of a server that offers ``first`` to a gateway on the data directory."""
    path = data_dir / DATABASE_NAME
    migrate(path)
    with closing(SqliteDatabase(path=path)) as database:
        pins = Pins(database=database, path=data_dir / "mcp" / "shop.json", server="shop", source="shop")
        return await pins.load(first=first)


async def test_accepted_tools_are_restored_with_the_rows(
    back_up: Callable[..., Path], data_dir: Path, tmp_path: Path
) -> None:
    await accepted_digests(data_dir, {"buy": "1"})
    (data_dir / "mcp" / "shop.json").unlink()
    (tmp_path / "elsewhere").mkdir()

    restore(back_up(), tmp_path / "elsewhere")

    assert await accepted_digests(tmp_path / "elsewhere", {"buy": "2"}) == {"buy": "1"}


async def test_changed_tool_is_not_accepted_after_the_restore_of_an_older_backup(
    back_up: Callable[..., Path], data_dir: Path
) -> None:
    before_the_server = back_up()
    await accepted_digests(data_dir, {"buy": "1"})

    restore(before_the_server, data_dir)

    assert await accepted_digests(data_dir, {"buy": "2"}) == {"buy": "1"}


def test_backup_without_skills_keeps_the_existing_ones(
    back_up: Callable[..., Path], data_dir: Path, tmp_path: Path
) -> None:
    backup = back_up(skill_files=files_to_keep(tmp_path / "none"))

    assert restore(backup, data_dir).skill_files == 0
    assert (data_dir / "skills" / "tea" / "SKILL.md").exists()


def test_inaccessible_skills_directory_is_not_left_out_of_a_backup(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        list(files_to_keep(tmp_path / ("long" * 100)))


def test_backup_is_restored_into_an_empty_directory(back_up: Callable[..., Path], tmp_path: Path) -> None:
    backup = back_up()
    empty = tmp_path / "empty"
    empty.mkdir()

    restore(backup, empty)

    assert sorted(file.name for file in empty.iterdir()) == ["skills", DATABASE_NAME]


def skill_names(backup: Path) -> list[str]:
    with zipfile.ZipFile(backup) as archive:
        return sorted(name.removeprefix("skills/") for name in archive.namelist() if name.startswith("skills/"))


def test_outside_links_are_omitted_and_files_before_1980_kept(
    back_up: Callable[..., Path], data_dir: Path
) -> None:
    skill = data_dir / "skills" / "tea"
    (skill / "secret").symlink_to("/etc/passwd")
    (data_dir / "skills" / "linked").symlink_to("/etc")
    (data_dir / "skills" / "notes.md").symlink_to("/etc/passwd")
    os.utime(skill / "SKILL.md", (0, 0))

    assert skill_names(back_up()) == ["tea/SKILL.md", "tea/scripts/brew.sh"]


def test_links_inside_the_skills_directory_are_stored_as_files(
    back_up: Callable[..., Path], data_dir: Path
) -> None:
    skills = data_dir / "skills"
    shared = skills / ".shared" / "mint"
    shared.mkdir(parents=True)
    (shared / "SKILL.md").write_text("# Mint\n")
    (skills / "mint").symlink_to(shared)
    (skills / "tea" / "guide.md").symlink_to(shared / "SKILL.md")

    restore(back_up(), data_dir)

    assert (skills / "mint" / "SKILL.md").read_text() == "# Mint\n"
    assert (skills / "tea" / "guide.md").read_text() == "# Mint\n"
    assert not (skills / "mint").is_symlink()


def test_hidden_files_of_skills_are_not_in_a_backup(back_up: Callable[..., Path], data_dir: Path) -> None:
    skills = data_dir / "skills"
    for folder in (skills, skills / "tea", skills / "broken"):
        (folder / ".git" / "hooks").mkdir(parents=True)
        (folder / ".git" / "hooks" / "x").touch()
        (folder / ".env").write_text("KEY=1")
    (skills / "broken" / "out").symlink_to("/etc")
    (skills / "broken" / "SKILL.md").touch()
    (skills / "README.md").touch()

    assert skill_names(back_up()) == ["README.md", "broken/SKILL.md", "tea/SKILL.md", "tea/scripts/brew.sh"]


def test_restore_reports_progress(back_up: Callable[..., Path], data_dir: Path) -> None:
    steps: list[tuple[int, int]] = []

    restore(back_up(), data_dir, lambda done, total: steps.append((done, total)))

    assert len(steps) == 3
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]


def test_backup_of_a_newer_version_is_refused_without_changes(
    back_up: Callable[..., Path], data_dir: Path
) -> None:
    database = data_dir / DATABASE_NAME
    change(database, "UPDATE alembic_version SET version_num = '9999'")
    newer = back_up()
    change(database, f"UPDATE alembic_version SET version_num = '{HEAD}'")
    before = sorted(data_dir.rglob("*"))

    with pytest.raises(DatabaseTooNew, match="9999"):
        restore(newer, data_dir)

    assert sorted(data_dir.rglob("*")) == before


def test_failed_backup_leaves_no_file(back_up: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "backups" / "torana.zip"
    target.mkdir(parents=True)

    with pytest.raises(OperatorError, match="cannot write the backup"):
        back_up(target)

    assert list(target.parent.iterdir()) == [target]


def test_backup_of_a_damaged_database_is_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    (data_dir / DATABASE_NAME).write_bytes(b"this is no database" * 1000)

    with pytest.raises(OperatorError, match="not a database"):
        back_up()


def test_database_copy_has_no_journal_file(path: Path, tmp_path: Path) -> None:
    copy_database(path, tmp_path / "copy.db")

    assert check_database(tmp_path / "copy.db") == HEAD
    assert not list(tmp_path.glob("copy.db-*"))


def rewritten(backup: Path, changed: Mapping[str, bytes | None]) -> Path:
    """Return a copy of the backup with some files changed; None removes a file."""
    with zipfile.ZipFile(backup) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    result = backup.with_name("rewritten.zip")
    with zipfile.ZipFile(result, "w") as archive:
        for name, content in (contents | dict(changed)).items():
            if content is not None:
                archive.writestr(name, content)
    return result


@pytest.mark.parametrize(
    "changed",
    [
        {"manifest.json": None},
        {"manifest.json": b"no JSON"},
        {"manifest.json": b"[]"},
        {"manifest.json": b"\xff"},
        {"manifest.json": b"[" * 100_000},
        {"manifest.json": b"{}"},
        {DATABASE_NAME: None},
        {DATABASE_NAME: b"another"},
        {"skills/a": b"a file", "skills/a/b": b"and one below it"},
    ],
    ids=str,
)
def test_foreign_or_incomplete_zip_is_refused(
    back_up: Callable[..., Path], data_dir: Path, changed: Mapping[str, bytes | None]
) -> None:
    foreign = rewritten(back_up(), changed)
    before = sorted(data_dir.rglob("*"))

    with pytest.raises(BackupInvalid, match=r"rewritten\.zip"):
        restore(foreign, data_dir)

    assert sorted(data_dir.rglob("*")) == before


@pytest.mark.parametrize("missing", ["version", "createdAt", "sha256"])
def test_incomplete_manifest_is_refused_without_changes(
    back_up: Callable[..., Path], data_dir: Path, missing: str
) -> None:
    backup = back_up()
    with zipfile.ZipFile(backup) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    del manifest[missing]

    with pytest.raises(BackupInvalid):
        restore(rewritten(backup, {"manifest.json": json.dumps(manifest).encode()}), data_dir)

    assert owners(data_dir / DATABASE_NAME) == ["old"]
    assert not list(data_dir.glob("*.replaced-*"))


def test_damaged_backup_is_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    backup = back_up()
    whole = backup.read_bytes()
    for start in range(0, len(whole), len(whole) // 12):
        backup.write_bytes(whole[:start] + b"\xa5" * 64 + whole[start + 64 :])
        before = owners(data_dir / DATABASE_NAME)
        try:
            restored = restore(backup, data_dir)
        except BackupInvalid:
            assert owners(data_dir / DATABASE_NAME) == before
        else:  # the damage hit a skill's name or a time stamp: the database is still complete
            assert restored.version == "1.2.3"
            assert owners(data_dir / DATABASE_NAME) == ["old"]


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip at all"])
def test_file_that_is_not_a_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "backup.zip").write_bytes(content)

    with pytest.raises(BackupInvalid, match="is not a complete backup of Torana"):
        restore(tmp_path / "backup.zip", tmp_path)


def test_missing_backup_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BackupInvalid, match="no such file"):
        restore(tmp_path / "backup.zip", tmp_path)


def test_encrypted_zip_is_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    backup = back_up()
    # Bit 0 of the general-purpose flags of each central directory entry marks encryption.
    raw = bytearray(backup.read_bytes())
    for entry in re.finditer(b"PK\x01\x02", raw):
        raw[entry.start() + 8] |= 1
    backup.write_bytes(raw)

    with pytest.raises(BackupInvalid, match="encrypted"):
        restore(backup, data_dir)


def test_another_programs_database_is_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    change(data_dir / DATABASE_NAME, "DROP TABLE alembic_version")

    with pytest.raises(BackupInvalid, match="its database is the database of another program"):
        restore(back_up(), data_dir)


def test_backup_with_a_damaged_database_is_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    database = data_dir / DATABASE_NAME
    for number in range(300):
        remember(database, f"owner {number}")
    with database.open("r+b") as file:
        file.seek(database.stat().st_size - 4096)
        file.write(b"\xff" * 4096)

    with pytest.raises(BackupInvalid, match="its database is damaged: "):
        restore(back_up(), data_dir)

    assert not list(data_dir.glob("*.replaced-*"))


@pytest.mark.parametrize(
    "name",
    [
        "skills/../../escaped",
        "../escaped",
        "/escaped",
        "skills/../escaped",
        "skills//../escaped",
        "mcp/../escaped.json",
        "mcp/notes/escaped.json",
        "mcp/escaped.sh",
    ],
)
def test_path_outside_the_data_directory_is_refused(
    back_up: Callable[..., Path], data_dir: Path, tmp_path: Path, name: str
) -> None:
    backup = rewritten(back_up(), {name: b"out"})
    before = sorted(data_dir.rglob("*"))

    with pytest.raises(BackupInvalid, match="escaped"):
        restore(backup, data_dir)

    assert sorted(data_dir.rglob("*")) == before
    assert not list(tmp_path.rglob("escaped*"))
    assert not Path("/escaped").exists()


def test_unwritable_data_directory_is_reported(back_up: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot put the backup in place"):
        restore(back_up(), tmp_path / "missing")


def test_restored_database_can_be_used_at_once(back_up: Callable[..., Path], data_dir: Path) -> None:
    restore(back_up(), data_dir)

    migrate(data_dir / DATABASE_NAME)
    remember(data_dir / DATABASE_NAME, "new")

    assert set(owners(data_dir / DATABASE_NAME)) == {"old", "new"}


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        (
            "CREATE TRIGGER spy AFTER INSERT ON turns BEGIN DELETE FROM audit; END",
            "the trigger 'spy' is added",
        ),
        ("CREATE VIEW seen AS SELECT * FROM turns", "the view 'seen' is added"),
        ("CREATE INDEX quick ON turns (content)", "the index 'quick' is added"),
        ("CREATE TABLE notes (text)", "the table 'notes' is added"),
        ("CREATE VIRTUAL TABLE notes USING fts5(text)", "the table 'notes' is added"),
        ("DROP INDEX ix_audit_at", "the index 'ix_audit_at' is missing"),
        ("DROP TABLE audit", "the table 'audit' is missing"),
        ("ALTER TABLE audit ADD COLUMN secret TEXT", "the table 'audit' is changed"),
        ("ALTER TABLE audit RENAME COLUMN target TO goal", "the table 'audit' is changed"),
        ("ANALYZE", "the table 'sqlite_stat1' is added"),
    ],
)
def test_database_with_a_different_schema_is_refused_with_the_object(
    back_up: Callable[..., Path], data_dir: Path, sql: str, named: str
) -> None:
    plain = back_up().read_bytes()
    change(data_dir / DATABASE_NAME, sql)
    backup = back_up()
    before = {file: file.read_bytes() for file in data_dir.rglob("*") if file.is_file()}

    with pytest.raises(BackupInvalid) as caught:
        restore(backup, data_dir)

    assert named in caught.value.detail
    assert {file: file.read_bytes() for file in data_dir.rglob("*") if file.is_file()} == before
    backup.write_bytes(plain)
    restore(backup, data_dir)  # the same backup without the change


def test_changed_definition_is_refused_with_the_object(back_up: Callable[..., Path], data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / DATABASE_NAME)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'action TEXT', 'action TEXT DEFAULT (randomblob(9))') "
            "WHERE name = 'audit'"
        )
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, '(at)', '(target)') WHERE name = 'ix_audit_at'"
        )

    with pytest.raises(
        BackupInvalid, match=r"the table 'audit' is changed, the index 'ix_audit_at' is changed"
    ):
        restore(back_up(), data_dir)


def test_virtual_table_as_revision_table_is_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    change(data_dir / DATABASE_NAME, "DROP TABLE alembic_version")
    change(data_dir / DATABASE_NAME, "CREATE VIRTUAL TABLE alembic_version USING fts5(version_num)")

    with pytest.raises(BackupInvalid, match="the table 'alembic_version' is changed"):
        restore(back_up(), data_dir)


def test_dangling_foreign_keys_are_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    change(
        data_dir / DATABASE_NAME,
        "INSERT INTO attachments VALUES ('a', 'no such turn', 'gateway', 0, 'n', 'text/plain', x'')",
    )

    with pytest.raises(BackupInvalid, match="a row of attachments refers to a missing row"):
        restore(back_up(), data_dir)


def test_inconsistent_text_index_is_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    database = data_dir / DATABASE_NAME
    change(database, "INSERT INTO memory_words VALUES ('owner', 'memory', 'tea')")
    restore(back_up(), data_dir)
    change(database, "UPDATE memory_words_content SET c2 = 'coffee'")

    with pytest.raises(BackupInvalid, match="its database is damaged"):
        restore(back_up(), data_dir)


@pytest.mark.long
def test_backup_of_every_revision_is_restored(back_up: Callable[..., Path], tmp_path: Path) -> None:
    revisions = sorted(
        file.name[:4] for file in Path(migrations.__file__).parent.glob("migrations/versions/0*.py")
    )
    assert revisions[-1] == HEAD
    for revision in revisions:
        old = tmp_path / revision
        old.mkdir()
        engine = sqlite_engine(old / DATABASE_NAME)
        with engine.begin() as connection:
            migrations.run_migrations(connection, revision)
        engine.dispose()
        backup = back_up(tmp_path / f"{revision}.zip", data_dir=old, skill_files=[])
        elsewhere = tmp_path / f"restored {revision}"
        elsewhere.mkdir()

        restore(backup, elsewhere)

        assert check_database(elsewhere / DATABASE_NAME) == revision
        migrate(elsewhere / DATABASE_NAME)
        restore(back_up(tmp_path / "again.zip", data_dir=elsewhere, skill_files=[]), elsewhere)


def zip_of(backup: Path, add: Callable[[zipfile.ZipFile], None]) -> Path:
    """Return a copy of the backup with additional entries."""
    result = backup.with_name("more.zip")
    result.write_bytes(backup.read_bytes())
    with zipfile.ZipFile(result, "a", zipfile.ZIP_DEFLATED) as archive:
        add(archive)
    return result


def declaring(backup: Path, sizes: Mapping[str, int]) -> Path:
    """Return a copy of the backup with files that declare these unpacked sizes."""

    def add(archive: zipfile.ZipFile) -> None:
        for name in sizes:
            archive.writestr(name, b"x")

    result = zip_of(backup, add)
    raw = bytearray(result.read_bytes())
    for name, size in sizes.items():
        place = raw.rindex(name.encode()) - 46  # of its entry in the central directory
        raw[place + 24 : place + 28] = size.to_bytes(4, "little")
    result.write_bytes(raw)
    return result


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ({"skills/tea/big": 1_500_000_000}, r"'skills/tea/big' has 1,500,000,000 bytes, more than 536,870,912"),
        (
            {f"workspaces/a/{number}": 400_000_000 for number in range(3)},
            r"it unpacks to 1,2\d\d,\d\d\d,\d\d\d bytes",
        ),
        ({"mcp/notes.json": 17_000_000}, "'mcp/notes.json' has"),
    ],
    ids=["one", "together", "pins"],
)
def test_archive_bomb_is_refused_before_unpacking(
    back_up: Callable[..., Path], data_dir: Path, sizes: Mapping[str, int], fault: str
) -> None:
    steps: list[tuple[int, int]] = []

    with pytest.raises(BackupInvalid, match=fault):
        restore(declaring(back_up(), sizes), data_dir, lambda done, total: steps.append((done, total)))

    assert steps == []


def test_max_size_allows_a_larger_backup(back_up: Callable[..., Path], data_dir: Path) -> None:
    backup = zip_of(back_up(), lambda archive: archive.writestr("skills/tea/big", bytes(3 << 20)))
    with pytest.raises(BackupInvalid, match="more than 2,000,000; if you trust its origin"):
        restore(backup, data_dir, max_size=2_000_000)

    restore(backup, data_dir, max_size=10_000_000)

    assert (data_dir / "skills" / "tea" / "big").stat().st_size == 3 << 20


def test_entry_is_read_only_up_to_its_declared_size(back_up: Callable[..., Path], data_dir: Path) -> None:
    backup = zip_of(back_up(), lambda archive: archive.writestr("skills/tea/big", bytes(3 << 20)))
    raw = bytearray(backup.read_bytes())
    place = raw.rindex(b"skills/tea/big") - 46
    raw[place + 24 : place + 28] = (1000).to_bytes(4, "little")
    backup.write_bytes(raw)
    steps: list[int] = []

    with pytest.raises(BackupInvalid, match="Bad CRC-32"):
        restore(backup, data_dir, lambda done, _total: steps.append(done))

    assert max(steps) < (data_dir / DATABASE_NAME).stat().st_size + 2000


def test_backup_larger_than_the_free_disk_space_is_refused(
    back_up: Callable[..., Path], data_dir: Path
) -> None:
    backup = declaring(back_up(), {"workspaces/a/b": 4_000_000_000})
    with zipfile.ZipFile(backup) as archive, pytest.raises(ValueError, match="are free on the disk; make room"):
        select_entries(archive, packed=1, max_size=1 << 60, free=1 << 30)


def test_links_and_devices_are_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    for mode in (stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o600):
        entry = zipfile.ZipInfo("skills/tea/link")
        entry.external_attr = mode << 16
        backup = zip_of(back_up(), lambda archive, entry=entry: archive.writestr(entry, "/etc/passwd"))

        with pytest.raises(BackupInvalid, match="'skills/tea/link' is a link or a device"):
            restore(backup, data_dir)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_file_names_are_refused(back_up: Callable[..., Path], data_dir: Path) -> None:
    backup = zip_of(back_up(), lambda archive: archive.writestr("skills/tea/SKILL.md", "another"))

    with pytest.raises(BackupInvalid, match="two files with the same name"):
        restore(backup, data_dir)


def test_files_with_non_utf8_names_are_restored(back_up: Callable[..., Path], data_dir: Path) -> None:
    folder = data_dir / WORKSPACES_NAME / "ana"
    folder.mkdir(parents=True)
    for name in (b"caf\xe9", b"caf\xe8", "caf\ufffd".encode(), b"\xff" * 200):
        Path(os.fsdecode(bytes(folder) + b"/" + name)).write_bytes(name)

    restore(back_up(), data_dir)

    found = sorted(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert found == sorted([b"caf\xe9", b"caf\xe8", "caf\ufffd".encode(), b"\xff" * 200])


def test_failed_restore_is_rolled_back(back_up: Callable[..., Path], data_dir: Path) -> None:
    backup = back_up()
    remember(data_dir / DATABASE_NAME, "new")
    skills = data_dir / "skills"
    (data_dir / DATABASE_NAME).with_name(f"{DATABASE_NAME}-wal").write_bytes(b"log")
    before = sorted(data_dir.rglob("*"))
    # The last target: nothing can be placed below a file.
    with pytest.raises(OperatorError, match="cannot put the backup in place"):
        restore_backup(
            source=backup,
            database=SqliteBackupTarget(data_dir),
            data_dir=data_dir,
            skills_dir=skills / "tea" / "SKILL.md" / "x",
            at=AT,
            progress=ignore,
        )

    assert sorted(data_dir.rglob("*")) == before
    (data_dir / f"{DATABASE_NAME}-wal").unlink()
    assert set(owners(data_dir / DATABASE_NAME)) == {"old", "new"}


def test_two_restores_in_one_second_keep_both_databases(back_up: Callable[..., Path], data_dir: Path) -> None:
    backup = back_up()
    remember(data_dir / DATABASE_NAME, "new")

    restore(backup, data_dir)
    restore(backup, data_dir)

    assert set(owners(data_dir / f"{DATABASE_NAME}{KEPT}")) == {"old", "new"}
    assert owners(data_dir / f"{DATABASE_NAME}{KEPT}-2") == ["old"]


#: Restores in one process after another; each is killed after one more file was moved.
MORTAL = """
import datetime, itertools, os, pathlib, shutil, signal, sys
from torana.store.backup.archive import restore_backup
from torana.store.backup.targets import SqliteBackupTarget

home, left = pathlib.Path(sys.argv[1]), 0

def audit(event, arguments):
    global left
    left -= event == "os.rename"
    if left == 0 and event == "os.rename":
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(audit)
for number in itertools.count(1):
    place = home / str(number)
    shutil.copytree(home / "data", place)
    process = os.fork()
    if process == 0:
        left = number
        restore_backup(
            source=home / "torana.zip", database=SqliteBackupTarget(place), data_dir=place,
            skills_dir=place / "skills", at=datetime.datetime.now(datetime.UTC), progress=lambda *_: None,
        )
        os._exit(0)
    if os.WIFEXITED(os.waitpid(process, 0)[1]):
        print(number)
        break
"""


def test_restore_killed_at_any_moment_loses_no_data(
    back_up: Callable[..., Path], data_dir: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    backup = back_up()
    remember(data_dir / DATABASE_NAME, "new")
    home.mkdir()
    backup = backup.rename(home / "torana.zip")
    (data_dir / DATABASE_NAME).rename(home / DATABASE_NAME)
    (home / "data").mkdir()
    (home / DATABASE_NAME).rename(home / "data" / DATABASE_NAME)
    (data_dir / "skills").rename(home / "data" / "skills")

    done = subprocess.run([sys.executable, "-c", MORTAL, str(home)], check=True, capture_output=True, text=True)

    killed = int(done.stdout)
    assert killed > 3
    for number in range(2, killed):
        place = home / str(number)
        with pytest.raises(DataDirUnusable, match="a restore was interrupted"):
            migrate(place / DATABASE_NAME)
        restore(backup, place)
        assert owners(place / DATABASE_NAME) == ["old"]
        (kept,) = place.glob(f"{DATABASE_NAME}.replaced-*")
        assert set(owners(kept)) == {"old", "new"}
        assert not list(place.glob(".torana-restore-*"))
