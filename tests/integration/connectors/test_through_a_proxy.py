"""A complete gateway and a platform, connected by a network that fails at one byte of their conversation.

In the conversation the account connects, and the gateway replies to a user's message. The faults are spread
evenly over the bytes of one direction: ``TORANA_PROXY_POINTS`` faults, each in a new conversation.

The connection is not encrypted, so only the platform's framing can detect a flipped bit.
A message may then be lost or changed, except in signed calls; later messages get replies.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.standins.dingtalk import DingtalkStandIn
from tests.standins.discord import DiscordStandIn
from tests.standins.feishu import FeishuStandIn
from tests.standins.http import HttpPlatform
from tests.standins.line import LinePlatform
from tests.standins.proxy import FaultyProxy
from tests.standins.slack import SlackStandIn
from tests.standins.telegram import TelegramStandIn
from tests.standins.webhook import Program
from tests.standins.whatsapp import Meta
from tests.waiting import PATIENCE

from torana.connectors.base import Connector, HookRequest, HookResponse
from torana.connectors.registry import Account
from torana.connectors.runtime import supervisor
from torana.connectors.runtime.callback_listener import HooksListener
from torana.connectors.runtime.hub import Connectors
from torana.connectors.runtime.ingress import Admission
from torana.connectors.runtime.outbox import REPEATED
from torana.connectors.runtime.supervisor import Status
from torana.limits.rates import MessageRates
from torana.messages import Turn
from torana.people.pairing import Pairing
from torana.store.engine import tables
from torana.store.engine.database import Database
from torana.testing.connectors import Hook
from torana.turns import Turns

pytestmark = pytest.mark.long

POINTS = int(os.environ.get("TORANA_PROXY_POINTS", "4"))

#: The factor by which the gateway's clock and pauses are accelerated.
HASTE = 500


@dataclass(frozen=True, kw_only=True)
class Way:
    """A network between a gateway and a platform, for the gateway's calls or for the platform's calls."""

    platform: type[HttpPlatform]
    is_hook: bool = False
    #: The connector's timeouts, shortened.
    hurry: Mapping[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        name = self.platform.connector.__name__.lower()
        return f"{name}-hooks" if self.is_hook else name


CALLED = (LinePlatform, Meta, Program)
WAYS = [
    Way(platform=TelegramStandIn, hurry={"_POLL": 1, "_CALL_TIMEOUT": 1.0, "_SETTLE": 0.5}),
    Way(platform=SlackStandIn, hurry={"_CALL_TIMEOUT": 1.0, "_GREETING": 1.0, "_PROBE": 0.5}),
    Way(platform=FeishuStandIn),
    Way(platform=DingtalkStandIn),
    Way(platform=DiscordStandIn, hurry={"_CALL_TIMEOUT": 1.0}),
    *(Way(platform=one) for one in CALLED),
    *(Way(platform=one, is_hook=True) for one in CALLED),
]


class Caller(Hook):
    """Send the platform's calls over the network and repeat each until the gateway accepts it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.failures = 0

    async def __call__(self, request: HookRequest) -> HookResponse:
        async with httpx2.AsyncClient(timeout=1, trust_env=False) as http:
            while True:
                try:
                    answer = await http.request(
                        request.method, self._url, headers=dict(request.headers), content=request.body
                    )
                except httpx2.HTTPError:
                    self.failures += 1
                else:
                    if answer.is_success:
                        return HookResponse(status=answer.status_code)
                await asyncio.sleep(0.01)


