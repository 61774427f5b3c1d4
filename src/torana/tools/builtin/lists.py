"""Lists of the turn's user, such as a shopping list: text files with one entry on each line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from pydantic_ai import RunContext

from torana.store.engine.similarity import find_alike
from torana.store.workspaces import FileChanged, FileFault, Workspaces
from torana.tools.base import ToolContext, ToolError, ToolGroup, tool, tool_errors
from torana.tools.computing import Computing
from torana.tools.shares import sharing_user

#: The folder of the lists among the user's files.
FOLDER = "lists"
_ENDING = ".txt"
#: Maximum characters of a list's name and of an entry, and number of entries of a list and of a call.
NAME_LIMIT, ENTRY_LIMIT, ENTRIES_LIMIT = 40, 200, 500
#: The number of entries of a call for which similar entries are looked up: each takes up to 0.04 s.
_COMPARED = 10
#: Maximum bytes of a list.
_FILE_LIMIT = ENTRIES_LIMIT * ENTRY_LIMIT * 4


class ListTools(ToolGroup):
    """The tools of the ``lists`` skill."""

    def __init__(self, *, workspaces: Workspaces, computing: Computing) -> None:
        self._workspaces = workspaces
        self._computing = computing
        #: The lock of each user: a call changes what the last one stored.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @tool(idempotent=True)
    async def add_to_list(self, ctx: RunContext[ToolContext], name: str, entries: list[str]) -> str:
        """Add entries to one of the user's lists, which is created if there is none of that name.

        Args:
            name: The list, such as "shopping" or "todo".
            entries: The new entries; none creates an empty list. Entries that are on the list stay once.
        """
        return await self._work(ctx, partial(_add, name=_plain_name(name), entries=_entries(entries)))

    @tool(idempotent=True)
    async def show_list(self, ctx: RunContext[ToolContext], name: str = "") -> str:
        """Return the entries of one of the user's lists, or the names of all lists.

        Args:
            name: The list; empty for the names of all lists.
        """
        return await self._work(ctx, partial(_show, name=_plain_name(name)) if name.strip() else _show_all)

    @tool(idempotent=True)
    async def remove_from_list(
        self, ctx: RunContext[ToolContext], name: str, entries: list[str], everything: bool = False
    ) -> str:
        """Remove entries from one of the user's lists, or delete the whole list.

        Args:
            name: The list.
            entries: The entries to remove.
            everything: Delete the list with all its entries instead.
        """
        wanted, name = _entries(entries), _plain_name(name)
        change = partial(_delete, name=name) if everything else partial(_remove, name=name, entries=wanted)
        return await self._work(ctx, change)

    async def _work(self, ctx: RunContext[ToolContext], work: Callable[[_Lists], Awaitable[str]]) -> str:
        user = ctx.deps.user_for("Lists")
        ctx.deps.check_private("lists are not used")
        alike = partial(self._computing.run, find_alike, user=sharing_user(ctx.deps.turn))
        lists = _Lists(self._workspaces, user, alike=alike)
        with tool_errors(FileFault):
            async with self._locks.setdefault(user, asyncio.Lock()):
                while True:
                    with suppress(FileChanged):  # by another replica since it was read
                        return await work(lists)


class _Lists:
    def __init__(
        self, workspaces: Workspaces, user: str, *, alike: Callable[[dict[str, list[str]]], Awaitable[Any]]
    ) -> None:
        """``alike`` calls ``find_alike`` with named arguments."""
        self._workspaces = workspaces
        self._user = user
        self._alike = alike

    async def names(self) -> list[str]:
        prefix = f"{FOLDER}/"
        return [
            file.name.removeprefix(prefix).removesuffix(_ENDING)
            for file in await self._workspaces.list_files(self._user)
            if file.name.startswith(prefix) and file.name.endswith(_ENDING)
        ]

    async def stored_name(self, name: str) -> str | None:
        """Return the name of the stored list that a name means, also with a spelling mistake."""
        return next(iter(await self.find([name], await self.names())), None)

    async def find(self, wanted: Sequence[str], stored: Sequence[str]) -> list[str]:
        """Return the stored texts that equal the wanted ones regardless of case, or else resemble them most.

        Only the first wanted texts without an equal one are compared by resemblance, which takes long.
        """
        folded = {text.casefold(): text for text in reversed(stored)}
        texts = [text.casefold() for text in wanted]
        missing = [text for text in texts if text not in folded][:_COMPARED]
        alike: Mapping[str, str] = {}
        if missing and folded:
            alike = await self._alike({"wanted": missing, "stored": list(folded)})
        return [folded[near] for text in texts if (near := alike.get(text, text)) in folded]

    async def body(self, name: str) -> bytes | None:
        """Return the content of a list, cut after ``_FILE_LIMIT``; None if it does not exist."""
        try:
            return await self._workspaces.read(self._user, _file(name), limit=_FILE_LIMIT + 1)
        except FileFault:
            return None

    async def store(self, name: str, entries: Sequence[str], *, before: bytes | None) -> None:
        """Replace the content ``before``. Raises ``FileChanged`` if it is not the content any more."""
        body = "".join(f"{entry}\n" for entry in entries).encode()
        await self._workspaces.replace(self._user, _file(name), body, before=before)

    async def delete(self, name: str) -> None:
        await self._workspaces.delete(self._user, _file(name))


async def _add(lists: _Lists, *, name: str, entries: Sequence[str]) -> str:
    name = await lists.stored_name(name) or name
    body = await lists.body(name)
    before = _parse(name, body or b"")
    known = {entry.casefold() for entry in before}
    new = [entry for entry in dict.fromkeys(entries) if entry.casefold() not in known]
    after = [*before, *new]
    if len(after) > ENTRIES_LIMIT:
        raise ToolError(f"A list has at most {ENTRIES_LIMIT} entries; remove some first.")
    if new or body is None:
        await lists.store(name, after, before=body)
    if not entries:
        return f"Your {name} list has {_count(len(after))}."
    added = f"Added to your {name} list: {', '.join(new)}." if new else ""
    known_already = [entry for entry in dict.fromkeys(entries) if entry not in new]
    repeated = f"Already on your {name} list: {', '.join(known_already)}." if known_already else ""
    return " ".join(filter(None, (added, repeated)))


async def _show_all(lists: _Lists) -> str:
    lines = [f"- {name} ({await _size(lists, name)})" for name in await lists.names()]
    return "\n".join(["Your lists:", *lines]) if lines else "You have no lists yet."


async def _size(lists: _Lists, name: str) -> str:
    try:
        return _count(len(_parse(name, await lists.body(name) or b"")))
    except ToolError:
        return "too long"


async def _show(lists: _Lists, *, name: str) -> str:
    stored = await lists.stored_name(name)
    body = None if stored is None else await lists.body(stored)
    if stored is None or body is None:
        return await _no_list(lists, name)
    entries = _parse(stored, body)
    if not entries:
        return f"Your {stored} list is empty."
    return "\n".join([f"Your {stored} list has {_count(len(entries))}:", *(f"- {entry}" for entry in entries)])


async def _remove(lists: _Lists, *, name: str, entries: Sequence[str]) -> str:
    stored = await lists.stored_name(name)
    body = None if stored is None else await lists.body(stored)
    if stored is None or body is None:
        return await _no_list(lists, name)
    before = _parse(stored, body)
    gone = await lists.find(entries, before)
    if not gone:
        return f"Not on your {stored} list: {', '.join(entries)}."
    left = [entry for entry in before if entry not in gone]
    await lists.store(stored, left, before=body)
    return f"Removed from your {stored} list: {', '.join(gone)}. It has {_count(len(left))} left."


async def _delete(lists: _Lists, *, name: str) -> str:
    stored = await lists.stored_name(name)
    if stored is None:
        return await _no_list(lists, name)
    await lists.delete(stored)
    return f"Deleted your {stored} list."


async def _no_list(lists: _Lists, name: str) -> str:
    others = ", ".join(await lists.names())
    return f"You have no {name} list yet." + (f" Your lists are: {others}." if others else "")


def _parse(name: str, body: bytes) -> list[str]:
    """Return the entries of a list. Raises ``ToolError`` for a file that is too long."""
    entries = [line.strip() for line in body.decode("utf-8", "replace").splitlines() if line.strip()]
    too_many = len(body) > _FILE_LIMIT or len(entries) > ENTRIES_LIMIT
    if too_many or any(len(one) > ENTRY_LIMIT for one in entries):
        raise ToolError(
            f"The file {_file(name)} is too long for a list, which has at most {ENTRIES_LIMIT} entries of "
            f"{ENTRY_LIMIT} characters; use the tools for files."
        )
    return entries


def _plain_name(name: str) -> str:
    plain = " ".join(name.casefold().split()).removesuffix(" list")
    if not plain or len(plain) > NAME_LIMIT or "/" in plain:
        raise ToolError(f"The name of a list has 1 to {NAME_LIMIT} characters and no slash.")
    return plain


def _entries(texts: Sequence[str]) -> list[str]:
    if len(texts) > ENTRIES_LIMIT:
        raise ToolError(f"A call has at most {ENTRIES_LIMIT} entries; make several calls.")
    return [_entry(text) for text in texts]


def _entry(text: str) -> str:
    entry = " ".join(text.split())
    if not entry or len(entry) > ENTRY_LIMIT:
        raise ToolError(f"An entry of a list has 1 to {ENTRY_LIMIT} characters.")
    return entry


def _file(name: str) -> str:
    return f"{FOLDER}/{name}{_ENDING}"


def _count(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"
