"""Skills: find, read and check folders with instructions. This package never runs their code."""

from torana.skills.errors import SkillFileError, SkillInvalid
from torana.skills.format.manifest import Needs
from torana.skills.format.triggers import SkillTrigger
from torana.skills.library import CORE_DIR, Catalogue, MissingRequirement, Skills
from torana.skills.skill import BrokenSkill, Skill, Source, copy_skill, parse_skill

__all__ = [
    "CORE_DIR",
    "BrokenSkill",
    "Catalogue",
    "MissingRequirement",
    "Needs",
    "Skill",
    "SkillFileError",
    "SkillInvalid",
    "SkillTrigger",
    "Skills",
    "Source",
    "copy_skill",
    "parse_skill",
]
