"""The digests of tool definitions that the operator accepted; a changed tool waits for review."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from torana.store.engine.database import Database
from torana.store.rows.extensions import mcp_pins

_log = logging.getLogger(__name__)


class Pins:
    """The digests of one server's tools, in a row that all replicas share.

    The first list of a server is accepted without review. So is the first list after a change of ``source``,
    because the operator changed the settings.

    A file in the data directory has a copy. The copy is used only if the database has no row: after an upgrade
    from a version without these rows, or after the restore of a backup that is older than the server's entry.
    Without the copy, a changed tool would then be accepted as part of a first list. Row and file have a digest
    of ``source``, which may contain secrets.
    """

    def __init__(self, *, database: Database, path: Path, server: str, source: str) -> None:
        """``path`` is the file of the copy."""
        self._database = database
        self._path = path
        self._source = source
        self._key = mcp_pins.PinsKey(server, sha256(source.encode("utf-8", "surrogatepass")).hexdigest())
        #: The content of the file, if it is known.
        self._copied: Mapping[str, str] | None = None

    async def load(self, *, first: Mapping[str, str]) -> Mapping[str, str]:
        """Return the accepted digest of each tool; accept ``first`` if there are none yet.

        Raises ``StoreUnavailable``.
        """
        if self._copied is None:
            self._copied = await asyncio.to_thread(self._read_copy)
        digests = first if self._copied is None else self._copied
        return await self._copy(
            await self._database.run(partial(mcp_pins.accept_first, key=self._key, digests=digests))
        )

    async def accept(self, digests: Mapping[str, str]) -> Mapping[str, str]:
        """Accept these digests in addition to the known ones, and return all. Raises ``StoreUnavailable``."""
        return await self._copy(
            await self._database.run(partial(mcp_pins.accept, key=self._key, digests=digests))
        )

    async def _copy(self, known: Mapping[str, str]) -> Mapping[str, str]:
        if known != self._copied:
            try:
                await asyncio.to_thread(self._write_copy, known)
            except OSError as error:
                _log.warning("mcp_pins_not_copied", extra={"file": str(self._path), "reason": str(error)})
            else:
                self._copied = known
        return known

    def _read_copy(self) -> Mapping[str, str] | None:
        """Return the content of the file, None if it does not exist; an unreadable file accepts no tool."""
        try:
            document: Any = json.loads(self._path.read_bytes())
            if document["source"] not in (self._source, self._key.source):
                return None
            tools = cast("dict[Any, Any]", document["tools"])
            known = {str(name): str(digest) for name, digest in tools.items()}
            if document["source"] == self._source:  # a file of an earlier version
                self._write_copy(known)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}
        return known

    def _write_copy(self, known: Mapping[str, str]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"source": self._key.source, "tools": dict(known)}, indent=1))
        draft.replace(self._path)
