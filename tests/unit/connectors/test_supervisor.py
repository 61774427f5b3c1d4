"""The supervisor of one account's connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from math import inf, nan
from typing import Any, Literal, cast

import pytest
from pydantic import SecretStr
from tests.standins.webhook import SECRET, Program

from torana import supervision
from torana.connectors.base import (
    Capabilities,
    Connector,
    ConnectorSettings,
    MessageSink,
    Part,
    PermanentError,
    RetryLater,
)
from torana.connectors.platforms.webhook import Webhook, WebhookSettings
from torana.connectors.registry import Account
from torana.connectors.runtime.ingress import Ingress
from torana.connectors.runtime.supervisor import AccountLease, Status, Supervisor
from torana.errors import ConfigInvalid
from torana.messages import utc_now
from torana.store.engine.database import Database
from torana.store.rows import leases


class KeySettings(ConnectorSettings):
    key: SecretStr = SecretStr("s3cret-key")


class Scripted(Connector[KeySettings]):
    """A connector whose connections play a script: an exception ends one, an event holds it."""

    Settings = KeySettings
    abilities = Capabilities(length=10, repeat="keyed")
    script: list[BaseException | asyncio.Event]
    sink: MessageSink

    @property
    def credentials(self) -> str:
        return "me"

    async def run(self, sink: MessageSink) -> None:
        type(self).sink = sink
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        sink.ready()
        await step.wait()

    async def send(self, part: Part) -> str:
        raise NotImplementedError


class Nowhere:
    """An ingress and an outbox that never finish."""

    async def hear(self, heard: Any) -> None:
        await asyncio.Event().wait()

    async def paired_ids(self, most: int) -> Sequence[str]:
        return []

    async def deliver(self, connector: Connector[Any]) -> None:
        await asyncio.Event().wait()


class Watched:
    """A running supervisor whose pauses take no time and are recorded with its status."""

    def __init__(
        self,
        database: Database,
        *,
        open_: Callable[[Account], Connector[Any]],
        clock: Callable[[], datetime] = utc_now,
        lease: timedelta = timedelta(seconds=45),
        ingress: Any = None,
    ) -> None:
        self.paused: asyncio.Queue[tuple[float, Status]] = asyncio.Queue()
        self.active = asyncio.Event()
        self.supervisor = Supervisor(
            account=Account(name="home", kind="test", values={}),
            ingress=lambda _: cast("Ingress", ingress or Nowhere()),
            deliver=Nowhere().deliver,
            lease=AccountLease(database=database, account="home", process="here", clock=clock, duration=lease),
            clock=clock,
            on_status=self._note,
            open_=open_,
            pause=self._pause,
        )
        self.task = asyncio.create_task(self.supervisor.run())

    def _note(self, status: Status) -> None:
        if status.state == "active":
            self.active.set()

    async def _pause(self, seconds: float) -> None:
        self.paused.put_nowait((seconds, self.supervisor.status))

    async def pause(self) -> tuple[float, Status]:
        async with asyncio.timeout(20):
            return await self.paused.get()


@pytest.fixture
async def watch(database: Database) -> AsyncGenerator[Callable[..., Watched]]:
    """``watch(step, step…, quiet=…)`` starts a supervisor over scripted connections; the last one holds."""
    watched: list[Watched] = []

    def make(*steps: BaseException | asyncio.Event, quiet: float | None = None, **how: Any) -> Watched:
        able = Capabilities(length=10, repeat="keyed", quiet=quiet)
        kind = type("Scripted", (Scripted,), {"script": [*steps, asyncio.Event()], "abilities": able})
        watched.append(Watched(database, open_=lambda _: kind(KeySettings()), **how))
        return watched[-1]

    yield make
    for one in watched:
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


async def test_supervisor_reconnects_with_growing_pauses_after_any_error(
    watch: Callable[..., Watched],
) -> None:
    watched = watch(*(OSError(f"down {number}") for number in range(5)))

    pauses = [await watched.pause() for _ in range(5)]

    assert [status.reason for _, status in pauses] == [f"OSError: down {number}" for number in range(5)]
    assert {status.state for _, status in pauses} == {"backing_off"}
    for number, (seconds, _) in enumerate(pauses):
        assert 0.5 * 2**number <= seconds <= 1.5 * 2**number
    async with asyncio.timeout(20):
        await watched.active.wait()


async def test_retry_time_of_platform_is_respected(watch: Callable[..., Watched]) -> None:
    seconds, status = await watch(RetryLater("slow down", seconds=1234.0)).pause()

    assert (seconds, status.reason) == (1234.0, "slow down")
    assert status.next_try is not None


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        (1e12, 86_400),
        pytest.param(10**400, 86_400, id="an endless row of digits"),
        *((one, None) for one in (inf, -inf, nan, "9999", True, -5)),
    ],
)
async def test_missing_or_excessive_retry_time_does_not_end_account(
    watch: Callable[..., Watched], named: Any, kept: float | None
) -> None:
    watched = watch(RetryLater("slow down", seconds=named))
    seconds, status = await watched.pause()

    assert status.state == "backing_off"
    assert seconds == kept if kept else 0 < seconds <= 1.5
    async with asyncio.timeout(20):
        await watched.active.wait()


async def test_refused_credentials_are_reported_and_retried_rarely(watch: Callable[..., Watched]) -> None:
    seconds, status = await watch(PermanentError("no such token")).pause()

    assert (status.state, status.reason) == ("refused", "no such token")
    assert seconds >= 300


async def test_invalid_settings_refuse_only_their_account(database: Database) -> None:
    def broken(account: Account) -> Connector[Any]:
        raise ConfigInvalid("connectors.home.key: missing")

    watched = Watched(database, open_=broken)
    _, status = await watched.pause()
    watched.task.cancel()

    assert (status.state, status.reason) == ("refused", "connectors.home.key: missing")


async def test_secret_is_redacted_from_reason(watch: Callable[..., Watched]) -> None:
    _, status = await watch(OSError("cannot reach https://api/bots3cret-key/getMe")).pause()

    assert status.reason == "OSError: cannot reach https://api/bot***/getMe"


async def test_silent_connection_is_replaced(watch: Callable[..., Watched]) -> None:
    watched = watch(asyncio.Event(), quiet=0.05)

    _, status = await watched.pause()

    assert (status.state, status.reason) == ("backing_off", "nothing was received for 0.05 s")
    assert status.connections == 1


async def test_ended_connection_is_replaced(watch: Callable[..., Watched]) -> None:
    end = asyncio.Event()
    watched = watch(end)
    await watched.active.wait()
    end.set()

    _, status = await watched.pause()

    assert (status.state, status.reason) == ("backing_off", "the connection ended")


async def test_deliveries_end_before_their_connection(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    class Step(asyncio.Event):
        async def wait(self) -> Literal[True]:
            try:
                return await super().wait()
            finally:
                ended.append("connection")

    async def deliver(_self: Nowhere, _connector: Connector[Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):  # longer than a cancellation takes
                await asyncio.sleep(0)
            ended.append("deliveries")

    monkeypatch.setattr(Nowhere, "deliver", deliver)
    watched = watch(Step())
    async with asyncio.timeout(20):
        await watched.active.wait()
    watched.task.cancel()
    await asyncio.gather(watched.task, return_exceptions=True)

    assert ended == ["deliveries", "connection"]


async def pause_after(watched: Watched, end: asyncio.Event) -> float:
    """End the connection when it is active, and return the pause after it."""
    async with asyncio.timeout(20):
        await watched.active.wait()
    watched.active.clear()
    end.set()
    return (await watched.pause())[0]


async def test_pauses_grow_while_connections_break_soon(watch: Callable[..., Watched]) -> None:
    ends = [asyncio.Event() for _ in range(5)]
    watched = watch(*ends)

    pauses = [await pause_after(watched, end) for end in ends]

    for number, seconds in enumerate(pauses):
        assert 0.5 * 2**number <= seconds <= 1.5 * 2**number


async def test_long_connection_resets_pauses(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_STABLE_SECONDS", -1.0)  # every connection is long
    end = asyncio.Event()
    watched = watch(*[RetryLater("no")] * 4, end)
    refused = [(await watched.pause())[0] for _ in range(4)]

    assert refused[-1] >= 4
    assert await pause_after(watched, end) <= 1.5


async def test_connection_cancelled_by_library_is_replaced(
    watch: Callable[..., Watched],
) -> None:
    watched = watch(asyncio.CancelledError())

    _, status = await watched.pause()

    assert (status.state, status.reason) == ("backing_off", "the connection was cancelled internally")
    async with asyncio.timeout(20):
        await watched.active.wait()


class Clock:
    """A clock that stands still and records each reading."""

    def __init__(self) -> None:
        self.now = utc_now()
        self.looks: asyncio.Queue[None] = asyncio.Queue()

    def __call__(self) -> datetime:
        self.looks.put_nowait(None)
        return self.now


async def test_account_listens_until_lease_expires_during_database_outage(
    watch: Callable[..., Watched], outage: Callable[[], AbstractContextManager[None]]
) -> None:
    clock = Clock()
    watched = watch(clock=clock, lease=timedelta(milliseconds=60))
    async with asyncio.timeout(20):
        await watched.active.wait()
        with outage():
            while not clock.looks.empty():
                clock.looks.get_nowait()
            for _ in range(16):  # four tries
                await clock.looks.get()
            assert (watched.supervisor.status.state, watched.supervisor.status.connections) == ("active", 1)

            clock.now += timedelta(milliseconds=60)
            _, status = await watched.pause()

    assert (status.state, status.reason) == ("backing_off", "the lease expired and could not be renewed")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("test:2744ccd10c7533bd736ad890f9dd5cab", id="with the same credentials"),
        pytest.param("account:home", id="with other credentials"),
    ],
)
async def test_account_waits_while_another_process_listens(
    watch: Callable[..., Watched], database: Database, name: str
) -> None:
    now = utc_now()
    take = partial(leases.take, account=name, now=now, until=now + timedelta(minutes=1))
    assert await database.run(partial(take, holder="there"))
    watched = watch()

    (first, status), *others = [await watched.pause() for _ in range(4)]
    assert status.state == "backing_off"
    assert (status.reason or "").startswith("another process listens on this account")
    assert [first, *(pause for pause, _ in others)] == [5.0] * 4

    await database.run(partial(leases.give_back, account=name, holder="there"))
    async with asyncio.timeout(20):
        await watched.active.wait()
    assert not await database.run(partial(take, holder="there"))


async def test_account_connects_soon_after_a_long_outage_of_the_database(
    watch: Callable[..., Watched], outage: Callable[[], AbstractContextManager[None]]
) -> None:
    with outage():
        watched = watch()
        pauses = [await watched.pause() for _ in range(8)]
    async with asyncio.timeout(20):
        await watched.active.wait()

    assert [seconds for seconds, _ in pauses] == [5.0] * 8
    assert {status.state for _, status in pauses} == {"backing_off"}


class Listening(Nowhere):
    """An ingress that records the texts of messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def hear(self, heard: Any) -> None:
        self.texts.append(heard.text)


