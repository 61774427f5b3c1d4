"""What stand-ins of platforms that call us share: an interface, and calls told until they are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from torana.connectors.base import HookRequest, HookResponse
from torana.testing.connectors import Hook, Platform, Shown

#: Of a chat, what the account said there.
Said = dict[tuple[str, str | None], list[Shown]]


class Calling(Platform):
    """A platform with an interface on a port of this machine, which calls the connector when something is said.

    Calls that are not answered with a 2xx are told again: before the next one, and to the next connector.
    """

    def __init__(self) -> None:
        self.app = web.Application(client_max_size=2**22)
        self.url = ""
        #: How each call was answered.
        self.answers: list[HookResponse] = []
        self.said: Said = {}
        #: How the next message of the account is answered, instead of being taken.
        self.instead: Callable[[], web.Response] | None = None
        self._hook: Hook | None = None
        self._calls: list[Callable[[], HookRequest]] = []
        self._telling = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._runner = web.AppRunner(self.app)
        self._count = 0

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*self._later)
        await self._runner.cleanup()

    def number(self) -> int:
        """A new number, for ids."""
        self._count += 1
        return self._count

    def attach(self, hook: Hook | None) -> None:
        self._hook = hook
        if hook is not None:
            task = asyncio.create_task(self._tell())
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def call(self, request: HookRequest) -> HookResponse:
        """Call the connector, once."""
        assert self._hook is not None
        answer = await self._hook(request)
        self.answers.append(answer)
        return answer

    async def tell(self, call: Callable[[], HookRequest]) -> None:
        """Call the connector until it takes it; each call is signed anew."""
        self._calls.append(call)
        await self._tell()

    async def _tell(self) -> None:
        async with self._telling:
            while self._calls and self._hook is not None:
                answer = await self.call(self._calls[0]())
                if not 200 <= answer.status < 300:
                    return
                self._calls.pop(0)

    async def show(self, shown: Shown, *, to: str, thread: str | None = None) -> None:
        """Show a message of the account."""
        async with self._changed:
            self.said.setdefault((to, thread), []).append(shown)
            self._changed.notify_all()

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        place = (room or self.chat(to), thread)
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.said.get(place, [])) >= count)
            return self.said[place]

    def chat(self, person: str) -> str:
        """The id of the direct chat with a person."""
        return person

    async def cut(self) -> None:
        server = self._runner.server
        assert server is not None
        for connection in list(server.connections):
            connection.force_close()

    def takes(self) -> web.Response | None:
        """What the next message of the account is answered instead of being taken, where that was asked for."""
        instead, self.instead = self.instead, None
        return instead() if instead else None

    def answer_next(self, status: int, body: Any = None, headers: Mapping[str, str] | None = None) -> None:
        """Answer the next message of the account so."""
        self.instead = lambda: web.json_response(body, status=status, headers=headers)
