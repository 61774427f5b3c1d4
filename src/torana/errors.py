"""The tree of errors that Torana raises on purpose.

::

    GatewayError
    ├── BadRequest              InvalidJson · InvalidContent · InvalidField · InvalidText · ScheduleInvalid ·
    │                           SkillRefused
    ├── Unauthorized
    ├── Forbidden               HostNotAllowed · CrossSite · ScopeMissing · WrongUser
    ├── Conflict                SessionBusy · TurnCancelled · NotFailed · NotEnded · ChannelTaken · TokenEnded
    │                           NotHeld · AlreadyDecided · ApprovalChanged · NotWaiting · MemoryFull
    │                           MemorySuperseded
    │                           SettingsFaulty · SchedulesFull · ScheduleEnded · SkillConflict · SkillChanged
    ├── KeyReused
    ├── NotFound · MethodNotAllowed · NotAcceptable · UnsupportedMediaType
    ├── PayloadTooLarge         ContentTooLong · BodyTooLarge · MemoryTooLong
    ├── RequestTimeout
    ├── RateLimited             QueueFull · BudgetSpent
    ├── ModelFailed             ModelResponseTooLarge
    ├── Unavailable             Starting · Draining · StoreUnavailable · Overloaded
    ├── TimedOut                WaitExpired · TurnTimeout · TurnLimit
    ├── CrashedRepeatedly
    ├── Expired · Erased
    └── OperatorError           ConfigInvalid · DataDirBusy · DataDirUnusable · DatabaseTooNew · BackupInvalid

Each class has a stable ``code``; its docstring is the default message and names the cure. ``api/problems.py``
is the one table from a branch to an HTTP status; the command line prints an ``OperatorError`` as one line.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One field at fault: a JSON pointer (RFC 6901) and what is wrong there."""

    pointer: str
    detail: str


class GatewayError(Exception):
    """Something went wrong inside the gateway; the log has the details under the request's id."""

    code: ClassVar[str] = "internal_error"
    #: True when the same request may succeed later without being changed.
    retryable: ClassVar[bool] = False

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

    code = "bad_request"


class InvalidJson(BadRequest):
    """The body is not a JSON object in UTF-8; send one such as {"content": "hello"}."""

    code = "invalid_json"


class InvalidContent(BadRequest):
    """`content` must be a string with at least one character that is not blank."""

    code = "invalid_content"


class InvalidField(BadRequest):
    """A field has the wrong type or value; `errors` names it."""

    code = "invalid_field"


class InvalidText(BadRequest):
    """A text holds U+0000 or half of a surrogate pair; remove it."""

    code = "invalid_text"


class SkillRefused(BadRequest):
    """What was to be installed or approved is no skill that can be; `detail` says what is wrong with it."""

    code = "skill_refused"


class ScheduleInvalid(BadRequest):
    """A schedule needs a text, and a time to come or a rule."""

    code = "schedule_invalid"


class Unauthorized(GatewayError):
    """Send the gateway's token, or one of `torana token create` that has not ended, as
    `Authorization: Bearer <token>`.
    """

    code = "unauthorized"


class Forbidden(GatewayError):
    """This is not allowed."""

    code = "forbidden"


class HostNotAllowed(Forbidden):
    """Without a token the gateway answers only to names of this machine; add the name to TORANA_ALLOWED_HOSTS
    or set TORANA_GATEWAY_TOKEN.
    """

    code = "host_not_allowed"


class CrossSite(Forbidden):
    """Without a token the gateway refuses requests that a browser sends for another site; set
    TORANA_GATEWAY_TOKEN, and list the site's origin in TORANA_CORS_ORIGINS.
    """

    code = "cross_site"


class ScopeMissing(Forbidden):
    """The token lacks the scope for this; ask the operator for one that has it."""

    code = "scope_missing"


class WrongUser(Forbidden):
    """The token speaks for another user; leave `userId` out, or use a token of that user."""

    code = "wrong_user"


