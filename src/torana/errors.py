"""The tree of errors that Torana raises on purpose.

::

    GatewayError
    ├── BadRequest              InvalidJson · InvalidContent · InvalidField · InvalidText · ScheduleInvalid ·
    │                           SkillRefused
    ├── Unauthorized
    ├── Forbidden               HostNotAllowed · CrossSite · ScopeMissing · WrongUser
    ├── Conflict                SessionBusy · TurnCancelled · NotFailed · NotEnded · ChannelTaken · TokenEnded
    │                           SignInNotNeeded
    │                           NotHeld · AlreadyDecided · ApprovalChanged · NotWaiting · MemoryFull
    │                           MemorySuperseded · SettingsFaulty · SchedulesFull · ScheduleEnded
    │                           SchedulePaused · SkillConflict · SkillChanged
    ├── KeyReused
    ├── NotFound · MethodNotAllowed · NotAcceptable · UnsupportedMediaType
    ├── PayloadTooLarge         ContentTooLong · BodyTooLarge · MemoryTooLong
    ├── RequestTimeout
    ├── RateLimited             QueueFull · BudgetSpent
    ├── ModelFailed             ModelResponseTooLarge
    ├── Unavailable             Starting · Draining · StoreUnavailable (TakenOver) · Overloaded
    ├── TimedOut                WaitExpired · TurnTimeout · TurnLimit
    ├── CrashedRepeatedly
    ├── Expired · Erased
    └── OperatorError           ConfigInvalid · DataDirBusy · DataDirUnusable · DatabaseBusy ·
                                DatabaseUnusable · DatabaseTooNew · BackupInvalid

The ``code`` of an error is the name of its class in snake case, and part of the API. Its docstring is the
default message and names the cure. ``api/problems.py`` is the one table from a branch to an HTTP status; the
command line prints an ``OperatorError`` as one line.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

#: The beginning of each word in the name of a class but the first.
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One field at fault: a JSON pointer (RFC 6901) and what is wrong there."""

    pointer: str
    detail: str


class GatewayError(Exception):
    """The gateway has an internal error; its log has the details under the request's id."""

    code: ClassVar[str] = "internal_error"
    #: True if the same request may succeed later without a change.
    retryable: ClassVar[bool] = False
    #: True if the rate limits count the refused message: the refusal takes as long as the work.
    counted: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.code = _WORD.sub("_", cls.__name__).lower()

    def __init__(
        self,
        detail: str | None = None,
        *,
        faults: Sequence[FieldFault] = (),
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.detail = detail or " ".join((inspect.getdoc(type(self)) or "").split())
        self.faults = tuple(faults)
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})
        super().__init__(self.detail)


class BadRequest(GatewayError):
    """The request is not valid."""


class InvalidJson(BadRequest):
    """The body is not a JSON object in UTF-8; send one such as {"content": "hello"}."""


class InvalidContent(BadRequest):
    """`content` must be a string with at least one character that is not blank."""


class InvalidField(BadRequest):
    """A field has the wrong type or value; `errors` names it."""


class InvalidText(BadRequest):
    """A text contains U+0000 or half of a surrogate pair; remove it."""


class SkillRefused(BadRequest):
    """The skill cannot be installed or approved; `detail` says what is wrong with it."""


class ScheduleInvalid(BadRequest):
    """The schedule is invalid; it needs a text, and a future time or a rule."""


class Unauthorized(GatewayError):
    """The request has no valid token. Send the gateway token, or a valid token from `torana token create`, as
    `Authorization: Bearer <token>`.
    """


class Forbidden(GatewayError):
    """The request is not allowed."""


class HostNotAllowed(Forbidden):
    """The gateway has no token, so it accepts only requests whose `Host` names this machine. Add the name to
    TORANA_ALLOWED_HOSTS, or set TORANA_GATEWAY_TOKEN.
    """


