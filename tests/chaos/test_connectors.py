"""Kills, cut connections and rate limits while users talk with the gateway on three platforms.

The first platform can list its messages, the second knows idempotency keys, and the third has neither: only
there may a part be shown twice, and then it is marked. ``TORANA_SOAK_SECONDS`` sets the duration (``make
soak-connectors``), ``TORANA_CHAOS_SEED`` the seed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from tests.chaos.program import Program
from tests.standins.feishu import FeishuStandIn
from tests.standins.slack import SlackStandIn
from tests.standins.telegram import TelegramStandIn
from tests.waiting import PATIENCE

from torana.connectors.runtime.outbox import REPEATED
from torana.testing.connectors import Platform

SECONDS = float(os.environ.get("TORANA_SOAK_SECONDS", "12"))
SEED = int(os.environ.get("TORANA_CHAOS_SEED", "1"))
PEOPLE = 5

#: The minimum of messages and of kills, however short the duration.
MESSAGES = 120
KILLS = 4

#: The maximum of unanswered messages on each platform: Slack takes three a second, and Feishu five.
UNDER_WAY = 40

_NUMBER = re.compile(r"[\d,]+(?!.*\d)", re.DOTALL)


@dataclass(kw_only=True)
class Person:
    """A user of a platform with the expected answers."""

    platform: Platform
    name: str
    draw: random.Random
    numbers: Iterator[int]
    expected: list[str] = field(default_factory=list[str])

    async def ask(self) -> None:
        """Ask the next question."""
        # Each sum is different, so that an answer belongs to exactly one question.
        a, b = self.draw.randrange(100, 999), 1_000 * next(self.numbers)
        self.expected.append(str(a + b))
        await self.platform.say(f"{a} + {b}", sender=self.name)

    async def answers(self) -> list[str]:
        """Return the last number of each message so far, except those marked as repeated."""
        shown = [one.text for one in await self.platform.shown(0, to=self.name)]
        return [_number(text) for text in shown if not text.startswith(REPEATED)]

    async def repeated(self) -> list[str]:
        """Return the messages that are marked as possibly repeated."""
        shown = [one.text for one in await self.platform.shown(0, to=self.name)]
        return [_number(text) for text in shown if text.startswith(REPEATED)]


def _number(text: str) -> str:
    found = _NUMBER.search(text)
    return found[0].replace(",", "") if found else text


@pytest.fixture
async def platforms() -> AsyncGenerator[Mapping[str, Platform]]:
    """The three platforms, by connector kind."""
    async with AsyncExitStack() as stack:
        slack = await stack.enter_async_context(SlackStandIn())
        slack.repeats = 10_000  # Slack itself gives up after three, which a gateway cannot change
        yield {
            "slack": slack,
            "feishu": await stack.enter_async_context(FeishuStandIn()),
            "telegram": await stack.enter_async_context(TelegramStandIn()),
        }


@pytest.fixture
def command() -> Path:
    """The command of the environment that runs the tests: it has the platforms' libraries."""
    return Path(sys.executable).with_name("torana")


async def _trouble(program: Program, platforms: Mapping[str, Platform], draw: random.Random) -> None:
    """Cause a random fault."""
    kind = draw.choice([*platforms])
    match draw.choice(["kill", "kill", "cut", "limit", "fail"]):
        case "kill":
            await asyncio.to_thread(program.kill)
            program.start()
        case "cut":
            await platforms[kind].cut()
        case "limit":
            await platforms[kind].limit(1.0)
        case _ if kind != "telegram":  # there, a part that meets a second fault would be held
            await platforms[kind].fail()
        case _:
            await platforms[kind].cut()


def _ready(program: Program, people: Mapping[str, list[Person]]) -> list[Person]:
    """Return the users whose platform has few unanswered messages."""
    ended = "SELECT account, count(*) AS parts FROM deliveries WHERE ended_at IS NOT NULL GROUP BY account"
    answered = {row["account"]: row["parts"] for row in program.rows(ended)}
    return [
        person
        for kind, those in people.items()
        for person in those
        if sum(len(one.expected) for one in those) < answered.get(kind, 0) + UNDER_WAY
    ]


