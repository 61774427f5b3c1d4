"""What the agent may do."""

from torana.tools.base import ToolContext, ToolError, is_idempotent, tool

__all__ = ["ToolContext", "ToolError", "is_idempotent", "tool"]