class CrossSite(Forbidden):
    """The gateway has no token, so it refuses requests that a browser sends for another site. Set
    TORANA_GATEWAY_TOKEN, and list the site's origin in TORANA_CORS_ORIGINS.
    """


class ScopeMissing(Forbidden):
    """The token lacks the required scope; ask the operator for a token that has it."""


class WrongUser(Forbidden):
    """The token is bound to another user; omit `userId`, or use a token of that user."""


class NotFound(GatewayError):
    """The path or the resource does not exist; `GET /openapi.json` lists every path."""


class MethodNotAllowed(GatewayError):
    """The path does not support this method; the `Allow` header lists the supported methods."""


class NotAcceptable(GatewayError):
    """The gateway cannot send any of the types in `Accept`; accept application/json or text/event-stream."""


class UnsupportedMediaType(GatewayError):
    """Send JSON with `Content-Type: application/json`, for example with
    `curl --json '{"content": "hello"}' URL`.
    """


class PayloadTooLarge(GatewayError):
    """The request is too large."""


class ContentTooLong(PayloadTooLarge):
    """`content` is longer than 10,000 characters; split the message."""


class BodyTooLarge(PayloadTooLarge):
    """The body is larger than 262,144 bytes; send a smaller one."""


class MemoryTooLong(PayloadTooLarge):
    """The memory is longer than 2,000 characters; shorten it, or store several memories."""


class RequestTimeout(GatewayError):
    """The body did not arrive in time; send the request again."""

    retryable = True


class RateLimited(GatewayError):
    """Too many messages were sent; wait for the seconds in `Retry-After`."""

    retryable = True


class QueueFull(RateLimited):
    """Too many messages wait for an answer (TORANA_QUEUE_PER_SESSION, TORANA_QUEUE_PER_USER); send this one
    again after some of them are answered.
    """


class BudgetSpent(RateLimited):
    """A limit on messages, tokens, money or turns is reached (TORANA_LIMITS_PER_USER, TORANA_LIMITS_PER_TOKEN,
    TORANA_LIMITS_GLOBAL); wait for the seconds in `Retry-After`.
    """


class Conflict(GatewayError):
    """The request conflicts with the current state of the resource."""


class SessionBusy(Conflict):
    """The session is busy, and `onBusy` is `reject`; send the message later, or without `onBusy`."""

    retryable = True


class TurnCancelled(Conflict):
    """The turn was cancelled before it was answered; send the message again if you still need an answer."""


class NotFailed(Conflict):
    """The turn cannot be retried: it did not fail, or it failed 1,000 times."""


class NotHeld(Conflict):
    """The delivery is not held; only a delivery that was refused, is stale, or may have arrived can be retried
    or dropped.
    """


class AlreadyDecided(Conflict):
    """The approval is no longer open: it was decided, it expired, or its turn has ended."""


class ApprovalChanged(Conflict):
    """The decision does not match the call that waits. List the approvals, and decide by the `id` and `digest`
    of a listed call.
    """


class NotWaiting(Conflict):
    """The turn resumes after a restart, so changed arguments cannot be checked yet; send the decision again in
    a moment.
    """

    retryable = True


class TokenEnded(Conflict):
    """The token has expired, was revoked, or was rotated; create a new one."""


class SignInNotNeeded(Conflict):
    """The gateway has no token (TORANA_GATEWAY_TOKEN), so no sign-in is needed: open its address."""


class MemoryFull(Conflict):
    """The user has the maximum number of memories; forget some first."""

    counted = True


class MemorySuperseded(Conflict):
    """A newer memory replaced this one; change the newer memory."""


class NotEnded(Conflict):
    """The turn has not ended; wait for its end, or cancel it."""


class ChannelTaken(Conflict):
    """The channel already has a session; name another channel, or omit `channelId` to get a new one."""


class SettingsFaulty(Conflict):
    """The settings are invalid, and none of them was applied; `torana config check` lists the errors."""


