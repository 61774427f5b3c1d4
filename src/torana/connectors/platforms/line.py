"""LINE's Messaging API (https://developers.line.biz): LINE posts messages to the gateway's webhook.

Replies are sent as push messages, which count towards a quota. Reply tokens are free, but each is valid once,
for about a minute, and a retry could show the reply twice; a push has a retry key.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import mimetypes
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx2
from pydantic import Field, SecretStr

from torana.connectors.base import (
    Attachment,
    AttachmentKind,
    Capabilities,
    ConnectorSettings,
    IncomingMessage,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
)
from torana.connectors.transport.hooked import HookedConnector
from torana.connectors.transport.http import read_bounded, request_json, seconds, text_at
from torana.connectors.transport.parsing import time_of
from torana.connectors.transport.splitting import utf16_length

#: Seconds between checks whether a file is ready: LINE converts voice and video first.
_PAUSES = (0.0, 0.2, 1.0, 2.0, 4.0, 8.0)

#: For each message type, the kind of its file and the default media type.
_KINDS: Mapping[str, tuple[AttachmentKind, str]] = {
    "image": ("image", "image/jpeg"),
    "video": ("video", "video/mp4"),
    "audio": ("voice", "audio/x-m4a"),
    "file": ("file", "application/octet-stream"),
}


class LineSettings(ConnectorSettings):
    """A channel of the Messaging API."""

    channel_secret: SecretStr = Field(min_length=1, description="The secret with which LINE signs its calls.")
    access_token: SecretStr = Field(
        min_length=1, description="The channel access token; a long-lived one is recommended."
    )
    api_url: str = Field(default="https://api.line.me", description="The base URL of LINE's API.")
    data_url: str = Field(default="https://api-data.line.me", description="The base URL for files.")


class LineConnector(HookedConnector[LineSettings]):
    """An official account on LINE."""

    Settings = LineSettings
    global_ids = True
    refusal = "LINE refuses the channel access token: issue a new one in the LINE Developers Console"
    abilities = Capabilities(
        length=5000,
        measure=utf16_length,
        repeat="keyed",
        typing_every=20.0,
        quiet=None,
    )

    @property
    def credentials(self) -> str:
        return self.settings.channel_secret.get_secret_value()

    async def send(self, part: Part) -> str:
        """Push a part; a repeated call with the same key returns the first result."""
        body = {"to": part.place.chat, "messages": [{"type": "text", "text": part.text}]}
        match await self._call("POST", "/v2/bot/message/push", body, key=part.key):
            case {"sentMessages": [{"id": str(name)}, *_]}:
                return name
            case _:
                return part.key

    async def typing(self, place: Place) -> None:
        """Show the loading animation in direct chats, until the reply or for 20 seconds."""
        if place.reply_to.get("direct"):
            body = {"chatId": place.chat, "loadingSeconds": 20}
            await self._call("POST", "/v2/bot/chat/loading/start", body)

    @property
    def _access_token(self) -> str:
        return self.settings.access_token.get_secret_value()

    async def _check_access(self) -> None:
        await self._call("GET", "/v2/bot/info")

    def _signature(self, body: bytes) -> tuple[str, str]:
        secret = self.settings.channel_secret.get_secret_value().encode()
        return "x-line-signature", base64.b64encode(hmac.digest(secret, body, hashlib.sha256)).decode()

    def _events(self, body: Any) -> Iterable[Any]:
        match body:
            case {"events": [*events]}:
                return events
            case _:
                raise ValueError("the call has no list of events")

    def _parse_event(self, event: Any) -> IncomingMessage | None:
        """Parse a user's message; None for other events, and in ``standby``, when another module answers."""
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
            case _:  # a sender without an id cannot be approved
                return None
        attachments = self._attachments(name, message)
        if not text and not attachments and not is_mention:
            return None
        return IncomingMessage(
            id=name,
            sender=Sender(id=user),
            place=place,
            text=text,
            direct=direct,
            addressed=direct or is_mention,
            attachments=attachments,
            said_at=time_of(event.get("timestamp"), per_second=1_000),
            in_reply_to=text_at(message, "quotedMessageId") or None,
        )

    def _attachments(self, name: str, message: Any) -> list[Attachment]:
        kind, media_type = _KINDS.get(message["type"], (None, ""))
        if kind is None:
            return []
        title, size = message.get("fileName"), message.get("fileSize")
        title = title if isinstance(title, str) else ""
        match message:
            case {"contentProvider": {"type": "external"}}:
                fetch = None  # the sender chose the URL, which is not LINE's
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
        """Return the file of a message after LINE has prepared it."""
        url = f"{self.settings.data_url.rstrip('/')}/v2/bot/message/{quote(message, safe='')}/content"
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            async with self._client.stream("GET", url) as answer:
                if answer.status_code == 200:
                    return await read_bounded(answer, limit)
                if answer.status_code != 202:
                    raise OSError(f"LINE answered {answer.status_code} for the file")
        raise OSError("LINE did not prepare the file in time")

    async def _call(self, method: str, path: str, body: object = None, *, key: str = "") -> Any:
        """Call LINE and return the JSON of its response. Raises the connector error for a failure."""
        url = f"{self.settings.api_url.rstrip('/')}{path}"
        headers = {"X-Line-Retry-Key": key} if key else {}
        response, answer = await request_json("LINE", self._client, method, url, body=body, headers=headers)
        if response.is_success or (response.status_code == 409 and key):  # 409: accepted before, under this key
            return answer
        raise self._fault(response, answer)

    def _fault(self, response: httpx2.Response, answer: Any) -> Exception:
        """Return the error for a status; an exhausted monthly quota has the same status as a rate limit."""
        status = response.status_code
        reason = f"LINE answered {status}{_describe_error(answer)}"
        if status == 401:
            return self._lock_out("LINE refuses the channel access token")
        if status == 429:
            return RetryLater(reason, seconds=seconds(response.headers.get("retry-after")))
        return OutcomeUnknown(reason) if status >= 500 else PermanentError(reason)


def _text(message: Any) -> tuple[str, bool]:
    """Return the text without a leading mention of the account, and whether the account is mentioned."""
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
    """Return the start and the end of a mention of the account, in UTF-16 units."""
    match mention:
        case {"isSelf": True, "index": int(index), "length": int(length)} if index >= 0 and length > 0:
            return index, index + length
        case _:
            return None


def _without(text: str, mentions: list[tuple[int, int]]) -> str:
    units, start = text.encode("utf-16-le", "surrogatepass"), 0
    for begin, end in sorted(mentions):
        if units[2 * start : 2 * begin].decode("utf-16-le", "surrogatepass").strip():
            break
        start = max(start, end)
    rest = units[2 * start :].decode("utf-16-le", "surrogatepass")
    return rest.lstrip() if start else rest


def _describe_error(answer: Any) -> str:
    match answer:
        case {"message": str(text), "details": [{"message": str(detail), "property": str(place)}, *_]}:
            return f": {text} ({place}: {detail})"[:200]
        case {"message": str(text)}:
            return f": {text}"[:200]
        case _:
            return ""
