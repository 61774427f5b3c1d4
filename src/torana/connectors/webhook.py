"""Programs of one's own, and any that send webhooks: signed JSON comes in, signed replies go out.

Both ways are Standard Webhooks (https://www.standardwebhooks.com), coming in also as GitHub signs its own.
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

import httpx
import jsonpath_rfc9535 as jsonpath
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from torana.connectors.base import (
    Abilities,
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

_TIMEOUT = 30.0
#: Bytes of an id that a program may choose.
_ID_LIMIT = 200
#: Bytes of a secret, of which the standard asks for 24.
_SECRET_BYTES = 24
#: Answers that say "not now": the same message may be sent again.
_AGAIN = (408, 409, 425)


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
        # What is wrong with it is not repeated: what should be a port may be a password.
        raise ValueError("an https:// address with a host and a port that can be") from None
    if parts.username or parts.password:
        raise ValueError("an address with a name or a password in it ends up in logs")
    if not parts.hostname or not (
        parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname))
    ):
        raise ValueError("an https:// address, or http:// of this machine")
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
    """Who may call, where a message's parts stand in the JSON, and where replies go."""

    secrets: Annotated[tuple[SecretStr, ...], BeforeValidator(_one_or_more)] = Field(
        min_length=1,
        description="Keys of the signature; any may have signed, which is how one is replaced by another. The "
        "first signs replies.",
    )
    scheme: Literal["standard", "github"] = Field(
        default="standard", description="How calls are signed: Standard Webhooks, or as GitHub does."
    )
    tolerance: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Seconds that a call's clock may be away from ours (`standard`).",
    )
    content: Path = Field(default="$.content", description="JSONPath of the message's text.")
    sender: Path = Field(default="$.sender", description="JSONPath of who said it; `program` where none does.")
    chat: Path = Field(default="$.chat", description="JSONPath of the room; none is a direct message.")
    thread: Path = Field(default="$.thread", description="JSONPath of the thread.")
    id: Path | None = Field(
        default=None, description="JSONPath of the message's id, where it is not the id of the call."
    )
    when: Path | None = Field(
        default=None,
        description="JSONPath that finds something in a call that is a message; others are dropped.",
    )
    reply_url: Annotated[str, AfterValidator(_address)] | None = Field(
        default=None, description="Where replies are posted: `https://`, or `http://` of this machine."
    )

    events: tuple[Literal["turn.completed", "turn.failed"], ...] = Field(
        default=(), description="Ends of turns, of all users and channels, that are posted to `reply_url` too."
    )

    @model_validator(mode="after")
    def _check_secrets(self) -> WebhookSettings:
        if not all(_key(secret, self.scheme) for secret in self.secrets):
            raise ValueError(
                f"a secret is base64 of {_SECRET_BYTES} bytes or more, `whsec_` before it or not: "
                "make one by `openssl rand -base64 32`"
            )
        return self


