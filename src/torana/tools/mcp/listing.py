"""Select the tools of a server's list that the model may call."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torana.tools.base import Permission

#: Maximum length of a tool's name that all model providers accept.
_NAME_LIMIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """A tool for the model: ``name`` is its name for the model, ``tool`` its name on the server."""

    name: str
    tool: str
    description: str
    schema: Mapping[str, Any]
    #: The digest of the server's original definition.
    digest: str
    idempotent: bool
    permission: Permission
    #: Changes that the gateway made to the definition.
    notes: tuple[str, ...] = ()
    #: The server's original texts that were removed, for the operator's review; never for the model.
    withheld: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of characters that the tool adds to each model request."""
        return len(self.name) + len(self.description) + len(json.dumps(self.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A tool that is not offered, with the reason."""

    tool: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    offers: tuple[ToolOffer, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def visible_name(server: str, tool: str) -> str:
    """Return ``<server>_<tool>`` in letters, digits, ``_`` and ``-``; a long name ends in a digest."""
    name = f"{server}_{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"
    if len(name) <= _NAME_LIMIT:
        return name
    return f"{name[: _NAME_LIMIT - 9]}_{hashlib.sha256(tool.encode()).hexdigest()[:8]}"
