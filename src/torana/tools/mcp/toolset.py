"""The tools of all MCP servers, for the agent."""

from __future__ import annotations

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
from torana.tools.mcp.offers import visible_name
from torana.tools.mcp.servers import McpServers

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
#: Whether arguments fit is for the server to say.
_ARGUMENTS = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))


class McpToolset(AbstractToolset[ToolContext]):
    """What can be called at the moment; a server that is not there delays and fails no turn."""

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers

    @property
    def id(self) -> str:
        """Its name among the agent's toolsets."""
        return "mcp"

    async def get_tools(self, ctx: RunContext[ToolContext]) -> dict[str, ToolsetTool[ToolContext]]:
        """The tools that are offered, and those that a turn which goes on has called."""
        await self._servers.settled()
        tools = {
            offer.name: self._tool(
                offer.name,
                idempotent=offer.idempotent,
                permission=offer.permission,
                description=offer.description,
                schema=offer.schema,
                at=(name, offer.tool),
            )
            for name, supervisor in self._servers.supervisors.items()
            for offer in supervisor.offers
        }
        return {**dict(self._called(ctx)), **tools}

    async def get_instructions(self, ctx: RunContext[ToolContext]) -> str | None:
        """Which servers are missing, so that the model can say what it cannot do; their names are ours."""
        missing = [name for name, one in self._servers.supervisors.items() if one.status.state != "active"]
        if not missing:
            return None
        return (
            f"These MCP servers are not connected at the moment, and their tools missing: {', '.join(missing)}."
        )

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[ToolContext], tool: ToolsetTool[ToolContext]
    ) -> str:
        """What the server returned. Raises ``ToolError``."""
        at = (tool.tool_def.metadata or {}).get("mcp")
        if at is None:
            raise ToolError(f"The MCP server of {name} does not offer it at the moment; nothing was called.")
        server, called = at
        return await self._servers.supervisors[server].call(called, tool_args)

    def _called(self, ctx: RunContext[ToolContext]) -> Iterator[tuple[str, ToolsetTool[ToolContext]]]:
        """Tools for the calls that a resumed turn begins with, whether or not their servers are there.

        So that the journal can tell what became of them, where they would be unknown otherwise.
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
        at: tuple[str, str] | None = None,
    ) -> ToolsetTool[ToolContext]:
        return ToolsetTool(
            toolset=self,
            tool_def=ToolDefinition(
                name=name,
                description=description,
                # The same object each time: what a model made of it is remembered.
                parameters_json_schema=schema if isinstance(schema, dict) else dict(schema or _NO_ARGUMENTS),
                metadata={"idempotent": idempotent, "permission": permission, "mcp": at},
            ),
            max_retries=1,
            args_validator=_ARGUMENTS,
        )


def _is_one_of(server: Server, tools: frozenset[str], name: str) -> bool:
    return name in {visible_name(server.name, tool) for tool in tools}
