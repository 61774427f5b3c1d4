"""The interface of a search service: its request, and the results in its response."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import httpx2

from torana.json_bounds import has_more_values
from torana.web.client import GuardedClient
from torana.web.errors import BadResponse
from torana.web.guard import Guard

_MAX_BYTES = 1024 * 1024
_SECONDS = 15.0

#: Maximum number of JSON values in a response. Fifty results have some thousands.
_MAX_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Hit:
    title: str
    url: str
    #: The extract of the page that matches the query.
    extract: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A request to a service. With ``content`` it is a POST."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    content: bytes | None = None


class SearchService(ABC):
    """A search service. Its address is the operator's or the default, without a trailing slash."""

    #: The default address, or None if operators run their own instances.
    url: ClassVar[str | None]
    needs_key: ClassVar[bool]

    def __init__(self, *, url: str, api_key: str) -> None:
        self.address = url
        self.api_key = api_key

    @abstractmethod
    def ask(self, query: str, count: int) -> SearchRequest:
        """Return the request for at most ``count`` results."""

    @abstractmethod
    def hits(self, answer: Mapping[str, Any]) -> Sequence[Any]:
        """Return the list of results in the response. May raise ``LookupError`` or ``TypeError``."""

    #: The field of a result that contains its extract.
    extract: ClassVar[str] = "content"


class Search:
    """Searches with a service. Its client reaches only the service's host."""

    def __init__(self, *, service: SearchService, client: GuardedClient | None = None) -> None:
        self._service = service
        host = httpx2.URL(service.address).host
        self._client = client or GuardedClient(guard=Guard(allow=[host]))

    async def search(self, query: str, *, count: int) -> list[Hit]:
        """Return the results, the best first. Raises ``WebFault``."""
        asked = self._service.ask(query, count)
        if asked.content is None:
            page = await self._client.get(
                asked.url, headers=asked.headers, max_bytes=_MAX_BYTES, seconds=_SECONDS, follow=False
            )
        else:
            page = await self._client.post(
                asked.url, content=asked.content, headers=asked.headers, max_bytes=_MAX_BYTES, seconds=_SECONDS
            )
        if has_more_values(page.body, _MAX_VALUES):
            raise BadResponse("The response of the search service has too many values.")
        try:
            found = self._service.hits(json.loads(page.body))
            hits = [self._hit(item) for item in found if isinstance(item, dict)]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise BadResponse("The response of the search service has no results.") from error
        return [hit for hit in hits if hit.url][:count]

    def _hit(self, item: Any) -> Hit:
        fields = cast("dict[str, Any]", item)
        return Hit(*(str(fields.get(name) or "") for name in ("title", "url", self._service.extract)))
