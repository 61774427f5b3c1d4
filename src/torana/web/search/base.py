"""What a search service is: how it is asked, and where in its answer the pages are."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import httpx

from torana.web.client import GuardedClient
from torana.web.faults import AnsweredBadly
from torana.web.guard import Guard

_MAX_BYTES = 1024 * 1024
_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that was found."""

    title: str
    url: str
    #: What of the page fits the query.
    extract: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to a service; with ``content`` it is a POST."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    content: bytes | None = None


class SearchService(ABC):
    """One service. Its address is the operator's or else its own, and ends without a slash."""

    #: Where it is if the operator does not say; None where everybody runs their own.
    url: ClassVar[str | None]
    needs_key: ClassVar[bool]

    def __init__(self, *, url: str, api_key: str) -> None:
        self.address = url
        self.api_key = api_key

    @abstractmethod
    def ask(self, query: str, count: int) -> Asked:
        """The request for ``count`` pages at most."""

    @abstractmethod
    def hits(self, answer: Mapping[str, Any]) -> Sequence[Any]:
        """The list of pages in the answer. May raise ``LookupError`` or ``TypeError``."""

    #: Under which name a page has its extract.
    extract: ClassVar[str] = "content"


class Search:
    """Searches by a service, through a client that goes to its host and nowhere else."""

    def __init__(self, *, service: SearchService, client: GuardedClient | None = None) -> None:
        self._service = service
        host = httpx.URL(service.address).host
        self._client = client or GuardedClient(guard=Guard(allow=[host]))

    async def search(self, query: str, *, count: int) -> list[Hit]:
        """The pages that fit, the best first. Raises ``WebFault``."""
        asked = self._service.ask(query, count)
        if asked.content is None:
            page = await self._client.get(
                asked.url, headers=asked.headers, max_bytes=_MAX_BYTES, seconds=_SECONDS, follow=False
            )
        else:
            page = await self._client.post(
                asked.url, content=asked.content, headers=asked.headers, max_bytes=_MAX_BYTES, seconds=_SECONDS
            )
        try:
            found = self._service.hits(json.loads(page.body))
            hits = [self._hit(item) for item in found if isinstance(item, dict)]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise AnsweredBadly("The search service answered with something else than results.") from error
        return [hit for hit in hits if hit.url][:count]

    def _hit(self, item: Any) -> Hit:
        fields = cast("dict[str, Any]", item)
        return Hit(*(str(fields.get(name) or "") for name in ("title", "url", self._service.extract)))
