"""Build prices, budgets and bounds from the settings."""

from __future__ import annotations

from collections.abc import Callable

from torana.agent import Bounds
from torana.config import Settings
from torana.config.spending import limits_of
from torana.limits.budgets import Budgets, Estimate
from torana.limits.policies import MESSAGES_PER_MINUTE, Limits, parse_limits
from torana.limits.prices import Prices, parse_price
from torana.limits.rate_windows import LocalWindows
from torana.limits.rates import MessageRates
from torana.limits.request_tokens import RequestTokens
from torana.limits.shared_rate_windows import SharedWindows
from torana.store.redis.server import RedisServer


def rates_of(settings: Settings, redis: RedisServer | None, *, database: str) -> MessageRates:
    """Return the limits of messages per minute, which the replicas of a database share over Redis.

    ``database`` is its identity: several deployments may use one Redis server.
    """
    per_token = [
        limit.quota for limit in parse_limits(settings.limits_per_token) if limit.label == MESSAGES_PER_MINUTE
    ]
    return MessageRates(
        per_user=settings.rate_per_user,
        per_token=per_token[0] if per_token else 0,
        overall=settings.rate_global,
        windows=SharedWindows(server=redis, database=database) if redis else LocalWindows(),
    )


def prices_of(settings: Settings) -> Prices:
    return Prices(models=settings.model, own=[parse_price(text) for text in settings.prices])


def budgets_of(
    settings: Settings, limits: Limits, prices: Prices, fixed_tokens: Callable[[], RequestTokens]
) -> Budgets:
    """Return the budgets, which reserve and count the usage of turns."""
    estimate = Estimate(
        output=settings.max_output_tokens,
        history_turns=settings.history_messages // 2 + 1,
    )
    return Budgets(limits=limits, prices=prices, estimate=estimate, fixed_tokens=fixed_tokens)


def bounds_of(settings: Settings) -> Bounds:
    return Bounds(
        model_calls=settings.turn_model_calls,
        tool_calls=settings.turn_tool_calls,
        tokens=settings.turn_tokens,
        output_tokens=settings.max_output_tokens if limits_of(settings).bound_calls else None,
        reply_bytes=settings.max_response_bytes,
    )
