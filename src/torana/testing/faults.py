"""Simulate the crash of a process at a chosen place, inside the test's process.

All durable effects of a process go through its database or through a tool. ``Faults`` defines crash places in
both::

    faults = Faults(die_at="finish 1 before its commit")
    database = MortalDatabase(path=path, faults=faults)
    ...
    await faults.death()  # then drop all objects, and open the same file again

After a run without ``die_at``, ``faults.reached`` contains the names of all places.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from sqlalchemy.engine import Connection

from torana.store.engine.sqlite import SqliteDatabase

T = TypeVar("T")


class Died(Exception):
    """The simulated process has crashed. Raised only inside transactions, to roll them back."""


class Faults:
    """One simulated process: the places that it reaches, and the place of its crash.

    After the crash, each task that reaches a place waits until it is cancelled. A place has a name and a
    number, which counts how often it was reached, such as ``tool 2``.
    """

    def __init__(self, *, die_at: str | None = None) -> None:
        self.reached: list[str] = []
        self._die_at = die_at
        self._counts: Counter[str] = Counter()
        self._dead = False
        self._death = asyncio.Event()

    async def death(self) -> None:
        """Wait for the crash."""
        await self._death.wait()

    async def at(self, name: str) -> None:
        """Reach a place where the process may crash, for a tool or a model of the test."""
        try:
            self.check(self.numbered_name(name))
        except Died:
            await self.wait_for_ever()

    async def wait_for_ever(self) -> NoReturn:
        """Wait until the task is cancelled, because the process has crashed."""
        self._death.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a task went on after the crash")

    def numbered_name(self, name: str) -> str:
        """Count a place, and return its name with the number."""
        self._counts[name] += 1
        return f"{name} {self._counts[name]}"

    def check(self, place: str) -> None:
        """Reach a place, in any thread. Raises ``Died`` at the crash and after it."""
        if self._dead:
            raise Died
        self.reached.append(place)
        if place == self._die_at:
            self._dead = True
            raise Died


class MortalDatabase(SqliteDatabase):
    """A database whose process may crash just before and just after each commit.

    A transaction has the name of its function. Later transactions in the same commit are rolled back too, and
    their callers get no result.
    """

    def __init__(self, *, path: Path, faults: Faults) -> None:
        super().__init__(path=path)
        self._faults = faults

    async def run(self, work: Callable[[Connection], T]) -> T:
        transaction = self._faults.numbered_name(_name(work))

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
    """Return the name of a function; for a lambda, the name of the function around it."""
    function = work.func if isinstance(work, partial) else work
    qualified = getattr(function, "__qualname__", type(function).__name__)
    return qualified.removesuffix(".<locals>.<lambda>").rpartition(".")[-1].strip("_")
