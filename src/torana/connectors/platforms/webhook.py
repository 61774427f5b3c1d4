"""Webhooks: programs post signed JSON to the gateway, and receive signed replies.

Both directions use Standard Webhooks (https://www.standardwebhooks.com); calls may use GitHub's scheme.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import math
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import httpx2
import jsonpath_rfc9535 as jsonpath
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from torana.connectors.base import (
    Capabilities,
    Connector,
    ConnectorSettings,
    HookRequest,
    HookResponse,
    IncomingMessage,
    MessageSink,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
)
from torana.connectors.transport.hooked import parse_hook_body
from torana.web.cookies import refuse_cookies

_TIMEOUT = 30.0
#: Maximum length, in bytes, of an id that a program chooses.
_ID_LIMIT = 200
#: The number of signatures of a call that are compared. A sender that changes its secret sends two.
_SIGNATURES = 10
#: Minimum length, in bytes, of a secret, as the standard requires.
_SECRET_BYTES = 24
#: Status codes after which the same message may be sent again.
_RETRIED_STATUSES = (408, 409, 425)


def _path(path: str) -> str:
    try:
        jsonpath.compile(path)
    except jsonpath.JSONPathError as error:
        raise ValueError(f"not a JSONPath (RFC 9535): {error.args[0]}") from None
    return path


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # The text does not repeat the value: an invalid port may be a password.
        raise ValueError("must be an https:// URL with a valid host and port") from None
    if parts.username or parts.password:
        raise ValueError("must not contain a user or a password: URLs are written to logs")
    if not parts.hostname or not (
        parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname))
    ):
        raise ValueError("must be an https:// URL, or an http:// URL of this machine")
    return url


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Path = Annotated[str, AfterValidator(_path)]


class WebhookSettings(ConnectorSettings):
    """The secrets of callers, the paths of a message's fields in the JSON, and the URL for replies."""

    secrets: Annotated[tuple[SecretStr, ...], BeforeValidator(_one_or_more)] = Field(
        min_length=1,
        description="Keys of signatures: a call may be signed with any of them, so that keys can be rotated. "
        "The first key signs replies.",
    )
    scheme: Literal["standard", "github"] = Field(
        default="standard", description="How calls are signed: by Standard Webhooks, or as GitHub signs."
    )
    tolerance: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Maximum difference, in seconds, between the time in a call and the gateway's clock. Calls "
        "of the scheme `github` contain no time.",
    )
    content: Path = Field(default="$.content", description="JSONPath of the message's text.")
    sender: Path = Field(default="$.sender", description="JSONPath of the sender; the default is `program`.")
    chat: Path = Field(default="$.chat", description="JSONPath of the room; without it, the message is direct.")
    thread: Path = Field(default="$.thread", description="JSONPath of the thread.")
    id: Path | None = Field(
        default=None, description="JSONPath of the message's id, if it is not the id of the call."
    )
    when: Path | None = Field(
        default=None,
        description="JSONPath that a call must match; other calls are dropped.",
    )
    reply_url: Annotated[str, AfterValidator(_address)] | None = Field(
        default=None, description="The URL for replies: `https://`, or `http://` of this machine."
    )

    events: tuple[Literal["turn.completed", "turn.failed"], ...] = Field(
        default=(), description="Events of all users and channels that are also posted to `reply_url`."
    )

    @model_validator(mode="after")
    def _check_secrets(self) -> WebhookSettings:
        if not all(_key(secret, self.scheme) for secret in self.secrets):
            raise ValueError(
                f"a secret must be base64 of at least {_SECRET_BYTES} bytes, optionally after `whsec_`; "
                "create one with `openssl rand -base64 32`"
            )
        return self


