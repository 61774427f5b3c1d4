"""Databases of all kinds: each test of rows runs on SQLite, and in the long tier on PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from sqlalchemy.engine import Engine
from tests.conftest import PLACES

from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.sqlite import sqlite_engine

#: The kinds of databases, and the servers of PostgreSQL: the system's newest one, and PostgreSQL 18.
KINDS = ["sqlite", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("postgresql", "postgresql-18"))]


@pytest.fixture(params=KINDS)
def dialect(request: pytest.FixtureRequest) -> str:
    """The kind of the database."""
    return request.param


@pytest.fixture
def engine(dialect: str, request: pytest.FixtureRequest) -> Generator[Engine]:
    """A connection to a new database."""
    if dialect == "sqlite":
        engine = sqlite_engine(request.getfixturevalue("path"))
    else:
        url = PostgresUrl(request.getfixturevalue(PLACES[dialect]))
        engine = url.engine(lambda: url.connect("test", autocommit=False, options="-c torana.replica=test"))
    yield engine
    engine.dispose()
