"""Three gateways on one PostgreSQL server behind HAProxy, each of which a test can disturb."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row
from tests.chaos.history import Stored, StoredTurn
from tests.chaos.program import ROOT, TOOLS, Program
from tests.health import accepts_messages
from tests.parts import require
from tests.postgres import PostgresProxy, PostgresServer
from tests.standins.servers import free_port
from tests.waiting import PATIENCE, eventually

_TURNS = """
SELECT id, channel, "user", seq, content, state, reply,
CASE WHEN ended_at IS NOT NULL THEN rank() OVER (ORDER BY ended_at, seq) ELSE 0 END AS ended FROM turns
"""

CONFIGURATION = ROOT / "deploy" / "proxies" / "haproxy.cfg"


class Replica(Program):
    """A gateway of the checkout that runs the tests, with a connection to the database that can be cut."""

    def __init__(
        self, *, home: Path, tools: Path, proxy: PostgresProxy, database: str, settings: dict[str, str]
    ) -> None:
        home.mkdir()
        self.proxy = proxy
        self._tools = tools
        common = {
            "PYTHONPATH": f"{tools}:{ROOT / 'src'}",
            "TORANA_DATABASE_URL": database,
            "TORANA_REPLICAS": "true",
            "TORANA_DRAIN": "1",
            "TORANA_MAX_CRASHES": "1000",
        }
        super().__init__(
            command=Path(sys.executable).with_name("torana"), home=home, settings=common | settings
        )

    @property
    def lingers(self) -> list[str]:
        """The texts with which the replica executes the tool ``linger`` now."""
        assert self._process is not None
        prefix = f"lingers-{self._process.pid}-"
        return [mark.name.removeprefix(prefix) for mark in self._tools.glob(f"{prefix}*")]

    def replace_program(self, source: Path) -> None:
        """Use the program in a directory from the next start on."""
        self._environ["PYTHONPATH"] = f"{self._tools}:{source}"

    def pause(self) -> None:
        """Stop the process without its notice, as a machine that sleeps."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def comes_up(self) -> bool:
        """Wait until the gateway accepts messages; return False if it ends by itself before."""
        eventually(lambda: not self.alive or self._is_up())
        return self.alive

    def terminate(self) -> int:
        """Stop the gateway orderly, and return its exit code."""
        self._signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class Cluster:
    """Three replicas, their database and their load balancer, which run inside of a ``with`` block."""

    def __init__(self, home: Path, postgres: int | None = None, /, **settings: str) -> None:
        """``settings`` are environment variables of the replicas; ``postgres`` as in ``PostgresServer``."""
        self._home = home
        self._postgres = postgres
        self._settings = settings
        self._running = ExitStack()
        self._database = ""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.replicas: list[Replica] = []

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            haproxy = require("haproxy", "haproxy")
            self.server = starting.enter_context(PostgresServer(self._postgres))
            self._database = self.server.create("torana")
            tools = self._home / "tools"
            tools.mkdir()
            (tools / "chaos_tools.py").write_text(TOOLS)
            self.tools = tools
            for number in range(3):
                self._add(self._home / f"replica {number}", starting)
            self._balance(haproxy, starting)
            self._running = starting.pop_all()
        eventually(self._is_up)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Return rows of the database, read beside the replicas."""
        with psycopg.connect(self._database) as connection:
            return connection.cursor(row_factory=dict_row).execute(statement.encode()).fetchall()

    def is_idle(self) -> bool:
        """Return whether every turn has ended."""
        return not self.rows("SELECT 1 FROM turns WHERE ended_at IS NULL")

    def read(self) -> Stored:
        """Return the contents of the database and the effects of the tools."""
        told = self.rows("SELECT turn_id FROM history ORDER BY session_id, seq")
        return Stored(
            turns=[StoredTurn(**row) for row in self.rows(_TURNS)],
            history=[row["turn_id"] for row in told],
            effects=Counter(self.lines("notes")),
        )

    def runner_of(self, text: str) -> str | None:
        """Return the id of the replica that runs the tool ``linger`` with a text, if the server can say it."""
        query = f"SELECT replica FROM turns WHERE content LIKE '%\"{text}\"%' AND ended_at IS NULL"
        with suppress(psycopg.OperationalError):
            return next((row["replica"] for row in self.rows(query)), None)
        return None

    def has_lost(self, replica: str) -> bool:
        """Return whether others have taken over the work of a replica, if the server can say it."""
        with suppress(psycopg.OperationalError):
            return not self.rows(f"SELECT 1 FROM replicas WHERE id = '{replica}'")
        return False

    def lines(self, file: str) -> list[str]:
        """Return the lines that a tool wrote, in any replica."""
        path = self.tools / file
        return path.read_text().splitlines() if path.exists() else []

    def end_connections(self) -> None:
        """End all connections of the replicas to the database."""
        self.server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'torana'")

    def _add(self, home: Path, starting: ExitStack) -> None:
        proxy = PostgresProxy(self.server.port)
        starting.callback(proxy.close)
        database = self.server.url("torana", port=proxy.port)
        replica = Replica(home=home, tools=self.tools, proxy=proxy, database=database, settings=self._settings)
        starting.callback(replica.kill)
        replica.start()
        self.replicas.append(replica)

    def _balance(self, haproxy: str, starting: ExitStack) -> None:
        text = CONFIGURATION.read_text().replace("bind :8080", f"bind 127.0.0.1:{self.port}")
        for name, replica in zip("abc", self.replicas, strict=True):
            text = text.replace(f" torana-{name}:18789", f" 127.0.0.1:{replica.port}")
        assert not re.search(r":18789|:8080", text)
        file = self._home / "haproxy.cfg"
        file.write_text(text)
        with (self._home / "haproxy.log").open("wb") as log:
            process = subprocess.Popen([haproxy, "-db", "-f", str(file)], stdout=log, stderr=log)
        starting.callback(process.wait, PATIENCE)
        starting.callback(process.kill)

    def _is_up(self) -> bool:
        for replica in self.replicas:
            replica.wait_until_up()
        return accepts_messages(f"{self.url}health")
