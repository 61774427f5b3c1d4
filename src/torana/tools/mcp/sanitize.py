"""Detect invisible characters, lone surrogates and instructions to the model in texts of MCP servers."""

from __future__ import annotations

import json
import re

from torana.characters import HIDDEN, PRIVATE, char_class, remove_blank_sequences

#: Characters that a text for people does not need.
_HIDDEN = char_class(HIDDEN, PRIVATE, "\U000e01f0-\U000e0fff")

#: Phrases that a tool's description has no reason to contain.
_INSTRUCTIONS = re.compile(
    r"(ignore|disregard|forget|override)\W+(\w+\W+){0,3}(previous|prior|above|earlier|preceding|system|other|all)\W+"
    r"(\w+\W+){0,2}(instruction|prompt|rule|message|tool|direction)"
    r"|(do\W+not|don\W?t|never|without)\W+(\w+\W+){0,2}(tell|mention|inform|notify|reveal|show|telling|informing)"
    r"\W+(\w+\W+){0,3}user"
    r"|(system|developer)\W+prompt"
    r"|you\W+are\W+now\b|new\W+instructions?\s*:"
    r"|</?\s*(system|important|instructions?|secret|hidden)\s*>|<\|\w+\|>|\[/?INST\]"
    r"|\.ssh/|id_rsa\b|/etc/(passwd|shadow)\b|~/\.(aws|cursor|config)\b",
    re.IGNORECASE,
)


def has_hidden(text: str) -> bool:
    return without_hidden(text) != text


def without_hidden(text: str) -> str:
    return remove_blank_sequences(_HIDDEN.sub("", text))


def replace_lone_surrogates(document: bytes) -> bytes:
    """Return a JSON document with a question mark for each lone surrogate, which the library does not parse."""
    if b"\\ud" not in document.lower():
        return document
    try:
        text = json.dumps(json.loads(document), ensure_ascii=False)
        replaced = text.encode(errors="replace")
        if replaced == text.encode(errors="surrogatepass"):
            return document
        # In ASCII, because some characters end a line of an event stream.
        return json.dumps(json.loads(replaced)).encode()
    except (ValueError, RecursionError):  # the library refuses it
        return document


def instructs(text: str) -> bool:
    """Return whether the text gives the model instructions. A heuristic, not a proof."""
    return _INSTRUCTIONS.search(text) is not None
