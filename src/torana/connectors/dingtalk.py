"""DingTalk: messages come over its stream, replies go through the robot's interface.

The platform's library gives the stream's frames. Its client asks for a connection with a call that blocks, logs
the ticket of it, and takes the address of the platform from the environment, once for the whole process.
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

import httpx
from dingtalk_stream import AckMessage, CallbackMessage, ChatbotMessage, SystemMessage
from dingtalk_stream.frames import Headers
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.alias_generators import to_camel
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from torana.connectors.abreast import Hear, abreast
from torana.connectors.app_token import AppToken, Stale
from torana.connectors.base import (
    Abilities,
    Attachment,
    Connector,
    ConnectorSettings,
    Ears,
    Heard,
    Part,
    Place,
    Refused,
    Sender,
    TryLater,
    Unsure,
)
from torana.connectors.http_calls import (
    as_object,
    asked,
    bounded,
    one_line,
    read_json,
    seconds,
    text_at,
    told_by,
)
from torana.connectors.long_connection import next_frame, open_socket
from torana.connectors.markup import Dialect, render
from torana.connectors.times import time_of

Kind = Literal["image", "file", "voice", "video"]

#: For one step of a call, and for the whole of a file.
_SECONDS, _FILE_SECONDS = 30.0, 300.0
#: A connection that DingTalk wants changed sooner than this after the last change is given up.
_LEAST = 10.0
_FRAME_BYTES = 4 * 1024 * 1024

_STALE = {"InvalidAuthentication", "accesstoken.expired"}
_LIMITS = re.compile(r"Q[pP][sSmM]Limit|qps\.exceed\.limit|request\.overlimit|oaplus\.query\.limit|Throttling")
_FORBIDDEN = re.compile(r"AccessTokenPermissionDenied|apiPermissionDenied", re.IGNORECASE)
_BUSY = {"system.error", "systemError", "systemBusy", "unknownError", "ServiceUnavailable"}
#: The same of the older interface, in which each message's own address lies.
_OLD_LIMITS = {90001, 90002, 90018, 130101, 410100, 660026}
_OLD_BUSY = -1
#: For so long an address that asked too often is shut out; the answer says it in a number without a unit.
_SHUT_OUT = 300.0

_SPECIAL = re.compile(r"[*`]|\b_|_\b|\\(?=[!-/:-@\[-`{-~])|^(?:[#>]|[-+](?=\s))")


def _unheard(text: str) -> str:
    """The text without anything that calls somebody, makes a link or colours it."""
    text = re.sub(r"(?<![\w.])@(?=\w)", "@\u200b", text)
    return re.sub(r"<(?=[a-zA-Z/!])", "<\u200b", text.replace("](", "]\u200b("))


_MARKDOWN = Dialect(
    text=lambda text: _unheard(_SPECIAL.sub(lambda found: f"\\{found[0]}", text)),
    marks={"strong": ("**", "**"), "em": ("*", "*")},
    block=("```\n", "\n```"),
    code=lambda code: _unheard(code).replace("```", "`\u200b`\u200b`"),
    span=lambda code: _unheard(code).replace("`", "ˋ"),
    link=lambda url, words: f"[{words}]({url.replace('(', '%28').replace(')', '%29')})",
)


def _markdown(text: str) -> str:
    """The little Markdown that all of DingTalk's clients know. Two spaces end a line."""
    return re.sub(r"(?<!\n)\n(?!\n)", "  \n", render(text, _MARKDOWN))


class DingtalkSettings(ConnectorSettings):
    """What is said of a DingTalk app."""

    client_id: str = Field(
        description="The app's Client ID (once: AppKey), which its robot has too.", min_length=1
    )
    client_secret: SecretStr = Field(description="The app's Client Secret (once: AppSecret).", min_length=1)
    api_url: str = Field(
        default="https://api.dingtalk.com",
        pattern=r"^https?://[^\s/]+$",
        description="Where DingTalk's interface is.",
    )


class _Said(BaseModel):
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


class _Forbidden(Refused):
    """The app lacks a permission."""


