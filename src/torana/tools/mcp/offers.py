"""What of a server's tools is offered, and what is not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torana.tools.base import Permission

#: Characters that a tool's name may have for every provider of models.
_NAME_LIMIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool as the model sees it: ``name``, and what the server calls ``tool``."""

    name: str
    tool: str
    description: str
    schema: Mapping[str, Any]
    #: Of the definition as the server gave it.
    digest: str
    idempotent: bool
    permission: Permission
    #: What was changed of it.
    notes: tuple[str, ...] = ()
    #: The server's own words that were not taken over, for people to judge; never for a model.
    withheld: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Characters that it takes of each request to the model."""
        return len(self.name) + len(self.description) + len(json.dumps(self.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A tool that is not offered, and why."""

    tool: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a server's list came to."""

    offers: tuple[Offer, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def visible_name(server: str, tool: str) -> str:
    """``<server>_<tool>`` in letters, digits, ``_`` and ``-``; what is too long ends in a digest."""
    name = f"{server}_{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"
    if len(name) <= _NAME_LIMIT:
        return name
    return f"{name[: _NAME_LIMIT - 9]}_{hashlib.sha256(tool.encode()).hexdigest()[:8]}"
