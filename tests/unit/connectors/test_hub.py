"""The connections of several accounts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from torana.connectors.base import Capabilities, Connector, HookRequest, Place
from torana.connectors.registry import Account
from torana.connectors.runtime.hub import Connectors
from torana.connectors.runtime.ingress import Admission
from torana.connectors.runtime.supervisor import Status
from torana.errors import StoreUnavailable
from torana.limits.rates import MessageRates
from torana.messages import EVERYONE, Turn, utc_now
from torana.people.pairing import Pairing
from torana.store.engine.database import Database
from torana.store.rows import deliveries
from torana.store.rows.audit import Act
from torana.store.rows.deliveries import Delivery
from torana.telemetry import bind, bound_fields
from torana.testing import ScriptedModel
from torana.testing.chat import Chat
from torana.turns import Turns

REQUEST = HookRequest(method="POST", headers={}, query={}, body=b"")


class Clock:
    """The current time plus an offset."""

    late = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self.late


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A hub, the chat of each account, and helpers that wait for the state of accounts."""

    hub: Connectors
    database: Database
    clock: Clock
    turns: Turns
    pairing: Pairing
    chats: dict[str, Chat]
    #: While this event is not set, the model does not answer.
    gate: asyncio.Event
    #: The fields with which each connector was opened.
    logged_with: list[dict[str, Any]]
    until_active: Callable[..., Awaitable[None]]
    #: Waits until an account has this state, and returns its status.
    until: Callable[[str, str], Awaitable[Status]]


@pytest.fixture
async def running(database: Database, open_turns: Callable[..., Turns]) -> AsyncGenerator[Running]:
    """Start a hub with the accounts ``one`` and ``two`` and a chat for each."""
    able = Capabilities(length=200, repeat="keyed", typing_every=0.01, pace=10_000)
    chats = {name: Chat(able, allow=["*"]) for name in ("one", "two", "three")}
    gate = asyncio.Event()
    gate.set()

    logged_with: list[dict[str, Any]] = []

    def connect(account: Account) -> Connector[Any]:
        logged_with.append(dict(bound_fields()))
        kind = chats[account.name].connector
        return kind(kind.Settings.model_validate(dict(account.values)))

    listeners: list[Callable[[Turn], None]] = []

    def notify(turn: Turn) -> None:
        for listener in listeners:
            listener(turn)

    changed, clock = asyncio.Event(), Clock()
    pairing = Pairing(database=database, clock=utc_now)
    turns = open_turns(
        ScriptedModel([gate, "first"], "second", "third"),
        clock=utc_now,
        ended=notify,
    )
    hub = Connectors(
        accounts=[account("one"), account("two")],
        admission=Admission(
            turns=turns,
            rates=MessageRates(per_user=0, overall=0),
            pairing=pairing,
            database=database,
            clock=clock,
        ),
        holder="here",
        on_status=lambda _: changed.set(),
        open_=connect,
    )

    async def until_active(*names: str) -> None:
        async with asyncio.timeout(20):
            while hub.active() != sorted(names):
                changed.clear()
                await changed.wait()

    async def until(name: str, state: str) -> Status:
        async with asyncio.timeout(20):
            while True:
                changed.clear()
                for status in hub.statuses():
                    if (status.account, status.state) == (name, state):
                        return status
                await changed.wait()

    listeners.append(hub.on_turn_ended)
    await hub.start()
    yield Running(
        hub=hub,
        database=database,
        clock=clock,
        turns=turns,
        pairing=pairing,
        chats=chats,
        gate=gate,
        logged_with=logged_with,
        until_active=until_active,
        until=until,
    )
    await hub.stop()


def account(name: str, *, kind: str | None = None, **values: Any) -> Account:
    return Account(name=name, kind=kind or name, values={"allow": ["*"]} | values)


