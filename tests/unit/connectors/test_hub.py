"""Several accounts, each on its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from torana.connectors.base import Abilities, Connector, HookRequest, Place
from torana.connectors.hub import Connectors
from torana.connectors.registry import Account
from torana.limits.rates import MessageRates
from torana.messages import Turn, utc_now
from torana.people.pairing import Pairing
from torana.store.database import Database
from torana.telemetry import bind
from torana.testing import ScriptedModel
from torana.testing.chat import Chat
from torana.turns import Turns

REQUEST = HookRequest(method="POST", headers={}, query={}, body=b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A hub, the chat of each account, and a wait until just those are active."""

    hub: Connectors
    chats: dict[str, Chat]
    #: The model does not answer while it is not set.
    gate: asyncio.Event
    #: The fields with which each connector was opened.
    logged_with: list[dict[str, Any]]
    until_active: Callable[..., Awaitable[None]]


@pytest.fixture
async def running(database: Database, open_turns: Callable[..., Turns]) -> AsyncGenerator[Running]:
    """A hub with the accounts ``one`` and ``two``, and the chat of each."""
    able = Abilities(length=200, repeat="keyed", typing_every=0.01, pace=10_000)
    chats = {name: Chat(able, allow=["*"]) for name in ("one", "two", "three")}
    gate = asyncio.Event()
    gate.set()

    logged_with: list[dict[str, Any]] = []

    def connect(account: Account) -> Connector[Any]:
        logged_with.append(structlog.contextvars.get_contextvars())
        kind = chats[account.name].connector
        return kind(kind.Settings.model_validate(dict(account.values)))

    listeners: list[Callable[[Turn], None]] = []

    def tell(turn: Turn) -> None:
        for listener in listeners:
            listener(turn)

    changed = asyncio.Event()
    turns = open_turns(
        ScriptedModel([gate, "first"], "second", "third"),
        clock=utc_now,
        ended=tell,
    )
    hub = Connectors(
        accounts=[account("one"), account("two")],
        turns=turns,
        rates=MessageRates(per_user=0, overall=0),
        pairing=Pairing(database=database, clock=utc_now),
        database=database,
        holder="here",
        told=lambda _: changed.set(),
        open_=connect,
    )

    async def until_active(*names: str) -> None:
        async with asyncio.timeout(20):
            while hub.active() != sorted(names):
                changed.clear()
                await changed.wait()

    listeners.append(hub.turn_ended)
    await hub.start()
    yield Running(hub=hub, chats=chats, gate=gate, logged_with=logged_with, until_active=until_active)
    await hub.stop()


def account(name: str, **values: Any) -> Account:
    return Account(name=name, kind=name, values={"allow": ["*"]} | values)


async def test_one_that_is_refused_does_not_disturb_another(running: Running) -> None:
    connectors, chats = running.hub, running.chats
    await chats["two"].refuse_login()
    await connectors.apply([account("one"), account("two", per_minute=7)])
    await running.until_active("one")

    await chats["one"].say("hello")

    assert [one.text for one in await chats["one"].shown(1)] == ["first"]
    states = {status["account"]: status for status in await connectors.status()}
    assert (states["two"]["state"], states["two"]["reason"]) == ("refused", "wrong password")
    assert states["one"]["lastHeard"] is not None


async def test_changed_settings_touch_their_own_connection_alone(
    running: Running,
) -> None:
    connectors, chats = running.hub, running.chats
    await running.until_active("one", "two")

    changed = await connectors.apply([account("one"), account("two", allow=[]), account("three")])

    assert changed == ["three", "two"]
    await running.until_active("one", "two", "three")
    connections = {status.account: status.connections for status in connectors.statuses()}
    assert connections == {"one": 1, "two": 1, "three": 1}
    await chats["three"].say("hello")
    assert [one.text for one in await chats["three"].shown(1)] == ["first"]

    assert await connectors.apply([account("one")]) == ["three", "two"]
    assert connectors.active() == ["one"]


async def test_a_turn_that_runs_is_kept_company_by_its_account_as_it_is_now(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    connectors, chats = running.hub, running.chats
    shown: asyncio.Queue[int] = asyncio.Queue()

    async def typing(connector: Connector[Any], _place: Place) -> None:
        shown.put_nowait(connector.settings.per_minute)

    monkeypatch.setattr(chats["one"].connector, "typing", typing)
    running.gate.clear()
    await chats["one"].say("hello")
    async with asyncio.timeout(20):
        assert await shown.get() == 20
        await connectors.apply([account("one", per_minute=7), account("two")])
        while await shown.get() != 7:
            pass
    running.gate.set()
    assert [one.text for one in await chats["one"].shown(1)] == ["first"]


async def test_what_the_log_says_of_a_request_is_not_said_of_the_connections_it_changed(
    running: Running,
) -> None:
    await running.until_active("one", "two")
    with bind(request_id="r"):
        await running.hub.apply([account("one", per_minute=7), account("two")])
    await running.until_active("one", "two")
    assert running.logged_with == [{}, {}, {}]


async def test_nothing_begins_after_the_end(running: Running) -> None:
    connectors = running.hub
    await running.until_active("one", "two")
    await connectors.stop()
    assert connectors.changes([account("one")]) == ["one"]
    assert await connectors.apply([account("one")]) == []
    assert connectors.statuses() == []


async def test_a_hook_finds_its_account_or_nobody(running: Running) -> None:
    connectors, chats = running.hub, running.chats
    await running.until_active("one", "two")

    assert (await connectors.hook("one", REQUEST)).status == 404  # a chat takes no hooks
    assert (await connectors.hook("nobody", REQUEST)).status == 404
    await chats["two"].refuse_login()
    await connectors.apply([account("two", per_minute=7)])
    assert (await connectors.hook("two", REQUEST)).status == 503
