"""Rows of MCP servers: the digests of the tool definitions that the operator accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.tables import mcp_pins

#: A number that grows with each accepted change of any server.
number_of_changes = sa.select(sa.func.coalesce(sa.func.sum(mcp_pins.c.version), 0)).scalar_subquery()


@dataclass(frozen=True, slots=True)
class PinsKey:
    """A server of the settings, and a digest of its address or command."""

    server: str
    source: str


def accept_first(connection: Connection, key: PinsKey, digests: Mapping[str, str]) -> Mapping[str, str]:
    """Return the accepted digest of each tool of the server; if it has no row, accept these."""
    known = _find(connection, key)
    return _put(connection, key, digests, version=1) if known is None else known[0]


def accept(connection: Connection, key: PinsKey, digests: Mapping[str, str]) -> Mapping[str, str]:
    """Accept these digests in addition to the known ones, and return all."""
    known, version = _find(connection, key) or ({}, 0)
    return _put(connection, key, {**known, **digests}, version=version + 1)


def _find(connection: Connection, key: PinsKey) -> tuple[Mapping[str, str], int] | None:
    row = connection.execute(sa.select(mcp_pins.c.tools, mcp_pins.c.version).where(_is(key))).first()
    return None if row is None else (_parse(row.tools), row.version)


def _put(
    connection: Connection, key: PinsKey, digests: Mapping[str, str], *, version: int
) -> Mapping[str, str]:
    values = {"tools": json.dumps(dict(digests)), "version": version}
    if not connection.execute(sa.update(mcp_pins).where(_is(key)).values(values)).rowcount:
        connection.execute(sa.insert(mcp_pins), {"server": key.server, "source": key.source, **values})
    return digests


def _parse(text: str) -> Mapping[str, str]:
    """Return the digests; with a damaged value, which a backup may contain, no tool counts as accepted."""
    try:
        tools: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(tools, dict):
        return {}
    return {str(name): str(digest) for name, digest in cast("dict[Any, Any]", tools).items()}


def _is(key: PinsKey) -> sa.ColumnElement[bool]:
    return (mcp_pins.c.server == key.server) & (mcp_pins.c.source == key.source)
