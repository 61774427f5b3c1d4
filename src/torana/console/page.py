"""The page of the console: its HTML, and a content security policy that permits only its own script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torana.console.bundle import bundle, compact

_ROOT = Path(__file__).parent

#: The languages, in the order in which the page offers them.
LANGUAGES = ("en", "de", "zh")

_STYLES = ("base.css", "chat.css", "operate.css")

#: The key of a text as a literal in the script, and the constant prefix of a key that the script composes.
_KEY = re.compile(r'(\bt\(|\blabel: )"([a-z_0-9.]+)"')
_COMPOSED = re.compile(r"`([a-z_]+[._][a-z_0-9.]*)\$\{")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """The bytes of the page, and the value of its ``Content-Security-Policy``."""

    body: bytes
    policy: str


def build_page(config: Mapping[str, Any]) -> ConsolePage:
    """Return the page. ``config`` has the values that it needs before its first request, and no secrets."""
    script, texts = _number_texts("\n" + bundle(lambda path: (_ROOT / path).read_text(), "app/main.js"))
    style = _compact_style("\n".join((_ROOT / "style" / name).read_text() for name in _STYLES))
    html = (_ROOT / "page.html").read_text()
    data = _json({"config": config, "texts": texts})
    for placeholder, content in (("/*style*/", style), ("/*script*/", script), ("/*data*/", data)):
        html = html.replace(placeholder, content, 1)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return ConsolePage(body=html.encode(), policy=policy)


def _compact_style(text: str) -> str:
    """Remove needless spaces, the last semicolons of rules, and zeros before decimal points."""
    style = re.sub(r"\s*([{};,>])\s*", r"\1", compact(text)).replace(": ", ":").replace(";}", "}")
    return re.sub(r"(?<![\d.])0\.(?=\d)", ".", style)


def _number_texts(script: str) -> tuple[str, dict[str, Any]]:
    """Replace the keys of texts by numbers, to make the page smaller; return the script and the texts.

    The texts of each language are a list, and a number is an index of it. Keys that the script composes, such
    as ``state.${value}``, are not replaced. Their texts end the list, in the order of ``composed``.
    """
    languages = {code: json.loads((_ROOT / "languages" / f"{code}.json").read_text()) for code in LANGUAGES}
    known = languages[LANGUAGES[0]]
    prefixes = tuple(_COMPOSED.findall(script))
    found = (key for _, key in _KEY.findall(script))
    numbered_keys = dict.fromkeys(key for key in found if key in known and not key.startswith(prefixes))
    composed = [key for key in known if key not in numbered_keys]
    keys = [*numbered_keys, *composed]
    numbers = {key: number for number, key in enumerate(numbered_keys)}
    numbered = _KEY.sub(
        lambda found: f"{found[1]}{numbers[found[2]]}" if found[2] in numbers else found[0], script
    )
    texts = {code: [texts[key] for key in keys] for code, texts in languages.items()}
    return numbered, {"composed": " ".join(composed), **texts}


def _json(value: Any) -> str:
    """Return JSON that cannot end a script element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
