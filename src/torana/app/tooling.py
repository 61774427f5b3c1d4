"""Build the agent's tools and their dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic_ai.toolsets import AbstractToolset, CombinedToolset

from torana.agent.request_size import definition_bytes
from torana.config import Loaded, Settings
from torana.memory import Memory
from torana.messages import utc_now
from torana.schedules import Schedules, ScheduleTools
from torana.sessions import Sessions
from torana.skills import CORE_DIR, Skills
from torana.skills.grants import InstalledSkills
from torana.store.engine.database import Database
from torana.store.workspaces import Workspaces
from torana.tools import ToolContext
from torana.tools.base import ToolGroup
from torana.tools.builtin.conversation import ConversationTools
from torana.tools.builtin.files import FileTools
from torana.tools.builtin.lists import ListTools
from torana.tools.builtin.memory import MemoryTools
from torana.tools.builtin.python import PythonTools
from torana.tools.builtin.skill_scripts import Granted, ScriptTools
from torana.tools.builtin.skills import SkillTools
from torana.tools.builtin.tool_search import ToolSearch
from torana.tools.builtin.web import WebTools
from torana.tools.computing import Computing
from torana.tools.mcp.entries import read_servers, search_path
from torana.tools.mcp.servers import McpServers
from torana.tools.mcp.toolset import McpToolset
from torana.tools.operator import load_tools
from torana.tools.sandbox import Bubblewrap, Sandbox
from torana.tools.toolset import build_toolset
from torana.web import Guard, GuardedClient
from torana.web.readable import Reader
from torana.web.search import open_search


@dataclass(frozen=True, slots=True, kw_only=True)
class Tooling:
    """The agent's tools, and the parts behind them that must be started and stopped."""

    toolset: AbstractToolset[ToolContext]
    #: The size in bytes of the definitions of all current tools. Thread-safe.
    tool_bytes: Callable[[], int]
    python: PythonTools
    computing: Computing
    mcp: McpServers


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDependencies:
    memory: Memory
    sessions: Sessions
    skills: Skills
    schedules: Schedules
    workspaces: Workspaces
    granted: Granted


def build_tooling(loaded: Loaded, dependencies: ToolDependencies, database: Database) -> Tooling:
    """Build all tools of the gateway. Raises ``ConfigInvalid`` for an operator's tool that is not usable."""
    python, computing = PythonTools(), dependencies.schedules.computing
    groups = tool_groups(loaded, dependencies, python, computing)
    toolset = build_toolset(groups, own=load_tools(loaded.settings.tools), computing=computing)
    mcp = _mcp(loaded, database, taken=frozenset(toolset.tools))
    own_bytes = sum(definition_bytes(tool.tool_def) for tool in toolset.tools.values())
    return Tooling(
        toolset=CombinedToolset([toolset, McpToolset(mcp)]) if mcp.servers else toolset,
        tool_bytes=lambda: own_bytes + mcp.offered_size(),
        python=python,
        computing=computing,
        mcp=mcp,
    )


def tool_groups(
    loaded: Loaded, dependencies: ToolDependencies, python: PythonTools, computing: Computing
) -> Sequence[ToolGroup]:
    """Return the built-in tools that have dependencies. Starts and opens nothing."""
    settings = loaded.settings
    guard = open_guard(settings)
    scripts = ScriptTools(
        skills=dependencies.skills,
        # A guard of its own, so that lookups of scripts do not take the threads of other lookups.
        sandbox=Sandbox(bubblewrap=open_bubblewrap(settings), resolve=open_guard(settings).resolve),
        granted=dependencies.granted,
        environ=loaded.provider_environ,
    )
    search = open_search(settings.search, url=settings.search_url, api_key=search_key(settings))
    return [
        MemoryTools(memory=dependencies.memory),
        ConversationTools(sessions=dependencies.sessions),
        SkillTools(skills=dependencies.skills),
        ToolSearch(skills=dependencies.skills, computing=computing),
        ScheduleTools(schedules=dependencies.schedules),
        scripts,
        python,
        FileTools(workspaces=dependencies.workspaces),
        ListTools(workspaces=dependencies.workspaces, computing=computing),
        WebTools(client=GuardedClient(guard=guard), reader=Reader(), search=search),
    ]


def _mcp(loaded: Loaded, database: Database, *, taken: frozenset[str]) -> McpServers:
    settings, environ = loaded.settings, loaded.provider_environ
    return McpServers(
        servers=read_servers(settings.mcp, file=settings.mcp_config, environ=environ),
        database=database,
        data_dir=settings.data_dir,
        path=search_path(environ),
        taken=taken,
        clock=utc_now,
    )


def open_workspaces(settings: Settings, database: Database) -> Workspaces:
    return Workspaces(
        database=database,
        max_bytes=settings.workspace_megabytes * 1_000_000,
        max_files=settings.workspace_files,
    )


def search_key(settings: Settings) -> str | None:
    return settings.search_api_key.get_secret_value() if settings.search_api_key else None


def open_bubblewrap(settings: Settings) -> Bubblewrap:
    """Return the sandbox builder, which also checks whether this machine supports a sandbox."""
    return Bubblewrap(hidden=[settings.data_dir, settings.skills_dir])


def open_guard(settings: Settings) -> Guard:
    """Return the guard that decides which hosts the gateway may reach."""
    return Guard(allow=settings.web_allow, deny=settings.web_deny)


def open_skills(loaded: Loaded, installed: InstalledSkills | None = None) -> Skills:
    """Return the core skills and the operator's skills."""
    return Skills(
        core_dir=CORE_DIR,
        user_dir=loaded.settings.skills_dir,
        environ=loaded.provider_environ,
        installed=installed,
        # The programs that a skill's scripts find in the sandbox, not those that the gateway finds.
        which=open_bubblewrap(loaded.settings).which,
    )
