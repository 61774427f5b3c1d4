"""The search services.

Brave Search: https://api-dashboard.search.brave.com/app/documentation/web-search/get-started.
SearXNG, which the operator hosts: https://docs.searxng.org/dev/search_api.html.
Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search.
"""

from __future__ import annotations

import json
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


class Searxng(SearchService):
    """The operator's SearXNG instance. It must allow JSON: ``search.formats`` in its settings."""

    url = None
    needs_key = False

    def ask(self, query: str, count: int) -> SearchRequest:
        """Return the request. The instance chooses the number of results."""
        parameters = {"q": query, "format": "json"}
        return SearchRequest(
            url=str(httpx2.URL(f"{self.address}/search", params=parameters)),
            headers={"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
        )

    def hits(self, answer: Mapping[str, Any]) -> Sequence[Any]:
        return answer["results"]


class Tavily(SearchService):
    """The search of Tavily's API."""

    url = "https://api.tavily.com"
    needs_key = True

    def ask(self, query: str, count: int) -> SearchRequest:
        """Return the request. The API accepts 400 characters and returns at most 20 results."""
        return SearchRequest(
            url=f"{self.address}/search",
            headers={"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"},
            content=json.dumps({"query": query[:400], "max_results": min(count, 20)}).encode(),
        )

    def hits(self, answer: Mapping[str, Any]) -> Sequence[Any]:
        return answer["results"]