async def _until(look: Callable[[], object], *, within: float) -> None:
    deadline = time.monotonic() + within
    while not await asyncio.to_thread(look):
        assert time.monotonic() < deadline, f"waited {within:g} s in vain"
        await asyncio.sleep(0.2)


@pytest.mark.timeout(SECONDS + 3 * PATIENCE)
async def test_every_message_is_answered_once_and_in_order_despite_faults(
    new_program: Callable[..., Program], platforms: Mapping[str, Platform]
) -> None:
    draw, numbers = random.Random(SEED), count(1_000)
    accounts = {
        kind: dict(platform.settings()) | {"allow": ["*"], "per_minute": 10_000, "per_session": 0}
        for kind, platform in platforms.items()
    }
    program = new_program(
        TORANA_CONNECTORS=json.dumps(accounts),
        TORANA_QUEUE_PER_SESSION="10000",
        TORANA_QUEUE_PER_USER="10000",
        # A message that meets several crashes by chance does not count as crashing the gateway.
        TORANA_MAX_CRASHES="1000",
    )
    those = {
        kind: [
            Person(platform=platform, name=f"p{number}", draw=draw, numbers=numbers) for number in range(PEOPLE)
        ]
        for kind, platform in platforms.items()
    }
    people = [person for some in those.values() for person in some]
    program.start()
    await asyncio.to_thread(program.wait_until_up)

    kills, began = 0, time.monotonic()
    while (
        time.monotonic() < began + SECONDS
        or sum(len(person.expected) for person in people) < MESSAGES
        or kills < KILLS
    ):
        ready = await asyncio.to_thread(_ready, program, those)
        for person in draw.sample(ready, min(4, len(ready))):
            await person.ask()
        await asyncio.sleep(draw.uniform(0.1, 0.6))
        if draw.random() < 0.3:
            starts = program.starts
            await _trouble(program, platforms, draw)
            kills += program.starts - starts

    def everything_is_settled() -> bool:
        turns = program.rows("SELECT count(*) AS open FROM turns WHERE ended_at IS NULL")[0]["open"]
        waiting = "SELECT count(*) AS open FROM deliveries WHERE state IN ('preview', 'pending', 'sending')"
        heard = program.rows("SELECT count(*) AS heard FROM turns")[0]["heard"]
        said = sum(len(person.expected) for person in people)
        return turns == 0 and program.rows(waiting)[0]["open"] == 0 and heard >= said

    await _until(everything_is_settled, within=PATIENCE)
    unanswered = program.rows("SELECT * FROM turns WHERE state <> 'completed'")
    assert unanswered == []
    held = program.rows("SELECT account, text FROM deliveries WHERE state NOT IN ('sent')")
    assert {row["account"] for row in held} <= {"telegram"}, held
    taken = program.rows("SELECT account, content, reply FROM turns ORDER BY session_id, seq")
    for kind, some in those.items():
        for person in some:
            answers, repeated = await person.answers(), await person.repeated()
            where = f"{kind} {person.name}"
            # A platform may repeat a message after a later one: the order is that of acceptance.
            order = [
                _number(row["reply"])
                for row in taken
                if row["account"] == kind and _number(row["reply"]) in person.expected
            ]
            assert sorted(order) == sorted(person.expected), where
            missing = [number for number in order if number not in answers]
            if kind == "telegram":
                kept = {_number(row["text"]) for row in held}
                assert set(missing) <= set(repeated) | kept, where
            else:
                assert (missing, repeated) == ([], []), where
            assert answers == [number for number in order if number not in missing], where
    logging.getLogger(__name__).info(
        "%d messages, %d kills, at most %d deaths of one turn, %d marked repeats, %d held",
        sum(len(person.expected) for person in people),
        kills,
        program.rows("SELECT max(crashes) AS deaths FROM turns")[0]["deaths"],
        sum([len(await person.repeated()) for person in people]),
        len(held),
    )


def test_last_number_is_the_answer() -> None:
    assert _number("2 + 1,000 = 1,002.") == "1002"
    assert _number("none") == "none"
