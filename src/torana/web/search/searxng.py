"""SearXNG, which the operator hosts: https://docs.searxng.org/dev/search_api.html.

The instance must allow JSON: ``search.formats`` in its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from torana.web.search.base import SearchRequest, SearchService


class Searxng(SearchService):
    """The operator's SearXNG instance."""

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
