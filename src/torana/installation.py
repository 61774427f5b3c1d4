"""The commands that add a library to this installation, for the program that installed it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_NAME = "torana"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An environment with Torana in it.

    ``origin`` is the content of its ``direct_url.json`` (PEP 610); None if it was installed by its name.
    """

    prefix: Path
    python: str
    version: str
    origin: Mapping[str, Any] | None

    def extra_command(self, extra: str) -> str:
        """Return the command that adds the libraries of an extra, and keeps the kind of the installation."""
        return shlex.join([*self._installer(), *self._requirement(f"[{extra}]")])

    def package_command(self, requirement: str) -> str:
        """Return the command that adds a package."""
        if self._is_uv_tool:
            return shlex.join([*self._installer(), "--with", requirement, *self._requirement("")])
        if self._is_pipx_tool:
            return shlex.join(["pipx", "inject", _NAME, requirement])
        return shlex.join([*self._installer(), requirement])

    @property
    def _is_uv_tool(self) -> bool:
        return (self.prefix / "uv-receipt.toml").exists()

    @property
    def _is_pipx_tool(self) -> bool:
        return (self.prefix / "pipx_metadata.json").exists()

    def _installer(self) -> Sequence[str]:
        if self._is_uv_tool:
            return ("uv", "tool", "install", "--force")
        if self._is_pipx_tool:
            return ("pipx", "install", "--force")
        return (self.python, "-m", "pip", "install")

    def _requirement(self, extras: str) -> Sequence[str]:
        if self.origin is None:
            return (f"{_NAME}{extras}=={self.version}",)
        url = str(self.origin["url"])
        if self.origin.get("dir_info", {}).get("editable"):
            return ("--editable", f"{unquote(urlsplit(url).path)}{extras}")
        vcs = self.origin.get("vcs_info")
        if vcs:
            url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        return (f"{_NAME}{extras} @ {url}",)


def this_installation() -> Installation:
    """Return the installation of the running program."""
    found = distribution(_NAME)
    origin = found.read_text("direct_url.json")
    return Installation(
        prefix=Path(sys.prefix),
        python=sys.executable,
        version=found.version,
        origin=json.loads(origin) if origin else None,
    )
