"""Store, list, read and delete files of the turn's user."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from pydantic_ai import RunContext

from torana.characters import visible
from torana.store.workspaces import FileFault, Workspaces
from torana.tools.base import ToolContext, ToolError, tool

#: The bytes of a file that are read, and the number of files that are listed.
_SHOWN = 100_000
_LISTED = 200


class FileTools:
    """The tools of the ``files`` skill."""

    def __init__(self, *, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """Return the functions."""
        return [self.list_files, self.read_file, self.write_file, self.delete_file]

    @tool(idempotent=True)
    async def list_files(self, ctx: RunContext[ToolContext]) -> str:
        """List the user's files with size and time of the last change."""
        user = _user(ctx)
        _demand_alone(ctx)
        files = await self._workspaces.list_files(user)
        zone = ctx.deps.timezone
        lines = [
            f"- {visible(file.name)} ({file.size:,} bytes, {file.changed_at.astimezone(zone):%Y-%m-%d %H:%M})"
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
        user = _user(ctx)
        _demand_alone(ctx)
        with _file_errors():
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
        user = _user(ctx)
        body = text.encode()
        with _file_errors():
            replaced = await self._workspaces.write(user, name, body)
        return f"{'Replaced' if replaced else 'Saved'} {name} ({len(body):,} bytes)."

    @tool(idempotent=True)
    async def delete_file(self, ctx: RunContext[ToolContext], name: str) -> str:
        """Permanently delete one of the user's files.

        Args:
            name: The file's name, as in the list of files.
        """
        user = _user(ctx)
        with _file_errors():
            await self._workspaces.delete(user, name)
        return f"Deleted {name}."


@contextmanager
def _file_errors() -> Generator[None]:
    """Convert ``FileFault`` to an error that the model sees."""
    try:
        yield
    except FileFault as fault:
        raise ToolError(str(fault)) from fault


def _user(ctx: RunContext[ToolContext]) -> str:
    if ctx.deps.turn.user is None:
        raise ToolError("Files need a user; send a userId with the message.")
    return ctx.deps.turn.user


def _demand_alone(ctx: RunContext[ToolContext]) -> None:
    if not ctx.deps.may_recall:
        raise ToolError("The channel has several users, so private files are not read here.")
