"""The object graph, built once: the only place that chooses implementations."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic_ai.models import Model

from torana.api import Access, Services, create_api
from torana.api.health import Health
from torana.api.metrics import Metrics
from torana.api.services import Connections, People, SkillDesk
from torana.app.acting import open_guard
from torana.app.core import Core, build_core
from torana.app.limits import limits_of, rates_of
from torana.app.secrets import secret_variables
from torana.config import Loaded, Settings
from torana.connectors.door import Admission
from torana.connectors.hooks import HooksListener
from torana.connectors.hub import Connectors
from torana.connectors.registry import read_accounts
from torana.limits.rates import MessageRates
from torana.limits.spending import Spending
from torana.messages import utc_now
from torana.people.audit import AuditRecord
from torana.people.erasure import Erasure
from torana.people.export import Export
from torana.people.pairing import Pairing
from torana.people.tokens import Tokens
from torana.reload import Reload
from torana.schedules import Ticker
from torana.sessions.expiry import Expiry
from torana.skills.changes import SkillChanges
from torana.skills.fetching import open_fetcher
from torana.store.backup import DATABASE_NAME
from torana.store.database import Database
from torana.tools.sandbox import sweep_rooms
from torana.turns import SessionChanges, Turns
from torana.turns.deliveries import Deliveries


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
    #: Names of environment variables that are read and may be removed.
    secret_variables: frozenset[str]
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def turns(self) -> Turns:
        """Where messages are accepted."""
        return self.core.turns

    @property
    def database(self) -> Database:
        """Where everything is kept."""
        return self.core.database

    async def start(self) -> None:
        """Open the model's connections, take up what an earlier process left unfinished, and clear up.

        Where that fails or is cancelled, all that was begun is closed again.
        """
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop at once what still runs (the next start takes it up again) and close everything. Idempotent."""
        try:
            await self._open.aclose()
        finally:
            self.core.database.close()

    async def _begin(self) -> None:
        """Begin one after the other; what is begun last ends first, and what fails half-way ends too."""
        core, open_ = self.core, self._open
        await open_.enter_async_context(core.model)
        if core.embedder:
            await open_.enter_async_context(core.embedder)
        await asyncio.to_thread(sweep_rooms)
        open_.push_async_callback(core.acting.python.close)
        open_.push_async_callback(core.acting.computing.close)
        if core.compaction is not None:
            open_.push_async_callback(core.compaction.stop)
        open_.push_async_callback(core.acting.mcp.stop)
        core.acting.mcp.start()
        await self.services.skills.changes.start()
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


def build(loaded: Loaded, *, started: float, model: Model | None = None) -> App:
    """Put a gateway together from its settings; ``started`` is the monotonic time its uptime counts from.

    ``model`` stands in for the one that the settings name.
    Migrates the database: the caller holds the data directory's lock. Takes a second, mostly imports, and may
    run in any thread. Raises ``OperatorError`` for what the operator has to mend.
    """
    settings = loaded.settings
    with loaded.placing():
        core = build_core(loaded, model)
    rates = rates_of(settings)
    pairing = Pairing(database=core.database, clock=utc_now)
    connectors = _connectors(loaded, core, rates, pairing)
    metrics = Metrics(turns=core.turns.counts, connectors=connectors.status, mcp=core.acting.mcp.status)
    ticker = Ticker(
        database=core.database,
        turns=core.turns,
        firings_per_day=settings.schedule_firings_per_day,
        woken=core.due,
    )
    core.asks.append(connectors)
    core.ended.extend([connectors.turn_ended, metrics.turn_ended, ticker.turn_ended])
    reload = Reload(loaded=loaded, connectors=connectors, audit=AuditRecord(database=core.database))
    services = Services(
        turns=core.turns,
        sessions=core.sessions,
        changes=SessionChanges(database=core.database, sessions=core.sessions, turns=core.turns),
        memory=core.memory,
        schedules=core.schedules,
        people=_people(settings, core),
        rates=rates,
        mcp=core.acting.mcp,
        connections=_connections(core, connectors, pairing, reload),
        spending=Spending(database=core.database, limits=limits_of(settings)),
        health=_health(started, core, connectors),
        metrics=metrics,
        models=settings.model,
        skills=_skill_desk(settings, core),
        tools=core.toolbox,
        wait=settings.wait,
    )
    return App(
        asgi=create_api(services, _access(settings)),
        core=core,
        services=services,
        expiry=_expiry(settings, core),
        ticker=ticker,
        connectors=connectors,
        hooks=_hooks(settings, connectors),
        reload=reload,
        secret_variables=secret_variables(loaded),
    )


def _connectors(loaded: Loaded, core: Core, rates: MessageRates, pairing: Pairing) -> Connectors:
    settings = loaded.settings
    return Connectors(
        accounts=read_accounts(
            settings.connectors, loaded.provider_environ, reachable=bool(settings.hooks_port)
        ),
        admission=Admission(
            turns=core.turns, rates=rates, pairing=pairing, database=core.database, takes=core.takes
        ),
        turns=core.turns,
        database=core.database,
        holder=str(settings.data_dir),
    )


def _connections(core: Core, connectors: Connectors, pairing: Pairing, reload: Reload) -> Connections:
    return Connections(
        pairing=pairing,
        kinds=reload.kinds,
        deliveries=Deliveries(database=core.database, wake=connectors.wake),
        status=connectors.status,
        reload=reload.by_act,
    )


def _people(settings: Settings, core: Core) -> People:
    database, workspaces = core.database, core.workspaces
    return People(
        tokens=Tokens(database=database),
        audit=AuditRecord(database=database),
        export=Export(database=database, path=settings.data_dir / DATABASE_NAME, workspaces=workspaces),
        erasure=Erasure(database=database, turns=core.turns, data_dir=settings.data_dir, workspaces=workspaces),
    )


def _health(started: float, core: Core, connectors: Connectors) -> Health:
    return Health(
        started=started,
        skills=lambda: core.skills.catalogue().counts(),
        draining=lambda: core.turns.draining,
        writable=core.database.writable,
        connectors=connectors.active,
        stuck=lambda: core.turns.stuck,
    )


def _expiry(settings: Settings, core: Core) -> Expiry | None:
    if not settings.session_days:
        return None
    after = timedelta(days=settings.session_days)
    return Expiry(database=core.database, after=after, forget=core.turns.forget)


def _hooks(settings: Settings, connectors: Connectors) -> HooksListener | None:
    if not settings.hooks_port:
        return None
    return HooksListener(host=settings.host, port=settings.hooks_port, answer=connectors.hook)


def _skill_desk(settings: Settings, core: Core) -> SkillDesk:
    def loaded() -> tuple[str, list[Mapping[str, Any]]]:
        catalogue = core.skills.catalogue()
        return f'"{catalogue.etag}"', [core.skills.record(skill) for skill in catalogue.loaded]

    fetcher = open_fetcher(guard=open_guard(settings), environ=os.environ)
    changes = SkillChanges(
        database=core.database, skills=core.skills, installed=core.installed, fetcher=fetcher
    )
    return SkillDesk(loaded=loaded, changes=changes)


def _access(settings: Settings) -> Access:
    token = settings.gateway_token
    return Access(
        token=token.get_secret_value() if token else None,
        allowed_hosts=[*settings.allowed_hosts, settings.host],
        cors_origins=settings.cors_origins,
    )
