"""Shared fixtures: a real database, a clock, and turns over a scripted model."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import site
import ssl
import subprocess
import sys
import venv
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from zoneinfo import ZoneInfo

import httpcore2
import pytest
from hypothesis import settings
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset
from sqlalchemy.engine import Engine
from tests.assembling import turns_over
from tests.postgres import PostgresServer, create_tables, empty
from tests.redis_server import RedisProcess

from torana.agent import Bounds, TurnAgent
from torana.agent.capability import MeasuredCalls, Safeguards
from torana.agent.permission_gate import PermissionGate
from torana.agent.prompt.context import Contexts
from torana.agent.prompt.files import Prompts
from torana.agent.prompt.instructions import Instructions
from torana.agent.prompt.tool_list import ToolList
from torana.agent.request_size import FixedTokens
from torana.connectors import registry
from torana.limits.budgets import Budgets
from torana.limits.prices import Prices
from torana.measurements import Measurements
from torana.memory import Memory
from torana.messages import GATEWAY_OWNER, File, FileKind, Inbound, OnBusy, Turn
from torana.permissions import Rules
from torana.schedules import Schedules, ScheduleTools
from torana.sessions import Sessions
from torana.skills import CORE_DIR, Skills
from torana.store.engine import sqlite as sqlite_module
from torana.store.engine.database import Database
from torana.store.engine.migrate import migrate
from torana.store.engine.postgres.connection import PostgresUrl
from torana.store.engine.postgres.database import PostgresDatabase
from torana.store.engine.sqlite import SqliteDatabase
from torana.store.workspaces import Workspaces
from torana.testing import ScriptedModel
from torana.tools import ToolContext, operator
from torana.tools.builtin.conversation import ConversationTools
from torana.tools.builtin.files import FileTools
from torana.tools.builtin.lists import ListTools
from torana.tools.builtin.memory import MemoryTools
from torana.tools.builtin.skills import SkillTools
from torana.tools.builtin.tool_search import ToolSearch
from torana.tools.builtin.web import WebTools
from torana.tools.computing import Computing
from torana.tools.toolset import build_toolset
from torana.turns import Queue, Turns
from torana.turns.approvals import Approvals
from torana.web import Guard, GuardedClient
from torana.web.readable import Reader

ROOT = Path(__file__).parents[1]

#: The fixture of the place of a database, by its kind.
PLACES = {"sqlite": "path", "postgresql": "postgres_url", "postgresql-18": "postgres_18_url"}

START = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)

#: Directories whose tests start, kill or attack whole gateways: they belong to the long tier.
LONG = tuple(Path(__file__).with_name(name) for name in ("acceptance", "attacks", "chaos"))

# The fast tier tries the same few examples in each run; the long tier looks for new ones.
settings.register_profile("fast", deadline=None, max_examples=20, derandomize=True, database=None)
settings.register_profile("long", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("TORANA_TEST_PROFILE", "fast"))

# A shell lets its background jobs ignore Ctrl-C, and the programs that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# jsonschema imports it where it is installed: a second and a half for a format that nothing here checks.
sys.modules.setdefault("rfc3987_syntax", cast("ModuleType", None))

# Collection makes millions of objects that stay: the collector would look at them again and again.
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the tests of the long tier for a run of the fast one."""
    return True if collection_path in LONG and config.option.markexpr == "not long" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test of a directory of the long tier."""
    for item in items:
        if any(item.path.is_relative_to(directory) for directory in LONG):
            item.add_marker("long")


def pytest_collection_finish() -> None:
    """Exempt what is loaded by now from garbage collection, which would look at it again in each test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)  # as in the gateway
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Generator[None]:
    """Let commits of this process not wait for the disk: no test cuts the power, and a wait takes time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_module, "PRAGMAS", (*sqlite_module.PRAGMAS, "synchronous=OFF"))
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled_once(empty_database: Path) -> Generator[None]:
    """Let the databases of this process share compiled statements: each would compile the same ones again."""
    open_engine = sqlite_module.sqlite_engine
    first = open_engine(empty_database)
    first.connect().close()
    compiled: dict[Any, Any] = {}

    def open_alike(path: Path, **options: bool) -> Engine:
        engine = open_engine(path, **options)
        engine.dialect = first.dialect  # a compiled statement belongs to its dialect
        engine.update_execution_options(compiled_cache=compiled)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_module, "sqlite_engine", open_alike)
        yield
    first.dispose()


@pytest.fixture(scope="session", autouse=True)
def read_once() -> Generator[None]:
    """Read the installed packages and the trusted certificates once: each gateway would read them again."""
    default_context = httpcore2.default_ssl_context

    @cache
    def list_points(_path: tuple[str, ...], group: str) -> EntryPoints:
        return entry_points(group=group)

    def find_points(*, group: str) -> EntryPoints:
        return list_points(tuple(sys.path), group)

    @cache
    def trust(_file: str | None, _directory: str | None, trust_env: bool) -> ssl.SSLContext:
        return default_context(_trust_env=trust_env)

    def make_context(*, _trust_env: bool = True) -> ssl.SSLContext:
        return trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"), _trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "entry_points", find_points)
        patch.setattr(registry, "entry_points", find_points)
        patch.setattr(httpcore2, "default_ssl_context", make_context)
        yield


def _loggers() -> list[logging.Logger]:
    named = logging.Logger.manager.loggerDict.values()
    return [logging.getLogger(), *(logger for logger in named if isinstance(logger, logging.Logger))]


@pytest.fixture
def logging_as_before() -> Generator[None]:
    """Restore all loggers at the end, for tests that configure logging."""
    before = {it: (it.level, it.propagate, it.handlers[:], it.filters[:]) for it in _loggers()}
    yield
    for logger in _loggers():
        level, propagate, handlers, filters = before.get(logger, (logging.NOTSET, True, [], []))
        for handler in [handler for handler in logger.handlers if handler not in handlers]:
            handler.close()
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers
        logger.filters[:] = filters


@pytest.fixture
def clock() -> Callable[[], datetime]:
    """A clock that starts at 9.30 UTC on Monday 2 March 2026 and advances a second with each call."""
    seconds = count()
    return lambda: START + timedelta(seconds=next(seconds))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with the current schema and no rows, to be copied."""
    path = tmp_path_factory.mktemp("empty") / "torana.db"
    migrate(path)
    return path


