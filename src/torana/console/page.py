"""The page of the console: its HTML, and the policy that lets it run its own script and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torana.console.bundle import bundle

_ROOT = Path(__file__).parent

#: The languages, in the order in which the page offers them.
LANGUAGES = ("en", "de", "zh")

_STYLES = ("base.css", "chat.css", "operate.css")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """The bytes of the page, and the value of its ``Content-Security-Policy``."""

    body: bytes
    policy: str


def build_page(config: Mapping[str, Any]) -> ConsolePage:
    """Return the page. ``config`` is the values that it needs before its first request; it holds no secret."""
    generated = f"export const config = {_json(config)};\nexport const languages = {_json(_languages())};"

    def read(path: str) -> str:
        return generated if path == "generated.js" else (_ROOT / path).read_text()

    script = "\n" + bundle(read, "app/main.js")
    style = "\n".join((_ROOT / "style" / name).read_text() for name in _STYLES)
    html = (_ROOT / "page.html").read_text()
    html = html.replace("/*style*/", style, 1).replace("/*script*/", script, 1)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return ConsolePage(body=html.encode(), policy=policy)


def _languages() -> dict[str, dict[str, str]]:
    return {code: json.loads((_ROOT / "languages" / f"{code}.json").read_text()) for code in LANGUAGES}


def _json(value: Any) -> str:
    """Return JSON that cannot end a script element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
