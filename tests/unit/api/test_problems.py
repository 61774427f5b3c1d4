from collections.abc import Iterator

import pytest
from starlette.requests import Request

from torana.api.problems import TABLE, body_of, error_from, problem, status_of
from torana.errors import (
    FieldFault,
    GatewayError,
    InvalidContent,
    InvalidField,
    ModelFailed,
    StoreUnavailable,
    Unauthorized,
    WaitExpired,
)
from torana.messages import Failure


def tree(kind: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


#: The errors of the contract, by code.
PROMISED = {
    "internal_error": (500, "Internal error"),
    "bad_request": (400, "Bad request"),
    "invalid_json": (400, "Bad request"),
    "invalid_content": (400, "Missing or invalid content field"),
    "invalid_field": (400, "Bad request"),
    "invalid_text": (400, "Bad request"),
    "skill_refused": (400, "Bad request"),
    "schedule_invalid": (400, "Bad request"),
    "unauthorized": (401, "Unauthorized"),
    "forbidden": (403, "Forbidden"),
    "host_not_allowed": (403, "Forbidden"),
    "cross_site": (403, "Forbidden"),
    "scope_missing": (403, "Forbidden"),
    "wrong_user": (403, "Forbidden"),
    "conflict": (409, "Conflict"),
    "session_busy": (409, "Conflict"),
    "turn_cancelled": (409, "Conflict"),
    "not_failed": (409, "Conflict"),
    "not_held": (409, "Conflict"),
    "already_decided": (409, "Conflict"),
    "approval_changed": (409, "Conflict"),
    "not_waiting": (409, "Conflict"),
    "settings_faulty": (409, "Conflict"),
    "sign_in_not_needed": (409, "Conflict"),
    "token_ended": (409, "Conflict"),
    "not_ended": (409, "Conflict"),
    "channel_taken": (409, "Conflict"),
    "schedules_full": (409, "Conflict"),
    "schedule_ended": (409, "Conflict"),
    "schedule_paused": (409, "Conflict"),
    "memory_full": (409, "Conflict"),
    "memory_superseded": (409, "Conflict"),
    "skill_conflict": (409, "Conflict"),
    "skill_changed": (409, "Conflict"),
    "erased": (410, "Gone"),
    "expired": (410, "Gone"),
    "key_reused": (422, "Unprocessable"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "Method not allowed"),
    "not_acceptable": (406, "Not acceptable"),
    "request_timeout": (408, "Request timeout"),
    "payload_too_large": (413, "Payload too large"),
    "content_too_long": (413, "Payload too large"),
    "body_too_large": (413, "Payload too large"),
    "memory_too_long": (413, "Payload too large"),
    "unsupported_media_type": (415, "Unsupported media type"),
    "rate_limited": (429, "Rate limited"),
    "queue_full": (429, "Rate limited"),
    "budget_spent": (429, "Rate limited"),
    "model_failed": (502, "Model failed"),
    "model_response_too_large": (502, "Model failed"),
    "unavailable": (503, "Unavailable"),
    "starting": (503, "Unavailable"),
    "draining": (503, "Unavailable"),
    "store_unavailable": (503, "Unavailable"),
    "taken_over": (503, "Unavailable"),
    "overloaded": (503, "Unavailable"),
    "timed_out": (504, "Timed out"),
    "wait_expired": (504, "Timed out"),
    "turn_timeout": (504, "Timed out"),
    "turn_limit": (504, "Timed out"),
}


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.code)
def test_error_has_its_status_and_wording(kind: type[GatewayError]):
    body = body_of(kind(), request_id="r")
    # Errors that the operator has to fix never reach a caller; otherwise they would be internal errors.
    assert (body["status"], body["error"]) == PROMISED.get(kind.code, (500, "Internal error"))
    assert body["status"] == status_of(kind())


def test_error_codes_are_unique():
    codes = [kind.code for kind in tree()]
    assert len(codes) == len(set(codes))


def test_problem_has_all_members():
    assert body_of(InvalidContent(), request_id="8a5f") == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "`content` must be a string with at least one character that is not blank.",
        "instance": "urn:uuid:8a5f",
        "error": "Missing or invalid content field",
        "code": "invalid_content",
        "requestId": "8a5f",
    }


def test_faults_point_at_their_fields():
    body = body_of(InvalidField(faults=[FieldFault("/userId", "is wrong")]), request_id="r")
    assert body["errors"] == [{"pointer": "/userId", "detail": "is wrong"}]


def test_extra_members_are_added_and_can_replace_instance():
    body = body_of(WaitExpired(extra={"instance": "v1/turns/t", "retryAfterMs": 5}), request_id="r")
    assert (body["instance"], body["retryAfterMs"], body["requestId"]) == ("v1/turns/t", 5, "r")


def request() -> Request:
    return Request({"type": "http", "state": {"request_id": "r"}})


def test_problem_has_its_media_type_and_is_not_stored():
    answer = problem(Unauthorized(headers={"WWW-Authenticate": "Bearer"}), request())
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(StoreUnavailable(), "5"), (StoreUnavailable(headers={"Retry-After": "9"}), "9"), (ModelFailed(), None)],
)
def test_unavailable_has_retry_after(error: GatewayError, seconds: str | None):
    assert problem(error, request()).headers.get("retry-after") == seconds


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.code)
def test_recorded_failure_becomes_same_error(kind: type[GatewayError]):
    error = error_from(Failure(code=kind.code, detail="what happened"))
    assert (type(error), error.detail) == (kind, "what happened")


def test_recorded_failure_accepts_headers():
    error = error_from(Failure(code="model_failed", detail="no"), headers={"X": "y"})
    assert problem(error, request()).headers["x"] == "y"


def test_failure_with_unknown_code_becomes_internal_error():
    assert type(error_from(Failure(code="of another version", detail="d"))) is GatewayError


def test_table_entries_have_error_classes():
    assert set(TABLE) <= set(tree())