@dataclass(kw_only=True)
class Conversation:
    """The actions and observations of a test."""

    platform: HttpPlatform
    proxy: FaultyProxy
    hub: Connectors
    database: Database
    caller: Caller
    statuses: list[Status]
    values: dict[str, Any]
    asked: list[str] = field(default_factory=list[str])
    _saying: asyncio.Task[str] | None = None

    async def begin(self) -> None:
        """Connect the account and wait until it is connected or the fault has occurred."""
        was_waiting = self.proxy.is_waiting
        await self.hub.apply([Account(name="home", kind="home", values=self.values)])

        async def is_connected() -> bool:
            return bool(self.hub.active()) or was_waiting > self.proxy.is_waiting

        await self.until(is_connected)

    async def end(self) -> None:
        """Remove the account from the settings and the fault from the network."""
        self.proxy.heal()
        await self.hub.apply([])

    async def ask(self) -> str:
        """Send a new question that no flipped bit turns into an earlier question."""
        question = sha256(str(len(self.asked)).encode()).hexdigest()[:12]
        self.asked.append(question)
        self._saying = asyncio.create_task(self.platform.say(question))
        return question

    async def until(self, true: Callable[[], Awaitable[object]]) -> None:
        """Poll ``true`` until it returns a true value."""
        deadline = time.monotonic() + PATIENCE
        while not await true():
            assert time.monotonic() < deadline, (self.asked[-1:], self.hub.statuses())
            await asyncio.sleep(0.01)

    async def answers(self, question: str) -> list[str]:
        """Return the shown texts that contain the question."""
        return [one.text for one in await self.platform.shown(0) if question in one.text]

    async def wait_for_answers(self, question: str) -> list[str]:
        """Wait until the question is answered and no work is left; return the shown answers."""
        if self._saying is not None:
            await asyncio.shield(self._saying)

        async def is_settled() -> bool:
            return (
                bool(await self.answers(question) or await self.unsent_states(question))
                and not await self.open()
            )

        await self.until(is_settled)
        return await self.answers(question)

    async def ask_until_answered(self) -> tuple[str, list[str]]:
        """Ask new questions until one is answered; return that question and its shown answers.

        A flipped bit in Telegram's poll may hide messages until the next poll.
        """
        for _ in range(4):
            question = await self.ask()
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE / 4):
                    return question, await self.wait_for_answers(question)
        raise AssertionError((self.asked, self.hub.statuses()))

    async def spoilt(self, question: str) -> None:
        """Wait until the fault has occurred or the question is answered."""

        async def is_spoilt() -> bool:
            return not self.proxy.is_waiting or bool(await self.answers(question) and not await self.open())

        await self.until(is_spoilt)

    async def open(self) -> int:
        """Return the number of turns and deliveries that have not ended."""
        turns = sa.select(sa.func.count()).where(tables.turns.c.ended_at.is_(None))
        waiting = sa.select(sa.func.count()).where(
            tables.deliveries.c.state.in_(("preview", "pending", "sending"))
        )
        return await self.database.run(
            lambda connection: sum(connection.execute(one).scalar_one() for one in (turns, waiting))
        )

    async def unsent_states(self, question: str) -> list[str]:
        """Return the states of the question's deliveries that are not sent."""
        rows = tables.deliveries.c
        wrong = sa.select(rows.state).where(rows.state != "sent", rows.text.contains(question))
        return await self.database.run(lambda connection: list(connection.execute(wrong).scalars()))

    async def accepted_contents(self) -> list[str]:
        """Return the contents of all accepted turns."""
        contents = sa.select(tables.turns.c.content)
        return await self.database.run(lambda connection: list(connection.execute(contents).scalars()))

    async def unsure(self) -> int:
        """Return the number of delivery attempts with an unknown outcome."""
        tries = sa.select(sa.func.coalesce(sa.func.sum(tables.deliveries.c.unsure), 0))
        return await self.database.run(lambda connection: connection.execute(tries).scalar_one())

    async def wait_for_detection(self, question: str, *, unsure: int) -> None:
        """Wait until the gateway or the platform has detected the stall, or the question is answered.

        ``unsure`` is the number of earlier attempts with an unknown outcome.
        """
        calls, told = self.caller.failures, len(self.statuses)

        async def is_noticed() -> bool:
            return (
                any(status.state == "backing_off" for status in self.statuses[told:])
                or self.caller.failures > calls
                or await self.unsure() > unsure
                or bool(await self.answers(question) and not await self.open())
            )

        await self.until(is_noticed)

    def check_shown(self, shown: list[str]) -> None:
        """Check that an answer is shown once, and on a blind platform at most once more with a mark."""
        plain = [text for text in shown if not text.startswith(REPEATED)]
        assert len(plain) <= 1
        assert len(shown) - len(plain) <= (self.platform.connector.abilities.repeat == "blind")

    async def check(self, question: str, shown: list[str], *, faults: int = 1) -> None:
        """Check that the question was accepted once and answered once, and that no delivery was given up.

        A part that may have arrived twice is held for the operator instead of being sent again.
        """
        assert (await self.accepted_contents()).count(question) == 1
        self.check_shown(shown)
        may_be_held = faults > 1 and self.platform.connector.abilities.repeat == "blind"
        assert set(await self.unsent_states(question)) <= ({"ambiguous"} if may_be_held else set())


