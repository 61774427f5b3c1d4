"""Back up the rows of a PostgreSQL database into a SQLite file, and restore them from such a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, StatementError

from torana.errors import DatabaseBusy, DatabaseUnusable, StoreUnavailable
from torana.store.backup.targets import BackupTarget, Replacement
from torana.store.engine.database_file import UNFINISHED, sync_directory
from torana.store.engine.migrate import HEAD, create_tables, revision, run_migrations
from torana.store.engine.places import DATABASE_NAME
from torana.store.engine.postgres import schema
from torana.store.engine.postgres.connection import LOCKED, PostgresUrl
from torana.store.engine.postgres.reading import read_database, read_tables
from torana.store.engine.postgres.writer import UnknownCommit, Writer
from torana.store.engine.snapshot import Progress
from torana.store.engine.sqlite import only_transaction, sqlite_engine
from torana.store.engine.table_copy import copy_tables, delete_tables, has_rows, lock_tables

#: Errors of values that do not fit: data exceptions, violated constraints and mismatched types.
_CONTENT_STATES = ("22", "23", "42804")

#: Maximum length of a server's reason in an error.
_REASON = 200


class PostgresBackupTarget(BackupTarget):
    """A PostgreSQL database. It is replaced in one transaction, and never while a gateway uses it."""

    def __init__(self, *, url: PostgresUrl, data_dir: Path, cluster: str | None = None) -> None:
        """``cluster`` is the name of the deployment; the database of another deployment is refused."""
        self._url = url
        self._data_dir = data_dir
        self._cluster = cluster

    def __str__(self) -> str:
        return f"PostgreSQL {self._url} and {self._data_dir}"

    def check_exists(self) -> None:
        """Raise ``OperatorError`` if there are no tables, or those of another version."""
        revision_of = partial(schema.revision, target=str(self._url))
        current = read_tables(self._url, revision_of, cluster=self._cluster)
        if current != HEAD:
            raise DatabaseUnusable(
                f"the PostgreSQL database {self._url} is at revision {current}, and this version backs up "
                f"revision {HEAD}. Start the gateway, which upgrades it, or use the version that wrote it"
            )

    def copy_to(self, file: Path, progress: Progress) -> None:
        self.check_exists()
        read_database(self._url, partial(_copy_locked, file=file, progress=progress, url=self._url))

    @contextmanager
    def replace(self, new: Path, suffix: str, progress: Progress) -> Generator[Replacement]:
        """Write the rows now, and commit them last. See ``BackupTarget.replace``.

        A file beside ``new`` makes the next start refuse to run after a crash in between.
        """
        kept = self._data_dir / f"{DATABASE_NAME}{suffix}"
        with _open_writer(self._url, self._cluster) as (writer, connection), ExitStack() as undo:
            with _errors_of(self._url):
                # A slow disk must not end the session: no gateway waits for its locks.
                connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
                if replaces := has_rows(connection):
                    undo.callback(kept.unlink, missing_ok=True)
                    _write_file(connection, kept, progress)
                _insert_rows(connection, new, progress)
            (new.parent / UNFINISHED).touch()
            sync_directory(new.parent)

            def finish() -> None:
                sync_directory(self._data_dir)
                earlier = undo.pop_all()  # the outcome may stay unknown: then the copy is needed
                try:
                    was_committed = _commit(writer, connection)
                except (DBAPIError, UnknownCommit) as error:
                    earlier.close()
                    raise self._url.unusable(error.orig) from error
                if not was_committed:
                    raise self._unknown(kept if replaces else None)

            yield Replacement(replaces=replaces, finish=finish)

    def _unknown(self, kept: Path | None) -> DatabaseUnusable:
        return DatabaseUnusable(
            f"the connection to the PostgreSQL database {self._url} was lost, and it is unknown whether it is "
            f"restored. Run `torana restore` again{f'; {kept} has the earlier data' if kept else ''}"
        )

    def check(self) -> None:
        """Do nothing: a backup has read every row."""

    def foreign_objects(self) -> list[str]:
        """Return none: a backup contains rows only."""
        return []


@contextmanager
def _open_writer(url: PostgresUrl, cluster: str | None) -> Generator[tuple[Writer, Connection]]:
    """Take the right to write, and begin a transaction. Raises ``DatabaseBusy`` while a gateway has it."""
    prepare = partial(schema.prepare_cluster, cluster=cluster)
    writer = Writer(url, purpose="restore", replicated=False, prepare=prepare)
    try:
        with _errors_of(url):
            connection = writer.begin()
        with connection:
            yield writer, connection
    finally:
        with suppress(StoreUnavailable, DBAPIError):
            writer.leave()
        writer.engine.dispose()


def _copy_locked(connection: Connection, url: PostgresUrl, file: Path, progress: Progress) -> None:
    with _errors_of(url):
        # The locks come first: the next statement fixes the moment of the copy, and no restore may empty the
        # tables after it.
        lock_tables(connection)
    _write_file(connection, file, progress)


def _write_file(source: Connection, file: Path, progress: Progress) -> None:
    """Write all rows into a new SQLite file. Raises ``sqlite3.Error`` if it cannot be written."""
    file.touch(mode=0o600, exist_ok=False)
    # One transaction with a rollback journal, which stays small while pages are new. A write-ahead log would
    # contain all rows.
    connect = partial(sqlite3.connect, file, isolation_level=None)
    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
    try:
        with engine.connect() as target:
            target.exec_driver_sql("BEGIN")
            create_tables(target)
            copy_tables(source, target, progress)
            target.exec_driver_sql("COMMIT")
    except DBAPIError as error:
        if isinstance(error.orig, sqlite3.Error):
            raise error.orig from error
        raise


def _insert_rows(connection: Connection, file: Path, progress: Progress) -> None:
    """Replace all rows by those of a SQLite file, which is upgraded first."""
    with only_transaction(sqlite_engine(file, create=False)) as source:
        if revision(source, file) != HEAD:
            run_migrations(source, "head")
        delete_tables(connection)
        copy_tables(source, connection, progress)


def _commit(writer: Writer, connection: Connection) -> bool:
    """Commit the transaction; return False if it cannot be known whether it is committed."""
    try:
        writer.commit(connection)
    except UnknownCommit as unknown:
        connection.close()
        try:
            committed = writer.was_committed(unknown.number)
        except (StoreUnavailable, DBAPIError):
            return False
        if not committed:
            raise
    return True


@contextmanager
def _errors_of(url: PostgresUrl) -> Generator[None]:
    """Turn errors of the backup's values into ``ValueError``, and others into ``OperatorError``."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"its database has an unreadable value: {error}") from error
    except StatementError as error:
        raise _translate(error, url) from error


def _translate(error: StatementError, url: PostgresUrl) -> Exception:
    state = str(getattr(error.orig, "sqlstate", ""))
    reason = str(error.orig).partition("\n")[0][:_REASON]
    if isinstance(error.orig, sqlite3.Error):
        return ValueError(f"its database cannot be read: {reason}")
    if not isinstance(error, DBAPIError) or state.startswith(_CONTENT_STATES):
        return ValueError(f"PostgreSQL cannot store a value of its database: {reason}")
    if state == LOCKED:
        return DatabaseBusy(
            f"the PostgreSQL database {url} is being read, restored or rewritten by another program; try again "
            "when it has ended"
        )
    return url.unusable(error.orig)
