"""The base of stand-ins for platforms that call the gateway: an HTTP API, and calls that are repeated until
they succeed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from tests.standins.http import HttpPlatform

from torana.connectors.base import HookRequest, HookResponse, IncomingMessage
from torana.testing.connectors import Hook, Line, Shown

#: The messages of the account, by chat.
Said = dict[tuple[str, str | None], list[Shown]]


class InOrder:
    """Passes messages to a line one after another, as the ingress does with the messages of a chat."""

    def __init__(self, line: Line) -> None:
        self._hear = line.hear
        self._turnstile = asyncio.Lock()

    async def __call__(self, heard: IncomingMessage) -> None:
        async with self._turnstile:
            await asyncio.sleep(0)  # as a query of the store
            await self._hear(heard)


class Calling(HttpPlatform):
    """A platform with an HTTP API on a local port, which calls the connector for each message.

    It repeats a call whose response is not 2xx: before the next call, and after the next connector starts.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The responses to the calls.
        self.answers: list[HookResponse] = []
        self.said: Said = {}
        #: The response to the account's next message instead of accepting it.
        self.instead: Callable[[], web.Response] | None = None
        self._hook: Hook | None = None
        self._calls: list[Callable[[], HookRequest]] = []
        self._telling = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()
        self._count = 0

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._later)
        await super().__aexit__()

    def number(self) -> int:
        """Return a new number, for ids."""
        self._count += 1
        return self._count

    def attach(self, hook: Hook | None) -> None:
        self._hook = hook
        if hook is not None:
            task = asyncio.create_task(self._tell())
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def call(self, request: HookRequest) -> HookResponse:
        """Call the connector once."""
        assert self._hook is not None
        answer = await self._hook(request)
        self.answers.append(answer)
        return answer

    async def tell(self, call: Callable[[], HookRequest]) -> None:
        """Call the connector until it accepts the call; each attempt has a new signature."""
        if self.change is not None:
            body = json.dumps(self.changed(json.loads(call().body))).encode()
            assert (await self.call(self.request(body))).status < 500
            return
        self._calls.append(call)
        await self._tell()

    def request(self, body: bytes) -> HookRequest:
        """Return a signed call."""
        raise NotImplementedError

    async def _tell(self) -> None:
        async with self._telling:
            while self._calls and self._hook is not None:
                answer = await self.call(self._calls[0]())
                if not 200 <= answer.status < 300:
                    return
                self._calls.pop(0)

    def show(self, shown: Shown, *, to: str, thread: str | None = None) -> None:
        """Show a message of the account."""
        self.said.setdefault((to, thread), []).append(shown)
        self.stir()

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        place = (room or self.chat(to), thread)
        await self.until(lambda: len(self.said.get(place, [])) >= count)
        return self.said.get(place, [])

    def chat(self, person: str) -> str:
        """Return the id of the direct chat with a person."""
        return person

    def takes(self) -> web.Response | None:
        """Return the response set for the account's next message, or None if the message is accepted."""
        instead, self.instead = self.instead, None
        return instead() if instead else None

    def answer_next(self, status: int, body: Any = None, headers: Mapping[str, str] | None = None) -> None:
        """Set the response to the account's next message."""
        self.instead = lambda: web.json_response(body, status=status, headers=headers)
