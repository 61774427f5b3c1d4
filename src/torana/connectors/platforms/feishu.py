"""Feishu (Lark outside China): messages arrive over a long connection, replies are cards.

Only the frame class of the platform's library is used. Its client blocks its thread, shares one event loop with
all other clients of the process, and acknowledges a message before it is processed.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from html import unescape
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any, cast
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
from pydantic import BaseModel, Field, SecretStr, ValidationError
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from torana.characters import one_line
from torana.connectors.base import (
    Attachment,
    AttachmentKind,
    Capabilities,
    Connector,
    ConnectorSettings,
    IncomingMessage,
    MessageSink,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
)
from torana.connectors.transport.app_client import AppClient, Stale
from torana.connectors.transport.concurrency import Hear, concurrently
from torana.connectors.transport.http import (
    as_object,
    read_json,
    seconds,
    text_at,
)
from torana.connectors.transport.markup import Dialect
from torana.connectors.transport.parsing import log_ignored_event, parse_alone, time_of
from torana.connectors.transport.websocket import next_frame, open_socket

_DOMAINS = {"feishu": "https://open.feishu.cn", "lark": "https://open.larksuite.com"}

#: Timeout, in seconds, for a file.
_FILE_SECONDS = 300.0
#: Maximum number of pieces of an event, of its bytes in pieces, and of incomplete events.
_PIECES, _EVENT_BYTES, _OPEN = 256, 1_048_576, 16
#: Seconds between two pings, at most, whatever the platform requests.
_LONGEST_PING_INTERVAL = 600.0

#: Error codes of the platform that are not permanent or need special handling.
_STALE = {99991661, 99991663, 99991664, 99991665, 99991668, 99991671, 99991677}
_LIMITS = {99991400, 230020, 230049, 11232, 11233, 11247}
_GONE = {230011, 230110}
_NO_CARD = {230099}
_BUSY = {1, 1000040343}
_TOO_MANY_CONNECTIONS = "1000040350"

#: For each element type, the kind of the file and the field with its key.
_FILES: dict[str, tuple[AttachmentKind, str]] = {
    "image": ("image", "image_key"),
    "img": ("image", "image_key"),
    "file": ("file", "file_key"),
    "audio": ("voice", "file_key"),
    "media": ("video", "file_key"),
}

_MENTION = re.compile(r"@_user_\d+|@_all\b")
_LEADING_MENTION = re.compile(rf"\s*+({_MENTION.pattern})")
_SPECIAL = re.compile(r"[\\`*_~\[\]<>&$#]|^[-+](?=\s)")


def _frame_class() -> Any:
    """Import only the library's frame class: ``import lark_oapi`` takes 2 s and 160 MB, this 30 ms and 3 MB.

    During the import, packages that were not executed replace the library's packages.
    """
    names = [name for name in ("lark_oapi", "lark_oapi.ws") if name not in sys.modules]
    try:
        for name in names:
            spec = find_spec(name)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            sys.modules[name] = module_from_spec(spec)
        return import_module("lark_oapi.ws.pb.pbbp2_pb2").Frame
    finally:
        for name in names:
            sys.modules.pop(name, None)


_Frame = _frame_class()


def _card(text: str, *, tag: str = "markdown") -> str:
    """Return a card with a text. Unlike a plain message, a card can be edited without limit."""
    words = one_line(unescape(re.sub(r"\*\*|~~|`", "", text)))[:80]
    element: dict[str, object] = {"tag": tag, "content": text}
    card = {
        "schema": "2.0",
        "config": {"update_multi": True, "summary": {"content": words}},
        "body": {"elements": [element if tag == "markdown" else {"tag": "div", "text": element}]},
    }
    return json.dumps(card, ensure_ascii=False)


def _size(text: str) -> int:
    """Return the number of bytes of a card in a request, which contains it as JSON within JSON."""
    return len(json.dumps(_card(text), ensure_ascii=False).encode())


#: Converts to a card's Markdown, with entities for special characters and without mentions.
_markdown = Dialect(
    text=lambda text: _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", text),
    marks={"strong": ("**", "**"), "em": ("*", "*"), "s": ("~~", "~~"), "code": ("`", "`")},
    block=("```\n", "\n```"),
    # Code is not escaped. `<at id=all>` might mention all members even in code, so it is broken up.
    code=lambda code: code.replace("```", "`\u200b`\u200b`").replace("<at", "<\u200bat"),
    span=lambda code: code.replace("`", "ˋ").replace("<at", "<\u200bat"),
    link=lambda url, words: f"[{words}]({url.replace('(', '%28').replace(')', '%29')})",
).render


class FeishuSettings(ConnectorSettings):
    """The settings of a Feishu or Lark app."""

    app_id: str = Field(description="The app's id, `cli_…`, from its page “Credentials”.", min_length=1)
    app_secret: SecretStr = Field(description="The app's secret, from the same page.", min_length=1)
    domain: str = Field(
        default="feishu",
        pattern=r"^(feishu|lark|https?://[^\s/]+)$",
        description="`feishu`, `lark`, or the base URL of a compatible platform.",
    )


class _Message(BaseModel):
    message_id: str
    chat_id: str
    chat_type: str
    message_type: str
    create_time: object = None
    content: str = "{}"
    parent_id: str | None = None
    thread_id: str | None = None
    mentions: list[dict[str, Any]] | None = None


class _FeishuMessage(BaseModel):
    sender: dict[str, Any]
    message: _Message


class _Event(BaseModel):
    header: dict[str, Any]
    event: _FeishuMessage


class _NoCard(PermanentError):
    """The platform cannot make a card from the text."""


class _Gone(PermanentError):
    """The message to reply to was recalled."""


class _Api(AppClient):
    """The platform's HTTP API, called as the app."""

    platform = "Feishu"
    authorization = ("Authorization", "Bearer {}")

    def __init__(self, settings: FeishuSettings) -> None:
        super().__init__(_DOMAINS.get(settings.domain, settings.domain))
        self._app, self._secret = settings.app_id, settings.app_secret.get_secret_value()

    async def endpoint(self, http: httpx2.AsyncClient) -> dict[str, object]:
        """Return the URL and the parameters of the long connection."""
        path, body = "/callback/ws/endpoint", {"AppID": self._app, "AppSecret": self._secret}
        return as_object((await self._request(http, "POST", path, body, {"locale": "en"})).get("data"))

    async def fetch(self, path: str, limit: int) -> bytes:
        """Return the content of a file; the connection may have ended before."""
        async with asyncio.timeout(_FILE_SECONDS), self.client() as http:
            return await self._use_token(http, partial(self._download, http, path, limit))

    async def _new_token(self, http: httpx2.AsyncClient) -> tuple[str, float]:
        path = "/open-apis/auth/v3/tenant_access_token/internal"
        body = {"app_id": self._app, "app_secret": self._secret}
        found = await self._request(http, "POST", path, body)
        expire = found.get("expire")
        return text_at(found, "tenant_access_token"), expire if isinstance(expire, int) else 0

    def _check(self, response: httpx2.Response, found: dict[str, Any]) -> dict[str, Any]:
        code = found.get("code")
        if response.is_success and code == 0:
            return found
        code = code if isinstance(code, int) else 0
        reason = f"Feishu answers {response.status_code}, code {code}: {one_line(text_at(found, 'msg'))}"
        if code in _STALE:
            raise Stale(reason)
        if response.status_code == 429 or code in _LIMITS:
            raise RetryLater(reason, seconds=seconds(response.headers.get("x-ogw-ratelimit-reset")))
        if response.is_server_error or code in _BUSY or not found:
            raise OutcomeUnknown(reason)
        kinds = ((_NO_CARD, _NoCard), (_GONE, _Gone))
        raise next((kind for codes, kind in kinds if code in codes), PermanentError)(reason)