async def test_refused_account_does_not_disturb_another(running: Running) -> None:
    connectors, chats = running.hub, running.chats
    await chats["two"].refuse_login()
    await connectors.apply([account("one"), account("two", per_minute=7)])
    await running.until_active("one")

    await chats["one"].say("hello")

    assert [one.text for one in await chats["one"].shown(1)] == ["first"]
    states = {status["account"]: status for status in await connectors.status()}
    assert (states["two"]["state"], states["two"]["reason"]) == ("refused", "wrong password")
    assert states["one"]["lastHeard"] is not None


async def test_account_whose_supervisor_fails_is_logged(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    told = asyncio.Event()

    def fail(_: Status) -> None:
        told.set()
        raise ValueError("nobody wants to hear it")

    hub = Connectors(
        accounts=[account("three")],
        admission=Admission(
            turns=running.turns,
            rates=MessageRates(per_user=0, overall=0),
            pairing=running.pairing,
            database=running.database,
            clock=utc_now,
        ),
        holder="there",
        on_status=fail,
    )
    await hub.start()
    await told.wait()
    await hub.stop()
    await running.hub.stop()

    ((record, error),) = [(one, one.exc_info) for one in caplog.records if one.levelname == "ERROR"]
    assert vars(record)["account"] == "three"
    assert error is not None
    assert str(error[1]) == "nobody wants to hear it"


async def test_changed_settings_affect_only_their_own_connection(
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


async def test_changed_account_reconnects_though_the_database_refuses_changes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.until_active("one", "two")

    def refuse(*_arguments: Any) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(deliveries, "keep_subscriptions", refuse)
    await running.hub.apply([account("one"), account("two", per_minute=7)])

    await running.until_active("one", "two")


async def test_refused_account_reconnects_though_settings_are_unchanged(running: Running) -> None:
    connectors, chats = running.hub, running.chats
    await running.until_active("one", "two")
    await chats["two"].refuse_login()
    await chats["two"].cut()
    await running.until("two", "refused")
    await chats["two"].accept_login()

    assert await connectors.apply([account("one"), account("two")]) == ["two"]

    await running.until_active("one", "two")
    assert {status.account: status.connections for status in connectors.statuses()} == {"one": 1, "two": 1}


async def test_running_turn_reports_progress_through_changed_account(
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


async def test_log_context_of_request_does_not_leak_into_connections(
    running: Running,
) -> None:
    await running.until_active("one", "two")
    with bind(request_id="r"):
        await running.hub.apply([account("one", per_minute=7), account("two")])
    await running.until_active("one", "two")
    assert running.logged_with == [{}, {}, {}]


async def test_connections_do_not_start_after_stop(running: Running) -> None:
    connectors = running.hub
    await running.until_active("one", "two")
    await connectors.stop()
    assert connectors.changes([account("one")]) == ["one"]
    assert await connectors.apply([account("one")]) == []
    assert connectors.statuses() == []


async def test_hook_reaches_its_account_or_is_refused(running: Running) -> None:
    connectors, chats = running.hub, running.chats
    await running.until_active("one", "two")

    assert (await connectors.hook("one", REQUEST)).status == 404  # a chat takes no hooks
    assert (await connectors.hook("nobody", REQUEST)).status == 404
    await chats["two"].refuse_login()
    await connectors.apply([account("two", per_minute=7)])
    assert (await connectors.hook("two", REQUEST)).status == 503


async def test_hook_of_account_that_is_being_changed_is_to_be_repeated(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, stopped, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def keep_subscriptions(*_arguments: Any) -> None:
        loop.call_soon_threadsafe(stopped.set)
        assert go_on.wait(timeout=20)

    await running.until_active("one", "two")
    monkeypatch.setattr(deliveries, "keep_subscriptions", keep_subscriptions)
    applying = asyncio.create_task(running.hub.apply([account("one", per_minute=7)]))
    await stopped.wait()

    answers = [(await running.hub.hook(name, REQUEST)).status for name in ("one", "two")]
    go_on.set()
    await applying

    assert answers == [503, 404]


async def test_delivery_of_removed_account_shows_reason_and_becomes_stale(running: Running) -> None:
    connectors, chats = running.hub, running.chats
    running.gate.clear()
    await running.until_active("one", "two")
    await chats["two"].until_taken(await chats["two"].say("hello"))
    await connectors.apply([account("one")])
    (turn,) = running.turns.live
    running.gate.set()
    await running.turns.reader.wait_for_end(turn)

    async def until(state: str) -> Delivery:
        async with asyncio.timeout(20):
            while True:
                (row,) = await running.database.run(
                    partial(deliveries.list_deliveries, owner=EVERYONE, limit=9)
                )
                if (row.state, row.reason) == (state, "account is not configured"):
                    return row

    waits = await until("pending")
    running.clock.late = timedelta(hours=25)
    connectors.wake("two")
    assert (await until("stale")).id == waits.id
    assert await chats["two"].shown(0) == []


async def test_delivery_in_progress_shows_reason_when_its_account_is_removed(running: Running) -> None:
    connectors, chat = running.hub, running.chats["two"]
    await running.until_active("one", "two")
    chat.gate = asyncio.Event()
    await chat.say("hello")
    await chat.called(1)

    await connectors.apply([account("one")])
    (row,) = await running.database.run(partial(deliveries.list_deliveries, owner=EVERYONE, limit=9))
    assert (row.state, row.reason) == ("sending", "account is not configured")

    chat.gate = None
    await connectors.apply([account("one"), account("two")])
    assert [one.text for one in await chat.shown(1)] == ["first"]


async def test_deliveries_without_account_become_stale_by_regular_sweep(
    database: Database, open_turns: Callable[..., Turns]
) -> None:
    turns, pairing = open_turns(), Pairing(database=database, clock=utc_now)
    hub = Connectors(
        accounts=[],
        admission=Admission(
            turns=turns, rates=MessageRates(per_user=0, overall=0), pairing=pairing, database=database
        ),
        holder="here",
        sweep_every=0.01,
    )
    await hub.start()
    notice = partial(deliveries.add_notice, account="gone", line="gone/ana", place="{}", text="hello")
    await database.run(partial(notice, at=utc_now() - timedelta(hours=25)))
    async with asyncio.timeout(20):
        while (await database.run(partial(deliveries.list_deliveries, owner=EVERYONE, limit=9)))[
            0
        ].state != "stale":
            pass
    await hub.stop()


async def test_only_one_of_two_accounts_with_same_credentials_listens(running: Running) -> None:
    await running.until_active("one", "two")

    # All chats have the same credentials: only the kind distinguishes accounts.
    await running.hub.apply([account("one"), account("two"), account("three", kind="one")])

    other = await running.until("three", "backing_off")
    assert other.reason == "another process listens on this account, or another account has its credentials"
    assert running.hub.active() == ["one", "two"]


@pytest.mark.parametrize(
    ("everywhere", "user", "let_in"), [(False, "one:ana", ["one"]), (True, "chat:ana", ["one", "two"])]
)
async def test_id_of_one_server_does_not_identify_user_on_another(
    running: Running, everywhere: bool, user: str, let_in: list[str]
) -> None:
    connectors, chats = running.hub, running.chats
    for name in ("one", "two"):
        # Both can listen only with separate credentials.
        kind = type("Own", (chats[name].connector,), {"global_ids": everywhere, "credentials": name})
        chats[name].connector = kind
    await connectors.apply([account(name, kind="chat", allow=[]) for name in ("one", "two")])
    await running.until_active("one", "two")
    act = Act(principal="operator", source="test", at=utc_now())
    await running.pairing.approve(user, kinds=("one", "chat"), act=act)

    for name in ("one", "two"):
        said = await chats[name].say("hello", sender="ana")
        await chats[name].until_taken(said)
        turn = await running.turns.reader.find_by_platform_message(name, said)
        assert (turn is not None) == (name in let_in)
        assert turn is None or turn.user == user
