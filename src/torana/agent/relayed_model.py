"""Relay the events of each model response to its run while the response streams."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from pydantic_ai import RunContext
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from torana.agent.run import Run

_asking: ContextVar[RunContext[Run]] = ContextVar("torana_asking")


@contextmanager
def relaying(ctx: RunContext[Run]) -> Generator[None]:
    """Relay the responses to requests inside the block to this run."""
    before = _asking.set(ctx)
    try:
        yield
    finally:
        _asking.reset(before)


class RelayedModel(WrapperModel):
    """Streams each response, relays its events, and returns the response when it is whole.

    pydantic-ai's own streams open tasks for each request, and pass each event through a chain of generators.
    """

    def __init__(self, wrapped: Model) -> None:
        # ``Model.__init__`` would load 3 MB of facts about models that a gateway may not use.
        self._settings = None
        self._profile = None
        self.wrapped = wrapped

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        ctx = _asking.get()
        async with self.wrapped.request_stream(
            messages, model_settings, model_request_parameters, ctx
        ) as stream:
            async for event in stream:
                _check_tokens(ctx, stream)
                ctx.deps.watch.handle(event)
            return stream.get()


def _check_tokens(ctx: RunContext[Run], stream: StreamedResponse) -> None:
    """Raise ``UsageLimitExceeded`` as soon as a response exceeds the run's tokens, which then include it."""
    limits = ctx.usage_limits
    if limits is None or not limits.has_token_limits():
        return
    try:
        limits.check_tokens(ctx.usage + stream.usage)
    except UsageLimitExceeded:
        ctx.usage.incr(stream.usage)
        raise
