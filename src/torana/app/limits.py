"""What the settings say about how much may be spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torana.agent import Bounds
from torana.config import Settings
from torana.limits.budgets import Budgets, Estimate, RequestTokens
from torana.limits.policies import Limit, Limits, parse_limit
from torana.limits.prices import Prices, parse_price
from torana.limits.rates import MessageRates

#: The limit that is counted in memory.
_A_MINUTE = "messages-minute"


def limits_of(settings: Settings) -> Limits:
    """The limits that are kept as rows: all but those of messages in a minute."""
    return Limits(
        per_user=_parsed(settings.limits_per_user),
        per_token=[limit for limit in _parsed(settings.limits_per_token) if limit.label != _A_MINUTE],
        overall=_parsed(settings.limits_global),
    )


def rates_of(settings: Settings) -> MessageRates:
    """The limits of messages in a minute."""
    per_token = [limit.quota for limit in _parsed(settings.limits_per_token) if limit.label == _A_MINUTE]
    return MessageRates(
        per_user=settings.rate_per_user,
        per_token=per_token[0] if per_token else 0,
        overall=settings.rate_global,
    )


def prices_of(settings: Settings) -> Prices:
    """What the models cost."""
    return Prices(models=settings.model, own=[parse_price(text) for text in settings.prices])


def budgets_of(
    settings: Settings, limits: Limits, prices: Prices, fixed_tokens: Callable[[], RequestTokens]
) -> Budgets:
    """What holds back and counts what turns spend."""
    estimate = Estimate(
        output=settings.max_output_tokens,
        history_turns=settings.history_messages // 2 + 1,
    )
    return Budgets(limits=limits, prices=prices, estimate=estimate, fixed_tokens=fixed_tokens)


def bounds_of(settings: Settings) -> Bounds:
    """What one turn may take at most."""
    return Bounds(
        model_calls=settings.turn_model_calls,
        tool_calls=settings.turn_tool_calls,
        tokens=settings.turn_tokens,
        output_tokens=settings.max_output_tokens if limits_of(settings).bound_calls else None,
    )


def _parsed(texts: Sequence[str]) -> list[Limit]:
    """The limits; of several of one kind the strictest."""
    strictest: dict[str, Limit] = {}
    for limit in map(parse_limit, texts):
        known = strictest.setdefault(limit.label, limit)
        strictest[limit.label] = min(known, limit, key=lambda one: one.quota)
    return list(strictest.values())
