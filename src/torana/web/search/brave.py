"""Brave Search: https://api-dashboard.search.brave.com/app/documentation/web-search/get-started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from torana.web.search.base import Asked, SearchService


class Brave(SearchService):
    """The web search of Brave's API."""

    url = "https://api.search.brave.com"
    needs_key = True
    extract = "description"

    def ask(self, query: str, count: int) -> Asked:
        """A search; the API takes 400 characters and gives 20 pages at most."""
        parameters = {"q": query[:400], "count": str(min(count, 20)), "text_decorations": "false"}
        return Asked(
            url=str(httpx.URL(f"{self.address}/res/v1/web/search", params=parameters)),
            headers={"X-Subscription-Token": self.api_key},
        )

    def hits(self, answer: Mapping[str, Any]) -> Sequence[Any]:
        """Pages only; without any the answer has no ``web``."""
        return answer.get("web", {}).get("results", [])
