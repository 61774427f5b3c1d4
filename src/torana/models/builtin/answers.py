"""What the builtin model says in its own words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic_ai.messages import ToolReturnPart

from torana.models.builtin.cards import Card
from torana.models.builtin.telling import failure_for_people, result_for_people

#: Skills that an introduction names.
EXAMPLES_LIMIT = 12

_SELF = "I am Torana's builtin model: I follow fixed rules and do not understand language."
_SWITCH = (
    "For anything else set a language model, for example TORANA_MODEL=openai:gpt-5 with its key in "
    "OPENAI_API_KEY, and restart Torana."
)
_GREETING = re.compile(
    r"(?:(?:hi|hello|hey|good (?:morning|afternoon|evening|day)|thanks?(?: you)?|help(?: me)?|start|how are you"
    r"|who are you|what are you|are you (?:a bot|human|an ai))(?:,? (?:there|all|torana))?[\s,.!?]*){1,3}",
    re.IGNORECASE,
)


def is_greeting(text: str) -> bool:
    """True for a greeting, thanks, a call for help, or a question who this is; and for nothing more."""
    return bool(_GREETING.fullmatch(text.strip()))


def introduction(examples: Sequence[tuple[Card, str]]) -> str:
    """What this is and what it can do."""
    return f"{_SELF} {_abilities(examples)}\n\n{_SWITCH}"


def not_read(examples: Sequence[tuple[Card, str]]) -> str:
    """The answer to a message that no rule reads."""
    return f"{_SELF} Your message fits none of my rules. {_abilities(examples)}\n\n{_SWITCH}"


def needs_language_model(card: Card) -> str:
    """The answer where a skill fits that consists of instructions."""
    return (
        f"The skill “{card.title}” shares most words with your message, but following its instructions takes a "
        f"language model. {_SELF} {_SWITCH}"
    )


def results(parts: Sequence[ToolReturnPart]) -> str:
    """What the tools returned, in their order, or why they did not, in the tools' own words for people."""
    return "\n\n".join(_result(part) for part in parts)


def _result(part: ToolReturnPart) -> str:
    text = part.model_response_str(wrap_if_error=False).strip()
    match part.outcome:
        case "success":
            said = result_for_people(part.tool_name, text)
            return said or f"{part.tool_name} is done; it returned nothing."
        case "failed" | "denied":
            return failure_for_people(text) or f"{part.tool_name} {part.outcome}, without saying why."
        case _:
            return f"{part.tool_name} could not be completed: {text}"


def _abilities(examples: Sequence[tuple[Card, str]]) -> str:
    if not examples:
        return "No skill is loaded that I can use."
    lines = [f"- {card.title}: {example}" for card, example in examples[:EXAMPLES_LIMIT]]
    return "\n".join(["I can answer messages such as these:", *lines])
