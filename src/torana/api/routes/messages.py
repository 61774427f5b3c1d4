"""Messages with files."""

from __future__ import annotations

from fastapi import Depends, Request, Response

from torana.api.openapi import (
    deferred_message_answer,
    json_body,
    message_answer,
    message_headers,
    problem_responses,
)
from torana.api.routes.contract import MESSAGE_PROBLEMS
from torana.api.routes.router import new_router
from torana.api.schemas.contract import AnswerBody, MessageWithFilesBody
from torana.api.serving import endpoints

_PROBLEMS = {413: "`content` has more than 10,000 characters, or the body is larger than 8,388,608 bytes."}

router = new_router()


@router.post(
    "/v1/messages",
    dependencies=[Depends(endpoints.MESSAGE_SCOPES)],
    response_model=AnswerBody,
    response_description="The answer.",
    responses={200: message_answer(), 202: deferred_message_answer()}
    | problem_responses(MESSAGE_PROBLEMS | _PROBLEMS, reads_body=True),
    summary="Send a message with files",
    description="Works like `POST /message`; the body may also contain `files`.",
    openapi_extra={"requestBody": json_body(MessageWithFilesBody), "parameters": message_headers()},
)
async def message_with_files(request: Request) -> Response:
    return await endpoints.post_message_with_files(request)
