"""A stand-in of Feishu's open platform, written from its public API reference.

It uses the platform's own protobuf frames, and refuses what the platform refuses.
"""

from __future__ import annotations

import html
import json
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import WSMsgType, web
from tests.standins.http import HttpPlatform

from torana.connectors.base import Connector
from torana.connectors.platforms.feishu import Feishu
from torana.testing.connectors import Shown

APP, SECRET, BOT = "cli_a1b2c3d4e5f6", "sEcReT-of-the-app", "ou_the_bot"

Fields = dict[int, list[int | bytes]]


def read_message(raw: bytes) -> Fields:
    """Parse a protobuf message into the values of each field number."""
    fields: Fields = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(raw):
        tag = number()
        if tag & 7 == 0:
            fields.setdefault(tag >> 3, []).append(number())
        else:
            assert tag & 7 == 2, "no other kind of field is in a frame"
            length = number()
            fields.setdefault(tag >> 3, []).append(raw[at : at + length])
            at += length
    return fields


def write_message(*fields: tuple[int, int | bytes]) -> bytes:
    """Return a protobuf message with these fields."""

    def number(value: int) -> bytes:
        done = b""
        while value >= 0x80:
            done += bytes([value & 0x7F | 0x80])
            value >>= 7
        return done + bytes([value])

    done = b""
    for field_number, value in fields:
        if isinstance(value, int):
            done += number(field_number << 3) + number(value)
        else:
            done += number(field_number << 3 | 2) + number(len(value)) + value
    return done


