"""List the skills, and read one on demand."""

from __future__ import annotations

from torana.skills import SkillFileError, Skills
from torana.tools.base import ToolError, ToolGroup, tool, tool_errors


class SkillTools(ToolGroup):
    """The tools of the ``skill-guide`` skill."""

    def __init__(self, *, skills: Skills) -> None:
        self._skills = skills

    @tool(idempotent=True)
    def list_skills(self) -> str:
        """List the loaded skills with their descriptions."""
        loaded = self._skills.catalogue().loaded
        return "\n".join(f"- {skill.title} (`{skill.slug}`): {skill.description}" for skill in loaded)

    @tool(idempotent=True)
    def load_skill(self, slug: str) -> str:
        """Read a skill's instructions. Do so before following a skill.

        Args:
            slug: The skill's short name, as in the list of skills.
        """
        skill = self._skills.catalogue().get(slug)
        if skill is None:
            raise ToolError(f"There is no skill {slug!r}; list_skills lists all skills.")
        missing = self._skills.missing(skill)
        lacking = ", ".join([*missing["env"], *missing["bins"]])
        with tool_errors(SkillFileError):
            files = ", ".join(name for name in self._skills.files(skill) if name != "SKILL.md")
        instructions = skill.instructions.strip()
        parts = (
            "" if instructions.startswith("# ") else f"# {skill.title}",
            f"Missing requirements: {lacking}." if lacking else "",
            instructions,
            f"Files to read with read_skill_file: {files}" if files else "",
        )
        return "\n\n".join(part for part in parts if part)

    @tool(idempotent=True)
    def read_skill_file(self, slug: str, path: str) -> str:
        """Read a text file of a skill's folder, such as a reference its instructions name.

        Args:
            slug: The skill's short name.
            path: The file's path inside the skill's folder, such as references/guide.md.
        """
        with tool_errors(SkillFileError):
            return self._skills.read_file(slug, path)