class SkillConflict(Conflict):
    """The skill's state does not allow this; `torana skills list` shows its state."""


class SkillChanged(Conflict):
    """The skill's files do not match this digest; review the skill again before you approve it."""


class SchedulesFull(Conflict):
    """The user has the maximum number of schedules (TORANA_SCHEDULES_PER_USER); remove some first."""


class ScheduleEnded(Conflict):
    """The schedule has ended and cannot be changed; create a new one."""


class SchedulePaused(Conflict):
    """The schedule is paused; resume it first."""


class KeyReused(GatewayError):
    """This Idempotency-Key was used with another message; use a new key for each message."""


class ModelFailed(GatewayError):
    """The language model did not answer; `torana doctor` makes a test call and reports the cause."""

    retryable = True


class ModelResponseTooLarge(ModelFailed):
    """The language model's response exceeds TORANA_MAX_RESPONSE_BYTES and was cut off; ask for a shorter
    answer, use another model, or raise the setting.
    """

    retryable = False


class Unavailable(GatewayError):
    """The gateway is temporarily unavailable; try again after the seconds in `Retry-After`."""

    retryable = True


class Starting(Unavailable):
    """The gateway is still starting; try again in a moment."""


class Draining(Unavailable):
    """The gateway is shutting down and accepts no new messages; try again after its restart."""


class StoreUnavailable(Unavailable):
    """The database cannot be written and nothing was accepted; free disk space or repair the data directory."""


class TakenOver(StoreUnavailable):
    """Another gateway has taken over the work of this gateway. Restart this gateway."""


class Overloaded(Unavailable):
    """Too many messages wait for an answer (TORANA_QUEUE); try again after the seconds in `Retry-After`."""


class TimedOut(GatewayError):
    """The request took too long."""

    retryable = True


class WaitExpired(TimedOut):
    """The turn has not ended within the waiting time. It continues; `instance` is its path."""


class TurnTimeout(TimedOut):
    """The turn reached its time limit (TORANA_TURN_TIMEOUT) and was stopped."""


class TurnLimit(TimedOut):
    """The turn reached a limit on model calls, tool calls or tokens, and was stopped. Raise the setting that
    `detail` names before you retry it.
    """

    retryable = False


class CrashedRepeatedly(GatewayError):
    """The gateway crashed repeatedly while processing this message, and marked it as failed. The log may show
    the cause; `torana turns retry` runs it again.
    """


class Expired(GatewayError):
    """The message had waited for more than a day when the gateway started, so it was not processed. Send it
    again.
    """


class Erased(GatewayError):
    """The resource was erased."""


class OperatorError(GatewayError):
    """The gateway cannot run with its current configuration."""


class ConfigInvalid(OperatorError):
    """A setting is invalid; `torana config check` names it."""


class DataDirBusy(OperatorError):
    """Another gateway or command uses this data directory; stop it, or choose another directory with
    --data-dir.
    """


class DataDirUnusable(OperatorError):
    """The data directory cannot be written; choose another with --data-dir, or fix its permissions."""


class DatabaseBusy(OperatorError):
    """Another gateway or command uses this PostgreSQL database; stop it, or choose another database with
    TORANA_DATABASE_URL.
    """


class DatabaseUnusable(OperatorError):
    """The PostgreSQL database cannot be used; check TORANA_DATABASE_URL, the server and the user's rights."""


class DatabaseTooNew(OperatorError):
    """The database was written by a newer Torana; install that version, or restore a backup of this one."""


class BackupInvalid(OperatorError):
    """The file is not a complete backup of Torana; choose another."""


def by_code(code: str) -> type[GatewayError]:
    """Return the class of an error by its stable code; an unknown code is an internal error."""
    waiting: list[type[GatewayError]] = [GatewayError]
    for kind in waiting:
        if kind.code == code:
            return kind
        waiting.extend(kind.__subclasses__())
    return GatewayError
