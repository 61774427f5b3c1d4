"""The stand-in's HTTP server: three endpoints, on a loopback port, in a thread."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from torana.testing.openai_server.rules import Rule, fixed_phrases
from torana.testing.openai_server.wire import (
    ChatRequest,
    Completion,
    EmbeddingRequest,
    RawReply,
    Reply,
    context_error,
    count_tokens,
    embeddings,
    error_body,
)

#: The only model that the stand-in lists. It accepts any model name.
MODEL_NAME = "stand-in"

T = TypeVar("T", ChatRequest, EmbeddingRequest)

_KEPT_REQUESTS = 1_000
_EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failure of one request."""

    #: Answer with this status and an error instead.
    status: int | None = None
    message: str = "The stand-in simulates a failure."
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Seconds before the first byte; ends early when the client disconnects.
    delay: float = 0.0
    #: Close the connection after this number of events of the stream.
    cut_after: int | None = None
    #: Send only half of a JSON document.
    malformed: bool = False


class OpenAIStandIn:
    """A server with OpenAI's Chat Completions and embeddings APIs, which answers at once, by a rule.

    ::

        with OpenAIStandIn() as server:
            client = openai.AsyncOpenAI(base_url=server.url, api_key="none")

    It listens on 127.0.0.1 after its construction, and answers inside the ``with`` block. ``faults`` apply in
    order, one to each request; None is a request without a fault. With ``api_key`` it answers 401 to any other
    key. With ``context_window`` it counts tokens, states its window and refuses longer requests as llama.cpp
    does; ``tokens_of`` returns the tokens of a request.
    """

    def __init__(
        self,
        *,
        reply: Rule = fixed_phrases,
        faults: Iterable[Fault | None] = (),
        api_key: str | None = None,
        context_window: int | None = None,
        tokens_of: Callable[[ChatRequest], int] = count_tokens,
        port: int = 0,
    ) -> None:
        self._reply = reply
        self._faults = iter(faults)
        self._api_key = api_key
        self._window = context_window
        self._tokens_of = tokens_of
        self._numbers = count(1)
        self._requests: deque[ChatRequest] = deque(maxlen=_KEPT_REQUESTS)
        # The socket listens before the thread runs, so that no client connects too early.
        self._socket = socket.create_server(("127.0.0.1", port))
        self._url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self._server = uvicorn.Server(uvicorn.Config(self._app(), log_config=None, lifespan="off"))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="openai-stand-in", daemon=True
        )

    @property
    def url(self) -> str:
        """The base URL for clients, such as ``http://127.0.0.1:49152/v1``."""
        return self._url

    @property
    def requests(self) -> tuple[ChatRequest, ...]:
        """The valid chat requests so far, oldest first; the newest thousand."""
        return tuple(self._requests)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Responses in progress are dropped: no client reads them.
        self._server.force_exit = True
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/embeddings", self._embeddings, methods=["POST"]),
                Route("/v1/models", self._models),
            ]
        )

    async def _models(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        listed: dict[str, Any] = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "torana"}
        if self._window is not None:
            listed["meta"] = {"n_ctx": self._window}
        return JSONResponse({"object": "list", "data": [listed]})

    async def _chat(self, request: Request) -> Response:
        asked, fault = await self._receive(request, ChatRequest)
        if isinstance(asked, Response):
            return asked
        if self._window is not None and (tokens := self._tokens_of(asked)) >= self._window:
            return JSONResponse(context_error(tokens, self._window), status_code=400)
        chosen = self._reply(asked)
        if isinstance(chosen, RawReply):
            return StreamingResponse(chosen.body, status_code=chosen.status, headers=chosen.headers)
        reply = chosen if isinstance(chosen, Reply) else Reply(answer=chosen)
        return _render(self._completion(asked, reply), fault)

    async def _embeddings(self, request: Request) -> Response:
        asked, _ = await self._receive(request, EmbeddingRequest)
        return asked if isinstance(asked, Response) else JSONResponse(embeddings(asked))

    async def _receive(self, request: Request, model: type[T]) -> tuple[T | Response, Fault]:
        """Return the body of a request, or a response that refuses it, and the fault of the request."""
        fault = Fault()
        if refusal := self._refusal(request):
            return refusal, fault
        try:
            asked = model.model_validate_json(await request.body())
        except ValidationError as error:
            return _error(400, str(error), code="invalid_body"), fault
        if isinstance(asked, ChatRequest):
            self._requests.append(asked)
        fault = next(self._faults, None) or fault
        await _pause(request, fault.delay)
        if fault.status is not None:
            return _error(fault.status, fault.message, code=fault.code, headers=fault.headers), fault
        return asked, fault

    def _completion(self, asked: ChatRequest, reply: Reply) -> Completion:
        usage = reply.usage
        if usage is None and self._window is not None:
            tokens, output = self._tokens_of(asked), len(str(reply.answer).split())
            usage = {"prompt_tokens": tokens, "completion_tokens": output, "total_tokens": tokens + output}
        return Completion(
            id=f"chatcmpl-{next(self._numbers)}",
            created=int(time.time()),
            request=asked,
            answer=reply.answer,
            usage=usage,
            pieces=reply.pieces,
        )

    def _refusal(self, request: Request) -> Response | None:
        if self._api_key in (None, request.headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        return _error(401, "Incorrect API key provided.", code="invalid_api_key")


class _Cut(StreamingResponse):
    """A response whose connection is closed before its end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self.body_iterator:
            await send({"type": "http.response.body", "body": str(chunk).encode(), "more_body": True})


async def _pause(request: Request, seconds: float) -> None:
    """Wait, at most until the client disconnects: that is the next message after the body."""
    with suppress(TimeoutError):
        with anyio.fail_after(seconds):
            await request.receive()


def _render(completion: Completion, fault: Fault) -> Response:
    if not completion.request.stream:
        body = json.dumps(completion.whole())
        return Response(body[: len(body) // 2] if fault.malformed else body, media_type="application/json")
    events = _events(completion, malformed=fault.malformed)
    if fault.cut_after is not None:
        return _Cut(islice(events, fault.cut_after), media_type=_EVENT_STREAM)
    return StreamingResponse(events, media_type=_EVENT_STREAM)


def _events(completion: Completion, *, malformed: bool) -> Iterator[str]:
    for chunk in completion.chunks():
        data = json.dumps(chunk)
        yield f"data: {data[: len(data) // 2] if malformed else data}\n\n"
    yield "data: [DONE]\n\n"


def _error(
    status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    type_ = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse(error_body(message, type_=type_, code=code), status_code=status, headers=headers)
