"""How a caller would like to be answered: ``Prefer`` (RFC 7240), and under which name: ``Idempotency-Key``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.request import parse_http_list

from torana.errors import InvalidField

_QUOTED_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE_KEY = re.compile(r"[!#-~]+")
_ESCAPED = re.compile(r"\\(.)")
_KEY_LIMIT = 255

#: More seconds than anybody waits for.
_WAIT_LIMIT = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What of ``Prefer`` is known here; the rest is ignored, as the standard says."""

    respond_async: bool = False
    #: Seconds; None where nothing is said.
    wait: int | None = None
    cancel_on_disconnect: bool = False

    @property
    def applied(self) -> dict[str, str]:
        """``Preference-Applied`` for an answer that came later than asked."""
        wait = "" if self.wait is None else f", wait={self.wait}"
        return {"Preference-Applied": f"respond-async{wait}"}


def read_preferences(values: Sequence[str]) -> Preferences:
    """The preferences of all ``Prefer`` headers; of one that is named twice the first counts."""
    named: dict[str, str] = {}
    for part in parse_http_list(",".join(values)):
        name, _, value = part.partition(";")[0].partition("=")
        named.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = named.get("wait", "")
    return Preferences(
        respond_async="respond-async" in named,
        wait=min(int(wait), _WAIT_LIMIT) if re.fullmatch("[0-9]{1,9}", wait) else None,
        cancel_on_disconnect="cancel-on-disconnect" in named,
    )


def read_key(values: Sequence[str]) -> str | None:
    """The caller's name for the message, quoted or bare. Raises ``InvalidField`` for what is no such name."""
    if not values:
        return None
    key = _unquoted(values[0].strip()) if len(values) == 1 else ""
    if not 1 <= len(key) <= _KEY_LIMIT:
        raise InvalidField(
            f"Idempotency-Key must be one text of 1 to {_KEY_LIMIT} visible ASCII characters, "
            "quoted where it holds a space or a quotation mark."
        )
    return key


def _unquoted(text: str) -> str:
    """What a string (RFC 9651, 3.3.3) or a bare text says; nothing where it is neither."""
    if quoted := _QUOTED_KEY.fullmatch(text):
        return _ESCAPED.sub(r"\1", quoted[1])
    return text if _BARE_KEY.fullmatch(text) else ""