class Feishu(Connector[FeishuSettings]):
    """The bot of one app."""

    Settings = FeishuSettings
    global_ids = True
    #: A card may have 30 KB, or less if the platform's internal form is longer. It may be edited five times a
    #: second, but in the free edition every call counts towards the monthly limit of ten thousand.
    abilities = Capabilities(
        length=20_000, measure=_size, render=_markdown, repeat="keyed", edits=True, edit_every=3.0, threads=True
    )

    def __init__(self, settings: FeishuSettings) -> None:
        super().__init__(settings)
        self._api = _Api(settings)
        self._http: httpx2.AsyncClient | None = None
        self._me = ""
        self._pieces: OrderedDict[str, dict[int, bytes]] = OrderedDict()
        self._ping_every = 120.0

    @property
    def credentials(self) -> str:
        return f"{_DOMAINS.get(self.settings.domain, self.settings.domain)} {self.settings.app_id}"

    async def run(self, sink: MessageSink) -> None:
        """Connect and listen; an event is acknowledged after it is stored."""
        await self._api.run(self._run(sink))

    async def _run(self, sink: MessageSink) -> None:
        async with self._api.client() as http:
            info = await self._api.call(http, "GET", "/open-apis/bot/v3/info")
            self._me = _open_id(info.get("bot"))
            if not self._me:
                raise PermanentError("the app has no bot: add the feature “Bot”, and publish a version")
            socket, service = await self._connect(http)
            self._http = http
            try:
                sink.ready()
                await self._listen(socket, service, sink)
            finally:
                self._http = None
                await socket.close()

    async def send(self, part: Part) -> str:
        """Send a part; its key is the platform's ``uuid``, which prevents a repetition for an hour."""
        if self._http is None:
            raise RetryLater("there is no connection")
        try:
            return await self._show(self._http, part, _card(part.text))
        except _NoCard:
            return await self._show(self._http, part, _card(unescape(part.text), tag="plain_text"))

    async def _show(self, http: httpx2.AsyncClient, part: Part, card: str) -> str:
        messages = "/open-apis/im/v1/messages"
        if part.edits:
            await self._api.call(http, "PATCH", f"{messages}/{quote(part.edits, safe='')}", {"content": card})
            return part.edits
        body: dict[str, object] = {"msg_type": "interactive", "content": card, "uuid": part.key}
        thread, answered = part.place.thread is not None, part.place.reply_to.get("message")
        if answered and (thread or part.number == 0):
            try:
                path = f"{messages}/{quote(answered, safe='')}/reply"
                return _id(await self._api.call(http, "POST", path, {**body, "reply_in_thread": thread}))
            except _Gone:
                if thread:
                    raise
        body["receive_id"] = part.place.chat
        return _id(await self._api.call(http, "POST", f"{messages}?receive_id_type=chat_id", body))

    async def _connect(self, http: httpx2.AsyncClient) -> tuple[ClientConnection, int]:
        """Open the long connection; return it and its service number."""
        data = await self._api.endpoint(http)
        self._configure(data.get("ClientConfig"))
        url = text_at(data, "URL")
        socket = await open_socket(url, platform="Feishu", refusal=_refusal)
        service = parse_qs(urlsplit(url).query).get("service_id", ["0"])[0]
        return socket, int(service) if service.isdecimal() else 0

    async def _listen(self, socket: ClientConnection, service: int, sink: MessageSink) -> None:
        """Process frames; probe the connection during silence, and send the platform's own pings."""
        loop = asyncio.get_running_loop()
        ping_at = loop.time()
        async with concurrently(sink) as hear:
            while True:
                raw = await next_frame(socket)
                if raw is not None:
                    await self._take(raw, socket, hear)
                sink.alive()
                if loop.time() >= ping_at:
                    await socket.send(_ping(service))
                    ping_at = loop.time() + self._ping_every

    async def _take(self, raw: str | bytes, socket: ClientConnection, hear: Hear) -> None:
        frame = _Frame()
        try:
            frame.ParseFromString(raw if isinstance(raw, bytes) else raw.encode())
        except Exception as error:  # noqa: BLE001 - the library's own copy of protobuf defines the error
            log_ignored_event(type(error).__name__)
            return
        headers: dict[str, str] = {header.key: header.value for header in frame.headers}
        if headers.get("type") == "pong":
            self._configure(as_object(read_json(frame.payload)))
        payload = self._whole(headers, frame.payload) if headers.get("type") == "event" else None
        if payload is None:
            return
        heard = parse_alone(self._parse_event, payload)
        frame.payload = b'{"code":200}'
        answer = partial(socket.send, cast("bytes", frame.SerializeToString()))
        await (answer() if heard is None else hear(heard, answer))

    def _configure(self, config: object) -> None:
        """Set the ping interval that the platform requests."""
        every = as_object(config).get("PingInterval")
        if isinstance(every, int | float) and every >= 1:
            self._ping_every = float(min(every, _LONGEST_PING_INTERVAL))

    def _whole(self, headers: Mapping[str, str], payload: bytes) -> bytes | None:
        """Collect the pieces of an event; return the whole event, or None while pieces are missing."""
        total, number = _count(headers.get("sum"), 1), _count(headers.get("seq"), 0)
        if total <= 1:
            return payload
        if total > _PIECES or number >= total:
            return None
        message = headers.get("message_id", "")
        pieces = self._pieces.setdefault(message, {})
        pieces[number] = payload
        if len(self._pieces) > _OPEN:
            self._pieces.popitem(last=False)
        if sum(map(len, pieces.values())) > _EVENT_BYTES:
            del self._pieces[message]
            log_ignored_event("too long")
            return None
        if not all(number in pieces for number in range(total)):  # `total` may differ between pieces
            return None
        self._pieces.pop(message, None)
        return b"".join(pieces[number] for number in range(total))

    def _parse_event(self, payload: bytes) -> IncomingMessage | None:
        """Parse the message of an event; return None for other events and malformed ones."""
        try:
            event = _Event.model_validate_json(payload)
        except ValidationError:
            return None
        message, author = event.event.message, event.event.sender
        sender = _open_id(author.get("sender_id"))
        if event.header.get("event_type") != "im.message.receive_v1" or sender in {"", self._me}:
            return None
        direct = message.chat_type == "p2p"
        text, attachments = self._content(message)
        if not text and not attachments:
            return None
        answer_there = {} if direct and message.thread_id is None else {"message": message.message_id}
        return IncomingMessage(
            id=message.message_id,
            sender=Sender(id=sender, automatic=author.get("sender_type") != "user"),
            place=Place(chat=message.chat_id, thread=message.thread_id or None, reply_to=answer_there),
            text=text,
            direct=direct,
            addressed=direct or bool(self._own_keys(message)),
            replies_to_us=partial(self._is_ours, message.parent_id) if message.parent_id else None,
            attachments=attachments,
            said_at=time_of(message.create_time, per_second=1_000),
            # In a thread, every message has a parent.
            in_reply_to=None if message.thread_id else message.parent_id,
        )

    async def _is_ours(self, message_id: str) -> bool:
        """Return whether the bot has sent a message; an event does not name the author of its parent."""
        if self._http is None:
            raise RetryLater("there is no connection")
        try:
            path = f"/open-apis/im/v1/messages/{quote(message_id, safe='')}"
            found = await self._api.call(self._http, "GET", path)
        except PermanentError:
            return False
        items = as_object(found.get("data")).get("items")
        first = as_object(cast("list[object]", items)[0]) if isinstance(items, list) and items else {}
        return as_object(first.get("sender")).get("id") == self.settings.app_id

    def _own_keys(self, message: _Message) -> set[str]:
        return {text_at(one, "key") for one in message.mentions or () if _open_id(one.get("id")) == self._me}

    def _content(self, message: _Message) -> tuple[str, list[Attachment]]:
        """Return the text of a message and its files; both empty for an unsupported kind."""
        content = as_object(read_json(message.content))
        match message.message_type:
            case "text":
                text, files = text_at(content, "text"), []
            case "post":
                text, files = _post(content)
            case kind:
                text, files = "", _file(content, kind)
        return self._words(text, message), [self._attachment(message.message_id, *one) for one in files]

    def _words(self, text: str, message: _Message) -> str:
        """Replace the platform's placeholders by names, and remove a leading mention of the bot."""
        own = self._own_keys(message)
        start = 0
        while (found := _LEADING_MENTION.match(text, start)) and found[1] in own:
            start = found.end()
        text = text[start:].lstrip()
        names = {one.get("key"): f"@{one_line(text_at(one, 'name'))}" for one in message.mentions or ()}
        names["@_all"] = "@all"
        return _MENTION.sub(lambda found: names.get(found[0], found[0]), text).rstrip()

    def _attachment(self, message: str, kind: AttachmentKind, key: str, name: str) -> Attachment:
        where = f"/open-apis/im/v1/messages/{quote(message, safe='')}/resources/{quote(key, safe='')}"
        path = f"{where}?type={'image' if kind == 'image' else 'file'}"
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Attachment(kind=kind, name=name, media_type=media_type, fetch=partial(self._api.fetch, path))


