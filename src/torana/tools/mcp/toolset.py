"""The tools of all MCP servers, for the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelResponse
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from torana.tools.base import Permission, ToolContext, ToolError
from torana.tools.mcp.entries import Server
from torana.tools.mcp.listing import visible_name
from torana.tools.mcp.servers import McpServers
from torana.tools.shares import ToolShares, sharing_user

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


def _check_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """Refuse NaN and infinite numbers, which JSON lacks: the server would receive null in their place."""
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        raise ValueError("numbers must be finite, because JSON has no NaN and no infinity") from None
    return arguments


#: The server validates the rest of the arguments.
_ARGUMENTS = SchemaValidator(
    core_schema.no_info_after_validator_function(
        _check_numbers, core_schema.dict_schema(core_schema.str_schema())
    )
)
#: The maximum number of concurrent calls of a server: in total, and for each user.
_CALLS = (16, 2)
#: Seconds until a call must have a slot, if the timeout of the server's calls is not longer.
_WAIT = 60.0


class McpToolset(AbstractToolset[ToolContext]):
    """The MCP tools that can be called now; an unavailable server neither delays nor fails a turn."""

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers
        self._shares = {
            name: ToolShares(calls={name: _CALLS}, wait=max(_WAIT, server.timeout))
            for name, server in servers.servers.items()
        }

    @property
    def id(self) -> str:
        return "mcp"

    async def get_tools(self, ctx: RunContext[ToolContext]) -> dict[str, ToolsetTool[ToolContext]]:
        """Return the offered tools, and the tools that a resumed turn has called."""
        await self._servers.wait_until_tried()
        tools = {
            offer.name: self._tool(
                offer.name,
                idempotent=offer.idempotent,
                permission=offer.permission,
                description=offer.description,
                schema=offer.schema,
                at=(name, offer.tool, offer.digest),
            )
            for name, supervisor in self._servers.supervisors.items()
            for offer in supervisor.offers
        }
        return {**dict(self._tools_of_resumed_calls(ctx)), **tools}

    async def get_instructions(self, ctx: RunContext[ToolContext]) -> str | None:
        """Return a note on unavailable servers, so that the model can explain what it cannot do."""
        missing = [name for name, one in self._servers.supervisors.items() if one.status.state != "active"]
        if not missing:
            return None
        return (
            "These MCP servers are not connected at the moment, so their tools are missing: "
            f"{', '.join(missing)}."
        )

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[ToolContext], tool: ToolsetTool[ToolContext]
    ) -> str:
        """Return the server's result, when the user has a slot. Raises ``ToolError``."""
        at = (tool.tool_def.metadata or {}).get("mcp")
        if at is None:
            raise ToolError(f"The MCP server of {name} does not offer it at the moment; nothing was called.")
        server, called, digest = at
        async with self._shares[server].slot(server, sharing_user(ctx.deps.turn)):
            return await self._servers.supervisors[server].call(called, tool_args, digest=digest)

    def _tools_of_resumed_calls(
        self, ctx: RunContext[ToolContext]
    ) -> Iterator[tuple[str, ToolsetTool[ToolContext]]]:
        """Yield tools for the calls with which a resumed turn begins, even if their servers are not connected.

        The journal returns the results of these calls; without the tools, they would be unknown tools.
        """
        last = ctx.messages[-1] if ctx.messages else None
        for call in last.tool_calls if isinstance(last, ModelResponse) else ():
            server = self._servers.servers.get(call.tool_name.partition("_")[0])
            if server is not None:
                yield (
                    call.tool_name,
                    self._tool(
                        call.tool_name,
                        idempotent=_is_one_of(server, server.idempotent, call.tool_name),
                        permission="allow" if _is_one_of(server, server.allow, call.tool_name) else "ask",
                    ),
                )

    def _tool(
        self,
        name: str,
        *,
        idempotent: bool,
        permission: Permission,
        description: str = "",
        schema: Mapping[str, Any] | None = None,
        at: tuple[str, str, str] | None = None,
    ) -> ToolsetTool[ToolContext]:
        return ToolsetTool(
            toolset=self,
            tool_def=ToolDefinition(
                name=name,
                description=description,
                # Always the same object: models cache its converted form.
                parameters_json_schema=schema if isinstance(schema, dict) else dict(schema or _NO_ARGUMENTS),
                metadata={"idempotent": idempotent, "permission": permission, "mcp": at},
            ),
            max_retries=1,
            args_validator=_ARGUMENTS,
        )


def _is_one_of(server: Server, tools: frozenset[str], name: str) -> bool:
    return name in {visible_name(server.name, tool) for tool in tools}
