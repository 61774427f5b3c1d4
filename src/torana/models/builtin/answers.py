"""The answers of the builtin model that are no tool results."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import ToolReturnPart

from torana.models.builtin.cards import Card
from torana.models.builtin.languages import FixedReply, language_of
from torana.models.builtin.rewording import failure_for_people, result_for_people

#: Maximum number of skills in the whole list, and of examples in other answers.
SKILLS_LIMIT, EXAMPLES_LIMIT = 20, 3

_SWITCH = (
    "For everything else, configure a language model, for example TORANA_MODEL=openai:gpt-5 with "
    "its key in OPENAI_API_KEY, and restart Torana."
)
_NOTHING = "None of the loaded skills works with the builtin model."
#: Skills whose examples come first.
_FAVOURITES = ("lists", "reminders", "calculator")


def small_talk(reply: FixedReply, examples: Sequence[tuple[Card, str]]) -> str:
    if reply.examples == "none":
        return reply.text
    if not examples:
        return f"{reply.text} {_NOTHING}\n\n{_SWITCH}"
    if reply.examples == "some":
        return f"{reply.text}\nTry {_some(examples)}. “help” lists everything."
    lines = [f"- {card.title}: {example}" for card, example in examples[:SKILLS_LIMIT]]
    return "\n".join([f"{reply.text} I can answer messages like these:", *lines, "", _SWITCH])


def unmatched_answer(text: str, examples: Sequence[tuple[Card, str]]) -> str:
    """Return the answer to a message that no rule matches, in its language if it is known."""
    return language_of(text).fallback.format(examples=_some(examples)) if examples else _NOTHING


def _some(examples: Sequence[tuple[Card, str]]) -> str:
    shown = sorted(examples, key=_rank)
    return ", ".join(example for _, example in shown[:EXAMPLES_LIMIT])


def _rank(example: tuple[Card, str]) -> int:
    slug = example[0].slug
    return _FAVOURITES.index(slug) if slug in _FAVOURITES else len(_FAVOURITES)


def needs_language_model(card: Card) -> str:
    """Return the answer for a matching skill that consists of instructions."""
    return (
        f"The skill “{card.title}” fits your message best, but only a language model can follow "
        f"its instructions. {_SWITCH}"
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
