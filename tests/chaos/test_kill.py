"""Repeated ``kill -9`` while many clients talk with the installed program.

``TORANA_CHAOS_SECONDS`` sets the duration (``make chaos``), ``TORANA_CHAOS_SEED`` the seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import httpx2
import pytest
from tests.chaos.clients import read_events
from tests.chaos.program import Program

SECONDS = float(os.environ.get("TORANA_CHAOS_SECONDS", "16"))
SEED = int(os.environ.get("TORANA_CHAOS_SEED", "1"))
SESSIONS = 30

#: The minimum of acknowledged messages and of kills.
MESSAGES = 200
KILLS = 5

#: The maximum of unanswered messages of a session: fewer than the gateway refuses.
IN_FLIGHT = 4

UNKNOWN = "Its outcome is unknown"

Way = Literal["wait", "watch", "fetch"]
Row = dict[str, Any]
T = TypeVar("T")
Eventually = Callable[[Callable[[], Any]], Any]
NewProgram = Callable[..., Program]


@dataclass(kw_only=True)
class Message:
    """A message of a client, and what the client knows of it."""

    channel: str
    content: str
    #: The content of the answer, unless its tool's outcome is unknown.
    answer: str
    way: Way
    key: str | None
    #: Set with the acknowledgement.
    turn_id: str | None = None
    reply: str | None = None
    #: Sent without a key before the connection broke: it is unknown whether it arrived.
    lost: bool = False
    #: For a watcher: the last event, and the text so far.
    last_event: str = ""
    text: str = ""

    @property
    def body(self) -> dict[str, str]:
        return {"content": self.content, "channelId": self.channel, "userId": self.channel}

    @property
    def headers(self) -> dict[str, str]:
        key = {"Idempotency-Key": self.key} if self.key else {}
        match self.way:
            case "wait":
                return key
            case "watch":
                return key | {"Accept": "text/event-stream"}
            case "fetch":
                return key | {"Prefer": "respond-async"}


class Client:
    """Talks in one session: it sends a message when the previous one was acknowledged, answered or not."""

    def __init__(
        self, *, http: httpx2.AsyncClient, channel: str, draw: random.Random, progress: asyncio.Semaphore
    ) -> None:
        """Count the acknowledgements of all clients with ``progress``."""
        self._http = http
        self._progress = progress
        self._channel = channel
        self._draw = draw
        self.counts: Counter[str] = Counter()
        self.sent: list[Message] = []
        #: In the order of acknowledgement.
        self.acknowledged: list[Message] = []

    async def talk(self, over: asyncio.Event) -> None:
        """Send messages until the end, and then wait for all answers."""
        room = asyncio.Semaphore(IN_FLIGHT)
        async with asyncio.TaskGroup() as learning:
            while not over.is_set():
                await room.acquire()
                message = self._next()
                self.sent.append(message)
                acknowledged = asyncio.Event()
                learn = learning.create_task(self._settle(message, acknowledged))
                learn.add_done_callback(lambda _: room.release())
                await acknowledged.wait()
                await asyncio.sleep(self._draw.uniform(0, 0.5))

    async def ask_again(self) -> None:
        """Repeat every message that has a key, and expect the same answer."""
        for message in self.acknowledged:
            if message.key is None:
                continue
            headers = {"Idempotency-Key": message.key}
            response = await self._http.post("message", json=message.body, headers=headers)
            body = response.raise_for_status().json()
            assert (body["id"], body["reply"]) == (message.turn_id, message.reply)
            assert response.headers["Idempotency-Replayed"] == "true"

    def _next(self) -> Message:
        name = f"{self._channel}-{len(self.sent)}"
        a, b = self._draw.randrange(2, 30), self._draw.randrange(2, 30)
        content, answer = self._draw.choice(
            [
                (f'use note {{"text": "{name}"}}', f"noted {name}"),
                (f'use note {{"text": "{name}"}}', f"noted {name}"),
                (f'use peek {{"text": "{name}"}}', f"seen {name}"),
                (f"{a} * {b}", str(a * b)),
            ]
        )
        return Message(
            channel=self._channel,
            content=content,
            answer=answer,
            way=self._draw.choice(["wait", "watch", "fetch"]),
            key=name if self._draw.random() < 0.6 else None,
        )

    async def _settle(self, message: Message, acknowledged: asyncio.Event) -> None:
        """Deliver a message, and wait for its answer."""
        try:
            while message.turn_id is None and not message.lost:
                await self._try(message, self._post, acknowledged)
        finally:
            acknowledged.set()
        while message.reply is None and not message.lost:
            learn = self._resume if message.way == "watch" else self._fetch
            await self._try(message, learn, acknowledged)

    async def _try(
        self, message: Message, act: Callable[[Message, asyncio.Event], Any], acknowledged: asyncio.Event
    ) -> None:
        try:
            await act(message, acknowledged)
        except httpx2.ConnectError:
            pass  # nothing was sent
        except httpx2.HTTPStatusError as error:
            if error.response.status_code != 503:
                raise
            self.counts["refusals"] += 1
        except httpx2.TransportError:
            self.counts["connections that broke"] += 1
            message.lost = message.key is None and message.turn_id is None
        else:
            return
        await asyncio.sleep(0.2)

    async def _post(self, message: Message, acknowledged: asyncio.Event) -> None:
        self.counts["requests"] += 1
        async with self._http.stream("POST", "message", json=message.body, headers=message.headers) as response:
            if response.status_code in (429, 503):  # the gateway refused the message
                self.counts["refusals"] += 1
                await asyncio.sleep(0.2)
                return
            response.raise_for_status()
            self.counts["replayed acknowledgements"] += "Idempotency-Replayed" in response.headers
            if message.way == "watch":
                await self._watch(message, response, acknowledged)
                return
            body = json.loads(await response.aread())
        self._acknowledge(message, body["id"], acknowledged)
        if message.way == "wait":
            message.reply = body["reply"]

    async def _fetch(self, message: Message, _: asyncio.Event) -> None:
        response = await self._http.get(f"v1/turns/{message.turn_id}")
        turn = response.raise_for_status().json()
        assert turn["status"] in ("queued", "running", "completed"), turn
        if turn["status"] == "completed":
            message.reply = turn["reply"]
        else:
            await asyncio.sleep(0.1)

    async def _resume(self, message: Message, acknowledged: asyncio.Event) -> None:
        self.counts["resumed streams"] += 1
        path, headers = f"v1/turns/{message.turn_id}/events", {"Last-Event-ID": message.last_event}
        async with self._http.stream("GET", path, headers=headers) as response:
            await self._watch(message, response.raise_for_status(), acknowledged)

    async def _watch(self, message: Message, response: httpx2.Response, acknowledged: asyncio.Event) -> None:
        async for event_id, name, data in read_events(response):
            message.last_event = event_id
            match name:
                case "turn.accepted":
                    self._acknowledge(message, data["id"], acknowledged)
                case "message.delta":
                    message.text += data["text"]
                case "turn.resumed" | "message.snapshot":
                    self.counts[name] += 1
                    message.text = data["text"]
                case "turn.completed":
                    # If a repeated key attached to a resumed turn, only the end of its events has the id.
                    self._acknowledge(message, data["id"], acknowledged)
                    message.reply = data["reply"]
                    assert message.text == message.reply
                case _:
                    assert name in ("tool.started", "tool.finished"), (name, data)

    def _acknowledge(self, message: Message, turn_id: str, acknowledged: asyncio.Event) -> None:
        assert message.turn_id in (None, turn_id)
        if message.turn_id is None:
            message.turn_id = turn_id
            self.acknowledged.append(message)
            acknowledged.set()
            self._progress.release()


@dataclass
class Killer:
    """Starts the program and kills it at random moments until it is enough."""

    program: Program
    draw: random.Random
    progress: asyncio.Semaphore
    kills: Counter[str] = field(default_factory=Counter[str])

    async def until(self, is_enough: Callable[[], bool]) -> None:
        """Kill repeatedly, and leave the program running at the end."""
        while not is_enough():
            self.program.start()
            if self.draw.random() < 0.25:
                await self._kill("while it started")
            else:
                await asyncio.to_thread(self.program.wait_until_up)
                await self._wait_for_acknowledgements(self.draw.randint(0, 60))
                await self._kill("while it ran")
        self.program.start()
        await asyncio.to_thread(self.program.wait_until_up)

    async def _wait_for_acknowledgements(self, number: int) -> None:
        """Wait for a moment that depends on progress, not on the speed of the machine."""
        while not self.progress.locked():
            await self.progress.acquire()
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                for _ in range(number):
                    await self.progress.acquire()

    async def _kill(self, when: str) -> None:
        await asyncio.sleep(self.draw.uniform(0, 1.5 if when == "while it started" else 0.1))
        self.kills[when] += 1
        await asyncio.to_thread(self.program.kill)


@pytest.mark.timeout(SECONDS + 300)
async def test_acknowledged_messages_have_one_answer_in_order_despite_kills(
    new_program: NewProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(SEED)
    program = new_program(TORANA_MAX_CRASHES="1000")
    progress = asyncio.Semaphore(0)
    killer = Killer(program, draw, progress)
    over = asyncio.Event()
    limits = httpx2.Limits(max_connections=None)
    deadline = time.monotonic() + SECONDS
    clients: list[Client] = []

    def is_enough() -> bool:
        acknowledged = sum(len(client.acknowledged) for client in clients)
        return time.monotonic() > deadline and acknowledged >= MESSAGES and killer.kills.total() >= KILLS

    async with httpx2.AsyncClient(base_url=program.url, timeout=60, trust_env=False, limits=limits) as http:
        clients = [
            Client(http=http, channel=f"s{number}", draw=random.Random(draw.random()), progress=progress)
            for number in range(SESSIONS)
        ]
        async with asyncio.TaskGroup() as talking:
            for client in clients:
                talking.create_task(client.talk(over))
            await killer.until(is_enough)
            over.set()
        for client in clients:
            await client.ask_again()
    found = Found(program)
    with capsys.disabled():
        sys.stdout.write(f"\n{summarize(killer, clients, found)}\n")

    found.check(clients)


class Found:
    """The contents of the database and of the tool's file at the end."""

    def __init__(self, program: Program) -> None:
        self.turns = program.rows("SELECT * FROM turns ORDER BY session_id, seq")
        self.history = program.rows("SELECT turn_id FROM history ORDER BY session_id, seq")
        self.journal = program.rows("SELECT turn_id FROM steps UNION ALL SELECT turn_id FROM calls")
        self.notes = Counter(program.lines("notes"))

    def check(self, clients: Sequence[Client]) -> None:
        """Check every promise for all clients."""
        assert [row["id"] for row in self.turns if row["state"] != "completed"] == []
        assert self.journal == []
        assert [line for line, times in self.notes.items() if times > 1] == []
        # The history has every turn once, in the order of acceptance within each session.
        assert [row["turn_id"] for row in self.history] == [row["id"] for row in self.turns]
        for client in clients:
            self._check_client(client)

    def _check_client(self, client: Client) -> None:
        by_id = {row["id"]: row for row in self.turns}
        rows = [by_id[message.turn_id or ""] for message in client.acknowledged]
        assert [row["seq"] for row in rows] == sorted({row["seq"] for row in rows})
        for message, row in zip(client.acknowledged, rows, strict=True):
            assert (row["content"], row["channel"]) == (message.content, message.channel)
            assert message.reply == row["reply"]
            self._check_answer(message)
        lost = Counter(message.content for message in client.sent if message.lost)
        known = Counter(message.content for message in client.acknowledged)
        there = Counter(row["content"] for row in self.turns if row["channel"] == rows[0]["channel"])
        assert known <= there <= known + lost

    def _check_answer(self, message: Message) -> None:
        assert message.reply is not None
        is_note = message.answer.startswith("noted ")
        if is_note and UNKNOWN in message.reply:
            return
        assert message.answer in message.reply
        if is_note:
            assert self.notes[message.answer.removeprefix("noted ")] == 1


