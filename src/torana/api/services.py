"""What the handlers call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torana.agent.overview import Toolbox
from torana.api.health import Health
from torana.api.metrics import Metrics
from torana.limits.rates import MessageRates
from torana.limits.spending import Spending
from torana.memory import Memory
from torana.people.audit import AuditRecord
from torana.people.erasure import Erasure
from torana.people.export import Export
from torana.people.pairing import Pairing
from torana.people.tokens import Tokens
from torana.schedules import Schedules
from torana.sessions import Sessions
from torana.skills.changes import SkillChanges
from torana.store.audit import Act
from torana.tools.mcp.servers import McpServers
from torana.turns import SessionChanges, Turns
from torana.turns.deliveries import Deliveries

NO_STORE = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Who may reach the gateway, what was done in its name, and what is kept of somebody."""

    tokens: Tokens
    audit: AuditRecord
    export: Export
    erasure: Erasure


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The chat platforms, who may talk there, and what is to be said there."""

    pairing: Pairing
    #: What the ids of people may begin with: the accounts of the settings, and their kinds.
    kinds: Callable[[], Collection[str]]
    deliveries: Deliveries
    #: How every account stands, and what is to be delivered there.
    status: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]]
    #: Takes on what the settings say of the accounts by now; gives the names of those that changed.
    reload: Callable[[Act], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillDesk:
    """The skills that are loaded, and what is changed of all."""

    #: Gives an entity tag and the records of the loaded skills.
    loaded: Callable[[], tuple[str, Sequence[Mapping[str, Any]]]]
    changes: SkillChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the handlers call, and the seconds they allow."""

    turns: Turns
    sessions: Sessions
    changes: SessionChanges
    memory: Memory
    schedules: Schedules
    people: People
    rates: MessageRates
    spending: Spending
    connections: Connections
    mcp: McpServers
    health: Health
    metrics: Metrics
    #: The names of the models that answer.
    models: Sequence[str]
    skills: SkillDesk
    tools: Toolbox
    #: How long a plain request waits for its answer.
    wait: float
    #: How long a body may take to arrive.
    body_timeout: float = 30.0
    #: How long an event stream may be silent.
    keep_alive: float = 15.0
