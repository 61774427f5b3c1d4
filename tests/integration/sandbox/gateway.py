"""The script runner of a gateway as a separate program, so that it can run as another user.

Its first argument is the user that it becomes after the first request. It reads a request as JSON from each
line of its input and writes a line with the result: the tool's text, and how often another task of its event
loop ran meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from torana.skills import Needs, Skill, Skills
from torana.tools import ToolError
from torana.tools.builtin.skill_scripts import ScriptTools
from torana.tools.sandbox import Bubblewrap, Sandbox, SandboxLimits
from torana.web import Guard


def drop_root(user: int) -> None:
    """Give up root; files that are not public cannot be read from then on."""
    if user != os.geteuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


class Swapped(Bubblewrap):
    """Replaces a directory by a link when the command line is made, before anything starts."""

    def __init__(self, *, hidden: list[Path], moved: str, link: str) -> None:
        super().__init__(hidden=hidden)
        self._moved, self._link = Path(moved), link

    def command(self, *arguments: Any, **given: Any) -> list[str]:
        command = super().command(*arguments, **given)
        self._moved.rename(self._moved.with_name("moved"))
        self._moved.symlink_to(self._link)
        return command


async def answer(request: dict[str, Any]) -> dict[str, Any]:
    async def answers(host: str, _port: int) -> Sequence[str]:
        return request["addresses"].get(host, [])

    def needs_of(skill: Skill) -> Needs | None:
        return skill.needs if request["approved"] == "all" else _needs(request["approved"])

    hidden = [Path(path) for path in request["hidden"]]
    swap = request["swap"]
    bubblewrap = Swapped(hidden=hidden, **swap) if swap else Bubblewrap(hidden=hidden)
    tools = ScriptTools(
        skills=Skills(core_dir=Path("/nowhere"), user_dir=Path(request["skills"]), environ=os.environ),
        sandbox=Sandbox(
            bubblewrap=bubblewrap, resolve=Guard(allow=request["private"], resolver=answers).resolve
        ),
        granted=needs_of,
        environ=os.environ,
        # Linux reports the kernel's memory for the whole machine, and other tests fill it at the same time.
        limits=SandboxLimits(**{"kernel": 2**40} | request["limits"]),
    )
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    try:
        text = await tools.run_skill_script(**request["call"])
        return {"text": text, "ticks": ticks}
    except ToolError as error:
        return {"error": str(error), "ticks": ticks}
    finally:
        ticking.cancel()


def _needs(approved: dict[str, list[str]] | None) -> Needs | None:
    return None if approved is None else Needs(**{name: tuple(names) for name, names in approved.items()})


async def main() -> None:
    reader = asyncio.StreamReader(limit=1_000_000)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        print(json.dumps(await answer(json.loads(line))), flush=True)  # noqa: T201
        # Not earlier: modules that Python imports on use may be closed to the other user.
        drop_root(int(sys.argv[1]))


if __name__ == "__main__":
    uvloop.run(main())
