"""The contract's endpoints: ``/health``, ``/skills`` and ``/message``. They are frozen and unversioned."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request, Response
from fastapi.responses import JSONResponse

from torana.api.openapi import (
    COMMON_PROBLEMS,
    deferred_message_answer,
    describe_problems,
    json_body,
    message_answer,
    message_headers,
    problem_responses,
    with_headers,
)
from torana.api.routes.router import new_router
from torana.api.schemas.contract import AnswerBody, HealthBody, MessageBody, SkillBody
from torana.api.serving import endpoints

MESSAGE_PROBLEMS = {
    400: "The body is not a JSON object, a field is invalid, or the `Idempotency-Key` is invalid.",
    403: "The token lacks the scope `message`, or may not name this `userId`.",
    406: "`Accept` names neither `application/json` nor `text/event-stream`.",
    409: "The session is busy and `onBusy` is `reject`, or the turn was cancelled.",
    410: "The message of this `Idempotency-Key` was erased, or it waited too long to be processed.",
    413: "`content` has more than 10,000 characters, or the body is larger than 262,144 bytes.",
    422: "The `Idempotency-Key` was used with another message.",
    429: "A rate limit or a budget is used up, or too many messages wait. Wait for `Retry-After`.",
    502: "The language model did not answer, or its answer is invalid.",
    503: "The gateway is stopping, is overloaded, or cannot write its database. If the message was accepted, "
    "`instance` is the path of its turn.",
    504: "The turn took too long. With the code `wait_expired` it continues, and `instance` is its path.",
}

router = new_router()


@router.get(
    "/health",
    response_model=HealthBody,
    response_description="The gateway accepts messages.",
    responses=describe_problems({500: COMMON_PROBLEMS[500]})
    | {503: {"model": HealthBody, "description": "The gateway does not accept messages now."}},
    summary="Get the health of the gateway; no token is required",
    openapi_extra={"security": []},
)
async def health(request: Request) -> Response:
    return await endpoints.get_health(request)


@router.get(
    "/skills",
    dependencies=[Depends(endpoints.SKILLS_SCOPES)],
    response_class=JSONResponse,
    response_model=list[SkillBody],
    response_description="The skills, by source and slug.",
    responses=problem_responses()
    | {
        200: {"headers": with_headers("ETag")},
        304: {"description": "The list still has this `ETag`.", "headers": with_headers("ETag")},
    },
    summary="List the loaded skills",
)
async def skills(
    request: Request,
    _: Annotated[str, Header(alias="If-None-Match", description="The `ETag` of an earlier response.")] = "",
) -> Response:
    return await endpoints.get_skills(request)


@router.post(
    "/message",
    dependencies=[Depends(endpoints.MESSAGE_SCOPES)],
    response_model=AnswerBody,
    response_description="The answer.",
    responses={200: message_answer(), 202: deferred_message_answer()}
    | problem_responses(MESSAGE_PROBLEMS, reads_body=True),
    summary="Send a message, and wait for the answer or receive it as server-sent events",
    description="With `Accept: text/event-stream` the response is an event stream: `turn.accepted`, "
    "`message.delta`, `tool.started`, `approval.required`, `tool.finished`, and finally `turn.completed` "
    "with the body of the plain response, or `turn.failed` with a problem. If the client disconnects, the "
    "turn continues; `GET /v1/turns/{id}/events` resumes the stream.",
    openapi_extra={"requestBody": json_body(MessageBody), "parameters": message_headers()},
)
async def message(request: Request) -> Response:
    return await endpoints.post_message(request)
