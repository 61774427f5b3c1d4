"""Choose the tool that answers a message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from pydantic_ai.tools import ToolDefinition

from torana.models.builtin.cards import Card
from torana.models.builtin.explicit import ExplicitCall, Unclear, called_name, read_call, required_arguments
from torana.models.builtin.followups import EARLIER_LIMIT, complete
from torana.models.builtin.languages import FixedReply, languages
from torana.models.builtin.message import PHRASE_LIMIT, BuiltinMessage, read
from torana.models.builtin.readers import READERS
from torana.models.builtin.readers.schedules import missing_part
from torana.models.builtin.spelling import correct_spelling, restore
from torana.models.builtin.triggers import SCRIPTS, read_trigger
from torana.store.engine.ranking import Match, Ranking
from torana.store.engine.tokenizer import words

#: Factor by which the best skill or tool must outrank the second best.
CLEARLY = 1.5
#: Number of significant words that a message and a skill must share.
SHARED_WORDS = 2

# Words that do not indicate the topic.
_STOPWORDS = frozenset(
    words(
        "a about an and any are as at be by can could did do does for from get give has have help how i "
        "if in into is it its let like make me my need of on or our please show should so some tell than "
        "that the their them then there these they this to up us use want was we what when where which "
        "who why will with would you your"
    )
)
# A question about an action does not request it.
_NO_REQUEST = re.compile(
    r"n't\b|\b(?:cannot|how|why|not|no|never|should|if|when|who|without|before|after|stop)\b", re.IGNORECASE
)
# Sample texts: if a rule matches only with one of them, the message lacks a text.
_SAMPLES = ("\na,b\n1,2", '\n{"a": 1}')
_TEXT_MISSING = (
    "The text is missing. Send it in the same message: below the request, after a colon, or in a code fence."
)
_TASK_MISSING = "What should I remind you of? Write for example “remind me tomorrow at 9 to call Ana”."
_TIME_MISSING = (
    "When should I remind you? I found no time that I can read. Write for example “tomorrow at 9”, "
    "“in 20 minutes” or “every weekday at 17:00”."
)
#: Tools that delete permanently; they are not called for a message with a spelling mistake.
_NEVER_GUESSED = frozenset({"delete_file", "forget", "remove_from_list"})
# A quoted text contains no curly opening quote: otherwise each of many opening quotes would start a search to
# the end of the message.
_QUOTED = re.compile(r'"([^"]+)"|“([^“”]+)”')


#: Maximum characters of small talk.
_SMALL_TALK_LIMIT = 80
_EDGES = re.compile(r"\A[\W_]+|[\W_]+\Z")
_STRAIGHT = str.maketrans("’‘", "''")


@dataclass(frozen=True, slots=True)
class Fit:
    """A skill that fits the message, but whose instructions only a language model can follow."""

    card: Card


class Chooser:
    """Chooses among a fixed list of skills and tools; build another object when they change."""

    def __init__(self, *, cards: Sequence[Card], tools: Mapping[str, ToolDefinition]) -> None:
        self._cards = {card.slug: card for card in cards}
        self._tools = tools
        self._card_words = {
            card.slug: "\n".join((card.slug, card.title, card.description, *card.examples)) for card in cards
        }
        self._tool_words = {name: f"{name} {tool.description or ''}" for name, tool in tools.items()}
        self._card_ranking = Ranking(self._card_words)
        self._tool_ranking = Ranking(self._tool_words)

    def close(self) -> None:
        """Free the rankings. The object cannot be used afterwards."""
        self._card_ranking.close()
        self._tool_ranking.close()

    def choose(
        self, text: str, earlier: Sequence[str] = ()
    ) -> ExplicitCall | Unclear | FixedReply | Fit | None:
        """Return a call, an explanation, a reply or a skill for a message, or None. Deterministic.

        ``earlier`` are the messages before it, oldest first. Messages such as "and in Paris?" refer to them.
        """
        if call := read_call(text, self._tools):
            return call
        message = read(text)
        if choice := self._match_trigger(message) or small_talk(message):
            return choice
        ranked = self._card_ranking.rank(message.question, limit=len(self._cards))
        return (
            self._by_rule(message, ranked)
            or self._continue(message, earlier)
            or self._explain_blocked_trigger(message)
            or self._without_text(text)
            or self._incomplete_reminder(message)
            or self._by_name(message)
            or self._explain_unavailable(message)
            or self._with_correct_spelling(text)
            or self._fit(message, ranked)
        )

    def _match_trigger(self, message: BuiltinMessage) -> ExplicitCall | None:
        if SCRIPTS not in self._tools:
            return None
        arguments = read_trigger(message, [card for card in self._cards.values() if not card.refusal])
        return None if arguments is None else ExplicitCall(SCRIPTS, arguments)

    def _explain_blocked_trigger(self, message: BuiltinMessage) -> Unclear | None:
        """Return the reason why the script of a matching trigger phrase cannot run.

        Call this after the rules, so that a blocked trigger does not hide a tool that can answer.
        """
        arguments = read_trigger(message, list(self._cards.values()))
        if arguments is None:
            return None
        refusal = self._cards[arguments["slug"]].refusal
        return Unclear(refusal) if refusal else self._unusable(SCRIPTS)

    @cached_property
    def examples(self) -> list[tuple[Card, str]]:
        """The usable skills, each with an example message."""
        shown = ((card, self._first_readable(card)) for card in self._cards.values())
        return [(card, example) for card, example in shown if example]

    def _first_readable(self, card: Card) -> str:
        for example in card.examples:
            if self._match_reader(read(example), _tools_with_rules(card)):
                return f"“{example}”"
            if self._without_text(example):
                return f"“{example}”, with the text below it"
        return ""

    def _by_rule(self, message: BuiltinMessage, ranked: Sequence[Match]) -> ExplicitCall | None:
        """Return the call of the first matching rule: those of the best skill first, other rules last."""
        of_skills = [name for match in ranked for name in _tools_with_rules(self._cards[match.key])]
        return self._match_reader(message, [*of_skills, *READERS])

    def _match_reader(self, message: BuiltinMessage, names: Sequence[str]) -> ExplicitCall | None:
        for name in dict.fromkeys(names):
            if name in self._tools and (arguments := READERS[name](message)) is not None:
                return ExplicitCall(name, arguments)
        return None

    def _continue(self, message: BuiltinMessage, earlier: Sequence[str]) -> ExplicitCall | None:
        """Return the call of a message that refers to an earlier one."""
        if not message.phrase:
            return None
        before = [read(text) for text in earlier[-EARLIER_LIMIT:] if len(text) <= PHRASE_LIMIT]
        call = complete(message, before, lambda other: self._match_reader(other, list(READERS)))
        return call if call and call.tool in self._tools else None

    def _with_correct_spelling(self, text: str) -> ExplicitCall | None:
        """Return the call of a message with spelling mistakes in the words of a rule."""
        corrected, originals = correct_spelling(text)
        call = self._match_reader(read(corrected), list(READERS)) if originals else None
        if call is None or call.tool in _NEVER_GUESSED:
            return None
        return ExplicitCall(call.tool, restore(call.arguments, originals))

    def _incomplete_reminder(self, message: BuiltinMessage) -> Unclear | None:
        missing = missing_part(message.phrase) if "schedule_once" in self._tools else ""
        return Unclear(_TASK_MISSING if missing == "task" else _TIME_MISSING) if missing else None

    def _without_text(self, text: str) -> Unclear | None:
        if "\n" in text.strip():
            return None
        readable = any(self._match_reader(read(text + sample), list(READERS)) for sample in _SAMPLES)
        return Unclear(_TEXT_MISSING) if readable else None

    def _by_name(self, message: BuiltinMessage) -> ExplicitCall | None:
        """Return the call of a tool without a rule whose whole name is in the message.

        The message may contain at most one quoted value, the argument.
        """
        ranked = self._tool_ranking.rank(message.question, limit=2)
        if not _is_clear(ranked) or ranked[0].key in READERS or _NO_REQUEST.search(message.phrase):
            return None
        name, used = ranked[0].key, _significant_words(message.question)
        about = _significant_words(self._tool_words[name])
        if not used or not _significant_words(name) <= used or 2 * len(used & about) < len(used):
            return None
        arguments = _quoted_argument(self._tools[name], message)
        return None if arguments is None else ExplicitCall(name, arguments)

    def _explain_unavailable(self, message: BuiltinMessage) -> Unclear | None:
        """Return an explanation for a message that names or implies a tool that is not available."""
        others = (name for name in READERS if name not in self._tools)
        matching = (name for name in others if READERS[name](message) is not None)
        name = called_name(message.text) or next(matching, None)
        return self._unusable(name) if name else None

    def _unusable(self, name: str) -> Unclear:
        near = get_close_matches(name, self._tools, n=1, cutoff=0.8)
        hint = f" Did you mean {near[0]}?" if near else ""
        return Unclear(
            f"I cannot use the tool {name} here: it does not exist, it is not configured, or a "
            f"permission denies it. `torana tools list` shows the reason to the operator.{hint}"
        )

    def _fit(self, message: BuiltinMessage, ranked: Sequence[Match]) -> Fit | None:
        if not _is_clear(ranked):
            return None
        card = self._cards[ranked[0].key]
        if any(name in READERS and name in self._tools for name in card.tools):
            return None
        shared = _significant_words(message.question) & _significant_words(self._card_words[card.slug])
        return Fit(card) if len(shared) >= SHARED_WORDS else None


def _tools_with_rules(card: Card) -> list[str]:
    """Return the skill's tools that have a rule, in the order of the rules."""
    return [name for name in READERS if name in card.tools]


