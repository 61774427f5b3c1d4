"""``torana database copy``: settings, output and errors. tests/unit/store/test_database_copy.py copies rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import PostgresServer

from torana.store.engine.lock import DataDirLock
from torana.store.engine.tables import metadata

Command = Callable[..., tuple[int, str, str]]

NAMES = count()


@pytest.fixture
def url(place: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty PostgreSQL database, which is set."""
    url = postgres_server.create(f"command_{next(NAMES)}_{os.getpid()}")
    monkeypatch.setenv("TORANA_DATABASE_URL", url)
    return url


def test_data_are_copied_to_postgresql_and_back(command: Command, data: Path, url: str) -> None:
    target = f"PostgreSQL {url.partition('@')[2]}"
    code, out, err = command("database", "copy", "--to", "postgresql")

    assert (code, err) == (0, "")
    *table, line = out.splitlines()
    assert len(table) == 1 + len(metadata.tables) + 2  # with the text indexes
    source = data / "torana.db"
    assert line == f"copied 0 rows from {source} to {target}, and all are equal; {source} is unchanged"

    code, out, err = command("database", "copy", "--to", "sqlite")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"{data / 'torana.db'} exists, and a copy replaces no data. Move it away" in err

    (data / "torana.db").rename(data / "torana.db.old")
    code, out, err = command("database", "copy", "--to", "sqlite", "--json")
    copied: dict[str, Any] = json.loads(out)
    assert (code, err, copied["source"], copied["target"]) == (0, "", target, str(data / "torana.db"))
    assert (copied["rows"], copied["continued"]) == (0, False)
    assert {len(table["sha256"]) for table in copied["tables"]} == {64}
    assert (data / "torana.db").stat().st_mode & 0o777 == 0o600


def test_missing_data_directory_is_not_created(command: Command, place: Path, url: str) -> None:
    code, out, err = command("database", "copy", "--to", "postgresql", "--data-dir", "mistyped")

    assert (code, out) == (1, "")
    assert f"there is no database {place / 'mistyped' / 'torana.db'} yet" in err
    assert not (place / "mistyped").exists()


def test_copy_needs_the_address_of_postgresql(command: Command, data: Path) -> None:
    assert command("database", "copy", "--to", "postgresql") == (
        2,
        "",
        "database_url: set TORANA_DATABASE_URL to the address of the PostgreSQL database\n",
    )


def test_running_gateway_is_not_copied(command: Command, data: Path, url: str) -> None:
    with DataDirLock(data_dir=data, address="http://127.0.0.1:18789"):
        code, out, err = command("database", "copy", "--to", "postgresql")

    assert (code, out) == (1, "")
    assert err.startswith("already running at http://127.0.0.1:18789 with the data directory")


def test_server_that_cannot_be_reached_is_named_without_the_password(
    command: Command, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_DATABASE_URL", "postgresql://torana:secret-word@127.0.0.1:1/torana")
    code, out, err = command("database", "copy", "--to", "postgresql")

    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("the PostgreSQL database 127.0.0.1:1/torana cannot be used: ")
    assert "secret-word" not in err


def test_unfinished_copy_is_named_by_other_commands(command: Command, data: Path, place: Path) -> None:
    (data / "torana.db").rename(data / "torana.db.copy")
    code, _, err = command("turns", "list")

    assert code == 1
    assert "unfinished copy from PostgreSQL. Continue it with `torana database copy --to sqlite`" in err
