"""DingTalk: messages arrive over its stream, replies go through the robot's HTTP API.

Only the frame classes of the platform's library are used. Its client requests a connection with a blocking
call, logs the connection's ticket, and reads the API's URL from the environment, once for the process.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, cast
from urllib.parse import quote

import httpx2
from dingtalk_stream import AckMessage, CallbackMessage, ChatbotMessage, SystemMessage
from dingtalk_stream.frames import Headers
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.alias_generators import to_camel
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

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
    request_json,
    seconds,
    text_at,
)
from torana.connectors.transport.markup import Dialect
from torana.connectors.transport.parsing import time_of
from torana.connectors.transport.websocket import next_frame, open_socket

#: Timeout, in seconds, for a file.
_FILE_SECONDS = 300.0
#: The minimum duration of a connection, in seconds. If DingTalk requests a new one earlier, the connector
#: gives up.
_LEAST = 10.0

_STALE = {"InvalidAuthentication", "accesstoken.expired"}
_LIMITS = re.compile(r"Q[pP][sSmM]Limit|qps\.exceed\.limit|request\.overlimit|oaplus\.query\.limit|Throttling")
_FORBIDDEN = re.compile(r"AccessTokenPermissionDenied|apiPermissionDenied", re.IGNORECASE)
_BUSY = {"system.error", "systemError", "systemBusy", "unknownError", "ServiceUnavailable"}
#: The same for the older API, which serves the reply URLs of messages.
_OLD_LIMITS = {90001, 90002, 90018, 130101, 410100, 660026}
_OLD_BUSY = -1
#: Seconds for which DingTalk blocks an IP address after too many calls; its response names no unit.
_SHUT_OUT = 300.0

_SPECIAL = re.compile(r"[*`]|\b_|_\b|\\(?=[!-/:-@\[-`{-~])|^(?:[#>]|[-+](?=\s))")


def _escape_active(text: str) -> str:
    """Break mentions, links and colour tags with invisible characters."""
    text = re.sub(r"(?<![\w.])@(?=\w)", "@\u200b", text)
    return re.sub(r"<(?=[a-zA-Z/!])", "<\u200b", text.replace("](", "]\u200b("))


_MARKDOWN = Dialect(
    text=lambda text: _escape_active(_SPECIAL.sub(lambda found: f"\\{found[0]}", text)),
    marks={"strong": ("**", "**"), "em": ("*", "*")},
    block=("```\n", "\n```"),
    code=lambda code: _escape_active(code).replace("```", "`\u200b`\u200b`"),
    span=lambda code: _escape_active(code).replace("`", "ˋ"),
    link=lambda url, words: f"[{words}]({url.replace('(', '%28').replace(')', '%29')})",
)


def _markdown(text: str) -> str:
    """Convert to the Markdown subset that all DingTalk clients support. Two spaces end a line."""
    return re.sub(r"(?<!\n)\n(?!\n)", "  \n", _MARKDOWN.render(text))


class DingtalkSettings(ConnectorSettings):
    """The settings of a DingTalk app."""

    client_id: str = Field(
        description="The app's Client ID (formerly AppKey), which is also the robot code.", min_length=1
    )
    client_secret: SecretStr = Field(description="The app's Client Secret (formerly AppSecret).", min_length=1)
    api_url: str = Field(
        default="https://api.dingtalk.com",
        pattern=r"^https?://[^\s/]+$",
        description="The base URL of DingTalk's API.",
    )


class _DingtalkMessage(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)

    msg_id: str
    msgtype: str
    conversation_id: str
    conversation_type: Literal["1", "2"]
    sender_id: str = ""
    sender_staff_id: str | None = None
    sender_nick: str = ""
    chatbot_user_id: str = ""
    is_in_at_list: bool = False
    session_webhook: str = ""
    session_webhook_expired_time: int = 0
    create_at: object = None
    text: object = None
    content: object = None


class _Forbidden(PermanentError):
    """The app lacks a permission."""


class _Api(AppClient):
    """The platform's HTTP API, called as the app."""

    platform = "DingTalk"
    authorization = ("x-acs-dingtalk-access-token", "{}")

    def __init__(self, settings: DingtalkSettings) -> None:
        super().__init__(settings.api_url)
        self._id, self._secret = settings.client_id, settings.client_secret.get_secret_value()

    async def stream(self, http: httpx2.AsyncClient) -> str:
        """Return the URL for one stream connection; it is valid for 90 seconds."""
        body = {
            "clientId": self._id,
            "clientSecret": self._secret,
            "subscriptions": [{"type": CallbackMessage.TYPE, "topic": ChatbotMessage.TOPIC}],
            "ua": "torana",
        }
        found = await self._request(http, "POST", "/v1.0/gateway/connections/open", body)
        return f"{found.get('endpoint', '')}?ticket={quote(text_at(found, 'ticket'), safe='')}"

    async def fetch(self, code: str, limit: int) -> bytes:
        """Return the content of a file, from the URL that the platform names."""
        body = {"robotCode": self._id, "downloadCode": code}
        async with asyncio.timeout(_FILE_SECONDS), self.client() as http:
            found = await self.call(http, "POST", "/v1.0/robot/messageFiles/download", body)
            url = text_at(found, "downloadUrl")
            if _url(url).scheme not in {"https", _url(self._base_url).scheme}:
                raise PermanentError("DingTalk returned an unsafe URL for the file")
            return await self._download(http, url, limit)

    async def _new_token(self, http: httpx2.AsyncClient) -> tuple[str, float]:
        body = {"appKey": self._id, "appSecret": self._secret}
        found = await self._request(http, "POST", "/v1.0/oauth2/accessToken", body)
        return str(found["accessToken"]), float(found.get("expireIn", 0))

    def _check(self, response: httpx2.Response, found: dict[str, Any]) -> dict[str, Any]:
        if _is_rate_limited(found):
            raise RetryLater("DingTalk blocks this IP address for too many calls", seconds=_SHUT_OUT)
        if response.is_success and found:
            return found
        code, status = text_at(found, "code"), response.status_code
        reason = f"DingTalk answers {status}, {code or 'no code'}: {one_line(text_at(found, 'message'))}"
        if code in _STALE:
            raise Stale(reason)
        if status == 429 or _LIMITS.search(code):
            raise RetryLater(reason, seconds=seconds(response.headers.get("Retry-After")))
        if response.is_server_error or code in _BUSY or not found:
            raise OutcomeUnknown(reason)
        raise (_Forbidden if _FORBIDDEN.search(code) else PermanentError)(reason)