async def test_calls_of_the_platform_are_taken_while_another_process_has_the_account(
    database: Database,
) -> None:
    program, ingress = Program(), Listening()
    connector = Webhook(WebhookSettings.model_validate({"secrets": [SECRET]}))
    name = f"test:{sha256(connector.credentials.encode()).hexdigest()[:32]}"
    now = utc_now()
    take = partial(leases.take, account=name, now=now, until=now + timedelta(minutes=1))
    assert await database.run(partial(take, holder="there"))
    watched = Watched(database, open_=lambda _: connector, ingress=ingress)
    supervisor = watched.supervisor

    async def call(text: str) -> int:
        body = json.dumps({"content": text, "sender": "ana"}).encode()
        return (await supervisor.hook(program.request(body))).status

    _, status = await watched.pause()
    assert (status.state, supervisor.connector) == ("backing_off", None)
    assert await call("while another process has the account") == 200

    await database.run(partial(leases.give_back, account=name, holder="there"))
    async with asyncio.timeout(20):
        await watched.active.wait()
    assert await call("afterwards") == 200
    assert (supervisor.connector, supervisor.standby) == (connector, None)
    assert ingress.texts == ["while another process has the account", "afterwards"]
    watched.task.cancel()
    await asyncio.gather(watched.task, return_exceptions=True)