def _is_clear(ranked: Sequence[Match]) -> bool:
    return bool(ranked) and (len(ranked) == 1 or ranked[0].score >= CLEARLY * ranked[1].score)


def _significant_words(text: str) -> set[str]:
    return set(words(text)) - _STOPWORDS


def _quoted_argument(tool: ToolDefinition, message: BuiltinMessage) -> Mapping[str, str] | None:
    """Return the argument of a tool with one required text, if the message quotes exactly one text.

    Return {} if the tool requires no argument and the message quotes no text, and None in all other cases.
    """
    quoted = [plain or curly for plain, curly in _QUOTED.findall(message.text)]
    names = required_arguments(tool)
    if len(names) != len(quoted) or len(names) > 1:
        return None
    schemas = tool.parameters_json_schema.get("properties", {})
    are_texts = all(schemas.get(name, {}).get("type") == "string" for name in names)
    return dict(zip(names, quoted, strict=True)) if are_texts else None


def small_talk(message: BuiltinMessage) -> FixedReply | None:
    """Return the reply to a message that is nothing but small talk, with or without a greeting before it."""
    if len(message.text) > _SMALL_TALK_LIMIT:
        return None
    texts = dict.fromkeys((_words_only(message.text), _words_only(message.phrase)))
    replies = (language.reply(text) for text in texts if text for language in languages().values())
    return next(filter(None, replies), None)


def _words_only(text: str) -> str:
    """Return the text without punctuation and emoji around it."""
    return " ".join(_EDGES.sub("", text.translate(_STRAIGHT)).split())