class NotFound(GatewayError):
    """There is nothing here; `GET /openapi.json` lists every path."""

    code = "not_found"


class MethodNotAllowed(GatewayError):
    """This path does not take that method; the `Allow` header lists those it takes."""

    code = "method_not_allowed"


class NotAcceptable(GatewayError):
    """None of the types in `Accept` can be sent; ask for application/json or text/event-stream."""

    code = "not_acceptable"


class UnsupportedMediaType(GatewayError):
    """Send JSON with `Content-Type: application/json`, for example with
    `curl --json '{"content": "hello"}' URL`.
    """

    code = "unsupported_media_type"


class PayloadTooLarge(GatewayError):
    """The request is too large."""

    code = "payload_too_large"


class ContentTooLong(PayloadTooLarge):
    """`content` may hold at most 10,000 characters; split the message."""

    code = "content_too_long"


class BodyTooLarge(PayloadTooLarge):
    """The body may hold at most 262,144 bytes."""

    code = "body_too_large"


class MemoryTooLong(PayloadTooLarge):
    """A memory may hold at most 2,000 characters; say it in fewer, or remember several."""

    code = "memory_too_long"


class RequestTimeout(GatewayError):
    """The body did not arrive in time; send the request again."""

    code = "request_timeout"
    retryable = True


class RateLimited(GatewayError):
    """Too many messages; wait as long as `Retry-After` says."""

    code = "rate_limited"
    retryable = True


class QueueFull(RateLimited):
    """Too many messages wait for an answer (TORANA_QUEUE_PER_SESSION, TORANA_QUEUE_PER_USER); wait for some."""

    code = "queue_full"


class BudgetSpent(RateLimited):
    """A limit of messages, tokens, money or turns is reached (TORANA_LIMITS_PER_USER, TORANA_LIMITS_PER_TOKEN,
    TORANA_LIMITS_GLOBAL); wait as long as `Retry-After` says.
    """

    code = "budget_spent"


class Conflict(GatewayError):
    """This does not go together with how things stand."""

    code = "conflict"


class SessionBusy(Conflict):
    """The session is busy, and the message asked to be rejected then; send it later, or without `onBusy`."""

    code = "session_busy"
    retryable = True


class TurnCancelled(Conflict):
    """The turn was cancelled before it was answered; send the message again if it is still wanted."""

    code = "turn_cancelled"


class NotFailed(Conflict):
    """Only a turn that failed can be run again."""

    code = "not_failed"


class NotHeld(Conflict):
    """Only a delivery that was refused, is stale, or may have arrived can be tried again."""

    code = "not_held"


class AlreadyDecided(Conflict):
    """Somebody else has decided about the call, its time has run out, or its turn has ended."""

    code = "already_decided"


class ApprovalChanged(Conflict):
    """The decision is about another call than the one that waits. List the approvals, and decide about a call
    that stands there, by its `id` and `digest`.
    """

    code = "approval_changed"


class NotWaiting(Conflict):
    """The turn is only being taken up again, and other arguments cannot be checked yet; send it once more in a
    moment.
    """

    code = "not_waiting"
    retryable = True


class TokenEnded(Conflict):
    """The token has expired, was revoked, or has a successor; create a new one."""

    code = "token_ended"


class MemoryFull(Conflict):
    """There is no room for another memory of this user; forget some first."""

    code = "memory_full"


class MemorySuperseded(Conflict):
    """A newer memory stands in the place of this one; change that one."""

    code = "memory_superseded"


class NotEnded(Conflict):
    """The turn has not ended; wait for its end, or cancel it."""

    code = "not_ended"


class ChannelTaken(Conflict):
    """The channel has a session already; name another one, or leave `channelId` out for a new one."""

    code = "channel_taken"


class SettingsFaulty(Conflict):
    """The settings have faults, and nothing of them was taken on; `torana config check` names them."""

    code = "settings_faulty"


class SkillConflict(Conflict):
    """The skill is not in a state for this; `torana skills list` tells how it stands."""

    code = "skill_conflict"


