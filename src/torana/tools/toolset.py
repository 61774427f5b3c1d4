"""All tools of the gateway as one toolset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from types import MethodType
from typing import Any

from pydantic_ai import FunctionToolset, RunContext, Tool
from pydantic_ai.exceptions import UserError
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_ai.toolsets.function import FunctionToolsetTool

from torana.errors import ConfigInvalid
from torana.tools.base import ToolContext, ToolGroup, promises
from torana.tools.builtin.arithmetic import calculate
from torana.tools.builtin.chance import pick_random
from torana.tools.builtin.csv_query import query_csv
from torana.tools.builtin.dates import current_time, days_between, shift_date
from torana.tools.builtin.json_query import query_json
from torana.tools.builtin.text import change_text, count_text, sort_lines, unique_lines
from torana.tools.builtin.units import convert_units
from torana.tools.computing import Computing
from torana.tools.shares import ToolShares, sharing_user
from torana.tools.threads import ToolThreads

#: The maximum duration of a tool, in seconds.
_TIMEOUT = 60.0

#: Tools that are fast for all arguments; docs/decisions/0028 has the measurements.
_FAST_TOOLS: tuple[Callable[..., Any], ...] = (
    calculate,
    convert_units,
    current_time,
    days_between,
    shift_date,
    change_text,
    count_text,
    unique_lines,
    pick_random,
)
#: Tools whose arguments determine their running time: they run in worker processes.
_COMPUTED: tuple[Callable[..., Any], ...] = (sort_lines, query_json, query_csv)
_COMPUTED_BY_NAME = {function.__name__: function for function in _COMPUTED}
#: Maximum threads of Torana's own tools, in total and for each user: they compute, which delays the event loop.
_OWN_THREADS, _OWN_PER_USER = 2, 1
#: Tools of groups that compute in their own processes.
_COMPUTES_ITSELF = frozenset({"run_python"})


class _SteadyToolset(FunctionToolset[ToolContext]):
    """Functions whose definitions are built once, not before every request."""

    def __init__(self, *, timeout: float, computing: Computing, operators: Collection[str]) -> None:
        """``operators`` are the names of the operator's tools."""
        super().__init__(timeout=timeout)
        self._computing = computing
        self._operators = operators
        self._own_threads = ToolThreads(total=_OWN_THREADS, per_user=_OWN_PER_USER)
        self._operators_threads = ToolThreads()
        self._shares = ToolShares()
        #: The definitions by the maximum number of retries: nothing else in a definition depends on the run.
        self._described: dict[int, dict[str, ToolsetTool[ToolContext]]] = {}

    async def get_tools(self, ctx: RunContext[ToolContext]) -> dict[str, ToolsetTool[ToolContext]]:
        if ctx.max_retries not in self._described:
            # No model receives the return schema, and pydantic-ai would remove it before every request.
            self._described[ctx.max_retries] = {
                name: replace(tool, tool_def=replace(tool.tool_def, return_schema=None))
                for name, tool in (await super().get_tools(ctx)).items()
            }
        return dict(self._described[ctx.max_retries])

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[ToolContext], tool: ToolsetTool[ToolContext]
    ) -> Any:
        """Call the tool where it delays no other user: in the event loop, a thread or a worker process."""
        user = sharing_user(ctx.deps.turn)
        if name in _COMPUTED_BY_NAME:
            return await self._computing.run(_COMPUTED_BY_NAME[name], tool_args, user=user)
        call = partial(super().call_tool, name, tool_args, ctx, tool)
        if name in _COMPUTES_ITSELF:
            async with self._computing.slot(user):
                return await call()
        if isinstance(tool, FunctionToolsetTool) and tool.is_async:
            async with self._shares.slot(name, user):
                return await call()
        threads = self._operators_threads if name in self._operators else self._own_threads
        return await threads.run(call, user=user)


def build_toolset(
    groups: Iterable[ToolGroup], *, own: Iterable[Callable[..., Any]], computing: Computing
) -> FunctionToolset[ToolContext]:
    """Return the tools without dependencies, the groups' tools, and the operator's tools.

    ``computing`` runs slow calls; the caller closes it. A tool's metadata is that of its ``@tool``. Raises
    ``ConfigInvalid`` for an operator's function with a name that exists, or a signature without a JSON schema.
    """
    own = list(own)
    operators = frozenset(function.__name__ for function in own)
    toolset = _SteadyToolset(timeout=_TIMEOUT, computing=computing, operators=operators)
    for function in (*_FAST_TOOLS, *_COMPUTED, *chain.from_iterable(group.tools for group in groups)):
        toolset.add_tool(_tool(function))
    for function in own:
        _add_own(toolset, function)
    return toolset


def _tool(function: Callable[..., Any]) -> Tool[ToolContext]:
    described = _describe(getattr(function, "__func__", function), method=hasattr(function, "__func__"))
    schema = replace(described.function_schema, function=function)
    return Tool(function, function_schema=schema, metadata=promises(function))


@lru_cache(maxsize=128)
def _describe(function: Callable[..., Any], *, method: bool) -> Tool[ToolContext]:
    """Return a tool with the schema of a function or a method.

    The schema depends on no object, so the gateways of a process share it.
    """
    return Tool(MethodType(function, object()) if method else function)


def _add_own(toolset: FunctionToolset[ToolContext], function: Callable[..., Any]) -> None:
    try:
        toolset.add_function(function, metadata=promises(function))
    except (UserError, ValueError, TypeError, NameError) as error:
        raise ConfigInvalid(f"TORANA_TOOLS: {function.__name__} cannot be a tool: {error}") from error
