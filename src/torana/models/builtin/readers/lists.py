"""Read requests about shopping lists, to-do lists and other lists."""

from __future__ import annotations

import re

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, wordings

#: The list of a message that names none.
DEFAULT_LIST = "shopping"

_WHOSE = r"(?:my|the|our)"
_LIST = rf"{_WHOSE} (?P<name>[\w'-]+(?: [\w'-]+){{0,3}}?) list"
_NAMELESS = rf"(?:{_WHOSE} list|it)"
_ENTRIES = r"(?P<entries>\S.{0,250}?)"
_PLEASE = r"(?: too| as well| again| please| now)?"

_ADD_TO = rf"(?:also )?(?:add|put|write|append|include)(?: down)? {_ENTRIES} (?:to|on|onto|in|into)"
_ADD = (
    wordings(rf"{_ADD_TO} {_LIST}{_PLEASE}"),
    wordings(rf"{_ADD_TO} (?!(?:my|the|our|an?|this|that|his|her|their|your) )(?P<name>[\w'-]+) list{_PLEASE}"),
    wordings(rf"{_ADD_TO} {_WHOSE} (?P<name>to-?do)s{_PLEASE}"),
    wordings(rf"{_WHOSE} (?P<name>[\w'-]+) list: {_ENTRIES}"),
)
_BUY = wordings(rf"(?:i|we) (?:still )?(?:need|have) to (?:buy|get) {_ENTRIES}")
_CREATE = (
    wordings(
        r"(?:create|make|start|begin)(?: me)? (?:an? |my |the )?(?:new )?"
        r"(?!new )(?P<name>[\w'-]+(?: [\w'-]+)?) list"
    ),
    wordings(
        r"(?:create|make|start|begin)(?: me)? (?:an? )?(?:new )?list (?:called|named|for) "
        r"(?P<name>[\w' -]{1,40})"
    ),
)
_SHOW = (
    wordings(
        r"(?:(?:what(?:'?s| is| are)?|show(?: me)?|read(?: me)?(?: out)?|give me|open|display|view)"
        r"(?: all)?(?: (?:(?:the )?(?:things|items|entries|everything)))?(?: (?:on|in|from))? )?" + _LIST
    ),
    wordings(rf"(?:is|are|do i have) .{{1,60}} (?:on|in) {_LIST}"),
    wordings(rf"how (?:many|much)(?: \w+)?(?: is| are| do i have)?(?: there)? (?:on|in) {_LIST}"),
    wordings(rf"(?:what(?:'?s| is| are)(?: (?:on|in))? |show(?: me)? |list )?{_WHOSE} (?P<name>to-?do)s"),
    wordings(r"(?P<name>shopping|grocery|to-?do|to do|packing|wish|reading) list"),
)
_SHOW_ALL = wordings(
    r"(?:what|which) lists (?:do i have|have i(?: got)?|are there)",
    r"(?:show(?: me)?|list)(?: all)?(?: (?:of )?(?:my|the))? lists",
    r"(?:what are )?my lists",
)
_TO_DO = wordings(r"what do i (?:have|need) to do(?: today)?", r"what(?:'s| is) (?:left )?to do")
_TO_BUY = wordings(r"what (?:do|should) (?:i|we) (?:(?:have|need) to )?buy(?: today)?")
_DONE = wordings(
    rf"(?:mark|tick|check|cross) (?:off )?{_ENTRIES} (?:as |off )?(?:done|finished|complete|completed|off)"
)
_REMOVE = (
    wordings(
        rf"(?:remove|delete|take|cross|strike|tick|check)(?: off)? (?!.{{0,40}}duplicate){_ENTRIES}(?: off)? "
        rf"(?:off|from|on|of|out of)(?: of)? {_LIST}"
    ),
)
_CLEAR = wordings(rf"(?:clear|empty|delete|erase|reset|remove)(?: everything (?:on|from))? {_LIST}")

