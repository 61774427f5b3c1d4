"""A copy of a database between SQLite and PostgreSQL: rows, interruptions, differences and refused targets."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.postgres import PostgresServer, create_tables

from torana.errors import DatabaseBusy, DatabaseTooNew, DatabaseUnusable, DataDirUnusable, OperatorError
from torana.messages import new_id
from torana.store.copying.database_copy import CopyReport, copy_between
from torana.store.copying.digests import TableDigest
from torana.store.copying.targets import CopyTarget, PostgresCopyTarget, SqliteCopyTarget
from torana.store.engine.migrate import HEAD, migrate, run_migrations
from torana.store.engine.places import DatabasePlace, PostgresPlace, SqlitePlace
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.snapshot import Progress
from torana.store.engine.sqlite import sqlite_engine
from torana.store.engine.table_copy import set_last_number
from torana.store.engine.tables import (
    UtcTime,
    attachments,
    calls,
    deliveries,
    history,
    leases,
    memory_words,
    message_words,
    metadata,
    sessions,
    steps,
)

#: More rows of a table than a page has, and of a table with large rows, whose pages are smaller.
ROWS = 110
LARGE_ROWS = 15

EPOCH = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)

NAMES = count()

WORDS = {
    memory_words: {"owner": "ana", "memory": "m", "words": "tea cup"},
    message_words: {"owner": "ana", "session": "s", "words": "tea 茶"},
}

#: Changes a row of a copy.
SPOIL = "UPDATE sessions SET title = 'changed' WHERE next_seq = (SELECT max(next_seq) FROM sessions)"


@dataclass(frozen=True)
class Sides:
    """Both databases of a copy; the source is full of rows."""

    source: DatabasePlace
    target: CopyTarget
    #: The place of a gateway that uses the target.
    place: DatabasePlace
    data_dir: Path
    url: str

    @property
    def to_postgresql(self) -> bool:
        return isinstance(self.target, PostgresCopyTarget)

    def copy(self, *, restart: bool = False, show: Callable[[str], Any] | None = None) -> CopyReport:
        show_progress = show or show_nothing
        return asyncio.run(copy_between(self.source, self.target, restart=restart, show_progress=show_progress))

    def change_row(self) -> None:
        """Change a row of the unfinished copy."""
        if self.to_postgresql:
            with psycopg.connect(self.url) as connection:
                connection.execute(SPOIL.encode())
        else:
            with closing(sqlite3.connect(self.data_dir / "torana.db.copy")) as connection, connection:
                connection.execute(SPOIL)


@contextmanager
def show_nothing(_label: str) -> Generator[Progress]:
    yield lambda _done, _total: None


def value_of(column: sa.Column[Any], number: int) -> Any:
    """Return the value of a column in the row with a number; it differs from those of other rows."""
    for reference in column.foreign_keys:
        return value_of(reference.column, number)
    if column.nullable and number % 3 == 0:
        return None
    match column.type:
        case sa.Boolean():
            return number % 2 == 0
        case sa.Integer():
            return 2**40 + number
        case sa.Float():
            return number / 7
        case sa.LargeBinary():
            return number.to_bytes(3, "big") + b"\0\xff"
        case UtcTime():
            return EPOCH + timedelta(minutes=number, microseconds=number)
        case _:
            return f"{column.table.name} {column.name} é茶🍵 {number:03}"


def fill(connection: Connection) -> None:
    """Insert rows into every table and text index.

    There are no leases: PostgreSQL deletes those of ended processes.
    """
    large = (attachments, calls, history, steps)
    for table in metadata.sorted_tables:
        numbers = range(0 if table is leases else LARGE_ROWS if table in large else ROWS)
        rows = [{column.name: value_of(column, number) for column in table.c} for number in numbers]
        if rows:
            connection.execute(sa.insert(table), rows)
    for index, row in WORDS.items():
        connection.execute(sa.insert(index), [{"rowid": number + 1} | row for number in range(ROWS)])
    set_last_number(connection, 2**40 + ROWS - 1)
    connection.execute(sa.delete(deliveries).where(deliveries.c.number == 2**40 + ROWS - 1))


def rows_in(connection: Connection) -> dict[str, list[Any]]:
    """Return all rows of all tables."""
    tables = [*metadata.sorted_tables, *WORDS]
    return {table.name: sorted(connection.execute(sa.select(*table.c)).fetchall(), key=str) for table in tables}


def write(place: DatabasePlace, work: Callable[[Connection], object]) -> None:
    with closing(place.open()) as database:
        asyncio.run(database.run(work))


@pytest.fixture
def empty_url(postgres_server: PostgresServer) -> str:
    """The URL of a PostgreSQL database without tables."""
    return postgres_server.create(f"copy_{next(NAMES)}_{os.getpid()}")


@pytest.fixture
def to_postgresql(path: Path, empty_url: str) -> Sides:
    """A full SQLite file, and an empty PostgreSQL database."""
    source = SqlitePlace(path.parent)
    write(source, fill)
    return Sides(
        source,
        PostgresCopyTarget(PostgresUrl(empty_url)),
        PostgresPlace(empty_url, data_dir=path.parent),
        path.parent,
        empty_url,
    )


@pytest.fixture
def to_sqlite(tmp_path: Path, postgres_url: str) -> Sides:
    """A full PostgreSQL database, and an empty data directory."""
    source = PostgresPlace(postgres_url, data_dir=tmp_path)
    write(source, fill)
    return Sides(source, SqliteCopyTarget(tmp_path), SqlitePlace(tmp_path), tmp_path, postgres_url)


@pytest.fixture(params=["to_postgresql", "to_sqlite"])
def sides(request: pytest.FixtureRequest) -> Sides:
    return request.getfixturevalue(request.param)


def test_copy_has_all_rows_and_its_source_is_unchanged(sides: Sides) -> None:
    before = sides.source.read(rows_in)

    report = sides.copy()

    assert sides.place.read(rows_in) == sides.source.read(rows_in) == before
    assert {name: digest.rows for name, digest in report.tables.items()} == {
        name: len(rows) for name, rows in before.items()
    }
    assert not report.continued


def test_copy_continues_the_numbers_of_deliveries(sides: Sides) -> None:
    sides.copy()

    def insert(connection: Connection) -> None:
        row = {column.name: value_of(column, 1) for column in deliveries.c if column.name != "number"}
        row |= {"id": new_id("dlv"), "part": 7}
        added = connection.execute(sa.insert(deliveries).returning(deliveries.c.number), row).scalar_one()
        assert added == 2**40 + ROWS  # the number of the deleted row is not used again
        connection.execute(sa.insert(memory_words), WORDS[memory_words])

    write(sides.place, insert)


def copy_until_killed(to_postgresql: bool, data_dir: Path, url: str, label: str, rows: int) -> None:
    """Copy, and kill this process when a number of rows are copied or compared."""

    @contextmanager
    def show(shown: str) -> Generator[Progress]:
        def report(done: int, _total: int) -> None:
            if shown == label and done >= rows:
                os.kill(os.getpid(), signal.SIGKILL)

        yield report

    sqlite, postgres = SqlitePlace(data_dir), PostgresPlace(url, data_dir=data_dir)
    source: DatabasePlace = sqlite if to_postgresql else postgres
    target: CopyTarget = PostgresCopyTarget(PostgresUrl(url)) if to_postgresql else SqliteCopyTarget(data_dir)
    asyncio.run(copy_between(source, target, restart=False, show_progress=show))


def kill(sides: Sides, processes: ForkServerContext, label: str, rows: int) -> None:
    arguments = (sides.to_postgresql, sides.data_dir, sides.url, label, rows)
    process = processes.Process(target=copy_until_killed, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("label", "rows"),
    [
        pytest.param("copying the rows", 500, id="copying"),
        pytest.param("comparing the rows", 500, id="comparing", marks=pytest.mark.long),
    ],
)
def test_killed_copy_is_refused_by_gateways_and_continued(
    sides: Sides, processes: ForkServerContext, label: str, rows: int
) -> None:
    kill(sides, processes, label, rows)

    for use in (sides.place.open, sides.place.check_exists):
        with pytest.raises(
            OperatorError, match=r"unfinished copy.*[Cc]ontinue it with `torana database copy --to"
        ):
            use()
    copied: list[int] = []

    @contextmanager
    def show(shown: str) -> Generator[Progress]:
        yield lambda done, _total: copied.append(done) if shown == "copying the rows" else None

    assert sides.copy(show=show).continued
    assert min(copied, default=ROWS * ROWS) > rows
    assert sides.place.read(rows_in) == sides.source.read(rows_in)
    sides.place.open().close()


def test_lost_connection_is_replaced(sides: Sides, postgres_server: PostgresServer) -> None:
    database = sides.url.rpartition("/")[2]

    @contextmanager
    def show(_label: str) -> Generator[Progress]:
        postgres_server.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            f"WHERE application_name LIKE 'torana %' AND datname = '{database}'"
        )
        yield lambda _done, _total: None

    sides.copy(show=show)

    assert sides.place.read(rows_in) == sides.source.read(rows_in)


def test_changed_row_of_the_copy_is_found(sides: Sides) -> None:
    @contextmanager
    def show(label: str) -> Generator[Progress]:
        if label == "comparing the rows":
            sides.change_row()
        yield lambda _done, _total: None

    with pytest.raises(OperatorError, match=rf"sessions differs: {ROWS} rows in .* --restart"):
        sides.copy(show=show)

    with pytest.raises(OperatorError, match="unfinished copy"):
        sides.place.open()
    with pytest.raises(OperatorError, match="sessions differs"):
        sides.copy()
    assert not sides.copy(restart=True).continued
    assert sides.place.read(rows_in) == sides.source.read(rows_in)


def test_copy_of_another_source_is_not_continued(
    sides: Sides, processes: ForkServerContext, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    kill(sides, processes, "copying the rows", 500)
    other: DatabasePlace
    if sides.to_postgresql:
        (tmp_path / "other").mkdir()
        migrate(tmp_path / "other" / "torana.db")
        other = SqlitePlace(tmp_path / "other")
    else:
        url = postgres_server.create(f"other_{next(NAMES)}_{os.getpid()}")
        create_tables(url)
        other = PostgresPlace(url, data_dir=tmp_path)
    copy = Sides(other, sides.target, sides.place, sides.data_dir, sides.url).copy

    with pytest.raises(OperatorError, match=r"is an unfinished copy of .*, not of .*--restart"):
        copy()

    assert copy(restart=True).rows == 0
    assert sides.place.read(rows_in) == other.read(rows_in)


def test_complete_file_is_renamed_by_the_next_copy(to_sqlite: Sides) -> None:
    to_sqlite.copy()
    (to_sqlite.data_dir / "torana.db").rename(to_sqlite.data_dir / "torana.db.copy")

    assert to_sqlite.copy().continued
    assert to_sqlite.place.read(rows_in) == to_sqlite.source.read(rows_in)


def test_copy_replaces_no_data(sides: Sides) -> None:
    write(sides.place, lambda connection: connection.execute(sa.insert(sessions), session()))

    for restart in (False, True):
        with pytest.raises(
            OperatorError, match=r"^\S*( PostgreSQL database \S+ has data| exists), and a copy replaces no data"
        ):
            sides.copy(restart=restart)

    assert sides.place.read(
        lambda connection: connection.execute(sa.select(sessions.c.id)).scalars().all()
    ) == [session()["id"]]


def session() -> dict[str, Any]:
    return {column.name: value_of(column, 1) for column in sessions.c}


def test_copy_fills_tables_without_rows(to_postgresql: Sides) -> None:
    create_tables(to_postgresql.url)

    assert to_postgresql.copy().rows > ROWS


def test_database_that_a_gateway_uses_is_refused(sides: Sides) -> None:
    place = sides.place if sides.to_postgresql else sides.source
    with closing(place.open()), pytest.raises(DatabaseBusy, match="is used by 'torana gateway on"):
        sides.copy()


def test_tables_of_another_program_are_refused(to_postgresql: Sides) -> None:
    with psycopg.connect(to_postgresql.url) as connection:
        connection.execute("CREATE TABLE notes (text text)")

    with pytest.raises(DatabaseUnusable, match=r"^the PostgreSQL database \S+ has tables of another"):
        to_postgresql.copy(restart=True)


def test_missing_rights_are_reported_with_a_cure(to_postgresql: Sides, postgres_server: PostgresServer) -> None:
    role = f"guest_{next(NAMES)}_{os.getpid()}"
    postgres_server.execute(f"CREATE ROLE {role} LOGIN")
    database = to_postgresql.url.rpartition("/")[2]
    postgres_server.execute("REVOKE CREATE ON SCHEMA public FROM public", database)
    url = to_postgresql.url.replace("torana:", f"{role}:")
    target = PostgresCopyTarget(PostgresUrl(url))

    with pytest.raises(DatabaseUnusable, match=r"permission denied.*let the user own the database"):
        Sides(to_postgresql.source, target, to_postgresql.place, to_postgresql.data_dir, url).copy()


def test_lost_rights_leave_a_copy_that_is_continued(
    to_postgresql: Sides, postgres_server: PostgresServer
) -> None:
    database = to_postgresql.url.rpartition("/")[2]

    @contextmanager
    def show(_label: str) -> Generator[Progress]:
        postgres_server.execute("ALTER TABLE turns ADD CONSTRAINT never CHECK (seq < 0)", database)
        yield lambda _done, _total: None

    with pytest.raises(OperatorError, match=r"^PostgreSQL .*\"never\".*run the command again") as refused:
        to_postgresql.copy(show=show)

    assert "turns content" not in refused.value.detail
    postgres_server.execute("ALTER TABLE turns DROP CONSTRAINT never", database)
    assert to_postgresql.copy().continued


def test_source_of_another_revision_is_refused(tmp_path: Path, empty_url: str) -> None:
    engine = sqlite_engine(tmp_path / "torana.db")
    with engine.begin() as connection:
        run_migrations(connection, "0013")
    engine.dispose()
    target = PostgresCopyTarget(PostgresUrl(empty_url))
    sides = Sides(
        SqlitePlace(tmp_path), target, PostgresPlace(empty_url, data_dir=tmp_path), tmp_path, empty_url
    )

    with pytest.raises(OperatorError, match=rf"at revision 0013, not {HEAD}; start the gateway"):
        sides.copy()

    with closing(sqlite3.connect(tmp_path / "torana.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseTooNew):
        sides.copy()


def test_copy_belongs_to_the_deployment_of_its_settings(path: Path, empty_url: str) -> None:
    source = SqlitePlace(path.parent)
    write(source, fill)
    target = PostgresCopyTarget(PostgresUrl(empty_url), cluster="staging")
    place = PostgresPlace(empty_url, data_dir=path.parent, cluster="staging")
    Sides(source, target, place, path.parent, empty_url).copy()

    for cluster in ("production", None):
        other = PostgresPlace(empty_url, data_dir=path.parent, cluster=cluster)
        with pytest.raises(DatabaseUnusable, match="belongs to the cluster 'staging'"):
            other.read(lambda connection: None)


def test_database_of_another_deployment_is_no_target(path: Path, empty_url: str) -> None:
    place = PostgresPlace(empty_url, data_dir=path.parent, cluster="production")
    place.open().close()

    with pytest.raises(DatabaseUnusable, match="belongs to the cluster 'production'"):
        PostgresCopyTarget(PostgresUrl(empty_url), cluster="staging").open("source", restart=False)

    place.read(lambda connection: None)


def test_missing_source_is_refused(tmp_path: Path, postgres_url: str) -> None:
    target = PostgresCopyTarget(PostgresUrl(postgres_url))

    with pytest.raises(DataDirUnusable, match="there is no database"):
        Sides(
            SqlitePlace(tmp_path),
            target,
            PostgresPlace(postgres_url, data_dir=tmp_path),
            tmp_path,
            postgres_url,
        ).copy()


def test_digest_ignores_only_the_characters_that_postgresql_drops() -> None:
    def digest(row: dict[str, Any]) -> str:
        digest = TableDigest()
        digest.add(row)
        return str(digest)

    row = {"text": "tea", "number": 1, "body": b"tea", "at": EPOCH, "none": None}
    changes = [
        {"text": "tea?"},
        {"number": 1.5},
        {"body": "tea"},
        {"at": EPOCH + timedelta.resolution},
        {"none": ""},
    ]

    assert digest(row | {"text": "t\0ea"}) == digest(row)
    assert len({digest(row), *(digest(row | change) for change in changes)}) == 1 + len(changes)
