"""The parts of the gateway without HTTP and connectors: database, agent and turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from torana.agent import TurnAgent
from torana.agent.capability import MeasuredCalls, Safeguards
from torana.agent.compaction import Compaction
from torana.agent.overview import Toolbox
from torana.agent.permission_gate import PermissionGate
from torana.agent.prompt.context import Contexts
from torana.agent.prompt.files import Prompts
from torana.agent.prompt.instructions import Instructions
from torana.agent.prompt.tool_list import ToolList
from torana.agent.request_size import FixedTokens
from torana.agent.run import Run
from torana.agent.windows.budget import ContextBudget, fit_requests
from torana.app.limits import bounds_of, budgets_of, prices_of
from torana.app.models import choose_embedder, choose_model
from torana.app.tooling import ToolDependencies, Tooling, build_tooling, open_skills, open_workspaces
from torana.app.traces import open_traces
from torana.config import Loaded, Settings
from torana.config.database import database_place
from torana.config.redis import redis_server
from torana.config.spending import limits_of
from torana.limits.budgets import Budgets
from torana.limits.prices import Prices
from torana.limits.request_tokens import RequestTokens
from torana.measurements import Measurements
from torana.memory import Memory
from torana.messages import FileKind, Turn, utc_now
from torana.models.embeddings import ProviderEmbedder
from torana.models.files import files_taken
from torana.models.providers import without_builtin
from torana.permissions import Rule, Rules
from torana.schedules import Schedules
from torana.sessions import Sessions
from torana.sessions.summaries import Summaries
from torana.skills import Skills
from torana.skills.grants import InstalledSkills
from torana.store.backup.archive import INSTALLED
from torana.store.engine.database import Connection, Database
from torana.store.redis.server import RedisServer
from torana.store.rows import tokens
from torana.tools.computing import Computing
from torana.turns import LiveTurns, Queue, Runner, Turns, TurnWriter
from torana.turns.approvals import Approvals
from torana.turns.events.log import EventLog
from torana.turns.events.sharing import EventSharing, RedisEventSharing
from torana.web.interim_responses import bound_interim_responses

if TYPE_CHECKING:
    from torana.otel import OtelTracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The gateway without HTTP and connectors."""

    database: Database
    #: None if replicas share no Redis server.
    redis: RedisServer | None
    skills: Skills
    #: The installed skills and the rights that the operator approved for each.
    installed: InstalledSkills
    sessions: Sessions
    memory: Memory
    embedder: ProviderEmbedder | None
    schedules: Schedules
    #: Set when the earliest due time of the schedules may have changed.
    due: asyncio.Event
    tooling: Tooling
    model: Model
    #: The kinds of files that the model accepts.
    takes: frozenset[FileKind]
    toolbox: Toolbox
    compaction: Compaction | None
    turns: Turns
    #: The size of the fixed part of each model request.
    fixed_tokens: FixedTokens
    #: None if no traces are exported.
    traces: OtelTracer | None
    #: Listeners for the end of turns.
    ended: list[Callable[[Turn], None]]


def build_core(loaded: Loaded, model: Model | None) -> Core:
    """Build the core. ``model`` replaces the model that the settings name."""
    settings = loaded.settings
    installed = InstalledSkills(root=settings.data_dir / INSTALLED)
    skills = open_skills(loaded, installed)
    model = model or choose_model(loaded, skills, installed)
    # The model fits its requests from here on.
    windows = fit_requests(model, window=settings.context_window, answer=settings.max_output_tokens)
    redis, database = redis_server(settings), database_place(settings).open()
    room = partial(_message_room, windows)
    sessions = Sessions(database=database, history_messages=settings.history_messages, message_room=room)
    embedder = choose_embedder(loaded)
    bound_interim_responses()  # the libraries of the providers are imported by now
    memory = Memory(database=database, embedder=embedder)
    takes = files_taken(model, settings.model_files)
    due = asyncio.Event()
    schedules = open_schedules(settings, database, Computing(), changed=due.set)
    dependencies = ToolDependencies(
        memory=memory,
        sessions=sessions,
        skills=skills,
        schedules=schedules,
        workspaces=open_workspaces(settings, database),
        granted=installed.granted_needs,
    )
    tooling = build_tooling(loaded, dependencies, database)
    rules = _rules(settings)
    prices = prices_of(settings)
    instructions = _instructions(settings, skills, tooling)
    fixed_tokens = _fixed_tokens(settings, instructions, tooling)
    budgets = budgets_of(settings, limits_of(settings), prices, fixed_tokens)
    tool_list = ToolList(skills=skills, pinned=settings.tools_pinned, direct=settings.tools_direct)
    contexts = _contexts(settings, instructions, tool_list, sessions=sessions, memory=memory, takes=takes)
    traces, measurements = _measurements(loaded)
    calls = MeasuredCalls(measurements=measurements, prices=prices)
    capabilities = _capabilities(rules, tooling, tool_list, calls, traces)
    measured = fixed_tokens if budgets.bound_calls else None
    agent = _agent(settings, model, capabilities, contexts=contexts, prices=prices, measured=measured)
    compaction = _compaction(settings, database, model, budgets, room)
    ended: list[Callable[[Turn], None]] = [compaction.on_turn_ended] if compaction else []
    return Core(
        database=database,
        redis=redis,
        skills=skills,
        installed=installed,
        sessions=sessions,
        memory=memory,
        embedder=embedder,
        schedules=schedules,
        due=due,
        tooling=tooling,
        model=model,
        takes=takes,
        toolbox=Toolbox(toolset=tooling.toolset, model=model, rules=rules),
        compaction=compaction,
        turns=_turns(settings, database, agent, budgets, ended, measurements, redis),
        fixed_tokens=fixed_tokens,
        traces=traces,
        ended=ended,
    )


