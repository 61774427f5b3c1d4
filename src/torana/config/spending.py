"""Read the limits of usage from the settings, and check that models with a money limit have known prices."""

from __future__ import annotations

from collections.abc import Callable

from torana.config.settings import Settings
from torana.limits.policies import MESSAGES_PER_MINUTE, Limits, parse_limit, parse_limits
from torana.limits.prices import Prices, parse_price


def limits_of(settings: Settings) -> Limits:
    """Return the limits that are stored in the database: all except messages per minute."""
    return Limits(
        per_user=parse_limits(settings.limits_per_user),
        per_token=[
            limit for limit in parse_limits(settings.limits_per_token) if limit.label != MESSAGES_PER_MINUTE
        ],
        overall=parse_limits(settings.limits_global),
    )


def find_unpriced_models(settings: Settings, *, where: Callable[[str], str]) -> list[str]:
    """Return a line for each model without a known price, because its cost cannot be limited.

    ``where`` returns the start of a message about a setting. Empty if no limit is in money.
    """
    limits = [*settings.limits_per_user, *settings.limits_per_token, *settings.limits_global]
    if not any(parse_limit(text).unit == "usd" for text in limits):
        return []
    prices = Prices(models=settings.model, own=[parse_price(text) for text in settings.prices])
    return [
        f"{where('prices')}: money is limited, and the price of {model} is not known; set it in dollars per "
        f'million input and output tokens, such as TORANA_PRICES="{model} 0.15 0.60"'
        for model in prices.unknown()
    ]
