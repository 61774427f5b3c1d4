"""The audit record as the operator reads it. Administrative actions write their own entries."""

from __future__ import annotations

from functools import partial
from typing import Any

from torana.paging import TIME_KEY, Page, cut, read_cursor
from torana.store.engine.database import Database
from torana.store.rows import audit as rows
from torana.store.rows.audit import Act, AuditEntry


class AuditRecord:
    """The record of operators' actions: principal, action, object, time and source."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def add(self, act: Act, action: str, target: str, **detail: Any) -> None:
        """Record an action that changes no row. Call it before the action."""
        await self._database.run(partial(rows.record, act=act, action=action, target=target, **detail))

    async def list_entries(self, *, limit: int, after: str | None) -> Page[AuditEntry]:
        """Return the actions, the newest first."""
        before = read_cursor(after, TIME_KEY)
        found = await self._database.run(partial(rows.list_entries, before=before, limit=limit + 1))
        return cut(found, limit, lambda entry: (entry.act.at, entry.id), TIME_KEY)
