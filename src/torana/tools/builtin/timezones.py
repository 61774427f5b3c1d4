"""Find the time zone of a place."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo, available_timezones

from torana.tools.base import ToolError

#: The maximum length of a place's name.
PLACE_LIMIT = 60

_OFFSET = re.compile(r"(?:utc|gmt)(?: ?([+-−]) ?(\d{1,2})(?::?([0-5]\d))?)?", re.IGNORECASE)

# Large cities without a zone of their name, and common names of countries. Other names come from the time zone
# database.
_ALIASES = {
    "abu dhabi": "Asia/Dubai",
    "atlanta": "America/New_York",
    "austin": "America/Chicago",
    "bangalore": "Asia/Kolkata",
    "barcelona": "Europe/Madrid",
    "beijing": "Asia/Shanghai",
    "bengaluru": "Asia/Kolkata",
    "boston": "America/New_York",
    "calcutta": "Asia/Kolkata",
    "calgary": "America/Edmonton",
    "canberra": "Australia/Sydney",
    "cape town": "Africa/Johannesburg",
    "chennai": "Asia/Kolkata",
    "cologne": "Europe/Berlin",
    "dallas": "America/Chicago",
    "delhi": "Asia/Kolkata",
    "edinburgh": "Europe/London",
    "england": "Europe/London",
    "florence": "Europe/Rome",
    "frankfurt": "Europe/Berlin",
    "geneva": "Europe/Zurich",
    "great britain": "Europe/London",
    "guangzhou": "Asia/Shanghai",
    "hamburg": "Europe/Berlin",
    "hanoi": "Asia/Bangkok",
    "houston": "America/Chicago",
    "hyderabad": "Asia/Kolkata",
    "kiev": "Europe/Kyiv",
    "kyoto": "Asia/Tokyo",
    "la": "America/Los_Angeles",
    "las vegas": "America/Los_Angeles",
    "marseille": "Europe/Paris",
    "miami": "America/New_York",
    "milan": "Europe/Rome",
    "montreal": "America/Toronto",
    "mumbai": "Asia/Kolkata",
    "munich": "Europe/Berlin",
    "naples": "Europe/Rome",
    "new delhi": "Asia/Kolkata",
    "new york city": "America/New_York",
    "new zealand": "Pacific/Auckland",
    "nyc": "America/New_York",
    "osaka": "Asia/Tokyo",
    "ottawa": "America/Toronto",
    "philadelphia": "America/New_York",
    "rio de janeiro": "America/Sao_Paulo",
    "saint petersburg": "Europe/Moscow",
    "saigon": "Asia/Ho_Chi_Minh",
    "san diego": "America/Los_Angeles",
    "san francisco": "America/Los_Angeles",
    "scotland": "Europe/London",
    "seattle": "America/Los_Angeles",
    "shenzhen": "Asia/Shanghai",
    "south korea": "Asia/Seoul",
    "st petersburg": "Europe/Moscow",
    "uae": "Asia/Dubai",
    "uk": "Europe/London",
    "united kingdom": "Europe/London",
    "venice": "Europe/Rome",
    "wales": "Europe/London",
    "washington": "America/New_York",
    "washington dc": "America/New_York",
    "wellington": "Pacific/Auckland",
}
_COUNTRIES = {"america": "united states", "us": "united states", "usa": "united states"}


def zone_of(place: str, now: datetime) -> tzinfo:
    """Return the time zone of a place: an IANA name, a city, a country with one time at ``now``, or "UTC+2".

    Raises ``ToolError`` for an unknown place, and for a country with several times, with cities to choose from.
    """
    key = _key(place[: PLACE_LIMIT + 1])
    if len(key) > PLACE_LIMIT or not key:
        raise ToolError(f"The name of a place has 1 to {PLACE_LIMIT} characters.")
    if match := _OFFSET.fullmatch(place.strip()):
        return _fixed_offset(match)
    if name := _ALIASES.get(key) or _zones().get(key):
        return ZoneInfo(name)
    return _country(_COUNTRIES.get(key, key), place, now)


def _key(name: str) -> str:
    return " ".join(re.sub(r"[_.,\s]+", " ", name).casefold().split()).removeprefix("the ")


def _fixed_offset(match: re.Match[str]) -> tzinfo:
    if match[2] is None:
        return UTC
    offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    if offset > timedelta(hours=14):
        raise ToolError("No place is more than 14 hours from UTC; give a smaller offset.")
    return timezone(offset if match[1] == "+" else -offset)


@cache
def _zones() -> Mapping[str, str]:
    """Return IANA names by their normalised names and by those of their cities."""
    # The table omits "US/Central" and "Australia/North", which are no cities.
    cities = {_key(zone.rsplit("/", 1)[-1]): zone for _, _, zone in _rows("zone.tab")}
    return cities | {_key(name): name for name in sorted(available_timezones() - {"Factory", "localtime"})}


@cache
def _countries() -> Mapping[str, tuple[str, ...]]:
    codes: defaultdict[str, list[str]] = defaultdict(list)
    for code, _, zone in _rows("zone.tab"):
        codes[code].append(zone)
    return {_key(name): tuple(codes[code]) for code, name in _rows("iso3166.tab")}


def _rows(table: str) -> list[list[str]]:
    text = resources.files("tzdata").joinpath("zoneinfo", table).read_text(encoding="utf-8")
    return [line.split("\t")[:3] for line in text.splitlines() if line and not line.startswith("#")]


def _country(key: str, place: str, now: datetime) -> tzinfo:
    zones = [ZoneInfo(name) for name in _countries().get(key, ())]
    if not zones:
        raise ToolError(
            f"The place “{place.strip()}” is unknown; name a large city, "
            "or a time zone such as Europe/Rome or UTC+2."
        )
    at_offset: dict[timedelta | None, ZoneInfo] = {}
    for zone in zones:  # the tables list a country's most populous zone first
        at_offset.setdefault(now.astimezone(zone).utcoffset(), zone)
    if len(at_offset) > 1:
        cities = [zone.key.rsplit("/", 1)[-1].replace("_", " ") for zone in at_offset.values()]
        raise ToolError(
            f"{place.strip()} has more than one time zone; name a city, such as {' or '.join(cities[:4])}."
        )
    return zones[0]
