"""Copy the rows of a database page by page, and compare source and copy.

The rows of a table are copied in the order of their keys, and each page is a transaction. An interrupted copy
continues after the last key of each table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, StatementError

from torana.errors import OperatorError, StoreUnavailable
from torana.store.copying.digests import TableDigest
from torana.store.copying.targets import PURPOSE, CopyTarget, remove_mark
from torana.store.engine.database import Database
from torana.store.engine.migrate import HEAD
from torana.store.engine.places import DatabasePlace
from torana.store.engine.snapshot import Progress
from torana.store.engine.table_copy import TableCopy, read_last_number, set_last_number, tables_to_copy

T = TypeVar("T")

#: Returns a context in which the progress of a step with this name is reported.
ShowProgress = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """The result of a copy: whether it continued an unfinished copy, and the digest of each table."""

    continued: bool
    tables: Mapping[str, TableDigest]

    @property
    def rows(self) -> int:
        """Return the number of rows in all tables."""
        return sum(digest.rows for digest in self.tables.values())


async def copy_between(
    source: DatabasePlace, target: CopyTarget, *, restart: bool, show_progress: ShowProgress
) -> CopyReport:
    """Copy all rows of a database, and make the copy usable if it equals the source.

    No gateway may use either database.

    Continues an unfinished copy of the same source, unless ``restart``. The caller holds the lock of the data
    directory. Raises ``OperatorError`` and leaves the source unchanged.
    """
    current = source.revision()
    if current != HEAD:
        raise OperatorError(
            f"{source} is at revision {current}, not {HEAD}; start the gateway on it once with `torana serve`, "
            "which upgrades it"
        )
    with (
        closing(source.open(purpose=PURPOSE)) as old,
        closing(target.open(str(source), restart=restart)) as new,
    ):
        copy = _Copy(_Side(str(source), old), _Side(str(target), new), show_progress=show_progress)
        report = await copy.run()
    target.put_in_place()
    return report


@dataclass(frozen=True, slots=True)
class _Side:
    """The source or the target."""

    name: str
    database: Database

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Return the result of a transaction. Raises ``OperatorError`` with the name of the database."""
        try:
            return await self.database.run(work)
        except StoreUnavailable as error:
            reason = _describe(error.__cause__ or error)
        except (StatementError, ValueError, TypeError) as error:
            reason = _describe(error)
        raise OperatorError(
            f"{self.name}: {reason}. The copy is unfinished: remove the cause and run the command again, which "
            "continues it, or copy from the beginning with --restart"
        )


class _Copy:
    """A copy of all tables between two open databases."""

    def __init__(self, source: _Side, target: _Side, *, show_progress: ShowProgress) -> None:
        self._source = source
        self._target = target
        self._show_progress = show_progress
        self._tables = tables_to_copy()

    async def run(self) -> CopyReport:
        """Copy the rows that the target lacks, compare all rows, and remove the mark of the target."""
        total = await self._source.run(self._count)
        before = await self._target.run(self._count)
        with self._show_progress("copying the rows") as report:
            copied = _Counter(report, total, before)
            for table in self._tables:
                await self._copy(table, copied)
        last_number = await self._source.run(read_last_number)
        await self._target.run(partial(set_last_number, last=last_number))
        with self._show_progress("comparing the rows") as report:
            compared = _Counter(report, 2 * total)
            digests = {table.table.name: await self._compare(table, compared) for table in self._tables}
        await self._target.run(remove_mark)
        return CopyReport(continued=before > 0, tables=digests)

    def _count(self, connection: Connection) -> int:
        return sum(table.count(connection) for table in self._tables)

    async def _copy(self, table: TableCopy, copied: _Counter) -> None:
        last = await self._target.run(partial(_last_key, table))
        async for page in _pages(self._source, table, after=last):
            await self._target.run(partial(table.write, rows=page))
            copied.add(len(page))

    async def _compare(self, table: TableCopy, compared: _Counter) -> TableDigest:
        sides = (self._source, self._target)
        source, target = await asyncio.gather(*(_digest(side, table, compared) for side in sides))
        if (source.rows, str(source)) != (target.rows, str(target)):
            raise OperatorError(
                f"the table {table.table.name} differs: {source.rows} rows in {self._source.name}, "
                f"{target.rows} in the copy. One of them has changed since the copy began; copy from the "
                "beginning with --restart"
            )
        return source


class _Counter:
    """Counts rows, and reports the count and the total."""

    def __init__(self, report: Progress, total: int, done: int = 0) -> None:
        self._report = report
        self._total = total
        self._done = done

    def add(self, rows: int) -> None:
        """Count more rows."""
        self._done += rows
        self._report(self._done, self._total)


async def _pages(
    side: _Side, table: TableCopy, *, after: Sequence[Any] | None = None
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the rows of a table after a key. Each page is read in its own transaction."""
    while page := await side.run(partial(_read_page, table, after=after)):
        yield page
        after = table.key_of(page[-1])


def _read_page(
    table: TableCopy, connection: Connection, *, after: Sequence[Any] | None
) -> list[dict[str, Any]]:
    for page in table.pages(connection, after=after):
        return page
    return []


def _last_key(table: TableCopy, connection: Connection) -> Sequence[Any] | None:
    newest = [column.desc() for column in table.key]
    row = connection.execute(sa.select(*table.key).order_by(*newest).limit(1)).first()
    return None if row is None else list(row)


async def _digest(side: _Side, table: TableCopy, compared: _Counter) -> TableDigest:
    digest = TableDigest()
    async for page in _pages(side, table):
        for row in page:
            digest.add(row)
        compared.add(len(page))
    return digest


def _describe(error: BaseException) -> str:
    """Return the first line of an error. The other lines may contain values of rows."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return next(iter(str(cause).splitlines()), type(error).__name__)
