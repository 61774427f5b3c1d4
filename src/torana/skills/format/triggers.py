"""Triggers: messages that run a skill's script without a language model, as its front matter declares them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torana.skills.errors import SkillInvalid
from torana.skills.format.front_matter import Fields, Value, mapping_of
from torana.skills.format.manifest import BLOCK, block_of, entries, text_in

#: The maximum number of names in a phrase: each one multiplies the ways to match a message.
NAMES_LIMIT = 3

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_FIELDS = ("say", "run", "arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillTrigger:
    """A phrase and the script that it runs."""

    #: Words with ``{names}`` between them; each name matches some text.
    phrase: str
    script: str
    #: Texts in which the phrase's ``{names}`` are replaced by the matched texts.
    arguments: tuple[str, ...]


def triggers_of(metadata: Fields, *, scripts: tuple[str, ...]) -> tuple[SkillTrigger, ...]:
    """Return the block's ``triggers``: phrases, or mappings with ``say``, ``run`` and ``arguments``.

    Without ``run``, the skill must have exactly one script. Without ``arguments``, the script gets the text of
    each ``{name}``, in the order of the phrase. Raises ``SkillInvalid`` for an unknown script or ``{name}``.
    """
    return tuple(_trigger(item, scripts) for item in entries(block_of(metadata), "triggers"))


def _trigger(item: Value, scripts: tuple[str, ...]) -> SkillTrigger:
    fields = {"say": item} if isinstance(item, str) else mapping_of(item)
    phrase = text_in(fields.get("say", ""), "triggers")
    script = text_in(fields["run"], "triggers") if "run" in fields else _only(scripts, phrase)
    if script not in scripts or not fields.keys() <= set(_FIELDS):
        raise SkillInvalid(
            f"metadata.{BLOCK}.triggers: {phrase!r} must have only the fields say, run and arguments, and must "
            f"run one of the skill's scripts ({', '.join(scripts) or 'it has none'})."
        )
    names = _PLACEHOLDER.findall(phrase)
    given = [text_in(each, "triggers") for each in entries(fields, "arguments")]
    arguments = given if "arguments" in fields else [f"{{{name}}}" for name in names]
    if not {name for argument in arguments for name in _PLACEHOLDER.findall(argument)} <= set(names):
        raise SkillInvalid(f"metadata.{BLOCK}.triggers: {phrase!r} lacks a {{name}} that its arguments have.")
    if len(names) > NAMES_LIMIT or not _PLACEHOLDER.sub("", phrase).strip():
        raise SkillInvalid(
            f"metadata.{BLOCK}.triggers: {phrase!r} is too general; add words, and use at most "
            f"{NAMES_LIMIT} {{names}}."
        )
    return SkillTrigger(phrase=phrase, script=script, arguments=tuple(arguments))


def _only(scripts: tuple[str, ...], phrase: str) -> str:
    if len(scripts) != 1:
        raise SkillInvalid(
            f"metadata.{BLOCK}.triggers: {phrase!r} has no `run`; write it as "
            '`{say: "…", run: scripts/….py}`.'
        )
    return scripts[0]
