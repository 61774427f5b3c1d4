"""WhatsApp through Meta's Cloud API: Meta posts messages to the gateway's webhook.

https://developers.facebook.com/documentation/business-messaging/whatsapp. An account is one business number.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx2
from pydantic import Field, SecretStr

from torana.connectors.base import (
    ELSEWHERE,
    Attachment,
    AttachmentKind,
    Capabilities,
    ConnectorSettings,
    HookRequest,
    HookResponse,
    IncomingMessage,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
    TooLarge,
)
from torana.connectors.transport.hooked import HookedConnector
from torana.connectors.transport.http import as_object, read_bounded, request_json, seconds, text_at
from torana.connectors.transport.markup import whatsapp
from torana.connectors.transport.parsing import time_of
from torana.connectors.transport.splitting import utf16_length

log = logging.getLogger(__name__)

#: Meta's codes for an invalid token.
_LOCKED_OUT = (0, 190)
#: Meta's codes for rate limits: of the app, the account, the number and one recipient.
_TOO_MANY = (4, 80007, 130429, 131048, 131056)
#: The host of Meta's files, besides the API itself.
_FILES = "https://lookaside.fbsbx.com"

_KINDS: Mapping[str, AttachmentKind] = {
    "image": "image",
    "sticker": "image",
    "document": "file",
    "audio": "voice",
    "video": "video",
}


class WhatsappSettings(ConnectorSettings):
    """The settings of a business number, and the secrets of its app."""

    phone_number_id: str = Field(pattern=r"^\d+$", description="The id of the phone number (not the number).")
    access_token: SecretStr = Field(min_length=1, description="The permanent token of a system user.")
    app_secret: SecretStr = Field(min_length=1, description="The app secret, with which Meta signs its calls.")
    verify_token: SecretStr = Field(
        min_length=8, description="A password that you choose and enter at Meta with the webhook's URL."
    )
    version: str = Field(default="v23.0", pattern=r"^v\d+\.\d+$", description="The version of the Graph API.")
    api_url: str = Field(default="https://graph.facebook.com", description="The base URL of the Graph API.")


class Whatsapp(HookedConnector[WhatsappSettings]):
    """A business number on WhatsApp; all its chats are direct."""

    Settings = WhatsappSettings
    global_ids = True
    refusal = "Meta refuses the access token: create a new one in the Business settings"
    # Each call gets a new connection: on a reused connection that Meta is closing, the outcome of a call would
    # be unknown.
    limits = httpx2.Limits(max_keepalive_connections=0)
    abilities = Capabilities(
        length=4096,
        measure=utf16_length,
        render=whatsapp,
        repeat="blind",
        typing_every=20.0,
        quiet=None,
    )

    def __init__(self, settings: WhatsappSettings) -> None:
        super().__init__(settings)
        self._base = f"{settings.api_url.rstrip('/')}/{settings.version}"
        self._number = f"{self._base}/{settings.phone_number_id}"

    @property
    def credentials(self) -> str:
        return self.settings.phone_number_id

    async def hook(self, request: HookRequest) -> HookResponse:
        """Process a call; ``GET`` is Meta's verification of the webhook."""
        return (
            self._answer_verification(request.query) if request.method == "GET" else await super().hook(request)
        )

    async def send(self, part: Part) -> str:
        """Send a part as a text message. Meta reports the delivery later; a failed delivery is only logged."""
        chat = part.place.chat
        # A user without a visible number has a business-scoped id, such as US.13491208655302741918.
        field = "to" if chat.isdigit() else "recipient"
        body = {
            "messaging_product": "whatsapp",
            "recipient_type": "individual",
            field: chat,
            "type": "text",
            "text": {"preview_url": False, "body": part.text},
        }
        match await self._call("POST", f"{self._number}/messages", body):
            case {"messages": [{"id": str(name)}, *_]}:
                return name
            case _:
                raise OutcomeUnknown("Meta's response contains no message id")

    async def typing(self, place: Place) -> None:
        """Mark the message as read, and show the typing indicator for at most 25 seconds."""
        body = {
            "messaging_product": "whatsapp",
            "status": "read",
            "message_id": place.reply_to["message"],
            "typing_indicator": {"type": "text"},
        }
        await self._call("POST", f"{self._number}/messages", body)

    def _answer_verification(self, query: Mapping[str, str]) -> HookResponse:
        """Answer Meta's verification of the webhook, which contains the verify token."""
        given = query.get("hub.verify_token", "").encode(errors="replace")
        right = hmac.compare_digest(given, self.settings.verify_token.get_secret_value().encode())
        if not right or query.get("hub.mode") != "subscribe":
            return HookResponse(status=403)
        return HookResponse(body=query.get("hub.challenge", "").encode(errors="replace"))

    @property
    def _access_token(self) -> str:
        return self.settings.access_token.get_secret_value()

    async def _check_access(self) -> None:
        await self._call("GET", f"{self._number}?fields=id")

    def _signature(self, body: bytes) -> tuple[str, str]:
        secret = self.settings.app_secret.get_secret_value().encode()
        return "x-hub-signature-256", f"sha256={hmac.digest(secret, body, hashlib.sha256).hex()}"

    def _events(self, body: Any) -> Iterator[tuple[Any, Mapping[str, str]]]:
        """Yield the messages of a call, with the names of their senders; log failed deliveries."""
        for value in self._values(body):
            _log_failures(value)
            names = _names(value)
            for message in _list(value, "messages"):
                yield message, names

    def _values(self, body: Any) -> Iterator[Any]:
        """Yield the events for this number: all numbers of an app call the same address."""
        for entry in _list(body, "entry"):
            for change in _list(entry, "changes"):
                match change:
                    case {"field": "messages", "value": {"metadata": {"phone_number_id": number}} as value}:
                        if number == self.settings.phone_number_id:
                            yield value
                    case _:
                        pass

    def _parse_event(self, event: tuple[Any, Mapping[str, str]]) -> IncomingMessage | None:
        """Parse a user's message; None for reactions, orders, group messages and similar events."""
        message, names = event
        match message:
            case {"group_id": _}:
                return None
            case {"id": str(name), "type": str(kind), **rest}:
                sender = rest.get("from") or rest.get("from_user_id")
                text, attachments = _text(kind, rest.get(kind)), self._attachments(kind, rest.get(kind))
            case _:
                return None
        if not isinstance(sender, str) or not (text or attachments):
            return None
        return IncomingMessage(
            id=name,
            sender=Sender(id=sender, name=names.get(sender, "")),
            place=Place(chat=sender, reply_to={"message": name}),
            text=text,
            direct=True,
            addressed=True,
            attachments=attachments,
            said_at=time_of(rest.get("timestamp")),
            in_reply_to=_replied_message(as_object(rest.get("context"))),
        )

    def _attachments(self, kind: str, content: Any) -> list[Attachment]:
        match content:
            case {"id": str(media), "mime_type": str(media_type), **rest} if kind in _KINDS:
                return [
                    Attachment(
                        kind=_KINDS[kind],
                        name=str(rest.get("filename") or ""),
                        media_type=media_type.partition(";")[0].strip(),
                        fetch=partial(self._fetch, media),
                    )
                ]
            case _:
                return []

    async def _fetch(self, media: str, limit: int) -> bytes:
        """Return a file by its id: request its URL, which is valid for five minutes, and fetch it."""
        match await self._call("GET", f"{self._base}/{quote(media, safe='')}"):
            case {"url": str(), "file_size": int(size)} if size > limit:
                raise TooLarge(f"the file has {size} bytes")
            case {"url": str(url)}:
                pass
            case _:
                raise OSError("Meta's response contains no URL of the file")
        if _origin(url) not in (_origin(_FILES), _origin(self.settings.api_url)):
            raise OSError("the file is not on a host of Meta")  # no other host may get the token
        async with self._client.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise OSError(f"Meta answered {answer.status_code} for the file")
            return await read_bounded(answer, limit)

    async def _call(self, method: str, url: str, body: object = None) -> Any:
        """Call Meta and return the JSON of its response. Raises the connector error for a failure."""
        response, answer = await request_json("Meta", self._client, method, url, body=body)
        if response.is_success:
            return answer
        raise self._fault(response, answer)

    def _fault(self, response: httpx2.Response, answer: Any) -> Exception:
        status = response.status_code
        match answer:
            case {"error": {"code": int(code)}}:
                reason = f"Meta answered {status}, code {code}{_describe_error(answer)}"
            case _:
                code, reason = None, f"Meta answered {status}"
        if status == 401 or code in _LOCKED_OUT:
            return self._lock_out("Meta refuses the access token")  # Meta's own text may quote the token
        if status == 429 or code in _TOO_MANY:
            return RetryLater(reason, seconds=seconds(response.headers.get("retry-after")))
        return OutcomeUnknown(reason) if status >= 500 else PermanentError(reason)


