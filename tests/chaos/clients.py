"""Clients of a cluster, which repeat every message until it is acknowledged and record what they see."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import httpx2
from tests.chaos.history import History, Message, Outcome

#: The maximum of unanswered messages of a session.
IN_FLIGHT = 3

#: The number of messages that each client repeats at the end.
REPEATED = 30

#: The number of requests with the same message that a client sends at once, to different replicas.
RACING = 4

#: Refusals of the gateway and of the load balancer, after which the request is repeated.
_REFUSALS = (429, 502, 503, 504)

_CANCELLED = "turn_cancelled"

Way = Literal["wait", "watch", "fetch", "race"]


class Client:
    """Talks in one session: it sends a message when the previous one was acknowledged, answered or not."""

    def __init__(self, *, http: httpx2.AsyncClient, number: int, draw: random.Random, history: History) -> None:
        self._http = http
        self._channel = f"s{number}"
        self._user = f"u{number % 4}"
        self._draw = draw
        self._history = history
        self._names: list[str] = []
        self.counts: Counter[str] = Counter()

    async def talk(self, over: asyncio.Event) -> None:
        """Send messages until the end, and then wait for all answers."""
        room = asyncio.Semaphore(IN_FLIGHT)
        async with asyncio.TaskGroup() as learning:
            while not over.is_set():
                await room.acquire()
                message = self._next()
                self._history.sent[message.name] = message
                conversation = _Conversation(
                    http=self._http, message=message, draw=self._draw, history=self._history, counts=self.counts
                )
                learn = learning.create_task(conversation.learn_outcome())
                learn.add_done_callback(lambda _: room.release())
                await conversation.acknowledged.wait()
                await asyncio.sleep(self._draw.uniform(0, 0.4))

    async def ask_again(self) -> None:
        """Repeat the last messages, and record the turns that they belong to."""
        for name in self._names[-REPEATED:]:
            message = self._history.sent[name]
            conversation = _Conversation(
                http=self._http, message=message, draw=self._draw, history=self._history, counts=self.counts
            )
            await conversation.learn_outcome(way="wait")

    def _next(self) -> Message:
        name = f"{self._channel}n{len(self._names)}"
        self._names.append(name)
        kind = self._draw.choices(["note", "linger", "calculate"], [3, 2, 2])[0]
        match kind:
            case "note":
                content, answer = f'use note {{"text": "{name}"}}', f"noted {name}"
            case "linger":
                seconds = round(self._draw.uniform(0.3, 1.2), 2)
                content = f'use linger {{"text": "{name}", "seconds": {seconds}}}'
                answer = f"lingered {name}"
            case _:
                a, b = self._draw.randrange(2, 99), self._draw.randrange(2, 99)
                content, answer = f"{a} * {b}", str(a * b)
        return Message(
            name=name,
            user=self._user,
            channel=self._channel,
            content=content,
            answer=answer,
            acts=kind == "note",
        )


class _Conversation:
    """One message, from the first request to the end of its turn."""

    def __init__(
        self,
        *,
        http: httpx2.AsyncClient,
        message: Message,
        draw: random.Random,
        history: History,
        counts: Counter[str],
    ) -> None:
        self._http = http
        self._message = message
        self._draw = draw
        self._history = history
        self._counts = counts
        self._turn: str | None = None
        self._ended = False
        #: Set when the message was acknowledged, or cannot be.
        self.acknowledged = asyncio.Event()
        #: For a stream: the last event, and the text so far.
        self._last_event, self._text = "", ""

    async def learn_outcome(self, way: Way | None = None) -> None:
        """Send the message until it is acknowledged, and ask for the end of its turn until it is known."""
        ways: list[Way] = ["wait", "watch", "watch", "fetch", "race", "race"]
        chosen: Way = way or self._draw.choice(ways)
        try:
            while self._turn is None and not self._ended:
                posts = [
                    self._try(lambda: self._post(chosen)) for _ in range(RACING if chosen == "race" else 1)
                ]
                await asyncio.gather(*posts)
        finally:
            self.acknowledged.set()
        if way is None and not self._ended and self._draw.random() < 0.1:
            await self._try(self._cancel)
        while not self._ended:
            await self._try(self._resume if chosen == "watch" else self._fetch)

    async def _try(self, act: Callable[[], Awaitable[None]]) -> None:
        """Send a request; wait before the next one if it fails."""
        self._counts["requests"] += 1
        try:
            await act()
        except httpx2.TransportError:
            self._counts["connections that broke"] += 1
            await asyncio.sleep(0.2)

    async def _post(self, way: Way) -> None:
        body = {
            "content": self._message.content,
            "channelId": self._message.channel,
            "userId": self._message.user,
        }
        headers = {"Idempotency-Key": self._message.name}
        if way == "watch":
            headers["Accept"] = "text/event-stream"
        elif way in ("fetch", "race"):
            headers["Prefer"] = "respond-async"
        async with self._http.stream("POST", "message", json=body, headers=headers) as response:
            self._counts["repeated keys"] += "Idempotency-Replayed" in response.headers
            if response.headers["Content-Type"].startswith("text/event-stream"):
                await self._watch(response)
                return
            await response.aread()
        answered = await self._read(response)
        if answered is not None:
            self._acknowledge(answered["id"])
            self._note_end(answered)

    async def _fetch(self) -> None:
        turn = await self._read(await self._http.get(f"v1/turns/{self._turn}"))
        if turn is not None:
            self._note_end(turn)
            if not self._ended:
                await asyncio.sleep(0.15)

    async def _cancel(self) -> None:
        assert self._turn is not None
        self._counts["cancellations"] += 1
        self._history.cancelled.add(self._turn)
        turn = await self._read(await self._http.post(f"v1/turns/{self._turn}/cancel"))
        if turn is not None:
            self._note_end(turn)
            if not self._ended:
                self._surprise(f"a cancellation returned {turn}")

    async def _resume(self) -> None:
        self._counts["resumed streams"] += 1
        path, headers = f"v1/turns/{self._turn}/events", {"Last-Event-ID": self._last_event}
        async with self._http.stream("GET", path, headers=headers) as response:
            if response.status_code == 200:
                await self._watch(response)
                return
            await response.aread()
        await self._read(response)

    async def _read(self, response: httpx2.Response) -> dict[str, Any] | None:
        """Return the body of a success; note what a problem says, and wait before the request is repeated."""
        if response.is_success:
            return response.json()
        is_problem = response.headers["Content-Type"].startswith("application/problem+json")
        problem: dict[str, Any] = response.json() if is_problem else {}
        if problem.get("code") == _CANCELLED:
            self._note_cancelled()
        elif response.status_code in _REFUSALS:
            self._counts[f"{response.status_code} {problem.get('code', 'of the load balancer')}"] += 1
            request = response.request
            self._history.refusals.append(f"{request.method} {request.url.path}: {response.text}")
            _, _, accepted = problem.get("instance", "").partition("v1/turns/")
            if accepted:
                self._acknowledge(accepted)
            await asyncio.sleep(0.2)
        else:
            self._surprise(f"{response.request.method} {response.request.url.path}: {response.text}")
        return None

    async def _watch(self, response: httpx2.Response) -> None:
        async for event_id, name, data in read_events(response):
            self._last_event = event_id
            match name:
                case "turn.accepted":
                    self._acknowledge(data["id"])
                case "message.delta":
                    self._text += data["text"]
                case "turn.resumed" | "message.snapshot":
                    self._counts[name] += 1
                    self._text = data["text"]
                case "turn.completed" if "reply" in data:
                    self._acknowledge(data["id"])
                    self._history.streamed.append((data["id"], self._text))
                    self._note_end(data)
                case "turn.failed" if data["code"] == _CANCELLED:
                    self._note_cancelled()
                case "turn.failed":
                    if data["status"] not in _REFUSALS:
                        self._surprise(f"the stream of {self._turn} ended with {data}")
                case _:
                    if name not in ("tool.started", "tool.finished"):
                        self._surprise(f"the stream of {self._turn} had the event {name}: {data}")

    def _acknowledge(self, turn_id: str) -> None:
        self._history.acknowledged.append((self._message.name, turn_id))
        self._turn = self._turn or turn_id
        self.acknowledged.set()

    def _note_end(self, turn: dict[str, Any]) -> None:
        if turn["status"] in ("completed", "failed", "cancelled"):
            self._history.ended.append((turn["id"], Outcome(turn["status"], turn["reply"])))
            self._ended = True

    def _note_cancelled(self) -> None:
        if self._turn is not None:
            self._history.ended.append((self._turn, Outcome("cancelled", None)))
        self._ended = True

    def _surprise(self, what: str) -> None:
        self._history.unexpected.append(f"{self._message.name}: {what}")
        self._ended = True


async def read_events(response: httpx2.Response) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """Yield the id, the name and the data of each event of a stream."""
    event_id, name = "", ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        match field:
            case "id":
                event_id = value
            case "event":
                name = value
            case "data":
                yield event_id, name, json.loads(value)
            case _:
                pass
