"""Whether what is limited in money can be counted in money."""

from __future__ import annotations

from collections.abc import Callable

from torana.config.settings import Settings
from torana.limits.policies import parse_limit
from torana.limits.prices import Prices, parse_price


def unpriced(settings: Settings, *, where: Callable[[str], str]) -> list[str]:
    """Why a limit of money cannot be held: a line for each model whose price nobody knows.

    ``where`` tells how a message about a setting begins.
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
