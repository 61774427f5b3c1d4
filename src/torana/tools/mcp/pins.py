"""Which definitions of a server's tools were seen: what changes afterwards is for the operator to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast


class Pins:
    """The digests of one server's tools, in a file.

    The first list that a server gives is believed; so is that of another ``source`` under the same name,
    since then the operator changed the settings.
    """

    def __init__(self, *, path: Path, source: str) -> None:
        self._path = path
        self._source = source
        self._known: Mapping[str, str] | None = None

    def known(self) -> Mapping[str, str] | None:
        """The digest of each tool that was seen; None where none were yet. Raises ``OSError``."""
        if self._known is None and self._path.exists():
            self._known = self._read()
        return self._known

    def keep(self, digests: Mapping[str, str]) -> None:
        """Take these as seen, besides those that are known. Raises ``OSError``."""
        known = {**(self.known() or {}), **digests}
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"source": self._source, "tools": known}, indent=1))
        os.replace(draft, self._path)  # noqa: PTH105 - atomic, over the old one
        self._known = known

    def _read(self) -> Mapping[str, str] | None:
        """What the file says; a damaged one counts as if no tool had been seen, and so holds back all."""
        try:
            document: Any = json.loads(self._path.read_bytes())
            if document["source"] != self._source:
                return None
            return {
                str(name): str(digest) for name, digest in cast("dict[Any, Any]", document["tools"]).items()
            }
        except (ValueError, LookupError, TypeError, AttributeError):
            return {}