async def _echo(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
    said = messages[-1]
    assert isinstance(said, ModelRequest)
    yield "You said " + " ".join(str(one.content) for one in said.parts if isinstance(one, UserPromptPart))


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture
async def talk(
    way: Way, open_database: Callable[[], Database], open_turns: Callable[..., Turns]
) -> AsyncGenerator[Conversation]:
    """Start a gateway that is not yet connected to the platform."""
    start, began = datetime.now(UTC), time.monotonic()

    def clock() -> datetime:
        return start + timedelta(seconds=HASTE * (time.monotonic() - began))

    async def pause(seconds: float) -> None:
        await asyncio.sleep(seconds / HASTE)

    database, statuses = open_database(), list[Status]()
    model = FunctionModel(stream_function=_echo)

    def notify(turn: Turn) -> None:
        hub.on_turn_ended(turn)

    turns = open_turns(model, database=database, clock=clock, ended=notify)
    async with way.platform() as platform:

        def connect(account: Account) -> Connector[Any]:
            kind = platform.connector
            return kind(kind.Settings.model_validate(account.values))

        hub = Connectors(
            accounts=[],
            admission=Admission(
                turns=turns,
                rates=MessageRates(per_user=0, overall=0),
                pairing=Pairing(database=database, clock=clock),
                database=database,
                clock=clock,
            ),
            holder="here",
            on_status=statuses.append,
            open_=connect,
            pause=pause,
        )
        hooks = HooksListener(host="127.0.0.1", port=0, exists=hub.has_account, answer=hub.hook)
        await turns.start()
        await hub.start()
        await hooks.start()
        async with (
            FaultyProxy("127.0.0.1", platform.port) as calls,
            FaultyProxy("127.0.0.1", hooks.port) as called,
        ):
            platform.move(f"http://127.0.0.1:{calls.port}")
            caller = Caller(f"http://127.0.0.1:{called.port}/hooks/home")
            platform.attach(caller)
            bounds = {"per_minute": 10_000, "per_session": 0, "previews": False}
            yield Conversation(
                platform=platform,
                proxy=called if way.is_hook else calls,
                hub=hub,
                database=database,
                caller=caller,
                statuses=statuses,
                values={"allow": ["*"], **platform.settings(), **bounds},
            )
            called.heal()
            calls.heal()
            await hub.stop()
            await hooks.stop()
            await turns.stop(grace=0)


@pytest.fixture
def hurry(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all timeouts."""
    module = way.platform.connector.__module__
    for name, seconds in way.hurry.items():
        monkeypatch.setattr(f"{module}.{name}", seconds)
    monkeypatch.setattr("torana.connectors.platforms.webhook._TIMEOUT", 1.0)
    monkeypatch.setattr("torana.connectors.transport.hooked._TIMEOUT", 1.0)
    monkeypatch.setattr("torana.connectors.transport.app_client._SECONDS", 1.0)
    monkeypatch.setattr("torana.connectors.transport.websocket._PROBE", 0.5)
    abilities = way.platform.connector.abilities
    if abilities.quiet is not None:
        monkeypatch.setattr(way.platform.connector, "abilities", replace(abilities, quiet=3.0))
    monkeypatch.setattr(supervisor, "_CONNECT", 3.0)


async def points(talk: Conversation, number: int, *, to_server: bool) -> list[int]:
    """Return positions evenly spread over the bytes of one direction in a conversation without faults."""
    before = talk.proxy.passed[to_server]
    await talk.begin()
    question = await talk.ask()
    await talk.check(question, await talk.wait_for_answers(question))
    await talk.end()
    total = talk.proxy.passed[to_server] - before
    return [total * one // number for one in range(number)]


both_ways = pytest.mark.parametrize("to_server", [False, True], ids=["from the server", "to the server"])


@both_ways
async def test_connection_cut_at_any_byte_keeps_one_reply_per_message(
    talk: Conversation, *, to_server: bool
) -> None:
    cuts = 0
    for after in await points(talk, POINTS, to_server=to_server):
        talk.proxy.spoil("cut", after=after, to_server=to_server)
        await talk.begin()
        question = await talk.ask()
        shown = await talk.wait_for_answers(question)
        cuts += not talk.proxy.is_waiting
        await talk.check(question, shown)
        await talk.end()
    assert cuts >= POINTS / 4  # traffic such as typing indicators differs between runs


@pytest.mark.usefixtures("hurry")
@both_ways
async def test_stall_at_any_byte_is_detected_and_message_answered_once(
    talk: Conversation, *, to_server: bool
) -> None:
    for after in await points(talk, max(2, POINTS // 3), to_server=to_server):
        talk.proxy.spoil("stall", after=after, to_server=to_server)
        unsure = await talk.unsure()
        await talk.begin()
        question = await talk.ask()
        await talk.wait_for_detection(question, unsure=unsure)
        talk.proxy.heal()
        shown = await talk.wait_for_answers(question)
        await talk.check(question, shown, faults=2)  # a call that was not answered, and a connection
        await talk.end()


async def test_conversation_sent_byte_by_byte_succeeds(talk: Conversation) -> None:
    talk.proxy.trickle()
    await talk.begin()
    question = await talk.ask()
    shown = await talk.wait_for_answers(question)
    await talk.check(question, shown)
    assert not shown[0].startswith(REPEATED)


@pytest.mark.usefixtures("hurry")
@both_ways
async def test_flipped_bit_does_not_stop_later_replies(
    talk: Conversation, way: Way, *, to_server: bool
) -> None:
    for after in await points(talk, POINTS, to_server=to_server):
        talk.proxy.spoil("flip", after=after, to_server=to_server)
        await talk.begin()
        await talk.spoilt(await talk.ask())
        talk.proxy.heal()
        question, shown = await talk.ask_until_answered()
        assert (await talk.accepted_contents()).count(question) == 1
        talk.check_shown(shown)
        await talk.end()
    if way.is_hook:  # signed calls cannot be changed
        assert sorted(await talk.accepted_contents()) == sorted(talk.asked)
