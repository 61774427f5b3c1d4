"""The written form of limits and prices."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage

from torana.limits.policies import Limit, Period, parse_limit, window_of
from torana.limits.prices import Prices, parse_price


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("500 messages/day", Limit(unit="messages", quota=500, period="day")),
        ("  2000000   tokens/month ", Limit(unit="tokens", quota=2_000_000, period="month")),
        ("0.000001 usd/minute", Limit(unit="usd", quota=1, period="minute")),
        ("5.25 usd/month", Limit(unit="usd", quota=5_250_000, period="month")),
        ("3 turns", Limit(unit="turns", quota=3)),
    ],
)
def test_limit_is_parsed_and_formatted(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit
    assert parse_limit(limit.words) == limit


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "messages/day",
        "0 messages/day",
        "-1 messages/day",
        "1.5 messages/day",
        "1,000 tokens/day",
        "5 eur/day",
        "5 usd/year",
        "5 usd",
        "3 turns/day",
        "0.0000001 usd/day",
        "1e3 tokens/day",
        "٣ messages/day",
        "9999999999 usd/day",
        "9" * 400 + " tokens/day",
    ],
)
def test_invalid_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("period", "first", "last", "seconds"),
    [
        ("minute", "2024-02-29T23:59", "2024-03-01T00:00", 60),
        ("day", "2024-02-29", "2024-03-01", 86_400),
        ("month", "2024-02-01", "2024-03-01", 29 * 86_400),
    ],
)
def test_window_has_bounds_and_a_length(period: Period, first: str, last: str, seconds: int) -> None:
    window = window_of(period, datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC))

    assert (window.first, window.last, window.seconds) == (first, last, seconds)
    assert window.ends == datetime(2024, 3, 1, tzinfo=UTC)


def test_december_ends_with_the_year() -> None:
    assert window_of("month", datetime(2026, 12, 31, tzinfo=UTC)).last == "2027-01-01"


def response(model: str, provider: str | None = None) -> ModelResponse:
    usage = RequestUsage(input_tokens=1_000, output_tokens=100)
    return ModelResponse(parts=[TextPart("hi")], usage=usage, model_name=model, provider_name=provider)


KNOWN = (0.15 * 1_000 + 0.6 * 100) / 1e6
OWN = (1 * 1_000 + 2 * 100) / 1e6


@pytest.mark.parametrize(
    ("models", "answered", "provider", "cost"),
    [
        ([], "gpt-4o-mini", "openai", KNOWN),
        (["openai:gpt-4o-mini"], "gpt-4o-mini-2024-07-18", "openai", KNOWN),
        # The configured model name is used where the name in the response is unknown.
        (["openai-chat:gpt-4o-mini"], "behind-a-proxy", None, KNOWN),
        (["openai-chat:mine"], "whatever-it-says", None, OWN),
        (["openai:gpt-4o-mini", "openai-chat:mine"], "mine-0.1", None, OWN),
        (["openai:gpt-4o-mini", "openai-chat:mine"], "gpt-4o-mini", "openai", KNOWN),
        # If any of several models may have answered, the most expensive one determines the cost.
        (["openai:gpt-4o-mini", "openai-chat:mine"], "neither", None, OWN),
        (["openai:gpt-4o-mini", "builtin"], "builtin", "torana", 0),
        (["builtin"], "gpt-4o-mini", "openai", 0),
        (["openai-chat:unknown"], "unknown", None, 0),
    ],
)
def test_response_is_priced_by_its_model(
    models: list[str], answered: str, provider: str | None, cost: float
) -> None:
    prices = Prices(models=models, own=[parse_price("openai-chat:mine 1 2")])

    told = prices.usage([response(answered, provider), response(answered, provider)])

    assert told.cost_usd == pytest.approx(2 * cost)
    assert (told.input_tokens, told.output_tokens) == (2_000, 200)


@pytest.mark.parametrize("answered", ["", "gpt-of-a-reseller", "fallback:mine,other", "gpt-4o-mini"])
def test_other_name_costs_as_much_as_the_most_expensive_model(answered: str) -> None:
    own = [parse_price("openai-chat:mine 1 2"), parse_price("openai-chat:other 0.1 0.2")]
    prices = Prices(models=["openai-chat:other", "openai-chat:mine"], own=own)

    assert prices.usage([response(answered, "openai")]).cost_usd == pytest.approx(OWN)


def test_configured_price_overrides_the_known_one() -> None:
    prices = Prices(models=["openai:gpt-4o-mini"], own=[parse_price("openai:gpt-4o-mini 1 2")])

    assert prices.usage([response("gpt-4o-mini", "openai")]).cost_usd == pytest.approx(OWN)


def test_most_expensive_model_determines_the_estimate() -> None:
    prices = Prices(
        models=["builtin", "openai:gpt-4o-mini", "openai-chat:mine"], own=[parse_price("openai-chat:mine 1 2")]
    )

    assert prices.most(1_000, 100) == 1_200
    assert Prices(models=["builtin"]).most(1_000, 100) == 0


def test_models_without_a_price_are_named() -> None:
    names = ["builtin", "openai:gpt-4o-mini", "openai-responses:gpt-5", "openai-chat:mine", "nobody:knows"]

    assert Prices(models=names).unknown() == ["openai-chat:mine", "nobody:knows"]


@pytest.mark.parametrize("text", ["", "m", "m 1", "m 1 2 3", "m -1 2", "m 1e3 2", "m 1,5 2", "m ٣ 2"])
def test_invalid_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        parse_price(text)
