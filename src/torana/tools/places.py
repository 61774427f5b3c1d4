"""Names of places to time zones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo, available_timezones

from torana.tools.base import ToolError

#: Characters of a place's name.
PLACE_LIMIT = 60

_OFFSET = re.compile(r"(?:utc|gmt)(?: ?([+-−]) ?(\d{1,2})(?::?([0-5]\d))?)?", re.IGNORECASE)

# Large cities that give no zone its name, and countries under the names that people use. The rest comes
# from the time zone database itself.
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
    """The time zone of a place: an IANA name, a city, a country with one time at ``now``, or "UTC+2".

    Raises ``ToolError`` for a place that is not known, and for a country with several times, naming cities.
    """
    key = _key(place[: PLACE_LIMIT + 1])
    if len(key) > PLACE_LIMIT or not key:
        raise ToolError(f"The name of a place has 1 to {PLACE_LIMIT} characters.")
    if match := _OFFSET.fullmatch(place.strip()):
        return _fixed(match)
    if name := _ALIASES.get(key) or _zones().get(key):
        return ZoneInfo(name)
    return _country(_COUNTRIES.get(key, key), place, now)


def _key(name: str) -> str:
    return " ".join(re.sub(r"[_.,\s]+", " ", name).casefold().split()).removeprefix("the ")


def _fixed(match: re.Match[str]) -> tzinfo:
    if match[2] is None:
        return UTC
    offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    if offset > timedelta(hours=14):
        raise ToolError("No place is more than 14 hours from UTC; give a smaller offset.")
    return timezone(offset if match[1] == "+" else -offset)


@cache
def _zones() -> Mapping[str, str]:
    """IANA names, and the cities in them, by the way people write them."""
    # The table leaves out "US/Central" and "Australia/North", which name no city.
    cities = {_key(zone.rsplit("/", 1)[-1]): zone for _, _, zone in _rows("zone.tab")}
    return cities | {_key(name): name for name in sorted(available_timezones() - {"Factory", "localtime"})}


@cache
def _countries() -> Mapping[str, tuple[str, ...]]:
    """The zones of each country, from the tables that come with the time zone database."""
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
            f"I do not know the place “{place.strip()}”; name a large city, or a zone as Europe/Rome or UTC+2."
        )
    at_offset: dict[timedelta | None, ZoneInfo] = {}
    for zone in zones:  # the tables put a country's most populous zone first
        at_offset.setdefault(now.astimezone(zone).utcoffset(), zone)
    if len(at_offset) > 1:
        cities = [zone.key.rsplit("/", 1)[-1].replace("_", " ") for zone in at_offset.values()]
        raise ToolError(
            f"There is more than one time in {place.strip()}; name a city, such as {' or '.join(cities[:4])}."
        )
    return zones[0]
