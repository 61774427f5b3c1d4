"""Fetch a skill's source as an archive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torana.skills.errors import SkillInvalid
from torana.skills.installation.archive import PACKED_LIMIT
from torana.skills.installation.git import Git
from torana.skills.installation.sources import SkillSource, pack_folder, read_archive, split_address
from torana.web import Guard, GuardedClient, WebFault

SECONDS = 120.0
#: Variables of a user of this machine: keys and proxies.
_USER_VARIABLES = ("SSH_AUTH_SOCK", "http_proxy", "https_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """Fetches sources.

    Without ``local``, as in the gateway, it accepts only https addresses that the guard allows: a client that
    may install skills must not reach the gateway's files and network, or use the gateway's keys.
    """

    guard: Guard
    client: GuardedClient
    git: Git
    local: bool = False

    async def fetch(self, source: SkillSource, *, path: str | None = None) -> bytes:
        """Return the archive of the source, up to the size limit. Raises ``SkillInvalid``."""
        if source.is_local and not self.local:
            raise SkillInvalid(
                f"{source} is on the gateway's machine, or needs its keys; upload an archive, or run "
                "`torana skills` there."
            )
        if source.kind == "folder":
            bare = await asyncio.to_thread(_is_bare, Path(source.address))
            if not bare:
                return await asyncio.to_thread(pack_folder, Path(source.address))
        if source.kind == "file":
            return await asyncio.to_thread(read_archive, Path(source.address))
        try:
            return await self._fetch(source, path)
        except WebFault as fault:
            raise SkillInvalid(f"The source could not be fetched: {fault}") from fault

    async def _fetch(self, source: SkillSource, path: str | None) -> bytes:
        if source.kind != "url":
            return await self.git.fetch(source, path=path, addresses=await self._addresses(source))
        page = await self.client.get(source.address, max_bytes=PACKED_LIMIT, seconds=SECONDS)
        if not page.url.startswith("https://"):
            raise SkillInvalid(f"{source} leads to {page.url}, which is not https; name an https URL.")
        return page.body

    async def _addresses(self, source: SkillSource) -> list[str]:
        """Return the addresses that git may connect to. An operator's own command has no such limit."""
        if self.local:
            return []
        parts = split_address(source.address)
        return await self.guard.resolve(parts.hostname or "", parts.port or 443)


def open_fetcher(*, guard: Guard, environ: Mapping[str, str], local: bool = False) -> Fetcher:
    """Return a fetcher with this machine's git, which gets as few environment variables as possible.

    ``local`` is for a user of this machine: git also gets the user's keys and proxies.
    """
    names = ("PATH", *(_USER_VARIABLES if local else ()))
    git = Git(environ={name: environ[name] for name in names if name in environ})
    return Fetcher(guard=guard, client=GuardedClient(guard=guard), git=git, local=local)


def _is_bare(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()
