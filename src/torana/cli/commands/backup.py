"""``torana backup``: write all data into one file, also while the gateway runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torana import __version__
from torana.cli.apps import new_app
from torana.cli.database import backup_target
from torana.cli.flags import CommonOptions
from torana.cli.progress import progress_bar
from torana.cli.terminal import print_result, printable
from torana.errors import OperatorError
from torana.store.backup.retention import backup_name, delete_old_backups

if TYPE_CHECKING:
    from torana.store.backup.targets import BackupTarget

app = new_app()


@app.command()
def backup(
    options: CommonOptions,
    target: Annotated[
        Path | None,
        typer.Argument(
            help=("The file to write, or its directory. Default: torana-<time>.zip in the current directory.")
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="A directory of backups, which is created if it is missing.")
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=1, help="The number of backups to keep in --to; older backups are deleted."),
    ] = None,
) -> None:
    """Write the database, skills, users' files and accepted MCP tools into a new zip file.

    The gateway may keep running.
    """
    from torana.skills.folder import files_to_keep
    from torana.store.backup.archive import INSTALLED, write_backup

    if to is None and keep is not None:
        raise OperatorError("--keep needs --to, the directory whose old backups are deleted")
    if to is not None and target is not None:
        raise OperatorError(f"name either --to or {target}, not both")
    settings = options.settings
    now = datetime.now(UTC)
    database = backup_target(settings)
    database.check_exists()
    file = target or Path() if to is None else _directory(to)
    if file.is_dir():
        file /= backup_name(now)
    if file.exists():
        raise OperatorError(f"{file} already exists; name another file, or a directory")
    if not file.parent.is_dir():
        raise OperatorError(f"the directory {file.parent} does not exist; create it, or name another file")
    with progress_bar("copying the database") as progress:
        write_backup(
            database=database,
            data_dir=settings.data_dir,
            skill_files=files_to_keep(settings.skills_dir),
            installed_files=files_to_keep(settings.data_dir / INSTALLED),
            target=file,
            version=__version__,
            at=now,
            progress=progress,
        )
    size = file.stat().st_size
    print_result(f"{file} ({size:,} bytes)", {"file": str(file), "bytes": size}, as_json=options.as_json)
    if to is not None and keep is not None:
        deleted = _delete_old(to, keep, now, database=database)
        for old in deleted:
            typer.echo(f"deleted {old}", err=options.as_json)
    if foreign := _foreign(database):
        warning = (
            f"warning: `torana restore` refuses this backup, because of its database: {', '.join(foreign)}"
        )
        typer.echo(printable(warning), err=True)


def _delete_old(to: Path, keep: int, now: datetime, *, database: BackupTarget) -> Sequence[Path]:
    """Delete and return old backups, unless the database is damaged: the old backups may be intact."""
    try:
        database.check()
    except OperatorError as error:
        raise OperatorError(
            f"no old backup was deleted, because the database is damaged: {error.detail}"
        ) from error
    return delete_old_backups(to, keep=keep, now=now)


def _foreign(database: BackupTarget) -> list[str]:
    try:
        return database.foreign_objects()
    except OperatorError as error:
        return [error.detail]


def _directory(to: Path) -> Path:
    # Parents are not created: if a disk is not mounted, its backups must not fill another disk.
    to.mkdir(mode=0o700, exist_ok=True)
    return to
