"""Bodies of MCP servers and their tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from torana.api.schemas.base import CLEAN, ReadFrom, Renamed, RequestBody, Time, Wire
from torana.tools.mcp.supervisor import McpSupervisor


class McpServerBody(Wire):
    """The status of an MCP server."""

    server: str
    transport: Literal["stdio", "http"]
    state: Literal["starting", "active", "backing_off", "refused"]
    since: Annotated[Time, Field(description="The time of the last change of `state`.")]
    reason: Annotated[str | None, Field(description="The reason why the server is not active.")]
    next_try: Annotated[Time | None, Field(description="The time of the next connection attempt.")]
    connections: Annotated[int, Field(description="The number of connections since the start.")]
    calls: Annotated[int, Field(description="The number of calls of its tools since the start.")]
    failed_calls: int
    tools: Annotated[int, Field(description="The number of its tools that the agent can call now.")]

    @classmethod
    def from_supervisor(cls, supervisor: McpSupervisor, /, **fields: Any) -> Self:
        """Return the body of a server; ``fields`` are the other fields of a subclass."""
        return cls.from_object(supervisor.status, tools=len(supervisor.offers), **fields)


class McpToolBody(Renamed):
    """A tool of an MCP server, as the model sees it."""

    name: str
    tool: Annotated[str, Field(description="The name of the tool on the server.")]
    permission: Literal["allow", "ask", "deny"]
    idempotent: bool
    description: str
    input_schema: Annotated[dict[str, Any], ReadFrom("schema")]
    """The JSON Schema of its arguments."""
    notes: Annotated[list[str], Field(description="The changes that the gateway made to its definition.")]
    withheld: list[str]
    """Texts of the server that the model does not get. A person can review them."""


class McpLeftOut(Wire):
    """A tool that the agent does not get, and the reason."""

    tool: str
    reason: str


class McpDetailsBody(McpServerBody):
    """An MCP server with its tools."""

    held: str | None
    """Identifies the tools in `waiting`; send it to approve them."""
    offered: Annotated[list[McpToolBody], Field(description="The tools that the agent gets.")]
    waiting: Annotated[list[McpToolBody], Field(description="New and changed tools that wait for an approval.")]
    left_out: list[McpLeftOut]

    @classmethod
    def from_supervisor(cls, supervisor: McpSupervisor, /, **fields: Any) -> Self:
        """Return the body of a server with its tools."""
        listing = supervisor.status.listing
        return super().from_supervisor(
            supervisor,
            offered=listing.offers,
            waiting=supervisor.waiting,
            left_out=listing.left_out,
            **fields,
        )


class McpServersBody(Wire):
    """All MCP servers."""

    items: list[McpDetailsBody]


class ApprovalOfTools(RequestBody):
    """The tools to approve. Unknown fields are ignored."""

    held: Annotated[
        str,
        Field(
            description="The `held` of the tools that were reviewed, from `GET /v1/mcp`.",
            min_length=1,
            max_length=64,
            pattern=CLEAN,
        ),
    ]
