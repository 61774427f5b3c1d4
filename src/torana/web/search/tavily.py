"""Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torana.web.search.base import SearchRequest, SearchService


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
