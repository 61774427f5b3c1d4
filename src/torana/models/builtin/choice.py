"""Which tool answers a message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic_ai.tools import ToolDefinition

from torana.models.builtin.cards import Card
from torana.models.builtin.explicit import Call, Unclear, called_name, read_call, required
from torana.models.builtin.message import Message, read
from torana.models.builtin.readers import READERS
from torana.models.builtin.triggers import SCRIPTS, read_trigger
from torana.store.ranking import Match, Ranking
from torana.store.words import words

#: How much better than the next a skill or tool must rank to be the one that is meant.
CLEARLY = 1.5
#: Telling words that a message and a skill must share.
SHARED_WORDS = 2

# Words that say nothing about the topic.
_STOPWORDS = frozenset(
    words(
        "a about an and any are as at be by can could did do does for from get give has have help how i "
        "if in into is it its let like make me my need of on or our please show should so some tell than "
        "that the their them then there these they this to up us use want was we what when where which "
        "who why will with would you your"
    )
)
# A question about doing something is no request to do it.
_NO_REQUEST = re.compile(
    r"n't\b|\b(?:cannot|how|why|not|no|never|should|if|when|who|without|before|after|stop)\b", re.IGNORECASE
)
# What may be pasted below a question: with it, the rules show whether a text is all that was missing.
_SAMPLES = ("\na,b\n1,2", '\n{"a": 1}')
_TEXT_MISSING = (
    "I need the text for this. Send it with the message: below it, after a colon, or in a code fence."
)
# A quote that opens ends the one before it: otherwise each of many would be followed to the end of the text.
_QUOTED = re.compile(r'"([^"]+)"|“([^“”]+)”')


@dataclass(frozen=True, slots=True)
class Fit:
    """A skill that fits the message but whose instructions only a language model can follow."""

    card: Card


class Chooser:
    """Chooses among the skills and tools that it was built with; build another one when they change."""

    def __init__(self, *, cards: Sequence[Card], tools: Mapping[str, ToolDefinition]) -> None:
        self._cards = {card.slug: card for card in cards}
        self._tools = tools
        self._card_words = {card.slug: _about(card) for card in cards}
        self._tool_words = {name: f"{name} {tool.description or ''}" for name, tool in tools.items()}
        self._card_ranking = Ranking(self._card_words)
        self._tool_ranking = Ranking(self._tool_words)

    def close(self) -> None:
        """Free the rankings; nothing can be chosen afterwards."""
        self._card_ranking.close()
        self._tool_ranking.close()

    def choose(self, text: str) -> Call | Unclear | Fit | None:
        """What a message asks for; None where that is not clear. The same message gives the same choice."""
        if call := read_call(text, self._tools):
            return call
        message = read(text)
        if call := self._triggered(message):
            return call
        ranked = self._card_ranking.rank(message.asked, limit=len(self._cards))
        return (
            self._by_rule(message, ranked)
            or self._not_triggered(message)
            or self._without_text(text)
            or self._by_name(message)
            or self._not_on_offer(message)
            or self._fit(message, ranked)
        )

    def _triggered(self, message: Message) -> Call | None:
        if SCRIPTS not in self._tools:
            return None
        arguments = read_trigger(message, [card for card in self._cards.values() if not card.refusal])
        return None if arguments is None else Call(SCRIPTS, arguments)

    def _not_triggered(self, message: Message) -> Unclear | None:
        """Behind the rules: phrases of a skill whose scripts may not run take no message away from them."""
        arguments = read_trigger(message, list(self._cards.values()))
        if arguments is None:
            return None
        refusal = self._cards[arguments["slug"]].refusal
        return Unclear(refusal) if refusal else self._unusable(SCRIPTS)

    def examples(self) -> list[tuple[Card, str]]:
        """The skills of which something can be done here, each with a message that does it."""
        shown = ((card, self._first_readable(card)) for card in self._cards.values())
        return [(card, example) for card, example in shown if example]

    def _first_readable(self, card: Card) -> str:
        for example in card.examples:
            if self._read(read(example), _by_order(card)):
                return f"“{example}”"
            if self._without_text(example):
                return f"“{example}”, with the text below it"
        return ""

    def _by_rule(self, message: Message, ranked: Sequence[Match]) -> Call | None:
        """The first rule that reads the message: those of the best skill first, of no skill last."""
        of_skills = [name for match in ranked for name in _by_order(self._cards[match.key])]
        return self._read(message, [*of_skills, *READERS])

    def _read(self, message: Message, names: Sequence[str]) -> Call | None:
        for name in dict.fromkeys(names):
            if name in self._tools and (arguments := READERS[name](message)) is not None:
                return Call(name, arguments)
        return None

    def _without_text(self, text: str) -> Unclear | None:
        if "\n" in text.strip():
            return None
        readable = any(self._read(read(text + sample), list(READERS)) for sample in _SAMPLES)
        return Unclear(_TEXT_MISSING) if readable else None

    def _by_name(self, message: Message) -> Call | None:
        """A tool without a rule, all of whose name is in the message, with at most one quoted value."""
        ranked = self._tool_ranking.rank(message.asked, limit=2)
        if not _clear(ranked) or ranked[0].key in READERS or _NO_REQUEST.search(message.phrase):
            return None
        name, said = ranked[0].key, _telling(message.asked)
        about = _telling(self._tool_words[name])
        if not said or not _telling(name) <= said or 2 * len(said & about) < len(said):
            return None
        arguments = _quoted_argument(self._tools[name], message)
        return None if arguments is None else Call(name, arguments)

    def _not_on_offer(self, message: Message) -> Unclear | None:
        """A tool that is called by its name, or that a rule would call, and that may not be used here."""
        others = (name for name in READERS if name not in self._tools)
        read_by = (name for name in others if READERS[name](message) is not None)
        name = called_name(message.text) or next(read_by, None)
        return self._unusable(name) if name else None

    def _unusable(self, name: str) -> Unclear:
        near = get_close_matches(name, self._tools, n=1, cutoff=0.8)
        hint = f" Did you mean {near[0]}?" if near else ""
        return Unclear(
            f"I cannot use the tool {name} here: there is none of that name, it is not set up, or a rule "
            f"denies it. The operator is told by `torana tools list`.{hint}"
        )

    def _fit(self, message: Message, ranked: Sequence[Match]) -> Fit | None:
        if not _clear(ranked):
            return None
        card = self._cards[ranked[0].key]
        if any(name in READERS and name in self._tools for name in card.tools):
            return None
        shared = _telling(message.asked) & _telling(self._card_words[card.slug])
        return Fit(card) if len(shared) >= SHARED_WORDS else None


def _by_order(card: Card) -> list[str]:
    """The tools that have a rule, in the order of the rules: a skill names its tools in any."""
    return [name for name in READERS if name in card.tools]


def _about(card: Card) -> str:
    return "\n".join((card.slug, card.title, card.description, *card.examples))


def _clear(ranked: Sequence[Match]) -> bool:
    return bool(ranked) and (len(ranked) == 1 or ranked[0].score >= CLEARLY * ranked[1].score)


def _telling(text: str) -> set[str]:
    return set(words(text)) - _STOPWORDS


def _quoted_argument(tool: ToolDefinition, message: Message) -> Mapping[str, str] | None:
    """The one argument that a tool needs, if that is a text and the message holds one in quotes."""
    quoted = [plain or curly for plain, curly in _QUOTED.findall(message.text)]
    names = required(tool)
    if len(names) != len(quoted) or len(names) > 1:
        return None
    schemas = tool.parameters_json_schema.get("properties", {})
    return dict(zip(names, quoted, strict=True)) if _are_texts(schemas, names) else None


def _are_texts(schemas: Mapping[str, Mapping[str, object]], names: Sequence[str]) -> bool:
    return all(schemas.get(name, {}).get("type") == "string" for name in names)
