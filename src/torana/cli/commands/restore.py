"""``torana restore``: restore a backup."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.database import backup_target
from torana.cli.flags import CommonOptions
from torana.cli.progress import progress_bar
from torana.cli.terminal import print_result
from torana.errors import OperatorError

app = new_app()


@app.command()
def restore(
    options: CommonOptions,
    source: Annotated[Path, typer.Argument(help="The file that `torana backup` wrote.")],
    max_size: Annotated[
        str | None,
        typer.Option(
            help="The maximum unpacked size, such as 20GB. Default: the larger of 1 GiB and 50 times the "
            "size of the backup. Without this option, no file except the database may have more than 512 MiB."
        ),
    ] = None,
) -> None:
    """Restore a backup. Stop the gateway first. The replaced data is kept beside the restored data."""
    from torana.store.backup.archive import restore_backup
    from torana.store.engine.lock import DataDirLock

    limit = None if max_size is None else _bytes(max_size)
    settings = options.settings
    database = backup_target(settings)
    with (
        DataDirLock(data_dir=settings.data_dir, address="torana restore"),
        progress_bar("restoring the backup") as progress,
    ):
        restored = restore_backup(
            source=source,
            database=database,
            data_dir=settings.data_dir,
            skills_dir=settings.skills_dir,
            at=datetime.now(UTC),
            progress=progress,
            max_size=limit,
        )
    line = (
        f"restored the backup of {restored.created_at} (Torana {restored.version}, "
        f"skill files: {restored.skill_files}) into {database}"
        f"{'; the replaced data is kept as *.replaced-*' if restored.replaced else ''}"
    )
    document = {
        "created": str(restored.created_at),
        "version": restored.version,
        "skillFiles": restored.skill_files,
        "dataDir": str(settings.data_dir),
        "replaced": bool(restored.replaced),
    }
    print_result(line, document, as_json=options.as_json)


def _bytes(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        size = 0
    if size <= 0:
        raise OperatorError(f"--max-size: {text!r} is not a size; write a number with a unit, such as 20GB")
    return size
