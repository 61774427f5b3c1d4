"""The digests of tool definitions that the operator accepted; a changed tool waits for review."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast


class Pins:
    """The digests of one server's tools, in a file.

    The first list of a server is accepted without review. So is the first list after a change of ``source``,
    because the operator changed the settings.
    """

    def __init__(self, *, path: Path, source: str) -> None:
        self._path = path
        self._source = source
        self._known: Mapping[str, str] | None = None

    def load(self) -> Mapping[str, str] | None:
        """Return the accepted digest of each tool; None before the first list. Raises ``OSError``."""
        if self._known is None and self._path.exists():
            self._known = self._read_file()
        return self._known

    def accept(self, digests: Mapping[str, str]) -> None:
        """Accept these digests in addition to the known ones. Raises ``OSError``."""
        known = {**(self.load() or {}), **digests}
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"source": self._source, "tools": known}, indent=1))
        os.replace(draft, self._path)  # noqa: PTH105 - atomic replacement
        self._known = known

    def _read_file(self) -> Mapping[str, str] | None:
        """Return the content of the file; with a damaged file no tool counts as accepted."""
        try:
            document: Any = json.loads(self._path.read_bytes())
            if document["source"] != self._source:
                return None
            return {
                str(name): str(digest) for name, digest in cast("dict[Any, Any]", document["tools"]).items()
            }
        except (ValueError, LookupError, TypeError, AttributeError):
            return {}
