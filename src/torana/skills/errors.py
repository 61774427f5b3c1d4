"""Errors in a skill. Each message states the problem, its place and the cure."""

from __future__ import annotations


class SkillInvalid(Exception):
    """The folder cannot be loaded as a skill."""


class SkillFileError(Exception):
    """A file of a skill cannot be read as text."""
