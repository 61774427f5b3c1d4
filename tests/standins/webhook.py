"""A program that sends signed webhooks and receives signed replies, by https://www.standardwebhooks.com."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from tests.standins.calling import Calling

from torana.connectors.base import HookRequest
from torana.connectors.platforms.webhook import Webhook
from torana.testing.connectors import Shown

SECRET = "whsec_" + base64.b64encode(b"a secret of 32 bytes, all in all").decode()


def signature(secret: str, name: str, moment: str, body: bytes) -> str:
    """Return the signature of the standard's symmetric scheme."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join([name.encode(), moment.encode(), body])
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class Program(Calling):
    """The program; its own server receives replies."""

    connector = Webhook
    has_bots = False
    has_files = False

    def __init__(self) -> None:
        super().__init__()
        self.app.router.add_post("/replies", self._reply)
        self.app.router.add_post("/endless", self._endless)
        #: The received events of ended turns.
        self.events: list[dict[str, Any]] = []
        self.keys: dict[str, dict[str, Any]] = {}
        self._told: dict[str, dict[str, Any]] = {}

    def settings(self) -> Mapping[str, Any]:
        return {"secrets": [SECRET], "reply_url": f"{self.url}/replies"}

    def request(
        self, body: bytes, *, name: str = "msg_1", moment: float | None = None, secret: str = SECRET
    ) -> HookRequest:
        """Return a signed call."""
        told = str(int(time.time() if moment is None else moment))
        headers = {
            "content-type": "application/json",
            "webhook-id": name,
            "webhook-timestamp": told,
            "webhook-signature": signature(secret, name, told, body),
        }
        return HookRequest(method="POST", headers=headers, query={}, body=body)

    async def say(
        self,
        text: str,
        *,
        sender: str = "ana",
        room: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        bot: bool = False,
        file: tuple[str, str, bytes] | None = None,
    ) -> str:
        name = f"msg_{self.number()}"
        self._told[name] = {"content": text, "sender": sender, "chat": room, "thread": thread}
        await self.repeat(name)
        return name

    async def repeat(self, message: str) -> None:
        await self.tell(lambda: self.request(json.dumps(self._told[message]).encode(), name=message))

    async def limit(self, seconds: float | None) -> None:
        self.answer_next(429, headers=None if seconds is None else {"Retry-After": f"{seconds:.0f}"})

    async def fail(self) -> None:
        self.answer_next(502)

    async def refuse_message(self) -> None:
        self.answer_next(410)

    async def _reply(self, request: web.Request) -> web.Response:
        body = await request.read()
        name, moment = request.headers["webhook-id"], request.headers["webhook-timestamp"]
        if request.headers["webhook-signature"] != signature(SECRET, name, moment, body):
            return web.Response(status=401)
        if instead := self.takes():
            return instead
        event = json.loads(body)
        assert event["id"] == name
        assert abs(time.time() - int(moment)) < 60
        if name in self.keys:
            return web.Response(status=204)
        if event["type"] == "reply":
            data = self.keys[name] = event["data"]
            shown = Shown(id=name, text=data["text"], thread=data["thread"])
            self.show(shown, to=data["chat"], thread=data["thread"])
        else:
            self.keys[name] = event
            self.events.append(event)
        return web.Response(status=204)

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(bytes(65_536))
