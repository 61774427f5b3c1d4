"""Which tools may run: the operator's rules, and the answer they add up to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

import pydantic.dataclasses
from pydantic import ConfigDict, StringConstraints

from torana.tools.base import Permission

#: The tools that give what stands in a skill, and the one that runs a script of it; all name it in ``SLUG``.
OPENS_SKILL = frozenset({"load_skill", "read_skill_file"})
RUNS_SKILL = "run_skill_script"
SLUG = "slug"

_Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]


@pydantic.dataclasses.dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Rule:
    """One of ``[[permissions]]``: what holds for calls of some tools, by some users, tokens and skills.

    ``tool`` and ``user`` may be patterns (``*``, ``?``, ``[…]``), ``token`` is a token's id and ``skill`` a
    skill's short name. What a rule does not name fits everything; one that names a user does not fit nobody.
    """

    tool: _Pattern
    user: _Pattern | None = None
    token: _Pattern | None = None
    skill: _Pattern | None = None
    permission: Permission

    def fits(self, call: Calling) -> bool:
        """Whether the rule speaks of the call."""
        return (
            fnmatchcase(call.tool, self.tool)
            and (self.user is None or (call.user is not None and fnmatchcase(call.user, self.user)))
            and self.token in (None, call.token)
            and (self.skill is None or self.skill in call.skills)
        )


#: What a rule may say.
RULE_KEYS = tuple(field.name for field in fields(Rule))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """A call of a tool as rules see it: of which tool, for whom, and which skills are open.

    ``promised`` is what the tool's own ``@tool`` says; None where it says nothing.
    """

    tool: str
    promised: Permission | None
    user: str | None = None
    token: str | None = None
    skills: Collection[str] = field(default_factory=frozenset[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a tool may be run, and what says so."""

    permission: Permission
    why: str


class Rules:
    """The operator's rules, in their order. Without any, each tool's own word holds."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(rules)

    def verdict(self, call: Calling) -> Verdict:
        """The first rule that fits decides, else the tool's own word; a tool that gives none is denied."""
        for number, rule in enumerate(self._rules, start=1):
            if rule.fits(call):
                return Verdict(permission=rule.permission, why=f"rule {number} of [[permissions]]")
        if call.promised is None:
            return Verdict(permission="deny", why="no rule of [[permissions]], and the tool has no default")
        return Verdict(permission=call.promised, why="the tool's default")

    def is_out_of_reach(self, call: Calling) -> bool:
        """Whether no arguments whatever would let the tool be called: then the model need not know of it.

        What runs a skill's script comes under the rules of the skill that its arguments name.
        """
        named = {rule.skill for rule in self._rules if rule.skill} if call.tool == RUNS_SKILL else set[str]()
        calls = [call, *(replace(call, skills={skill}) for skill in named)]
        return all(self.verdict(one).permission == "deny" for one in calls)

    def strangers(self, tools: Iterable[str]) -> list[str]:
        """The names in rules that are no patterns and no tool's: misspelt, or of a tool that is not there."""
        known = set(tools)
        named = (rule.tool for rule in self._rules)
        return [name for name in dict.fromkeys(named) if name not in known and not set(name) & set("*?[")]


def promised_by(metadata: dict[str, Any] | None) -> Permission | None:
    """The permission in a tool's metadata; None where there is none that is known."""
    match (metadata or {}).get("permission"):
        case "allow" | "ask" | "deny" as permission:
            return permission
        case _:
            return None
