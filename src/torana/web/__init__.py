"""Pages of the web, fetched so that nobody can lead the gateway to what only the gateway may reach."""

from torana.web.client import GuardedClient, Page
from torana.web.faults import (
    AnsweredBadly,
    NotAllowed,
    TooLarge,
    TooSlow,
    Unreachable,
    WebFault,
    WrongType,
)
from torana.web.guard import Guard

__all__ = [
    "AnsweredBadly",
    "Guard",
    "GuardedClient",
    "NotAllowed",
    "Page",
    "TooLarge",
    "TooSlow",
    "Unreachable",
    "WebFault",
    "WrongType",
]
