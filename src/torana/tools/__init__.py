"""The tools that the agent can call."""

from torana.tools.base import Permission, ToolContext, ToolError, promises, tool

__all__ = ["Permission", "ToolContext", "ToolError", "promises", "tool"]
