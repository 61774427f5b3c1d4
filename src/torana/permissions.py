"""The operator's permission rules, and their verdict on a call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from pydantic import ConfigDict, StringConstraints

#: The rule for a tool: it runs always, with approval, or never.
Permission = Literal["allow", "ask", "deny"]

#: The tools that read a skill, the tool that runs its scripts, and their argument for the skill.
OPENS_SKILL = frozenset({"load_skill", "read_skill_file"})
RUNS_SKILL = "run_skill_script"
SLUG = "slug"

_Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]


@pydantic.dataclasses.dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Rule:
    """A rule of ``[[permissions]]`` for some tools, users, tokens and skills.

    ``tool`` and ``user`` may be patterns (``*``, ``?``, ``[…]``). ``token`` is a token's id and ``skill`` a
    skill's short name. An omitted field matches everything. A rule with a user does not match a call without a
    user.
    """

    tool: _Pattern
    user: _Pattern | None = None
    token: _Pattern | None = None
    skill: _Pattern | None = None
    permission: Permission

    def fits(self, call: Calling) -> bool:
        """Return whether the rule applies to the call."""
        return (
            fnmatchcase(call.tool, self.tool)
            and (self.user is None or (call.user is not None and fnmatchcase(call.user, self.user)))
            and self.token in (None, call.token)
            and (self.skill is None or self.skill in call.skills)
        )


#: The keys of a rule.
RULE_KEYS = tuple(field.name for field in fields(Rule))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """A tool call as rules see it: its tool, its user, and the opened skills.

    ``promised`` is the permission of the tool's ``@tool``, or None.
    """

    tool: str
    promised: Permission | None
    user: str | None = None
    token: str | None = None
    skills: Collection[str] = field(default_factory=frozenset[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionVerdict:
    """The verdict on a call, and the rule that decided it."""

    permission: Permission
    why: str


class Rules:
    """The operator's rules, in order. Without a matching rule, the tool's default applies."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(rules)

    def verdict(self, call: Calling) -> PermissionVerdict:
        """Return the verdict of the first matching rule, else the tool's default, else a denial."""
        for number, rule in enumerate(self._rules, start=1):
            if rule.fits(call):
                return PermissionVerdict(permission=rule.permission, why=f"rule {number} of [[permissions]]")
        if call.promised is None:
            return PermissionVerdict(
                permission="deny", why="no rule of [[permissions]], and the tool has no default"
            )
        return PermissionVerdict(permission=call.promised, why="the tool's default")

    def is_always_denied(self, call: Calling) -> bool:
        """Return whether the tool is denied for all arguments, so that it can be hidden from the model.

        The tool that runs scripts also falls under the rules of the skill in its arguments.
        """
        named = {rule.skill for rule in self._rules if rule.skill} if call.tool == RUNS_SKILL else set[str]()
        calls = [call, *(replace(call, skills={skill}) for skill in named)]
        return all(self.verdict(one).permission == "deny" for one in calls)

    def unknown_tools(self, tools: Iterable[str]) -> list[str]:
        """Return the names in rules, except patterns, that no tool has: misspelt or missing tools."""
        known = set(tools)
        named = (rule.tool for rule in self._rules)
        return [name for name in dict.fromkeys(named) if name not in known and not set(name) & set("*?[")]


def promised_by(metadata: dict[str, Any] | None) -> Permission | None:
    """Return the permission in a tool's metadata, or None."""
    match (metadata or {}).get("permission"):
        case "allow" | "ask" | "deny" as permission:
            return permission
        case _:
            return None
