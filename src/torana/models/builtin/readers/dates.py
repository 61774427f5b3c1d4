"""Read questions about times and dates."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import NUMBERS, Arguments, first_match, wordings

_IN_PLACE = r"(?: (?:in|at) (?P<place>.+?))?(?: right)?(?: now)?"
_NOW = (
    wordings(
        r"(?:what(?:'?s| is)? )?(?:the )?(?:current |local )?time(?: is it| it is| is)?(?: right)?(?: now)?"
        + _IN_PLACE
    ),
    wordings(r"what(?:'?s| is) (?:the date|today's date|todays date|the date today|today)" + _IN_PLACE),
    wordings(
        r"what (?:date|day|year|month|weekday|day of the week)(?: is it| it is| is today| is this)"
        r"(?: today| now)?" + _IN_PLACE
    ),
    wordings(r"(?:today's|todays|the current|current) (?:date|day)|date"),
)
_PLACE = re.compile(
    r"(?!(?:my|your|our|his|her|its|their|an?|this|that|which|what|total|real|general) )"
    r"(?!.* (?:and|or|in|at|is) )(?:the (?=[A-Z]))?(?!the )[^\W\d_][\w .,'/+:-]{1,58}"
)


def current_time(message: BuiltinMessage) -> Arguments | None:
    """Read a question about the current time or date, here or in a place."""
    match = first_match(_NOW, message.phrase)
    if not match:
        return None
    place = match.groupdict().get("place")
    if place is None:
        return {}
    return {"place": place} if read_place(place) else None


def read_place(text: str) -> str | None:
    """Return the text if it can be the name of a place."""
    return text if _PLACE.fullmatch(text) else None


# The words that a date may contain.
_DATE_WORDS = wordings(
    r"\b\d{4}-\d\d-\d\d\b",
    r"\b\d{1,2}[./]\d{1,2}[./]\d{4}\b",
    r"\b(?:\d{4}|\d{1,2}(?:st|nd|rd|th)?)\b",
    r"\b(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|may)\b",
    r"\b(?:january|february|march|april|june|july|august|september|october|november|december)\b",
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b",
    r"\b(?:today|tomorrow|yesterday|now|christmas(?: eve| day)?|x-?mas|easter(?: sunday)?|halloween"
    r"|valentine's day|new year(?:'s (?:eve|day)|s)?)\b",
    r"\b(?:the day after tomorrow|the day before yesterday)\b",
    r"\b(?:in|ago|days?|weeks?|months?|years?|the|of|next|last|this|on)\b",
    r"[,\s]",
)
_FILLERS = wordings(r"\b(?:the|of|on)\s+(?!day )")

_SPANS = (
    wordings(r"(?:how many |the number of )?days (?:are )?(?:there )?between (?P<start>.+) and (?P<end>.+)"),
    wordings(r"(?:how many )?days (?:are )?(?:there )?from (?P<start>.+?) (?:to|until|till) (?P<end>.+)"),
    wordings(
        r"(?:how many )?(?:days|weeks) (?:are |is it )?(?:there |left |remain )?"
        r"(?:until|till|to|before) (?P<end>.+)"
    ),
    wordings(r"how (?:long|far)(?: is it)?(?: away)? (?:until|till|to) (?P<end>.+)"),
    wordings(r"(?:how many )?days (?:is it |are there )?since (?P<start>.+)"),
)


def days_between(message: BuiltinMessage) -> Arguments | None:
    """Read a question about the days until, since or between dates, which must be dates and nothing else."""
    match = first_match(_SPANS, message.phrase)
    if not match:
        return None
    groups = {"start": "today", "end": "today"} | match.groupdict()
    return {name: _date(text) for name, text in groups.items()} if all(map(_is_date, groups.values())) else None


_AMOUNT = rf"(?P<amount>\d{{1,5}}|an?|{'|'.join(NUMBERS)}) (?P<unit>day|week|month|year)s?"
_WHICH = r"(?:what|which) (?:date|day|weekday|day of the week)"
_SHIFTS = (
    wordings(rf"(?:{_WHICH} (?:is|was|comes|(?:is|will) it(?: be)?|will be) |(?:what(?:'s| is) )?the date )?"
             rf"{_AMOUNT} (?P<way>after|from|before) (?P<start>.+)"),
    wordings(rf"(?:{_WHICH} (?:is it|will it be|will be|is) |(?:what(?:'s| is) )?the date )in {_AMOUNT}"),
    wordings(rf"(?:{_WHICH} was (?:it )?|(?:what was )?the date ){_AMOUNT} (?P<way>ago)"),
    wordings(rf"(?P<way>add) {_AMOUNT} to (?P<start>.+)"),
    wordings(rf"(?P<way>subtract) {_AMOUNT} from (?P<start>.+)"),
)  # fmt: skip
_WEEKDAY = (
    wordings(rf"{_WHICH} (?:is|was|will be|falls on) (?P<start>.+)"),
    wordings(r"(?:what|which) (?:week)?day (?:does|will|did) (?P<start>.+) (?:fall on|be)"),
    wordings(
        r"(?:when|what date|what day) (?:is|was) "
        r"(?P<start>(?:christmas|x-?mas|easter|halloween|valentine|new year).*)"
    ),
    wordings(r"what(?:'s| is) (?:the date (?:of )?)?(?P<start>tomorrow|yesterday)(?:'s date)?"),
    wordings(r"what(?:'s| is| will be) the date (?:of |on )?(?P<start>(?:next |this )?\w+day)"),
)
_WAS = wordings(r"\b(?:was|did)\b")


def shift_date(message: BuiltinMessage) -> Arguments | None:
    """Read a question about a date some days, weeks, months or years from another, or about a weekday."""
    match = first_match((*_SHIFTS, *_WEEKDAY), message.phrase)
    groups = match.groupdict() if match else {}
    start = groups.get("start", "today")
    if not match or not _is_date(start):
        return None
    past = {"past": True} if "start" in groups and _WAS.search(message.phrase) else {}
    return {"start": _date(start), **_steps(groups), **past}


def _steps(groups: Mapping[str, str]) -> Mapping[str, int]:
    if "amount" not in groups:
        return {}
    amount = groups["amount"].lower()
    number = int(amount) if amount.isdecimal() else NUMBERS.get(amount, 1)
    back = groups.get("way", "").lower() in ("before", "ago", "subtract")
    return {f"{groups['unit'].lower()}s": -number if back else number}


def read_date_words(text: str) -> str | None:
    """Return the text of a date, ready for the tool, if it is a date and nothing else."""
    return _date(text) if _is_date(text) else None


def _is_date(text: str) -> bool:
    return bool(re.search(r"\w", text)) and not _DATE_WORDS.sub("", text)


def _date(text: str) -> str:
    return _FILLERS.sub("", text).strip()