def _describe_error(answer: Any) -> str:
    match answer:
        case {"error": {"error_data": {"details": str(text)}}} | {"error": {"message": str(text)}}:
            return f": {text[:200]}"
        case _:
            return ""


def _list(value: Any, name: str) -> list[Any]:
    """Return a list in an object; empty if there is none."""
    match value:
        case {**fields} if isinstance(fields.get(name), list):
            return fields[name]
        case _:
            return []


def _names(value: Any) -> dict[str, str]:
    names: dict[str, str] = {}
    for contact in _list(value, "contacts"):
        match contact:
            case {"profile": {"name": str(name)}, **rest}:
                names |= {str(rest[key]): name for key in ("wa_id", "user_id") if key in rest}
            case _:
                pass
    return names


def _replied_message(context: dict[str, Any]) -> str | None:
    if context.get("forwarded") or context.get("frequently_forwarded"):
        return ELSEWHERE
    return text_at(context, "id") or None


def _text(kind: str, content: Any) -> str:
    match kind, content:
        case "text", {"body": str(text)}:
            return text
        case "button", {"text": str(text)}:
            return text
        case "interactive", {"button_reply": {"title": str(text)}} | {"list_reply": {"title": str(text)}}:
            return text
        case _, {"caption": str(text)} if kind in _KINDS:
            return text
        case _:
            return ""


def _log_failures(value: Any) -> None:
    """Log failed deliveries, such as 131047: the user did not write within 24 hours."""
    for status in _list(value, "statuses"):
        match status:
            case {"status": "failed", "id": message, "errors": [{"code": code, "title": title}, *_]}:
                log.warning("whatsapp_message_failed", extra={"id": message, "code": code, "title": title})
            case _:
                pass


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL:
        return "", "", None
    return parts.scheme, parts.host, parts.port
