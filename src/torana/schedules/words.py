"""Parse times and rules as people write them, and format times. Ambiguous texts are refused."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from torana.errors import ScheduleInvalid
from torana.schedules.rules import HORIZON, instant, normal
from torana.tools.base import ToolError
from torana.tools.builtin.dates import read_date

#: The maximum length of a time or a rule in words.
WORDS_LIMIT = 100
#: The time of day for a date without a time.
MORNING = time(9)

#: The default time of each part of the day, and its hours. "Tonight at 1" belongs to another day.
_PARTS_OF_DAYS: Mapping[str, tuple[time | None, range]] = {
    "": (None, range(24)),
    "morning": (MORNING, range(12)),
    "noon": (time(12), range(12, 13)),
    "afternoon": (time(15), range(12, 19)),
    "evening": (time(19), range(16, 24)),
    "night": (time(20), range(18, 24)),
}
_NAMED_TIMES = {"noon": time(12), "midday": time(12), "midnight": time(0)}
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7} | {
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "fifteen": 15,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "forty-five": 45,
    "half an": 0.5,
}
_UNITS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "second": timedelta(seconds=1)} | {
    "sec": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "hr": timedelta(hours=1),
    "h": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_IN = re.compile(
    rf"(?:in )?(?P<number>\d{{1,5}}(?:\.\d)?|{'|'.join(_NUMBERS)})"
    rf" ?(?P<unit>{'|'.join(_UNITS)})s?(?: from now)?"
)
_CLOCK = r"(?P<hour>\d{1,2})(?:[:.](?P<minute>[0-5]\d))?(?: ?(?P<half>[ap])\.?m\.?| ?o'clock| ?h)?"
_TIME = re.compile(
    rf"\b(?:at (?:{_CLOCK}|(?P<name>noon|midday|midnight))"
    r"|(?P<hour2>\d{1,2}):(?P<minute2>[0-5]\d)(?: ?(?P<half2>[ap])\.?m\.?)?"
    r"|(?P<hour3>\d{1,2}) ?(?P<half3>[ap])\.?m\.?)(?![\w:])"
)
_PART = re.compile(r"\b(?:in the |this )?(?P<part>morning|noon|afternoon|evening|night)\b")
_TONIGHT = re.compile(r"\btonight\b")
#: Words of times in unsupported forms or other zones. Without this check, the rest would be read as a day
#: without a time.
_OTHERWISE = re.compile(
    r"(?<!at )\b(?:\d*(?:second|sec|minute|min|hour|hr|h)s?|now|ago|utc|gmt|[ecmp][sd]t|ces?t|bst|jst)\b"
    r"(?<!\d h)"
)

_DAYS = {
    "monday": "MON",
    "tuesday": "TUE",
    "wednesday": "WED",
    "thursday": "THU",
    "friday": "FRI",
    "saturday": "SAT",
    "sunday": "SUN",
    "weekday": "MON-FRI",
    "workday": "MON-FRI",
    "weekend": "SAT,SUN",
    "day": "*",
}
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_NAMES_OF_DAYS = {
    cron: name if name in ("day", "weekday", "weekend") else name.capitalize()
    for name, cron in _DAYS.items()
    if name != "workday"
}
_NAMES_OF_MONTHS = dict(zip(_MONTHS, calendar.month_name[1:], strict=True))
_MONTH = rf"(?:{'|'.join(_MONTHS).lower()})"
#: The numbers of a date. Other remaining numbers are a time in another form, which dateparser would ignore.
_OF_DATES = re.compile(
    r"\d{4}-\d\d-\d\d|\d+[./]\d+[./]\d+|\b20\d\d(?:\d{4})?\b|\b[\w-]+ (?:day|week|month|year)s?\b"
    rf"|\b\d+(?:st|nd|rd|th)?(?: of)? {_MONTH}|\b{_MONTH}[a-z]* \d+(?:st|nd|rd|th)?\b"
)
#: The words of a day for which dateparser takes some milliseconds, or is not needed.
_PLAIN_DAY = re.compile(rf"(?:today|tomorrow|(?:on )?(?:{'|'.join(list(_DAYS)[:7])})|\d{{4}}-\d\d-\d\d)?")
_LEFT_OVER = re.compile(
    rf"\d|\b(?:at|midnight|midday|eleven|twelve|{'|'.join(number for number in _NUMBERS if len(number) > 2)})\b"
)
_STEP = re.compile(r"(?:every|each) (?:(?P<number>\d{1,3}) )?(?P<unit>minute|hour)s?|(?P<hourly>hourly)")
_ON_DAYS = re.compile(
    rf"(?:(?:every|each|on) )?(?P<days>(?:{'|'.join(_DAYS)})s?(?:(?:, | and |, and )(?:{'|'.join(_DAYS)})s?)*)"
)
_IN_MONTH = re.compile(
    r"(?:(?:every|each) month|monthly)(?: on)?(?: the)? (?P<day>\d{1,2})(?:st|nd|rd|th)?(?: day)?"
    r"|(?:on )?(?:the )?(?P<day2>\d{1,2})(?:st|nd|rd|th)? (?:day )?of (?:every|each|the) month"
    r"|(?:(?:every|each) month|monthly)(?: on)? the (?P<last>last) day"
)
_IN_YEAR = re.compile(
    r"(?:(?:every|each) year|yearly|annually)(?: on)?(?: the)? (?:"
    r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?: of)? (?P<month>[a-z]{3,9})"
    r"|(?P<month2>[a-z]{3,9}) (?P<day2>\d{1,2})(?:st|nd|rd|th)?)"
)


def day_in_words(text: str, zone: ZoneInfo) -> str:
    """Return the words of a day that only dateparser can read, or "". Reading them can take long.

    Raises ``ScheduleInvalid`` for a text that is empty or too long.
    """
    phrase = _plain(text)
    if _IN.fullmatch(phrase) or _iso(phrase, zone) or _OTHERWISE.search(phrase):
        return ""
    _, words = _time_in(phrase)
    return "" if _PLAIN_DAY.fullmatch(words) or _LEFT_OVER.search(_OF_DATES.sub("", words)) else words


def read_instant(text: str, *, now: datetime, zone: ZoneInfo, day: date | None = None) -> datetime:
    """Return the moment that a text names, in UTC: ``2026-12-24T09:00``, ``tomorrow at 9``, ``in 20 minutes``.

    A day without a time is its morning; a time without a day is its next occurrence. ``day`` is the day that
    ``day_in_words`` names, if the caller has read it. Raises ``ScheduleInvalid`` for a text that is not
    understood, has passed, or is further ahead than ``HORIZON``.
    """
    phrase = _plain(text)
    local = now.astimezone(zone)
    moment = _iso(phrase, zone) or _ahead(phrase, local, zone) or _parse_named_time(phrase, local, zone, day)
    if moment is None:
        raise ScheduleInvalid(
            f"“{phrase}” is not a time. Write for example {local:%Y-%m-%d} 17:30, “tomorrow at 9”, "
            "“on Friday at 17:30” or “in 20 minutes”. Repeated times are a rule, not a time."
        )
    if moment <= now:
        raise ScheduleInvalid(
            f"{format_moment(moment, zone)} is in the past. The time is now {format_moment(now, zone)}."
        )
    if moment > now + HORIZON:
        raise ScheduleInvalid(f"{format_moment(moment, zone)} is more than {HORIZON.days // 365} years ahead.")
    return moment


def read_rule(text: str) -> str:
    """Return the cron expression of a rule: an expression, or words such as ``every weekday at 17:00``.

    Raises ``ScheduleInvalid``.
    """
    phrase = _plain(text)
    if re.match(r"[\d*]", phrase) and len(phrase.split()) == 5:
        return normal(phrase)
    rule = _in_steps(phrase) or _at_times(phrase)
    if rule is None:
        raise ScheduleInvalid(
            f"“{phrase}” is not a rule. Write for example “every day at 9”, “every weekday at "
            "17:00”, “every Monday and Thursday at 8”, “every 2 hours”, “every month on the 1st "
            "at 9”, “every year on 24 December at 9”, or a cron expression such as `30 9 * * "
            "MON-FRI`."
        )
    return normal(rule)


def describe_rule(rule: str) -> str:
    """Return a cron expression in words that ``read_rule`` understands; other expressions stay as they are."""
    minute, hour, day, month, weekday = rule.split()
    if (day, month, weekday) == ("*", "*", "*") and (steps := _describe_steps(minute, hour)):
        return steps
    if not (minute.isdecimal() and hour.isdecimal()):
        return f"`{rule}`"
    days = _describe_days(day, month, weekday)
    return f"{days} at {int(hour)}:{int(minute):02}" if days else f"`{rule}`"


def _describe_steps(minute: str, hour: str) -> str:
    match (minute.removeprefix("*/"), hour.removeprefix("*/")):
        case ("0", "*") | ("0", "1"):
            return "every hour"
        case (number, "*") if minute != number:
            return f"every {number} minutes"
        case ("0", number) if hour != number and minute == "0":
            return f"every {number} hours"
        case _:
            return ""


def _describe_days(day: str, month: str, weekday: str) -> str:
    if (day, month) == ("*", "*"):
        names = [
            _NAMES_OF_DAYS.get(name, "")
            for name in ([weekday] if weekday in _NAMES_OF_DAYS else weekday.split(","))
        ]
        return f"every {' and '.join(names)}" if all(names) else ""
    if weekday != "*":
        return ""
    if month == "*":
        return (
            "every month on the last day"
            if day == "L"
            else f"every month on the {_ordinal(day)}"
            if day.isdecimal()
            else ""
        )
    return f"every year on {int(day)} {_NAMES_OF_MONTHS[month]}" if day.isdecimal() and month in _MONTHS else ""


def _ordinal(number: str) -> str:
    ending = "th" if number in ("11", "12", "13") else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1], "th")
    return f"{number}{ending}"


def format_moment(moment: datetime, zone: ZoneInfo) -> str:
    """Format a moment with its zone: ``Monday, 2 March 2026 at 09:00 (Europe/Berlin)``."""
    local = moment.astimezone(zone)
    return f"{local:%A}, {local.day} {local:%B} {local.year} at {local:%H:%M} ({zone.key})"


def _plain(text: str) -> str:
    phrase = " ".join(text[: WORDS_LIMIT + 1].split()).lower().replace("’", "'").rstrip(".!")
    if not phrase or len(phrase) > WORDS_LIMIT:
        raise ScheduleInvalid(f"A time or a rule has 1 to {WORDS_LIMIT} characters.")
    return phrase


def _iso(phrase: str, zone: ZoneInfo) -> datetime | None:
    """Parse an ISO 8601 date with a time, in ``zone`` unless it has a UTC offset."""
    if not re.match(r"\d{4}-\d\d-\d\d[t ]\d", phrase):
        return None
    try:
        moment = datetime.fromisoformat(phrase.replace("t", " ", 1).upper())
        return instant(moment, zone) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _ahead(phrase: str, local: datetime, zone: ZoneInfo) -> datetime | None:
    """Parse a time from now. Days and weeks keep the wall-clock time."""
    match = _IN.fullmatch(phrase)
    if match is None:
        return None
    ahead = float(_NUMBERS.get(match["number"]) or match["number"]) * _UNITS[match["unit"]]
    if match["unit"] in ("day", "week"):
        return instant(local.replace(tzinfo=None, microsecond=0) + ahead, zone)
    return local.astimezone(UTC).replace(microsecond=0) + ahead


def _parse_named_time(phrase: str, local: datetime, zone: ZoneInfo, day: date | None) -> datetime | None:
    """Parse a day and a time of day, or one of them."""
    if _OTHERWISE.search(phrase):
        return None
    at, words = _time_in(phrase)
    if _LEFT_OVER.search(_OF_DATES.sub("", words)):
        return None
    try:
        day = day or (read_date(words, local) if words else local.date())
    except ToolError:
        return None
    if at is None and not words:
        return None
    moment = instant(datetime.combine(day, at or MORNING), zone)
    if not words and moment <= local:  # the next occurrence of that time
        moment = instant(datetime.combine(day + timedelta(days=1), at or MORNING), zone)
    return moment


def _time_in(phrase: str) -> tuple[time | None, str]:
    """Return the time of day in a text, and the remaining words. With two times, return neither."""
    part, words = _part_in(phrase)
    usual, hours = _PARTS_OF_DAYS[part]
    match = _TIME.search(words)
    if match is None:
        return usual, words
    at, around = _time(match, hours), _without(words, match)
    return (None, phrase) if at is None or _TIME.search(around) else (at, around)


def _part_in(phrase: str) -> tuple[str, str]:
    """Return the part of the day that a text names, or "", and the remaining words."""
    if match := _TONIGHT.search(phrase):
        return "night", f"{phrase[: match.start()]}today{phrase[match.end() :]}"
    if (match := _PART.search(phrase)) and not phrase[: match.start()].endswith("at "):
        return match["part"], _without(phrase, match)
    return "", phrase


def _without(phrase: str, match: re.Match[str]) -> str:
    return f"{phrase[: match.start()].rstrip(', ')} {phrase[match.end() :].lstrip(', ')}".strip()


def _time(match: re.Match[str], hours: range) -> time | None:
    """Return the time if it is in these hours. In the evening, 8 means 20:00, but 8 am does not."""
    found: Mapping[str, str | None] = match.groupdict()
    if name := found["name"]:
        at = _NAMED_TIMES[name]
        return at if at.hour in hours else None
    hour = int(found["hour"] or found["hour2"] or found["hour3"] or "")
    half = found["half"] or found["half2"] or found["half3"]
    if half and not 1 <= hour <= 12:
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    elif hour < 12 and hour not in hours:
        hour += 12
    return time(hour, int(found["minute"] or found["minute2"] or 0)) if hour in hours else None


def _in_steps(phrase: str) -> str | None:
    """Parse an interval of minutes or hours that divides an hour or a day."""
    match = _STEP.fullmatch(phrase)
    if match is None:
        return None
    number, of_minutes = int(match["number"] or 1), match["unit"] == "minute"
    if number == 0 or (60 if of_minutes else 24) % number:
        whole = "60 minutes" if of_minutes else "24 hours"
        raise ScheduleInvalid(f"{number} does not divide {whole}. Choose a number that does.")
    if of_minutes:
        return "0 * * * *" if number == 60 else f"*/{number} * * * *"
    return "0 0 * * *" if number == 24 else f"0 */{number} * * *"


def _at_times(phrase: str) -> str | None:
    """Parse days of the week, the month or the year, with a time of day."""
    if phrase == "daily" or phrase.startswith("daily "):
        phrase = "every day" + phrase.removeprefix("daily")
    at, words = _time_in(phrase)
    if words in ("every", "each"):  # "every morning"
        words = "every day"
    at = at or MORNING
    clock = f"{at.minute} {at.hour}"
    if match := _ON_DAYS.fullmatch(words):
        if not words.startswith(("every", "each")) and not match["days"].endswith("s"):
            return None  # "on Monday" is a single day, not a rule
        named = re.findall("|".join(_DAYS), match["days"])
        days = [_DAYS[name] for name in named]
        return f"{clock} * * {'*' if '*' in days else ','.join(dict.fromkeys(days))}"
    if match := _IN_MONTH.fullmatch(words):
        return f"{clock} {'L' if match['last'] else int(match['day'] or match['day2'])} * *"
    if match := _IN_YEAR.fullmatch(words):
        month = (match["month"] or match["month2"])[:3].upper()
        return f"{clock} {int(match['day'] or match['day2'])} {month} *" if month in _MONTHS else None
    return None
