"""Web search by a service that the operator chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torana.web.client import GuardedClient
from torana.web.search.base import Hit, Search, SearchService
from torana.web.search.services import Brave, Searxng, Tavily

__all__ = ["SERVICES", "Hit", "Search", "SearchName", "SearchService", "open_search", "search_fault"]

SearchName = Literal["none", "searxng", "brave", "tavily"]

#: The services by their names in the settings.
SERVICES: Mapping[SearchName, type[SearchService]] = {"searxng": Searxng, "brave": Brave, "tavily": Tavily}


def search_fault(name: SearchName, *, url: str | None, api_key: str | None) -> str:
    """Return what the service lacks and the cure, or an empty text."""
    if name == "none":
        given = "search_url" if url else "search_api_key" if api_key else ""
        return f"{given} is set, but no service: set TORANA_SEARCH too" if given else ""
    service = SERVICES[name]
    if url is None and service.url is None:
        return f"{name} needs the address of your instance: set TORANA_SEARCH_URL"
    if api_key is None and service.needs_key:
        return f"{name} needs a key: set TORANA_SEARCH_API_KEY"
    return ""


def open_search(
    name: SearchName, *, url: str | None, api_key: str | None, client: GuardedClient | None = None
) -> Search | None:
    """Return the service, or None if none is configured completely. Its host may be private."""
    if name == "none" or search_fault(name, url=url, api_key=api_key):
        return None
    service = SERVICES[name]
    address = (url or service.url or "").rstrip("/")
    return Search(service=service(url=address, api_key=api_key or ""), client=client)
