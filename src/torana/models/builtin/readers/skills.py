"""Read questions about the list of skills and the content of a skill."""

from __future__ import annotations

import re

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, groups_of, wordings

list_skills = groups_of(
    wordings(
        r"what are your (?:skills|capabilities)",
        r"(?:list|show(?: me)?|name) (?:all )?(?:the |your )?(?:skills|capabilities)",
        r"(?:what|which) (?:skills|capabilities) (?:do you have|can you use)",
        r"(?:what|which) (?:skills|capabilities) are (?:there|installed|loaded|available)",
    )
)
_NAME = r"(?P<name>[\w -]{1,64}?)"
_LOAD = (
    wordings(rf"(?:show(?: me)?|what are) the instructions (?:of|for) the {_NAME} skill"),
    wordings(rf"(?:explain|describe|load|open|show(?: me)?|tell me about|what is|what's) the {_NAME} skill"),
    wordings(rf"(?:explain|describe|load|open|show(?: me)?)(?: the)? skill {_NAME}"),
    wordings(rf"how (?:does|do i use|can i use) the {_NAME} skill(?: work)?"),
    wordings(rf"what does the {_NAME} skill do"),
)


def load_skill(message: BuiltinMessage) -> Arguments | None:
    """Read a question about one skill; "unit converter" means the slug ``unit-converter``."""
    match = first_match(_LOAD, message.phrase)
    return {"slug": re.sub(r"[\s_]+", "-", match["name"].strip().lower())} if match else None
