"""Lists of the turn's user, such as a shopping list: text files with one entry on each line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from pydantic_ai import RunContext
from rapidfuzz import fuzz, process

from torana.aio import run_uncancellable
from torana.store.workspaces import FileFault, Workspaces
from torana.tools.base import ToolContext, ToolError, tool

#: The folder of the lists among the user's files.
FOLDER = "lists"
_ENDING = ".txt"
#: Maximum characters of a list's name and of an entry, and number of entries of a list and of a call.
NAME_LIMIT, ENTRY_LIMIT, ENTRIES_LIMIT = 40, 200, 500
#: Similarity in percent from which a name or an entry means a stored one with another spelling.
_ALIKE = 85


class ListTools:
    """The tools of the ``lists`` skill."""

    def __init__(self, *, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        #: The lock of each user. A list is read and written again, so two turns of a user must not
        #: interleave. Calls wait here instead of in threads, which other users need.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """Return the functions."""
        return [self.add_to_list, self.show_list, self.remove_from_list]

    @tool(idempotent=True)
    async def add_to_list(self, ctx: RunContext[ToolContext], name: str, entries: list[str]) -> str:
        """Add entries to one of the user's lists, which is created if there is none of that name.

        Args:
            name: The list, such as "shopping" or "todo".
            entries: The new entries; none creates an empty list. Entries that are on the list stay once.
        """
        return await self._in_thread(ctx, partial(self._add, _plain_name(name), _entries(entries)))

    @tool(idempotent=True)
    async def show_list(self, ctx: RunContext[ToolContext], name: str = "") -> str:
        """Return the entries of one of the user's lists, or the names of all lists.

        Args:
            name: The list; empty for the names of all lists.
        """
        return await self._in_thread(ctx, partial(self._show, _plain_name(name) if name.strip() else ""))

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
        wanted = _entries(entries)
        change = (
            partial(self._delete, _plain_name(name))
            if everything
            else partial(self._remove, _plain_name(name), wanted)
        )
        return await self._in_thread(ctx, change)

    async def _in_thread(self, ctx: RunContext[ToolContext], work: Callable[[str], str]) -> str:
        user = ctx.deps.turn.user
        if user is None:
            raise ToolError("Lists need a user; send a userId with the message.")
        if not ctx.deps.may_recall:
            raise ToolError("The channel has several users, so private lists are not used here.")
        try:
            async with self._locks.setdefault(user, asyncio.Lock()):
                return await run_uncancellable(partial(work, user))
        except FileFault as fault:
            raise ToolError(str(fault)) from fault

    def _add(self, name: str, entries: Sequence[str], user: str) -> str:
        name = self._stored_name(user, name) or name
        before = self._read(user, name)
        known = {entry.casefold() for entry in before or ()}
        new = [entry for entry in dict.fromkeys(entries) if entry.casefold() not in known]
        after = [*(before or ()), *new]
        if len(after) > ENTRIES_LIMIT:
            raise ToolError(f"A list has at most {ENTRIES_LIMIT} entries; remove some first.")
        if new or before is None:
            self._workspaces.write(user, _file(name), "".join(f"{entry}\n" for entry in after).encode())
        if not entries:
            return f"Your {name} list has {_count(len(after))}."
        added = f"Added to your {name} list: {', '.join(new)}." if new else ""
        known_already = [entry for entry in dict.fromkeys(entries) if entry not in new]
        repeated = f"Already on your {name} list: {', '.join(known_already)}." if known_already else ""
        return " ".join(filter(None, (added, repeated)))

    def _show(self, name: str, user: str) -> str:
        if not name:
            lines = [f"- {stored} ({self._size(user, stored)})" for stored in self._names(user)]
            return "\n".join(["Your lists:", *lines]) if lines else "You have no lists yet."
        stored = self._stored_name(user, name)
        entries = None if stored is None else self._read(user, stored)
        if stored is None or entries is None:
            return self._no_list(user, name)
        if not entries:
            return f"Your {stored} list is empty."
        return "\n".join(
            [f"Your {stored} list has {_count(len(entries))}:", *(f"- {entry}" for entry in entries)]
        )

    def _remove(self, name: str, entries: Sequence[str], user: str) -> str:
        stored = self._stored_name(user, name)
        before = None if stored is None else self._read(user, stored)
        if stored is None or before is None:
            return self._no_list(user, name)
        gone = _find(entries, before)
        if not gone:
            return f"Not on your {stored} list: {', '.join(entries)}."
        left = [entry for entry in before if entry not in gone]
        self._workspaces.write(user, _file(stored), "".join(f"{entry}\n" for entry in left).encode())
        return f"Removed from your {stored} list: {', '.join(gone)}. It has {_count(len(left))} left."

    def _delete(self, name: str, user: str) -> str:
        stored = self._stored_name(user, name)
        if stored is None:
            return self._no_list(user, name)
        self._workspaces.delete(user, _file(stored))
        return f"Deleted your {stored} list."

    def _no_list(self, user: str, name: str) -> str:
        others = ", ".join(self._names(user))
        return f"You have no {name} list yet." + (f" Your lists are: {others}." if others else "")

    def _names(self, user: str) -> list[str]:
        prefix = f"{FOLDER}/"
        return [
            file.name.removeprefix(prefix).removesuffix(_ENDING)
            for file in self._workspaces.list_files(user)
            if file.name.startswith(prefix) and file.name.endswith(_ENDING)
        ]

    def _stored_name(self, user: str, name: str) -> str | None:
        """Return the name of the stored list that a name means, also with a spelling mistake."""
        return next(iter(_find([name], self._names(user))), None)

    def _size(self, user: str, name: str) -> str:
        try:
            return _count(len(self._read(user, name) or ()))
        except ToolError:
            return "too long"

    def _read(self, user: str, name: str) -> list[str] | None:
        """Return the entries of a list; None if it does not exist. Raises ``ToolError`` for a too long file."""
        limit = ENTRIES_LIMIT * ENTRY_LIMIT * 4
        try:
            body = self._workspaces.read(user, _file(name), limit=limit + 1)
        except FileFault:
            return None
        entries = [line.strip() for line in body.decode("utf-8", "replace").splitlines() if line.strip()]
        if len(body) > limit or len(entries) > ENTRIES_LIMIT or any(len(one) > ENTRY_LIMIT for one in entries):
            raise ToolError(
                f"The file {_file(name)} is too long for a list, which has at most {ENTRIES_LIMIT} entries of "
                f"{ENTRY_LIMIT} characters; use the tools for files."
            )
        return entries


def _find(wanted: Sequence[str], stored: Sequence[str]) -> list[str]:
    """Return the stored texts that equal the wanted ones regardless of case, or else resemble them most."""
    folded = {text.casefold(): text for text in reversed(stored)}
    choices = list(folded)
    found: list[str] = []
    for text in map(str.casefold, wanted):
        if text in folded:
            found.append(folded[text])
        elif near := process.extractOne(text, choices, scorer=fuzz.ratio, score_cutoff=_ALIKE):
            found.append(folded[near[0]])
    return found


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
