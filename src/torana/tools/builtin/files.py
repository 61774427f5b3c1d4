"""Store, list, read and delete files of the turn's user."""

from __future__ import annotations

from pydantic_ai import RunContext

from torana.characters import remove_hidden
from torana.store.workspaces import FileFault, Workspaces
from torana.tools.base import ToolContext, ToolError, ToolGroup, tool, tool_errors

#: The bytes of a file that are read, and the number of files that are listed.
_SHOWN = 100_000
_LISTED = 200


class FileTools(ToolGroup):
    """The tools of the ``files`` skill."""

    def __init__(self, *, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    @tool(idempotent=True)
    async def list_files(self, ctx: RunContext[ToolContext]) -> str:
        """List the user's files with size and time of the last change."""
        user = ctx.deps.user_for("Files")
        ctx.deps.check_private("files are not read")
        files = await self._workspaces.list_files(user)
        zone = ctx.deps.timezone
        lines = [
            f"- {remove_hidden(file.name)} "
            f"({file.size:,} bytes, {file.changed_at.astimezone(zone):%Y-%m-%d %H:%M})"
            for file in files[:_LISTED]
        ]
        if len(files) > _LISTED:
            lines.append(f"… and {len(files) - _LISTED:,} more")
        return "\n".join(lines) or "There are no files yet."

    @tool(idempotent=True)
    async def read_file(self, ctx: RunContext[ToolContext], name: str) -> str:
        """Read one of the user's text files.

        Args:
            name: The file's name, such as notes.txt or trips/oslo.md.
        """
        user = ctx.deps.user_for("Files")
        ctx.deps.check_private("files are not read")
        with tool_errors(FileFault):
            body = await self._workspaces.read(user, name, limit=_SHOWN + 1)
        try:
            # The cut may be inside a character.
            text = body[:_SHOWN].decode("utf-8", "ignore" if len(body) > _SHOWN else "strict")
        except UnicodeDecodeError as error:
            raise ToolError(f"{name} is not UTF-8 text.") from error
        if "\0" in text:
            raise ToolError(f"{name} is not text.")
        cut = f"\n[truncated; only the first {_SHOWN:,} bytes are read]" if len(body) > _SHOWN else ""
        return f"{text}{cut}" or f"{name} is empty."

    @tool(idempotent=True)
    async def write_file(self, ctx: RunContext[ToolContext], name: str, text: str) -> str:
        """Save a text as a file of the user. A file of that name is replaced: read it first to add to it.

        Args:
            name: The file's name, such as notes.txt or trips/oslo.md.
            text: The complete content of the file.
        """
        user = ctx.deps.user_for("Files")
        body = text.encode()
        with tool_errors(FileFault):
            replaced = await self._workspaces.write(user, name, body)
        return f"{'Replaced' if replaced else 'Saved'} {name} ({len(body):,} bytes)."

    @tool(idempotent=True)
    async def delete_file(self, ctx: RunContext[ToolContext], name: str) -> str:
        """Permanently delete one of the user's files.

        Args:
            name: The file's name, as in the list of files.
        """
        user = ctx.deps.user_for("Files")
        with tool_errors(FileFault):
            await self._workspaces.delete(user, name)
        return f"Deleted {name}."
