"""The audit record, as the operator reads it; whatever is an administrative act writes it itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.store import audit as rows
from torana.store.audit import Act, Entry
from torana.store.database import Database


class AuditRecord:
    """Who did what to whom, when, and from where."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def add(self, act: Act, action: str, target: str, **detail: Any) -> None:
        """Write down an act that changes no row of its own, before it is done."""
        await self._database.run(partial(rows.record, act=act, action=action, target=target, **detail))

    async def listed(self, *, limit: int, after: str | None) -> Page[Entry]:
        """What was done, the newest first."""
        before = read_cursor(after, TIME_KEY)
        found = await self._database.run(partial(rows.listed, before=before, limit=limit + 1))
        return cut(found, limit, lambda entry: (entry.act.at, entry.id), TIME_KEY)