class SkillChanged(Conflict):
    """The skill's files are not those of this digest; look at the skill again before approving it."""

    code = "skill_changed"


class SchedulesFull(Conflict):
    """There is no room for another schedule of this user (TORANA_SCHEDULES_PER_USER); remove some first."""

    code = "schedules_full"


class ScheduleEnded(Conflict):
    """The schedule has ended, and nothing comes of it any more; make a new one."""

    code = "schedule_ended"


class KeyReused(GatewayError):
    """This Idempotency-Key was used with another message; use a new key for each message."""

    code = "key_reused"


class ModelFailed(GatewayError):
    """The language model did not answer; `torana doctor` makes one real call and tells what is wrong."""

    code = "model_failed"
    retryable = True


class ModelResponseTooLarge(ModelFailed):
    """The language model's response is too large (TORANA_MAX_RESPONSE_BYTES) and was cut off; ask for less at
    once, use another model, or raise the setting.
    """

    code = "model_response_too_large"
    retryable = False


class Unavailable(GatewayError):
    """The gateway cannot take this now; try again as `Retry-After` says."""

    code = "unavailable"
    retryable = True


class Starting(Unavailable):
    """The gateway is still starting; try again in a moment."""

    code = "starting"


class Draining(Unavailable):
    """The gateway is shutting down and takes no new messages; try again when it is back."""

    code = "draining"


class StoreUnavailable(Unavailable):
    """The database cannot be written; free disk space or repair the data directory. Nothing was accepted."""

    code = "store_unavailable"


class Overloaded(Unavailable):
    """Too many messages wait for their answer (TORANA_QUEUE); try again as `Retry-After` says."""

    code = "overloaded"


class TimedOut(GatewayError):
    """It took too long."""

    code = "timed_out"
    retryable = True


class WaitExpired(TimedOut):
    """The answer is not there yet. The turn goes on; `instance` names it."""

    code = "wait_expired"


class TurnTimeout(TimedOut):
    """The turn reached its own time limit (TORANA_TURN_TIMEOUT) and was stopped."""

    code = "turn_timeout"


class TurnLimit(TimedOut):
    """The turn called the model or its tools more often, or took more tokens, than a turn may in all its
    attempts, and was stopped. To run it again helps once the setting that its detail names was raised.
    """

    code = "turn_limit"
    retryable = False


class CrashedRepeatedly(GatewayError):
    """The gateway died every time it worked on this message, and gave up; the log around those moments may say
    why. `torana turns retry` runs it again.
    """

    code = "crashed_repeatedly"


class Expired(GatewayError):
    """The message had waited for over a day when the gateway started; it was not acted on. Send it again."""

    code = "expired"


class Erased(GatewayError):
    """It was here, and was erased."""

    code = "erased"


class OperatorError(GatewayError):
    """The gateway cannot run as it is set up."""

    code = "operator_error"


class ConfigInvalid(OperatorError):
    """A setting is wrong; `torana config check` names it."""

    code = "config_invalid"


class DataDirBusy(OperatorError):
    """Another gateway or command uses this data directory; end it, or choose another with --data-dir."""

    code = "data_dir_busy"


class DataDirUnusable(OperatorError):
    """The data directory cannot be written; choose another with --data-dir or mend its permissions."""

    code = "data_dir_unusable"


class DatabaseTooNew(OperatorError):
    """The database was written by a newer Torana; install that version, or restore a backup of this one."""

    code = "database_too_new"


class BackupInvalid(OperatorError):
    """The file is not a whole backup of Torana; choose another."""

    code = "backup_invalid"


def by_code(code: str) -> type[GatewayError]:
    """The class of an error by its stable code; an unknown code is an internal error."""
    waiting: list[type[GatewayError]] = [GatewayError]
    for kind in waiting:
        if kind.code == code:
            return kind
        waiting.extend(kind.__subclasses__())
    return GatewayError
