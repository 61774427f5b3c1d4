"""The object graph, built once: the only place that chooses implementations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from pydantic_ai import FunctionToolset
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset

from torana.agent import Bounds, TurnAgent
from torana.agent.compaction import Compaction
from torana.agent.instructions import Instructions
from torana.api import Access, Services, create_api
from torana.api.health import Health
from torana.api.metrics import Metrics
from torana.api.services import Connections, People
from torana.config import Loaded, Settings
from torana.connectors.hooks import HooksListener
from torana.connectors.hub import Connectors
from torana.connectors.registry import read_accounts
from torana.limits.budgets import Budgets, Estimate
from torana.limits.policies import Limit, Limits, parse_limit
from torana.limits.prices import Prices, parse_price
from torana.limits.rates import MessageRates
from torana.limits.spending import Spending
from torana.memory import Memory
from torana.messages import FileKind, Turn, utc_now
from torana.models.base import Card
from torana.models.builtin import BuiltinModel
from torana.models.embeddings import Embedder
from torana.models.files import files_taken
from torana.models.providers import open_embedder, open_model, without_builtin
from torana.people.audit import AuditRecord
from torana.people.erasure import Erasure
from torana.people.export import Export
from torana.people.pairing import Pairing
from torana.people.tokens import Tokens
from torana.reload import Reload
from torana.schedules import AgentSchedules, Schedules, Ticker
from torana.sessions import Sessions
from torana.sessions.expiry import Expiry
from torana.sessions.summaries import Summaries
from torana.skills import CORE_DIR, Needs, Skill, Skills, Trigger
from torana.store.backup import DATABASE_NAME
from torana.store.database import Database
from torana.store.migrate import migrate
from torana.store.workspaces import WORKSPACES_NAME, Workspaces
from torana.tools import ToolContext
from torana.tools.conversation import ConversationTools
from torana.tools.files import FileTools
from torana.tools.mcp.entries import read_servers, search_path
from torana.tools.mcp.servers import McpServers
from torana.tools.mcp.toolset import McpToolset
from torana.tools.memory import MemoryTools
from torana.tools.operator import load_tools
from torana.tools.python import PythonTools
from torana.tools.sandbox import Bubblewrap, Sandbox
from torana.tools.schedules import ScheduleTools
from torana.tools.scripts import ScriptTools
from torana.tools.skills import SkillTools
from torana.tools.toolset import build_toolset
from torana.tools.web import WebTools
from torana.turns import Queue, SessionChanges, Turns
from torana.turns.deliveries import Deliveries
from torana.turns.log.memory import MemoryEventLog
from torana.web import Guard, GuardedClient
from torana.web.readable import Reader
from torana.web.search import open_search

#: The limit that is counted in memory.
_A_MINUTE = "messages-minute"


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A gateway that can be started once."""

    asgi: Callable[..., Awaitable[None]]
    turns: Turns
    agent: TurnAgent
    model: Model
    embedder: Embedder | None
    database: Database
    services: Services
    compaction: Compaction | None
    expiry: Expiry | None
    ticker: Ticker
    connectors: Connectors
    hooks: HooksListener | None
    reload: Reload
    mcp: McpServers
    python: PythonTools
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Open the model's connections, take up what an earlier process left unfinished, and clear up."""
        await self._open.enter_async_context(self.model)
        if self.embedder:
            await self._open.enter_async_context(self.embedder)
        self.mcp.start()
        self._open.push_async_callback(self.python.close)
        await self.turns.start()
        if self.expiry is not None:
            self.expiry.start()
        await self.connectors.start()
        if self.hooks is not None:
            await self.hooks.start()
        self.ticker.start()

    async def close(self) -> None:
        """Stop at once what still runs (the next start takes it up again) and close everything."""
        await self.ticker.stop()
        if self.expiry is not None:
            await self.expiry.stop()
        if self.hooks is not None:
            await self.hooks.stop()
        await self.connectors.stop()
        await self.turns.stop(grace=0)
        await self.mcp.stop()
        if self.compaction is not None:
            await self.compaction.stop()
        await self._open.aclose()
        self.database.close()


