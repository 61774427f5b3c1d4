"""Measure model requests and tool calls."""

from __future__ import annotations

import time
from typing import Any

from pydantic_ai.capabilities import ValidatedToolArgs, WrapModelRequestHandler, WrapToolExecuteHandler
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestContext

from torana.limits.prices import Prices
from torana.measurements import OTHER, Measurements


class MeasuredCalls:
    """Counts the durations of model requests and tool calls, and the usage of models."""

    def __init__(self, *, measurements: Measurements, prices: Prices) -> None:
        """``prices`` knows the configured names of the models."""
        self._measurements = measurements
        self._prices = prices

    async def request(self, asked: ModelRequestContext, *, handler: WrapModelRequestHandler) -> ModelResponse:
        """Send a model request. A failed request names no model: several may have been tried."""
        started = time.monotonic()
        try:
            response = await handler(asked)
        except BaseException:
            self._measurements.add("model", time.monotonic() - started, "", "failed")
            raise
        model = self._prices.configured_name(response.model_name or "") or OTHER
        self._measurements.add("model", time.monotonic() - started, model, "ok")
        usage = self._prices.usage([response])
        self._measurements.spent_by(model).add(
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost_usd=usage.cost_usd
        )
        return response

    async def run_tool(self, args: ValidatedToolArgs, *, tool: str, handler: WrapToolExecuteHandler) -> Any:
        with self._measurements.time("tool", tool):
            return await handler(args)
