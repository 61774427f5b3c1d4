"""Complete messages that refer to an earlier one: "and in Paris?", "plus 5", "what is on it?", "cancel it"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from torana.models.builtin.explicit import ExplicitCall
from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers import lists
from torana.models.builtin.readers.base import Arguments, first_match, wordings
from torana.models.builtin.readers.dates import read_date_words, read_place
from torana.models.builtin.readers.schedules import read_time, task_without_time
from torana.models.builtin.readers.units import is_unit, read_quantity

#: Number of earlier messages that a message can refer to.
EARLIER_LIMIT = 8

_AND = r"(?:and |or |what about |how about |and what about )"
_PLACE = (wordings(rf"{_AND}?(?:in|at|for) (?P<place>.+)"), wordings(rf"{_AND}(?P<place>.+)"))
_UNIT = wordings(rf"{_AND}?(?:in|into|to) (?P<unit>.+)")
_QUANTITY = wordings(rf"{_AND}(?:for )?(?P<quantity>.+)")
_UNTIL = (wordings(rf"{_AND}?(?:until|till|to) (?P<end>.+)"), wordings(rf"{_AND}(?P<end>.+)"))
_OPERATION = wordings(
    r"(?:and |now |then )*"
    r"(?P<operation>(?:plus|minus|times|multiplied by|divided by|[-+*/×÷]) ?\d[\d.,]*(?: ?%)?)"
)
_IT = wordings(
    r"(?:cancel|delete|remove|stop) (?:it|that|this|(?:that|this|the|my) (?:reminder|alarm|task|schedule))"
)
_AGAIN = wordings(r"(?:and |roll |flip |pick )?(?:again|once more|another(?: one)?)")
_LIST_TOOLS = ("add_to_list", "show_list", "remove_from_list")


def complete(
    message: BuiltinMessage,
    earlier: Sequence[BuiltinMessage],
    read: Callable[[BuiltinMessage], ExplicitCall | None],
) -> ExplicitCall | None:
    """Return the call that a message means after earlier messages, oldest first.

    ``read`` returns the call of a message that needs no earlier one.
    """
    calls: list[ExplicitCall] = []
    for before, current in pairwise([None, *earlier[-EARLIER_LIMIT:]]):
        if current is not None and (call := read(current) or _continue(current, before, calls)):
            calls.insert(0, call)
    return _continue(message, earlier[-1] if earlier else None, calls)


def _continue(
    message: BuiltinMessage, before: BuiltinMessage | None, calls: Sequence[ExplicitCall]
) -> ExplicitCall | None:
    """Return the call of a message that continues an earlier one.

    ``before`` is the message before it; ``calls`` are the calls of all earlier messages, the newest first.
    """
    phrase = message.phrase
    if not phrase:
        return None
    if before and (text := task_without_time(before.phrase)) and (at := read_time(phrase)):
        return ExplicitCall("schedule_once", {"text": text, "at": at})
    if calls and (vary := _VARIATIONS.get(calls[0].tool)) and (arguments := vary(phrase, calls[0].arguments)):
        return ExplicitCall(calls[0].tool, arguments)
    return _about_list(phrase, calls) or _about_schedule(phrase, calls)


def _about_list(phrase: str, calls: Sequence[ExplicitCall]) -> ExplicitCall | None:
    named = (call.arguments["name"] for call in calls if call.tool in _LIST_TOOLS and call.arguments["name"])
    name = next(named, lists.DEFAULT_LIST)
    recent = bool(calls) and calls[0].tool in _LIST_TOOLS
    found = lists.read_unnamed_list(phrase, name=name, recent=recent)
    return ExplicitCall(*found) if found else None


def _about_schedule(phrase: str, calls: Sequence[ExplicitCall]) -> ExplicitCall | None:
    if not _IT.fullmatch(phrase):
        return None
    made = (call for call in calls if call.tool in ("schedule_once", "schedule_repeating"))
    newest = next(made, None)
    return ExplicitCall("cancel_schedule", {"which": newest.arguments["text"]}) if newest else None


def _other_place(phrase: str, _: Arguments) -> Arguments | None:
    match = first_match(_PLACE, phrase)
    place = read_place(match["place"]) if match else None
    return {"place": place} if place else None


def _other_unit(phrase: str, before: Arguments) -> Arguments | None:
    if (match := _UNIT.fullmatch(phrase)) and is_unit(match["unit"]):
        return {**before, "to_unit": match["unit"]}
    match = _QUANTITY.fullmatch(phrase)
    quantity = read_quantity(match["quantity"]) if match else None
    return {**quantity, "to_unit": before["to_unit"]} if quantity else None


def _other_end(phrase: str, before: Arguments) -> Arguments | None:
    match = first_match(_UNTIL, phrase)
    end = read_date_words(match["end"]) if match else None
    return {**before, "end": end} if end else None


def _further_operation(phrase: str, before: Arguments) -> Arguments | None:
    match = _OPERATION.fullmatch(phrase)
    return {"expression": f"({before['expression']}) {match['operation']}"} if match else None


def _same_again(phrase: str, before: Arguments) -> Arguments | None:
    return before if _AGAIN.fullmatch(phrase) else None


_VARIATIONS: Mapping[str, Callable[[str, Arguments], Arguments | None]] = {
    "current_time": _other_place,
    "convert_units": _other_unit,
    "days_between": _other_end,
    "calculate": _further_operation,
    "pick_random": _same_again,
}