def _file(content: Mapping[str, object], kind: str) -> list[tuple[AttachmentKind, str, str]]:
    """Return the kind, key and name of the file in a message or an element; empty if there is none."""
    if kind not in _FILES:
        return []
    named, key = _FILES[kind]
    found = text_at(content, key)
    name = one_line(text_at(content, "file_name")) or ("voice.ogg" if named == "voice" else found)
    return [(named, found, name)] if found else []


def _post(content: dict[str, object]) -> tuple[str, list[tuple[AttachmentKind, str, str]]]:
    """Return the text and files of a post; its content may be nested under a language code."""
    if "content" not in content:
        languages = [as_object(value) for value in content.values()]
        content = next((one for one in languages if one), content)
    lines, files = [text_at(content, "title")], list[tuple[AttachmentKind, str, str]]()
    paragraphs = content.get("content")
    for paragraph in cast("list[object]", paragraphs) if isinstance(paragraphs, list) else []:
        line = ""
        for element in cast("list[object]", paragraph) if isinstance(paragraph, list) else []:
            one = as_object(element)
            match one.get("tag"):
                case "at":
                    line += text_at(one, "user_id")
                case "img" | "media":
                    files += _file(one, text_at(one, "tag"))
                case "emotion":
                    line += f":{text_at(one, 'emoji_type')}:"
                case "a" if text_at(one, "href") != text_at(one, "text"):
                    line += f"{text_at(one, 'text')} ({text_at(one, 'href')})"
                case _:
                    line += text_at(one, "text")
        lines.append(line)
    return "\n".join(lines).strip(), files


def _refusal(error: InvalidStatus) -> Exception:
    headers = error.response.headers
    reason = one_line(headers.get("handshake-msg", ""))
    message = f"Feishu refused the long connection: {reason} ({error.response.status_code})"
    if headers.get("handshake-autherrcode") == _TOO_MANY_CONNECTIONS:
        return RetryLater(message)
    return PermanentError(message) if headers.get("handshake-status") == "403" else ConnectionError(message)


def _ping(service: int) -> bytes:
    frame = _Frame()
    frame.SeqID, frame.LogID, frame.service, frame.method = 0, 0, service, 0
    header = frame.headers.add()
    header.key, header.value = "type", "ping"
    return cast("bytes", frame.SerializeToString())


def _count(value: str | None, default: int) -> int:
    """Return the number of a header; the default for a missing or invalid one."""
    return int(value) if value is not None and value.isdecimal() and len(value) < 10 else default


def _id(answer: Mapping[str, Any]) -> str:
    return text_at(as_object(answer.get("data")), "message_id")


def _open_id(value: object) -> str:
    return text_at(as_object(value), "open_id")
