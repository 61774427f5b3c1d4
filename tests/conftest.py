"""What many tests stand on: a real database, a clock, turns over a scripted model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset

from torana.agent import TurnAgent
from torana.agent.instructions import Instructions
from torana.memory import Memory
from torana.messages import GATEWAY_OWNER, Inbound, Turn
from torana.sessions import Sessions
from torana.skills import CORE_DIR, Skills
from torana.store.database import Database
from torana.store.migrate import migrate
from torana.testing import ScriptedModel
from torana.tools import ToolContext
from torana.tools.conversation import ConversationTools
from torana.tools.memory import MemoryTools
from torana.tools.skills import SkillTools
from torana.tools.toolset import build_toolset
from torana.turns import Turns
from torana.turns.log.memory import MemoryEventLog

START = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


@pytest.fixture
def clock() -> Callable[[], datetime]:
    """Monday the 2nd of March 2026, 9.30 UTC, and a second later at every look."""
    seconds = count()
    return lambda: START + timedelta(seconds=next(seconds))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A new database file."""
    path = tmp_path / "torana.db"
    migrate(path)
    return path


@pytest.fixture
def open_database(path: Path) -> Generator[Callable[[], Database]]:
    """Opens the same file again, as a restart does; all are closed in the end."""
    opened: list[Database] = []

    def open_again() -> Database:
        opened.append(Database(path=path))
        return opened[-1]

    yield open_again
    for database in opened:
        database.close()


@pytest.fixture
def database(open_database: Callable[[], Database]) -> Database:
    """A new database."""
    return open_database()


@pytest.fixture(scope="session")
def core_skills() -> Skills:
    """The skills of the package."""
    return Skills(core_dir=CORE_DIR, user_dir=None, environ={})


@pytest.fixture
def open_agent(
    database: Database, clock: Callable[[], datetime], core_skills: Skills
) -> Callable[..., TurnAgent]:
    """``open_agent(model, toolset, database=…, history_messages=…)``: the real agent over a model."""

    def make(
        model: Model,
        toolset: AbstractToolset[ToolContext] | None = None,
        *,
        database: Database = database,
        history_messages: int = 40,
        recall_in_rooms: bool = False,
    ) -> TurnAgent:
        sessions = Sessions(database=database, history_messages=history_messages)
        memory = Memory(database=database, clock=clock)
        core = build_toolset(
            memory=MemoryTools(memory=memory),
            conversation=ConversationTools(sessions=sessions),
            skills=SkillTools(skills=core_skills),
            own=[],
        )
        zone = ZoneInfo("Europe/Lisbon")
        return TurnAgent(
            model=model,
            toolset=toolset or core,
            instructions=Instructions(persona="You are Torana.", timezone=zone, skills=core_skills),
            sessions=sessions,
            memory=memory,
            timezone=zone,
            recall_in_rooms=recall_in_rooms,
            clock=clock,
        )

    return make


@pytest.fixture
async def open_turns(
    database: Database, clock: Callable[[], datetime], open_agent: Callable[..., TurnAgent]
) -> AsyncGenerator[Callable[..., Turns]]:
    """``open_turns(model, database=…)``: turns over a model, or over any ``agent``; stopped in the end."""
    opened: list[Turns] = []

    def make(
        model: Model | None = None,
        *,
        database: Database = database,
        agent: TurnAgent | None = None,
        turn_timeout: float = 60,
        pause: Callable[[float], Awaitable[None]] | None = None,
    ) -> Turns:
        turns = Turns(
            database=database,
            agent=agent or open_agent(model or ScriptedModel(), database=database),
            log=MemoryEventLog(),
            turn_timeout=turn_timeout,
            clock=clock,
            **({"pause": pause} if pause else {}),
        )
        opened.append(turns)
        return turns

    yield make
    for turns in opened:
        await turns.stop(grace=0)


@pytest.fixture
def message() -> Callable[..., Inbound]:
    """``message("hello", channel="c", user="ana")``: an inbound message of the gateway's own."""

    def make(
        content: str = "hello",
        *,
        channel: str | None = "home",
        user: str | None = None,
        owner: str = GATEWAY_OWNER,
    ) -> Inbound:
        return Inbound(owner=owner, principal="local", content=content, channel=channel, user=user)

    return make


@pytest.fixture
def say(message: Callable[..., Inbound]) -> Callable[..., Awaitable[Turn]]:
    """``await say(turns, "hello", channel="c", user="ana")``: the turn, when it has ended."""

    async def accept_and_await(turns: Turns, content: str = "hello", **who: str | None) -> Turn:
        return await turns.ended(await turns.accept(message(content, **who)))

    return accept_and_await
