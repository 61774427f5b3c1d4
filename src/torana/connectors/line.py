"""LINE's Messaging API (https://developers.line.biz): LINE calls us with messages, and is called with replies.

Replies are pushed. A reply token would cost nothing, but it is good once, for about a minute, and cannot be
tried again without the risk of a second message; a push has a key for that, and counts against a quota.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import mimetypes
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

import httpx
from pydantic import Field, SecretStr

from torana.connectors.base import (
    Abilities,
    Attachment,
    Connector,
    ConnectorSettings,
    Ears,
    Heard,
    HookRequest,
    HookResponse,
    Part,
    Place,
    Refused,
    Sender,
    TryLater,
    Unsure,
)
from torana.connectors.http_calls import asked, bounded, read_json, seconds
from torana.connectors.times import time_of

_TIMEOUT = 30.0
#: Seconds between the questions whether a file is ready: LINE converts voice and video first.
_PAUSES = (0.0, 0.2, 1.0, 2.0, 4.0, 8.0)

#: What a kind of message is to us, and what it is made of where nothing says so.
_KINDS: Mapping[str, tuple[Literal["image", "file", "voice", "video"], str]] = {
    "image": ("image", "image/jpeg"),
    "video": ("video", "video/mp4"),
    "audio": ("voice", "audio/x-m4a"),
    "file": ("file", "application/octet-stream"),
}


class LineSettings(ConnectorSettings):
    """A channel of the Messaging API."""

    channel_secret: SecretStr = Field(min_length=1, description="The secret by which LINE signs its calls.")
    access_token: SecretStr = Field(
        min_length=1, description="The channel access token, best a long-lived one."
    )
    api_url: str = Field(default="https://api.line.me", description="Where LINE's interface is.")
    data_url: str = Field(default="https://api-data.line.me", description="Where files are fetched.")


class Line(Connector[LineSettings]):
    """An official account in LINE."""

    Settings = LineSettings
    global_ids = True
    abilities = Abilities(
        length=5000,
        measure=lambda text: len(text.encode("utf-16-le", "surrogatepass")) // 2,
        repeat="keyed",
        typing_every=20.0,
        quiet=None,
    )

    _ears: Ears | None = None
    _client: httpx.AsyncClient

    def __init__(self, settings: LineSettings) -> None:
        super().__init__(settings)
        self._locked_out = asyncio.Event()

    @property
    def credentials(self) -> str:
        """The channel's secret."""
        return self.settings.channel_secret.get_secret_value()

    async def run(self, ears: Ears) -> None:
        """See that the token is good, and be there for calls while it is."""
        headers = {
            "Authorization": f"Bearer {self.settings.access_token.get_secret_value()}",
            "Accept-Encoding": "identity",  # so that a bound on what arrives is a bound on what it becomes
        }
        async with httpx.AsyncClient(headers=headers, timeout=_TIMEOUT) as self._client:
            try:
                await self._call("GET", "/v2/bot/info")
                self._ears = ears
                ears.ready()
                await self._locked_out.wait()
            except TryLater:
                if not self._locked_out.is_set():
                    raise
            finally:
                self._ears = None
        raise Refused("LINE refuses the channel access token: issue a new one in the LINE Developers Console")

    async def hook(self, request: HookRequest) -> HookResponse:
        """Hear the messages of a call, in their order; told again they have the same ids."""
        if not self._is_signed(request):
            return HookResponse(status=401)
        if self._ears is None:
            return HookResponse(status=503)
        match read_json(request.body):
            case {"events": [*events]}:
                for event in events:
                    if heard := self._heard(event):
                        await self._ears.hear(heard)
            case _:
                return HookResponse(status=400)
        return HookResponse()

    async def send(self, part: Part) -> str:
        """Push a part; told a second time under the same key, LINE answers what it did the first time."""
        body = {"to": part.place.chat, "messages": [{"type": "text", "text": part.text}]}
        match await self._call("POST", "/v2/bot/message/push", body, key=part.key):
            case {"sentMessages": [{"id": str(name)}, *_]}:
                return name
            case _:
                return part.key

    async def typing(self, place: Place) -> None:
        """Show the loading animation, which direct chats have, until the reply or for 20 seconds."""
        if place.reply_to.get("direct"):
            body = {"chatId": place.chat, "loadingSeconds": 20}
            await self._call("POST", "/v2/bot/chat/loading/start", body)

    def _is_signed(self, request: HookRequest) -> bool:
        given = request.headers.get("x-line-signature", "").encode(errors="replace")
        secret = self.settings.channel_secret.get_secret_value().encode()
        right = base64.b64encode(hmac.digest(secret, request.body, hashlib.sha256))
        return hmac.compare_digest(given, right)

    def _heard(self, event: Any) -> Heard | None:
        """The message of a person, or None; in ``standby`` another module of the account answers."""
        match event:
            case {"mode": "standby"}:
                return None
            case {"type": "message", "source": source, "message": {"id": str(name), "type": str()} as message}:
                text, is_mention = _text(message)
            case _:
                return None
        match source:
            case {"type": "user", "userId": str(user)}:
                place, direct = Place(chat=user, reply_to={"direct": "yes"}), True
            case {"type": "group", "groupId": str(chat), "userId": str(user)}:
                place, direct = Place(chat=chat), False
            case {"type": "room", "roomId": str(chat), "userId": str(user)}:
                place, direct = Place(chat=chat), False
            case _:  # who does not show who he is cannot be let in
                return None
        attachments = self._attachments(name, message)
        if not text and not attachments and not is_mention:
            return None
        return Heard(
            id=name,
            sender=Sender(id=user),
            place=place,
            text=text,
            direct=direct,
            addressed=direct or is_mention,
            attachments=attachments,
            said_at=time_of(event.get("timestamp"), per_second=1_000),
        )

    def _attachments(self, name: str, message: Any) -> list[Attachment]:
        kind, media_type = _KINDS.get(message["type"], (None, ""))
        if kind is None:
            return []
        title, size = message.get("fileName"), message.get("fileSize")
        title = title if isinstance(title, str) else ""
        match message:
            case {"contentProvider": {"type": "external"}}:
                fetch = None  # it is anywhere in the web, at an address that a person chose
            case _:
                fetch = partial(self._fetch, name)
        return [
            Attachment(
                kind=kind,
                name=title,
                media_type=mimetypes.guess_type(title)[0] or media_type,
                size=size if isinstance(size, int) else None,
                fetch=fetch,
            )
        ]

    async def _fetch(self, message: str, limit: int) -> bytes:
        """The file of a message, once it is ready."""
        url = f"{self.settings.data_url.rstrip('/')}/v2/bot/message/{quote(message, safe='')}/content"
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            async with self._client.stream("GET", url) as answer:
                if answer.status_code == 200:
                    return await bounded(answer, limit)
                if answer.status_code != 202:
                    raise OSError(f"LINE answered {answer.status_code} for the file")
        raise OSError("LINE has not made the file ready")

    async def _call(self, method: str, path: str, body: object = None, *, key: str = "") -> Any:
        """LINE's answer, as JSON; raises what a fault means."""
        url = f"{self.settings.api_url.rstrip('/')}{path}"
        headers = {"X-Line-Retry-Key": key} if key else {}
        response, answer = await asked("LINE", self._client, method, url, body=body, headers=headers)
        if response.is_success or (response.status_code == 409 and key):  # taken before, under this key
            return answer
        raise self._fault(response, answer)

    def _fault(self, response: httpx.Response, answer: Any) -> Exception:
        """What a status means; a month's quota that is used up looks like any other "too many"."""
        status = response.status_code
        told = f"LINE answered {status}{_told(answer)}"
        if status == 401:
            self._locked_out.set()
            return TryLater("LINE refuses the channel access token")
        if status == 429:
            return TryLater(told, seconds=seconds(response.headers.get("retry-after")))
        return Unsure(told) if status >= 500 else Refused(told)


