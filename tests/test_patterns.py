"""No regular expression of the package takes minutes for a short text.

``re`` holds the interpreter during a search, so one message could stop the gateway. Search time often grows
with the square of the length, which a limit on the text makes harmless; growth with the cube does not.
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

#: The parser of ``re`` itself: only the pattern shows which texts lead to a repetition.
PARSER = importlib.import_module("re._parser")
COMPILER = importlib.import_module("re._compiler")
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")

#: Pieces to repeat, besides the text that each repetition accepts; and endings that prevent a match.
PIECES = (*" a1.\n-_,/:\"'([<*#é\\", "a ", "1 ", "a\n", ", ", "1,", "a.")
ENDS = ("\0", "b")
#: The number of repetitions for the first trial. The slowest text, if it takes longer than these seconds, is
#: tried again with ten times as many: quadratic time grows a hundredfold, cubic time a thousandfold.
FEW, SUSPECT, MANY = 150, 0.001, 1500
#: Seconds of the process's own time, independent of the machine's load.
LIMIT = 5.0


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(torana.__path__, prefix="torana."):
        if ".migrations." not in found.name and "__main__" not in found.name:
            yield importlib.import_module(found.name)


def patterns_in(value: object, seen: set[int]) -> Iterator[re.Pattern[Any]]:
    """Yield the patterns in a value at any depth; in containers, and in classes and objects of the package."""
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
    """Return every pattern in a module, with its place."""
    seen: set[int] = set()
    return {
        pattern: f"{module.__name__}.{name}"
        for module in modules()
        for name, value in list(vars(module).items())
        for pattern in patterns_in(value, seen)
    }


def repetitions(pattern: re.Pattern[Any]) -> set[tuple[str, str]]:
    """Return for each repetition without a small bound a text that leads to it, and one that it may repeat."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    found: set[tuple[str, str]] = set()
    _walk(PARSER.parse(source, pattern.flags), "", found)
    return found


def _walk(items: Any, lead: str, found: set[tuple[str, str]]) -> str:
    """Return ``lead`` followed by a short text that the items accept."""
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
    """Return a character that a set accepts, a plain one if possible."""
    tree = PARSER.parse("")
    tree.append((sign, value))
    one = COMPILER.compile(tree)
    return next((chr(code) for code in (97, 49, 32, *range(0x2100)) if one.match(chr(code))), "a")


@contextmanager
def bounded(seconds: float) -> Generator[None]:
    """Raise ``TimeoutError`` after this processor time; ``re`` reacts to signals."""

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
    """A text that may cause backtracking, and the method of the search."""

    how: str
    lead: str
    piece: str
    end: str

    def seconds(self, pattern: re.Pattern[Any], times: int) -> float:
        """Return the processor time of the search."""
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
    """Return a text for which the pattern exceeds ``limit``, if one is found."""
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
def test_patterns_take_bounded_time_on_short_texts() -> None:
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
def test_slow_pattern_is_detected(source: str | bytes) -> None:
    assert endless(re.compile(source), limit=0.2)
