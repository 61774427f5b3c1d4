"""A stand-in of Slack on a local port: Web API and Socket Mode, as docs.slack.dev describes them.

It is stricter than Slack where Slack's reference only advises: it refuses a text of more than 4,000 characters.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import unescape
from itertools import count
from typing import Any, cast
from uuid import uuid4

from aiohttp import WSMsgType, web
from tests.standins.http import HttpPlatform

from torana.connectors.platforms.slack import Slack
from torana.testing.connectors import Shown

BOT_TOKEN = "xoxb-17-bot-secret"
APP_TOKEN = "xapp-1-app-secret"
ROOM = "C0LOUNGE"
BOT_USER, BOT, APP, TEAM = "U0TORANA", "B0TORANA", "A0TORANA", "T0TEAM"

#: Methods that accept JSON; the others read only the query or a form.
JSON_METHODS = {"chat.postMessage", "chat.update"}

Message = dict[str, Any]


class SlackError(Exception):
    """The error of a response with "ok" false."""


@dataclass(kw_only=True)
class Socket:
    """A connection of Socket Mode."""

    ws: web.WebSocketResponse
    transport: asyncio.Transport


@dataclass(kw_only=True)
class Delivery:
    """An event without an acknowledgement."""

    payload: Mapping[str, Any]
    attempt: int
    timer: asyncio.TimerHandle


class SlackStandIn(HttpPlatform):
    """A workspace with an app, users, one channel, and each user's direct messages with the app."""

    concurrently = True
    connector = Slack
    link = f"slack://user?team={TEAM}&id={BOT_USER}"
    room = ROOM

    def __init__(self) -> None:
        super().__init__()
        self.app.router.add_route("*", "/api/{method}", self._api)
        self.app.router.add_get("/link", self._link)
        self.app.router.add_get("/files-pri/{file}/{name}", self._file)
        self.tokens = {BOT_TOKEN, APP_TOKEN}
        self.people: dict[str, Message] = {}
        self.chats: dict[str, list[Message]] = defaultdict(list)
        self.files: dict[str, tuple[str, bytes]] = {}
        self.sockets: list[Socket] = []
        self.opened = self.connected = self.fetched = 0
        self.hanging: set[str] = set()  # methods that are never answered
        self.pending: dict[str, Delivery] = {}
        self.acknowledged: list[str] = []
        self.calls: list[str] = []
        self.file_answers: deque[web.Response] = deque()
        self.pings: list[str] = []  # the users that the account's messages notify
        self.pongs = 0
        #: Whether the client's pings get no answer, and whether a hello is sent.
        self.deaf = False
        self.greets = True
        #: The number of repetitions of an event, and the seconds before each.
        self.repeats = 3
        self.patience = 3.0
        self.lose_answer = False
        self._answers: dict[str, deque[Callable[[], web.Response]]] = defaultdict(deque)
        self._numbers = count(1)
        self._start = int(time.time())
        self._writing: set[asyncio.Task[None]] = set()

    async def __aexit__(self, *_: object) -> None:
        for delivery in self.pending.values():
            delivery.timer.cancel()
        await super().__aexit__()

    # The interface ``Platform``.

    def settings(self) -> Mapping[str, Any]:
        return {"bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "api_url": f"{self.url}/api/"}

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
        chat = room or direct(sender)
        written = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        message: Message = {
            "type": "message",
            "user": self.person(sender),
            "text": f"<@{BOT_USER}> {written}" if mention else written,
            "team": TEAM,
            "client_msg_id": str(uuid4()),
        }
        if bot:
            message |= {"bot_id": f"B0{sender.upper()}", "app_id": "A0OTHER", "bot_profile": {"name": sender}}
        if file is not None:
            message |= {"subtype": "file_share", "files": [self.upload(*file)], "upload": False}
        if thread is not None:
            message |= self._thread(chat, thread)
        return self.post(chat, message)

    async def repeat(self, message: str) -> None:
        for chat, messages in self.chats.items():
            for one in messages:
                if one["ts"] == message:
                    self.tell(self._event(chat, one), attempt=1)

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        chat = room or direct(to)

        def ours() -> list[Message]:
            return [
                one for one in self.chats[chat] if one["user"] == BOT_USER and one.get("thread_ts") == thread
            ]

        await self.until(lambda: len(ours()) >= count)
        return [Shown(id=one["ts"], text=seen(one["text"]), thread=one.get("thread_ts")) for one in ours()]

    async def cut(self) -> None:
        for socket in self.sockets:
            socket.transport.abort()
        self.sockets.clear()

    async def limit(self, seconds: float | None) -> None:
        headers = {} if seconds is None else {"Retry-After": f"{seconds:.0f}"}
        self.answer("chat.postMessage", {"ok": False, "error": "ratelimited"}, status=429, headers=headers)

    async def fail(self) -> None:
        self.answer("chat.postMessage", "<html>Oops</html>", status=500)

    async def refuse_message(self) -> None:
        self.answer("chat.postMessage", {"ok": False, "error": "is_archived"})

    async def refuse_login(self) -> None:
        self.tokens.clear()

    # Actions for the tests of Slack.

    def answer(
        self,
        method: str,
        body: Mapping[str, Any] | str,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer the next call of a method with this response, without an effect."""
        text = body if isinstance(body, str) else json.dumps(body)
        kind = "text/html" if isinstance(body, str) else "application/json"
        self._answers[method].append(
            lambda: web.Response(text=text, status=status, headers=headers, content_type=kind)
        )

    def person(self, name: str, **profile: Any) -> str:
        """Return a user's id."""
        user = f"U0{re.sub('[^A-Z0-9]', '', name.upper())}"
        self.people.setdefault(user, {"id": user, "name": name, "profile": {"display_name": name}} | profile)
        return user

    def upload(self, name: str, media_type: str, data: bytes) -> Message:
        """Store a file, and return it in the format of messages."""
        file = f"F{next(self._numbers):08}"
        self.files[file] = (media_type, data)
        url = f"{self.url}/files-pri/{file}/{name}"
        return {
            "id": file,
            "name": name,
            "title": name,
            "mimetype": media_type,
            "size": len(data),
            "mode": "hosted",
            "url_private": url,
            "url_private_download": url,
        }

    def post(self, chat: str, message: Message) -> str:
        """Store a message and send its event to the app; a mention is sent twice, as the reference warns."""
        ts = f"{self._start}.{next(self._numbers):06}"
        message = {"ts": ts} | message
        self.chats[chat].append(message)
        if f"<@{BOT_USER}>" in message["text"] and chat.startswith("C"):
            self.tell(self._event(chat, message | {"type": "app_mention"}))
        self.tell(self._event(chat, message))
        self.stir()
        return ts

    async def send(self, frame: object, *, socket: int = -1) -> None:
        """Write a frame into a connection."""
        await self.sockets[socket].ws.send_str(frame if isinstance(frame, str) else json.dumps(frame))

    async def send_event(self, event: Mapping[str, Any], *, socket: int) -> str:
        """Send an event over one connection; return the envelope's id."""
        envelope = str(uuid4())
        await self.send(
            {"type": "events_api", "envelope_id": envelope, "payload": {"event": event}}, socket=socket
        )
        return envelope

    # Socket Mode.

    def _event(self, chat: str, message: Message) -> Mapping[str, Any]:
        kind = {"C": "channel", "D": "im"}[chat[0]]
        event = {key: value for key, value in message.items() if key != "metadata"}
        event |= {"channel": chat, "event_ts": message["ts"]}
        return event if message["type"] == "app_mention" else event | {"channel_type": kind}

    def tell(self, event: Mapping[str, Any], *, attempt: int = 0) -> None:
        """Send an event of any type to the app."""
        payload = {
            "type": "event_callback",
            "team_id": TEAM,
            "api_app_id": APP,
            "event": event,
            "event_id": f"Ev{next(self._numbers)}",
            "event_time": int(time.time()),
            "authorizations": [{"team_id": TEAM, "user_id": BOT_USER, "is_bot": True}],
        }
        self._put(payload, attempt)

    def _put(self, payload: Mapping[str, Any], attempt: int) -> None:
        """Send an event, and repeat it in new envelopes until it is acknowledged or the repetitions are used
        up.
        """
        payload = self.changed(payload)
        envelope = str(uuid4())
        timer = asyncio.get_running_loop().call_later(self.patience, self._again, envelope)
        self.pending[envelope] = Delivery(payload=payload, attempt=attempt, timer=timer)
        if self.sockets:
            frame = {
                "envelope_id": envelope,
                "type": "events_api",
                "payload": payload,
                "accepts_response_payload": False,
                "retry_attempt": attempt,
                "retry_reason": "timeout" if attempt else "",
            }
            task = asyncio.ensure_future(_sent(self.sockets[-1], json.dumps(frame)))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        self.stir()

    def _again(self, envelope: str) -> None:
        delivery = self.pending.pop(envelope, None)
        if delivery is None:
            return
        delivery.timer.cancel()
        if delivery.attempt < self.repeats:
            self._put(delivery.payload, delivery.attempt + 1)

    async def _link(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("ticket") != f"t-{self.opened}":
            return web.Response(status=403)
        ws = web.WebSocketResponse(autoping=False, timeout=1)
        await ws.prepare(request)
        socket = Socket(ws=ws, transport=cast("asyncio.Transport", request.transport))
        self.sockets.append(socket)
        self.connected += 1
        with suppress(ConnectionError):  # the app has disconnected
            await self._greet(ws)
        for envelope in list(self.pending):
            self._again(envelope)
        self.stir()
        async for frame in ws:
            if frame.type is WSMsgType.PING and not self.deaf:
                await ws.pong(frame.data)
            elif frame.type is WSMsgType.PONG:
                self.pongs += 1
            elif frame.type is WSMsgType.TEXT:
                self._acknowledge(json.loads(frame.data)["envelope_id"])
            self.stir()
        if socket in self.sockets:
            self.sockets.remove(socket)
        self.stir()
        return ws

    def _acknowledge(self, envelope: str) -> None:
        self.acknowledged.append(envelope)
        if delivery := self.pending.pop(envelope, None):
            delivery.timer.cancel()

    # The Web API.

    async def _api(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        self.calls.append(method)
        self.stir()
        arguments = await _arguments(request)
        if method in self.hanging:
            await asyncio.Event().wait()
        if self._answers[method]:
            return self._answers[method].popleft()()
        try:
            self._authorize(request, method)
            handle = self._methods().get(method)
            if handle is None:
                raise SlackError("unknown_method")
            body: Message = {"ok": True, **handle(arguments)}
        except SlackError as error:
            body = {"ok": False, "error": str(error)}
        if self.lose_answer and method.startswith("chat."):
            cast("asyncio.Transport", request.transport).abort()
        return web.json_response(body)

    def _methods(self) -> Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]:
        return {
            "apps.connections.open": self._open,
            "auth.test": lambda _: {"user_id": BOT_USER, "bot_id": BOT, "user": "torana", "team_id": TEAM},
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "conversations.history": self._history,
            "conversations.replies": self._replies,
            "users.info": self._info,
        }

    def _authorize(self, request: web.Request, method: str) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token:
            raise SlackError("not_authed")
        if token not in self.tokens:
            raise SlackError("invalid_auth")
        if token.startswith("xapp-") != (method == "apps.connections.open"):
            raise SlackError("not_allowed_token_type")

    def _open(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        self.opened += 1
        return {"url": f"{self.url.replace('http', 'ws')}/link?ticket=t-{self.opened}&app_id={APP}"}

    def _post(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        chat = self._chat(arguments)
        message: Message = {"type": "message", "user": BOT_USER, "bot_id": BOT, "app_id": APP, "team": TEAM}
        message |= {"text": self._text(arguments), "metadata": _metadata(arguments)}
        if thread := arguments.get("thread_ts"):
            message |= self._thread(chat, thread)
        ts = self.post(chat, message)
        return {"channel": chat, "ts": ts, "message": message | {"ts": ts}}

    def _update(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        chat, text = self._chat(arguments), self._text(arguments)
        message = next((one for one in self.chats[chat] if one["ts"] == arguments.get("ts")), None)
        if message is None:
            raise SlackError("message_not_found")
        if message["user"] != BOT_USER:
            raise SlackError("cant_update_message")
        message |= {"text": text, "metadata": _metadata(arguments)}
        changed = {"type": "message", "subtype": "message_changed", "hidden": True, "ts": message["ts"]}
        self.tell(self._event(chat, changed | {"message": message}))
        self.stir()
        return {"channel": chat, "ts": message["ts"], "text": text}

    def _history(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the newest messages first, without replies in threads."""
        chat = self._chat(arguments)
        return self._page([one for one in reversed(self.chats[chat]) if "thread_ts" not in one], arguments)

    def _replies(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the replies, the oldest first, after the first message of the thread."""
        chat, root = self._chat(arguments), arguments.get("ts")
        found = [one for one in self.chats[chat] if root in (one["ts"], one.get("thread_ts"))]
        if not found:
            raise SlackError("thread_not_found")
        return self._page(found, arguments)

    def _page(self, messages: list[Message], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        oldest, limit = float(arguments.get("oldest") or 0), int(arguments.get("limit") or 100)
        at = int(arguments.get("cursor") or 0)
        found = [one for one in messages if float(one["ts"]) > oldest]
        whole = str(arguments.get("include_all_metadata")).lower() in ("1", "true")
        page = [one if whole else _bare(one) for one in found[at : at + limit]]
        more = at + limit < len(found)
        return {
            "messages": page,
            "has_more": more,
            "response_metadata": {"next_cursor": str(at + limit) if more else ""},
        }

    def _info(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        user = self.people.get(str(arguments.get("user")))
        if user is None:
            raise SlackError("user_not_found")
        return {"user": user}

    def _chat(self, arguments: Mapping[str, Any]) -> str:
        chat = str(arguments.get("channel"))
        if chat not in self.chats:
            raise SlackError("channel_not_found")
        return chat

    def _text(self, arguments: Mapping[str, Any]) -> str:
        text = arguments.get("text")
        if not isinstance(text, str) or not text.strip():
            raise SlackError("no_text")
        if len(text) > 4_000:
            raise SlackError("msg_too_long")
        self.pings += re.findall(r"<(?:!|@|#)[^<>]*>", text)
        if arguments.get("link_names") or arguments.get("parse", "none") != "none":
            self.pings += re.findall(r"@\w+", text)
        return text

    def _thread(self, chat: str, thread: str) -> Message:
        root = next((one for one in self.chats[chat] if one["ts"] == thread), None)
        if root is None:
            raise SlackError("thread_not_found")
        return {"thread_ts": thread, "parent_user_id": root["user"]}

    async def _file(self, request: web.Request) -> web.Response:
        """Return a file; a request without a valid token gets the login page."""
        self.fetched += 1
        if self.file_answers:
            return self.file_answers.popleft()
        if request.headers.get("Authorization") != f"Bearer {BOT_TOKEN}":
            raise web.HTTPFound("/login")
        media_type, data = self.files[request.match_info["file"]]
        return web.Response(body=data, content_type=media_type)

    async def _greet(self, ws: web.WebSocketResponse) -> None:
        await ws.ping(b"Ping from applink-1")
        if self.greets:
            info = {"host": "applink-1", "build_number": 1, "approximate_connection_time": 18060}
            hello = {"type": "hello", "num_connections": len(self.sockets), "debug_info": info}
            await ws.send_json(hello | {"connection_info": {"app_id": APP}})

    def _stir(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def direct(name: str) -> str:
    """Return the chat of a user with the app."""
    return f"D0{re.sub('[^A-Z0-9]', '', name.upper())}"


def seen(text: str) -> str:
    """Return a text as users see it."""
    return unescape(re.sub(r"<[^<>|]*\|([^<>]*)>", r"\1", text))


async def _sent(socket: Socket, text: str) -> None:
    try:
        await socket.ws.send_str(text)
    except (ConnectionError, RuntimeError):
        return  # repeated on the next connection


async def _arguments(request: web.Request) -> Mapping[str, Any]:
    arguments: dict[str, Any] = dict(request.query)
    if request.content_type == "application/json":
        if request.match_info["method"] in JSON_METHODS:
            arguments |= await request.json()
    else:
        arguments |= dict(await request.post())
    return arguments


def _metadata(arguments: Mapping[str, Any]) -> Message | None:
    metadata = arguments.get("metadata")
    if metadata is None:
        return None
    if (
        not isinstance(metadata, dict)
        or not re.fullmatch(r"[\w.-]+", str(cast("Message", metadata).get("event_type")))
        or not isinstance(cast("Message", metadata).get("event_payload"), dict)
    ):
        raise SlackError("invalid_metadata_format")
    return cast("Message", metadata)


def _bare(message: Message) -> Message:
    """Return a message without requested metadata: only the type remains of it."""
    metadata: Message | None = message.get("metadata")
    return message | {"metadata": {"event_type": metadata["event_type"]}} if metadata else message
