"""``torana database``: move the data between SQLite and PostgreSQL."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.progress import progress_bar
from torana.cli.tables import print_rows
from torana.cli.terminal import print_result
from torana.errors import ConfigInvalid

if TYPE_CHECKING:
    from torana.config import Settings
    from torana.store.copying.database_copy import CopyReport
    from torana.store.copying.targets import CopyTarget
    from torana.store.engine.places import DatabasePlace

app = new_app(is_group=True)


class Kind(StrEnum):
    """A kind of database."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@app.callback()
def database() -> None:
    """Move the data between SQLite and PostgreSQL."""


@app.command("copy")
def copy(
    options: CommonOptions,
    to: Annotated[
        Kind,
        typer.Option(
            "--to",
            help="`postgresql`: copy the SQLite file of the data directory into the database of "
            "TORANA_DATABASE_URL. `sqlite`: copy that database into a new file.",
        ),
    ],
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete an unfinished copy, and copy from the beginning.")
    ] = False,
) -> None:
    """Copy all data between SQLite and PostgreSQL. Stop the gateway first.

    The target must be empty. The same command continues an interrupted copy. All rows are compared at the end;
    until then no gateway starts on the copy. The source is left unchanged.
    """
    import asyncio

    from torana.store.copying.database_copy import copy_between
    from torana.store.engine.lock import DataDirLock

    settings = options.settings
    source, target = _sides(settings, to)
    source.check_exists()
    with DataDirLock(data_dir=settings.data_dir, address="torana database copy"):
        report = asyncio.run(copy_between(source, target, restart=restart, show_progress=progress_bar))
    _print(report, str(source), str(target), as_json=options.as_json)


def _sides(settings: Settings, to: Kind) -> tuple[DatabasePlace, CopyTarget]:
    from torana.store.copying.targets import PostgresCopyTarget, SqliteCopyTarget
    from torana.store.engine.places import PostgresPlace, SqlitePlace
    from torana.store.engine.postgres.connection import PostgresUrl

    if settings.database_url is None:
        raise ConfigInvalid("database_url: set TORANA_DATABASE_URL to the address of the PostgreSQL database")
    url = settings.database_url.get_secret_value()
    data_dir = settings.data_dir.absolute()
    if to is Kind.POSTGRESQL:
        return SqlitePlace(data_dir), PostgresCopyTarget(PostgresUrl(url), cluster=settings.cluster)
    return PostgresPlace(url, data_dir=data_dir, cluster=settings.cluster), SqliteCopyTarget(data_dir)


def _print(report: CopyReport, source: str, target: str, *, as_json: bool) -> None:
    tables: list[dict[str, Any]] = [
        {"table": name, "rows": digest.rows, "sha256": str(digest)} for name, digest in report.tables.items()
    ]
    if not as_json:
        print_rows(["table", "rows", "sha256"], ([str(value) for value in table.values()] for table in tables))
    line = f"copied {report.rows:,} rows from {source} to {target}, and all are equal; {source} is unchanged"
    document = {
        "source": source,
        "target": target,
        "rows": report.rows,
        "continued": report.continued,
        "tables": tables,
    }
    print_result(line, document, as_json=as_json)
