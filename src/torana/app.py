"""The object graph, built once: the only place that chooses implementations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from pydantic_ai.models import Model

from torana.agent import TurnAgent
from torana.agent.instructions import Instructions
from torana.api import Access, Services, create_api
from torana.api.health import Health
from torana.config import Loaded, Settings
from torana.limits import MessageRates
from torana.memory import Memory
from torana.messages import utc_now
from torana.models.base import Card
from torana.models.builtin import BuiltinModel
from torana.models.providers import open_model
from torana.sessions import Sessions
from torana.skills import CORE_DIR, Skills
from torana.store.backup import DATABASE_NAME
from torana.store.database import Database
from torana.store.migrate import migrate
from torana.tools.conversation import ConversationTools
from torana.tools.memory import MemoryTools
from torana.tools.operator import load_tools
from torana.tools.skills import SkillTools
from torana.tools.toolset import build_toolset
from torana.turns import Turns
from torana.turns.log.memory import MemoryEventLog


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A gateway that can be started once."""

    asgi: Callable[..., Awaitable[None]]
    turns: Turns
    model: Model
    database: Database
    _open: AsyncExitStack

    async def start(self) -> None:
        """Open the model's connections and take up what an earlier process left unfinished."""
        await self._open.enter_async_context(self.model)
        await self.turns.start()

    async def close(self) -> None:
        """Stop at once what still runs (the next start takes it up again) and close everything."""
        await self.turns.stop(grace=0)
        await self._open.aclose()
        self.database.close()


def build(loaded: Loaded, *, started: float, model: Model | None = None) -> App:
    """Put a gateway together from its settings; ``started`` is the monotonic time its uptime counts from.

    ``model`` stands in for the one that the settings name.
    Migrates the database: the caller holds the data directory's lock. Takes a second, mostly imports, and may
    run in any thread. Raises ``OperatorError`` for what the operator has to mend.
    """
    settings = loaded.settings
    timezone = ZoneInfo(settings.timezone)
    skills = open_skills(settings, loaded.provider_environ)
    model = model or choose_model(loaded, skills)
    own_tools = load_tools(settings.tools)
    path = settings.data_dir / DATABASE_NAME
    migrate(path)
    database = Database(path=path)
    sessions = Sessions(database=database, history_messages=settings.history_messages)
    memory = Memory(database=database)
    agent = TurnAgent(
        model=model,
        toolset=build_toolset(
            memory=MemoryTools(memory=memory),
            conversation=ConversationTools(sessions=sessions),
            skills=SkillTools(skills=skills),
            own=own_tools,
        ),
        instructions=Instructions(persona=settings.persona, timezone=timezone, skills=skills),
        sessions=sessions,
        memory=memory,
        timezone=timezone,
        recall_in_rooms=settings.recall_in_rooms,
        clock=utc_now,
    )
    turns = Turns(database=database, agent=agent, log=MemoryEventLog(), turn_timeout=settings.turn_timeout)
    services = Services(
        turns=turns,
        rates=MessageRates(per_user=settings.rate_per_user, overall=settings.rate_global),
        health=Health(
            started=started,
            skills=lambda: skills.catalogue().counts(),
            draining=lambda: turns.draining,
            writable=database.writable,
        ),
        skills=lambda: _skill_list(skills),
        wait=settings.wait,
    )
    return App(
        asgi=create_api(services, _access(settings)),
        turns=turns,
        model=model,
        database=database,
        _open=AsyncExitStack(),
    )


def open_skills(settings: Settings, environ: Mapping[str, str]) -> Skills:
    """The core skills and the user's."""
    return Skills(core_dir=CORE_DIR, user_dir=settings.skills_dir, environ=environ)


def choose_model(loaded: Loaded, skills: Skills) -> Model:
    """The model that the settings name. Raises ``ConfigInvalid`` where it cannot be had."""
    settings = loaded.settings
    return open_model(
        settings.model,
        environ=loaded.provider_environ,
        base_url=settings.model_base_url,
        api_key=settings.model_api_key.get_secret_value() if settings.model_api_key else None,
        builtin=lambda: BuiltinModel(cards=lambda: _cards(skills)),
    )


def _cards(skills: Skills) -> list[Card]:
    return [
        Card(
            slug=skill.slug,
            title=skill.title,
            description=skill.description,
            examples=skill.examples,
            tools=skill.tools,
        )
        for skill in skills.catalogue().loaded
    ]


def _skill_list(skills: Skills) -> tuple[str, list[Mapping[str, Any]]]:
    catalogue = skills.catalogue()
    return f'"{catalogue.etag}"', [skills.record(skill) for skill in catalogue.loaded]


def _access(settings: Settings) -> Access:
    token = settings.gateway_token
    return Access(
        token=token.get_secret_value() if token else None,
        allowed_hosts=[*settings.allowed_hosts, settings.host],
        cors_origins=settings.cors_origins,
    )