def build(loaded: Loaded, *, started: float, model: Model | None = None) -> App:
    """Put a gateway together from its settings; ``started`` is the monotonic time its uptime counts from.

    ``model`` stands in for the one that the settings name. Migrates the database: the caller holds the data
    directory's lock. Takes a second. Raises ``OperatorError`` for what the operator has to mend.
    """
    settings = loaded.settings
    skills = open_skills(settings, loaded.provider_environ)
    model = model or choose_model(loaded, skills)
    limits, prices = limits_of(settings), _prices(settings)
    database = _database(settings)
    sessions = Sessions(database=database, history_messages=settings.history_messages)
    memory = Memory(database=database, embedder=(embedder := choose_embedder(loaded)))
    takes, workspaces = files_taken(model, settings.model_files), _workspaces(settings)
    schedules, python = _schedules(settings, database, due := asyncio.Event()), PythonTools()
    toolset = _toolset(loaded, memory, sessions, skills, schedules, workspaces, python)
    mcp = _mcp(loaded, toolset)
    agent = _agent(settings, model, _with_mcp(toolset, mcp), skills, sessions, memory, prices, takes)
    budgets = Budgets(limits=limits, prices=prices, estimate=_estimate(settings))
    compaction, rates = _compaction(settings, database, model, budgets), _rates(settings)
    ended: list[Callable[[Turn], None]] = [compaction.turn_ended] if compaction else []  # and more below
    turns = _turns(settings, database, agent, budgets, ended)
    pairing = Pairing(database=database, clock=utc_now)
    connectors = _connectors(loaded, database, turns, rates, pairing, takes)
    metrics = Metrics(turns=turns.counts, connectors=connectors.status, mcp=mcp.status)
    ticker = _ticker(settings, database, turns, due)
    ended += [connectors.turn_ended, metrics.turn_ended, ticker.turn_ended]
    reload = Reload(loaded=loaded, connectors=connectors, audit=AuditRecord(database=database))
    services = Services(
        turns=turns,
        sessions=sessions,
        changes=SessionChanges(database=database, sessions=sessions, turns=turns),
        memory=memory,
        schedules=schedules,
        people=_people(settings, database, turns, workspaces),
        rates=rates,
        mcp=mcp,
        connections=_connections(database, connectors, pairing, reload),
        spending=Spending(database=database, limits=limits),
        health=_health(started, skills, turns, database, connectors),
        metrics=metrics,
        models=settings.model,
        skills=lambda: _skill_list(skills),
        wait=settings.wait,
    )
    return App(
        asgi=create_api(services, _access(settings)),
        turns=turns,
        agent=agent,
        model=model,
        embedder=embedder,
        database=database,
        services=services,
        compaction=compaction,
        expiry=_expiry(settings, database, turns),
        ticker=ticker,
        connectors=connectors,
        hooks=_hooks(settings, connectors),
        reload=reload,
        mcp=mcp,
        python=python,
    )


def _database(settings: Settings) -> Database:
    path = settings.data_dir / DATABASE_NAME
    migrate(path)
    return Database(path=path)


def _agent(
    settings: Settings,
    model: Model,
    toolset: AbstractToolset[ToolContext],
    skills: Skills,
    sessions: Sessions,
    memory: Memory,
    prices: Prices,
    takes: frozenset[FileKind],
) -> TurnAgent:
    timezone = ZoneInfo(settings.timezone)
    return TurnAgent(
        model=model,
        toolset=toolset,
        instructions=Instructions(persona=settings.persona, timezone=timezone, skills=skills),
        sessions=sessions,
        memory=memory,
        timezone=timezone,
        recall_in_rooms=settings.recall_in_rooms,
        bounds=_bounds(settings, limits_of(settings)),
        clock=utc_now,
        prices=prices,
        takes=takes,
    )


def _toolset(
    loaded: Loaded,
    memory: Memory,
    sessions: Sessions,
    skills: Skills,
    schedules: Schedules,
    workspaces: Workspaces,
    python: PythonTools,
) -> FunctionToolset[ToolContext]:
    return build_toolset(
        memory=MemoryTools(memory=memory),
        conversation=ConversationTools(sessions=sessions),
        skills=SkillTools(skills=skills),
        schedules=ScheduleTools(planner=AgentSchedules(schedules=schedules)),
        running=[_scripts(loaded, skills).run_skill_script, python.run_python],
        files=FileTools(workspaces=workspaces),
        web=_web(loaded.settings),
        own=load_tools(loaded.settings.tools),
    )


