"""Keep the requests to a model within its context window.

Each model has a budget: its window without the room for the answer. The tokens of a request are estimated, and
the provider's reported tokens correct the estimate. ``fit`` decides what is shortened and left out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from torana.agent.request_size import ToolSizes
from torana.agent.windows.fit import FittedRequest, Parts, fit, without_files
from torana.limits.request_tokens import add_parts
from torana.messages import InputParts
from torana.models.builtin import BuiltinModel
from torana.models.context_overflow import Overflow, overflow_of
from torana.models.context_windows import KnownWindow, find_window

#: The largest reservation for the answer is the window divided by this number.
_ANSWER_SHARE = 4

#: The factor of the estimate before a provider has reported tokens, a margin on reported tokens, and the
#: bounds of the factor.
_FIRST_FACTOR, _MARGIN, _LEAST_FACTOR, _MOST_FACTOR = 1.25, 1.05, 0.2, 6.0

#: The number of newest factors of which the largest corrects the estimate: texts in one language can have 1.5
#: times as many tokens as texts of the same length in another language.
_FACTORS = 100

#: Requests with fewer estimated tokens do not correct the estimate, because most of their tokens are the
#: provider's own frame.
_TELLING_TOKENS = 200

#: Maximum number of queries for an unknown window, one before each request: an Ollama server knows the window
#: only after it has loaded the model.
_QUESTIONS = 2

#: The part of the window that a retried request may fill, if the provider does not state the window.
_SMALLER = 0.5

#: Seconds for which the window is smaller after a refusal.
_SMALLER_SECONDS = 600.0

_log = logging.getLogger(__name__)


class ContextBudget:
    """The context window of one model, and the estimate of its tokens."""

    def __init__(
        self,
        *,
        window: int,
        answer: int,
        find: Callable[[], Awaitable[KnownWindow]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``window`` 0 means that ``find`` finds it. ``answer`` is the maximum number of output tokens."""
        self._answer = answer
        self._find = find if window == 0 else None
        self._questions = 0
        self._known_window = window or None
        self._monotonic = monotonic
        #: The window after a refusal, and the time until which it applies.
        self._smaller: tuple[int, float] | None = None
        self._factors = deque([_FIRST_FACTOR], maxlen=_FACTORS)
        self._asking = asyncio.Lock()
        self._tool_sizes = ToolSizes()

    @property
    def window(self) -> int | None:
        """Return the context window in tokens, which is smaller after a refusal; None before it is known."""
        if self._smaller is None or self._smaller[1] <= self._monotonic():
            return self._known_window
        return self._smaller[0]

    @property
    def message_room(self) -> int | None:
        """Return the minimum room for messages, in estimated tokens; None before the window is known."""
        room = self._room()
        return None if room is None else room // 4

    async def prepare(self) -> None:
        """Find the window before the first request, and before the next ones until the server states it."""
        if self._find is None or self._questions >= _QUESTIONS:
            return
        async with self._asking:
            if self._questions >= _QUESTIONS:
                return
            found = await self._find()
            self._questions = self._questions + 1 if found.is_assumed else _QUESTIONS
            if found.tokens != self._known_window:
                self._known_window = found.tokens
                _log.info("context_window", extra={"tokens": found.tokens, "assumed": found.is_assumed})

    def fit(self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> FittedRequest:
        fitted = fit(messages, parameters, room=self._room(), tool_tokens=self._tool_sizes.tokens)
        if fitted.turns_left_out or fitted.tools_left_out:
            _log.debug(
                "request_cut",
                extra={"turns_left_out": fitted.turns_left_out, "tools_left_out": fitted.tools_left_out},
            )
        return fitted

    def settings(self, settings: ModelSettings | None, parts: Parts) -> ModelSettings | None:
        """Return the settings with a limit on the answer that leaves it inside the window."""
        limit = (settings or {}).get("max_tokens")
        window = self.window
        if settings is None or limit is None or window is None:
            return settings
        left = max(self._reserve(window), window - self._tokens(parts.total))
        return settings if limit <= left else {**settings, "max_tokens": left}

    def learn(self, estimated: Parts, reported: int) -> None:
        """Correct the estimate by the input tokens that a provider reported for a request without files.

        One user's files must not make the requests of all users smaller.
        """
        if reported <= 0 or estimated.files or estimated.total < _TELLING_TOKENS:
            return
        factor = reported / estimated.total * _MARGIN
        self._factors.append(min(max(factor, _LEAST_FACTOR), _MOST_FACTOR))

    def shrink(self, overflow: Overflow, estimated: Parts) -> None:
        """Make the requests smaller after the provider refused one.

        If the refused request had files, only a window that the provider stated changes the size. The smaller
        window applies for ten minutes: the error may be wrong, and it concerns all users.
        """
        self._questions = _QUESTIONS
        if overflow.window is not None and overflow.window < (self.window or overflow.window + 1):
            self._make_smaller(overflow.window)
        _log.warning("context_window_exceeded", extra={"window": self.window, "asked": overflow.asked})
        asked = overflow.asked or 0
        if estimated.files:
            return
        if asked > self._tokens(estimated.total):
            self.learn(estimated, asked)
        elif overflow.window is None or self._tokens(estimated.total) <= overflow.window:
            # The estimate or the window is wrong, and the provider does not say which.
            self._make_smaller(int(self._tokens(estimated.total) * _SMALLER))

    def _make_smaller(self, window: int) -> None:
        self._smaller = window, self._monotonic() + _SMALLER_SECONDS

    def _room(self) -> int | None:
        """Return the estimated tokens that a request may have, without the room for the answer."""
        window = self.window
        return None if window is None else max(1, int((window - self._reserve(window)) / self._factor))

    @property
    def _factor(self) -> float:
        """Return the number by which estimated tokens are multiplied."""
        return max(self._factors)

    def _reserve(self, window: int) -> int:
        return min(self._answer, window // _ANSWER_SHARE)

    def _tokens(self, estimated: int) -> int:
        return int(estimated * self._factor)


def fit_requests(model: Model, *, window: int, answer: int) -> list[ContextBudget]:
    """Make a model, or each model of a list, send only requests that fit into its context window.

    A request that the provider refuses as too long is made smaller and sent once more. The sizes of the parts
    of a request are noted in the usage of its response. Returns the budgets. The builtin model has no window.
    """
    members = model.models if isinstance(model, FallbackModel) else [model]
    budgets: list[ContextBudget] = []
    for member in members:
        if not isinstance(member, BuiltinModel):
            budgets.append(ContextBudget(window=window, answer=answer, find=partial(find_window, member)))
            _fit_requests(member, budgets[-1])
    return budgets


def _fit_requests(model: Model, budget: ContextBudget) -> None:
    request, request_stream = model.request, model.request_stream

    async def request_fitted(
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        **options: Any,
    ) -> ModelResponse:
        await budget.prepare()
        fitted = budget.fit(messages, model_request_parameters)
        try:
            response = await request(*_arguments(budget, fitted, model_settings), **options)
        except ModelAPIError as error:
            fitted = _smaller(budget, fitted, error, messages, model_request_parameters)
            response = await request(*_arguments(budget, fitted, model_settings), **options)
        budget.learn(fitted.parts, response.usage.input_tokens)
        return replace(response, usage=_with_parts(response.usage, fitted.parts))

    @asynccontextmanager
    async def stream_fitted(
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        *others: Any,
        **options: Any,
    ) -> AsyncGenerator[StreamedResponse]:
        def open_stream(fitted: FittedRequest) -> AbstractAsyncContextManager[StreamedResponse]:
            return request_stream(*_arguments(budget, fitted, model_settings), *others, **options)

        await budget.prepare()
        fitted = budget.fit(messages, model_request_parameters)
        async with AsyncExitStack() as stack:
            try:
                stream = await stack.enter_async_context(open_stream(fitted))
            except ModelAPIError as error:
                fitted = _smaller(budget, fitted, error, messages, model_request_parameters)
                stream = await stack.enter_async_context(open_stream(fitted))
            events = stream._get_event_iterator  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            vars(stream)["_get_event_iterator"] = lambda: _follow(stream, events(), budget, fitted.parts)
            try:
                yield stream
            finally:
                # Otherwise the stream and its text stay in memory until the next garbage collection.
                vars(stream).pop("_get_event_iterator", None)

    # Set on the object, so that the class stays unchanged.
    vars(model).update(request=request_fitted, request_stream=stream_fitted)


def _arguments(
    budget: ContextBudget, fitted: FittedRequest, settings: ModelSettings | None
) -> tuple[list[ModelMessage], ModelSettings | None, ModelRequestParameters]:
    return fitted.messages, budget.settings(settings, fitted.parts), fitted.parameters


def _smaller(
    budget: ContextBudget,
    refused: FittedRequest,
    error: ModelAPIError,
    messages: Sequence[ModelMessage],
    parameters: ModelRequestParameters,
) -> FittedRequest:
    """Return a smaller request than the refused one, without its files.

    Raises the error again if the size of the request was not the reason.
    """
    overflow = overflow_of(error)
    if overflow is None:
        raise error
    budget.shrink(overflow, refused.parts)
    return budget.fit(without_files(messages) if refused.parts.files else messages, parameters)


async def _follow(
    stream: StreamedResponse,
    events: AsyncIterator[ModelResponseStreamEvent],
    budget: ContextBudget,
    parts: Parts,
) -> AsyncGenerator[ModelResponseStreamEvent]:
    """Yield the events of a stream, and note the parts of its request in its usage."""
    try:
        async for event in events:
            yield event
    finally:
        used = stream._usage  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        stream._usage = _with_parts(used, parts)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    budget.learn(parts, stream.usage.input_tokens)


def _with_parts(usage: RequestUsage, parts: Parts) -> RequestUsage:
    estimated = InputParts(instructions=parts.instructions, tools=parts.tools, history=parts.messages)
    return add_parts(usage, estimated)
