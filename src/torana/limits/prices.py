"""The prices of models: the operator's own prices, or those that pydantic-ai knows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from torana.characters import cut_to_bytes
from torana.limits.request_tokens import parts_of
from torana.messages import MICRO, MODEL_NAME_BYTES, Usage

if TYPE_CHECKING:  # importing it takes a second
    from pydantic_ai.messages import ModelResponse

#: The model inside the gateway.
_FREE = "builtin"

#: Maximum number of remembered models without a known price, by the providers' names.
_UNKNOWN_MODELS_LIMIT = 100

_OWN_PRICE = re.compile(r"([!-~]{1,200}) (\d{1,6}(?:\.\d{1,6})?) (\d{1,6}(?:\.\d{1,6})?)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrice:
    """The price of a model in dollars per million tokens."""

    model: str
    input: Decimal
    output: Decimal

    def of(self, input_tokens: int, output_tokens: int) -> float:
        return float((self.input * input_tokens + self.output * output_tokens) / MICRO)


def parse_price(text: str) -> OwnPrice:
    """Parse a price such as ``openai-chat:my-model 0.15 0.60``. Raises ``ValueError``."""
    found = _OWN_PRICE.fullmatch(" ".join(text.split()))
    if found is None:
        raise ValueError(text)
    model, input_price, output_price = found.groups()
    return OwnPrice(model=model, input=Decimal(input_price), output=Decimal(output_price))


class Prices:
    """The prices of the models that the settings name."""

    def __init__(self, *, models: Sequence[str] = (), own: Sequence[OwnPrice] = ()) -> None:
        """``models`` are names as in the settings. The last of several prices for a model is used."""
        self._models = tuple(models)
        self._own = {_FREE: OwnPrice(model=_FREE, input=Decimal(0), output=Decimal(0))}
        self._own |= {price.model: price for price in own}
        self._own_models = self._own.keys() - {_FREE}
        #: Configured models without a known price. They are remembered because the lookup takes long.
        self._unpriced: set[str] = set()
        #: Reported model names without a known price.
        self._strangers: set[str | None] = set()

    def unknown(self) -> list[str]:
        return [model for model in self._models if self._of_model(model, 1, 1) is None]

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """Return the highest cost of a call with this many tokens over all models, in micro-dollars.

        A model without a known price counts as free.
        """
        prices = [self._of_model(model, input_tokens, output_tokens) or 0.0 for model in self._models]
        return math.ceil(max(prices, default=0.0) * MICRO)

    def usage(self, responses: Sequence[ModelResponse]) -> Usage:
        """Return the usage and cost of responses; the cost is 0 for a model without a known price.

        A response under a name that fits none of several models costs as much as the most expensive of them.
        """
        shares = [(_cause(response), self._usage_of(response)) for response in responses]
        return Usage(
            input_tokens=sum(used.input_tokens for _, used in shares),
            output_tokens=sum(used.output_tokens for _, used in shares),
            cost_usd=sum(used.cost_usd for _, used in shares),
            estimated_input=parts_of(responses),
            shares=tuple(shares),
        )

    def _usage_of(self, response: ModelResponse) -> Usage:
        return Usage(
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            cost_usd=self._of_response(response),
        )

    def _of_response(self, response: ModelResponse) -> float:
        model = self.configured_name(response.model_name or "")
        tokens = response.usage.input_tokens, response.usage.output_tokens
        if model in self._own:
            return self._own[model].of(*tokens)
        known = self._known_cost(response)
        if model is None and not self._own_models.isdisjoint(self._models):
            # A model with a price of the operator's may have answered under the name of another model.
            return max(known or 0.0, self.most(*tokens) / MICRO)
        if known is not None:
            return known
        if model is None:
            return self.most(*tokens) / MICRO
        return self._of_model(model, *tokens) or 0.0

    def _known_cost(self, response: ModelResponse) -> float | None:
        """Return the cost by pydantic-ai's library; None for an unknown model."""
        if response.usage.cost is not None:  # computed by pydantic-ai
            return float(response.usage.cost)
        if response.model_name not in self._strangers:
            try:
                return float(response.cost().total_price)
            except LookupError:
                if len(self._strangers) < _UNKNOWN_MODELS_LIMIT:
                    self._strangers.add(response.model_name)
            except (ValueError, AssertionError):  # usage that cannot be priced, or no name
                pass
        return None

    def configured_name(self, model_name: str) -> str | None:
        """Return the configured name of the model that answered: providers add a date or use another name."""
        if len(self._models) == 1:
            return self._models[0]
        fitting = [name for name in self._models if model_name.startswith(name.partition(":")[2] or name)]
        return max(fitting, key=len, default=None)

    def _of_model(self, name: str, input_tokens: int, output_tokens: int) -> float | None:
        if name in self._own:
            return self._own[name].of(input_tokens, output_tokens)
        if name in self._unpriced:
            return None
        price = _library_price(name, input_tokens, output_tokens)
        if price is None:
            self._unpriced.add(name)
        return price


def _cause(response: ModelResponse) -> str:
    """Return the model name under which usage is stored, cut because a name of several models can be long."""
    return cut_to_bytes(response.model_name or "", MODEL_NAME_BYTES)


def _library_price(name: str, input_tokens: int, output_tokens: int) -> float | None:
    """Return the price from pydantic-ai's library; None for an unknown model."""
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    service, _, model = name.partition(":")
    try:
        tokens = Tokens(input_tokens=input_tokens, output_tokens=output_tokens)
        return float(calc_price(tokens, model, provider_id=service).total_price)
    except (LookupError, ValueError):
        return None