def _workspaces(settings: Settings) -> Workspaces:
    return Workspaces(
        directory=settings.data_dir / WORKSPACES_NAME,
        max_bytes=settings.workspace_megabytes * 1_000_000,
        max_files=settings.workspace_files,
    )


def _web(settings: Settings) -> WebTools:
    guard = Guard(allow=settings.web_allow, deny=settings.web_deny)
    search = open_search(settings.search, url=settings.search_url, api_key=search_key(settings))
    return WebTools(client=GuardedClient(guard=guard), reader=Reader(), search=search)


def search_key(settings: Settings) -> str | None:
    """The key for the search service, if there is one."""
    return settings.search_api_key.get_secret_value() if settings.search_api_key else None


def open_bubblewrap(settings: Settings) -> Bubblewrap:
    """What builds the sandbox of skills' scripts, and tells whether there can be one."""
    return Bubblewrap(hidden=[settings.data_dir, settings.skills_dir])


def _scripts(loaded: Loaded, skills: Skills) -> ScriptTools:
    return ScriptTools(
        skills=skills,
        sandbox=Sandbox(bubblewrap=open_bubblewrap(loaded.settings), resolve=Guard().resolve),
        granted=_granted,
        environ=loaded.provider_environ,
    )


def _granted(_skill: Skill) -> Needs | None:
    """Nothing is approved yet."""
    return None


def _schedules(settings: Settings, database: Database, due: asyncio.Event) -> Schedules:
    return Schedules(
        database=database,
        zone=ZoneInfo(settings.timezone),
        per_user=settings.schedules_per_user,
        min_minutes=settings.schedule_min_minutes,
        changed=due.set,
    )


def _ticker(settings: Settings, database: Database, turns: Turns, due: asyncio.Event) -> Ticker:
    return Ticker(
        database=database,
        turns=turns,
        firings_per_day=settings.schedule_firings_per_day,
        woken=due,
    )


def _mcp(loaded: Loaded, toolset: FunctionToolset[ToolContext]) -> McpServers:
    settings, environ = loaded.settings, loaded.provider_environ
    return McpServers(
        servers=read_servers(settings.mcp, file=settings.mcp_config, environ=environ),
        data_dir=settings.data_dir,
        path=search_path(environ),
        taken=frozenset(toolset.tools),
        clock=utc_now,
    )


def _with_mcp(toolset: FunctionToolset[ToolContext], mcp: McpServers) -> AbstractToolset[ToolContext]:
    return CombinedToolset([toolset, McpToolset(mcp)]) if mcp.servers else toolset


def _connectors(
    loaded: Loaded,
    database: Database,
    turns: Turns,
    rates: MessageRates,
    pairing: Pairing,
    takes: frozenset[FileKind],
) -> Connectors:
    return Connectors(
        accounts=read_accounts(loaded.settings.connectors, loaded.provider_environ),
        turns=turns,
        rates=rates,
        pairing=pairing,
        database=database,
        holder=str(loaded.settings.data_dir),
        takes=takes,
    )


def _connections(database: Database, connectors: Connectors, pairing: Pairing, reload: Reload) -> Connections:
    return Connections(
        pairing=pairing,
        deliveries=Deliveries(database=database, wake=connectors.wake),
        status=connectors.status,
        reload=reload.by_act,
    )


def _people(settings: Settings, database: Database, turns: Turns, workspaces: Workspaces) -> People:
    return People(
        tokens=Tokens(database=database),
        audit=AuditRecord(database=database),
        export=Export(database=database, path=settings.data_dir / DATABASE_NAME, workspaces=workspaces),
        erasure=Erasure(database=database, turns=turns, data_dir=settings.data_dir, workspaces=workspaces),
    )


def _health(started: float, skills: Skills, turns: Turns, database: Database, connectors: Connectors) -> Health:
    return Health(
        started=started,
        skills=lambda: skills.catalogue().counts(),
        draining=lambda: turns.draining,
        writable=database.writable,
        connectors=connectors.active,
    )


def limits_of(settings: Settings) -> Limits:
    """The limits that are kept as rows: all but those of messages in a minute."""
    return Limits(
        per_user=_parsed(settings.limits_per_user),
        per_token=[limit for limit in _parsed(settings.limits_per_token) if limit.label != _A_MINUTE],
        overall=_parsed(settings.limits_global),
    )