def summarize(killer: Killer, clients: Sequence[Client], found: Found) -> str:
    """Return a summary line for a person who watches the test."""
    sent = [message for client in clients for message in client.sent]
    known = [message for client in clients for message in client.acknowledged]
    counts = sum((client.counts for client in clients), Counter[str]())
    figures = {
        "sessions": len(clients),
        "messages": len(sent),
        "acknowledged": len(known),
        "with a key": sum(message.key is not None for message in known),
        "of unknown fate (no key)": sum(message.lost for message in sent),
        **{f"kills {when}": times for when, times in killer.kills.items()},
        **counts,
        "turns taken up again": sum(row["attempt"] > 1 for row in found.turns),
        "attempts at most": max(row["attempt"] for row in found.turns),
        "deaths of one turn at most": max(row["crashes"] for row in found.turns),
        "lines written": sum(found.notes.values()),
        "outcomes unknown": sum(UNKNOWN in (row["reply"] or "") for row in found.turns),
        "not completed": sum(row["state"] != "completed" for row in found.turns),
    }
    return ", ".join(f"{name}: {figure}" for name, figure in figures.items())


@pytest.mark.timeout(180)
async def test_only_the_message_that_kills_the_process_fails(
    new_program: NewProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    program = new_program(TORANA_MAX_CRASHES="1")
    program.start()
    said = [('use poison {"text": "x"}', "s0"), ('use note {"text": "behind"}', "s0")]
    said += [(f'use note {{"text": "{number}"}}', f"s{number}") for number in range(1, 9)]
    starts = 1
    async with httpx2.AsyncClient(base_url=program.url, timeout=60, trust_env=False) as http:
        messages = [
            Message(channel=channel, content=content, answer="", way="fetch", key=f"m{number}")
            for number, (content, channel) in enumerate(said)
        ]
        ends = [asyncio.create_task(_end_of(http, message)) for message in messages]
        while not all(end.done() for end in ends):
            if not program.alive:
                program.start()
                starts += 1
            await asyncio.sleep(0.05)
    poison, *others = [end.result() for end in ends]
    with capsys.disabled():
        sys.stdout.write(f"\nstarts: {starts}, neighbours answered: {len(others)}\n")

    assert (poison["status"], poison["error"]["code"]) == ("failed", "crashed_repeatedly")
    assert [turn["status"] for turn in others] == ["completed"] * len(others)
    # Two crashes that made it suspect, and one alone.
    assert len(program.lines("poisoned")) == starts - 1 == 3
    notes = Counter(program.lines("notes"))
    assert set(notes.values()) == {1}
    assert [turn["reply"] for turn in others if turn["reply"].removeprefix("noted ") not in notes] == [
        turn["reply"] for turn in others if UNKNOWN in turn["reply"]
    ]


async def _end_of(http: httpx2.AsyncClient, message: Message) -> Any:
    """Send a message until it is acknowledged, and return its ended turn."""
    while True:
        try:
            if message.turn_id is None:
                response = await http.post("message", json=message.body, headers=message.headers)
                message.turn_id = response.raise_for_status().json()["id"]
            turn = (await http.get(f"v1/turns/{message.turn_id}")).raise_for_status().json()
            if turn["status"] in ("completed", "failed"):
                return turn
        except httpx2.TransportError:
            pass
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("place", "content", "reply", "notes", "peeks"),
    [
        ("before", 'use note {"text": "x"}', UNKNOWN, ["y"], 0),
        ("after", 'use note {"text": "x"}', UNKNOWN, ["x", "y"], 0),
        ("peek", 'use peek {"text": "x"}', "seen x", ["y"], 2),
    ],
    ids=["before-its-effect", "after-its-effect", "in-an-idempotent-one"],
)
async def test_kill_during_a_tool_call_repeats_only_idempotent_calls(
    new_program: NewProgram,
    eventually: Eventually,
    place: str,
    content: str,
    reply: str,
    notes: list[str],
    peeks: int,
) -> None:
    program = new_program()
    hold = program.home / f"hold-{place}"
    hold.touch()
    program.start()
    program.wait_until_up()
    async with httpx2.AsyncClient(base_url=program.url, timeout=60, trust_env=False) as http:
        messages = [
            Message(channel="home", content=text, answer="", way="fetch", key=None)
            for text in (content, 'use note {"text": "y"}')
        ]
        for message in messages:
            response = await http.post("message", json=message.body, headers=message.headers)
            message.turn_id = response.raise_for_status().json()["id"]
        await asyncio.to_thread(eventually, (program.home / f"held-{place}").exists)
        program.kill()
        hold.unlink()
        program.start()
        first, second = [await _end_of(http, message) for message in messages]

    assert reply in first["reply"]
    assert second["reply"] == "noted y"
    assert program.lines("notes") == notes
    assert len(program.lines("peeks")) == peeks
