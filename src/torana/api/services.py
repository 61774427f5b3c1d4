"""The services that the handlers call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torana.agent.overview import Toolbox
from torana.api.health import Health
from torana.api.routes.metrics import Metrics
from torana.api.uploads import UploadSlots
from torana.limits.rates import MessageRates
from torana.limits.usage_reports import Spending
from torana.memory import Memory
from torana.messages import FileKind
from torana.people.audit import AuditRecord
from torana.people.erasure import Erasure
from torana.people.export import Export
from torana.people.pairing import Pairing
from torana.people.sign_in import SignIns
from torana.people.tokens import Tokens
from torana.schedules import Schedules
from torana.sessions import Sessions
from torana.sessions.search import MessageSearch
from torana.skills import Skills
from torana.skills.installation.installer import SkillInstaller
from torana.store.rows.audit import Act
from torana.tools.mcp.servers import McpServers
from torana.turns import SessionChanges, Turns
from torana.turns.deliveries import Deliveries
from torana.workers.fair_slots import FairSlots, PacedSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Tokens, sign-ins, the audit record, export and erasure."""

    tokens: Tokens
    sign_ins: SignIns
    audit: AuditRecord
    export: Export
    erasure: Erasure


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Senders, deliveries and the status of connectors."""

    pairing: Pairing
    #: Returns the prefixes that a sender's id may have: the names of the accounts in the settings, and their
    #: platforms.
    kinds: Callable[[], Collection[str]]
    deliveries: Deliveries
    #: Returns the status of every account with its numbers of deliveries.
    status: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]]
    #: Applies the current settings of the accounts, and returns the names of the changed accounts.
    reload: Callable[[Act], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillServices:
    """The loaded skills, and the installer of skills. Lists and reports of skills are made one at a time."""

    library: Skills
    changes: SkillInstaller
    reporting: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services that the handlers call, and the time limits of requests."""

    turns: Turns
    sessions: Sessions
    search: MessageSearch
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
    #: The settings with ``name``, ``value``, ``default`` and ``origin``, without secrets.
    settings: Sequence[Mapping[str, Any]]
    #: The names of the models, in the order in which they are tried.
    models: Sequence[str]
    skills: SkillServices
    tools: Toolbox
    #: The kinds of files that the model receives.
    takes: frozenset[FileKind]
    #: Seconds that a request waits for its answer.
    wait: float
    #: Seconds that a body may take to arrive.
    body_timeout: float = 30.0
    #: Seconds without an event after which an event stream sends a comment.
    keep_alive: float = 15.0
    #: Maximum number of bodies with files that are read at a time: each may occupy some 20 MB.
    uploads: UploadSlots = field(default_factory=UploadSlots)
    #: Maximum number of archives of skills in memory: each may have 10 MB.
    archives: FairSlots = field(default_factory=lambda: FairSlots(total=4, per_user=2))
    #: Maximum number of concurrent searches: each may occupy a thread for a second.
    searches: FairSlots = field(default_factory=lambda: FairSlots(total=2, per_user=1))
    #: Maximum number of requests for a turn's tool calls at a time: each may occupy a thread.
    tool_calls: FairSlots = field(default_factory=lambda: FairSlots(total=2, per_user=1))
    #: Long bodies are processed one at a time, because the event loop does it: each may take 20 milliseconds.
    parsing: FairSlots = field(default_factory=lambda: FairSlots(total=1, per_user=1))
    #: Sessions are copied one at a time: a transaction may take a second, and other transactions wait for it.
    copies: PacedSlots = field(default_factory=lambda: PacedSlots(total=1))
    #: A user's lists of turns and sessions are read one at a time: a filter without matches reads all rows.
    lists: PacedSlots = field(default_factory=lambda: PacedSlots(total=sys.maxsize, short=0.05))
    #: A user's sessions are deleted one at a time. A deletion may wait for the end of running turns.
    deletions: FairSlots = field(default_factory=lambda: FairSlots(total=sys.maxsize, per_user=1))
    #: Maximum number of turns that are read at a time for event streams: a reply may have megabytes.
    stream_starts: FairSlots = field(default_factory=lambda: FairSlots(total=16, per_user=2))
    #: Maximum number of long responses at a time: each may occupy some 12 MB until the client has read it.
    long_responses: FairSlots = field(default_factory=lambda: FairSlots(total=64, per_user=4))
