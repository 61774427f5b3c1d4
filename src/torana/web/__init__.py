"""Fetch web pages, and refuse addresses that are not public."""

from torana.web.client import GuardedClient, WebPage
from torana.web.errors import (
    BadResponse,
    NotAllowed,
    PageTooLarge,
    TooSlow,
    Unreachable,
    WebFault,
    WrongType,
)
from torana.web.guard import Guard

__all__ = [
    "BadResponse",
    "Guard",
    "GuardedClient",
    "NotAllowed",
    "PageTooLarge",
    "TooSlow",
    "Unreachable",
    "WebFault",
    "WebPage",
    "WrongType",
]