def _fixed_tokens(settings: Settings, instructions: Instructions, tooling: Tooling) -> FixedTokens:
    return FixedTokens(
        instruction_bytes=instructions.size,
        tool_bytes=tooling.tool_bytes,
        several_models=len(settings.model) > 1,
    )


def _measurements(loaded: Loaded) -> tuple[OtelTracer | None, Measurements]:
    """Return the exporter of traces, if there is one, and the measurements, which send it their spans."""
    traces = open_traces(loaded)
    return traces, Measurements(tracer=traces) if traces else Measurements()


def _rules(settings: Settings) -> Rules:
    """Return the operator's rules, with each token replaced by the first token of its chain of rotations.

    Turns store the first token.
    """

    def resolve_tokens(connection: Connection) -> list[Rule]:
        return [
            rule if rule.token is None else replace(rule, token=tokens.root(connection, rule.token))
            for rule in settings.permissions
        ]

    return Rules(database_place(settings).read(resolve_tokens))


def open_schedules(
    settings: Settings, database: Database, computing: Computing, *, changed: Callable[[], None]
) -> Schedules:
    """Return the users' schedules. ``changed`` is called when the earliest due time may have changed."""
    return Schedules(
        database=database,
        computing=computing,
        zone=ZoneInfo(settings.timezone),
        per_user=settings.schedules_per_user,
        min_minutes=settings.schedule_min_minutes,
        changed=changed,
    )


def _instructions(settings: Settings, skills: Skills, tooling: Tooling) -> Instructions:
    return Instructions(
        persona=settings.persona,
        timezone=ZoneInfo(settings.timezone),
        skills=skills,
        servers=tuple(tooling.mcp.servers),
    )


def _contexts(
    settings: Settings,
    instructions: Instructions,
    tool_list: ToolList,
    *,
    sessions: Sessions,
    memory: Memory,
    takes: frozenset[FileKind],
) -> Contexts:
    return Contexts(
        sessions=sessions,
        memory=memory,
        instructions=instructions,
        prompts=Prompts(sessions=sessions, takes=takes),
        tool_list=tool_list,
        recall_in_rooms=settings.recall_in_rooms,
        clock=utc_now,
    )


def _capabilities(
    rules: Rules, tooling: Tooling, tool_list: ToolList, calls: MeasuredCalls, traces: OtelTracer | None
) -> list[AbstractCapability[Run]]:
    gate = PermissionGate(rules=rules)
    safeguards = Safeguards(permits=gate, tools=tooling.toolset, tool_list=tool_list, measured=calls)
    return [safeguards, traces.instrumentation()] if traces else [safeguards]


def _agent(
    settings: Settings,
    model: Model,
    capabilities: Sequence[AbstractCapability[Run]],
    *,
    contexts: Contexts,
    prices: Prices,
    measured: FixedTokens | None,
) -> TurnAgent:
    return TurnAgent(
        model=model,
        capabilities=capabilities,
        contexts=contexts,
        timezone=ZoneInfo(settings.timezone),
        bounds=bounds_of(settings),
        clock=utc_now,
        prices=prices,
        fixed_tokens=measured,
    )


def _message_room(windows: Sequence[ContextBudget]) -> int | None:
    """Return how many tokens messages may use at least in the smallest known window."""
    return min((one.message_room for one in windows if one.message_room is not None), default=None)


def _compaction(
    settings: Settings,
    database: Database,
    model: Model,
    budgets: Budgets,
    room: Callable[[], int | None],
) -> Compaction | None:
    """Return None if compaction is disabled, or if ``builtin`` is the only model."""
    summariser = without_builtin(model)
    if summariser is None or not settings.compact:
        return None
    summaries = Summaries(database=database, history_messages=settings.history_messages, message_room=room)

    async def charge(turn: Turn, response: ModelResponse) -> None:
        await database.run(partial(budgets.charge, turn=turn, responses=[response]))

    async def affordable(turn: Turn, size: int) -> bool:
        request, percent = RequestTokens.of_bytes(size), settings.compact_percent
        return await database.run(partial(budgets.allows_summary, turn=turn, request=request, percent=percent))

    return Compaction(
        model=summariser,
        summaries=summaries,
        affordable=affordable,
        charge=charge,
        output_tokens=bounds_of(settings).output_tokens,
    )


def _turns(
    settings: Settings,
    database: Database,
    agent: TurnAgent,
    budgets: Budgets,
    ended: list[Callable[[Turn], None]],
    measurements: Measurements,
    redis: RedisServer | None,
) -> Turns:
    def notify(turn: Turn) -> None:
        for listener in ended:
            listener(turn)

    approvals = Approvals(database=database, lasts=timedelta(minutes=settings.approval_minutes))
    log = EventLog(origin=f".{token_hex(3)}" if database.replica else "")
    sharing = RedisEventSharing(server=redis, log=log) if redis else EventSharing()
    runner = Runner(
        live=LiveTurns(log=log, sharing=sharing, on_end=notify, measurements=measurements),
        writer=TurnWriter(database=database, budgets=budgets, clock=utc_now, pause=asyncio.sleep),
        agent=agent,
        approvals=approvals,
        budgets=budgets,
        turn_timeout=settings.turn_timeout,
        concurrency=settings.concurrency,
        clock=utc_now,
    )
    return Turns(
        database=database,
        runner=runner,
        approvals=approvals,
        budgets=budgets,
        queue=Queue(
            per_session=settings.queue_per_session,
            per_user=settings.queue_per_user,
            overall=settings.queue,
        ),
        max_crashes=settings.max_crashes,
        clock=utc_now,
    )
