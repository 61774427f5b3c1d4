"""A stand-in of DingTalk, written from its public documents: the stream, the robot's API, and reply URLs."""

from __future__ import annotations

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
from torana.connectors.platforms.dingtalk import Dingtalk
from torana.testing.connectors import Shown

CLIENT, SECRET = "dingabc123", "sEcReT-of-the-app"
ROBOT = "$:LWCP_v1:$the-robot"


@dataclass
class DingtalkStandIn(HttpPlatform):
    """The platform with one app and its robot."""

    concurrently = True
    room: str | None = "cidTheRoom=="
    #: DingTalk's robots do not see messages of other robots.
    has_bots = False
    #: The sent messages: conversation or person, text, and key.
    sent: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    #: The API of each sent message: ``oTo``, ``group`` or ``webhook``.
    ways: list[str] = field(default_factory=list[str])
    #: The users that the account's messages notify.
    called: list[str] = field(default_factory=list[str])
    tokens: int = 0
    acknowledged: list[str] = field(default_factory=list[str])
    answered_pings: list[str] = field(default_factory=list[str])
    #: Whether the app may use the robot's API, and the seconds for which a reply URL is valid.
    permitted: bool = True
    answer_seconds: float = 5_400
    #: The reply URL of messages, if it is not the stand-in's own.
    webhook: str = ""
    #: Whether the stream is silent, and whether responses with files have a length.
    dead: bool = False
    lengths: bool = False
    download_url: str = ""
    connections: int = 0

    connector: type[Connector[Any]] = Dingtalk

    def __post_init__(self) -> None:
        super().__init__()
        self.app.add_routes(
            [
                web.post("/v1.0/gateway/connections/open", self._open),
                web.get("/connect", self._socket),
                web.post("/v1.0/oauth2/accessToken", self._token),
                web.post("/v1.0/robot/oToMessages/batchSend", self._to_person),
                web.post("/v1.0/robot/groupMessages/send", self._to_group),
                web.post("/v1.0/robot/messageFiles/download", self._download),
                web.get("/file/{key}", self._file),
                web.post("/robot/sendBySession", self._to_session),
            ]
        )
        self._pending: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._events: dict[str, dict[str, Any]] = {}
        self._sockets: set[web.WebSocketResponse] = set()
        self._silent: list[web.WebSocketResponse] = []
        self._tickets: set[str] = set()
        self._files: dict[str, bytes] = {}
        self._answers: list[web.Response] = []
        self._webhook_answers: list[dict[str, Any]] = []
        #: The answers to the next requests for a token instead of a token.
        self.token_answers: list[web.Response] = []
        self._secret = SECRET
        self._number = 0

    # The interface for tests.

    def settings(self) -> Mapping[str, Any]:
        """As ``Platform``."""
        return {"client_id": CLIENT, "client_secret": SECRET, "api_url": self.url}

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
        """As ``Platform``. DingTalk removes the robot's name from a text, and leaves the space behind it."""
        del thread, bot
        if file is None:
            told: dict[str, Any] = {"msgtype": "text", "text": {"content": f" {text}" if mention else text}}
        else:
            told = {"msgtype": "picture", "content": self.file_content(file[2])}
        return await self.tell(told, sender=sender, room=room, mention=mention)

    async def tell(
        self, told: Mapping[str, Any], *, sender: str = "ana", room: str | None = None, mention: bool = False
    ) -> str:
        """Send a message of any type; return its id."""
        message = f"msg{self._next()}=="
        expires = int((time.time() + self.answer_seconds) * 1000)
        robot = {"dingtalkId": ROBOT}
        data: dict[str, Any] = {
            "conversationId": room or f"cid1{sender}==",
            "atUsers": [robot] if mention else [],
            "chatbotCorpId": "dingcorp",
            "chatbotUserId": ROBOT,
            "msgId": message,
            "senderNick": f"Ms {sender}\n\u202e",
            "isAdmin": False,
            "senderStaffId": f"staff-{sender}",
            "sessionWebhookExpiredTime": expires,
            "createAt": int(time.time() * 1000),
            "senderCorpId": "dingcorp",
            "conversationType": "2" if room else "1",
            "senderId": f"$:LWCP_v1:${sender}",
            "sessionWebhook": self.webhook or f"{self.url}/robot/sendBySession?session={room or sender}",
            "robotCode": CLIENT,
            **told,
        }
        if room:
            data |= {"conversationTitle": "The room", "isInAtList": mention}
        await self.frame("CALLBACK", "/v1.0/im/bot/messages/get", data, name=message)
        return message

    def file_content(self, content: bytes) -> dict[str, Any]:
        """Return the content of a message with a file."""
        key = f"code{self._next()}=="
        self._files[key] = content
        return {"downloadCode": key, "pictureDownloadCode": "other"}

    async def frame(self, kind: str, topic: str, data: object, *, name: str = "") -> str:
        """Push a frame; return its name."""
        name = name or f"frame{self._next()}"
        headers = {
            "appId": "app",
            "connectionId": "connection",
            "contentType": "application/json",
            "messageId": name,
            "time": str(int(time.time() * 1000)),
            "topic": topic,
        }
        text = data if isinstance(data, str) else json.dumps(self.changed(data))
        self._events[name] = {"specVersion": "1.0", "type": kind, "headers": headers, "data": text}
        await self.repeat(name)
        return name

    async def disconnect(self) -> None:
        """Request a new connection; the current one is silent from now on, and ends later."""
        old = list(self._sockets)
        headers = {"contentType": "application/json", "topic": "disconnect"}
        data = json.dumps({"reason": "connection is expired"})
        for socket in old:
            await socket.send_json({"type": "SYSTEM", "headers": headers, "data": data})
            self._sockets.remove(socket)
            self._silent.append(socket)

    async def end_silent(self) -> None:
        """End the connections that were replaced."""
        while self._silent:
            await self._silent.pop().close()

    async def repeat(self, message: str) -> None:
        """As ``Platform``.

        According to its documentation, DingTalk delivers a robot's message once; in fact it repeats an
        unacknowledged message after about a minute. Here it repeats the message on the next connection.
        """
        self._pending[message] = self._events[message]
        for socket in list(self._sockets):
            with suppress(
                ConnectionError
            ):  # the connection is ending: the event is repeated after the next one
                await socket.send_json(self._events[message])

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        """As ``Platform``."""
        del thread
        places = {room} if room else {f"staff-{to}", to}

        def found() -> list[Shown]:
            return [Shown(id=key, text=text) for place, text, key in self.sent if place in places]

        await self.until(lambda: len(found()) >= count)
        return found()

    async def limit(self, seconds: float | None) -> None:
        """As ``Platform``. DingTalk's own limit names no time; a proxy's limit may."""
        if seconds is None:
            self.refuse_with("Forbidden.AccessDenied.QpsLimitForApi", 403)
            return
        self.refuse_with("Throttling.Api", 429)
        self._answers[-1].headers["Retry-After"] = str(int(seconds))

    async def fail(self) -> None:
        """As ``Platform``."""
        self.refuse_with("systemError", 500)

    async def refuse_message(self) -> None:
        """As ``Platform``."""
        self.refuse_with("staffId.notExisted")

    async def refuse_login(self) -> None:
        """As ``Platform``."""
        self._secret = "another one"

    def refuse_with(self, code: str, status: int = 400) -> None:
        """Refuse the next message with this error."""
        self._answers.append(_refusal(code, status=status))

    def answer_with(self, body: object) -> None:
        """Answer the next message with this body, as a success."""
        self._answers.append(web.json_response(body))

    def answer_webhook_with(self, body: dict[str, Any]) -> None:
        """Answer the next message to a reply URL with this body."""
        self._webhook_answers.append(body)

    def end_token(self) -> None:
        """Expire the app's token early."""
        self.tokens += 1

    # The interface for the app.

    async def _open(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (body.get("clientId"), body.get("clientSecret")) != (CLIENT, self._secret):
            return _refusal("authFailed", status=401)
        assert {"type": "CALLBACK", "topic": "/v1.0/im/bot/messages/get"} in body["subscriptions"]
        ticket = f"ticket-{self._next()}+/="
        self._tickets.add(ticket)
        return web.json_response({"endpoint": f"{self.url.replace('http', 'ws', 1)}/connect", "ticket": ticket})

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            return web.Response(status=401)
        self._tickets.remove(ticket)
        socket = web.WebSocketResponse(autoping=not self.dead)
        await socket.prepare(request)
        self._sockets.add(socket)
        self.connections += 1
        self.stir()
        try:
            for name in list(self._pending):
                await socket.send_json(self._events[name])
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    await self._acknowledge(cast("str", message.data))
        except ConnectionError:
            pass
        finally:
            self._sockets.discard(socket)
        return socket

    async def _acknowledge(self, raw: str) -> None:
        ack = json.loads(raw)
        assert ack["headers"]["contentType"] == "application/json"
        name, data = ack["headers"]["messageId"], json.loads(ack["data"])
        if ack["code"] == 200:
            self._pending.pop(name, None)
            if "opaque" in data:
                self.answered_pings.append(data["opaque"])
            else:
                self.acknowledged.append(name)
        self.stir()

    async def _token(self, request: web.Request) -> web.Response:
        if self.token_answers:
            return self.token_answers.pop(0)
        if await request.json() != {"appKey": CLIENT, "appSecret": self._secret}:
            return _refusal("invalidClientIdOrSecret")
        self.tokens += 1
        return web.json_response({"accessToken": f"token-{self.tokens}", "expireIn": 7200})

    def _stranger(self, request: web.Request) -> web.Response | None:
        if request.headers.get("x-acs-dingtalk-access-token") != f"token-{self.tokens}":
            return _refusal("InvalidAuthentication")
        return None

    async def _to_person(self, request: web.Request) -> web.Response:
        body = await request.json()
        if refusal := await self._refused(request, body):
            return refusal
        assert len(body["userIds"]) == 1
        key = await self._show("oTo", body["userIds"][0], json.loads(body["msgParam"]))
        answer: dict[str, object] = {"processQueryKey": key, "invalidStaffIdList": []}
        return web.json_response({**answer, "flowControlledStaffIdList": []})

    async def _to_group(self, request: web.Request) -> web.Response:
        body = await request.json()
        if refusal := await self._refused(request, body):
            return refusal
        if body.get("openConversationId") != self.room:
            return _refusal("invalid.openConversationId")
        key = await self._show("group", body["openConversationId"], json.loads(body["msgParam"]))
        return web.json_response({"processQueryKey": key})

    async def _refused(self, request: web.Request, body: Mapping[str, Any]) -> web.Response | None:
        if not self.permitted:
            return _refusal("Forbidden.AccessDenied.AccessTokenPermissionDenied", status=403)
        if refusal := self._stranger(request):
            return refusal
        if self._answers:
            return self._answers.pop(0)
        if body.get("robotCode") != CLIENT:
            return _refusal("invalid.robotCode")
        param = json.loads(body["msgParam"])
        if body.get("msgKey") != "sampleMarkdown" or not _fits(param, await request.read()):
            return _refusal("param.error")
        return None

    async def _to_session(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["msgtype"] == "markdown"
        assert not body["at"].get("isAtAll")
        assert "x-acs-dingtalk-access-token" not in request.headers
        if self._webhook_answers:
            return web.json_response(self._webhook_answers.pop(0))
        if not _fits(body["markdown"], await request.read()):
            return web.json_response({"errcode": 460101, "errmsg": "message too long, exceed 20000 bytes"})
        await self._show("webhook", request.query["session"], body["markdown"])
        return web.json_response({"errcode": 0, "errmsg": "ok"})

    async def _show(self, way: str, place: str, message: Mapping[str, str]) -> str:
        key = f"key{self._next()}"
        text = message["text"]
        self.ways.append(way)
        self.called += re.findall(r"(?<!\w)@\w+", text)
        seen = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text.replace("  \n", "\n").replace("\u200b", ""))
        self.sent.append((place, seen, key))
        self.stir()
        return key

    async def _download(self, request: web.Request) -> web.Response:
        body = await request.json()
        if refusal := self._stranger(request):
            return refusal
        if body.get("robotCode") != CLIENT or body.get("downloadCode") not in self._files:
            return _refusal("param.error")
        url = self.download_url or f"{self.url}/file/{body['downloadCode']}?signature=secret"
        return web.json_response({"downloadUrl": url})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        assert "x-acs-dingtalk-access-token" not in request.headers
        content = self._files[request.match_info["key"]]
        if self.lengths:
            return web.Response(body=content)
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await answer.write(content)
        await answer.write_eof()
        return answer

    def _next(self) -> int:
        self._number += 1
        return self._number


def _fits(message: Mapping[str, str], body: bytes) -> bool:
    return 0 < len(message["title"]) <= 64 and 0 < len(message["text"]) <= 5_000 and len(body) <= 20_000


def _refusal(code: str, *, status: int = 400) -> web.Response:
    return web.json_response({"code": code, "message": f"{code}, in words", "requestid": "1"}, status=status)