def _text(message: Any) -> tuple[str, bool]:
    """What a message says, less a mention of the account at its beginning, and whether it mentions it."""
    match message:
        case {"type": "text", "text": str(text), "mention": {"mentionees": [*mentions]}}:
            own = [place for mention in mentions if (place := _own(mention))]
            return _without(text, own), bool(own)
        case {"type": "text", "text": str(text)}:
            return text, False
        case {"type": "sticker", "keywords": [*words]}:
            return f"[sticker: {', '.join(str(word) for word in words[:5])}]", False
        case {"type": "sticker"}:
            return "[sticker]", False
        case _:
            return "", False


def _own(mention: Any) -> tuple[int, int] | None:
    """Where a mention of the account begins and ends, in units of UTF-16."""
    match mention:
        case {"isSelf": True, "index": int(index), "length": int(length)}:
            return index, index + length
        case _:
            return None


def _without(text: str, mentions: list[tuple[int, int]]) -> str:
    """The text without those mentions with which it begins."""
    units, start = text.encode("utf-16-le", "surrogatepass"), 0
    for begin, end in sorted(mentions):
        if units[2 * start : 2 * begin].decode("utf-16-le", "surrogatepass").strip():
            break
        start = end
    rest = units[2 * start :].decode("utf-16-le", "surrogatepass")
    return rest.lstrip() if start else rest


def _told(answer: Any) -> str:
    match answer:
        case {"message": str(told), "details": [{"message": str(detail), "property": str(place)}, *_]}:
            return f": {told} ({place}: {detail})"[:200]
        case {"message": str(told)}:
            return f": {told}"[:200]
        case _:
            return ""
