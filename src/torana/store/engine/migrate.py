"""Create a database or upgrade it to this program's revision before anything else opens it."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DatabaseError

from torana.errors import DatabaseTooNew, DataDirUnusable
from torana.store.engine.database_file import database_exists, sync_directory
from torana.store.engine.schema import Definition, Key, differences, read_schema, same
from torana.store.engine.snapshot import copy_database
from torana.store.engine.sqlite import only_transaction, sqlite_engine
from torana.store.engine.tables import metadata

#: The newest revision in ``migrations/versions`` (a test compares them).
HEAD = "0023"

#: The migrations of SQLite, and those of PostgreSQL, which begin with the tables of a later revision.
SQLITE_MIGRATIONS = Path(__file__).with_name("migrations")
POSTGRES_MIGRATIONS = Path(__file__).with_name("postgres") / "migrations"

#: Alembic's version table in a new database; an upgraded one may have Alembic's own definition.
_VERSION_KEY = ("table", "alembic_version")
_VERSION_TABLE = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
_VERSION_TABLE_OF_ALEMBIC = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)

_log = logging.getLogger(__name__)


def migrate(path: Path) -> None:
    """Create the database or upgrade it to ``HEAD``.

    The caller holds the data directory's lock. Creation is atomic. Before an upgrade the file is copied to
    ``<name>.before-<HEAD>``. Raises ``DatabaseTooNew`` for an unknown revision, and ``DataDirUnusable`` for a
    file that is empty, not Torana's database, or cannot be written.
    """
    try:
        if database_exists(path):
            _migrate(path)
        else:
            _create(path)
    except (DatabaseError, OSError) as error:
        reason = error.orig if isinstance(error, DatabaseError) else error.strerror
        raise DataDirUnusable(f"{path}: {reason}; move the file away, or restore a backup") from error


def revision(connection: Connection, path: Path) -> str:
    """Return the revision of a database, which this program can use or upgrade.

    Raises ``DatabaseTooNew`` for an unknown revision, and ``DataDirUnusable`` for a database without tables or
    of another program.
    """
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        raise DataDirUnusable(
            f"{path} is a database without tables: its data was lost, or it was never Torana's; restore a "
            "backup with `torana restore`, or delete the file to start with an empty database"
        )
    foreign = connection.exec_driver_sql("PRAGMA application_id").scalar_one() != 0
    # Other programs use Alembic too; the other two tables exist in every revision.
    if foreign or not {"alembic_version", "turns", "memories"}.issubset(tables):
        raise DataDirUnusable(f"{path} is the database of another program; move the file away")
    current = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if current not in revisions(SQLITE_MIGRATIONS):
        raise DatabaseTooNew(
            f"the database is at revision {current}, which this version does not know: a newer Torana wrote "
            "it. Install that version, or restore a backup made with this one"
        )
    return current


def schema_differences(connection: Connection, path: Path) -> list[str]:
    """Describe the differences between the schema and the one that the migrations build for its revision.

    Executes nothing that the schema defines. Raises the errors of ``revision``.
    """
    found = read_schema(connection)
    version = found.get(_VERSION_KEY)
    # The table is checked before it is read: it may be virtual, or compute its values.
    if version is not None and not any(
        same(version, ("alembic_version", sql)) for sql in (_VERSION_TABLE, _VERSION_TABLE_OF_ALEMBIC)
    ):
        return ["the table 'alembic_version' is changed"]
    expected = dict(_schema_of(revision(connection, path)))
    expected[_VERSION_KEY] = found[_VERSION_KEY]
    return differences(found, expected)


@cache
def _schema_of(revision: str) -> Mapping[Key, Definition]:
    """Return the schema that the migrations build up to a revision."""
    with only_transaction(sa.create_engine("sqlite://")) as connection:
        run_migrations(connection, revision)
        return read_schema(connection)


def revisions(migrations: Path) -> set[str]:
    """Return all revisions by their file names; importing Alembic is slow."""
    return {file.name.partition("_")[0] for file in (migrations / "versions").glob("*.py")}


def _migrate(path: Path) -> None:
    engine = sqlite_engine(path)
    try:
        with engine.begin() as connection:
            current = revision(connection, path)
        if current != HEAD:
            _upgrade(engine, path, current)
    finally:
        engine.dispose()


def _create(path: Path) -> None:
    """Create the newest tables in a draft file, and rename it to ``path`` when it is complete.

    SQLite creates an empty file and fills it later: a crash in between would look like lost data.
    """
    draft = path.with_name(f"{path.name}.new")
    delete_draft(draft)
    draft.touch(mode=0o600)
    with only_transaction(sqlite_engine(draft)) as connection:
        create_tables(connection)
    put_in_place(draft, path)


def delete_draft(draft: Path) -> None:
    """Delete a draft of a database with its log."""
    for left in (draft, _log_of(draft), draft.with_name(f"{draft.name}-shm")):
        left.unlink(missing_ok=True)


def put_in_place(draft: Path, path: Path) -> None:
    """Rename a complete draft, which is closed, to ``path``. Raises ``OSError``."""
    if _log_of(draft).exists():  # closing merges the log into the file, unless the disk is full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    draft.replace(path)
    sync_directory(path.parent)


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def create_tables(connection: Connection) -> None:
    """Create the newest tables without Alembic, which takes a third of a second."""
    metadata.create_all(connection)
    connection.exec_driver_sql(_VERSION_TABLE)
    connection.execute(sa.text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _upgrade(engine: Engine, path: Path, current: str) -> None:
    _keep_copy(path, path.with_name(f"{path.name}.before-{HEAD}"))
    with engine.begin() as connection:
        run_migrations(connection, "head")
    _log.info("database_upgraded", extra={"from": current, "to": HEAD})


def is_additive(current: str, migrations: Path) -> bool:
    """Return whether programs for the current revision also work after the upgrade to ``HEAD``.

    A migration is additive if its file says ``additive = True``.
    """
    # Imported here because it is slow and rarely needed.
    from alembic.script import ScriptDirectory

    pending = ScriptDirectory(str(migrations)).iterate_revisions("head", current)
    return all(getattr(script.module, "additive", False) for script in pending)


def run_migrations(connection: Connection, target: str, migrations: Path | None = None) -> None:
    """Migrate the connection's database to a revision or to ``head``, by default with SQLite's migrations."""
    # Imported here because it is slow and rarely needed.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations or SQLITE_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, target)


def _keep_copy(path: Path, target: Path) -> None:
    partial = target.with_name(f"{target.name}.part")
    try:
        copy_database(path, partial)
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            partial.unlink()
        raise DataDirUnusable(
            f"{path} cannot be copied before its upgrade ({error}), so it was not upgraded. Free "
            "enough disk space for a second file of the same size"
        ) from error