class _Api:
    """The platform's HTTP interface, as the app."""

    def __init__(self, settings: DingtalkSettings) -> None:
        self._id, self._secret, self._url = settings.client_id, settings.client_secret, settings.api_url
        self._token = AppToken(ask=self._new_token)

    def client(self) -> httpx.AsyncClient:
        """Connections of their own; whoever asks for them closes them."""
        return httpx.AsyncClient(base_url=self._url, timeout=_SECONDS)

    async def stream(self, http: httpx.AsyncClient) -> str:
        """The address of a connection, which holds for one and for 90 seconds."""
        body = {
            "clientId": self._id,
            "clientSecret": self._secret.get_secret_value(),
            "subscriptions": [{"type": CallbackMessage.TYPE, "topic": ChatbotMessage.TOPIC}],
            "ua": "torana",
        }
        found = await _ask(http, "/v1.0/gateway/connections/open", body)
        return f"{found.get('endpoint', '')}?ticket={quote(text_at(found, 'ticket'), safe='')}"

    async def call(self, http: httpx.AsyncClient, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Ask for something as the app."""

        async def ask(token: str) -> dict[str, Any]:
            return await _ask(http, path, body, {"x-acs-dingtalk-access-token": token})

        return await self._token.use(http, ask)

    async def fetch(self, code: str, limit: int) -> bytes:
        """The bytes of a file, from where the platform says that it is."""
        async with asyncio.timeout(_FILE_SECONDS), self.client() as http:
            body = {"robotCode": self._id, "downloadCode": code}
            url = text_at(await self.call(http, "/v1.0/robot/messageFiles/download", body), "downloadUrl")
            if _url(url).scheme not in {"https", _url(self._url).scheme}:
                raise Refused("DingTalk names no safe address for the file")
            with told_by("DingTalk"):
                async with http.stream("GET", url) as answer:
                    return await _bytes(answer, limit)

    async def _new_token(self, http: httpx.AsyncClient) -> tuple[str, float]:
        body = {"appKey": self._id, "appSecret": self._secret.get_secret_value()}
        found = await _ask(http, "/v1.0/oauth2/accessToken", body)
        return str(found["accessToken"]), float(found.get("expireIn", 0))


class Dingtalk(Connector[DingtalkSettings]):
    """The robot of one app."""

    Settings = DingtalkSettings
    #: The older interface takes 5,000 characters, and 20,000 bytes of JSON.
    abilities = Abilities(length=4_000, render=_markdown, repeat="blind")

    def __init__(self, settings: DingtalkSettings) -> None:
        super().__init__(settings)
        self._api = _Api(settings)
        self._http: httpx.AsyncClient | None = None

    @property
    def credentials(self) -> str:
        """The app, and where it lives."""
        return f"{self.settings.api_url} {self.settings.client_id}"

    async def run(self, ears: Ears) -> None:
        """As ``Connector``; a message is acknowledged when it was taken.

        DingTalk wants every connection changed after some hours. The new one is there before anything else: the
        old one only acknowledges what came over it, as long as DingTalk lets it.
        """
        changed = -_LEAST
        async with self._api.client() as http:
            sockets = [await self._connect(http)]
            self._http = http
            try:
                ears.ready()
                async with abreast(ears) as hear:
                    while True:
                        await self._listen(sockets[-1], ears, hear)
                        if time.monotonic() - changed < _LEAST:
                            raise ConnectionError("DingTalk ends every connection")
                        changed = time.monotonic()
                        sockets.append(await self._connect(http))
                        if len(sockets) > 2:  # what it was to acknowledge is told again
                            await sockets.pop(0).close()
            finally:
                self._http = None
                await asyncio.gather(*(socket.close() for socket in sockets))

    async def send(self, part: Part) -> str:
        """As ``Connector``; the id is the platform's key of the sending."""
        if self._http is None:
            raise TryLater("there is no connection")
        user = part.place.reply_to.get("user")
        if user == "":  # somebody from outside of the organisation, whom the interface does not know
            return await self._reply(self._http, part, "")
        body: dict[str, object] = {
            "robotCode": self.settings.client_id,
            "msgKey": "sampleMarkdown",
            "msgParam": json.dumps(_titled(part.text), ensure_ascii=False),
        }
        try:
            if user is None:
                body["openConversationId"] = part.place.chat
                answer = await self._api.call(self._http, "/v1.0/robot/groupMessages/send", body)
            else:
                body["userIds"] = [user]
                answer = await self._api.call(self._http, "/v1.0/robot/oToMessages/batchSend", body)
        except _Forbidden as forbidden:
            return await self._reply(self._http, part, str(forbidden))
        if answer.get("flowControlledStaffIdList"):
            raise TryLater("DingTalk holds messages to this person back")
        if answer.get("invalidStaffIdList") or answer.get("filteredStaffIdList"):
            raise Refused("DingTalk does not deliver to this person")
        return text_at(answer, "processQueryKey") or part.key

    async def _reply(self, http: httpx.AsyncClient, part: Part, why: str) -> str:
        """Answer at the address that came with the message."""
        url, until = part.place.reply_to.get("webhook", ""), part.place.reply_to.get("until", "0")
        if not self._trusted(url) or time.time() * 1000 >= int(until):
            raise Refused(why or "the time in which DingTalk takes an answer to this person is over")
        body = {"msgtype": "markdown", "markdown": _titled(part.text), "at": {"isAtAll": False}}
        _, found = await asked("DingTalk", http, "POST", url, body=body)
        answer = as_object(found)
        code = answer.get("errcode")
        said = f"DingTalk answers {code}: {one_line(text_at(answer, 'errmsg'))}"
        if code == 0:
            return part.key
        if _shut_out(answer) or code in _OLD_LIMITS:
            raise TryLater(said, seconds=_SHUT_OUT if _shut_out(answer) else None)
        raise (Refused if isinstance(code, int) and code != _OLD_BUSY else Unsure)(said)

    def _trusted(self, url: str) -> bool:
        """Whether an address that came with a message is DingTalk's, and no trap."""
        told, ours = _url(url), _url(self.settings.api_url)
        if told.userinfo:
            return False
        if (told.scheme, told.host, told.port) == (ours.scheme, ours.host, ours.port):
            return True
        return told.scheme == "https" and told.host.endswith(".dingtalk.com")

    async def _connect(self, http: httpx.AsyncClient) -> ClientConnection:
        url = await self._api.stream(http)
        try:
            return await open_socket(url, largest=_FRAME_BYTES)
        except InvalidURI:
            raise Refused("DingTalk names no address for the stream") from None
        except InvalidHandshake as error:
            raise ConnectionError(f"no stream: {type(error).__name__}") from None

    async def _listen(self, socket: ClientConnection, ears: Ears, hear: Hear) -> None:
        """Take what comes, until another connection is wanted; where nothing does, see who is there."""
        while True:
            raw = await next_frame(socket)
            if raw is not None:
                frame = as_object(read_json(raw))
                if not frame:  # what was in it is lost, unless it is told again to another connection
                    raise ConnectionError("DingTalk sent what cannot be read")
                if text_at(as_object(frame.get("headers")), "topic") == SystemMessage.TOPIC_DISCONNECT:
                    return
                await self._take(frame, socket, hear)
            ears.alive()

    async def _take(self, frame: dict[str, object], socket: ClientConnection, hear: Hear) -> None:
        topic = text_at(as_object(frame.get("headers")), "topic")
        if frame.get("type") == SystemMessage.TYPE:
            await self._answer(frame, socket, as_object(read_json(text_at(frame, "data"))))
            return
        answer = partial(self._answer, frame, socket, {"response": None})
        heard = self._heard(text_at(frame, "data")) if topic == ChatbotMessage.TOPIC else None
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
        # Then it is told again; whoever listens to this connection knows of its end.
        with suppress(ConnectionClosed):
            await socket.send(json.dumps(ack.to_dict()))

    def _heard(self, data: str) -> Heard | None:
        """A message; a malformed one is none, and is not told again."""
        try:
            said = _Said.model_validate_json(data)
        except ValidationError:
            return None
        sender, direct = said.sender_staff_id or said.sender_id, said.conversation_type == "1"
        text, attachments = self._content(said)
        own = bool(sender) and said.sender_id == said.chatbot_user_id != ""
        if not sender or own or not (text or attachments):
            return None
        reply_to = {"user": said.sender_staff_id or ""} if direct else dict[str, str]()
        if self._trusted(said.session_webhook):
            reply_to |= {"webhook": said.session_webhook, "until": str(said.session_webhook_expired_time)}
        return Heard(
            id=said.msg_id,
            sender=Sender(id=sender, name=one_line(said.sender_nick)),
            place=Place(chat=said.conversation_id, reply_to=reply_to),
            text=text,
            direct=direct,
            addressed=direct or said.is_in_at_list,
            attachments=attachments,
            said_at=time_of(said.create_at, per_second=1_000),
        )

    def _content(self, said: _Said) -> tuple[str, list[Attachment]]:
        """What a message says, and the files in it; nothing where it is of a kind that cannot be read."""
        content = as_object(said.content)
        match said.msgtype:
            case "text":
                return text_at(as_object(said.text), "content").strip(), []
            case "richText":
                return self._rich(content, addressed=said.is_in_at_list)
            case "picture":
                return "", self._file(content, "image", "picture")
            case "audio":  # DingTalk hears what is said in it
                return text_at(content, "recognition").strip(), self._file(content, "voice", "voice")
            case "video":
                return "", self._file(content, "video", f"video.{text_at(content, 'videoType') or 'mp4'}")
            case "file":
                return "", self._file(content, "file", one_line(text_at(content, "fileName")) or "file")
            case _:
                return "", []

    def _rich(self, content: Mapping[str, object], *, addressed: bool) -> tuple[str, list[Attachment]]:
        """Text with pictures. Unlike in a plain message, the robot's name stands in it."""
        text, files = "", list[Attachment]()
        items = content.get("richText")
        for item in cast("list[object]", items) if isinstance(items, list) else []:
            one = as_object(item)
            text += text_at(one, "text")
            files += self._file(one, "image", "picture")
        return re.sub(r"^\s*@\S+", "", text).strip() if addressed else text.strip(), files

    def _file(self, content: Mapping[str, object], kind: Kind, name: str) -> list[Attachment]:
        code = text_at(content, "downloadCode")
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        fetch = partial(self._api.fetch, code)
        return [Attachment(kind=kind, name=name, media_type=media_type, fetch=fetch)] if code else []


def _titled(text: str) -> dict[str, str]:
    """A text, and what the list of chats shows of it."""
    return {"title": one_line(re.sub(r"[*`\\\u200b]", "", text))[:60] or "…", "text": text}


async def _ask(
    http: httpx.AsyncClient, path: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the platform answers, if it does what it is asked."""
    answer, content = await asked("DingTalk", http, "POST", path, body=body, headers=headers)
    found = as_object(content)
    if _shut_out(found):
        raise TryLater("DingTalk has shut this address out", seconds=_SHUT_OUT)
    if answer.is_success and found:
        return found
    code = text_at(found, "code")
    said = f"DingTalk answers {answer.status_code}, {code or 'no code'}: {one_line(text_at(found, 'message'))}"
    if code in _STALE:
        raise Stale(said)
    if answer.status_code == 429 or _LIMITS.search(code):
        raise TryLater(said, seconds=seconds(answer.headers.get("Retry-After")))
    if answer.is_server_error or code in _BUSY or not found:
        raise Unsure(said)
    raise (_Forbidden if _FORBIDDEN.search(code) else Refused)(said)


def _shut_out(found: Mapping[str, object]) -> bool:
    """Whether it answers thus to whoever asks too often, in whatever interface."""
    return found.get("punish") == "deny"


async def _bytes(answer: httpx.Response, limit: int) -> bytes:
    """What a file holds, and no more of it than may be."""
    if answer.status_code != 200:
        raise (Unsure if answer.is_server_error else Refused)(f"the file is not there: {answer.status_code}")
    return await bounded(answer, limit)


def _url(text: str) -> httpx.URL:
    """An address as the client reads it, or an empty one."""
    try:
        return httpx.URL(text)
    except httpx.InvalidURL:
        return httpx.URL()
