"""Read the skills from the disk and the database, with or without a running gateway."""

from __future__ import annotations

from difflib import get_close_matches

from torana.api.schemas.skills import SkillDetailBody
from torana.config import Loaded
from torana.config.database import database_place
from torana.errors import OperatorError
from torana.skills import CORE_DIR, Skills
from torana.skills.grants import InstalledSkills
from torana.skills.status import SkillDetails, SkillStatuses
from torana.store.backup.archive import INSTALLED
from torana.store.rows.extensions.skills import read_decisions
from torana.tools.sandbox import Bubblewrap


class SkillsHere:
    """All skills of a data directory."""

    def __init__(self, loaded: Loaded) -> None:
        settings = loaded.settings
        decided = read_decisions(database_place(settings))
        self.installed = InstalledSkills(root=settings.data_dir / INSTALLED, decided=decided)
        self.skills = Skills(
            core_dir=CORE_DIR,
            user_dir=settings.skills_dir,
            environ=loaded.provider_environ,
            installed=self.installed,
            which=Bubblewrap(hidden=[settings.data_dir, settings.skills_dir]).which,
        )
        self.statuses = SkillStatuses(skills=self.skills, installed=self.installed)

    def get(self, slug: str) -> SkillDetails:
        """Return a skill in any state. Raises ``OperatorError`` for an unknown slug."""
        shown = self.statuses.get(slug)
        if shown is not None:
            return shown
        near = get_close_matches(slug, [one.slug for one in self.statuses.list_statuses()], n=1)
        hint = f"did you mean {near[0]}?" if near else "`torana skills list` lists all skills"
        raise OperatorError(f"there is no skill {slug!r}; {hint}")

    def body(self, slug: str) -> SkillDetailBody:
        """Return the body that the gateway returns for the skill."""
        return SkillDetailBody.from_details(self.get(slug))