class Webhook(Connector[WebhookSettings]):
    """A program that calls, and is called."""

    Settings = WebhookSettings
    # A program gets the Markdown as it was written, in one piece unless it is a book.
    abilities = Abilities(length=100_000, repeat="keyed", render=str, threads=True, quiet=None, asks=False)

    _ears: Ears | None = None
    _client: httpx.AsyncClient

    @property
    def credentials(self) -> str:
        """The key that signs."""
        return self.settings.secrets[0].get_secret_value()

    @property
    def events(self) -> Collection[str]:
        """Those that the settings name."""
        return self.settings.events

    async def run(self, ears: Ears) -> None:
        """Be there for calls: there is nothing to connect to."""
        # No proxy is asked to carry what must not leave this machine.
        secure = (self.settings.reply_url or "").startswith("https:")
        async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=secure) as self._client:
            self._ears = ears
            try:
                ears.ready()
                await asyncio.Event().wait()
            finally:
                self._ears = None

    async def hook(self, request: HookRequest) -> HookResponse:
        """Hear the message of a call; a call without one is answered with what was looked for."""
        if self._ears is None:
            return HookResponse(status=503)
        if not self._is_signed(request):
            return HookResponse(status=401, body=b"wrong signature")
        if not self._is_timely(request.headers):
            return HookResponse(status=401, body=f"not within {self.settings.tolerance} s".encode())
        try:
            body: jsonpath.JSONValue = json.loads(request.body)
            heard = self._heard(request.headers, body)
        except (ValueError, RecursionError, jsonpath.JSONPathError) as error:
            return HookResponse(status=400, body=f"no message: {error}"[:200].encode(errors="replace"))
        if heard is None:
            return HookResponse(body=f"no message: nothing at {self.settings.content}".encode())
        await self._ears.hear(heard)
        return HookResponse()

    async def send(self, part: Part) -> str:
        """Post a part to the program; its id, ``webhook-id``, is the same at each try."""
        url = self.settings.reply_url
        if url is None:
            raise Refused("there is nobody to tell: `reply_url` is not set")
        body = _reply(part)
        try:
            async with self._client.stream(
                "POST", url, content=body, headers=self._signature(part.key, body)
            ) as said:
                _check(said)  # what it answers beyond that is not read
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise TryLater(f"the program cannot be reached ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            raise Unsure(f"the program did not answer ({type(error).__name__})") from error
        return part.key

    def _is_signed(self, request: HookRequest) -> bool:
        headers = request.headers
        if self.settings.scheme == "github":
            given = [headers.get("x-hub-signature-256", "")]
            right = [f"sha256={self._digest(n, request.body).hex()}" for n in range(len(self.settings.secrets))]
        else:
            told = f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}.".encode(
                errors="replace"
            )
            given = headers.get("webhook-signature", "").split(" ")
            right = [_v1(self._digest(n, told + request.body)) for n in range(len(self.settings.secrets))]
        # All pairs are compared, each in the same time whatever its result.
        matches = [
            hmac.compare_digest(one.encode(errors="replace"), other.encode())
            for one in given
            for other in right
        ]
        return any(matches)

    def _is_timely(self, headers: Mapping[str, str]) -> bool:
        """Whether the signed time is near; GitHub signs none."""
        if self.settings.scheme == "github":
            return True
        told = headers.get("webhook-timestamp", "")
        if not (told.isascii() and told.isdigit() and len(told) < 16):
            return False
        return abs(time.time() - int(told)) <= self.settings.tolerance

    def _heard(self, headers: Mapping[str, str], body: jsonpath.JSONValue) -> Heard | None:
        """The message of a call, or None where it has none; ``ValueError`` where it cannot be one."""
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
        return Heard(
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
    """A secret's bytes, none where it is not a secret."""
    text = secret.get_secret_value()
    if scheme == "github":
        return text.encode()
    try:
        key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        return b""
    return key if len(key) >= _SECRET_BYTES else b""


def _check_id(value: str | None) -> None:
    """Refuse what cannot be kept; half a pair of surrogates is a ``ValueError`` by itself."""
    if value is not None and (not value or len(value.encode()) > _ID_LIMIT or "\0" in value):
        raise ValueError(f"an id has 1 to {_ID_LIMIT} bytes of text")


def _v1(digest: bytes) -> str:
    return f"v1,{base64.b64encode(digest).decode()}"


def _first(path: str, body: jsonpath.JSONValue) -> str | None:
    """The first value at a path, if it is a text or a whole number."""
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


def _check(answer: httpx.Response) -> None:
    """Raise what an answer means that is not "taken"."""
    status, told = answer.status_code, f"the program answered {answer.status_code}"
    if answer.is_success:
        return
    wait = _seconds(answer.headers.get("retry-after"))
    if status == 429 or (status == 503 and wait is not None):
        raise TryLater(told, seconds=wait)
    if status >= 500 or status in _AGAIN:
        raise Unsure(told)
    raise Refused(told)  # a redirection too: whoever moved is told to the settings, not to us


def _seconds(retry_after: str | None) -> float | None:
    """What ``Retry-After`` says, in seconds or as a date."""
    if not retry_after:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    try:
        return max(0.0, math.ceil(parsedate_to_datetime(retry_after).timestamp() - time.time()))
    except ValueError:
        return None
