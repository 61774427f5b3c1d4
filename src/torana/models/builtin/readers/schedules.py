"""Read requests for reminders and scheduled tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import NUMBERS, Arguments, first_match, groups_of, wordings
from torana.models.builtin.readers.timers import read_timer

_DAY_NAME = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_MONTH = (
    r"(?:january|february|march|april|may|june|july|august|september|october|november|december"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)"
)
_CLOCK = (
    r"(?:at (?:\d{1,2}(?:[:.][0-5]\d)?(?: ?[ap]\.?m\.?| o'clock)?|noon|midday|midnight)"
    r"|\d{1,2}:[0-5]\d(?: ?[ap]m)?|\d{1,2} ?[ap]m|(?:in the |this )(?:morning|afternoon|evening)|tonight)"
)
#: Only after a day: alone it may belong to the text ("good morning").
_PART = r"(?: (?:morning|afternoon|evening))?"
_AHEAD = rf"in (?:\d{{1,5}}|an?|half an|{'|'.join(NUMBERS)}) (?:minute|min|hour|day|week|month|year)s?"
_DATE = (
    rf"(?:on )?(?:\d{{4}}-\d\d-\d\d|the day after tomorrow|tomorrow|today|(?:next |this )?{_DAY_NAME}"
    rf"|(?:the )?\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}(?:,? \d{{4}})?|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?"
    rf"(?:,? \d{{4}})?)|{_AHEAD}"
)
#: A day, a time, or both in either order.
_WHEN = rf"(?:(?:{_DATE}){_PART}(?:,? {_CLOCK}){{0,2}}|{_CLOCK}(?:,? {_CLOCK})?(?:,? (?:{_DATE}){_PART})?)"

_DAYS = rf"(?:{_DAY_NAME}|weekday|workday|weekend|day)s?"
_OFTEN = (
    rf"(?:(?:every|each) {_DAYS}(?:(?:, and |, | and ){_DAYS})*"
    rf"|on {_DAY_NAME}s(?:(?:, and |, | and ){_DAY_NAME}s)*"
    r"|on (?:weekdays|workdays|weekends)|daily|hourly|(?:every|each) (?:morning|afternoon|evening)"
    r"|(?:every|each) (?:\d{1,3} )?(?:minute|hour)s?"
    r"|(?:(?:every|each) month|monthly) on the (?:\d{1,2}(?:st|nd|rd|th)?|last day)"
    r"|on the \d{1,2}(?:st|nd|rd|th)? (?:day )?of (?:every|each|the) month"
    rf"|(?:(?:every|each) year|yearly) on (?:the )?\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH})"
)
_RULE = rf"(?:{_OFTEN}{_PART}(?:,? {_CLOCK}){{0,2}}|{_CLOCK} {_OFTEN})"

_REMIND = r"(?:remind me|set (?:me )?a reminder|give me a reminder)"
#: "to call Ana", "about the meeting", "that the shop closes", ": the shop closes". Otherwise the end of a time
#: could be the text: "tomorrow at 9" and "pm".
_WHAT = r"(?:,? (?:to|about|that|of|for) |: )(?P<text>\S.*)"

_FIRSTS = {"first": "1st", "second": "2nd", "third": "3rd", "fifteenth": "15th"}


def schedule_once(message: BuiltinMessage) -> Arguments | None:
    if timer := read_timer(message.phrase):
        return timer
    match = first_match(_ONCE, message.phrase)
    if match is None or _RECALLS.search(match["text"]) or _OFTENER.search(match["text"]) or _is_cut(match):
        return None
    return {"text": _text(match["text"]), "at": match["when"]}


#: "Remind me what I said" asks about the past.
_RECALLS = wordings(r"^(?:what|how|who|where|why)\b|\b(?:told|said|was|were|did|had)\b|\bfrom$")

#: Repetitions. "The weekly report" may be due once.
_OFTENER = wordings(
    rf"\b(?:every(?:day)?|each|{_DAY_NAME}s|weekdays|workdays|weekends|mornings|afternoons|evenings|nights"
    r"|(?:of|in) the (?:week|month|year)|(?:once|twice|times) an? \w+)\b",
    r"(?<!\bthe )(?<!\bmy )(?<!\bour )(?<!\ba )\b(?:hourly|daily|weekly|monthly|yearly|annually)\b",
)
#: Words before a time that make it part of the text.
_LEADING_ON = wordings(
    r"\b(?:by|before|until|till|for|about|after|around|since|from|to|between|within|during|than|of|and|or|but|not"
    r"|except|only|starting|beginning|other|last|the|an?)\Z"
)


def _is_cut(match: re.Match[str]) -> bool:
    """Return whether the time at the end of the message belongs to the task: "pay the rent before tomorrow"."""
    text = match["text"]
    follows = match.start("when") > match.start("text")
    return follows and bool(_LEADING_ON.search(text) or _OFTENER.search(text))


_ONCE = (
    wordings(rf"{_REMIND}(?: for)?,? (?P<when>{_WHEN}){_WHAT}"),
    wordings(rf"(?P<when>{_WHEN}),? {_REMIND}{_WHAT}"),
    wordings(rf"{_REMIND} (?:to|about|that|of|for) (?P<text>\S.*?),? (?P<when>{_WHEN})"),
    wordings(rf"reminder: (?P<text>\S.*?),? (?P<when>{_WHEN})"),
)
_UNTIMED = (
    wordings(rf"{_REMIND} (?:to|about|that|of|for) (?P<text>\S.*)"),
    wordings(rf"{_REMIND}(?P<text>(?: .*)?)"),
)
_TIME = wordings(_WHEN)


def task_without_time(phrase: str) -> str | None:
    """Return the task of a reminder that names no time."""
    match = _UNTIMED[0].fullmatch(phrase)
    if match is None or any(found.search(match["text"]) for found in (_RECALLS, _OFTENER, _TIME)):
        return None
    return match["text"]


def missing_part(phrase: str) -> Literal["time", "task", ""]:
    """Return the missing part of a request for a reminder that gives no schedule; '' for any other message."""
    match = first_match(_UNTIMED, phrase)
    if match is None or _RECALLS.search(match["text"]):
        return ""
    return "task" if read_time(match["text"].strip()) else "time"


def read_time(phrase: str) -> str | None:
    """Return the phrase if it is a time and nothing else."""
    return phrase if _TIME.fullmatch(phrase) else None


def schedule_repeating(message: BuiltinMessage) -> Arguments | None:
    phrase = _spell_days_as_numbers(message.phrase)
    match = first_match(_AGAIN, phrase)
    if match is not None:
        return None if _is_cut(match) else {"text": _text(match["text"]), "rule": match["when"]}
    match = _TASK.fullmatch(phrase)
    return {"text": match["text"], "rule": match["when"], "kind": "task"} if match else None


_AGAIN = (
    wordings(rf"{_REMIND}(?: for)?,? (?P<when>{_RULE}){_WHAT}"),
    wordings(rf"(?P<when>{_RULE}),? {_REMIND}{_WHAT}"),
    wordings(rf"{_REMIND} (?:to|about|that|of|for) (?P<text>\S.*?),? (?P<when>{_RULE})"),
)
_TASK = wordings(
    rf"(?P<when>{_RULE}),? (?:please )?"
    r"(?P<text>(?:tell me|show me|give me|send me|say|calculate|convert|list|read|fetch) .+)"
)

_ENTRIES = r"(?:reminders|schedules?|scheduled tasks|timers|alarms)"
list_schedules = groups_of(
    wordings(
        rf"(?:list|show(?: me)?|what are) (?:all )?(?:of )?(?:my|the) {_ENTRIES}",
        rf"(?:what|which) {_ENTRIES} (?:do i have|are there|have i(?: got)?)",
        rf"(?:do i have|are there|have i got)(?: any)? (?:open |more )?{_ENTRIES}",
        rf"(?:my |any )?{_ENTRIES}",
        r"what (?:is|have you|do i have) scheduled(?: for me)?",
        r"what (?:will|are) you (?:going to )?remind(?:ing)? me (?:of|about)",
        r"how (?:much time|long|many minutes)(?: is| are)?(?: left)?(?: on| for)? (?:the|my) timer(?: left)?",
        r"when (?:is|does|will) (?:the|my) (?:next )?(?:timer|reminder|alarm)(?: (?:over|done|end|ring|due))?",
    )
)
#: By the id or the text of the schedule.
cancel_schedule = groups_of(
    wordings(r"(?:cancel|delete|remove|stop|drop) (?:the |my )?(?:reminder|schedule|task) (?P<which>sch_\w+)"),
    wordings(
        r"(?:cancel|delete|remove|stop|drop) (?:the |my )?(?:reminder|schedule|scheduled task|task)s?"
        r" (?:to|about|that|of|for) (?P<which>.+)"
    ),
    wordings(
        r"(?:cancel|delete|remove|stop|drop|turn off) (?:the |my )?"
        r"(?P<which>(?!(?:all|every|it|that|this|the|my)\b)[\w' -]{1,80}) (?:reminder|schedule|alarm|task)"
    ),
    wordings(r"(?:cancel|delete|remove|stop|turn off) (?:the |my )?(?P<which>(?:[\w'-]+ )?(?:timer|alarm))"),
    wordings(r"(?:don't|do not|stop) remind(?:ing)? me (?:any ?more )?(?:to|about|that|of) (?P<which>.+)"),
    wordings(r"(?:cancel|delete|remove|stop|drop) (?P<which>sch_\w+)"),
)


def _text(text: str) -> str:
    return text[1:-1] if re.fullmatch(r'"[^"]+"', text) else text


def _spell_days_as_numbers(phrase: str, names: Mapping[str, str] = _FIRSTS) -> str:
    """Return the phrase with ordinal words for days of the month as numbers."""
    pattern = rf"\bthe ({'|'.join(names)}) (?=(?:day )?of (?:every|each|the) month\b)"
    return re.sub(pattern, lambda found: f"the {names[found[1].lower()]} ", phrase, flags=re.IGNORECASE)
