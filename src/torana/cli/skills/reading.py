"""The skills as they stand on the disk and in the database, read beside a running gateway or without one."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from torana.config import Loaded
from torana.errors import OperatorError
from torana.skills import CORE_DIR, Skills
from torana.skills.installed import InstalledSkills
from torana.skills.standing import Shown, SkillStandings
from torana.skills.telling import shown_body
from torana.store.backup import DATABASE_NAME, INSTALLED
from torana.store.skills import read_decisions
from torana.tools.sandbox import Bubblewrap


class SkillsHere:
    """All skills of a data directory, at this moment."""

    def __init__(self, loaded: Loaded) -> None:
        settings = loaded.settings
        decided = read_decisions(settings.data_dir / DATABASE_NAME)
        self.installed = InstalledSkills(root=settings.data_dir / INSTALLED, decided=decided)
        self.skills = Skills(
            core_dir=CORE_DIR,
            user_dir=settings.skills_dir,
            environ=loaded.provider_environ,
            installed=self.installed,
            which=Bubblewrap(hidden=[settings.data_dir, settings.skills_dir]).which,
        )
        self.standings = SkillStandings(skills=self.skills, installed=self.installed)

    def shown(self, slug: str) -> Shown:
        """A skill, whatever its state. Raises ``OperatorError`` where there is none of that slug."""
        shown = self.standings.shown(slug)
        if shown is not None:
            return shown
        near = get_close_matches(slug, [one.slug for one in self.standings.listed()], n=1)
        hint = f"did you mean {near[0]}?" if near else "`torana skills list` names those there are"
        raise OperatorError(f"there is no skill {slug!r}; {hint}")

    def body(self, slug: str) -> Mapping[str, Any]:
        """The same as the gateway tells of it in JSON."""
        return shown_body(self.shown(slug))
