"""What a durable turn costs over the same agent run bare, and whether a long session makes it dearer.

In one process, one turn after the other, with the builtin model, no tool call: ``python bench/turn_cost.py``.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from torana.agent.journal import Call, Step
from torana.app import App, build
from torana.config import load
from torana.messages import GATEWAY_OWNER, Inbound, Turn, new_id, utc_now

ROUNDS = 300
QUESTION = "hello"


class _Unwritten:
    """A journal that keeps nothing: the agent's run alone."""

    steps: tuple[Step, ...] = ()

    def call(self, _step: int, _call_id: str) -> Call | None:
        return None

    async def steers(self, _step: int) -> tuple[str, ...]:
        return ()

    async def settle(self, _step: Step) -> None: ...

    async def start(self, _call: Call, _step: Step | None) -> None: ...

    async def finish(self, _call: Call) -> None: ...

    def check_budgets(self) -> None: ...


def _inbound(channel: str) -> Inbound:
    return Inbound(owner=GATEWAY_OWNER, principal="bench", content=QUESTION, channel=channel)


async def _durable(app: App, channel: str) -> None:
    await app.turns.ended(await app.turns.accept(_inbound(channel)))


async def _bare(app: App) -> None:
    turn = Turn(
        id=new_id("turn"),
        owner=GATEWAY_OWNER,
        session_id="none",
        channel="none",
        seq=1,
        principal="bench",
        user=None,
        content=QUESTION,
        state="running",
        attempt=1,
        created_at=utc_now(),
    )
    await app.core.agent.run(turn, lambda _type, _data: None, _Unwritten())


async def _median(work: Callable[[int], Awaitable[None]]) -> float:
    for round_ in range(20):
        await work(-round_ - 1)
    times: list[float] = []
    for round_ in range(ROUNDS):
        started = time.perf_counter()
        await work(round_)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        loaded = load(flags={"data_dir": directory}, environ={}, cwd=Path(directory))
        app = build(loaded, started=time.monotonic())
        await app.start()
        bare = await _median(lambda _: _bare(app))
        durable = await _median(lambda round_: _durable(app, f"new-{round_}"))
        for _ in range(20):
            await _durable(app, "short")
        short = await _median(lambda round_: _durable(app, f"short-{round_ % 15}"))
        for _ in range(1000):
            await _durable(app, "long")
        long = await _median(lambda _: _durable(app, "long"))
        await app.close()
    print(f"bare agent run                {bare:6.2f} ms")
    print(f"durable turn, new session     {durable:6.2f} ms  (+{durable - bare:.2f})")
    print(f"session of about 20 turns     {short:6.2f} ms")
    print(f"session of over 1,000 turns   {long:6.2f} ms  ({long / short:.2f} times)")


if __name__ == "__main__":
    asyncio.run(main())
