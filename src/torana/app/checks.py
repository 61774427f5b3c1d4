"""Check the settings without the network and without starting anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic_ai.models import Model

from torana.app.core import open_schedules
from torana.app.models import choose_embedder, choose_model
from torana.app.tooling import ToolDependencies, open_skills, open_workspaces, search_key, tool_groups
from torana.app.traces import load_tracer
from torana.config import Loaded
from torana.connectors.registry import Account, check_accounts, read_accounts
from torana.errors import ConfigInvalid
from torana.memory import Memory
from torana.sessions import Sessions
from torana.skills.grants import InstalledSkills
from torana.store.backup.archive import DATABASE_NAME, INSTALLED
from torana.store.engine.database import Database
from torana.store.engine.sqlite import SqliteDatabase
from torana.tools.base import ToolGroup
from torana.tools.builtin.python import PythonTools
from torana.tools.computing import Computing
from torana.tools.mcp.entries import Server
from torana.tools.mcp.servers import check_servers
from torana.tools.operator import load_tools
from torana.tools.toolset import build_toolset
from torana.web.search import search_fault


def settings_faults(loaded: Loaded) -> list[str]:
    """Return a line for each fault, with the place of the setting. Imports the modules that the settings name.

    Checks that depend on a setting that is known to be invalid are skipped.
    """
    faults: list[str] = []
    for check, reads in _CHECKS.items():
        if reads & loaded.wrong:
            continue
        try:
            check(loaded)
        except ConfigInvalid as error:
            faults += error.detail.splitlines()
        except OSError as error:
            faults.append(
                f"{error.filename}: {error.strerror}; correct its permissions, or choose another place"
            )
    return faults


# Each check raises ``ConfigInvalid`` with a line for each fault.


def check_data_dir(loaded: Loaded) -> None:
    """Check that the data directory exists and is writable, or can be created."""
    directory = loaded.settings.data_dir
    existing = next(path for path in (directory, *directory.absolute().parents) if _exists(path))
    # Nothing can be created in /proc, whatever its permissions are.
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK) or existing.is_relative_to("/proc"):
        with loaded.annotate_errors():
            raise ConfigInvalid(
                f"data_dir: {existing} is not a writable directory; correct its permissions, or choose "
                "another with --data-dir"
            )


def _exists(path: Path) -> bool:
    """Return whether the path exists. Raises ``OSError``, unlike ``Path.exists`` since Python 3.14."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_connectors(loaded: Loaded) -> Sequence[Account]:
    """Check the connectors' settings, and the hooks port if a platform needs it. Return the accounts."""
    settings = loaded.settings
    reachable = bool(settings.hooks_port)
    accounts = read_accounts(settings.connectors, loaded.provider_environ, reachable=reachable)
    with loaded.annotate_errors():
        check_accounts(accounts)
    return accounts


def check_mcp(loaded: Loaded) -> Sequence[Server]:
    """Check the MCP servers' settings and that their programs exist. Return the servers."""
    settings = loaded.settings
    with loaded.annotate_errors():
        return check_servers(settings.mcp, file=settings.mcp_config, environ=loaded.provider_environ)


def check_tools(loaded: Loaded) -> Sequence[str]:
    """Check that the operator's tools can be imported and offered. Return their names."""
    with loaded.annotate_errors():
        own = load_tools(loaded.settings.tools)
        # The database opens its file at the first query, and this check makes no query.
        database = SqliteDatabase(path=loaded.settings.data_dir / DATABASE_NAME)
        try:
            computing = Computing()  # starts a process at the first call, and there is none
            build_toolset(_groups(loaded, database, computing), own=own, computing=computing)
        finally:
            database.close()
    return [function.__name__ for function in own]


def _groups(loaded: Loaded, database: Database, computing: Computing) -> Sequence[ToolGroup]:
    """Return the gateway's own tools, whose names the operator's tools must not use."""
    settings = loaded.settings
    installed = InstalledSkills(root=settings.data_dir / INSTALLED)
    dependencies = ToolDependencies(
        memory=Memory(database=database),
        sessions=Sessions(database=database, history_messages=settings.history_messages),
        skills=open_skills(loaded, installed),
        schedules=open_schedules(settings, database, computing, changed=lambda: None),
        workspaces=open_workspaces(settings, database),
        granted=installed.granted_needs,
    )
    return tool_groups(loaded, dependencies, PythonTools(), computing)


def check_search(loaded: Loaded) -> None:
    """Check that the search service has an address and a key, if it needs them."""
    settings = loaded.settings
    with loaded.annotate_errors():
        if fault := search_fault(settings.search, url=settings.search_url, api_key=search_key(settings)):
            raise ConfigInvalid(f"search: web_search is not available: {fault}")


def check_models(loaded: Loaded) -> Model:
    """Check name, key and library of the language model and the embedding model. Return the language model."""
    with loaded.annotate_errors():
        choose_embedder(loaded)
        return choose_model(loaded, open_skills(loaded))


def check_traces(loaded: Loaded) -> None:
    """Check that the library for traces is installed, if traces are exported."""
    if loaded.settings.trace_endpoint is not None:
        with loaded.annotate_errors():
            load_tracer()


#: The settings that each check reads.
_CHECKS: Mapping[Callable[[Loaded], object], frozenset[str]] = {
    check_data_dir: frozenset({"data_dir"}),
    check_connectors: frozenset({"connectors", "hooks_port"}),
    check_mcp: frozenset({"mcp", "mcp_config"}),
    check_tools: frozenset({"tools"}),
    check_search: frozenset({"search", "search_url", "search_api_key"}),
    check_models: frozenset({"model", "model_base_url", "model_api_key", "embedding_model", "skills_dir"}),
    check_traces: frozenset({"trace_endpoint"}),
}
