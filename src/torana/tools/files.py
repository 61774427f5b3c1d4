"""Keep files for the user who speaks: list, read, write and delete them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic_ai import RunContext

from torana.store.workspaces import FileFault, Workspaces
from torana.tools.base import ToolContext, ToolError, tool
from torana.web.visible import visible

#: Bytes of a file that are read, and files that are listed.
_SHOWN = 100_000
_LISTED = 200

T = TypeVar("T")


class FileTools:
    """The tools of the ``files`` skill."""

    def __init__(self, *, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The functions."""
        return [self.list_files, self.read_file, self.write_file, self.delete_file]

    @tool(idempotent=True)
    async def list_files(self, ctx: RunContext[ToolContext]) -> str:
        """List the user's files, each with its size and when it was last changed."""
        user = _user(ctx)
        _demand_alone(ctx)
        files = await _done(lambda: self._workspaces.listed(user))
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
        """Read one of the user's files, if it is a text.

        Args:
            name: The file's name, such as notes.txt or trips/oslo.md.
        """
        user = _user(ctx)
        _demand_alone(ctx)
        body = await _done(lambda: self._workspaces.read(user, name, limit=_SHOWN + 1))
        try:
            # A character may have been cut in two.
            text = body[:_SHOWN].decode("utf-8", "ignore" if len(body) > _SHOWN else "strict")
        except UnicodeDecodeError as error:
            raise ToolError(f"{name} is not a text in UTF-8.") from error
        if "\0" in text:
            raise ToolError(f"{name} is not a text.")
        cut = f"\n[cut off here; only the first {_SHOWN:,} bytes are read]" if len(body) > _SHOWN else ""
        return f"{text}{cut}" or f"{name} is empty."

    @tool(idempotent=True)
    async def write_file(self, ctx: RunContext[ToolContext], name: str, text: str) -> str:
        """Keep a text as a file of the user's. A file of that name is replaced: read it first to add to it.

        Args:
            name: The file's name, such as notes.txt or trips/oslo.md.
            text: The whole of what the file is to hold.
        """
        user = _user(ctx)
        body = text.encode()
        replaced = await _done(lambda: self._workspaces.write(user, name, body))
        return f"{'Replaced' if replaced else 'Saved'} {name} ({len(body):,} bytes)."

    @tool(idempotent=True)
    async def delete_file(self, ctx: RunContext[ToolContext], name: str) -> str:
        """Delete one of the user's files, for good.

        Args:
            name: The file's name, as the list of files gives it.
        """
        user = _user(ctx)
        await _done(lambda: self._workspaces.delete(user, name))
        return f"Deleted {name}."


async def _done(work: Callable[[], T]) -> T:
    """What the work gives; it is done to its end even where the turn is stopped."""
    try:
        return await asyncio.to_thread(work)
    except FileFault as fault:
        raise ToolError(str(fault)) from fault


def _user(ctx: RunContext[ToolContext]) -> str:
    if ctx.deps.turn.user is None:
        raise ToolError("No files can be kept without knowing who speaks; send a userId with the message.")
    return ctx.deps.turn.user


def _demand_alone(ctx: RunContext[ToolContext]) -> None:
    if not ctx.deps.may_recall:
        raise ToolError("More than one person speaks in this channel; private files are not read here.")
