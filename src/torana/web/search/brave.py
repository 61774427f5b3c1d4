"""Brave Search: https://api-dashboard.search.brave.com/app/documentation/web-search/get-started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from torana.web.search.base import SearchRequest, SearchService


class Brave(SearchService):
    """The web search of Brave's API."""

    url = "https://api.search.brave.com"
    needs_key = True
    extract = "description"

    def ask(self, query: str, count: int) -> SearchRequest:
        """Return the request. The API accepts 400 characters and returns at most 20 results."""
        parameters = {"q": query[:400], "count": str(min(count, 20)), "text_decorations": "false"}
        return SearchRequest(
            url=str(httpx2.URL(f"{self.address}/res/v1/web/search", params=parameters)),
            headers={"X-Subscription-Token": self.api_key},
        )

    def hits(self, answer: Mapping[str, Any]) -> Sequence[Any]:
        """Return the results. A response without results has no ``web``."""
        return answer.get("web", {}).get("results", [])