class Webhook(Connector[WebhookSettings]):
    """A program that posts messages and receives replies."""

    Settings = WebhookSettings
    # A program gets the original Markdown, in one part unless it is extremely long.
    abilities = Capabilities(length=100_000, repeat="keyed", render=str, threads=True, quiet=None, asks=False)

    _sink: MessageSink | None = None
    _client: httpx2.AsyncClient

    @property
    def credentials(self) -> str:
        return self.settings.secrets[0].get_secret_value()

    @property
    def events(self) -> Collection[str]:
        return self.settings.events

    async def run(self, sink: MessageSink) -> None:
        """Accept calls until cancelled; there is no connection."""
        # Unencrypted replies stay on this machine, so no proxy is used for them.
        secure = (self.settings.reply_url or "").startswith("https:")
        client = httpx2.AsyncClient(timeout=_TIMEOUT, trust_env=secure, cookies=refuse_cookies())
        async with client as self._client:
            self._sink = sink
            try:
                sink.ready()
                await asyncio.Event().wait()
            finally:
                self._sink = None

    async def take_calls(self, sink: MessageSink) -> None:
        await self.run(sink)

    async def hook(self, request: HookRequest) -> HookResponse:
        """Process the message of a call. If the call has no message, the response names the paths searched."""
        if self._sink is None:
            return HookResponse(status=503)
        if not self._is_signed(request):
            return HookResponse(status=401, body=b"wrong signature")
        if not self._is_timely(request.headers):
            return HookResponse(status=401, body=f"not within {self.settings.tolerance} s".encode())
        try:
            heard = self._parse_call(request.headers, parse_hook_body(request.body))
        except (ValueError, jsonpath.JSONPathError) as error:
            return HookResponse(status=400, body=f"no message: {error}"[:200].encode(errors="replace"))
        if heard is None:
            paths = " or ".join(path for path in (self.settings.content, self.settings.when) if path)
            return HookResponse(body=f"no message: nothing at {paths}".encode())
        await self._sink.hear(heard)
        return HookResponse()

    async def send(self, part: Part) -> str:
        """Post a part to the program. Each try has the same ``webhook-id``, which is the part's key."""
        url = self.settings.reply_url
        if url is None:
            raise PermanentError("the reply cannot be posted: `reply_url` is not set")
        body = _reply(part)
        try:
            async with self._client.stream(
                "POST", url, content=body, headers=self._signature(part.key, body)
            ) as answer:
                _check(answer)  # the body is not read
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise RetryLater(f"cannot connect to the program ({type(error).__name__})") from error
        except httpx2.HTTPError as error:
            raise OutcomeUnknown(f"the program did not answer ({type(error).__name__})") from error
        return part.key

    def _is_signed(self, request: HookRequest) -> bool:
        headers = request.headers
        if self.settings.scheme == "github":
            given = [headers.get("x-hub-signature-256", "")]
            right = [f"sha256={self._digest(n, request.body).hex()}" for n in range(len(self.settings.secrets))]
        else:
            signed = f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}.".encode(
                errors="replace"
            )
            given = headers.get("webhook-signature", "").split(" ", _SIGNATURES)[:_SIGNATURES]
            right = [_v1(self._digest(n, signed + request.body)) for n in range(len(self.settings.secrets))]
        # All pairs are compared, each in constant time.
        matches = [
            hmac.compare_digest(one.encode(errors="replace"), other.encode())
            for one in given
            for other in right
        ]
        return any(matches)

    def _is_timely(self, headers: Mapping[str, str]) -> bool:
        """Return whether the signed time is near the current time; GitHub signs no time."""
        if self.settings.scheme == "github":
            return True
        timestamp = headers.get("webhook-timestamp", "")
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
            return False
        return abs(time.time() - int(timestamp)) <= self.settings.tolerance

    def _parse_call(self, headers: Mapping[str, str], body: jsonpath.JSONValue) -> IncomingMessage | None:
        """Parse the message of a call; None if there is none. Raises ``ValueError`` for an invalid one."""
        settings = self.settings
        text = _first(settings.content, body)
        if not text or (settings.when and not jsonpath.find(settings.when, body)):
            return None
        delivery = headers.get("x-github-delivery" if settings.scheme == "github" else "webhook-id", "")
        name = (_first(settings.id, body) or "") if settings.id else delivery
        sender = _first(settings.sender, body) or "program"
        chat, thread = _first(settings.chat, body) or None, _first(settings.thread, body) or None
        for one in (name, sender, chat, thread):
            _check_id(one)
        return IncomingMessage(
            id=name,
            sender=Sender(id=sender),
            place=Place(chat=chat or sender, thread=thread, reply_to={"message": name}),
            text=text,
            direct=chat is None,
            addressed=True,
        )

    def _signature(self, key: str, body: bytes) -> dict[str, str]:
        now = str(int(time.time()))
        return {
            "content-type": "application/json",
            "webhook-id": key,
            "webhook-timestamp": now,
            "webhook-signature": _v1(self._digest(0, f"{key}.{now}.".encode() + body)),
        }

    def _digest(self, number: int, signed: bytes) -> bytes:
        secret = _key(self.settings.secrets[number], self.settings.scheme)
        return hmac.digest(secret, signed, hashlib.sha256)


def _key(secret: SecretStr, scheme: str) -> bytes:
    """Return a secret's bytes; empty for an invalid secret."""
    text = secret.get_secret_value()
    if scheme == "github":
        return text.encode()
    try:
        key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        return b""
    return key if len(key) >= _SECRET_BYTES else b""


def _check_id(value: str | None) -> None:
    """Raise ``ValueError`` for an id that cannot be stored, also for one with a lone surrogate."""
    if value is not None and (not value or len(value.encode()) > _ID_LIMIT or "\0" in value):
        raise ValueError(f"an id must have 1 to {_ID_LIMIT} bytes of text")


def _v1(digest: bytes) -> str:
    return f"v1,{base64.b64encode(digest).decode()}"


def _first(path: str, body: jsonpath.JSONValue) -> str | None:
    """Return the first value at a path if it is a text or an integer."""
    value = next((node.value for node in jsonpath.finditer(path, body)), None)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _reply(part: Part) -> bytes:
    place = part.place
    data: dict[str, Any] = {
        "chat": place.chat,
        "thread": place.thread,
        "in_reply_to": place.reply_to.get("message"),
        "number": part.number,
        "text": part.text,
    }
    kind = "reply"
    if name := place.reply_to.get("event"):
        kind, data = name, json.loads(part.text)
    event = {"type": kind, "id": part.key, "timestamp": datetime.now(UTC).isoformat(), "data": data}
    return json.dumps(event).encode()


def _check(answer: httpx2.Response) -> None:
    """Raise the connector error for a response that is no success."""
    status, reason = answer.status_code, f"the program answered {answer.status_code}"
    if answer.is_success:
        return
    wait = _seconds(answer.headers.get("retry-after"))
    if status == 429 or (status == 503 and wait is not None):
        raise RetryLater(reason, seconds=wait)
    if status >= 500 or status in _RETRIED_STATUSES:
        raise OutcomeUnknown(reason)
    raise PermanentError(reason)  # redirects are not followed: the operator must change the URL


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of ``Retry-After``, which is a number or a date."""
    if not retry_after:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    try:
        return max(0.0, math.ceil(parsedate_to_datetime(retry_after).timestamp() - time.time()))
    except (ValueError, OverflowError):  # not a date, or one that no clock reaches
        return None
