"""A stand-in of LINE's Messaging API, written from its public reference."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from aiohttp import web
from tests.standins.calling import Calling

from torana.connectors.base import HookRequest
from torana.connectors.platforms.line import LineConnector
from torana.testing.connectors import Shown

TOKEN = "channel/access+token="
SECRET = "8c570fa6dd201bb328f1c1eac23a96d8"
BOT = "U" + "b" * 32


class LinePlatform(Calling):
    """The platform: one channel, users, and a group."""

    connector = LineConnector
    room = "C" + "0" * 32
    has_bots = False

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {TOKEN}
        #: The pushed messages by their retry keys.
        self.pushed: dict[str, dict[str, Any]] = {}
        self.loading: list[dict[str, Any]] = []
        #: Files by their messages; the number of requests for a file that are answered with "not yet".
        self.files: dict[str, bytes] = {}
        self.not_yet = 0
        self._people: dict[str, str] = {}
        self._told: dict[str, dict[str, Any]] = {}
        self.app.router.add_get("/v2/bot/info", self._authorized(self._info))
        self.app.router.add_post("/v2/bot/message/push", self._authorized(self._push))
        self.app.router.add_post("/v2/bot/chat/loading/start", self._authorized(self._loading))
        self.app.router.add_get("/v2/bot/message/{message}/content", self._authorized(self._content))

    def settings(self) -> Mapping[str, Any]:
        return {"channel_secret": SECRET, "access_token": TOKEN, "api_url": self.url, "data_url": self.url}

    def chat(self, person: str) -> str:
        return self._people.setdefault(person, f"U{len(self._people):032x}")

    def request(self, body: bytes, *, secret: str = SECRET) -> HookRequest:
        """Return a signed call."""
        digest = hmac.new(secret.encode(), body, hashlib.sha256).digest()
        headers = {"x-line-signature": base64.b64encode(digest).decode()}
        return HookRequest(method="POST", headers=headers, query={}, body=body)

    def event(
        self, message: dict[str, Any], *, sender: str = "ana", room: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Return the event of a message."""
        user = {"userId": self.chat(sender)}
        return {
            "type": "message",
            "mode": "active",
            "timestamp": int(time.time() * 1000),
            "webhookEventId": f"01FZ74A0TDDPYRVKNK77XKC3{self.number():02}",
            "deliveryContext": {"isRedelivery": False},
            "source": {"type": "group", "groupId": room, **user} if room else {"type": "user", **user},
            "replyToken": "nHuyWiB7yP5Zw52FIkcQobQuGDXCTA",
            "message": message,
            **more,
        }

    def text(self, text: str, **more: Any) -> dict[str, Any]:
        """Return a text message."""
        return {"type": "text", "id": self._id(), "quoteToken": "q3Plxr4AgKd", "text": text, **more}

    def file(self, kind: str, content: bytes, **more: Any) -> dict[str, Any]:
        """Return a message with a file, which LINE stores."""
        name = self._id()
        self.files[name] = content
        return {"type": kind, "id": name, **more}

    @staticmethod
    def call_of(*events: Any) -> bytes:
        """Return the body of a call with events."""
        return json.dumps({"destination": BOT, "events": events}).encode()

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
        if file is not None:
            provider = {"type": "line"}
            message = self.file("image", file[2], quoteToken="q3Plxr4AgKd", contentProvider=provider)
        elif mention:
            message = self.text(f"@Torana {text}", mention={"mentionees": [mentioned(0, 7)]})
        else:
            message = self.text(text)
        event = self._told[message["id"]] = self.event(message, sender=sender, room=room)
        await self.tell(lambda: self._telling_of(event))
        return message["id"]

    async def repeat(self, message: str) -> None:
        await self.tell(lambda: self._telling_of(self._told[message]))

    def _telling_of(self, event: dict[str, Any]) -> HookRequest:
        request = self.request(self.call_of(event))
        event["deliveryContext"] = {"isRedelivery": True}
        return request

    async def limit(self, seconds: float | None) -> None:
        headers = None if seconds is None else {"Retry-After": f"{seconds:.0f}"}
        self.answer_next(429, {"message": "The API rate limit has been exceeded. Try again later."}, headers)

    async def fail(self) -> None:
        self.answer_next(500, {"message": "Internal Server Error"})

    async def refuse_message(self) -> None:
        self.answer_next(400, {"message": "Failed to send messages"})

    async def refuse_login(self) -> None:
        self.tokens.clear()

    def _id(self) -> str:
        return str(444_573_844_083_572_737 + self.number())

    def _authorized(
        self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def checked(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
                told = (
                    "Authentication failed. Confirm that the access token in the authorization header is valid."
                )
                return web.json_response({"message": told}, status=401)
            return await answer(request)

        return checked

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "userId": BOT,
                "basicId": "@216ru",
                "displayName": "Torana",
                "chatMode": "bot",
                "markAsReadMode": "auto",
            }
        )

    async def _push(self, request: web.Request) -> web.Response:
        body = await request.json()
        key = str(UUID(request.headers["X-Line-Retry-Key"]))
        if instead := self.takes():
            return instead
        if fault := _fault(body):
            return web.json_response(fault, status=400)
        headers = {"x-line-request-id": "123e4567-e89b-12d3-a456-426655440001"}
        if key in self.pushed:
            headers["x-line-accepted-request-id"] = "123e4567-e89b-12d3-a456-426655440002"
            told = {"message": "The retry key is already accepted", **self.pushed[key]}
            return web.json_response(told, status=409, headers=headers)
        (message,) = body["messages"]
        name = self._id()
        self.pushed[key] = {"sentMessages": [{"id": name, "quoteToken": "IStG5h1Tz7b"}]}
        self.show(Shown(id=name, text=message["text"]), to=body["to"])
        return web.json_response(self.pushed[key], headers=headers)

    async def _loading(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body["chatId"].startswith("U") or body["loadingSeconds"] not in range(5, 61, 5):
            return web.json_response({"message": "The request body has 1 error(s)"}, status=400)
        self.loading.append(body)
        return web.json_response({}, status=202)

    async def _content(self, request: web.Request) -> web.StreamResponse:
        content = self.files.get(request.match_info["message"])
        if self.not_yet > 0:
            self.not_yet -= 1
            return web.Response(status=202)
        if content is None:
            return web.json_response({"message": "Not found"}, status=404)
        if content:
            return web.Response(body=content)
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:  # a file without an end
            await answer.write(bytes(65_536))


def mentioned(index: int, length: int, *, own: bool = True) -> dict[str, Any]:
    """Return a mention of the account, or of another user."""
    user = {"userId": BOT, "isSelf": True} if own else {"userId": "U" + "9" * 32, "isSelf": False}
    return {"type": "user", "index": index, "length": length, **user}


def _fault(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return LINE's error for a message, or None."""
    if not body["to"].startswith(("U", "C", "R")) or len(body["to"]) != 33:
        return {"message": "The property, 'to', in the request body is invalid (line: -, column: -)"}
    for number, message in enumerate(body["messages"]):
        assert message["type"] == "text"
        if not 0 < len(message["text"].encode("utf-16-le")) // 2 <= 5_000:
            detail = {
                "message": "Length must be between 0 and 5000",
                "property": f"messages[{number}].text",
            }
            return {"message": "The request body has 1 error(s)", "details": [detail]}
    return None
