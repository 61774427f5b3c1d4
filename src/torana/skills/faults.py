"""What can be wrong with a skill; each message says what, where in the folder, and the cure."""

from __future__ import annotations


class SkillInvalid(Exception):
    """The folder cannot be loaded as a skill."""


class SkillFileError(Exception):
    """A file of a skill cannot be handed out as text."""
