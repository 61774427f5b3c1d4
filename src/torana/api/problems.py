"""Translate errors to HTTP responses: RFC 9457 problems with a stable code."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from torana.errors import (
    BadRequest,
    Conflict,
    Erased,
    Expired,
    Forbidden,
    GatewayError,
    InvalidContent,
    KeyReused,
    MethodNotAllowed,
    ModelFailed,
    NotAcceptable,
    NotFound,
    OperatorError,
    PayloadTooLarge,
    RateLimited,
    RequestTimeout,
    TimedOut,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    by_code,
)
from torana.http11 import problem_body
from torana.messages import Failure

MEDIA_TYPE = "application/problem+json"

#: The default ``Retry-After`` of an error, in seconds.
_RETRY_AFTER = "5"

#: The status and the text of ``error`` of each class of errors. A subclass without an entry uses the entry of
#: its nearest base class.
TABLE: dict[type[GatewayError], tuple[HTTPStatus, str]] = {
    GatewayError: (HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error"),
    BadRequest: (HTTPStatus.BAD_REQUEST, "Bad request"),
    InvalidContent: (HTTPStatus.BAD_REQUEST, "Missing or invalid content field"),
    Unauthorized: (HTTPStatus.UNAUTHORIZED, "Unauthorized"),
    Forbidden: (HTTPStatus.FORBIDDEN, "Forbidden"),
    Conflict: (HTTPStatus.CONFLICT, "Conflict"),
    KeyReused: (HTTPStatus.UNPROCESSABLE_ENTITY, "Unprocessable"),
    NotFound: (HTTPStatus.NOT_FOUND, "Not found"),
    MethodNotAllowed: (HTTPStatus.METHOD_NOT_ALLOWED, "Method not allowed"),
    NotAcceptable: (HTTPStatus.NOT_ACCEPTABLE, "Not acceptable"),
    RequestTimeout: (HTTPStatus.REQUEST_TIMEOUT, "Request timeout"),
    Erased: (HTTPStatus.GONE, "Gone"),
    Expired: (HTTPStatus.GONE, "Gone"),
    PayloadTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Payload too large"),
    UnsupportedMediaType: (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Unsupported media type"),
    RateLimited: (HTTPStatus.TOO_MANY_REQUESTS, "Rate limited"),
    ModelFailed: (HTTPStatus.BAD_GATEWAY, "Model failed"),
    Unavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "Unavailable"),
    TimedOut: (HTTPStatus.GATEWAY_TIMEOUT, "Timed out"),
    OperatorError: (HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error"),
}


def status_of(error: GatewayError) -> HTTPStatus:
    """Return the status of an error."""
    return _entry(type(error))[0]


def body_of(error: GatewayError, *, request_id: str) -> dict[str, Any]:
    """Return the problem object of an error."""
    status, wording = _entry(type(error))
    body = problem_body(error, status, wording, request_id=request_id)
    if error.faults:
        body["errors"] = [{"pointer": fault.pointer, "detail": fault.detail} for fault in error.faults]
    return body | error.extra


def problem(error: GatewayError, request: Request) -> JSONResponse:
    """Return the response to a request that failed with an error."""
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = _RETRY_AFTER
    return JSONResponse(
        body_of(error, request_id=request.state.request_id),
        status_code=status_of(error),
        headers=headers | error.headers,
        media_type=MEDIA_TYPE,
    )


def error_from(failure: Failure, *, headers: Mapping[str, str] | None = None) -> GatewayError:
    """Return the error of a recorded failure. A failure with an unknown code is an internal error."""
    kind, seconds = by_code(failure.code), failure.retry_after
    wait = {} if seconds is None else {"Retry-After": str(seconds)}
    extra: dict[str, Any] = {}
    if seconds is not None and issubclass(kind, RateLimited):
        extra["retryAfterMs"] = seconds * 1000
    if failure.policies:
        extra["violatedPolicies"] = list(failure.policies)
    return kind(failure.detail, headers={**wait, **(headers or {})}, extra=extra)


def _entry(kind: type[GatewayError]) -> tuple[HTTPStatus, str]:
    return next(TABLE[base] for base in kind.__mro__ if base in TABLE)
