"""A gateway whose data moves from SQLite to PostgreSQL and back."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.postgres import PostgresServer, create_tables

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway, Person

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'turns'::regclass"


@pytest.fixture
def server() -> Generator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def test_conversation_moves_to_postgresql_and_back(
    server: PostgresServer,
    new_gateway: Callable[..., Gateway],
    person: type[Person],
    eventually: Callable[[Callable[[], Any]], Any],
    installed_with_all: Path,
) -> None:
    def command(*arguments: str) -> list[str]:
        return [str(installed_with_all / "torana"), *arguments]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), env=gateway.environ, capture_output=True, text=True, timeout=60, check=False
        )

    def found(text: str) -> list[str]:
        return [hit["snippet"] for hit in ana.get(f"v1/search?q={text}")["items"]]

    gateway = new_gateway(installed_with_all)
    gateway.start()
    ana = person(url=gateway.url)
    ana.say("what is 6 * 7")
    assert "what is 6 * 7" in found("6 7")  # the search indexes the message
    assert gateway.stop() == 0

    gateway.environ["TORANA_DATABASE_URL"] = url = server.create("torana")
    create_tables(url)
    with psycopg.connect(url) as lock:
        lock.execute("LOCK TABLE turns IN SHARE MODE")  # the copy waits before it writes the turns
        with subprocess.Popen(command("database", "copy", "--to", "postgresql"), env=gateway.environ) as copy:
            eventually(lambda: server.execute(WAITING, "torana") != [(0,)])
            copy.send_signal(signal.SIGKILL)
    refused = run("serve")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "is an unfinished copy. Continue it with `torana database copy --to postgresql`" in refused.stderr
    copied = run("database", "copy", "--to", "postgresql", "--json")
    assert (copied.returncode, copied.stderr) == (0, "")
    assert '"continued": true' in copied.stdout

    gateway.start()
    assert "what is 6 * 7" in ana.say("what did I say last?")
    assert gateway.stop() == 0
    (gateway.data_dir / "torana.db").unlink()
    copied = run("database", "copy", "--to", "sqlite")
    assert (copied.returncode, copied.stderr) == (0, "")
    del gateway.environ["TORANA_DATABASE_URL"]
    server.stop()

    gateway.start()
    assert "what did I say last?" in ana.say("what did I say last?")
    assert "what is 6 * 7" in found("6 7")
    assert "not-needed" not in copied.stdout + refused.stderr + gateway.written_output()
