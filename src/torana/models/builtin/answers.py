"""The builtin model's own replies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic_ai.messages import ToolReturnPart

from torana.models.builtin.cards import Card
from torana.models.builtin.rewording import failure_for_people, result_for_people

#: Maximum number of skills in an introduction.
EXAMPLES_LIMIT = 12

_SELF = "I am Torana's builtin model: I follow fixed rules and do not understand language."
_SWITCH = (
    "For everything else, configure a language model, for example TORANA_MODEL=openai:gpt-5 with "
    "its key in OPENAI_API_KEY, and restart Torana."
)
_GREETING = re.compile(
    r"(?:(?:hi|hello|hey|good (?:morning|afternoon|evening|day)|thanks?(?: you)?|help(?: me)?|start|how are you"
    r"|who are you|what are you|are you (?:a bot|human|an ai))(?:,? (?:there|all|torana))?[\s,.!?]*){1,3}",
    re.IGNORECASE,
)


def is_greeting(text: str) -> bool:
    """Return whether a text is only a greeting, thanks, a call for help, or a question about the model."""
    return bool(_GREETING.fullmatch(text.strip()))


def introduction(examples: Sequence[tuple[Card, str]]) -> str:
    """Return a description of the builtin model and its abilities."""
    return f"{_SELF} {_abilities(examples)}\n\n{_SWITCH}"


def not_read(examples: Sequence[tuple[Card, str]]) -> str:
    """Return the answer to a message that no rule matches."""
    return f"{_SELF} Your message fits none of my rules. {_abilities(examples)}\n\n{_SWITCH}"


def needs_language_model(card: Card) -> str:
    """Return the answer for a matching skill that consists of instructions."""
    return (
        f"The skill “{card.title}” fits your message best, but only a language model can follow "
        f"its instructions. {_SELF} {_SWITCH}"
    )


def results(parts: Sequence[ToolReturnPart]) -> str:
    """Return the results of the tools, in order, or their errors, worded for people."""
    return "\n\n".join(_result(part) for part in parts)


def _result(part: ToolReturnPart) -> str:
    text = part.model_response_str(wrap_if_error=False).strip()
    match part.outcome:
        case "success":
            said = result_for_people(part.tool_name, text)
            return said or f"{part.tool_name} is done; it returned nothing."
        case "failed" | "denied":
            return failure_for_people(text) or (f"{part.tool_name} {part.outcome}, without a reason.")
        case _:
            return f"{part.tool_name} could not be completed: {text}"


def _abilities(examples: Sequence[tuple[Card, str]]) -> str:
    if not examples:
        return "None of the loaded skills works with the builtin model."
    lines = [f"- {card.title}: {example}" for card, example in examples[:EXAMPLES_LIMIT]]
    return "\n".join(["I can answer messages like these:", *lines])
