"""Read requests for timers and alarms, which are reminders."""

from __future__ import annotations

import re

from torana.models.builtin.readers.base import NUMBERS, Arguments, first_match, wordings

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_NUMBER = rf"(?:\d{{1,4}}|an?|half an|{'|'.join(NUMBERS)}|fifteen|twenty|thirty|forty-five|forty|sixty|ninety)"
_WORDS = dict(NUMBERS) | {
    "a": 1,
    "an": 1,
    "half an": 0.5,
    "fifteen": 15,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "forty-five": 45,
    "sixty": 60,
    "ninety": 90,
}
_UNIT = r"(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|[smh])"
_PART = rf"{_NUMBER}[ -]?{_UNIT}\b"
_DURATION = rf"(?P<duration>{_PART}(?: and a half)?(?:,? (?:and )?{_PART})?)"
_PARTS = wordings(rf"({_NUMBER})[ -]?({_UNIT})\b( and a half)?")

_TIMER = (
    wordings(rf"(?:(?:set|start|make|create|run|give me)(?: me)? )?(?:an? |the )?{_DURATION} timer"),
    wordings(
        r"(?:(?:set|start|make|create|run|give me)(?: me)? )?(?:an? |the |my )?(?P<of>[\w'-]+ )?timer"
        rf"(?: for| of|:)? (?:the )?{_DURATION}(?: for (?:the )?(?P<for>[\w' -]{{1,60}}))?"
    ),
)
_CLOCK = r"(?P<at>\d{1,2}(?:[:.][0-5]\d)?(?: ?[ap]\.?m\.?)?|noon|midnight)(?P<day> tomorrow| today| tonight)?"
_ALARM = (
    wordings(rf"(?:set|make|create)(?: me)? (?:an? |the |my )?alarm(?: clock)? (?:for|at|to) {_CLOCK}"),
    wordings(rf"alarm (?:for |at )?{_CLOCK}"),
)
_WAKE = (wordings(rf"wake me(?: up)?(?P<day2> tomorrow)? at {_CLOCK}"),)


def read_timer(phrase: str) -> Arguments | None:
    """Return the reminder for a timer or an alarm, or None."""
    if match := first_match(_TIMER, phrase):
        return _timer(match)
    if match := first_match(_ALARM, phrase):
        return {"text": "Alarm", "at": f"{(match['day'] or '').strip()} at {match['at']}".strip()}
    if match := first_match(_WAKE, phrase):
        day = (match["day"] or match["day2"] or "").strip()
        return {"text": "Wake up", "at": f"{day} at {match['at']}".strip()}
    return None


def _timer(match: re.Match[str]) -> Arguments | None:
    seconds = sum(
        _amount(number, half=bool(half)) * _SECONDS[unit[0].lower()]
        for number, unit, half in _PARTS.findall(match["duration"])
    )
    found = match.groupdict()
    about = (found.get("of") or found.get("for") or "").strip()
    title = f"{about[:1].upper()}{about[1:]} timer" if about else "Timer"
    if seconds < 1:
        return None
    ahead = f"in {seconds // 60:.0f} minutes" if seconds % 60 == 0 else f"in {seconds:.0f} seconds"
    return {"text": f"{title} ({match['duration']})", "at": ahead}


def _amount(number: str, *, half: bool) -> float:
    number = number.lower()
    return (float(number) if number.isdecimal() else _WORDS[number]) + (0.5 if half else 0)