def _prices(settings: Settings) -> Prices:
    return Prices(models=settings.model, own=[parse_price(text) for text in settings.prices])


def _parsed(texts: Sequence[str]) -> list[Limit]:
    """The limits; of several of one kind the strictest."""
    strictest: dict[str, Limit] = {}
    for limit in map(parse_limit, texts):
        known = strictest.setdefault(limit.label, limit)
        strictest[limit.label] = min(known, limit, key=lambda one: one.quota)
    return list(strictest.values())


def _rates(settings: Settings) -> MessageRates:
    per_token = [limit.quota for limit in _parsed(settings.limits_per_token) if limit.label == _A_MINUTE]
    return MessageRates(
        per_user=settings.rate_per_user,
        per_token=per_token[0] if per_token else 0,
        overall=settings.rate_global,
    )


def _estimate(settings: Settings) -> Estimate:
    return Estimate(
        output=settings.max_output_tokens,
        overhead=Estimate().overhead + len(settings.persona.encode()) // 3,
        history_turns=settings.history_messages // 2 + 1,
    )


def _bounds(settings: Settings, limits: Limits) -> Bounds:
    return Bounds(
        model_calls=settings.turn_model_calls,
        tool_calls=settings.turn_tool_calls,
        tokens=settings.turn_tokens,
        output_tokens=settings.max_output_tokens if limits.bound_calls else None,
    )


def _compaction(settings: Settings, database: Database, model: Model, budgets: Budgets) -> Compaction | None:
    """None where it is switched off, and where no language model is there to do it."""
    summariser = without_builtin(model)
    if summariser is None or not settings.compact:
        return None
    summaries = Summaries(database=database, history_messages=settings.history_messages)

    async def spent(turn: Turn, response: ModelResponse) -> None:
        await database.run(partial(budgets.charge, turn=turn, responses=[response]))

    return Compaction(model=summariser, summaries=summaries, spent=spent)


def _expiry(settings: Settings, database: Database, turns: Turns) -> Expiry | None:
    if not settings.session_days:
        return None
    return Expiry(database=database, after=timedelta(days=settings.session_days), forget=turns.forget)


def _turns(
    settings: Settings,
    database: Database,
    agent: TurnAgent,
    budgets: Budgets,
    ended: Sequence[Callable[[Turn], None]],
) -> Turns:
    def tell(turn: Turn) -> None:
        for listener in ended:
            listener(turn)

    return Turns(
        database=database,
        agent=agent,
        log=MemoryEventLog(),
        budgets=budgets,
        turn_timeout=settings.turn_timeout,
        concurrency=settings.concurrency,
        max_crashes=settings.max_crashes,
        ended=tell,
        queue=Queue(
            per_session=settings.queue_per_session,
            per_user=settings.queue_per_user,
            overall=settings.queue,
        ),
    )


def _hooks(settings: Settings, connectors: Connectors) -> HooksListener | None:
    if not settings.hooks_port:
        return None
    return HooksListener(host=settings.host, port=settings.hooks_port, answer=connectors.hook)


def open_skills(settings: Settings, environ: Mapping[str, str]) -> Skills:
    """The core skills and the user's."""
    return Skills(
        core_dir=CORE_DIR,
        user_dir=settings.skills_dir,
        environ=environ,
        # What a skill's scripts find, not what the gateway finds.
        which=open_bubblewrap(settings).which,
    )


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


def choose_embedder(loaded: Loaded) -> Embedder | None:
    """The embedding model that the settings name, if any. Raises ``ConfigInvalid`` where it cannot be had."""
    settings = loaded.settings
    if settings.embedding_model is None:
        return None
    return open_embedder(
        settings.embedding_model,
        models=settings.model,
        environ=loaded.provider_environ,
        base_url=settings.model_base_url,
        api_key=settings.model_api_key.get_secret_value() if settings.model_api_key else None,
    )


def _cards(skills: Skills) -> list[Card]:
    return [
        Card(
            slug=skill.slug,
            title=skill.title,
            description=skill.description,
            examples=skill.examples,
            tools=skill.tools,
            triggers=_triggers(skill),
        )
        for skill in skills.catalogue().loaded
    ]


def _triggers(skill: Skill) -> tuple[Trigger, ...]:
    granted = _granted(skill)
    return tuple(trigger for trigger in skill.triggers if granted and trigger.script in granted.scripts)


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
