"""The database that is backed up, and that a restored backup replaces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torana.store.backup.file_moves import put, set_aside
from torana.store.engine.database_file import sync_directory
from torana.store.engine.integrity import check_database, foreign_objects
from torana.store.engine.places import DATABASE_NAME
from torana.store.engine.read_only import check_exists
from torana.store.engine.snapshot import Progress, copy_database


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A new database that is ready; ``finish`` puts it in the place of the old one."""

    #: Whether the old database has data, which is kept.
    replaces: bool
    finish: Callable[[], None]


class BackupTarget(ABC):
    """A database of which a backup is written, and into which a backup is restored."""

    @abstractmethod
    def check_exists(self) -> None:
        """Raise ``OperatorError`` if there is no database."""

    @abstractmethod
    def copy_to(self, file: Path, progress: Progress) -> None:
        """Write the database, as it is at one moment, into a new SQLite file. A gateway may be running.

        Raises ``OperatorError``, ``OSError`` or ``sqlite3.Error``, and leaves an incomplete file.
        """

    @abstractmethod
    def replace(self, new: Path, suffix: str, progress: Progress) -> AbstractContextManager[Replacement]:
        """Replace the database by the SQLite file ``new``, which has passed all checks of a restore.

        The old data is kept in the data directory as the database's name with the suffix. Without ``finish``,
        and after an error, leaving the context undoes everything. Raises ``OperatorError``, ``OSError``, and
        ``ValueError`` for a file whose content cannot be stored.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise ``OperatorError`` if the database is damaged."""

    @abstractmethod
    def foreign_objects(self) -> list[str]:
        """Describe the objects because of which a restore would refuse a backup of this database.

        Raises ``OperatorError``.
        """


class SqliteBackupTarget(BackupTarget):
    """A SQLite file in a data directory. For ``replace`` the caller holds the directory's lock."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / DATABASE_NAME

    def __str__(self) -> str:
        return str(self._path.parent)

    def check_exists(self) -> None:
        check_exists(self._path)

    def copy_to(self, file: Path, progress: Progress) -> None:
        copy_database(self._path, file, progress)

    @contextmanager
    def replace(self, new: Path, suffix: str, progress: Progress) -> Generator[Replacement]:
        """Move the old file now, and the new one last. See ``BackupTarget.replace``.

        After a crash between the two moves, the database is missing, and the next start refuses to run.
        """
        path = self._path
        with ExitStack() as undo:
            replaces = set_aside(path, f"{path.name}{suffix}", undo)
            for journal in ("-wal", "-shm"):
                # Named after the old database, so that SQLite finds its last writes.
                set_aside(path.with_name(f"{path.name}{journal}"), f"{path.name}{suffix}{journal}", undo)

            def finish() -> None:
                put(new, path, undo)
                sync_directory(path.parent)
                undo.pop_all()

            yield Replacement(replaces=replaces, finish=finish)

    def check(self) -> None:
        check_database(self._path)

    def foreign_objects(self) -> list[str]:
        return foreign_objects(self._path)