class Dingtalk(Connector[DingtalkSettings]):
    """The robot of one app."""

    Settings = DingtalkSettings
    #: The older API accepts 5,000 characters, and 20,000 bytes of JSON.
    abilities = Capabilities(length=4_000, render=_markdown, repeat="blind")

    def __init__(self, settings: DingtalkSettings) -> None:
        super().__init__(settings)
        self._api = _Api(settings)
        self._http: httpx2.AsyncClient | None = None

    @property
    def credentials(self) -> str:
        return f"{self.settings.api_url} {self.settings.client_id}"

    async def run(self, sink: MessageSink) -> None:
        """Connect and listen; a message is acknowledged after it is stored.

        DingTalk requests a new connection every few hours. The new one opens first; the old one stays open only
        to acknowledge the messages that came over it, as long as DingTalk allows.
        """
        await self._api.run(self._run(sink))

    async def _run(self, sink: MessageSink) -> None:
        changed = -_LEAST
        async with self._api.client() as http:
            sockets = [await self._connect(http)]
            self._http = http
            try:
                sink.ready()
                async with concurrently(sink) as hear:
                    while True:
                        await self._listen(sockets[-1], sink, hear)
                        if time.monotonic() - changed < _LEAST:
                            raise ConnectionError("DingTalk ended the connection again too soon")
                        changed = time.monotonic()
                        sockets.append(await self._connect(http))
                        if len(sockets) > 2:  # DingTalk repeats the messages that it did not acknowledge
                            await sockets.pop(0).close()
            finally:
                self._http = None
                await asyncio.gather(*(socket.close() for socket in sockets))

    async def send(self, part: Part) -> str:
        """Send a part; the returned id is the platform's key of the message."""
        if self._http is None:
            raise RetryLater("there is no connection")
        user = part.place.reply_to.get("user")
        if user == "":  # a user from outside the organisation, who has no id in the API
            return await self._reply(self._http, part, "")
        body: dict[str, object] = {
            "robotCode": self.settings.client_id,
            "msgKey": "sampleMarkdown",
            "msgParam": json.dumps(_with_title(part.text), ensure_ascii=False),
        }
        try:
            if user is None:
                body["openConversationId"] = part.place.chat
                answer = await self._api.call(self._http, "POST", "/v1.0/robot/groupMessages/send", body)
            else:
                body["userIds"] = [user]
                answer = await self._api.call(self._http, "POST", "/v1.0/robot/oToMessages/batchSend", body)
        except _Forbidden as forbidden:
            return await self._reply(self._http, part, str(forbidden))
        if answer.get("flowControlledStaffIdList"):
            raise RetryLater("DingTalk limits the messages to this user")
        if answer.get("invalidStaffIdList") or answer.get("filteredStaffIdList"):
            raise PermanentError("DingTalk does not deliver messages to this user")
        return text_at(answer, "processQueryKey") or part.key

    async def _reply(self, http: httpx2.AsyncClient, part: Part, why: str) -> str:
        """Reply to the URL that came with the message."""
        url, until = part.place.reply_to.get("webhook", ""), part.place.reply_to.get("until", "0")
        if not self._is_trusted_url(url) or time.time() * 1000 >= int(until):
            raise PermanentError(why or "the reply URL of this message has expired")
        body = {"msgtype": "markdown", "markdown": _with_title(part.text), "at": {"isAtAll": False}}
        _, found = await request_json("DingTalk", http, "POST", url, body=body)
        answer = as_object(found)
        code = answer.get("errcode")
        reason = f"DingTalk answers {code}: {one_line(text_at(answer, 'errmsg'))}"
        if code == 0:
            return part.key
        if _is_rate_limited(answer) or code in _OLD_LIMITS:
            raise RetryLater(reason, seconds=_SHUT_OUT if _is_rate_limited(answer) else None)
        raise (PermanentError if isinstance(code, int) and code != _OLD_BUSY else OutcomeUnknown)(reason)

    def _is_trusted_url(self, url: str) -> bool:
        target, ours = _url(url), _url(self.settings.api_url)
        if target.userinfo:
            return False
        if (target.scheme, target.host, target.port) == (ours.scheme, ours.host, ours.port):
            return True
        return target.scheme == "https" and target.host.endswith(".dingtalk.com")

    async def _connect(self, http: httpx2.AsyncClient) -> ClientConnection:
        return await open_socket(await self._api.stream(http), platform="DingTalk")

    async def _listen(self, socket: ClientConnection, sink: MessageSink, hear: Hear) -> None:
        """Process frames until DingTalk requests a new connection; probe the connection during silence."""
        while True:
            raw = await next_frame(socket)
            if raw is not None:
                frame = as_object(read_json(raw))
                if not frame:  # the frame's message is lost, unless DingTalk repeats it on another connection
                    raise ConnectionError("DingTalk sent an unreadable frame")
                if text_at(as_object(frame.get("headers")), "topic") == SystemMessage.TOPIC_DISCONNECT:
                    return
                await self._take(frame, socket, hear)
            sink.alive()

    async def _take(self, frame: dict[str, object], socket: ClientConnection, hear: Hear) -> None:
        topic = text_at(as_object(frame.get("headers")), "topic")
        if frame.get("type") == SystemMessage.TYPE:
            await self._answer(frame, socket, as_object(read_json(text_at(frame, "data"))))
            return
        answer = partial(self._answer, frame, socket, {"response": None})
        heard = self._parse_message(text_at(frame, "data")) if topic == ChatbotMessage.TOPIC else None
        await (answer() if heard is None else hear(heard, answer))

    async def _answer(
        self, frame: dict[str, object], socket: ClientConnection, data: dict[str, object]
    ) -> None:
        headers = as_object(frame.get("headers"))
        ack = AckMessage()
        answered: Any = ack.headers
        answered.message_id = text_at(headers, "messageId")
        answered.content_type = Headers.CONTENT_TYPE_APPLICATION_JSON
        ack.message = "OK"
        ack.data = data
        # DingTalk repeats unacknowledged messages; the reading task handles the closed connection.
        with suppress(ConnectionClosed):
            await socket.send(json.dumps(ack.to_dict()))

    def _parse_message(self, data: str) -> IncomingMessage | None:
        """Parse a message; return None for a malformed message, which is not repeated."""
        try:
            message = _DingtalkMessage.model_validate_json(data)
        except ValidationError:
            return None
        sender, direct = message.sender_staff_id or message.sender_id, message.conversation_type == "1"
        text, attachments = self._content(message)
        own = bool(sender) and message.sender_id == message.chatbot_user_id != ""
        if not sender or own or not (text or attachments):
            return None
        reply_to = {"user": message.sender_staff_id or ""} if direct else dict[str, str]()
        if self._is_trusted_url(message.session_webhook):
            reply_to |= {"webhook": message.session_webhook, "until": str(message.session_webhook_expired_time)}
        return IncomingMessage(
            id=message.msg_id,
            sender=Sender(id=sender, name=one_line(message.sender_nick)),
            place=Place(chat=message.conversation_id, reply_to=reply_to),
            text=text,
            direct=direct,
            addressed=direct or message.is_in_at_list,
            attachments=attachments,
            said_at=time_of(message.create_at, per_second=1_000),
        )

    def _content(self, message: _DingtalkMessage) -> tuple[str, list[Attachment]]:
        """Return the text of a message and its files; both empty for an unsupported kind."""
        content = as_object(message.content)
        match message.msgtype:
            case "text":
                return text_at(as_object(message.text), "content").strip(), []
            case "richText":
                return self._rich(content, addressed=message.is_in_at_list)
            case "picture":
                return "", self._file(content, "image", "picture")
            case "audio":  # DingTalk transcribes speech
                return text_at(content, "recognition").strip(), self._file(content, "voice", "voice")
            case "video":
                return "", self._file(content, "video", f"video.{text_at(content, 'videoType') or 'mp4'}")
            case "file":
                return "", self._file(content, "file", one_line(text_at(content, "fileName")) or "file")
            case _:
                return "", []

    def _rich(self, content: Mapping[str, object], *, addressed: bool) -> tuple[str, list[Attachment]]:
        """Return text and pictures. Unlike a plain message, the text contains the mention of the robot."""
        text, files = "", list[Attachment]()
        items = content.get("richText")
        for item in cast("list[object]", items) if isinstance(items, list) else []:
            one = as_object(item)
            text += text_at(one, "text")
            files += self._file(one, "image", "picture")
        return re.sub(r"^\s*@\S+", "", text).strip() if addressed else text.strip(), files

    def _file(self, content: Mapping[str, object], kind: AttachmentKind, name: str) -> list[Attachment]:
        code = text_at(content, "downloadCode")
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        fetch = partial(self._api.fetch, code)
        return [Attachment(kind=kind, name=name, media_type=media_type, fetch=fetch)] if code else []


def _with_title(text: str) -> dict[str, str]:
    """Return a text with a title, which the list of chats shows."""
    return {"title": one_line(re.sub(r"[*`\\\u200b]", "", text))[:60] or "…", "text": text}


def _is_rate_limited(found: Mapping[str, object]) -> bool:
    """Return whether the response reports a rate limit, in any of the platform's interfaces."""
    return found.get("punish") == "deny"


def _url(text: str) -> httpx2.URL:
    """Parse a URL as the client does; return an empty URL if it is invalid."""
    try:
        return httpx2.URL(text)
    except httpx2.InvalidURL:
        return httpx2.URL()
