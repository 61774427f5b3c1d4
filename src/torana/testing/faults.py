"""A process that dies where a test says, without leaving the process of the test.

Everything that a process does for good goes through its database, or through a tool. With ``Faults`` both are
full of places where it may die::

    faults = Faults(die_at="finish 1 before its commit")
    database = MortalDatabase(path=path, faults=faults)
    ...
    await faults.death()  # and then drop everything, and open the same file again

A run without ``die_at`` tells the names of all the places, in ``faults.reached``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from sqlalchemy.engine import Connection

from torana.store.database import Database

T = TypeVar("T")


class Died(Exception):
    """The process is dead. Raised inside transactions alone, where it undoes them."""


class Faults:
    """One life: the places that it passes, and the one at which it ends.

    After its end nobody comes past a place any more; whoever tries waits until he is cancelled. A place is
    called by its name and how often it was reached, such as ``tool 2``.
    """

    def __init__(self, *, die_at: str | None = None) -> None:
        self.reached: list[str] = []
        self._die_at = die_at
        self._counts: Counter[str] = Counter()
        self._dead = False
        self._death = asyncio.Event()

    async def death(self) -> None:
        """Wait for the end."""
        await self._death.wait()

    async def at(self, name: str) -> None:
        """A place where the process may die, for a tool or a model of the test's."""
        try:
            self.check(self.numbered(name))
        except Died:
            await self.wait_for_ever()

    async def wait_for_ever(self) -> NoReturn:
        """What is left to a task of a dead process: only cancelling ends it."""
        self._death.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("the dead do not go on")

    def numbered(self, name: str) -> str:
        """The name of the place with how often it was reached."""
        self._counts[name] += 1
        return f"{name} {self._counts[name]}"

    def check(self, place: str) -> None:
        """Pass a place, in any thread. Raises ``Died`` at the end, and ever after."""
        if self._dead:
            raise Died
        self.reached.append(place)
        if place == self._die_at:
            self._dead = True
            raise Died


class MortalDatabase(Database):
    """A database whose process may die just before each commit, and just after it.

    A transaction is called by its function. What waits behind the end in the same commit is undone too, and
    whoever waits for an outcome gets none.
    """

    def __init__(self, *, path: Path, faults: Faults) -> None:
        super().__init__(path=path)
        self._faults = faults

    async def run(self, work: Callable[[Connection], T]) -> T:
        """See ``Database``."""
        transaction = self._faults.numbered(_name(work))

        def mortal(connection: Connection) -> T:
            outcome = work(connection)
            self._faults.check(f"{transaction} before its commit")
            return outcome

        try:
            outcome = await super().run(mortal)
            self._faults.check(f"{transaction} after its commit")
        except Died:
            await self._faults.wait_for_ever()
        return outcome


def _name(work: Callable[[Connection], object]) -> str:
    """The function's name; one without a name is called by the function around it."""
    function = work.func if isinstance(work, partial) else work
    qualified = getattr(function, "__qualname__", type(function).__name__)
    return qualified.removesuffix(".<locals>.<lambda>").rpartition(".")[-1].strip("_")