@pytest.fixture
def path(tmp_path: Path, empty_database: Path) -> Path:
    """A new database file."""
    return Path(shutil.copy(empty_database, tmp_path))


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer]:
    """A real PostgreSQL server."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_tables(postgres_server: PostgresServer) -> str:
    """The URL of a PostgreSQL database with the current tables."""
    url = postgres_server.create("tables")
    create_tables(url)
    return url


@pytest.fixture
def postgres_url(postgres_tables: str) -> Generator[str]:
    """The URL of a PostgreSQL database with the current tables, and no rows after the test."""
    yield postgres_tables
    empty(postgres_tables)


@pytest.fixture(scope="session")
def postgres_18_tables() -> Generator[str]:
    """The URL of a database of PostgreSQL 18 with the current tables."""
    with PostgresServer(version=18) as server:
        url = server.create("tables")
        create_tables(url)
        yield url


@pytest.fixture
def postgres_18_url(postgres_18_tables: str) -> Generator[str]:
    """The URL of a database of PostgreSQL 18 with the current tables, and no rows after the test."""
    yield postgres_18_tables
    empty(postgres_18_tables)


@pytest.fixture(scope="session")
def redis_process() -> Generator[RedisProcess]:
    """A real Redis server."""
    with RedisProcess() as process:
        yield process


@pytest.fixture
def redis(redis_process: RedisProcess) -> Generator[RedisProcess]:
    """A real Redis server without data, which works again after the test."""
    yield redis_process
    redis_process.kill()
    redis_process.start()


@pytest.fixture
def dialect() -> str:
    """The kind of the database: ``sqlite``, or the one in TORANA_TEST_DATABASE."""
    return os.environ.get("TORANA_TEST_DATABASE", "sqlite")


@pytest.fixture
def open_database(dialect: str, request: pytest.FixtureRequest) -> Generator[Callable[[], Database]]:
    """Opens the same database again, as a restart does; all are closed at the end."""
    opened: list[Database] = []
    place: Path | str = request.getfixturevalue(PLACES[dialect])

    def open_again() -> Database:
        if isinstance(place, Path):
            opened.append(SqliteDatabase(path=place))
        else:
            for earlier in opened:  # a database of PostgreSQL has one writer
                earlier.close()
            opened.append(PostgresDatabase(url=PostgresUrl(place)))
        return opened[-1]

    yield open_again
    for database in opened:
        database.close()


@pytest.fixture
def database(open_database: Callable[[], Database]) -> Database:
    """A new database."""
    return open_database()


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Starts processes that have imported the gateway: ``processes.Process(target=…)``.

    They are copies of one process without threads, so they start within milliseconds.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.conftest", "torana.app"])
    return context


#: Builds a gateway with the default settings in a directory, and prints the names of the imported modules.
_BUILD = """
import sys, time
from pathlib import Path
from torana.app import build
from torana.config import load
path = Path(sys.argv[1])
loaded = load(flags={}, environ={"TORANA_DATA_DIR": str(path)}, cwd=path, user_dir=path)
build(loaded, started=time.monotonic()).database.close()
print(*sys.modules)
"""


@pytest.fixture(scope="session")
def imported_at_start(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The names of the modules that a new process imports to build a gateway with the default settings."""
    command = [sys.executable, "-c", _BUILD, str(tmp_path_factory.mktemp("built"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return frozenset(done.stdout.split())


@pytest.fixture(scope="session")
def core_skills() -> Skills:
    """The skills of the package."""
    return Skills(core_dir=CORE_DIR, user_dir=None, environ={})


@pytest.fixture
def workspaces(database: Database) -> Workspaces:
    """Workspaces with small limits: 10,000 bytes in 5 files."""
    return Workspaces(database=database, max_bytes=10_000, max_files=5)


@pytest.fixture
def web_tools() -> WebTools:
    """The real web tools, which reach nothing in a test."""
    return WebTools(client=GuardedClient(guard=Guard()), reader=Reader())


@pytest.fixture
async def computing() -> AsyncGenerator[Computing]:
    """Worker processes for tools, which end with the test."""
    computing = Computing()
    yield computing
    await computing.close()


@pytest.fixture
def open_agent(
    database: Database,
    clock: Callable[[], datetime],
    core_skills: Skills,
    workspaces: Workspaces,
    web_tools: WebTools,
    computing: Computing,
) -> Callable[..., TurnAgent]:
    """``open_agent(model, toolset, database=…, history_messages=…)`` returns the real agent over a model."""

    def make(
        model: Model,
        toolset: AbstractToolset[ToolContext] | None = None,
        *,
        database: Database = database,
        history_messages: int = 40,
        recall_in_rooms: bool = False,
        takes: Sequence[FileKind] = ("text", "image", "pdf"),
        rules: Rules | None = None,
        bounds: Bounds | None = None,
        fixed_tokens: FixedTokens | None = None,
        pinned: Sequence[str] = ("*",),
    ) -> TurnAgent:
        sessions = Sessions(database=database, history_messages=history_messages)
        memory = Memory(database=database, clock=clock)
        zone = ZoneInfo("Europe/Lisbon")
        schedules = Schedules(
            database=database,
            computing=computing,
            zone=zone,
            per_user=50,
            min_minutes=5,
            changed=lambda: None,
            clock=clock,
        )
        core = build_toolset(
            [
                MemoryTools(memory=memory),
                ConversationTools(sessions=sessions),
                SkillTools(skills=core_skills),
                ToolSearch(skills=core_skills, computing=computing),
                ScheduleTools(schedules=schedules),
                FileTools(workspaces=workspaces),
                ListTools(workspaces=workspaces, computing=computing),
                web_tools,
            ],
            own=[],
            computing=computing,
        )
        tool_list = ToolList(skills=core_skills, pinned=pinned, direct=10)
        return TurnAgent(
            model=model,
            capabilities=[
                Safeguards(
                    permits=PermissionGate(rules=rules or Rules()),
                    tools=toolset or core,
                    tool_list=tool_list,
                    measured=MeasuredCalls(measurements=Measurements(), prices=Prices()),
                )
            ],
            contexts=Contexts(
                sessions=sessions,
                memory=memory,
                instructions=Instructions(persona="You are Torana.", timezone=zone, skills=core_skills),
                prompts=Prompts(sessions=sessions, takes=frozenset(takes)),
                tool_list=tool_list,
                recall_in_rooms=recall_in_rooms,
                clock=clock,
            ),
            timezone=zone,
            bounds=bounds or Bounds(),
            clock=clock,
            prices=Prices(),
            fixed_tokens=fixed_tokens,
        )

    return make


@pytest.fixture
async def open_turns(
    database: Database, clock: Callable[[], datetime], open_agent: Callable[..., TurnAgent]
) -> AsyncGenerator[Callable[..., Turns]]:
    """``open_turns(model, database=…)`` makes turns over a model, or over any ``agent``; stopped at the end."""
    opened: list[Turns] = []

    def make(
        model: Model | None = None,
        *,
        database: Database = database,
        agent: TurnAgent | None = None,
        turn_timeout: float = 60,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], datetime] = clock,
        queue: Queue | None = None,
        budgets: Budgets | None = None,
        ended: Callable[[Turn], None] | None = None,
        approvals: Approvals | None = None,
        rules: Rules | None = None,
        measurements: Measurements | None = None,
    ) -> Turns:
        turns = turns_over(
            database,
            agent or open_agent(model or ScriptedModel(), database=database, rules=rules),
            budgets=budgets,
            turn_timeout=turn_timeout,
            clock=clock,
            queue=queue,
            pause=pause,
            ended=ended,
            approvals=approvals,
            measurements=measurements,
        )
        opened.append(turns)
        return turns

    yield make
    for turns in opened:
        await turns.stop(grace=0)


@pytest.fixture
def message() -> Callable[..., Inbound]:
    """``message("hello", channel="c", user="ana")`` returns an inbound message of the gateway's owner."""

    def make(
        content: str = "hello",
        *,
        channel: str | None = "home",
        user: str | None = None,
        owner: str = GATEWAY_OWNER,
        on_busy: OnBusy = "queue",
        key: str | None = None,
        token: str | None = None,
        files: Sequence[File] = (),
    ) -> Inbound:
        return Inbound(
            owner=owner,
            principal="local",
            content=content,
            channel=channel,
            user=user,
            on_busy=on_busy,
            key=key,
            token=token,
            files=tuple(files),
        )

    return make


@pytest.fixture
def say(message: Callable[..., Inbound]) -> Callable[..., Awaitable[Turn]]:
    """``await say(turns, "hello", channel="c", user="ana")`` returns the ended turn."""

    async def accept_and_await(turns: Turns, content: str = "hello", **who: str | None) -> Turn:
        return await turns.reader.wait_for_end(await turns.accept(message(content, **who)))

    return accept_and_await


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree."""
    base = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(base), str(ROOT)])
    (wheel,) = base.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of commands of an environment in which the wheel is installed as by a user.

    With ``TORANA_FULL_INSTALL=1``, as in CI, its dependencies are also installed from the lock file; otherwise
    they come from the environment that runs the tests.
    """
    return _install(wheel, tmp_path_factory.mktemp("installed"), "requirements.lock")


@pytest.fixture(scope="session")
def installed_with_all(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment like ``installed``, with the libraries of all extras."""
    return _install(wheel, tmp_path_factory.mktemp("installed-with-all"), "requirements-all.lock")


def _install(wheel: Path, base: Path, lock: str) -> Path:
    venv.create(base / "venv", symlinks=True)
    commands = base / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(commands / "python")]
    _run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    if os.environ.get("TORANA_FULL_INSTALL") == "1":
        # uv does not compile what no test imports; the tests of the installation use each installer.
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(commands / "python")]
        _run([*uv, "--require-hashes", "-r", str(ROOT / lock)])
        _run([*pip, "check"])  # the lock file satisfies the wheel's requirements
    else:
        (packages,) = (base / "venv" / "lib").glob("python*/site-packages")
        # A directory listed here is searched without its own .pth files, so the editable source is not found.
        (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return commands


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