_NAMELESS_ADD = wordings(rf"(?:and |also |please )*(?:add|put) {_ENTRIES} (?:to|on) {_NAMELESS}{_PLEASE}")
_NAMELESS_SHOW = wordings(
    rf"(?:what(?:'?s| is| else is| are)|show(?: me)?|read(?: me)?)(?: all)?(?: (?:on|in))? {_NAMELESS}",
    r"(?:show(?: me)?|read(?: me)?) (?:the|my|our) list",
)
_NAMELESS_REMOVE = wordings(
    rf"(?:remove|delete|take|cross|strike)(?: off)? {_ENTRIES} (?:off|from)(?: of)? {_NAMELESS}"
)
_AND = wordings(rf"(?:and|also|plus)(?: add| put)? {_ENTRIES}{_PLEASE}")
_BARE_ADD = wordings(rf"add {_ENTRIES}{_PLEASE}")
_BARE_REMOVE = (
    wordings(rf"(?:remove|delete|cross off|take off) (?:the )?{_ENTRIES}"),
    wordings(rf"(?:i|we)(?: have|'ve)?(?: already)? (?:bought|got) (?:the )?{_ENTRIES}"),
)
#: Words that are not entries of a list: "add 3 to 4", "remove duplicates".
_NO_ENTRY = wordings(
    r"(?:it|this|that|them|these|those|everything|all|duplicates?|me|you|an?)\b.*",
    r"[\d\s.,]+(?: (?:to|and) [\d.,]+)?",
    r".*\b(?:reminders?|timers?|alarms?|file|memory|memories|days?|weeks?|months?|years?|lines?|words?)\b.*",
)
#: "Add subtitles to my video" is not a request about a list.
_TARGET = wordings(r" (?:to|into|onto|in|on) ")
_SEPARATOR = re.compile(r" ?[,;] ?(?:and )?| and | & ")
_TASKS_SEPARATOR = re.compile(r" ?[,;] ?")
_ARTICLE = wordings(r"\A(?:the|some) ")


def add_to_list(message: BuiltinMessage) -> Arguments | None:
    """Read a request to add entries to a named list, to create one, or a remark on what to buy."""
    if (match := first_match(_ADD, message.phrase)) and _is_entry(match["entries"]):
        return _arguments(_list_name(match["name"]), match["entries"])
    if match := first_match(_CREATE, message.phrase):
        return {"name": _list_name(match["name"]), "entries": []}
    match = _BUY.fullmatch(message.phrase)
    return _arguments(DEFAULT_LIST, match["entries"]) if match and _is_entry(match["entries"]) else None


def show_list(message: BuiltinMessage) -> Arguments | None:
    """Read a request for the entries of a named list, or for all lists."""
    phrase = message.phrase
    if _SHOW_ALL.fullmatch(phrase):
        return {"name": ""}
    if _TO_DO.fullmatch(phrase):
        return {"name": "todo"}
    if _TO_BUY.fullmatch(phrase):
        return {"name": DEFAULT_LIST}
    match = first_match(_SHOW, phrase)
    return {"name": _list_name(match["name"])} if match else None


def remove_from_list(message: BuiltinMessage) -> Arguments | None:
    """Read a request to remove entries from a named list, or to delete the list."""
    if match := _CLEAR.fullmatch(message.phrase):
        return {"name": _list_name(match["name"]), "entries": [], "everything": True}
    if match := _DONE.fullmatch(message.phrase):
        return _arguments("todo", match["entries"])
    match = first_match(_REMOVE, message.phrase)
    return _arguments(_list_name(match["name"]), match["entries"]) if match else None


def read_unnamed_list(phrase: str, *, name: str, recent: bool) -> tuple[str, Arguments] | None:
    """Return the tool and arguments of a message that is about the list ``name`` but does not name it.

    With ``recent``, the last request was about that list, so that shorter messages are clear.
    """
    if _NAMELESS_SHOW.fullmatch(phrase):
        return "show_list", {"name": name}
    adds = first_match((_NAMELESS_ADD, *((_AND,) if recent else ()), _BARE_ADD), phrase)
    if adds and _is_entry(adds["entries"]) and not _TARGET.search(adds["entries"]):
        return "add_to_list", _arguments(name, adds["entries"])
    removes = first_match((_NAMELESS_REMOVE, *(_BARE_REMOVE if recent else ())), phrase)
    if removes and _is_entry(removes["entries"]):
        return "remove_from_list", _arguments(name, removes["entries"])
    return None


def _arguments(name: str, entries: str) -> Arguments:
    """Return the arguments for a list and entries that are written with commas and "and"."""
    return {"name": name, "entries": _split(name, entries)}


def _split(name: str, entries: str) -> list[str]:
    quoted = re.fullmatch(r"(['\"])(.+)\1", entries)
    if quoted:
        return [quoted[2]]
    # "Call mum and dad" is one task.
    separator = _TASKS_SEPARATOR if name == "todo" else _SEPARATOR
    return [entry for part in separator.split(entries) if (entry := _ARTICLE.sub("", part.strip()))]


def _is_entry(entries: str) -> bool:
    return not _NO_ENTRY.fullmatch(entries)


def _list_name(name: str) -> str:
    plain = name.lower()
    return {"to-do": "todo", "to do": "todo", "grocery": "shopping", "groceries": "shopping"}.get(plain, plain)
