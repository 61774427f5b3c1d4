"""Bring a database file to this program's revision before anything else opens it."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DatabaseError

from torana.errors import DatabaseTooNew, DataDirUnusable
from torana.store.database import sqlite_engine
from torana.store.snapshot import copy_database
from torana.store.tables import metadata

#: The newest revision in ``migrations/versions`` (a test compares them).
HEAD = "0008"

_MIGRATIONS = Path(__file__).with_name("migrations")

_log = logging.getLogger(__name__)


def migrate(path: Path) -> None:
    """Create the database or upgrade it to ``HEAD``; afterwards it fits this program.

    The caller holds the data directory's lock. Before an upgrade the file is copied beside itself as
    ``<name>.before-<revision>``. Raises ``DatabaseTooNew`` for a revision this program does not know, and
    ``DataDirUnusable`` for a file that is no database of Torana's or cannot be written.
    """
    try:
        path.touch(mode=0o600)
        _migrate(path)
    except (DatabaseError, OSError) as error:
        reason = error.orig if isinstance(error, DatabaseError) else error.strerror
        raise DataDirUnusable(f"{path}: {reason}; move the file away, or restore a backup of it") from error


def revision(connection: Connection, path: Path) -> str | None:
    """The revision a database is at, which is one that this program can use or upgrade; None for an empty one.

    Raises ``DatabaseTooNew`` for a revision this program does not know, and ``DataDirUnusable`` for another
    program's database.
    """
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        return None
    # Others use Alembic too, and have a table of that name; the other two are there from the first revision on.
    if not {"alembic_version", "turns", "memories"}.issubset(tables):
        raise DataDirUnusable(f"{path} is the database of another program; move the file away")
    current = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if current not in _revisions():
        raise DatabaseTooNew(
            f"the database is at revision {current}, which this version does not know: a newer Torana wrote "
            "it. Install that version, or restore a backup made with this one"
        )
    return current


def _revisions() -> set[str]:
    """All revisions up to ``HEAD``, by the names of their files; Alembic itself takes long to import."""
    return {file.name.partition("_")[0] for file in (_MIGRATIONS / "versions").glob("*.py")}


def _migrate(path: Path) -> None:
    engine = sqlite_engine(path)
    try:
        with engine.begin() as connection:
            current = revision(connection, path)
            if current is None:
                _create(connection)
        if current not in (None, HEAD):
            _upgrade(engine, path, current)
    finally:
        engine.dispose()


def _create(connection: Connection) -> None:
    """Build the newest tables at once: Alembic costs a third of a second, and there is nothing to convert."""
    metadata.create_all(connection)
    connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    connection.execute(sa.text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _upgrade(engine: Engine, path: Path, current: str) -> None:
    # Alembic is imported only where a database really is of another revision.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    _keep_copy(path, path.with_name(f"{path.name}.before-{HEAD}"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    _log.info("database upgraded from %s to %s", current, HEAD)


def _keep_copy(path: Path, target: Path) -> None:
    """Copy a database to ``target``, which appears whole or not at all."""
    partial = target.with_name(f"{target.name}.part")
    try:
        copy_database(path, partial)
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            partial.unlink()
        raise DataDirUnusable(
            f"{path}: it cannot be copied before its upgrade ({error}); nothing was changed. Make room for a "
            "second file of its size beside it"
        ) from error
