"""Databases of both kinds: each test of rows runs on SQLite, and in the long tier on PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from sqlalchemy.engine import Engine

from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.sqlite import sqlite_engine

#: The parameters of a fixture for both kinds.
BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)]


@pytest.fixture(params=BOTH)
def dialect(request: pytest.FixtureRequest) -> str:
    """The kind of the database."""
    return request.param


@pytest.fixture
def engine(dialect: str, request: pytest.FixtureRequest) -> Generator[Engine]:
    """A connection to a new database."""
    if dialect == "sqlite":
        engine = sqlite_engine(request.getfixturevalue("path"))
    else:
        url = PostgresUrl(request.getfixturevalue("postgres_url"))
        engine = url.engine(lambda: url.connect("test", autocommit=False, options="-c torana.replica=test"))
    yield engine
    engine.dispose()
