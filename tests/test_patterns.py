"""No pattern of the package takes minutes over a short text.

``re`` holds the interpreter while it looks, so one message could stop all. Where something is searched the time
often grows with the square of the length, and a bound on the text is cure enough; with the cube it is not.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import signal
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import pytest

import torana

#: The parser of ``re`` itself: which texts lead to a repetition, only the pattern tells.
PARSER = importlib.import_module("re._parser")
COMPILER = importlib.import_module("re._compiler")
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")

#: What is repeated, besides what each repetition begins with; and what spoils the match at the end.
PIECES = (*" a1.\n-_,/:\"'([<*#é\\", "a ", "1 ", "a\n", ", ", "1,", "a.")
ENDS = ("\0", "b")
#: Repetitions with which all is tried. What was slowest, if it took longer than so many seconds, is tried again
#: with ten times as many: with the square it takes a hundred times as long, with the cube a thousand times.
FEW, SUSPECT, MANY = 150, 0.002, 1500
#: Seconds of the process's own time, so that a busy machine changes nothing.
LIMIT = 5.0


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(torana.__path__, prefix="torana."):
        if ".migrations." not in found.name and "__main__" not in found.name:
            yield importlib.import_module(found.name)


def patterns_in(value: object, seen: set[int]) -> Iterator[re.Pattern[Any]]:
    """Those that a value holds, however deep; in containers, and in classes and objects of the package."""
    if isinstance(value, re.Pattern):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        for part in parts_of(value):
            yield from patterns_in(part, seen)


def parts_of(value: Any) -> Iterable[object]:
    if isinstance(value, Mapping):
        held = cast("Mapping[object, object]", value)
        return [*held.keys(), *held.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return cast("Iterable[object]", value)
    kind = value if isinstance(value, type) else type(value)
    if not kind.__module__.startswith("torana"):
        return ()
    slots = [getattr(value, name, None) for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", {}).values()]


def all_patterns() -> dict[re.Pattern[Any], str]:
    """Every pattern that stands in a module, and where."""
    seen: set[int] = set()
    return {
        pattern: f"{module.__name__}.{name}"
        for module in modules()
        for name, value in list(vars(module).items())
        for pattern in patterns_in(value, seen)
    }


def repetitions(pattern: re.Pattern[Any]) -> set[tuple[str, str]]:
    """For each repetition without a small bound: a text that leads to it, and one that it may repeat."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    found: set[tuple[str, str]] = set()
    _walk(PARSER.parse(source, pattern.flags), "", found)
    return found


def _walk(items: Any, lead: str, found: set[tuple[str, str]]) -> str:
    """``lead`` and behind it a short text that the items take."""
    for sign, value in items:
        name = str(sign)
        if name == "LITERAL":
            lead += chr(value)
        elif name in ("NOT_LITERAL", "ANY", "IN"):
            lead += _character(sign, value)
        elif name in REPEATS:
            low, high, body = value
            once = _walk(body, lead, found)[len(lead) :]
            if high > 20:
                found.add((lead, once))
            lead += once * low
        elif name == "SUBPATTERN":
            lead = _walk(value[3], lead, found)
        elif name == "ATOMIC_GROUP":
            lead = _walk(value, lead, found)
        elif name == "BRANCH":
            lead = min((_walk(branch, lead, found) for branch in value[1]), key=len)
        elif name in ("ASSERT", "ASSERT_NOT"):
            _walk(value[1], lead, found)
    return lead


def _character(sign: Any, value: Any) -> str:
    """One that a set takes, a plain one if there is any."""
    tree = PARSER.parse("")
    tree.append((sign, value))
    one = COMPILER.compile(tree)
    return next((chr(code) for code in (97, 49, 32, *range(0x2100)) if one.match(chr(code))), "a")


@contextmanager
def bounded(seconds: float) -> Generator[None]:
    """Raises ``TimeoutError`` when the block has used so much of the processor; ``re`` listens to signals."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass(frozen=True, slots=True)
class Probe:
    """A text that may send a pattern back and forth, and how it is looked through."""

    how: str
    lead: str
    piece: str
    end: str

    def seconds(self, pattern: re.Pattern[Any], times: int) -> float:
        """What it takes of the process's own time."""
        text = self.lead + self.piece * times + self.end
        began = time.process_time()
        getattr(pattern, self.how)(
            text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
        )
        return time.process_time() - began


def probes(pattern: re.Pattern[Any]) -> Iterator[Probe]:
    for lead, once in sorted(repetitions(pattern)):
        for piece in (once, *PIECES):
            for end in ENDS:
                yield from (Probe(how, lead, piece, end) for how in ("fullmatch", "search"))


def endless(pattern: re.Pattern[Any], *, limit: float = LIMIT) -> Probe | None:
    """What the pattern does not come to an end with within ``limit``, if such a text is found."""
    slowest: dict[str, tuple[float, Probe]] = {}
    last = None
    try:
        with bounded(limit):
            for last in probes(pattern):
                took = last.seconds(pattern, FEW)
                if took > max(SUSPECT, slowest.get(last.how, (0.0, last))[0]):
                    slowest[last.how] = (took, last)
        for _, last in slowest.values():
            with bounded(limit):
                last.seconds(pattern, MANY)
    except TimeoutError:
        return last
    return None


@pytest.mark.timeout(600)
def test_no_pattern_takes_minutes_over_a_short_text() -> None:
    found = all_patterns()

    assert len(found) > 200
    assert {where: probe for pattern, where in found.items() if (probe := endless(pattern))} == {}


@pytest.mark.parametrize(
    "source",
    [
        r"(?:a+)+b",
        r"\s*use\s+(?P<tool>[\w-]+)\s*:?\s*(\{.*)?[\s.!]*",
        r"(?:[\s?!.]|,? *\b(?:please|thanks)(?=[\s?!.]*\Z))+\Z",
        rb"(\d+)*x",
    ],
)
def test_one_that_would_is_found(source: str | bytes) -> None:
    assert endless(re.compile(source), limit=1.0)
