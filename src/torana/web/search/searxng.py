"""SearXNG, which everybody runs themselves: https://docs.searxng.org/dev/search_api.html.

The instance must allow JSON: ``search.formats`` in its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from torana.web.search.base import Asked, SearchService


class Searxng(SearchService):
    """An instance of the operator's own."""

    url = None
    needs_key = False

    def ask(self, query: str, count: int) -> Asked:
        """A search; the instance says how many pages it gives."""
        parameters = {"q": query, "format": "json"}
        return Asked(
            url=str(httpx.URL(f"{self.address}/search", params=parameters)),
            headers={"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
        )

    def hits(self, answer: Mapping[str, Any]) -> Sequence[Any]:
        """Those of all its engines."""
        return answer["results"]
