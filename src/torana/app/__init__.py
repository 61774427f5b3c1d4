"""The object graph of the gateway. Only this module chooses implementations."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from pydantic_ai.models import Model

from torana.api.application import ApiAccess, Services, create_api
from torana.api.health import Health
from torana.api.routes.metrics import Metrics
from torana.api.services import Connections, People, SkillServices
from torana.app.core import Core, build_core
from torana.app.limits import rates_of
from torana.app.secrets import secret_variables
from torana.app.tooling import open_guard
from torana.config import Loaded, Settings
from torana.config.database import database_place
from torana.config.shown import shown_settings
from torana.config.spending import limits_of
from torana.connectors.registry import read_accounts
from torana.connectors.runtime.callback_listener import HooksListener
from torana.connectors.runtime.hub import Connectors
from torana.connectors.runtime.ingress import Admission
from torana.connectors.runtime.supervisor import Status
from torana.limits.rates import MessageRates
from torana.limits.usage_reports import Spending
from torana.messages import utc_now
from torana.people.audit import AuditRecord
from torana.people.erased_files import ErasedFiles
from torana.people.erasure import Erasure
from torana.people.export import Export
from torana.people.pairing import Pairing
from torana.people.shared_erasures import SharedErasures
from torana.people.sign_in import SignIns
from torana.people.tokens import Tokens
from torana.reload import Reload
from torana.schedules import Ticker
from torana.sessions.expiry import Expiry
from torana.sessions.search import MessageSearch
from torana.skills.installation.fetching import open_fetcher
from torana.skills.installation.installer import SkillInstaller
from torana.store.engine.database import Database
from torana.store.workspace_folders import move_folders
from torana.tools.sandbox import sweep_workdirs
from torana.turns import SessionChanges, Turns
from torana.turns.deliveries import Deliveries
from torana.turns.events.activity import Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A gateway that can be started once."""

    asgi: Callable[..., Awaitable[None]]
    core: Core
    services: Services
    expiry: Expiry | None
    ticker: Ticker
    connectors: Connectors
    hooks: HooksListener | None
    reload: Reload
    erasures: SharedErasures
    data_dir: Path
    #: Names of environment variables with secrets that have been read and may be removed.
    secret_variables: frozenset[str]
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def turns(self) -> Turns:
        return self.core.turns

    @property
    def database(self) -> Database:
        return self.core.database

    async def start(self) -> None:
        """Open the model's connections, continue the unfinished work of an earlier process, and clean up.

        If a step fails or is cancelled, everything that was started is closed.
        """
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop running work at once and close everything. The next start continues the work. Idempotent."""
        try:
            await self._open.aclose()
        finally:
            self.core.database.close()

    async def _begin(self) -> None:
        """Start the parts in order; they are closed in reverse order."""
        core, open_ = self.core, self._open
        if core.traces is not None:
            open_.push_async_callback(core.traces.close)
        await open_.enter_async_context(core.model)
        if core.embedder:
            await open_.enter_async_context(core.embedder)
        await asyncio.to_thread(sweep_workdirs)
        open_.push_async_callback(core.tooling.python.close)
        open_.push_async_callback(core.tooling.computing.close)
        if core.compaction is not None:
            open_.push_async_callback(core.compaction.stop)
        open_.push_async_callback(core.tooling.mcp.stop)
        core.tooling.mcp.start(accepted_elsewhere=core.turns.replicas.accepted_tools)
        open_.push_async_callback(self.services.skills.changes.decisions.stop)
        await self.services.skills.changes.decisions.start(core.turns.replicas.changed_skills)
        open_.push_async_callback(self.erasures.stop)
        if await self.erasures.start():
            # Not before: it would store files of erased users again.
            await move_folders(self.data_dir, core.database)
        open_.push_async_callback(core.turns.stop, grace=0)
        await core.turns.start()
        open_.push_async_callback(self.connectors.stop)
        await self.connectors.start()
        if self.hooks is not None:
            open_.push_async_callback(self.hooks.stop)
            await self.hooks.start()
        if self.expiry is not None:
            open_.push_async_callback(self.expiry.stop)
            self.expiry.start()
        open_.push_async_callback(self.ticker.stop)
        self.ticker.start()


def build(
    loaded: Loaded,
    *,
    started: float,
    model: Model | None = None,
    on_loaded: Callable[[], None] = lambda: None,
) -> App:
    """Build a gateway from its settings. ``started`` is the monotonic time from which uptime counts.

    ``model`` replaces the model that the settings name. ``on_loaded`` is called when a request has loaded the
    web framework. Migrates the database: the caller holds the lock of the
    data directory. Takes about a second, mostly for imports, and may run in any thread. Raises
    ``OperatorError`` for faults that the operator has to correct.
    """
    settings = loaded.settings
    with loaded.annotate_errors():
        core = build_core(loaded, model)
    rates = rates_of(settings, core.redis, database=core.database.identity)
    pairing = Pairing(database=core.database, clock=utc_now)
    connectors = _connectors(loaded, core, rates, pairing)
    metrics = _metrics(core, connectors)
    ticker = _ticker(settings, core)
    core.ended.extend([connectors.on_turn_ended, metrics.on_turn_ended, ticker.on_turn_ended])
    reload = Reload(loaded=loaded, connectors=connectors, audit=AuditRecord(database=core.database))
    erasures = _erasures(settings, core)
    services = Services(
        turns=core.turns,
        sessions=core.sessions,
        search=MessageSearch(database=core.database),
        changes=SessionChanges(database=core.database, sessions=core.sessions, turns=core.turns),
        memory=core.memory,
        schedules=core.schedules,
        people=_people(settings, core, erasures),
        rates=rates,
        mcp=core.tooling.mcp,
        connections=_connections(core, connectors, pairing, reload),
        spending=Spending(database=core.database, limits=limits_of(settings)),
        health=_health(started, core, connectors),
        metrics=metrics,
        settings=[asdict(one) for one in shown_settings(loaded)],
        models=settings.model,
        skills=_skill_services(settings, core),
        tools=core.toolbox,
        takes=core.takes,
        wait=settings.wait,
    )
    return App(
        asgi=create_api(services, _access(settings), on_loaded=on_loaded),
        core=core,
        services=services,
        expiry=_expiry(settings, core),
        ticker=ticker,
        connectors=connectors,
        hooks=_hooks(settings, connectors),
        reload=reload,
        erasures=erasures,
        data_dir=settings.data_dir,
        secret_variables=secret_variables(loaded),
    )


def _ticker(settings: Settings, core: Core) -> Ticker:
    return Ticker(
        database=core.database,
        turns=core.turns,
        firings_per_day=settings.schedule_firings_per_day,
        woken=core.due,
    )


def _metrics(core: Core, connectors: Connectors) -> Metrics:
    return Metrics(
        live=core.turns.live,
        connectors=connectors.status,
        mcp=core.tooling.mcp.supervisors.values,
        redis=core.redis,
    )


def _connectors(loaded: Loaded, core: Core, rates: MessageRates, pairing: Pairing) -> Connectors:
    """Return the connectors, which also show the questions of calls that wait for approval."""
    settings = loaded.settings
    connectors = Connectors(
        accounts=read_accounts(
            settings.connectors, loaded.provider_environ, reachable=bool(settings.hooks_port)
        ),
        admission=Admission(
            turns=core.turns, rates=rates, pairing=pairing, database=core.database, takes=core.takes
        ),
        holder=core.database.replica or str(settings.data_dir),
        on_status=partial(_publish_status, core.turns.live.activity),
    )
    core.turns.approvals.can_ask = connectors.can_ask
    core.turns.approvals.question_changed = lambda turn: connectors.wake(turn.account)
    return connectors


def _publish_status(activity: Activity, status: Status) -> None:
    data = {"account": status.account, "kind": status.kind, "state": status.state, "reason": status.reason}
    activity.publish("connector.changed", None, data)


def _connections(core: Core, connectors: Connectors, pairing: Pairing, reload: Reload) -> Connections:
    return Connections(
        pairing=pairing,
        kinds=reload.kinds,
        deliveries=Deliveries(database=core.database, wake=connectors.wake),
        status=connectors.status,
        reload=reload.by_act,
    )


def _erasures(settings: Settings, core: Core) -> SharedErasures:
    files = ErasedFiles(
        database=core.database,
        reader=core.turns.reader,
        data_dir=settings.data_dir,
    )
    return SharedErasures(
        database=core.database,
        files=files,
        data_dir=settings.data_dir,
        pending=core.turns.replicas.erasures,
    )


def _people(settings: Settings, core: Core, erasures: SharedErasures) -> People:
    database = core.database
    return People(
        tokens=Tokens(database=database),
        sign_ins=SignIns(database=database),
        audit=AuditRecord(database=database),
        export=Export(
            database=database,
            place=database_place(settings),
            directory=settings.data_dir,
        ),
        erasure=Erasure(database=database, turns=core.turns, shared=erasures),
    )


def _health(started: float, core: Core, connectors: Connectors) -> Health:
    return Health(
        started=started,
        skills=lambda: core.skills.catalogue().counts(),
        draining=lambda: core.turns.draining,
        writable=core.database.writable,
        connectors=connectors.active,
        stuck=lambda: len(core.turns.live.blocked),
    )


def _expiry(settings: Settings, core: Core) -> Expiry | None:
    if not settings.session_days:
        return None
    after = timedelta(days=settings.session_days)
    return Expiry(database=core.database, after=after, forget=core.turns.reader.forget)


def _hooks(settings: Settings, connectors: Connectors) -> HooksListener | None:
    if not settings.hooks_port:
        return None
    return HooksListener(
        host=settings.host, port=settings.hooks_port, exists=connectors.has_account, answer=connectors.hook
    )


def _skill_services(settings: Settings, core: Core) -> SkillServices:
    fetcher = open_fetcher(guard=open_guard(settings), environ=os.environ)
    changes = SkillInstaller(
        database=core.database, skills=core.skills, installed=core.installed, fetcher=fetcher
    )
    return SkillServices(library=core.skills, changes=changes)


def _access(settings: Settings) -> ApiAccess:
    token = settings.gateway_token
    return ApiAccess(
        token=token.get_secret_value() if token else None,
        allowed_hosts=[*settings.allowed_hosts, settings.host],
        cors_origins=settings.cors_origins,
    )