def read_frame(raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return method, headers and payload of a frame; all required fields must be present."""
    fields = read_message(raw)
    assert {1, 2, 3, 4} <= fields.keys(), "SeqID, LogID, service and method are required"
    headers = dict[str, str]()
    for header in fields.get(5, []):
        assert isinstance(header, bytes)
        parts = read_message(header)
        key, value = parts[1][0], parts[2][0]
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        headers[key.decode()] = value.decode()
    method, payload = fields[4][0], fields.get(8, [b""])[0]
    assert isinstance(method, int)
    assert isinstance(payload, bytes)
    return method, headers, payload


def write_frame(method: int, headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return a frame of service 7."""
    written = [(5, write_message((1, key.encode()), (2, value.encode()))) for key, value in headers.items()]
    return write_message((1, 1), (2, 1), (3, 7), (4, method), *written, (8, payload))


@dataclass
class Posted:
    """A message in a chat."""

    id: str
    chat: str
    text: str
    sender: str
    parent: str | None = None
    thread: str | None = None
    uuid: str = ""
    edited: int = 0
    taken_back: bool = False


@dataclass
class FeishuStandIn(HttpPlatform):
    """The platform with one app."""

    concurrently = True
    room: str | None = "oc_the_room"
    posted: dict[str, Posted] = field(default_factory=dict[str, Posted])
    #: The users that the account's cards notify.
    called: list[str] = field(default_factory=list[str])
    #: The number of token requests, and the responses on the long connection by event.
    tokens: int = 0
    acknowledged: list[str] = field(default_factory=list[str])
    pings: int = 0
    #: Texts for which the platform cannot make a card.
    unfit: str = "\x00"
    #: Whether the long connection is silent, and whether responses with files have a length.
    dead: bool = False
    lengths: bool = False
    #: Whether a fetched message is empty.
    odd: bool = False
    #: Whether the app has the feature “Bot”.
    has_bot: bool = True
    #: The number of bytes of an event in one frame.
    frame_bytes: int = 1_000_000

    connector: type[Connector[Any]] = Feishu

    def __post_init__(self) -> None:
        super().__init__()
        self.app.add_routes(
            [
                web.post("/open-apis/auth/v3/tenant_access_token/internal", self._token),
                web.get("/open-apis/bot/v3/info", self._info),
                web.post("/callback/ws/endpoint", self._endpoint),
                web.get("/ws/v2", self._socket),
                web.post("/open-apis/im/v1/messages", self._create),
                web.get("/open-apis/im/v1/messages/{id}", self._read),
                web.patch("/open-apis/im/v1/messages/{id}", self._patch),
                web.post("/open-apis/im/v1/messages/{id}/reply", self._reply),
                web.get("/open-apis/im/v1/messages/{id}/resources/{key}", self._resource),
            ]
        )
        self._pending: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._events: dict[str, dict[str, Any]] = {}
        self._sockets: set[web.WebSocketResponse] = set()
        self._files: dict[str, bytes] = {}
        self._answers: list[web.Response] = []
        #: The answers to the next requests for a token instead of a token.
        self.token_answers: list[web.Response] = []
        self._secret = SECRET
        self._number = 0

    # The interface for tests.

    def settings(self) -> Mapping[str, Any]:
        """As ``Platform``."""
        return {"app_id": APP, "app_secret": SECRET, "domain": self.url}

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
        """As ``Platform``."""
        words = f"@_user_1 {text}" if mention else text
        kind, content = "text", cast("dict[str, Any]", {"text": words})
        if file is not None:
            kind, key = "post", f"img_{self._next()}"
            self._files[key] = file[2]
            picture = [{"tag": "img", "image_key": key, "width": 1, "height": 1}]
            content = {"title": "", "content": [[{"tag": "text", "text": words}], picture]}
        mentions = [{"key": "@_user_1", "id": {"open_id": BOT}, "name": "Torana", "tenant_key": "t"}]
        return await self.tell(
            kind,
            content,
            sender=sender,
            room=room,
            parent=thread,
            in_thread=thread is not None,
            bot=bot,
            mentions=mentions if mention else [],
        )

    async def tell(
        self,
        kind: str,
        content: Mapping[str, Any],
        *,
        sender: str = "ana",
        room: str | None = None,
        parent: str | None = None,
        in_thread: bool = False,
        bot: bool = False,
        mentions: list[dict[str, Any]] | None = None,
    ) -> str:
        """Send a message of any type; return its id."""
        number = self._next()
        chat = room or f"oc_p2p_{sender}"
        posted = Posted(id=f"om_{number}", chat=chat, text=json.dumps(content), sender=f"ou_{sender}")
        if parent is not None:
            posted.parent = parent
        if parent is not None and in_thread:
            posted.thread = self._thread(parent)
        self.posted[posted.id] = posted
        message = {
            "message_id": posted.id,
            "create_time": str(int(time.time() * 1000)),
            "update_time": "1700000000000",
            "chat_id": chat,
            "chat_type": "group" if room else "p2p",
            "message_type": kind,
            "content": json.dumps(content, ensure_ascii=False),
        }
        if posted.parent:
            message |= {"parent_id": posted.parent, "root_id": posted.parent}
        if posted.thread:
            message["thread_id"] = posted.thread
        if mentions:
            message["mentions"] = cast("Any", mentions)
        ids = {"open_id": f"ou_{sender}", "union_id": f"on_{sender}", "user_id": None}
        author = {"sender_id": ids, "sender_type": "bot" if bot else "user", "tenant_key": "t"}
        await self.event("im.message.receive_v1", {"sender": author, "message": message}, name=posted.id)
        return posted.id

    async def event(self, kind: str, event: object, *, name: str = "") -> str:
        """Send an event of any type; return its name."""
        name = name or f"event_{self._next()}"
        header = {
            "event_id": f"{name}-{self._next()}",
            "event_type": kind,
            "create_time": "1700000000000",
            "token": "",
            "app_id": APP,
            "tenant_key": "t",
        }
        self._events[name] = self.changed({"schema": "2.0", "header": header, "event": event})
        await self.repeat(name)
        return name

    async def send_frame(self, frame: bytes) -> None:
        """Send bytes over each long connection; ``write_frame`` writes valid ones."""
        for socket in list(self._sockets):
            await socket.send_bytes(frame)

    async def repeat(self, message: str) -> None:
        """As ``Platform``."""
        self._pending[message] = self._events[message]
        for socket in list(self._sockets):
            await self._deliver(socket, message)

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        """As ``Platform``."""
        chat = room or f"oc_p2p_{to}"

        def found() -> list[Shown]:
            return [
                Shown(id=one.id, text=one.text, thread=one.thread)
                for one in self.posted.values()
                if one.sender == APP
                and one.chat == chat
                and (thread is None or one.thread == self._thread(thread))
            ]

        await self.until(lambda: len(found()) >= count)
        return found()

    async def acknowledgements(self, count: int) -> list[str]:
        """Wait until this number of events was acknowledged."""
        await self.until(lambda: len(self.acknowledged) >= count)
        return self.acknowledged

    async def limit(self, seconds: float | None) -> None:
        """As ``Platform``: the gateway names a time, the chat's own limit does not."""
        if seconds is None:
            self._answers.append(_refusal(230020, "This operation triggers the frequency limit."))
            return
        answer = _refusal(99991400, "request trigger frequency limit", status=429)
        answer.headers["x-ogw-ratelimit-limit"] = "100"
        answer.headers["x-ogw-ratelimit-reset"] = str(int(seconds))
        self._answers.append(answer)

    async def fail(self) -> None:
        """As ``Platform``."""
        self._answers.append(_refusal(1500, "internal error", status=500))

    async def refuse_message(self) -> None:
        """As ``Platform``."""
        self._answers.append(_refusal(230002, "Bot/User can NOT be out of the chat."))

    async def refuse_login(self) -> None:
        """As ``Platform``."""
        self._secret = "another one"

    def end_token(self) -> None:
        """Expire the app's token early."""
        self.tokens += 1

    def refuse_with(self, code: int, message: str, status: int = 400) -> None:
        """Refuse the next message with this error."""
        self._answers.append(_refusal(code, message, status=status))

    def put_file(self, content: bytes) -> str:
        """Store a file that messages may name."""
        key = f"file_{self._next()}"
        self._files[key] = content
        return key

    # The interface for the app.

    async def _token(self, request: web.Request) -> web.Response:
        if self.token_answers:
            return self.token_answers.pop(0)
        body = await request.json()
        if body != {"app_id": APP, "app_secret": self._secret}:
            return web.json_response({"code": 10014, "msg": "app secret invalid"})
        self.tokens += 1
        return web.json_response(
            {"code": 0, "msg": "ok", "tenant_access_token": f"t-{self.tokens}", "expire": 7200}
        )

    def _stranger(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") != f"Bearer t-{self.tokens}":
            return _refusal(99991663, "Invalid access token for authorization. Please make a test with token.")
        return None

    async def _info(self, request: web.Request) -> web.Response:
        bot = {
            "activate_status": 2,
            "app_name": "Torana",
            "avatar_url": "",
            "open_id": BOT if self.has_bot else "",
        }
        return self._stranger(request) or web.json_response({"code": 0, "msg": "ok", "bot": bot})

    async def _endpoint(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("AppID") != APP or body.get("AppSecret") != self._secret:
            return web.json_response({"code": 10014, "msg": "app secret invalid"})
        url = self.url.replace("http", "ws", 1)
        url += "/ws/v2?fpid=493&aid=552564&device_id=1&access_key=k&service_id=7&ticket=t"
        config = {"ReconnectCount": -1, "ReconnectInterval": 120, "ReconnectNonce": 30, "PingInterval": 120}
        return web.json_response({"code": 0, "msg": "", "data": {"URL": url, "ClientConfig": config}})

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("ticket") != "t":
            headers = {"handshake-status": "514", "handshake-msg": "ticket", "handshake-autherrcode": "1"}
            return web.Response(status=403, headers=headers)
        socket = web.WebSocketResponse(autoping=not self.dead)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            for name in list(self._pending):
                await self._deliver(socket, name)
            async for message in socket:
                if message.type == WSMsgType.BINARY:
                    await self._answered(socket, cast("bytes", message.data))
        except ConnectionError:
            pass
        finally:
            self._sockets.discard(socket)
        return socket

    async def _deliver(self, socket: web.WebSocketResponse, name: str) -> None:
        payload = json.dumps(self._events[name], ensure_ascii=self.change is not None).encode()
        size = self.frame_bytes
        pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
        for number, piece in reversed(list(enumerate(pieces))):
            headers = {
                "type": "event",
                "message_id": name,
                "sum": str(len(pieces)),
                "seq": str(number),
                "trace_id": "trace",
            }
            with suppress(ConnectionError):  # the app is disconnected: the event is repeated
                await socket.send_bytes(write_frame(1, headers, piece))

    async def _answered(self, socket: web.WebSocketResponse, raw: bytes) -> None:
        method, headers, payload = read_frame(raw)
        if method == 0:
            assert headers == {"type": "ping"}
            self.pings += 1
            config = {"ReconnectCount": -1, "ReconnectInterval": 90, "ReconnectNonce": 25, "PingInterval": 90}
            await socket.send_bytes(write_frame(0, {"type": "pong"}, json.dumps(config).encode()))
        elif json.loads(payload)["code"] == 200:
            self._pending.pop(headers["message_id"], None)
            self.acknowledged.append(headers["message_id"])
        self.stir()

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if request.query.get("receive_id_type") != "chat_id" or not str(body.get("receive_id")).startswith(
            "oc_"
        ):
            return _refusal(
                230001, "Your request contains an invalid request parameter, ext=invalid receive_id."
            )
        return await self._post(request, body, str(body["receive_id"]), None)

    async def _reply(self, request: web.Request) -> web.Response:
        body = await request.json()
        answered = self.posted.get(request.match_info["id"])
        if answered is None:
            return _refusal(
                230001, "Your request contains an invalid request parameter, ext=invalid message_id."
            )
        if answered.taken_back:
            return _refusal(230011, "The message is recalled.")
        return await self._post(request, body, answered.chat, answered)

    async def _post(
        self, request: web.Request, body: dict[str, Any], chat: str, answered: Posted | None
    ) -> web.Response:
        if refusal := self._stranger(request) or await self._refused(request, body.get("content")):
            return refusal
        if body.get("msg_type") != "interactive" or len(str(body.get("uuid"))) > 50:
            return _refusal(230001, "Your request contains an invalid request parameter.")
        same = [one for one in self.posted.values() if one.uuid and one.uuid == body["uuid"]]
        posted = same[0] if same else self._add(body, chat, answered)
        self.stir()
        return _done(posted)

    def _add(self, body: Mapping[str, Any], chat: str, answered: Posted | None) -> Posted:
        text = self._text(body["content"])
        posted = Posted(id=f"om_{self._next()}", chat=chat, text=text, sender=APP, uuid=str(body["uuid"]))
        if answered is not None:
            posted.parent = answered.id
            posted.thread = self._thread(answered.id) if body.get("reply_in_thread") else answered.thread
        self.posted[posted.id] = posted
        return posted

    async def _patch(self, request: web.Request) -> web.Response:
        body = await request.json()
        posted = self.posted.get(request.match_info["id"])
        if posted is None or posted.sender != APP:
            return _refusal(
                230001, "Your request contains an invalid request parameter, ext=invalid message_id."
            )
        if refusal := self._stranger(request) or await self._refused(request, body.get("content")):
            return refusal
        posted.text = self._text(body["content"])
        posted.edited += 1
        self.stir()
        return _done(posted)

    async def _read(self, request: web.Request) -> web.Response:
        posted = self.posted.get(request.match_info["id"])
        if refusal := self._stranger(request):
            return refusal
        if self.odd:
            return web.json_response({"code": 0, "msg": "success", "data": None})
        if posted is None:
            return _refusal(230110, "Action unavailable as the message has been deleted.")
        kind = "app_id" if posted.sender == APP else "open_id"
        sender = {"id": posted.sender, "id_type": kind, "sender_type": "app" if kind == "app_id" else "user"}
        item = {"message_id": posted.id, "chat_id": posted.chat, "sender": sender, "deleted": False}
        return web.json_response({"code": 0, "msg": "success", "data": {"items": [item]}})

    async def _resource(self, request: web.Request) -> web.StreamResponse:
        content = self._files.get(request.match_info["key"])
        if refusal := self._stranger(request):
            return refusal
        if content is None or request.match_info["id"] not in self.posted:
            return _refusal(234003, "File not in msg.")
        if request.query.get("type") != ("image" if request.match_info["key"].startswith("img_") else "file"):
            return _refusal(234001, "Invalid request param.")
        if self.lengths:
            return web.Response(body=content)
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await answer.write(content)
        await answer.write_eof()
        return answer

    async def _refused(self, request: web.Request, content: object) -> web.Response | None:
        """Return the reason why the platform refuses a card, or None."""
        if self._answers:
            return self._answers.pop(0)
        if len(await request.read()) > 30 * 1024:
            return _refusal(230025, "The length of the message content reaches its limit.")
        try:
            card = cast("dict[str, Any]", json.loads(str(content)))
            elements = cast("list[dict[str, Any]]", card["body"]["elements"])
        except (ValueError, KeyError):
            return _refusal(
                230099, "Failed to create card content, ext=ErrCode: 200621; ErrMsg: parse card json err"
            )
        if card["schema"] != "2.0" or card["config"]["update_multi"] is not True or not elements:
            return _refusal(230099, "Failed to create card content, ext=ErrCode: 11310; ErrMsg: invalid card")
        markup = [one for one in elements if one["tag"] == "markdown"]
        if any(not one["content"] or self.unfit in one["content"] for one in markup):
            return _refusal(
                230099, "Failed to create card content, ext=ErrCode: 11310; ErrMsg: invalid markdown"
            )
        return None

    def _text(self, content: str) -> str:
        """Return a card's text as users see it, and record the users that it notifies."""
        done = list[str]()
        for element in json.loads(content)["body"]["elements"]:
            if element["tag"] == "markdown":
                self.called += re.findall(r"<at [^>]*>", element["content"])
                done.append(html.unescape(element["content"]))
            else:
                assert element["tag"] == "div"
                assert element["text"]["tag"] == "plain_text"
                done.append(element["text"]["content"])
        return "\n".join(done)

    def _thread(self, message: str) -> str:
        posted = self.posted.get(message)
        return posted.thread if posted and posted.thread else f"omt_{message}"

    def _next(self) -> int:
        self._number += 1
        return self._number


def _done(posted: Posted) -> web.Response:
    data = {"message_id": posted.id, "chat_id": posted.chat, "msg_type": "interactive"}
    if posted.thread:
        data["thread_id"] = posted.thread
    return web.json_response({"code": 0, "msg": "success", "data": data})


def _refusal(code: int, message: str, *, status: int = 400) -> web.Response:
    return web.json_response({"code": code, "msg": message, "error": {"log_id": "1"}}, status=status)
