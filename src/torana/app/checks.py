"""What of the settings will not work, as far as it can be told without the network and with nothing started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from pydantic_ai.models import Model

from torana.app.acting import Means, open_skills, open_workspaces, search_key, tool_groups
from torana.app.core import open_schedules
from torana.app.models import choose_embedder, choose_model
from torana.config import Loaded
from torana.connectors.registry import Account, check_accounts, read_accounts
from torana.errors import ConfigInvalid
from torana.memory import Memory
from torana.sessions import Sessions
from torana.skills.installed import InstalledSkills
from torana.store.backup import DATABASE_NAME, INSTALLED
from torana.store.database import Database
from torana.tools.computing import Computing
from torana.tools.mcp.entries import Server
from torana.tools.mcp.servers import check_servers
from torana.tools.operator import load_tools
from torana.tools.python import PythonTools
from torana.tools.toolset import ToolGroup, build_toolset
from torana.web.search import lacking


def settings_faults(loaded: Loaded) -> list[str]:
    """A line for each fault, with the place where it was written. Imports what the settings name.

    What depends on a setting that is known to be wrong is not looked at.
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
            faults.append(f"{error.filename}: {error.strerror}; mend its permissions, or choose another place")
    return faults


# Each raises ``ConfigInvalid`` with a line for each fault.


def check_data_dir(loaded: Loaded) -> None:
    """Whether the data directory is there and can be written, or can be made."""
    directory = loaded.settings.data_dir
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    # What is in /proc cannot be made, whatever its permissions say.
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or there.is_relative_to("/proc"):
        with loaded.placing():
            raise ConfigInvalid(
                f"data_dir: {there} is no directory that can be written; mend its permissions, or choose "
                "another with --data-dir"
            )


def check_connectors(loaded: Loaded) -> Sequence[Account]:
    """The accounts, whose settings are right, and for which those that call can reach the gateway."""
    settings = loaded.settings
    reachable = bool(settings.hooks_port)
    accounts = read_accounts(settings.connectors, loaded.provider_environ, reachable=reachable)
    with loaded.placing():
        check_accounts(accounts)
    return accounts


def check_mcp(loaded: Loaded) -> Sequence[Server]:
    """The MCP servers, whose entries are right and whose programs are there."""
    settings = loaded.settings
    with loaded.placing():
        return check_servers(settings.mcp, file=settings.mcp_config, environ=loaded.provider_environ)


def check_tools(loaded: Loaded) -> Sequence[str]:
    """The names of the operator's own tools, which can all be imported and called."""
    with loaded.placing():
        own = load_tools(loaded.settings.tools)
        # Opens its file when it is first asked for something, which it never is here.
        database = Database(path=loaded.settings.data_dir / DATABASE_NAME)
        try:
            build_toolset(_groups(loaded, database), own=own, computing=Computing())
        finally:
            database.close()
    return [function.__name__ for function in own]


def _groups(loaded: Loaded, database: Database) -> Sequence[ToolGroup]:
    """What the names of the operator's own tools must not clash with."""
    settings = loaded.settings
    installed = InstalledSkills(root=settings.data_dir / INSTALLED)
    means = Means(
        memory=Memory(database=database),
        sessions=Sessions(database=database, history_messages=settings.history_messages),
        skills=open_skills(loaded, installed),
        schedules=open_schedules(settings, database, changed=lambda: None),
        workspaces=open_workspaces(settings),
        granted=installed.granted,
    )
    return tool_groups(loaded, means, PythonTools())


def check_search(loaded: Loaded) -> None:
    """Whether the search service has what it needs."""
    settings = loaded.settings
    with loaded.placing():
        if missing := lacking(settings.search, url=settings.search_url, api_key=search_key(settings)):
            raise ConfigInvalid(f"search: web_search is left out: {missing}")


def check_models(loaded: Loaded) -> Model:
    """The language model; it and the one for embeddings have a name, a key and a library."""
    with loaded.placing():
        choose_embedder(loaded)
        return choose_model(loaded, open_skills(loaded))


#: Each with the settings that it reads.
_CHECKS: Mapping[Callable[[Loaded], object], frozenset[str]] = {
    check_data_dir: frozenset({"data_dir"}),
    check_connectors: frozenset({"connectors", "hooks_port"}),
    check_mcp: frozenset({"mcp", "mcp_config"}),
    check_tools: frozenset({"tools"}),
    check_search: frozenset({"search", "search_url", "search_api_key"}),
    check_models: frozenset({"model", "model_base_url", "model_api_key", "embedding_model", "skills_dir"}),
}
