"""Bodies of MCP servers: how they stand, and what they offer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from torana.api.shapes.base import CLEAN, Wire


class McpServerBody(Wire):
    """How an MCP server stands."""

    server: str
    transport: Literal["stdio", "http"]
    state: Literal["starting", "active", "backing_off", "refused"]
    since: AwareDatetime
    reason: Annotated[str | None, Field(description="Why it is not active.")]
    next_try: AwareDatetime | None
    connections: Annotated[int, Field(description="How often it was connected since the start.")]
    calls: Annotated[int, Field(description="Calls of its tools since the start.")]
    failed_calls: int
    tools: Annotated[int, Field(description="Tools that can be called at the moment.")]


class McpToolBody(Wire):
    """A tool of an MCP server, as the model sees it."""

    name: str
    tool: Annotated[str, Field(description="As the server calls it.")]
    permission: Literal["allow", "ask", "deny"]
    idempotent: bool
    description: str
    input_schema: Annotated[dict[str, Any], Field(description="The JSON Schema of its arguments.")]
    notes: Annotated[list[str], Field(description="What was changed of its definition.")]
    withheld: Annotated[
        list[str],
        Field(
            description="The server's own words that were not taken over: for people to judge, not for a model."
        ),
    ]


class McpLeftOut(Wire):
    """A tool that is not offered."""

    tool: str
    reason: str


class McpDetailsBody(McpServerBody):
    """An MCP server with its tools."""

    held: Annotated[str | None, Field(description="Identifies what waits, to approve it.")]
    offered: list[McpToolBody]
    waiting: Annotated[
        list[McpToolBody], Field(description="Tools that are new, or changed since they were seen.")
    ]
    left_out: list[McpLeftOut]


class McpServersBody(Wire):
    """All MCP servers."""

    items: list[McpDetailsBody]


class ApprovalOfTools(Wire):
    """What is let in. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    held: Annotated[
        str, Field(description="What was seen, as `held` named it.", min_length=1, max_length=64, pattern=CLEAN)
    ]
