"""A stand-in of Meta's Cloud API for WhatsApp, written from its public reference."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from tests.standins.calling import Calling

from torana.connectors.base import HookRequest
from torana.connectors.platforms.whatsapp import Whatsapp
from torana.testing.connectors import Shown

NUMBER = "106540352242922"
TOKEN = "EAAtoken0123456789"
SECRET = "5f0e6d1a2b3c"
WORD = "a word of our own"


class Meta(Calling):
    """The platform: one business number, and users who write to it."""

    connector = Whatsapp
    has_bots = False

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {TOKEN}
        #: Messages that were marked as read, each with its typing indicator.
        self.read: list[tuple[str, Any]] = []
        #: Files by their ids: the description and the bytes.
        self.files: dict[str, tuple[dict[str, Any], bytes]] = {}
        #: The recipients of the account's messages.
        self.recipients: list[dict[str, str]] = []
        self._people: dict[str, str] = {}
        self._told: dict[str, dict[str, Any]] = {}
        version = "/v23.0"
        self.app.router.add_get(f"{version}/{NUMBER}", self._authorized(self._number))
        self.app.router.add_post(f"{version}/{NUMBER}/messages", self._authorized(self._messages))
        self.app.router.add_get(f"{version}/{{media}}", self._authorized(self._media))
        self.app.router.add_get("/files/{media}", self._authorized(self._file))

    def settings(self) -> Mapping[str, Any]:
        return {
            "phone_number_id": NUMBER,
            "access_token": TOKEN,
            "app_secret": SECRET,
            "verify_token": WORD,
            "api_url": self.url,
        }

    def chat(self, person: str) -> str:
        return self._people.setdefault(person, f"1555{len(self._people):07}")

    def request(self, body: bytes, *, secret: str = SECRET) -> HookRequest:
        """Return a signed call."""
        signature = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return HookRequest(method="POST", headers={"x-hub-signature-256": signature}, query={}, body=body)

    def event(self, *messages: dict[str, Any], number: str = NUMBER, **more: Any) -> bytes:
        """Return the event of messages to a number."""
        contacts = [
            {"profile": {"name": person.capitalize()}, "wa_id": wa_id} for person, wa_id in self._people.items()
        ]
        value = {
            "messaging_product": "whatsapp",
            "metadata": {"display_phone_number": "15550783881", "phone_number_id": number},
            "contacts": contacts,
            **({"messages": messages} if messages else {}),
            **more,
        }
        change = {"field": "messages", "value": value}
        return json.dumps(
            {"object": "whatsapp_business_account", "entry": [{"id": "102290129340398", "changes": [change]}]}
        ).encode()

    def message(self, kind: str, content: Any, *, sender: str = "ana", **more: Any) -> dict[str, Any]:
        """Return a message of a user to the account."""
        name = f"wamid.HBgL{self.number():08}"
        return {
            "from": self.chat(sender),
            "id": name,
            "timestamp": str(int(time.time())),
            "type": kind,
            kind: content,
            **more,
        }

    def file(self, name: str, media_type: str, content: bytes, **more: Any) -> dict[str, Any]:
        """Store a file, and return it in the format of a message."""
        media = str(10**15 + self.number())
        told = {
            "messaging_product": "whatsapp",
            "url": f"{self.url}/files/{media}",
            "mime_type": media_type,
            "sha256": hashlib.sha256(content).hexdigest(),
            "file_size": len(content),
            "id": media,
        }
        self.files[media] = ({**told, **more}, content)
        return {"filename": name, "mime_type": media_type, "sha256": told["sha256"], "id": media}

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
        if file is None:
            message = self.message("text", {"body": text}, sender=sender)
        else:
            message = self.message("image", {**self.file(*file), "caption": text}, sender=sender)
        self._told[message["id"]] = message
        await self.repeat(message["id"])
        return message["id"]

    async def repeat(self, message: str) -> None:
        await self.tell(lambda: self.request(self.event(self._told[message])))

    async def limit(self, seconds: float | None) -> None:
        headers = None if seconds is None else {"Retry-After": f"{seconds:.0f}"}
        self.answer_next(429, error(130429, "Rate limit hit"), headers)

    async def fail(self) -> None:
        self.answer_next(500, error(131000, "Something went wrong"))

    async def refuse_message(self) -> None:
        self.answer_next(400, error(131026, "Message undeliverable"))

    async def refuse_login(self) -> None:
        self.tokens.clear()

    def _authorized(
        self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def checked(request: web.Request) -> web.StreamResponse:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self.tokens:
                return web.json_response(error(190, f"Malformed access token {token}"), status=401)
            return await answer(request)

        return checked

    async def _number(self, _: web.Request) -> web.Response:
        return web.json_response({"id": NUMBER})

    async def _messages(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["messaging_product"] == "whatsapp"
        if body.get("status") == "read":
            self.read.append((body["message_id"], body.get("typing_indicator")))
            return web.json_response({"success": True})
        if instead := self.takes():
            return instead
        text = body["text"]["body"]
        assert body["type"] == "text"
        assert body["text"]["preview_url"] is False
        if not 0 < len(text.encode("utf-16-le")) // 2 <= 4096:
            told = "Param text['body'] must be at most 4096 characters long."
            return web.json_response(error(100, "Invalid parameter", told), status=400)
        whom = {key: body[key] for key in ("to", "recipient") if key in body}
        (chat,) = whom.values()
        self.recipients.append(whom)
        name = f"wamid.gBGG{self.number():08}"
        self.show(Shown(id=name, text=text), to=chat)
        return web.json_response(
            {
                "messaging_product": "whatsapp",
                "contacts": [{"input": chat, "wa_id": chat}],
                "messages": [{"id": name}],
            }
        )

    async def _media(self, request: web.Request) -> web.Response:
        found = self.files.get(request.match_info["media"])
        if found is None:
            told = "Unsupported get request. Object with this ID does not exist"
            return web.json_response(error(100, told), status=400)
        return web.json_response(found[0])

    async def _file(self, request: web.Request) -> web.StreamResponse:
        _, content = self.files[request.match_info["media"]]
        if content:
            return web.Response(body=content)
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:  # a file without an end
            await answer.write(bytes(65_536))


def error(code: int, message: str, details: str | None = None) -> dict[str, Any]:
    """Return an error in Meta's format."""
    data = {"error_data": {"messaging_product": "whatsapp", "details": details}} if details else {}
    told = f"(#{code}) {message}"
    return {"error": {"message": told, "type": "OAuthException", "code": code, **data, "fbtrace_id": "Az8or2y"}}
