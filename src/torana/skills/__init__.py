"""What the agent may know how to do: skill folders, found, read and checked. Their code is never run here."""

from torana.skills.faults import SkillFileError, SkillInvalid
from torana.skills.library import CORE_DIR, Catalogue, Missing, SkillRecord, Skills
from torana.skills.needs import Needs
from torana.skills.skill import BrokenSkill, Skill, Source, parse_skill
from torana.skills.snapshot import copy_skill
from torana.skills.triggers import Trigger

__all__ = [
    "CORE_DIR",
    "BrokenSkill",
    "Catalogue",
    "Missing",
    "Needs",
    "Skill",
    "SkillFileError",
    "SkillInvalid",
    "SkillRecord",
    "Skills",
    "Source",
    "Trigger",
    "copy_skill",
    "parse_skill",
]
